package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"picket/tools"
)

// Every test named TestBox runs once as the user who runs the tests and, if
// that is root, once more as a plain user.
func TestBoxAsPlainUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // the tests themselves did it
	}
	needBox(t)
	const nobody = 65534
	dir, err := os.MkdirTemp("/tmp", "picket-plain-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self := copySelf(t, dir)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(dir+"/home", 0o700), os.Chown(dir+"/home", nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	which := "^TestBox"
	if underRace {
		which = "^TestBox(Escapes|Hides|Hidden|Capabilities|System|Ends|OnlyThree|Proc|Limits|NetworkHas)"
	}
	cmd := exec.Command(self, "-test.run="+which, "-test.v",
		"-test.skip=NamesWhat|OddWorkspaces|FollowsNoForged|EndsEverything/boxed=false|Outlives|FailsInMidRun|MissingOrHalf|NamesNew|Nested|Tools|SeesPrograms|PythonBelow|OutputFlood|ManyAtOnce|FromTheWorkspace|NetworkPrograms/pip|NetworkPrograms/npm|TimeStandsStill|ItsOwn|NetworkHelper|ThroughGit", "-test.timeout=120s")
	cmd.Dir = "/"
	cmd.Env = []string{quickExit, "PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir + "/home",
		"TMPDIR=" + dir + "/home", "LANG=C.UTF-8", "PICKET_TEST_REQUIRE=" + os.Getenv("PICKET_TEST_REQUIRE")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestBoxCapabilities")) {
		t.Fatalf("as a plain user: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "SKIP") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

func copySelf(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "picket.test"), b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "picket.test")
}

func needBox(t testing.TB) {
	t.Helper()
	needs(t, "bwrap", "bubblewrap")
	out, err := exec.Command("bwrap", "--ro-bind", "/", "/", "--unshare-all", "true").CombinedOutput()
	need(t, err == nil, "a bubblewrap that makes a box (allow user namespaces): "+string(out))
}

// testBox makes a box with a workspace of its own, below a home of its own.
func testBox(t testing.TB, change func(*boxConfig)) *sandbox {
	t.Helper()
	needBox(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	cfg := boxConfig{Workspace: filepath.Join(home, "ws")}
	if err := os.MkdirAll(cfg.Workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	s, err := newSandbox(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if st := s.State(); !st.Boxed || !st.NetBlocked {
		t.Fatalf("no box: %+v", st)
	}
	return s
}

// in runs a line and fails the test if the box could not.
func in(t testing.TB, s *sandbox, c tools.Command) tools.ExecResult {
	t.Helper()
	res := s.Exec(context.Background(), c)
	if !res.Started || res.Err != "" {
		t.Fatalf("%q did not run: %s", c.Argv, res.Err)
	}
	return res
}

func printed(t testing.TB, s *sandbox, line string) string {
	t.Helper()
	res := in(t, s, sh("exec 2>&1; "+line))
	return strings.TrimSpace(string(res.Stdout))
}

// tree lists everything below a folder with what is in it.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		var content []byte
		if fi.Mode().IsRegular() {
			content, _ = os.ReadFile(p)
		}
		target, _ := os.Readlink(p)
		fmt.Fprintf(&b, "%s %v %x %s\n", p, fi.Mode(), sha256.Sum256(content), target)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// unchanged fails the test if a folder is not as it was.
func unchanged(t *testing.T, what, dir, before string) {
	t.Helper()
	after := tree(t, dir)
	for line := range strings.Lines(before + after) {
		if !strings.Contains(before, line) || !strings.Contains(after, line) {
			t.Errorf("%s: the host changed: %s", what, line)
		}
	}
}

func write(t testing.TB, p, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestBoxHidesHome(t *testing.T) {
	s := testBox(t, nil)
	home := os.Getenv("HOME")
	write(t, home+"/.ssh/id_ed25519", "hunter2")
	if got := printed(t, s, "cat "+home+"/.ssh/id_ed25519; ls -A "+home); strings.Contains(got, "hunter2") || !strings.HasSuffix(got, "\nws") {
		t.Errorf("home is seen: %s", got)
	}
	if got := printed(t, s, "echo $HOME $TMPDIR $PICKET_SANDBOX; touch ~/a $TMPDIR/b && pwd"); got != "/tmp/home /tmp bwrap\n"+s.roots[0] {
		t.Error(got)
	}
	if got := printed(t, s, "ls -A /tmp/home; ls /var /run /home /mnt 2>/dev/null"); got != "" {
		t.Errorf("kept from the call before, or bound: %q", got)
	}
	if got := printed(t, s, "touch /x /etc/x /usr/x /dev/x /opt/x /proc/sys/x; mkdir /run/x 2>/dev/null && echo made"); strings.Count(got, "cannot touch") != 6 || strings.Contains(got, "made") {
		t.Errorf("writable outside the workspace: %s", got)
	}
	printed(t, s, "echo from the box >made; ln -s /etc/passwd link")
	if b, err := os.ReadFile(s.roots[0] + "/made"); err != nil || string(b) != "from the box\n" {
		t.Errorf("the workspace: %q %v", b, err)
	}
}

// As root bubblewrap covers only what access(2) calls writable, and the folder
// /proc/sys is not.
func TestBoxProcSysIsReadOnly(t *testing.T) {
	s := testBox(t, nil)
	if got := printed(t, s, "find /proc/sys -writable 2>/dev/null | head -3; head -c1 /proc/sys/kernel/pid_max"); len(got) != 1 {
		t.Errorf("writable: %s", got)
	}
	for _, p := range []string{"/proc/sysrq-trigger", "/proc/irq", "/proc/bus"} {
		if got := printed(t, s, "test ! -e "+p+" || test ! -w "+p+" || echo writable"); got != "" {
			t.Errorf("%s: %s", p, got)
		}
	}
}

// The first process of a box runs bubblewrap's own file, on the machine's mount.
func TestBoxDoesNotReachItsMaker(t *testing.T) {
	needBox(t)
	dir := t.TempDir()
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(bwrap)
	if err == nil {
		err = os.WriteFile(dir+"/bwrap", b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s := testBox(t, nil)
	if s.box.bwrap != dir+"/bwrap" {
		t.Fatal(s.box.bwrap)
	}
	said := printed(t, s, `for p in /proc/[0-9]* /proc/self/task/*; do chmod 700 $p/exe; touch $p/exe; done; ls -A /proc/1; cat /proc/self/stat >/dev/null && echo end`)
	fi, err := os.Stat(dir + "/bwrap")
	if err != nil || fi.Mode() != 0o755 || !strings.HasSuffix(said, "end") {
		t.Errorf("mode %v, %v\n%s", fi.Mode(), err, said)
	}
}

func TestBoxDeviceModesArePutBack(t *testing.T) {
	p := filepath.Join(t.TempDir(), "null")
	if err := os.WriteFile(p, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := box{devices: map[string]fs.FileMode{p: 0o640}}
	notes := b.restoreDevices()
	if fi, err := os.Stat(p); err != nil || fi.Mode() != 0o640 || len(notes) != 1 || !strings.Contains(notes[0], p) {
		t.Errorf("%v, %v, %q", fi.Mode(), err, notes)
	}
	if notes := b.restoreDevices(); notes != nil {
		t.Errorf("nothing was changed: %q", notes)
	}
	if s := testBox(t, nil); (s.box.devices["/dev/null"] != 0) != (os.Geteuid() == 0) {
		t.Errorf("devices %v", s.box.devices)
	}
}

// What the owner runs next is not a program that a call made.
func TestBoxKeepsItsOwnProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(self)
	if err != nil {
		t.Fatal(err)
	}
	s := testBox(t, func(c *boxConfig) { c.ExtraRoots = []string{filepath.Dir(self)} })
	said := printed(t, s, fmt.Sprintf("echo x >x; mv -f x %[1]s; rm -f %[1]s; chmod 700 %[1]s; mv %[2]s %[2]s.old; test -x %[1]s && echo there", shellWord(self), shellWord(filepath.Dir(self))))
	after, err := os.Stat(self)
	if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() || !strings.HasSuffix(said, "there") {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestBoxCapabilities(t *testing.T) {
	s := testBox(t, nil)
	got := printed(t, s, "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status | cut -f2 | sort -u | tr '\\n' ' '")
	if got != "0000000000000000 1" {
		t.Errorf("capabilities and NoNewPrivs: %q", got)
	}
	got = printed(t, s, "umount /proc/sys && echo DONE; mount -o remount,rw,bind / && echo DONE; mount -t tmpfs x /tmp && echo DONE; unshare -Ur true && echo DONE")
	if strings.Contains(got, "DONE") {
		t.Error(got)
	}
}

func TestBoxAsRootHidesWhatOnlyRootReads(t *testing.T) {
	if os.Geteuid() != 0 {
		return // a plain user cannot read it anyway; the next line would prove nothing
	}
	s := testBox(t, nil)
	if got := printed(t, s, "cat /etc/shadow /etc/shadow- /etc/gshadow; ls -A /etc/ssh /etc/ssl/private; test -r /etc/passwd && echo readable"); strings.Contains(got, ":") && strings.Contains(got, "root:") || !strings.HasSuffix(got, "readable") {
		t.Error(got)
	}
	if !strings.Contains(s.State().Line, "as root") || s.State().Hint == "" {
		t.Errorf("root is not mentioned: %+v", s.State())
	}
}

func TestBoxHiddenFolder(t *testing.T) {
	var data string
	s := testBox(t, func(c *boxConfig) {
		data = c.Workspace + "/a/b/data"
		write(t, data+"/vault.enc", "hunter2")
		write(t, data+"/skills/one/SKILL.md", "a skill\n")
		write(t, c.Workspace+"/a/file", "")
		c.Hide, c.Skills = []string{data, c.Workspace + "/../elsewhere"}, data+"/skills"
	})
	before := tree(t, s.roots[0])
	if got := printed(t, s, "cat a/b/data/vault.enc a/b/data/skills/one/SKILL.md; ls -A a/b/data"); strings.Contains(got, "hunter2") || !strings.HasSuffix(got, "a skill\nskills") {
		t.Error(got)
	}
	got := printed(t, s, `for c in "mv a x" "mv a/b a/x" "rmdir a/b/data" "rm -r a/b" "ln -s /tmp a/b/data/x" "touch a/b/data/x" \
		"touch a/b/data/skills/x" "mv -T --exchange a /tmp/home" "umount a/b/data"; do $c && echo "DONE $c"; done; mv a/b/data /tmp/x`)
	if strings.Contains(got, "DONE") {
		t.Error(got)
	}
	os.Remove(s.roots[0] + "/a/file") // rm -r may have got that far
	write(t, s.roots[0]+"/a/file", "")
	unchanged(t, got, s.roots[0], before)
	if p := s.see(data + "/vault.enc"); p != "" {
		t.Errorf("seen: %s", p)
	}
	if s.see(data+"/skills/one/SKILL.md") == "" {
		t.Error("the skills are not seen")
	}
}

func TestBoxHiddenFolderInSystemFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root can put one there
	}
	data, err := os.MkdirTemp("/opt", "picket-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(data)
	write(t, data+"/vault.enc", "hunter2")
	s := testBox(t, func(c *boxConfig) { c.Hide = []string{data} })
	if got := printed(t, s, "cat "+data+"/vault.enc"); strings.Contains(got, "hunter2") {
		t.Error(got)
	}
}

// A mask on a file would go when the host replaces the file.
func TestBoxHidesFilesThatAreReplaced(t *testing.T) {
	s := testBox(t, func(c *boxConfig) {
		write(t, c.Workspace+"/data/vault.enc", "hunter2")
		c.Hide = []string{c.Workspace + "/data"}
	})
	ws := s.roots[0]
	done := make(chan string)
	go func() {
		done <- string(s.Exec(context.Background(), sh("touch ready; while ! test -e go; do sleep 0.01; done; cat data/vault.enc 2>&1; ls -A data")).Stdout)
	}()
	waitForFile(t, ws+"/ready")
	write(t, ws+"/data/new", "hunter3")
	if err := os.Rename(ws+"/data/new", ws+"/data/vault.enc"); err != nil {
		t.Fatal(err)
	}
	write(t, ws+"/go", "")
	if got := <-done; strings.Contains(got, "hunter") || strings.Contains(got, "\nvault.enc") {
		t.Error(got)
	}
}

func waitForFile(t testing.TB, p string) {
	t.Helper()
	for range 1000 {
		if _, err := os.Lstat(p); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s never came", p)
}

// Bubblewrap follows a link in the path of a mask, and creates what is missing
// on the host.
func TestBoxRefusesPlantedLinks(t *testing.T) {
	for name, plant := range map[string]func(ws, target string) error{
		"folder itself": func(ws, target string) error {
			return errors.Join(os.RemoveAll(ws+"/a/data"), os.Symlink(target, ws+"/a/data"))
		},
		"folder above": func(ws, target string) error {
			return errors.Join(os.RemoveAll(ws+"/a"), os.Symlink(target, ws+"/a"))
		},
		"bubblewrap's name for the host": func(ws, target string) error {
			return errors.Join(os.RemoveAll(ws+"/a/data"), os.Symlink("/oldroot"+target+"/new", ws+"/a/data"))
		},
		"dangling": func(ws, target string) error {
			return errors.Join(os.RemoveAll(ws+"/a"), os.Symlink("nowhere", ws+"/a"))
		},
		"missing": func(ws, target string) error { return os.RemoveAll(ws + "/a") },
		"a file": func(ws, target string) error {
			return errors.Join(os.RemoveAll(ws+"/a"), os.WriteFile(ws+"/a", nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testBox(t, func(c *boxConfig) {
				write(t, c.Workspace+"/a/data/vault.enc", "hunter2")
				c.Hide = []string{c.Workspace + "/a/data"}
			})
			target := t.TempDir()
			if err := plant(s.roots[0], target); err != nil {
				t.Fatal(err)
			}
			res := s.Exec(context.Background(), sh("touch ran"))
			if res.Started || res.Err == "" {
				t.Errorf("it ran: %+v", res)
			}
			if _, err := os.Lstat(s.roots[0] + "/ran"); err == nil {
				t.Error("it ran")
			}
			if entries, _ := os.ReadDir(target); len(entries) > 0 {
				t.Errorf("created on the host: %v", entries)
			}
		})
	}
}

func TestBoxRefusesAHiddenFolderThatIsNotThere(t *testing.T) {
	needBox(t)
	ws := t.TempDir()
	if s, err := newSandbox(boxConfig{Workspace: ws, Hide: []string{ws + "/data"}}); err == nil {
		t.Errorf("accepted: %+v", s.State())
	}
	if entries, _ := os.ReadDir(ws); len(entries) > 0 {
		t.Errorf("created on the host: %v", entries)
	}
}

func TestBoxMountOrder(t *testing.T) {
	var ro, rw string
	s := testBox(t, func(c *boxConfig) {
		ro, rw = c.Workspace+"/vendor/lib", c.Workspace+"/vendor/lib/cache"
		write(t, rw+"/file", "")
		write(t, c.Workspace+"/../share/tool", "")
		c.ReadOnly = []string{ro, c.Workspace + "/../share", os.Getenv("HOME") + "/none"}
		c.Writable = []string{rw}
	})
	if got := printed(t, s, "touch vendor/lib/x && echo DONE; mv vendor y && echo DONE; touch vendor/lib/cache/x || echo FAILED; touch ../share/x && echo DONE; ls $HOME/share"); strings.Contains(got, "DONE") || strings.Contains(got, "FAILED") || !strings.HasSuffix(got, "\ntool") {
		t.Error(got)
	}
	if len(s.Notes()) != 1 {
		t.Errorf("a missing folder: %q", s.Notes())
	}
}

func TestBoxArguments(t *testing.T) {
	s := &sandbox{home: "/h", roots: []string{"/ws", "/h/.cargo"}, readOnly: []string{"/h/.cargo/bin", "/h/lib", "/x"},
		box: box{links: map[string]string{"/bin": "usr/bin"}}}
	c := tools.Command{Argv: []string{"--bind", "/", tools.ScriptArg}}
	mounts := []mount{{"/usr", "/usr", mountRO}, {"/ws", "/ws", mountBind}, {"/ws/data", "/ws/data", mountHidden}}
	got := strings.Join(s.bwrapArgs(c, mounts, 5), " ")
	want := "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --unshare-net --disable-userns " +
		"--cap-drop ALL --new-session --die-with-parent --json-status-fd 3 --block-fd 4 " +
		"--proc /proc --ro-bind /proc/sys /proc/sys --perms 0555 --size 4096 --tmpfs /proc/1 --dev /dev --perms 1777 --size 536870912 --tmpfs /dev/shm " +
		"--perms 1777 --size 2147483648 --tmpfs /tmp --perms 0700 --dir /tmp/home --ro-bind /usr /usr --bind /ws /ws " +
		"--perms 0555 --size 4096 --tmpfs /ws/data --symlink usr/bin /bin " +
		"--symlink /h/.cargo /tmp/home/.cargo --symlink /h/lib /tmp/home/lib " +
		"--perms 0444 --ro-bind-data 5 /run/script --remount-ro /ws/data --remount-ro /proc/1 --remount-ro /dev --remount-ro / --chdir /ws -- --bind / /run/script"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c.Network, s.box.without = true, []string{"--size", "--disable-userns"}
	for _, opt := range []string{"--size", "--disable-userns", "--unshare-net"} {
		if slices.Contains(s.bwrapArgs(c, mounts, 5), opt) {
			t.Errorf("%s is still there", opt)
		}
	}
}

func TestBoxOddWorkspaces(t *testing.T) {
	needBox(t)
	base := t.TempDir()
	t.Setenv("HOME", base+"/home")
	for i, name := range []string{"two words", "line\nbreak", "--bind", "-x", "quote'\"$(x)", "ünï", "...", "tab\t"} {
		ws := filepath.Join(base, name)
		if err := os.Mkdir(ws, 0o755); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(base, "link")
		os.Remove(link)
		if err := os.Symlink(name, link); err != nil {
			t.Fatal(err)
		}
		for _, given := range []string{ws, link}[:1+i/7] {
			s, err := newSandbox(boxConfig{Workspace: given})
			if err != nil || !s.State().Boxed {
				t.Fatalf("%q: %v", given, err)
			}
			os.Remove(ws + "/made")
			if got := in(t, s, sh("pwd; touch made")); string(got.Stdout) != ws+"\n" {
				t.Errorf("%q: %q", given, got.Stdout)
			}
			if _, err := os.Stat(ws + "/made"); err != nil {
				t.Errorf("%q: %v", given, err)
			}
		}
	}
	t.Chdir(base)
	s, err := newSandbox(boxConfig{Workspace: "./two words/.." + "/--bind"})
	if err != nil || printed(t, s, "pwd") != base+"/--bind" {
		t.Errorf("relative: %v", err)
	}
	if res := s.Exec(context.Background(), tools.Command{Argv: []string{"--ro-bind", "/", "/"}}); res.Started {
		t.Errorf("a command like an option: %+v", res)
	}
}

func TestBoxOnlyThreeDescriptors(t *testing.T) {
	needBox(t)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "hunter2")
	fd, err := syscall.Open(secret, syscall.O_RDWR, 0) // as if inherited: not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	closeInherited()
	s := testBox(t, nil)
	c := sh("ls -l /proc/self/fd; cat <&" + strconv.Itoa(fd) + "; cat")
	c.Script = []byte("x")
	res := in(t, s, c)
	got := string(res.Stdout)
	want := regexp.MustCompile(`^total 0\n.* 0 -> /dev/null\n.* 1 -> pipe:\[\d+\]\n.* 2 -> pipe:\[\d+\]\n.* 3 -> /proc/\d+/fd\n$`)
	if !want.MatchString(got) {
		t.Errorf("%s", got)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Fatal(err)
	}
}

func TestBoxHasNoTerminal(t *testing.T) {
	s := testBox(t, nil)
	if got := printed(t, s, "(: </dev/tty) && echo terminal; cut -d' ' -f6,7 /proc/self/stat"); strings.Contains(got, "terminal\n") || !strings.HasSuffix(got, " 0") {
		t.Errorf("%s", got)
	}
	pid, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	if got := strings.Fields(printed(t, s, "cut -d' ' -f6 /proc/self/stat")); len(got) != 1 || got[0] == strconv.Itoa(int(pid)) {
		t.Errorf("session %v", got)
	}
}

func TestBoxEnvironment(t *testing.T) {
	t.Setenv("A_TOKEN", "hunter2")
	t.Setenv("LISTED", "yes")
	s := testBox(t, func(c *boxConfig) { c.PassEnv = []string{"LISTED"} })
	c := sh("env; tr '\\0' '\\n' </proc/1/environ; cat /proc/1/cmdline")
	c.Env = map[string]string{"PICKET_SECRET_1": "given", "HOME": "/x"}
	got := string(in(t, s, c).Stdout)
	if strings.Contains(got, "hunter2") || !strings.Contains(got, "LISTED=yes\n") || !strings.Contains(got, "PICKET_SECRET_1=given\n") {
		t.Errorf("%s", got)
	}
	want := s.Env()
	for line := range strings.Lines(printed(t, s, "env")) {
		name, _, _ := strings.Cut(line, "=")
		if _, ok := want[name]; !ok && !slices.Contains([]string{"PWD", "PICKET_SANDBOX", "PICKET_CALL", "_", "SHLVL", "OLDPWD"}, name) {
			t.Errorf("%s is not in Env", name)
		}
	}
}

func TestBoxNeverRanIsNotExitOne(t *testing.T) {
	s := testBox(t, nil)
	exec := func(argv ...string) tools.ExecResult {
		return s.Exec(context.Background(), tools.Command{Argv: argv, Timeout: 10 * time.Second})
	}
	for _, argv := range [][]string{{"no such program"}, {"/no/such/program"}, {""}, {"/etc/passwd"}, {"/usr"}, {"sh\x00"}, {"sh", "-c", "a\x00b"}} {
		if res := exec(argv...); res.Started || res.Err == "" || res.Exit != 0 || len(res.Stderr) > 0 {
			t.Errorf("%q: %+v", argv, res)
		}
	}
	for want, line := range map[int]string{0: ":", 1: "exit 1", 2: "echo 'bwrap: execvp x: No such file' >&2; exit 2", 7: "exit 7", 127: "no-such-program",
		137: "kill -9 $$", 139: "kill -SEGV $$", 143: "kill $$"} {
		if res := exec("/bin/sh", "-c", line); !res.Started || res.Err != "" || res.Exit != want {
			t.Errorf("%q: %+v", line, res)
		}
	}
}

func TestBoxOutlivesTheWaitForItsStart(t *testing.T) {
	s := testBox(t, nil)
	defer func(d time.Duration) { boxStart = d }(boxStart)
	boxStart = time.Second
	if res := in(t, s, sh("sleep 1.2; exit 5")); res.Exit != 5 {
		t.Errorf("%+v", res)
	}
}

// beats reports whether something still writes to a file.
func beats(t *testing.T, p string) bool {
	t.Helper()
	a, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(60 * time.Millisecond)
	b, _ := os.ReadFile(p)
	return len(a) != len(b)
}

const daemon = "setsid sh -c 'setsid sh -c \"while :; do echo x >>beat; sleep 0.005; done\" & exec sleep 300' >/dev/null 2>&1 & while ! test -s beat; do sleep 0.01; done; "

func TestBoxEndsEverything(t *testing.T) {
	for _, boxed := range []bool{true, false} {
		t.Run(fmt.Sprintf("boxed=%t", boxed), func(t *testing.T) {
			s := testBox(t, nil)
			if !boxed {
				s = plainSandbox(t)
			}
			ws := s.roots[0]
			start := time.Now()
			if res := in(t, s, sh(daemon+"echo done; exit 3")); res.Exit != 3 || string(res.Stdout) != "done\n" || time.Since(start) > 10*time.Second {
				t.Errorf("normal end: %+v after %v", res, time.Since(start))
			}
			if beats(t, ws+"/beat") {
				t.Error("a daemon lives on after a normal end")
			}
			ctx, cancel := context.WithCancel(context.Background())
			go func() { waitForFile(t, ws+"/ready"); cancel() }()
			if res := s.Exec(ctx, sh("trap 'echo ended; exit 9' TERM; touch ready; while :; do sleep 0.01; done")); res.Exit != 9 || string(res.Stdout) != "ended\n" {
				t.Errorf("an end of its own: %+v", res)
			}
			defer func(d time.Duration) { endGrace = d }(endGrace)
			endGrace = 200 * time.Millisecond
			if res := in(t, s, sh("(sleep 300) & echo hi")); res.TimedOut || string(res.Stdout) != "hi\n" {
				t.Errorf("a child that keeps the output open: %+v", res)
			}
			os.Remove(ws + "/beat")
			c := sh(daemon + "echo before; sleep 300 & wait")
			c.Timeout = 500 * time.Millisecond
			if res := in(t, s, c); !res.TimedOut || res.Stopped || string(res.Stdout) != "before\n" || beats(t, ws+"/beat") {
				t.Errorf("time limit: %+v", res)
			}
			os.Remove(ws + "/beat")
			ctx, cancel = context.WithCancel(context.Background())
			go func() { waitForFile(t, ws+"/beat"); time.Sleep(50 * time.Millisecond); cancel() }()
			if res := s.Exec(ctx, sh(daemon+"trap '' TERM; echo before; while :; do sleep 0.01; done")); !res.Stopped || res.TimedOut || res.Exit != 137 || string(res.Stdout) != "before\n" || beats(t, ws+"/beat") {
				t.Errorf("stop: %+v", res)
			}
		})
	}
}

// Bubblewrap ends before its box is empty; nothing may be written after that.
func TestBoxIsEmptyAtTheEnd(t *testing.T) {
	s := testBox(t, nil)
	printed(t, s, "i=0; while [ $i -lt 60 ]; do setsid sh -c 'while :; do echo x >>beat; done' & i=$((i+1)); done; while ! test -s beat; do :; done")
	a, err := os.Stat(s.roots[0] + "/beat")
	if err != nil {
		t.Fatal(err)
	}
	if beats(t, s.roots[0]+"/beat") {
		t.Error("written after the end")
	}
	if b, _ := os.Stat(s.roots[0] + "/beat"); b.Size() != a.Size() {
		t.Errorf("written after the end: %d, %d", a.Size(), b.Size())
	}
}

func TestBoxOutputFlood(t *testing.T) {
	s := testBox(t, nil)
	res := in(t, s, sh("yes 0123456789 | head -c 30000000; echo end; echo err >&2"))
	if res.StdoutSize != 30000004 || len(res.Stdout) > 1<<20+100 || !bytes.HasPrefix(res.Stdout, []byte("0123456789\n")) ||
		!bytes.HasSuffix(res.Stdout, []byte("end\n")) || string(res.Stderr) != "err\n" {
		t.Errorf("%d bytes, %d kept", res.StdoutSize, len(res.Stdout))
	}
	c := sh("yes; yes >&2")
	c.Timeout = 300 * time.Millisecond
	if res := in(t, s, c); !res.TimedOut || len(res.Stdout) > 1<<20+100 || res.StdoutSize == 0 {
		t.Errorf("endless: %d bytes, %d kept", res.StdoutSize, len(res.Stdout))
	}
}

func TestBoxNetwork(t *testing.T) {
	needs(t, "python3", "python3")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	abstract, err := net.Listen("unix", "@picket-test-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	for _, l := range []net.Listener{l, abstract} {
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
	s := testBox(t, nil)
	script := fmt.Sprintf(`import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", %d)), (socket.AF_UNIX, "\0%s")):
    try:
        socket.socket(family).connect(address); print("connected")
    except OSError as e:
        print("refused")
own = socket.create_server(("127.0.0.1", 0)); socket.create_connection(own.getsockname()); print("loopback")
try:
    socket.create_connection(("192.0.2.1", 80), 5); print("connected")
except OSError as e:
    print(e.strerror)
`, l.Addr().(*net.TCPAddr).Port, strings.TrimPrefix(abstract.Addr().String(), "@"))
	python := s.lookPath("python3")
	c := tools.Command{Argv: []string{python, "-I", tools.ScriptArg}, Script: []byte(script), Timeout: 20 * time.Second}
	if res := in(t, s, c); string(res.Stdout) != "refused\nrefused\nloopback\nNetwork is unreachable\n" {
		t.Errorf("without network: %s%s", res.Stdout, res.Stderr)
	}
	c.Script = []byte(script[:strings.Index(script, "own =")])
	c.Network = true
	if res := in(t, s, c); string(res.Stdout) != "connected\nconnected\n" {
		t.Errorf("with the host's network: %s%s", res.Stdout, res.Stderr)
	}
}

func TestBoxScript(t *testing.T) {
	s := testBox(t, nil)
	long := "# " + strings.Repeat("x", 300_000) + "\necho $1 $0; echo x >$0 || echo read-only; tail -c4 $0"
	res := in(t, s, tools.Command{Argv: []string{"/bin/sh", tools.ScriptArg, "arg"}, Script: []byte(long)})
	if string(res.Stdout) != "arg /run/script\nread-only\n4 $0" {
		t.Errorf("%q %q", res.Stdout, res.Stderr)
	}
	if entries, _ := os.ReadDir(s.roots[0]); len(entries) > 0 {
		t.Errorf("left in the workspace: %v", entries)
	}
}

func TestBoxLimits(t *testing.T) {
	s := testBox(t, nil)
	got := printed(t, s, "grep -E 'processes|file size|core|open files|cpu time' /proc/self/limits | tr -s ' ' | cut -d' ' -f3-6; cat /proc/self/oom_score_adj; ulimit -n 1000000 && echo raised")
	for _, want := range []string{"time 600 600", "size 4294967296 4294967296", "size 1 1", "512 512", "4096 4096", "\n1000\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if strings.Contains(got, "raised") && os.Geteuid() != 0 {
		t.Error("a limit was raised")
	}
	if os.Geteuid() != 0 { // the kernel does not count for root
		defer func(n uint64) { limits[6] = n }(limits[6])
		limits[6] = 40
		c := sh("i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); done; echo all")
		if res := in(t, s, c); strings.Contains(string(res.Stdout), "all") {
			t.Errorf("60 processes: %+v", res)
		}
	}
}

func TestBoxManyAtOnce(t *testing.T) {
	s := testBox(t, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			res := s.Exec(context.Background(), sh(fmt.Sprintf("echo %d; sleep 0.05; ps -e 2>/dev/null | wc -l; exit %d", i, i)))
			if want := fmt.Sprintf("%d\n", i); !res.Started || res.Exit != i || !strings.HasPrefix(string(res.Stdout), want) {
				t.Errorf("%d: %+v", i, res)
			}
		}()
	}
	wg.Wait()
}

func TestBoxTools(t *testing.T) {
	s := testBox(t, nil)
	for _, c := range []struct{ program, install, line, want string }{
		{"python3", "python3", `python3 -I -c 'import multiprocessing as m
if __name__ == "__main__":
    with m.Pool(2) as p: print(sum(p.map(abs, [-1, -2])))'`, "3"},
		{"python3", "python3-venv", "python3 -I -m venv --without-pip v && v/bin/python -c 'import asyncio; print(asyncio.run(asyncio.sleep(0, 5)))'", "5"},
		{"python3", "python3", `python3 -I -c 'from multiprocessing import shared_memory as m
a = m.SharedMemory(create=True, size=9); a.buf[0] = 7; b = m.SharedMemory(a.name); print(b.buf[0]); b.close(); a.unlink()'`, "7"},
		{"pip3", "python3-pip", "pip3 --version >/dev/null && echo pip", "pip"},
		{"git", "git", "git init -q s && cd s && " + identity + "git commit -q --allow-empty -m one && git gc -q && git worktree add -q ../w && git clone -q . ../copy && git -C ../copy log --format=%s", "one"},
		{"git", "git", "git init -q r 2>/dev/null && cd r && git -c user.name=a -c user.email=b@c commit -q --allow-empty -m one && git log --format=%s", "one"},
		{"node", "nodejs", `node -e 'new (require("worker_threads").Worker)("console.log(6*7)", {eval: true})'`, "42"},
		{"node", "nodejs", `node -e 'const h = require("http"); h.createServer((q, r) => r.end("served")).listen(0, "127.0.0.1", function() { fetch("http://127.0.0.1:" + this.address().port).then(r => r.text()).then(t => { console.log(t); process.exit() }) })'`, "served"},
		{"node", "nodejs", `node -e 'console.log(Object.keys(require("os").networkInterfaces()).join())'`, "lo"},
		{"npm", "npm", `mkdir n && cd n && npm init -y >/dev/null && npm pkg set scripts.x="echo npm" >/dev/null && npm run -s x`, "npm"},
		{"make", "make", "printf 'all:\\n\\t@echo made\\n' >Makefile && make -s", "made"},
		{"curl", "curl", "python3 -I -m http.server -b 127.0.0.1 8000 >/dev/null 2>&1 & for i in 1 2 3 4 5 6 7 8 9; do curl -sf http://127.0.0.1:8000/ >/dev/null && echo got && break; sleep 0.3; done", "got"},
		{"gcc", "gcc", `printf 'int puts(const char*);int main(){puts("built");}' >$TMPDIR/a.c && gcc -o $TMPDIR/a $TMPDIR/a.c && $TMPDIR/a`, "built"},
		{"go", "Go", "go env GOOS", "linux"},
		{"tar", "tar", "echo x >f && tar cf - f | tar tf -", "f"},
	} {
		t.Run(c.program, func(t *testing.T) {
			needs(t, c.program, c.install)
			if s.lookPath(c.program) == "" {
				need(t, false, c.program+" in the box (install "+c.install+" for all users)")
			}
			if got := printed(t, s, c.line); got != c.want {
				t.Error(got)
			}
		})
	}
}

func TestBoxSeesPrograms(t *testing.T) {
	s := testBox(t, func(c *boxConfig) {
		write(t, c.Workspace+"/tool", "#!/bin/sh\n")
		write(t, c.Workspace+"/bin/other", "#!/bin/sh\n")
		write(t, c.Workspace+"/../bin/hidden", "#!/bin/sh\n")
		for _, p := range []string{"/tool", "/bin/other", "/../bin/hidden"} {
			os.Chmod(c.Workspace+p, 0o755)
		}
		for name, target := range map[string]string{"up": "../bin/hidden", "abs": "/usr/bin/env", "loop": "loop", "sys": "/bin/sh"} {
			if err := os.Symlink(target, c.Workspace+"/bin/"+name); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", c.Workspace+"/../bin:"+c.Workspace+"/bin:/usr/bin:/bin")
	})
	real := func(p string) string { r, _ := filepath.EvalSymlinks(p); return r }
	for name, want := range map[string]string{"./tool": s.roots[0] + "/tool", "tool": "", "other": s.roots[0] + "/bin/other", "hidden": "",
		"up": "", "abs": real("/usr/bin/env"), "loop": "", "sys": real("/bin/sh"), "sh": real("/bin/sh"), "/bin/sh": real("/bin/sh"),
		"../bin/hidden": "", "": "", "bin": "", "no such": "", "/bin": ""} {
		if got := s.lookPath(name); got != want {
			t.Errorf("%q is %q, not %q", name, got, want)
		}
	}
	if res := s.Exec(context.Background(), tools.Command{Argv: []string{"hidden"}}); res.Started {
		t.Errorf("%+v", res)
	}
	if got := s.Missing(); len(got) != 1 || !strings.Contains(got[0], "/bin") || !strings.Contains(got[0], `"read_only"`) {
		t.Errorf("missing: %q", got)
	}
}

func TestBoxPythonBelowHome(t *testing.T) {
	var home string
	tool := "#!/bin/sh\necho $0\n"
	s := testBox(t, func(c *boxConfig) {
		home = os.Getenv("HOME")
		for _, p := range []string{"/.pyenv/versions/3.9.1/bin/python3", "/.pyenv/shims/python3", "/bin/python3"} {
			write(t, home+p, tool)
			os.Chmod(home+p, 0o755)
		}
		write(t, home+"/.pyenv/versions/3.9.1/lib/python3.9/os.py", "")
		write(t, home+"/.pyenv/version", "3.9.1\n")
		write(t, home+"/.pyenv/secret", "hunter2")
		t.Setenv("PATH", home+"/.pyenv/shims:/usr/bin:/bin")
	})
	if got := printed(t, s, "python3; ls -A "+home+"/.pyenv; cat "+home+"/.pyenv/secret"); !strings.HasPrefix(got, home+"/.pyenv/versions/3.9.1/bin/python3\nversions\n") || strings.Contains(got, "hunter2") {
		t.Error(got)
	}
	// An environment in the workspace stays writable; the installation that it
	// uses is reached through a folder that is a link.
	real := home + "/.local/share/uv/python/cpython-3.9.1"
	for _, p := range []string{"/bin/python3.9", "/lib/python3.9/os.py"} {
		write(t, real+p, tool)
		os.Chmod(real+p, 0o755)
	}
	write(t, s.roots[0]+"/.venv/pyvenv.cfg", "")
	os.Mkdir(s.roots[0]+"/.venv/bin", 0o755)
	if err := errors.Join(os.Symlink("cpython-3.9.1", home+"/.local/share/uv/python/cpython-3.9"),
		os.Symlink(home+"/.local/share/uv/python/cpython-3.9/bin/python3.9", s.roots[0]+"/.venv/bin/python3")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", s.roots[0]+"/.venv/bin:/usr/bin:/bin")
	v, err := newSandbox(boxConfig{Workspace: s.cfg.Workspace})
	if err != nil {
		t.Fatal(err)
	}
	if got := printed(t, v, "python3; touch .venv/x && echo writable"); got != s.roots[0]+"/.venv/bin/python3\nwritable" || v.lookPath("python3") != real+"/bin/python3.9" {
		t.Errorf("%s, %s", got, v.lookPath("python3"))
	}
	// A link in the workspace to an environment elsewhere is no place for a mount.
	write(t, home+"/envs/x/pyvenv.cfg", "")
	write(t, home+"/envs/x/bin/python3", tool)
	if err := errors.Join(os.Chmod(home+"/envs/x/bin/python3", 0o755), os.Symlink(home+"/envs/x", s.roots[0]+"/linked")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", s.roots[0]+"/linked/bin:/usr/bin:/bin")
	if v, err = newSandbox(boxConfig{Workspace: s.cfg.Workspace}); err != nil {
		t.Fatal(err)
	}
	if got := printed(t, v, "test -e linked && echo seen"); got != "" || len(v.box.base[s.roots[0]+"/linked"].dst) > 0 {
		t.Errorf("%s", got)
	}
	// A program directly in home's bin is no installation: home would be bound.
	t.Setenv("PATH", home+"/bin:/usr/bin:/bin")
	s, err = newSandbox(boxConfig{Workspace: s.cfg.Workspace})
	if err != nil {
		t.Fatal(err)
	}
	if got := printed(t, s, "ls -A "+home+"; command -v python3 || :"); strings.Contains(got, "pyenv") || strings.Contains(got, home+"/bin") {
		t.Error(got)
	}
}

// fakeBwrap puts a program named bwrap first on PATH.
func fakeBwrap(t *testing.T, script string) string {
	t.Helper()
	real, err := exec.LookPath("bwrap")
	if err != nil {
		needBox(t)
	}
	dir := t.TempDir()
	write(t, dir+"/bwrap", "#!/bin/bash\nREAL="+real+"\n"+script)
	if err := os.Chmod(dir+"/bwrap", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return dir + "/bwrap"
}

func TestBoxThatIsMissingOrHalf(t *testing.T) {
	refuseArg := func(message string, args ...string) string {
		return "for a; do case $a in --) break;; " + strings.Join(args, "|") + ") echo 'bwrap: " + message + "' >&2; exit 1;; esac; done; exec $REAL \"$@\"\n"
	}
	fail := func(message string) string { return "echo 'bwrap: " + message + "' >&2; exit 1\n" }
	defer func(marks []string) { containerMarks = marks }(containerMarks)
	for _, c := range []struct {
		name, script    string
		boxed, net      bool
		line, hint, not string
	}{
		{name: "not installed", line: "not installed", hint: "apt install bubblewrap"},
		{"user namespaces blocked by AppArmor", fail("setting up uid map: Permission denied"), false, false, "AppArmor", "/etc/apparmor.d/bwrap", ""},
		{"network set-up blocked by AppArmor", refuseArg("loopback: Failed RTM_NEWADDR: Operation not permitted", "--unshare-net", "--unshare-all"), true, false, "network cannot be blocked", "/etc/apparmor.d/bwrap", ""},
		{"no network namespace", refuseArg("Creating new namespace failed: x", "--unshare-net", "--unshare-all"), true, false, "network cannot be blocked", "bwrap", ""},
		{"before 0.8", refuseArg("Unknown option --disable-userns", "--disable-userns"), true, true, "further user namespaces refused by the filter", "", "not disabled"},
		{"before 0.7", refuseArg("Unknown option --size", "--size", "--disable-userns"), true, true, "further user namespaces refused by the filter", "", "not filtered"},
		{"no filter", refuseArg("Unable to set up system call filtering as requested: prctl(PR_SET_SECCOMP) reported EINVAL.", "--seccomp"), true, true, "system calls not filtered", "", "namespaces"},
		{"no filter and before 0.8", refuseArg("x", "--seccomp", "--disable-userns"), true, true, "not filtered, further user namespaces not disabled", "", ""},
		{"no filter and no network namespace", refuseArg("x", "--seccomp", "--unshare-net"), true, false, "network cannot be blocked", "", ""},
		{"before 0.5", refuseArg("Unknown option --perms", "--perms"), false, false, "too old", "0.8", ""},
		{"says nothing", "exit 1\n", false, false, "bubblewrap failed", "", ""},
		{"names a process that is not its child", "echo \"{ \\\"child-pid\\\": $BYSTANDER }\" >&3; exec sleep 300\n", false, false, "bubblewrap failed", "", ""},
		{"is no program", "\x00\x01", false, false, "bubblewrap failed", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			needBox(t)
			t.Setenv("container", "")
			containerMarks = nil
			ws := t.TempDir()
			bystander := exec.Command("sleep", "300")
			if err := bystander.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { bystander.Process.Kill(); bystander.Wait() }()
			limits := fmt.Sprintf("/proc/%d/limits", bystander.Process.Pid)
			before, _ := os.ReadFile(limits)
			c.script = strings.ReplaceAll(c.script, "$BYSTANDER", strconv.Itoa(bystander.Process.Pid))
			if fakeBwrap(t, c.script); c.script == "" {
				bin := t.TempDir() // with what the test itself needs, and no bwrap
				t.Setenv("PATH", bin)
			}
			for _, mode := range []string{"auto", "bwrap"} {
				s, err := newSandbox(boxConfig{Mode: mode, Workspace: ws})
				if err != nil {
					t.Fatal(err)
				}
				st := s.State()
				if st.Boxed != c.boxed || st.NetBlocked != c.net || !strings.Contains(st.Line, c.line) || !strings.Contains(st.Hint, c.hint) ||
					c.not != "" && strings.Contains(st.Line, c.not) || (st.RefuseExec != "") != (mode == "bwrap" && !c.boxed) {
					t.Errorf("%s: %+v", mode, st)
				}
				os.Remove(ws + "/ran")
				res := s.Exec(context.Background(), sh(": >ran; echo $PICKET_SANDBOX"))
				_, err = os.Stat(ws + "/ran")
				if mode == "bwrap" && !c.boxed {
					if res.Started || res.Err == "" || err == nil {
						t.Errorf("it ran: %+v", res)
					}
				} else if want := map[bool]string{true: "bwrap\n", false: "off\n"}[c.boxed]; string(res.Stdout) != want || err != nil {
					t.Errorf("%s: %+v", mode, res)
				}
			}
			if after, err := os.ReadFile(limits); err != nil || !bytes.Equal(before, after) || bystander.Process.Signal(syscall.Signal(0)) != nil {
				t.Errorf("a bystander came to harm: %v\n%s", err, after)
			}
		})
	}
}

func TestBoxFromTheWorkspaceIsNotUsed(t *testing.T) {
	fake := fakeBwrap(t, "exec $REAL \"$@\"\n")
	s, err := newSandbox(boxConfig{Workspace: filepath.Dir(fake)})
	if err != nil || s.State().Boxed {
		t.Errorf("%v %+v", err, s.State())
	}
}

// The probe has an end even if what it starts has none.
func TestBoxProbeIsLimited(t *testing.T) {
	defer func(a, b time.Duration) { boxStart, endGrace = a, b }(boxStart, endGrace)
	boxStart, endGrace = 200*time.Millisecond, 100*time.Millisecond
	fakeBwrap(t, "exec $REAL --dev-bind / / --json-status-fd 3 sleep 300\n")
	s, err := newSandbox(boxConfig{Workspace: t.TempDir()})
	if err != nil || s.State().Boxed {
		t.Errorf("%v %+v", err, s.State())
	}
}

// A box that fails later is an error, never a run without it.
func TestBoxThatFailsInMidRun(t *testing.T) {
	defer func(d time.Duration) { endGrace = d }(endGrace)
	endGrace = 200 * time.Millisecond
	fake := fakeBwrap(t, "exec $REAL \"$@\"\n")
	ws := t.TempDir()
	s, err := newSandbox(boxConfig{Workspace: ws})
	if err != nil || !s.State().Boxed {
		t.Fatalf("%v %+v", err, s.State())
	}
	refused := func(what string) {
		t.Helper()
		res := s.Exec(context.Background(), sh("touch ran"))
		if _, err := os.Lstat(ws + "/ran"); err == nil || res.Started || res.Err == "" {
			t.Errorf("%s: %+v", what, res)
		}
	}
	for _, script := range []string{"echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "exit 0", "kill -9 $$", "echo '{}' >&3", "touch ran; exec sleep 300 <&-",
		"echo '{ \"child-pid\": 999999999 }' >&3; exec sleep 300", "/bin/sh -c 'sleep 300' & exit 0"} {
		write(t, fake, "#!/bin/bash\n"+script+"\n")
		if strings.Contains(script, "300") {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			res := s.Exec(ctx, tools.Command{Argv: []string{"touch", "ran"}})
			cancel()
			if res.Started || res.Err == "" {
				t.Errorf("%s: %+v", script, res)
			}
			continue
		}
		refused(script)
	}
	if err := os.Remove(fake); err != nil {
		t.Fatal(err)
	}
	refused("removed")
}

// The box's first process must end with the box when bubblewrap is killed, and
// the result must not claim that nothing ran.
func TestBoxKilledFromOutside(t *testing.T) {
	s := testBox(t, nil)
	ws := s.roots[0]
	done := make(chan tools.ExecResult)
	go func() {
		done <- s.Exec(context.Background(), sh("echo out; while :; do echo x >>beat; sleep 0.005; done"))
	}()
	waitForFile(t, ws+"/beat")
	pids := childrenOf(t, os.Getpid(), "bwrap")
	if len(pids) != 1 {
		t.Fatalf("bubblewrap is %v", pids)
	}
	syscall.Kill(pids[0], syscall.SIGKILL)
	res := <-done
	if !res.Started || res.Err == "" || res.Exit != 137 || string(res.Stdout) != "out\n" || beats(t, ws+"/beat") {
		t.Errorf("%+v", res)
	}
}

func childrenOf(t *testing.T, parent int, name string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		stat, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
		var pid, ppid int
		var state string
		if _, rest, ok := strings.Cut(string(stat), "("+name+") "); ok {
			fmt.Sscan(rest, &state, &ppid)
			if pid, _ = strconv.Atoi(e.Name()); ppid == parent && state != "Z" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// The helper is picket as far as the box is concerned: it runs one boxed line
// until it is killed.
func TestBoxDiesWithPicket(t *testing.T) {
	if ws := os.Getenv("PICKET_TEST_HELPER_WS"); ws != "" {
		s, err := newSandbox(boxConfig{Workspace: ws})
		if err != nil || !s.State().Boxed {
			t.Fatal(err)
		}
		s.Exec(context.Background(), sh(daemon+"sleep 300"))
		return
	}
	needBox(t)
	ws := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestBoxDiesWithPicket$")
	cmd.Env = append(os.Environ(), "PICKET_TEST_HELPER_WS="+ws)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitForFile(t, ws+"/beat")
	cmd.Process.Kill()
	cmd.Wait()
	for range 200 {
		if !beats(t, ws+"/beat") {
			return
		}
	}
	t.Error("the box lives on")
}

// startHeld starts bubblewrap as a call does, up to where the box is held.
func startHeld(t *testing.T, s *sandbox, line string, swap func()) *holder {
	t.Helper()
	os.Remove(s.roots[0] + "/ran")
	h := &holder{cmd: exec.Command(s.box.bwrap), mark: newMark(), filter: s.box.filter}
	repos, err := s.findRepos()
	if err == nil {
		h.mounts, err = s.mounts(sh(""), repos)
	}
	script := 0
	if err == nil {
		script, err = h.open(sh(""))
	}
	swap()
	if err == nil {
		h.cmd.Args = append([]string{"bwrap"}, s.bwrapArgs(sh(line), h.mounts, script, h.options...)...)
		h.cmd.Env, h.cmd.SysProcAttr = []string{"PATH=/usr/bin:/bin", h.mark}, ownSession()
		err = h.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(20*time.Second, func() { t.Error("it does not end"); endStragglers(h.mark) })
	t.Cleanup(func() { late.Stop(); h.close() })
	return h
}

// However far a box has come when picket is gone, it ends, and a command that was
// not let run does not run. What the kernel does to a killed picket's descriptors
// is done here by closing them.
func TestBoxEndsWithItsHolder(t *testing.T) {
	s := testBox(t, nil)
	for name, then := range map[string]func(t *testing.T, h *holder){
		"not let run": func(t *testing.T, h *holder) {
			for _, f := range h.cmd.ExtraFiles {
				f.Close()
			}
			h.close()
		},
		"let run, but not yet seen to": func(t *testing.T, h *holder) {
			for _, f := range h.cmd.ExtraFiles {
				f.Close()
			}
			var said struct {
				Pid int `json:"child-pid"`
			}
			if err := h.events.Decode(&said); err != nil || said.Pid < 2 {
				t.Fatal(err)
			}
			child, _ := os.FindProcess(said.Pid)
			child.Signal(syscall.SIGSTOP)
			h.block.Write([]byte{1})
			h.gate.Write(h.filter)
			syscall.Shutdown(int(h.gate.Fd()), syscall.SHUT_WR)
			h.close()
			child.Signal(syscall.SIGCONT)
		},
		"running": func(t *testing.T, h *holder) {
			if err := h.held(t.Context()); err != nil {
				t.Fatal(err)
			}
			waitForFile(t, s.roots[0]+"/ran")
			h.leash[1].Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHeld(t, s, "touch ran; exec sleep 300", func() {})
			then(t, h)
			h.cmd.Wait()
			if _, err := os.Lstat(s.roots[0] + "/ran"); (err == nil) != (name == "running") {
				t.Errorf("ran: %v", err)
			}
		})
	}
}

// A call in another box can put a link where picket has just looked: what it
// leads to would be in the box, and what was to be hidden would not be.
func TestBoxNotAsAskedIsNotRun(t *testing.T) {
	for name, swap := range map[string]func(ws, out string) error{
		"nothing": func(ws, out string) error { return nil },
		"repository": func(ws, out string) error {
			return errors.Join(os.Rename(ws+"/sub", ws+"/old"), os.Symlink(out, ws+"/sub"))
		},
		"git directory": func(ws, out string) error {
			return errors.Join(os.Rename(ws+"/sub/.git", ws+"/old"), os.Symlink(out+"/.git", ws+"/sub/.git"))
		},
		"hidden folder": func(ws, out string) error {
			return errors.Join(os.Rename(ws+"/a/data", ws+"/old"), os.Symlink("../sub", ws+"/a/data"))
		},
		"above the hidden folder": func(ws, out string) error {
			return errors.Join(os.Rename(ws+"/a", ws+"/old"), os.Symlink("old", ws+"/a"))
		},
		"link within the workspace": func(ws, out string) error {
			return errors.Join(os.Rename(ws+"/sub", ws+"/old"), os.Symlink("old", ws+"/sub"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testBox(t, func(c *boxConfig) {
				write(t, c.Workspace+"/sub/.git/HEAD", "")
				write(t, c.Workspace+"/a/data/key", "hunter2")
				write(t, c.Workspace+"/../out/.git/HEAD", "hunter2")
				write(t, c.Workspace+"/../out/data/HEAD", "hunter2")
				c.Hide = []string{c.Workspace + "/a/data"}
			})
			out := filepath.Dir(s.roots[0]) + "/out"
			before := tree(t, out)
			h := startHeld(t, s, "touch ran; cat sub/.git/HEAD; exec sleep 300", func() {
				if err := swap(s.roots[0], out); err != nil {
					t.Fatal(err)
				}
			})
			err := h.held(t.Context())
			if err == nil && name == "nothing" {
				waitForFile(t, s.roots[0]+"/ran")
			}
			h.cmd.Process.Kill()
			h.cmd.Wait()
			h.gone()
			if _, ran := os.Lstat(s.roots[0] + "/ran"); (ran == nil) != (name == "nothing") || (err == nil) != (name == "nothing") {
				t.Errorf("%v, ran: %v", err, ran)
			}
			unchanged(t, "outside", out, before)
		})
	}
}

func TestResolverBeyondEtc(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/run/systemd/stub.conf", "nameserver 127.0.0.53")
	for name, target := range map[string]string{"/resolv.conf": dir + "/link", "/link": "run/systemd/stub.conf", "/dangling": "nowhere", "/loop": "loop"} {
		if err := os.Symlink(target, dir+name); err != nil {
			t.Fatal(err)
		}
	}
	real, _ := filepath.EvalSymlinks(dir + "/resolv.conf")
	for name, want := range map[string]mountSet{
		"/resolv.conf":           {dir + "/link": {dst: dir + "/link", src: real, kind: mountRO}},
		"/dangling":              {},
		"/loop":                  {},
		"/run/systemd/stub.conf": {},
		"/none":                  {},
	} {
		m := mountSet{}
		m.addResolver(dir + name)
		if fmt.Sprint(m) != fmt.Sprint(want) {
			t.Errorf("%s: %v", name, m)
		}
	}
}

// The kernel kills a box when the thread that started it ends, and a goroutine
// locked to its thread ends that thread.
func TestNoGoroutineIsLockedToAThread(t *testing.T) {
	files, err := filepath.Glob("*.go")
	more, _ := filepath.Glob("tools/*.go")
	if err != nil || len(files) < 5 {
		t.Fatalf("no source here: %v", err)
	}
	for _, f := range append(files, more...) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("LockOS"+"Thread")) {
			t.Errorf("%s locks a goroutine to its thread", f)
		}
	}
}

// A benchmark compares ways to run true in a box, in turn, by the median; the
// last ratio is to the first way.
func compareBoxes(b *testing.B, names []string, ways []func() error) {
	took := make([][]time.Duration, len(ways))
	for b.Loop() {
		for i, way := range ways {
			start := time.Now()
			if err := way(); err != nil {
				b.Fatalf("%s: %v", names[i], err)
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	var first time.Duration
	for i, t := range took {
		slices.Sort(t)
		median := t[len(t)/2]
		if i == 0 {
			first = median
		}
		b.ReportMetric(float64(median.Microseconds())/1000, names[i]+"-ms")
		b.ReportMetric(float64(median)/float64(first), names[i]+"-ratio")
	}
}

// bareBox runs bubblewrap alone: with the arguments of a call, or with the plain
// ones that are needed to see the same files.
func bareBox(b *testing.B, s *sandbox, plain bool) func() error {
	m, err := s.mounts(sh(""), nil)
	if err != nil {
		b.Fatal(err)
	}
	args := s.bwrapArgs(tools.Command{Argv: []string{"/bin/true"}}, m, 0)
	i := slices.Index(args, "--json-status-fd") // and the other one
	args = slices.Delete(args, i, i+4)
	filter := filepath.Join(b.TempDir(), "filter")
	write(b, filter, string(s.box.filter))
	args = append([]string{"--seccomp", "3"}, args...)
	if plain {
		args = []string{"--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"}
		for _, n := range s.box.base {
			args = append(args, map[mountKind]string{mountBind: "--bind", mountRO: "--ro-bind"}[n.kind], n.src, n.dst)
		}
		for name, target := range s.box.links {
			args = append(args, "--symlink", target, name)
		}
		args = append(args, "--", "/bin/true")
	}
	env := s.environ(nil)
	return func() error {
		f, err := os.Open(filter)
		if err != nil {
			return err
		}
		defer f.Close()
		cmd := exec.Command(s.box.bwrap, args...)
		cmd.Env, cmd.ExtraFiles = env, []*os.File{f}
		return cmd.Run()
	}
}

func boxed(s *sandbox) func() error {
	return func() error {
		if res := s.Exec(context.Background(), tools.Command{Argv: []string{"/bin/true"}}); !res.Started || res.Exit != 0 {
			return errors.New(res.Err)
		}
		return nil
	}
}

// BenchmarkBox compares a call with bubblewrap alone with the same arguments.
func BenchmarkBox(b *testing.B) {
	s := testBox(b, nil)
	compareBoxes(b, []string{"bare", "box"}, []func() error{bareBox(b, s, false), boxed(s)})
}

// BenchmarkBoxHardened compares a call with masks and a repository with plain
// bubblewrap, and with itself without the filter.
func BenchmarkBoxHardened(b *testing.B) {
	s := testBox(b, func(c *boxConfig) {
		write(b, c.Workspace+"/a/data/key", "")
		write(b, c.Workspace+"/.git/HEAD", "")
		c.Hide = []string{c.Workspace + "/a/data"}
	})
	open := *s
	open.box.without = []string{"--seccomp"}
	compareBoxes(b, []string{"plain", "unfiltered", "hardened"}, []func() error{bareBox(b, s, true), boxed(&open), boxed(s)})
}

// BenchmarkBoxesAtOnce compares eight calls at a time.
func BenchmarkBoxesAtOnce(b *testing.B) {
	s := testBox(b, nil)
	eight := func(one func() error) func() error {
		return func() error {
			failed := make(chan error)
			for range 8 {
				go func() { failed <- one() }()
			}
			var err error
			for range 8 {
				err = errors.Join(err, <-failed)
			}
			return err
		}
	}
	compareBoxes(b, []string{"bare", "box"}, []func() error{eight(bareBox(b, s, false)), eight(boxed(s))})
}
