package main

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"picket/tools"
)

// Grant is what an answer leaves behind: calls under Key need not ask again.
type Grant struct {
	Key       string
	Scope     tools.Scope
	Who       string // owner or app: whose calls it covers
	Workspace string // where it was given
	Labels    Labels // of the chat in which it was given

	Given, Until time.Time // Until is zero for one without an end
	Process      string    // the run in which it was given
	call, turn   string
}

// over reports whether the grant has ended at a time.
func (g *Grant) over(now time.Time) bool { return !g.Until.IsZero() && now.After(g.Until) }

func (g *Grant) revoked(run string) Record { return Record{Run: run, Body: revokeRecord(g.record())} }

func (g *Grant) record() grantRecord {
	r := grantRecord{g.Key, g.Scope.String(), g.Who, g.Workspace, g.Labels.List(), ""}
	if !g.Until.IsZero() {
		r.Until = g.Until.UTC().Format(timeLayout)
	}
	return r
}

// sound reports whether the grant is one that picket records: an end where the scope has one, and no later than it may be
// (but for a clock that is set while it is written).
func (g *Grant) sound() bool {
	return g.Key != "" && (g.Who == "owner" || g.Who == "app") && g.Scope != tools.Once &&
		(g.Scope == tools.Day) != g.Until.IsZero() && !g.Until.After(g.Given.Add(dayGrant+time.Minute))
}

// bound reports whether the grant holds only in its workspace: what runs code or steers later turns is trusted only where
// it was.
func (g *Grant) bound() bool {
	tool, _, _ := strings.Cut(g.Key, ":")
	return g.Scope >= tools.Day && (tool == "shell" || tool == "python_execute" || tool == "skills" || tool == "net")
}

// targeted are the tools that no grant covers as a whole.
var targeted = []string{"shell", "web_search", "web_fetch", "skills", "send_email", "browser"}

// targets are the keys that a grant of the call binds to: those that the tool names, or the tool as a whole.
func (in *Input) targets() []tools.Target {
	if j := &in.Judgement; len(j.Targets) > 0 || slices.Contains(targeted, in.Tool.Name) {
		return j.Targets
	}
	return []tools.Target{{Key: in.Tool.Name, Widest: in.Judgement.Widest, Why: in.Judgement.WidestWhy}}
}

// widest is the widest grant that the call as a whole could be given, and why no wider.
func (in *Input) widest() (tools.Scope, string) {
	j := &in.Judgement
	switch {
	case len(j.Warnings) > 0:
		return tools.Once, "a call with a warning is asked about each time"
	case j.Opaque != "":
		return tools.Once, "a line that cannot be analysed is asked about each time: " + j.Opaque
	case j.NotCovered != "":
		return tools.Once, j.NotCovered
	}
	return j.Widest, j.WidestWhy
}

// isHost reports whether a target is a host of a boxed call, which no grant of a program covers.
func isHost(t tools.Target) bool { return strings.HasPrefix(t.Key, "net:") }

// holds reports whether a grant of a key, of Task up to a scope, is one for the question.
func (in *Input) holds(v *vote, key string, to tools.Scope) bool {
	for i := range in.Grants {
		g := &in.Grants[i]
		if g.Key == key && g.Scope >= tools.Task && g.Scope <= to && g.Who == who(in.Channel) &&
			(!g.bound() || g.Workspace == in.Workspace) &&
			(!v.labels || (g.Labels.Private || !in.Labels.Private) && (g.Labels.Untrusted || !in.Labels.Untrusted)) {
			return true
		}
	}
	return false
}

// covered returns the keys by which grants answer the question, and those of the call's keys that none covers; nil means
// that it is answered. A grant counts only if it could have been given for this very call.
func (in *Input) covered(v *vote) (keys, missing []string) {
	targets := in.targets()
	keys = make([]string, 0, 1+len(targets))
	whole := in.Tool.Name == "shell" && v.widest >= tools.Task && in.holds(v, "shell", tools.Task)
	if whole {
		keys = append(keys, "shell")
	}
	for _, t := range targets {
		to := min(v.widest, t.Widest)
		switch {
		case whole && to >= tools.Task && !isHost(t):
		case in.holds(v, t.Key, to):
			keys = append(keys, t.Key)
		default:
			missing = append(missing, t.Key)
		}
	}
	if len(keys) == 0 && missing == nil {
		missing = []string{} // there is nothing to grant
	}
	return keys, missing
}

// offer fills in the scopes that an answer may have.
func (d *Decision) offer(in *Input, asks []vote) {
	widest := tools.Always
	narrow := func(to tools.Scope, why string) {
		if to = max(to, tools.Once); to < widest {
			widest, d.Narrow = to, why
		}
	}
	narrow(in.widest())
	for _, v := range asks {
		narrow(v.widest, v.why)
	}
	for _, t := range in.targets() {
		narrow(t.Widest, t.Why)
	}
	if len(in.targets()) == 0 && in.Tool.Name == "shell" {
		narrow(tools.Task, "the call names nothing to grant")
	} else if len(in.targets()) == 0 {
		narrow(tools.Once, "the call names nothing to grant")
	}
	for s := tools.Once; s <= widest; s++ {
		d.Offered = append(d.Offered, s)
	}
}

// grantsFor returns what an answer of the scope grants: the calls that the text of these grants names, no more and no
// less. For this turn a shell answer covers the tool, since asking for each program of one job teaches to say yes.
func grantsFor(in *Input, scope tools.Scope) []Grant {
	targets := in.targets()
	switch {
	case scope == tools.Once:
		return nil
	case scope == tools.Task && in.Tool.Name == "shell":
		hosts := slices.DeleteFunc(slices.Clone(targets), func(t tools.Target) bool { return !isHost(t) })
		if len(hosts) < len(targets) || len(targets) == 0 {
			hosts = slices.Insert(hosts, 0, tools.Target{Key: "shell"})
		}
		targets = hosts
	}
	var out []Grant
	for _, t := range targets {
		if !slices.ContainsFunc(out, func(g Grant) bool { return g.Key == t.Key }) {
			out = append(out, Grant{Key: t.Key, Scope: scope, Who: who(in.Channel), Workspace: in.Workspace, Labels: in.Labels})
		}
	}
	return out
}

// effect is the text of what grants cover: of those that an answer offers, and of those that are held.
func effect(scope tools.Scope, grants []Grant) string {
	if len(grants) == 0 {
		return "this call only"
	}
	var keys []string
	place := ""
	for _, g := range grants {
		if g.Key == "shell" {
			g.Key = "shell, any program, but no warning and no line that cannot be analysed"
		}
		keys = append(keys, g.Key)
		if g.bound() {
			place = " in " + g.Workspace
		}
	}
	text := strings.Join(keys, ", ") + place
	if grants[0].Who == "app" {
		text += ", for other apps only"
	}
	if l := grants[0].Labels.List(); len(l) > 0 {
		text += ", also in a chat labelled " + strings.Join(l, " and ")
	}
	return text + ", " + map[tools.Scope]string{tools.Task: "until this turn ends", tools.Session: "until this session ends",
		tools.Day: "for 24 hours", tools.Always: "until revoked"}[scope]
}

// voids says why an answer to the question about before does not hold for what the same call has become by now, "" if it
// does.
func voids(before, now *Input, asked, after Decision) string {
	switch {
	case !slices.Equal(before.Judgement.Bound, now.Judgement.Bound):
		return "a file or program of the call has changed since the question"
	case !reflect.DeepEqual(before.Judgement, now.Judgement):
		return "what the call would do has changed since the question"
	case before.Labels != now.Labels || asked.Verdict != after.Verdict || !slices.Equal(asked.Reasons, after.Reasons):
		return "why the call asks has changed since the question"
	}
	return ""
}
