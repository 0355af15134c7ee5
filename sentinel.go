package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"picket/tools"
)

// A Sentinel is the gate: it assesses, decides, asks, records and runs every
// tool call, and is the only code that runs one. Its fields are set once. The
// zero Sentinel refuses everything.
type Sentinel struct {
	tools     map[string]tools.Tool
	policy    *Policy
	mode      func() string // in force now; it can be switched
	approvals *Approvals
	log       *Log
	resolver  *resolver
	ready     func() error // nil unless secrets may be unknown to redact
	lookup    func(name string) (vaultEntry, bool, error)
	holds     func(text string) bool // whether a text holds the value of a secret
	timeout   time.Duration          // of a question
	notify    func(ctx context.Context, line string)
	host      tools.Host // what every call is lent; the gate adds the rest
	keep      func(call, path string, prev, next []byte, set ...chatLabel) error
	labels    *labelStore // of files; nil for none
	redact    func(string) string
	now       func() time.Time
	debug     func(format string, args ...any) // exact errors, for the owner
}

// A Result is what a call came to, in words for the model.
type Result struct {
	Text      string
	Refused   bool   // declined, expired, or denied by policy or guard
	Declined  bool   // by an answer, or for want of one
	LogFailed error  // it could not be recorded, so nothing more may run
	Summary   string // of the call
	Made      string // that the model may have put together what the text holds: madeWords, madeData
}

// What a result can hold of the model's own making, in a chat line.
const (
	madeWords = "words" // of a call that was not run
	madeData  = "data"  // of what code computed, or of files that may hold such
)

// Steps before the policy's own (see policy.go), beside stepGuard.
const (
	stepArguments = "arguments" // the call is malformed
	stepRepeat    = "repeat"    // the same call was declined in this turn
)

// callState is one call on its way through the gate.
type callState struct {
	id      string
	t       *Turn
	call    ToolCall
	digest  string // hex SHA-256 of the exact argument bytes
	tool    tools.Tool
	args    tools.Args
	plan    tools.Plan
	j       tools.Judgement
	reads   []chatLabel // of the files that it reads
	d       Decision
	secrets []string // "NAME → where it goes"
	by      string
	started time.Time
	before  Labels // with which it was decided on

	hop     bool // a redirect to an address that is not the model's
	asked   int  // questions so far
	said    bool // the call was announced
	decided bool // the decision record is written, or could not be
	running bool // and the tool was started
}

// Do carries one call from the model to its result. It never returns an error:
// a refusal and a failure are results too, recorded first. Every call leaves
// exactly one decision record, and a result record if it ran.
func (s *Sentinel) Do(ctx context.Context, t *Turn, call ToolCall) (res Result) {
	sum := sha256.Sum256([]byte(call.Function.Arguments))
	c := &callState{id: newID("c"), t: t, call: call, digest: hex.EncodeToString(sum[:])}
	defer func() {
		if p := recover(); p != nil {
			s.debug("panic in call %s: %v\n%s", c.id, p, debug.Stack())
			res = s.afterPanic(ctx, c)
		}
		res.Summary = s.summary(c)
		res.Made = c.made()
	}()
	if t.Caller.barred(call.Function.Name) {
		return s.refuse(ctx, c, stepGuard, "what picket remembers of the owner is not for other apps")
	}
	if why, step := s.prepare(c); why != "" {
		return s.refuse(ctx, c, step, why)
	}
	if t.declined[c.key()] {
		return s.refuse(ctx, c, stepRepeat, "the same call was declined before in this turn")
	}
	s.announce(c)
	if refused, done := s.decide(ctx, c); done {
		return refused
	}
	if err := s.recordDecision(ctx, c, Allow); err != nil {
		return s.logFailed(c, err)
	}
	after, err := s.follow(ctx, c)
	if err != nil {
		return s.finish(ctx, c, tools.Output{Err: "the labels of the chat could not be kept, so the call was not run"}, err)
	}
	return s.finish(ctx, c, after(s.run(ctx, c)), nil)
}

// key is equal for identical calls.
func (c *callState) key() string { return c.call.Function.Name + " " + c.digest }

// prepare freezes the arguments and finds out what the call means. It returns
// why the call is refused, or "".
func (s *Sentinel) prepare(c *callState) (why, step string) {
	if c.call.Invalid != "" {
		return c.call.Invalid, stepArguments
	}
	tool, ok := s.tools[c.call.Function.Name]
	if !ok {
		return fmt.Sprintf("there is no tool %q", c.call.Function.Name), stepArguments
	}
	c.tool = tool
	raw := []byte(c.call.Function.Arguments)
	args, err := tool.Parse(raw)
	if err != nil {
		return err.Error(), stepArguments
	}
	c.args = args
	if c.plan, err = tool.Assess(args); err != nil {
		return err.Error(), stepArguments
	}
	if why, step := s.checkSecrets(c); why != "" {
		return why, step
	}
	return s.judge(c)
}

// judge looks the names of the plan up and says what they mean. It is done
// again after every wait.
func (s *Sentinel) judge(c *callState) (why, step string) {
	if s.ready != nil {
		if err := s.ready(); err != nil {
			return err.Error() + ", so no tool runs", stepGuard
		}
	}
	facts := s.resolver.facts(c.plan)
	for _, p := range c.plan.Paths {
		if f, ok := facts.Paths[p.Name]; ok && f.Place == tools.Protected {
			return fmt.Sprintf("%q is picket's own or the kernel's, and no tool may touch it", p.Name), stepGuard
		}
	}
	c.j = c.tool.Judge(c.args, c.plan, facts)
	c.j.Summary = shortSummary(s.redact(c.j.Summary))
	if c.j.Refuse != "" {
		return c.j.Refuse, stepGuard
	}
	var err error
	if c.reads, err = s.fileLabels(c); err != nil {
		return "the labels of files cannot be known: " + err.Error(), stepGuard
	}
	return s.judgeSecrets(c)
}

// decide asks the policy, and the owner if it says so. done means that the call
// is refused and recorded.
func (s *Sentinel) decide(ctx context.Context, c *callState) (res Result, done bool) {
	for range 3 {
		if ctx.Err() != nil {
			return s.refuse(ctx, c, stepGuard, "the turn was stopped"), true
		}
		var in Input
		// Nobody revokes a grant between this look at it and the record of what
		// it lets through.
		look := func(held []Grant) error {
			in = s.input(c, held)
			c.before = in.Labels
			if c.d = s.policy.Decide(in); c.d.Verdict != Allow {
				return nil
			}
			c.by = c.d.By
			return s.recordDecision(ctx, c, Allow)
		}
		err := s.approvals.While(ctx, c.t.ID, look)
		if err != nil && !c.decided { // no grant holds
			err = look(nil)
		}
		if c.decided && err == nil && c.j.Risk != tools.Safe {
			err = s.log.Append(context.WithoutCancel(ctx), true) // on disk before the act
		}
		if err != nil {
			return s.decline(ctx, c, Answer{}, err), true
		}
		switch c.d.Verdict {
		case Allow:
			return Result{}, false
		case Ask:
		default:
			return s.refuse(ctx, c, c.d.Step, strings.Join(c.d.Reasons, "; ")), true
		}
		a, err := s.question(ctx, c, in)
		if err != nil || !a.Allow {
			return s.decline(ctx, c, a, err), true
		}
		// The wait can have been an hour: look again at what would run.
		if why, step := s.judge(c); why != "" {
			return s.refuse(ctx, c, step, why), true
		}
		now := s.input(c, s.approvals.Held(ctx, c.t.ID))
		d := s.policy.Decide(now)
		if d.Verdict == Deny {
			c.d = d
			return s.refuse(ctx, c, d.Step, strings.Join(d.Reasons, "; ")), true
		}
		if d.Verdict == Allow { // granted meanwhile: the call is the same
			d = c.d
		}
		why := voids(&in, &now, c.d, d)
		if why == "" {
			if err := s.approvals.Grant(ctx, c.record(nil), c.t.ID, grantsFor(&in, a.Scope)); err != nil {
				return s.decline(ctx, c, a, err), true
			}
			c.by = "owner"
			return Result{}, false
		}
		c.t.Emit(Event{Type: "text", Text: "the answer is void: " + why, wait: true})
	}
	return s.refuse(ctx, c, stepGuard, "what the call would do kept changing while it was asked about"), true
}

// input is what the policy decides about: the call as it is now.
func (s *Sentinel) input(c *callState, held []Grant) Input {
	t := c.t
	return Input{
		Tool: c.tool, Args: c.args.Values, Judgement: c.j, Labels: t.Chat.labels().with(labelsIn(c.reads)),
		Channel: t.Caller.Channel, Workspace: s.host.Workspace,
		Mode: s.mode(), Grants: held,
		URLSeen: c.hop || c.j.URL != "" && t.seen(c.args.String("url"), c.j.URL),
	}
}

// question asks the owner, where that can be done.
func (s *Sentinel) question(ctx context.Context, c *callState, in Input) (Answer, error) {
	from := c.t.Caller
	if from.Ask == nil && !from.Wait {
		return Answer{}, errors.New("it needs an answer, and there is no terminal to ask on (--wait lets it wait for \"picket approvals\")")
	}
	card := makeCard(cardInput{Input: &in, Decision: c.d, Words: c.t.Text, Source: from.source(), Chat: c.t.Chat.Name,
		Labels: labelLines(append(slices.Clip(c.t.Chat.Sources), c.reads...)), Secrets: c.secrets, Change: s.change(c), Redact: s.redact})
	c.asked++
	id := c.id
	if c.asked > 1 { // what is asked is not what was asked before
		id += fmt.Sprintf("-%d", c.asked)
	}
	q := Question{ID: id, Chat: c.t.Chat.Name, Channel: from.Channel, Digest: c.digest, Offered: card.Offered,
		Card: card.Lines, Until: s.now().Add(s.timeout)}
	c.t.Emit(Event{Type: "question", ID: id, Summary: s.redact(c.j.Summary), Reasons: s.redactAll(c.d.Reasons), Offered: scopeNames(card.Offered)})
	show := func(ctx context.Context) {
		a, err := from.Ask(ctx, card)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // nobody can be asked here after all
			s.debug("question %s: %v", c.id, err)
			if from.Wait {
				return
			}
			a = Answer{Reason: err.Error()}
		}
		a.By = "terminal"
		if err := s.approvals.Answer(ctx, id, c.digest, a); err != nil {
			s.debug("answer to %s: %v", c.id, err)
		}
	}
	if from.Ask == nil {
		show = nil
		s.notify(ctx, "picket asks: "+s.redact(c.j.Summary)+" (picket approvals allow "+id+")")
	}
	a, err := s.approvals.Ask(ctx, q, show)
	rec := a.record()
	c.t.Emit(Event{Type: "answer", ID: c.id, Answer: rec.Answer, Scope: rec.Scope, By: rec.By})
	if from.Ask == nil {
		s.notify(context.WithoutCancel(ctx), "picket: "+rec.Answer+": "+s.redact(c.j.Summary))
	}
	return a, err
}

// record is a record of this call.
func (c *callState) record(body recordBody) Record {
	r := c.t.record(body)
	r.Call = c.id
	return r
}

// change is what the call would make of a file, for the card.
func (s *Sentinel) change(c *callState) *tools.FileChange {
	if c.tool.Change == nil {
		return nil
	}
	ch, ok := c.tool.Change(&tools.Call{ID: c.id, Args: c.args, Plan: c.plan, Judgement: c.j, Host: &s.host})
	if !ok {
		return nil
	}
	ch.Old, ch.New = s.redact(ch.Old), s.redact(ch.New)
	return &ch
}

func labelLines(list []chatLabel) []string {
	var out []string
	for _, l := range list {
		out = append(out, l.Label+": "+l.Source)
	}
	return out
}

// seen reports whether a URL stands verbatim in the owner's words or in a
// result of the chat, where the model cannot have put it: not in a call before,
// which a result may repeat, nor by code or files. People write addresses without
// a scheme, so in the owner's words that counts too.
func (t *Turn) seen(urls ...string) bool {
	own := false
	for _, l := range t.Chat.Messages {
		words, _, _ := strings.Cut(l.Content, "\n\n"+pipedBegin+"\n")
		for _, u := range urls {
			_, bare, _ := strings.Cut(u, "://")
			switch {
			case u == "" || l.Role == "user" && l.Channel == channelAPI:
			case l.Role == "assistant":
				own = own || slices.ContainsFunc(l.Calls, func(c ToolCall) bool { return c.says(u) })
			case l.Role == "user" && bare != "" && (containsURL(words, bare) || containsURL(words, strings.TrimSuffix(bare, "/"))),
				(l.Role == "user" || !own && l.Made == "") && containsURL(l.Content, u):
				return true
			}
		}
	}
	return false
}

// says reports whether a call holds a text, also as a URL carries it.
func (c ToolCall) says(text string) bool {
	said := c.Function.Name + " " + c.Function.Arguments
	if v, err := tools.DecodeStrict([]byte(c.Function.Arguments)); err == nil {
		said += fmt.Sprint(v)
	}
	plain, err := url.PathUnescape(said)
	return strings.Contains(said, text) || err == nil && strings.Contains(plain, text)
}

// made says what the result can hold of the model's own making. What it wrote
// before there were words of others in the chat, nobody but the owner led it to.
func (c *callState) made() string {
	data := func(l chatLine) bool { return l.Made == madeData }
	switch files := c.tool.Name == tools.Files.Name; {
	case !c.running:
		return madeWords
	case c.t.Chat.labels().Untrusted && (runsCode(c.tool.Name) || files && (len(c.j.Writes) > 0 || slices.ContainsFunc(c.t.Chat.Messages, data))):
		return madeData
	}
	return ""
}

// containsURL finds a URL that begins and ends where the text's does: a longer
// one with the same beginning or end is another address.
func containsURL(text, u string) bool {
	const after = " \t\r\n\"'<>)]}`"
	for from := 0; ; {
		i := strings.Index(text[from:], u)
		if i < 0 {
			return false
		}
		i += from
		from = i + 1
		if !strings.Contains(u, "://") && i > 0 && !strings.HasSuffix(text[:i], "://") && !strings.ContainsRune(after+"([{,|:=", rune(text[i-1])) {
			continue
		}
		end := i + len(u)
		if end == len(text) || strings.ContainsRune(after+",|", rune(text[end])) {
			return true
		}
		if rest := strings.TrimLeft(text[end:], ".;:!?"); rest == "" || strings.ContainsRune(after, rune(rest[0])) {
			return true
		}
	}
}

// labels are those that the call puts on its chat, before it runs and whatever
// comes of it.
func (c *callState) labels() []chatLabel {
	var out []chatLabel
	source := c.tool.Name
	if len(c.j.Egress.Hosts) > 0 {
		source += " " + strings.Join(c.j.Egress.Hosts, " ")
	}
	if c.j.ReadsPrivate {
		out = append(out, chatLabel{"private", source})
	}
	if c.j.ReadsUntrusted {
		out = append(out, chatLabel{"untrusted", source})
	}
	return out
}

// label puts labels on the chat of a turn and records those that are new.
func (s *Sentinel) label(ctx context.Context, t *Turn, add ...chatLabel) error {
	for i := range add {
		add[i].Source = s.redact(add[i].Source)
	}
	fresh, err := t.Chat.label(add...)
	if err != nil {
		return err
	}
	var recs []Record
	for _, l := range fresh {
		recs = append(recs, t.record(labelRecord{Set: []string{l.Label}, Source: l.Source}))
	}
	if len(recs) == 0 {
		return nil
	}
	return s.log.Append(context.WithoutCancel(ctx), false, recs...)
}

// run does the call. This is the one place in the program that runs a tool.
func (s *Sentinel) run(ctx context.Context, c *callState) (out tools.Output) {
	defer func() {
		if p := recover(); p != nil {
			s.debug("panic in tool %s, call %s: %v\n%s", c.tool.Name, c.id, p, debug.Stack())
			out = tools.Output{Err: "the tool failed with an internal error"}
		}
	}()
	args, vars, err := s.reveal(c)
	if err != nil {
		return tools.Output{Err: err.Error()}
	}
	c.started, c.running = s.now(), true
	host, ask := s.host, c.t.Caller.AskText
	host.Redact = s.redact
	host.Keep = func(path string, prev, next []byte) error {
		set, err := s.labels.of(path, c.id)
		if err != nil {
			return err
		}
		return s.keep(c.id, path, prev, next, set...)
	}
	host.Ask = func(ctx context.Context, q string) (string, error) {
		if ask == nil {
			return "", errors.New("nobody can be asked: there is no terminal")
		}
		return ask(ctx, s.redact(q))
	}
	host.Exec = func(ctx context.Context, cmd tools.Command) tools.ExecResult { return s.exec(ctx, c, cmd) }
	host.Hop = func(ctx context.Context, url string) error { return s.hop(ctx, c, url) }
	if c.tool.Name == "files" { // a search reads what a call of its own might not
		in := s.input(c, nil)
		host.Protected = func(path string) bool { return s.host.Protected(path) || s.policy.deniesFile(&in, path) }
	}
	return c.tool.Execute(ctx, &tools.Call{ID: c.id, Args: args, Plan: c.plan, Judgement: c.j, Secrets: vars, Host: &host})
}

// hop decides about a redirect of an approved fetch as about a fresh call, and
// records it. What would ask is refused with the target named, so that the
// model can ask for it in a call of its own.
func (s *Sentinel) hop(ctx context.Context, c *callState, to string) error {
	// A redirect is the server's word, and no address that the model made up if the
	// one before was none.
	h := &callState{id: c.id, t: c.t, hop: c.hop || !c.before.Untrusted || c.t.seen(c.args.String("url"), c.j.URL)}
	raw, _ := json.Marshal(map[string]string{"url": to})
	h.call.Function = ToolFunction{Name: c.tool.Name, Arguments: string(raw)}
	verdict, by, host := Deny, stepGuard, ""
	err := func() error {
		if why, _ := s.prepare(h); why != "" {
			return errors.New(why)
		}
		host = strings.Join(h.j.Egress.Hosts, " ")
		same := slices.Equal(h.j.Egress.Hosts, c.j.Egress.Hosts)
		if !same && s.holds != nil && s.holds(to) {
			return fmt.Errorf("it redirects to %s, with a secret in the address", host)
		}
		// An answer about one address is not one about another.
		h.d = s.policy.Decide(s.input(h, s.approvals.Held(ctx, h.t.ID)))
		verdict, by = h.d.Verdict, h.d.By
		if same && verdict == Ask && (h.d.Step != stepRules || h.d.Rule == c.d.Rule) {
			verdict, by = Allow, c.by // what was approved is this host
		}
		switch verdict {
		case Allow:
			return nil
		case Ask:
			return fmt.Errorf("it redirects to %s, which needs an approval of its own: %s", host, strings.Join(h.d.Reasons, "; "))
		}
		return fmt.Errorf("it redirects to %s, which is refused: %s", host, strings.Join(h.d.Reasons, "; "))
	}()
	text := "deny"
	if verdict == Allow {
		text = "allow"
	}
	name, port := splitHostPort(host, to)
	rec := c.record(egressRecord{Host: s.redact(name), Port: port, Method: c.args.String("method"), Verdict: text, By: by})
	if logErr := s.log.Append(context.WithoutCancel(ctx), true, rec); logErr != nil {
		return logErr
	}
	return err
}

// newID makes an id that nobody can guess.
func newID(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text()[:16])
}
