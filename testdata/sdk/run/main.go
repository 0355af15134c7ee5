// Run starts picket's server and points the clients of other apps at it, each
// with the defaults of its library, retries included. It prints how each did at
// each behaviour, and how many turns really ran, by the audit log. It exits with
// 1 if anything is not as it must be.
//
//	go run .
//
// It needs go, node 20 or newer with npm, python3 with venv, curl and jq, and
// the package registries.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// A client is a program that speaks to picket through one library.
type client struct {
	name string
	args []string          // how it is run; what it shall do follows
	not  map[string]string // what its library does not do, and why
	// unmarked says that what the library sends again after a lost connection
	// looks like a new request, which picket cannot but run once the turn is over.
	unmarked bool
}

// An outcome is what a client prints.
type outcome struct {
	Models  []string
	Replies []struct {
		Text   string
		Tokens int
		Pieces int
	}
	Error struct {
		Status        int
		Code, Message string
	}
}

func (o outcome) String() string {
	b, _ := json.Marshal(o) // texts and numbers
	return string(b)
}

// A behaviour is one thing that each client does.
type behaviour struct {
	name string
	what string   // models, plain or stream
	say  []string // the messages
	key  string   // another key than the right one
	// around runs the client with what has to happen before, during and after.
	around func(ctx context.Context, p *picket, chat string, run func(base string) (outcome, error)) (outcome, error)
	texts  []string // of the replies; a prefix if it ends in "…"
	tokens int
	status int
	code   string
	turns  int // in all, each message at most once
}

// Why a library does not do something.
const (
	noModels = "the library has no call that lists models"
	noResend = "it sends nothing again"
)

var behaviours = []behaviour{
	{name: "models", what: "models"},
	{name: "plain", what: "plain", say: []string{sayPlain}, texts: []string{"one two three"}, tokens: 42, turns: 1},
	{name: "streamed", what: "stream", say: []string{sayPlain}, texts: []string{"one two three"}, tokens: 42, turns: 1},
	{name: "recall", what: "plain", say: []string{sayRemember, sayRecall}, texts: []string{"noted", "the word was heron"}, tokens: 42, turns: 2},
	{name: "wrong key", what: "plain", say: []string{sayPlain}, key: "picket_wrong", status: 401, code: "invalid_api_key"},
	{name: "API off", what: "plain", say: []string{sayPlain}, around: off, status: 404, code: "api_off"},
	{name: "busy", what: "plain", say: []string{sayPlain}, around: busy, status: 409, code: "chat_busy", turns: 1},
	{name: "declined", what: "plain", say: []string{sayRemove}, around: declined, texts: []string{"Not done: …"}, turns: 1},
	{name: "stopped", what: "plain", say: []string{sayWait}, around: stopped, status: 409, code: "stopped", turns: 1},
	{name: "stopped stream", what: "stream", say: []string{sayWait}, around: stopped, code: "stopped", turns: 1},
	{name: "failed", what: "plain", say: []string{sayFail}, status: 400, code: "turn_failed", turns: 1},
	{name: "failed stream", what: "stream", say: []string{sayFail}, code: "turn_failed", turns: 1},
	{name: "lost early", what: "plain", say: []string{sayWait}, around: early, status: 409, code: "chat_busy", turns: 1},
	{name: "lost late", what: "plain", say: []string{sayPlain}, around: late, texts: []string{"one two three"}, tokens: 42, turns: 1},
}

// off turns the API off meanwhile.
func off(ctx context.Context, p *picket, _ string, run func(base string) (outcome, error)) (outcome, error) {
	if _, err := p.run(ctx, "api", "off"); err != nil {
		return outcome{}, err
	}
	out, err := run(p.base)
	if _, on := p.run(ctx, "api", "on"); err == nil {
		err = on
	}
	return out, err
}

// busy has a turn running in the chat meanwhile, which must then end well.
func busy(ctx context.Context, p *picket, chat string, run func(base string) (outcome, error)) (outcome, error) {
	other := make(chan error, 1)
	go func() {
		body := map[string]any{"user": chat, "messages": []map[string]string{{"role": "user", "content": sayWait}}}
		other <- p.request(ctx, "POST", "/v1/chat/completions", p.key, body, nil)
	}()
	select {
	case <-p.model.asked:
	case err := <-other:
		return outcome{}, fmt.Errorf("the turn before: %w", err)
	}
	out, err := run(p.base)
	p.model.release <- struct{}{}
	if oerr := <-other; err == nil {
		err = oerr
	}
	return out, err
}

// declined answers the question that comes, and sees that nothing was done.
func declined(ctx context.Context, p *picket, _ string, run func(base string) (outcome, error)) (outcome, error) {
	answered := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { answered <- p.deny(ctx) }()
	out, err := run(p.base)
	cancel()
	if derr := <-answered; err == nil {
		err = derr
	}
	if _, serr := os.Stat(filepath.Join(p.ws, "keep")); err == nil {
		err = serr
	}
	return out, err
}

// stopped stops the turn once it runs.
func stopped(ctx context.Context, p *picket, _ string, run func(base string) (outcome, error)) (outcome, error) {
	ended, over := make(chan error, 1), make(chan struct{})
	go func() {
		select {
		case <-p.model.asked:
			_, err := p.run(ctx, "stop")
			ended <- err
		case <-over:
			ended <- errors.New("no turn began")
		}
	}()
	out, err := run(p.base)
	close(over)
	if serr := <-ended; err == nil {
		err = serr
	}
	return out, err
}

// early loses the connection of the first request while its turn runs, so that
// the library sends it again. The turn goes on.
func early(ctx context.Context, p *picket, _ string, run func(base string) (outcome, error)) (outcome, error) {
	out, err := lost(p, run, func(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-p.model.asked:
				cancel()
			case <-ctx.Done():
			}
		}()
		proxy.ServeHTTP(w, r.WithContext(ctx))
	})
	p.model.release <- struct{}{}
	return out, err
}

// late loses it when the answer is due: that of the turn which has run comes
// again.
func late(_ context.Context, p *picket, _ string, run func(base string) (outcome, error)) (outcome, error) {
	return lost(p, run, func(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(httptest.NewRecorder(), r)
	})
}

// lost puts a proxy before the server, which drops the connection of the first
// request after first has seen it.
func lost(p *picket, run func(base string) (outcome, error), first func(proxy http.Handler, w http.ResponseWriter, r *http.Request)) (outcome, error) {
	server, err := url.Parse(p.base)
	if err != nil {
		return outcome{}, err
	}
	drop := func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) }, ErrorHandler: drop}
	var requests atomic.Int32
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			first(proxy, w, r)
			drop(w, r, nil)
		}
		proxy.ServeHTTP(w, r)
	}))
	defer between.Close()
	out, err := run(between.URL)
	if n := requests.Load(); err == nil && n < 2 {
		err = fmt.Errorf("the request did not come again: %s", out)
	}
	return out, err
}

// do lets a client do one thing and returns how many turns ran, and what was
// wrong.
func (b behaviour) do(ctx context.Context, p *picket, c client) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	chat := "sdk " + b.name
	for len(p.model.asked) > 0 { // of a behaviour that went wrong
		<-p.model.asked
	}
	run := func(base string) (out outcome, err error) {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, c.args[0], slices.Concat(c.args[1:], []string{b.what}, b.say)...)
		cmd.Env = append(plainEnviron(), "BASE_URL="+base+"/v1", "API_KEY="+cmp.Or(b.key, p.key), "CHAT="+chat)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err = cmd.Run(); err == nil {
			err = json.Unmarshal(stdout.Bytes(), &out)
		}
		if err != nil {
			err = fmt.Errorf("%w: %s%s", err, &stdout, &stderr)
		}
		return out, err
	}
	var out outcome
	var err error
	if b.around != nil {
		out, err = b.around(ctx, p, chat, run)
	} else {
		out, err = run(p.base)
	}
	counts, cerr := p.turns(chat)
	ran, want, most := total(counts), b.turns, 1
	if b.name == "lost late" && c.unmarked {
		want, most = 2, 2
	}
	for text, n := range counts {
		if n > most && cerr == nil {
			cerr = fmt.Errorf("%q ran %d times", text, n)
		}
	}
	switch {
	case err != nil:
		return ran, err
	case cerr != nil:
		return ran, cerr
	case ran != want:
		return ran, fmt.Errorf("%d turns ran, not %d; the client got %s", ran, want, out)
	}
	return ran, b.check(out)
}

// check compares what the client got.
func (b behaviour) check(out outcome) error {
	wrong := func(what string) error { return fmt.Errorf("%s in %s", what, out) }
	switch {
	case b.what == "models":
		if !slices.Equal(out.Models, []string{"picket"}) {
			return wrong("other models")
		}
	case b.code != "":
		if out.Error.Code != b.code || b.status != 0 && out.Error.Status != b.status || len(out.Replies) > 0 || out.Error.Message == "" {
			return wrong("not the error " + b.code)
		}
	case len(out.Replies) != len(b.texts):
		return wrong("another number of replies")
	}
	for i, want := range b.texts {
		r := out.Replies[i]
		prefix, isPrefix := strings.CutSuffix(want, "…")
		switch {
		case r.Text != want && !(isPrefix && strings.HasPrefix(r.Text, prefix)):
			return wrong("another text")
		case b.tokens != 0 && r.Tokens != b.tokens:
			return wrong("other usage")
		case b.what == "stream" && r.Pieces < 2:
			return wrong("one piece only")
		}
	}
	return nil
}

// A row is what came of one client.
type row struct {
	cells []string
	notes []string
	wrong bool
}

func test(ctx context.Context, program, home string, c client) (r row) {
	note := func(format string, args ...any) { r.notes = append(r.notes, c.name+": "+fmt.Sprintf(format, args...)) }
	p, err := startPicket(ctx, program, home)
	if err != nil {
		note("%v", err)
		return row{notes: r.notes, wrong: true}
	}
	for _, b := range behaviours {
		if why, ok := c.not[b.name]; ok {
			r.cells = append(r.cells, "n/a")
			note("%s: n/a: %s", b.name, why)
			continue
		}
		n, err := b.do(ctx, p, c)
		cell := fmt.Sprint(n)
		if err != nil {
			cell, r.wrong = "WRONG "+cell, true
			note("%s: %v", b.name, err)
		} else if n > b.turns {
			note("%s: %d: what it sends again carries no mark of that", b.name, n)
		}
		r.cells = append(r.cells, cell)
	}
	if err := p.close(ctx); err != nil {
		r.wrong = true
		note("%v", err)
	}
	return r
}

func main() {
	work := flag.String("work", "", "a `folder` to build in, and to keep")
	only := flag.String("only", "", "test only the clients with this in their name")
	flag.Parse()
	if err := run(*work, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(work, only string) error {
	ctx := context.Background()
	if work == "" {
		dir, err := os.MkdirTemp("", "picket-sdk-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		work = dir
	}
	work, err := filepath.Abs(work)
	if err != nil {
		return err
	}
	clients, err := build(ctx, work)
	if err != nil {
		return err
	}
	clients = slices.DeleteFunc(clients, func(c client) bool { return !strings.Contains(c.name, only) })
	homes, err := os.MkdirTemp("", "picket-sdk-homes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(homes)
	rows := make([]row, len(clients))
	var all sync.WaitGroup
	slots := make(chan struct{}, 4) // they mostly wait
	for i, c := range clients {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			rows[i] = test(ctx, filepath.Join(work, "picket"), filepath.Join(homes, fmt.Sprint(i)), c)
		})
	}
	all.Wait()
	if err := show(clients, rows); err != nil {
		return err
	}
	return testReadme(ctx, work, filepath.Join(homes, "readme"))
}

func show(clients []client, rows []row) error {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "turns that ran")
	for _, b := range behaviours {
		fmt.Fprint(t, "\t"+b.name)
	}
	wrong := 0
	for i, r := range rows {
		fmt.Fprintf(t, "\n%s\t%s", clients[i].name, strings.Join(r.cells, "\t"))
		if r.wrong {
			wrong++
		}
	}
	fmt.Fprintln(t)
	t.Flush()
	for _, r := range rows {
		for _, n := range r.notes {
			fmt.Println(n)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("wrong with %d of %d clients", wrong, len(rows))
	}
	fmt.Println("each as it must be: no message ran twice, but where a lost request came again without a mark")
	return nil
}
