package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The kinds of records in audit.jsonl and approvals.jsonl, one type each, with
// their fields in the order in which they are written. Every line starts with
// prev, seq, ts, kind and then those of run, chat, channel and call that apply;
// see audit.go for the format.
//
// Text is whole up to 8 KiB a field; of what is longer the head, the tail, the
// length and the SHA-256 are kept. A line is at most 64 KiB: what would be
// longer has its longest strings and lists cut further.
//
// What is not recorded, and why: secret values (placeholders and redaction
// marks stand for them), the model's reasoning (it is not acted on), chunks of
// a stream (the whole reply is), tool output beyond its preview (its length and
// digest are), and the bytes of files (the tool's own copy for undo has them).

// A Record is one line to append.
type Record struct {
	Run, Chat, Channel, Call string // left out where empty
	Body                     recordBody
}

type recordBody interface{ kind() string }

type genesisRecord struct {
	Format int    `json:"format"`
	Log    string `json:"log"`            // 32 hex digits
	Key    string `json:"key,omitempty"`  // Ed25519 public key in hex; approvals.jsonl has none
	File   string `json:"file,omitempty"` // the file that a restart set aside
	Head   string `json:"head,omitempty"` // and the hash of its last line
}

type startRecord struct {
	Version   string `json:"version"`
	Settings  string `json:"settings"` // digest
	Tools     string `json:"tools"`    // digest of the manifest
	Sandbox   string `json:"sandbox"`
	Model     string `json:"model"`
	Origin    string `json:"origin"` // where the model is
	Workspace string `json:"workspace"`
}

type userMessageRecord struct {
	Text   string `json:"text"`
	Source string `json:"source"` // owner, piped, app, goal
}

type modelTurnRecord struct {
	Model  string   `json:"model"`
	Text   string   `json:"text"`
	In     int      `json:"in"`
	Out    int      `json:"out"`
	Calls  []string `json:"calls"` // names
	MS     int64    `json:"ms"`
	Finish string   `json:"finish"`
}

type egressFields struct {
	Kind  string   `json:"kind"` // none, hosts, unknown
	Hosts []string `json:"hosts"`
}

type decisionRecord struct {
	Tool    string          `json:"tool"`
	Args    json.RawMessage `json:"args"` // object; the raw text as a string if it did not parse
	Digest  string          `json:"digest"`
	Summary string          `json:"summary"`
	Risk    string          `json:"risk"`
	Labels  []string        `json:"labels"`
	Verdict string          `json:"verdict"` // allow, deny
	By      string          `json:"by"`      // rule, mode, grant, owner, expired, guard
	Step    string          `json:"step"`
	Rule    string          `json:"rule"`
	Reasons []string        `json:"reasons"`
	Grant   string          `json:"grant"`
	Targets []string        `json:"targets"`
	Egress  egressFields    `json:"egress"`
	Purpose string          `json:"purpose"`
}

type resultRecord struct {
	OK          bool   `json:"ok"`
	Error       string `json:"error"`
	Exit        *int   `json:"exit"` // null where there was no child
	MS          int64  `json:"ms"`
	Bytes       int64  `json:"bytes"`
	Digest      string `json:"digest"`
	Preview     string `json:"preview"`
	Interrupted bool   `json:"interrupted"`
}

type egressRecord struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Method   string `json:"method"`
	Verdict  string `json:"verdict"`
	By       string `json:"by"`
	BytesOut int64  `json:"bytes_out"`
	BytesIn  int64  `json:"bytes_in"`
}

type questionRecord struct {
	Digest  string   `json:"digest"`
	Offered []string `json:"offered"`
	Reasons []string `json:"reasons"`
	Until   string   `json:"until"` // the time at which it expires
}

type answerRecord struct {
	Answer string `json:"answer"` // allow, deny, expired
	Scope  string `json:"scope"`
	By     string `json:"by"` // terminal, cli, api
	Reason string `json:"reason"`
}

type grantRecord struct {
	Key       string   `json:"key"`
	Scope     string   `json:"scope"`
	Who       string   `json:"who"` // owner, app
	Workspace string   `json:"workspace"`
	Labels    []string `json:"labels"` // of the chat in which it was given
	Until     string   `json:"until"`  // "" without an end
}

// revokeRecord has the fields of the grant that it ends.
type revokeRecord grantRecord

type labelRecord struct {
	Set    []string `json:"set"`
	Source string   `json:"source"`
	Path   string   `json:"path"`
}

type configRecord struct {
	Key string `json:"key"`
	Old string `json:"old"`
	New string `json:"new"`
}

// apiRecord is about the API for other apps: it was turned on or off, its key
// was replaced, or requests were refused (how many, by kind).
type apiRecord struct {
	Op      string         `json:"op"`
	Refused map[string]int `json:"refused"`
}

type resetRecord struct{}

type stopRecord struct {
	Turns int `json:"turns"`
}

type recoveredRecord struct {
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"`
	Text   string `json:"text"`
}

type gapRecord struct {
	Have     int64 `json:"have"`
	Expected int64 `json:"expected"`
}

type acceptRecord struct {
	Upto int64 `json:"upto"`
}

type restartRecord struct {
	File string `json:"file"`
	Head string `json:"head"`
}

func (genesisRecord) kind() string     { return "genesis" }
func (startRecord) kind() string       { return "start" }
func (userMessageRecord) kind() string { return "user_message" }
func (modelTurnRecord) kind() string   { return "model_turn" }
func (decisionRecord) kind() string    { return "decision" }
func (resultRecord) kind() string      { return "result" }
func (egressRecord) kind() string      { return "egress" }
func (questionRecord) kind() string    { return "question" }
func (answerRecord) kind() string      { return "answer" }
func (grantRecord) kind() string       { return "grant" }
func (revokeRecord) kind() string      { return "revoke" }
func (labelRecord) kind() string       { return "label" }
func (configRecord) kind() string      { return "config" }
func (apiRecord) kind() string         { return "api" }
func (resetRecord) kind() string       { return "reset" }
func (stopRecord) kind() string        { return "stop" }
func (recoveredRecord) kind() string   { return "recovered" }
func (gapRecord) kind() string         { return "gap" }
func (acceptRecord) kind() string      { return "accept" }
func (restartRecord) kind() string     { return "restart" }

const (
	maxField = 8 << 10
	maxLine  = 64 << 10 // with its newline
	// What a line holds before its kind: prev, seq and ts.
	maxPrefix = len(`{"prev":"","seq":,"ts":"","`) + 64 + 19 + len(timeLayout)
)

// encodeRecord appends the part of a line that does not depend on its place in
// the log, from the kind on, with its newline.
func encodeRecord(b []byte, r Record) []byte {
	start := len(b)
	// At the last step the worst that a record can hold is within the limit:
	// a byte becomes at most 7 (see appendText), and a list has 9 entries.
	for limit := maxField; ; limit /= 2 {
		b = append(b[:start], `"kind":"`...)
		b = append(b, r.Body.kind()...)
		b = append(b, '"')
		for _, f := range [...]struct{ key, val string }{{"run", r.Run}, {"chat", r.Chat}, {"channel", r.Channel}, {"call", r.Call}} {
			if f.val != "" {
				b = append(b, `,"`...)
				b = append(b, f.key...)
				b = append(b, `":`...)
				b = appendText(b, cutText(f.val, limit))
			}
		}
		b = appendFields(b, reflect.ValueOf(r.Body), limit, true)
		b = append(b, "}\n"...)
		if len(b)-start <= maxLine-maxPrefix || limit <= 128 {
			return b
		}
	}
}

// A fieldPlan is one field of a struct: its place and what is written before it.
type fieldPlan struct {
	index     int
	key       string
	omitEmpty bool
}

var fieldPlans sync.Map // reflect.Type to []fieldPlan

func planOf(t reflect.Type) []fieldPlan {
	if p, ok := fieldPlans.Load(t); ok {
		return p.([]fieldPlan)
	}
	var plan []fieldPlan
	for i := range t.NumField() {
		name, opt, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		plan = append(plan, fieldPlan{i, strconv.Quote(name) + ":", opt == "omitempty"})
	}
	fieldPlans.Store(t, plan)
	return plan
}

// appendFields appends the fields of a struct, with a comma before the first
// one too if the object has others already.
func appendFields(b []byte, v reflect.Value, limit int, comma bool) []byte {
	for _, f := range planOf(v.Type()) {
		fv := v.Field(f.index)
		if f.omitEmpty && fv.IsZero() {
			continue
		}
		if comma {
			b = append(b, ',')
		}
		comma = true
		b = append(b, f.key...)
		b = appendValue(b, fv, limit)
	}
	return b
}

var rawType = reflect.TypeFor[json.RawMessage]()

// appendValue knows the types that the records above are made of.
func appendValue(b []byte, v reflect.Value, limit int) []byte {
	switch v.Kind() {
	case reflect.String:
		return appendText(b, cutText(v.String(), limit))
	case reflect.Int, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10)
	case reflect.Bool:
		return strconv.AppendBool(b, v.Bool())
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, "null"...)
		}
		return appendValue(b, v.Elem(), limit)
	case reflect.Struct:
		return append(appendFields(append(b, '{'), v, limit, false), '}')
	case reflect.Slice:
		if v.Type() == rawType {
			return appendRaw(b, v.Bytes(), limit)
		}
		return appendList(b, v, limit)
	case reflect.Map:
		m := v.Interface().(map[string]int)
		b = append(b, '{')
		for i, k := range slices.Sorted(maps.Keys(m)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendText(b, cutText(k, limit)), ':')
			b = strconv.AppendInt(b, int64(m[k]), 10)
		}
		return append(b, '}')
	}
	panic("a record has a field of type " + v.Type().String())
}

func appendList(b []byte, list reflect.Value, limit int) []byte {
	b = append(b, '[')
	for i := range list.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		if i == limit/16 {
			rest := list.Slice(i, list.Len()).Interface().([]string)
			sum := sha256.Sum256([]byte(strings.Join(rest, "\n")))
			b = appendText(b, fmt.Sprintf("…[%d more, sha256 %x]", len(rest), sum))
			break
		}
		b = appendText(b, cutText(list.Index(i).String(), limit))
	}
	return append(b, ']')
}

// appendRaw appends a JSON object without blanks, each string in it cut on its
// own, in its order and with its numbers as they stand; what is not an object
// becomes a string.
func appendRaw(b, raw []byte, limit int) []byte {
	raw = bytes.TrimSpace(raw)
	if !utf8.Valid(raw) || !json.Valid(raw) || raw[0] != '{' {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			s = string(raw)
		}
		return appendText(b, cutText(s, limit))
	}
	start := len(b)
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case ' ', '\t', '\r', '\n':
		case '"':
			end := i + 1
			for raw[end] != '"' {
				if raw[end] == '\\' {
					end++
				}
				end++
			}
			if s := raw[i+1 : end]; len(s) <= limit && isPlain(s) {
				b = append(b, raw[i:end+1]...)
			} else {
				text := string(s)
				if bytes.IndexByte(s, '\\') >= 0 && json.Unmarshal(raw[i:end+1], &text) != nil {
					panic("unreachable: the whole is valid")
				}
				b = appendText(b, cutText(text, limit))
			}
			i = end
		default:
			b = append(b, c)
		}
	}
	if len(b)-start > 8*limit { // many small pieces
		b = append(b[:start], `{"…":`...)
		b = append(appendText(b, cutText(string(raw), limit)), '}')
	}
	return b
}

// cutText returns s, or if it is longer than limit bytes its two ends with a
// note between them about the whole.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	note := fmt.Sprintf("…[cut: %d bytes, sha256 %x]…", len(s), sha256.Sum256([]byte(s)))
	keep := max(0, limit-len(note)) / 2
	head, tail := keep, len(s)-keep
	for head > keep-utf8.UTFMax && head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && tail < len(s)-keep+utf8.UTFMax && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return s[:head] + note + s[tail:]
}

// plain are the bytes that stand in a JSON string as they are.
var plain = func() (p [256]bool) {
	for c := byte(' '); c < 0x7f; c++ {
		p[c] = c != '"' && c != '\\'
	}
	return p
}()

func isPlain(s []byte) bool {
	for _, c := range s {
		if !plain[c] {
			return false
		}
	}
	return true
}

// appendText appends s as a JSON string. Whatever could disturb a terminal that
// shows the raw line is escaped: control and format characters (Unicode's Cc
// and Cf: bidirectional, zero-width, tags) and the two line separators.
//
// A byte that is not UTF-8 becomes U+FFFD and its value, as in "\uFFFD<80>"; a
// true U+FFFD before "<" is written as its own three bytes in that way, so that
// the original can be had back.
func appendText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, `\n`...)
			case '\r':
				b = append(b, `\r`...)
			case '\t':
				b = append(b, `\t`...)
			default:
				b = append(b, `\u00`...)
				b = append(b, hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && (n == 1 || strings.HasPrefix(s[i+n:], "<")):
			b = append(b, s[start:i]...)
			for _, c := range []byte(s[i : i+n]) {
				b = append(b, "\uFFFD<"...)
				b = append(b, hex[c>>4], hex[c&15], '>')
			}
			start = i + n
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			b = append(b, s[start:i]...)
			for _, u := range utf16.AppendRune(nil, r) {
				b = append(b, `\u`...)
				b = append(b, hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
			}
			start = i + n
		}
		i += n
	}
	return append(append(b, s[start:]...), '"')
}
