package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Limits on one reply, in bytes.
const (
	maxStreamLine = 16 << 20
	maxStream     = 256 << 20 // as sent
	maxReplyText  = 8 << 20   // the answer, and again the reasoning
)

// A replyError says what is wrong with a reply; other errors of reading one are
// those of the connection.
type replyError string

const (
	errCutOff   = replyError("the answer was cut off: the connection ended before the model had finished")
	errNoReply  = replyError("the server closed the connection without an answer")
	errBroken   = replyError("the server sent a broken chunk, so the answer is not whole")
	errFiltered = replyError("the provider's content filter stopped the answer: put the request in other words, or choose another model")
)

func (e replyError) Error() string { return string(e) }

// streamLines splits a stream at LF, CRLF or CR, as event streams allow (WHATWG
// HTML, section 9.2.5). Where a server ends lines with CR alone they come late.
type streamLines struct {
	r    *bufio.Reader
	buf  []byte
	rest []byte // of buf, after a CR
	more bool   // rest holds a line
	last bool   // the stream ended within the line returned last
}

func newStreamLines(body io.Reader, idle func()) *streamLines {
	return &streamLines{r: bufio.NewReaderSize(&idleReader{body, idle, 0}, 32<<10)}
}

// next returns the next line without its end; it is good until the next call.
func (l *streamLines) next() ([]byte, error) {
	if !l.more {
		l.buf = l.buf[:0]
		for {
			p, err := l.r.ReadSlice('\n')
			if l.buf = append(l.buf, p...); len(l.buf) > maxStreamLine {
				return nil, replyError("the server sent a line longer than 16 MiB")
			}
			if err == nil || err == io.EOF && len(l.buf) > 0 {
				l.last = err != nil
				break
			}
			if err != bufio.ErrBufferFull {
				return nil, err
			}
		}
		l.rest = bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte("\n")), []byte("\r"))
	}
	var line []byte
	line, l.rest, l.more = bytes.Cut(l.rest, []byte("\r"))
	return line, nil
}

// An idleReader calls idle before every read, which may block.
type idleReader struct {
	r    io.Reader
	idle func()
	n    int
}

func (r *idleReader) Read(p []byte) (int, error) {
	r.idle()
	n, err := r.r.Read(p)
	if r.n += n; r.n > maxStream {
		err = replyError("the answer is longer than 256 MiB")
	}
	return n, err
}

// A replyReader takes in one reply as servers really send it: an event stream,
// or one JSON document whatever was asked for.
type replyReader struct {
	names   toolNames
	onDelta func(Delta)

	any, done, whole bool   // something came; [DONE]; a whole message
	junk             string // a line that belongs in no event stream
	answer, thought  textJoiner
	think            thinkFilter
	text, reasoning  strings.Builder
	sent             [2]int // bytes of text and reasoning passed on
	textOf           int    // the choice whose text is taken, -1 before there is one
	calls            callSet
	finish, raw      string
	usage            Usage
}

func newReplyReader(names toolNames, onDelta func(Delta)) *replyReader {
	r := &replyReader{names: names, onDelta: onDelta, textOf: -1}
	r.think.r = r
	return r
}

// read takes in the body. It returns nil only if the reply ended well.
func (r *replyReader) read(body io.Reader) error {
	err := r.readEvents(newStreamLines(body, r.flush))
	tooLong := r.pieces(nil, nil, true)
	r.think.add("", true)
	r.flush()
	return cmp.Or(err, tooLong)
}

func (r *replyReader) readEvents(lines *streamLines) error {
	var event string
	var data []byte
	for first := true; !r.done; {
		line, err := lines.next()
		if err == io.EOF {
			if err := r.event(event, data, lines.last); err != nil {
				return err
			}
			return r.ended()
		}
		if err != nil {
			if _, own := err.(replyError); !own && r.finish != "" {
				return nil // nothing that matters can follow a finish reason
			}
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
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if len(data) > 0 {
				data = append(data, '\n')
			}
			if data = append(data, value...); len(data) > maxStreamLine {
				return replyError("the server sent an event longer than 16 MiB")
			}
		case "event":
			event = string(value[:min(len(value), 64)])
		case "", "id", "retry":
		default:
			if line[0] == '{' && json.Valid(line) { // an error that forgot its prefix
				if err := r.chunk("", line); err != nil {
					return err
				}
			} else if !r.any && r.junk == "" {
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
		return &serverError{Message: r.junk, Code: notCompletion}
	}
	return errNoReply
}

// document reads a body that is JSON and no event stream: a whole completion,
// an error, or chunks a line each.
func (r *replyReader) document(line []byte, lines *streamLines) error {
	var doc []byte
	var err error
	for err == nil {
		if doc = append(append(doc, line...), '\n'); len(doc) > maxStreamLine {
			return replyError("the server sent a document longer than 16 MiB")
		}
		line, err = lines.next()
	}
	if err != io.EOF {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	for n := 0; ; n++ {
		var val json.RawMessage
		if err := dec.Decode(&val); err != nil && n == 0 {
			return errBroken
		} else if err != nil {
			return r.ended() // nothing after a whole document matters
		}
		if err := r.chunk("", val); err != nil {
			return err
		}
	}
}

// event takes in the data of one event. Partial says that the stream ended
// inside it.
func (r *replyReader) event(name string, data []byte, partial bool) error {
	data = bytes.TrimSpace(data)
	switch {
	case len(data) == 0 || data[0] == ':': // a comment that a relay wrapped
		return nil
	case bytes.HasPrefix(bytes.TrimPrefix(data, []byte(`"`)), []byte("[DONE]")):
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
	list := bytes.Split(data, []byte("\n"))
	if len(list) > 1 && !slices.ContainsFunc(list, func(b []byte) bool {
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
	r.any = true
	v := pick(raw, "choices", "usage", "error", "object", "message", "detail", "x_groq")
	choices, usage, says := v[0], v[1], v[4] != nil || v[5] != nil
	switch fault := string(v[2]); {
	case fault != "" && fault != "null" && fault != `""` && fault != "{}" && fault != "false",
		raw[0] == '[', event == "error", string(v[3]) == `"error"`, says && choices == nil && usage == nil:
		return readServerError(raw)
	}
	r.addUsage(usage)
	r.addUsage(pick(v[6], "usage")[0])
	var err error
	jsonMembers(choices, func(_, val []byte) {
		err = cmp.Or(err, r.choice(val))
	})
	return err
}

func (r *replyReader) addUsage(raw []byte) {
	if noValue(raw) {
		return
	}
	v := pick(raw, "prompt_tokens", "completion_tokens", "total_tokens")
	for i, to := range []*int{&r.usage.In, &r.usage.Out, &r.usage.Total} {
		if f, err := strconv.ParseFloat(string(v[i]), 64); err == nil && f >= 1 && f < 1<<40 {
			*to = int(f)
		}
	}
}

func (r *replyReader) choice(raw []byte) error {
	v := pick(raw, "index", "delta", "message", "finish_reason", "usage")
	index := max(callIndex(v[0]), 0)
	r.addUsage(v[4])
	err := r.delta(index, v[1], false)
	if err == nil && len(v[2]) > 0 && v[2][0] == '{' {
		r.whole = true
		err = r.delta(index, v[2], true)
	}
	r.addFinish(valText(v[3]))
	return err
}

// delta takes in a delta, or a whole message, of which only the parts count
// that no delta has brought before.
func (r *replyReader) delta(choice int, raw []byte, whole bool) error {
	v := pick(raw, "content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")
	content, reasoning := v[0], v[2]
	if noValue(content) {
		content = v[1]
	}
	if noValue(reasoning) { // some send both, with the same text
		reasoning = v[3]
	}
	if r.textOf < 0 && !noValue(content) {
		r.textOf = choice
	}
	if choice != max(r.textOf, 0) || whole && r.text.Len()+len(r.think.hold) > 0 {
		content = nil
	}
	if choice != max(r.textOf, 0) || whole && r.reasoning.Len() > 0 {
		reasoning = nil
	}
	if err := r.pieces(content, reasoning, false); err != nil {
		return err
	}
	if whole && len(r.calls.list) > 0 {
		return nil
	}
	var err error
	add := func(_, val []byte) { err = cmp.Or(err, r.calls.add(choice, val)) }
	if v[5] != nil && v[5][0] == '{' {
		add(nil, slices.Concat([]byte(`{"index":0,"function":`), v[5], []byte("}")))
	}
	if v[4] != nil && v[4][0] == '{' {
		add(nil, v[4])
	} else {
		jsonMembers(v[4], add)
	}
	return err
}

// noValue reports whether a value says nothing.
func noValue(val []byte) bool {
	return len(val) == 0 || string(val) == "null" || string(val) == `""`
}

// pieces takes in pieces of content and reasoning; last says that no more come.
func (r *replyReader) pieces(content, reasoning []byte, last bool) error {
	t, th := appendJSONText(nil, content), appendJSONText(nil, reasoning)
	if t == nil {
		t, th = contentParts(content, th)
	}
	if len(th) == 0 && len(reasoning) > 0 {
		th = deepText(nil, reasoning)
	}
	r.reasoning.WriteString(r.thought.add(th, last))
	r.think.add(r.answer.add(t, last), false)
	if r.text.Len() > maxReplyText || r.reasoning.Len() > maxReplyText {
		return replyError("the answer is longer than 8 MiB")
	}
	return nil
}

// contentParts reads content that is a list of parts, or one part; reasoning in
// it is appended.
func contentParts(raw, reasoning []byte) (answer, _ []byte) {
	part := func(_, val []byte) {
		switch valText(pick(val, "type")[0]) {
		case "text", "output_text", "":
			answer = deepText(answer, val)
		case "thinking", "reasoning":
			reasoning = deepText(reasoning, val)
		}
	}
	if len(raw) > 0 && raw[0] == '{' {
		part(nil, raw)
	} else {
		jsonMembers(raw, part)
	}
	return answer, reasoning
}

// deepText appends the text in a part, wherever the server puts it.
func deepText(dst, val []byte) []byte {
	if dst = appendJSONText(dst, val); len(val) > 0 && val[0] == '{' {
		for _, v := range pick(val, "text", "thinking", "content") {
			dst = deepText(dst, v)
		}
	} else if len(val) > 0 && val[0] == '[' {
		jsonMembers(val, func(_, v []byte) { dst = deepText(dst, v) })
	}
	return dst
}

// flush passes on what has come.
func (r *replyReader) flush() {
	text, reasoning := r.text.String()[r.sent[0]:], r.reasoning.String()[r.sent[1]:]
	r.sent = [2]int{r.text.Len(), r.reasoning.Len()}
	if r.onDelta != nil && reasoning != "" {
		r.onDelta(Delta{Reasoning: reasoning})
	}
	if r.onDelta != nil && text != "" {
		r.onDelta(Delta{Text: text})
	}
}

// finishes gives what the reasons of various servers mean; all others are stop.
// Where several come, the one later in finishRank wins.
var finishes = map[string]string{
	"tool_calls": "tool_calls", "tool_call": "tool_calls", "tool_use": "tool_calls", "function_call": "tool_calls",
	"length": "length", "max_tokens": "length", "max_output_tokens": "length", "model_length": "length",
	"content_filter": "content_filter", "sensitive": "content_filter", "safety": "content_filter",
	"recitation": "content_filter", "blocklist": "content_filter", "prohibited_content": "content_filter", "spii": "content_filter",
	"error": "failed", "failed": "failed", "network_error": "failed", "abort": "failed", "aborted": "failed",
	"cancelled": "failed", "canceled": "failed", "timeout": "failed", "insufficient_system_resource": "failed",
	"malformed_function_call": "malformed", "unexpected_tool_call": "malformed", "malformed_tool_call": "malformed",
}

var finishRank = []string{"", "stop", "tool_calls", "malformed", "length", "content_filter", "failed"}

func (r *replyReader) addFinish(raw string) {
	if raw == "" || raw == "null" {
		return
	}
	f := cmp.Or(finishes[strings.ToLower(raw)], "stop")
	if slices.Index(finishRank, f) >= slices.Index(finishRank, r.finish) {
		r.finish, r.raw = f, raw[:min(len(raw), 64)]
	}
}

// reply returns what was read. After an error no call of it may run, so none is
// in it.
func (r *replyReader) reply(err error) (Reply, error) {
	out := Reply{Text: r.text.String(), Reasoning: r.reasoning.String(), Finish: "stop", Usage: r.usage}
	out.Usage.Total = cmp.Or(out.Usage.Total, out.Usage.In+out.Usage.Out)
	if r.raw != r.finish {
		out.RawFinish = r.raw
	}
	switch {
	case err != nil:
		return out, err
	case r.finish == "failed":
		return out, replyError("the server reported that the answer failed (" + boundedLine(r.raw, 64) + "): try again")
	case r.finish == "content_filter":
		return out, errFiltered
	}
	if out.Calls = r.calls.final(r.names, r.finish); len(out.Calls) > 0 {
		out.Finish = "tool_calls"
	}
	if r.finish == "length" {
		out.Finish = "length"
	}
	return out, nil
}

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
	s, f.hold = f.hold+s, ""
	for s != "" {
		i := strings.IndexByte(s, '<')
		if i < 0 {
			i = len(s)
		}
		f.emit(s[:i])
		if s = s[i:]; s == "" {
			return
		}
		tag := thinkOpen
		if f.inside || strings.HasPrefix(s, "</") {
			tag = thinkClose
		}
		switch counts := f.counts(tag); {
		case counts && strings.HasPrefix(s, tag):
			f.turn(tag == thinkOpen)
			s = s[len(tag):]
		case !last && (counts && strings.HasPrefix(tag, s) || s == "<"):
			f.hold = s
			return
		default:
			f.emit("<")
			s = s[1:]
		}
	}
}

// turn enters or leaves reasoning.
func (f *thinkFilter) turn(in bool) {
	r := f.r
	if !in && !f.inside {
		r.reasoning.WriteString(strings.TrimSpace(r.text.String()))
		r.text.Reset()
		if r.sent[0] > 0 { // it was passed on as text
			r.sent = [2]int{0, r.reasoning.Len()}
		}
		f.counted, f.fences = 0, 0
	}
	f.inside, f.trim = in, r.text.Len() == 0
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

// counts reports whether a tag that stood here would be one.
func (f *thinkFilter) counts(tag string) bool {
	if f.inside {
		return true
	}
	t := f.r.text.String()
	if f.counted == 0 && strings.HasPrefix(t, "```") {
		f.fences++
	}
	f.fences += strings.Count(t[max(f.counted-1, 0):], "\n```")
	f.counted = len(t)
	if f.fences%2 == 1 {
		return false
	}
	if tag == thinkClose {
		return f.r.reasoning.Len() == 0 && (t == "" || !strings.ContainsRune("`'\"", rune(t[len(t)-1])))
	}
	t = strings.TrimRight(t, " \t")
	return t == "" || t[len(t)-1] == '\n'
}
