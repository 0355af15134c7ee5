package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A view shows one turn at the command line. It is the client of the handler:
// it reads the stream of the reply as an SDK would, and hears the rest as
// events. Standard output gets the answer and nothing else.
type view struct {
	app  *app
	term bool // standard output is a terminal: text is shown as it comes
	stop func(error)

	header  http.Header
	status  int
	pending []byte // of the stream, up to the next line feed
	failure string // the message of an error event or body
	reply   strings.Builder
	spin    func()
	started time.Time
	calls   map[string]string // summary by id
	refused []string          // what was not done
}

// Header, WriteHeader and Write make a view an http.ResponseWriter.
func (v *view) Header() http.Header {
	if v.header == nil {
		v.header = http.Header{}
	}
	return v.header
}

// WriteHeader notes the status.
func (v *view) WriteHeader(status int) { v.status = status }

// Write reads the stream line by line; what is not an event is an error body.
func (v *view) Write(b []byte) (int, error) {
	v.pending = append(v.pending, b...)
	for {
		i := bytes.IndexByte(v.pending, '\n')
		if i < 0 {
			return len(b), nil
		}
		line := v.pending[:i]
		v.pending = v.pending[i+1:]
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok && !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		if !ok {
			data = line
		}
		v.chunk(data)
	}
}

func (v *view) chunk(data []byte) {
	var c struct {
		Choices []struct {
			Delta struct{ Content string }
		}
		Error *struct{ Message string }
	}
	if json.Unmarshal(data, &c) != nil {
		return // [DONE]
	}
	if c.Error != nil {
		v.failure = c.Error.Message
	}
	for _, ch := range c.Choices {
		v.text(ch.Delta.Content)
	}
}

// message is what the handler said when it refused the request.
func (v *view) message() string {
	if v.failure != "" {
		return v.failure
	}
	return fmt.Sprintf("the request failed with status %d", v.status)
}

func (v *view) begin() {
	v.started, v.calls = time.Now(), map[string]string{}
	v.wait("thinking")
}

// text takes a piece of the answer. Where nobody watches, a reply is held to
// its end, and only the last one is printed.
func (v *view) text(s string) {
	if s == "" {
		return
	}
	if v.app.flags.json {
		v.emit(Event{Type: "text", Text: s})
		return
	}
	if !v.term {
		v.reply.WriteString(s)
		return
	}
	v.rest()
	if err := v.app.term.Stream(s); err != nil {
		v.stop(outputError(err))
	}
}

// event takes what happens besides the text.
func (v *view) event(e Event) {
	if v.app.flags.json && !e.thinking && !e.wait && e.Type != "text" {
		v.emit(e)
	}
	switch e.Type {
	case "text":
		if e.wait || e.thinking && v.app.flags.think {
			v.activity(e.Text)
		}
	case "call":
		v.reply.Reset() // a text before calls is not the answer
		v.calls[e.ID] = e.Summary
		v.wait(e.Tool)
	case "question":
		v.rest()
		v.activity("? " + e.Summary + " (asks: " + strings.Join(e.Reasons, "; ") + ")")
		if !v.app.term.CanAsk() {
			v.activity("  waits: picket approvals allow " + e.ID + ", or deny " + e.ID)
		}
	case "result":
		v.result(e)
		v.wait("thinking")
	}
}

func (v *view) result(e Event) {
	switch {
	case e.Verdict == "deny":
		v.refused = append(v.refused, v.calls[e.ID]+": "+e.Error)
		v.activity("✗ " + v.calls[e.ID] + " blocked: " + e.Error)
	case e.OK != nil && *e.OK:
		v.activity("✓ " + v.calls[e.ID])
	default:
		v.activity("✗ " + v.calls[e.ID] + ": " + e.Error)
	}
	for _, n := range e.Reasons {
		v.activity("  note: " + n)
	}
}

func (v *view) activity(line string) {
	v.rest()
	if !v.app.flags.quiet {
		v.app.term.Activity(line)
	}
}

// wait shows that something works; rest ends that.
func (v *view) wait(label string) {
	v.rest()
	if !v.app.flags.quiet {
		v.spin = v.app.term.Spinner(label)
	}
}

func (v *view) rest() {
	if v.spin != nil {
		v.spin()
		v.spin = nil
	}
}

func (v *view) emit(e Event) {
	if err := v.app.prog.printEvent(e); err != nil {
		v.stop(err)
	}
}

// finish prints the answer if it was held, and what the turn cost.
func (v *view) finish(res TurnResult, err error) {
	v.rest()
	switch {
	case v.app.flags.json:
		v.emit(Event{Type: "usage", In: &res.Usage.In, Out: &res.Usage.Out})
	case v.term:
		if serr := v.app.term.EndStream(); serr != nil {
			v.stop(outputError(serr))
		}
	case err == nil:
		text := strings.Trim(v.reply.String(), "\n")
		if text != "" {
			text += "\n"
		}
		if perr := v.app.prog.print(text); perr != nil {
			v.stop(perr)
		}
	}
	if v.app.flags.quiet {
		return
	}
	for _, r := range v.refused {
		v.app.term.Activity("Not done: " + r)
	}
	v.app.term.Activity(fmt.Sprintf("%d tokens in, %d out, %.1fs", res.Usage.In, res.Usage.Out, time.Since(v.started).Seconds()))
}
