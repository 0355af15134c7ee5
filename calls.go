package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
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

// A wireCall is one entry of tool_calls as servers send it: a piece of a call or a whole one.
type wireCall struct {
	Index        json.RawMessage `json:"index"`
	ID           anyText         `json:"id"`
	Function     wireFunction    `json:"function"`
	Extra        json.RawMessage `json:"extra_content"`
	wireFunction                 // some servers leave out the level
}

type wireFunction struct {
	Name      anyText         `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// An openCall is a tool call while its pieces come in.
type openCall struct {
	choice, index int // index is -1 where the server gave none
	id, name      string
	twoNames      bool // of tools, so it cannot be known which is meant
	text          textJoiner
	args          []byte
	braces        braceCounter
	extra         json.RawMessage
}

// A callSet puts the calls of a reply together.
type callSet struct {
	names     toolNames
	list      []*openCall
	bytes     int
	ambiguous bool // a piece could not be placed: no call may run
}

// add takes in one entry of tool_calls.
func (s *callSet) add(choice int, w wireCall) error {
	if w.Function.Name == "" && w.Function.Arguments == nil {
		w.Function = w.wireFunction
	}
	name, args := string(w.Function.Name), w.Function.Arguments
	if len(w.ID) > maxCallName {
		w.ID = ""
	}
	c := s.match(choice, callIndex(w.Index), string(w.ID), name, hasValue(args))
	if c == nil {
		return nil
	}
	if c.id == "" {
		c.id = string(w.ID)
	}
	if name != "" && name != c.name { // the same name again says nothing
		c.twoNames = c.twoNames || s.names.real[c.name] != ""
		if strings.HasPrefix(name, c.name) { // the name so far, each time
			c.name = ""
		}
		c.name += name
	}
	if isObject(w.Extra) {
		c.extra = w.Extra
	}
	text := c.text.add(args, false)
	c.braces.add(text)
	c.args = append(c.args, text...)
	s.bytes += len(text) + len(w.Extra)
	switch {
	case len(c.name) > maxCallName:
		return replyError("the model named a tool with more than 256 bytes")
	case len(c.args) > tools.MaxArgs || s.bytes > maxReplyArgs:
		return replyError("the model sent arguments without end: more than 1 MiB for one call or 4 MiB in all")
	case len(s.list) > maxReplyCalls:
		return replyError("the model made more than 128 calls in one answer")
	}
	return nil
}

// match returns the call that a piece belongs to: an open one, a new one, or nil for a piece that cannot be placed
// or brings nothing.
func (s *callSet) match(choice, index int, id, name string, hasArgs bool) *openCall {
	var byIndex, byID, open, last, c *openCall
	opens, all := 0, 0
	for _, c := range s.list {
		if c.choice != choice {
			continue
		}
		if index >= 0 && c.index == index {
			byIndex = c
		}
		if id != "" && c.id == id {
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
	case byIndex != nil && (id == "" || name == "" || id == byIndex.id || byIndex.id == "" && !byIndex.braces.done()):
		c = byIndex
	case byID != nil && (index < 0 || byIndex != nil || name == "" || name == byID.name && !byID.braces.done()):
		c = byID
	case name != "":
		if index < 0 && id == "" && last != nil && !last.braces.done() {
			c = last
		}
	case !hasArgs && (index >= 0 && id == "" || index < 0 && all != 1):
		return nil
	case index >= 0 || all == 0: // its name comes late
	case opens == 1:
		c = open
	case all == 1:
		c = last
	default:
		s.ambiguous = true
		return nil
	}
	// A call that is whole does not go on under another name.
	if c == nil || name != "" && c.name != "" && c.braces.done() && c.name != name {
		c = &openCall{choice: choice, index: index, id: id}
		s.list = append(s.list, c)
	}
	return c
}

// callIndex reads the index of a choice or call: 0 to 127, also as a string; -1 stands for anything else.
func callIndex(val []byte) int {
	n, err := strconv.Atoi(strings.Trim(string(val), `"`))
	if err != nil || n < 0 || n >= maxReplyCalls {
		return -1
	}
	return n
}

// final decides about the calls of a reply that ended well.
func (s *callSet) final(finish string) []ToolCall {
	calls := slices.DeleteFunc(s.list, func(c *openCall) bool { return c.name == "" })
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
			calls = []*openCall{{name: "unknown"}}
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
		t.Function.Name, nameErr = s.names.resolve(c.name)
		t.Function.Arguments, argErr = finalArgs(string(c.args) + c.text.add(nil, true))
		switch {
		case none != "":
		case c.twoNames:
			t.Function.Name, t.Invalid = c.name, fmt.Sprintf("the call names two tools: %q", c.name)
		case nameErr != nil:
			t.Invalid = nameErr.Error()
		case argErr != nil:
			t.Invalid = "the arguments cannot be read: " + argErr.Error()
		}
		out = append(out, t)
	}
	return out
}

func newCallID() string { return "call_" + strings.ToLower(rand.Text()) }

// finalArgs returns the arguments of a call as one JSON object.
func finalArgs(s string) (string, error) {
	if s = strings.TrimSpace(s); s == "" || s == "null" {
		s = "{}"
	}
	// Some servers start with {} and then send the real object; some send the whole object again at the end.
	if rest, ok := strings.CutPrefix(s, "{}"); ok && isObject([]byte(rest)) && json.Valid([]byte(rest)) {
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

// A braceCounter tells whether a JSON object that comes in pieces has ended, looking at each byte once.
type braceCounter struct {
	depth            int
	str, esc, closed bool
}

func (b *braceCounter) add(s string) {
	for _, c := range []byte(s) {
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
