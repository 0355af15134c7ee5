package main

import (
	"bytes"
	"encoding/json"
)

// plainChunk decodes the chunk that nearly every event of a stream is: one choice with a piece of text, and nothing
// nested besides. It gives what decodeLoosely gives, for a fraction of the time, or refuses, with c half filled. The
// values in c are parts of raw.
func plainChunk(raw []byte, c *wireChunk) bool {
	s := &chunkScanner{raw: raw}
	ok := s.object(func(name []byte) bool {
		switch string(name) {
		case `"choices"`: // a second list would be merged with the first
			return c.Choices == nil && s.take('[') && s.choice(c) && s.take(']')
		case `"object"`:
			c.Object = "chat.completion.chunk"
			return string(s.scalar()) == `"chat.completion.chunk"`
		case `"usage"`, `"x_groq"`:
			return string(s.scalar()) == "null"
		case `"error"`, `"message"`, `"detail"`:
			return false
		}
		return s.scalar() != nil
	})
	return ok && s.blank() == 0 && s.at == len(raw)
}

// choice takes the one choice.
func (s *chunkScanner) choice(c *wireChunk) bool {
	c.Choices = make([]wireChoice, 1)
	ch := &c.Choices[0]
	return s.object(func(name []byte) bool {
		switch string(name) {
		case `"delta"`:
			return s.object(func(name []byte) bool { return s.member(name, &ch.Delta) })
		case `"index"`:
			ch.Index = s.scalar()
			return ch.Index != nil
		case `"finish_reason"`, `"usage"`, `"message"`:
			return string(s.scalar()) == "null"
		}
		return s.scalar() != nil
	})
}

// member takes the value of a delta's member.
func (s *chunkScanner) member(name []byte, d *wireDelta) bool {
	val := s.scalar()
	switch string(name) {
	case `"content"`:
		d.Content = val
	case `"reasoning"`:
		d.Reasoning = val
	case `"reasoning_content"`:
		d.ReasoningContent = val
	case `"refusal"`:
		d.Refusal = val
	case `"tool_calls"`:
		d.ToolCalls = val
	case `"function_call"`:
		return string(val) == "null"
	}
	return val != nil
}

// A chunkScanner reads JSON that has nothing nested but objects.
type chunkScanner struct {
	raw []byte
	at  int
}

// blank skips white space (RFC 8259, section 2) and returns the byte after it, 0 at the end.
func (s *chunkScanner) blank() byte {
	for ; s.at < len(s.raw); s.at++ {
		if c := s.raw[s.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// take takes one byte, if it is the next.
func (s *chunkScanner) take(c byte) bool {
	if s.blank() != c {
		return false
	}
	s.at++
	return true
}

// object takes an object and lets member take each value. Names are of a to z, 0 to 9 and _, since encoding/json takes
// other letters for the same.
func (s *chunkScanner) object(member func(name []byte) bool) bool {
	if !s.take('{') {
		return false
	}
	for !s.take('}') {
		if s.blank() != '"' {
			return false
		}
		name := s.scalar()
		for _, c := range name[min(1, len(name)):max(len(name)-1, 0)] {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
				return false
			}
		}
		if name == nil || !s.take(':') || !member(name) {
			return false
		}
		if s.blank() != '}' && (!s.take(',') || s.blank() != '"') {
			return false
		}
	}
	return true
}

// scalar takes a string, number or word, as sent; nil is anything else.
func (s *chunkScanner) scalar() []byte {
	first := s.blank()
	rest, n, check := s.raw[s.at:], 0, true
	if first != '"' {
		n = bytes.IndexAny(rest, ",}] \n\t\r")
	} else {
		for n, check = 1, false; n < len(rest) && rest[n] != '"'; n++ {
			if c := rest[n]; c == '\\' {
				n, check = n+1, true
			} else if c < ' ' {
				check = true
			}
		}
		n++
	}
	if n < 0 || n > len(rest) {
		return nil
	}
	val := rest[:n:n]
	if s.at += n; check && string(val) != "null" && !json.Valid(val) {
		return nil
	}
	return val
}
