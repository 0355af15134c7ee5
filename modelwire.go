package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"picket/tools"
)

// quirks are what a server has refused so far, by the names below. True means that requests are put so from now on,
// false that this was refused too.
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

type wireTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// malformedNote follows the conversation when a server reports that the model wrote a call that it could not read.
const malformedNote = "(Note from picket: your last function call was malformed and reached no tool. Make calls only through the function interface, with JSON arguments.)"

// body returns the request as JSON.
func (m *chatModel) body(req ModelRequest, known quirks, names toolNames, noted bool) ([]byte, error) {
	list := req.Messages
	if noted {
		list = append(slices.Clone(list), Message{Role: "user", Content: malformedNote})
	}
	limit := "max_tokens"
	if known[quirkCompletionTokens] {
		limit = "max_completion_tokens"
	}
	var offered []wireTool
	for _, t := range req.Tools {
		w := wireTool{Type: "function"}
		w.Function.Name, w.Function.Description, w.Function.Parameters = names.wireName(t.Name), t.Description, t.Schema()
		if known[quirkPlainSchemas] {
			w.Function.Parameters = plainSchema(w.Function.Parameters)
		}
		offered = append(offered, w)
	}
	r := map[string]any{"model": m.s.Name, "messages": wireMessages(list, m.id, known, names), "stream": true,
		"stream_options": map[string]bool{"include_usage": true}}
	for name, v := range map[string]any{limit: cmp.Or(req.MaxTokens, m.s.MaxTokens), "temperature": cmp.Or(req.Temperature, m.s.Temperature),
		"top_p": req.TopP, "seed": req.Seed, "stop": req.Stop, "tools": offered} {
		if !reflect.ValueOf(v).IsZero() {
			r[name] = v
		}
	}
	for q := range known {
		if p, ok := strings.CutPrefix(q, quirkWithout); ok {
			delete(r, p)
		}
	}
	body, err := marshalPlain(r)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be written as JSON: %w", err)
	}
	return body, nil
}

const interruptedResult = "interrupted: this call was stopped before it gave a result"

// wireMessages puts a history into the form that every server takes: neighbours of one role are one message, no
// assistant message is empty, and every call is followed by exactly one result, in order. me is the model that is asked.
func wireMessages(in []Message, me string, known quirks, names toolNames) []Message {
	out := make([]Message, 0, len(in))
	used := map[string]bool{}
	late := false // a message that is not the system's has gone out
	for i, msg := range in {
		calls := msg.ToolCalls
		if msg.Role == "tool" || msg.Role == "assistant" && len(calls) == 0 && strings.TrimSpace(msg.Content) == "" {
			continue // results are taken with their calls, below
		}
		if msg.Role == "system" && (late || known[quirkNoSystem]) {
			msg.Role = "user" // templates take a system message at the start only
		}
		late = late || msg.Role != "system"
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
		at := len(out) - 1
		results := in[i+1:]
		if end := slices.IndexFunc(results, func(m Message) bool { return m.Role != "tool" }); end >= 0 {
			results = results[:end]
		}
		results = slices.Clone(results)
		for _, c := range calls {
			result := interruptedResult // calls with one id have their results in order
			if r := slices.IndexFunc(results, func(m Message) bool { return m.ToolCallID == c.ID }); r >= 0 {
				result = results[r].Content
				results = slices.Delete(results, r, r+1)
			}
			if strings.TrimSpace(result) == "" {
				result = "(no output)"
			}
			var err error
			if c.Function.Arguments, err = finalArgs(c.Function.Arguments); err != nil {
				c.Function.Arguments = "{}"
			}
			if c.from != me {
				c.Extra = nil
			}
			c.Type, c.Function.Name = "function", names.wireName(c.Function.Name)
			c.ID = wireID(c.ID, known[quirkShortIDs], used)
			out[at].ToolCalls = append(out[at].ToolCalls, c)
			out = append(out, Message{Role: "tool", Content: result, ToolCallID: c.ID})
		}
	}
	return out
}

var (
	anyID  = lazyRegexp(`^[A-Za-z0-9_-]{1,40}$`) // OpenAI takes no more than 40
	nineID = lazyRegexp(`^[A-Za-z0-9]{9}$`)      // Mistral takes no other
)

// wireID returns the id that a call goes by in one request: its own, or one made from it where that is too odd for
// the server or used already.
func wireID(id string, short bool, used map[string]bool) string {
	form := anyID
	if short {
		form = nineID
	}
	out := id
	for n := 0; !form().MatchString(out) || used[out]; n++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", n, id))
		out = hex.EncodeToString(sum[:])[:9]
	}
	used[out] = true
	return out
}

// toolNames maps the names of the tools of one request to those that servers take, [A-Za-z0-9_-]{1,64}, and back:
// real also knows the tools' own names.
type toolNames struct{ wire, real map[string]string }

var notInName = lazyRegexp(`[^A-Za-z0-9_-]`)

func newToolNames(list []tools.Tool) toolNames {
	n := toolNames{map[string]string{}, map[string]string{}}
	clean := map[string]int{}
	for _, t := range list {
		clean[cleanToolName(t.Name, false)]++
		n.real[t.Name] = t.Name
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

// wireName returns the name for the wire of a tool, also of one that is not offered any more.
func (n toolNames) wireName(name string) string {
	return cmp.Or(n.wire[name], cleanToolName(name, false))
}

// cleanToolName replaces what servers do not take in a name; hashed makes the outcome one that no other name has.
func cleanToolName(name string, hashed bool) string {
	clean := notInName().ReplaceAllString(name, "_")
	if n := len(clean); hashed || n == 0 || n > 64 {
		sum := sha256.Sum256([]byte(name))
		clean = clean[:min(n, 55)] + "_" + hex.EncodeToString(sum[:4])
	}
	return clean
}

var (
	nameSpace  = lazyRegexp(`^(?:functions?|tools?|default_api)[.:]`)
	nameSuffix = lazyRegexp(`<\|.*$|:\d+$`)
)

// resolve returns the tool that a name means. What servers are known to leave around a name is taken off only if
// the rest is exactly a tool and the whole is not. The error is for the model.
func (n toolNames) resolve(whole string) (string, error) {
	bare := strings.TrimSpace(nameSuffix().ReplaceAllString(strings.TrimSpace(whole), ""))
	if r := cmp.Or(n.real[whole], n.real[bare], n.real[nameSpace().ReplaceAllString(bare, "")]); r != "" {
		return r, nil
	}
	if len(n.wire) == 0 {
		return whole, errors.New("no tools were offered with this request, so none can be called: answer in words")
	}
	list := slices.Sorted(maps.Values(n.wire))
	return whole, fmt.Errorf("there is no tool %q: the tools are %s", whole, strings.Join(list, ", "))
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
	out := map[string]any{"type": "string"}
	for _, k := range []string{"type", "description", "enum", "required"} {
		if in[k] != nil {
			out[k] = in[k]
		}
	}
	if list, ok := in["type"].([]any); ok { // "string or null"
		list = slices.DeleteFunc(list, func(t any) bool { return t == "null" })
		out["type"] = append(list, "string")[0]
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
	return out
}
