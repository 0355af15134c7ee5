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
	"math/rand/v2"
	"net"
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
	// Chat sends one request and streams the reply. onDelta is called as text
	// comes, from one goroutine; it may be nil. An error means that no call of
	// the reply may run; the Reply then holds what had come.
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

// Delta is a piece of a reply: answer text, or reasoning that is kept apart.
// Wait is set instead while a retry is pending.
type Delta struct {
	Text      string
	Reasoning string
	Wait      string // one line for the owner: what failed and how long the wait is
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
func newModel(s modelSettings) (Model, error) { return newChatModel(s) }

func newChatModel(s modelSettings) (*chatModel, error) {
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
	m := &chatModel{s: s, url: u, now: time.Now, id: u.Scheme + "://" + u.Host + " " + s.Name, learned: quirks{}, client: newModelClient(s.transport)}
	m.sleep = func(ctx context.Context, d time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
	return m, nil
}

// newModelClient returns a client that follows no redirect, so that a key stays
// with the origin that it was set for.
func newModelClient(t http.RoundTripper) *http.Client {
	if t == nil {
		t = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout: 30 * time.Second,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
			ForceAttemptHTTP2:   true,
		}
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
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

// Chat implements Model. What a server refuses in a known way is left out or
// put differently from then on; what may pass is tried again as long as no byte
// of the reply has come.
func (m *chatModel) Chat(ctx context.Context, req ModelRequest, onDelta func(Delta)) (Reply, error) {
	names := newToolNames(req.Tools)
	attempt, noted := 0, false
	var waited time.Duration
	for {
		m.mu.Lock()
		known := maps.Clone(m.learned)
		m.mu.Unlock()
		body, err := m.body(req, known, names, noted)
		if err != nil {
			return Reply{}, err
		}
		reply, fail := m.once(ctx, req, body, names, onDelta)
		if fail == nil {
			reply.Warning = m.warnIfCut(req, reply.Usage)
			return reply, nil
		}
		if ctx.Err() != nil {
			return reply, fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		if !fail.started && fail.server != nil {
			key, on := m.lesson(fail, body)
			if was, tried := known[key]; key != "" && (!tried || was && !on) {
				m.mu.Lock()
				m.learned[key] = on
				m.mu.Unlock()
				continue
			}
			if fail.server.Code == "tool_use_failed" && !noted {
				noted = true
				continue
			}
		}
		wait, again := m.backoff(fail, attempt)
		loading := again && fail.loading() && waited < m.s.FirstTimeout
		if !again || attempt >= m.s.Retries && !loading {
			var have []string
			if fail.unknownModel() {
				have = m.names(ctx)
			}
			why := m.explain(fail, req, have)
			if again && fail.status == 0 {
				why += "; is the server running, and is the base URL right?"
			} else if again {
				why += "; try again later or choose another model"
			}
			return reply, errors.New(why)
		}
		if !loading {
			attempt++
		}
		if onDelta != nil {
			onDelta(Delta{Wait: fmt.Sprintf("%s; trying again in %s", m.explain(fail, req, nil), wait.Round(100*time.Millisecond))})
		}
		waited += wait
		if m.sleep(ctx, wait) != nil {
			return reply, fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
	}
}

// A modelFailure says why one attempt brought no reply.
type modelFailure struct {
	status  int
	header  http.Header
	server  *serverError // what the server said; nil if it said nothing
	err     error        // otherwise
	started bool         // a byte of a reply had come
	fatal   bool         // trying again cannot help
}

// loading reports whether the server said that it is still starting.
func (f *modelFailure) loading() bool {
	return f.status == http.StatusServiceUnavailable && f.server != nil && strings.Contains(strings.ToLower(f.server.Message), "loading")
}

var errStalled = errors.New("nothing came")

// once makes one attempt.
func (m *chatModel) once(ctx context.Context, req ModelRequest, body []byte, names toolNames, onDelta func(Delta)) (Reply, *modelFailure) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, repliesKey{}, countReplies(req.Messages)))
	timer := time.AfterFunc(m.s.FirstTimeout, func() { cancel(errStalled) })
	stop := func() {
		timer.Stop()
		cancel(nil)
	}
	hr, err := http.NewRequestWithContext(ctx, "POST", m.url.JoinPath("chat/completions").String(), bytes.NewReader(body))
	if err != nil {
		stop()
		return Reply{}, &modelFailure{err: err, fatal: true}
	}
	hr.Header = m.header()
	hr.Header.Set("Content-Type", "application/json")
	hr.Header.Set("Accept", "text/event-stream")
	resp, err := m.client.Do(hr)
	if err != nil {
		defer stop()
		if errors.Is(context.Cause(ctx), errStalled) {
			return Reply{}, m.stalled(m.s.FirstTimeout)
		}
		return Reply{}, &modelFailure{err: fmt.Errorf("cannot reach %s: %s", m.origin(), rootCause(err)), fatal: isTLSError(err)}
	}
	tb := &timedBody{ReadCloser: resp.Body, timer: timer, d: m.s.Timeout}
	f := &modelFailure{status: resp.StatusCode, header: resp.Header}
	in, err := decoded(resp.Header, tb)
	if err != nil {
		stop()
		resp.Body.Close()
		f.err, f.fatal = err, true
		return Reply{}, f
	}
	if resp.StatusCode/100 != 2 {
		defer stop()
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(in, 64<<10))
		f.server = parseServerError(text)
		return Reply{}, f
	}
	r := newReplyReader(names, onDelta)
	tb.finished = func() bool { return r.finish != "" }
	err = r.read(in)
	if r.done && err == nil {
		go drain(tb, stop) // the connection can then serve the next request
	} else {
		defer stop()
		defer resp.Body.Close()
	}
	reply, err := r.reply(err)
	for i := range reply.Calls {
		reply.Calls[i].from = m.id
	}
	f.started, f.fatal, f.err = tb.n > 0, true, err
	var own replyError
	switch {
	case err == nil:
		return reply, nil
	case errors.As(err, &f.server), errors.As(err, &own):
	case errors.Is(context.Cause(ctx), errStalled) && tb.n > 0:
		f.err = m.stalled(m.s.Timeout).err
	case errors.Is(context.Cause(ctx), errStalled):
		f.err = m.stalled(m.s.FirstTimeout).err
	default:
		f.err = fmt.Errorf("%w (%s)", errCutOff, rootCause(err))
		f.fatal = f.started
	}
	return reply, f
}

func (m *chatModel) stalled(d time.Duration) *modelFailure {
	return &modelFailure{err: fmt.Errorf("%s sent nothing for %s: is it overloaded?", m.origin(), d), fatal: true}
}

// header returns the headers of every request to the server.
func (m *chatModel) header() http.Header {
	h := http.Header{"User-Agent": {"picket"}, "Accept-Encoding": {"identity"}}
	// A key without a value makes the transport try again by itself when a kept
	// connection turns out to be closed before any byte of the response.
	h["Idempotency-Key"] = nil
	if m.s.APIKey != "" {
		h.Set("Authorization", "Bearer "+m.s.APIKey)
	}
	for k, v := range m.s.Headers {
		h.Set(k, v)
	}
	return h
}

// A timedBody ends its request when nothing comes for d. What follows a finish
// reason is not waited for that long.
type timedBody struct {
	io.ReadCloser
	timer    *time.Timer
	d        time.Duration
	n        int64
	finished func() bool
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.finished != nil && b.finished() {
		b.timer.Reset(min(b.d, 10*time.Second))
	}
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.n += int64(n)
		b.timer.Reset(b.d)
	}
	return n, err
}

// drain reads the little that can follow the end of a stream, for a short time.
func drain(b *timedBody, stop func()) {
	defer stop()
	b.timer.Reset(250 * time.Millisecond)
	io.CopyN(io.Discard, b.ReadCloser, 64<<10)
	b.Close()
}

// decoded undoes a content encoding that was not asked for.
func decoded(h http.Header, body io.Reader) (io.Reader, error) {
	switch enc := strings.ToLower(h.Get("Content-Encoding")); enc {
	case "", "identity":
		return body, nil
	case "gzip":
		return gzip.NewReader(body)
	default:
		return nil, fmt.Errorf("the server compressed its answer with %q, which was not asked for and cannot be read", boundedLine(enc, 40))
	}
}

const maxServerWait = 2 * time.Minute

// backoff says whether to try again and after which wait: the server's own, or
// one that doubles from 1 s to 60 s, with jitter.
func (m *chatModel) backoff(f *modelFailure, attempt int) (time.Duration, bool) {
	if f.started || f.fatal {
		return 0, false
	}
	asked, given := serverWait(f, m.now())
	switch s := f.status; {
	case f.header.Get("X-Should-Retry") == "false", s == http.StatusNotImplemented,
		s == http.StatusTooManyRequests && f.server.quota() && !given,
		f.server != nil && (noTools.MatchString(f.server.Message) || tooLong.MatchString(f.server.Message)):
		return 0, false
	case s == 0 || s == http.StatusOK || s >= 500: // no connection, or it broke before the first byte
	case s != http.StatusRequestTimeout && s != http.StatusConflict && s != http.StatusTooManyRequests:
		return 0, false
	}
	if given {
		return asked, asked <= maxServerWait
	}
	d := min(time.Second<<min(attempt, 6), time.Minute)
	return min(d+rand.N(d/2), time.Minute), true
}

// warnIfCut notices a server that dropped the start of the request without a
// word, as Ollama does with a small num_ctx.
func (m *chatModel) warnIfCut(req ModelRequest, u Usage) string {
	n := 0
	for _, msg := range req.Messages {
		n += len(msg.Content)
		for _, c := range msg.ToolCalls {
			n += len(c.Function.Arguments)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n = n * 2 / 7; u.In < 512 || n < 2*u.In || m.warned {
		return ""
	}
	m.warned = true
	return fmt.Sprintf("%s read only %d tokens of a request of about %d: it dropped the start. Give the model a larger context (Ollama: num_ctx) or lower model.context_tokens", m.origin(), u.In, n)
}

// repliesKey holds, in a request's context, how many replies the chat has.
type repliesKey struct{}

func countReplies(list []Message) int {
	n := 0
	for _, m := range list {
		if m.Role == "assistant" {
			n++
		}
	}
	return n
}

// modelNames asks a server for the names of its models, in its order. An error
// means that it did not answer with a list.
func modelNames(ctx context.Context, client *http.Client, u *url.URL, h http.Header) ([]string, error) {
	hr, err := http.NewRequestWithContext(ctx, "GET", u.JoinPath("models").String(), nil)
	if err != nil {
		return nil, err
	}
	hr.Header = h
	resp, err := client.Do(hr)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, parseServerError(body)
	}
	return readModelNames(body)
}

func (m *chatModel) names(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, _ := modelNames(ctx, m.client, m.url, m.header())
	return list
}
