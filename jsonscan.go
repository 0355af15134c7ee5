package main

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// Chunks of a stream are read by looking at the members that matter: servers
// differ in the types of all others, which must not make a chunk fail, and text
// may be cut inside a character, which encoding/json would replace.

// jsonMembers calls f with each member of a JSON object, or with each element
// of a list and a nil key. raw must be valid JSON; other values have none.
func jsonMembers(raw []byte, f func(key, val []byte)) {
	if len(raw) == 0 || raw[0] != '{' && raw[0] != '[' {
		return
	}
	for i := 1; ; {
		i = skipBlank(raw, i)
		if raw[i] == '}' || raw[i] == ']' {
			return
		}
		var key []byte
		if raw[0] == '{' {
			end := valueEnd(raw, i)
			if key = raw[i+1 : end-1]; bytes.IndexByte(key, '\\') >= 0 {
				key = appendJSONText(nil, raw[i:end])
			}
			i = skipBlank(raw, end)
		}
		end := valueEnd(raw, i)
		f(key, raw[i:end])
		i = end
	}
}

// pick returns the values of some members of a JSON object, at most eight, in
// the order of their names; nil where there is none.
func pick(raw []byte, names ...string) (vals [8][]byte) {
	if len(raw) > 0 && raw[0] == '{' {
		jsonMembers(raw, func(key, val []byte) {
			for i, n := range names {
				if string(key) == n {
					vals[i] = val
				}
			}
		})
	}
	return vals
}

// skipBlank skips white space, commas and colons.
func skipBlank(b []byte, i int) int {
	for b[i] <= ' ' || b[i] == ',' || b[i] == ':' {
		i++
	}
	return i
}

// valueEnd returns the end of the value that starts at b[i].
func valueEnd(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for escapes := 1; escapes%2 == 1; { // a quote after an odd number of them is text
				i++
				i += bytes.IndexByte(b[i:], '"')
				for escapes = 0; b[i-1-escapes] == '\\'; escapes++ {
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// appendJSONText appends the text of a JSON string, or a number or boolean as it
// stands, or nothing for other values. Bytes that are not UTF-8 stay as they
// are, and half of a surrogate pair becomes its three bytes in the manner of
// UTF-8: a textJoiner puts together what belongs together.
func appendJSONText(dst, val []byte) []byte {
	if len(val) == 0 || val[0] == '{' || val[0] == '[' || val[0] == 'n' {
		return dst
	}
	if val[0] != '"' {
		return append(dst, val...)
	}
	val = val[1 : len(val)-1]
	for {
		i := bytes.IndexByte(val, '\\')
		if i < 0 {
			return append(dst, val...)
		}
		dst = append(dst, val[:i]...)
		if c := val[i+1]; c != 'u' {
			if j := bytes.IndexByte([]byte("bfnrt"), c); j >= 0 {
				c = "\b\f\n\r\t"[j]
			}
			dst, val = append(dst, c), val[i+2:]
			continue
		}
		u, _ := strconv.ParseUint(string(val[i+2:i+6]), 16, 16)
		if r := rune(u); utf8.ValidRune(r) {
			dst = utf8.AppendRune(dst, r)
		} else {
			dst = append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
		}
		val = val[i+6:]
	}
}

// valText returns the text of a JSON value, see appendText.
func valText(val []byte) string {
	var j textJoiner
	return j.add(appendJSONText(nil, val), true)
}

// A textJoiner makes text out of pieces that may be cut inside a character.
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
		if half := surrogate(p); half != 0 {
			n = 3
			next := surrogate(p[3:])
			if half < 0xdc00 && next == 0 && len(p) < 6 && !last && bytes.HasPrefix([]byte{0xed}, p[3:min(4, len(p))]) {
				j.tail = bytes.Clone(p)
				break
			}
			if half < 0xdc00 && next >= 0xdc00 {
				r, n = (half-0xd800)<<10+(next-0xdc00)+0x10000, 6
			}
		} else if r == utf8.RuneError && !last && !utf8.FullRune(p) {
			j.tail = bytes.Clone(p)
			break
		}
		out = utf8.AppendRune(out, r)
		p = p[n:]
	}
	return string(out)
}

// surrogate returns the surrogate that p begins with in the manner of UTF-8, 0
// if it does not.
func surrogate(p []byte) rune {
	if len(p) < 3 || p[0] != 0xed || p[1]&0xe0 != 0xa0 || p[2]&0xc0 != 0x80 {
		return 0
	}
	return 0xd000 | rune(p[1]&0x3f)<<6 | rune(p[2]&0x3f)
}
