package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"picket/tools"
)

// explainArgs are the arguments of "picket policy explain".
type explainArgs struct {
	Grants        []string // keys, as if granted for always under Labels
	Labels        Labels
	Mode, Channel string // "" is the settings' and cli
	JSON          bool
	Tool, Args    string
}

// parseExplain reads them; flags may stand anywhere. An error is one of usage.
func parseExplain(args []string) (e explainArgs, err error) {
	fs := newFlags("explain")
	fs.Func("grant", "", func(s string) error { e.Grants = append(e.Grants, s); return nil })
	fs.Func("label", "", func(s string) error {
		e.Labels.Private = e.Labels.Private || s == "private"
		e.Labels.Untrusted = e.Labels.Untrusted || s == "untrusted"
		return oneOf(s, "private", "untrusted")
	})
	fs.Func("mode", "", func(s string) error { e.Mode = s; return oneOf(s, "ask", "strict", "auto") })
	fs.Func("channel", "", func(s string) error { e.Channel = s; return oneOf(s, "cli", "api", "daemon") })
	fs.BoolVar(&e.JSON, "json", false, "")
	e.Channel = "cli"
	var words []string
	for {
		if err := fs.Parse(args); err != nil {
			return e, err
		}
		if fs.NArg() == 0 {
			break
		}
		words, args = append(words, fs.Arg(0)), fs.Args()[1:]
	}
	if len(words) != 2 {
		return e, errors.New("policy explain takes a tool and its arguments as one JSON object")
	}
	e.Tool, e.Args = words[0], words[1]
	return e, nil
}

// whatIf returns the grants to explain with. A key that no grant of that call
// could have covers nothing.
func (e explainArgs) whatIf(workspace string) []Grant {
	var out []Grant
	for _, key := range e.Grants {
		out = append(out, Grant{Key: key, Scope: tools.Always, Who: who(e.Channel), Workspace: workspace, Labels: e.Labels})
	}
	return out
}

// checkGrantKey reports why a key names no tool or no target, so that nothing
// can be granted under it: a tool has either targets or none.
func checkGrantKey(key string, list []tools.Tool) error {
	name, target, has := strings.Cut(key, ":")
	if !slices.ContainsFunc(list, func(t tools.Tool) bool { return t.Name == name }) {
		return fmt.Errorf("%q names no tool", key)
	}
	switch needs := slices.Contains(targeted, name); {
	case needs && target == "":
		return fmt.Errorf("%q names no target: %s:TARGET", key, name)
	case !needs && has:
		return fmt.Errorf("%q names a target, and %s has none", key, name)
	}
	return nil
}

// explainJSON is the object of "picket policy explain --json".
func explainJSON(in *Input, d Decision) []byte {
	j := &in.Judgement
	o := struct {
		Decision string       `json:"decision"`
		Step     string       `json:"step"`
		Rule     string       `json:"rule"`
		Reasons  []string     `json:"reasons"`
		Offered  []string     `json:"offered"`
		Risk     string       `json:"risk"`
		Targets  []string     `json:"targets"`
		Opaque   string       `json:"opaque"`
		Warnings []string     `json:"warnings"`
		Egress   egressFields `json:"egress"`
		Network  bool         `json:"network"`
		Writes   []string     `json:"writes"`
		Steps    []StepVote   `json:"steps"`
	}{d.Verdict.String(), d.Step, d.Rule, filled(d.Reasons), scopeNames(d.Offered), in.risk().String(), []string{}, j.Opaque,
		filled(j.Warnings), egressFields{in.egress().String(), filled(j.Egress.Hosts)}, j.Network, filled(j.Writes), d.Steps}
	for _, t := range in.targets() {
		o.Targets = append(o.Targets, t.Key)
	}
	return []byte(jsonText(o) + "\n")
}

// filled makes an absent list an empty one, which JSON shows as [].
func filled(list []string) []string { return append([]string{}, list...) }

func scopeNames(scopes []tools.Scope) []string {
	out := []string{}
	for _, s := range scopes {
		out = append(out, s.String())
	}
	return out
}

// printExplain is the same for people.
func printExplain(w io.Writer, in *Input, d Decision) {
	j := &in.Judgement
	row := func(name string, items ...string) {
		if text := strings.Join(items, ", "); text != "" {
			fmt.Fprintf(w, "%-10s %s\n", name, printable(text))
		}
	}
	row("decision", d.Verdict.String()+" ("+d.Step+")")
	row("rule", d.Rule)
	for _, r := range d.Reasons {
		row("because", r)
	}
	row("offered", scopeNames(d.Offered)...)
	row("no wider", d.Narrow)
	row("call", j.Summary)
	row("risk", in.risk().String())
	for _, t := range in.targets() {
		row("target", t.Key)
	}
	row("opaque", j.Opaque)
	row("warning", j.Warnings...)
	row("egress", append([]string{in.egress().String()}, j.Egress.Hosts...)...)
	row("network", strconv.FormatBool(j.Network))
	row("writes", j.Writes...)
	fmt.Fprintln(w, "\nstep        vote  reason")
	for _, s := range d.Steps {
		fmt.Fprintf(w, "%-11s %-5s %s\n", s.Step, s.Vote, printable(s.Reason))
	}
}

// lintPolicy reports entries that do nothing, or more than they seem to. list
// are the tools present here.
func lintPolicy(s sentinelConfig, list []tools.Tool) ([]string, error) {
	var names []string
	for _, t := range list {
		names = append(names, t.Name)
	}
	p, err := compilePolicy(s, names)
	if err != nil {
		return nil, err
	}
	var out []string
	say := func(t *toolPattern, format string, args ...any) {
		out = append(out, t.name+": "+fmt.Sprintf(format, args...))
	}
	lists := slices.Concat(p.deny, p.allow, p.ask)
	for i := range lists {
		if t := &lists[i]; !t.plain() && len(t.matching(list)) == 0 {
			say(t, "matches no tool")
		}
	}
	for i := range p.allow {
		t := &p.allow[i]
		if t.blind() {
			say(t, "lets every tool run")
		}
		if which := freed(t.matching(list)); p.labels && which != "" {
			say(t, "also lets %s run in a private or untrusted chat", which)
		}
	}
	for i := range p.rules {
		r := &p.rules[i]
		if d := slices.IndexFunc(p.deny, func(t toolPattern) bool { return t.covers(&r.tool.glob) }); d >= 0 {
			say(&r.tool, "is never reached: %s comes first", p.deny[d].name)
		}
		if e := slices.IndexFunc(p.rules[:i], func(e rule) bool { return e.shadows(r) }); e >= 0 {
			say(&r.tool, "is never reached: %s comes first", p.rules[e].tool.name)
		}
		for _, text := range p.lintRule(r, list) {
			say(&r.tool, "%s", text)
		}
	}
	if !p.labels {
		out = append(out, "taint_tracking is off: no call is asked about because of what the chat holds")
	}
	return out, nil
}

// matching returns the tools that the pattern is for.
func (t *toolPattern) matching(list []tools.Tool) []tools.Tool {
	var out []tools.Tool
	for _, tool := range list {
		if t.match(tool.Name) {
			out = append(out, tool)
		}
	}
	return out
}

// freed names the tools that the labels would stop.
func freed(list []tools.Tool) string {
	var names []string
	for _, t := range list {
		if t.Egress != tools.EgressNone || t.Risk == tools.Sensitive || t.Name == "skills" || t.Name == "contacts" {
			names = append(names, t.Name)
		}
	}
	return strings.Join(names, ", ")
}

// shadows reports whether r, which comes later, has nothing left to decide. (A
// rule that denies is left the lines of which one that allows covers only a
// part; that is not what its author meant.)
func (e *rule) shadows(r *rule) bool {
	if !e.tool.covers(&r.tool.glob) || e.channel != "" && e.channel != r.channel ||
		e.action == Allow && e.channel == "" && r.channel == "api" {
		return false
	}
	for _, m := range e.match {
		if !slices.ContainsFunc(r.match, func(o argPattern) bool { return o.arg == m.arg && m.pat.covers(&o.pat) }) {
			return false
		}
	}
	return true
}

// lintRule reports what is odd about one rule by itself.
func (p *Policy) lintRule(r *rule, list []tools.Tool) (out []string) {
	which := r.tool.matching(list)
	if len(which) == 0 {
		if !r.tool.plain() || strings.HasPrefix(r.tool.text, "mcp__") {
			out = append(out, "matches no tool")
		}
		return out
	}
	blind := true
	for _, m := range r.match {
		blind = blind && m.pat.blind()
		if why := m.never(which); why != "" {
			out = append(out, why)
		}
	}
	if r.action != Allow {
		return out
	}
	if blind && slices.ContainsFunc(which, func(t tools.Tool) bool { return t.Risk != tools.Safe }) {
		out = append(out, "lets every call of "+r.tool.text+" run, those with a warning too")
	}
	if names := freed(which); p.labels && names != "" {
		out = append(out, "also lets "+names+" run in a private or untrusted chat")
	}
	for _, m := range r.match {
		if m.arg != "command" || m.pat.blind() || !slices.ContainsFunc(which, func(t tools.Tool) bool { return t.Name == "shell" }) {
			continue
		}
		program, _, _ := strings.Cut(m.pat.text, " ")
		if strings.ContainsAny(program, "*?") {
			out = append(out, fmt.Sprintf("%q leaves the program open: %q would allow any that fits", m.pat.text, program))
		}
		if strings.ContainsAny(m.pat.text, ";&|\n") {
			out = append(out, fmt.Sprintf("%q is tried on each simple command, in which ; & | are only text", m.pat.text))
		}
	}
	return out
}

// never says why the pattern can match no value of any of the tools.
func (m *argPattern) never(which []tools.Tool) string {
	found := false
	for _, t := range which {
		for _, a := range t.Params {
			if a.Name != m.arg {
				continue
			}
			found = true
			values := a.Enum
			if a.Type == "boolean" {
				values = []string{"true", "false"}
			}
			fits := slices.ContainsFunc(values, m.pat.match)
			if a.Type == "integer" {
				fits = strings.Trim(m.pat.text, "*?-0123456789") == ""
			} else if values == nil {
				fits = true
			}
			if fits {
				return ""
			}
		}
	}
	if !found {
		return fmt.Sprintf("never matches: there is no argument %q", m.arg)
	}
	return fmt.Sprintf("never matches: %s cannot be %q", m.arg, m.pat.text)
}

// blind reports whether the pattern says nothing about the value.
func (g *glob) blind() bool { return strings.Trim(g.text, "*?") == "" && g.star }

// covers reports whether every value that b matches is matched by g. It may say
// no where the answer is yes.
func (g *glob) covers(b *glob) bool {
	p, q := []rune(g.text), []rune(b.text)
	// The usual backtracking over one star, with q's wildcards as symbols of
	// their own: a star of g takes anything, also b's star.
	i, j, star, mark := 0, 0, -1, 0
	for j < len(q) {
		switch {
		case i < len(p) && p[i] == '*':
			star, mark = i, j
			i++
		case i < len(p) && q[j] != '*' && (p[i] == q[j] || p[i] == '?'):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(string(p[i:]), "*") == ""
}

// An approvalsAction is what a command does once the approvals are open.
type approvalsAction func(ctx context.Context, a *Approvals, stdout, stderr io.Writer) error

// parseApprovals reads the words after "picket approvals". An error is one of
// usage. A list writes nothing.
func parseApprovals(args []string) (do approvalsAction, list bool, err error) {
	if len(args) == 0 {
		args = []string{"list"}
	}
	ans := Answer{By: "cli"}
	switch verb := args[0]; {
	case verb == "list" && len(args) == 1:
		return func(ctx context.Context, a *Approvals, stdout, stderr io.Writer) error {
			open, _, err := a.List(ctx)
			for _, q := range open {
				printQuestion(stdout, q)
			}
			return err
		}, true, nil
	case verb == "watch" && len(args) == 1:
		return func(ctx context.Context, a *Approvals, stdout, _ io.Writer) error { return a.watch(ctx, stdout) }, false, nil
	case verb == "deny" && len(args) > 1:
		ans.Reason = strings.Join(args[2:], " ")
	case verb == "allow" && (len(args) == 2 || len(args) == 4 && args[2] == "--for"):
		if ans.Allow = true; len(args) == 4 {
			var ok bool
			if ans.Scope, ok = tools.ParseScope(args[3]); !ok {
				return nil, false, fmt.Errorf("%q is none of once, task, session, 24h, always", args[3])
			}
		}
	default:
		return nil, false, errors.New("approvals takes list, watch, allow ID [--for once|task|session|24h|always] or deny ID [REASON…]")
	}
	return func(ctx context.Context, a *Approvals, _, _ io.Writer) error { return a.Answer(ctx, args[1], "", ans) }, false, nil
}

func printQuestion(w io.Writer, q Question) {
	fmt.Fprintf(w, "%s  until %s\n", printable(q.ID), q.Until.Local().Format(time.DateTime))
	for _, l := range q.Card {
		fmt.Fprintf(w, "    %s\n", printable(l))
	}
	fmt.Fprintf(w, "    answer: picket approvals allow %s --for %s, or deny %[1]s\n", printable(q.ID), strings.Join(scopeNames(q.Offered), "|"))
}

// watch prints each question as it comes and as it ends.
func (a *Approvals) watch(ctx context.Context, w io.Writer) error {
	shown := map[string]bool{}
	for ctx.Err() == nil {
		open, _, err := a.List(ctx)
		if err != nil {
			return err
		}
		now := map[string]bool{}
		for _, q := range open {
			if now[q.ID] = true; !shown[q.ID] {
				printQuestion(w, q)
			}
		}
		for id := range shown {
			if !now[id] {
				fmt.Fprintf(w, "%s  %s\n", printable(id), a.ended(id))
			}
		}
		shown = now
		select {
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
	return nil
}

// parseGrants does the same for "picket grants".
func parseGrants(args []string) (do approvalsAction, list bool, err error) {
	key := ""
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == "list":
		return func(ctx context.Context, a *Approvals, stdout, _ io.Writer) error {
			_, grants, err := a.List(ctx)
			for _, g := range grants {
				fmt.Fprintf(stdout, "%s  given %s\n", printable(effect(g.Scope, []Grant{g})), g.Given.Local().Format(time.DateTime))
			}
			if why := a.Trouble(); why != "" && err == nil {
				err = fmt.Errorf("none of them holds: %s", why)
			}
			return err
		}, true, nil
	case len(args) == 2 && args[0] == "revoke" && args[1] != "":
		key = args[1]
	case len(args) == 1 && args[0] == "clear":
	default:
		return nil, false, errors.New("grants takes list, revoke KEY or clear")
	}
	return func(ctx context.Context, a *Approvals, _, stderr io.Writer) error {
		n, err := a.Revoke(ctx, key)
		if err == nil {
			fmt.Fprintf(stderr, "%d revoked\n", n)
		}
		return err
	}, false, nil
}
