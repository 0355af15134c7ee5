package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"picket/tools"
)

// quirks are what a server has refused so far, by the names below. True means
// that requests are put so from now on, false that this was refused too.
type quirks map[string]bool

const (
	quirkCompletionTokens = "max_completion_tokens" // instead of max_tokens
	quirkReasoning        = "reasoning"             // reasoning goes back with the calls it led to
	quirkShortIDs         = "short ids"             // call ids are 9 letters and digits
	quirkBridge           = "bridge"                // an assistant line between tool and user
	quirkNoSystem         = "no system"             // system messages go as the user's
	quirkPlainSchemas     = "plain schemas"         // only the commonest JSON Schema keywords
	quirkWithout          = "without "              // and the name of a parameter that is left out
)

type chatRequest struct {
	Model               string         `json:"model"`
	Messages            []Message      `json:"messages"`
	Tools               []wireTool     `json:"tools,omitempty"`
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options,omitempty"`
	MaxTokens           int            `json:"max_tokens,omitempty"`
	MaxCompletionTokens int            `json:"max_completion_tokens,omitempty"`
	Temperature         *float64       `json:"temperature,omitempty"`
	TopP                *float64       `json:"top_p,omitempty"`
	Seed                *int64         `json:"seed,omitempty"`
	Stop                []string       `json:"stop,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type wireTool struct {
	Type     string       `json:"type"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// malformedNote follows the conversation when a server reports that the model
// wrote a call that it could not read.
const malformedNote = "(Note from picket: your last function call was malformed and reached no tool. Make calls only through the function interface, with JSON arguments.)"

// body returns the request as JSON.
func (m *chatModel) body(req ModelRequest, known quirks, names toolNames, noted bool) ([]byte, error) {
	list := req.Messages
	if noted {
		list = append(slices.Clone(list), Message{Role: "user", Content: malformedNote})
	}
	r := chatRequest{Model: m.s.Name, Messages: wireMessages(list, m.id, known, names), Stream: true,
		StreamOptions: &streamOptions{true}, MaxTokens: cmp.Or(req.MaxTokens, m.s.MaxTokens), Temperature: cmp.Or(req.Temperature, m.s.Temperature),
		TopP: req.TopP, Seed: req.Seed, Stop: req.Stop}
	if known[quirkCompletionTokens] {
		r.MaxTokens, r.MaxCompletionTokens = 0, r.MaxTokens
	}
	without := func(name string) bool { return known[quirkWithout+name] }
	if without("stream_options") {
		r.StreamOptions = nil
	}
	if without("max_tokens") {
		r.MaxTokens, r.MaxCompletionTokens = 0, 0
	}
	if without("temperature") {
		r.Temperature = nil
	}
	if without("top_p") {
		r.TopP = nil
	}
	if without("seed") {
		r.Seed = nil
	}
	if without("stop") {
		r.Stop = nil
	}
	for _, t := range req.Tools {
		schema := t.Schema()
		if known[quirkPlainSchemas] {
			schema = plainSchema(schema)
		}
		r.Tools = append(r.Tools, wireTool{"function", wireFunction{names.wireName(t.Name), t.Description, schema}})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("the request cannot be written as JSON: %w", err)
	}
	return b.Bytes(), nil
}

const interruptedResult = "interrupted: this call was stopped before it gave a result"

// wireMessages puts a history into the form that every server takes: neighbours
// of one role are one message, no assistant message is empty, and every call is
// followed by exactly one result, in order. me is the model that is asked.
func wireMessages(in []Message, me string, known quirks, names toolNames) []Message {
	out := make([]Message, 0, len(in))
	used := map[string]bool{}
	for i := 0; i < len(in); i++ {
		msg, calls := in[i], in[i].ToolCalls
		if msg.Role == "tool" { // results are taken with their calls, below
			continue
		}
		if msg.Role == "assistant" && len(calls) == 0 && strings.TrimSpace(msg.Content) == "" {
			continue
		}
		late := slices.ContainsFunc(out, func(m Message) bool { return m.Role != "system" })
		if msg.Role == "system" && (late || known[quirkNoSystem]) {
			msg.Role = "user" // templates take a system message at the start only
		}
		if msg.Role == "user" && known[quirkBridge] && len(out) > 0 && out[len(out)-1].Role == "tool" {
			out = append(out, Message{Role: "assistant", Content: "Understood."})
		}
		if !known[quirkReasoning] || len(calls) == 0 || calls[0].from != me {
			msg.Reasoning = ""
		}
		msg.ToolCalls, msg.ToolCallID = nil, ""
		if last := len(out) - 1; last >= 0 && out[last].Role == msg.Role {
			out[last].Content = strings.Trim(out[last].Content+"\n\n"+msg.Content, "\n")
			out[last].Reasoning = cmp.Or(msg.Reasoning, out[last].Reasoning)
		} else {
			out = append(out, msg)
		}
		if len(calls) == 0 {
			continue
		}
		end := i + 1
		for end < len(in) && in[end].Role == "tool" {
			end++
		}
		results := slices.Clone(in[i+1 : end])
		at := len(out) - 1
		for _, c := range calls {
			result := takeResult(&results, c.ID)
			c = wireCall(c, me, names)
			c.ID = wireID(c.ID, known[quirkShortIDs], used)
			out[at].ToolCalls = append(out[at].ToolCalls, c)
			out = append(out, Message{Role: "tool", Content: result, ToolCallID: c.ID})
		}
		i = end - 1
	}
	return out
}

// takeResult removes the first result of a call from a list and returns its
// content: calls with the same id have their results in order.
func takeResult(results *[]Message, id string) string {
	for i, r := range *results {
		if r.ToolCallID == id {
			*results = slices.Delete(*results, i, i+1)
			if strings.TrimSpace(r.Content) == "" {
				return "(no output)"
			}
			return r.Content
		}
	}
	return interruptedResult
}

// wireCall puts a call of the history into the form that every server takes.
func wireCall(c ToolCall, me string, names toolNames) ToolCall {
	c.Type = "function"
	c.Function.Name = names.wireName(c.Function.Name)
	if v, err := tools.DecodeStrict([]byte(c.Function.Arguments)); err != nil {
		c.Function.Arguments = "{}"
	} else if _, ok := v.(map[string]any); !ok {
		c.Function.Arguments = "{}"
	}
	if c.from != me {
		c.Extra = nil
	}
	return c
}

var (
	anyID  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`) // OpenAI takes no more than 40
	nineID = regexp.MustCompile(`^[A-Za-z0-9]{9}$`)      // Mistral takes no other
)

// wireID returns the id that a call goes by in one request: its own, or one
// made from it where that is too odd for the server or used already.
func wireID(id string, short bool, used map[string]bool) string {
	form := anyID
	if short {
		form = nineID
	}
	out := id
	for n := 0; !form.MatchString(out) || used[out]; n++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", n, id))
		out = hex.EncodeToString(sum[:])[:9]
	}
	used[out] = true
	return out
}

// toolNames maps the names of the tools of one request to those that servers
// take, [A-Za-z0-9_-]{1,64}, and back.
type toolNames struct{ wire, real map[string]string }

var notInName = regexp.MustCompile(`[^A-Za-z0-9_-]`)

func newToolNames(list []tools.Tool) toolNames {
	n := toolNames{map[string]string{}, map[string]string{}}
	clean := map[string]int{}
	for _, t := range list {
		clean[cleanToolName(t.Name, false)]++
	}
	for _, t := range list {
		w := cleanToolName(t.Name, false)
		if w != t.Name && clean[w] > 1 {
			w = cleanToolName(t.Name, true)
		}
		n.wire[t.Name], n.real[w] = w, t.Name
	}
	return n
}

// wireName returns the name for the wire of a tool, also of one that is not
// offered any more.
func (n toolNames) wireName(name string) string {
	return cmp.Or(n.wire[name], cleanToolName(name, false))
}

// cleanToolName replaces what servers do not take in a name; hashed makes the
// outcome one that no other name has.
func cleanToolName(name string, hashed bool) string {
	clean := notInName.ReplaceAllString(name, "_")
	if n := len(clean); hashed || n == 0 || n > 64 {
		sum := sha256.Sum256([]byte(name))
		clean = clean[:min(n, 55)] + "_" + hex.EncodeToString(sum[:4])
	}
	return clean
}

var (
	nameSpace  = regexp.MustCompile(`^(?:functions?|tools?|default_api)[.:]`)
	nameSuffix = regexp.MustCompile(`<\|.*$|:\d+$`)
)

// resolve returns the tool that the pieces of a name mean. What servers are
// known to leave around a name is taken off only if the rest is exactly a tool
// and the whole is not. The error is for the model.
func (n toolNames) resolve(pieces []string) (string, error) {
	known := func(s string) string {
		if _, ok := n.wire[s]; ok && n.real[s] == "" {
			return s
		}
		return n.real[s]
	}
	whole := strings.Join(pieces, "")
	if len(pieces) > 1 {
		if known(pieces[0]) != "" {
			return whole, fmt.Errorf("the call names two tools, %q and %q", pieces[0], boundedLine(pieces[1], 64))
		}
		if slices.IsSortedFunc(pieces, func(a, b string) int { return len(a) - len(b) }) && strings.HasPrefix(pieces[len(pieces)-1], pieces[0]) {
			whole = pieces[len(pieces)-1] // the name so far, each time
		}
	}
	bare := strings.TrimSpace(nameSuffix.ReplaceAllString(strings.TrimSpace(whole), ""))
	if r := cmp.Or(known(whole), known(bare), known(nameSpace.ReplaceAllString(bare, ""))); r != "" {
		return r, nil
	}
	if len(n.real) == 0 {
		return whole, errors.New("no tools were offered with this request, so none can be called: answer in words")
	}
	list := slices.Sorted(maps.Keys(n.real))
	return whole, fmt.Errorf("there is no tool %q: the tools are %s", boundedLine(whole, 64), strings.Join(list, ", "))
}

// plainSchema reduces a JSON Schema to the keywords that every server takes.
func plainSchema(raw json.RawMessage) json.RawMessage {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return raw
	}
	return json.RawMessage(asJSON(plainNode(v)))
}

func plainNode(v any) map[string]any {
	in, _ := v.(map[string]any)
	out := map[string]any{"type": in["type"]}
	if list, ok := in["type"].([]any); ok { // "string or null"
		list = slices.DeleteFunc(list, func(t any) bool { return t == "null" })
		out["type"] = append(list, "string")[0]
	}
	for _, k := range []string{"description", "enum", "required"} {
		if in[k] != nil {
			out[k] = in[k]
		}
	}
	if props, ok := in["properties"].(map[string]any); ok {
		p := map[string]any{}
		for k, v := range props {
			p[k] = plainNode(v)
		}
		out["type"], out["properties"] = "object", p
	}
	if out["type"] == "array" {
		out["items"] = plainNode(in["items"])
	}
	if out["type"] == nil {
		out["type"] = "string"
	}
	return out
}
