package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"picket/tools"
)

// Limits on the calls of one reply.
const (
	maxReplyCalls = 128
	maxReplyArgs  = 4 << 20 // bytes of all calls; of one: tools.MaxArgs
	maxCallName   = 256     // bytes
)

// An openCall is a tool call while its pieces come in.
type openCall struct {
	choice, index int // index is -1 where the server gave none
	id            string
	names         []string // pieces as they came, equal neighbours once
	args          []byte
	braces        braceCounter
	extra         json.RawMessage
}

func (c *openCall) name() string { return strings.Join(c.names, "") }

// A callSet puts the calls of a reply together.
type callSet struct {
	list      []*openCall
	bytes     int
	ambiguous bool // a piece could not be placed: no call may run
}

// add takes in one entry of tool_calls: a piece of a call or a whole one.
func (s *callSet) add(choice int, raw []byte) error {
	v := pick(raw, "index", "id", "function", "extra_content", "name", "arguments")
	if f := pick(v[2], "name", "arguments"); v[2] != nil {
		v[4], v[5] = f[0], f[1]
	}
	d := openCall{choice: choice, index: callIndex(v[0]), id: valText(v[1]), args: v[5]}
	if len(v[5]) == 0 || v[5][0] != '{' && v[5][0] != '[' {
		d.args = appendJSONText(nil, v[5])
	}
	if len(d.id) > maxCallName {
		d.id = ""
	}
	name := valText(v[4])
	c := s.match(&d, name)
	if c == nil {
		return nil
	}
	if c.id == "" {
		c.id = d.id
	}
	if name != "" && (len(c.names) == 0 || c.names[len(c.names)-1] != name) {
		if c.names = append(c.names, name); len(c.name()) > maxCallName {
			return replyError("the model named a tool with more than 256 bytes")
		}
	}
	if len(v[3]) > 0 && v[3][0] == '{' {
		c.extra = bytes.Clone(v[3])
	}
	c.braces.add(d.args)
	c.args = append(c.args, d.args...)
	if s.bytes += len(d.args) + len(v[3]); len(c.args) > tools.MaxArgs || s.bytes > maxReplyArgs {
		return replyError("the model sent arguments without end: more than 1 MiB for one call or 4 MiB in all")
	}
	if len(s.list) > maxReplyCalls {
		return replyError("the model made more than 128 calls in one answer")
	}
	return nil
}

// match returns the call that a piece belongs to: an open one, a new one, or
// nil for a piece that cannot be placed or brings nothing.
func (s *callSet) match(d *openCall, name string) *openCall {
	var byIndex, byID, open, last, c *openCall
	opens, all := 0, 0
	for _, c := range s.list {
		if c.choice != d.choice {
			continue
		}
		if d.index >= 0 && c.index == d.index {
			byIndex = c
		}
		if d.id != "" && c.id == d.id {
			byID = c
		}
		if !c.braces.done() {
			open = c
			opens++
		}
		last = c
		all++
	}
	switch {
	case byIndex != nil && (d.id == "" || name == "" || d.id == byIndex.id || byIndex.id == "" && !byIndex.braces.done()):
		c = byIndex
	case byID != nil && (d.index < 0 || byIndex != nil || name == "" || name == byID.name() && !byID.braces.done()):
		c = byID
	case name != "":
		if d.index < 0 && d.id == "" && last != nil && !last.braces.done() {
			c = last
		}
	case len(d.args) == 0 && (d.index >= 0 && d.id == "" || d.index < 0 && all != 1):
		return nil
	case d.index >= 0 || all == 0: // its name comes late
	case opens == 1:
		c = open
	case all == 1:
		c = last
	default:
		s.ambiguous = true
		return nil
	}
	// A call that is whole does not go on under another name.
	if c == nil || name != "" && len(c.names) > 0 && c.braces.done() && c.name() != name {
		c = &openCall{choice: d.choice, index: d.index, id: d.id}
		s.list = append(s.list, c)
	}
	return c
}

// callIndex reads the index of a choice or call: 0 to 127, also as a string;
// -1 stands for anything else.
func callIndex(val []byte) int {
	n, err := strconv.Atoi(string(bytes.Trim(val, `"`)))
	if err != nil || n < 0 || n >= maxReplyCalls {
		return -1
	}
	return n
}

// final decides about the calls of a reply that ended well.
func (s *callSet) final(names toolNames, finish string) []ToolCall {
	calls := slices.DeleteFunc(s.list, func(c *openCall) bool { return len(c.names) == 0 })
	if !slices.ContainsFunc(calls, func(c *openCall) bool { return c.index < 0 }) {
		slices.SortStableFunc(calls, func(a, b *openCall) int {
			return (a.choice-b.choice)*maxReplyCalls + a.index - b.index
		})
	}
	none := "" // why no call can run
	switch {
	case s.ambiguous:
		none = "the pieces of the calls could not be told apart: make one call at a time"
	case finish == "length":
		none = "the answer reached the token limit before the call was whole: do it in smaller steps"
	case finish == "malformed":
		none = "the call was malformed: send it again, as a function call with JSON arguments"
		if len(calls) == 0 {
			calls = []*openCall{{names: []string{"unknown"}}}
		}
	}
	seen := map[string]bool{}
	var out []ToolCall
	for _, c := range calls {
		t := ToolCall{ID: c.id, Type: "function", Extra: c.extra, Invalid: none}
		for t.ID == "" || seen[t.ID] {
			t.ID = newCallID()
		}
		seen[t.ID] = true
		var nameErr, argErr error
		t.Function.Name, nameErr = names.resolve(c.names)
		t.Function.Arguments, argErr = finalArgs(c.args)
		if t.Invalid == "" && nameErr != nil {
			t.Invalid = nameErr.Error()
		} else if t.Invalid == "" && argErr != nil {
			t.Invalid = "the arguments cannot be read: " + argErr.Error()
		}
		out = append(out, t)
	}
	return out
}

func newCallID() string {
	var b [8]byte
	rand.Read(b[:])
	return "call_" + hex.EncodeToString(b[:])
}

// finalArgs returns the arguments of a call as one JSON object.
func finalArgs(raw []byte) (string, error) {
	var j textJoiner
	s := strings.TrimSpace(j.add(raw, true))
	if s == "" || s == "null" {
		s = "{}"
	}
	// Some servers start with {} and then send the real object; some send the
	// whole object again at the end.
	if rest := strings.TrimPrefix(s, "{}"); len(rest) < len(s) && strings.HasPrefix(rest, "{") && json.Valid([]byte(rest)) {
		s = rest
	} else if h := len(s) / 2; s[0] == '{' && s[:h] == s[h:] && json.Valid([]byte(s[:h])) {
		s = s[:h]
	}
	v, err := tools.DecodeStrict([]byte(s))
	if _, ok := v.(map[string]any); err == nil && !ok {
		err = errors.New("they must be one JSON object")
	}
	return s, err
}

// A braceCounter tells whether a JSON object that comes in pieces has ended,
// looking at each byte once.
type braceCounter struct {
	depth            int
	str, esc, closed bool
}

func (b *braceCounter) add(p []byte) {
	for _, c := range p {
		switch {
		case b.esc:
			b.esc = false
		case b.str:
			b.esc, b.str = c == '\\', c != '"'
		case c == '"':
			b.str = true
		case c == '{' || c == '[':
			b.depth++
		case c == '}' || c == ']':
			b.depth--
			b.closed = b.depth == 0
		}
	}
}

func (b *braceCounter) done() bool { return b.closed && b.depth == 0 }
