package main

import (
	"encoding/json"
	"time"
)

// Message is one message of a chat-completions request, as picket sends it.
// What arrives from others is read by its own types, since it comes in more
// shapes.
type Message struct {
	Role       string     `json:"role"` // system, user, assistant, tool
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	// Reasoning goes back only to the provider that sent it, and only where
	// that provider asks for it.
	Reasoning string `json:"reasoning_content,omitempty"`
}

// ToolCall is one call that a model asked for. Arguments is the exact text that
// the model sent.
type ToolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"` // always "function"
	Function ToolFunction `json:"function"`
	// Extra is a provider's own data about the call (Gemini's thought
	// signature), sent back verbatim to that provider.
	Extra json.RawMessage `json:"extra_content,omitempty"`
	// from is the model that made the call: what is its provider's own (Extra,
	// reasoning) goes back to no other. It is empty in calls read from a file.
	from string
	// Invalid says why the call cannot be run; the model is told.
	Invalid string `json:"-"`
}

// ToolFunction names the tool of a ToolCall.
type ToolFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Usage counts tokens; 0 where a server did not say.
type Usage struct {
	In    int `json:"prompt_tokens"`
	Out   int `json:"completion_tokens"`
	Total int `json:"total_tokens"`
}

// unused until the handler lands
var _ = time.Second
