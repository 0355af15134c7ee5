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
		return usageErrorf("there is no prompt\n\n%s", usage)
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
	v := &view{app: a, term: a.term.Terminal()}
	var res TurnResult
	var end error
	c := &caller{Channel: channelCLI, Who: whoOwner, Run: a.run, Chat: m.chat, Piped: m.piped, Steps: a.flags.steps,
		Wait: a.flags.wait, Event: v.event, Done: func(r TurnResult, err error) { res, end = r, err }}
	if a.term.CanAsk() {
		c.Ask, c.AskText = a.term.Ask, a.term.AskText
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
