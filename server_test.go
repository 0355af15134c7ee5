package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A stubModel is a model server whose replies a test decides on: by the text of
// the last message of the user, and by how many of its own came since.
type stubModel struct {
	mu    sync.Mutex
	reqs  []stubRequest
	reply func(w http.ResponseWriter, r *http.Request, req stubRequest)
}

type stubRequest struct {
	Messages    []Message
	Tools       []struct{ Function struct{ Name string } }
	Stop        any
	MaxTokens   int `json:"max_tokens"`
	Temperature *float64
	Seed        *int64
	raw         string
}

// last is the text of the last message of the user.
func (r stubRequest) last() string {
	for _, m := range slices.Backward(r.Messages) {
		if m.Role == "user" {
			return m.Content
		}
	}
	return ""
}

// results counts the tool results after it.
func (r stubRequest) results() (n int) {
	for _, m := range slices.Backward(r.Messages) {
		if m.Role == "user" {
			break
		}
		if m.Role == "tool" {
			n++
		}
	}
	return n
}

func (m *stubModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req stubRequest
	if err := json.Unmarshal(body, &req); err != nil {
		w.WriteHeader(400)
		return
	}
	req.raw = string(body)
	m.mu.Lock()
	m.reqs = append(m.reqs, req)
	m.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	m.reply(w, r, req)
}

func (m *stubModel) requests() []stubRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.reqs)
}

// stubText streams a piece of text.
func stubText(w http.ResponseWriter, text string) {
	fmt.Fprintf(w, "data: %s\n\n", asJSON(jsonObject{"choices": []any{jsonObject{"index": 0, "delta": jsonObject{"content": text}}}}))
	w.(http.Flusher).Flush()
}

// stubSays streams texts and ends, as a model does.
func stubSays(w http.ResponseWriter, texts ...string) {
	for _, t := range texts {
		stubText(w, t)
	}
	fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`+"\n\ndata: [DONE]\n\n")
}

// stubCalls asks for a call.
func stubCalls(w http.ResponseWriter, text, tool string, args any) {
	call := jsonObject{"index": 0, "id": "c1", "function": jsonObject{"name": tool, "arguments": asJSON(args)}}
	fmt.Fprintf(w, "data: %s\n\n", asJSON(jsonObject{"choices": []any{jsonObject{"index": 0, "delta": jsonObject{"content": text, "tool_calls": []any{call}}, "finish_reason": "tool_calls"}}}))
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// A serverRig is a server on a port of this machine, with all of picket behind it.
type serverRig struct {
	*server
	t                 testing.TB
	model             *stubModel
	base              string // http://127.0.0.1:PORT
	key, token        string
	dir, ws, modelURL string
	stderr            *syncBuffer
	stopped           chan error
	stop              context.CancelFunc
	client            *http.Client
}

// quick are times in which a test can see them pass.
var quick = replyTimes{ping: 20 * time.Millisecond, hold: 80 * time.Millisecond, write: 300 * time.Millisecond, resend: 15 * time.Second}

// newServerRig starts a server. A nil reply echoes what it gets.
func newServerRig(t testing.TB, reply func(w http.ResponseWriter, r *http.Request, req stubRequest)) *serverRig {
	t.Helper()
	if reply == nil {
		reply = func(w http.ResponseWriter, _ *http.Request, req stubRequest) { stubSays(w, "you said: ", req.last()) }
	}
	m := &stubModel{reply: reply}
	hs := httptest.NewServer(m)
	t.Cleanup(hs.Close)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	setenv := t.(interface{ Setenv(k, v string) }).Setenv
	setenv("PICKET_HOME", dir)
	for _, name := range []string{"PICKET_MODEL", "PICKET_BASE_URL", "PICKET_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "PICKET_MODE", "PICKET_LISTEN"} {
		setenv(name, "")
	}
	r := &serverRig{t: t, model: m, dir: dir, ws: filepath.Join(dir, "ws"), stderr: &syncBuffer{}, client: &http.Client{Transport: &http.Transport{}}}
	must(t, os.Mkdir(r.ws, 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "config"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "config", "config.json"), []byte(`{"sandbox":{"mode":"off"},"openai_api":{"max_chats":80}}`), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	r.token, err = ownerToken(filepath.Join(dir, "data"), true)
	must(t, err)
	r.start(hs.URL + "/v1")
	t.Cleanup(r.end)
	return r
}

func (r *serverRig) start(modelURL string) {
	t := r.t
	p := &program{stdin: strings.NewReader(""), stdout: io.Discard, stderr: r.stderr, redact: keepText}
	a, err := p.open(context.Background(), taskFlags{workspace: r.ws, model: "stub", baseURL: modelURL, quiet: true})
	must(t, err)
	r.modelURL = modelURL
	if r.key == "" {
		r.key, err = a.newKey(context.Background())
		must(t, err)
		must(t, a.switchTo(context.Background(), "openai_api.enabled", "true"))
	}
	limits := usualLimits
	limits.linger, limits.stop = 50*time.Millisecond, 5*time.Second
	a.handler.times = quick
	r.server = newServer(a, r.token, limits)
	list, err := r.listen([]string{"127.0.0.1:0"})
	must(t, err)
	r.base = "http://" + r.at[0]
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.stopped = cancel, make(chan error, 1)
	go func(s *server, stopped chan error) { stopped <- s.run(ctx, list) }(r.server, r.stopped)
}

// end ends the server and closes all of picket.
func (r *serverRig) end() {
	r.t.Helper()
	r.stop()
	if err := <-r.stopped; err != nil {
		r.t.Errorf("the server ended with %v", err)
	}
	r.client.CloseIdleConnections()
	must(r.t, r.app.close())
}

func (r *serverRig) restart() {
	r.t.Helper()
	r.end()
	r.start(r.modelURL)
}

// An httpAnswer is a response that was read whole.
type httpAnswer struct {
	*http.Response
	body string
}

// code is the code of an error answer.
func (a httpAnswer) code() string {
	var e struct {
		Error struct{ Code, Message, Type string }
	}
	if json.Unmarshal([]byte(a.body), &e) != nil || e.Error.Message == "" || e.Error.Type == "" {
		return "not an error in JSON: " + a.body
	}
	return e.Error.Code
}

// content is the text of a completion.
func (a httpAnswer) content() string {
	var c struct {
		Choices []struct {
			Message struct{ Content string }
		}
	}
	if json.Unmarshal([]byte(a.body), &c) != nil || len(c.Choices) != 1 {
		return "no completion: " + a.body
	}
	return c.Choices[0].Message.Content
}

// ask sends a request; headers are "Name: value" each.
func (r *serverRig) ask(method, path, key, body string, headers ...string) httpAnswer {
	r.t.Helper()
	req, err := http.NewRequest(method, r.base+path, strings.NewReader(body))
	must(r.t, err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	return r.send(req)
}

func (r *serverRig) send(req *http.Request) httpAnswer {
	resp, err := r.client.Do(req)
	if err != nil {
		return httpAnswer{&http.Response{Header: http.Header{}}, err.Error()}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		b = append(b, "\nerror: "+err.Error()...)
	}
	return httpAnswer{resp, string(b)}
}

// chat asks in a chat of the API.
func (r *serverRig) chat(user, text string, headers ...string) httpAnswer {
	r.t.Helper()
	return r.ask("POST", "/v1/chat/completions", r.key, asJSON(jsonObject{"user": user, "messages": []any{jsonObject{"role": "user", "content": text}}}), headers...)
}

// later asks the same in the background.
func (r *serverRig) later(user, text string, headers ...string) chan httpAnswer {
	c := make(chan httpAnswer, 1)
	go func() { c <- r.chat(user, text, headers...) }()
	return c
}

// eventually waits for something that others do.
func (r *serverRig) eventually(what string, is func() bool) {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("never happened: %s", what)
		}
	}
}

// turns waits until n turns run.
func (r *serverRig) turns(n int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d turns", n), func() bool { return len(r.app.handler.turns.list()) == n })
}

// question waits for the only open question and returns its id.
func (r *serverRig) question() Question {
	r.t.Helper()
	var q Question
	r.eventually("a question", func() bool {
		open, _, err := r.app.approvals.List(context.Background())
		must(r.t, err)
		if len(open) == 1 {
			q = open[0]
		}
		return len(open) == 1
	})
	return q
}

func (r *serverRig) records(kind string) []map[string]any {
	r.t.Helper()
	var out []map[string]any
	data, err := os.ReadFile(filepath.Join(r.dir, "data", auditName))
	must(r.t, err)
	for l := range strings.Lines(string(data)) {
		var m map[string]any
		must(r.t, json.Unmarshal([]byte(l), &m))
		if m["kind"] == kind {
			out = append(out, m)
		}
	}
	return out
}

// Who asks, in which order what is wrong with a request is found, and that each
// answer is JSON in the shape of OpenAI's errors which no client sends again.
func TestServerRefusesBeforeATurn(t *testing.T) {
	r := newServerRig(t, nil)
	_, port, _ := net.SplitHostPort(r.at[0])
	const post, completions = "POST", "/v1/chat/completions"
	big := strings.Repeat("x", 1<<20+1)
	ok := `{"messages":[{"role":"user","content":"hi"}]}`
	cases := map[string]struct {
		method, path, key, body string
		headers                 []string
		status                  int
		code                    string
	}{
		"another name in Host, whatever the key": {post, completions, r.key, ok, []string{"Host: evil.test:" + port}, 403, "local_only"},
		"another port in Host":                   {post, completions, r.key, ok, []string{"Host: 127.0.0.1:1"}, 403, "local_only"},
		"no port in Host":                        {post, completions, r.key, ok, []string{"Host: localhost"}, 403, "local_only"},
		"a name that only begins like ours":      {post, completions, r.key, ok, []string{"Host: localhost.evil.test:" + port}, 403, "local_only"},
		"an address of this machine by number":   {post, completions, r.key, ok, []string{"Host: 127.0.0.2:" + port}, 403, "local_only"},
		"localhost in capitals":                  {"GET", "/v1/models", r.key, "", []string{"Host: LocalHost:" + port}, 200, ""},
		"by way of a proxy":                      {post, completions, r.key, ok, []string{"X-Forwarded-For: 127.0.0.1"}, 403, "local_only"},
		"by way of a proxy that says its host":   {post, completions, r.key, ok, []string{"X-Forwarded-Host: 127.0.0.1"}, 403, "local_only"},
		"by way of a proxy, as standardised":     {post, completions, r.key, ok, []string{"Forwarded: for=127.0.0.1"}, 403, "local_only"},
		"by way of a proxy of another kind":      {post, completions, r.key, ok, []string{"X-Real-IP: 127.0.0.1"}, 403, "local_only"},
		"from a web page":                        {post, completions, r.key, ok, []string{"Origin: https://evil.example"}, 403, "local_only"},
		"from a file or a sandboxed page":        {post, completions, r.key, ok, []string{"Origin: null"}, 403, "local_only"},
		"from a page of our own name":            {"GET", "/v1/models", r.key, "", []string{"Origin: http://127.0.0.1:" + port}, 200, ""},
		"from another server of this machine":    {"GET", "/v1/models", r.key, "", []string{"Origin: http://127.0.0.1:1"}, 403, "local_only"},
		"as Node sends it":                       {"GET", "/v1/models", r.key, "", []string{"Sec-Fetch-Mode: cors"}, 200, ""},
		"an upgrade from a web page":             {"GET", "/api/events", r.token, "", []string{"Origin: https://evil.test", "Upgrade: websocket", "Connection: Upgrade"}, 403, "local_only"},
		"no key, and a body that is no JSON":     {post, completions, "", "{bad", nil, 401, "invalid_api_key"},
		"no key, and a large body":               {post, completions, "", big, nil, 401, "invalid_api_key"},
		"another key":                            {post, completions, r.key + "x", ok, nil, 401, "invalid_api_key"},
		"the owner's token":                      {"GET", "/v1/models", r.token, "", nil, 401, "invalid_api_key"},
		"a key that is not ASCII":                {"GET", "/v1/models", "ключ", "", nil, 401, "invalid_api_key"},
		"another scheme":                         {"GET", "/v1/models", "", "", []string{"Authorization: Basic " + r.key}, 401, "invalid_api_key"},
		"two keys":                               {"GET", "/v1/models", r.key, "", []string{"Authorization: Bearer " + r.key}, 401, "invalid_api_key"},
		"the scheme in small letters, blanks":    {"GET", "/v1/models", "", "", []string{"Authorization: bearer   " + r.key + "  "}, 200, ""},
		"the key in the address":                 {"GET", "/v1/models?api_key=" + r.key, "", "", nil, 401, "invalid_api_key"},
		"the key in the address too":             {"GET", "/v1/models?token=" + r.key, r.key, "", nil, 401, "invalid_api_key"},
		"the key in the address by another name": {"GET", "/v1/models?x=" + r.key, r.key, "", nil, 401, "invalid_api_key"},
		"an address with other parameters":       {"GET", "/v1/models?user=7", r.key, "", nil, 200, ""},
		"another method":                         {"GET", completions, r.key, "", nil, 405, "method_not_allowed"},
		"another method goes before the body":    {"PUT", completions, r.key, big, []string{"Content-Encoding: gzip"}, 405, "method_not_allowed"},
		"OPTIONS":                                {"OPTIONS", completions, r.key, "", nil, 405, "method_not_allowed"},
		"OPTIONS without a key":                  {"OPTIONS", completions, "", "", nil, 401, "invalid_api_key"},
		"a compressed body, however large":       {post, completions, r.key, big, []string{"Content-Encoding: gzip"}, 415, "unsupported_encoding"},
		"a body of several parts":                {post, completions, r.key, ok, []string{"Content-Type: multipart/form-data; boundary=x"}, 415, "unsupported_encoding"},
		"another character set":                  {post, completions, r.key, ok, []string{"Content-Type: application/json; charset=latin1"}, 415, "unsupported_encoding"},
		"UTF-8 by name":                          {post, completions, r.key, ok, []string{"Content-Type: application/json; charset=\"UTF-8\""}, 200, ""},
		"what curl -d says":                      {post, completions, r.key, ok, []string{"Content-Type: application/x-www-form-urlencoded"}, 200, ""},
		"no type":                                {post, completions, r.key, ok, nil, 200, ""},
		"a large body":                           {post, completions, r.key, big, nil, 413, "request_too_large"},
		"no JSON":                                {post, completions, r.key, "{bad", nil, 400, "invalid_request"},
		"a streamed request that is refused":     {post, completions, r.key, `{"stream":true,"messages":[]}`, nil, 400, "no_user_message"},
		"the other API of OpenAI":                {post, "/v1/responses", r.key, ok, nil, 404, "unknown_url"},
		"an unknown address":                     {post, "/v1/embeddings", r.key, ok, nil, 404, "unknown_url"},
		"an unknown address without a key":       {post, "/v1/embeddings", "", ok, nil, 401, "invalid_api_key"},
		"no /v1":                                 {post, "/chat/completions", r.key, ok, nil, 404, "unknown_url"},
		"/v1 twice":                              {post, "/v1/v1/chat/completions", r.key, ok, nil, 404, "unknown_url"},
		"two slashes":                            {post, "//v1/chat/completions", r.key, ok, nil, 404, "unknown_url"},
		"dots":                                   {post, "/v1/x/../chat/completions", r.key, ok, nil, 404, "unknown_url"},
		"a slash at the end":                     {post, completions + "/", r.key, ok, nil, 200, ""},
		"the root":                               {"GET", "/", "", "", nil, 404, "unknown_url"},
		"a model":                                {"GET", "/v1/models/picket", r.key, "", nil, 200, ""},
		"a model that is not there":              {"GET", "/v1/models/me%2Fagent:x", r.key, "", nil, 404, "model_not_found"},
		"another model in a request":             {post, completions, r.key, `{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}`, nil, 404, "model_not_found"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := len(r.model.requests())
			got := r.ask(c.method, c.path, c.key, c.body, c.headers...)
			if got.StatusCode != c.status {
				t.Fatalf("%d %s", got.StatusCode, got.body)
			}
			if !strings.HasPrefix(got.Header.Get("Content-Type"), "application/json") || got.Header.Get("X-Request-Id") == "" || got.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("headers %v", got.Header)
			}
			for name := range got.Header {
				if strings.HasPrefix(name, "Access-Control-") || name == "Location" {
					t.Errorf("it has a header %s", name)
				}
			}
			if c.status == 200 {
				return
			}
			if got.code() != c.code || got.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s, %v", got.body, got.Header)
			}
			if len(r.model.requests()) != before {
				t.Error("a turn was begun")
			}
			if strings.Contains(got.body, r.key) || strings.Contains(got.body, r.token) {
				t.Error("the answer holds a key")
			}
		})
	}
	if got := r.ask("POST", "/v1/responses", r.key, "{}"); !strings.Contains(got.body, "useResponses: false") {
		t.Errorf("no way out is named: %s", got.body)
	}
	if got := r.ask("POST", "/v1/embeddings", r.key, "{}"); !strings.Contains(got.body, r.base+"/v1") {
		t.Errorf("the base URL is not named: %s", got.body)
	}
	if head, get := r.ask("HEAD", "/v1/models", r.key, ""), r.ask("GET", "/v1/models", r.key, ""); head.StatusCode != 200 || head.body != "" || head.Header.Get("Content-Length") != fmt.Sprint(len(get.body)) {
		t.Errorf("HEAD: %d %q %v", head.StatusCode, head.body, head.Header)
	}
	if head := r.ask("HEAD", "/v1/models", "", ""); head.StatusCode != 401 || head.body != "" {
		t.Errorf("HEAD without a key: %d %q", head.StatusCode, head.body)
	}
	r.reportRefused(context.Background())
	counted := r.records("api")
	if c := counted[len(counted)-1]["refused"].(map[string]any); c["local_only"] != 13.0 || c["invalid_api_key"].(float64) < 10 {
		t.Errorf("recorded as refused: %v", c)
	}
}

// A rawConn speaks to the server byte by byte.
type rawConn struct {
	*bufio.Reader
	net.Conn
	t testing.TB
}

func (c rawConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

func (c rawConn) write(text string) {
	c.t.Helper()
	_, err := io.WriteString(c.Conn, text)
	must(c.t, err)
}

func (r *serverRig) rawConn(text string) rawConn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.at[0])
	must(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	must(r.t, c.(*net.TCPConn).SetReadBuffer(4096))
	must(r.t, c.SetDeadline(time.Now().Add(10*time.Second)))
	out := rawConn{bufio.NewReader(c), c, r.t}
	out.write(text)
	return out
}

func (r *serverRig) raw(text string) *bufio.Reader { return r.rawConn(text).Reader }

// What is wrong with the head of a request is answered while the body has not
// come, and is not asked for.
func TestServerReadsNoBodyForStrangers(t *testing.T) {
	r := newServerRig(t, nil)
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: " + r.at[0] + "\r\nContent-Length: 100\r\n"
	for name, c := range map[string]struct {
		headers string
		status  string
	}{
		"no key":                         {"\r\n", "401"},
		"no key, and asking first":       {"Expect: 100-continue\r\n\r\n", "401"},
		"a web page":                     {"Origin: http://evil.test\r\nAuthorization: Bearer " + r.key + "\r\n\r\n", "403"},
		"a compressed body":              {"Content-Encoding: br\r\nAuthorization: Bearer " + r.key + "\r\n\r\n", "415"},
		"the right key, and it may send": {"Expect: 100-continue\r\nAuthorization: Bearer " + r.key + "\r\n\r\n", "100"},
	} {
		t.Run(name, func(t *testing.T) {
			line, err := r.raw(head + c.headers).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "HTTP/1.1 "+c.status) {
				t.Errorf("%q, %v", line, err)
			}
		})
	}
	// A name of the machine that only stands in the first line is the one that counts.
	line, _ := r.raw("GET http://evil.test/v1/models HTTP/1.1\r\nHost: " + r.at[0] + "\r\nAuthorization: Bearer " + r.key + "\r\n\r\n").ReadString('\n')
	if !strings.HasPrefix(line, "HTTP/1.1 403") {
		t.Errorf("%q", line)
	}
	line, _ = r.raw("OPTIONS * HTTP/1.1\r\nHost: " + r.at[0] + "\r\n\r\n").ReadString('\n')
	if !strings.HasPrefix(line, "HTTP/1.1 404") {
		t.Errorf("%q", line)
	}
	body := `{"messages":[{"role":"user","content":"hi"}]}`
	resp, err := http.ReadResponse(r.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: "+r.at[0]+"\r\nTransfer-Encoding: chunked\r\nAuthorization: Bearer "+r.key+
		fmt.Sprintf("\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("a body in chunks: %v, %v", resp, err)
	}
}

// What net/http refuses before a handler sees it is JSON too, and so is a request
// whose target is a whole URL, as a proxy gets it.
func TestServerRefusesInOneShape(t *testing.T) {
	r := newServerRig(t, nil)
	host, key := "Host: "+r.at[0]+"\r\n", "Authorization: Bearer "+r.key+"\r\n"
	get, post := "GET /v1/models HTTP/1.1\r\n"+host+key, "POST /v1/chat/completions HTTP/1.1\r\n"+host+key
	for name, c := range map[string]struct {
		request string
		status  int
		code    string
	}{
		"no request line":              {"nonsense\r\n\r\n", 400, "invalid_request"},
		"another version":              {"GET /v1/models HTTP/9.9\r\n" + host + "\r\n", 505, "invalid_request"},
		"no Host":                      {"GET /v1/models HTTP/1.1\r\n" + key + "\r\n", 400, "invalid_request"},
		"two Hosts":                    {get + "Host: evil.test\r\n\r\n", 400, "invalid_request"},
		"a user in Host":               {"GET /v1/models HTTP/1.1\r\nHost: u@" + r.at[0] + "\r\n" + key + "\r\n", 400, "invalid_request"},
		"a blank in a name":            {get + "X-Forwarded-For : 1\r\n\r\n", 400, "invalid_request"},
		"a target that does not parse": {"GET /v1/models/%zz HTTP/1.1\r\n" + host + "\r\n", 400, "invalid_request"},
		"two lengths":                  {post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400, "invalid_request"},
		"another transfer encoding":    {post + "Transfer-Encoding: gzip\r\n\r\n{}", 501, "invalid_request"},
		"another expectation":          {post + "Expect: magic\r\nContent-Length: 2\r\n\r\n{}", 417, "invalid_request"},
		"a large head":                 {get + "X: " + strings.Repeat("x", 2*maxHeaderBytes), 431, "invalid_request"},
		"a whole URL":                  {"GET " + r.base + "/v1/models HTTP/1.1\r\n" + host + key + "\r\n", 403, "local_only"},
		"one that hides the Host":      {"GET " + r.base + "/v1/models HTTP/1.1\r\nHost: evil.test\r\n" + key + "\r\n", 403, "local_only"},
		"one of another kind":          {"GET file:///v1/models HTTP/1.1\r\n" + host + key + "\r\n", 403, "local_only"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := http.ReadResponse(r.raw(c.request), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			if got := (httpAnswer{resp, string(b)}); got.StatusCode != c.status || got.code() != c.code {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
			if h := resp.Header; h.Get("X-Should-Retry") != "false" || h.Get("X-Request-Id") == "" || h.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", h)
			}
		})
	}
}

// However many requests other apps hold open, the owner can see and stop them.
func TestServerOwnerIsLetIn(t *testing.T) {
	r := newServerRig(t, nil)
	for range cap(r.slots) {
		r.slots <- struct{}{}
	}
	if got := r.chat("w", "hi"); got.StatusCode != 429 || got.code() != "too_many_requests" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	if got := r.ask("POST", "/api/stop", r.token, ""); got.StatusCode != 200 {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

// A body that is one byte too long is refused however it is sent.
func TestServerChunkedBodyLimit(t *testing.T) {
	r := newServerRig(t, nil)
	req, err := http.NewRequest("POST", r.base+"/v1/chat/completions", io.MultiReader(strings.NewReader(`{"messages":[{"role":"user","content":"`), strings.NewReader(strings.Repeat("x", 1<<20)), strings.NewReader(`"}]}`)))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+r.key)
	if got := r.send(req); got.StatusCode != 413 || got.code() != "request_too_large" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

// The API can be turned off and on, and its key replaced, on a running server;
// what runs is not touched.
func TestServerSwitchesActAtOnce(t *testing.T) {
	gate := make(chan struct{})
	r := newServerRig(t, func(w http.ResponseWriter, _ *http.Request, req stubRequest) {
		if strings.Contains(req.last(), "slow") {
			<-gate
		}
		stubSays(w, "done")
	})
	slow := r.later("a", "slow")
	r.turns(1)
	old := r.key
	key := r.ask("POST", "/api/openai-api/key", r.token, "")
	var made struct{ Key string }
	must(t, json.Unmarshal([]byte(key.body), &made))
	if r.key = made.Key; !apiKey().MatchString(r.key) {
		t.Fatalf("the new key %q is not of the shape that is redacted", r.key)
	}
	if got := r.ask("GET", "/v1/models", old, ""); got.StatusCode != 401 {
		t.Errorf("the old key: %d", got.StatusCode)
	}
	if got := r.chat("b", "hi"); got.StatusCode != 200 {
		t.Errorf("the new key: %d %s", got.StatusCode, got.body)
	}
	if got := r.ask("PATCH", "/api/config", r.token, `{"openai_api":{"enabled":false}}`); got.StatusCode != 200 || !strings.Contains(got.body, `"enabled":false`) {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	for _, k := range []string{r.key, "", "wrong"} {
		if got := r.chat("b", "hi"); got.code() != "api_off" || got.StatusCode != 404 {
			t.Errorf("off, with key %q: %d %s", k, got.StatusCode, got.body)
		}
	}
	close(gate)
	if got := <-slow; got.StatusCode != 200 || got.content() != "done" {
		t.Errorf("the running turn: %d %s", got.StatusCode, got.body)
	}
	must(t, r.app.switchTo(context.Background(), "openai_api.enabled", "true"))
	if got := r.chat("b", "hi"); got.StatusCode != 200 {
		t.Errorf("on again: %d %s", got.StatusCode, got.body)
	}
	must(t, os.WriteFile(filepath.Join(r.dir, "data", "switches.json"), []byte("{"), 0o600))
	if got := r.chat("b", "hi"); got.code() != "api_off" {
		t.Errorf("switches that cannot be read: %s", got.body)
	}
	stored, err := os.ReadFile(filepath.Join(r.dir, "data", "api.key"))
	if err != nil || strings.Contains(string(stored), r.key) {
		t.Errorf("the key is kept: %q, %v", stored, err)
	}
	var ops []string
	for _, rec := range r.records("api") {
		ops = append(ops, rec["op"].(string))
	}
	changes := r.records("config")
	if !slices.Equal(ops, []string{"key", "on", "key", "off", "on"}) || changes[1]["key"] != "openai_api.enabled" || changes[1]["old"] != "true" || changes[1]["new"] != "false" {
		t.Errorf("records %v, %v", ops, changes)
	}
}

// Two first requests for a chat make one chat and one turn; the other is told,
// and other chats go on. There are never more chats than the limit.
func TestServerChatsAreMadeAndTakenInOneStep(t *testing.T) {
	var running atomic.Int32
	gate := make(chan struct{})
	r := newServerRig(t, func(w http.ResponseWriter, _ *http.Request, req stubRequest) {
		running.Add(1)
		<-gate
		stubSays(w, "done")
	})
	r.app.handler.maxChats = 3
	list := make(chan httpAnswer, 40)
	for i := range 40 {
		go func() { list <- r.chat(fmt.Sprintf("Chat %d", i%8), "hi") }()
	}
	codes := map[string]int{}
	for range 37 {
		got := <-list
		codes[fmt.Sprint(got.StatusCode, " ", got.code())]++
		if strings.Contains(got.body, "second") || got.Header.Get("Retry-After") != "" {
			t.Errorf("it invites to come again: %s", got.body)
		}
	}
	close(gate)
	for range 3 {
		if got := <-list; got.StatusCode != 200 {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	}
	if codes["429 too_many_chats"] != 25 || codes["409 chat_busy"] != 12 || running.Load() != 3 {
		t.Errorf("%v, %d turns", codes, running.Load())
	}
	if n, err := r.app.chats.countApp(); n != 3 || err != nil {
		t.Errorf("%d chats, %v", n, err)
	}
	busy := r.later("chat 0", "hi")
	if got := <-busy; got.StatusCode != 200 && got.StatusCode != 429 {
		t.Errorf("a name in other letters: %d %s", got.StatusCode, got.body)
	}
}

// As soon as an answer is there, its chat can be used again.
func TestServerAnswerFreesItsChat(t *testing.T) {
	r := newServerRig(t, nil)
	for i := range 20 {
		if got := r.chat("w", fmt.Sprint("message ", i)); got.StatusCode != 200 || !strings.HasSuffix(got.content(), fmt.Sprint("message ", i)) {
			t.Fatalf("%d: %d %s", i, got.StatusCode, got.body)
		}
	}
}

// A client that hangs up does not stop its turn, plain or streamed; its answer
// is in the chat, which is busy until then.
func TestServerTurnOutlivesItsClient(t *testing.T) {
	for name, stream := range map[string]bool{"plain": false, "streamed": true} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			r := newServerRig(t, func(w http.ResponseWriter, _ *http.Request, req stubRequest) {
				<-gate
				stubSays(w, "the answer")
			})
			ctx, hangUp := context.WithCancel(context.Background())
			req, err := http.NewRequestWithContext(ctx, "POST", r.base+"/v1/chat/completions",
				strings.NewReader(fmt.Sprintf(`{"user":"w","stream":%v,"messages":[{"role":"user","content":"hi"}]}`, stream)))
			must(t, err)
			req.Header.Set("Authorization", "Bearer "+r.key)
			done := make(chan httpAnswer)
			go func() { done <- r.send(req) }()
			r.turns(1)
			hangUp()
			<-done
			r.eventually("the request is let go", func() bool { return len(r.slots) == 0 })
			if got := r.chat("w", "again"); got.code() != "chat_busy" {
				t.Errorf("the chat is not busy: %s", got.body)
			}
			close(gate)
			r.turns(0)
			lines, err := r.app.chats.read("api:w")
			must(t, err)
			if last := lines[len(lines)-1]; last.End != endDone || last.Content != "the answer" {
				t.Errorf("the chat ends with %+v", last)
			}
		})
	}
}

// A turn that takes long: pings in a stream from the start on, and blanks in a
// plain answer after a while, which is then a 200 whatever comes.
func TestServerKeepsConnectionsAlive(t *testing.T) {
	gate := make(chan struct{})
	r := newServerRig(t, func(w http.ResponseWriter, _ *http.Request, req stubRequest) {
		<-gate
		if strings.Contains(req.last(), "fail") {
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"out of order at 10.0.0.9\"}}\n\n")
			return
		}
		stubSays(w, "done")
	})
	ask := func(user, text string, stream bool) chan httpAnswer {
		c := make(chan httpAnswer, 1)
		go func() {
			c <- r.ask("POST", "/v1/chat/completions", r.key, asJSON(jsonObject{"user": user, "stream": stream, "messages": []any{jsonObject{"role": "user", "content": text}}}))
		}()
		return c
	}
	plain, stream, failing, stopped := ask("a", "hi", false), ask("b", "hi", true), ask("c", "fail", false), ask("d", "stop me", false)
	r.turns(4)
	time.Sleep(2*quick.hold + 3*quick.ping)
	for _, l := range r.app.handler.turns.list() {
		if l.Chat == "api:d" {
			l.stop(errStopped)
		}
	}
	if got := <-stopped; got.StatusCode != 200 || got.content() != "Stopped." {
		t.Errorf("stopped late: %d %q", got.StatusCode, got.body)
	}
	close(gate)
	got := <-plain
	if got.StatusCode != 200 || got.content() != "done" || !strings.HasPrefix(got.body, "   ") {
		t.Errorf("plain: %d %q", got.StatusCode, got.body)
	}
	got = <-failing
	if got.StatusCode != 200 || !strings.Contains(got.content(), "The turn failed.") || strings.Contains(got.body, "10.0.0.9") {
		t.Errorf("failed late: %d %q", got.StatusCode, got.body)
	}
	got = <-stream
	if n := strings.Count(got.body, ": ping\n"); n < 3 || strings.Contains(got.body, ": ping\n\n") || !strings.Contains(got.body, `"done"`) {
		t.Errorf("streamed: %q", got.body)
	}
	if !strings.Contains(got.body, "data: {") || strings.Index(got.body, "role") > strings.Index(got.body, ": ping") {
		t.Errorf("the role does not come first: %q", got.body)
	}
}

// A reader that does not read is dropped; its turn goes on.
func TestServerDropsSlowReaders(t *testing.T) {
	gate := make(chan struct{})
	words := strings.Repeat("many words ", 5000)
	r := newServerRig(t, func(w http.ResponseWriter, _ *http.Request, req stubRequest) {
		texts := slices.Repeat([]string{words}, 130)
		for _, s := range texts[:129] {
			stubText(w, s)
		}
		<-gate
		stubSays(w, words)
	})
	body := `{"user":"w","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	r.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", r.at[0], r.key, len(body), body))
	r.turns(1)
	r.eventually("the reader is dropped", func() bool { return len(r.slots) == 0 })
	r.turns(1)
	close(gate)
	r.turns(0)
	lines, err := r.app.chats.read("api:w")
	must(t, err)
	if last := lines[len(lines)-1]; last.End != endDone || len(last.Content) != 130*len(words) {
		t.Errorf("the turn ended with %q and %d bytes", last.End, len(last.Content))
	}
}
