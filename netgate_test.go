package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"picket/tools"
)

func tunnelTo(host string) tools.Dest {
	return tools.Dest{Host: host, Port: 443, Method: "CONNECT", Sends: true}
}

func plainGet(url string) tools.Dest {
	u, _ := tools.ParseURL(url)
	return tools.Dest{Host: u.NetKey(), Port: u.Port, Method: "GET", URL: u.String(), Bytes: len(url) + 60}
}

// netRig is a gate whose boxed calls do nothing but connect.
type netRig struct {
	*gateRig
	dests []tools.Dest
	errs  []error
	cards []Card
	scope tools.Scope
	no    []string // hosts that the owner declines
}

func newNetRig(t *testing.T, set sentinelConfig, dests ...tools.Dest) *netRig {
	r := &netRig{gateRig: newGateRig(t), dests: dests}
	set.TaintTracking = true
	if set.Mode == "" {
		set.Mode = "ask"
	}
	policy, err := compilePolicy(set, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.gate.policy = policy
	r.gate.tools = map[string]tools.Tool{"shell": tools.Shell, "python_execute": tools.Python}
	r.gate.resolver.box.state = boxState{Boxed: true, NetBlocked: true, NetProxied: true}
	r.gate.host.Exec = func(ctx context.Context, cmd tools.Command) (res tools.ExecResult) {
		for _, d := range r.dests {
			err := cmd.Connect(ctx, d)
			if r.errs = append(r.errs, err); err == nil {
				res.Net = append(res.Net, tools.NetUse{Dest: d, Out: 10, In: 20})
			}
		}
		res.Started = true
		return res
	}
	r.turn.Caller.Ask = func(_ context.Context, c Card) (Answer, error) {
		r.cards = append(r.cards, c)
		for _, host := range r.no {
			if strings.Contains(c.Lines[0], "connect to "+host+",") {
				return Answer{Reason: "not there"}, nil
			}
		}
		return Answer{Allow: true, Scope: min(r.scope, c.Offered[len(c.Offered)-1])}, nil
	}
	return r
}

func (r *netRig) shell(line string) Result {
	return r.gate.Do(context.Background(), r.turn, call("shell", jsonText(map[string]any{"command": line, "network": true})))
}

// netAsked are the questions about hosts.
func (r *netRig) netAsked() (out []string) {
	for _, c := range r.cards {
		if rest, ok := strings.CutPrefix(c.Lines[0], "connect to "); ok {
			host, _, _ := strings.Cut(rest, ",")
			out = append(out, host)
		}
	}
	return out
}

func TestNetGateDecides(t *testing.T) {
	const list = "listed.test"
	private, untrusted := Labels{Private: true}, Labels{Untrusted: true}
	rule := func(tool, action string, match ...string) ruleConfig {
		r := ruleConfig{Tool: tool, Action: action, Match: map[string]string{}}
		for i := 0; i < len(match); i += 2 {
			r.Match[match[i]] = match[i+1]
		}
		return r
	}
	for name, c := range map[string]struct {
		set    sentinelConfig
		labels Labels
		line   string
		dest   tools.Dest
		grant  string
		want   string // "" allows without a question; asked; or why not
	}{
		"a host that was not named":                       {dest: tunnelTo("x.test"), want: "asked"},
		"a plain request for one":                         {dest: plainGet("http://x.test/"), want: "asked"},
		"one that the line names":                         {line: "curl https://x.test/", dest: tunnelTo("x.test")},
		"another one than the line names":                 {line: "curl https://x.test/", dest: tunnelTo("y.test"), want: "asked"},
		"a part of the one that it names":                 {line: "curl https://x.test/", dest: tunnelTo("a.x.test"), want: "asked"},
		"one on the list":                                 {dest: tunnelTo(list)},
		"a look-up of one on the list":                    {dest: plainGet("http://" + list + "/")},
		"a plain POST to one on the list":                 {dest: tools.Dest{Host: list, Port: 80, Method: "POST", URL: "http://" + list + "/", Sends: true}, want: "asked"},
		"one on the list, in mode strict":                 {set: sentinelConfig{Mode: "strict"}, dest: tunnelTo(list), want: "asked"},
		"a granted one":                                   {dest: tunnelTo("x.test"), grant: "net:x.test"},
		"a grant for another":                             {dest: tunnelTo("x.test"), grant: "net:y.test", want: "asked"},
		"a grant of the program":                          {dest: tunnelTo("x.test"), grant: "shell:pip", want: "asked"},
		"a grant of any program":                          {dest: tunnelTo("x.test"), grant: "shell", want: "asked"},
		"a grant of web_fetch":                            {dest: tunnelTo("x.test"), grant: "web_fetch:x.test", want: "asked"},
		"mode auto":                                       {set: sentinelConfig{Mode: "auto"}, dest: tunnelTo("x.test")},
		"mode auto in a private chat":                     {set: sentinelConfig{Mode: "auto"}, labels: private, dest: tunnelTo("x.test"), want: "asked"},
		"a tunnel to one on the list, in a private chat":  {labels: private, dest: tunnelTo(list), want: "asked"},
		"a look-up of one on the list, in a private chat": {labels: private, dest: plainGet("http://" + list + "/")},
		"a long look-up there":                            {labels: private, dest: tools.Dest{Host: list, Port: 80, Method: "GET", URL: "http://" + list + "/", Bytes: 600}, want: "asked"},
		"a granted one in a private chat":                 {labels: private, dest: tunnelTo("x.test"), grant: "net:x.test"},
		"mode auto in an untrusted chat":                  {set: sentinelConfig{Mode: "auto"}, labels: untrusted, dest: tunnelTo("x.test"), want: "asked"},
		"a rule of web_fetch that denies the host": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "deny", "url", "https://x.test/*")}},
			dest: tunnelTo("x.test"), want: "rules[0]"},
		"the same where the line names it": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "deny", "url", "https://x.test/*")}},
			line: "curl https://x.test/", dest: tunnelTo("x.test"), want: "rules[0]"},
		"one that denies the plain host": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "deny", "url", "http://x.test/*")}},
			dest: plainGet("http://x.test/a"), want: "rules[0]"},
		"one that denies names below": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "deny", "url", "https://*.x.test/*")}},
			dest: tunnelTo("a.x.test"), want: "rules[0]"},
		"one that denies every tool the host": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("*", "deny", "url", "*//x.test/*")}},
			dest: tunnelTo("x.test"), want: "rules[0]"},
		"one that denies a part of the host": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "deny", "url", "https://x.test/private/*")}},
			dest: tunnelTo("x.test"), want: "asked"},
		"one that denies another host": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "deny", "url", "https://y.test/*")}},
			dest: tunnelTo("x.test")},
		"one that asks": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "ask", "url", "https://x.test/*")}},
			dest: tunnelTo("x.test"), want: "asked"},
		"one that asks, where the line names the host": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "ask", "url", "https://x.test/*")}},
			line: "curl https://x.test/", dest: tunnelTo("x.test"), want: "asked"},
		"one that allows does not": {set: sentinelConfig{Rules: []ruleConfig{rule("web_fetch", "allow", "url", "https://x.test/*")}},
			dest: tunnelTo("x.test"), want: "asked"},
		"one that allows comes before one that denies": {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("web_fetch", "allow", "url", "*//x.test/*"),
			rule("web_fetch", "deny", "url", "*.test/*")}}, dest: tunnelTo("x.test")},
		"web_fetch denied as a whole":              {set: sentinelConfig{Mode: "auto", DenyTools: []string{"web_fetch"}}, dest: tunnelTo("x.test")},
		"a rule of the shell that allows the line": {set: sentinelConfig{Rules: []ruleConfig{rule("shell", "allow", "command", "pip *")}}, dest: tunnelTo("x.test"), want: "asked"},
		"one that allows the host":                 {set: sentinelConfig{Rules: []ruleConfig{rule("shell", "allow", "host", "*.pkg.test")}}, dest: tunnelTo("x.pkg.test")},
		"one that denies the host":                 {set: sentinelConfig{Mode: "auto", Rules: []ruleConfig{rule("shell", "deny", "host", "x.test")}}, dest: tunnelTo("x.test"), want: "rules[0]"},
		"a port of this machine":                   {dest: tools.Dest{Host: "localhost:5432", Port: 5432, Method: "TCP", Sends: true}, want: "asked"},
	} {
		t.Run(name, func(t *testing.T) {
			c.set.EgressAllowlist = []string{list}
			r := newNetRig(t, c.set, c.dest)
			if c.labels.Private {
				r.turn.Chat.label(chatLabel{"private", "test"})
			}
			if c.labels.Untrusted {
				r.turn.Chat.label(chatLabel{"untrusted", "test"})
			}
			if c.grant != "" {
				g := Grant{Key: c.grant, Scope: tools.Task, Who: "owner", Workspace: r.gate.host.Workspace, Labels: c.labels}
				if err := r.gate.approvals.Grant(context.Background(), Record{}, r.turn.ID, []Grant{g}); err != nil {
					t.Fatal(err)
				}
			}
			if c.line == "" {
				c.line = "pip install x"
			}
			res := r.shell(c.line)
			if res.Refused || len(r.errs) != 1 {
				t.Fatalf("the call: %+v", res)
			}
			asked := r.netAsked()
			switch {
			case c.want == "" && (r.errs[0] != nil || len(asked) > 0), c.want == "asked" && (r.errs[0] != nil || !slices.Equal(asked, []string{c.dest.Host})):
				t.Errorf("asked about %q, %v", asked, r.errs[0])
			case c.want != "" && c.want != "asked" && (r.errs[0] == nil || !strings.Contains(r.errs[0].Error(), c.want) || len(asked) > 0):
				t.Errorf("asked about %q, %v, want %q", asked, r.errs[0], c.want)
			}
			recs := r.records("egress")
			verdict := "allow"
			if r.errs[0] != nil {
				verdict = "deny"
			}
			if len(recs) == 0 || recs[0]["host"] != c.dest.Host || recs[0]["verdict"] != verdict || recs[0]["port"] != float64(c.dest.Port) || recs[0]["by"] == "" {
				t.Errorf("records %v", recs)
			}
			if verdict == "allow" && (len(recs) != 2 || recs[1]["bytes_out"] != 10.0 || recs[1]["bytes_in"] != 20.0 || recs[1]["by"] != recs[0]["by"]) {
				t.Errorf("records %v", recs)
			}
		})
	}
}

// The card of a connection names the host and the command, and its answer grants
// the host and nothing else.
func TestNetGateQuestion(t *testing.T) {
	r := newNetRig(t, sentinelConfig{}, tunnelTo("x.test"), tunnelTo("no.test"), tunnelTo("y.test"))
	r.no, r.scope = []string{"no.test"}, tools.Task
	res := r.shell("pip install x")
	if got := r.netAsked(); !slices.Equal(got, []string{"x.test", "no.test", "y.test"}) {
		t.Fatalf("asked about %q", got)
	}
	text := strings.Join(r.cards[1].Lines, "\n")
	for _, want := range []string{"connect to x.test, port 443, for shell (network): pip install x", "sends to: x.test", "not granted yet: net:x.test", "you asked: do it",
		"task allows: net:x.test, until this turn ends", "always allows: net:x.test in "} {
		if !strings.Contains(text, want) {
			t.Errorf("the card does not hold %q:\n%s", want, text)
		}
	}
	if r.errs[0] != nil || r.errs[2] != nil || r.errs[1] == nil || r.errs[1].Error() != "the owner declined it: not there" {
		t.Errorf("decided %v", r.errs)
	}
	if !strings.Contains(res.Text, "no connection to no.test: the owner declined it: not there") {
		t.Errorf("the model is told %q", res.Text)
	}
	var keys []string
	for _, g := range r.gate.approvals.Held(context.Background(), r.turn.ID) {
		keys = append(keys, g.Key)
	}
	slices.Sort(keys)
	if !slices.Equal(keys, []string{"net:x.test", "net:y.test", "shell"}) {
		t.Errorf("granted %q", keys)
	}
	ids := map[any]bool{}
	for _, q := range r.records("question") {
		ids[q["call"]] = true
	}
	if len(ids) != 4 || len(r.records("answer")) != 4 {
		t.Errorf("%d questions with %d answers", len(ids), len(r.records("answer")))
	}
}

// Hosts that the line names are keys of the call: no grant of a program covers
// them, and an answer grants each on its own.
func TestNetGateNamedHostsAreTargets(t *testing.T) {
	r := newNetRig(t, sentinelConfig{})
	r.turn.Chat.label(chatLabel{"untrusted", "test"}) // as each such call labels it
	r.scope = tools.Session
	r.shell("curl https://x.test/a")
	r.shell("curl https://x.test/b")
	if len(r.cards) != 1 {
		t.Errorf("%d questions about a granted host", len(r.cards))
	}
	r.shell("curl https://y.test/")
	if len(r.cards) != 2 || !slices.Contains(r.cards[1].Lines, "not granted yet: net:y.test") || !slices.Contains(r.cards[1].Lines, "granted: shell:curl") {
		t.Errorf("%d questions: %q", len(r.cards), r.cards[len(r.cards)-1].Lines)
	}
	r.scope = tools.Task
	r.shell("wget https://z.test/")
	r.shell("wget https://z.test/b")
	if len(r.cards) != 3 || !slices.ContainsFunc(r.cards[2].Lines, func(l string) bool {
		return strings.HasPrefix(l, "task allows: shell, any program") && strings.Contains(l, ", net:z.test, also in a chat labelled untrusted, until this turn ends")
	}) {
		t.Errorf("%d questions: %q", len(r.cards), r.cards[len(r.cards)-1].Lines)
	}
	r.shell("ls; curl https://w.test/")
	if len(r.cards) != 4 {
		t.Error("a grant of any program covered a host")
	}
}

func TestNetGateStopsAsking(t *testing.T) {
	var dests []tools.Dest
	for i := range 8 {
		dests = append(dests, tunnelTo(fmt.Sprintf("h%d.test", i)))
	}
	r := newNetRig(t, sentinelConfig{}, dests...)
	for _, d := range dests {
		r.no = append(r.no, d.Host)
	}
	res := r.shell("pip install x")
	if n := len(r.netAsked()); n != maxNetDeclined || slices.Contains(r.errs, nil) || len(r.errs) != 8 {
		t.Errorf("%d questions, %v", n, r.errs)
	}
	if n := strings.Count(res.Text, "no connection to "); n != maxNetNotes {
		t.Errorf("%d notes", n)
	}
}

// Nobody to ask, no record, or a broken gate: no connection.
func TestNetGateFailsClosed(t *testing.T) {
	t.Run("nobody to ask", func(t *testing.T) {
		r := newNetRig(t, sentinelConfig{Rules: []ruleConfig{{Tool: "shell", Match: map[string]string{"command": "pip *"}, Action: "allow"}}}, tunnelTo("x.test"))
		r.turn.Caller.Ask = nil
		r.shell("pip install x")
		if len(r.errs) != 1 || r.errs[0] == nil || r.records("egress")[0]["by"] != "expired" {
			t.Errorf("%v", r.errs)
		}
	})
	t.Run("no record", func(t *testing.T) {
		r := newNetRig(t, sentinelConfig{Mode: "auto"}, tunnelTo("x.test"))
		exec := r.gate.host.Exec
		r.gate.host.Exec = func(ctx context.Context, cmd tools.Command) tools.ExecResult {
			path := filepath.Join(r.dir, "data", auditName)
			if err := errors.Join(os.Rename(path, path+".away"), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
			return exec(ctx, cmd)
		}
		res := r.shell("pip install x")
		if len(r.errs) != 1 || r.errs[0] == nil || res.LogFailed == nil {
			t.Errorf("%v, %+v", r.errs, res)
		}
	})
	t.Run("granted no longer", func(t *testing.T) {
		r := newNetRig(t, sentinelConfig{}, tunnelTo("x.test"))
		g := Grant{Key: "net:x.test", Scope: tools.Task, Who: "owner", Workspace: r.gate.host.Workspace}
		if err := r.gate.approvals.Grant(context.Background(), Record{}, r.turn.ID, []Grant{g}); err != nil {
			t.Fatal(err)
		}
		exec, mode := r.gate.host.Exec, r.gate.mode
		r.gate.host.Exec = func(ctx context.Context, cmd tools.Command) tools.ExecResult {
			r.gate.mode = func() string { // is asked for after the grants
				if n, err := r.gate.approvals.Revoke(ctx, "net:x.test"); n != 1 || err != nil {
					t.Errorf("revoked %d, %v", n, err)
				}
				r.gate.mode = mode
				return mode()
			}
			return exec(ctx, cmd)
		}
		r.shell("pip install x")
		recs := r.records("egress")
		if len(r.errs) != 1 || r.errs[0] == nil || len(recs) != 1 || recs[0]["verdict"] != "deny" || recs[0]["by"] != "guard" {
			t.Errorf("%v, records %v", r.errs, recs)
		}
	})
	t.Run("a panic", func(t *testing.T) {
		r := newNetRig(t, sentinelConfig{}, tunnelTo("x.test"))
		ask := r.turn.Caller.Ask
		r.turn.Caller.Ask = func(ctx context.Context, c Card) (Answer, error) {
			if strings.HasPrefix(c.Lines[0], "connect") {
				r.gate.now = nil
				panic("here")
			}
			return ask(ctx, c)
		}
		now := r.gate.now
		r.gate.host.Exec = func(ctx context.Context, cmd tools.Command) tools.ExecResult {
			r.errs = append(r.errs, cmd.Connect(ctx, r.dests[0]))
			r.gate.now = now
			return tools.ExecResult{Started: true}
		}
		r.shell("pip install x")
		if recs := r.records("egress"); len(r.errs) != 1 || r.errs[0] == nil || len(recs) != 1 || recs[0]["verdict"] != "deny" {
			t.Errorf("%v, records %v", r.errs, recs)
		}
	})
	t.Run("stopped while it is asked", func(t *testing.T) {
		r := newNetRig(t, sentinelConfig{Mode: "auto", Rules: []ruleConfig{{Tool: "shell", Match: map[string]string{"host": "*"}, Action: "ask"}}}, tunnelTo("x.test"))
		ctx, stop := context.WithCancel(context.Background())
		r.turn.Caller.Ask = func(ctx context.Context, _ Card) (Answer, error) {
			stop()
			<-ctx.Done()
			time.Sleep(10 * time.Millisecond)
			return Answer{Allow: true}, nil
		}
		r.gate.Do(ctx, r.turn, call("shell", `{"command":"pip install x","network":true}`))
		if len(r.errs) != 1 || r.errs[0] == nil || len(r.records("answer")) != 1 || r.records("answer")[0]["answer"] != "expired" {
			t.Errorf("%v %v", r.errs, r.records("answer"))
		}
	})
}

// What a call is judged by before it runs.
func TestNetGateExplains(t *testing.T) {
	for line, want := range map[string]string{
		`{"command":"curl https://x.test/ https://X.test:443/b"}`:      "hosts [x.test] [shell:curl net:x.test]",
		`{"command":"curl x.test/a"}`:                                  "hosts [x.test] [shell:curl net:x.test]",
		`{"command":"wget \"http://a.test/$HOME\" https://$X/"}`:       "hosts [a.test] [shell:wget net:a.test]",
		`{"command":"git clone https://user:pw@x.test/r"}`:             "hosts [] [shell:git]",
		`{"command":"curl \"a.test/$X\" \"b.te$X\""}`:                  "hosts [a.test] [shell:curl net:a.test]",
		`{"command":"git fetch"}`:                                      "hosts [] [shell:git]",
		`{"command":"curl http://localhost:8080/ http://127.0.0.1/x"}`: "hosts [] [shell:curl]",
		`{"command":"curl http://localhost:5432/"}`:                    "hosts [localhost:5432] [shell:curl net:localhost:5432]",
		`{"command":"ls"}`:                                             "none [] [shell:ls]",
	} {
		args, err := tools.Shell.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := tools.Shell.Assess(args)
		if err != nil {
			t.Fatal(err)
		}
		facts := tools.Facts{Workspace: "/ws", Roots: []string{"/ws"}, Boxed: true, NetBlocked: true, NetProxied: true, HostPorts: []int{5432}}
		for _, p := range plan.Programs {
			if facts.Programs == nil {
				facts.Programs = map[string]tools.ProgramFact{}
			}
			facts.Programs[p] = tools.ProgramFact{Path: "/usr/bin/" + p}
		}
		in := Input{Tool: tools.Shell, Args: args.Values, Judgement: tools.Shell.Judge(args, plan, facts), Channel: "cli"}
		x := explain(&in, mustPolicy(t, sentinelConfig{Mode: "ask"}).Decide(in))
		if got := fmt.Sprintf("%s %v %v", x.Egress.Kind, x.Egress.Hosts, x.Targets); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	for key, ok := range map[string]bool{"net:x.test": true, "net:localhost:5432": true, "net:[2001:db8::1]": true, "net:": false, "net:X.test": false, "net:x.test:443": false,
		"net:*.test": false, "net:x.test/": false, "net": false, "net:a b": false} {
		if err := checkGrantKey(key, allTools()); (err == nil) != ok {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// In a private or untrusted chat a call that names no host is not asked about
// for where it could send: it cannot, before that is decided on.
func TestNetGateLabelsWhereNothingIsNamed(t *testing.T) {
	r := newNetRig(t, sentinelConfig{Mode: "auto"})
	r.turn.Chat.label(chatLabel{"private", "test"})
	r.shell("pip install x")
	if len(r.cards) != 0 {
		t.Errorf("asked %q", r.cards[0].Lines)
	}
	r.shell("curl https://x.test/")
	if len(r.cards) != 1 || !slices.ContainsFunc(r.cards[0].Lines, func(l string) bool { return strings.Contains(l, "sends to x.test") }) {
		t.Errorf("%d questions", len(r.cards))
	}
}
