package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"

	"picket/tools"
)

// errNoTerminal means that nobody can be asked here: there is no terminal, or
// picket is not in its foreground.
var errNoTerminal = errors.New("there is no terminal to ask on")

// The letters of the scopes, in their order.
const scopeLetters = "otsha"

// answerGuard is how long what is typed is thrown away after a card has
// appeared, before its prompt does.
const answerGuard = 300 * time.Millisecond

// termOptions is what a terminal is made of.
type termOptions struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Quiet          bool      // no activity and no spinner
	Redact         *redactor // for all that is shown
	// TryLock takes the lock of that name among this user's picket processes,
	// without waiting; ok is false while another has it.
	TryLock func(name string) (unlock func(), ok bool, err error)
}

// A terminal is the one owner of the user's terminal. All its methods may be
// called from several goroutines; they take turns in one of its own, so that
// nothing else is printed while a question is open. It writes no escape
// sequences.
type terminal struct {
	opt  termOptions
	ops  chan func()
	quit chan struct{}
	done chan struct{}

	// Of the goroutine alone:
	midLine bool // the stream has left the cursor within a line
	text    printer
	stream  *redactStream
	label   string // of the spinner, "" without one
	since   time.Time
	drawn   int // columns that the spinner takes
	tty     *ttyFiles
	keys    *lineReader // of tty
	stdin   *lineReader
}

// newTerminal starts the owner of the terminal; Close ends it.
func newTerminal(opt termOptions) *terminal {
	t := &terminal{opt: opt, ops: make(chan func()), quit: make(chan struct{}), done: make(chan struct{}),
		text: printer{prose: true}, stream: opt.Redact.Stream(), stdin: newLineReader(opt.Stdin)}
	go t.loop(isTerminal(opt.Stderr) && opt.Getenv("TERM") != "dumb" && !opt.Quiet)
	return t
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	if !ok {
		return false
	}
	is := false
	control(f, func(fd uintptr) { is = term.IsTerminal(int(fd)) })
	return is
}

// control runs f on a descriptor without making it blocking, as File.Fd may.
func control(file *os.File, f func(fd uintptr)) {
	if c, err := file.SyscallConn(); err == nil {
		c.Control(f)
	}
}

func (t *terminal) loop(spins bool) {
	defer close(t.done)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case op := <-t.ops:
			t.eraseSpinner()
			op()
		case <-tick.C:
			if spins {
				t.drawSpinner()
			}
		case <-t.quit:
			t.endStream()
			t.eraseSpinner()
			if t.tty != nil {
				t.tty.close()
			}
			return
		}
	}
}

// do runs op in turn. It returns false, and op does not run, if ctx ends first
// or the terminal is closed.
func (t *terminal) do(ctx context.Context, op func()) bool {
	ran := make(chan struct{})
	select {
	case t.ops <- func() { defer close(ran); op() }:
		<-ran
		return true
	case <-ctx.Done():
	case <-t.done:
	}
	return false
}

// Close ends the stream and gives the terminal back. It is called once.
func (t *terminal) Close() {
	close(t.quit)
	<-t.done
}

// Streams reports whether stdout is a terminal, so that text is to be shown as
// it comes; else Stream is not for use.
func (t *terminal) Streams() bool { return isTerminal(t.opt.Stdout) }

// Stream writes a piece of answer text to stdout, made safe to show.
func (t *terminal) Stream(text string) (err error) {
	t.do(context.Background(), func() { err = t.write(t.stream.Feed([]byte(text)), false) })
	return err
}

// EndStream ends an answer, and its last line.
func (t *terminal) EndStream() (err error) {
	t.do(context.Background(), func() { err = t.endStream() })
	return err
}

func (t *terminal) endStream() error {
	err := t.write(t.stream.End(), true)
	t.freshLine()
	return err
}

func (t *terminal) write(text []byte, final bool) error {
	if text = t.text.append(nil, text, final); len(text) == 0 {
		return nil
	}
	t.midLine = text[len(text)-1] != '\n'
	_, err := t.opt.Stdout.Write(text)
	return err
}

// freshLine puts the cursor at the start of a line, if the answer left it
// elsewhere.
func (t *terminal) freshLine() {
	if t.midLine {
		t.midLine = false
		io.WriteString(t.opt.Stdout, "\n")
	}
}

// safe makes a text safe to show on one line, without secrets.
func (t *terminal) safe(s string) string { return printable(t.opt.Redact.String(s)) }

// Activity writes one line about what happens to stderr.
func (t *terminal) Activity(line string) {
	if !t.opt.Quiet {
		t.line(t.safe(line))
	}
}

// Note writes what the user has to know to stderr, also when quiet.
func (t *terminal) Note(text string) { t.line(printableText(t.opt.Redact.String(text))) }

func (t *terminal) line(safe string) {
	t.do(context.Background(), func() {
		t.freshLine()
		io.WriteString(t.opt.Stderr, safe+"\n")
	})
}

// Spinner shows that something takes time, with the seconds so far, until stop
// is called. The latest one is shown.
func (t *terminal) Spinner(label string) (stop func()) {
	since := time.Now()
	t.do(context.Background(), func() { t.label, t.since = t.safe(label), since })
	return func() {
		t.do(context.Background(), func() {
			if t.since.Equal(since) {
				t.label = ""
			}
		})
	}
}

func (t *terminal) drawSpinner() {
	f, ok := t.opt.Stderr.(*os.File)
	if t.label == "" || t.midLine || !ok || !inForeground(f) {
		return
	}
	width, _ := sizeOf(f)
	since := time.Since(t.since)
	text := cutCols(fmt.Sprintf("%c %s %ds", `|/-\`[since/(200*time.Millisecond)%4], t.label, int(since.Seconds())), width-1)
	t.eraseSpinner()
	t.drawn = cols(text)
	io.WriteString(f, text)
}

func (t *terminal) eraseSpinner() {
	if t.drawn > 0 {
		io.WriteString(t.opt.Stderr, "\r"+strings.Repeat(" ", t.drawn)+"\r")
		t.drawn = 0
	}
}

// CanAsk reports whether the owner can be asked here now.
func (t *terminal) CanAsk() (can bool) {
	t.do(context.Background(), func() { can = t.openKeys() == nil })
	return can
}

// Ask shows a card on the controlling terminal and waits for the answer. Only
// what is typed after the prompt has appeared counts, and only the letter of an
// offered scope allows. The error is errNoTerminal, the end of ctx, or that of
// the terminal; the answer then denies.
func (t *terminal) Ask(ctx context.Context, card Card) (ans Answer, err error) {
	if !t.CanAsk() {
		return Answer{}, errNoTerminal
	}
	unlock, err := lockTTY(ctx, t.opt.TryLock, func() { t.Activity("waiting: another picket is asking on this terminal") })
	if err != nil {
		return Answer{}, err
	}
	defer unlock()
	if !t.do(ctx, func() { ans, err = t.ask(ctx, card) }) {
		err = cmp.Or(context.Cause(ctx), errNoTerminal)
	}
	if err != nil {
		ans = Answer{}
	}
	return ans, err
}

// lockTTY waits until no other picket process asks on this terminal; busy is called
// if there is one.
func lockTTY(ctx context.Context, try func(name string) (func(), bool, error), busy func()) (unlock func(), err error) {
	for ; ; busy = func() {} {
		unlock, ok, err := try(ttyName())
		if err != nil || ok {
			return unlock, err
		}
		busy()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (t *terminal) openKeys() error {
	if t.tty == nil {
		tty, err := openTTY()
		if err != nil {
			return errNoTerminal
		}
		t.tty, t.keys = tty, newLineReader(tty.in)
	}
	if !inForeground(t.tty.in) {
		return errNoTerminal
	}
	return nil
}

func (t *terminal) ask(ctx context.Context, card Card) (Answer, error) {
	if err := t.openKeys(); err != nil {
		return Answer{}, err
	}
	t.freshLine()
	out := t.tty.out
	width, height := sizeOf(out)
	pages := slices.Collect(slices.Chunk(t.cardLines(card, width), max(height-3, 5)))
	seen := 0 // pages shown so far
	for page := 0; ; page = (page + 1) % len(pages) {
		seen = max(seen, page+1)
		offered := card.Offered
		if seen < len(pages) {
			offered = onlyOnce(offered)
		}
		line, err := t.answerLine(ctx, "\n"+strings.Join(pages[page], "\n")+"\n", prompt(offered, page, len(pages)))
		if err != nil {
			if ctx.Err() != nil {
				why := context.Cause(ctx).Error()
				if errors.Is(ctx.Err(), context.Canceled) && context.Cause(ctx) == context.Canceled {
					why = "answered elsewhere, or too late"
				}
				fmt.Fprintf(out, "\n  %s\n", t.safe(why))
				t.keys.discard(t.tty.in) // half an answer is not for the shell
			}
			return Answer{}, err
		}
		if line == "v" {
			continue
		}
		ans := parseAnswer(line, offered)
		word := "denied"
		if ans.Allow {
			word = "allowed: " + ans.Scope.String()
		}
		_, err = fmt.Fprintf(out, "  %s\n", word)
		return ans, err
	}
}

// answerLine shows a text, throws away what was typed so far and some moments
// on, prompts and reads one line.
func (t *terminal) answerLine(ctx context.Context, text, prompt string) (string, error) {
	_, err := io.WriteString(t.tty.out, text)
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-time.After(answerGuard):
	}
	if err == nil {
		err = t.keys.discard(t.tty.in)
	}
	if err == nil {
		_, err = io.WriteString(t.tty.out, prompt)
	}
	if err != nil {
		return "", err
	}
	line, err := t.keys.line(ctx)
	if err == io.EOF {
		line, err = "", nil // Ctrl-D denies
		io.WriteString(t.tty.out, "\n")
	}
	return strings.TrimSpace(line), err
}

func onlyOnce(offered []tools.Scope) []tools.Scope {
	return slices.DeleteFunc(slices.Clone(offered), func(s tools.Scope) bool { return s != tools.Once })
}

func prompt(offered []tools.Scope, page, pages int) string {
	var parts []string
	for _, s := range offered {
		parts = append(parts, fmt.Sprintf("%c %s", scopeLetters[s], s))
	}
	if pages == 1 {
		parts = append(parts, "v view")
	} else {
		parts = slices.Insert(parts, 0, fmt.Sprintf("page %d of %d, v next", page+1, pages))
	}
	return "  allow? " + strings.Join(append(parts, "n [REASON] deny"), " · ") + " > "
}

// parseAnswer reads an answer: one letter of an offered scope allows, all else
// denies.
func parseAnswer(line string, offered []tools.Scope) Answer {
	for _, s := range offered {
		if s >= tools.Once && s <= tools.Always && strings.EqualFold(line, scopeLetters[s:s+1]) {
			return Answer{Allow: true, Scope: s}
		}
	}
	reason, ok := strings.CutPrefix(line, "n ")
	if !ok {
		return Answer{}
	}
	return Answer{Reason: cutCols(printable(strings.TrimSpace(reason)), 500)}
}

// cardLines lays a card out in rows of the terminal. Every row has a margin, so
// that nothing in a card can look like what is not in it.
func (t *terminal) cardLines(card Card, width int) (rows []string) {
	for _, line := range card.Lines {
		lead := "│ "
		for rest := t.safe(line); ; lead = "│   " {
			row := cutCols(rest, max(width, 20)-1-cols(lead))
			if i := strings.LastIndexByte(row, ' '); len(row) < len(rest) && i > len(row)/2 {
				row = row[:i+1]
			}
			rows = append(rows, lead+row)
			if rest = rest[len(row):]; rest == "" {
				break
			}
		}
	}
	return rows
}

// cols is the number of columns a text takes at most.
func cols(s string) int {
	n := 0
	for _, r := range s {
		n += runeCols(r)
	}
	return n
}

// runeCols does not know which of the wide scripts' neighbours are narrow, and
// takes too many rather than too few.
func runeCols(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x1100 && (r < 0x2500 || r > 0x257f):
		return 2
	}
	return 1
}

// cutCols returns the start of s that fits in n columns, at least one rune.
func cutCols(s string, n int) string {
	for i, r := range s {
		if n -= runeCols(r); n < 0 && i > 0 {
			return s[:i]
		}
	}
	return s
}

// sizeOf returns the size of a terminal, or the usual one where it is unknown.
func sizeOf(v any) (width, height int) {
	if f, ok := v.(*os.File); ok {
		control(f, func(fd uintptr) { width, height, _ = term.GetSize(int(fd)) })
	}
	if width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// ReadLine reads a line of the owner's: from the terminal, with prompt, if stdin
// is one, else from stdin. At the end it returns io.EOF. A line is at most 1 MiB.
func (t *terminal) ReadLine(ctx context.Context, prompt string) (line string, err error) {
	ran := t.do(ctx, func() {
		if !isTerminal(t.opt.Stdin) {
			line, err = t.stdin.line(ctx)
			return
		}
		if err = t.openKeys(); err != nil {
			return
		}
		t.freshLine()
		if _, err = io.WriteString(t.tty.out, prompt); err == nil {
			line, err = t.keys.line(ctx)
		}
		if err != nil {
			io.WriteString(t.tty.out, "\n")
		}
	})
	if !ran {
		err = cmp.Or(context.Cause(ctx), io.EOF)
	}
	return line, err
}

// A lineReader reads lines so that waiting for one can be given up. Where the
// system cannot interrupt a read, it goes on and its line is thrown away or, if
// no question came between, is the next one.
type lineReader struct {
	src     io.Reader
	buf     *bufio.Reader
	got     chan readLine
	pending bool
}

type readLine struct {
	text string
	err  error
}

const maxTyped = 1 << 20

func newLineReader(src io.Reader) *lineReader {
	return &lineReader{src: src, buf: bufio.NewReader(src), got: make(chan readLine, 1)}
}

func (l *lineReader) line(ctx context.Context) (string, error) {
	if !l.pending {
		l.pending = true
		go func() { l.got <- l.read() }()
	}
	select {
	case r := <-l.got:
		l.pending = false
		return r.text, r.err
	case <-ctx.Done():
	}
	if f, ok := l.src.(*os.File); ok && f.SetReadDeadline(time.Unix(1, 0)) == nil {
		<-l.got
		l.pending = false
		f.SetReadDeadline(time.Time{})
	}
	return "", context.Cause(ctx)
}

func (l *lineReader) read() readLine {
	var line []byte
	for {
		part, err := l.buf.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxTyped {
			return readLine{"", errors.New("the line is longer than 1 MiB")}
		}
		if err == nil || err == io.EOF && len(line) > 0 {
			return readLine{string(bytes.TrimRight(line, "\r\n")), nil}
		}
		if err != bufio.ErrBufferFull {
			return readLine{"", err}
		}
	}
}

// discard throws away what was typed before now, here and in the system.
func (l *lineReader) discard(tty *os.File) error {
	if l.pending {
		select {
		case <-l.got:
			l.pending = false
		default: // that read has seen nothing yet
		}
	}
	if !l.pending {
		l.buf.Reset(l.src)
	}
	return flushInput(tty)
}

// readHidden asks on the controlling terminal for one line, which is not shown
// while it is typed. What of a longer text was pasted is thrown away.
func readHidden(ctx context.Context, prompt string) (string, error) {
	tty, err := openTTY()
	if err != nil {
		return "", errNoTerminal
	}
	defer tty.close()
	if !inForeground(tty.in) {
		return "", errNoTerminal
	}
	show, err := hideTyping(tty.in)
	if err != nil {
		return "", err
	}
	defer show()
	if _, err := io.WriteString(tty.out, prompt); err != nil {
		return "", err
	}
	line, err := newLineReader(tty.in).line(ctx)
	if io.WriteString(tty.out, "\n"); err == io.EOF {
		err = errors.New("nothing was typed")
	}
	return line, err
}
