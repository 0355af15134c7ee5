/*
Picket is a personal agent that runs on your own machine and can be audited.

	picket "list the go files and say what each is for"
	git diff --staged | picket "write the commit message" > msg

It answers a prompt by calling a model and tools. Every tool call passes one
gate, the Sentinel: it says what the call would do, decides by policy, asks if
needed, records the decision, and only then runs it. The model runs nothing and
sees no secret.

Settings are in picket/config.json in the user's configuration folder; data is
in picket/ in the user's data folder, which nobody else can read: audit.jsonl
(every decision, chained by hashes), approvals.jsonl (questions and grants),
chats/ and undo/. PICKET_HOME=DIR puts both below DIR. Nothing is ever read from
the workspace: no settings, no rules, no .env.
*/
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
)

const usage = `picket: an agent on your own machine, in which every action passes one gate

  picket "list the files and say what this project is"
  git diff --staged | picket "write the commit message" > msg
  picket --model rehearsal "run: ls -la"       try it without a model
  tail -f ~/.local/share/picket/audit.jsonl | jq

Usage:
  picket [flags] PROMPT…          do one task and print the answer
  picket run [flags] PROMPT…      the same, whatever the prompt begins with
  picket chat [flags]             talk, in the terminal
  picket serve [flags]            serve other apps and you on 127.0.0.1
  picket stop                     stop every running turn of the server
  picket api on | off             the OpenAI-compatible API of the server
  picket api key | status         a new key for it, shown once; how it stands
  picket approvals [list]         questions that wait for an answer
  picket approvals watch          print each as it comes and as it ends
  picket approvals allow ID [--for once|task|session|24h|always]
  picket approvals deny ID [REASON…]
  picket grants [list | revoke KEY | clear]
  picket audit [-n 50] [--json] [-f] [--kind KIND] [--chat CHAT]
  picket audit show ID            everything about one call
  picket audit verify [--json]    prove the log; see its exit codes below
  picket audit accept             accept gaps and recoveries found so far
  picket audit restart            set a log aside that cannot go on
  picket policy explain [--grant KEY]… [--label private|untrusted]… [--mode M]
                        [--channel C] [--json] TOOL JSON
  picket policy lint              find rules that do not do what they seem to
  picket vault set NAME [--host HOST]… [--tool TOOL]… [--short] [--passphrase]
                                  keep a secret; its value is typed or piped in
  picket vault [list]             names and what they are bound to, no values
  picket vault delete NAME
  picket chats [list | show NAME | delete NAME]
  picket labels [list | clear PATH]   files that hold others' words or private data
  picket tools [--json]           what the model can ask for
  picket undo ID                  put back what a call overwrote
  picket doctor                   what is right, and how to fix the rest
  picket config init | show | path
  picket version

Flags of a task and of chat:
  --chat NAME        continue or begin the chat NAME
  --continue         continue the last chat of this workspace
  --mode MODE        ask, strict or auto; --auto is --mode auto
  --workspace DIR    the folder to work in; default: the current one
  --model NAME       a model, "rehearsal", or "script:FILE"
  --base-url URL     the model's server
  --max-steps N      at most N model calls, and one to close
  --allow KEY        grant KEY for this task, such as shell:git (repeatable)
  --wait             let a question wait for "picket approvals" elsewhere
  --json             print events, one JSON object a line
  --quiet            no progress on stderr
  --show-thinking    show the model's reasoning on stderr
  --no-stdin         do not read standard input

What is piped in goes with the prompt as data, not as your words. Without a
prompt, standard input is the prompt.

Flags go before the prompt. The environment can set PICKET_MODEL,
PICKET_BASE_URL, PICKET_API_KEY, PICKET_MODE, PICKET_WORKSPACE, PICKET_LISTEN
(where to serve), PICKET_VAULT_KEY (32 bytes in base64, or file:PATH) and
PICKET_HOME (a folder for settings and data); OPENAI_API_KEY, with
OPENAI_BASE_URL, is used if no base URL is set. From your home folder, picket
works in ~/picket.

Exit codes: 0 done; 1 failed; 2 usage; 3 finished, but a call was declined,
expired or denied; 4 the log could not be written; 130, 143, 129, 141 stopped by
SIGINT, SIGTERM, SIGHUP, a broken standard output. audit verify: 0 proven;
1 tampered; 2 incomplete; 3 a gap or recovery not accepted; 64 usage.
`

// Exit codes, as usage says.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 3
	exitNoLog   = 4
)

// usageError is a mistake on the command line; nothing has been done.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usageErrorf(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// errBrokenPipe means that nobody reads standard output any more.
var errBrokenPipe = errors.New("standard output was closed")

// stopped is the reason for which everything ends: a signal.
type stopped struct{ signal os.Signal }

func (s stopped) Error() string {
	name := map[os.Signal]string{os.Interrupt: "Ctrl-C", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP"}[s.signal]
	return "stopped by " + cmp.Or(name, s.signal.String())
}

func main() {
	shim()
	closeInherited()
	ctx, cancel := context.WithCancelCause(context.Background())
	in := &interrupts{}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	go func() {
		var last os.Signal
		for s := range signals {
			switch {
			case s == syscall.SIGPIPE: // a failed write says so
			case s == os.Interrupt && in.stopTurn():
			case last != nil:
				os.Exit(signalExit(s)) // the second one
			default:
				last = s
				cancel(stopped{s})
			}
		}
	}()
	os.Exit(run(context.WithValue(ctx, interruptsKey{}, in), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// interrupts lets the first Ctrl-C in a chat stop the turn and not the chat.
type interrupts struct {
	mu   sync.Mutex
	turn context.CancelCauseFunc
}

type interruptsKey struct{}

// stopTurn stops the running turn of a chat, if there is one that has not been
// stopped yet.
func (in *interrupts) stopTurn() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.turn == nil {
		return false
	}
	in.turn(stopped{os.Interrupt})
	in.turn = nil
	return true
}

// inTurn makes a context for one turn of a chat.
func inTurn(ctx context.Context) (context.Context, func()) {
	turn, cancel := context.WithCancelCause(ctx)
	in, _ := ctx.Value(interruptsKey{}).(*interrupts)
	set := func(f context.CancelCauseFunc) {
		if in != nil {
			in.mu.Lock()
			in.turn = f
			in.mu.Unlock()
		}
	}
	set(cancel)
	return turn, func() { set(nil); cancel(nil) }
}

func signalExit(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 130
}

// run is the whole program. Tests call it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdin: stdin, stdout: stdout, stderr: stderr, redact: keepText}
	err := p.command(ctx, args)
	var code exitCode
	if err != nil && !errors.As(err, &code) && exitOf(err) != 128+int(syscall.SIGPIPE) {
		p.errorf("%v", err)
	}
	return exitOf(err)
}

// exitOf is the exit code for an error.
func exitOf(err error) int {
	var code exitCode
	var bad usageError
	var sig stopped
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &bad):
		return exitUsage
	case errors.As(err, &sig):
		return signalExit(sig.signal)
	case errors.Is(err, errBrokenPipe), errors.Is(err, syscall.EPIPE):
		return 128 + int(syscall.SIGPIPE)
	case errors.Is(err, errAudit):
		return exitNoLog
	}
	return exitFailed
}

// exitCode is an error that has been reported already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// program is one run of picket, with its standard streams.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	redact         func(string) string
	term           *terminal // once a task has begun; it owns the terminal then
}

func keepText(s string) string { return s }

// errorf is the one way in which an error reaches the user.
func (p *program) errorf(format string, args ...any) {
	p.notef("picket: "+format, args...)
}

// notef tells the user something on standard error.
func (p *program) notef(format string, args ...any) {
	text := p.redact(fmt.Sprintf(format, args...))
	if p.term != nil {
		p.term.Note(text)
		return
	}
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintln(p.stderr, printable(line))
	}
}

// planned are words that later versions use as commands. They are not prompts,
// so that a script written for those does nothing here.
var planned = []string{"daemon", "memory", "goals", "contacts", "skills"}

// command runs the command that the first argument names, or a task.
func (p *program) command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return p.task(ctx, nil)
	}
	name, rest := args[0], args[1:]
	switch name {
	case "-h", "-help", "--help", "help":
		return p.print(usage)
	case "version", "--version":
		return p.noArguments(name, rest, func() error { return p.print(versionLine() + "\n") })
	case "run":
		return p.task(ctx, rest)
	case "chat":
		return p.chat(ctx, rest)
	case "serve":
		return p.serve(ctx, rest)
	case "stop":
		return p.noArguments(name, rest, func() error { return p.stopCommand(ctx) })
	case "api":
		return p.apiCommand(ctx, rest)
	case "approvals":
		return p.approvalsCommand(ctx, parseApprovals, rest)
	case "grants":
		return p.approvalsCommand(ctx, parseGrants, rest)
	case "audit":
		return p.auditCommand(ctx, rest)
	case "policy":
		return p.policyCommand(ctx, rest)
	case "vault":
		return p.vaultCommand(ctx, rest)
	case "chats":
		return p.chatsCommand(ctx, rest)
	case "labels":
		return p.labelsCommand(ctx, rest)
	case "tools":
		return p.toolsCommand(rest)
	case "undo":
		return p.undoCommand(ctx, rest)
	case "doctor":
		return p.noArguments(name, rest, func() error { return p.doctor(ctx) })
	case "config":
		return p.configCommand(rest)
	}
	if slices.Contains(planned, name) {
		return usageErrorf("%q is not a command of this version; for a prompt that begins so: picket run %s …", name, name)
	}
	return p.task(ctx, args)
}

// noArguments runs f if a command was given nothing more.
func (p *program) noArguments(name string, rest []string, f func() error) error {
	if len(rest) > 0 {
		return usageErrorf("%q takes no arguments, but got %q; for a prompt that begins so: picket run %s …", name, rest[0], name)
	}
	return f()
}

// print writes to standard output.
func (p *program) print(s string) error {
	_, err := io.WriteString(p.stdout, s)
	return outputError(err)
}

// outputError tells a reader that is gone from other failures.
func outputError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
		return errBrokenPipe
	}
	return fmt.Errorf("standard output could not be written: %v", err)
}

// taskFlags are the flags of a task and of chat.
type taskFlags struct {
	chat, mode, workspace, model, baseURL         string
	allow                                         []string
	steps                                         int
	cont, auto, wait, json, quiet, think, noStdin bool
}

// newFlags makes a flag set that prints nothing of its own.
func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	return fs
}

// parseFlags parses; a mistake is a usage error.
func parseFlags(fs *flag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if err != nil {
		return usageErrorf("%v; see picket --help", err)
	}
	return nil
}

func (p *program) parseTask(args []string) (taskFlags, []string, error) {
	var f taskFlags
	fs := newFlags("picket")
	fs.StringVar(&f.chat, "chat", "", "")
	fs.BoolVar(&f.cont, "continue", false, "")
	fs.StringVar(&f.mode, "mode", "", "")
	fs.BoolVar(&f.auto, "auto", false, "")
	fs.StringVar(&f.workspace, "workspace", "", "")
	fs.StringVar(&f.model, "model", "", "")
	fs.StringVar(&f.baseURL, "base-url", "", "")
	fs.IntVar(&f.steps, "max-steps", 0, "")
	fs.Func("allow", "", func(s string) error { f.allow = append(f.allow, s); return nil })
	fs.BoolVar(&f.wait, "wait", false, "")
	fs.BoolVar(&f.json, "json", false, "")
	fs.BoolVar(&f.quiet, "quiet", false, "")
	fs.BoolVar(&f.think, "show-thinking", false, "")
	fs.BoolVar(&f.noStdin, "no-stdin", false, "")
	if err := parseFlags(fs, args); err != nil {
		return f, nil, err
	}
	given := map[string]bool{}
	fs.Visit(func(g *flag.Flag) { given[g.Name] = true })
	switch {
	case f.auto && f.mode != "" && f.mode != "auto":
		return f, nil, usageErrorf("--auto and --mode %s contradict each other", f.mode)
	case f.cont && given["chat"]:
		return f, nil, usageErrorf("--continue and --chat exclude each other")
	case given["max-steps"] && f.steps < 1:
		return f, nil, usageErrorf("--max-steps must be at least 1")
	case given["mode"] && !slices.Contains([]string{"ask", "strict", "auto"}, f.mode):
		return f, nil, usageErrorf("--mode must be ask, strict or auto, not %q", f.mode)
	case given["chat"]:
		if err := checkChatName(strings.TrimPrefix(f.chat, apiNamespace+":")); err != nil {
			return f, nil, usageErrorf("--chat: %v", err)
		}
	}
	for _, g := range []string{"workspace", "model", "base-url"} {
		if given[g] && fs.Lookup(g).Value.String() == "" {
			return f, nil, usageErrorf("--%s needs a value", g)
		}
	}
	if f.auto {
		f.mode = "auto"
	}
	return f, fs.Args(), nil
}
