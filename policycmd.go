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
	one := func(name string, to *string, words ...string) {
		fs.Func(name, "", func(s string) error { *to = s; return oneOf(s, words...) })
	}
	e.Channel = "cli"
	one("mode", &e.Mode, "ask", "strict", "auto")
	one("channel", &e.Channel, "cli", "api", "daemon")
	fs.Func("grant", "", func(s string) error { e.Grants = append(e.Grants, s); return nil })
	fs.Func("label", "", func(s string) error {
		e.Labels = Labels{e.Labels.Private || s == "private", e.Labels.Untrusted || s == "untrusted"}
		return oneOf(s, "private", "untrusted")
	})
	fs.BoolVar(&e.JSON, "json", false, "")
	var words []string
	for len(args) > 0 {
		if err := fs.Parse(args); err != nil {
			return e, err
		}
		if args = fs.Args(); len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	if len(words) != 2 {
		return e, errors.New("policy explain takes a tool and its arguments as one JSON object")
	}
	e.Tool, e.Args = words[0], words[1]
	e.Labels.Untrusted = e.Labels.Untrusted || e.Channel == "api" // as its chats are from their first message on
	return e, nil
}

// whatIf returns the grants to explain with. A key that no grant of that call could have covers nothing.
func (e explainArgs) whatIf(workspace string) []Grant {
	var out []Grant
	for _, key := range e.Grants {
		out = append(out, Grant{Key: key, Scope: tools.Always, Who: who(e.Channel), Workspace: workspace, Labels: e.Labels})
	}
	return out
}

// checkGrantKey reports why nothing can be granted under a key: it names no tool or no target; a tool has either targets
// or none.
func checkGrantKey(key string, list []tools.Tool) error {
	name, target, has := strings.Cut(key, ":")
	needs := slices.Contains(targeted, name)
	switch {
	case name == "net":
		if u, err := tools.ParseURL("http://" + target); err != nil || u.NetKey() != target {
			return fmt.Errorf("%q names no host: net:HOST, in lower case", key)
		}
		return nil
	case !slices.ContainsFunc(list, func(t tools.Tool) bool { return t.Name == name }):
		return fmt.Errorf("%q names no tool", key)
	case needs && (target == "" || strings.ContainsAny(target, " \t\n*?")):
		return fmt.Errorf("%q names no target: %s:TARGET", key, name)
	case !needs && has:
		return fmt.Errorf("%q names a target, and %s has none", key, name)
	}
	if name == "web_fetch" {
		if u, err := tools.ParseURL("https://" + target); err != nil || u.HostKey() != target {
			return fmt.Errorf("%q names no host: web_fetch:HOST, in lower case", key)
		}
	}
	return nil
}

// explanation is the object of "picket policy explain --json".
type explanation struct {
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
}

func explain(in *Input, d Decision) explanation {
	j := &in.Judgement
	filled := func(list []string) []string { return append([]string{}, list...) } // [] in JSON, not null
	kind := in.egress()
	if j.Proxied {
		kind = j.Egress.Kind
	}
	x := explanation{d.Verdict.String(), d.Step, d.Rule, filled(d.Reasons), scopeNames(d.Offered), in.risk().String(),
		[]string{}, j.Opaque, filled(j.Warnings), egressFields{kind.String(), filled(j.Egress.Hosts)}, j.Network,
		filled(j.Writes), d.Steps}
	for _, t := range in.targets() {
		x.Targets = append(x.Targets, t.Key)
	}
	return x
}

func scopeNames(scopes []tools.Scope) []string {
	out := []string{}
	for _, s := range scopes {
		out = append(out, s.String())
	}
	return out
}

// print is the same for people. summary is the call's, and narrow says why no more is offered.
func (x explanation) print(w io.Writer, summary, narrow string) {
	for _, row := range [][]string{{"decision", x.Decision + " (" + x.Step + ")"}, {"rule", x.Rule},
		{"because", strings.Join(x.Reasons, "; ")}, {"offered", strings.Join(x.Offered, ", ")}, {"no wider", narrow},
		{"call", summary}, {"risk", x.Risk}, {"targets", strings.Join(x.Targets, ", ")}, {"opaque", x.Opaque},
		{"warnings", strings.Join(x.Warnings, "; ")}, {"egress", x.Egress.Kind + " " + strings.Join(x.Egress.Hosts, ", ")},
		{"network", strconv.FormatBool(x.Network)}, {"writes", strings.Join(x.Writes, ", ")}} {
		if row[1] != "" {
			fmt.Fprintf(w, "%-10s %s\n", row[0], printable(row[1]))
		}
	}
	fmt.Fprintln(w, "\nstep        vote  reason")
	for _, s := range x.Steps {
		fmt.Fprintf(w, "%-11s %-5s %s\n", s.Step, s.Vote, printable(s.Reason))
	}
}

// lintPolicy reports entries that do nothing, or more than they seem to. list are the tools present here.
func lintPolicy(s sentinelConfig, list []tools.Tool) ([]string, error) {
	var names, out []string
	for _, t := range list {
		names = append(names, t.Name)
	}
	p, err := compilePolicy(s, names)
	if err != nil {
		return nil, err
	}
	ordered := slices.Concat(p.deny, p.rules)
	for i, r := range slices.Concat(ordered, p.allow, p.ask) {
		which := slices.DeleteFunc(slices.Clone(list), func(t tools.Tool) bool { return !r.tool.match(t.Name) })
		if len(which) == 0 && (!r.tool.plain() || strings.HasPrefix(r.tool.text, "mcp__")) {
			out = append(out, r.name+": matches no tool")
		}
		if i < len(ordered) {
			if e := slices.IndexFunc(ordered[:i], func(e rule) bool { return e.shadows(&r) }); e >= 0 {
				out = append(out, r.name+": is never reached: "+ordered[e].name+" comes first")
			}
		}
		for _, what := range r.lint(which, i < len(ordered) || r.tool.blind(), p.labels) {
			out = append(out, r.name+": "+what)
		}
	}
	if !p.labels {
		out = append(out, "taint_tracking is off: no call is asked about because of what the chat holds")
	}
	return out, nil
}

// shadows reports whether r, which comes later, has nothing left to decide. (A rule that denies is left the lines of which
// one that allows covers only a part; that is not what its author meant.)
func (e *rule) shadows(r *rule) bool {
	if !e.tool.covers(&r.tool) || e.channel != "" && e.channel != r.channel ||
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

// covers reports whether every value that b matches is matched by g: b's wildcards are characters that only those of g
// can match, and "?" is not to match a star.
func (g *glob) covers(b *glob) bool {
	return g.match(b.text) && !(strings.Contains(g.text, "?") && strings.Contains(b.text, "*"))
}

// blind reports whether the pattern says nothing about the value.
func (g *glob) blind() bool { return strings.Trim(g.text, "*") == "" && g.text != "" }

// lint reports what is odd about one entry by itself. which are the tools that it is for; blind says that one without
// patterns is broader than it looks.
func (r *rule) lint(which []tools.Tool, blind, labels bool) (out []string) {
	for _, m := range r.match {
		blind = blind && m.pat.blind()
		if len(which) > 0 && !slices.ContainsFunc(which, m.canMatch) {
			out = append(out, fmt.Sprintf("never matches: there is no argument %q that can be %q", m.arg, m.pat.text))
		}
	}
	if r.action != Allow {
		return out
	}
	if blind && slices.ContainsFunc(which, func(t tools.Tool) bool { return t.Risk != tools.Safe }) {
		out = append(out, "lets every call of "+r.tool.text+" run")
	}
	for _, t := range which {
		if labels && (t.Egress != tools.EgressNone || t.Risk == tools.Sensitive || t.Name == "skills" || t.Name == "contacts") {
			out = append(out, "also lets "+t.Name+" run in a private or untrusted chat")
		}
	}
	for _, m := range r.match {
		program, _, _ := strings.Cut(m.pat.text, " ")
		if m.arg == "command" && !m.pat.blind() && strings.ContainsAny(program, "*?") {
			out = append(out, fmt.Sprintf("%q leaves the program open: %q would allow any that fits", m.pat.text, program))
		}
		if m.arg == "command" && strings.ContainsAny(m.pat.text, ";&|\n") {
			out = append(out, fmt.Sprintf("%q is tried on each simple command, in which ; & | are only text", m.pat.text))
		}
	}
	return out
}

// canMatch reports whether the tool has the argument, and the pattern may match a value of it. A boxed call's connections
// have arguments of their own.
func (m argPattern) canMatch(t tools.Tool) bool {
	return (t.Name == "shell" || t.Name == "python_execute") && (m.arg == "host" || m.arg == "method" || m.arg == "url") || slices.ContainsFunc(t.Params, func(p tools.Param) bool {
		if p.Type == "boolean" {
			p.Enum = []string{"true", "false"}
		}
		return p.Name == m.arg && (p.Enum == nil || slices.ContainsFunc(p.Enum, m.pat.match)) &&
			(p.Type != "integer" || strings.Trim(m.pat.text, "*?-0123456789") == "")
	})
}

// An approvalsAction is what a command does once the approvals are open.
type approvalsAction func(ctx context.Context, a *Approvals, stdout, stderr io.Writer) error

// parseApprovals reads the words after "picket approvals". An error is one of usage. A list writes nothing.
func parseApprovals(args []string) (do approvalsAction, list bool, err error) {
	verb, n := "list", len(args)
	if n > 0 {
		verb = args[0]
	}
	ans := Answer{By: "cli"}
	switch {
	case verb == "list" && n <= 1:
		return func(ctx context.Context, a *Approvals, stdout, _ io.Writer) error {
			open, _, err := a.List(ctx)
			for _, q := range open {
				printQuestion(stdout, q)
			}
			return err
		}, true, nil
	case verb == "watch" && n == 1:
		return func(ctx context.Context, a *Approvals, stdout, _ io.Writer) error { return a.watch(ctx, stdout) }, false, nil
	case verb == "deny" && n > 1:
		ans.Reason = strings.Join(args[2:], " ")
	case verb == "allow" && n == 2:
		ans.Allow = true
	case verb == "allow" && n == 4 && args[2] == "--for":
		if ans.Scope, ans.Allow = tools.ParseScope(args[3]); ans.Allow {
			break
		}
		fallthrough
	default:
		return nil, false, errors.New("approvals takes list, watch, allow ID [--for once|task|session|24h|always] or deny ID [REASON…]")
	}
	return func(ctx context.Context, a *Approvals, stdout, _ io.Writer) error {
		said, err := a.answered(ctx, args[1], ans)
		fmt.Fprint(stdout, said)
		return err
	}, false, nil
}

// answered gives an answer and says what came of it. What it grants is recorded by the process that asked.
func (a *Approvals) answered(ctx context.Context, id string, ans Answer) (string, error) {
	since := a.now()
	err := a.Answer(ctx, id, "", ans)
	if err != nil {
		return "", err
	} else if !ans.Allow {
		return printable(id) + "  denied\n", nil
	}
	for call, _, _ := strings.Cut(id, "-"); a.now().Sub(since) < lockWait; time.Sleep(pollEvery / 4) {
		_, grants, _ := a.List(ctx)
		grants = slices.DeleteFunc(grants, func(g Grant) bool { return g.call != call || g.Scope != ans.Scope || g.Given.Before(since) })
		if ans.Scope == tools.Once || len(grants) > 0 {
			return fmt.Sprintf("%s  allowed %s: %s\n", printable(id), ans.Scope, printable(effect(ans.Scope, grants))), nil
		}
	}
	return "", fmt.Errorf("%q is answered, but nothing was granted: the process that asked is gone, or the call had changed", id)
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
	var shown []string
	for ; ctx.Err() == nil; time.Sleep(pollEvery) {
		open, _, err := a.List(ctx)
		if err != nil {
			return err
		}
		var now []string
		for _, q := range open {
			if now = append(now, q.ID); !slices.Contains(shown, q.ID) {
				printQuestion(w, q)
			}
		}
		for _, id := range shown {
			if !slices.Contains(now, id) {
				fmt.Fprintf(w, "%s  %s\n", printable(id), a.ended(id))
			}
		}
		shown = now
	}
	return nil
}

// ended says how a question ended.
func (a *Approvals) ended(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.questions[id]; q != nil && q.closed != nil {
		return q.closed.record().Answer
	}
	return "expired"
}

// parseGrants does the same for "picket grants".
func parseGrants(args []string) (do approvalsAction, list bool, err error) {
	switch n := len(args); {
	case n == 0 || n == 1 && args[0] == "list":
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
	case n == 2 && args[0] == "revoke" && args[1] != "", n == 1 && args[0] == "clear":
		return func(ctx context.Context, a *Approvals, _, stderr io.Writer) error {
			n, err := a.Revoke(ctx, append(args, "")[1])
			if err == nil {
				fmt.Fprintf(stderr, "%d revoked\n", n)
			}
			return err
		}, false, nil
	}
	return nil, false, errors.New("grants takes list, revoke KEY or clear")
}
