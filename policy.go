package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"picket/tools"
)

// Verdict is the outcome of a decision. The zero value denies, so that whatever is forgotten is refused.
type Verdict int

const (
	Deny Verdict = iota
	Ask
	Allow
)

func (v Verdict) String() string { return [...]string{"deny", "ask", "allow"}[v] }

// Labels are the two labels of a chat (or of a file, memory or grant).
type Labels struct{ Private, Untrusted bool }

// List returns the labels in their order of the log, never nil.
func (l Labels) List() []string {
	out := []string{}
	if l.Private {
		out = append(out, "private")
	}
	if l.Untrusted {
		out = append(out, "untrusted")
	}
	return out
}

// builtinTools are the names that rules may use although the tool is not offered here.
var builtinTools = []string{"files", "shell", "python_execute", "web_search", "web_fetch", "remember",
	"forget", "recall", "goals", "contacts", "skills", "read_emails", "send_email", "browser", "ask_user"}

// What a GET to a host on the egress allow-list may carry, and a query to the search provider, in bytes.
const (
	maxListedURL = 512
	maxQuery     = 200
)

var toolPattern = lazyRegexp(`^[A-Za-z0-9_.*?-]+$`)

// A Policy decides about calls. It is compiled once and never changes; a nil or zero one denies.
type Policy struct {
	compiled                bool
	mode                    string
	deny, rules, allow, ask []rule
	labels                  bool
	hosts                   []glob
}

// A rule is one of the rules, or a tool list's entry, which matches any argument.
type rule struct {
	name    string // what the log calls it
	tool    glob
	channel string
	match   []argPattern
	action  Verdict
	reason  string
}

type argPattern struct {
	arg string
	pat glob
}

// A keyError is about the value of one setting, named as config.fault names it.
type keyError struct {
	Key string
	Err error
}

func (e *keyError) Error() string { return e.Key + ": " + e.Err.Error() }

// compilePolicy checks the settings and compiles them. toolNames are the tools present here. An error is a *keyError.
func compilePolicy(s sentinelConfig, toolNames []string) (*Policy, error) {
	p := &Policy{mode: s.Mode, labels: s.TaintTracking}
	if err := oneOf(s.Mode, "ask", "strict", "auto"); err != nil {
		return nil, &keyError{"sentinel.mode", err}
	}
	entries := func(names []string, action string) (out []ruleConfig) {
		for _, name := range names {
			out = append(out, ruleConfig{Tool: name, Action: action})
		}
		return out
	}
	for _, l := range []struct {
		key  string
		from []ruleConfig
		to   *[]rule
	}{{"deny_tools", entries(s.DenyTools, "deny"), &p.deny}, {"rules", s.Rules, &p.rules},
		{"always_allow_tools", entries(s.AlwaysAllow, "allow"), &p.allow}, {"always_ask_tools", entries(s.AlwaysAsk, "ask"), &p.ask}} {
		for i, from := range l.from {
			r, err := compileRule(from, toolNames)
			if err != nil {
				return nil, &keyError{fmt.Sprintf("sentinel.%s[%d]", l.key, i), err}
			}
			r.name = fmt.Sprintf("%s[%d] (%s %s)", l.key, i, from.Action, from.Tool)
			r.reason = r.name
			if from.Reason != "" {
				r.reason += ": " + from.Reason
			}
			*l.to = append(*l.to, r)
		}
	}
	for i, host := range s.EgressAllowlist {
		g, err := compileGlob(host)
		if err = cmp.Or(checkHostPattern(host), err); err != nil {
			return nil, &keyError{fmt.Sprintf("sentinel.egress_allowlist[%d]", i), err}
		}
		p.hosts = append(p.hosts, g)
	}
	p.compiled = true
	return p, nil
}

func oneOf(s string, words ...string) error {
	if !slices.Contains(words, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
	}
	return nil
}

func compileRule(from ruleConfig, toolNames []string) (r rule, err error) {
	r.channel = from.Channel
	r.action = map[string]Verdict{"ask": Ask, "allow": Allow}[from.Action]
	if err := oneOf(from.Action, "deny", "ask", "allow"); err != nil {
		return r, fmt.Errorf("action: %w", err)
	}
	if err := oneOf(from.Channel, "", "cli", "api", "daemon"); err != nil {
		return r, fmt.Errorf("channel: %w", err)
	}
	if !toolPattern().MatchString(from.Tool) {
		return r, fmt.Errorf("bad pattern %q: no tool can have such a name", from.Tool)
	}
	// A name without a wildcard must exist: a rule for a tool that was renamed would be none.
	if r.tool, err = compileGlob(from.Tool); r.tool.plain() && !strings.HasPrefix(from.Tool, "mcp__") &&
		!slices.Contains(builtinTools, from.Tool) && !slices.Contains(toolNames, from.Tool) {
		return r, fmt.Errorf("there is no tool %q", from.Tool)
	}
	for _, arg := range slices.Sorted(maps.Keys(from.Match)) {
		g, err := compileGlob(from.Match[arg])
		if err != nil {
			return r, fmt.Errorf("match %q: %w", arg, err)
		}
		r.match = append(r.match, argPattern{arg, g})
	}
	return r, err
}

// Input is all that a decision depends on.
type Input struct {
	Tool      tools.Tool     // its static data
	Args      map[string]any // validated, defaults filled in
	Judgement tools.Judgement
	Labels    Labels // of the chat, before this call
	Channel   string // cli, api, daemon
	Mode      string // "" is that of the settings
	Workspace string // absolute, resolved
	Grants    []Grant
	// URLSeen says that Judgement.URL stands verbatim in the owner's words or in a result of this chat, or is a
	// redirect of such a one.
	URLSeen bool
	// URLs are those that web_fetch would be asked for instead of this connection
	// of a boxed call: its rules hold for both.
	URLs []string

	tried []forms // of the arguments that rules have asked for
}

// who is whose word stands behind a call of the channel. One that is not known is another app's.
func who(channel string) string {
	if channel == "cli" || channel == "daemon" {
		return "owner"
	}
	return "app"
}

// A Decision is what the policy says about one call.
type Decision struct {
	Verdict Verdict
	Step    string   // the step that decided
	Rule    string   // the setting that decided, "" if none did
	By      string   // rule, mode, grant, guard
	Reasons []string // the deciding one first
	Steps   []StepVote

	// Of a question:
	Offered []tools.Scope // from narrow to wide
	Narrow  string        // why nothing wider is offered, "" if all is
	Missing []string      // keys that no grant covers yet

	Grants []string // keys of the grants that let the call through
}

// A StepVote is what one step says by itself. Vote is allow, ask, deny or none.
type StepVote struct {
	Step   string `json:"step"`
	Vote   string `json:"vote"`
	Reason string `json:"reason"`
}

// The steps, in their order. A refusal before them is "guard".
const (
	stepDenied   = "deny_tools"
	stepRules    = "rules"
	stepLists    = "lists"
	stepLabels   = "labels"
	stepMode     = "mode"
	stepWarnings = "warnings"
	stepGuard    = "guard"
)

// A vote is a StepVote at work. The label step can ask several questions.
type vote struct {
	step    string
	cast    bool
	verdict Verdict
	rule    string
	reason  string
	widest  tools.Scope // of a question: the widest grant that answers it, Once if none can
	why     string      // none wider does
	labels  bool        // that grant must hold the labels of now
}

// Decide decides about one call. It is pure and total: no file, no clock, and every input has an answer.
func (p *Policy) Decide(in Input) Decision {
	if p == nil || !p.compiled || in.Tool.Name == "" {
		return refusal("there is no policy")
	}
	if r := in.Judgement.Refuse; r != "" {
		return refusal(r)
	}
	votes := append(make([]vote, 0, 8), in.first(stepDenied, p.deny), p.voteHosts(&in, p.voteRules(&in)), p.voteLists(&in))
	w := in.Judgement.Warnings
	votes = append(p.voteLabels(&in, votes), p.voteMode(&in),
		vote{step: stepWarnings, cast: len(w) > 0, verdict: Ask, reason: strings.Join(w, "; ")})
	d := Decision{Steps: make([]StepVote, len(votes))}
	for i := range votes {
		d.Steps[i] = StepVote{votes[i].step, "none", votes[i].reason}
		if votes[i].cast {
			d.Steps[i].Vote = votes[i].verdict.String()
		}
	}
	d.settle(&in, votes)
	return d
}

// refusal is the decision about a call that is refused before the policy.
func refusal(reason string) Decision {
	return Decision{Step: stepGuard, By: "guard", Reasons: []string{reason},
		Steps: []StepVote{{stepGuard, "deny", reason}}}
}

// settle makes one decision of the votes: the first that is cast decides, a question that grants satisfy gives way to the
// next, and a warning stops all but an explicit allow rule. So an entry that asks never lets through what would have been
// stopped without it.
func (d *Decision) settle(in *Input, votes []vote) {
	var asks []vote
	listed := false
	for i := range votes {
		v := &votes[i]
		if !v.cast || listed && v.step != stepWarnings {
			continue
		}
		verdict := v.verdict
		if verdict == Ask {
			keys, missing := in.covered(v)
			if missing != nil {
				if asks = append(asks, *v); len(asks) == 1 {
					d.decide(v, Ask)
					d.Missing = missing
				} else {
					d.Reasons = append(d.Reasons, v.reason)
				}
				continue
			}
			verdict, d.Grants = Allow, keys
		} else {
			listed = v.step == stepLists
		}
		if asks == nil {
			d.decide(v, verdict)
		}
		if v.step == stepDenied || v.step == stepRules {
			return
		}
	}
	if asks != nil {
		d.Grants = nil
		d.Reasons = append(d.Reasons, in.Judgement.Why...)
		d.offer(in, asks)
	} else if d.Grants != nil {
		d.By, d.Rule, d.Reasons = "grant", "", []string{"granted: " + strings.Join(d.Grants, ", ")}
	}
}

func (d *Decision) decide(v *vote, verdict Verdict) {
	d.Verdict, d.Step, d.Rule, d.By, d.Reasons = verdict, v.step, v.rule, "rule", []string{v.reason}
	if v.rule == "" {
		d.By = "mode"
	}
}

func (r *rule) vote(step string) vote {
	return vote{step: step, cast: true, verdict: r.action, rule: r.name, reason: r.reason, why: "a rule asks each time"}
}

// first is the vote of the first entry of a tool list that is for the call.
func (in *Input) first(step string, list []rule) vote {
	for i := range list {
		if list[i].tool.match(in.Tool.Name) {
			return list[i].vote(step)
		}
	}
	return vote{step: step}
}

// voteRules finds the first rule that matches.
func (p *Policy) voteRules(in *Input) vote {
	covered, app := in.readable(), who(in.Channel) == "app"
	floor := false // an unreadable line might be one that a later rule denies
	for i := range p.rules {
		r := &p.rules[i]
		if !r.tool.match(in.Tool.Name) || r.channel != "" && r.channel != in.Channel ||
			r.action == Allow && (!covered || app && r.channel == "") {
			continue
		}
		if in.fits(r) {
			return r.vote(stepRules)
		}
		floor = floor || r.action == Deny && in.Judgement.Opaque != ""
	}
	if floor {
		return vote{step: stepRules, cast: true, verdict: Ask,
			reason: "the line cannot be analysed, so a rule that denies might be meant for it"}
	}
	return vote{step: stepRules}
}

// voteHosts gives way to what the rules of web_fetch say about the URLs of a connection, if that is stricter. One that
// denies a part of the host asks, where the path cannot be seen.
func (p *Policy) voteHosts(in *Input, v vote) vote {
	if len(in.URLs) == 0 {
		return v
	}
	web := Input{Tool: tools.WebFetch, Args: map[string]any{"url": in.URLs[0]}, Channel: in.Channel,
		Judgement: tools.Judgement{Forms: map[string][]string{"url": in.URLs[1:]}}}
	for i := range p.rules {
		r := &p.rules[i]
		at := slices.IndexFunc(r.match, func(m argPattern) bool { return m.arg == "url" })
		if at < 0 || !r.tool.match(web.Tool.Name) || r.channel != "" && r.channel != in.Channel ||
			r.action == Allow && r.channel == "" && who(in.Channel) == "app" {
			continue
		}
		now, fits := r.vote(stepRules), web.fits(r)
		if !fits {
			if r.action != Deny || !in.Judgement.Sends || !slices.ContainsFunc(in.URLs, func(u string) bool {
				return strings.HasPrefix(r.match[at].pat.text, u)
			}) {
				continue
			}
			now.verdict, now.reason = Ask, "what is requested cannot be seen, and a rule denies a part of this host: "+now.reason
		}
		if now.verdict != Allow && (!v.cast || now.verdict < v.verdict) {
			v = now
		}
		if fits {
			break
		}
	}
	return v
}

// listed reports whether a host is on the egress allow-list.
func (p *Policy) listed(host string) bool {
	return p != nil && slices.ContainsFunc(p.hosts, func(g glob) bool { return g.match(host) })
}

// risk is the call's, at least its tool's.
func (in *Input) risk() tools.Risk { return tools.Higher(in.Tool.Risk, in.Judgement.Risk) }

// readable reports whether the owner's entries that allow count for the call: not for one that cannot be analysed, nor for
// one that writes where no grant reaches, unless the box confines it.
func (in *Input) readable() bool {
	j := &in.Judgement
	return j.Opaque == "" && (j.NotCovered == "" || j.Boxed)
}

// confined reports whether the call is one of the box that can touch only the workspace.
func (in *Input) confined() bool {
	j := &in.Judgement
	return (in.Tool.Name == "shell" || in.Tool.Name == "python_execute") &&
		j.Boxed && !j.Network && j.Egress.Kind == tools.EgressNone
}

// forms are what the patterns over one argument are tried on: the value as it stands (each element of a list), and what it
// turned out to be. A rule that denies or asks needs any of them, one that allows needs each. A missing argument has none.
type forms struct {
	arg       string
	any, each []string
}

func (in *Input) forms(arg string) *forms {
	for i := range in.tried {
		if in.tried[i].arg == arg {
			return &in.tried[i]
		}
	}
	j := &in.Judgement
	f := forms{arg: arg, any: make([]string, 0, 2+len(j.Forms[arg])+len(j.Commands)+2*len(j.Argv))}
	switch val := in.Args[arg].(type) {
	case nil:
	case string:
		f.any = append(append(f.any, val), j.Forms[arg]...)
	case []string:
		f.any = append(append(f.any, val...), j.Forms[arg]...)
	default: // numbers, booleans, maps
		f.any = append(f.any, jsonText(val))
	}
	f.each = f.any
	if arg == "url" { // what a server may make of escapes, for rules that deny or ask
		for _, s := range f.each {
			if plain, err := url.PathUnescape(s); err == nil && plain != s {
				f.any = append(f.any, plain)
				if u, err := tools.ParseURL(plain); err == nil {
					f.any = append(f.any, u.String())
				}
			}
		}
	}
	if in.Tool.Name == "shell" && arg == "command" {
		f.each = j.Commands
		f.any = append(f.any, j.Commands...)
		for _, argv := range j.Argv {
			if len(argv) > 0 {
				line := strings.Join(argv, " ")
				f.any = append(f.any, line, line[strings.LastIndexByte(argv[0], '/')+1:])
			}
		}
		slices.Sort(f.any)
		f.any = slices.Compact(f.any) // mostly one text in three forms
	}
	in.tried = append(in.tried, f)
	return &in.tried[len(in.tried)-1]
}

// fits reports whether the arguments match all patterns of a rule.
func (in *Input) fits(r *rule) bool {
	all := r.action == Allow
	for i := range r.match {
		m := &r.match[i]
		f := in.forms(m.arg)
		texts, hit := f.any, false
		if all {
			texts = f.each
		}
		for _, s := range texts {
			if hit = m.pat.match(s) || all && m.arg == "path" && in.spelled(&m.pat, s); hit != all {
				break
			}
		}
		if !hit {
			return false
		}
	}
	return true
}

// deniesFile reports whether a rule denies a search or listing one of the files that it comes upon, or reading that.
func (p *Policy) deniesFile(in *Input, path string) bool {
	action := in.Args["action"]
	if action != "search" && action != "list" {
		return false // its own path was decided about
	}
	for _, action := range []any{action, "read"} {
		one := *in
		one.Args, one.tried = map[string]any{"action": action, "path": path}, nil
		one.Judgement.Forms = map[string][]string{"path": {path, strings.TrimPrefix(path, in.Workspace+string(filepath.Separator))}}
		if v := p.voteRules(&one); v.cast && v.verdict == Deny {
			return true
		}
	}
	return false
}

// spelled tries a pattern on the spellings of one path, absolute and from the workspace: they are one form of it.
func (in *Input) spelled(g *glob, path string) bool {
	if !filepath.IsAbs(path) {
		path = filepath.Join(in.Workspace, path)
	}
	rel, err := filepath.Rel(in.Workspace, path)
	return g.match(path) || err == nil && filepath.IsLocal(rel) && g.match(filepath.ToSlash(rel))
}

// jsonText is a value in JSON.
func jsonText(v any) string {
	b, err := marshalPlain(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func (p *Policy) voteLists(in *Input) vote {
	if v := in.first(stepLists, p.ask); v.cast {
		v.widest, v.why = in.widest()
		return v
	}
	v := in.first(stepLists, p.allow)
	switch {
	case v.cast && who(in.Channel) == "app":
		return vote{step: stepLists, reason: v.rule + " does not count for another app"}
	case v.cast && !in.readable():
		return vote{step: stepLists, reason: v.rule + " does not cover this call"}
	}
	return v
}

// voteLabels casts up to three questions, or one vote that is none. Any grant answers where the keys name the destination,
// and one of this turn where there is none to name. Where another call under the same keys could go elsewhere, none does;
// an MCP server is always where it is.
func (p *Policy) voteLabels(in *Input, votes []vote) []vote {
	if !p.labels || in.Labels == (Labels{}) {
		return append(votes, vote{step: stepLabels})
	}
	j, n := &in.Judgement, len(votes)
	whole, _ := in.widest()
	ask := func(widest tools.Scope, reason string) {
		votes = append(votes, vote{step: stepLabels, cast: true, verdict: Ask, reason: reason, widest: min(widest, whole),
			labels: true, why: "no grant is for this very destination in such a chat"})
	}
	keys, to := tools.Task, tools.Task
	if in.named() {
		keys, to = tools.Always, tools.Always
	} else if in.egress() == tools.EgressHosts && !strings.HasPrefix(in.Tool.Name, "mcp__") {
		to = tools.Once
	}
	unlisted, how := p.unlisted(in)
	if in.Labels.Private && unlisted != "" {
		ask(to, "this chat holds private data, and the call "+how+unlisted)
	}
	if what := in.effects(); in.Labels.Untrusted && what != "" && (!in.confined() || len(j.Warnings) > 0) {
		ask(keys, "this chat holds words of others, and the call "+what)
	}
	if in.Labels.Untrusted && j.URL != "" && unlisted != "" && !in.URLSeen {
		ask(to, "this address could carry your data to "+unlisted)
	}
	if len(votes) == n {
		votes = append(votes, vote{step: stepLabels})
	}
	return votes
}

// effects says why an untrusted chat must not do this by itself, "" if it may.
func (in *Input) effects() string {
	j := &in.Judgement
	switch {
	case in.risk() == tools.Sensitive:
		return "is sensitive"
	case j.Sends || in.egress() == tools.EgressUnknown:
		return "sends data"
	case j.ChangesOutside:
		return "changes something outside the workspace"
	case j.Instructs && in.Tool.Name != "remember" && in.Tool.Name != "goals":
		// Those two keep what they are told for review, or with its label.
		return "changes what later turns take as instructions or facts"
	}
	return ""
}

// egress is the kind of the call's egress, the widest where the tool contradicts itself.
func (in *Input) egress() tools.EgressKind {
	e := &in.Judgement.Egress
	switch {
	case e.Kind == tools.EgressHosts && len(e.Hosts) == 0 && in.Judgement.Proxied:
		return tools.EgressNone // each host is decided on as it is connected to
	case e.Kind == tools.EgressHosts && len(e.Hosts) == 0 || e.Kind == tools.EgressNone && in.Judgement.Network:
		return tools.EgressUnknown
	}
	return e.Kind
}

// unlisted returns where the call sends that the allow-list does not cover, "" if there is none, and a verb for it. The
// list covers a GET of bounded size; the owner set the host of a search.
func (p *Policy) unlisted(in *Input) (hosts, how string) {
	j, search := &in.Judgement, in.Tool.Name == "web_search"
	switch kind := in.egress(); {
	case kind == tools.EgressNone:
		return "", ""
	case kind == tools.EgressUnknown:
		return "any host", "can send to "
	case j.RequestBytes > maxListedURL || search && j.RequestBytes > maxQuery:
		return strings.Join(j.Egress.Hosts, ", "), fmt.Sprintf("sends %d bytes to ", j.RequestBytes)
	}
	out := slices.DeleteFunc(slices.Clone(j.Egress.Hosts), func(host string) bool {
		return !j.Sends && (search || p.listed(host))
	})
	return strings.Join(out, ", "), "sends to "
}

// named reports whether the call's keys name each host that it sends to.
func (in *Input) named() bool {
	for _, h := range in.Judgement.Egress.Hosts {
		if !slices.ContainsFunc(in.targets(), func(t tools.Target) bool {
			return t.Key == in.Tool.Name+":"+h || t.Key == "net:"+h || strings.HasSuffix(t.Key, "@"+h)
		}) {
			return false
		}
	}
	return in.egress() == tools.EgressHosts
}

// voteMode weighs the risk. It always casts.
func (p *Policy) voteMode(in *Input) vote {
	j, risk, app := &in.Judgement, in.risk(), who(in.Channel) == "app"
	mode := cmp.Or(in.Mode, p.mode)
	if app && mode == "auto" {
		mode = "ask"
	}
	v := vote{step: stepMode, cast: true, verdict: Ask}
	v.widest, v.why = in.widest()
	switch {
	case app && j.ReadsPrivate:
		v.reason = "another app asks for private data"
	case j.Opaque != "" && !in.confined():
		v.reason = "the call cannot be analysed, and no box confines it"
	case j.NotCovered != "" && !j.Boxed:
		v.reason = j.NotCovered
	case mode == "auto", risk == tools.Safe, mode == "ask" && risk == tools.Moderate:
		v.verdict, v.reason = Allow, "mode "+mode+" lets "+risk.String()+" calls run"
	default:
		v.reason = risk.String() + " calls ask"
	}
	return v
}
