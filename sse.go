package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A replyWriter writes the answer to one chat-completions request, streamed or
// whole. After a write has failed it writes nothing more; the turn goes on.
type replyWriter struct {
	w       http.ResponseWriter
	id      string
	created int64
	stream  bool
	usage   bool
	started bool // the head has been sent
	wrote   bool // some text has been sent
	dead    bool
	buf     bytes.Buffer
}

func newReplyWriter(w http.ResponseWriter, req completion) *replyWriter {
	out := &replyWriter{w: w, id: newID("chatcmpl"), created: time.Now().Unix(), stream: req.stream, usage: req.usage}
	if req.stream {
		h := w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		h.Set("X-Should-Retry", "false")
		w.WriteHeader(http.StatusOK)
		out.started = true
		out.chunk(`{"role":"assistant","content":""}`, "")
	}
	return out
}

// chunk sends one chunk; delta is JSON, finish "" for none yet.
func (o *replyWriter) chunk(delta, finish string) {
	end := "null"
	if finish != "" {
		end = `"` + finish + `"`
	}
	o.event(fmt.Appendf(nil, `{"id":%q,"object":"chat.completion.chunk","created":%d,"model":%q,"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`,
		o.id, o.created, modelID, delta, end))
}

func (o *replyWriter) event(data []byte) {
	o.buf.Reset()
	o.buf.WriteString("data: ")
	o.buf.Write(data)
	o.buf.WriteString("\n\n")
	o.write(o.buf.Bytes())
}

func (o *replyWriter) write(b []byte) {
	if o.dead {
		return
	}
	if _, err := o.w.Write(b); err != nil {
		o.dead = true
		return
	}
	if err := http.NewResponseController(o.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		o.dead = true
	}
}

// text sends a piece of the answer. Pieces are whole runes.
func (o *replyWriter) text(s string) {
	if !o.stream || s == "" {
		return
	}
	o.wrote = true
	text, _ := marshalPlain(s) // a string cannot fail
	o.chunk(`{"content":`+string(text)+`}`, "")
}

// ping keeps the connection alive: one line feed only, so that it joins the
// next event; some clients break on an empty one.
func (o *replyWriter) ping() {
	if o.stream {
		o.write([]byte(": ping\n"))
	}
}

const noText = "The turn ended without an answer."

// end closes the answer. A turn that ran and failed is a 400, never a 5xx:
// clients would send the request, and so the turn, again.
func (o *replyWriter) end(res TurnResult, err error) {
	finish := "stop"
	if res.Cut {
		finish = "length"
	}
	switch {
	case err != nil && o.stream:
		o.event(fmt.Appendf(nil, `{"error":%s}`, errorObject(turnFailed(err))))
		return
	case err != nil:
		writeError(o.w, turnFailed(err))
		return
	case o.stream:
		if !o.wrote {
			o.text(noText)
		}
		o.chunk(`{}`, finish)
		if o.usage {
			o.event(fmt.Appendf(nil, `{"id":%q,"object":"chat.completion.chunk","created":%d,"model":%q,"choices":[],"usage":%s}`,
				o.id, o.created, modelID, usageJSON(res.Usage)))
		}
		o.write([]byte("data: [DONE]\n\n"))
		return
	}
	text, _ := marshalPlain(res.Text) // a string cannot fail
	if strings.TrimSpace(res.Text) == "" {
		text, _ = marshalPlain(noText)
	}
	h := o.w.Header()
	h.Set("Content-Type", "application/json")
	o.w.WriteHeader(http.StatusOK)
	o.write(fmt.Appendf(nil, `{"id":%q,"object":"chat.completion","created":%d,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":%q}],"usage":%s}`+"\n",
		o.id, o.created, modelID, text, finish, usageJSON(res.Usage)))
}

func turnFailed(err error) *apiError {
	return &apiError{http.StatusBadRequest, "turn_failed", "The turn failed.", ""}
}

func usageJSON(u Usage) []byte {
	b, _ := json.Marshal(u) // integers only
	return b
}
