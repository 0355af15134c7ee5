package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"picket/tools"
)

// boxConfig is what the children of one run may touch.
type boxConfig struct {
	Mode       string   // auto, bwrap or off; "" is auto
	Network    string   // host: a call with network gets the host's; proxy: hosts, one by one; "" is host
	HostPorts  []int    // ports of the host's loopback that a call with network reaches by proxy
	Workspace  string   // the folder in which every child starts
	ExtraRoots []string // writable too
	Writable   []string // folders or files, writable too
	ReadOnly   []string // folders or files, readable
	PassEnv    []string // names of further variables that children inherit
	Debuggers  bool     // a process in a box may trace others in it
	Hide       []string // settings and data folders, absolute, hidden wherever they lie
	Skills     string   // a folder, absolute, that stays readable inside a hidden one; "" for none

	// Filter wraps what keeps a child's output, so that secrets are taken out
	// before anything is cut. It is called once per stream; nil for none.
	Filter func(io.Writer) io.WriteCloser
}

// boxState says what is in force, for the start record, doctor and the prompt.
type boxState struct {
	Boxed      bool   // children run in a box
	NetBlocked bool   // and have no network unless the call was given it
	NetProxied bool   // which then is a proxy that decides about each host
	RefuseExec string // why no child may run at all; "" if one may
	Line       string // one line that says all of this
	Hint       string // the command or setting that mends what is missing; "" if nothing is
}

// A sandbox starts the children of tool calls. It is safe for concurrent use.
type sandbox struct {
	cfg       boxConfig
	home      string   // the owner's home, resolved; "" if unknown
	roots     []string // writable: the workspace first, then the others
	readOnly  []string
	hide      []string
	notes     []string // for doctor: what was asked for and could not be given
	state     boxState
	env       map[string]string
	pathFirst string // a folder of programs that goes before those on PATH
	box       box    // what only the system with a box needs

	dial func(ctx context.Context, network, addr string) (net.Conn, error) // for boxed calls: tools.DialPublic but in tests
}

// What a child gets when the call does not say.
const (
	defaultOutput  = 1 << 20
	defaultTimeout = 10 * time.Minute

	proxyPort    = 47128 // of a box's loopback; each port from 1024 on is free there
	maxHostPorts = 32
)

var endGrace = time.Second // between SIGTERM and SIGKILL

// newSandbox resolves every path and looks for a box by making one. An error is
// about the settings; without a box it still returns a sandbox: see State.
func newSandbox(cfg boxConfig) (*sandbox, error) {
	if !slices.Contains([]string{"", "auto", "bwrap", "off"}, cfg.Mode) || !slices.Contains([]string{"", "host", "proxy"}, cfg.Network) {
		return nil, fmt.Errorf("there is no sandbox.mode %q with sandbox.network %q", cfg.Mode, cfg.Network)
	}
	s := &sandbox{cfg: cfg, dial: tools.DialPublic}
	if home, err := os.UserHomeDir(); err == nil && home != "/" {
		s.home = resolveExisting(home)
	}
	for _, dir := range cfg.Hide {
		s.hide = append(s.hide, resolveExisting(dir))
	}
	if cfg.Skills != "" {
		s.cfg.Skills = resolveExisting(cfg.Skills)
	}
	for i, list := range [][]string{{cfg.Workspace}, cfg.ExtraRoots, cfg.Writable, cfg.ReadOnly} {
		for _, given := range list {
			p, err := s.admit(given, i < 2)
			switch {
			case i > 1 && errors.Is(err, fs.ErrNotExist):
				s.notes = append(s.notes, fmt.Sprintf("the sandbox is to hold %q, which does not exist", given))
			case err != nil:
				return nil, err
			case i < 3:
				s.roots = append(s.roots, p)
			default:
				s.readOnly = append(s.readOnly, p)
			}
		}
	}
	s.findBox()
	s.findNetwork()
	s.env = s.childEnv(os.Environ())
	for _, name := range cfg.PassEnv {
		if _, set := os.LookupEnv(name); set && s.env[name] != os.Getenv(name) {
			s.notes = append(s.notes, fmt.Sprintf("no call gets %s of sandbox.env: its name is that of a credential or of what steers programs, or its value holds a password", name))
		}
	}
	for _, h := range s.hide {
		if root := firstWithin(h, s.roots); root != "" && !s.state.Boxed {
			return nil, fmt.Errorf("%q holds %q, and there is no sandbox to hide it", root, h)
		}
	}
	return s, nil
}

// findNetwork says what a call with network gets.
func (s *sandbox) findNetwork() {
	st := &s.state
	st.NetProxied = s.cfg.Network == "proxy" && st.Boxed && st.NetBlocked
	switch {
	case st.NetProxied:
		st.Line += ", network by proxy"
	case st.Boxed && st.NetBlocked:
		st.Line += ", a call with network gets all of the machine's"
	case s.cfg.Network == "proxy" && st.RefuseExec == "":
		st.Line += "; the network is not decided on by host"
	}
	for _, p := range s.cfg.HostPorts {
		if !slices.Contains(s.netPorts(), p) {
			s.notes = append(s.notes, fmt.Sprintf("no call reaches port %d of sandbox.host_ports", p))
		}
	}
}

// netPorts are the ports of a box's loopback at which picket listens: the proxy
// first, then those of the host. A box cannot have those below 1024.
func (s *sandbox) netPorts() []int {
	if !s.state.NetProxied {
		return nil
	}
	ports := []int{proxyPort}
	for _, p := range s.cfg.HostPorts {
		if p >= 1024 && !slices.Contains(ports, p) && len(ports) <= maxHostPorts {
			ports = append(ports, p)
		}
	}
	return ports
}

// admit resolves a path of the settings.
func (s *sandbox) admit(given string, folder bool) (string, error) {
	p, err := filepath.Abs(given)
	if err == nil {
		p, err = filepath.EvalSymlinks(p)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(p)
	switch why := (folders{Home: s.home}).tooWide(p); {
	case err != nil || given == "" || folder && !info.IsDir():
		return "", fmt.Errorf("%q is not a folder", given)
	case why != "":
		return "", fmt.Errorf("%q cannot be given to a sandbox: it is %s", given, why)
	case firstWithin(p, s.hide) != "":
		return "", fmt.Errorf("%q lies in %q, which no tool may touch", given, firstWithin(p, s.hide))
	}
	return p, nil
}

// State says what is in force. It never changes.
func (s *sandbox) State() boxState { return s.state }

// Notes says what the settings asked for and could not be given, for doctor.
func (s *sandbox) Notes() []string { return s.notes }

// Roots returns the writable roots, absolute and resolved, the workspace first.
func (s *sandbox) Roots() []string { return s.roots }

// Env returns the environment that a child inherits, by name.
func (s *sandbox) Env() map[string]string { return maps.Clone(s.env) }

// environ is the environment of one child; of two entries the last one wins.
func (s *sandbox) environ(add map[string]string, fixed ...string) (env []string) {
	for _, vars := range []map[string]string{s.env, add} {
		for name, value := range vars {
			env = append(env, name+"="+value)
		}
	}
	return append(env, fixed...)
}

// lookPath returns the absolute, resolved path of the program that a child runs
// for this word, by the child's own PATH and as the child sees the file system;
// "" if there is none. A relative path is taken from the workspace.
func (s *sandbox) lookPath(name string) string {
	dirs := filepath.SplitList(s.env["PATH"])
	if strings.ContainsRune(name, '/') || filepath.IsAbs(name) {
		dirs = s.roots[:1]
	}
	for _, dir := range dirs {
		p := name
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		if p, err := exec.LookPath(p); err == nil && s.see(p) != "" {
			return s.see(p)
		}
	}
	return ""
}

// shadowed reports whether a call could put another program in the place of the one
// that a bare name means, path ("" for none).
func (s *sandbox) shadowed(name, path string) bool {
	for _, dir := range filepath.SplitList(s.env["PATH"]) {
		if firstWithin(filepath.Clean(dir), s.roots) != "" || firstWithin(resolveExisting(dir), s.roots) != "" {
			return true
		}
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil && path != "" && s.see(p) == path {
			return false
		}
	}
	return false
}

// Missing names, for doctor, what lies on PATH or is a usual cache below home
// and is not seen by a boxed call, with the setting that admits it.
func (s *sandbox) Missing() (out []string) {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, dir := range []string{"go/pkg/mod", ".cargo/registry", ".rustup", ".m2/repository", ".gradle",
		".npm", ".nvm", ".cache/pip", ".cache/uv", ".cache/go-build", ".local/lib", ".gitconfig", ".config/git"} {
		dirs = append(dirs, filepath.Join(s.home, dir))
	}
	for _, dir := range dirs {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil && s.state.Boxed && filepath.IsAbs(dir) && real != s.home && within(real, s.home) && s.see(real) == "" {
			out = append(out, fmt.Sprintf(`a boxed call does not see %q; "sandbox": {"read_only": [%q]} admits it`, dir, dir))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// headTail keeps the beginning and the end of a stream of any length.
type headTail struct {
	max        int64 // bytes kept in all
	head, tail []byte
	size       int64 // bytes written
}

func (h *headTail) Write(p []byte) (int, error) {
	half, end := int(h.max/2), int(h.max-h.max/2)
	k := min(half-len(h.head), len(p))
	h.head, h.tail = append(h.head, p[:k]...), append(h.tail, p[k:]...)
	if more := len(h.tail) - end; more > end {
		h.tail = append(h.tail[:0], h.tail[more:]...)
	}
	h.size += int64(len(p))
	return len(p), nil
}

func (h *headTail) Close() error { return nil }

// Bytes returns what was kept, with a line in place of what was left out.
func (h *headTail) Bytes() []byte {
	head, tail := h.head, h.tail[max(0, len(h.tail)-int(h.max-h.max/2)):]
	if h.size == int64(len(head)+len(tail)) {
		return slices.Concat(head, tail)
	}
	for i := max(0, len(head)-utf8.UTFMax+1); i < len(head); i++ {
		if utf8.RuneStart(head[i]) && !utf8.FullRune(head[i:]) {
			head = head[:i]
		}
	}
	for i := 1; i < utf8.UTFMax && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	cut := fmt.Sprintf("\n[%d bytes left out]\n", h.size-int64(len(head)+len(tail)))
	return slices.Concat(head, []byte(cut), tail)
}

// An output is one stream of a child, read to its end whatever its length.
type output struct {
	kept headTail
	sink io.WriteCloser // kept, or a filter before it
	size int64
}

func (s *sandbox) newOutput(keep int64) *output {
	o := &output{kept: headTail{max: cmp.Or(keep, defaultOutput)}}
	if o.sink = &o.kept; s.cfg.Filter != nil {
		o.sink = s.cfg.Filter(&o.kept)
	}
	return o
}

func (o *output) Write(p []byte) (int, error) {
	o.size += int64(len(p))
	o.sink.Write(p) // keeps, and cannot fail
	return len(p), nil
}

// run starts a child and returns once nothing of it is left. The context of cmd
// is its time limit; cmd.ProcessState is set if it was started. The child runs
// nothing before held returns, term asks all its processes to end, and gone ends
// whatever is left and waits for it.
func (s *sandbox) run(cmd *exec.Cmd, keep int64, held func() error, term func(), gone func() error) (res tools.ExecResult) {
	stdout, stderr := s.newOutput(keep), s.newOutput(keep)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	free := make(chan struct{})
	cmd.Cancel = func() error {
		<-free
		res.TimedOut = true
		term()
		return nil
	}
	cmd.WaitDelay = endGrace // then it is killed, and what holds its output open is not waited for
	if err := cmd.Start(); err != nil {
		return tools.ExecResult{Err: err.Error()}
	}
	if err := held(); err != nil {
		res.Err = err.Error()
		cmd.Process.Kill()
	}
	close(free)
	cmd.Wait()
	if err := gone(); err != nil {
		res.Notes = append(res.Notes, err.Error())
	}
	stdout.sink.Close()
	stderr.sink.Close()
	res.Stdout, res.StdoutSize = stdout.kept.Bytes(), stdout.size
	res.Stderr, res.StderrSz = stderr.kept.Bytes(), stderr.size
	return res
}

// Exec starts a child and returns once it, and everything that it started, is
// gone. It must not be called from a goroutine that is locked to its thread and
// ends before it returns.
func (s *sandbox) Exec(ctx context.Context, c tools.Command) (res tools.ExecResult) {
	switch {
	case s.state.RefuseExec != "":
		return tools.ExecResult{Err: s.state.RefuseExec}
	case len(c.Argv) == 0:
		return tools.ExecResult{Err: "there is no program to run"}
	case ctx.Err() != nil:
		return tools.ExecResult{Err: "stopped before it started", Stopped: true}
	}
	limited := newClock(ctx, cmp.Or(c.Timeout, defaultTimeout))
	defer limited.end()
	if s.state.Boxed {
		res = s.execBox(limited, c)
	} else {
		res = s.execPlain(limited, c)
	}
	if res.TimedOut && ctx.Err() != nil {
		res.TimedOut, res.Stopped = false, true
	}
	return res
}

// A clock is a context with a time limit that can stand still.
type clock struct {
	context.Context
	end   context.CancelFunc
	mu    sync.Mutex
	timer *time.Timer
	until time.Time
	left  time.Duration // while it stands still
	holds int
}

func newClock(ctx context.Context, limit time.Duration) *clock {
	k := &clock{until: time.Now().Add(limit)}
	k.Context, k.end = context.WithCancel(ctx)
	k.timer = time.AfterFunc(limit, k.end)
	return k
}

// hold makes the time stand still until every hold is released.
func (k *clock) hold() (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holds++; k.holds == 1 {
		k.left = time.Until(k.until)
		k.timer.Stop()
	}
	return sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.holds--; k.holds == 0 {
			k.until = time.Now().Add(k.left)
			k.timer.Reset(k.left)
		}
	})
}

// execPlain runs a child without a box: in a session of its own, with the
// scrubbed environment, in the workspace.
func (s *sandbox) execPlain(ctx context.Context, c tools.Command) tools.ExecResult {
	argv := slices.Clone(c.Argv)
	if i := slices.Index(argv, tools.ScriptArg); i >= 0 {
		dir, err := os.MkdirTemp("", "picket-") // 0700
		if err == nil {
			defer os.RemoveAll(dir)
			argv[i] = filepath.Join(dir, "script")
			err = os.WriteFile(argv[i], c.Script, 0o400)
		}
		if err != nil {
			return tools.ExecResult{Err: "the script could not be handed over: " + err.Error()}
		}
	}
	program := s.lookPath(argv[0])
	if program == "" {
		return tools.ExecResult{Err: fmt.Sprintf("there is no program %q", argv[0])}
	}
	cmd, mark := exec.CommandContext(ctx, program), newMark()
	cmd.Args, cmd.Dir, cmd.SysProcAttr = argv, s.roots[0], ownSession()
	cmd.Env = s.environ(c.Env, "PICKET_SANDBOX=off", mark)
	res := s.run(cmd, c.OutputMax,
		func() error { return nil },
		func() { endGroup(cmd.Process.Pid, false) },
		func() error { endGroup(cmd.Process.Pid, true); return endStragglers(mark) })
	if st := cmd.ProcessState; st != nil {
		res.Started, res.Exit = true, st.ExitCode()
		if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() { // as a shell gives it
			res.Exit = 128 + int(ws.Signal())
		}
	}
	return res
}

// newMark is an entry of the environment by which the processes of one call are
// known.
func newMark() string { return "PICKET_CALL=" + rand.Text() }

// Children inherit what is named here and nothing else. Names compare byte for
// byte, on Windows without case.
var (
	inherited = []string{"PATH", "HOME", "LANG", "LANGUAGE", "TERM", "COLORTERM", "NO_COLOR", "TZ", "USER", "LOGNAME",
		"COLUMNS", "LINES", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}

	// Where a language keeps its tools: passed on if the child sees the place.
	inheritedPaths = []string{"SHELL", "TMPDIR", "GOROOT", "GOPATH", "GOMODCACHE", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME",
		"NVM_DIR", "PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "GEM_HOME", "DOTNET_ROOT", "ANDROID_HOME",
		"SSL_CERT_FILE", "SSL_CERT_DIR"}

	// Without these no Windows program starts.
	inheritedWindows = []string{"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERNAME",
		"USERPROFILE", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES",
		"PROGRAMFILES(X86)", "PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "OS"}
)

const (
	defaultPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
	boxHome     = "/tmp/home" // HOME in a box
)

// childEnv picks from an environment what children inherit.
func (s *sandbox) childEnv(environ []string) map[string]string {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		switch {
		case !ok, envCredential(name), envSteers(name), envHasUserInfo(name, value):
		case envListed(inherited, name), strings.HasPrefix(name, "LC_"), slices.Contains(s.cfg.PassEnv, name),
			runtime.GOOS == "windows" && envListed(inheritedWindows, name),
			envListed(inheritedPaths, name) && filepath.IsAbs(value) && s.see(value) != "":
			env[name] = value
		}
	}
	if runtime.GOOS == "windows" {
		return env
	}
	var path []string
	for _, dir := range filepath.SplitList(s.pathFirst + ":" + env["PATH"]) {
		if filepath.IsAbs(dir) { // another one would mean the workspace
			path = append(path, dir)
		}
	}
	if env["PATH"] = strings.Join(path, ":"); len(path) == 0 {
		env["PATH"] = defaultPath
	}
	if s.state.Boxed {
		env["HOME"], env["TMPDIR"] = boxHome, "/tmp"
	}
	return env
}

func envListed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(n string) bool {
		return n == name || runtime.GOOS == "windows" && strings.EqualFold(n, name)
	})
}

// envCredential reports whether a variable of this name may hold a credential,
// or lead to one.
func envCredential(name string) bool {
	name = strings.ToUpper(name)
	for _, part := range []string{"KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE", "SESSION"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return envPrefix(name, "PICKET_", "AWS_", "AZURE_", "GOOGLE_", "GH_", "GITHUB_", "NPM_") || name == "GPG_AGENT_INFO"
}

// envSteers reports whether a variable of this name makes programs run or load
// something, or read other settings.
func envSteers(name string) bool {
	name = strings.ToUpper(name)
	return envPrefix(name, "LD_", "DYLD_", "BASH_", "GIT_", "PYTHON", "NODE_", "PERL", "RUBY", "JAVA_TOOL_", "JDK_JAVA_",
		"_JAVA_", "GCONV_", "GLIBC_", "MALLOC_", "DBUS_") ||
		slices.Contains([]string{"ENV", "IFS", "CDPATH", "PS4", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "LESSOPEN", "LESSCLOSE",
			"PAGER", "EDITOR", "VISUAL", "BROWSER", "ZDOTDIR", "GOFLAGS", "RUSTC_WRAPPER", "MAKEFLAGS"}, name)
}

func envPrefix(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// envHasUserInfo reports whether a value holds a URL with a user or password.
// A proxy may be given without its scheme.
func envHasUserInfo(name, value string) bool {
	if _, rest, ok := strings.Cut(value, "://"); ok && strings.Contains(rest, "@") {
		return true
	}
	return strings.HasSuffix(strings.ToLower(name), "_proxy") && strings.Contains(value, "@")
}
