package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"picket/tools"
)

// Verdict is the outcome of a decision. The zero value denies, so that whatever
// is forgotten is refused.
type Verdict int

const (
	Deny Verdict = iota
	Ask
	Allow
)

func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case Ask:
		return "ask"
	}
	return "deny"
}

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

// Holds reports whether l has every label of m.
func (l Labels) Holds(m Labels) bool {
	return (l.Private || !m.Private) && (l.Untrusted || !m.Untrusted)
}

// builtinTools are the names that rules may use although the tool is not
// offered here: another system, or a setting that is off.
var builtinTools = []string{"files", "shell", "python_execute", "web_search", "web_fetch", "remember",
	"forget", "recall", "goals", "contacts", "skills", "read_emails", "send_email", "browser", "ask_user"}

// Limits of the egress allow-list: what a GET to a listed host may carry, and a
// query to the search provider.
const (
	maxListedURL = 512
	maxQuery     = 200
)

// A Policy decides about calls. It is compiled once and never changes; a nil or
// zero one denies.
type Policy struct {
	compiled   bool
	mode       string
	deny       []toolPattern
	rules      []rule
	allow, ask []toolPattern
	labels     bool
	hosts      []string
}

type toolPattern struct {
	glob
	name string // what the log calls it
}

type rule struct {
	tool    toolPattern
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

// compilePolicy checks the settings and compiles them. toolNames are the tools
// present here. An error is a *keyError.
func compilePolicy(s sentinelConfig, toolNames []string) (*Policy, error) {
	p := &Policy{mode: s.Mode, labels: s.TaintTracking}
	if err := oneOf(s.Mode, "ask", "strict", "auto"); err != nil {
		return nil, &keyError{"sentinel.mode", err}
	}
	for _, l := range []struct {
		key  string
		from []string
		to   *[]toolPattern
	}{{"deny_tools", s.DenyTools, &p.deny}, {"always_allow_tools", s.AlwaysAllow, &p.allow},
		{"always_ask_tools", s.AlwaysAsk, &p.ask}} {
		for i, text := range l.from {
			t, err := compileTool(text, toolNames)
			if err != nil {
				return nil, &keyError{fmt.Sprintf("sentinel.%s[%d]", l.key, i), err}
			}
			t.name = l.key + " " + strconv.Quote(text)
			*l.to = append(*l.to, t)
		}
	}
	for i, from := range s.Rules {
		r, err := compileRule(from, toolNames)
		if err != nil {
			return nil, &keyError{fmt.Sprintf("sentinel.rules[%d]", i), err}
		}
		r.tool.name = fmt.Sprintf("rules[%d] (%s %s)", i, from.Action, from.Tool)
		p.rules = append(p.rules, r)
	}
	for i, host := range s.EgressAllowlist {
		if err := checkHostPattern(host); err != nil {
			return nil, &keyError{fmt.Sprintf("sentinel.egress_allowlist[%d]", i), err}
		}
		p.hosts = append(p.hosts, host)
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

// compileTool compiles a pattern over tool names. One without a wildcard must
// be a name that exists: a rule for a tool that was renamed would be none.
func compileTool(text string, toolNames []string) (toolPattern, error) {
	bad := strings.ContainsFunc(text, func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("_-.*?", r)
	})
	if bad || text == "" {
		return toolPattern{}, fmt.Errorf("bad pattern %q: no tool can have such a name", text)
	}
	g, err := compileGlob(text)
	if err == nil && g.plain() && !strings.HasPrefix(text, "mcp__") &&
		!slices.Contains(builtinTools, text) && !slices.Contains(toolNames, text) {
		err = fmt.Errorf("there is no tool %q", text)
	}
	return toolPattern{glob: g}, err
}

func compileRule(from ruleConfig, toolNames []string) (rule, error) {
	r := rule{channel: from.Channel, reason: from.Reason}
	if err := oneOf(from.Action, "deny", "ask", "allow"); err != nil {
		return r, fmt.Errorf("action: %w", err)
	}
	r.action = map[string]Verdict{"ask": Ask, "allow": Allow}[from.Action]
	if err := oneOf(from.Channel, "cli", "api", "daemon"); err != nil && from.Channel != "" {
		return r, fmt.Errorf("channel: %w", err)
	}
	var err error
	if r.tool, err = compileTool(from.Tool, toolNames); err != nil {
		return r, err
	}
	for arg, text := range from.Match {
		g, err := compileGlob(text)
		if err != nil {
			return r, fmt.Errorf("match %q: %w", arg, err)
		}
		r.match = append(r.match, argPattern{arg, g})
	}
	slices.SortFunc(r.match, func(a, b argPattern) int { return strings.Compare(a.arg, b.arg) })
	return r, nil
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
	// URLSeen says that Judgement.URL stands verbatim in the owner's words or
	// in a result of this chat, or is a redirect of such a one.
	URLSeen bool
}

// who is whose word stands behind a call of the channel. One that is not known
// is another app's.
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
	labels  bool        // and that grant must hold the labels of now
}

// Decide decides about one call. It is pure and total: no file, no clock, and
// every input has an answer.
func (p *Policy) Decide(in Input) Decision {
	if p == nil || !p.compiled || in.Tool.Name == "" {
		return refusal("there is no policy")
	}
	if r := in.Judgement.Refuse; r != "" {
		return refusal(r)
	}
	votes := append(make([]vote, 0, 8), p.voteDenied(&in), p.voteRules(&in), p.voteLists(&in))
	votes = p.voteLabels(&in, votes)
	votes = append(votes, p.voteMode(&in), voteWarnings(&in))
	d := Decision{Verdict: Allow, Steps: make([]StepVote, len(votes))}
	for i, v := range votes {
		d.Steps[i] = StepVote{v.step, "none", v.reason}
		if v.cast {
			d.Steps[i].Vote = v.verdict.String()
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

// settle makes one decision of the votes: the first that is cast decides, a
// question that grants satisfy gives way to the next, and a warning stops all
// but an explicit allow rule. So an entry that asks never lets through what
// would have been stopped without it.
func (d *Decision) settle(in *Input, votes []vote) {
	var asks []vote
	listed := false
	for _, v := range votes {
		switch {
		case !v.cast || listed && v.step != stepWarnings:
		case v.verdict != Ask:
			if asks == nil {
				d.decide(v)
			}
			if v.step == stepDenied || v.step == stepRules {
				return
			}
			listed = v.step == stepLists
		default:
			keys, missing := in.covered(v)
			if missing == nil {
				d.decide(v)
				d.Verdict, d.Grants = Allow, keys
				continue
			}
			if asks == nil {
				d.Missing = missing
			}
			asks = append(asks, v)
		}
	}
	if asks == nil {
		if d.Grants != nil {
			d.By, d.Rule, d.Reasons = "grant", "", []string{"granted: " + strings.Join(d.Grants, ", ")}
		}
		return
	}
	d.decide(asks[0])
	d.Grants = nil
	for _, v := range asks[1:] {
		d.Reasons = append(d.Reasons, v.reason)
	}
	d.Reasons = append(d.Reasons, in.Judgement.Why...)
	d.offer(in, asks)
}

func (d *Decision) decide(v vote) {
	d.Verdict, d.Step, d.Rule, d.By, d.Reasons = v.verdict, v.step, v.rule, "mode", []string{v.reason}
	if v.rule != "" {
		d.By = "rule"
	}
}

func (p *Policy) voteDenied(in *Input) vote {
	for i := range p.deny {
		if t := &p.deny[i]; t.match(in.Tool.Name) {
			return vote{step: stepDenied, cast: true, rule: t.name, reason: t.name + " denies it"}
		}
	}
	return vote{step: stepDenied}
}

// voteRules finds the first rule that matches.
func (p *Policy) voteRules(in *Input) vote {
	v := vote{step: stepRules}
	vals := values{in: in}
	floor := false // an unreadable line might be one that a later rule denies
	for i := range p.rules {
		r := &p.rules[i]
		if r.tool.plain() && r.tool.text != in.Tool.Name || r.channel != "" && r.channel != in.Channel || !r.tool.match(in.Tool.Name) {
			continue
		}
		if r.action == Allow {
			if !in.readable() || r.channel == "" && who(in.Channel) == "app" {
				continue
			}
		} else {
			floor = floor || r.action == Deny && in.Judgement.Opaque != ""
		}
		if vals.matches(r) {
			v.cast, v.verdict, v.rule, v.reason = true, r.action, r.tool.name, r.tool.name
			if r.reason != "" {
				v.reason += ": " + r.reason
			}
			return v
		}
	}
	if floor {
		v.cast, v.verdict = true, Ask
		v.reason = "the line cannot be analysed, so a rule that denies might be meant for it"
	}
	return v
}

// risk is the call's, at least its tool's.
func (in *Input) risk() tools.Risk { return tools.Higher(in.Tool.Risk, in.Judgement.Risk) }

// readable reports whether the owner's entries that allow count for the call:
// not for one that cannot be analysed, nor for one that writes where no grant
// reaches, unless the box confines it.
func (in *Input) readable() bool {
	j := &in.Judgement
	return j.Opaque == "" && (j.NotCovered == "" || j.Boxed)
}

// confined reports whether the call is one of the box that can touch only the
// workspace.
func (in *Input) confined() bool {
	j := &in.Judgement
	return (in.Tool.Name == "shell" || in.Tool.Name == "python_execute") &&
		j.Boxed && !j.Network && j.Egress.Kind == tools.EgressNone
}

// values holds the text forms of the arguments that rules have asked for.
type values struct {
	in   *Input
	args []argValues
}

type argValues struct {
	arg   string
	deny  []string   // one must match
	allow [][]string // one of each must match
}

func (vs *values) matches(r *rule) bool {
	for i := range r.match {
		m := &r.match[i]
		v := vs.of(m.arg)
		if r.action != Allow && !m.pat.matchAny(v.deny) || r.action == Allow && len(v.allow) == 0 {
			return false
		}
		for i := 0; r.action == Allow && i < len(v.allow); i++ {
			if !m.pat.matchAny(v.allow[i]) {
				return false
			}
		}
	}
	return true
}

// of returns what a pattern for the argument is tried on: the value as it
// stands (each element of a list), and what it turned out to be. An argument
// that is missing has none. Of a path, spellings of one place count as one.
func (vs *values) of(arg string) *argValues {
	for i := range vs.args {
		if vs.args[i].arg == arg {
			return &vs.args[i]
		}
	}
	j := &vs.in.Judgement
	v := argValues{arg: arg}
	switch val := vs.in.Args[arg].(type) {
	case nil:
	case string:
		v.deny = append(v.deny, val)
	case []string:
		v.deny = append(v.deny, val...)
	default:
		v.deny = append(v.deny, jsonText(val)) // numbers, booleans, maps
	}
	if v.deny != nil {
		v.deny = append(v.deny, j.Forms[arg]...)
	}
	places := map[string]int{}
	for _, s := range v.deny {
		place := s
		if ws := vs.in.Workspace; ws != "" && !filepath.IsAbs(s) && !strings.Contains(s, "..") && !strings.Contains(s, ":") {
			place = filepath.Join(ws, s)
		}
		i, ok := places[place]
		if !ok {
			i = len(v.allow)
			places[place] = i
			v.allow = append(v.allow, nil)
		}
		v.allow[i] = append(v.allow[i], s)
	}
	if vs.in.Tool.Name == "shell" && arg == "command" {
		v.allow = nil
		for _, c := range j.Commands {
			v.allow = append(v.allow, []string{c})
		}
		v.deny = append(v.deny, j.Commands...)
		for _, argv := range j.Argv {
			if len(argv) == 0 {
				continue
			}
			v.deny = append(v.deny, strings.Join(argv, " "))
			if i := strings.LastIndexByte(argv[0], '/'); i >= 0 {
				v.deny = append(v.deny, strings.Join(append([]string{argv[0][i+1:]}, argv[1:]...), " "))
			}
		}
		slices.Sort(v.deny)
		v.deny = slices.Compact(v.deny) // mostly one text in three forms
	}
	vs.args = append(vs.args, v)
	return &vs.args[len(vs.args)-1]
}

// jsonText is a value in JSON, without the escapes for HTML.
func jsonText(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (p *Policy) voteLists(in *Input) vote {
	v := vote{step: stepLists, widest: in.widest()}
	for i := range p.ask {
		if t := &p.ask[i]; t.match(in.Tool.Name) {
			v.cast, v.verdict, v.rule, v.reason = true, Ask, t.name, t.name
			return v
		}
	}
	for i := range p.allow {
		t := &p.allow[i]
		switch {
		case !t.match(in.Tool.Name):
		case who(in.Channel) == "app":
			v.reason = t.name + " does not count for another app"
		case !in.readable():
			v.reason = t.name + " does not cover this call"
		default:
			v.cast, v.verdict, v.rule, v.reason = true, Allow, t.name, t.name
			return v
		}
	}
	return v
}

// voteLabels casts up to three questions, or one vote that is none.
func (p *Policy) voteLabels(in *Input, votes []vote) []vote {
	if !p.labels || in.Labels == (Labels{}) {
		return append(votes, vote{step: stepLabels})
	}
	j := &in.Judgement
	n := len(votes)
	unlisted, how := p.unlisted(in)
	ask := func(reason string, widest tools.Scope) {
		votes = append(votes, vote{step: stepLabels, cast: true, verdict: Ask, reason: reason,
			widest: min(widest, in.widest()), labels: true})
	}
	// Any grant answers where the keys name the destination, and one of this
	// turn where there is none to name. Where another call under the same keys
	// could go elsewhere, none does; an MCP server is always where it is.
	keys, to := tools.Task, tools.Task
	if in.named() {
		keys, to = tools.Always, tools.Always
	} else if in.egress() == tools.EgressHosts && !strings.HasPrefix(in.Tool.Name, "mcp__") {
		to = tools.Once
	}
	if in.Labels.Private && unlisted != "" {
		ask("this chat holds private data, and the call "+how+unlisted, to)
	}
	if in.Labels.Untrusted && (!in.confined() || len(j.Warnings) > 0) {
		if what := in.effects(); what != "" {
			ask("this chat holds words of others, and the call "+what, keys)
		}
	}
	if in.Labels.Untrusted && j.URL != "" && unlisted != "" && !in.URLSeen {
		ask("this address could carry your data to "+unlisted, to)
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

// egress is the kind of the call's egress, the widest where the tool
// contradicts itself.
func (in *Input) egress() tools.EgressKind {
	e := &in.Judgement.Egress
	if e.Kind == tools.EgressHosts && len(e.Hosts) == 0 || e.Kind == tools.EgressNone && in.Judgement.Network {
		return tools.EgressUnknown
	}
	return e.Kind
}

// unlisted returns where the call sends that the allow-list does not cover, and
// a verb for it; "" if there is none.
func (p *Policy) unlisted(in *Input) (hosts, how string) {
	j := &in.Judgement
	switch in.egress() {
	case tools.EgressNone:
		return "", ""
	case tools.EgressUnknown:
		return "any host", "can send to "
	}
	limit := maxListedURL
	if in.Tool.Name == "web_search" {
		limit = maxQuery // the owner set its host
	}
	if j.RequestBytes > limit {
		return strings.Join(j.Egress.Hosts, ", "), fmt.Sprintf("sends %d bytes to ", j.RequestBytes)
	}
	var out []string
	for _, h := range j.Egress.Hosts {
		if j.Sends || in.Tool.Name != "web_search" && !p.listed(h) {
			out = append(out, h)
		}
	}
	return strings.Join(out, ", "), "sends to "
}

// listed reports whether a canonical host is on the allow-list.
func (p *Policy) listed(host string) bool {
	for _, e := range p.hosts {
		if of, ok := strings.CutPrefix(e, "*"); e == host || ok && len(host) > len(of) && strings.HasSuffix(host, of) {
			return true
		}
	}
	return false
}

// named reports whether the call's keys name each host that it sends to.
func (in *Input) named() bool {
	j := &in.Judgement
	if in.egress() != tools.EgressHosts {
		return false
	}
	for _, h := range j.Egress.Hosts {
		if !slices.ContainsFunc(in.targets(), func(t tools.Target) bool {
			_, target, _ := strings.Cut(t.Key, ":")
			return target == h || strings.HasSuffix(target, "@"+h)
		}) {
			return false
		}
	}
	return true
}

// voteMode weighs the risk. It always casts.
func (p *Policy) voteMode(in *Input) vote {
	j := &in.Judgement
	mode := p.mode
	if in.Mode != "" {
		mode = in.Mode
	}
	app := who(in.Channel) == "app"
	if app && mode == "auto" {
		mode = "ask"
	}
	risk := in.risk()
	v := vote{step: stepMode, cast: true, verdict: Ask, widest: in.widest()}
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

func voteWarnings(in *Input) vote {
	w := in.Judgement.Warnings
	return vote{step: stepWarnings, cast: len(w) > 0, verdict: Ask, reason: strings.Join(w, "; ")}
}
