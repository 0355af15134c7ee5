package main

import (
	"context"

	"picket/tools"
)

// A Model answers chats. Its methods may be called from several goroutines.
type Model interface {
	// Name is what the log calls the model.
	Name() string
	// Chat sends one request and streams the reply. onDelta is called as text
	// comes, from one goroutine; it may be nil. An error means that no call of
	// the reply may run; the Reply then holds what had come.
	Chat(ctx context.Context, req ModelRequest, onDelta func(Delta)) (Reply, error)
}

// ModelRequest is one request to a model.
type ModelRequest struct {
	Messages    []Message
	Tools       []tools.Tool // nil: none are offered, and a call in the reply is invalid
	MaxTokens   int          // 0: the server's own
	Temperature *float64
	TopP        *float64
	Seed        *int64
	Stop        []string
}

// Delta is a piece of a reply: answer text, or reasoning that is kept apart.
// Wait is set instead while a retry is pending.
type Delta struct {
	Text      string
	Reasoning string
	Wait      string // one line for the owner: what failed and how long the wait is
}

// Reply is a whole reply. Calls that cannot be run have Invalid set.
type Reply struct {
	Text      string
	Reasoning string
	Calls     []ToolCall
	Finish    string // stop, length, content_filter, tool_calls
	RawFinish string // the server's own word where it differs
	Usage     Usage
	Warning   string // one line for the owner, shown once
}
