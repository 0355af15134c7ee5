package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"picket/tools"
)

// gateRig is a gate with a real log and real approvals, and tools of the test's.
type gateRig struct {
	t    *testing.T
	dir  string
	gate *Sentinel
	turn *Turn
	ran  atomic.Int32 // how often the tool "act" ran
	does func(context.Context, *tools.Call) tools.Output
	j    tools.Judgement
}

func newGateRig(t *testing.T) *gateRig {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &gateRig{t: t, dir: dir, j: tools.Judgement{Summary: "act", Risk: tools.Safe, Widest: tools.Always,
		Targets: []tools.Target{{Key: "act", Widest: tools.Always}}, Egress: tools.Egress{Kind: tools.EgressNone}}}
	data, ws := filepath.Join(dir, "data"), filepath.Join(dir, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := openAudit(data)
	if err != nil {
		t.Fatal(err)
	}
	release, err := holdRun(context.Background(), data, "r_test")
	if err != nil {
		t.Fatal(err)
	}
	approvals, err := openApprovals(context.Background(), data, log, "r_test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { approvals.Close(); log.Close(); release() })
	act := tools.Tool{Name: "act", Risk: tools.Safe, Egress: tools.EgressNone, Params: []tools.Param{{Name: "x", Type: "string"}},
		Assess: func(a tools.Args) (tools.Plan, error) { return tools.Plan{}, nil },
		Judge:  func(tools.Args, tools.Plan, tools.Facts) tools.Judgement { return r.j },
		Execute: func(ctx context.Context, c *tools.Call) tools.Output {
			r.ran.Add(1)
			if r.does != nil {
				return r.does(ctx, c)
			}
			return tools.Output{Text: "done"}
		}}
	policy, err := compilePolicy(sentinelConfig{Mode: "ask", TaintTracking: true}, []string{"act"})
	if err != nil {
		t.Fatal(err)
	}
	box, err := newSandbox(boxConfig{Mode: "off", Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	r.gate = &Sentinel{tools: map[string]tools.Tool{"act": act}, policy: policy, mode: func() string { return "" }, approvals: approvals, log: log,
		resolver: &resolver{workspace: ws, roots: []string{ws}, hidden: []string{data}, box: box}, timeout: time.Hour,
		notify: func(context.Context, string) {}, redact: keepText, now: time.Now, debug: func(string, ...any) {},
		host: tools.Host{Workspace: ws}, keep: func(string, string, []byte, []byte, ...chatLabel) error { return nil }}
	store := &chatStore{dir: filepath.Join(data, "chats"), redact: keepText, now: time.Now}
	c, err := store.open(context.Background(), "test", ws, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.close() })
	r.turn = &Turn{ID: "t_test", Chat: c, Caller: &caller{Channel: channelCLI, Who: whoOwner, Run: "r_test"}, Text: "do it",
		Emit: func(Event) {}, declined: map[string]bool{}}
	return r
}

func call(name, args string) ToolCall {
	return ToolCall{ID: "call_1", Function: ToolFunction{Name: name, Arguments: args}}
}

// records returns the records of a kind, as maps.
func (r *gateRig) records(kind string) (out []map[string]any) {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "data", auditName))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			r.t.Fatal(err)
		}
		if m["kind"] == kind {
			out = append(out, m)
		}
	}
	return out
}

// wantRecords checks that there is one decision with a verdict, and as many
// results as the tool ran.
func (r *gateRig) wantRecords(verdict string, ran int) {
	r.t.Helper()
	d := r.records("decision")
	if len(d) != 1 || d[0]["verdict"] != verdict {
		r.t.Errorf("decisions: %v, want one that says %s", d, verdict)
	}
	if n := len(r.records("result")); n != ran || int(r.ran.Load()) != ran {
		r.t.Errorf("the tool ran %d times with %d results, want %d", r.ran.Load(), n, ran)
	}
}

func TestGateRunsAndRecords(t *testing.T) {
	r := newGateRig(t)
	res := r.gate.Do(context.Background(), r.turn, call("act", `{"x":"1"}`))
	if res.Text != "done" || res.Refused {
		t.Errorf("result %+v", res)
	}
	r.wantRecords("allow", 1)
}

// Everything that is missing, unknown or malformed is refused, with one record.
func TestGateZeroDenies(t *testing.T) {
	cases := map[string]struct {
		call  ToolCall
		spoil func(*gateRig)
	}{
		"a nil policy":              {call("act", `{}`), func(r *gateRig) { r.gate.policy = nil }},
		"the zero policy":           {call("act", `{}`), func(r *gateRig) { r.gate.policy = &Policy{} }},
		"a zero judgement asks":     {call("act", `{}`), func(r *gateRig) { r.j = tools.Judgement{} }},
		"an unknown tool":           {call("acts", `{}`), nil},
		"another case of the name":  {call("Act", `{}`), nil},
		"a name with a blank":       {call("act ", `{}`), nil},
		"an unknown argument":       {call("act", `{"y":"1"}`), nil},
		"another case of argument":  {call("act", `{"X":"1"}`), nil},
		"a wrong type":              {call("act", `{"x":1}`), nil},
		"a key twice":               {call("act", `{"x":"1","x":"2"}`), nil},
		"no object":                 {call("act", `["x"]`), nil},
		"no JSON":                   {call("act", `{"x":`), nil},
		"text behind":               {call("act", `{} {}`), nil},
		"invalid UTF-8":             {call("act", "{\"x\":\"\xff\"}"), nil},
		"a NUL":                     {call("act", `{"x":"\u0000"}`), nil},
		"half a surrogate pair":     {call("act", `{"x":"\ud800"}`), nil},
		"nothing":                   {call("act", ``), nil},
		"a placeholder":             {call("act", `{"x":"{{vault:KEY}}"}`), nil},
		"an escaped placeholder":    {call("act", `{"x":"\u007b\u007bvault:KEY}}"}`), nil},
		"a call that was not whole": {ToolCall{Function: ToolFunction{Name: "act", Arguments: `{}`}, Invalid: "it was cut off"}, nil},
		"a judge that refuses":      {call("act", `{}`), func(r *gateRig) { r.j.Refuse = "never" }},
		"a judge that panics": {call("act", `{}`), func(r *gateRig) {
			tool := r.gate.tools["act"]
			tool.Judge = func(tools.Args, tools.Plan, tools.Facts) tools.Judgement { panic("judge") }
			r.gate.tools["act"] = tool
		}},
		"an assessment that fails": {call("act", `{}`), func(r *gateRig) {
			tool := r.gate.tools["act"]
			tool.Assess = func(tools.Args) (tools.Plan, error) { return tools.Plan{}, errors.New("no") }
			r.gate.tools["act"] = tool
		}},
		"a protected path": {call("act", `{}`), func(r *gateRig) {
			tool := r.gate.tools["act"]
			tool.Assess = func(tools.Args) (tools.Plan, error) {
				return tools.Plan{Paths: []tools.PathUse{{Name: "../data/audit.jsonl"}}}, nil
			}
			r.gate.tools["act"] = tool
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newGateRig(t)
			if c.spoil != nil {
				c.spoil(r)
			}
			res := r.gate.Do(context.Background(), r.turn, c.call)
			if res.Text == "" || res.LogFailed != nil {
				t.Errorf("result %+v", res)
			}
			r.wantRecords("deny", 0)
		})
	}
}

// No record, no act: the side effect of a tool is missing when the decision
// cannot be written.
func TestGateNoRecordNoAct(t *testing.T) {
	r := newGateRig(t)
	mark := filepath.Join(r.dir, "ws", "mark")
	r.does = func(context.Context, *tools.Call) tools.Output {
		return tools.Output{Err: fmt.Sprint(os.WriteFile(mark, nil, 0o644))}
	}
	path := filepath.Join(r.dir, "data", auditName)
	if err := errors.Join(os.Rename(path, path+".away"), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	res := r.gate.Do(context.Background(), r.turn, call("act", `{}`))
	if !errors.Is(res.LogFailed, errAudit) || !res.Refused {
		t.Errorf("result %+v", res)
	}
	if _, err := os.Stat(mark); err == nil || r.ran.Load() != 0 {
		t.Error("the tool ran without a record")
	}
}

// A tool that panics is a failed result, and its records are there.
func TestGatePanic(t *testing.T) {
	r := newGateRig(t)
	r.does = func(context.Context, *tools.Call) tools.Output { panic("tool") }
	res := r.gate.Do(context.Background(), r.turn, call("act", `{}`))
	if !strings.Contains(res.Text, "internal error") || strings.Contains(res.Text, "tool\n") {
		t.Errorf("result %+v", res)
	}
	r.wantRecords("allow", 1)
}

// A call that is stopped while it runs has its records all the same.
func TestGateCancelled(t *testing.T) {
	r := newGateRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	r.does = func(ctx context.Context, _ *tools.Call) tools.Output {
		cancel()
		<-ctx.Done()
		return tools.Output{Err: "stopped", Interrupted: true}
	}
	r.gate.Do(ctx, r.turn, call("act", `{}`))
	r.wantRecords("allow", 1)
	if r.records("result")[0]["interrupted"] != true {
		t.Error("the record does not say that it was interrupted")
	}
	// And one that comes after the stop does not run.
	r.gate.Do(ctx, r.turn, call("act", `{"x":"2"}`))
	if r.ran.Load() != 1 || len(r.records("decision")) != 2 {
		t.Error("a call ran after the stop")
	}
}

// What was assessed is what runs, whatever becomes of the caller's bytes.
func TestGateFrozenArguments(t *testing.T) {
	r := newGateRig(t)
	r.j.Risk = tools.Sensitive
	raw := []byte(`{"x":"good"}`)
	var got string
	r.does = func(_ context.Context, c *tools.Call) tools.Output { got = c.Args.String("x"); return tools.Output{} }
	r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) {
		copy(raw, `{"x":"evil"}`)
		return Answer{Allow: true}, nil
	}
	r.gate.Do(context.Background(), r.turn, call("act", string(raw)))
	if got != "good" {
		t.Errorf("ran with %q", got)
	}
	r.wantRecords("allow", 1)
}

// An answer is void when what the call would do changed while it waited.
func TestGateChangedWhileAsked(t *testing.T) {
	r := newGateRig(t)
	r.j.Risk, r.j.Bound = tools.Sensitive, []string{"one"}
	asked := 0
	r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) {
		if asked++; asked == 1 {
			r.j.Bound = []string{"two"}
		}
		return Answer{Allow: true}, nil
	}
	r.gate.Do(context.Background(), r.turn, call("act", `{}`))
	if asked != 2 || r.ran.Load() != 1 {
		t.Errorf("asked %d times, ran %d times", asked, r.ran.Load())
	}
	r = newGateRig(t)
	r.j.Risk = tools.Sensitive
	n := 0
	r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) {
		n++
		r.j.Bound = []string{fmt.Sprint(n)}
		return Answer{Allow: true}, nil
	}
	r.gate.Do(context.Background(), r.turn, call("act", `{}`))
	r.wantRecords("deny", 0)
}

func TestGateDeclined(t *testing.T) {
	r := newGateRig(t)
	r.j.Risk = tools.Sensitive
	asked := 0
	r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) { asked++; return Answer{Reason: "not now"}, nil }
	res := r.gate.Do(context.Background(), r.turn, call("act", `{}`))
	if !res.Declined || !res.Refused || !strings.Contains(res.Text, "not now") {
		t.Errorf("result %+v", res)
	}
	r.wantRecords("deny", 0)
	// The same call again is refused without a question.
	res = r.gate.Do(context.Background(), r.turn, call("act", `{}`))
	if asked != 1 || !res.Declined || len(r.records("decision")) != 2 || len(r.records("question")) != 1 {
		t.Errorf("asked %d times, result %+v", asked, res)
	}
}

// A grant of the answer covers the next call; the end of the turn ends it.
func TestGateGrantOfTheTurn(t *testing.T) {
	r := newGateRig(t)
	r.j.Risk = tools.Sensitive
	asked := 0
	r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) {
		asked++
		return Answer{Allow: true, Scope: tools.Task}, nil
	}
	for i := range 3 {
		r.gate.Do(context.Background(), r.turn, call("act", fmt.Sprintf(`{"x":"%d"}`, i)))
	}
	if asked != 1 || r.ran.Load() != 3 {
		t.Errorf("asked %d times, ran %d times", asked, r.ran.Load())
	}
	if d := r.records("decision"); d[1]["by"] != "grant" || d[1]["grant"] != "act" {
		t.Errorf("the second decision is %v", d[1])
	}
	r.gate.approvals.EndTurn(r.turn.ID)
	r.turn.ID = "t_next"
	r.gate.Do(context.Background(), r.turn, call("act", `{"x":"4"}`))
	if asked != 2 {
		t.Error("the grant outlived its turn")
	}
}

// Labels are on the chat before the call runs, also if it fails.
func TestGateLabelsBeforeTheRun(t *testing.T) {
	r := newGateRig(t)
	r.j.ReadsPrivate, r.j.ReadsUntrusted = true, true
	r.does = func(context.Context, *tools.Call) tools.Output {
		if l := r.turn.Chat.labels(); !l.Private || !l.Untrusted {
			t.Error("the tool ran in a chat without its labels")
		}
		return tools.Output{Err: "it failed"}
	}
	r.gate.Do(context.Background(), r.turn, call("act", `{}`))
	if n := len(r.records("label")); n != 2 {
		t.Errorf("%d label records", n)
	}
	lines, err := r.turn.Chat.store.read("test")
	if err != nil || !slices.ContainsFunc(lines, func(l chatLine) bool { return len(l.Labels) == 2 }) {
		t.Errorf("the chat file does not hold the labels: %v %v", lines, err)
	}
}

// Secrets that the redactor knows are in no record and in no result.
func TestGateRedacts(t *testing.T) {
	r := newGateRig(t)
	const secret = "sk-test-0123456789abcdef"
	red := newRedactor([]secretValue{{Value: secret, Mark: "model key"}})
	r.gate.redact = red.String
	r.j = tools.Judgement{Summary: "act on " + secret, Risk: tools.Moderate, ReadsUntrusted: true,
		Targets: []tools.Target{{Key: "act:" + secret, Widest: tools.Always}}, Egress: tools.Egress{Kind: tools.EgressHosts, Hosts: []string{secret + ".test"}}}
	r.does = func(_ context.Context, c *tools.Call) tools.Output {
		return tools.Output{Text: "it is " + secret, Err: "bad " + secret, Notes: []string{secret}}
	}
	res := r.gate.Do(context.Background(), r.turn, call("act", `{"x":"`+secret+`"}`))
	data, err := os.ReadFile(filepath.Join(r.dir, "data", auditName))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(res.Text, secret) || strings.Contains(string(data), secret) || !strings.Contains(res.Text, "[redacted: model key]") {
		t.Errorf("the secret is in %q or in the log", res.Text)
	}
}

func TestContainsURL(t *testing.T) {
	const u = "https://a.test/x"
	for text, want := range map[string]bool{
		"see https://a.test/x":               true,
		"see https://a.test/x.":              true,
		"(https://a.test/x)":                 true,
		"https://a.test/x, and more":         true,
		"https://a.test/x?":                  true,
		"https://a.test/xy":                  false,
		"https://a.test/x?d=1":               false,
		"https://a.test/x/y":                 false,
		"https://a.test/x.y":                 false,
		"https://a.test/xy https://a.test/x": true,
		"nothing":                            false,
	} {
		if got := containsURL(text, u); got != want {
			t.Errorf("containsURL(%q) = %v", text, got)
		}
	}
}

// A rule that denies a file holds for what a search or a listing comes upon too.
func TestSearchLeavesOutWhatIsDenied(t *testing.T) {
	r := newGateRig(t)
	r.gate.tools["files"] = tools.Files
	r.gate.host.Protected = r.gate.resolver.protected
	for name, text := range map[string]string{"a.txt": "key A", "secret.txt": "key B", "sub/secret.txt": "key C", "sub/b.txt": "key D"} {
		path := filepath.Join(r.gate.host.Workspace, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		match  map[string]string
		args   string
		shown  string // what the result holds
		hidden string // and what it does not
		note   string
	}{
		{"names", map[string]string{"path": "*secret.txt"}, `{"action":"search","path":".","pattern":"**/*.txt"}`, "sub/b.txt", "secret", "2 protected or denied"},
		{"text", map[string]string{"path": "*secret.txt"}, `{"action":"search","path":".","content":"key"}`, "key D", "key B", "2 protected or denied"},
		{"text of a folder", map[string]string{"path": "sub/*"}, `{"action":"search","path":"sub","content":"key"}`, "no hits", "key", "2 protected or denied"},
		{"an absolute pattern", map[string]string{"path": "*/sub/secret.txt"}, `{"action":"search","path":".","content":"key"}`, "key B", "key C", "1 protected or denied"},
		{"a listing", map[string]string{"path": "*secret.txt"}, `{"action":"list","path":"."}`, "a.txt", "secret", "1 protected or denied"},
		{"reading alone", map[string]string{"path": "*secret.txt", "action": "read"}, `{"action":"search","path":".","content":"key"}`, "key A", "key B", "2 protected or denied"},
		{"writing alone", map[string]string{"path": "*secret.txt", "action": "write"}, `{"action":"search","path":".","content":"key"}`, "key B", "denied", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := compilePolicy(sentinelConfig{Mode: "ask", Rules: []ruleConfig{{Tool: "files", Action: "deny", Match: c.match}}}, []string{"files"})
			if err != nil {
				t.Fatal(err)
			}
			r.gate.policy = p
			res := r.gate.Do(context.Background(), r.turn, call("files", c.args))
			if !strings.Contains(res.Text, c.shown) || strings.Contains(res.Text, c.hidden) || !strings.Contains(res.Text, c.note) {
				t.Errorf("%+v", res)
			}
		})
	}
}
