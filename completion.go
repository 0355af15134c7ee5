package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// completion is a request that was understood.
type completion struct {
	text    string // the last message of the user
	user    string // the name of an app's chat
	stream  bool
	usage   bool // a usage chunk is wanted
	params  ModelRequest
	ignored []string // what the request says and picket does not heed
}

type incomingMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// parseCompletion reads a request: only its last user message is taken, as
// words of whoever sent it. Members that are not known are ignored.
func parseCompletion(body []byte) (completion, *apiError) {
	var out completion
	var in map[string]json.RawMessage // matches names exactly, as a struct would not
	switch {
	case !utf8.Valid(body):
		return out, badRequest("invalid_request", "", "the request is not valid UTF-8")
	case json.Unmarshal(body, &in) != nil || in == nil:
		return out, badRequest("invalid_request", "", "the request is not a JSON object")
	}
	maps.DeleteFunc(in, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
	var bad *apiError
	take := func(name string, into any) {
		raw, ok := in[name]
		if delete(in, name); ok && json.Unmarshal(raw, into) != nil && bad == nil {
			bad = badRequest("invalid_request", name, "%q has the wrong type", name)
		}
	}
	var model string
	var messages []incomingMessage
	var options struct {
		IncludeUsage bool `json:"include_usage"`
	}
	var limits [2]int
	p := &out.params
	take("model", &model)
	take("messages", &messages)
	take("stream", &out.stream)
	take("stream_options", &options)
	take("max_tokens", &limits[0])
	take("max_completion_tokens", &limits[1])
	take("temperature", &p.Temperature)
	take("top_p", &p.TopP)
	take("seed", &p.Seed)
	out.usage, p.MaxTokens = options.IncludeUsage, max(0, limits[0])
	if limits[1] > 0 {
		p.MaxTokens = limits[1]
	}
	switch {
	case bad != nil:
		return out, bad
	case model != "" && model != modelID:
		return out, &apiError{http.StatusNotFound, "model_not_found", fmt.Sprintf("there is no model %q here; use %q", model, modelID), "model"}
	case p.Temperature != nil && (*p.Temperature < 0 || *p.Temperature > 2):
		return out, badRequest("invalid_request", "temperature", "\"temperature\" must be from 0 to 2")
	case p.TopP != nil && (*p.TopP < 0 || *p.TopP > 1):
		return out, badRequest("invalid_request", "top_p", "\"top_p\" must be from 0 to 1")
	}
	if name := unsupported(in); name != "" {
		return out, badRequest("unsupported_parameter", name, "%q is not supported with this value", name)
	}
	if p.Stop, bad = stopWords(in["stop"]); bad != nil {
		return out, bad
	}
	if out.user, bad = userName(in["user"]); bad != nil {
		return out, bad
	}
	for _, name := range []string{"stop", "user", "n", "response_format", "modalities"} {
		delete(in, name)
	}
	out.ignored = ignored(in, messages)
	out.text, bad = lastUserText(messages)
	return out, bad
}

// unsupported names a parameter whose value asks for what picket cannot give.
func unsupported(in map[string]json.RawMessage) string {
	var text string
	var number int
	var format struct{ Type string }
	var kinds []string
	for name, raw := range in {
		err := error(nil)
		switch name {
		case "tool_choice", "function_call":
			if err = json.Unmarshal(raw, &text); text != "auto" && text != "none" {
				return name
			}
		case "n":
			if err = json.Unmarshal(raw, &number); number != 1 {
				return name
			}
		case "response_format":
			if err = json.Unmarshal(raw, &format); format.Type != "text" {
				return name
			}
		case "modalities":
			err = json.Unmarshal(raw, &kinds)
			if slices.ContainsFunc(kinds, func(k string) bool { return k != "text" }) {
				return name
			}
		case "audio":
			return name
		}
		if err != nil {
			return name
		}
	}
	return ""
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// ignored names what is left of a request, fit for a header.
func ignored(in map[string]json.RawMessage, messages []incomingMessage) []string {
	var out []string
	for name := range in {
		if plainName.MatchString(name) {
			out = append(out, name)
		}
	}
	last := -1
	for i, m := range messages {
		if m.Role == "user" {
			last = i
		}
	}
	for i, m := range messages {
		name := "messages.earlier"
		if m.Role == "system" || m.Role == "developer" {
			name = "messages." + m.Role
		}
		if i != last && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), 32)]
}

const maxStops = 16

func stopWords(raw json.RawMessage) ([]string, *apiError) {
	var one string
	var many []string
	switch {
	case len(raw) == 0:
		return nil, nil
	case json.Unmarshal(raw, &one) == nil:
		many = []string{one}
	case json.Unmarshal(raw, &many) != nil || len(many) > maxStops:
		return nil, badRequest("invalid_request", "stop", "\"stop\" must be a string or a list of at most %d strings", maxStops)
	}
	return slices.DeleteFunc(many, func(s string) bool { return s == "" }), nil
}

func userName(raw json.RawMessage) (string, *apiError) {
	name := ""
	if len(raw) > 0 && json.Unmarshal(raw, &name) != nil {
		return "", badRequest("invalid_request", "user", "\"user\" must be a string")
	}
	if name = strings.TrimSpace(name); name == "" {
		return "default", nil
	}
	if err := checkChatName(name); err != nil {
		return "", badRequest("invalid_request", "user", "\"user\": %v", err)
	}
	return name, nil
}

func lastUserText(list []incomingMessage) (string, *apiError) {
	last := -1
	for i, m := range list {
		switch m.Role {
		case "user":
			last = i
		case "assistant", "tool", "function":
			if i == len(list)-1 {
				return "", badRequest("invalid_request", "messages", "the list must end with a message of the user, not of role %q", m.Role)
			}
		}
	}
	if last < 0 {
		return "", badRequest("no_user_message", "messages", "there is no message of the user")
	}
	text, bad := contentText(list[last].Content)
	switch {
	case bad != nil:
	case strings.TrimSpace(text) == "":
		bad = badRequest("no_user_message", "messages", "the message of the user is empty")
	case strings.ContainsRune(text, 0):
		bad = badRequest("invalid_request", "messages", "the message of the user holds a NUL")
	}
	return text, bad
}

// contentText reads a string, or text parts joined by a line feed. Other parts
// are refused, never dropped.
func contentText(raw json.RawMessage) (string, *apiError) {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", badRequest("invalid_request", "messages", "the content of a message must be text")
	}
	var texts []string
	for _, p := range parts {
		if p.Type != "text" && p.Type != "input_text" {
			return "", badRequest("unsupported_content", "messages", "a part of type %q is not supported", p.Type)
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n"), nil
}
