package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"picket/tools"
)

// Limits of a turn.
const (
	maxResultChars = 20_000 // of one tool result, as the model gets it
	maxDeclined    = 5      // declined calls that end a turn
	bytesPerToken  = 3.5    // the first estimate, corrected by the server's own counts
)

// An Agent carries messages through the model and the gate. It holds tool
// descriptions; what runs them is in the Sentinel only.
type Agent struct {
	model   Model
	gate    *Sentinel
	tools   []tools.Tool
	log     *Log
	redact  func(string) string
	stream  func() *redactStream // for text that comes in pieces
	system  func() string
	context int // tokens
	steps   int // model calls in one turn
	now     func() time.Time
}

// A Turn is one message of one chat with everything that follows from it, until
// a final answer.
type Turn struct {
	ID      string // our own, random
	Chat    *chat
	Caller  *caller
	Text    string // the message
	Piped   string // piped data that came with it
	Request ModelRequest
	Steps   int // model calls at most; 0 means the agent's own limit
	Emit    func(Event)

	declined map[string]bool // digests of calls that were declined in this turn
	refusals int             // calls declined, expired or denied
	asked    int             // calls declined or expired by an answer
	texts    []string
	notDone  []string // lines about calls of an app's turn that were refused
	usage    Usage
	perToken float64
}

// An Event is one thing that happened in a turn, in the form of --json.
type Event struct {
	Type    string   `json:"type"` // text call question answer result usage error done; notice (Text) for other apps
	ID      string   `json:"id,omitempty"`
	Text    string   `json:"text,omitempty"`
	Tool    string   `json:"tool,omitempty"`
	Summary string   `json:"summary,omitempty"`
	Risk    string   `json:"risk,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
	Offered []string `json:"offered,omitempty"`
	Answer  string   `json:"answer,omitempty"`
	Scope   string   `json:"scope,omitempty"`
	By      string   `json:"by,omitempty"`
	OK      *bool    `json:"ok,omitempty"`
	Verdict string   `json:"verdict,omitempty"`
	Error   string   `json:"error,omitempty"`
	MS      *int64   `json:"ms,omitempty"`
	In      *int     `json:"in,omitempty"`
	Out     *int     `json:"out,omitempty"`
	Exit    *int     `json:"exit,omitempty"`

	thinking bool // Text is reasoning, not part of the answer
	wait     bool // Text is about a pending retry or a warning
}

// TurnResult is how a turn ended.
type TurnResult struct {
	Text    string // all texts of the turn, a blank line between
	Last    string // the last reply alone
	Usage   Usage
	Refused int      // calls that were declined, expired or denied
	Cut     bool     // the last reply hit a token limit
	NotDone []string // a line about each of those calls, in an app's turn
}

var (
	errNoAnswer = errors.New("the model gave no answer")
	errStuck    = errors.New("the model repeats the same calls; the turn was stopped")
)

// Do runs a turn to its end. Its chat stays locked; the caller closes it.
func (a *Agent) Do(ctx context.Context, t *Turn) (res TurnResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v", p)
			a.gate.debug("panic in a turn: %v\n%s", p, debug.Stack())
		}
		res.Usage, res.Refused = t.usage, t.refusals
		res.Text, res.NotDone = strings.Join(t.texts, "\n\n"), t.notDone
	}()
	t.declined, t.perToken = map[string]bool{}, bytesPerToken
	defer a.gate.approvals.EndTurn(t.ID)
	if err := a.begin(ctx, t); err != nil {
		return res, err
	}
	steps := a.steps
	if t.Steps > 0 {
		steps = t.Steps
	}
	nudges, history := 0, []string(nil)
	var nudge string // said to the model once, not kept
	for step := 1; ; step++ {
		offered := slices.DeleteFunc(slices.Clone(a.tools), func(tool tools.Tool) bool { return t.Caller.barred(tool.Name) })
		if step > steps {
			offered = nil
			nudge = "The limit of steps is reached. Answer now with what you have, and say what is left to do."
		}
		reply, err := a.ask(ctx, t, offered, nudge)
		nudge = ""
		if err != nil {
			return res, err
		}
		res.Last, res.Cut = reply.Text, reply.Finish == "length"
		if len(reply.Calls) == 0 || step > steps {
			if strings.TrimSpace(reply.Text) != "" {
				return res, nil
			}
			if nudges++; nudges > 1 || step > steps {
				return res, errNoAnswer
			}
			nudge = "Your reply was empty. Answer the message, or call a tool."
			continue
		}
		if err := a.calls(ctx, t, reply.Calls); err != nil {
			return res, err
		}
		if t.asked >= maxDeclined {
			return res, fmt.Errorf("%d calls were declined; the turn was ended", t.asked)
		}
		history = append(history, callsKey(reply.Calls))
		if loops(history) {
			if nudges++; nudges > 1 {
				return res, errStuck
			}
			history = nil
			nudge = "You are repeating the same calls with the same results. Do something else, or answer with what you have."
		}
	}
}

// begin writes the message into the chat and the log.
func (a *Agent) begin(ctx context.Context, t *Turn) error {
	recs := []Record{t.record(userMessageRecord{Text: a.redact(t.Text), Source: t.Caller.source()})}
	if t.Caller.Who != whoOwner {
		recs[0].Call = t.ID // which the app was told
	}
	content := t.Text
	if t.Piped != "" {
		recs = append(recs, t.record(userMessageRecord{Text: a.redact(t.Piped), Source: "piped"}))
		content += "\n\n" + pipedBegin + "\n" + quoteBlock(t.Piped, pipedEnd) + "\n" + pipedEnd
	}
	if err := a.log.Append(ctx, false, recs...); err != nil {
		return err
	}
	if err := a.gate.approvals.Grant(ctx, t.record(nil), t.ID, t.Caller.Allow); err != nil {
		return err
	}
	var labels []chatLabel
	if t.Piped != "" {
		labels = append(labels, chatLabel{"untrusted", "piped input"})
	}
	if t.Caller.Who != whoOwner {
		labels = append(labels, chatLabel{"untrusted", "another app (API)"})
	}
	if err := a.gate.label(ctx, t, labels...); err != nil {
		return err
	}
	return t.Chat.append(chatLine{Turn: t.ID, Channel: t.Caller.Channel, Role: "user", Content: content})
}

// What another app said stands between these where the owner goes on.
const (
	appBegin = "[a message of another app follows: not the owner's words]"
	appEnd   = "[end of the other app's message]"
)

// quoteBlock keeps the data of a block from ending it.
func quoteBlock(s, end string) string {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	for i, l := range lines {
		if strings.TrimSpace(l) == end {
			lines[i] = " " + l + " (quoted)"
		}
	}
	return strings.Join(lines, "\n")
}

// ask makes one model call, and keeps and records its reply.
func (a *Agent) ask(ctx context.Context, t *Turn, offered []tools.Tool, nudge string) (Reply, error) {
	req := t.Request
	req.Tools = offered
	if offered != nil { // the client's limits shape the reply, never calls
		req.Stop, req.MaxTokens = nil, 0
	}
	req.Messages = a.messages(t, offered, nudge)
	sent := messageBytes(req.Messages) + toolBytes(offered)
	started := a.now()
	separator := len(t.texts)+len(t.notDone) > 0
	red, thought := a.stream(), a.stream()
	say := func(text []byte, thinking bool) {
		if len(text) == 0 {
			return
		}
		if separator && !thinking {
			separator = false
			t.Emit(Event{Type: "text", Text: "\n\n"})
		}
		t.Emit(Event{Type: "text", Text: string(text), thinking: thinking})
	}
	reply, err := a.model.Chat(ctx, req, func(d Delta) {
		switch {
		case d.Wait != "":
			t.Emit(Event{Type: "text", Text: d.Wait, wait: true})
		case d.Reasoning != "":
			say(thought.Feed([]byte(d.Reasoning)), true)
		case d.Text != "":
			say(red.Feed([]byte(d.Text)), false)
		}
	})
	say(thought.End(), true)
	say(red.End(), false)
	t.usage.In += reply.Usage.In
	t.usage.Out += reply.Usage.Out
	t.usage.Total = t.usage.In + t.usage.Out
	if reply.Usage.In > 0 {
		t.perToken = max(1, float64(sent)/float64(reply.Usage.In))
	}
	if reply.Warning != "" {
		t.Emit(Event{Type: "text", Text: reply.Warning, wait: true})
	}
	reply.Text = a.redact(reply.Text)
	finish := reply.Finish
	if err != nil {
		finish = "error"
	} else if reply.RawFinish != "" {
		finish = reply.RawFinish
	}
	names := []string{}
	for i := range reply.Calls {
		f := &reply.Calls[i].Function
		f.Name = a.redact(f.Name) // it is the model's word too
		names = append(names, f.Name)
	}
	rec := modelTurnRecord{Model: a.model.Name(), Text: reply.Text, In: reply.Usage.In, Out: reply.Usage.Out,
		Calls: names, MS: a.now().Sub(started).Milliseconds(), Finish: a.redact(finish)}
	if logErr := a.log.Append(context.WithoutCancel(ctx), false, t.record(rec)); logErr != nil {
		return reply, logErr
	}
	if reply.Text != "" {
		t.texts = append(t.texts, reply.Text)
	}
	if err != nil {
		if reply.Text != "" { // what had come is kept, marked, and no call of it stands
			_ = t.Chat.append(chatLine{Turn: t.ID, Channel: t.Caller.Channel, Role: "assistant", Content: reply.Text + "\n[cut off]"})
		}
		return reply, err
	}
	if offered == nil {
		reply.Calls = nil
	}
	if reply.Text == "" && len(reply.Calls) == 0 {
		return reply, nil
	}
	return reply, t.Chat.append(chatLine{Turn: t.ID, Channel: t.Caller.Channel, Role: "assistant",
		Content: reply.Text, Calls: reply.Calls, Reasoning: reply.Reasoning})
}

// calls runs the calls of one reply through the gate, in order. Each gets its
// result, also after one was declined.
func (a *Agent) calls(ctx context.Context, t *Turn, calls []ToolCall) error {
	for _, c := range calls {
		r := a.gate.Do(ctx, t, c)
		if r.Refused {
			t.refusals++
			if t.Caller.Who != whoOwner { // the answer is not to claim that it was done
				line := "Not done: " + firstChars(strings.Join(strings.Fields(r.Summary), " "), 200)
				t.notDone = append(t.notDone, line)
				t.Emit(Event{Type: "notice", Text: line})
			}
		}
		if r.Declined {
			t.asked++
		}
		line := chatLine{Turn: t.ID, Channel: t.Caller.Channel, Role: "tool", Call: c.ID, Content: cutMiddle(r.Text, maxResultChars), Made: r.Made}
		if err := t.Chat.append(line); err != nil {
			return err
		}
		if r.LogFailed != nil {
			return r.LogFailed
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// record is a record of this turn.
func (t *Turn) record(body recordBody) Record {
	return Record{Run: t.Caller.Run, Chat: t.Chat.Name, Channel: t.Caller.Channel, Body: body}
}

// callsKey is equal for replies that ask for the same calls.
func callsKey(calls []ToolCall) string {
	var b strings.Builder
	for _, c := range calls {
		fmt.Fprintf(&b, "%q %q\n", c.Function.Name, c.Function.Arguments)
	}
	return b.String()
}

// loops reports three equal replies in a row, or A B A B.
func loops(h []string) bool {
	n := len(h)
	if n >= 3 && h[n-1] == h[n-2] && h[n-2] == h[n-3] {
		return true
	}
	return n >= 4 && h[n-1] == h[n-3] && h[n-2] == h[n-4] && h[n-1] != h[n-2]
}

// cutMiddle keeps the head and the tail of a text that is longer than limit
// characters and says what was left out.
func cutMiddle(s string, limit int) string {
	n := utf8.RuneCountInString(s)
	if n <= limit {
		return s
	}
	r := []rune(s)
	return fmt.Sprintf("%s\n[… %d characters left out …]\n%s", string(r[:limit/2]), n-limit, string(r[n-limit/2:]))
}

const leftOut = "[Earlier messages of this chat were left out to fit the model's context.]"

// messages builds the request: the system message, then as much of the chat as
// fits. The oldest tool results shrink first, then the oldest exchanges go,
// whole; this turn's message always stays.
func (a *Agent) messages(t *Turn, offered []tools.Tool, nudge string) []Message {
	system := Message{Role: "system", Content: a.system()}
	msgs := modelMessages(t.Chat.Messages, t.Caller)
	if nudge != "" {
		msgs = append(msgs, Message{Role: "user", Content: "[picket] " + nudge})
	}
	reserve := 1024
	if t.Request.MaxTokens > 0 {
		reserve = min(t.Request.MaxTokens, a.context/2)
	}
	budget := int(float64(a.context-reserve)*t.perToken) - toolBytes(offered) - len(system.Content)
	current := len(msgs) - 1 // where this turn begins
	for current > 0 && !(msgs[current].Role == "user" && msgs[current].Content != "" && !strings.HasPrefix(msgs[current].Content, "[picket] ")) {
		current--
	}
	shrink := func(from, to, keep int) {
		for i := from; i < to && messageBytes(msgs) > budget; i++ {
			if msgs[i].Role == "tool" {
				msgs[i].Content = cutMiddle(msgs[i].Content, keep)
			}
		}
	}
	shrink(0, current, 400)
	cut := false
	for messageBytes(msgs) > budget && current > 0 {
		next := 1 // the exchange goes up to the next message of a user
		for next < current && msgs[next].Role != "user" {
			next++
		}
		msgs, current, cut = msgs[next:], current-next, true
	}
	shrink(0, len(msgs)-1, 400)
	shrink(0, len(msgs), 4000)
	if cut {
		system.Content += "\n\n" + leftOut
	}
	msgs = append([]Message{system}, msgs...)
	for i := range msgs { // a chat can be older than a secret
		m := &msgs[i]
		m.Content, m.Reasoning, m.ToolCalls = a.redact(m.Content), a.redact(m.Reasoning), slices.Clone(m.ToolCalls)
		for k := range m.ToolCalls {
			m.ToolCalls[k].Function.Arguments = redactJSON(m.ToolCalls[k].Function.Arguments, a.redact)
		}
	}
	return msgs
}

// modelMessages turns the lines of a chat into messages. A call without a
// result gets one that says it was interrupted, so that every call has exactly
// one. Where the owner goes on with the chat of another app, that one's messages
// are marked as such; what the owner then says and gets is not for the app.
func modelMessages(lines []chatLine, c *caller) []Message {
	var out []Message
	if c.Who != whoOwner && !c.Memory {
		lines = slices.DeleteFunc(slices.Clone(lines), func(l chatLine) bool { return l.Channel != channelAPI })
	}
	for i, l := range lines {
		m := Message{Role: l.Role, Content: l.Content, Reasoning: l.Reasoning}
		switch l.Role {
		case "user":
			if l.Channel == channelAPI && c.Who == whoOwner {
				m.Content = appBegin + "\n" + quoteBlock(m.Content, appEnd) + "\n" + appEnd
			} else if l.Channel == channelAPI {
				m.Content = "[Sent by another app on this computer through picket's API]\n" + m.Content
			}
		case "tool":
			continue // placed behind their calls
		case "assistant":
			m.ToolCalls = l.Calls
		}
		out = append(out, m)
		results := map[string]string{}
		for _, r := range lines[i+1:] {
			if r.Role != "tool" {
				break
			}
			results[r.Call] = r.Content
		}
		for _, call := range m.ToolCalls {
			text, ok := results[call.ID]
			if !ok {
				text = "The call was interrupted; whether it had an effect is not known."
			}
			out = append(out, Message{Role: "tool", ToolCallID: call.ID, Content: text})
		}
	}
	return out
}

func messageBytes(msgs []Message) int {
	n := 0
	for _, m := range msgs {
		n += len(m.Content) + 16
		for _, c := range m.ToolCalls {
			n += len(c.Function.Name) + len(c.Function.Arguments) + 32
		}
	}
	return n
}

func toolBytes(list []tools.Tool) int {
	n := 0
	for _, t := range list {
		n += len(t.Name) + len(t.Description) + len(t.Schema()) + 32
	}
	return n
}
