package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An escape is an attempt to get out of a box. It counts as one that worked if it
// prints hunter2, which is what every secret outside says, or ESCAPED, or if a
// file comes to be in the folder OUT.
type escape struct {
	name string
	line string
	root bool                 // only root could do it without a box
	bare bool                 // not tried without a box: it could do harm there, or needs the box
	left func(ws string) bool // what else shows that it worked
}

// With these before it a line of Python is short. "tried" prints that a call
// worked.
const python = `py() { python3 -I -c "import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*args): return libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
def tried(r): print('ESCAPED' if r >= 0 else os.strerror(ctypes.get_errno()))
def connect(family, address):
    s = socket.socket(family); s.settimeout(5); s.connect(address); print('ESCAPED')
$1"; }
`

func marked(name string) func(string) bool {
	return func(ws string) bool { _, err := os.Lstat(filepath.Join(ws, name)); return err == nil }
}

func setID(name string) func(string) bool {
	return func(ws string) bool {
		fi, err := os.Lstat(filepath.Join(ws, name))
		return err == nil && fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0
	}
}

func sysNr(amd64, arm64 int) string {
	return strconv.Itoa(map[string]int{"amd64": amd64, "arm64": arm64}[runtime.GOARCH])
}

// coreFiles reports whether the kernel would leave one in the workspace.
func coreFiles() bool {
	var l syscall.Rlimit
	return syscall.Getrlimit(syscall.RLIMIT_CORE, &l) == nil && l.Max > 1 && strings.HasPrefix(readSmall("/proc/sys/kernel/core_pattern"), "core")
}

// Names in the lines: $H is the home, $OUT a folder in it, $VICTIM a process outside that
// knows the secret, $PORT, $NAME and $SOCK a server on loopback and two unix
// sockets, $SELF this program, $TMP a file in the host's /tmp.
func escapesTable() []escape {
	return []escape{
		{name: "an inherited descriptor", line: "cat /proc/self/fd/$FD /proc/1/fd/$FD"}, // first, since it is closed for good then

		// Files.
		{name: "read the keys", line: "cat $H/.ssh/id_ed25519"},
		{name: "read by a way round", line: "cat ../ws/../.ssh/id_ed25519"},
		{name: "list home", line: "ls -A $H | grep -q ssh && echo ESCAPED"},
		{name: "write beside the workspace", line: "echo x >$OUT/mark"},
		{name: "write through a link", line: "ln -s $OUT l; echo x >l/mark"},
		{name: "write through a link to a file", line: "ln -s $OUT/mark m; echo x >m"},
		{name: "hard link to a file outside", line: "ln $H/.ssh/id_ed25519 hard; cat hard"},
		{name: "move a file out", line: "echo x >f; mv f $OUT/mark"},
		{name: "move the workspace", line: "mv ../ws ../out/ws && mv ../out/ws ../ws && echo ESCAPED"},
		{name: "the host's temporary files", line: "cat $TMP"},
		{name: "a temporary file that is moved out", line: "f=$(mktemp); mv $f $OUT/mark"},
		{name: "the host's variable files", line: "ls -A /var /run | grep -q . && echo ESCAPED"},
		{name: "the program itself", line: "test -e $SELF && echo ESCAPED"},
		{name: "a huge file", line: "truncate -s 5G big; test $(stat -c %s big) -gt 4294967296 && echo ESCAPED", bare: true},
		{name: "memory by files in the root", line: "for p in / /dev /run /usr /etc /opt /proc data; do head -c 9000 /dev/zero >$p/picket-mark && echo ESCAPED; done", bare: true},
		{name: "a core file", line: "rm -f core*; ulimit -c unlimited; sh -c 'kill -SEGV $$'", bare: !coreFiles(),
			left: func(ws string) bool { m, _ := filepath.Glob(ws + "/core*"); return len(m) > 0 }},

		// What the box hides.
		{name: "read what is hidden", line: "cat data/vault.enc"},
		{name: "rename the folder above", line: "mv deep moved; cat deep/data/key moved/data/key"},
		{name: "exchange the folder above", line: python + `mkdir -p x/data; py "call(` + sysNr(316, 276) + `, -100, b'deep', -100, b'x', 2)"; cat x/data/key`},
		{name: "rename what is hidden", line: "mv deep/data y; cat y/key"},
		{name: "link to what is hidden", line: "ln data/vault.enc z; cat z"},
		{name: "what is hidden by another way", line: "cat /proc/self/cwd/data/vault.enc /proc/1/cwd/data/vault.enc"},
		{name: "what is hidden through the root of another", line: "for p in 1 2 self; do cat /proc/$p/root$PWD/data/vault.enc; done"},
		{name: "take a mask away", line: "umount -l data; cat data/vault.enc"},
		{name: "take a mask away in a namespace", line: "unshare -Urm sh -c 'umount -l data; cat data/vault.enc'"},
		{name: "remount", line: "mount -o remount,rw,bind /usr; touch /usr/picket-mark && echo ESCAPED", bare: true},
		{name: "bind over a mask", line: "unshare -m sh -c 'mkdir -p b; mount --rbind . b && cat b/data/vault.enc'", root: true},
		{name: "detached copy of the tree", line: python + `py "fd = call(428, -100, b'.', 1); tried(fd)"; cat data/vault.enc`},

		// Processes.
		{name: "environment of a process outside", line: "tr '\\0' '\\n' </proc/$VICTIM/environ"},
		{name: "files of a process outside", line: "cat /proc/$VICTIM/fd/9"},
		{name: "folder of a process outside", line: "cat /proc/$VICTIM/cwd/.ssh/id_ed25519"},
		{name: "root of a process outside", line: "cat /proc/$VICTIM/root/$H/.ssh/id_ed25519"},
		{name: "signal to a process outside", line: "kill -USR1 $VICTIM; sleep 0.2", left: nil},
		{name: "trace a process outside", line: python + `py "tried(call(` + sysNr(101, 117) + `, 16, $VICTIM, 0, 0)); call(` + sysNr(101, 117) + `, 17, $VICTIM, 0, 0)"`},
		{name: "trace a process inside", line: python + `sleep 5 & py "tried(call(` + sysNr(101, 117) + `, 16, $!, 0, 0))"; kill -9 $!`},
		{name: "memory of a process inside", line: python + `py "
b = ctypes.create_string_buffer(8); v = (ctypes.c_void_p * 2)(ctypes.addressof(b), 8)
tried(call(` + sysNr(310, 270) + `, os.getpid(), v, 1, v, 1, 0))"`},
		{name: "a handle of a process outside", line: python + `py "tried(call(434, $VICTIM, 0))"`},
		{name: "enter a namespace outside", line: "nsenter -t $VICTIM -m cat $H/.ssh/id_ed25519", root: true},
		{name: "list the processes", line: "ls /proc | grep -qx $VICTIM && echo ESCAPED"},
		{name: "priority of a process outside", line: "renice -n 1 -p $VICTIM && echo ESCAPED"},
		{name: "a daemon that stays", line: "setsid sh -c 'sleep 0.3; echo x >late' >/dev/null 2>&1 & exit 0", left: marked("late")},
		{name: "a daemon of a daemon that stays", line: "(trap '' HUP TERM; setsid setsid sh -c 'trap \"\" TERM HUP INT; sleep 0.3; echo x >late2' &) >/dev/null 2>&1", left: marked("late2")},
		{name: "cleared environment that stays", line: "env -i setsid sh -c 'sleep 0.3; echo x >late3' >/dev/null 2>&1 & exit 0", left: marked("late3")},

		// The kernel.
		{name: "settings of the kernel", line: "sh -c ': 3<>/proc/sys/kernel/core_pattern' && echo ESCAPED; find /proc/sys -type f 2>/dev/null | head -200 | while read f; do (: 3<>$f) && echo ESCAPED; done", root: true},
		{name: "magic keys", line: "(: 3<>/proc/sysrq-trigger) && echo ESCAPED", bare: true},
		{name: "the box's own program", line: "(: 3<>/proc/1/exe) && echo ESCAPED; (: 3<>/proc/self/exe) && echo ESCAPED", bare: true},
		{name: "user namespace", line: "unshare -Ur true && echo ESCAPED"},
		{name: "user namespace by clone", line: python + `py "
p = call(` + sysNr(56, 220) + `, 0x10000011, 0, 0, 0, 0)
if p == 0: os._exit(0)
tried(p)"`},
		{name: "mount", line: "unshare -m mount -t tmpfs x /tmp && echo ESCAPED", root: true},
		{name: "mount of control groups", line: "mkdir c; unshare -mC mount -t cgroup2 x c && echo ESCAPED", root: true},
		{name: "control groups", line: "test -w /sys/fs/cgroup && echo ESCAPED", bare: true},
		{name: "keys of the kernel", line: python + `py "tried(call(` + sysNr(248, 217) + `, b'user', b'picket-test', b'x', 1, -2))"`},
		{name: "device node", line: "mknod node c 1 5; head -c1 node >/dev/null && echo ESCAPED", root: true},
		{name: "change of root", line: "chroot . /bin/true 2>&1 | grep -q 'failed to run' && echo ESCAPED", root: true},
		{name: "host name", line: "unshare -u hostname picket-test && echo ESCAPED", root: true},
		{name: "capabilities", line: "grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo ESCAPED", root: true},

		// Files that make whoever runs them somebody else.
		{name: "set-user-ID by chmod", line: "cp /bin/true s1; chmod u+s s1", left: setID("s1")},
		{name: "set-user-ID by install", line: "install -m 4755 /bin/true s2", left: setID("s2")},
		{name: "set-user-ID by open", line: python + `py "os.umask(0); os.open('s3', os.O_CREAT | os.O_WRONLY, 0o4755)"`, left: setID("s3")},
		{name: "set-user-ID by fchmod", line: python + `py "os.fchmod(os.open('s4', os.O_CREAT | os.O_WRONLY), 0o4755)"`, left: setID("s4")},
		{name: "set-user-ID by fchmodat2", line: python + `echo >s5; py "call(452, -100, b's5', 0o4755, 0)"`, left: setID("s5")},
		{name: "set-user-ID by openat2", line: python + `py "
os.umask(0); how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)
call(437, -100, b's6', how, 24)"`, left: setID("s6")},
		{name: "set-user-ID by mknod", line: python + `py "os.umask(0); os.mknod('s7', 0o104755)"`, left: setID("s7")},
		{name: "set-user-ID by tar", line: "mkdir t; cp /bin/true t/s8; chmod 4755 t/s8; tar cf t.tar t; rm -r t; tar xpf t.tar", left: setID("t/s8")},
		{name: "set-group-ID, as root", line: "cp /bin/true s9; chmod g+s s9", left: setID("s9"), root: true},

		// The terminal.
		{name: "input to the terminal", root: true, line: python + `py "
import fcntl, pty, termios
pid, fd = pty.fork()
if pid == 0:
    r = min(call(` + sysNr(16, 29) + `, 0, c, b'x') for c in (0x5412, 0x5412 | 1 << 32)); os._exit(r + 1)
os._exit(0) if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 1 else print('ESCAPED')"`},
		{name: "the terminal's name", line: "(: 3<>/dev/tty) && echo ESCAPED; ls /dev/pts | grep -v ptmx | grep -q . && echo ESCAPED", bare: true},
		{name: "write through standard input", line: "echo x 2>/dev/null >/proc/self/fd/0; test -c /proc/self/fd/0 || echo ESCAPED", bare: true},

		// Networks and sockets.
		{name: "a server on loopback", line: python + `py "connect(socket.AF_INET, ('127.0.0.1', $PORT))"`},
		{name: "an abstract socket", line: python + `py "connect(socket.AF_UNIX, '\0$NAME')"`},
		{name: "a socket in home", line: python + `py "connect(socket.AF_UNIX, '$SOCK')"`},
		{name: "the key agent", line: python + `py "connect(socket.AF_UNIX, os.environ['SSH_AUTH_SOCK'])"`},
		{name: "the container service", line: python + `py "connect(socket.AF_UNIX, os.environ['DOCKER_HOST'][7:])"`},
		{name: "a socket of the virtual machine", line: python + `py "socket.socket(40, socket.SOCK_STREAM); print('ESCAPED')"`},
		{name: "sockets of the message bus", line: "for s in /run/dbus/system_bus_socket /run/docker.sock /run/systemd/private /run/user /var/run/docker.sock; do test -e $s && echo ESCAPED; done", bare: true},
		{name: "other interfaces", line: "ls /sys/class/net 2>/dev/null | grep -v lo | grep -q . && echo ESCAPED; grep -v lo: /proc/net/dev | grep -q : && echo ESCAPED"},
		{name: "audit messages", line: python + `py "socket.socket(16, 3, 9); print('ESCAPED')"`},

		// The environment.
		{name: "variables", line: "env"},
		{name: "variables of the first process", line: "cat /proc/*/environ | tr '\\0' '\\n' | grep -a hunter2"},
	}
}

// An attempt that works must be seen to: each is made without a box first, where
// that is harmless.
func TestBoxEscapes(t *testing.T) {
	for _, p := range [][2]string{{"python3", "python3"}, {"unshare", "util-linux"}, {"tar", "tar"}} {
		needs(t, p[0], p[1])
	}
	root := os.Geteuid() == 0
	tmp, err := os.CreateTemp("/tmp", "picket-test-")
	if err != nil {
		t.Fatal(err)
	}
	tmp.WriteString("hunter2\n")
	defer os.Remove(tmp.Name())
	var home string
	s := testBox(t, func(c *boxConfig) {
		home = filepath.Dir(c.Workspace)
		write(t, home+"/.ssh/id_ed25519", "hunter2\n")
		write(t, c.Workspace+"/data/vault.enc", "hunter2\n")
		write(t, c.Workspace+"/deep/data/key", "hunter2\n")
		c.Hide = []string{c.Workspace + "/data", c.Workspace + "/deep/data"}
		t.Setenv("A_TOKEN", "hunter2")
		t.Setenv("SSH_AUTH_SOCK", home+"/agent.sock")
		t.Setenv("DOCKER_HOST", "unix://"+home+"/agent.sock")
		t.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	})
	ws, out := s.roots[0], home+"/out"
	fresh := func() {
		for _, dir := range []string{out, ws} {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if e.Name() != "data" && e.Name() != "deep" {
					os.RemoveAll(filepath.Join(dir, e.Name()))
				}
			}
		}
		os.RemoveAll(ws + "/deep/data/x")
		os.Mkdir(out, 0o755)
		write(t, ws+"/data/vault.enc", "hunter2\n") // an attempt without a box may have moved them
		write(t, ws+"/deep/data/key", "hunter2\n")
	}
	fresh()

	victim := exec.Command("/bin/sh", "-c", `exec 9<.ssh/id_ed25519; trap ': >"$OUT/mark"' USR1; echo up; while :; do sleep 0.03; done`)
	victim.Dir, victim.Env = home, []string{"SECRET=hunter2", "OUT=" + out, "PATH=/usr/bin:/bin"}
	up, err := victim.StdoutPipe()
	if err == nil {
		err = victim.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { victim.Process.Kill(); victim.Wait() }()
	up.Read(make([]byte, 3))
	name := "picket-test-" + strconv.Itoa(os.Getpid())
	var port int
	for _, at := range [][2]string{{"tcp", "127.0.0.1:0"}, {"unix", "@" + name}, {"unix", home + "/agent.sock"}} {
		l, err := net.Listen(at[0], at[1])
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			port = a.Port
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
	}
	fd, err := syscall.Open(home+"/.ssh/id_ed25519", syscall.O_RDONLY, 0) // as if inherited
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	vars := fmt.Sprintf("H='%s' OUT='%s' VICTIM=%d PORT=%d NAME=%s SOCK='%s' SELF='%s' TMP='%s' FD=%d\nexec 2>/dev/null\n", home, out, victim.Process.Pid, port,
		name, home+"/agent.sock", self, tmp.Name(), fd)
	worked := func(e escape, text string) string {
		if e.left != nil { // a daemon may be slow
			for i := 0; i < 30 && strings.Contains(e.line, "late") && !e.left(ws); i++ {
				time.Sleep(20 * time.Millisecond)
			}
			if e.left(ws) {
				return "it left its mark"
			}
		}
		if entries, _ := os.ReadDir(out); len(entries) > 0 {
			return fmt.Sprintf("%q came to be outside", entries[0].Name())
		}
		if strings.Contains(text, "hunter2") || strings.Contains(text, "ESCAPED") {
			return text
		}
		return ""
	}
	for _, e := range escapesTable() {
		if strings.HasSuffix(e.name, "as root") && !root {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			if !e.bare && (root || !e.root) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				cmd := exec.CommandContext(ctx, "/bin/sh", "-c", vars+e.line)
				cmd.Dir, cmd.SysProcAttr, cmd.WaitDelay = ws, ownSession(), time.Second
				text, err := cmd.Output()
				if worked(e, string(text)) == "" {
					t.Errorf("the attempt does not work without a box either: %v", err)
				}
				fresh()
			}
			closeInherited()
			res := in(t, s, sh(vars+e.line))
			if why := worked(e, string(res.Stdout)+string(res.Stderr)); why != "" {
				t.Errorf("escaped: %s", why)
			}
			if victim.Process.Signal(syscall.Signal(0)) != nil {
				t.Fatal("a process outside was ended")
			}
			fresh()
		})
	}
}

// What a call leaves in a repository must not run when git is used on the host.
// Each plant is made without a box too, to see that git would run it. F is a
// setting that runs a program, as is what the last line of each does.
func TestBoxEscapesThroughGit(t *testing.T) {
	needs(t, "git", "git")
	const plantF = `core.fsmonitor "touch $OUT/mark;:"`
	for _, c := range []struct{ name, before, plant, then string }{
		{"hook", "", `printf '#!/bin/sh\ntouch %s/mark\n' $OUT >.git/hooks/post-commit; chmod +x .git/hooks/post-commit`, "git commit -q --allow-empty -m x"},
		{"setting", "", "git config " + plantF, "git status"},
		{"another in its place", "", "mv .git .x; cp -r .x .git; git config " + plantF, "git status"},
		{"common directory", "", "cp -r .git evil; git --git-dir=evil config " + plantF + "; echo ../evil >.git/commondir", "git status"},
		{"setting of a worktree", "git config extensions.worktreeConfig true", "git config -f .git/config.worktree " + plantF, "git status"},
		{"submodule", "", "git init -q sub; git -C sub commit -q --allow-empty -m x; git -C sub config " + plantF + "; git add sub", "git status"},
		{"settings of a submodule", "git submodule --quiet add ./ lib", "git config -f .git/modules/lib/config " + plantF, "git status"},
		{"a submodule's repository replaced", "git submodule --quiet add ./ lib", "rm lib/.git; git init -q lib; git -C lib commit -q --allow-empty -m x; git -C lib config " + plantF, "git status"},
		{"common directory of a worktree", "git worktree add -q ../wt", "cp -r .git evil; git --git-dir=evil config " + plantF + "; echo $PWD/evil >.git/worktrees/wt/commondir", "git -C ../wt status"},
		{"repository around it", "", "cp -r .git/HEAD .git/config .git/objects .git/refs .; git config -f config core.worktree $PWD; git config -f config " + plantF + "; rm .git/HEAD", "git status"},
		{"unfinished rebase", "", `GIT_SEQUENCE_EDITOR="printf 'break\nexec touch $OUT/mark\n' >" git rebase -q -i HEAD`, "git rebase --continue"},
		{"link in the logs", "", `rm .git/logs/HEAD; ln -s $OUT/../rc .git/logs/HEAD; git checkout -q -b "x;touch\${IFS}$OUT/mark;#"`, "git checkout -q main; git checkout -q -; sh ../rc"},
		{"link for the message", "", "ln -sf $OUT/mark .git/COMMIT_EDITMSG", "git commit -q --allow-empty -m x"},
		{"filter", "", `echo '* filter=x' >.git/info/attributes; git config filter.x.clean "touch $OUT/mark; cat"; touch file`, "git status"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, inBox := range []bool{false, true} {
				s := gitBox(t)
				ws := s.roots[0]
				out := filepath.Dir(ws) + "/out"
				if err := os.Mkdir(out, 0o755); err != nil {
					t.Fatal(err)
				}
				host := func(line string) string {
					cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "OUT="+out+"; "+identity+line)
					cmd.Dir, cmd.WaitDelay, cmd.SysProcAttr = ws, time.Second, ownSession()
					cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_EDITOR=true",
						"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always"}
					text, _ := cmd.CombinedOutput()
					return string(text)
				}
				said := host(c.before)
				if inBox {
					res := in(t, s, sh("OUT="+out+"; "+identity+c.plant))
					said += string(res.Stdout) + string(res.Stderr)
				} else {
					said += host(c.plant)
				}
				said += host(c.then)
				if _, err := os.Lstat(out + "/mark"); (err == nil) == inBox {
					t.Errorf("in a box %t, git on the host ran it %t: %s", inBox, err == nil, said)
				}
			}
		})
	}
}
