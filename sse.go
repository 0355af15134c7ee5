package main

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// replyTimes are the times of a reply and of its connection.
type replyTimes struct {
	ping   time.Duration // between signs of life
	hold   time.Duration // for which the status of a plain reply can still change
	write  time.Duration // that a reader may take
	resend time.Duration // after a stop, in which its request may come again
}

// Clients give up or send again after 300 s without a byte.
var usualTimes = replyTimes{ping: 15 * time.Second, hold: 240 * time.Second, write: 30 * time.Second, resend: 15 * time.Second}

// A replyWriter writes the answer to one chat-completions request, streamed or
// whole. After a write has failed it writes nothing more; the turn goes on.
type replyWriter struct {
	w      http.ResponseWriter
	c      *http.ResponseController
	times  replyTimes
	id     string
	prefix string // of each chunk
	made   int64
	stream bool
	usage  bool
	shape  shaper
	began  bool // the head has been sent
	wrote  bool // some text has been sent
	blank  bool // and all of it was blanks
	dead   bool
	buf    []byte
}

func newReplyWriter(w http.ResponseWriter, req completion, times replyTimes) *replyWriter {
	o := &replyWriter{w: w, c: http.NewResponseController(w), times: times, id: newID("chatcmpl"), made: time.Now().Unix(),
		stream: req.stream, usage: req.usage, shape: newShaper(req.params), blank: true}
	o.prefix = fmt.Sprintf(`data: {"id":%q,"object":"chat.completion.chunk","created":%d,"model":%q,"choices":[`, o.id, o.made, modelID)
	if o.stream {
		o.begin()
		o.chunk(`"role":"assistant","content":""`, "")
		o.flush()
	}
	return o
}

// begin sends the head: what goes wrong from now on is said in the text.
func (o *replyWriter) begin() {
	if o.began {
		return
	}
	o.began = true
	o.head()
	if !o.stream {
		o.buf = append(o.buf, ' ')
	}
}

func (o *replyWriter) head() {
	h := o.w.Header()
	h.Set("Content-Type", "application/json")
	if o.stream {
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("X-Accel-Buffering", "no")
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Should-Retry", "false")
	o.deadline()
	o.w.WriteHeader(http.StatusOK)
}

// chunk adds one chunk; delta is the inside of a JSON object, finish "" for none
// yet.
func (o *replyWriter) chunk(delta, finish string) {
	end := "null"
	if finish != "" {
		end = `"` + finish + `"`
	}
	o.buf = append(append(append(append(o.buf, o.prefix...), `{"index":0,"delta":{`...), delta...), `},"finish_reason":`...)
	o.buf = append(append(o.buf, end...), "}]}\n\n"...)
}

// flush sends what was added. A reader that takes too long is given up.
func (o *replyWriter) flush() {
	if len(o.buf) == 0 || o.dead {
		return
	}
	o.deadline()
	_, err := o.w.Write(o.buf)
	if err == nil {
		err = o.c.Flush()
	}
	o.dead = err != nil && !errors.Is(err, http.ErrNotSupported)
	if o.buf = o.buf[:0]; cap(o.buf) > 64<<10 {
		o.buf = nil
	}
}

// deadline gives the reader time for the next write; where there is no
// connection there is none.
func (o *replyWriter) deadline() { _ = o.c.SetWriteDeadline(time.Now().Add(o.times.write)) }

// text adds a piece of the answer. Pieces are whole runes.
func (o *replyWriter) text(s string) {
	if o.stream {
		o.content(o.shape.feed(s))
	}
}

// notice adds a line of picket's own, which no limit of the client's cuts.
func (o *replyWriter) notice(s string) {
	if !o.stream {
		return
	}
	o.content(o.shape.rest())
	if o.wrote {
		s = "\n\n" + s
	}
	o.content(s)
}

func (o *replyWriter) content(s string) {
	if s == "" {
		return
	}
	o.wrote, o.blank = true, o.blank && strings.TrimSpace(s) == ""
	o.buf = append(append(o.buf, o.prefix...), `{"index":0,"delta":{"content":`...)
	o.buf = append(appendString(o.buf, s), "},\"finish_reason\":null}]}\n\n"...)
}

// ping keeps the connection alive: one line feed only, so that it joins the
// next event; some clients break on an empty one.
func (o *replyWriter) ping() {
	switch {
	case o.stream:
		o.buf = append(o.buf, ": ping\n"...)
	case o.began && len(o.buf) == 0:
		o.buf = append(o.buf, ' ')
	}
}

const noText = "The turn ended without an answer."

// endError is how a turn that ran and did not end well is answered: never with
// a 5xx, since clients would send the request, and so the turn, again.
func endError(err error, id string) *apiError {
	if errors.Is(err, errStopped) {
		return &apiError{http.StatusConflict, "stopped", "Stopped.", ""}
	}
	return &apiError{http.StatusBadRequest, "turn_failed", "The turn failed. The owner finds the reason with: picket audit show " + id, ""}
}

// end closes the answer to a turn.
func (o *replyWriter) end(res TurnResult, err error, id string) {
	switch {
	case err != nil && o.stream:
		o.buf = append(append(append(o.buf, `data: {"error":`...), errorObject(endError(err, id))...), "}\n\n"...)
		o.flush()
		return
	case err != nil && !o.began:
		o.deadline()
		writeError(o.w, endError(err, id))
		return
	case o.stream:
		o.content(o.shape.rest())
		o.finish(res.Cut, res.Usage)
		return
	}
	texts := []string{o.shape.feed(res.Text) + o.shape.rest()}
	if err != nil {
		texts = append(texts, endError(err, id).message)
	}
	o.whole(joinTexts(append(res.NotDone, texts...)), res.Cut, res.Usage)
}

// repeat gives the answer of a turn again.
func (o *replyWriter) repeat(end chatLine) {
	res, err := TurnResult{Text: end.Content, NotDone: end.NotDone, Cut: end.Cut}, error(nil)
	if end.Usage != nil {
		res.Usage = *end.Usage
	}
	switch end.End {
	case endDone:
	case endStopped:
		err = errStopped
	default:
		err = errNoAnswer
	}
	for _, l := range res.NotDone {
		o.notice(l)
	}
	if o.wrote && res.Text != "" {
		o.text("\n\n")
	}
	o.text(res.Text)
	o.end(res, err, end.Turn)
}

func (o *replyWriter) finish(cut bool, u Usage) {
	if o.blank {
		o.content(noText)
	}
	o.chunk("", o.reason(cut))
	if o.usage {
		o.buf = append(append(append(append(o.buf, o.prefix...), `],"usage":`...), usageJSON(u)...), "}\n\n"...)
	}
	o.buf = append(o.buf, "data: [DONE]\n\n"...)
	o.flush()
}

func (o *replyWriter) reason(cut bool) string {
	if cut && !o.shape.stopped || o.shape.cut {
		return "length"
	}
	return "stop"
}

func (o *replyWriter) whole(text string, cut bool, u Usage) {
	if strings.TrimSpace(text) == "" {
		text += noText
	}
	o.buf = fmt.Appendf(o.buf, `{"id":%q,"object":"chat.completion","created":%d,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":`, o.id, o.made, modelID)
	o.buf = fmt.Appendf(appendString(o.buf, text), `},"finish_reason":%q}],"usage":%s}`+"\n", o.reason(cut), usageJSON(u))
	if !o.began {
		o.w.Header().Set("Content-Length", strconv.Itoa(len(o.buf)))
		o.head()
	}
	o.flush()
}

// joinTexts puts a blank line between texts.
func joinTexts(list []string) string {
	out := ""
	for _, s := range list {
		if out != "" && s != "" {
			out += "\n\n"
		}
		out += s
	}
	return out
}

// A shaper cuts an answer at the client's stop words and token limit: what a
// model would do if it were asked once. Tokens are estimated.
type shaper struct {
	stops   []string
	left    int // bytes; -1 is no limit
	held    string
	stopped bool // at a stop word
	cut     bool // at the limit
}

func newShaper(p ModelRequest) shaper {
	s := shaper{stops: p.Stop, left: -1}
	if p.MaxTokens > 0 {
		s.left = int(float64(p.MaxTokens)*bytesPerToken) + 1
	}
	return s
}

// feed takes the next piece and returns what is certain.
func (s *shaper) feed(text string) string {
	if s.stopped || s.cut {
		return ""
	}
	text, s.held = s.held+text, ""
	at := len(text)
	for _, w := range s.stops {
		if i := strings.Index(text, w); i >= 0 {
			at, s.stopped = min(at, i), true
		}
	}
	if text = text[:at]; !s.stopped {
		keep := len(text)
		for _, w := range s.stops { // what could become one
			for n := min(len(w)-1, len(text)); n > len(text)-keep; n-- {
				if strings.HasSuffix(text, w[:n]) {
					keep = len(text) - n
				}
			}
		}
		text, s.held = text[:keep], text[keep:]
	}
	return s.limit(text)
}

// rest returns what was held back.
func (s *shaper) rest() string {
	text := s.held
	s.held = ""
	if s.stopped || s.cut {
		return ""
	}
	return s.limit(text)
}

func (s *shaper) limit(text string) string {
	if s.left < 0 {
		return text
	}
	if n := s.left; len(text) > n {
		for n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		text, s.cut, s.stopped = text[:n], true, false
	}
	s.left -= len(text)
	return text
}

// appendString appends text in JSON, on one line for every reader of lines.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for len(s) > 0 {
		n := 0
		for n < len(s) && s[n] >= ' ' && s[n] < utf8.RuneSelf && s[n] != '"' && s[n] != '\\' {
			n++
		}
		if b, s = append(b, s[:n]...), s[n:]; s == "" {
			break
		}
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r < ' ' || r == '\u0085' || r == '\u2028' || r == '\u2029' || r == utf8.RuneError:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = append(b, s[:size]...)
		}
		s = s[size:]
	}
	return append(b, '"')
}

func usageJSON(u Usage) string { return asJSON(u) }
