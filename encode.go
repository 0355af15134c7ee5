package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxField = 8 << 10
	maxLine  = 64 << 10 // with its newline
)

// lineFields are what any line may have before its kind's own.
var lineFields = [...]string{"run", "chat", "channel", "call"}

// An encoder appends JSON, each text in it cut to limit bytes.
type encoder struct {
	b     []byte
	limit int
}

// lines appends records as the lines that continue m, and returns the mark of
// the last one.
func (e *encoder) lines(m mark, now time.Time, recs ...Record) mark {
	for _, r := range recs {
		from := len(e.b)
		e.b = append(e.b, `{"prev":"`...)
		if m.Seq > 0 {
			e.b = hex.AppendEncode(e.b, m.Hash[:])
		}
		m.Seq++
		e.b = append(e.b, `","seq":`...)
		e.b = strconv.AppendInt(e.b, m.Seq, 10)
		e.b = append(e.b, `,"ts":"`...)
		e.b = now.UTC().AppendFormat(e.b, timeLayout)
		// At the last step the worst that a record can hold, some 20 fields of 8
		// times the limit, is within the length of a line.
		start := len(e.b)
		for e.limit = maxField; ; e.limit /= 2 {
			e.b = append(e.b[:start], `","kind":"`...)
			e.b = append(append(e.b, r.Body.kind()...), '"')
			for i, s := range [...]string{r.Run, r.Chat, r.Channel, r.Call} {
				if s != "" {
					e.b = append(append(append(e.b, `,"`...), lineFields[i]...), `":`...)
					e.text(s)
				}
			}
			e.fields(reflect.ValueOf(r.Body))
			e.b = append(e.b, "}\n"...)
			if len(e.b)-from <= maxLine || e.limit <= 256 {
				break
			}
		}
		m.Hash = sha256.Sum256(e.b[from : len(e.b)-1])
		m.Off += int64(len(e.b) - from)
	}
	return m
}

// fieldKeys holds for each type what stands before its values: `,"name":`, and a
// "?" after it where an empty one is left out.
var fieldKeys sync.Map

func (e *encoder) fields(v reflect.Value) {
	keys, ok := fieldKeys.Load(v.Type())
	if !ok {
		var list []string
		for f := range v.Type().Fields() {
			name, opt, _ := strings.Cut(f.Tag.Get("json"), ",")
			key := `,"` + cmp.Or(name, strings.ToLower(f.Name)) + `":`
			list = append(list, key+strings.Repeat("?", min(1, len(opt))))
		}
		keys = list
		fieldKeys.Store(v.Type(), keys)
	}
	for i, key := range keys.([]string) {
		f := v.Field(i)
		key, optional := strings.CutSuffix(key, "?")
		if optional && f.IsZero() {
			continue
		}
		if e.b[len(e.b)-1] == '{' {
			key = key[1:]
		}
		e.b = append(e.b, key...)
		start := len(e.b)
		if e.value(f); len(e.b)-start <= 8*e.limit {
			continue
		}
		all := string(e.b[start:]) // of many small pieces
		if e.b = e.b[:start+1]; all[0] == '[' {
			e.text(all)
		} else {
			e.b = append(e.b, `"…":`...)
			e.text(all)
		}
		e.b = append(e.b, all[len(all)-1])
	}
}

// value writes one field. A list is never null, a nil pointer is.
func (e *encoder) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		e.text(v.String())
	case reflect.Int, reflect.Int64:
		e.b = strconv.AppendInt(e.b, v.Int(), 10)
	case reflect.Struct:
		e.b = append(e.b, '{')
		e.fields(v)
		e.b = append(e.b, '}')
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 { // json.RawMessage
			e.args(v.Bytes())
			break
		}
		e.b = append(e.b, '[')
		for i, s := range v.Interface().([]string) {
			if i > 0 {
				e.b = append(e.b, ',')
			}
			e.text(s)
		}
		e.b = append(e.b, ']')
	default: // bool, *int, map[string]int
		b, err := json.Marshal(v.Interface())
		if err != nil {
			panic("a record holds a field of no known type: " + err.Error())
		}
		e.b = append(e.b, b...)
	}
}

// args writes a JSON object without blanks, each string in it cut on its own,
// members in their order and numbers as they stand. What is not an object is
// written as a string.
func (e *encoder) args(raw []byte) {
	var buf bytes.Buffer
	if !utf8.Valid(raw) || json.Compact(&buf, raw) != nil || buf.Bytes()[0] != '{' {
		var s string
		if json.Unmarshal(raw, &s) != nil || !utf8.Valid(raw) {
			s = string(raw)
		}
		e.text(s)
		return
	}
	for in := buf.Bytes(); len(in) > 0; {
		n := bytes.IndexByte(in, '"')
		if n < 0 {
			n = len(in)
		}
		e.b = append(e.b, in[:n]...)
		if in = in[n:]; len(in) == 0 {
			break
		}
		for n = 1; in[n] != '"'; n++ {
			if in[n] == '\\' {
				n++
			}
		}
		s := string(in[1:n])
		if strings.Contains(s, `\`) {
			s = ""
			json.Unmarshal(in[:n+1], &s) // it is valid
		}
		e.text(s)
		in = in[n+1:]
	}
}

func (e *encoder) text(s string) { e.b = appendText(e.b, cutText(s, e.limit)) }

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

// appendText appends s as a JSON string, of at most 7 times its length. Whatever
// could disturb a terminal that shows the raw line is escaped: control and format
// characters (Unicode's Cc and Cf: bidirectional, zero-width, tags) and the two
// line separators.
//
// A byte that is not UTF-8 becomes U+FFFD and its value, as in "\uFFFD<80>"; a
// true U+FFFD before "<" is written as its own three bytes in that way, so that
// the original can be had back.
func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	for {
		n := 0
		for n < len(s) && s[n] >= ' ' && s[n] < 0x7f && s[n] != '"' && s[n] != '\\' {
			n++
		}
		b = append(b, s[:n]...)
		if s = s[n:]; s == "" {
			return append(b, '"')
		}
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', s[0])
		case r == '\n' || r == '\t' || r == '\r':
			b = append(b, '\\', "tn  r"[r-'\t'])
		case r == utf8.RuneError && (n == 1 || strings.HasPrefix(s[n:], "<")):
			for _, c := range []byte(s[:n]) {
				b = fmt.Appendf(b, "\uFFFD<%02x>", c)
			}
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			for _, u := range utf16.AppendRune(nil, r) {
				b = fmt.Appendf(b, `\u%04x`, u)
			}
		default:
			b = append(b, s[:n]...)
		}
		s = s[n:]
	}
}
