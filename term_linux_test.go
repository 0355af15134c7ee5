package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"picket/tools"
)

// The terminal is tested from outside: the test binary runs itself as the
// leader of a session on a pseudo-terminal, and plays one of ttyPrograms there.
func init() {
	if name := os.Getenv("PICKET_TTY_PROGRAM"); name != "" {
		program := ttyPrograms[name]
		os.Unsetenv("PICKET_TTY_PROGRAM")
		program()
		os.Exit(0)
	}
}

var allScopes = []tools.Scope{tools.Once, tools.Task, tools.Session, tools.Day, tools.Always}

func childTerminal() *terminal {
	return newTerminal(termOptions{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
		TryLock: func(name string) (func(), bool, error) {
			f, err := os.OpenFile(filepath.Join(os.Getenv("PICKET_TTY_DIR"), name), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return nil, false, err
			}
			if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
				f.Close()
				return nil, false, nil
			}
			return func() { f.Close() }, true, nil
		}})
}

// report tells the test what came of a question, over descriptor 3.
func report(ans Answer, err error) {
	text, _ := json.Marshal(map[string]any{"allow": ans.Allow, "scope": ans.Scope.String(), "reason": ans.Reason, "err": fmt.Sprint(err)})
	os.NewFile(3, "report").Write(append(text, '\n'))
}

// gate waits until the test lets the program go on.
func gate() { os.NewFile(4, "gate").Read(make([]byte, 1)) }

var shortCard = Card{Lines: []string{"shell: rm -r build", "sensitive: recursive delete"}, Offered: []tools.Scope{tools.Once, tools.Task}}

var ttyPrograms = map[string]func(){
	"ask": func() {
		t := childTerminal()
		defer t.Close()
		gate()
		report(t.Ask(context.Background(), shortCard))
	},
	"busy": func() { // others want to print while the question is open
		t := childTerminal()
		t.Stream("half a line")
		t.Spinner("thinking")
		var wg sync.WaitGroup
		wg.Go(func() { report(t.Ask(context.Background(), shortCard)) })
		time.Sleep(answerGuard + 200*time.Millisecond)
		wg.Go(func() { t.Activity("LATER ACTIVITY") })
		wg.Go(func() { t.Stream("LATER STREAM\n") })
		wg.Wait()
		t.Close()
	},
	"cancel": func() {
		t := childTerminal()
		defer t.Close()
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() { gate(); cancel(errors.New("answered elsewhere")) }()
		report(t.Ask(ctx, shortCard))
		report(t.Ask(context.Background(), shortCard))
	},
	"long": func() {
		t := childTerminal()
		defer t.Close()
		card := Card{Offered: allScopes}
		for i := range 30 {
			card.Lines = append(card.Lines, fmt.Sprintf("line %d of the card", i))
		}
		for range 4 {
			report(t.Ask(context.Background(), card))
		}
	},
	"show": func() {
		t := childTerminal()
		t.Stream("red \x1b[31m and e\xcc")
		t.Stream("\x81 \u202eevil\u2028\n")
		t.Activity("act \x1b]52;c;AAAA\x07 \r done")
		stop := t.Spinner("working")
		time.Sleep(500 * time.Millisecond)
		stop()
		t.Note("picket: it failed \x9b2J\n  do this")
		t.Close()
	},
	"read": func() {
		t := childTerminal()
		defer t.Close()
		for {
			line, err := t.ReadLine(context.Background(), "you> ")
			report(Answer{Reason: line}, err)
			if err != nil {
				return
			}
		}
	},
	"background": func() { // the question is asked in a process group that the terminal does not listen to
		cmd := programCommand("ask")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.ExtraFiles = []*os.File{os.NewFile(3, "report"), os.NewFile(4, "gate")}
		if err := cmd.Run(); err != nil {
			report(Answer{}, err)
		}
	},
	"two": func() {
		var wg sync.WaitGroup
		for range 2 {
			cmd := programCommand("ask")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			cmd.ExtraFiles = []*os.File{os.NewFile(3, "report"), os.NewFile(4, "gate")}
			wg.Go(func() {
				if err := cmd.Run(); err != nil {
					report(Answer{}, err)
				}
			})
		}
		wg.Wait()
	},
}

func programCommand(name string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PICKET_TTY_PROGRAM="+name)
	return cmd
}

// A ttyTest is a program on a pseudo-terminal, seen from the side of the user.
type ttyTest struct {
	t      *testing.T
	master *os.File
	gate   *os.File
	lines  chan string // reports
	mu     sync.Mutex
	shown  bytes.Buffer
}

func startTTY(t *testing.T, program string, rows int, stdin *os.File, env ...string) *ttyTest {
	t.Helper()
	master, slave := openPTY(t, rows)
	reportR, reportW, _ := os.Pipe()
	gateR, gateW, _ := os.Pipe()
	cmd := programCommand(program)
	cmd.Env = append(cmd.Env, "PICKET_TTY_DIR="+t.TempDir(), "TERM=xterm")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.ExtraFiles = []*os.File{reportW, gateR}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	reportW.Close()
	gateR.Close()
	tt := &ttyTest{t: t, master: master, gate: gateW, lines: make(chan string, 10)}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			tt.mu.Lock()
			tt.shown.Write(buf[:n])
			tt.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() {
		dec := json.NewDecoder(reportR)
		for {
			var v struct {
				Allow       bool
				Scope       string
				Reason, Err string
			}
			if dec.Decode(&v) != nil {
				close(tt.lines)
				return
			}
			s := "deny"
			if v.Allow {
				s = v.Scope
			}
			if v.Reason != "" {
				s += " " + v.Reason
			}
			if v.Err != "<nil>" {
				s += ": " + v.Err
			}
			tt.lines <- s
		}
	}()
	t.Cleanup(func() {
		gateW.Close()
		cmd.Process.Kill()
		cmd.Wait()
		master.Close()
		reportR.Close()
	})
	return tt
}

func openPTY(t *testing.T, rows int) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	need(t, err == nil, "pseudo-terminals (mount devpts on /dev/pts)")
	var unlock, number int32
	size := [4]uint16{uint16(rows), 80}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)))
	must(ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&number)))
	must(ioctl(master, syscall.TIOCSWINSZ, unsafe.Pointer(&size)))
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func (tt *ttyTest) typed(s string) {
	if _, err := io.WriteString(tt.master, s); err != nil {
		tt.t.Fatal(err)
	}
}

func (tt *ttyTest) open() { tt.gate.Write([]byte("x")) }

func (tt *ttyTest) screen() string {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	return tt.shown.String()
}

// see waits until the text has been shown n times.
func (tt *ttyTest) see(text string, n int) {
	tt.t.Helper()
	for end := time.Now().Add(30 * time.Second); strings.Count(tt.screen(), text) < n; {
		if time.Now().After(end) {
			tt.t.Fatalf("%q was not shown %d times, but:\n%q", text, n, tt.screen())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (tt *ttyTest) want(report string) {
	tt.t.Helper()
	select {
	case got := <-tt.lines:
		if got != report {
			tt.t.Fatalf("answer %q, want %q; shown:\n%q", got, report, tt.screen())
		}
	case <-time.After(30 * time.Second):
		tt.t.Fatalf("no answer; shown:\n%q", tt.screen())
	}
}

const promptEnd = "deny > "

func TestAnswers(t *testing.T) {
	for _, tt := range []struct{ name, keys, want string }{
		{"once", "o\r", "once"},
		{"task, in a capital", "T\r", "task"},
		{"Enter denies", "\r", "deny"},
		{"end of input denies", "\x04", "deny"},
		{"yes is no answer", "y\r", "deny"},
		{"a word is none", "once\r", "deny"},
		{"a letter is not the end", "oo\r", "deny"},
		{"always is not offered", "a\r", "deny"},
		{"a reason", "n too much \x1b[31m\r", `deny too much \u{1b}[31m`},
		{"a reason that looks like an answer", "n o\r", "deny o"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := startTTY(t, "ask", 24, nil)
			p.open()
			p.see(promptEnd, 1)
			p.typed(tt.keys)
			p.want(tt.want)
		})
	}
}

func TestTypedAheadDoesNotCount(t *testing.T) {
	for name, ahead := range map[string]string{"a line": "o\r", "half a line": "o", "many": strings.Repeat("o\r", 50)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startTTY(t, "ask", 24, nil)
			p.typed(ahead)
			p.see("o", 1) // the terminal has it
			p.open()
			p.see(promptEnd, 1)
			p.typed("\r")
			p.want("deny")
		})
	}
}

func TestAskWithStdinFromPipe(t *testing.T) {
	t.Parallel()
	r, w, _ := os.Pipe()
	w.WriteString("o\no\no\n")
	w.Close()
	p := startTTY(t, "ask", 24, r)
	p.open()
	p.see(promptEnd, 1)
	p.typed("t\r")
	p.want("task")
}

func TestBackgroundIsNotAsked(t *testing.T) {
	t.Parallel()
	p := startTTY(t, "background", 24, nil)
	p.open()
	p.want("deny: there is no terminal to ask on")
	if strings.Contains(p.screen(), "shell") {
		t.Errorf("a card was shown: %q", p.screen())
	}
}

func TestTwoProcessesAskInTurn(t *testing.T) {
	t.Parallel()
	p := startTTY(t, "two", 24, nil)
	p.open()
	p.open()
	p.see(promptEnd, 1)
	p.see("another picket is asking", 1)
	if n := strings.Count(p.screen(), promptEnd); n != 1 {
		t.Fatalf("%d questions at once", n)
	}
	p.typed("o\r")
	p.want("once")
	p.see(promptEnd, 2)
	p.typed("\r")
	p.want("deny")
}

func TestNothingPrintsIntoAQuestion(t *testing.T) {
	t.Parallel()
	p := startTTY(t, "busy", 24, nil)
	p.see(promptEnd, 1)
	time.Sleep(700 * time.Millisecond)
	if _, after, _ := strings.Cut(p.screen(), promptEnd); after != "" {
		t.Errorf("behind the prompt stands %q", after)
	}
	if !strings.Contains(p.screen(), "half a line\r\n") {
		t.Errorf("the card does not start on a line of its own: %q", p.screen())
	}
	p.typed("o\r")
	p.want("once")
	p.see("LATER ACTIVITY", 1)
	p.see("LATER STREAM", 1)
}

func TestCancelledQuestion(t *testing.T) {
	t.Parallel()
	p := startTTY(t, "cancel", 24, nil)
	p.see(promptEnd, 1)
	p.typed("o")
	p.open()
	p.want("deny: answered elsewhere")
	p.see("answered elsewhere", 1)
	p.see(promptEnd, 2)
	p.typed("\r") // must not complete the half answer to the first question
	p.want("deny")
}

func TestLongCardPages(t *testing.T) {
	t.Parallel()
	p := startTTY(t, "long", 13, nil)
	p.see("page 1 of 3", 1)
	if strings.Contains(p.screen(), "line 29") || strings.Contains(p.screen(), "always") {
		t.Errorf("the first page shows or offers too much: %q", p.screen())
	}
	p.typed("a\r")
	p.want("deny")
	p.see("page 1 of 3", 2)
	p.typed("o\r")
	p.want("once")
	p.see("page 1 of 3", 3)
	p.typed("v\r")
	p.see("page 2 of 3", 1)
	p.typed("s\r")
	p.want("deny")
	p.see("page 1 of 3", 4)
	p.typed("v\r")
	p.see("page 2 of 3", 2)
	p.typed("v\r")
	p.see("page 3 of 3", 1)
	p.see("line 29", 1)
	p.see("a always", 1)
	p.typed("v\r") // shows it again, and offers all
	p.see("page 1 of 3", 5)
	p.see("a always", 2)
	p.typed("a\r")
	p.want("always")
}

// A row ends at a blank where there is one, and the rows together are the line.
func TestCardBreaksAtBlanks(t *testing.T) {
	term := newTerminal(termOptions{Getenv: func(string) string { return "" }})
	defer term.Close()
	for name, tt := range map[string]struct {
		line string
		want []string // nil: only that nothing is lost
	}{
		"short":           {"risk: safe", []string{"│ risk: safe"}},
		"words":           {"aaaa bbbb cccc dddd eeee ffff gggg", []string{"│ aaaa bbbb cccc dddd eeee ", "│   ffff gggg"}},
		"no blanks":       {strings.Repeat("x", 60), nil},
		"blank too early": {"a " + strings.Repeat("x", 60), nil},
		"only blanks":     {strings.Repeat("a ", 40), nil},
		"wide":            {strings.Repeat("界界 ", 20), nil},
		"a blank last":    {"aaaa bbbb cccc dddd eeee ffff ", nil},
	} {
		rows := term.cardLines(Card{Lines: []string{tt.line}}, 28)
		if tt.want != nil && !slices.Equal(rows, tt.want) {
			t.Errorf("%s: %q", name, rows)
		}
		var joined strings.Builder
		for i, r := range rows {
			lead := "│ "
			if i > 0 {
				lead = "│   "
			}
			rest, ok := strings.CutPrefix(r, lead)
			if !ok || cols(r) > 28 {
				t.Errorf("%s: row %q", name, r)
			}
			joined.WriteString(rest)
		}
		if joined.String() != term.safe(tt.line) {
			t.Errorf("%s: %q became %q", name, tt.line, joined.String())
		}
	}
}

func TestTerminalIsNotDriven(t *testing.T) {
	for _, tt := range []struct {
		name, env string
		spins     bool
	}{{"colour", "X=1", true}, {"no colour", "NO_COLOR=1", true}, {"dumb", "TERM=dumb", false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := startTTY(t, "show", 24, nil, tt.env)
			p.see("do this", 1)
			s := p.screen()
			if strings.ContainsAny(s, "\x1b\x07\u202e\u2028\u009b") || strings.Contains(s, "\x9b") {
				t.Errorf("control characters reach the terminal: %q", s)
			}
			for _, want := range []string{`red \u{1b}[31m and é?`, `\u{202e}evil\u{2028}`, `act \u{1b}]52;c;AAAA\u{7} \r done`, `picket: it failed \x9b2J`} {
				if want = strings.ReplaceAll(want, "é?", "e\u0301"); !strings.Contains(s, want) {
					t.Errorf("%q lacks %q", s, want)
				}
			}
			if strings.Contains(s, "working 0s") != tt.spins {
				t.Errorf("spinner: %q", s)
			}
		})
	}
}

func TestReadLine(t *testing.T) {
	t.Parallel()
	p := startTTY(t, "read", 24, nil)
	p.see("you> ", 1)
	p.typed("hällo there\r")
	p.want("deny hällo there")
	p.see("you> ", 2)
	p.typed("\x04")
	p.want("deny: EOF")

	r, w, _ := os.Pipe()
	w.WriteString("one\ntwo\r\nthree")
	w.Close()
	p = startTTY(t, "read", 24, r)
	p.want("deny one")
	p.want("deny two")
	p.want("deny three")
	p.want("deny: EOF")
}
