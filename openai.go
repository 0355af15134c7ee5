package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
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

	// Memory says that an app may have what picket remembers of the owner. epoch
	// is the turnTable's when its request came in.
	Memory bool
	epoch  int

	// Event gets everything that happens, the owner's in order with the text.
	// Done gets the end.
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

// ownMemory are the tools that read or change what picket remembers of the owner.
// ("remember" is not among them: what it keeps of an app's is for review.)
var ownMemory = []string{"recall", "forget", "goals", "contacts"}

// barred reports whether a tool is not for this caller.
func (c *caller) barred(tool string) bool {
	return c.Who != whoOwner && !c.Memory && slices.Contains(ownMemory, tool)
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
	maxChats  int        // of other apps; 0 is no limit
	times     replyTimes // zero: usualTimes
	turns     turnTable  // of other apps
	opening   sync.Mutex // their chats are opened one by one
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
	if w.Header().Get("X-Request-Id") == "" {
		w.Header().Set("X-Request-Id", newID("q"))
	}
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

// ServeHTTP runs one turn for a chat-completions request, or gives the answer of
// the one before again if the request is that one's, sent again.
func (h *chatHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, id := callerOf(r.Context()), newID("t")
	w.Header().Set("X-Request-Id", id)
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
	if len(req.ignored) > 0 {
		w.Header().Set("X-Picket-Ignored", strings.Join(req.ignored, ", "))
	}
	chat, err := h.open(r.Context(), c, req.user)
	switch {
	case errors.Is(err, errChatBusy):
		writeError(w, &apiError{http.StatusConflict, "chat_busy", "this chat has a running turn; set \"user\" to use another chat", ""})
		return
	case errors.Is(err, errTooManyChats):
		writeError(w, &apiError{http.StatusTooManyRequests, "too_many_chats", err.Error() + "; use one that exists, or ask the owner to delete some (picket chats)", "user"})
		return
	case err != nil:
		if c.Done != nil {
			c.Done(TurnResult{}, err)
		} else {
			h.debug("request %s: %v", id, err)
		}
		writeError(w, badRequest("turn_failed", "", "the chat could not be opened"))
		return
	}
	if end, again := h.resent(r, chat, req.text); c.Who != whoOwner && again {
		err := chat.close()
		if err != nil {
			h.debug("request %s: %v", id, err)
		}
		w.Header().Set("X-Request-Id", end.Turn)
		newReplyWriter(w, req, cmp.Or(h.times, usualTimes)).repeat(end)
		return
	}
	h.turn(w, r, c, chat, req, id)
}

func (h *chatHandler) open(ctx context.Context, c *caller, user string) (*chat, error) {
	if c.Who == whoOwner {
		return h.chats.open(ctx, c.Chat, h.workspace, true)
	}
	h.opening.Lock()
	defer h.opening.Unlock()
	return h.chats.openApp(ctx, user, h.workspace, h.maxChats)
}

// resent reports whether a request is that of the chat's last turn, sent again,
// and how that turn ended. Clients that mark what they send again say so. One
// kind repeats a 409 without a mark: that of a turn which was stopped a moment
// ago.
func (h *chatHandler) resent(r *http.Request, c *chat, text string) (end chatLine, again bool) {
	var last chatLine
	for _, l := range c.Messages {
		if l.Role == "user" && l.Channel == channelAPI {
			last = l
		}
	}
	if end = c.end; end.Turn != last.Turn { // picket ended before the turn did
		end = chatLine{Turn: last.Turn, End: endFailed}
	}
	n, err := strconv.Atoi(r.Header.Get("X-Stainless-Retry-Count"))
	marked := err == nil && n > 0
	ended, _ := time.Parse(timeLayout, end.TS)
	stopped := end.End == endStopped && h.chats.now().Sub(ended) < cmp.Or(h.times, usualTimes).resend && repeatsUnmarked(r.UserAgent())
	return end, last.Turn != "" && (marked || stopped) && sha256.Sum256([]byte(last.Content)) == sha256.Sum256([]byte(h.chats.redact(text)))
}

// repeatsUnmarked reports whether a user agent is that of the AI SDK.
func repeatsUnmarked(agent string) bool {
	return slices.ContainsFunc(strings.Fields(agent), func(p string) bool {
		return strings.HasPrefix(p, "ai/") || strings.HasPrefix(p, "ai-sdk")
	})
}

// turn runs the turn in a task of its own and writes what comes of it. A client
// that hangs up does not stop an app's turn.
func (h *chatHandler) turn(w http.ResponseWriter, r *http.Request, c *caller, chat *chat, req completion, id string) {
	q := newEventQueue()
	mine := *c
	if ask := c.Ask; ask != nil { // what was said before the question is shown before it
		mine.Ask = func(ctx context.Context, card Card) (Answer, error) { q.drained(ctx); return ask(ctx, card) }
	}
	if ask := c.AskText; ask != nil {
		mine.AskText = func(ctx context.Context, s string) (string, error) { q.drained(ctx); return ask(ctx, s) }
	}
	t := &Turn{ID: id, Chat: chat, Caller: &mine, Text: req.text, Piped: c.Piped,
		Request: req.params, Steps: c.Steps, Emit: q.push}
	ctx := r.Context()
	if c.Who != whoOwner {
		base, stop := context.WithCancelCause(context.WithoutCancel(ctx))
		if !h.turns.begin(c.epoch, id, chat.Name, stop) {
			err := chat.close()
			stop(err)
			writeError(w, endError(errStopped, id))
			return
		}
		ctx = base
		if c.Event != nil { // also when nobody reads the reply
			t.Emit = func(e Event) { c.Event(e); q.push(e) }
		}
	}
	go func() {
		res, err := h.agent.Do(ctx, t)
		if c.Who != whoOwner {
			err = h.settle(ctx, t, res, err)
		}
		if closeErr := chat.close(); err == nil {
			err = closeErr
		}
		h.turns.end(id)
		q.finish(res, err)
	}()
	h.reply(newReplyWriter(w, req, cmp.Or(h.times, usualTimes)), r, c, q, id)
}

// settle keeps how an app's turn ended, in the chat, and why it failed, in the
// log.
func (h *chatHandler) settle(ctx context.Context, t *Turn, res TurnResult, err error) error {
	line := chatLine{Turn: t.ID, Channel: t.Caller.Channel, End: endDone, Content: res.Text, NotDone: res.NotDone, Cut: res.Cut, Usage: &res.Usage}
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errStopped):
		line.End, err = endStopped, errStopped
	case err != nil:
		line.End = endFailed
		h.debug("turn %s of %s: %v", t.ID, t.Chat.Name, err)
		rec := t.record(apiRecord{Op: "failed: " + h.agent.redact(err.Error()), Refused: map[string]int{}})
		rec.Call = t.ID
		err = errors.Join(err, h.agent.log.Append(context.WithoutCancel(ctx), false, rec))
	}
	return errors.Join(err, t.Chat.append(line))
}

// reply writes what comes out of the queue until the turn ends or nobody reads.
func (h *chatHandler) reply(out *replyWriter, r *http.Request, c *caller, q *eventQueue, id string) {
	ping := time.NewTicker(out.times.ping)
	defer ping.Stop()
	hold := time.NewTimer(out.times.hold)
	defer hold.Stop()
	gone := r.Context().Done()
	if c.Who == whoOwner { // whose turn ends by it
		gone = nil
	}
	for {
		select {
		case <-q.ready:
		case <-ping.C:
			out.ping()
		case <-hold.C:
			out.begin()
		case <-gone: // or only done with sending: writing will tell
			gone = nil
			out.begin()
			out.ping()
		}
		events, done := q.take()
		for _, e := range events {
			switch {
			case e.Type == "text" && !e.thinking && !e.wait:
				out.text(e.Text)
			case e.Type == "notice":
				out.notice(e.Text)
			}
			if c.Event != nil && c.Who == whoOwner {
				out.flush()
				c.Event(e)
			}
		}
		out.flush()
		q.taken()
		if out.dead && c.Who != whoOwner {
			q.leave()
			return
		}
		if done {
			break
		}
	}
	out.end(q.result, q.err, id)
	if c.Done != nil {
		c.Done(q.result, q.err)
	}
}

// Why an app's turn ended before its time.
var errStopped = errors.New("stopped")

// A turnTable knows the turns that other apps have running. The zero table is
// ready for use.
type turnTable struct {
	mu      sync.Mutex
	epoch   int // counts the stops
	closed  bool
	running map[string]runningTurn
	group   sync.WaitGroup
}

type runningTurn struct {
	Turn  string    `json:"turn"`
	Chat  string    `json:"chat"`
	Since time.Time `json:"since"`
	stop  context.CancelCauseFunc
}

// now is what a request has to bring that came in now.
func (t *turnTable) now() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch
}

// begin enters a turn, unless all were stopped since its request came in.
func (t *turnTable) begin(epoch int, id, chat string, stop context.CancelCauseFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || epoch != t.epoch {
		return false
	}
	if t.running == nil {
		t.running = map[string]runningTurn{}
	}
	t.running[id] = runningTurn{id, chat, time.Now(), stop}
	t.group.Add(1)
	return true
}

func (t *turnTable) end(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, ok := t.running[id]; ok {
		r.stop(nil)
		delete(t.running, id)
		t.group.Done()
	}
}

// stop stops every turn and returns how many there were; with last none begins
// after.
func (t *turnTable) stop(last bool) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch++
	t.closed = t.closed || last
	for _, r := range t.running {
		r.stop(errStopped)
	}
	return len(t.running)
}

// wait returns when no turn runs, or ctx ends.
func (t *turnTable) wait(ctx context.Context) {
	done := make(chan struct{})
	go func() { t.group.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// list returns the running turns, the oldest first.
func (t *turnTable) list() []runningTurn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Values(t.running), func(a, b runningTurn) int { return a.Since.Compare(b.Since) })
}

// An eventQueue carries events from a turn to its writer. The turn never waits
// for a slow reader, but for the terminal to be up to date before a question.
type eventQueue struct {
	ready chan struct{} // has an element when there is something to take

	mu     sync.Mutex
	list   []Event
	open   int // taken but not yet written
	idle   chan struct{}
	left   bool
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
	if !q.left {
		q.list = append(q.list, e)
	}
	q.mu.Unlock()
	q.signal()
}

// leave says that nobody takes any more.
func (q *eventQueue) leave() {
	q.mu.Lock()
	q.list, q.left = nil, true
	q.mu.Unlock()
	q.taken()
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
