package main

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// Chunks of a stream are read by looking at the members that matter: servers
// differ in the types of all others, which must not make a chunk fail, and text
// may be cut inside a character, which encoding/json would replace.

// jsonMembers calls f with each member of a JSON object, or with each element of a
// list and a nil key. raw must be valid JSON; other values have no members.
func jsonMembers(raw []byte, f func(key, val []byte)) {
	if len(raw) == 0 || raw[0] != '{' && raw[0] != '[' {
		return
	}
	object := raw[0] == '{'
	for i := 1; ; {
		i = skipBlank(raw, i)
		if raw[i] == '}' || raw[i] == ']' {
			return
		}
		var key []byte
		if object {
			end := valueEnd(raw, i)
			key = raw[i+1 : end-1]
			if bytes.IndexByte(key, '\\') >= 0 {
				key = appendJSONText(nil, raw[i:end])
			}
			i = skipBlank(raw, end)
		}
		end := valueEnd(raw, i)
		f(key, raw[i:end])
		i = end
	}
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
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
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
			dst = append(dst, c)
			val = val[i+2:]
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

// noValue reports whether a value says nothing.
func noValue(val []byte) bool {
	return len(val) == 0 || string(val) == "null" || string(val) == `""`
}

// callIndex reads the index of a choice or call: 0 to 127, also as a string;
// -1 stands for anything else.
func callIndex(val []byte) int {
	n, err := strconv.Atoi(valText(val))
	if err != nil || n < 0 || n >= maxReplyCalls {
		return -1
	}
	return n
}
