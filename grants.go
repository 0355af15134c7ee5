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
	turn         string
}

func (g *Grant) record() grantRecord {
	r := grantRecord{g.Key, g.Scope.String(), g.Who, g.Workspace, g.Labels.List(), ""}
	if !g.Until.IsZero() {
		r.Until = g.Until.UTC().Format(timeLayout)
	}
	return r
}

// bound reports whether the grant holds only in its workspace: what runs code
// or steers later turns is trusted only where it was.
func (g *Grant) bound() bool {
	tool, _, _ := strings.Cut(g.Key, ":")
	return g.Scope >= tools.Day && (tool == "shell" || tool == "python_execute" || tool == "skills")
}

func (g *Grant) holdsIn(who, workspace string) bool {
	return g.Who == who && (!g.bound() || g.Workspace == workspace)
}

// targeted are the tools that no grant covers as a whole.
var targeted = []string{"shell", "web_search", "web_fetch", "skills", "send_email", "browser"}

// targets are the keys that a grant of the call binds to: those that the tool
// names, or the tool as a whole.
func (in *Input) targets() []tools.Target {
	if j := &in.Judgement; len(j.Targets) > 0 || slices.Contains(targeted, in.Tool.Name) {
		return j.Targets
	}
	return []tools.Target{{Key: in.Tool.Name, Widest: in.Judgement.Widest, Why: in.Judgement.WidestWhy}}
}

// widest is the widest grant that the call as a whole could be given.
func (in *Input) widest() tools.Scope {
	j := &in.Judgement
	if len(j.Warnings) > 0 || j.Opaque != "" || j.NotCovered != "" {
		return tools.Once
	}
	return j.Widest
}

// covered returns the keys by which grants answer the question, and those of
// the call's keys that none covers; nil means that it is answered. A grant
// counts only if it could have been given for this very call.
func (in *Input) covered(v vote) (keys, missing []string) {
	find := func(key string, from, to tools.Scope) bool {
		return slices.ContainsFunc(in.Grants, func(g Grant) bool {
			return key != "" && g.Key == key && g.Scope >= from && g.Scope <= to && g.holdsIn(who(in.Channel), in.Workspace) &&
				(!v.labels || g.Labels.Holds(in.Labels))
		})
	}
	whole := in.Tool.Name == "shell" && v.widest >= tools.Task && find("shell", tools.Task, tools.Task)
	for _, t := range in.targets() {
		to := min(v.widest, t.Widest)
		switch {
		case whole && to >= tools.Task:
		case t.Key != "shell" && find(t.Key, tools.Task, to):
			keys = append(keys, t.Key)
		default:
			missing = append(missing, t.Key)
		}
	}
	if whole {
		keys = append(keys, "shell")
	}
	if keys == nil && missing == nil {
		missing = []string{}
	}
	return keys, missing
}

// offer fills in the scopes that an answer may have.
func (d *Decision) offer(in *Input, asks []vote) {
	j := &in.Judgement
	widest := tools.Always
	narrow := func(to tools.Scope, why string) {
		if to = max(to, tools.Once); to < widest {
			widest, d.Narrow = to, why
		}
	}
	switch {
	case len(j.Warnings) > 0:
		narrow(tools.Once, "a call with a warning is asked about each time")
	case j.Opaque != "":
		narrow(tools.Once, "a line that cannot be analysed is asked about each time: "+j.Opaque)
	case j.NotCovered != "":
		narrow(tools.Once, j.NotCovered)
	}
	for _, v := range asks {
		switch {
		case v.step == stepRules:
			narrow(tools.Once, "a rule asks each time")
		case v.labels:
			narrow(v.widest, "no grant is for this very destination in such a chat")
		}
	}
	narrow(j.Widest, j.WidestWhy)
	for _, t := range in.targets() {
		narrow(t.Widest, t.Why)
	}
	if len(in.targets()) == 0 {
		if narrow(tools.Task, "the call names nothing to grant"); in.Tool.Name != "shell" {
			narrow(tools.Once, d.Narrow)
		}
	}
	for s := tools.Once; s <= widest; s++ {
		d.Offered = append(d.Offered, s)
	}
}

// grantsFor returns what an answer of the scope grants: the calls that the text
// of these grants names, no more and no less. For this turn a shell answer
// covers the tool, since asking for each program of one job teaches to say yes.
func grantsFor(in *Input, scope tools.Scope) []Grant {
	var out []Grant
	add := func(key string) {
		out = append(out, Grant{Key: key, Scope: scope, Who: who(in.Channel), Workspace: in.Workspace, Labels: in.Labels})
	}
	switch {
	case scope == tools.Once:
	case scope == tools.Task && in.Tool.Name == "shell":
		add("shell")
	default:
		for _, t := range in.targets() {
			if !slices.ContainsFunc(out, func(g Grant) bool { return g.Key == t.Key }) {
				add(t.Key)
			}
		}
	}
	return out
}

// effect is the text of what grants cover: of those that an answer offers, and
// of those that are held.
func effect(scope tools.Scope, grants []Grant) string {
	if len(grants) == 0 {
		return "this call only"
	}
	var keys []string
	place := ""
	for _, g := range grants {
		key := g.Key
		if key == "shell" {
			key = "shell, any program, but no warning and no line that cannot be analysed"
		}
		keys = append(keys, key)
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

// voids says why an answer to the question about before does not hold for what
// the same call has become by now, "" if it does.
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
