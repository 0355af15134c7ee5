package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// How a record becomes a line: a lean encoder, since every call waits for it.

const (
	maxField = 8 << 10
	maxLine  = 64 << 10 // with its newline
	// What a line holds before its kind: prev, seq and ts.
	maxPrefix = len(`{"prev":"","seq":,"ts":"","`) + 64 + 19 + len(timeLayout)
)

// encodeRecords returns, of each record's line, the part that does not depend on
// its place in the log, from the kind on, with its newline.
func encodeRecords(recs ...Record) []byte { return new(encoder).records(recs...) }

func (e *encoder) records(recs ...Record) []byte {
	for _, r := range recs {
		// At the last step the worst that a record can hold is within the
		// limit: a byte becomes at most 7 (see appendText), and a list has 9
		// entries.
		start := len(e.b)
		for e.limit = maxField; ; e.limit /= 2 {
			e.b = append(e.b[:start], `"kind":"`...)
			e.b = append(append(e.b, r.Body.kind()...), '"')
			e.some("run", r.Run).some("chat", r.Chat).some("channel", r.Channel).some("call", r.Call)
			r.Body.fields(e)
			e.b = append(e.b, "}\n"...)
			if len(e.b)-start <= maxLine-maxPrefix || e.limit <= 128 {
				break
			}
		}
	}
	return e.b
}

// An encoder appends the members of an object, each text cut to limit bytes. Its
// methods return it.
type encoder struct {
	b     []byte
	limit int
}

func (e *encoder) key(key string) {
	b := e.b
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(append(b, '"'), key...)
	e.b = append(b, '"', ':')
}

func (e *encoder) text(s string) {
	if len(s) > e.limit {
		s = cutText(s, e.limit)
	}
	e.b = appendText(e.b, s)
}

func (e *encoder) str(key, s string) *encoder {
	e.key(key)
	e.text(s)
	return e
}

// some leaves an empty string out.
func (e *encoder) some(key, s string) *encoder {
	if s == "" {
		return e
	}
	return e.str(key, s)
}

func (e *encoder) int(key string, n int) *encoder { return e.int64(key, int64(n)) }

func (e *encoder) int64(key string, n int64) *encoder {
	e.key(key)
	e.b = strconv.AppendInt(e.b, n, 10)
	return e
}

// optional writes null for nil.
func (e *encoder) optional(key string, n *int) *encoder {
	if n != nil {
		return e.int(key, *n)
	}
	e.key(key)
	e.b = append(e.b, "null"...)
	return e
}

func (e *encoder) bool(key string, v bool) *encoder {
	e.key(key)
	e.b = strconv.AppendBool(e.b, v)
	return e
}

// open begins an object within.
func (e *encoder) open(key string) *encoder {
	e.key(key)
	e.b = append(e.b, '{')
	return e
}

func (e *encoder) close() *encoder {
	e.b = append(e.b, '}')
	return e
}

func (e *encoder) list(key string, list []string) *encoder {
	e.key(key)
	e.b = append(e.b, '[')
	for i, s := range list {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		if i == e.limit/16 {
			sum := sha256.Sum256([]byte(strings.Join(list[i:], "\n")))
			e.b = appendText(e.b, fmt.Sprintf("…[%d more, sha256 %x]", len(list)-i, sum))
			break
		}
		e.text(s)
	}
	e.b = append(e.b, ']')
	return e
}

func (e *encoder) counts(key string, m map[string]int) *encoder {
	e.open(key)
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		e.text(k)
		e.b = append(e.b, ':')
		e.b = strconv.AppendInt(e.b, int64(m[k]), 10)
	}
	return e.close()
}

// raw writes a JSON object without blanks, each string in it cut on its own,
// members in their order and numbers as they stand. What is not an object is
// written as a string.
func (e *encoder) raw(key string, raw []byte) *encoder {
	e.key(key)
	start := len(e.b)
	in := skipBlanks(string(raw))
	rest, ok := "", strings.HasPrefix(in, "{") && utf8.ValidString(in)
	if ok {
		rest, ok = e.value(in, 0)
	}
	if ok && skipBlanks(rest) == "" {
		if len(e.b)-start > 8*e.limit { // many small pieces
			e.b = append(e.b[:start], '{')
			e.str("…", string(raw)).close()
		}
		return e
	}
	e.b = e.b[:start]
	var s string
	if json.Unmarshal(raw, &s) != nil {
		s = string(raw)
	}
	e.text(s)
	return e
}

const maxDepth = 64

func skipBlanks(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\n' || s[0] == '\r' || s[0] == '\t') {
		s = s[1:]
	}
	return s
}

// value writes the JSON value that in begins with and returns what follows it;
// ok is false if there is none. In is UTF-8.
func (e *encoder) value(in string, depth int) (rest string, ok bool) {
	in = skipBlanks(in)
	if in == "" || depth > maxDepth {
		return in, false
	}
	switch c := in[0]; c {
	case '{', '[':
		end := c + 2 // of both kinds
		e.b = append(e.b, c)
		in = skipBlanks(in[1:])
		for first := true; ; first = false {
			if in == "" {
				return in, false
			}
			if in[0] == end && (first || e.b[len(e.b)-1] != ',') {
				e.b = append(e.b, end)
				return in[1:], true
			}
			if !first && e.b[len(e.b)-1] != ',' {
				return in, false
			}
			if c == '{' {
				if in, ok = e.string(in); !ok {
					return in, false
				}
				if in = skipBlanks(in); !strings.HasPrefix(in, ":") {
					return in, false
				}
				e.b = append(e.b, ':')
				in = in[1:]
			}
			if in, ok = e.value(in, depth+1); !ok {
				return in, false
			}
			if in = skipBlanks(in); strings.HasPrefix(in, ",") {
				e.b = append(e.b, ',')
				in = skipBlanks(in[1:])
			}
		}
	case '"':
		return e.string(in)
	}
	n := strings.IndexAny(in, ",]} \t\r\n")
	if n < 0 {
		n = len(in)
	}
	e.b = append(e.b, in[:n]...)
	return in[n:], json.Valid([]byte(in[:n]))
}

// string writes the JSON string that in begins with.
func (e *encoder) string(in string) (rest string, ok bool) {
	if !strings.HasPrefix(in, `"`) {
		return in, false
	}
	n := 1 + plainPrefix(in[1:])
	s := in[1:n]
	if n == len(in) || in[n] != '"' { // with escapes, or not ASCII
		for ; n < len(in) && in[n] != '"'; n++ {
			if in[n] == '\\' {
				n++
			}
		}
		if n >= len(in) || json.Unmarshal([]byte(in[:n+1]), &s) != nil {
			return in, false
		}
	}
	e.text(s)
	return in[n+1:], true
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

// plainPrefix is the length of what s begins with that can stand in a JSON
// string as it is.
func plainPrefix(s string) int {
	i := 0
	for i < len(s) && plain[s[i]] {
		i++
	}
	return i
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
	for i := 0; ; {
		if i += plainPrefix(s[i:]); i == len(s) {
			break
		}
		c := s[i]
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
