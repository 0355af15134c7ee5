package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"picket/tools"
)

// boxConfig is what the children of one run may touch. Paths may be
// relative to the current folder and may be links; newSandbox resolves them.
type boxConfig struct {
	Mode       string   // auto, bwrap or off; "" is auto
	Network    string   // host: a call with network gets the host's; "" is host
	Workspace  string   // the folder in which every child starts
	ExtraRoots []string // writable too
	Writable   []string // folders or files, writable too
	ReadOnly   []string // folders or files, readable
	PassEnv    []string // names of further variables that children inherit
	Hide       []string // settings and data folders, hidden wherever they lie
	Skills     string   // a folder that stays readable inside a hidden one; "" for none

	// Filter wraps what keeps a child's output, so that secrets are taken out
	// before anything is cut. It is called once per stream; nil for none.
	Filter func(io.Writer) io.WriteCloser
}

// boxState says what is in force, for the start record, doctor and the prompt.
type boxState struct {
	Boxed      bool   // children run in a box
	NetBlocked bool   // and have no network unless the call was given it
	RefuseExec string // why no child may run at all; "" if one may
	Line       string // one line that says all of this
	Hint       string // the command or setting that mends what is missing; "" if nothing is
}

// A sandbox starts the children of tool calls. It is safe for concurrent use.
type sandbox struct {
	cfg      boxConfig
	home     string   // the owner's home, resolved; "" if unknown
	roots    []string // writable: the workspace first, then the others
	readOnly []string
	hide     []string
	shares   [][2]string // path below home, and what it resolved to: seen in the box's HOME too
	notes    []string    // for doctor: what was asked for and could not be given
	state    boxState
	env      map[string]string
	box      box // what only the system with a box needs
}

// What a child gets when the call does not say.
const (
	defaultOutput  = 1 << 20
	defaultTimeout = 10 * time.Minute
	endGrace       = time.Second // between SIGTERM and SIGKILL
)

// newSandbox resolves every path, looks for a box by making one, and marks the
// descriptors that picket was started with so that no child gets them. An
// error is about the settings. Without a box it still returns a sandbox: see
// State.
func newSandbox(cfg boxConfig) (*sandbox, error) {
	closeInherited()
	switch {
	case !slices.Contains([]string{"", "auto", "bwrap", "off"}, cfg.Mode):
		return nil, fmt.Errorf("sandbox.mode is %q, not auto, bwrap or off", cfg.Mode)
	case cfg.Network != "" && cfg.Network != "host":
		return nil, fmt.Errorf("sandbox.network is %q, not host", cfg.Network)
	}
	s := &sandbox{cfg: cfg}
	if home, err := os.UserHomeDir(); err == nil && home != "/" {
		if s.home, err = filepath.EvalSymlinks(home); err != nil {
			s.home = filepath.Clean(home)
		}
	}
	for i, list := range [][]string{{cfg.Workspace}, cfg.ExtraRoots, cfg.Writable, cfg.ReadOnly} {
		for _, given := range list {
			p, err := resolvePath(given)
			fi, statErr := os.Stat(p)
			switch why := s.tooWide(p); {
			case i > 1 && err != nil:
				s.notes = append(s.notes, fmt.Sprintf("the sandbox is to hold %q: %v", given, err))
				continue
			case err != nil:
				return nil, err
			case i < 2 && (statErr != nil || !fi.IsDir()):
				return nil, fmt.Errorf("%q is not a folder", given)
			case why != "":
				return nil, fmt.Errorf("%q cannot be given to a sandbox: %s", given, why)
			case i < 3:
				s.roots = append(s.roots, p)
			default:
				s.readOnly = append(s.readOnly, p)
			}
			if i > 0 {
				s.share(given, p)
			}
		}
	}
	for _, given := range cfg.Hide {
		abs, err := filepath.Abs(given)
		if err != nil {
			return nil, err
		}
		s.hide = append(s.hide, resolveExisting(abs))
	}
	if cfg.Skills != "" {
		abs, err := filepath.Abs(cfg.Skills)
		if err != nil {
			return nil, err
		}
		s.cfg.Skills = resolveExisting(abs)
	}
	for _, name := range cfg.PassEnv {
		if envCredential(name) || envSteers(name) || !validEnvName(name) {
			s.notes = append(s.notes, fmt.Sprintf("sandbox.env: %q is never passed on: it looks like a credential or steers programs", name))
		}
	}
	for _, p := range slices.Concat(s.roots, s.readOnly) {
		if h := firstWithin(p, s.hide); h != "" {
			return nil, fmt.Errorf("%q lies in %q, which no tool may touch", p, h)
		}
	}
	slices.SortFunc(s.shares, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	s.findBox()
	s.env = s.childEnv(os.Environ())
	for _, h := range s.hide {
		if root := firstWithin(h, s.roots); root != "" && !s.state.Boxed {
			return nil, fmt.Errorf("%q holds %q, and there is no sandbox to hide it", root, h)
		}
	}
	return s, nil
}

// State says what is in force. It never changes.
func (s *sandbox) State() boxState { return s.state }

// Notes says what the settings asked for and could not be given, for doctor.
func (s *sandbox) Notes() []string { return s.notes }

// Roots returns the writable roots, absolute and resolved, the workspace first.
func (s *sandbox) Roots() []string { return s.roots }

// Env returns the environment that a child inherits, by name.
func (s *sandbox) Env() map[string]string { return maps.Clone(s.env) }

// environ is the environment of one child: what is inherited, what the call
// adds, and what says where it runs.
func (s *sandbox) environ(add map[string]string, fixed ...string) []string {
	env := maps.Clone(s.env)
	maps.Copy(env, add)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return append(out, fixed...) // the last of two entries wins
}

// share remembers that a path below home is also seen below the box's HOME, so
// that a program that looks for its cache there finds it.
func (s *sandbox) share(given, p string) {
	abs, err := filepath.Abs(given)
	if err != nil || s.home == "" {
		return
	}
	for _, name := range []string{resolveParent(abs), p} {
		if rel, err := filepath.Rel(s.home, name); err == nil && filepath.IsLocal(rel) && rel != "." {
			s.shares = append(s.shares, [2]string{rel, p})
			return
		}
	}
}

// tooWide says why a folder must not be bound as a whole.
func (s *sandbox) tooWide(p string) string {
	if s.home != "" && firstWithin(s.home, []string{p}) != "" {
		return "it holds the home folder"
	}
	for _, dir := range []string{"/tmp", "/usr", "/etc", "/dev", "/proc", "/sys", "/run", "/var", "/home"} {
		if firstWithin(dir, []string{p}) != "" {
			return "it is too wide"
		}
	}
	if k := firstWithin(p, []string{"/dev", "/proc", "/sys"}); k != "" {
		return "it lies in " + k
	}
	return ""
}

func resolvePath(p string) (string, error) {
	if p == "" || strings.IndexByte(p, 0) >= 0 {
		return "", fmt.Errorf("%q is not a path", p)
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

func resolveParent(p string) string {
	return filepath.Join(resolveExisting(filepath.Dir(p)), filepath.Base(p))
}

// lookPath returns the absolute, resolved path of the program that a child runs
// for this word, by the child's own PATH and as the child sees the file system;
// "" if there is none. A relative path is taken from the workspace.
func (s *sandbox) lookPath(name string) string {
	var tries []string
	switch {
	case name == "":
	case strings.ContainsRune(name, '/') || filepath.IsAbs(name):
		if !filepath.IsAbs(name) {
			name = filepath.Join(s.roots[0], name)
		}
		tries = []string{name}
	default:
		for _, dir := range filepath.SplitList(s.env["PATH"]) {
			tries = append(tries, filepath.Join(dir, name))
		}
	}
	for _, p := range tries {
		if p, err := exec.LookPath(p); err == nil {
			if p, ok := s.see(p); ok {
				return p
			}
		}
	}
	return ""
}

// Missing names, for doctor, what lies on PATH or is a usual cache below home
// and is not seen by a boxed call, with the setting that admits it.
func (s *sandbox) Missing() []string {
	if !s.state.Boxed {
		return nil
	}
	var out, seen []string
	look := func(p, what string) {
		real, err := filepath.EvalSymlinks(p)
		if err != nil || slices.Contains(seen, real) || s.home == "" || firstWithin(real, []string{s.home}) == "" {
			return
		}
		seen = append(seen, real)
		if _, ok := s.see(real); !ok && s.tooWide(real) == "" {
			out = append(out, fmt.Sprintf(`%s (%s) is not seen by a boxed call; "sandbox": {"read_only": [%q]} admits it`, p, what, p))
		}
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			look(dir, "on PATH")
		}
	}
	for _, dir := range []string{"go/pkg/mod", ".cargo/registry", ".rustup", ".m2/repository", ".gradle",
		".npm", ".nvm", ".cache/pip", ".cache/uv", ".cache/go-build", ".local/lib", ".gitconfig", ".config/git"} {
		look(filepath.Join(s.home, dir), "used by programs")
	}
	return out
}

// headTail keeps the beginning and the end of a stream of any length.
type headTail struct {
	max        int64 // bytes kept in all
	head, tail []byte
	at         int   // where the ring in tail begins, once it is full
	size       int64 // bytes written
}

func (h *headTail) Write(p []byte) (int, error) {
	n := len(p)
	h.size += int64(n)
	half := int(h.max / 2)
	if room := half - len(h.head); room > 0 {
		k := min(room, len(p))
		h.head = append(h.head, p[:k]...)
		p = p[k:]
	}
	if half = int(h.max) - half; len(p) >= half {
		h.tail, h.at = append(h.tail[:0], p[len(p)-half:]...), 0
		return n, nil
	}
	if room := half - len(h.tail); room > 0 {
		k := min(room, len(p))
		h.tail = append(h.tail, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(h.tail[h.at:], p)
		h.at = (h.at + k) % half
		p = p[k:]
	}
	return n, nil
}

// Bytes returns what was kept, with a line in place of what was left out. No
// character is cut in two.
func (h *headTail) Bytes() []byte {
	tail := slices.Concat(h.tail[h.at:], h.tail[:h.at])
	if h.size <= int64(len(h.head)+len(tail)) {
		return append(slices.Clip(h.head), tail...)
	}
	head := h.head
	for range utf8.UTFMax - 1 {
		if r, n := utf8.DecodeLastRune(head); r != utf8.RuneError || n != 1 {
			break
		}
		head = head[:len(head)-1]
	}
	for range utf8.UTFMax - 1 {
		if len(tail) > 0 && !utf8.RuneStart(tail[0]) {
			tail = tail[1:]
		}
	}
	cut := fmt.Sprintf("\n[%d bytes left out]\n", h.size-int64(len(head)+len(tail)))
	return slices.Concat(head, []byte(cut), tail)
}

// A job is one started child with everything that it starts.
type job struct {
	cmd  *exec.Cmd
	held func(context.Context) error // called after the start; the child runs nothing before it returns
	term func()                      // asks the child's processes to end
	kill func()                      // ends the child
	gone func() error                // ends whatever is left, and waits for it
}

// run starts the job and returns once nothing of it is left. The exit status
// is for the caller to read: cmd.ProcessState is set unless Err says that the
// program could not be started.
func (j *job) run(ctx context.Context, c tools.Command, filter func(io.Writer) io.WriteCloser) tools.ExecResult {
	var res tools.ExecResult
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stdout, stderr := newOutput(c.OutputMax, filter), newOutput(c.OutputMax, filter)
	err := errors.Join(stdout.open(), stderr.open())
	if err == nil {
		j.cmd.Stdout, j.cmd.Stderr = stdout.w, stderr.w // files: nothing is copied by the exec package
		err = j.cmd.Start()
	}
	stdout.w.Close()
	stderr.w.Close()
	if err != nil {
		stdout.r.Close()
		stderr.r.Close()
		res.Err = err.Error()
		return res
	}
	go stdout.copy()
	go stderr.copy()
	if err = j.held(limited); err != nil {
		res.Err = err.Error()
		j.kill()
	}
	done := make(chan struct{})
	go func() { j.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-limited.Done():
		res.Stopped = ctx.Err() != nil
		res.TimedOut = !res.Stopped
		j.term()
		select {
		case <-done:
		case <-time.After(endGrace):
		}
	}
	j.kill()
	select {
	case <-done:
	case <-time.After(10 * endGrace): // a child that even SIGKILL does not end at once
		j.cmd.Process.Kill()
		<-done
	}
	if err := j.gone(); err != nil {
		res.Notes = append(res.Notes, err.Error())
	}
	res.Stdout, res.StdoutSize = stdout.finish()
	res.Stderr, res.StderrSz = stderr.finish()
	return res
}

// An output is one stream of a child, read to its end whatever its length.
type output struct {
	kept headTail
	sink io.Writer // kept, or a filter before it
	r, w *os.File
	size int64
	done chan struct{}
}

func newOutput(keep int64, filter func(io.Writer) io.WriteCloser) *output {
	if keep <= 0 {
		keep = defaultOutput
	}
	o := &output{kept: headTail{max: keep}, done: make(chan struct{})}
	o.sink = &o.kept
	if filter != nil {
		o.sink = filter(&o.kept)
	}
	return o
}

func (o *output) open() (err error) {
	o.r, o.w, err = os.Pipe()
	return err
}

func (o *output) copy() {
	defer close(o.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := o.r.Read(buf)
		o.size += int64(n)
		o.sink.Write(buf[:n]) // keeps, and cannot fail
		if err != nil {
			return
		}
	}
}

// finish returns what was kept. A process that got away could hold the pipe
// open for ever, so it waits for the end only a moment.
func (o *output) finish() ([]byte, int64) {
	o.r.SetReadDeadline(time.Now().Add(endGrace))
	<-o.done
	o.r.Close()
	if c, ok := o.sink.(io.Closer); ok {
		c.Close()
	}
	return o.kept.Bytes(), o.size
}

// execPlain runs a child without a box: in a session of its own, with the
// scrubbed environment, in the workspace.
func (s *sandbox) execPlain(ctx context.Context, c tools.Command) tools.ExecResult {
	refuse := func(format string, args ...any) tools.ExecResult {
		return tools.ExecResult{Err: fmt.Sprintf(format, args...)}
	}
	argv := slices.Clone(c.Argv)
	if i := slices.Index(argv, tools.ScriptArg); i >= 0 {
		dir, err := os.MkdirTemp("", "picket-") // 0700
		if err != nil {
			return refuse("no private folder for the script: %v", err)
		}
		defer os.RemoveAll(dir)
		argv[i] = filepath.Join(dir, "script")
		if err := os.WriteFile(argv[i], c.Script, 0o400); err != nil {
			return refuse("the script could not be handed over: %v", err)
		}
	}
	program := s.lookPath(argv[0])
	if program == "" {
		return refuse("there is no program %q", argv[0])
	}
	mark := newMark()
	j := &job{held: func(context.Context) error { return nil }}
	j.cmd = &exec.Cmd{Path: program, Args: argv, Dir: s.roots[0], SysProcAttr: ownSession(),
		Env: s.environ(c.Env, "PICKET_SANDBOX=off", mark)}
	j.term = func() { endGroup(j.cmd.Process.Pid, false) }
	j.kill = func() { endGroup(j.cmd.Process.Pid, true) }
	j.gone = func() error { return endStragglers(mark) }
	res := j.run(ctx, c, s.cfg.Filter)
	if st := j.cmd.ProcessState; st != nil {
		res.Started, res.Exit = true, exitStatus(st)
	}
	return res
}

// failureNotes says what a failed call lacked, if its output shows it.
func (s *sandbox) failureNotes(c tools.Command, res tools.ExecResult) []string {
	text := strings.ToLower(string(res.Stdout) + string(res.Stderr))
	has := func(signs ...string) bool {
		return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(text, sign) })
	}
	var notes []string
	if res.Exit != 0 && !c.Network && s.state.NetBlocked && has("could not resolve", "couldn't resolve", "name or service not known",
		"name resolution", "network is unreachable", "enotfound", "eai_again", "enetunreach", "no such host") {
		notes = append(notes, "this call had no network; a call with network=true asks for it")
	}
	if res.Exit != 0 && !c.GitWrite && !c.GitConfig && has("read-only file system", "resource busy") && has(".git") {
		notes = append(notes, "the repository is read-only in this call; a line of nothing but git commands may write it")
	}
	return notes
}

// Exec starts a child and returns once it, and everything that it started, is
// gone. It must not be called from a goroutine that is locked to its thread and
// ends before it returns.
func (s *sandbox) Exec(ctx context.Context, c tools.Command) tools.ExecResult {
	switch {
	case s.state.RefuseExec != "":
		return tools.ExecResult{Err: s.state.RefuseExec}
	case len(c.Argv) == 0:
		return tools.ExecResult{Err: "there is no program to run"}
	case ctx.Err() != nil:
		return tools.ExecResult{Err: "stopped before it started", Stopped: true}
	case s.state.Boxed:
		return s.execBox(ctx, c)
	}
	return s.execPlain(ctx, c)
}
