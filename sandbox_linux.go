package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"picket/tools"
)

const (
	boxScript = "/run/script" // where a script is read
	boxPins   = "/run/pins"   // a folder on PATH
	tmpSize   = 2 << 30       // of the box's /tmp, which is memory
)

// box is what a sandbox knows of bubblewrap and of the file system it makes.
type box struct {
	bwrap   string
	without []string               // options that this bubblewrap or this machine refuses
	filter  []byte                 // of system calls
	base    mountSet               // what every call sees
	links   map[string]string      // the usual links in the root folder, and their targets
	etc     []string               // what root could read in /etc and a plain user could not
	self    string                 // picket's own program file, if tools could write it; "" if not
	devices map[string]fs.FileMode // of root, whose calls could change them
}

// findBox makes a box with the very arguments of a call, doing without what
// this machine cannot give, and says what came of it.
func (s *sandbox) findBox() {
	st := &s.state
	if s.cfg.Mode == "off" {
		*st = boxState{Line: "off: sandbox.mode is off", Hint: `set "mode" in "sandbox" to "auto"`}
		return
	}
	why, hint := s.probe()
	if st.Hint = hint; !st.Boxed {
		st.Line = "off: " + why
		if s.cfg.Mode == "bwrap" {
			st.RefuseExec = "sandbox.mode is bwrap, and there is no sandbox: " + why
		}
		return
	}
	st.Line = "bubblewrap"
	if !st.NetBlocked {
		st.Line += ", but the network cannot be blocked (" + why + ")"
	}
	filtered, userns := !slices.Contains(s.box.without, "--seccomp"), !slices.Contains(s.box.without, "--disable-userns")
	if !filtered {
		st.Line += ", system calls not filtered"
	}
	if !userns {
		st.Line += map[bool]string{true: ", further user namespaces refused by the filter alone", false: ", further user namespaces not disabled"}[filtered]
	}
	if os.Geteuid() == 0 {
		st.Line += ", as root: the number of processes is not limited"
		if st.Hint == "" {
			st.Hint = "run picket as a plain user"
		}
	}
}

// probe sets what the box can do. If something is missing it says why, and what
// mends it.
func (s *sandbox) probe() (why, hint string) {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		if inContainer() {
			return "bubblewrap is not installed in this container", "install bubblewrap in the image; " + containerHint
		}
		return "bubblewrap is not installed", "install it: apt install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap"
	}
	if s.box.bwrap, err = filepath.EvalSymlinks(bwrap); err != nil || firstWithin(s.box.bwrap, s.roots) != "" {
		return fmt.Sprintf("%q lies where tools can write", bwrap), "take that folder off PATH"
	}
	s.layout()
	attempts := []string{"", "--disable-userns", "--disable-userns --size", // bubblewrap before 0.8, before 0.7
		"--unshare-net", "--unshare-net --disable-userns", "--unshare-net --disable-userns --size"}
	for _, without := range attempts { // a box without the filter comes last, and is better than none
		attempts = append(attempts, without+" --seccomp")
	}
	if s.box.filter = syscallFilter(runtime.GOARCH, s.cfg.Debuggers, os.Geteuid() == 0); s.box.filter == nil {
		attempts = attempts[len(attempts)/2:]
	}
	said := ""
	for _, without := range attempts {
		s.box.without = strings.Fields(without)
		ctx, cancel := context.WithTimeout(context.Background(), boxStart)
		res := s.execBox(ctx, tools.Command{Argv: []string{"/bin/sh", "-c", ":"}})
		cancel()
		if s.state.Boxed = res.Started && res.Exit == 0; s.state.Boxed {
			if s.state.NetBlocked = !slices.Contains(s.box.without, "--unshare-net"); s.state.NetBlocked {
				return "", ""
			}
			break
		}
		if said = strings.TrimPrefix(res.Err, "the command did not run: "); res.TimedOut {
			break
		}
	}
	return s.diagnose(said)
}

const containerHint = "a container must allow namespaces: docker run --security-opt seccomp=unconfined " +
	"--security-opt apparmor=unconfined --security-opt systempaths=unconfined"

// diagnose tells the known causes apart by what bubblewrap printed and what the
// kernel says.
func (s *sandbox) diagnose(said string) (why, hint string) {
	profile := fmt.Sprintf(`printf 'abi <abi/4.0>,\nprofile bwrap %s flags=(unconfined) {\n  userns,\n}\n' | `+
		"sudo tee /etc/apparmor.d/bwrap && sudo systemctl reload apparmor", s.box.bwrap)
	restricted := strings.TrimSpace(readSmall("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")) == "1"
	switch {
	case strings.Contains(said, "setting up uid map: Permission denied"):
		return "AppArmor blocks user namespaces (" + said + ")", profile
	case restricted && os.Geteuid() != 0, strings.Contains(said, "loopback: Failed RTM_NEWADDR"):
		return "AppArmor takes away what a user namespace may do (" + said + ")", profile
	case strings.Contains(said, "nknown option"):
		return "bubblewrap is too old (" + said + ")", "install bubblewrap 0.8 or later"
	case inContainer():
		return "this container does not allow it (" + said + ")", containerHint
	}
	return "bubblewrap failed: " + said, "run it by hand to see why: bwrap --ro-bind / / --unshare-all true"
}

var containerMarks = []string{"/.dockerenv", "/run/.containerenv"}

func inContainer() bool {
	return os.Getenv("container") != "" || // set by systemd-nspawn, podman and LXC
		slices.ContainsFunc(containerMarks, func(p string) bool { _, err := os.Lstat(p); return err == nil })
}

// layout collects what every box of this sandbox sees.
func (s *sandbox) layout() {
	b := &s.box
	b.base, b.links = mountSet{}, map[string]string{}
	for _, dir := range []string{"/usr", "/etc", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || within(s.home, real) {
			continue
		}
		if target, err := os.Readlink(dir); err == nil {
			b.links[dir] = target
		}
		if _, ok := b.base.above(real); !ok {
			b.base.add(mount{real, real, mountRO})
		}
	}
	for _, p := range s.roots {
		b.base.add(mount{p, p, mountBind})
	}
	for _, p := range s.readOnly {
		b.base.add(mount{p, p, mountRO})
	}
	s.addPython()
	if self, err := os.Executable(); err == nil && firstWithin(resolveExisting(self), s.roots) != "" {
		b.self = resolveExisting(self)
	}
	if os.Geteuid() == 0 {
		b.devices = readDevices()
		b.etc = []string{"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssh", "/etc/ssl/private"}
		filepath.WalkDir("/etc", func(p string, e fs.DirEntry, err error) error {
			if fi, err := os.Lstat(p); err == nil && (fi.Mode()&4 == 0 || fi.IsDir() && fi.Mode()&1 == 0) {
				b.etc = append(b.etc, p)
			}
			return nil
		})
	}
}

// addPython makes readable what the first python3 on PATH needs below home: each
// installation or virtual environment that its links lead through.
func (s *sandbox) addPython() {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		python, first := filepath.Join(dir, "python3"), ""
		if root := filepath.Dir(dir); filepath.Base(dir) == "shims" { // pyenv
			version, _, _ := strings.Cut(readSmall(filepath.Join(root, "version")), "\n")
			first = filepath.Join(root, "versions", strings.TrimSpace(version), "bin")
			python = filepath.Join(first, "python3")
		}
		if _, err := os.Stat(python); err != nil || !filepath.IsAbs(dir) {
			continue
		}
		s.pathFirst = first
		for err := error(nil); err == nil; { // Stat found it, so the links have an end
			prefix := filepath.Dir(filepath.Dir(python))
			real, _ := filepath.EvalSymlinks(prefix)
			lib, _ := filepath.Glob(filepath.Join(real, "lib", "python3*", "os.py"))
			_, venv := os.Lstat(filepath.Join(real, "pyvenv.cfg"))
			if (venv == nil || len(lib) > 0) && within(real, s.home) && !within(s.home, real) &&
				firstWithin(real, s.roots) == "" && firstWithin(prefix, s.roots) == "" {
				s.box.base.add(mount{prefix, real, mountRO})
				s.box.base.add(mount{real, real, mountRO})
			}
			var target string
			if target, err = os.Readlink(python); !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(python), target)
			}
			python = target
		}
		return
	}
}

// readDevices returns the modes of the devices that a box shares with the machine.
// As root a call could change them: bubblewrap has no read-only mount for devices.
func readDevices() map[string]fs.FileMode {
	modes := map[string]fs.FileMode{}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if fi, err := os.Stat("/dev/" + name); err == nil {
			modes["/dev/"+name] = fi.Mode()
		}
	}
	return modes
}

// restoreDevices puts the modes back and says so.
func (b *box) restoreDevices() (notes []string) {
	for p, mode := range b.devices {
		if fi, err := os.Stat(p); err == nil && fi.Mode() != mode {
			notes = append(notes, fmt.Sprintf("the mode of %s was changed; putting it back: %v", p, cmp.Or(os.Chmod(p, mode), errors.New("done"))))
		}
	}
	return notes
}

func readSmall(p string) string {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 4<<10))
	return string(b)
}

// see resolves a path as a child sees it, "" if the child does not.
func (s *sandbox) see(p string) string {
	if !s.state.Boxed {
		r, _ := filepath.EvalSymlinks(p)
		return r
	}
	at, rest, hops := "/", strings.Split(p, "/"), 0
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(next)
		if err != nil {
			at = next
			continue
		}
		_, usual := s.box.links[next]
		if hops++; hops > 40 || !usual && !s.bound(next) {
			return ""
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	if _, err := os.Lstat(at); err != nil || !s.bound(at) {
		return ""
	}
	return at
}

func (s *sandbox) bound(p string) bool {
	_, ok := s.box.base.above(filepath.Join(p, "-"))
	return ok && (firstWithin(p, s.hide) == "" || within(p, s.cfg.Skills))
}

// mounts is what the box of one call sees.
func (s *sandbox) mounts(c tools.Command, repos []gitRepo) ([]mount, error) {
	m := maps.Clone(s.box.base)
	for _, p := range s.box.etc {
		if fi, err := os.Lstat(p); err == nil && fi.IsDir() {
			m.add(mount{p, p, mountHidden})
		} else if err == nil {
			m.add(mount{p, os.DevNull, mountNull})
		}
	}
	gitMounts(m, c, repos)
	if _, err := os.Lstat(s.box.self); err == nil { // what the owner runs next, outside the box
		m.add(mount{s.box.self, s.box.self, mountRO})
	}
	if c.Network && !s.state.NetProxied || slices.Contains(s.box.without, "--unshare-net") {
		m.addResolver("/etc/resolv.conf")
	}
	for _, h := range s.hide { // after all that could uncover it
		above, ok := m.above(h)
		maps.DeleteFunc(m, func(dst string, _ mount) bool { return within(dst, h) })
		if _, err := os.Lstat(h); ok && err == nil {
			m.add(mount{h, h, mountHidden})
		} else if ok && above.kind == mountBind {
			return nil, fmt.Errorf("%q does not exist, so it cannot be hidden", h)
		}
	}
	if fi, err := os.Lstat(s.cfg.Skills); err == nil && fi.IsDir() {
		m.add(mount{s.cfg.Skills, s.cfg.Skills, mountShown})
	}
	return m.settle()
}

// homeLinks makes what the settings admit below home seen below the box's HOME
// too, so that a program that looks for its cache there finds it.
func (s *sandbox) homeLinks() map[string]string {
	links, admitted := map[string]string{}, slices.Concat(s.roots[1:], s.readOnly)
	for _, p := range admitted {
		if rel, err := filepath.Rel(s.home, p); err == nil && filepath.IsLocal(rel) && firstWithin(filepath.Dir(p), admitted) == "" {
			links[filepath.Join(boxHome, rel)] = p
		}
	}
	return links
}

// bwrapArgs is the argument list of bwrap(1). Later mounts cover earlier ones.
// Descriptor 3 is for what bubblewrap reports, 4 holds the box; more are options
// that name others.
func (s *sandbox) bwrapArgs(c tools.Command, mounts []mount, script int, more ...string) []string {
	var a []string
	add := func(args ...string) { a = append(a, args...) }
	with := func(option string) bool { return !slices.Contains(s.box.without, option) }
	tmpfs := func(perms string, size int, dst string) {
		if add("--perms", perms); with("--size") {
			add("--size", strconv.Itoa(size))
		}
		add("--tmpfs", dst)
	}
	add("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
	if (!c.Network || s.state.NetProxied) && with("--unshare-net") {
		add("--unshare-net")
	}
	if with("--disable-userns") {
		add("--disable-userns")
	}
	add("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--json-status-fd", "3", "--block-fd", "4")
	add(more...)
	// As root bubblewrap leaves /proc/sys writable, core_pattern included. Process 1
	// is bubblewrap itself: its "exe" leads to the program file outside, and its
	// owner could change the mode of that.
	add("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")
	tmpfs("0555", 4096, "/proc/1")
	add("--dev", "/dev")
	tmpfs("1777", tmpSize/4, "/dev/shm")
	tmpfs("1777", tmpSize, "/tmp")
	add("--perms", "0700", "--dir", boxHome)
	for _, m := range mounts {
		switch m.kind {
		case mountBind:
			add("--bind", m.src, m.dst)
		case mountHidden:
			tmpfs("0555", 4096, m.dst)
		default:
			add("--ro-bind", m.src, m.dst)
		}
	}
	for _, links := range []map[string]string{s.box.links, s.homeLinks()} {
		for _, name := range slices.Sorted(maps.Keys(links)) {
			add("--symlink", links[name], name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pins)) {
		add("--symlink", c.Pins[name], filepath.Join(boxPins, name))
	}
	argv := slices.Clone(c.Argv)
	if i := slices.Index(argv, tools.ScriptArg); i >= 0 {
		argv[i] = boxScript
		add("--perms", "0444", "--ro-bind-data", strconv.Itoa(script), boxScript)
	}
	for _, m := range mounts {
		if m.kind == mountHidden {
			add("--remount-ro", m.dst)
		}
	}
	add("--remount-ro", "/proc/1", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", s.roots[0], "--")
	return append(a, argv...)
}

// execBox runs one call in a box of its own.
func (s *sandbox) execBox(ctx context.Context, c tools.Command) (res tools.ExecResult) {
	written := c.GitWrite || c.GitConfig
	h := holder{cmd: exec.CommandContext(ctx, s.box.bwrap), mark: newMark()}
	if !slices.Contains(s.box.without, "--seccomp") {
		h.filter = s.box.filter
	}
	defer h.close()
	repos, err := s.findRepos()
	var mounts []mount
	script := 0
	if err == nil {
		mounts, err = s.mounts(c, repos)
	}
	if err == nil {
		script, err = h.open(c)
	}
	var network *netProxy
	if k, ok := ctx.(*clock); ok && err == nil && c.Network && s.state.NetProxied {
		var m mount
		if network, m, err = s.openProxy(k, &h, &c); err == nil {
			mounts = append(mounts, m)
			defer network.close()
		}
	}
	if err != nil {
		return tools.ExecResult{Err: "the sandbox cannot be made: " + err.Error()}
	}
	before := gitState(repos, written)
	h.mounts = mounts
	h.cmd.Args = append([]string{"bwrap"}, s.bwrapArgs(c, mounts, script, h.options...)...)
	h.cmd.SysProcAttr = ownSession() // a Ctrl-C in the terminal is picket's to handle
	h.cmd.Dir, h.cmd.Env = "/", s.environ(c.Env, append(network.environ(), "PICKET_SANDBOX=bwrap", h.mark)...)
	if len(c.Pins) > 0 {
		h.cmd.Env = append(h.cmd.Env, "PATH="+boxPins+":"+s.env["PATH"])
	}
	res = s.run(h.cmd, c.OutputMax, func() error { return h.held(ctx) }, h.term, h.gone)
	h.result(&res)
	res.Net = network.close()
	repos, _ = s.findRepos() // if it fails, all of them count as changed
	res.Notes = append(append(res.Notes, gitNotes(before, gitState(repos, written))...), s.box.restoreDevices()...)
	return res
}

// A holder has what a box is held by until its limits are set, ended, and asked
// how it ended.
//
// It ends with picket, too, whenever that is killed. Before it is let run, the
// gate does it: where bubblewrap reads the filter, it finds an error. Later
// --die-with-parent does, and in the moment before the kernel was asked for that
// in the box, the leash.
type holder struct {
	cmd           *exec.Cmd // bubblewrap
	mark          string
	options       []string // of bubblewrap, with the descriptors that they name
	filter        []byte   // of system calls; nil for none
	status, block *os.File
	leash         [2]*os.File
	gate          *os.File // takes the filter
	mounts        []mount
	events        *json.Decoder
	first         *os.Process // in the box; nil before it is known
}

// open makes what the box is held by. The first two descriptors are always those
// that bwrapArgs names.
func (h *holder) open(c tools.Command) (script int, err error) {
	join := func(make func() (*os.File, *os.File, error)) (a, b *os.File) {
		if err == nil {
			a, b, err = make()
		}
		return a, b
	}
	var status, block, gate *os.File
	h.status, status = join(os.Pipe)
	h.block, block = join(socketPair)
	h.leash[0], h.leash[1] = join(os.Pipe)
	if err == nil { // with a reader of its own bubblewrap does not die of SIGPIPE, and leave a child behind
		defer status.Close()
		status, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", status.Fd()), os.O_RDWR, 0)
	}
	h.give(status)
	h.give(block)
	h.options = []string{"--sync-fd", strconv.Itoa(h.give(h.leash[0]))} // the command does not get it
	if h.filter != nil {
		h.gate, gate = join(socketPair)
		h.options = append(h.options, "--seccomp", strconv.Itoa(h.give(gate)))
		if err == nil {
			_, err = gate.Write([]byte{0}) // never read: so the other side sees an error, not the end, if picket is gone
		}
	}
	h.events = json.NewDecoder(io.LimitReader(h.status, 64<<10))
	if err == nil && slices.Contains(c.Argv, tools.ScriptArg) {
		script, err = h.giveBytes(c.Script)
	}
	return script, err
}

func socketPair() (a, b *os.File, err error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	syscall.SetNonblock(ends[0], true) // for deadlines; the other end is for bubblewrap
	return os.NewFile(uintptr(ends[0]), "socket"), os.NewFile(uintptr(ends[1]), "socket"), nil
}

// give passes a file to bubblewrap and returns its descriptor there.
func (h *holder) give(f *os.File) int {
	h.cmd.ExtraFiles = append(h.cmd.ExtraFiles, f)
	return 2 + len(h.cmd.ExtraFiles)
}

// giveBytes passes what bubblewrap reads from a pipe to its end.
func (h *holder) giveBytes(b []byte) (int, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	go func() {
		w.Write(b) // fails if bubblewrap does, which says why itself
		w.Close()
	}()
	return h.give(r), nil
}

// boxStart is how long bubblewrap may take to make a box.
var boxStart = 10 * time.Second

var errNoBox = errors.New("bubblewrap made no box")

// held waits for the box, sets its limits and lets it run. The first process
// of the box waits on the block descriptor once everything is mounted.
func (h *holder) held(ctx context.Context) error {
	for _, f := range h.cmd.ExtraFiles {
		if f != h.leash[0] {
			f.Close()
		}
	}
	limit := func(end time.Time) {
		h.status.SetReadDeadline(end)
		h.block.SetReadDeadline(end)
	}
	limit(time.Now().Add(boxStart))
	defer context.AfterFunc(ctx, func() { limit(time.Unix(1, 0)) })()
	var said struct {
		Pid int `json:"child-pid"`
	}
	if err := h.events.Decode(&said); err != nil || said.Pid <= 1 {
		return errNoBox
	}
	// What is limited and ended below must be bubblewrap's child, whatever was
	// said: nothing else may come to harm. The handle comes first, and its process
	// is still there after that, so its number means no other one.
	h.first, _ = os.FindProcess(said.Pid) // never fails
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", said.Pid))
	child := strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", h.cmd.Process.Pid))
	if !child || !h.lives(0) {
		h.first = nil
		return errNoBox
	}
	for resource, limit := range limits {
		if err := setLimit(said.Pid, resource, limit); err != nil {
			return fmt.Errorf("prlimit: %v", err)
		}
	}
	os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", said.Pid), []byte("1000"), 0) // it dies before others
	// When picket, the only writer, is gone, this signal goes to the box's group.
	for _, set := range [][2]int{{syscall.F_SETSIG, int(syscall.SIGKILL)}, {syscall.F_SETOWN, -said.Pid}, {syscall.F_SETFL, syscall.O_ASYNC}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, h.leash[0].Fd(), uintptr(set[0]), uintptr(set[1])); errno != 0 {
			return fmt.Errorf("fcntl: %v", errno)
		}
	}
	_, err := h.block.Write([]byte{1})
	if err == nil {
		h.block.Read(make([]byte, 1)) // ends when the box's first process, done with the mounts, has closed it
		err = checkMounts(said.Pid, h.mounts)
	}
	if err == nil && h.gate != nil {
		_, err = h.gate.Write(h.filter)
		syscall.Shutdown(int(h.gate.Fd()), syscall.SHUT_WR)
	}
	return err
}

// lives reports whether the first process of the box, which goes last, is there
// after a while: its handle is readable once it is gone (pidfd_open(2)). One
// without a handle counts as dead.
func (h *holder) lives(wait time.Duration) (yes bool) {
	h.first.WithHandle(func(fd uintptr) {
		p := struct {
			fd              int32
			events, revents int16
		}{int32(fd), 1, 0} // POLLIN
		errno := syscall.EINTR
		for end := time.Now().Add(wait); errno == syscall.EINTR; {
			ts := syscall.NsecToTimespec(max(0, int64(time.Until(end))))
			_, _, errno = syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		}
		yes = p.revents == 0
	})
	return yes
}

func (h *holder) term() {
	if h.first != nil && h.lives(0) {
		syscall.Kill(-h.first.Pid, syscall.SIGTERM) // the box's session; its first process ignores it
		h.lives(endGrace)
		h.first.Kill()
	}
}

// gone waits until the box is empty: bubblewrap itself ends before that.
func (h *holder) gone() error {
	if h.first == nil {
		return endStragglers(h.mark) // bubblewrap may have got as far as a child
	}
	h.first.Kill()
	if h.lives(30 * time.Second) {
		return errAlive
	}
	h.first.Wait() // ours to reap if bubblewrap ended before it and orphans come to picket
	h.first.Release()
	return nil
}

func (h *holder) close() {
	for _, f := range append(h.cmd.ExtraFiles, h.status, h.block, h.gate, h.leash[1]) {
		f.Close()
	}
}

// result reads how the box ended. Bubblewrap reports an exit status only for a
// command that was started; its own failures look the same as one that ends
// with 1.
func (h *holder) result(res *tools.ExecResult) {
	var last struct {
		Exit *int `json:"exit-code"`
	}
	if res.Err == "" { // it was let run
		h.status.SetReadDeadline(time.Now().Add(endGrace)) // bubblewrap is gone, and with it the other end
		if h.events.Decode(&last) == nil && last.Exit != nil {
			res.Started, res.Exit = true, *last.Exit
			return
		}
		if h.cmd.ProcessState.ExitCode() < 0 { // how far the command got is not known
			res.Started, res.Exit, res.Err = true, 128+int(syscall.SIGKILL), "the sandbox was ended from outside"
			return
		}
	}
	said := strings.TrimSpace(string(res.Stderr))
	if res.TimedOut {
		said = "ended before it started"
	}
	res.Err = "the command did not run: " + cmp.Or(strings.TrimPrefix(said, "bwrap: "), res.Err, errNoBox.Error())
	res.Stdout, res.Stderr, res.StdoutSize, res.StderrSz = nil, nil, 0, 0
}

// The limits of each process in a box, and of the box for processes: in a user
// namespace of its own they are counted there. They are not enforced for root.
var limits = map[int]uint64{
	6:                     512, // RLIMIT_NPROC
	syscall.RLIMIT_FSIZE:  4 << 30,
	syscall.RLIMIT_CORE:   1,   // 0 would still start a core handler
	syscall.RLIMIT_CPU:    600, // seconds
	syscall.RLIMIT_NOFILE: 4096,
}

// setLimit limits a child of picket, which has picket's own limits so far.
func setLimit(pid, resource int, limit uint64) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(resource, &l); err != nil {
		return err
	}
	l.Max = min(limit, l.Max)
	l.Cur = l.Max
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), uintptr(resource), uintptr(unsafe.Pointer(&l)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

var errAlive = errors.New("processes of this call could not be ended")

// endStragglers ends every process that has the mark in its environment. One
// that cleared it gets away: only a box can hold that.
func endStragglers(mark string) error {
	for range 50 {
		found := false
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			p, err := os.FindProcess(pid) // a handle, before it is looked at
			if err != nil {
				continue
			}
			env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
			if slices.Contains(strings.Split(string(env), "\x00"), mark) {
				found = true
				p.Kill()
			}
			p.Release()
		}
		if !found {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errAlive
}
