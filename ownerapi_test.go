package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"picket/tools"
)

// The owner's API needs the owner's token, and takes nothing but what it knows.
func TestOwnerAPIRefuses(t *testing.T) {
	r := newServerRig(t, nil)
	info, err := os.Stat(filepath.Join(r.dir, "data", "owner.token"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("owner.token: %v, %v", info, err)
	}
	for name, c := range map[string]struct {
		method, path, key, body string
		status                  int
		code                    string
	}{
		"no token":                    {"GET", "/api/state", "", "", 401, "invalid_token"},
		"the key of other apps":       {"GET", "/api/config", r.key, "", 401, "invalid_token"},
		"it cannot stop either":       {"POST", "/api/stop", r.key, "", 401, "invalid_token"},
		"nor answer":                  {"POST", "/api/approvals/x", r.key, `{"answer":"allow"}`, 401, "invalid_token"},
		"the token in the address":    {"GET", "/api/state?token=" + r.token, r.token, "", 401, "invalid_token"},
		"an unknown address":          {"GET", "/api/nothing", r.token, "", 404, "unknown_url"},
		"an unknown one of strangers": {"GET", "/api/nothing", "", "", 401, "invalid_token"},
		"the prefix alone":            {"GET", "/api", r.token, "", 404, "unknown_url"},
		"two slashes":                 {"DELETE", "/api//approvals", r.token, "", 404, "unknown_url"},
		"another method":              {"PUT", "/api/config", r.token, "", 405, "method_not_allowed"},
		"a grant without a name":      {"DELETE", "/api/approvals/grants/", r.token, "", 405, "method_not_allowed"},
		"a grant with an empty name":  {"DELETE", "/api/approvals/grants//", r.token, "", 405, "method_not_allowed"},
		"a question without a name":   {"POST", "/api/approvals//", r.token, `{"answer":"allow"}`, 404, "unknown_url"},
		"no object":                   {"PATCH", "/api/config", r.token, `[]`, 400, "invalid_request"},
		"another type":                {"PATCH", "/api/config", r.token, `{"openai_api":{"enabled":"x"}}`, 400, "invalid_request"},
		"OPTIONS":                     {"OPTIONS", "/api/config", r.token, "", 405, "method_not_allowed"},
		"no JSON":                     {"PATCH", "/api/config", r.token, "mode=auto", 400, "invalid_request"},
		"an unknown setting":          {"PATCH", "/api/config", r.token, `{"max_chats":1}`, 400, "invalid_request"},
		"one that cannot be switched": {"PATCH", "/api/config", r.token, `{"openai_api":{"max_chats":1}}`, 400, "invalid_request"},
		"an unknown mode":             {"PATCH", "/api/config", r.token, `{"mode":"yolo","openai_api":{"enabled":false}}`, 400, "invalid_request"},
		"two values":                  {"PATCH", "/api/config", r.token, `{} {"mode":"auto"}`, 400, "invalid_request"},
		"no such question":            {"POST", "/api/approvals/c_x", r.token, `{"answer":"allow"}`, 404, "no_question"},
		"no answer":                   {"POST", "/api/approvals/c_x", r.token, `{}`, 400, "invalid_request"},
		"an unknown scope":            {"POST", "/api/approvals/c_x", r.token, `{"answer":"allow","scope":"forever"}`, 400, "invalid_request"},
		"no such grant":               {"DELETE", "/api/approvals/grants/shell:x", r.token, "", 404, "no_grant"},
		"no such chat":                {"GET", "/api/chats/nothing", r.token, "", 404, "no_chat"},
		"a path for a chat":           {"GET", "/api/chats/..%2F..%2Fowner.token", r.token, "", 404, "no_chat"},
		"a control character":         {"DELETE", "/api/chats/a%00b", r.token, "", 404, "no_chat"},
		"too many records":            {"GET", "/api/activity?n=1001", r.token, "", 400, "invalid_request"},
	} {
		t.Run(name, func(t *testing.T) {
			got := r.ask(c.method, c.path, c.key, c.body)
			if got.StatusCode != c.status || got.code() != c.code {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
			if strings.Contains(got.body, "Go ") || strings.Contains(got.body, "struct") {
				t.Errorf("words about the program: %s", got.body)
			}
			if got.Header.Get("X-Content-Type-Options") != "nosniff" || strings.Contains(fmt.Sprint(got.Header), "Access-Control") {
				t.Errorf("headers %v", got.Header)
			}
		})
	}
	if sw, err := r.app.cfg.switches(); err != nil || sw.Mode != "ask" || !sw.API {
		t.Errorf("a refused change was made: %+v, %v", sw, err)
	}
	if s := r.app.red.String("it is " + r.token); strings.Contains(s, r.token) {
		t.Error("the owner's token is not redacted")
	}
}

// get reads an answer of the owner's API into a value.
func (r *serverRig) get(method, path, body string, into any) {
	r.t.Helper()
	got := r.ask(method, path, r.token, body)
	if got.StatusCode != http.StatusOK {
		r.t.Fatalf("%s %s: %d %s", method, path, got.StatusCode, got.body)
	}
	must(r.t, json.Unmarshal([]byte(got.body), into))
}

// An answer counts once, for the call that it was given to, and for what was
// offered; everybody who listens learns of the question and its end.
func TestOwnerAPIAnswers(t *testing.T) {
	r := newServerRig(t, shellModel)
	events := r.rawConn("GET /api/events HTTP/1.1\r\nHost: " + r.at[0] + "\r\nAuthorization: Bearer " + r.token + "\r\n\r\n")
	heard := func(parts ...string) {
		t.Helper()
		for {
			line, err := events.ReadString('\n')
			if err != nil {
				t.Fatalf("%v was not heard: %v", parts, err)
			}
			all := strings.HasPrefix(line, "data: {")
			for _, p := range parts {
				all = all && strings.Contains(line, p)
			}
			if all {
				return
			}
		}
	}
	for line := ""; line != ": the log from here on\n"; {
		var err error
		line, err = events.ReadString('\n')
		must(t, err)
	}
	running := r.later("w", "run: touch mark")
	id := r.question().ID
	heard(`"kind":"question"`, `"call":"`+id+`"`)
	var list struct {
		Questions []struct {
			ID, Digest, Chat, Channel string
			Offered, Card             []string
		}
	}
	r.get("GET", "/api/approvals", "", &list)
	q := list.Questions[0]
	if q.ID != id || q.Chat != "api:w" || q.Card[0] != "shell: touch mark" {
		t.Errorf("%+v", q)
	}
	answer := func(status int, body string) {
		t.Helper()
		if got := r.ask("POST", "/api/approvals/"+id, r.token, body); got.StatusCode != status {
			t.Errorf("%s: %d %s", body, got.StatusCode, got.body)
		}
	}
	answer(409, `{"answer":"allow","digest":"00"}`)
	answer(409, `{"answer":"allow","scope":"always"}`)
	answer(200, `{"answer":"allow","scope":"task","digest":"`+q.Digest+`"}`)
	answer(409, `{"answer":"deny"}`)
	heard(`"kind":"answer"`, `"call":"`+id+`"`, `"answer":"allow"`, `"by":"api"`)
	if got := <-running; got.content() != "I have tried." {
		t.Errorf("%s", got.body)
	}
	heard(`"kind":"result"`)

	ws := r.app.workspace
	for _, key := range []string{"shell:git", "web_fetch:example.com"} {
		must(t, r.app.approvals.Grant(context.Background(), Record{Run: r.app.run}, "", []Grant{{Key: key, Scope: tools.Session, Who: whoOwner, Workspace: ws}}))
	}
	var grants struct {
		Grants []struct{ Key, Covers, Who string }
	}
	r.get("GET", "/api/approvals/grants", "", &grants)
	if len(grants.Grants) != 2 || grants.Grants[0].Key != "shell:git" || !strings.Contains(grants.Grants[0].Covers, "until this session ends") {
		t.Errorf("%+v", grants)
	}
	var revoked struct{ Revoked int }
	r.ask("DELETE", "/api/approvals/grants//", r.token, "")
	if r.get("GET", "/api/approvals/grants", "", &grants); len(grants.Grants) != 2 {
		t.Errorf("an empty name revoked: %+v", grants)
	}
	r.get("DELETE", "/api/approvals/grants/web_fetch%3Aexample.com", "", &revoked)
	r.get("DELETE", "/api/approvals", "", &revoked)
	if r.get("GET", "/api/approvals/grants", "", &grants); revoked.Revoked != 1 || len(grants.Grants) != 0 {
		t.Errorf("%+v, %+v", revoked, grants)
	}
}

// State, chats, activity and settings are as they are; changes are recorded.
func TestOwnerAPIShowsAndChanges(t *testing.T) {
	r := newServerRig(t, nil)
	r.chat("w", "hi")
	var st struct {
		Workspace string
		Listen    []string
		Model     struct{ Name string }
		Sandbox   struct{ Boxed bool }
		Turns     []struct{ Chat string }
		Config    struct{ Mode string }
		Questions int
	}
	r.get("GET", "/api/state", "", &st)
	if st.Workspace != r.ws || st.Listen[0] != r.at[0] || st.Model.Name != "stub" || st.Sandbox.Boxed || st.Turns == nil || st.Config.Mode != "ask" {
		t.Errorf("%+v", st)
	}
	var chats struct {
		Chats []struct {
			Name       string
			Labels     []string
			AnotherApp bool `json:"another_app"`
		}
	}
	r.get("GET", "/api/chats", "", &chats)
	if c := chats.Chats; len(c) != 1 || c[0].Name != "api:w" || !c[0].AnotherApp || c[0].Labels[0] != "untrusted" {
		t.Errorf("%+v", chats)
	}
	var chat struct{ Lines []chatLine }
	r.get("GET", "/api/chats/api:w", "", &chat)
	if n := len(chat.Lines); n < 4 || chat.Lines[n-1].Content != "you said: [Sent by another app on this computer through picket's API]\nhi" {
		t.Errorf("%+v", chat)
	}
	var activity struct{ Records []struct{ Kind string } }
	r.get("GET", "/api/activity?n=2", "", &activity)
	if a := activity.Records; len(a) != 2 || a[1].Kind != "model_turn" {
		t.Errorf("%+v", activity)
	}
	var cfg struct {
		Mode   string
		OpenAI struct {
			Memory bool `json:"allow_memory"`
			Max    int  `json:"max_chats"`
		} `json:"openai_api"`
	}
	r.get("PATCH", "/api/config", `{"mode":"strict","openai_api":{"allow_memory":true}}`, &cfg)
	if cfg.Mode != "strict" || !cfg.OpenAI.Memory || cfg.OpenAI.Max != 80 || r.app.mode() != "strict" {
		t.Errorf("%+v", cfg)
	}
	recs := r.records("config")
	if n := len(recs); n != 3 || recs[n-1]["key"] != "sentinel.mode" || recs[n-1]["old"] != "ask" || recs[n-1]["new"] != "strict" {
		t.Errorf("%v", recs)
	}
	var deleted struct{ Deleted string }
	r.get("DELETE", "/api/chats/api:w", "", &deleted)
	if r.get("GET", "/api/chats", "", &chats); deleted.Deleted != "api:w" || len(chats.Chats) != 0 {
		t.Errorf("%+v, %+v", deleted, chats)
	}
}

// No address elsewhere is served, however it is given.
func TestServerListensOnLoopbackOnly(t *testing.T) {
	r := newServerRig(t, nil)
	for _, a := range []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0", "example.com:80"} {
		s := newServer(r.app, r.token, usualLimits)
		list, err := s.listen([]string{"127.0.0.1:0", a})
		if err == nil {
			t.Errorf("%s: %v", a, list)
		}
	}
	s := newServer(r.app, r.token, usualLimits)
	list, err := s.listen([]string{"localhost:0"})
	must(t, err)
	for _, l := range list {
		if !loopback(l.Addr()) {
			t.Errorf("localhost is %s", l.Addr())
		}
		l.Close()
	}
	if _, err := s.listen([]string{r.at[0]}); err == nil || !strings.Contains(err.Error(), r.at[0]) {
		t.Errorf("a port that is taken: %v", err)
	}
	if _, err := s.listen(nil); err == nil {
		t.Error("nothing to listen on is no error")
	}
}
