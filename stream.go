package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"picket/tools"
)

// Limits on one reply, all in bytes but for the number of calls.
const (
	maxStreamLine = 16 << 20
	maxStream     = 256 << 20 // as sent
	maxReplyText  = 8 << 20   // the answer, and again the reasoning
	maxReplyCalls = 128
	maxReplyArgs  = 4 << 20 // of all calls; of one: tools.MaxArgs
	maxCallName   = 256
)

var (
	errCutOff  = errors.New("the answer was cut off: the connection ended before the model had finished")
	errNoReply = errors.New("the server closed the connection without an answer")
	errBroken  = errors.New("the server sent a broken chunk, so the answer is not whole")
)

// A limitError says which limit a reply went over.
type limitError string

func (e limitError) Error() string { return string(e) }

// streamLines splits a stream at LF, CRLF or CR, as event streams allow (WHATWG
// HTML, section 9.2.5).
type streamLines struct {
	r        io.Reader
	idle     func() // called before every read, which may block
	buf      []byte
	pos, end int // buf[pos:end] has not been returned yet
	nl       int // the first LF at or after pos, end if there is none
	skipLF   bool
	total    int
	partial  bool // the line returned last had no end
	err      error
}

// next returns the next line without its end; it is good until the next call.
// What stands after the last line end comes as a line only if the stream ended
// regularly.
func (l *streamLines) next() ([]byte, error) {
	for scan := l.pos; ; {
		if l.skipLF && l.pos < l.end {
			if l.buf[l.pos] == '\n' {
				l.pos++
			}
			l.skipLF, scan = false, l.pos
		}
		if l.nl < l.pos {
			l.nl = l.pos + indexOrLen(l.buf[l.pos:l.end], '\n')
		}
		line := l.buf[l.pos:l.nl]
		if i := bytes.IndexByte(l.buf[scan:l.nl], '\r'); i >= 0 {
			line = l.buf[l.pos : scan+i]
			l.pos, l.skipLF = scan+i+1, true
			return line, nil
		}
		if l.nl < l.end {
			l.pos = l.nl + 1
			return line, nil
		}
		if len(line) > maxStreamLine {
			return nil, limitError("the server sent a line longer than 16 MiB")
		}
		if l.err == io.EOF && len(line) > 0 {
			l.pos, l.partial = l.end, true
			return line, nil
		}
		if l.err != nil {
			return nil, l.err
		}
		scan = l.fill()
	}
}

// fill reads more and returns where the new bytes start.
func (l *streamLines) fill() int {
	if l.pos > 0 {
		l.end = copy(l.buf, l.buf[l.pos:l.end])
		l.nl -= l.pos
		l.pos = 0
	}
	if l.end == len(l.buf) {
		l.buf = append(l.buf, make([]byte, max(32<<10, len(l.buf)))...)
	}
	l.idle()
	n, err := l.r.Read(l.buf[l.end:])
	old := l.end
	l.end += n
	if l.nl >= old {
		l.nl = old + indexOrLen(l.buf[old:l.end], '\n')
	}
	if l.total += n; l.total > maxStream && err == nil {
		err = limitError("the answer is longer than 256 MiB")
	}
	l.err = err
	return old
}

func indexOrLen(b []byte, c byte) int {
	if i := bytes.IndexByte(b, c); i >= 0 {
		return i
	}
	return len(b)
}

// A replyReader takes in one reply as servers really send it: an event stream,
// or one JSON document whatever was asked for.
type replyReader struct {
	names   toolNames
	onDelta func(Delta)

	any        bool // an event or a document came
	done       bool // [DONE] came
	whole      bool // a whole message came
	junk       string
	text       strings.Builder
	reasoning  strings.Builder
	sent       [2]int // bytes of text and reasoning passed on
	textOf     int    // the choice whose text is taken, -1 before there is one
	calls      []*openCall
	argBytes   int
	ambiguous  bool
	rawFinish  string
	finish     string
	usage      Usage
	answer     textJoiner
	thought    textJoiner
	think      thinkFilter
	wholeCalls bool // calls come from a whole message
}

func newReplyReader(names toolNames, onDelta func(Delta)) *replyReader {
	r := &replyReader{names: names, onDelta: onDelta, textOf: -1}
	r.think.r = r
	return r
}

// read takes in the body. It returns nil only if the reply ended well.
func (r *replyReader) read(body io.Reader) error {
	err := r.readEvents(&streamLines{r: body, idle: r.flush})
	tooLong := r.pieces(nil, nil, true)
	r.think.add("", true)
	r.flush()
	return cmp.Or(err, tooLong)
}

func (r *replyReader) readEvents(lines *streamLines) error {
	var event string
	var data []byte
	first := true
	for !r.done {
		line, err := lines.next()
		if err == io.EOF {
			if err := r.event(event, data, lines.partial); err != nil {
				return err
			}
			return r.ended()
		}
		var limit limitError
		if err != nil && r.finish != "" && !errors.As(err, &limit) {
			return nil // nothing that matters can follow a finish reason
		}
		if err != nil {
			return err
		}
		if first {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
			if t := bytes.TrimSpace(line); len(t) > 0 && (t[0] == '{' || t[0] == '[') {
				return r.document(line, lines)
			}
			first = len(line) == 0
		}
		if len(line) == 0 {
			if err := r.event(event, data, false); err != nil {
				return err
			}
			event, data = "", data[:0]
			continue
		}
		name, value, colon := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if len(data) > 0 {
				data = append(data, '\n')
			}
			if data = append(data, value...); len(data) > maxStreamLine {
				return limitError("the server sent an event longer than 16 MiB")
			}
		case "event":
			event = string(value[:min(len(value), 64)])
		case "", "id", "retry":
		default:
			if line[0] == '{' && json.Valid(line) { // an error that forgot its prefix
				if err := r.chunk("", line); err != nil {
					return err
				}
			} else if !r.any && (r.junk == "" || !colon) {
				r.junk = string(line[:min(len(line), 300)])
			}
		}
	}
	return nil
}

// ended judges a body that ended without [DONE].
func (r *replyReader) ended() error {
	switch {
	case r.done || r.finish != "" || r.whole:
		return nil
	case r.any:
		return errCutOff
	case r.junk != "":
		return &serverError{Message: r.junk, Code: "not_a_completion"}
	}
	return errNoReply
}

// document reads a body that is JSON and no event stream: a whole completion,
// an error, or chunks a line each.
func (r *replyReader) document(line []byte, lines *streamLines) error {
	doc := bytes.Clone(line)
	for {
		next, err := lines.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if doc = append(append(doc, '\n'), next...); len(doc) > maxStreamLine {
			return limitError("the server sent a document longer than 16 MiB")
		}
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	for n := 0; ; n++ {
		var val json.RawMessage
		if err := dec.Decode(&val); err != nil {
			if n == 0 {
				return errBroken
			}
			break // nothing after a whole document matters
		}
		if val[0] == '[' {
			return readServerError(val)
		}
		if err := r.chunk("", val); err != nil {
			return err
		}
	}
	return r.ended()
}

// event takes in the data of one event. Partial says that the stream ended
// inside it.
func (r *replyReader) event(name string, data []byte, partial bool) error {
	data = bytes.TrimSpace(data)
	switch {
	case len(data) == 0 || data[0] == ':': // a comment that a relay wrapped
		return nil
	case bytes.HasPrefix(data, []byte("[DONE]")):
		r.any, r.done = true, true
		return nil
	case json.Valid(data):
		return r.chunk(name, data)
	case name == "error":
		return readServerError(data)
	case name != "" && name != "message":
		return nil // some server's own event
	}
	// Some servers leave out the blank line between events.
	if list := bytes.Split(data, []byte("\n")); len(list) > 1 && !slices.ContainsFunc(list, func(b []byte) bool {
		return !json.Valid(b) && !bytes.HasPrefix(b, []byte("[DONE]"))
	}) {
		for _, b := range list {
			if err := r.event(name, b, false); err != nil || r.done {
				return err
			}
		}
		return nil
	}
	r.any = true
	if partial {
		return errCutOff
	}
	return errBroken
}

// chunk takes in one chunk, which is valid JSON.
func (r *replyReader) chunk(event string, raw []byte) error {
	var choices, usage, fault, object []byte
	says := false
	jsonMembers(raw, func(key, val []byte) {
		switch string(key) {
		case "choices":
			choices = val
		case "usage":
			usage = val
		case "x_groq":
			jsonMembers(val, func(key, val []byte) {
				if string(key) == "usage" {
					usage = val
				}
			})
		case "error":
			fault = val
		case "object":
			object = val
		case "message", "detail":
			says = true
		}
	})
	r.any = true
	switch string(fault) {
	case "", "null", `""`, "{}", "false":
	default:
		return readServerError(raw)
	}
	if event == "error" || string(object) == `"error"` || says && choices == nil && usage == nil {
		return readServerError(raw)
	}
	r.addUsage(usage)
	var err error
	jsonMembers(choices, func(_, val []byte) {
		if err == nil {
			err = r.choice(val)
		}
	})
	return err
}

func (r *replyReader) addUsage(raw []byte) {
	jsonMembers(raw, func(key, val []byte) {
		f, err := strconv.ParseFloat(string(val), 64)
		if err != nil || f < 1 || f > 1<<40 {
			return
		}
		switch string(key) {
		case "prompt_tokens":
			r.usage.In = int(f)
		case "completion_tokens":
			r.usage.Out = int(f)
		case "total_tokens":
			r.usage.Total = int(f)
		}
	})
}

func (r *replyReader) choice(raw []byte) error {
	index := 0
	var delta, message []byte
	finish := ""
	jsonMembers(raw, func(key, val []byte) {
		switch string(key) {
		case "index":
			index = max(callIndex(val), 0)
		case "delta":
			delta = val
		case "message":
			message = val
		case "finish_reason":
			finish = valText(val)
		case "usage":
			r.addUsage(val)
		}
	})
	err := r.delta(index, delta, false)
	if err == nil && len(message) > 0 && message[0] == '{' {
		r.whole = true
		err = r.delta(index, message, true)
	}
	r.addFinish(finish)
	return err
}

// delta takes in a delta, or a whole message, of which only the parts count
// that no delta has brought before.
func (r *replyReader) delta(choice int, raw []byte, whole bool) error {
	var content, refusal, reasoning, reasoning2, calls, call []byte
	jsonMembers(raw, func(key, val []byte) {
		switch string(key) {
		case "content":
			content = val
		case "refusal":
			refusal = val
		case "reasoning_content":
			reasoning = val
		case "reasoning":
			reasoning2 = val
		case "tool_calls":
			calls = val
		case "function_call":
			call = val
		}
	})
	if noValue(reasoning) { // some send both, with the same text
		reasoning = reasoning2
	}
	if noValue(content) {
		content = refusal
	}
	if r.textOf < 0 && !noValue(content) {
		r.textOf = choice
	}
	if choice != r.textOf && r.textOf >= 0 {
		content, reasoning = nil, nil
	}
	if whole && r.reasoning.Len() > 0 {
		reasoning = nil
	}
	if whole && r.text.Len()+len(r.think.hold) > 0 {
		content = nil
	}
	if err := r.pieces(content, reasoning, false); err != nil {
		return err
	}
	if whole && len(r.calls) > 0 && !r.wholeCalls {
		return nil
	}
	r.wholeCalls = whole
	var err error
	if len(call) > 0 && call[0] == '{' {
		err = r.addCall(choice, []byte(`{"index":0,"function":`+string(call)+`}`))
	}
	if len(calls) > 0 && calls[0] == '{' {
		err = errors.Join(err, r.addCall(choice, calls))
		calls = nil
	}
	jsonMembers(calls, func(_, val []byte) {
		if err == nil {
			err = r.addCall(choice, val)
		}
	})
	return err
}

// pieces takes in pieces of content and reasoning; last says that no more come.
func (r *replyReader) pieces(content, reasoning []byte, last bool) error {
	var t, th []byte
	if t = appendJSONText(nil, content); t == nil {
		t, th = contentParts(content, "text")
	}
	if th = appendJSONText(th, reasoning); len(th) == 0 {
		_, th = contentParts(reasoning, "thinking")
	}
	r.reasoning.WriteString(r.thought.add(th, last))
	r.think.add(r.answer.add(t, last), false)
	if r.text.Len() > maxReplyText || r.reasoning.Len() > maxReplyText {
		return limitError("the answer is longer than 8 MiB")
	}
	return nil
}

// contentParts reads content that is a list of parts, or one part. Parts without
// a type have the given one.
func contentParts(raw []byte, without string) (answer, reasoning []byte) {
	if len(raw) > 0 && raw[0] == '{' {
		raw = slices.Concat([]byte("["), raw, []byte("]"))
	}
	jsonMembers(raw, func(_, part []byte) {
		if part[0] == '"' {
			answer = appendJSONText(answer, part)
			return
		}
		kind, txt, thinking := without, []byte(nil), []byte(nil)
		jsonMembers(part, func(key, val []byte) {
			switch string(key) {
			case "type":
				kind = valText(val)
			case "text", "content":
				txt = val
			case "thinking":
				thinking = val
			}
		})
		switch kind {
		case "text", "output_text":
			answer = appendJSONText(answer, txt)
		case "thinking", "reasoning":
			if thinking == nil {
				thinking = txt
			}
			reasoning = appendJSONText(reasoning, thinking)
			jsonMembers(thinking, func(_, val []byte) {
				jsonMembers(val, func(key, val []byte) {
					if string(key) == "text" {
						reasoning = appendJSONText(reasoning, val)
					}
				})
			})
		}
	})
	return answer, reasoning
}

// flush passes on what has come.
func (r *replyReader) flush() {
	for i, b := range []*strings.Builder{&r.text, &r.reasoning} {
		s := b.String()[r.sent[i]:]
		if s == "" {
			continue
		}
		r.sent[i] = b.Len()
		if r.onDelta == nil {
			continue
		}
		if i == 0 {
			r.onDelta(Delta{Text: s})
		} else {
			r.onDelta(Delta{Reasoning: s})
		}
	}
}

// finishes gives what the reasons of various servers mean, by rank: where
// several come, a later one in finishRank wins.
var finishes = map[string]string{
	"tool_calls": "tool_calls", "tool_call": "tool_calls", "tool_use": "tool_calls", "function_call": "tool_calls",
	"length": "length", "max_tokens": "length", "max_output_tokens": "length", "model_length": "length",
	"content_filter": "content_filter", "sensitive": "content_filter", "safety": "content_filter",
	"recitation": "content_filter", "blocklist": "content_filter", "prohibited_content": "content_filter", "spii": "content_filter",
	"error": "failed", "failed": "failed", "network_error": "failed", "abort": "failed", "aborted": "failed", "cancelled": "failed",
	"canceled": "failed", "timeout": "failed", "insufficient_system_resource": "failed",
	"malformed_function_call": "malformed", "unexpected_tool_call": "malformed", "malformed_tool_call": "malformed",
}

var finishRank = []string{"", "stop", "tool_calls", "malformed", "length", "content_filter", "failed"}

func (r *replyReader) addFinish(raw string) {
	if raw == "" || raw == "null" {
		return
	}
	f := finishes[strings.ToLower(raw)]
	if f == "" {
		f = "stop"
	}
	if slices.Index(finishRank, f) >= slices.Index(finishRank, r.finish) {
		r.finish, r.rawFinish = f, raw[:min(len(raw), 64)]
	}
}

// reply returns what was read. After an error no call of it may run, so none is
// in it.
func (r *replyReader) reply(err error) (Reply, error) {
	out := Reply{Text: r.text.String(), Reasoning: r.reasoning.String(), Finish: r.finish, Usage: r.usage}
	if out.Usage.Total == 0 {
		out.Usage.Total = out.Usage.In + out.Usage.Out
	}
	if r.rawFinish != r.finish {
		out.RawFinish = r.rawFinish
	}
	switch {
	case err != nil:
		return out, err
	case r.finish == "failed":
		return out, fmt.Errorf("the server reported that the answer failed (%s): try again", boundedLine(r.rawFinish, 64))
	case r.finish == "content_filter":
		return out, errFiltered
	}
	out.Calls = r.finalCalls()
	if out.Finish = "stop"; len(out.Calls) > 0 {
		out.Finish = "tool_calls"
	}
	if r.finish == "length" {
		out.Finish = "length"
	}
	return out, nil
}

var errFiltered = errors.New("the provider's content filter stopped the answer: put the request in other words, or choose another model")

// An openCall is a tool call while its pieces come in.
type openCall struct {
	choice, index int // index is -1 where the server gave none
	id            string
	names         []string // pieces as they came, equal neighbours once
	args          []byte
	braces        braceCounter
	extra         json.RawMessage
}

func (c *openCall) name() string { return strings.Join(c.names, "") }

// addCall takes in one entry of tool_calls: a piece of a call or a whole one.
func (r *replyReader) addCall(choice int, raw []byte) error {
	d := openCall{choice: choice, index: -1}
	name := ""
	function := func(key, val []byte) {
		switch string(key) {
		case "name":
			name = valText(val)
		case "arguments":
			if len(val) > 0 && (val[0] == '{' || val[0] == '[') {
				d.args = val
			} else {
				d.args = appendJSONText(d.args, val)
			}
		}
	}
	jsonMembers(raw, func(key, val []byte) {
		switch string(key) {
		case "index":
			d.index = callIndex(val)
		case "id":
			d.id = valText(val)
		case "function":
			jsonMembers(val, function)
		case "extra_content":
			if val[0] == '{' {
				d.extra = bytes.Clone(val)
			}
		default:
			function(key, val)
		}
	})
	if len(d.id) > maxCallName {
		d.id = ""
	}
	c := r.match(&d, name)
	if c == nil {
		return nil
	}
	if c.id == "" {
		c.id = d.id
	}
	if name != "" && (len(c.names) == 0 || c.names[len(c.names)-1] != name) {
		if c.names = append(c.names, name); len(c.name()) > maxCallName {
			return limitError("the model named a tool with more than 256 bytes")
		}
	}
	if d.extra != nil {
		c.extra = d.extra
	}
	c.braces.add(d.args)
	c.args = append(c.args, d.args...)
	if r.argBytes += len(d.args) + len(d.extra); len(c.args) > tools.MaxArgs || r.argBytes > maxReplyArgs {
		return limitError("the model sent arguments without end: more than 1 MiB for one call or 4 MiB in all")
	}
	if len(r.calls) > maxReplyCalls {
		return limitError("the model made more than 128 calls in one answer")
	}
	return nil
}

// match returns the call that a piece belongs to: one that is open, a new one,
// or nil where the piece brings nothing that could be placed.
func (r *replyReader) match(d *openCall, name string) *openCall {
	start := func() *openCall {
		c := &openCall{choice: d.choice, index: d.index, id: d.id}
		r.calls = append(r.calls, c)
		return c
	}
	var byIndex, byID, open, last *openCall
	opens, all := 0, 0
	for _, c := range r.calls {
		if c.choice != d.choice {
			continue
		}
		if d.index >= 0 && c.index == d.index {
			byIndex = c
		}
		if d.id != "" && c.id == d.id {
			byID = c
		}
		if !c.braces.done() {
			open = c
			opens++
		}
		last = c
		all++
	}
	// other: c is whole and d names another tool, so d is no piece of c.
	other := func(c *openCall) bool {
		return name != "" && len(c.names) > 0 && c.braces.done() && c.name() != name
	}
	switch {
	case byIndex != nil:
		if d.id == "" || name == "" || d.id == byIndex.id || byIndex.id == "" && !byIndex.braces.done() {
			if other(byIndex) {
				return start()
			}
			return byIndex
		}
		if byID != nil && !other(byID) {
			return byID
		}
		return start()
	case d.index >= 0:
		if byID != nil && (name == "" || name == byID.name() && !byID.braces.done()) {
			return byID
		}
		if name == "" && d.id == "" && len(d.args) == 0 {
			return nil
		}
		return start()
	case byID != nil:
		if other(byID) {
			return start()
		}
		return byID
	case name != "":
		if d.id == "" && last != nil && !last.braces.done() {
			return last
		}
		return start()
	case opens == 1:
		return open
	case all == 1:
		return last
	case len(d.args) == 0:
		return nil
	case all == 0:
		return start()
	}
	r.ambiguous = true
	return nil
}

// finalCalls decides about the calls of a reply that ended well.
func (r *replyReader) finalCalls() []ToolCall {
	calls := slices.DeleteFunc(r.calls, func(c *openCall) bool { return len(c.names) == 0 })
	if !slices.ContainsFunc(calls, func(c *openCall) bool { return c.index < 0 }) {
		slices.SortStableFunc(calls, func(a, b *openCall) int {
			if a.choice != b.choice {
				return a.choice - b.choice
			}
			return a.index - b.index
		})
	}
	whole := "" // why no call can run
	switch {
	case r.ambiguous:
		whole = "the pieces of the calls could not be told apart: make one call at a time"
	case r.finish == "length":
		whole = "the answer reached the token limit before the call was whole: do it in smaller steps"
	case r.finish == "malformed":
		whole = "the call was malformed: send it again, as a function call with JSON arguments"
		if len(calls) == 0 {
			calls = []*openCall{{names: []string{"unknown"}}}
		}
	}
	seen := map[string]bool{}
	var out []ToolCall
	for _, c := range calls {
		t := ToolCall{ID: c.id, Type: "function", Extra: c.extra, Invalid: whole}
		for t.ID == "" || seen[t.ID] {
			t.ID = newCallID()
		}
		seen[t.ID] = true
		var nameErr, argErr error
		t.Function.Name, nameErr = r.names.resolve(c.names)
		t.Function.Arguments, argErr = finalArgs(c.args)
		if t.Invalid == "" && nameErr != nil {
			t.Invalid = nameErr.Error()
		} else if t.Invalid == "" && argErr != nil {
			t.Invalid = "the arguments cannot be read: " + argErr.Error()
		}
		out = append(out, t)
	}
	return out
}

func newCallID() string {
	var b [8]byte
	rand.Read(b[:])
	return "call_" + hex.EncodeToString(b[:])
}

// finalArgs returns the arguments of a call as one JSON object.
func finalArgs(raw []byte) (string, error) {
	var j textJoiner
	s := strings.TrimSpace(j.add(raw, true))
	if s == "" || s == "null" {
		s = "{}"
	}
	// Some servers start with {} and then send the real object; some send the
	// whole object again at the end.
	if rest := strings.TrimPrefix(s, "{}"); len(rest) < len(s) && strings.HasPrefix(rest, "{") && json.Valid([]byte(rest)) {
		s = rest
	} else if h := len(s) / 2; s[0] == '{' && s[:h] == s[h:] && json.Valid([]byte(s[:h])) {
		s = s[:h]
	}
	v, err := tools.DecodeStrict([]byte(s))
	if err != nil {
		return s, err
	}
	if _, ok := v.(map[string]any); !ok {
		return s, errors.New("they must be one JSON object")
	}
	return s, nil
}

// A braceCounter tells whether a JSON object that comes in pieces has ended,
// looking at each byte once.
type braceCounter struct {
	depth            int
	str, esc, closed bool
}

func (b *braceCounter) add(p []byte) {
	for _, c := range p {
		switch {
		case b.esc:
			b.esc = false
		case b.str:
			b.esc, b.str = c == '\\', c != '"'
		case c == '"':
			b.str = true
		case c == '{' || c == '[':
			b.depth++
		case c == '}' || c == ']':
			b.depth--
			b.closed = b.depth == 0
		}
	}
}

func (b *braceCounter) done() bool { return b.closed && b.depth == 0 }

// A thinkFilter takes <think>…</think> out of an answer, split anywhere. Only a
// tag at the start of a line and outside a code block counts, so that an answer
// about such tags stays whole. A closing tag alone means that the server's
// template had opened it: all before it was reasoning.
type thinkFilter struct {
	r       *replyReader
	inside  bool
	hold    string // may be the start of a tag
	trim    bool   // the answer has not begun after a tag: drop white space
	counted int    // bytes of the text looked through for code fences
	fences  int
}

const thinkOpen, thinkClose = "<think>", "</think>"

func (f *thinkFilter) add(s string, last bool) {
	if f.hold != "" {
		s, f.hold = f.hold+s, ""
	}
	for s != "" {
		i := strings.IndexByte(s, '<')
		if i < 0 {
			f.emit(s)
			return
		}
		f.emit(s[:i])
		s = s[i:]
		open, end := f.openHere(), f.closeHere()
		switch {
		case open && strings.HasPrefix(s, thinkOpen):
			f.inside = true
			s = s[len(thinkOpen):]
		case end && strings.HasPrefix(s, thinkClose):
			if !f.inside {
				f.r.reasoning.WriteString(strings.TrimSpace(f.r.text.String()))
				f.r.text.Reset()
				if f.r.sent[0] > 0 { // it was passed on as text
					f.r.sent = [2]int{0, f.r.reasoning.Len()}
				}
				f.counted, f.fences = 0, 0
			}
			f.inside, f.trim = false, f.r.text.Len() == 0
			s = s[len(thinkClose):]
		case !last && (open && strings.HasPrefix(thinkOpen, s) || end && strings.HasPrefix(thinkClose, s)):
			f.hold = s
			return
		default:
			f.emit("<")
			s = s[1:]
		}
	}
}

func (f *thinkFilter) emit(s string) {
	if f.inside {
		f.r.reasoning.WriteString(s)
		return
	}
	if f.trim {
		s = strings.TrimLeft(s, " \t\r\n")
		f.trim = s == ""
	}
	f.r.text.WriteString(s)
}

func (f *thinkFilter) openHere() bool {
	if f.inside {
		return false
	}
	line := strings.TrimRight(f.r.text.String(), " \t")
	return (line == "" || line[len(line)-1] == '\n') && !f.inFence()
}

func (f *thinkFilter) closeHere() bool {
	if f.inside {
		return true
	}
	t := f.r.text.String()
	return f.r.reasoning.Len() == 0 && (t == "" || !strings.ContainsRune("`'\"", rune(t[len(t)-1]))) && !f.inFence()
}

func (f *thinkFilter) inFence() bool {
	t := f.r.text.String()
	if f.counted == 0 && strings.HasPrefix(t, "```") {
		f.fences++
	}
	f.fences += strings.Count(t[max(f.counted-1, 0):], "\n```")
	f.counted = len(t)
	return f.fences%2 == 1
}

// A textJoiner makes text out of pieces that may be cut inside a character: its
// UTF-8 bytes, or the two halves of a surrogate pair (see appendText).
type textJoiner struct{ tail []byte }

// add returns the whole characters so far; what is no text becomes U+FFFD.
func (j *textJoiner) add(p []byte, last bool) string {
	if len(j.tail) == 0 && utf8.Valid(p) {
		return string(p)
	}
	p = append(j.tail, p...)
	j.tail = nil
	var out []byte
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		if r != utf8.RuneError || n > 1 {
			out = append(out, p[:n]...)
			p = p[n:]
			continue
		}
		half := len(p) >= 3 && p[0] == 0xed && p[1]&0xe0 == 0xa0 && p[2]&0xc0 == 0x80
		high := half && p[1] < 0xb0
		if !last && (!utf8.FullRune(p) || high && (len(p) < 6 && bytes.HasPrefix([]byte{0xed}, p[3:min(4, len(p))]))) {
			j.tail = bytes.Clone(p)
			break
		}
		switch {
		case high && len(p) >= 6 && p[3] == 0xed && p[4]&0xf0 == 0xb0:
			out = utf8.AppendRune(out, 0x10000+surrogate(p)<<10+surrogate(p[3:]))
			n = 6
		case half:
			out = utf8.AppendRune(out, utf8.RuneError)
			n = 3
		default:
			out = utf8.AppendRune(out, utf8.RuneError)
		}
		p = p[n:]
	}
	return string(out)
}

// surrogate returns the 10 bits that half of a surrogate pair carries.
func surrogate(p []byte) rune { return rune(p[1]&0x0f)<<6 | rune(p[2]&0x3f) }
