package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"picket/tools"
)

// boxHome is HOME in the box, boxScript where a script is read.
const (
	boxHome   = "/tmp/home"
	boxScript = "/run/script"
)

// box is what a sandbox knows of bubblewrap and of the file system it makes.
type box struct {
	bwrap   string
	without map[string]bool // options that this bubblewrap or this machine refuses
	base    mountSet        // what every call sees
	links   [][2]string     // target and name of the usual links in the root folder
	etc     []string        // what root could read in /etc and a plain user could not
	paths   map[string]string

	// Every box that runs at the same time protects the same repositories, or
	// one could move what another has yet to mount.
	mu      sync.Mutex
	running int
	repos   []gitRepo
	indexes sync.Map // submodules by the index that names them
}

// mapPath replaces the folder on PATH of a Python that is started through a
// link or shim outside the box.
func (b *box) mapPath(dir string) string {
	if to, ok := b.paths[dir]; ok {
		return to
	}
	return dir
}

// layout collects what every box of this sandbox sees.
func (s *sandbox) layout() {
	b := &s.box
	b.base, b.paths = mountSet{}, map[string]string{}
	for _, dir := range []string{"/usr", "/etc", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue
		}
		if target, err := os.Readlink(dir); err == nil {
			b.links = append(b.links, [2]string{target, dir})
		}
		if _, ok := b.base.above(real); !ok && s.tooWide(filepath.Join(real, "-")) == "" {
			b.base.add(mount{dst: real, src: real, kind: mountRO})
		}
	}
	for _, p := range s.roots {
		b.base.add(mount{dst: p, src: p})
	}
	for _, p := range s.readOnly {
		b.base.add(mount{dst: p, src: p, kind: mountRO})
	}
	s.addPython()
	if os.Geteuid() == 0 {
		b.etc = []string{"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssh", "/etc/ssl/private"}
		filepath.WalkDir("/etc", func(p string, e os.DirEntry, err error) error {
			fi, statErr := os.Lstat(p)
			if err != nil || statErr != nil || fi.Mode()&os.ModeSymlink != 0 {
				return nil
			}
			if need := fi.Mode().Perm() & 5; fi.IsDir() && need == 5 || !fi.IsDir() && need&4 != 0 {
				return nil
			}
			b.etc = append(b.etc, p)
			if fi.IsDir() {
				return filepath.SkipDir
			}
			return nil
		})
	}
}

// addPython makes readable what the first python3 on PATH needs below home, and
// notes where on PATH its programs are. Each folder that its links lead through
// counts only if it is a Python installation or a virtual environment.
func (s *sandbox) addPython() {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		python := filepath.Join(dir, "python3")
		if _, err := exec.LookPath(python); err != nil || !filepath.IsAbs(dir) {
			continue
		}
		if root := filepath.Dir(dir); filepath.Base(dir) == "shims" { // pyenv
			version, _, _ := strings.Cut(readSmall(filepath.Join(root, "version")), "\n")
			python = filepath.Join(root, "versions", strings.TrimSpace(version), "bin", "python3")
		}
		if _, err := os.Stat(python); err != nil {
			continue
		}
		for hop := python; ; {
			p := filepath.Dir(filepath.Dir(hop))
			real, err := filepath.EvalSymlinks(p)
			lib, _ := filepath.Glob(filepath.Join(real, "lib", "python3*", "os.py"))
			_, venv := os.Lstat(filepath.Join(real, "pyvenv.cfg"))
			if err == nil && (venv == nil || len(lib) > 0) && firstWithin(real, []string{s.home}) != "" && s.tooWide(real) == "" &&
				firstWithin(real, slices.Concat(s.hide, s.roots)) == "" {
				s.box.base.add(mount{dst: p, src: real, kind: mountRO})
				s.box.base.add(mount{dst: real, src: real, kind: mountRO})
				if hop == python {
					s.box.paths[dir] = filepath.Join(p, "bin")
				}
			}
			target, err := os.Readlink(hop)
			if err != nil { // the file itself: Stat found it, so there is an end
				return
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(hop), target)
			}
			hop = target
		}
	}
}

func readSmall(p string) string {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return ""
	}
	return string(b)
}

// see resolves a path as a child sees it, false if the child does not.
func (s *sandbox) see(p string) (string, bool) {
	if !s.state.Boxed {
		r, err := filepath.EvalSymlinks(p)
		return r, err == nil
	}
	at, rest, hops := "/", strings.Split(filepath.Clean(p), "/"), 0
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		fi, err := os.Lstat(next)
		if err != nil {
			return "", false
		}
		if fi.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		usual := slices.ContainsFunc(s.box.links, func(l [2]string) bool { return l[1] == next })
		target, err := os.Readlink(next)
		if hops++; err != nil || hops > 40 || !usual && !s.bound(next) {
			return "", false
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, s.bound(at)
}

func (s *sandbox) bound(p string) bool {
	_, own := s.box.base[p]
	_, above := s.box.base.above(p)
	return (own || above) && (firstWithin(p, s.hide) == "" || s.cfg.Skills != "" && firstWithin(p, []string{s.cfg.Skills}) != "")
}

// mounts is what the box of one call sees.
func (s *sandbox) mounts(c tools.Command, repos []gitRepo) ([]mount, error) {
	m := maps.Clone(s.box.base)
	for _, p := range s.box.etc {
		if fi, err := os.Lstat(p); err != nil {
			continue
		} else if fi.IsDir() {
			m.add(mount{dst: p, src: p, kind: mountHidden})
		} else {
			m.add(mount{dst: p, src: os.DevNull, kind: mountNull})
		}
	}
	gitMounts(m, c, repos)
	if c.Network || s.box.without["--unshare-net"] {
		m.addResolver("/etc/resolv.conf")
	}
	for _, h := range s.hide { // after all that could uncover it
		above, ok := m.above(h)
		maps.DeleteFunc(m, func(dst string, _ mount) bool { return firstWithin(dst, []string{h}) != "" })
		switch _, err := os.Lstat(h); {
		case !ok || err != nil && above.kind != mountBind:
		case err != nil:
			return nil, fmt.Errorf("%q does not exist, so it cannot be hidden", h)
		default:
			m.add(mount{dst: h, src: h, kind: mountHidden})
		}
	}
	if p := s.cfg.Skills; p != "" {
		if fi, err := os.Lstat(p); err == nil && fi.IsDir() {
			m.add(mount{dst: p, src: p, kind: mountRO, shown: true})
		}
	}
	return m.settle()
}

// A mountKind says what stands at a place, the stricter the higher.
type mountKind int

const (
	mountBind mountKind = iota // as on the host, writable
	mountRO
	mountHidden // an empty folder
	mountNull   // a file that cannot be opened
)

type mount struct {
	dst, src string
	kind     mountKind
	shown    bool // also inside a hidden folder
}

// A mountSet holds one mount for each place, by place.
type mountSet map[string]mount

// add puts a mount at its place, unless what is there is stricter.
func (m mountSet) add(n mount) {
	if old, ok := m[n.dst]; !ok || n.kind > old.kind {
		m[n.dst] = n
	}
}

// above returns the mount in which a place lies.
func (m mountSet) above(p string) (mount, bool) {
	for p != "/" {
		p = filepath.Dir(p)
		if n, ok := m[p]; ok {
			return n, true
		}
	}
	return mount{}, false
}

// addResolver makes readable what the resolver's settings lead to beyond /etc: the
// file alone, since a service's socket beside it could be connected to.
func (m mountSet) addResolver(conf string) {
	at := conf
	src, err := filepath.EvalSymlinks(conf)
	for range 10 {
		target, linkErr := os.Readlink(at)
		if err != nil || linkErr != nil {
			return
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(at), target)
		}
		if at = target; firstWithin(at, []string{"/etc", "/usr"}) == "" {
			m.add(mount{dst: at, src: src, kind: mountRO})
			return
		}
	}
}

// settle returns the mounts in the order in which they can be made: it drops
// what a hidden or read-only folder covers, and makes every folder between a
// writable root and a protected place a mount of its own, because the parent
// of a mount could be renamed and another put in its place. Every component is
// checked: bubblewrap would follow a link, and create what is missing, on the
// host.
func (m mountSet) settle() ([]mount, error) {
	for _, dst := range slices.Sorted(maps.Keys(m)) {
		n := m[dst]
		above, ok := m.above(dst)
		switch {
		case !ok:
			continue
		case above.kind == mountHidden && !n.shown, above.kind == mountRO && n.kind == mountRO:
			delete(m, dst)
			continue
		}
		for p := dst; p != above.dst && (n.dst == n.src || n.kind == mountNull); p = filepath.Dir(p) {
			fi, err := os.Lstat(p)
			if err != nil || fi.Mode()&os.ModeSymlink != 0 || p != dst && !fi.IsDir() {
				return nil, fmt.Errorf("the sandbox cannot protect %q: %q is missing or a link", dst, p)
			}
			if above.kind == mountBind && n.kind != mountBind {
				m.add(mount{dst: p, src: p})
			}
		}
	}
	var out []mount
	for _, dst := range slices.Sorted(maps.Keys(m)) { // a folder sorts before what it holds
		out = append(out, m[dst])
	}
	return out, nil
}

// A boxPlan is everything that the argument list of a box depends on.
type boxPlan struct {
	without       map[string]bool
	network       bool
	tmpBytes      int64
	links         [][2]string // target and name
	mounts        []mount
	shares        [][2]string // path below HOME, and where it leads
	status, block string      // descriptors
	script        string      // descriptor, "" for none
	dir           string
	argv          []string
}

// bwrapArgs is the argument list of bwrap(1). Later mounts cover earlier ones.
func bwrapArgs(p boxPlan) []string {
	var a []string
	add := func(args ...string) { a = append(a, args...) }
	tmpfs := func(perms string, size int64, dst string) {
		if add("--perms", perms); !p.without["--size"] {
			add("--size", strconv.FormatInt(size, 10))
		}
		add("--tmpfs", dst)
	}
	add("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
	if !p.network && !p.without["--unshare-net"] {
		add("--unshare-net")
	}
	if !p.without["--disable-userns"] {
		add("--disable-userns")
	}
	add("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--json-status-fd", p.status, "--block-fd", p.block)
	for _, l := range p.links {
		add("--symlink", l[0], l[1])
	}
	// As root bubblewrap leaves /proc/sys writable, core_pattern included.
	add("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev")
	tmpfs("1777", p.tmpBytes/4, "/dev/shm")
	tmpfs("1777", p.tmpBytes, "/tmp")
	add("--perms", "0700", "--dir", boxHome)
	for _, m := range p.mounts {
		switch m.kind {
		case mountBind:
			add("--bind", m.src, m.dst)
		case mountHidden:
			tmpfs("0555", 4096, m.dst)
		default:
			add("--ro-bind", m.src, m.dst)
		}
	}
	for i, l := range p.shares {
		if !slices.ContainsFunc(p.shares[:i], func(o [2]string) bool { return firstWithin("/"+l[0], []string{"/" + o[0]}) != "" }) {
			add("--symlink", l[1], filepath.Join(boxHome, l[0]))
		}
	}
	if p.script != "" {
		add("--perms", "0444", "--ro-bind-data", p.script, boxScript)
	}
	for _, m := range p.mounts {
		if m.kind == mountHidden {
			add("--remount-ro", m.dst)
		}
	}
	add("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", p.dir, "--")
	return append(a, p.argv...)
}

// tmpBytes is the size of a box's /tmp, which is memory.
func tmpBytes() int64 {
	var si syscall.Sysinfo_t
	if syscall.Sysinfo(&si) != nil {
		return 1 << 30
	}
	return min(max(int64(si.Totalram)*int64(si.Unit)/4, 256<<20), 4<<30)
}

// execBox runs one call in a box of its own.
func (s *sandbox) execBox(ctx context.Context, c tools.Command) (res tools.ExecResult) {
	repos := s.enter()
	defer s.leave()
	plan := boxPlan{without: s.box.without, network: c.Network, tmpBytes: tmpBytes(), links: s.box.links,
		shares: s.shares, dir: s.roots[0], argv: slices.Clone(c.Argv)}
	var err error
	if plan.mounts, err = s.mounts(c, repos); err != nil {
		return tools.ExecResult{Err: err.Error()}
	}
	var before map[string]string
	if c.GitWrite || c.GitConfig {
		before = gitSnapshot(repos)
	}
	h := holder{mark: newMark(), pidfd: -1}
	defer h.close()
	h.job.cmd = &exec.Cmd{Path: s.box.bwrap, Dir: "/", Env: s.environ(c.Env, "PICKET_SANDBOX=bwrap", h.mark)}
	if err := h.pipes(&plan, c.Script); err != nil {
		return tools.ExecResult{Err: "the sandbox could not be made: " + err.Error()}
	}
	h.job.cmd.Args = append([]string{"bwrap"}, bwrapArgs(plan)...)
	h.job.held, h.job.term, h.job.kill, h.job.gone = h.held, h.term, h.kill, h.gone
	res = h.job.run(ctx, c, s.cfg.Filter)
	h.result(&res)
	res.Notes = slices.Concat(res.Notes, s.failureNotes(c, res), s.gitNotes(c, repos, before))
	return res
}

// enter returns the repositories to protect. They are looked for again only
// when no box is running.
func (s *sandbox) enter() []gitRepo {
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if s.box.running == 0 {
		s.box.repos = s.findRepos()
	}
	s.box.running++
	return s.box.repos
}

func (s *sandbox) leave() {
	s.box.mu.Lock()
	s.box.running--
	s.box.mu.Unlock()
}

// A holder has the descriptors by which a box is held until its limits are
// set, ended, and asked how it ended.
type holder struct {
	job           job
	mark          string
	status, block *os.File   // read end, write end
	given         []*os.File // the child's ends
	events        *json.Decoder
	pid, pidfd    int // of the first process in the box; 0 and -1 before it is known
	released      bool
}

// pipes makes the descriptors and names them in the plan.
func (h *holder) pipes(p *boxPlan, script []byte) error {
	give := func(f *os.File) string {
		h.given = append(h.given, f)
		h.job.cmd.ExtraFiles = h.given
		return strconv.Itoa(2 + len(h.given))
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	h.status, p.status = r, give(w)
	h.events = json.NewDecoder(io.LimitReader(r, 64<<10))
	if r, w, err = os.Pipe(); err != nil {
		return err
	}
	h.block, p.block = w, give(r)
	if i := slices.Index(p.argv, tools.ScriptArg); i >= 0 {
		if r, w, err = os.Pipe(); err != nil {
			return err
		}
		p.argv[i], p.script = boxScript, give(r)
		go func() {
			w.Write(script) // fails if bubblewrap does, which says why itself
			w.Close()
		}()
	}
	return nil
}

// boxStart is how long bubblewrap may take to make a box.
var boxStart = 10 * time.Second

// held waits for the box, sets its limits and lets it run. The first process
// of the box waits on the block descriptor once everything is mounted, so
// that its number cannot have been taken by another.
func (h *holder) held(ctx context.Context) error {
	for _, f := range h.given {
		f.Close()
	}
	h.status.SetReadDeadline(time.Now().Add(boxStart))
	defer context.AfterFunc(ctx, func() { h.status.SetReadDeadline(time.Unix(1, 0)) })()
	var first struct {
		Pid int `json:"child-pid"`
	}
	if err := h.events.Decode(&first); err != nil || first.Pid <= 1 {
		return errors.New("bubblewrap made no box")
	}
	fd, _, errno := syscall.RawSyscall(sysPidfdOpen, uintptr(first.Pid), 0, 0)
	if errno != 0 {
		return fmt.Errorf("pidfd_open: %v", errno)
	}
	// What is limited and ended below must be bubblewrap's child, whatever was
	// said: nothing else may come to harm.
	if parentOf(strconv.Itoa(first.Pid)) != h.job.cmd.Process.Pid || pollFD(int(fd), 0) {
		syscall.Close(int(fd))
		return errors.New("bubblewrap made no box")
	}
	h.pid, h.pidfd = first.Pid, int(fd)
	for _, l := range limits {
		if err := setLimit(h.pid, l.resource, l.max); err != nil {
			return fmt.Errorf("prlimit: %v", err)
		}
	}
	os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", h.pid), []byte("1000"), 0) // it dies before others
	h.released = true
	_, err := h.block.Write([]byte{1})
	return err
}

func (h *holder) term() {
	if h.pidfd >= 0 && !pollFD(h.pidfd, 0) {
		syscall.Kill(-h.pid, syscall.SIGTERM) // the box's session; its first process ignores it
	}
}

func (h *holder) kill() {
	if h.pidfd >= 0 {
		syscall.RawSyscall6(sysPidfdSendSignal, uintptr(h.pidfd), uintptr(syscall.SIGKILL), 0, 0, 0, 0)
	} else {
		h.job.cmd.Process.Kill()
	}
}

// gone waits until the box is empty: bubblewrap itself ends before that.
func (h *holder) gone() error {
	if h.pidfd < 0 {
		return endStragglers(h.mark) // bubblewrap may have got as far as a child
	}
	if !pollFD(h.pidfd, 30*time.Second) {
		return errors.New("processes of this call could not be ended")
	}
	// The box's first process is ours to reap if bubblewrap ended before it and
	// orphans come to picket. (waitid with P_PIDFD: no other child is meant.)
	const pPidfd = 3
	syscall.RawSyscall6(syscall.SYS_WAITID, pPidfd, uintptr(h.pidfd), 0, syscall.WEXITED|syscall.WNOHANG, 0, 0)
	return nil
}

func (h *holder) close() {
	for _, f := range append(h.given, h.status, h.block) {
		f.Close()
	}
	if h.pidfd >= 0 {
		syscall.Close(h.pidfd)
	}
}

// result reads how the box ended. Bubblewrap reports an exit status only for a
// command that was started; its own failures look the same as one that ends
// with 1.
func (h *holder) result(res *tools.ExecResult) {
	var last struct {
		Exit *int `json:"exit-code"`
	}
	h.status.SetReadDeadline(time.Now().Add(endGrace)) // bubblewrap is gone, and with it the other end
	if h.released && h.events.Decode(&last) == nil && last.Exit != nil {
		res.Started, res.Exit = true, *last.Exit
		return
	}
	if st := h.job.cmd.ProcessState; h.released && st.Sys().(syscall.WaitStatus).Signaled() {
		// Bubblewrap was killed: how far the command got is not known.
		res.Started, res.Exit, res.Err = true, exitStatus(st), "the sandbox was ended from outside"
		return
	}
	why := strings.TrimSpace(string(res.Stderr))
	if i := strings.LastIndex(why, "bwrap: "); i >= 0 {
		why = why[i+len("bwrap: "):]
	}
	if why != "" && len(why) < 1000 {
		res.Err = why
	}
	switch {
	case res.TimedOut || res.Stopped:
		res.Err = "ended before it started"
	case res.Err == "":
		res.Err = "bubblewrap made no box"
	}
	res.Err = "the command did not run: " + res.Err
	res.Stdout, res.Stderr, res.StdoutSize, res.StderrSz = nil, nil, 0, 0
}

// System calls that package syscall does not name; they have the same number
// on every architecture.
const (
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
	sysCloseRange      = 436
)

// The limits of each process in a box, and of the box for processes: in a user
// namespace of its own they are counted there. They are not enforced for root.
var limits = []struct {
	resource int
	max      uint64
}{
	{6, 512}, // RLIMIT_NPROC
	{syscall.RLIMIT_FSIZE, 4 << 30},
	{syscall.RLIMIT_CORE, 1},  // 0 would still start a core handler
	{syscall.RLIMIT_CPU, 600}, // seconds
	{syscall.RLIMIT_NOFILE, 4096},
}

func setLimit(pid, resource int, limit uint64) error {
	var old syscall.Rlimit
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), uintptr(resource), 0, uintptr(unsafe.Pointer(&old)), 0, 0)
	if errno == 0 {
		next := syscall.Rlimit{Cur: min(limit, old.Max), Max: min(limit, old.Max)}
		_, _, errno = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), uintptr(resource), uintptr(unsafe.Pointer(&next)), 0, 0, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// pollFD waits until a descriptor is readable: a pidfd is when its process is
// gone, and the first process of a namespace goes last.
func pollFD(fd int, wait time.Duration) bool {
	p := struct {
		fd              int32
		events, revents int16
	}{int32(fd), 1, 0} // POLLIN
	for end := time.Now().Add(wait); ; {
		ts := syscall.NsecToTimespec(max(0, int64(time.Until(end))))
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0 && n == 1
		}
	}
}

// endStragglers ends every process that has the mark in its environment, or
// that descends from one that does. One that both cleared its environment and
// lost its parent gets away: only a box can hold that.
func endStragglers(mark string) error {
	for range 50 {
		found := marked(mark)
		if len(found) == 0 {
			return nil
		}
		for _, pid := range found {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("processes of this call could not be ended")
}

func marked(mark string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	parent, is := map[int]int{}, map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent[pid] = parentOf(e.Name()); parent[pid] < 0 {
			continue
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		is[pid] = slices.Contains(strings.Split(string(env), "\x00"), mark)
	}
	var out []int
	for pid := range parent {
		for p, n := pid, 0; p > 1 && n < 1000; p, n = parent[p], n+1 {
			if is[p] {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// parentOf returns the parent of a process, -1 if it is gone or a zombie.
func parentOf(pid string) int {
	stat, _ := os.ReadFile("/proc/" + pid + "/stat") // pid (name) state ppid …; the name may hold anything
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 2 || f[0] == "Z" {
		return -1
	}
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		return -1
	}
	return ppid
}

// setCloexec marks every descriptor from 3 on, faster than one by one.
func setCloexec() bool {
	const closeRangeCloexec = 4
	_, _, errno := syscall.RawSyscall(sysCloseRange, 3, 1<<32-1, closeRangeCloexec)
	return errno == 0
}
