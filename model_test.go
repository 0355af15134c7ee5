package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"picket/tools"
)

// An answer is what a test server sends.
type answer struct {
	status int // 0: 200
	header map[string]string
	body   string
}

const okStream = `data: {"choices":[{"index":0,"delta":{"content":"ok"}}]}` + "\n\n" +
	`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"

// A chatServer answers chat completions with the given answers in turn, the
// last one again and again. It refuses requests that a strict server would.
type chatServer struct {
	*httptest.Server
	mu   sync.Mutex
	raw  []string
	head []http.Header

	conns atomic.Int32
	late  time.Duration // how long after the last event a body ends
}

func newChatServer(t *testing.T, answers ...answer) *chatServer {
	t.Helper()
	s := &chatServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			io.WriteString(w, `{"object":"list","data":[{"id":"qwen3"},{"id":"mistral-small"}]}`)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if why := illegal(body); why != "" {
			t.Errorf("illegal request: %s: %s", why, body)
		}
		s.mu.Lock()
		n := len(s.raw)
		s.raw = append(s.raw, string(body))
		s.head = append(s.head, r.Header)
		s.mu.Unlock()
		a := answers[min(n, len(answers)-1)]
		for k, v := range a.header {
			w.Header().Set(k, v)
		}
		if a.status == 0 {
			w.Header().Set("Content-Type", "text/event-stream")
		} else {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(a.status)
		}
		io.WriteString(w, a.body)
		if s.late > 0 {
			w.(http.Flusher).Flush()
			time.Sleep(s.late)
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *chatServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.raw)
}

// illegal says what a strict server would refuse in a request.
func illegal(body []byte) string {
	var req struct {
		Stream   bool
		Messages []struct {
			Role       string
			Content    any
			ToolCalls  []ToolCall `json:"tool_calls"`
			ToolCallID string     `json:"tool_call_id"`
		}
		Tools []wireTool
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return err.Error()
	}
	if !req.Stream {
		return "it does not stream"
	}
	var pending []string
	prev := ""
	ids := map[string]bool{}
	for i, m := range req.Messages {
		content, ok := m.Content.(string)
		switch {
		case !ok:
			return fmt.Sprintf("message %d has no text", i)
		case len(pending) > 0 && (m.Role != "tool" || m.ToolCallID != pending[0]):
			return fmt.Sprintf("message %d is not the result of %s", i, pending[0])
		case m.Role == "tool" && len(pending) == 0:
			return fmt.Sprintf("message %d is a result without a call", i)
		case m.Role == prev && m.Role != "tool":
			return fmt.Sprintf("message %d has the role of the one before", i)
		case m.Role == "system" && i > 0:
			return fmt.Sprintf("message %d is a late system message", i)
		case m.Role == "assistant" && content == "" && len(m.ToolCalls) == 0:
			return fmt.Sprintf("message %d is empty", i)
		case m.Role == "tool" && content == "":
			return fmt.Sprintf("message %d is an empty result", i)
		case !slices.Contains([]string{"system", "user", "assistant", "tool"}, m.Role):
			return fmt.Sprintf("message %d has the role %q", i, m.Role)
		}
		if m.Role == "tool" {
			pending = pending[1:]
		}
		for _, c := range m.ToolCalls {
			if ids[c.ID] || !anyID().MatchString(c.ID) || c.Type != "function" || notInName().MatchString(c.Function.Name) || c.Function.Name == "" || len(c.Function.Name) > 64 {
				return fmt.Sprintf("call %+v", c)
			}
			var args map[string]any
			if err := json.Unmarshal([]byte(c.Function.Arguments), &args); err != nil || args == nil {
				return fmt.Sprintf("arguments %q", c.Function.Arguments)
			}
			ids[c.ID] = true
			pending = append(pending, c.ID)
		}
		prev = m.Role
	}
	if len(pending) > 0 {
		return "the last calls have no results"
	}
	names := map[string]bool{}
	for _, tool := range req.Tools {
		if n := tool.Function.Name; names[n] || n == "" || len(n) > 64 || notInName().MatchString(n) {
			return fmt.Sprintf("tool name %q", n)
		}
		names[tool.Function.Name] = true
	}
	return ""
}

func userSays(s string) []Message { return []Message{{Role: "user", Content: s}} }

// TestStatusCodes shows for each answer how often it is asked for again, after
// which waits, and what the owner is told.
func TestStatusCodes(t *testing.T) {
	type header = map[string]string
	refused := func(msg string) string { return `{"error":{"message":` + asJSON(msg) + `}}` }
	tests := []struct {
		name   string
		answer answer
		tries  int
		waits  string // of the first retry: a duration, or "backoff"
		want   string
	}{
		{"a bad request", answer{400, nil, refused("no good")}, 1, "", "refused the request with 400: no good"},
		{"no key", answer{401, nil, refused("who?")}, 1, "", "wants an API key: set PICKET_API_KEY"},
		{"no credit", answer{402, nil, refused("pay")}, 1, "", "no credit left"},
		{"not allowed", answer{403, nil, refused("no")}, 1, "", "does not let this key use \"m\""},
		{"wrong path", answer{404, nil, "404 page not found"}, 1, "", "usually ends in /v1"},
		{"wrong method", answer{405, nil, ""}, 1, "", "usually ends in /v1"},
		{"timeout", answer{408, nil, ""}, 3, "backoff", "Request Timeout"},
		{"lock", answer{409, nil, refused("lock timeout")}, 3, "backoff", "lock timeout"},
		{"no retry wanted", answer{409, header{"X-Should-Retry": "false"}, refused("busy")}, 1, "", "busy"},
		{"too large", answer{413, nil, ""}, 1, "", "longer than \"m\" takes"},
		{"not processable", answer{422, nil, refused("no good")}, 1, "", "no good"},
		{"server error", answer{500, nil, "<html>oops</html>"}, 3, "backoff", "failed with 500: try again later or choose another model (Internal Server Error)"},
		{"not implemented", answer{501, nil, ""}, 3, "backoff", "failed with 501"},
		{"bad gateway", answer{502, nil, ""}, 3, "backoff", "502"},
		{"overloaded", answer{529, nil, refused("overloaded")}, 3, "backoff", "overloaded"},
		{"rate limit", answer{429, nil, refused("slow down")}, 3, "backoff", "allows no more requests for now: wait, or choose another model (slow down)"},
		{"rate limit in seconds", answer{429, header{"Retry-After": "2"}, ""}, 3, "2s", "no more requests"},
		{"rate limit in parts of seconds", answer{429, header{"Retry-After": "1.5"}, ""}, 3, "1.5s", "no more requests"},
		{"rate limit in milliseconds", answer{429, header{"Retry-After-Ms": "1500", "Retry-After": "9"}, ""}, 3, "1.5s", "no more requests"},
		{"rate limit until a date", answer{429, header{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, ""}, 3, "30s", "no more requests"},
		{"rate limit until a past date", answer{429, header{"Retry-After": "Wed, 21 Oct 2020 07:28:00 GMT"}, ""}, 3, "0s", "no more requests"},
		{"rate limit in words", answer{429, nil, refused("Please try again in 2.5s.")}, 3, "2.5s", "no more requests"},
		{"rate limit in words, minutes", answer{429, nil, refused("Please try again in 1m3.5s. Visit x")}, 3, "1m3.5s", "no more requests"},
		{"rate limit in words, milliseconds", answer{429, nil, refused("Try again in 250ms")}, 3, "250ms", "no more requests"},
		{"rate limit in words, seconds", answer{429, nil, refused("retry after 5 seconds")}, 3, "5s", "no more requests"},
		{"rate limit in words, no unit", answer{429, nil, refused("retry after 5")}, 3, "5s", "no more requests"},
		{"rate limit of Gemini", answer{429, nil, `[{"error":{"code":429,"message":"m","details":[{"retryDelay":"17s"}]}}]`}, 3, "17s", "no more requests"},
		{"rate limit that makes no sense", answer{429, header{"Retry-After": "soon"}, ""}, 3, "backoff", "no more requests"},
		{"rate limit below zero", answer{429, header{"Retry-After": "-5"}, ""}, 3, "backoff", "no more requests"},
		{"rate limit of a day", answer{429, header{"Retry-After": "86400"}, refused("enough")}, 1, "", "no more requests for 24h0m0s"},
		{"rate limit beyond measure", answer{429, header{"Retry-After": "1e300"}, ""}, 1, "", "no more requests for"},
		{"unavailable with a wait", answer{503, header{"Retry-After": "3"}, ""}, 3, "3s", "503"},
		{"quota", answer{429, nil, `{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}`}, 1, "", "no credit left"},
		{"quota of a minute", answer{429, nil, `{"error":{"code":"insufficient_quota","message":"quota of tokens per minute"}}`}, 3, "backoff", "no more requests"},
		{"content filter", answer{400, nil, `{"error":{"code":"content_filter","message":"m","innererror":{"code":"ResponsibleAIPolicyViolation"}}}`}, 1, "", "content filter"},
		{"context", answer{400, nil, `{"error":{"code":"context_length_exceeded","message":"too big"}}`}, 1, "", "lower model.context_tokens"},
		{"context in words, as a server error", answer{500, nil, refused("the request exceeds the available context size")}, 1, "", "lower model.context_tokens"},
		{"unknown model", answer{404, nil, `{"error":{"code":"model_not_found","message":"The model does not exist"}}`}, 1, "", `has no model "m": use one of qwen3, mistral-small`},
		{"unknown model of Ollama", answer{404, nil, refused(`model "m" not found, try pulling it first`)}, 1, "", `run "ollama pull m" or use one of qwen3`},
		{"unknown model in other words", answer{400, nil, `{"object":"error","message":"Invalid model: m"}`}, 1, "", `has no model "m"`},
		{"no tools", answer{400, nil, refused("registry.ollama.ai/library/gemma does not support tools")}, 1, "", `the model "m" cannot call tools here: choose one that can, for example "ollama pull qwen3"`},
		{"no tools of vLLM", answer{400, nil, refused(`"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`)}, 1, "", "start vLLM with --enable-auto-tool-choice"},
		{"no tools of llama.cpp", answer{500, nil, refused("tools param requires --jinja flag")}, 1, "", "start llama-server with --jinja"},
		{"no tools of OpenRouter", answer{404, nil, refused("No endpoints found that support tool use.")}, 1, "", "cannot call tools"},
		{"redirect", answer{307, header{"Location": "https://other.example/v1/chat/completions?key=hidden"}, ""}, 1, "", `redirects to "https://other.example/v1/chat/completions"`},
		{"octet stream", answer{400, header{"Content-Type": "application/octet-stream"}, refused("no good")}, 1, "", "no good"},
		{"error as an event", answer{400, nil, "data: " + refused("no good") + "\n\n"}, 1, "", "no good"},
		{"unknown encoding", answer{0, header{"Content-Encoding": "br"}, "\x0b\x01"}, 1, "", `compressed its answer with "br"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newChatServer(t, test.answer)
			m := testModel(t, modelSettings{BaseURL: s.URL + "/v1", Retries: 2})
			m.now = func() time.Time { return time.Date(2026, 10, 21, 7, 27, 30, 0, time.UTC) }
			var waits []time.Duration
			m.sleep = func(_ context.Context, d time.Duration) error {
				waits = append(waits, d)
				return nil
			}
			var shown []string
			_, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("hi"), Tools: []tools.Tool{{Name: "time"}}}, func(d Delta) {
				if d.Text != "" || d.Reasoning != "" {
					t.Errorf("text %+v", d)
				}
				shown = append(shown, d.Wait)
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
			if got := len(s.requests()); got != test.tries {
				t.Errorf("%d requests, want %d", got, test.tries)
			}
			if len(waits) != test.tries-1 || len(shown) != len(waits) {
				t.Fatalf("waits %v, shown %q", waits, shown)
			}
			for i, d := range waits {
				if !strings.Contains(shown[i], "trying again in ") || strings.Contains(shown[i], "\n") {
					t.Errorf("shown is %q", shown[i])
				}
				low := time.Second << i
				if test.waits == "backoff" && (d < low || d > low*3/2) || test.waits != "backoff" && d.String() != test.waits {
					t.Errorf("wait %d is %s, want %s", i, d, test.waits)
				}
			}
		})
	}
}

func TestBackoffGrowsToAMinute(t *testing.T) {
	m := testModel(t, modelSettings{BaseURL: "http://127.0.0.1:1/v1"})
	for attempt := range 1000 {
		d, again := m.backoff(&modelFailure{}, attempt)
		if !again || d < time.Second || d > time.Minute || attempt >= 6 && d < time.Minute {
			t.Fatalf("attempt %d waits %s, %v", attempt, d, again)
		}
	}
}

func TestErrorShapes(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"m","type":"t"}}`:                     "m",
		`[{"error":{"code":429,"message":"m"}}]`:                   "m",
		`{"object":"error","message":"m","type":"t"}`:              "m",
		`{"object":"error","message":{"detail":[{"msg":"m"}]}}`:    "m",
		`{"detail":[{"loc":["body"],"msg":"m","type":"missing"}]}`: "m",
		`{"detail":"m"}`:                              "m",
		`{"message":"m"}`:                             "m",
		`{"status":429,"error":"m"}`:                  "m",
		`{"success":false,"error":{"message":"m"}}`:   "m",
		`{"error":{"error":{"message":"m"}}}`:         "m",
		`{"error":"{\"error\":{\"message\":\"m\"}}"}`: "m",
		`{"errors":[{"message":"m"}]}`:                "m",
		`"m"`:                                         "m",
		"m":                                           "m",
		"":                                            "Bad Request",
		"<html><body>m</body></html>":                 "Bad Request",
		`{}`:                                          "Bad Request",
		`{"error":null}`:                              "Bad Request",
		"a\nb\r\n\tc\x1b[31m\u202ed":                  `a b c\u{1b}[31m\u{202e}d`,
		`{"error":{"message":"see https://x.example/a?key=s3cret#f for more"}}`:  "see https://x.example/a?… for more",
		`{"error":{"message":"Authorization: Bearer abcdef was wrong"}}`:         "Authorization: Bearer [key] was wrong",
		`{"error":{"message":"no access for http://me:pw@x.example/"}}`:          "no access for http://…@x.example/",
		`{"error":{"message":"the key sk-hunter2 and head-er-value are wrong"}}`: "the key [key] and [key] are wrong",
		`{"error":{"message":"vault word"}}`:                                     "vault [secret]",
	} {
		s := newChatServer(t, answer{400, nil, body})
		m := testModel(t, modelSettings{BaseURL: s.URL + "/v1", APIKey: "sk-hunter2", Headers: map[string]string{"X-Key": "head-er-value"},
			Redact: func(s string) string { return strings.ReplaceAll(s, "word", "[secret]") }})
		_, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("hi")}, nil)
		if err == nil || !strings.HasSuffix(err.Error(), "400: "+want) {
			t.Errorf("%s says %v, want %q", body, err, want)
		}
	}
	s := newChatServer(t, answer{400, nil, strings.Repeat("ä word ", 1<<10)})
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1"})
	if _, err := m.Chat(t.Context(), ModelRequest{}, nil); err == nil || len([]rune(err.Error())) > 400 {
		t.Errorf("a long error: %v", err)
	}
}

// TestLearnOnce shows that what a server refuses in a known way is put
// otherwise, once, and remembered.
func TestLearnOnce(t *testing.T) {
	warm, top, seed := 0.2, 0.9, int64(7)
	schema := tools.Tool{Name: "time", Params: []tools.Param{{Name: "env", Type: "map"}, {Name: "n", Type: "integer", Min: 1, Max: 9}}}
	history := []Message{{Role: "system", Content: "s"}, {Role: "user", Content: "u"},
		{Role: "assistant", Reasoning: "because", ToolCalls: []ToolCall{{ID: "call_abc_1", Type: "function", Function: ToolFunction{"time", "{}"}}}},
		{Role: "tool", Content: "r", ToolCallID: "call_abc_1"}, {Role: "user", Content: "more"}}
	for _, test := range []struct{ name, refusal, before, after, gone string }{
		{"max_tokens", `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","param":"max_tokens","code":"unsupported_parameter"}}`, `"max_tokens":5`, `"max_completion_tokens":5`, `"max_tokens"`},
		{"temperature", `{"error":{"message":"Unsupported value","param":"temperature","code":"unsupported_value"}}`, `"temperature":0.2`, `"top_p"`, `"temperature"`},
		{"temperature without param", `{"error":{"message":"invalid temperature: only 1 is allowed for this model"}}`, `"temperature":0.2`, `"top_p"`, `"temperature"`},
		{"top_p", `{"detail":[{"loc":["body","top_p"],"msg":"top_p: Extra inputs are not permitted"}]}`, `"top_p"`, `"temperature"`, `"top_p"`},
		{"seed", `{"error":{"message":"Unrecognized request argument supplied: seed"}}`, `"seed":7`, `"top_p"`, `"seed"`},
		{"stop", `{"error":{"message":"'stop' is not supported with this model","param":"stop"}}`, `"stop":["x"]`, `"top_p"`, `"stop"`},
		{"stream_options", `{"error":{"message":"Unknown parameter: stream_options"}}`, `"stream_options"`, `"stream":true`, `"stream_options"`},
		{"Mistral's ids", `{"object":"error","message":"Tool call id was call_abc_1 but must be a-z, A-Z, 0-9, with a length of 9."}`, `"call_abc_1"`, `"tool_calls"`, `call_abc_1`},
		{"Mistral's roles", `{"message":"Unexpected role 'user' after role 'tool'"}`, `"role":"tool"`, `{"role":"assistant","content":"Understood."}`, `"tool_call_id":"call_abc_1"},{"role":"user"`},
		{"DeepSeek's reasoning", `{"error":{"message":"The reasoning_content in the thinking mode must be passed back to the API."}}`, `"tool_calls"`, `"reasoning_content":"because"`, "\x00"},
		{"no system role", `{"error":{"message":"System role not supported"}}`, `"role":"system"`, `s\n\nu`, `"role":"system"`},
		{"schemas", `[{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"additionalProperties\" at 'tools[0]': Cannot find field."}}]`, `"additionalProperties"`, `"type":"integer"`, `additionalProperties`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newChatServer(t, answer{400, nil, test.refusal}, answer{body: okStream})
			m := testModel(t, modelSettings{BaseURL: s.URL + "/v1", MaxTokens: 5, Temperature: &warm})
			list := slices.Clone(history)
			list[2].ToolCalls = []ToolCall{list[2].ToolCalls[0]}
			list[2].ToolCalls[0].from = m.id
			req := ModelRequest{Messages: list, Tools: []tools.Tool{schema}, TopP: &top, Seed: &seed, Stop: []string{"x"}}
			for range 2 {
				if reply, err := m.Chat(t.Context(), req, nil); err != nil || reply.Text != "ok" {
					t.Fatalf("%+v, %v", reply, err)
				}
			}
			if len(s.raw) != 3 {
				t.Fatalf("%d requests", len(s.raw))
			}
			if !strings.Contains(s.raw[0], test.before) {
				t.Errorf("the first request has no %s: %s", test.before, s.raw[0])
			}
			for _, raw := range s.raw[1:] {
				if !strings.Contains(raw, test.after) || strings.Contains(raw, test.gone) {
					t.Errorf("a later request has no %s or still %s: %s", test.after, test.gone, raw)
				}
			}
			// A server that goes on refusing is not asked without end.
			s = newChatServer(t, answer{400, nil, test.refusal})
			m = testModel(t, modelSettings{BaseURL: s.URL + "/v1", MaxTokens: 5, Temperature: &warm})
			if _, err := m.Chat(t.Context(), req, nil); err == nil || len(s.requests()) > 3 {
				t.Errorf("%d requests, %v", len(s.requests()), err)
			}
		})
	}
}

func TestReasoningIsForItsProviderOnly(t *testing.T) {
	demand := answer{400, nil, `{"error":{"message":"The reasoning_content in the thinking mode must be passed back to the API."}}`}
	forbid := answer{400, nil, `{"error":{"message":"reasoning_content is not allowed in the input"}}`}
	mine := newChatServer(t, answer{body: `data: {"choices":[{"delta":{"reasoning_content":"because","tool_calls":[{"index":0,"id":"c1","function":{"name":"time","arguments":"{}"},"extra_content":{"sig":"x"}}]},"finish_reason":"tool_calls"}]}` + "\n\n"},
		answer{body: okStream}, demand, answer{body: okStream}, forbid, answer{body: okStream}, demand)
	m := testModel(t, modelSettings{BaseURL: mine.URL + "/v1"})
	list := []tools.Tool{{Name: "time"}}
	reply, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("u"), Tools: list}, nil)
	if err != nil {
		t.Fatal(err)
	}
	req := ModelRequest{Tools: list, Messages: append(userSays("u"), Message{Role: "assistant", Reasoning: reply.Reasoning, ToolCalls: reply.Calls},
		Message{Role: "tool", ToolCallID: reply.Calls[0].ID, Content: "noon"})}
	for range 3 {
		if _, err := m.Chat(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Chat(t.Context(), req, nil); err == nil {
		t.Error("demanded, refused and demanded again, and no error")
	}
	for i, want := range []bool{false, false, false, true, true, false, false} {
		if got := strings.Contains(mine.raw[i], "because"); got != want {
			t.Errorf("request %d has the reasoning: %v", i, got)
		}
		if got := strings.Contains(mine.raw[i], `"extra_content":{"sig":"x"}`); got != (i > 0) {
			t.Errorf("request %d has the extra data: %v", i, got)
		}
	}
	other := newChatServer(t, demand, answer{body: okStream})
	if _, err := testModel(t, modelSettings{BaseURL: other.URL + "/v1"}).Chat(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(other.raw, ""); strings.Contains(all, "because") || strings.Contains(all, "sig") {
		t.Errorf("another provider got it: %s", all)
	}
}

func TestMalformedCallIsAskedForOnceMore(t *testing.T) {
	bad := answer{400, nil, `{"error":{"type":"invalid_request_error","code":"tool_use_failed","message":"Failed to call a function.","failed_generation":"<function=time>{}"}}`}
	s := newChatServer(t, bad, answer{body: okStream})
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1"})
	req := ModelRequest{Messages: userSays("hi"), Tools: []tools.Tool{{Name: "time"}}}
	reply, err := m.Chat(t.Context(), req, nil)
	if err != nil || len(reply.Calls) != 0 || len(s.raw) != 2 || !strings.Contains(s.raw[1], "function call was malformed") {
		t.Errorf("%+v, %v, requests %q", reply, err, s.raw)
	}
	s = newChatServer(t, bad)
	m = testModel(t, modelSettings{BaseURL: s.URL + "/v1"})
	if reply, err = m.Chat(t.Context(), req, nil); err == nil || len(s.raw) != 2 || len(reply.Calls) != 0 {
		t.Errorf("%v after %d requests", err, len(s.raw))
	}
}

func TestLoadingIsWaitedFor(t *testing.T) {
	loading := answer{503, nil, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`}
	s := newChatServer(t, loading, loading, loading, loading, answer{body: okStream})
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1", Retries: 1})
	if reply, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("hi")}, nil); err != nil || reply.Text != "ok" {
		t.Errorf("%+v, %v", reply, err)
	}
	s = newChatServer(t, loading)
	m = testModel(t, modelSettings{BaseURL: s.URL + "/v1", Retries: 1, FirstTimeout: time.Minute})
	if _, err := m.Chat(t.Context(), ModelRequest{}, nil); err == nil || len(s.requests()) > 70 {
		t.Errorf("%v after %d requests", err, len(s.requests()))
	}
}

func TestHistoryIsMadeLegal(t *testing.T) {
	call := func(id, name, args string) ToolCall {
		return ToolCall{ID: id, Type: "function", Function: ToolFunction{name, args}}
	}
	asst := func(text string, calls ...ToolCall) Message {
		return Message{Role: "assistant", Content: text, ToolCalls: calls}
	}
	result := func(id, text string) Message { return Message{Role: "tool", ToolCallID: id, Content: text} }
	user := func(s string) Message { return Message{Role: "user", Content: s} }
	system := func(s string) Message { return Message{Role: "system", Content: s} }
	show := func(list []Message) string {
		var b strings.Builder
		for _, m := range list {
			fmt.Fprintf(&b, "%s(%s", m.Role, m.Content)
			for _, c := range m.ToolCalls {
				fmt.Fprintf(&b, " %s:%s%s", c.ID, c.Function.Name, c.Function.Arguments)
			}
			if m.ToolCallID != "" {
				fmt.Fprintf(&b, " for %s", m.ToolCallID)
			}
			b.WriteString(") ")
		}
		return strings.TrimSpace(b.String())
	}
	for _, test := range []struct {
		name string
		in   []Message
		want string
	}{
		{"a call without a result", []Message{user("u"), asst("", call("c1", "a", "{}"), call("c2", "b", "{}")), result("c1", "r"), user("v")},
			"user(u) assistant( c1:a{} c2:b{}) tool(r for c1) tool(" + interruptedResult + " for c2) user(v)"},
		{"no result at the end", []Message{user("u"), asst("", call("c1", "a", "{}"))}, "user(u) assistant( c1:a{}) tool(" + interruptedResult + " for c1)"},
		{"results in another order", []Message{user("u"), asst("", call("c1", "a", "{}"), call("c2", "b", "{}")), result("c2", "2"), result("c1", "1")},
			"user(u) assistant( c1:a{} c2:b{}) tool(1 for c1) tool(2 for c2)"},
		{"a result without a call", []Message{user("u"), result("c1", "r"), asst("a")}, "user(u) assistant(a)"},
		{"a result twice", []Message{user("u"), asst("", call("c1", "a", "{}")), result("c1", "1"), result("c1", "2")}, "user(u) assistant( c1:a{}) tool(1 for c1)"},
		{"an empty result", []Message{user("u"), asst("", call("c1", "a", "{}")), result("c1", "")}, "user(u) assistant( c1:a{}) tool((no output) for c1)"},
		{"one id for two calls", []Message{user("u"), asst("", call("c", "a", "{}"), call("c", "b", "{}")), result("c", "1"), result("c", "2")},
			"user(u) assistant( c:a{} " + wireID("c", false, map[string]bool{"c": true}) + ":b{}) tool(1 for c) tool(2 for " + wireID("c", false, map[string]bool{"c": true}) + ")"},
		{"ids that start again", []Message{user("u"), asst("", call("c", "a", "{}")), result("c", "1"), user("v"), asst("", call("c", "b", "{}")), result("c", "2")},
			"user(u) assistant( c:a{}) tool(1 for c) user(v) assistant( " + wireID("c", false, map[string]bool{"c": true}) + ":b{}) tool(2 for " + wireID("c", false, map[string]bool{"c": true}) + ")"},
		{"an empty assistant message", []Message{user("u"), asst(" \n"), user("v")}, "user(u\n\nv)"},
		{"neighbours of one role", []Message{system("s"), system("t"), user("u"), user("v"), asst("a"), asst("b", call("c1", "a", "{}")), result("c1", "r")},
			"system(s\n\nt) user(u\n\nv) assistant(a\n\nb c1:a{}) tool(r for c1)"},
		{"a late system message", []Message{system("s"), user("u"), asst("a"), system("t")}, "system(s) user(u) assistant(a) user(t)"},
		{"arguments that are no object", []Message{user("u"), asst("", call("c1", "a", ""), call("c2", "a", `{"x":`), call("c3", "a", "[1]"), call("c4", "a", `{"x":1}`)),
			result("c1", "1"), result("c2", "2"), result("c3", "3"), result("c4", "4")},
			`user(u) assistant( c1:a{} c2:a{} c3:a{} c4:a{"x":1}) tool(1 for c1) tool(2 for c2) tool(3 for c3) tool(4 for c4)`},
		{"an odd tool name", []Message{user("u"), asst("", call("c1", "mail.send ☃", "{}")), result("c1", "r")}, "user(u) assistant( c1:mail_send__{}) tool(r for c1)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := show(wireMessages(test.in, "me", nil, newToolNames(nil))); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// FuzzHistory shows that any history becomes one that a strict server takes.
func FuzzHistory(f *testing.F) {
	for _, s := range []string{"", "sutau", "uAttu", "uaaAtuAAtttsa", "tttAAAtuEsss", "usAtBtCt"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, shape string, short bool) {
		var list []Message
		n := 0
		for _, c := range shape {
			n++
			m := Message{Content: fmt.Sprint(n)}
			switch c {
			case 's':
				m.Role = "system"
			case 'u':
				m.Role = "user"
			case 't':
				m.Role, m.ToolCallID = "tool", fmt.Sprint("call_", n%3)
			case 'a', 'E':
				m.Role = "assistant"
				if c == 'E' {
					m.Content = ""
				}
			default: // calls, some with odd ids and names
				m.Role = "assistant"
				for i := range 1 + int(c)%3 {
					m.ToolCalls = append(m.ToolCalls, ToolCall{ID: fmt.Sprint("call_", (n+i)%3, strings.Repeat("é", i)), Function: ToolFunction{string(c) + ".x", shape}})
				}
			}
			list = append(list, m)
		}
		m := &chatModel{s: modelSettings{Name: "m"}, id: "me"}
		names := newToolNames([]tools.Tool{{Name: "a.x"}, {Name: "a_x"}})
		body, err := m.body(ModelRequest{Messages: list}, quirks{quirkShortIDs: short, quirkBridge: short}, names, false)
		if err != nil {
			t.Fatal(err)
		}
		if why := illegal(body); why != "" {
			t.Fatalf("%s: %s", why, body)
		}
	})
}

func TestToolNames(t *testing.T) {
	long := strings.Repeat("a", 70)
	list := []tools.Tool{{Name: "mail.send"}, {Name: "time.now"}, {Name: "mail_send"}, {Name: "x:y"}, {Name: "x.y"}, {Name: long}, {Name: long + "b"}}
	n := newToolNames(list)
	reversed := slices.Clone(list)
	slices.Reverse(reversed)
	again := newToolNames(reversed)
	seen := map[string]bool{}
	for _, tool := range list {
		w := n.wireName(tool.Name)
		if len(w) > 64 || w == "" || notInName().MatchString(w) || seen[w] {
			t.Errorf("%q goes as %q", tool.Name, w)
		}
		seen[w] = true
		if r, err := n.resolve(w); err != nil || r != tool.Name {
			t.Errorf("%q comes back as %q, %v", w, r, err)
		}
		if again.wireName(tool.Name) != w {
			t.Errorf("%q depends on the order", tool.Name)
		}
	}
	if n.wireName("time.now") != "time_now" || n.wireName("mail_send") != "mail_send" {
		t.Error("plain names changed")
	}
	if r, err := n.resolve("mail.send"); err != nil || r != "mail.send" {
		t.Errorf("the real name is %q, %v", r, err)
	}
}

func TestToolNamesOverTheWire(t *testing.T) {
	s := newChatServer(t, answer{body: `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"mail_send","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}` + "\n\n"})
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1"})
	reply, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("u"), Tools: []tools.Tool{{Name: "mail.send"}}}, nil)
	if err != nil || len(reply.Calls) != 1 || reply.Calls[0].Function.Name != "mail.send" || reply.Calls[0].Invalid != "" {
		t.Errorf("%+v, %v", reply, err)
	}
}

func TestPlainSchema(t *testing.T) {
	got := string(plainSchema(json.RawMessage(`{"$schema":"x","type":"object","additionalProperties":false,"properties":{
		"type":{"type":["null","string"],"format":"uri","const":"a","description":"d"},
		"list":{"type":"array","items":{"anyOf":[{"type":"string"}]},"minItems":1},
		"sub":{"properties":{"n":{"type":"integer","exclusiveMinimum":0}},"required":["n"]},
		"e":{"enum":["a"]}, "any":true},"required":["type"],"anyOf":[{"required":["e"]}]}`)))
	want := `{"properties":{"any":{"type":"string"},"e":{"enum":["a"],"type":"string"},"list":{"items":{"type":"string"},"type":"array"},` +
		`"sub":{"properties":{"n":{"type":"integer"}},"required":["n"],"type":"object"},"type":{"description":"d","type":"string"}},"required":["type"],"type":"object"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestKeyStaysWithItsOrigin(t *testing.T) {
	var leaked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { leaked.Add(1) }))
	defer other.Close()
	s := newChatServer(t, answer{status: 308, header: map[string]string{"Location": other.URL + "/v1/chat/completions"}})
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1", APIKey: " sk-hunter2\n", Headers: map[string]string{"api-key": "abc"}, Retries: 2})
	_, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("hi")}, nil)
	if err == nil || !strings.Contains(err.Error(), "redirects to") || leaked.Load() != 0 {
		t.Errorf("%v, %d requests elsewhere", err, leaked.Load())
	}
	if h := s.head[0]; h.Get("Authorization") != "Bearer sk-hunter2" || h.Get("api-key") != "abc" || h.Get("Accept-Encoding") != "identity" || len(h["Idempotency-Key"]) > 0 {
		t.Errorf("headers are %v", h)
	}
}

func TestBaseURLs(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:11434/v1":             "http://127.0.0.1:11434/v1/chat/completions",
		" https://api.x.example/v1/ ":           "https://api.x.example/v1/chat/completions",
		"https://x.example/v1/chat/completions": "https://x.example/v1/chat/completions",
		"https://x.example/d/m?api-version=1":   "https://x.example/d/m/chat/completions?api-version=1",
		"http://[::1]:8080":                     "http://[::1]:8080/chat/completions",
		"":                                      "", "x.example/v1": "", "ftp://x.example": "", "http://": "", "http://me:pw@x.example/": "", "http://x .example": "",
	} {
		u, err := parseBaseURL(in)
		if want == "" {
			if err == nil || strings.Contains(err.Error(), "pw") {
				t.Errorf("%q: %v, %v", in, u, err)
			}
		} else if err != nil || u.JoinPath("chat/completions").String() != want {
			t.Errorf("%q: %v, %v", in, u, err)
		}
	}
}

// TestSilence shows that a server which sends nothing, or stops sending, ends
// the attempt, and that the time starts anew with each byte.
func TestSilence(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for _, test := range []struct{ name, sent, want, text string }{
		{"no headers", "", "sent nothing for 50ms", ""},
		{"headers only", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", "sent nothing for 50ms", ""},
		{"half a stream", "HTTP/1.1 200 OK\r\n\r\n" + contentChunk("a"), "sent nothing for 60ms", "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := rawServer(t, func(c net.Conn, _ *http.Request) {
				io.WriteString(c, test.sent)
				<-release
			})
			m := testModel(t, modelSettings{BaseURL: base, FirstTimeout: 50 * time.Millisecond, Timeout: 60 * time.Millisecond, Retries: 3})
			reply, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("hi")}, func(d Delta) {
				if d.Wait != "" {
					t.Errorf("waits: %s", d.Wait)
				}
			})
			if err == nil || !strings.Contains(err.Error(), test.want) || reply.Text != test.text {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
	t.Run("a slow stream", func(t *testing.T) {
		base := rawServer(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for range 9 {
				time.Sleep(100 * time.Millisecond)
				io.WriteString(c, ": ping\n")
			}
			io.WriteString(c, okStream)
		})
		m := testModel(t, modelSettings{BaseURL: base, FirstTimeout: 700 * time.Millisecond, Timeout: 700 * time.Millisecond})
		if reply, err := m.Chat(t.Context(), ModelRequest{}, nil); err != nil || reply.Text != "ok" {
			t.Errorf("%+v, %v", reply, err)
		}
	})
	t.Run("held open after the reason", func(t *testing.T) {
		base := rawServer(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"+strings.TrimSuffix(okStream, "data: [DONE]\n\n"))
			<-release
		})
		m := testModel(t, modelSettings{BaseURL: base, Timeout: 50 * time.Millisecond})
		if reply, err := m.Chat(t.Context(), ModelRequest{}, nil); err != nil || reply.Text != "ok" {
			t.Errorf("%+v, %v", reply, err)
		}
	})
	t.Run("held open after [DONE]", func(t *testing.T) {
		base := rawServer(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"+okStream)
			<-release
		})
		m := testModel(t, modelSettings{BaseURL: base})
		if reply, err := m.Chat(t.Context(), ModelRequest{}, nil); err != nil || reply.Text != "ok" {
			t.Errorf("%+v, %v", reply, err)
		}
	})
}

func TestConnectionsThatBreak(t *testing.T) {
	var n atomic.Int32
	for _, test := range []struct {
		name, first string
		tries       int32
		text, want  string
	}{
		{"before the headers", "", 2, "ok", ""},
		{"before the first byte", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 2, "ok", ""},
		{"after the first byte", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n:\r\n", 1, "", "cut off"},
		{"in the text", "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + contentChunk("a"), 1, "a", "cut off"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n.Store(0)
			base := rawServer(t, func(c net.Conn, _ *http.Request) {
				if n.Add(1) == 1 {
					io.WriteString(c, test.first)
					return
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+okStream)
			})
			m := testModel(t, modelSettings{BaseURL: base, Retries: 3})
			reply, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("hi")}, nil)
			if reply.Text != test.text || n.Load() != test.tries || test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%+v, %v after %d requests", reply, err, n.Load())
			}
		})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	m := testModel(t, modelSettings{BaseURL: "http://" + l.Addr().String() + "/v1", Retries: 2})
	waits := 0
	_, err = m.Chat(t.Context(), ModelRequest{}, func(Delta) { waits++ })
	if err == nil || !strings.Contains(err.Error(), "cannot reach http://127.0.0.1:") || strings.Contains(err.Error(), "/v1") || waits != 2 {
		t.Errorf("nobody listens: %v after %d waits", err, waits)
	}
}

// TestStaleConnection shows that a kept connection which the server has closed
// costs nothing: the request is sent once more at once, on a new one.
func TestStaleConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var conns, served atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for i := 0; ; i++ {
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					if i == 1 {
						return // as if the connection had been closed for being idle
					}
					served.Add(1)
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(okStream), okStream)
				}
			}()
		}
	}()
	m := testModel(t, modelSettings{BaseURL: "http://" + l.Addr().String() + "/v1"})
	for i := range 3 {
		reply, err := m.Chat(t.Context(), ModelRequest{Messages: userSays("hi")}, func(d Delta) {
			if d.Wait != "" {
				t.Errorf("waits: %s", d.Wait)
			}
		})
		if err != nil || reply.Text != "ok" {
			t.Fatalf("request %d: %+v, %v", i, reply, err)
		}
		waitFor(t, func() bool { return int(served.Load()) == i+1 })
		time.Sleep(10 * time.Millisecond) // the connection goes back to the pool after its end was read
	}
	if conns.Load() < 2 || served.Load() != 3 {
		t.Errorf("%d connections, %d answers", conns.Load(), served.Load())
	}
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for range 1000 {
		if cond() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatal("it did not happen")
}

func TestConnectionIsUsedAgain(t *testing.T) {
	s := newChatServer(t, answer{body: okStream})
	s.late = 10 * time.Millisecond
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1"})
	for range 5 {
		if _, err := m.Chat(t.Context(), ModelRequest{}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Millisecond)
	}
	if n := s.conns.Load(); n > 2 {
		t.Errorf("%d connections for 5 requests", n)
	}
}

func TestStop(t *testing.T) {
	t.Run("in a wait", func(t *testing.T) {
		s := newChatServer(t, answer{429, map[string]string{"Retry-After": "60"}, ""})
		m, err := newModel(modelSettings{BaseURL: s.URL + "/v1", Name: "m", Retries: 5})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		_, err = m.Chat(ctx, ModelRequest{}, func(d Delta) {
			if d.Wait != "" {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) || time.Since(start) > 30*time.Second || len(s.requests()) != 1 {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
	t.Run("in an endless stream", func(t *testing.T) {
		gone := make(chan struct{})
		base := rawServer(t, func(c net.Conn, _ *http.Request) {
			defer close(gone)
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for {
				if _, err := io.WriteString(c, contentChunk("a")); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
		m := testModel(t, modelSettings{BaseURL: base, Retries: 5})
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the owner said so")
		reply, err := m.Chat(ctx, ModelRequest{}, func(d Delta) { cancel(why) })
		if !errors.Is(err, why) || !strings.HasPrefix(reply.Text, "a") {
			t.Errorf("%+v, %v", reply, err)
		}
		<-gone // the connection was closed
	})
}

func TestCompressedStream(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, okStream)
	z.Close()
	s := newChatServer(t, answer{header: map[string]string{"Content-Encoding": "gzip"}, body: b.String()})
	if reply, err := testModel(t, modelSettings{BaseURL: s.URL + "/v1"}).Chat(t.Context(), ModelRequest{}, nil); err != nil || reply.Text != "ok" {
		t.Errorf("%+v, %v", reply, err)
	}
}

func TestDroppedStartIsWarnedOfOnce(t *testing.T) {
	usage := `data: {"choices":[],"usage":{"prompt_tokens":4096,"completion_tokens":1}}` + "\n\n"
	s := newChatServer(t, answer{body: usage + okStream})
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1"})
	for i, want := range []bool{false, true, false} {
		n := 70_000
		if i == 0 {
			n = 12_000
		}
		reply, err := m.Chat(t.Context(), ModelRequest{Messages: userSays(strings.Repeat("x", n))}, nil)
		if err != nil || strings.Contains(reply.Warning, "num_ctx") != want {
			t.Errorf("request %d: %q, %v", i, reply.Warning, err)
		}
	}
}

// TestToolLoop lets a server lead a conversation with tools through the whole
// client, several at the same time.
func TestToolLoop(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if why := illegal(body); why != "" {
			http.Error(w, why, 400)
			return
		}
		var req struct{ Messages []Message }
		json.Unmarshal(body, &req)
		last := req.Messages[len(req.Messages)-1]
		w.Header().Set("Content-Type", "text/event-stream")
		if n := len(req.Messages) / 2; n < 4 {
			for _, piece := range []string{`"id":"call_0","function":{"name":"add","arguments":""}`, `"function":{"arguments":"{\"n\":"}`, fmt.Sprintf(`"function":{"arguments":"%d}"}`, n)} {
				fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,%s}]}}]}\n\n", piece)
				w.(http.Flusher).Flush()
			}
			fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n")
			return
		}
		fmt.Fprint(w, contentChunk("the sum is "+last.Content), "data: [DONE]\n\n")
	}))
	defer s.Close()
	m := testModel(t, modelSettings{BaseURL: s.URL + "/v1"})
	add := tools.Tool{Name: "add", Params: []tools.Param{{Name: "n", Type: "integer", Required: true}}}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			list := []Message{{Role: "system", Content: "s"}, {Role: "user", Content: "add"}}
			var sum int64
			for range 10 {
				reply, err := m.Chat(t.Context(), ModelRequest{Messages: list, Tools: []tools.Tool{add}}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if len(reply.Calls) == 0 {
					if reply.Text != "the sum is 6" {
						t.Errorf("the answer is %q", reply.Text)
					}
					return
				}
				list = append(list, Message{Role: "assistant", ToolCalls: reply.Calls})
				for _, c := range reply.Calls {
					args, err := add.Parse([]byte(c.Function.Arguments))
					if err != nil || c.Invalid != "" {
						t.Error(err, c.Invalid)
						return
					}
					sum += args.Int("n")
					list = append(list, Message{Role: "tool", ToolCallID: c.ID, Content: fmt.Sprint(sum)})
				}
			}
			t.Error("no answer after 10 steps")
		})
	}
	wg.Wait()
}
