package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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
type builtinModel func(context.Context, builtinRequest) builtinReply

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
func (b builtinModel) RoundTrip(hr *http.Request) (*http.Response, error) {
	defer hr.Body.Close()
	var req builtinRequest
	raw, err := io.ReadAll(hr.Body)
	if err == nil {
		err = json.Unmarshal(raw, &req)
	}
	if err != nil {
		return nil, err
	}
	reply := b(hr.Context(), req)
	if err := pause(hr.Context(), time.Duration(reply.DelayMS)*time.Millisecond); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Request: hr, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(reply.stream(req.Model, len(raw))))}, nil
}

// stream writes the reply as an event stream.
func (r builtinReply) stream(model string, requestBytes int) string {
	var b strings.Builder
	type object = map[string]any
	event := func(delta object, finish any, usage *Usage) {
		fmt.Fprintf(&b, "data: %s\n\n", asJSON(object{"id": "chatcmpl-builtin", "object": "chat.completion.chunk", "model": model,
			"usage": usage, "choices": []object{{"index": 0, "delta": delta, "finish_reason": finish}}}))
	}
	for word := range strings.SplitAfterSeq(r.Content, " ") {
		event(object{"role": "assistant", "content": word}, nil, nil)
	}
	out, finish := len(r.Content), "stop"
	for i, c := range r.ToolCalls {
		var args any = string(c.Arguments)
		if strings.HasPrefix(string(c.Arguments), `"`) {
			args = c.Arguments
		}
		out, finish = out+len(c.Arguments), "tool_calls"
		event(object{"tool_calls": []object{{"index": i, "id": newCallID(), "function": object{"name": c.Name, "arguments": args}}}}, nil, nil)
	}
	event(object{}, cmp.Or(r.FinishReason, finish), &Usage{In: requestBytes/4 + 1, Out: out/4 + 1})
	return b.String() + "data: [DONE]\n\n"
}

// asJSON encodes what cannot fail: texts, numbers, and JSON that was read.
func asJSON(v any) string {
	b, _ := marshalPlain(v)
	return string(b)
}

// newScript reads a script: JSON Lines, one reply a line. Blank lines do not count.
func newScript(file string) (builtinModel, error) {
	raw, err := readSmallFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the script: %w", err)
	}
	var replies []builtinReply
	for i, line := range strings.Split(string(raw), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		r, err := parseReply(line)
		if err != nil {
			return nil, fmt.Errorf("script %q, line %d: %w", file, i+1, err)
		}
		replies = append(replies, r)
	}
	return func(ctx context.Context, _ builtinRequest) builtinReply {
		n, _ := ctx.Value(repliesKey{}).(int)
		if n >= len(replies) {
			return builtinReply{Content: fmt.Sprintf("The script %q ends after %d replies; this would be reply %d.", file, len(replies), n+1)}
		}
		return replies[n]
	}, nil
}

func parseReply(line string) (r builtinReply, err error) {
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	switch err = d.Decode(&r); {
	case err != nil:
		return r, err
	case d.More():
		return r, errors.New("there is more than one value")
	case r.DelayMS < 0 || r.DelayMS > 3600_000:
		return r, errors.New("delay_ms must be from 0 to an hour")
	}
	for _, c := range r.ToolCalls {
		if a := string(c.Arguments); c.Name == "" || a != "" && a != "null" && a[0] != '{' && a[0] != '"' {
			return r, errors.New("a call needs a name, and arguments that are an object or a string")
		}
	}
	return r, nil
}

const rehearsalHelp = `I am picket's rehearsal model: built in, offline, and not a language model. I turn plain commands into tool calls, so that you can see picket's gate, sandbox, questions and log at work:

  run: ls -la                  python: print(6*7)
  read go.mod                  list src
  search TODO                  write notes.txt: some text
  fetch https://example.com

Several can be joined by "then" or stand on lines of their own.

For real answers connect a model: start Ollama ("ollama pull qwen3"), or set OPENAI_API_KEY, or name any OpenAI-compatible server with --base-url and --model.`

const rehearsalSign = "(From picket's rehearsal model, which is not a language model.)"

// rehearse is the rehearsal model: the same request always brings the same answer.
func rehearse(_ context.Context, req builtinRequest) (r builtinReply) {
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
	if len(commands) == 0 {
		if r.Content = rehearsalHelp; hasPiped {
			r.Content += fmt.Sprintf("\n\n%d bytes were piped in; \"read what was piped\" shows how they begin.", len(piped))
		}
		return r
	}
	var say []string
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
	for _, s := range rest {
		say = append(say, fmt.Sprintf("Not understood: %q.", boundedLine(s, 200)))
	}
	if len(r.ToolCalls) == 0 {
		say = append(say, rehearsalSign)
	}
	r.Content = strings.Join(say, "\n\n")
	return r
}

// notDone recognises the result of a call that did not run.
var notDone = lazyRegexp(`(?i)^\W*(not done|not run|blocked|declined|denied|refused|expired|not allowed|cancel|stopped|interrupted|invalid call|there is no tool)`)

// rehearsalReport says what came of the calls since the last user message.
func rehearsalReport(since []Message) string {
	var out []string
	what := map[string]string{} // by id
	for _, m := range since {
		switch {
		case m.Role == "tool" && notDone().MatchString(m.Content):
			out = append(out, "Not done: "+what[m.ToolCallID]+"\n"+quoteOutput(m.Content, 600))
		case m.Role == "tool":
			out = append(out, what[m.ToolCallID]+" returned:\n"+quoteOutput(m.Content, 3000))
		case m.Content != "":
			out = append(out, m.Content)
		}
		for _, c := range m.ToolCalls {
			var args map[string]any
			_ = json.Unmarshal([]byte(c.Function.Arguments), &args) // what is no object has nothing to show
			words := c.Function.Name
			for _, k := range []string{"action", "command", "code", "path", "pattern", "url", "query", "text", "question"} {
				if s, ok := args[k].(string); ok {
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
	args map[string]string
}

// A rehearsalForm is one form of words for a call. Its groups are the values of args, in order; "action=read" is an
// argument without a group.
type rehearsalForm struct {
	form func() *regexp.Regexp
	tool string
	args []string
}

func form(pattern, tool, args string) rehearsalForm {
	return rehearsalForm{lazyRegexp(`(?is)^` + pattern + `$`), tool, strings.Fields(args)}
}

const (
	aPath  = "([^\\s\"'`]+|\"[^\"]+\"|'[^']+'|`[^`]+`)"
	filler = `(?:\s+(?:me|all|the|of|in|files?|folder|directory|current|are|here))*`
)

// exactForms are the documented ones: all after the colon counts as it stands.
var exactForms = []rehearsalForm{
	form(`run\s*:\s*(.+)`, "shell", "command"),
	form(`python\s*:\s*(.+)`, "python_execute", "code"),
	form(`(write|append)\s+`+aPath+`\s*:[ \t]?(.*)`, "files", "action path content"),
	form(`(read|list)\s*:\s*`+aPath, "files", "action path"),
	form(`(search)\s*:\s*(.+)`, "files", "action pattern"),
	form(`fetch\s*:\s*(\S+)`, "web_fetch", "url"),
	form(`web\s*:\s*(.+)`, "web_search", "query"),
	form(`remember\s*:\s*(.+)`, "remember", "text"),
	form(`recall\s*:\s*(.+)`, "recall", "query"),
	form(`ask\s+me\s*:\s*(.+)`, "ask_user", "question"),
}

// naturalForms are tried after them, on a sentence without courtesies. "run the tests" names no command.
var naturalForms = []rehearsalForm{
	form(`(?:read|show|what)\b.*\bpiped\b.*`, "", ""),
	form(`run\s+(?:the\s+command\s+)?(.+)`, "shell", "command"),
	form(`search\s+the\s+web\s+for\s+(.+)`, "web_search", "query"),
	form(`(search)\s+(?:for\s+)?(.+?)(?:\s+in\s+`+aPath+`)?`, "files", "action pattern path"),
	form(`(?:list|(?:show\s+me|what)(?:\s+all)?(?:\s+the)?\s+files)`+filler+`(?:\s+`+aPath+`)?`, "files", "action=list path"),
	form(`(?:fetch|open|read)\s+(https?://\S+)`, "web_fetch", "url"),
	form(`fetch\s+(\S+\.\S+)`, "web_fetch", "url"),
	form(`(?:read|cat|show|open|what(?:\s+is|'s)\s+in)`+filler+`\s+`+aPath, "files", "action=read path"),
	form(`(write)\s+(.+)\s+to\s+`+aPath, "files", "action content path"),
	form(`remember\s+(?:that\s+)?(.+)`, "remember", "text"),
	form(`(?:recall|what\s+do\s+you\s+know\s+about)\s+(.+)`, "recall", "query"),
}

var (
	inQuotes = lazyRegexp("^(?:\"([^\"]*)\"|'([^']*)'|`([^`]*)`)$")
	courtesy = lazyRegexp(`(?i)^(?:(?:please|now|and|then|first|finally|also|can you|could you)[,\s]+)+`)
	article  = lazyRegexp(`(?i)^(?:the|a|an|my|all|some|it|this|that|these|those|your)\b`)
	fullStop = lazyRegexp(`([^. /])\.$`) // the end of a sentence, not the folder
	joiner   = lazyRegexp(`(?i)\s*[,;.]?\s+(?:and\s+)?then\s+|\s*,\s+and\s+`)
)

// match reads words in this form.
func (f rehearsalForm) match(words string) (c rehearsalCommand, ok bool) {
	w := f.form().FindStringSubmatch(words)
	if w == nil {
		return c, false
	}
	c = rehearsalCommand{f.tool, map[string]string{}}
	for _, arg := range f.args {
		name, val, fixed := strings.Cut(arg, "=")
		if !fixed {
			w = w[1:]
			val = inQuotes().ReplaceAllString(w[0], "$1$2$3")
		}
		switch {
		case name == "action":
			val = strings.ToLower(val)
		case name == "url" && !strings.Contains(val, "://"):
			val = "https://" + val
		case name == "path" && val == "":
			continue
		}
		c.args[name] = val
	}
	return c, true
}

func oneCommand(s string) (c rehearsalCommand, ok bool) {
	s = courtesy().ReplaceAllString(strings.TrimSpace(s), "")
	for _, f := range exactForms {
		if c, ok = f.match(s); ok {
			return c, true
		}
	}
	s = fullStop().ReplaceAllString(strings.TrimRight(s, " ?!"), "$1")
	for _, f := range naturalForms {
		if c, ok = f.match(s); ok && !article().MatchString(c.args["command"]) {
			return c, true
		}
	}
	return c, false
}

const maxCommands = 32

// lineCommands reads a line as one or several commands, or none. It is split only between two commands, so that
// "then" can stand inside one.
func lineCommands(line string) (list []rehearsalCommand) {
	joints := append(joiner().FindAllStringIndex(line, maxCommands), []int{len(line), len(line)})
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

// rehearsalCommands reads the owner's words; rest holds what was no command. Code and what is written may go on over
// several lines.
func rehearsalCommands(words string) (list []rehearsalCommand, rest []string) {
	open := "" // the argument that goes on
	for _, line := range strings.Split(strings.TrimRight(words, "\n"), "\n") {
		trimmed := strings.TrimSpace(line)
		c := lineCommands(trimmed)
		switch n := len(list); {
		case len(c) > 0 && n+len(c) <= maxCommands:
			list, open = append(list, c...), ""
			for _, arg := range []string{"code", "content"} {
				if _, ok := c[len(c)-1].args[arg]; ok {
					open = arg
				}
			}
		case len(c) == 0 && open != "":
			list[n-1].args[open] += "\n" + strings.TrimRight(line, "\r")
		case trimmed != "" && !(trimmed[0] == '[' && strings.HasSuffix(trimmed, "]")): // a mark is no words
			rest = append(rest, trimmed)
		}
	}
	return list, rest
}
