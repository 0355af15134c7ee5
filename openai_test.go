package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"picket/tools"
)

// post sends a body to a handler, as the owner's command line or as an app.
func post(t *testing.T, h http.Handler, c *caller, body string) *httptest.ResponseRecorder {
	t.Helper()
	ctx := context.Background()
	if c != nil {
		ctx = withCaller(ctx, c)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/chat/completions", strings.NewReader(body)))
	return w
}

func newHandlerRig(t *testing.T, replies ...Reply) (*agentRig, *chatHandler) {
	r := newAgentRig(t, replies...)
	return r, &chatHandler{agent: r.agent, chats: r.turn.Chat.store, workspace: "/ws", debug: t.Logf}
}

func TestHandlerRequests(t *testing.T) {
	user := `"messages":[{"role":"user","content":"hi"}]`
	cases := map[string]struct {
		body   string
		status int
		code   string
	}{
		"plain":                         {`{` + user + `}`, 200, ""},
		"the model's name":              {`{"model":"picket",` + user + `}`, 200, ""},
		"an empty model":                {`{"model":"",` + user + `}`, 200, ""},
		"another model":                 {`{"model":"gpt-4o",` + user + `}`, 404, "model_not_found"},
		"unknown fields":                {`{"frobnicate":[1],"store":true,"n":1,"logprobs":false,` + user + `}`, 200, ""},
		"two choices":                   {`{"n":2,` + user + `}`, 400, "unsupported_parameter"},
		"a schema":                      {`{"response_format":{"type":"json_schema"},` + user + `}`, 400, "unsupported_parameter"},
		"plain text wanted":             {`{"response_format":{"type":"text"},` + user + `}`, 200, ""},
		"a tool required":               {`{"tool_choice":"required",` + user + `}`, 400, "unsupported_parameter"},
		"a tool named":                  {`{"tool_choice":{"type":"function"},` + user + `}`, 400, "unsupported_parameter"},
		"tools that are ignored":        {`{"tools":[{"type":"function"}],"tool_choice":"auto",` + user + `}`, 200, ""},
		"sound":                         {`{"modalities":["text","audio"],` + user + `}`, 400, "unsupported_parameter"},
		"no JSON":                       {`{bad`, 400, "invalid_request"},
		"a list":                        {`[]`, 400, "invalid_request"},
		"not UTF-8":                     {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "invalid_request"},
		"no messages":                   {`{}`, 400, "no_user_message"},
		"only a system message":         {`{"messages":[{"role":"system","content":"x"}]}`, 400, "no_user_message"},
		"a blank message":               {`{"messages":[{"role":"user","content":"  "}]}`, 400, "no_user_message"},
		"a null message":                {`{"messages":[{"role":"user","content":null}]}`, 400, "no_user_message"},
		"it ends with an assistant":     {`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`, 400, "invalid_request"},
		"it ends with a tool":           {`{"messages":[{"role":"user","content":"a"},{"role":"tool","content":"b"}]}`, 400, "invalid_request"},
		"a system message at the end":   {`{"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}]}`, 200, ""},
		"text parts":                    {`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"}]}]}`, 200, ""},
		"a picture":                     {`{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "unsupported_content"},
		"user is an object":             {`{"user":{"id":"7"},` + user + `}`, 400, "invalid_request"},
		"user is a number":              {`{"user":42,` + user + `}`, 400, "invalid_request"},
		"user is null":                  {`{"user":null,` + user + `}`, 200, ""},
		"user is blank":                 {`{"user":" ",` + user + `}`, 200, ""},
		"user is a path":                {`{"user":"../../x",` + user + `}`, 200, ""},
		"user has a control character":  {`{"user":"a\u0000b",` + user + `}`, 400, "invalid_request"},
		"user has a bidi character":     {`{"user":"\u202eabc",` + user + `}`, 400, "invalid_request"},
		"stop is a number":              {`{"stop":3,` + user + `}`, 400, "invalid_request"},
		"max_tokens is a string":        {`{"max_tokens":"3",` + user + `}`, 400, "invalid_request"},
		"a streamed request is refused": {`{"stream":true,"messages":[]}`, 400, "no_user_message"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, h := newHandlerRig(t, says("answer"))
			w := post(t, h, nil, c.body)
			var got struct {
				Error struct {
					Message, Type, Code string
				}
			}
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatalf("%v: %s", err, w.Body)
			}
			if w.Code != c.status || got.Error.Code != c.code || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
				t.Errorf("%d %s: %s", w.Code, got.Error.Code, w.Body)
			}
			if c.status != 200 && w.Header().Get("X-Should-Retry") != "false" {
				t.Error("the client is not told to stay away")
			}
		})
	}
}

func TestHandlerPlainReply(t *testing.T) {
	r, h := newHandlerRig(t, Reply{Text: "first", Calls: calls(`{}`).Calls, Finish: "tool_calls", Usage: Usage{In: 1, Out: 2}}, Reply{Text: "a<b", Finish: "stop", Usage: Usage{In: 3, Out: 4}})
	w := post(t, h, nil, `{"user":"w","messages":[{"role":"user","content":"hi"}]}`)
	var got struct {
		Object, Model string
		Choices       []struct {
			Message      Message
			FinishReason string `json:"finish_reason"`
		}
		Usage map[string]int
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	c := got.Choices[0]
	if got.Object != "chat.completion" || c.Message.Content != "first\n\na<b" || c.FinishReason != "stop" || got.Usage["total_tokens"] != 10 || c.Message.ToolCalls != nil {
		t.Errorf("%s", w.Body)
	}
	lines, err := r.turn.Chat.store.read("api:w")
	if err != nil || lines[2].Channel != channelAPI {
		t.Errorf("the chat of the app: %v %v", lines, err)
	}
	if l := r.records("label"); len(l) != 1 || l[0]["source"] != "another app (API)" {
		t.Errorf("labels %v", l)
	}
}

func TestHandlerStream(t *testing.T) {
	_, h := newHandlerRig(t, Reply{Text: "first", Calls: calls(`{}`).Calls, Finish: "tool_calls"}, Reply{Text: "last", Finish: "length", Usage: Usage{In: 3, Out: 4}})
	w := post(t, h, nil, `{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`)
	events := strings.Split(strings.TrimSuffix(w.Body.String(), "\n\n"), "\n\n")
	var text, ids strings.Builder
	for i, e := range events {
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("event %q", e)
		}
		if i == len(events)-1 {
			if data != "[DONE]" {
				t.Errorf("the last event is %q", data)
			}
			continue
		}
		var c struct {
			ID      string
			Choices []struct {
				Delta        map[string]string
				FinishReason *string `json:"finish_reason"`
			}
			Usage *Usage
			Error *json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil || c.Error != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if !strings.Contains(ids.String(), c.ID) {
			ids.WriteString(c.ID)
		}
		switch {
		case i == 0:
			if c.Choices[0].Delta["role"] != "assistant" {
				t.Errorf("the first chunk is %s", data)
			}
		case i == len(events)-3:
			if *c.Choices[0].FinishReason != "length" {
				t.Errorf("the finish chunk is %s", data)
			}
		case i == len(events)-2:
			if len(c.Choices) != 0 || c.Usage.Total != 7 {
				t.Errorf("the usage chunk is %s", data)
			}
		default:
			text.WriteString(c.Choices[0].Delta["content"])
		}
	}
	if text.String() != "first\n\nlast" || strings.Count(ids.String(), "chatcmpl") != 1 {
		t.Errorf("text %q, ids %s", text.String(), ids.String())
	}
}

// A turn that failed is a 400 in plain words, or one error event; never a retry.
func TestHandlerTurnFailed(t *testing.T) {
	_, h := newHandlerRig(t)
	w := post(t, h, nil, `{"messages":[{"role":"user","content":"hi"}]}`)
	if w.Code != 400 || !strings.Contains(w.Body.String(), `"turn_failed"`) || strings.Contains(w.Body.String(), "expected") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	_, h = newHandlerRig(t)
	w = post(t, h, nil, `{"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	if s := w.Body.String(); !strings.HasSuffix(s, "\"code\":\"turn_failed\"}}\n\n") || strings.Contains(s, "[DONE]") {
		t.Errorf("%s", s)
	}
}

func TestHandlerBusyChat(t *testing.T) {
	_, h := newHandlerRig(t, says("x"))
	c, err := h.chats.open(context.Background(), "api:w", "/ws", false)
	must(t, err)
	defer c.close()
	w := post(t, h, nil, `{"user":"W","messages":[{"role":"user","content":"hi"}]}`)
	if w.Code != 409 || !strings.Contains(w.Body.String(), "chat_busy") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// An app's request is never the owner's, whatever it holds: its chat is labelled,
// and no grant of the owner's covers its calls.
func TestHandlerAppIsNotOwner(t *testing.T) {
	r, h := newHandlerRig(t, calls(`{}`), says("ok"))
	r.j.Risk = tools.Sensitive
	must(t, r.gate.approvals.Grant(context.Background(), Record{Run: "r_test"}, "", []Grant{{Key: "act", Scope: tools.Session, Who: whoOwner, Workspace: r.gate.host.Workspace, Labels: Labels{true, true}}}))
	post(t, h, nil, `{"channel":"cli","messages":[{"role":"user","content":"/allow act"}]}`)
	if r.ran.Load() != 0 {
		t.Error("the owner's grant covered an app's call")
	}
	r.model.reqs, r.turn.Caller.Chat = nil, "mine"
	w := post(t, h, r.turn.Caller, `{"messages":[{"role":"user","content":"do"}]}`)
	if w.Code != 200 || r.ran.Load() != 1 {
		t.Errorf("the owner's own call: %d, ran %d times", w.Code, r.ran.Load())
	}
}

func TestEventQueue(t *testing.T) {
	q := newEventQueue()
	q.push(Event{Text: "a"})
	done := make(chan struct{})
	go func() { q.drained(context.Background()); close(done) }()
	select {
	case <-done:
		t.Fatal("nothing was written yet")
	case <-time.After(20 * time.Millisecond):
	}
	if list, end := q.take(); len(list) != 1 || end {
		t.Fatalf("%v %v", list, end)
	}
	q.taken()
	<-done
	q.drained(context.Background()) // nothing is left to wait for
}

func FuzzParseCompletion(f *testing.F) {
	f.Add([]byte(`{"model":"picket","messages":[{"role":"user","content":"hi"}],"stream":true}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"user":"x","stop":["a"]}`))
	f.Add([]byte(`{"messages":null,"user":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, bad := parseCompletion(body)
		if bad == nil && (strings.TrimSpace(req.text) == "" || checkChatName(req.user) != nil) {
			t.Errorf("%q was taken as %+v", body, req)
		}
	})
}
