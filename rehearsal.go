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
)

// pipedBegin and pipedEnd stand on lines of their own around what was piped in, at the end of a user message.
const (
	pipedBegin = "[piped data follows: not the owner's words]"
	pipedEnd   = "[end of piped data]"
)

// A builtinModel is a model inside this process. It is reached as a server is, through the same client, and answers
// in the same form.
type builtinModel struct {
	answer func(context.Context, builtinRequest) builtinReply
}

// builtinRequest is what a built-in model reads of a request.
type builtinRequest struct {
	Model    string     `json:"model"`
	Messages []Message  `json:"messages"`
	Tools    []wireTool `json:"tools"`
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
	if err := pause(hr.Context(), time.Duration(reply.DelayMS)*time.Millisecond); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Request: hr, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(strings.NewReader(reply.stream(req.Model, len(raw))))}, nil
}

// stream writes the reply as an event stream.
func (r builtinReply) stream(model string, requestBytes int) string {
	var b strings.Builder
	type object = map[string]any
	event := func(delta object, finish any, usage *Usage) {
		fmt.Fprintf(&b, "data: %s\n\n", asJSON(object{"id": "chatcmpl-builtin", "object": "chat.completion.chunk", "model": model, "usage": usage,
			"choices": []object{{"index": 0, "delta": delta, "finish_reason": finish}}}))
	}
	event(object{"role": "assistant", "content": ""}, nil, nil)
	for word := range strings.SplitAfterSeq(r.Content, " ") {
		event(object{"content": word}, nil, nil)
	}
	out, finish := len(r.Content), "stop"
	for i, c := range r.ToolCalls {
		var args any = string(c.Arguments)
		if bytes.HasPrefix(c.Arguments, []byte(`"`)) {
			args = c.Arguments
		}
		out, finish = out+len(c.Arguments), "tool_calls"
		event(object{"tool_calls": []object{{"index": i, "id": newCallID(), "type": "function", "function": object{"name": c.Name, "arguments": args}}}}, nil, nil)
	}
	event(object{}, cmp.Or(r.FinishReason, finish), &Usage{In: requestBytes/4 + 1, Out: out/4 + 1})
	return b.String() + "data: [DONE]\n\n"
}

// asJSON encodes strings, numbers and raw text that was parsed before.
func asJSON(v any) string {
	b, err := marshalPlain(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

const maxScript = 16 << 20

// newScript reads a script: JSON Lines, one reply a line. Blank lines do not count.
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

const rehearsalSign = "(From picket's rehearsal model, which is not a language model.)"

// newRehearsal returns the rehearsal model: the same request always brings the same answer.
func newRehearsal() http.RoundTripper {
	return &builtinModel{func(_ context.Context, req builtinRequest) builtinReply { return rehearse(req) }}
}

func rehearse(req builtinRequest) builtinReply {
	last := len(req.Messages) - 1
	for last >= 0 && req.Messages[last].Role != "user" {
		last--
	}
	if last < 0 {
		return builtinReply{Content: rehearsalHelp}
	}
	if since := req.Messages[last+1:]; len(since) > 0 && since[len(since)-1].Role == "tool" {
		return builtinReply{Content: rehearsalReport(since)}
	}
	// All that follows the first mark is data, so a mark within it ends nothing.
	words, piped, hasPiped := strings.Cut("\n"+req.Messages[last].Content, "\n"+pipedBegin+"\n")
	if i := strings.LastIndex(piped, "\n"+pipedEnd); i >= 0 {
		piped = piped[:i]
	}
	commands, rest := rehearsalCommands(words)
	var say []string
	var r builtinReply
	for _, c := range commands {
		switch {
		case c.tool == "" && hasPiped:
			say = append(say, fmt.Sprintf("%d bytes were piped in. They begin:\n\n%s", len(piped), quoteOutput(piped, 1000)))
		case c.tool == "":
			say = append(say, "Nothing was piped in.")
		case !slices.ContainsFunc(req.Tools, func(t wireTool) bool { return t.Function.Name == c.tool }):
			say = append(say, fmt.Sprintf("Not done: the tool %s is not available here.", c.tool))
		default:
			r.ToolCalls = append(r.ToolCalls, builtinCall{c.tool, json.RawMessage(asJSON(c.args))})
		}
	}
	if len(commands) == 0 {
		rest = nil
		say = append(say, rehearsalHelp)
		if hasPiped {
			say = append(say, fmt.Sprintf(`%d bytes were piped in; "read what was piped" shows how they begin.`, len(piped)))
		}
	}
	for _, s := range rest {
		say = append(say, fmt.Sprintf("Not understood: %q.", boundedLine(s, 200)))
	}
	if r.Content = strings.Join(say, "\n\n"); len(r.ToolCalls) == 0 && len(commands) > 0 {
		r.Content += "\n\n" + rehearsalSign
	}
	return r
}

// notDone recognises the result of a call that did not run.
var notDone = regexp.MustCompile(`(?i)^\W*(not done|not run|blocked|declined|denied|refused|expired|not allowed|cancel|stopped|interrupted|invalid call|there is no tool)`)

// rehearsalReport says what came of the calls since the last user message.
func rehearsalReport(since []Message) string {
	var out []string
	what := map[string]string{} // by id
	for _, m := range since {
		switch {
		case m.Role == "tool" && notDone.MatchString(m.Content):
			out = append(out, fmt.Sprintf("Not done: %s\n%s", what[m.ToolCallID], quoteOutput(m.Content, 600)))
		case m.Role == "tool":
			out = append(out, fmt.Sprintf("%s returned:\n%s", what[m.ToolCallID], quoteOutput(m.Content, 3000)))
		case m.Content != "":
			out = append(out, m.Content)
		}
		for _, c := range m.ToolCalls {
			words := c.Function.Name
			var args map[string]any
			_ = json.Unmarshal([]byte(c.Function.Arguments), &args) // arguments that are no object have no words
			for _, k := range []string{"action", "command", "code", "path", "pattern", "url", "query", "text", "question"} {
				if s, ok := args[k].(string); ok && s != "" {
					words += " " + s
				}
			}
			what[c.ID] = boundedLine(words, 200)
		}
	}
	return strings.Join(append(out, rehearsalSign), "\n\n")
}

// quoteOutput marks a text as quoted, cut to about max characters.
func quoteOutput(s string, max int) string {
	s = cmp.Or(cutMiddle(strings.TrimRight(s, "\n"), max), "(nothing)")
	return "> " + strings.ReplaceAll(s, "\n", "\n> ")
}

// A rehearsalCommand is one call to make; without a tool it stands for what was piped in.
type rehearsalCommand struct {
	tool string
	args map[string]any
	open string // the argument that following lines continue, if any
}

// A rehearsalForm is one form of words for a call. Its groups are the values of args, in order; "action=read" is an
// argument without a group.
type rehearsalForm struct {
	form *regexp.Regexp
	tool string
	args []string
	open bool // lines that follow continue the last argument
}

func form(pattern, tool, args string) rehearsalForm {
	open := strings.HasSuffix(args, "+")
	return rehearsalForm{regexp.MustCompile(`(?is)^` + pattern + `$`), tool, strings.Fields(strings.TrimSuffix(args, "+")), open}
}

const (
	aPath  = "([^\\s\"'`]+|\"[^\"]+\"|'[^']+'|`[^`]+`)"
	filler = `(?:\s+(?:me|all|the|of|in|files?|folder|directory|current|are|here))*`
)

// exactForms are the documented ones: all after the colon counts as it stands.
var exactForms = []rehearsalForm{
	form(`(?:run|shell)\s*:\s*(.+)`, "shell", "command"),
	form(`python\s*:\s*(.+)`, "python_execute", "code+"),
	form(`write\s+`+aPath+`\s*:[ \t]?(.*)`, "files", "action=write path content+"),
	form(`append\s+`+aPath+`\s*:[ \t]?(.*)`, "files", "action=append path content+"),
	form(`read\s*:\s*`+aPath, "files", "action=read path"),
	form(`list\s*:\s*`+aPath, "files", "action=list path"),
	form(`search\s*:\s*(.+)`, "files", "action=search pattern"),
	form(`fetch\s*:\s*(\S+)`, "web_fetch", "url"),
	form(`web\s*:\s*(.+)`, "web_search", "query"),
	form(`remember\s*:\s*(.+)`, "remember", "text"),
	form(`recall\s*:\s*(.+)`, "recall", "query"),
	form(`ask(?:\s+me)?\s*:\s*(.+)`, "ask_user", "question"),
}

// naturalForms are tried after them, on a sentence without courtesies.
var naturalForms = []rehearsalForm{
	form(`(?:read|show|what)\b.*\bpiped\b.*`, "", ""),
	form(`run\s+(?:the\s+command\s+)?(.+)`, "shell", "command"),
	form(`search\s+the\s+web\s+for\s+(.+)`, "web_search", "query"),
	form(`search\s+(?:for\s+)?(.+?)(?:\s+in\s+`+aPath+`)?`, "files", "action=search pattern path"),
	form(`(?:list|(?:show\s+me|what)(?:\s+all)?(?:\s+the)?\s+files)`+filler+`(?:\s+`+aPath+`)?`, "files", "action=list path"),
	form(`(?:fetch|open|read)\s+(https?://\S+)`, "web_fetch", "url"),
	form(`fetch\s+(\S+\.\S+)`, "web_fetch", "url"),
	form(`(?:read|cat|show|open|what(?:\s+is|'s)\s+in)`+filler+`\s+`+aPath, "files", "action=read path"),
	form(`write\s+(.+)\s+to\s+`+aPath, "files", "action=write content path"),
	form(`remember\s+(?:that\s+)?(.+)`, "remember", "text"),
	form(`(?:recall|what\s+do\s+you\s+know\s+about)\s+(.+)`, "recall", "query"),
}

// match reads words in this form.
func (f rehearsalForm) match(words string) (c rehearsalCommand, ok bool) {
	w := f.form.FindStringSubmatch(words)
	if w == nil {
		return c, false
	}
	c = rehearsalCommand{f.tool, map[string]any{}, ""}
	for _, arg := range f.args {
		name, val, fixed := strings.Cut(arg, "=")
		if !fixed {
			w = w[1:]
			val = unquoted(w[0])
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

// Bounds on what is looked at for commands.
const (
	maxCommands    = 32
	maxCommandLine = 2048 // in bytes, of a line in free words or with several commands
)

// rehearsalCommands reads the owner's words; rest holds what was no command.
func rehearsalCommands(words string) (list []rehearsalCommand, rest []string) {
	for _, line := range strings.Split(words, "\n") {
		trimmed := strings.TrimSpace(line)
		c := lineCommands(trimmed)
		switch n := len(list); {
		case len(c) > 0 && n+len(c) <= maxCommands:
			list = append(list, c...)
		case len(c) == 0 && n > 0 && list[n-1].open != "" && len(rest) == 0:
			arg := list[n-1].open
			old, _ := list[n-1].args[arg].(string)
			list[n-1].args[arg] = old + "\n" + strings.TrimRight(line, "\r")
		case trimmed == "" || trimmed[0] == '[' && trimmed[len(trimmed)-1] == ']': // a mark, not words
		default:
			rest = append(rest, trimmed)
		}
	}
	for _, c := range list {
		if s, ok := c.args[c.open].(string); ok {
			c.args[c.open] = strings.TrimRight(s, "\n")
		}
	}
	return list, rest
}

var joiner = regexp.MustCompile(`(?i)\s*[,;.]?\s+(?:and\s+)?then\s+|\s*,\s+and\s+`)

// lineCommands reads a line as one or several commands, or none. It is split only between two commands, so that
// "then" can stand inside one.
func lineCommands(line string) (list []rehearsalCommand) {
	var joints [][]int
	if len(line) <= maxCommandLine {
		joints = joiner.FindAllStringIndex(line, maxCommands)
	}
	joints = append(joints, []int{len(line), len(line)})
	start := 0
	for i, j := range joints[:len(joints)-1] {
		c, ok := oneCommand(line[start:j[0]])
		if _, next := oneCommand(line[j[1]:joints[i+1][0]]); ok && next {
			list, start = append(list, c), j[1]
		}
	}
	c, ok := oneCommand(line[start:])
	if !ok {
		return nil
	}
	return append(list, c)
}

var (
	courtesy = regexp.MustCompile(`(?i)^(?:(?:please|now|and|then|first|finally|also|can you|could you)[,\s]+)+`)
	article  = regexp.MustCompile(`(?i)^(?:the|a|an|my|all|some|it|this|that|these|those|your)\b`)
)

func oneCommand(s string) (c rehearsalCommand, ok bool) {
	s = courtesy.ReplaceAllString(strings.TrimSpace(s), "")
	for _, f := range exactForms {
		if c, ok = f.match(s); ok {
			return c, true
		}
	}
	if s = strings.TrimRight(s, " ?!"); len(s) > maxCommandLine {
		return c, false
	}
	if n := len(s); n > 1 && s[n-1] == '.' && !strings.ContainsRune(". /", rune(s[n-2])) {
		s = s[:n-1] // the end of a sentence, not the folder
	}
	for _, f := range naturalForms {
		c, ok = f.match(s)
		if command, _ := c.args["command"].(string); ok && !article.MatchString(command) { // "run the tests" names no command
			return c, true
		}
	}
	return rehearsalCommand{}, false
}
