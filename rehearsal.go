package main

import (
	"bytes"
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
	answer func(ctx context.Context, req builtinRequest) (builtinReply, error)
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

// scriptError is an error of a script, which trying again does not mend.
type scriptError struct{ error }

// RoundTrip implements http.RoundTripper.
func (b *builtinModel) RoundTrip(hr *http.Request) (*http.Response, error) {
	defer hr.Body.Close()
	respond := func(status int, kind string, body []byte) (*http.Response, error) {
		return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: hr,
			Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(bytes.NewReader(body))}, nil
	}
	if hr.Method != "POST" {
		return respond(404, "application/json", []byte(`{"error":{"message":"only chat completions are served"}}`))
	}
	var req builtinRequest
	raw, err := io.ReadAll(hr.Body)
	if err == nil {
		err = json.Unmarshal(raw, &req)
	}
	if err != nil {
		return nil, scriptError{err}
	}
	reply, err := b.answer(hr.Context(), req)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(time.Duration(reply.DelayMS) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hr.Context().Done():
		return nil, hr.Context().Err()
	}
	return respond(200, "text/event-stream", reply.stream(req.Model, len(raw)))
}

// stream writes the reply as an event stream.
func (r builtinReply) stream(model string, requestBytes int) []byte {
	var b bytes.Buffer
	send := func(choices string, usage string) {
		fmt.Fprintf(&b, `data: {"id":"chatcmpl-builtin","object":"chat.completion.chunk","model":%s,"choices":[%s]%s}`+"\n\n", asJSON(model), choices, usage)
	}
	delta := func(d any, finish string) {
		send(fmt.Sprintf(`{"index":0,"delta":%s,"finish_reason":%s}`, asJSON(d), finish), "")
	}
	delta(map[string]any{"role": "assistant", "content": ""}, "null")
	for s := r.Content; s != ""; {
		n := min(len(s), 24)
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n++
		}
		delta(map[string]any{"content": s[:n]}, "null")
		s = s[n:]
	}
	out := len(r.Content)
	for i, c := range r.ToolCalls {
		args := string(c.Arguments)
		if len(c.Arguments) > 0 && c.Arguments[0] == '"' {
			args = valText(c.Arguments)
		}
		out += len(args)
		delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": newCallID(), "type": "function",
			"function": ToolFunction{c.Name, args}}}}, "null")
	}
	finish := r.FinishReason
	if finish == "" {
		finish = "stop"
		if len(r.ToolCalls) > 0 {
			finish = "tool_calls"
		}
	}
	delta(struct{}{}, asJSON(finish))
	send("", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, requestBytes/4+1, out/4+1))
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
		var r builtinReply
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err = d.Decode(&r); err == nil && d.More() {
			err = errors.New("there is more than one value")
		}
		for _, c := range r.ToolCalls {
			if err == nil && c.Name == "" {
				err = errors.New("a call has no name")
			}
			if a := bytes.TrimSpace(c.Arguments); err == nil && len(a) > 0 && a[0] != '{' && a[0] != '"' && string(a) != "null" {
				err = errors.New("arguments must be an object or a string")
			}
		}
		if err == nil && r.DelayMS < 0 {
			err = errors.New("delay_ms is negative")
		}
		if err != nil {
			return nil, fmt.Errorf("script %q, line %d: %w", file, i+1, err)
		}
		replies = append(replies, r)
	}
	return &builtinModel{func(ctx context.Context, req builtinRequest) (builtinReply, error) {
		n, _ := ctx.Value(repliesKey{}).(int)
		if n >= len(replies) {
			return builtinReply{Content: fmt.Sprintf("The script %q ends after %d replies; this would be reply %d.", file, len(replies), n+1)}, nil
		}
		return replies[n], nil
	}}, nil
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
	return &builtinModel{func(_ context.Context, req builtinRequest) (builtinReply, error) {
		return rehearse(req), nil
	}}
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

// A rehearsalForm turns one form of words into a call.
type rehearsalForm struct {
	form *regexp.Regexp
	make func(w []string) rehearsalCommand
}

func form(pattern string, make func(w []string) rehearsalCommand) rehearsalForm {
	return rehearsalForm{regexp.MustCompile(`(?is)^` + pattern + `$`), make}
}

func oneArg(tool, arg, open string) func(w []string) rehearsalCommand {
	return func(w []string) rehearsalCommand {
		return rehearsalCommand{tool, map[string]any{arg: unquoted(w[1])}, open}
	}
}

func filesCommand(action string, names ...string) func(w []string) rehearsalCommand {
	return func(w []string) rehearsalCommand {
		c := rehearsalCommand{tool: "files", args: map[string]any{"action": action}}
		for i, name := range names {
			if v := unquoted(w[i+1]); v != "" {
				c.args[name] = v
			}
		}
		if action == "write" || action == "append" {
			c.open = "content"
		}
		return c
	}
}

const (
	aPath   = "([^\\s\"'`]+|\"[^\"]+\"|'[^']+'|`[^`]+`)"
	aFolder = `(?:\s+(?:in|of|under|from|at)(?:\s+the)?(?:\s+(?:folder|directory|dir))?)?`
)

// exactForms are the documented ones: all after the colon counts as it stands.
// naturalForms are tried after them, on a sentence without courtesies.
var exactForms = []rehearsalForm{
	form(`(?:run|shell|execute)\s*:\s*(.+)`, oneArg("shell", "command", "")),
	form(`(?:run\s+)?python\s*:\s*(.+)`, oneArg("python_execute", "code", "code")),
	form(`write\s+`+aPath+`\s*:[ \t]?(.*)`, filesCommand("write", "path", "content")),
	form(`append\s+`+aPath+`\s*:[ \t]?(.*)`, filesCommand("append", "path", "content")),
	form(`read\s*:\s*`+aPath, filesCommand("read", "path")),
	form(`list\s*:\s*`+aPath+`?`, filesCommand("list", "path")),
	form(`search\s*:\s*(.+)`, filesCommand("search", "pattern")),
	form(`fetch\s*:\s*(\S+)`, fetchCommand),
	form(`web\s*:\s*(.+)`, oneArg("web_search", "query", "")),
	form(`remember\s*:\s*(.+)`, oneArg("remember", "text", "")),
	form(`recall\s*:\s*(.+)`, oneArg("recall", "query", "")),
	form(`ask(?:\s+me)?\s*:\s*(.+)`, oneArg("ask_user", "question", "")),
}

var naturalForms = []rehearsalForm{
	form(`(?:read|show|quote|print|what)(?:\s+me)?(?:\s+(?:is|was))?(?:\s+(?:what|the(?:\s+data)?\s+that))?(?:\s+(?:is|was|i))?(?:\s+the)?\s+piped(?:\s+(?:in|data|input|text))*`,
		func([]string) rehearsalCommand { return rehearsalCommand{} }),
	form(`(?:run|execute)\s+(?:the\s+)?python(?:\s+code)?\s+(.+[(=].*)`, oneArg("python_execute", "code", "code")),
	form("(?:run|execute)\\s+(?:the\\s+)?(?:(?:shell\\s+)?command\\s+)?(`[^`]+`|\"[^\"]+\"|.+)", runCommand),
	form(`(?:search|look\s+up|google)\s+(?:(?:on|in)\s+)?(?:the\s+)?web\s+(?:for\s+)?(.+)`, oneArg("web_search", "query", "")),
	form(`(?:web\s+search|google)\s+(?:for\s+)?(.+)`, oneArg("web_search", "query", "")),
	form(`(?:search|grep|look)\s+(?:for\s+)?(.+?)\s+(?:in|under)\s+(?:the\s+)?(?:(?:file|files|folder|directory)\s+)?`+aPath, filesCommand("search", "pattern", "path")),
	form(`(?:search|grep|look\s+for|find)\s+(?:for\s+)?(.+)`, filesCommand("search", "pattern")),
	form(`(?:list|ls|show(?:\s+me)?|see|what\s+(?:files\s+)?(?:are|is))(?:\s+all)?(?:\s+(?:of\s+)?(?:the|my))?(?:\s+(?:files|folder|directory))+`+aFolder+`(?:\s+`+aPath+`)?`, listCommand),
	form(`(?:what\s+files\s+(?:are|do)|which\s+files\s+(?:are|do))(?:\s+(?:there|here|i\s+have|we\s+have))?`+aFolder+`(?:\s+`+aPath+`)?`, listCommand),
	form(`(?:list|ls)(?:\s+(?:everything|all))?`+aFolder+`(?:\s+`+aPath+`)?`, listCommand),
	form(`(?:fetch|visit|download|open|get|read|show(?:\s+me)?|go\s+to)\s+(?:the\s+)?(?:(?:page|site|url)\s+)?(https?://\S+)`, fetchCommand),
	form(`(?:fetch|visit)\s+(\S+\.\S+)`, fetchCommand),
	form(`(?:read|cat|show|open|display|print|view)(?:\s+me)?(?:\s+the)?(?:\s+(?:file|contents?(?:\s+of)?))*\s+`+aPath+`(?:\s+file)?`, filesCommand("read", "path")),
	form(`what(?:\s+is|'s|’s)?(?:\s+(?:in|inside))(?:\s+the)?(?:\s+(?:file|contents?\s+of))*\s+`+aPath, filesCommand("read", "path")),
	form(`what\s+does\s+(?:the\s+file\s+)?`+aPath+`\s+(?:say|contain)`, filesCommand("read", "path")),
	form(`(?:write|save|put)\s+(.+)\s+(?:to|into|in|as)\s+(?:the\s+|a\s+)?(?:file\s+)?`+aPath, func(w []string) rehearsalCommand {
		return filesCommand("write", "path", "content")([]string{"", w[2], w[1]})
	}),
	form(`(?:create|make|write)\s+(?:a\s+|the\s+)?file\s+(?:called\s+|named\s+)?`+aPath+`\s+(?:with|containing|that\s+says)\s+(?:the\s+(?:content|text)\s+)?(.+)`, filesCommand("write", "path", "content")),
	form(`(?:append|add)\s+(.+)\s+to\s+(?:the\s+)?(?:file\s+)?`+aPath, func(w []string) rehearsalCommand {
		return filesCommand("append", "path", "content")([]string{"", w[2], w[1]})
	}),
	form(`remember\s+(?:that\s+)?(.+)`, oneArg("remember", "text", "")),
	form(`(?:recall|what\s+do\s+you\s+(?:remember|know)\s+about)\s+(.+)`, oneArg("recall", "query", "")),
}

func runCommand(w []string) rehearsalCommand {
	return rehearsalCommand{"shell", map[string]any{"command": unquoted(w[1])}, ""}
}

func listCommand(w []string) rehearsalCommand {
	if p := unquoted(w[1]); slices.Contains([]string{"here", "there", "it", "this", "that", "workspace", "folder", "directory"}, p) {
		w = []string{"", ""}
	}
	return filesCommand("list", "path")(w)
}

func fetchCommand(w []string) rehearsalCommand {
	u := unquoted(w[1])
	if !strings.Contains(u, "://") {
		u = "https://" + u
	}
	return rehearsalCommand{"web_fetch", map[string]any{"url": u}, ""}
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
		if w := f.form.FindStringSubmatch(s); w != nil {
			return f.make(w), true
		}
	}
	if s = strings.TrimRight(s, " ?!"); len(s) > maxCommandLine {
		return rehearsalCommand{}, false
	}
	if n := len(s); n > 1 && s[n-1] == '.' && s[n-2] != '.' && s[n-2] != ' ' && s[n-2] != '/' {
		s = s[:n-1] // the end of a sentence, not the folder
	}
	for _, f := range naturalForms {
		w := f.form.FindStringSubmatch(s)
		if w == nil {
			continue
		}
		c := f.make(w)
		if command, ok := c.args["command"].(string); ok && article.MatchString(command) {
			continue // "run the tests" names no command
		}
		return c, true
	}
	return rehearsalCommand{}, false
}
