package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits on one reply, in bytes.
const (
	maxStreamLine = 16 << 20
	maxStream     = 256 << 20 // as sent
	maxReplyText  = 8 << 20   // the answer, and again the reasoning
)

// A replyError says what is wrong with a reply; other errors of reading one are those of the connection.
type replyError string

const (
	errCutOff   = replyError("the answer was cut off: the connection ended before the model had finished")
	errNoReply  = replyError("the server closed the connection without an answer")
	errBroken   = replyError("the server sent a broken chunk, so the answer is not whole")
	errFiltered = replyError("the provider's content filter stopped the answer: put the request in other words, or choose another model")
)

func (e replyError) Error() string { return string(e) }

// Chunks are decoded into the types below: where servers differ in the type of a member it is kept raw or left out,
// and text stays raw since it may be cut inside a character, which encoding/json would replace.
type wireChunk struct {
	Object                 anyText
	Choices                []wireChoice
	Error, Message, Detail json.RawMessage
	Usage                  wireUsage
	XGroq                  struct{ Usage wireUsage } `json:"x_groq"`
}

type wireChoice struct {
	Index        json.RawMessage
	Delta        wireDelta
	Message      *wireDelta
	FinishReason anyText `json:"finish_reason"`
	Usage        wireUsage
}

type wireDelta struct {
	Content, Refusal, Reasoning json.RawMessage
	ReasoningContent            json.RawMessage `json:"reasoning_content"`
	ToolCalls                   json.RawMessage `json:"tool_calls"`
	FunctionCall                *wireFunction   `json:"function_call"`
}

type wireUsage struct {
	In    float64 `json:"prompt_tokens"`
	Out   float64 `json:"completion_tokens"`
	Total float64 `json:"total_tokens"`
}

func (u wireUsage) add(to *Usage) {
	for i, n := range []float64{u.In, u.Out, u.Total} {
		if n >= 1 && n < 1<<40 {
			*[]*int{&to.In, &to.Out, &to.Total}[i] = int(n)
		}
	}
}

// anyText is the text of a string, number or boolean; other values have none.
type anyText string

func (t *anyText) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		return json.Unmarshal(raw, (*string)(t))
	case '{', '[', 'n':
	default:
		*t = anyText(raw)
	}
	return nil
}

// decodeLoosely decodes what fits and leaves out what has another type; it reports whether raw is JSON.
func decodeLoosely(raw []byte, into any) bool {
	var bad *json.SyntaxError
	return !errors.As(json.Unmarshal(raw, into), &bad)
}

// hasValue reports whether a value says anything.
func hasValue(val []byte) bool {
	return len(val) > 0 && string(val) != "null" && string(val) != `""`
}

func isObject(val []byte) bool { return len(val) > 0 && val[0] == '{' }

// A textJoiner decodes the pieces of a text, each a JSON value, where a character may be cut between two strings:
// its bytes, or the two escapes of a surrogate pair.
type textJoiner struct{ held []byte } // the start of a character, as sent

// add returns the whole characters so far; what is no text becomes U+FFFD, a list or object is its own text.
func (j *textJoiner) add(raw []byte, last bool) string {
	if len(raw) > 0 && raw[0] == '"' {
		raw = raw[1 : len(raw)-1]
	} else if !hasValue(raw) {
		raw = nil
	}
	if len(j.held) > 0 {
		raw = append(j.held, raw...)
	}
	end := len(raw)
	if !last {
		end = wholeEnd(raw)
	}
	raw, j.held = raw[:end], bytes.Clone(raw[end:])
	var s string
	if utf8.Valid(raw) && bytes.IndexByte(raw, '\\') < 0 || json.Unmarshal(slices.Concat([]byte{'"'}, raw, []byte{'"'}), &s) != nil {
		return string(raw)
	}
	return s
}

// parts reads a text, a list of parts, or one part: the answer in it and the reasoning.
func (j *textJoiner) parts(raw []byte) (answer, thought string) {
	var v any
	if !isObject(raw) && !bytes.HasPrefix(raw, []byte("[")) || json.Unmarshal(raw, &v) != nil {
		return j.add(raw, false), ""
	}
	var a, t strings.Builder
	deepText(v, &a, &t)
	return a.String(), t.String()
}

// deepText writes the text in a part, wherever the server puts it.
func deepText(v any, to, thought *strings.Builder) {
	switch v := v.(type) {
	case string:
		to.WriteString(v)
	case []any:
		for _, sub := range v {
			deepText(sub, to, thought)
		}
	case map[string]any:
		switch v["type"] {
		case "thinking", "reasoning":
			to = thought
		case "text", "output_text", "", nil:
		default:
			return
		}
		for _, name := range []string{"text", "thinking", "content"} {
			deepText(v[name], to, thought)
		}
	}
}

var halfPair = lazyRegexp(`^\\u[dD][89abAB]`)

// wholeEnd returns where the last whole character of a text in JSON ends.
func wholeEnd(b []byte) int {
	n := len(b)
	if n >= 6 && halfPair().Match(b[n-6:]) && (n-len(bytes.TrimRight(b[:n-6], `\`)))%2 == 0 {
		return n - 6
	}
	for i := n - 1; i >= max(n-3, 0); i-- {
		if utf8.RuneStart(b[i]) && !utf8.FullRune(b[i:]) {
			return i
		}
	}
	return n
}

// A replyReader takes in one reply as servers really send it: an event stream, or JSON documents whatever was asked
// for.
type replyReader struct {
	onDelta func(Delta)
	waits   func() // called before a wait for more, after the first byte
	body    io.Reader
	got     int // bytes of it

	any, done       bool   // something came; [DONE]
	cr              bool   // the last byte was one
	junk            string // a line that belongs in no event stream
	answer, thought textJoiner
	think           thinkFilter
	text, reasoning strings.Builder
	sent            [2]int // bytes of text and reasoning passed on
	calls           callSet
	finish, raw     string
	usage           Usage
}

func newReplyReader(names toolNames, onDelta func(Delta)) *replyReader {
	r := &replyReader{onDelta: onDelta, calls: callSet{names: names}}
	r.think.r = r
	return r
}

// Read reads from the body, with LF for CR and CRLF. What was understood is passed on before each wait.
func (r *replyReader) Read(p []byte) (int, error) {
	r.flush()
	if r.got > 0 && r.waits != nil {
		r.waits()
	}
	n, err := r.body.Read(p)
	if r.got += n; r.got > maxStream {
		return 0, replyError("the answer is longer than 256 MiB")
	}
	if !r.cr && bytes.IndexByte(p[:n], '\r') < 0 {
		return n, err
	}
	out := p[:0]
	for _, c := range p[:n] {
		if c == '\r' {
			out = append(out, '\n')
		} else if c != '\n' || !r.cr {
			out = append(out, c)
		}
		r.cr = c == '\r'
	}
	return len(out), err
}

// read takes in the body. It returns nil only if the reply ended well.
func (r *replyReader) read(body io.Reader) error {
	r.body = body
	in := bufio.NewReaderSize(r, 32<<10)
	if bom, _ := in.Peek(3); string(bom) == "\xef\xbb\xbf" {
		in.Discard(3)
	}
	first, err := in.Peek(1)
	for err == nil && bytes.Contains([]byte(" \t\n"), first) {
		in.Discard(1)
		first, err = in.Peek(1)
	}
	if err == nil && bytes.Contains([]byte("{["), first) {
		err = r.documents(in)
	} else if err == nil {
		err = r.events(in)
	}
	r.think.add(r.answer.add(nil, true), true)
	r.reasoning.WriteString(r.thought.add(nil, true))
	r.flush()
	var own replyError
	var said *serverError
	switch {
	case errors.As(err, &own) || errors.As(err, &said):
		return err
	case r.done || r.finish != "": // nothing that matters can follow
		return nil
	case err != io.EOF:
		return err
	case r.any:
		return errCutOff
	case r.junk != "":
		return &serverError{Message: r.junk, Code: notCompletion}
	}
	return errNoReply
}

// documents reads a body that is JSON: a whole completion, an error, or chunks one after the other.
func (r *replyReader) documents(in io.Reader) error {
	limited := &io.LimitedReader{R: in, N: maxStreamLine}
	for d := json.NewDecoder(limited); ; limited.N = maxStreamLine {
		var val json.RawMessage
		err := d.Decode(&val)
		var bad *json.SyntaxError
		switch {
		case err == nil:
			_, err = r.chunk("", val)
		case limited.N == 0:
			return replyError("the server sent a document longer than 16 MiB")
		case r.finish == "" && (err == io.ErrUnexpectedEOF || errors.As(err, &bad)):
			return errBroken
		}
		if err != nil {
			return err
		}
	}
}

// events reads an event stream (WHATWG HTML, section 9.2.6); it returns nil at [DONE].
func (r *replyReader) events(in *bufio.Reader) error {
	var name string
	var data, line []byte
	for !r.done {
		part, err := in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxStreamLine || len(data) > maxStreamLine {
			return replyError("the server sent a line or event longer than 16 MiB")
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil && err != io.EOF {
			return err
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			data = append(append(data, value...), '\n')
		case "event":
			name = string(value[:min(len(value), 64)])
		case "id", "retry", "": // or a comment, or the end of an event
		default:
			valid, fault := line[0] == '{', error(nil)
			if valid { // an error that forgot its prefix
				valid, fault = r.chunk("", line)
			}
			if fault != nil {
				return fault
			}
			if !valid && !r.any && r.junk == "" {
				r.junk = string(line[:min(len(line), 300)])
			}
		}
		if len(line) == 0 || err != nil {
			if err := cmp.Or(r.event(name, data, err != nil), err); err != nil {
				return err
			}
			name, data = "", data[:0]
		}
		line = line[:0]
	}
	return nil
}

// event takes in the data of one event; last says that the stream ended with it.
func (r *replyReader) event(name string, data []byte, last bool) error {
	data = bytes.TrimSpace(data)
	switch {
	case r.done || len(data) == 0 || data[0] == ':': // a comment that a relay wrapped
		return nil
	case bytes.HasPrefix(bytes.TrimPrefix(data, []byte(`"`)), []byte("[DONE]")):
		r.any, r.done = true, true
		return nil
	}
	if valid, err := r.chunk(name, data); valid {
		return err
	}
	switch {
	case name == "error":
		return parseServerError(data)
	case name != "" && name != "message":
		return nil // some server's own event
	case bytes.IndexByte(data, '\n') >= 0: // some servers leave out the blank line between events
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			if err := r.event(name, line, last); err != nil {
				return err
			}
		}
		return nil
	}
	if r.any = true; last {
		return errCutOff
	}
	return errBroken
}

// chunk takes in one chunk and reports whether it is JSON at all.
func (r *replyReader) chunk(event string, raw []byte) (bool, error) {
	var c wireChunk
	if !plainChunk(raw, &c) {
		if c = (wireChunk{}); !decodeLoosely(raw, &c) {
			return false, nil
		}
	}
	r.any = true
	bare := (c.Message != nil || c.Detail != nil) && c.Choices == nil && c.Usage == wireUsage{}
	if fault := string(c.Error); hasValue(c.Error) && fault != "{}" && fault != "false" ||
		raw[0] == '[' || event == "error" || c.Object == "error" || bare {
		return true, parseServerError(raw)
	}
	c.Usage.add(&r.usage)
	c.XGroq.Usage.add(&r.usage)
	for _, ch := range c.Choices {
		ch.Usage.add(&r.usage)
		index := max(callIndex(ch.Index), 0)
		err := r.delta(index, ch.Delta, false)
		if ch.Message != nil && err == nil {
			r.addFinish("stop")
			err = r.delta(index, *ch.Message, true)
		}
		if err != nil {
			return true, err
		}
		r.addFinish(string(ch.FinishReason))
	}
	return true, nil
}

// delta takes in a delta, or a whole message, of which only the parts count that no delta has brought before.
func (r *replyReader) delta(choice int, d wireDelta, whole bool) error {
	content, reasoning := d.Content, d.ReasoningContent
	if !hasValue(content) {
		content = d.Refusal
	}
	if !hasValue(reasoning) { // some send both, with the same text
		reasoning = d.Reasoning
	}
	if choice == 0 && !(whole && r.reasoning.Len() > 0) {
		text, more := r.thought.parts(reasoning)
		r.reasoning.WriteString(text + more)
	}
	if choice == 0 && !(whole && r.text.Len()+len(r.think.hold) > 0) {
		text, thought := r.answer.parts(content)
		r.reasoning.WriteString(thought)
		r.think.add(text, false)
	}
	if r.text.Len() > maxReplyText || r.reasoning.Len() > maxReplyText {
		return replyError("the answer is longer than 8 MiB")
	}
	if whole && len(r.calls.list) > 0 {
		return nil
	}
	var list []wireCall
	if isObject(d.ToolCalls) { // one call, without a list around it
		d.ToolCalls = slices.Concat([]byte("["), d.ToolCalls, []byte("]"))
	}
	if hasValue(d.ToolCalls) {
		decodeLoosely(d.ToolCalls, &list)
	}
	if d.FunctionCall != nil {
		list = append(list, wireCall{Index: []byte("0"), Function: *d.FunctionCall})
	}
	for _, c := range list {
		if err := r.calls.add(choice, c); err != nil {
			return err
		}
	}
	return nil
}

// flush passes on what has come.
func (r *replyReader) flush() {
	text, reasoning := r.text.String()[r.sent[0]:], r.reasoning.String()[r.sent[1]:]
	r.sent = [2]int{r.text.Len(), r.reasoning.Len()}
	for _, d := range []Delta{{Reasoning: reasoning}, {Text: text}} {
		if r.onDelta != nil && d != (Delta{}) {
			r.onDelta(d)
		}
	}
}

// finishes gives what the reasons of various servers mean; all others are stop. Where several come, the one later in
// finishRank wins.
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

// reply returns what was read. After an error no call of it may run, so none is in it.
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
	if out.Calls = r.calls.final(r.finish); len(out.Calls) > 0 {
		out.Finish = "tool_calls"
	}
	if r.finish == "length" {
		out.Finish = "length"
	}
	return out, nil
}

// A thinkFilter takes <think>…</think> out of the start of an answer, split anywhere; in its text such tags stay. A
// closing tag alone means that the server's template had opened it: all before it was reasoning.
type thinkFilter struct {
	r      *replyReader
	inside bool
	begun  bool   // the answer has
	closed bool   // a closing tag has come
	hold   string // may be the start of a tag
}

const thinkOpen, thinkClose = "<think>", "</think>"

func (f *thinkFilter) add(s string, last bool) {
	s, f.hold = f.hold+s, ""
	for s != "" {
		before, _, found := strings.Cut(s, "<")
		f.emit(before)
		if !found {
			return
		}
		s = s[len(before):]
		tag := thinkClose
		if !f.inside && !f.begun && !strings.HasPrefix(s, "</") {
			tag = thinkOpen
		}
		counts := f.inside || tag == thinkOpen || !f.closed
		if rest, ok := strings.CutPrefix(s, tag); ok && counts {
			f.turn(tag)
			s = rest
		} else if counts && strings.HasPrefix(tag, s) && !last {
			f.hold = s
			return
		} else {
			f.emit("<")
			s = s[1:]
		}
	}
}

// turn enters or leaves reasoning at a tag.
func (f *thinkFilter) turn(tag string) {
	r := f.r
	orphan := !f.inside && tag == thinkClose
	if text := r.text.String(); orphan && (r.reasoning.Len() > 0 || strings.Count(text, "```")%2 == 1 || strings.HasSuffix(text, "`")) {
		f.closed = true // it is quoted
		f.emit(tag)
		return
	}
	if orphan {
		r.reasoning.WriteString(strings.TrimSpace(r.text.String()))
		r.text.Reset()
		if r.sent[0] > 0 { // it was passed on as text
			r.sent = [2]int{0, r.reasoning.Len()}
		}
	}
	f.inside, f.begun, f.closed = tag == thinkOpen, false, tag == thinkClose
}

func (f *thinkFilter) emit(s string) {
	if f.inside {
		f.r.reasoning.WriteString(s)
		return
	}
	if f.closed && !f.begun {
		s = strings.TrimLeft(s, " \t\r\n")
	}
	f.begun = f.begun || strings.TrimSpace(s) != ""
	f.r.text.WriteString(s)
}
