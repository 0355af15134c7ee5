package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"picket/tools"
)

// A Model answers chats. Its methods may be called from several goroutines.
type Model interface {
	// Name is what the log calls the model.
	Name() string
	// Chat sends one request and streams the reply. onDelta is called as text comes, from one goroutine; it may
	// be nil. An error means that no call of the reply may run; the Reply then holds what had come.
	Chat(ctx context.Context, req ModelRequest, onDelta func(Delta)) (Reply, error)
}

// ModelRequest is one request to a model.
type ModelRequest struct {
	Messages    []Message
	Tools       []tools.Tool // nil: none are offered, and a call in the reply is invalid
	MaxTokens   int          // 0: the server's own
	Temperature *float64
	TopP        *float64
	Seed        *int64
	Stop        []string
}

// Delta is a piece of a reply, one of these.
type Delta struct {
	Text      string
	Reasoning string // kept apart from the answer
	Wait      string // what failed and how long the wait before the next attempt is
}

// Reply is a whole reply. Calls that cannot be run have Invalid set.
type Reply struct {
	Text      string
	Reasoning string
	Calls     []ToolCall
	Finish    string // stop, length, tool_calls
	RawFinish string // the server's own word where it differs
	Usage     Usage
	Warning   string // one line for the owner, shown once
}

// modelSettings say which model to use and how.
type modelSettings struct {
	BaseURL       string // of the API, usually ending in /v1
	Name          string
	APIKey        string            // sent to the origin of BaseURL only
	Headers       map[string]string // likewise
	ContextTokens int
	MaxTokens     int // of a reply; 0: the server's own
	Temperature   *float64
	Timeout       time.Duration // between bytes; 0: 3 minutes
	FirstTimeout  time.Duration // before the first byte; 0: 10 minutes
	Retries       int           // attempts after the first
	Redact        func(string) string

	transport http.RoundTripper // of the built-in models
}

// chatModel is the client of a chat-completions server.
type chatModel struct {
	s       modelSettings
	url     *url.URL
	client  *http.Client
	id      string // origin and name: where a call's own data may go back
	sleep   func(context.Context, time.Duration) error
	now     func() time.Time
	mu      sync.Mutex
	learned quirks
	warned  bool
}

// newModel returns a client for the server at s.BaseURL.
func newModel(s modelSettings) (*chatModel, error) {
	u, err := parseBaseURL(s.BaseURL)
	if err != nil {
		return nil, err
	}
	if s.Name == "" {
		return nil, errors.New("no model is named: use --model, PICKET_MODEL or model.name")
	}
	s.APIKey = strings.TrimSpace(s.APIKey)
	s.Timeout = cmp.Or(s.Timeout, 3*time.Minute)
	s.FirstTimeout = cmp.Or(s.FirstTimeout, 10*time.Minute)
	if s.transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.DisableCompression, own.MaxIdleConnsPerHost, s.transport = true, 64, own
	}
	m := &chatModel{s: s, url: u, sleep: pause, now: time.Now, learned: quirks{}}
	m.client = &http.Client{Transport: s.transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a key stays with its origin
	}}
	m.id = m.origin() + " " + s.Name
	return m, nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// parseBaseURL reads the address of an API. It may hold a query, as Azure's do.
func parseBaseURL(s string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("the base URL %q is not an http or https address", boundedLine(hideQuery(s), 200))
	}
	if u.User != nil {
		return nil, errors.New("the base URL holds a user or password: use model.api_key or model.headers")
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/chat/completions")
	u.RawPath, u.Fragment = "", ""
	return u, nil
}

func (m *chatModel) Name() string { return m.s.Name }

func (m *chatModel) origin() string { return m.url.Scheme + "://" + m.url.Host }

// Chat implements Model. What a server refuses in a known way is put differently from then on; what may pass is
// tried again as long as no byte of the reply has come.
func (m *chatModel) Chat(ctx context.Context, req ModelRequest, onDelta func(Delta)) (Reply, error) {
	names := newToolNames(req.Tools)
	attempt, noted := 0, false
	var loading time.Duration
	for {
		m.mu.Lock()
		known := maps.Clone(m.learned)
		m.mu.Unlock()
		body, err := m.body(req, known, names, noted)
		if err != nil {
			return Reply{}, err
		}
		reply, f := m.once(ctx, req, body, names, onDelta)
		switch {
		case f == nil:
			reply.Warning = m.warnIfCut(req, reply.Usage)
			return reply, nil
		case ctx.Err() != nil:
			return reply, fmt.Errorf("stopped: %w", context.Cause(ctx))
		case m.learn(f, known, body):
			continue
		case f.server != nil && f.server.Code == "tool_use_failed" && !f.final && !noted:
			noted = true // the model wrote a call that the server could not read
			continue
		}
		v := m.judge(ctx, f)
		wait, again := m.backoff(f, attempt)
		if again = again && v.again; again && f.loading() && loading < m.s.FirstTimeout {
			loading += wait // waiting for a model to be loaded is no failed attempt
		} else if attempt++; !again || attempt > m.s.Retries {
			return reply, errors.New(v.sentence())
		}
		if onDelta != nil {
			onDelta(Delta{Wait: fmt.Sprintf("%s (%s); trying again in %s", v.what, v.said, wait.Round(100*time.Millisecond))})
		}
		if m.sleep(ctx, wait) != nil {
			return reply, fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
	}
}

// A modelFailure says why one attempt brought no reply.
type modelFailure struct {
	status int // of HTTP; 0: none came
	header http.Header
	server *serverError // what the server said; nil if it said nothing
	err    error        // otherwise
	final  bool         // a byte of a reply had come, or trying again cannot help
}

var errStalled = errors.New("nothing came")

// repliesKey holds, in a request's context, how many replies the chat has.
type repliesKey struct{}

// once makes one attempt.
func (m *chatModel) once(ctx context.Context, req ModelRequest, body []byte, names toolNames, onDelta func(Delta)) (Reply, *modelFailure) {
	replies := 0
	for _, msg := range req.Messages {
		if msg.Role == "assistant" {
			replies++
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, repliesKey{}, replies))
	defer cancel(nil)
	silence := m.s.FirstTimeout
	timer := time.AfterFunc(silence, func() { cancel(errStalled) })
	defer timer.Stop()
	hr, err := http.NewRequestWithContext(ctx, "POST", m.url.JoinPath("chat/completions").String(), bytes.NewReader(body))
	if err != nil {
		return Reply{}, &modelFailure{err: err, final: true}
	}
	hr.Header = m.header()
	hr.Header.Set("Content-Type", "application/json")
	hr.Header.Set("Accept", "text/event-stream")
	f := &modelFailure{}
	r := newReplyReader(names, onDelta)
	r.waits = func() {
		if silence = m.s.Timeout; r.finish != "" {
			silence = min(silence, 10*time.Second) // little follows the finish reason
		}
		timer.Reset(silence)
	}
	resp, err := m.client.Do(hr)
	if err == nil {
		defer resp.Body.Close()
		f.status, f.header = resp.StatusCode, resp.Header
		var in io.Reader
		if in, err = decoded(resp); err != nil {
			f.final = true
		} else if f.status/100 == 2 {
			err = r.read(in)
		} else {
			text, _ := io.ReadAll(io.LimitReader(in, 64<<10))
			err = parseServerError(text)
		}
	}
	reply, err := r.reply(err)
	if err == nil {
		timer.Reset(50 * time.Millisecond) // for the end of the body, so that the connection can serve again
		io.CopyN(io.Discard, resp.Body, 64<<10)
		for i := range reply.Calls {
			reply.Calls[i].from = m.id
		}
		return reply, nil
	}
	f.err, f.final = err, f.final || r.got > 0
	var own replyError
	switch {
	case errors.As(err, &f.server) || errors.As(err, &own):
	case errors.Is(context.Cause(ctx), errStalled):
		f.err, f.final = replyError(fmt.Sprintf("%s sent nothing for %s: is it overloaded?", m.origin(), silence)), true
	case f.status != 0:
		f.err = replyError(fmt.Sprintf("%s (%s)", errCutOff, rootCause(err)))
	}
	return reply, f
}

// header returns the headers of every request to the server.
func (m *chatModel) header() http.Header {
	h := http.Header{"User-Agent": {"picket"}, "Accept-Encoding": {"identity"}}
	// A key without a value makes the transport try again by itself when a kept connection turns out to be closed
	// before any byte of the response.
	h["Idempotency-Key"] = nil
	if m.s.APIKey != "" {
		h.Set("Authorization", "Bearer "+m.s.APIKey)
	}
	for k, v := range m.s.Headers {
		h.Set(k, v)
	}
	return h
}

// decoded undoes a content encoding that was not asked for.
func decoded(resp *http.Response) (io.Reader, error) {
	switch enc := strings.ToLower(resp.Header.Get("Content-Encoding")); enc {
	case "", "identity":
		return resp.Body, nil
	case "gzip":
		return gzip.NewReader(resp.Body)
	default:
		return nil, replyError(fmt.Sprintf("the server compressed its answer with %q, which was not asked for and cannot be read", boundedLine(enc, 40)))
	}
}

// warnIfCut notices a server that dropped the start of the request without a word, as Ollama does with a small
// num_ctx.
func (m *chatModel) warnIfCut(req ModelRequest, u Usage) string {
	n := messageBytes(req.Messages) * 2 / 7
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.In < 512 || n < 2*u.In || m.warned {
		return ""
	}
	m.warned = true
	return fmt.Sprintf("%s read only %d tokens of a request of about %d: it dropped the start. Give the model a larger context (Ollama: num_ctx) or lower model.context_tokens", m.origin(), u.In, n)
}
