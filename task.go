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
	"strings"
	"time"
	"unicode/utf8"

	"picket/tools"
)

// maxPiped bounds what is read from standard input.
const maxPiped = 1 << 20

// task does one task: the command line's way through the handler that other
// apps use too.
func (p *program) task(ctx context.Context, args []string) error {
	f, words, err := p.parseTask(args)
	if err != nil {
		return p.helpOr(err)
	}
	prompt := strings.Join(words, " ")
	var piped string
	if !f.noStdin {
		if piped, err = p.readStdin(ctx); err != nil {
			return err
		}
	}
	if prompt == "" { // then standard input is the prompt, the owner's words
		prompt, piped = piped, ""
	}
	if strings.TrimSpace(prompt) == "" {
		fmt.Fprint(p.stderr, usage)
		return usageErrorf("there is no prompt")
	}
	if !utf8.ValidString(prompt) || strings.ContainsRune(prompt, 0) {
		return usageErrorf("the prompt is not UTF-8 text")
	}
	a, err := p.open(ctx, f)
	if err != nil {
		return err
	}
	defer a.close()
	name, err := a.chatName(f)
	if err != nil {
		return err
	}
	res, err := a.send(ctx, message{chat: name, text: prompt, piped: piped})
	return a.ending(ctx, res, err)
}

// helpOr prints the usage where that was asked for.
func (p *program) helpOr(err error) error {
	var bad usageError
	if errors.As(err, &bad) {
		return err
	}
	return p.print(usage)
}

// readStdin reads what is piped in. A terminal is not read, nor is what has no
// reader at the other end.
func (p *program) readStdin(ctx context.Context) (string, error) {
	if f, ok := p.stdin.(*os.File); ok {
		st, err := f.Stat()
		if err != nil || st.Mode()&os.ModeCharDevice != 0 {
			return "", nil
		}
	}
	type outcome struct {
		data []byte
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(p.stdin, maxPiped+1))
		done <- outcome{data, err}
	}()
	notice := time.After(2 * time.Second)
	for {
		select {
		case <-notice:
			p.errorf("reading standard input (--no-stdin leaves it alone)")
			notice = nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case o := <-done:
			switch {
			case o.err != nil:
				return "", fmt.Errorf("standard input could not be read: %v", o.err)
			case len(o.data) > maxPiped:
				return "", fmt.Errorf("standard input is longer than 1 MiB; name the file in the prompt instead")
			case !utf8.Valid(o.data) || bytes.IndexByte(o.data, 0) >= 0:
				return "", errors.New("standard input is not UTF-8 text; pictures and other files cannot be piped in")
			}
			return string(o.data), nil
		}
	}
}

// message is one message of the owner's.
type message struct {
	chat, text, piped string
}

// send hands a message to the handler, in the form in which an SDK would, and
// shows what comes of it.
func (a *app) send(ctx context.Context, m message) (TurnResult, error) {
	body, err := json.Marshal(map[string]any{
		"model": modelID, "stream": true,
		"messages": []Message{{Role: "user", Content: m.text}},
	})
	if err != nil {
		return TurnResult{}, err
	}
	v := &view{app: a, term: a.term.Streams()}
	var res TurnResult
	var end error
	c := &caller{Channel: channelCLI, Who: whoOwner, Run: a.run, Chat: m.chat, Piped: m.piped, Steps: a.flags.steps, Allow: a.allowed(),
		Wait: a.flags.wait, Event: v.event, Done: func(r TurnResult, err error) { res, end = r, err }}
	if a.term.CanAsk() {
		c.Ask, c.AskText = a.term.Ask, a.askText
	}
	ctx, cancel := context.WithCancelCause(withCaller(ctx, c))
	defer cancel(nil)
	v.stop = cancel
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return res, err
	}
	v.begin()
	a.handler.ServeHTTP(v, r)
	v.finish(res, end)
	if end == nil && v.status >= 400 {
		end = errors.New(v.message())
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(end, errAudit) {
		end = cause
	}
	return res, end
}

// askText puts a question of the model's to the owner.
func (a *app) askText(ctx context.Context, question string) (string, error) {
	a.term.Note("the model asks: " + question)
	return a.term.ReadLine(ctx, "> ")
}

// ending reports how a task ended, and makes its exit code.
func (a *app) ending(ctx context.Context, res TurnResult, err error) error {
	code := error(nil)
	if err == nil && res.Refused > 0 {
		code = exitCode(exitRefused)
	}
	if a.flags.json {
		a.lastEvent(res, err)
	}
	if err == nil {
		err = code
	}
	return err
}

// lastEvent closes the list of --json.
func (a *app) lastEvent(res TurnResult, err error) {
	exit := exitDone
	switch {
	case err != nil:
		exit = exitOf(err)
		a.prog.printEvent(Event{Type: "error", Error: a.red.String(err.Error())})
	case res.Refused > 0:
		exit = exitRefused
	}
	a.prog.printEvent(Event{Type: "done", Exit: &exit})
}

// printEvent prints one event as a line of JSON.
func (p *program) printEvent(e Event) error {
	b, err := marshalPlain(e)
	if err != nil {
		return err
	}
	return p.print(string(b) + "\n")
}

// allowed are the grants of the command line, for each turn of this run.
func (a *app) allowed() []Grant {
	var list []Grant
	for _, key := range a.flags.allow {
		list = append(list, Grant{Key: key, Scope: tools.Task, Who: whoOwner, Workspace: a.workspace, Labels: Labels{true, true}})
	}
	return list
}

// chat is "picket chat".
func (p *program) chat(ctx context.Context, args []string) error {
	f, words, err := p.parseTask(args)
	if err != nil {
		return p.helpOr(err)
	}
	if len(words) > 0 {
		return usageErrorf("chat takes no prompt, but got %q", words[0])
	}
	if f.json {
		return usageErrorf("chat is for people; --json goes with a prompt")
	}
	a, err := p.open(ctx, f)
	if err != nil {
		return err
	}
	defer a.close()
	name, err := a.chatName(f)
	if err != nil {
		return err
	}
	p.notef("chat %s in %s; /help lists the commands", name, a.workspace)
	for {
		line, err := a.term.ReadLine(ctx, "> ")
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case line == "/exit":
			return nil
		case strings.HasPrefix(line, "/"):
			if err := a.slash(ctx, name, line); err != nil {
				p.errorf("%v", err)
			}
			continue
		}
		turn, end := inTurn(ctx)
		_, err = a.send(turn, message{chat: name, text: line})
		end()
		switch {
		case errors.Is(err, errAudit), ctx.Err() != nil, errors.Is(err, errBrokenPipe):
			return err
		case err != nil:
			p.errorf("%v", err)
		}
	}
}

const slashHelp = `/reset                begin the chat anew, without its labels
/tainted              the labels of this chat, and where they came from
/permissions          the grants that hold
/revoke KEY           end a grant
/forget-approvals     end all grants
/tools                what the model can ask for
/audit [N]            the last records
/exit                 leave (Ctrl-D does too)
`

// slash runs one command of the owner's at the terminal. From anywhere else
// such text is text.
func (a *app) slash(ctx context.Context, name, line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	p := a.prog
	grants := func(words ...string) error {
		do, _, err := parseGrants(words)
		if err != nil {
			return err
		}
		return do(ctx, a.approvals, p.stdout, p.stderr)
	}
	switch verb {
	case "/help":
		return p.print(slashHelp)
	case "/tools":
		return p.toolsCommand(nil)
	case "/permissions":
		return grants()
	case "/revoke":
		if rest == "" {
			return errors.New("/revoke needs a key, as /permissions shows it")
		}
		return grants("revoke", rest)
	case "/forget-approvals":
		return grants("clear")
	case "/audit":
		if rest == "" {
			rest = "10"
		}
		return p.auditTable(ctx, a.folders.Data, []string{"-n", rest})
	case "/reset", "/tainted":
		return a.chatState(ctx, name, verb == "/reset")
	}
	return fmt.Errorf("there is no command %q; /help lists them", verb)
}

// chatState shows the labels of a chat, or begins it anew.
func (a *app) chatState(ctx context.Context, name string, reset bool) (err error) {
	c, err := a.chats.open(ctx, name, a.workspace, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if reset {
		if err := a.log.Append(ctx, true, Record{Run: a.run, Chat: name, Channel: channelCLI, Body: resetRecord{}}); err != nil {
			return err
		}
		return c.append(chatLine{Reset: true})
	}
	for _, l := range labelLines(c.Sources) {
		if err := a.prog.print(printable(l) + "\n"); err != nil {
			return err
		}
	}
	if len(c.Sources) == 0 {
		return a.prog.print("no labels\n")
	}
	return nil
}
