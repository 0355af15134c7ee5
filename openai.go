package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Message is one message of a chat-completions request, as picket sends it.
// What arrives from others is read by its own types, since it comes in more
// shapes.
type Message struct {
	Role       string     `json:"role"` // system, user, assistant, tool
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	// Reasoning goes back only to the provider that sent it, and only where
	// that provider asks for it.
	Reasoning string `json:"reasoning_content,omitempty"`
}

// ToolCall is one call that a model asked for. Arguments is the exact text that
// the model sent.
type ToolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"` // always "function"
	Function ToolFunction `json:"function"`
	// Extra is a provider's own data about the call (Gemini's thought
	// signature), sent back verbatim to that provider.
	Extra json.RawMessage `json:"extra_content,omitempty"`
	// from is the model that made the call: what is its provider's own (Extra,
	// reasoning) goes back to no other. It is empty in calls read from a file.
	from string
	// Invalid says why the call cannot be run; the model is told.
	Invalid string `json:"-"`
}

// ToolFunction names the tool of a ToolCall.
type ToolFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Usage counts tokens; 0 where a server did not say.
type Usage struct {
	In    int `json:"prompt_tokens"`
	Out   int `json:"completion_tokens"`
	Total int `json:"total_tokens"`
}

// Who a turn is for. Grants of the one do not hold for the other.
const (
	whoOwner = "owner"
	whoApp   = "app"
)

// The channels of a turn.
const (
	channelCLI    = "cli"
	channelAPI    = "api"
	channelDaemon = "daemon"
)

// A caller is who sent a request. It is set by the side that received it, in
// the request's context, never by anything in the request. A request without
// one is another app's.
type caller struct {
	Channel string
	Who     string
	Run     string // id of this process in the log

	Chat  string  // the owner's chat; an app's is named by "user"
	Piped string  // piped data that goes with the message
	Steps int     // limit of model calls, 0 for the settings'
	Allow []Grant // what the owner granted the turn beforehand

	// Ask puts a question to the owner at this caller's own place; nil if there
	// is none. Wait says whether a question may wait for an answer from
	// elsewhere; without either a call that asks is declined at once.
	Ask     func(ctx context.Context, card Card) (Answer, error)
	AskText func(ctx context.Context, question string) (string, error)
	Wait    bool

	// Event gets everything that happens, in order with the text. Done gets
	// the end.
	Event func(Event)
	Done  func(TurnResult, error)
}

// source names whose words a message of this caller's is.
func (c *caller) source() string {
	switch {
	case c.Who != whoOwner:
		return "app"
	case c.Channel == channelDaemon:
		return "goal"
	}
	return "owner"
}

type callerKey struct{}

// withCaller sets who sent a request.
func withCaller(ctx context.Context, c *caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{Channel: channelAPI, Who: whoApp}
}

const modelID = "picket" // the one model that picket publishes

// A chatHandler answers chat-completions requests by running turns. It serves
// the command line in process; guards and the body limit are the server's.
type chatHandler struct {
	agent     *Agent
	chats     *chatStore
	workspace string
	debug     func(format string, args ...any)
}

// apiError is an error in OpenAI's shape.
type apiError struct {
	status               int
	code, message, param string
}

func (e *apiError) Error() string { return e.message }

func badRequest(code, param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...), param}
}

// writeError answers with an error. Clients are told not to send it again.
func writeError(w http.ResponseWriter, e *apiError) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Should-Retry", "false")
	w.WriteHeader(e.status)
	fmt.Fprintf(w, "{\"error\":%s}\n", errorObject(e))
}

func errorObject(e *apiError) []byte {
	kind := "invalid_request_error"
	if e.status >= 500 {
		kind = "server_error"
	}
	var param *string
	if e.param != "" {
		param = &e.param
	}
	b, _ := json.Marshal(struct { // strings only: it cannot fail
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}{e.message, kind, param, e.code})
	return b
}

// ServeHTTP runs one turn for a chat-completions request.
func (h *chatHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := callerOf(r.Context())
	body, err := io.ReadAll(r.Body)
	if err != nil {
		writeError(w, badRequest("invalid_request", "", "the request could not be read"))
		return
	}
	req, bad := parseCompletion(body)
	if bad != nil {
		writeError(w, bad)
		return
	}
	name := c.Chat
	if c.Who != whoOwner {
		name = apiNamespace + ":" + req.user
	}
	chat, err := h.chats.open(r.Context(), name, h.workspace, c.Who == whoOwner)
	switch {
	case errors.Is(err, errChatBusy):
		writeError(w, &apiError{http.StatusConflict, "chat_busy", "this chat has a running turn; set \"user\" to use another chat", ""})
		return
	case err != nil:
		if c.Done != nil {
			c.Done(TurnResult{}, err)
		} else {
			h.debug("chat %q: %v", name, err)
		}
		writeError(w, badRequest("turn_failed", "", "the chat could not be opened"))
		return
	}
	h.turn(w, r, c, chat, req)
}

// turn runs the turn in a task of its own and writes what comes of it.
func (h *chatHandler) turn(w http.ResponseWriter, r *http.Request, c *caller, chat *chat, req completion) {
	q := newEventQueue()
	mine := *c
	if ask := c.Ask; ask != nil { // what was said before the question is shown before it
		mine.Ask = func(ctx context.Context, card Card) (Answer, error) { q.drained(ctx); return ask(ctx, card) }
	}
	if ask := c.AskText; ask != nil {
		mine.AskText = func(ctx context.Context, s string) (string, error) { q.drained(ctx); return ask(ctx, s) }
	}
	ctx := r.Context()
	if c.Who != whoOwner { // a client that hangs up does not stop its turn
		ctx = context.WithoutCancel(ctx)
	}
	t := &Turn{ID: newID("t"), Chat: chat, Caller: &mine, Text: req.text, Piped: c.Piped,
		Request: req.params, Steps: c.Steps, Emit: q.push}
	go func() {
		res, err := h.agent.Do(ctx, t)
		if closeErr := chat.close(); err == nil {
			err = closeErr
		}
		q.finish(res, err)
	}()
	out := newReplyWriter(w, req)
	ping := time.NewTicker(15 * time.Second)
	defer ping.Stop()
	for {
		select {
		case <-q.ready:
		case <-ping.C:
			out.ping()
			continue
		}
		events, done := q.take()
		for _, e := range events {
			if e.Type == "text" && !e.thinking && !e.wait {
				out.text(e.Text)
			}
			if c.Event != nil {
				c.Event(e)
			}
		}
		q.taken()
		if done {
			break
		}
	}
	if q.err != nil && c.Done == nil {
		h.debug("turn %s: %v", t.ID, q.err)
	}
	out.end(q.result, q.err)
	if c.Done != nil {
		c.Done(q.result, q.err)
	}
}

// An eventQueue carries events from a turn to its writer. The turn never waits
// for a slow reader, but for the terminal to be up to date before a question.
type eventQueue struct {
	ready chan struct{} // has an element when there is something to take

	mu     sync.Mutex
	list   []Event
	open   int // taken but not yet written
	idle   chan struct{}
	done   bool
	result TurnResult
	err    error
}

func newEventQueue() *eventQueue { return &eventQueue{ready: make(chan struct{}, 1)} }

func (q *eventQueue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *eventQueue) push(e Event) {
	q.mu.Lock()
	q.list = append(q.list, e)
	q.mu.Unlock()
	q.signal()
}

func (q *eventQueue) finish(res TurnResult, err error) {
	q.mu.Lock()
	q.done, q.result, q.err = true, res, err
	q.mu.Unlock()
	q.signal()
}

func (q *eventQueue) take() (list []Event, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, q.list, q.open = q.list, nil, len(q.list)
	return list, q.done
}

// taken says that what was taken has been written.
func (q *eventQueue) taken() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = 0
	if q.idle != nil && len(q.list) == 0 {
		close(q.idle)
		q.idle = nil
	}
}

// drained waits until everything pushed so far has been written.
func (q *eventQueue) drained(ctx context.Context) {
	q.mu.Lock()
	if len(q.list) == 0 && q.open == 0 {
		q.mu.Unlock()
		return
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// completion is a request that was understood.
type completion struct {
	text   string // the last message of the user
	user   string // the name of an app's chat
	stream bool
	usage  bool // a usage chunk is wanted
	params ModelRequest
}

// incoming is a chat-completions request as clients send it. What is not listed
// is ignored.
type incoming struct {
	Model         *string           `json:"model"`
	Messages      []incomingMessage `json:"messages"`
	Stream        bool              `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	User                json.RawMessage `json:"user"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	Seed                *int64          `json:"seed"`
	Stop                json.RawMessage `json:"stop"`
	N                   *int            `json:"n"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ResponseFormat      *struct {
		Type string `json:"type"`
	} `json:"response_format"`
	Modalities []string        `json:"modalities"`
	Audio      json.RawMessage `json:"audio"`
}

type incomingMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// parseCompletion reads a request: only its last user message is taken, as
// words of whoever sent it.
func parseCompletion(body []byte) (completion, *apiError) {
	var in incoming
	if !utf8.Valid(body) {
		return completion{}, badRequest("invalid_request", "", "the request is not valid UTF-8")
	}
	if err := json.Unmarshal(body, &in); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return completion{}, badRequest("invalid_request", wrong.Field, "%q has the wrong type", wrong.Field)
		}
		return completion{}, badRequest("invalid_request", "", "the request is not valid JSON")
	}
	if in.Model != nil && *in.Model != "" && *in.Model != modelID {
		return completion{}, &apiError{http.StatusNotFound, "model_not_found",
			fmt.Sprintf("there is no model %q here; use %q", *in.Model, modelID), "model"}
	}
	if bad := in.unsupported(); bad != nil {
		return completion{}, bad
	}
	out := completion{stream: in.Stream, usage: in.StreamOptions != nil && in.StreamOptions.IncludeUsage}
	out.params = ModelRequest{Temperature: in.Temperature, TopP: in.TopP, Seed: in.Seed}
	for _, n := range []*int{in.MaxTokens, in.MaxCompletionTokens} {
		if n != nil && *n > 0 {
			out.params.MaxTokens = *n
		}
	}
	var bad *apiError
	if out.params.Stop, bad = stopWords(in.Stop); bad != nil {
		return completion{}, bad
	}
	if out.user, bad = userName(in.User); bad != nil {
		return completion{}, bad
	}
	out.text, bad = lastUserText(in.Messages)
	return out, bad
}

func (in *incoming) unsupported() *apiError {
	no := func(param string) *apiError {
		return badRequest("unsupported_parameter", param, "%q is not supported with this value", param)
	}
	choice := strings.TrimSpace(string(in.ToolChoice))
	switch {
	case choice == `"required"` || strings.HasPrefix(choice, "{"):
		return no("tool_choice")
	case in.N != nil && *in.N != 1:
		return no("n")
	case in.ResponseFormat != nil && in.ResponseFormat.Type != "text":
		return no("response_format")
	case len(in.Audio) > 0 && string(in.Audio) != "null":
		return no("audio")
	}
	for _, m := range in.Modalities {
		if m != "text" {
			return no("modalities")
		}
	}
	return nil
}

func stopWords(raw json.RawMessage) ([]string, *apiError) {
	var one string
	var many []string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil
	case json.Unmarshal(raw, &one) == nil:
		return []string{one}, nil
	case json.Unmarshal(raw, &many) == nil:
		return many, nil
	}
	return nil, badRequest("invalid_request", "stop", "\"stop\" must be a string or a list of strings")
}

func userName(raw json.RawMessage) (string, *apiError) {
	name := ""
	if len(raw) > 0 && string(raw) != "null" {
		if err := json.Unmarshal(raw, &name); err != nil {
			return "", badRequest("invalid_request", "user", "\"user\" must be a string")
		}
	}
	if name = strings.TrimSpace(name); name == "" {
		return "default", nil
	}
	if err := checkChatName(name); err != nil {
		return "", badRequest("invalid_request", "user", "\"user\": %v", err)
	}
	return name, nil
}

func lastUserText(list []incomingMessage) (string, *apiError) {
	last := -1
	for i, m := range list {
		switch m.Role {
		case "user":
			last = i
		case "assistant", "tool", "function":
			if i == len(list)-1 {
				return "", badRequest("invalid_request", "messages", "the list must end with a message of the user, not of role %q", m.Role)
			}
		}
	}
	if last < 0 {
		return "", badRequest("no_user_message", "messages", "there is no message of the user")
	}
	text, bad := contentText(list[last].Content)
	if bad == nil && strings.TrimSpace(text) == "" {
		bad = badRequest("no_user_message", "messages", "the message of the user is empty")
	}
	return text, bad
}

// contentText reads a string, or text parts joined by a line feed. Other parts
// are refused, never dropped.
func contentText(raw json.RawMessage) (string, *apiError) {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", badRequest("invalid_request", "messages", "the content of a message must be text")
	}
	var texts []string
	for _, p := range parts {
		if p.Type != "text" && p.Type != "input_text" {
			return "", badRequest("unsupported_content", "messages", "a part of type %q is not supported", p.Type)
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n"), nil
}
