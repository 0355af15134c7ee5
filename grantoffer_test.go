package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"picket/tools"
)

// What is offered is what is stored is what covers, for calls at random and for real command lines.

// lineOf is a shell call as the gate has it for a real command line. Programs are the system's, unless they are named by
// their path, and files lie where their names say.
func lineOf(t testing.TB, line string, boxed bool) (Input, bool) {
	raw, err := json.Marshal(map[string]string{"command": line})
	if err != nil {
		t.Fatal(err)
	}
	args, err := tools.Shell.Parse(raw)
	if err != nil {
		return Input{}, false
	}
	plan, err := tools.Shell.Assess(args)
	if err != nil {
		return Input{}, false
	}
	facts := tools.Facts{Workspace: "/ws", Roots: []string{"/ws"}, Home: "/home/u", Boxed: boxed, NetBlocked: boxed,
		Paths: map[string]tools.PathFact{}, Programs: map[string]tools.ProgramFact{}, Env: map[string]bool{"PATH": true, "HOME": true}}
	for _, p := range plan.Programs {
		f := tools.ProgramFact{Path: "/usr/bin/" + p}
		if strings.Contains(p, "/") {
			f = tools.ProgramFact{Path: filepath.Join("/ws", p), Writable: true, Digest: strings.Repeat("ab", 32)}
		}
		facts.Programs[p] = f
	}
	for _, p := range plan.Paths {
		f := tools.PathFact{Resolved: filepath.Join("/ws", p.Name), Place: tools.Workspace, Exists: true, Regular: true}
		switch {
		case p.Name == "/dev/null":
			f = tools.PathFact{Resolved: p.Name, Place: tools.Scratch, Exists: true}
		case filepath.IsAbs(p.Name), strings.HasPrefix(p.Name, "~"):
			f.Resolved, f.Place = p.Name, tools.Outside
		}
		facts.Paths[p.Name] = f
	}
	j := tools.Shell.Judge(args, plan, facts)
	return Input{Tool: tools.Shell, Args: args.Values, Judgement: j, Channel: "cli", Workspace: "/ws"}, j.Refuse == ""
}

func shellLines(t testing.TB) (lines []string) {
	t.Helper()
	r := strings.NewReplacer(`\\n`, `\n`, `\n`, "\n", `\r`, "\r", `\x0b`, "\x0b", `\t`, "\t", `\u00a0`, "\u00a0")
	for _, name := range []string{"everyday.txt", "attacks.txt"} {
		data, err := os.ReadFile(filepath.Join("tools", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		n := len(lines)
		for l := range strings.Lines(string(data)) {
			if l = strings.TrimSuffix(l, "\n"); l != "" && l[0] != '#' {
				lines = append(lines, r.Replace(l))
			}
		}
		if len(lines) == n {
			t.Fatalf("%s is empty", name)
		}
	}
	return lines
}

// stored writes grants as the log does and reads them back as every process does.
func stored(t testing.TB, grants []Grant) []Grant {
	t.Helper()
	a := &Approvals{log: &Log{}, questions: map[string]*Question{}}
	for _, g := range grants {
		if g.Given = testTime; g.Scope == tools.Day {
			g.Until = testTime.Add(dayGrant)
		}
		n, err := parseLine(linesOf(mark{}, Record{Run: "r", Call: "c", Body: g.record()}))
		if err != nil {
			t.Fatal(err)
		}
		a.read(n)
	}
	if len(a.grants) != len(grants) || a.distrust != "" {
		t.Fatalf("%d of %d grants come back: %s", len(a.grants), len(grants), a.distrust)
	}
	return a.grants
}

// offers counts what was checked.
type offers struct{ questions, scopes, alone, wider int }

// check checks every scope that is offered for a call, and every one that is not.
func (n *offers) check(t testing.TB, p *Policy, in Input) {
	t.Helper()
	in.Grants = nil
	d := p.Decide(in)
	if d.Verdict != Ask {
		return
	}
	n.questions++
	fail := func(format string, a ...any) { t.Helper(); t.Fatalf(format+"\n%+v", append(a, in)...) }
	card := makeCard(cardInput{Input: &in, Decision: d, Words: "do", Source: "owner", Chat: "c"})
	var keys []string
	for _, target := range in.targets() {
		keys = append(keys, target.Key)
	}
	if !slices.Equal(d.Missing, keys) && len(d.Missing)+len(keys) > 0 {
		fail("nothing is granted, and %q are said to be missing of %q", d.Missing, keys)
	}
	closed := len(in.Judgement.Warnings) > 0 || in.Judgement.Opaque != "" || in.Judgement.NotCovered != ""
	if closed && !slices.Equal(d.Offered, []tools.Scope{tools.Once}) {
		fail("%v is offered", d.Offered)
	}
	for s := tools.Once; s <= tools.Always; s++ {
		grants := grantsFor(&in, s)
		if !slices.Contains(d.Offered, s) {
			// Even if it were stored, it would answer nothing.
			if with := in.with(func(in *Input) { in.Grants = stored(t, grants) }); p.Decide(with).Verdict == Allow {
				fail("%v is not offered, and covers the call", s)
			}
			continue
		}
		n.scopes++
		grants = stored(t, grants)
		if text := s.String() + " allows: " + printable(effect(s, grants)); slices.Contains(card.Offered, s) && !slices.Contains(card.Lines, text) {
			fail("the card does not say %q: %q", text, card.Lines)
		}
		if s == tools.Once {
			if len(grants) > 0 {
				fail("once grants %v", grants)
			}
			continue
		}
		n.covers(t, p, in, s, grants)
	}
}

// covers checks what the stored grants of an answer cover: the call, and of others only what they name.
func (n *offers) covers(t testing.TB, p *Policy, in Input, s tools.Scope, grants []Grant) {
	t.Helper()
	with := func(change func(*Input)) Decision {
		return p.Decide(in.with(func(in *Input) {
			in.Grants = grants
			in.Judgement.Targets = slices.Clone(in.Judgement.Targets)
			change(in)
		}))
	}
	without := func(change func(*Input)) Decision {
		return p.Decide(in.with(func(in *Input) {
			in.Judgement.Targets = slices.Clone(in.Judgement.Targets)
			change(in)
		}))
	}
	fail := func(format string, a ...any) {
		t.Helper()
		t.Fatalf("%v, stored as %+v: "+format+"\n%+v", append(append([]any{s, grants}, a...), in)...)
	}
	if d := with(func(*Input) {}); d.Verdict != Allow || d.By != "grant" || len(d.Grants) == 0 {
		fail("the same call: %v by %s %q", d.Verdict, d.By, d.Reasons)
	}
	// text is what the owner read.
	text := effect(s, grants)
	whole := s == tools.Task && in.Tool.Name == "shell"
	targets := in.targets()
	for i, target := range targets {
		if !whole && !strings.Contains(text, target.Key) {
			fail("%q does not say %q", text, target.Key)
		}
		other := func(in *Input) {
			if len(in.Judgement.Targets) == 0 { // a tool as a whole
				in.Tool.Name += "x"
				return
			}
			in.Judgement.Targets[i].Key += "x"
			in.Judgement.Egress.Hosts = slices.Clone(in.Judgement.Egress.Hosts)
			for h, host := range in.Judgement.Egress.Hosts { // where it goes is what it names
				if strings.HasSuffix(target.Key, ":"+host) || strings.HasSuffix(target.Key, "@"+host) {
					in.Judgement.Egress.Hosts[h] += "x"
				}
			}
		}
		// Another target: only that one is missing, if others of the same name do not stand for it.
		if d := with(other); !whole && len(in.Judgement.Targets) > 0 {
			if d.Verdict != Ask || !slices.Equal(d.Missing, []string{target.Key + "x"}) {
				fail("with %q for %q: %v, missing %q", target.Key+"x", target.Key, d.Verdict, d.Missing)
			}
		} else if !whole && d.Verdict > without(other).Verdict {
			fail("another tool: %v", d.Verdict)
		}
		// One of the grants alone covers none of the others' keys.
		for k, g := range grants {
			if len(grants) < 2 || whole {
				break
			}
			n.alone++
			d := p.Decide(in.with(func(in *Input) { in.Grants = grants[k : k+1] }))
			var missing []string
			for _, t := range targets {
				if t.Key != g.Key {
					missing = append(missing, t.Key)
				}
			}
			if d.Verdict != Ask || !slices.Equal(d.Missing, missing) {
				fail("only %q: %v, missing %q", g.Key, d.Verdict, d.Missing)
			}
		}
	}
	n.wider++
	for name, change := range map[string]func(*Input){
		"another app's or the owner's": func(in *Input) { in.Channel = map[string]string{"app": "cli", "owner": "api"}[who(in.Channel)] },
		"a warning":                    func(in *Input) { in.Judgement.Warnings = []string{"it deletes"} },
		"an opaque line":               func(in *Input) { in.Judgement.Opaque = "it uses eval" },
		"a write elsewhere":            func(in *Input) { in.Judgement.NotCovered = "it writes /etc/motd" },
		"another workspace": func(in *Input) {
			bound := slices.Contains([]string{"shell", "python_execute", "skills"}, in.Tool.Name) && s >= tools.Day
			if said := strings.Contains(text, " in "+in.Workspace); said != bound {
				fail("%q, and bound to the workspace: %v", text, bound)
			}
			if in.Workspace = "/other"; !bound {
				in.Grants = nil // it may
			}
		},
	} {
		if d, e := with(change), without(change); d.Verdict > e.Verdict || d.By == "grant" {
			fail("%s: %v by %s, and without the grants %v", name, d.Verdict, d.By, e.Verdict)
		}
	}
	// Labels that came since: their questions are not answered, all others are.
	for _, l := range []Labels{{true, false}, {false, true}, {true, true}} {
		more := func(in *Input) {
			in.Labels = Labels{in.Labels.Private || l.Private, in.Labels.Untrusted || l.Untrusted}
			in.URLSeen = false
		}
		if in.with(more).Labels == in.Labels {
			continue
		}
		for _, v := range without(more).Steps {
			if d := with(more); v.Step == stepLabels && v.Vote == "ask" && d.Verdict == Allow {
				fail("in a chat that is %+v since: %v by %s", l, d.Verdict, d.By)
			}
		}
	}
}

func TestOffersOfRandomCalls(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	var n offers
	for range 2500 {
		n.check(t, mustPolicy(t, randomSettings(r)), randomInput(r))
	}
	t.Logf("%+v", n)
	if n.questions < 500 || n.scopes < 1000 || n.alone < 500 || n.wider < 500 {
		t.Errorf("only %+v were checked", n)
	}
}

func TestOffersOfCommandLines(t *testing.T) {
	t.Parallel()
	var n offers
	p := mustPolicy(t, defaults)
	for i, line := range shellLines(t) {
		for j, boxed := range []bool{true, false} {
			in, ok := lineOf(t, line, boxed)
			if !ok {
				continue
			}
			in.Labels = Labels{(i+j)%3 == 0, (i+j)%5 == 0}
			in.Channel = []string{"cli", "daemon", "api"}[(i+j)%3]
			n.check(t, p, in)
		}
	}
	t.Logf("%+v", n)
	if n.questions < 1500 || n.scopes < 2000 || n.alone < 500 || n.wider < 500 {
		t.Errorf("only %+v were checked", n)
	}
}

// What each of a hundred random sets of grants leaves open of a line is what the question names, and once that is granted
// there is no other question.
func TestMissingIsWhatIsNotCovered(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 10))
	p := mustPolicy(t, defaults)
	partly := 0
	for _, line := range shellLines(t) {
		in, ok := lineOf(t, line, true)
		if d := p.Decide(in); !ok || d.Verdict != Ask || len(d.Offered) < 5 {
			continue
		}
		for range 4 {
			var missing []string
			in.Grants = nil
			for _, g := range stored(t, grantsFor(&in, tools.Always)) {
				if r.IntN(2) == 0 {
					in.Grants = append(in.Grants, g)
				} else {
					missing = append(missing, g.Key)
				}
			}
			d := p.Decide(in)
			if !slices.Equal(d.Missing, missing) || (d.Verdict == Ask) != (missing != nil) {
				t.Fatalf("%q: %v, missing %q, want %q", line, d.Verdict, d.Missing, missing)
			}
			if missing == nil {
				continue
			}
			partly++
			card := makeCard(cardInput{Input: &in, Decision: d})
			for _, key := range d.Missing {
				if !slices.Contains(card.Lines, "not granted yet: "+printable(key)) {
					t.Fatalf("%q: the card does not name %q", line, key)
				}
			}
			in.Grants = append(in.Grants, stored(t, grantsFor(&in, d.Offered[1+r.IntN(4)]))...)
			if d := p.Decide(in); d.Verdict != Allow {
				t.Fatalf("%q asks again: %q", line, d.Reasons)
			}
		}
	}
	if partly < 100 {
		t.Errorf("only %d lines were partly covered", partly)
	}
}

// FuzzOffered checks the offers of a call at random, and of a command line.
func FuzzOffered(f *testing.F) {
	for i, line := range []string{"git status && rm -rf ./tmp", "git log --oneline | head -5", "make -j4", "./build.sh x", "sh -c 'curl evil.test'", "git push origin HEAD",
		"go test ./... > out.txt 2>&1", "x=1; echo $x $(date)", "find . -name '*.go' -exec wc -l {} +", "cat <<E | sort -u\na\nE\n", "eval true", "g\u200bit status", "env -i nice git log", ""} {
		f.Add(uint64(i), line)
	}
	f.Fuzz(func(t *testing.T, seed uint64, line string) {
		r := rand.New(rand.NewPCG(seed, 1))
		var n offers
		p := mustPolicy(t, randomSettings(r))
		sample := randomInput(r)
		n.check(t, p, sample)
		if in, ok := lineOf(t, line, r.IntN(3) > 0); ok {
			in.Labels, in.Channel, in.Mode = sample.Labels, sample.Channel, sample.Mode
			n.check(t, p, in)
		}
	})
}

// A text that others chose cannot widen what the owner reads: it stands as one key, marked where it ends.
func TestEffectOfOddKeys(t *testing.T) {
	for _, key := range []string{"send_email:a@x.test, shell:rm", "send_email:\u202ea@x.test", "send_email:a@x.test until revoked"} {
		in := mailCall("a@x.test")
		in.Judgement.Targets[0].Key = key
		d := mustPolicy(t, defaults).Decide(in)
		card := makeCard(cardInput{Input: &in, Decision: d})
		want := fmt.Sprintf("24h allows: %s, for 24 hours", printable(key))
		if !slices.Contains(card.Lines, want) {
			t.Errorf("no %q in %q", want, card.Lines)
		}
		in.Grants = stored(t, grantsFor(&in, tools.Day))
		if d := mustPolicy(t, defaults).Decide(in); d.Verdict != Allow {
			t.Errorf("%q asks again", key)
		}
		rm := shellCall("rm x")
		rm.Grants = in.Grants
		if d := mustPolicy(t, defaults).Decide(rm); d.Verdict != Ask {
			t.Errorf("%q lets rm run", key)
		}
	}
}

// One answer about a line of several programs: each key is named before it is given, and a warning is given to none.
func TestCompoundLines(t *testing.T) {
	p := mustPolicy(t, defaults)
	ask := func(line string, grants ...Grant) (Decision, Card) {
		t.Helper()
		in, ok := lineOf(t, line, true)
		if !ok {
			t.Fatalf("%q is refused", line)
		}
		in.Grants = grants
		d := p.Decide(in)
		return d, makeCard(cardInput{Input: &in, Decision: d, Words: "x", Source: "owner"})
	}
	git, rm := Grant{Key: "shell:git", Scope: tools.Always, Who: "owner", Workspace: "/ws"}, Grant{Key: "shell:rm", Scope: tools.Always, Who: "owner", Workspace: "/ws"}
	for _, c := range []struct {
		line    string
		grants  []Grant
		offered int // scopes
		want    []string
	}{
		{"git status | head", nil, 5, []string{"not granted yet: shell:git", "not granted yet: shell:head", "always allows: shell:git, shell:head in /ws, until revoked"}},
		{"git status | head", []Grant{git}, 5, []string{"not granted yet: shell:head", "granted: shell:git"}},
		{"git status && rm -rf ./tmp", nil, 1, []string{"once allows: this call only", "  - deletes recursively"}},
		{"rm -rf ./other", []Grant{git, rm}, 1, []string{"once allows: this call only"}},
		{`sh -c '"$@"' _ curl evil.test`, []Grant{git}, 1, []string{`command: sh -c '"$@"' _ curl evil.test`}},
		{`sh -c '$0 evil.test' curl`, nil, 1, []string{`command: sh -c '$0 evil.test' curl`}},
		{"sh -c 'ls'; python3 x.py", nil, 2, nil},
		{strings.Repeat("ls; ", 150) + "curl evil.test", nil, 1, []string{"command: " + strings.Repeat("ls; ", 150) + "curl evil.test"}},
	} {
		d, card := ask(c.line, c.grants...)
		if d.Verdict != Ask || len(card.Offered) != c.offered && !strings.Contains(c.line, "ls; ls") {
			t.Errorf("%q: %v, offers %v", c.line, d.Verdict, card.Offered)
		}
		for _, want := range c.want {
			if !slices.Contains(card.Lines, want) {
				t.Errorf("%q: no %q in\n%s", c.line, want, strings.Join(card.Lines, "\n"))
			}
		}
	}
	if d, _ := ask("git log; rm x", git, rm); d.Verdict != Allow {
		t.Errorf("both are granted, and the two together ask: %q", d.Reasons)
	}
}
