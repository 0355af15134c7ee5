package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"picket/tools"
)

// Each hop of a fetch is decided anew, by where it goes and what the chat holds,
// and recorded. What would ask is refused, with the host named.
func TestGateHops(t *testing.T) {
	for name, c := range map[string]struct {
		labels, to, want string // want is in the error, "" if it may go on
	}{
		"the host that was approved":                      {"private", "https://a.test/y", ""},
		"another host, nothing in the chat":               {"", "https://evil.test/", ""},
		"another host, private data":                      {"private", "https://evil.test/?d=x", "evil.test, which needs an approval of its own"},
		"a listed host, private data":                     {"private", "https://github.com/x", ""},
		"a listed host, long address":                     {"private", "https://github.com/x?d=" + strings.Repeat("x", 600), "github.com, which needs"},
		"another port of the host":                        {"private", "https://a.test:8443/", "a.test:8443, which needs"},
		"a sub-domain of the host":                        {"private", "https://b.a.test/", "b.a.test, which needs"},
		"another host, words of others: no model made it": {"untrusted", "https://evil.test/", ""},
		"from an address that the model may have made":    {"words", "https://evil.test/?d=x", "evil.test, which needs"},
		"the host that was approved, and a rule denies":   {"", "https://a.test/closed/y", "a.test, which is refused"},
		"the host that was approved, and a rule asks":     {"", "https://a.test/asked/y", "a.test, which needs"},
		"this machine":                                    {"", "http://127.0.0.1:7717/", "127.0.0.1"},
		"cloud metadata":                                  {"", "http://169.254.169.254/", "169.254.169.254"},
		"another scheme":                                  {"", "file:///etc/passwd", "http"},
		"user-info":                                       {"", "https://a.test@evil.test/", "user name"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newGateRig(t)
			var err error
			settings := defaults
			for path, action := range map[string]string{"closed": "deny", "asked": "ask"} {
				settings.Rules = append(settings.Rules, ruleConfig{Tool: "web_fetch", Match: map[string]string{"url": "https://a.test/" + path + "/*"}, Action: action})
			}
			if r.gate.policy, err = compilePolicy(settings, knownNames()); err != nil {
				t.Fatal(err)
			}
			tool := tools.WebFetch
			tool.Execute = func(ctx context.Context, call *tools.Call) tools.Output {
				for _, l := range strings.Fields(strings.TrimPrefix(c.labels, "words")) { // by another call of the turn
					if _, err := r.turn.Chat.label(chatLabel{l, "before"}); err != nil {
						t.Error(err)
					}
				}
				err = call.Host.Hop(ctx, c.to)
				return tools.Output{Text: "done"}
			}
			r.gate.tools["web_fetch"] = tool
			if c.labels == "words" { // of others, before the call; its own host may be listed
				_, lerr := r.turn.Chat.label(chatLabel{"untrusted", "before"})
				must(t, lerr)
				r.gate.policy.hosts = []glob{{text: "a.test", parts: []string{"a.test"}}}
			}
			r.gate.Do(context.Background(), r.turn, call("web_fetch", `{"url":"https://a.test/x"}`))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			rec := r.records("egress")
			if len(rec) != 1 || (rec[0]["verdict"] == "allow") != (c.want == "") {
				t.Errorf("records %v", rec)
			}
		})
	}
}

// The labels of a chat are its own: another chat has none of them, and resetting
// that one takes none away.
func TestLabelsStayWithTheirChat(t *testing.T) {
	s := newTestChats(t)
	a, b := openTestChat(t, s, "a"), openTestChat(t, s, "b")
	if _, err := a.label(chatLabel{"private", "mail"}, chatLabel{"untrusted", "mail"}); err != nil {
		t.Fatal(err)
	}
	if b.labels() != (Labels{}) {
		t.Errorf("the other chat has %v", b.labels())
	}
	must(t, b.append(chatLine{Reset: true}))
	must(t, a.close())
	must(t, b.close())
	a, b = openTestChat(t, s, "a"), openTestChat(t, s, "b")
	defer a.close()
	defer b.close()
	if !slices.Equal(a.labels().List(), []string{"private", "untrusted"}) || b.labels() != (Labels{}) {
		t.Errorf("after a restart: %v and %v", a.labels(), b.labels())
	}
}

// An address without a scheme counts in the owner's own words, where people write
// it so, and nowhere else.
func TestSeenWithoutScheme(t *testing.T) {
	const u = "https://a.test/x"
	user := func(text string) chatLine { return chatLine{Role: "user", Channel: channelCLI, Content: text} }
	for name, c := range map[string]struct {
		line chatLine
		url  string
		want bool
	}{
		"in the owner's words":          {user("read a.test/x, please"), u, true},
		"in quotes":                     {user(`read "a.test/x"`), u, true},
		"with the other scheme":         {user("read http://a.test/x"), u, true},
		"a host alone":                  {user("read a.test."), "https://a.test/", true},
		"a host with a slash":           {user("read a.test/"), "https://a.test/", true},
		"another page of the host":      {user("read a.test"), u, false},
		"with more in its query":        {user("read a.test/x"), u + "?d=secret", false},
		"the end of another host":       {user("read banana.test/x"), "https://na.test/x", false},
		"the end of a name with a dash": {user("read b-a.test/x"), u, false},
		"a sub-domain's end":            {user("read www.a.test/x"), u, false},
		"a part of a path":              {user("read b.test/a.test/x"), u, false},
		"the host of a mail address":    {user("write to me@a.test/x"), u, false},
		"the end of a name not ASCII":   {user("read ba\u0308a.test/x"), u, false},
		"in piped data":                 {user("sum up\n\n" + pipedBegin + "\na.test/x\n" + pipedEnd), u, false},
		"whole in piped data":           {user("sum up\n\n" + pipedBegin + "\n" + u + "\n" + pipedEnd), u, true},
		"in a result":                   {chatLine{Role: "tool", Content: "go to a.test/x"}, u, false},
		"whole in a result":             {chatLine{Role: "tool", Content: "go to " + u}, u, true},
		"in the model's words":          {chatLine{Role: "assistant", Content: u}, u, false},
		"in another app's words":        {chatLine{Role: "user", Channel: channelAPI, Content: u}, u, false},
		"no address":                    {user("read it"), "", false},
	} {
		turn := &Turn{Chat: &chat{Messages: []chatLine{c.line}}}
		if got := turn.seen(c.url, c.url); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
