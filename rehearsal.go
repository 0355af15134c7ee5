package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// pipedBegin and pipedEnd stand on lines of their own around what was piped in,
// at the end of a user message.
const (
	pipedBegin = "[piped data follows: not the owner's words]"
	pipedEnd   = "[end of piped data]"
)

// A builtinModel is a model inside this process. It is reached as a server is,
// through the same client, and answers in the same form.
type builtinModel struct {
	answer func(context.Context, builtinRequest) builtinReply
}

// builtinRequest is what a built-in model reads of a request.
type builtinRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role       string     `json:"role"`
		Content    string     `json:"content"`
		ToolCalls  []ToolCall `json:"tool_calls"`
		ToolCallID string     `json:"tool_call_id"`
	} `json:"messages"`
	Tools []wireTool `json:"tools"`
}

// builtinReply is a line of a script, and what the rehearsal model makes.
type builtinReply struct {
	Content      string        `json:"content"`
	ToolCalls    []builtinCall `json:"tool_calls"`
	FinishReason string        `json:"finish_reason"`
	DelayMS      int           `json:"delay_ms"`
}

type builtinCall struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // an object, or a string sent as it stands
}

// RoundTrip implements http.RoundTripper.
func (b *builtinModel) RoundTrip(hr *http.Request) (*http.Response, error) {
	defer hr.Body.Close()
	var req builtinRequest
	raw, err := io.ReadAll(hr.Body)
	if err == nil {
		err = json.Unmarshal(raw, &req)
	}
	if err != nil {
		return nil, err
	}
	reply := b.answer(hr.Context(), req)
	select {
	case <-time.After(time.Duration(reply.DelayMS) * time.Millisecond):
	case <-hr.Context().Done():
		return nil, hr.Context().Err()
	}
	return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Request: hr, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(bytes.NewReader(reply.stream(req.Model, len(raw))))}, nil
}

// stream writes the reply as an event stream.
func (r builtinReply) stream(model string, requestBytes int) []byte {
	var b bytes.Buffer
	delta := func(d map[string]any, finish any, usage *Usage) {
		event := map[string]any{"id": "chatcmpl-builtin", "object": "chat.completion.chunk", "model": model,
			"choices": []any{map[string]any{"index": 0, "delta": d, "finish_reason": finish}}}
		if usage != nil {
			event["usage"] = usage
		}
		fmt.Fprintf(&b, "data: %s\n\n", asJSON(event))
	}
	delta(map[string]any{"role": "assistant", "content": ""}, nil, nil)
	for word := range strings.SplitAfterSeq(r.Content, " ") {
		delta(map[string]any{"content": word}, nil, nil)
	}
	out, finish := len(r.Content), "stop"
	for i, c := range r.ToolCalls {
		args := string(c.Arguments)
		if strings.HasPrefix(args, `"`) {
			args = valText(c.Arguments)
		}
		out, finish = out+len(args), "tool_calls"
		delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": newCallID(), "type": "function",
			"function": ToolFunction{c.Name, args}}}}, nil, nil)
	}
	delta(map[string]any{}, cmp.Or(r.FinishReason, finish), &Usage{In: requestBytes/4 + 1, Out: out/4 + 1})
	b.WriteString("data: [DONE]\n\n")
	return b.Bytes()
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only strings, numbers and raw text that was parsed before
	}
	return string(b)
}

const maxScript = 16 << 20

// newScript reads a script: JSON Lines, one reply a line. Blank lines do not
// count.
func newScript(file string) (http.RoundTripper, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the script: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxScript+1))
	if err != nil || len(raw) > maxScript {
		return nil, fmt.Errorf("cannot read the script %q: it must be a file of at most 16 MiB", file)
	}
	var replies []builtinReply
	for i, line := range bytes.Split(raw, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		r, err := parseReply(line)
		if err != nil {
			return nil, fmt.Errorf("script %q, line %d: %w", file, i+1, err)
		}
		replies = append(replies, r)
	}
	return &builtinModel{func(ctx context.Context, _ builtinRequest) builtinReply {
		n, _ := ctx.Value(repliesKey{}).(int)
		if n >= len(replies) {
			return builtinReply{Content: fmt.Sprintf("The script %q ends after %d replies; this would be reply %d.", file, len(replies), n+1)}
		}
		return replies[n]
	}}, nil
}

func parseReply(line []byte) (r builtinReply, err error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err = d.Decode(&r); err == nil && d.More() {
		err = errors.New("there is more than one value")
	}
	if err == nil && (r.DelayMS < 0 || r.DelayMS > 3600_000) {
		err = errors.New("delay_ms must be from 0 to an hour")
	}
	for _, c := range r.ToolCalls {
		if a := string(c.Arguments); err == nil && (c.Name == "" || a != "" && a != "null" && a[0] != '{' && a[0] != '"') {
			err = errors.New("a call needs a name, and arguments that are an object or a string")
		}
	}
	return r, err
}

const rehearsalHelp = `I am picket's rehearsal model: built in, offline, and not a language model. I turn plain commands into tool calls, so that you can see picket's gate, sandbox, questions and log at work:

  run: ls -la                  python: print(6*7)
  read go.mod                  list src
  search TODO                  write notes.txt: some text
  fetch https://example.com    web: a query
  remember: some fact          recall: a topic

Several can be joined by "then" or stand on lines of their own.

For real answers connect a model: start Ollama ("ollama pull qwen3"), or set OPENAI_API_KEY, or name any OpenAI-compatible server with --base-url and --model.`

// newRehearsal returns the rehearsal model: the same request always brings the
// same answer.
func newRehearsal() http.RoundTripper {
	return &builtinModel{func(_ context.Context, req builtinRequest) builtinReply { return rehearse(req) }}
}

func rehearse(req builtinRequest) builtinReply {
	last := -1
	for i, m := range req.Messages {
		if m.Role == "user" {
			last = i
		}
	}
	if last < 0 {
		return builtinReply{Content: rehearsalHelp}
	}
	if len(req.Messages) > last+1 && req.Messages[len(req.Messages)-1].Role == "tool" {
		return builtinReply{Content: rehearsalReport(req, last)}
	}
	words, piped, hasPiped := strings.Cut("\n"+req.Messages[last].Content, "\n"+pipedBegin)
	commands, rest := rehearsalCommands(words)
	var say []string
	var r builtinReply
	for _, c := range commands {
		offered := slices.ContainsFunc(req.Tools, func(t wireTool) bool { return t.Function.Name == c.tool })
		switch {
		case c.tool == "":
			say = append(say, showPiped(piped, hasPiped))
		case !offered:
			say = append(say, fmt.Sprintf("Not done: the tool %s is not available here.", c.tool))
		default:
			r.ToolCalls = append(r.ToolCalls, builtinCall{c.tool, json.RawMessage(asJSON(c.args))})
		}
	}
	for _, s := range rest {
		if len(commands) > 0 {
			say = append(say, fmt.Sprintf("Not understood: %q.", boundedLine(s, 200)))
		}
	}
	if len(commands) == 0 {
		say = append(say, rehearsalHelp)
		if hasPiped {
			say = append(say, fmt.Sprintf(`%d bytes were piped in; "read what was piped" shows how they begin.`, len(pipedData(piped))))
		}
	}
	if r.Content = strings.Join(say, "\n\n"); len(r.ToolCalls) == 0 && len(commands) > 0 {
		r.Content += "\n\n" + rehearsalSign
	}
	return r
}

const rehearsalSign = "(From picket's rehearsal model, which is not a language model.)"

// pipedData returns the data of a block. All that follows the first mark is
// data, so a mark within it ends nothing.
func pipedData(block string) string {
	block = strings.TrimPrefix(block, "\n")
	if i := strings.LastIndex(block, pipedEnd); i >= 0 {
		block = block[:i]
	}
	return strings.TrimSuffix(block, "\n")
}

func showPiped(block string, has bool) string {
	if !has {
		return "Nothing was piped in."
	}
	data := pipedData(block)
	return fmt.Sprintf("%d bytes were piped in. They begin:\n\n%s", len(data), quoteOutput(data, 1000))
}

// rehearsalReport says what came of the calls since the last user message.
func rehearsalReport(req builtinRequest, last int) string {
	var out []string
	for i := last + 1; i < len(req.Messages); i++ {
		m := req.Messages[i]
		if m.Role == "assistant" && m.Content != "" {
			out = append(out, m.Content)
		}
		for _, c := range m.ToolCalls {
			result := ""
			for _, t := range req.Messages[i+1:] {
				if t.Role == "tool" && t.ToolCallID == c.ID {
					result = t.Content
					break
				}
			}
			what := c.Function.Name + " " + boundedLine(callArgs(c.Function.Arguments), 200)
			if notDone.MatchString(result) {
				out = append(out, fmt.Sprintf("Not done: %s\n%s", what, quoteOutput(result, 600)))
			} else {
				out = append(out, fmt.Sprintf("%s returned:\n%s", what, quoteOutput(result, 3000)))
			}
		}
	}
	return strings.Join(append(out, rehearsalSign), "\n\n")
}

// notDone recognises the result of a call that did not run.
var notDone = regexp.MustCompile(`(?i)^\W*(not done|not run|blocked|declined|denied|refused|expired|not allowed|cancel|stopped|interrupted|invalid call|there is no tool)`)

// callArgs writes arguments for a person: their values, the action first.
func callArgs(raw string) string {
	var args map[string]any
	if json.Unmarshal([]byte(raw), &args) != nil {
		return raw
	}
	var out []string
	for _, k := range []string{"action", "command", "code", "path", "pattern", "url", "query", "text", "question"} {
		if s, ok := args[k].(string); ok && s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

// quoteOutput marks a text as quoted, cut to at most max bytes.
func quoteOutput(s string, max int) string {
	s = strings.TrimRight(s, "\n")
	if len(s) > max {
		cut := max
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = fmt.Sprintf("%s\n(and %d bytes more)", s[:cut], len(s)-cut)
	}
	if s == "" {
		s = "(nothing)"
	}
	return "> " + strings.ReplaceAll(s, "\n", "\n> ")
}

// A rehearsalCommand is one call to make; without a tool it stands for what was
// piped in.
type rehearsalCommand struct {
	tool string
	args map[string]any
	open string // the argument that following lines continue, if any
}

// A rehearsalForm is one form of words for a call. Its groups are the values of
// args, in order; "action=read" is an argument without a group.
type rehearsalForm struct {
	form *regexp.Regexp
	tool string
	args []string
	open bool // lines that follow continue the last argument
}

const (
	aPath   = "([^\\s\"'`]+|\"[^\"]+\"|'[^']+'|`[^`]+`)"
	aFolder = `(?:\s+(?:in|of|under|from|at)(?:\s+(?:the|this|my|current))*(?:\s+(?:folder|directory))?)?`
	aFile   = `(?:the\s+|a\s+)?(?:new\s+)?(?:file\s+)?(?:called\s+|named\s+)?`
)

func form(pattern, tool, args string, open bool) rehearsalForm {
	return rehearsalForm{regexp.MustCompile(`(?is)^` + pattern + `$`), tool, strings.Fields(args), open}
}

// exactForms are the documented ones: all after the colon counts as it stands.
var exactForms = []rehearsalForm{
	form(`(?:run|shell|execute)\s*:\s*(.+)`, "shell", "command", false),
	form(`(?:run\s+)?python\s*:\s*(.+)`, "python_execute", "code", true),
	form(`write\s+`+aPath+`\s*:[ \t]?(.*)`, "files", "action=write path content", true),
	form(`append\s+`+aPath+`\s*:[ \t]?(.*)`, "files", "action=append path content", true),
	form(`read\s*:\s*`+aPath, "files", "action=read path", false),
	form(`list\s*:\s*`+aPath, "files", "action=list path", false),
	form(`search\s*:\s*(.+)`, "files", "action=search pattern", false),
	form(`fetch\s*:\s*(\S+)`, "web_fetch", "url", false),
	form(`web\s*:\s*(.+)`, "web_search", "query", false),
	form(`remember\s*:\s*(.+)`, "remember", "text", false),
	form(`recall\s*:\s*(.+)`, "recall", "query", false),
	form(`ask(?:\s+me)?\s*:\s*(.+)`, "ask_user", "question", false),
}

// naturalForms are tried after them, on a sentence without courtesies.
var naturalForms = []rehearsalForm{
	form(`(?:read|show|quote|print|what)\b(?:\s+(?:me|is|was|what|the|data|that|i))*\s+piped(?:\s+(?:in|data|input|text))*`, "", "", false),
	form("(?:run|execute)\\s+(?:(?:the\\s+)?(?:shell\\s+)?command\\s+)?(`[^`]+`|\"[^\"]+\"|.+)", "shell", "command", false),
	form(`(?:search|look\s+up|google)\s+(?:(?:on|in)\s+)?(?:the\s+)?web\s+(?:for\s+)?(.+)`, "web_search", "query", false),
	form(`(?:search|grep|look)\s+(?:for\s+)?(.+?)\s+(?:in|under)\s+(?:the\s+)?(?:(?:files?|folder|directory)\s+)?`+aPath, "files", "action=search pattern path", false),
	form(`(?:search|grep|look\s+for|find)\s+(?:for\s+)?(.+)`, "files", "action=search pattern", false),
	form(`(?:list|ls|show|see|what|which)\b(?:\s+(?:me|all|of|the|my|are|is|everything))*(?:\s+(?:files|folder|directory))+(?:\s+(?:are|do|i|we|have|there|here))*`+aFolder+`(?:\s+`+aPath+`)?`, "files", "action=list path", false),
	form(`(?:list|ls)(?:\s+(?:everything|all))?`+aFolder+`(?:\s+`+aPath+`)?`, "files", "action=list path", false),
	form(`(?:fetch|visit|download|open|get|read|show(?:\s+me)?|go\s+to)\s+(?:the\s+)?(?:(?:page|site|url)\s+)?(https?://\S+)`, "web_fetch", "url", false),
	form(`(?:fetch|visit)\s+(\S+\.\S+)`, "web_fetch", "url", false),
	form(`(?:read|cat|show|open|display|print|view)(?:\s+(?:me|the|file|contents?|of))*\s+`+aPath+`(?:\s+file)?`, "files", "action=read path", false),
	form(`what(?:\s+is|'s|’s)\s+(?:in|inside)(?:\s+(?:the|file|contents?|of))*\s+`+aPath, "files", "action=read path", false),
	form(`what\s+does\s+`+aFile+aPath+`\s+(?:say|contain)`, "files", "action=read path", false),
	form(`(?:create|make|write)\s+`+aFile+aPath+`\s+(?:with|containing|that\s+says)\s+(?:the\s+(?:content|text)\s+)?(.+)`, "files", "action=write path content", false),
	form(`(?:write|save|put)\s+(.+)\s+(?:to|into|in|as)\s+`+aFile+aPath, "files", "action=write content path", false),
	form(`(?:append|add)\s+(.+)\s+to\s+`+aFile+aPath, "files", "action=append content path", false),
	form(`remember\s+(?:that\s+)?(.+)`, "remember", "text", false),
	form(`(?:recall|what\s+do\s+you\s+(?:remember|know)\s+about)\s+(.+)`, "recall", "query", false),
}

// match reads words in this form.
func (f rehearsalForm) match(words string) (rehearsalCommand, bool) {
	w := f.form.FindStringSubmatch(words)
	c := rehearsalCommand{f.tool, map[string]any{}, ""}
	if w == nil {
		return c, false
	}
	for i, arg := 1, 0; arg < len(f.args); arg++ {
		name, val, fixed := strings.Cut(f.args[arg], "=")
		if !fixed {
			val = unquoted(w[i])
			i++
		}
		if name == "url" && !strings.Contains(val, "://") {
			val = "https://" + val
		}
		if val != "" {
			c.args[name] = val
		}
		if f.open {
			c.open = name
		}
	}
	return c, true
}

// unquoted takes off one pair of quotes around the whole.
func unquoted(s string) string {
	if n := len(s); n >= 2 && s[0] == s[n-1] && strings.IndexByte("\"'`", s[0]) >= 0 && strings.IndexByte(s[1:n-1], s[0]) < 0 {
		return s[1 : n-1]
	}
	return s
}

var (
	courtesy = regexp.MustCompile(`(?i)^(?:(?:please|now|and|then|first|finally|also|next|can you|could you|would you|will you|i want you to|i'd like you to|let's|picket,?)[,\s]+)+`)
	joiner   = regexp.MustCompile(`(?i)\s*[,;.]?\s+(?:and\s+)?then\s+|\s*,\s+and\s+`)
	article  = regexp.MustCompile(`(?i)^(?:the|a|an|my|all|some|it|this|that|these|those|your)\b`)
)

// rehearsalCommands reads the owner's words; rest holds what was no command.
func rehearsalCommands(words string) (list []rehearsalCommand, rest []string) {
	for _, line := range strings.Split(words, "\n") {
		trimmed := strings.TrimSpace(line)
		c, ok := lineCommands(trimmed)
		switch n := len(list); {
		case ok && n+len(c) > maxCommands:
			rest = append(rest, trimmed)
		case ok:
			list = append(list, c...)
		case n > 0 && list[n-1].open != "" && len(rest) == 0:
			arg := list[n-1].open
			old, _ := list[n-1].args[arg].(string)
			list[n-1].args[arg] = old + "\n" + strings.TrimRight(line, "\r")
		case trimmed == "" || trimmed[0] == '[' && trimmed[len(trimmed)-1] == ']': // a mark, not words
		default:
			rest = append(rest, trimmed)
		}
	}
	for _, c := range list {
		if c.open != "" {
			s, _ := c.args[c.open].(string)
			c.args[c.open] = strings.TrimRight(s, "\n")
		}
	}
	return list, rest
}

// Bounds on what is looked at for commands.
const (
	maxCommands     = 32
	maxCommandLine  = 2048 // in bytes, of a line in free words or with several commands
	maxLineCommands = 16
)

// lineCommands reads a line as one or several commands. It is split only where
// all sides are commands, so that "then" can stand inside one.
func lineCommands(line string) ([]rehearsalCommand, bool) {
	var joints [][]int
	if len(line) <= maxCommandLine {
		joints = joiner.FindAllStringIndex(line, maxLineCommands)
	}
	joints = append(joints, []int{len(line), len(line)})
	var tails = make([][]rehearsalCommand, len(joints)) // what stands after each joint
	for i := len(joints) - 2; i >= -1; i-- {
		start := 0
		if i >= 0 {
			start = joints[i][1]
		}
		for j := i + 1; j < len(joints); j++ {
			last := j == len(joints)-1
			if !last && tails[j] == nil {
				continue
			}
			c, ok := oneCommand(line[start:joints[j][0]])
			if !ok {
				continue
			}
			list := append([]rehearsalCommand{c}, tails[j]...)
			if i < 0 {
				return list, true
			}
			tails[i] = list
			break
		}
	}
	return nil, false
}

func oneCommand(s string) (rehearsalCommand, bool) {
	s = courtesy.ReplaceAllString(strings.TrimSpace(s), "")
	for _, f := range exactForms {
		if c, ok := f.match(s); ok {
			return c, true
		}
	}
	if s = strings.TrimRight(s, " ?!"); len(s) > maxCommandLine {
		return rehearsalCommand{}, false
	}
	if n := len(s); n > 1 && s[n-1] == '.' && s[n-2] != '.' && s[n-2] != ' ' && s[n-2] != '/' {
		s = s[:n-1] // the end of a sentence, not the folder
	}
	for _, f := range naturalForms {
		c, ok := f.match(s)
		if command, _ := c.args["command"].(string); ok && !article.MatchString(command) { // "run the tests" names no command
			return c, true
		}
	}
	return rehearsalCommand{}, false
}
