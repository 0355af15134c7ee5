package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/bpf"
)

// seccompData is a struct seccomp_data as the virtual machine of package bpf
// reads it, which is word by word and in network order.
func seccompData(arch, nr uint32, args ...uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, nr)
	b = binary.BigEndian.AppendUint32(b, arch)
	b = append(b, make([]byte, 8)...) // instruction pointer
	for i := range 6 {
		var arg uint64
		if i < len(args) {
			arg = args[i]
		}
		b = binary.BigEndian.AppendUint32(b, uint32(arg))
		b = binary.BigEndian.AppendUint32(b, uint32(arg>>32))
	}
	return b
}

const (
	retEPERM = retErrno | uint32(syscall.EPERM)
	retNoSys = retErrno | uint32(syscall.ENOSYS)
	retNoFam = retErrno | uint32(syscall.EAFNOSUPPORT)
)

func runFilter(t *testing.T, p []bpf.Instruction, data []byte) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

func TestFilter(t *testing.T) {
	const none = 1 << 31 // no such call on this architecture
	type c struct {
		name         string
		amd64, arm64 uint32
		args         []uint64
		want         uint32
	}
	a := func(args ...uint64) []uint64 { return args }
	cases := []c{
		{"read", 0, 63, nil, retAllow},
		{"write", 1, 64, a(1 << 63), retAllow},
		{"execve", 59, 221, nil, retAllow},
		{"wait4", 61, 260, nil, retAllow},
		{"personality", 135, 92, a(0x40000), retAllow},
		{"seccomp", 317, 277, nil, retAllow},
		{"memfd_create", 319, 279, nil, retAllow},
		{"landlock_create_ruleset", 444, 444, nil, retAllow},
		{"pidfd_open", 434, 434, nil, retAllow},
		{"the last that is known but one", 466, 466, nil, retAllow},
		{"later than known", 468, 468, nil, retNoSys},
		{"much later", 100000, 100000, nil, retNoSys},
		{"x32 write", 0x40000001, 0x40000001, nil, retNoSys},
		{"x32 ptrace", 0x40000000 | 521, none, nil, retNoSys},
		{"minus one", 0xffffffff, 0xffffffff, nil, retNoSys},
		{"clone3", 435, 435, nil, retNoSys},
		{"openat2", 437, 437, nil, retNoSys},

		{"thread", 56, 220, a(0x3d0f00), retAllow},
		{"fork", 56, 220, a(0x1200011), retAllow},
		{"clone with SIGCHLD and high word", 56, 220, a(1<<60 | 17), retAllow},
		{"clone, mounts", 56, 220, a(0x20000 | 17), retEPERM},
		{"clone, cgroups", 56, 220, a(0x02000000 | 17), retEPERM},
		{"clone, host names", 56, 220, a(0x04000000 | 17), retEPERM},
		{"clone, IPC", 56, 220, a(0x08000000 | 17), retEPERM},
		{"clone, users", 56, 220, a(0x10000000 | 17), retEPERM},
		{"clone, users and high word", 56, 220, a(1<<40 | 0x10000000 | 17), retEPERM},
		{"clone, processes", 56, 220, a(0x20000000 | 17), retEPERM},
		{"clone, network", 56, 220, a(0x40000000 | 17), retEPERM},
		{"unshare files", 272, 97, a(0x400), retAllow},
		{"unshare folder", 272, 97, a(0x200), retAllow},
		{"unshare users", 272, 97, a(0x10000000), retEPERM},
		{"unshare time", 272, 97, a(0x80), retEPERM},
		{"unshare mounts and folder", 272, 97, a(0x20200), retEPERM},

		{"terminal settings", 16, 29, a(0, 0x5401), retAllow},
		{"terminal input", 16, 29, a(0, 0x5412), retEPERM},
		{"terminal input and high word", 16, 29, a(0, 1<<32|0x5412), retEPERM},
		{"console", 16, 29, a(0, 0x541c), retEPERM},
		{"console and high word", 16, 29, a(0, 0xffffffff<<32|0x541c), retEPERM},
		{"number in the wrong argument", 16, 29, a(0x5412, 0x5401, 0x5412), retAllow},

		{"unix socket", 41, 198, a(1, 1), retAllow},
		{"internet socket", 41, 198, a(2, 1), retAllow},
		{"internet socket, version 6", 41, 198, a(10, 0x80002), retAllow},
		{"route", 41, 198, a(16, 3, 0), retAllow},
		{"audit", 41, 198, a(16, 3, 9), retNoFam},
		{"kobject", 41, 198, a(16, 3, 15), retNoFam},
		{"netfilter", 41, 198, a(16, 3, 12), retNoFam},
		{"netlink with a high word", 41, 198, a(16, 3, 1<<32), retAllow},
		{"vsock", 41, 198, a(40, 1), retNoFam},
		{"vsock and high word", 41, 198, a(1<<32|40, 1), retNoFam},
		{"packet", 41, 198, a(17, 3), retNoFam},
		{"alg", 41, 198, a(38, 5), retNoFam},
		{"xdp", 41, 198, a(44, 3), retNoFam},
		{"no family", 41, 198, a(0), retNoFam},
		{"bluetooth", 41, 198, a(31), retNoFam},
		{"pair", 53, 199, a(1, 1), retAllow},
		{"pair of vsock", 53, 199, a(40, 1), retNoFam},
		{"pair of tipc", 53, 199, a(30, 1), retNoFam},

		{"open, no new file, mode of chance", 2, none, a(0, 0, 0o7777), retAllow},
		{"open, new set-user-ID file", 2, none, a(0, 0x41, 0o4755), retEPERM},
		{"openat, no new file, mode of chance", 257, 56, a(0, 0, 0x10000, 0o6777), retAllow},
		{"openat, new file", 257, 56, a(0, 0, 0x41, 0o1777), retAllow},
		{"openat, new set-user-ID file", 257, 56, a(0, 0, 0x41, 0o4755), retEPERM},
		{"openat, unnamed set-user-ID file", 257, 56, a(0, 0, 0x410002, 0o4755), retEPERM},
		{"creat", 85, none, a(0, 0o4700), retEPERM},
		{"chmod", 90, none, a(0, 0o4755), retEPERM},
		{"chmod, harmless", 90, none, a(0, 0o1755), retAllow},
		{"fchmod", 91, 52, a(3, 0o4711), retEPERM},
		{"fchmodat", 268, 53, a(3, 0, 0o4711), retEPERM},
		{"fchmodat and high word", 268, 53, a(3, 0, 1<<33|0o4711), retEPERM},
		{"fchmodat2", 452, 452, a(3, 0, 0o4711), retEPERM},
		{"mknod", 133, none, a(0, 0o104755), retEPERM},
		{"mknodat", 259, 33, a(3, 0, 0o104755), retEPERM},
		{"mknodat of a fifo", 259, 33, a(3, 0, 0o010644), retAllow},
	}
	for _, list := range [][]sysCall{sysRefused, sysTracing} {
		for _, s := range list {
			amd64, arm64 := s.amd64, s.arm64
			if arm64 == 0 {
				arm64 = none
			}
			cases = append(cases, c{s.name, amd64, arm64, nil, retEPERM})
		}
	}
	for _, arch := range []struct {
		name  string
		token uint32
		nr    func(c) uint32
	}{{"amd64", archAMD64, func(c c) uint32 { return c.amd64 }}, {"arm64", archARM64, func(c c) uint32 { return c.arm64 }}} {
		p := filterProgram(arch.name, false, false)
		for _, c := range cases {
			if nr := arch.nr(c); nr != none {
				if got := runFilter(t, p, seccompData(arch.token, nr, c.args...)); got != c.want {
					t.Errorf("%s, %s: %#x, not %#x", arch.name, c.name, got, c.want)
				}
			}
		}
		for _, token := range []uint32{0x40000003, 0x40000028, 0, 0xc000003d, archAMD64 ^ archARM64 ^ arch.token} { // i386, arm, none, …
			for nr := range uint32(500) {
				if got := runFilter(t, p, seccompData(token, nr)); got != retKill {
					t.Fatalf("%s: call %d of architecture %#x: %#x", arch.name, nr, token, got)
				}
			}
		}
		debug := filterProgram(arch.name, true, true)
		for _, s := range sysTracing {
			if got := runFilter(t, debug, seccompData(arch.token, arch.nr(c{"", s.amd64, s.arm64, nil, 0}))); got != retAllow {
				t.Errorf("%s with debuggers, %s: %#x", arch.name, s.name, got)
			}
		}
		fchmod := arch.nr(c{"", 91, 52, nil, 0})
		for root, want := range map[bool]uint32{false: retAllow, true: retEPERM} {
			if got := runFilter(t, filterProgram(arch.name, false, root), seccompData(arch.token, fchmod, 3, 0o2755)); got != want {
				t.Errorf("%s, root %t, set-group-ID: %#x", arch.name, root, got)
			}
		}
		if b := syscallFilter(arch.name, false, true); len(b)%8 != 0 || len(b) < 8*100 || len(b) > 8*4096 {
			t.Errorf("%s: %d bytes", arch.name, len(b))
		}
	}
	if syscallFilter("riscv64", false, false) != nil {
		t.Error("a filter with the numbers of another architecture")
	}
}

// The numbers are compared with those of another list.
func TestFilterNumbers(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	need(t, err == nil, "the go command, and the module's source")
	src, err := os.ReadFile("seccomp_linux.go")
	if err != nil {
		t.Fatal(err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		b, err := os.ReadFile(strings.TrimSpace(string(dir)) + "/unix/zsysnum_linux_" + arch + ".go")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range regexp.MustCompile(`[{(]"([a-z0-9_]+)", (\d+), (\d+)[,}]`).FindAllSubmatch(src, -1) {
			want := "0"
			if at := regexp.MustCompile(`(?m)^\s+SYS_` + strings.ToUpper(string(m[1])) + `\s+= (\d+)$`).FindSubmatch(b); at != nil {
				want = string(at[1])
			}
			if n++; string(m[2+i]) != want {
				t.Errorf("%s %s is %s, not %s", arch, m[1], m[2+i], want)
			}
		}
		if want := len(sysRefused) + len(sysTracing) + len(sysAbsent) + 14; n != want {
			t.Errorf("%d numbers of %d were compared", n, want)
		}
	}
}

// What the kernel does with the program: each line is a call from Python, and
// what is to come of it.
func TestBoxSystemCalls(t *testing.T) {
	needs(t, "python3", "python3")
	s := testBox(t, nil)
	if len(s.box.without) > 0 {
		t.Fatalf("the box does without %q", s.box.without)
	}
	if got := printed(t, s, "grep -E '^Seccomp:' /proc/self/status"); got != "Seccomp:\t2" {
		t.Errorf("a process that is not filtered: %s", got)
	}
	nr := map[string]int{}
	for _, list := range [][]sysCall{sysRefused, sysTracing, sysAbsent} {
		for _, c := range list {
			nr[c.name] = int(map[string]uint32{"amd64": c.amd64, "arm64": c.arm64}[runtime.GOARCH])
		}
	}
	script := `import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    ctypes.set_errno(0)
    r = libc.syscall(*[ctypes.c_long(a) for a in args])
    return os.strerror(ctypes.get_errno()) if r < 0 else "done"
`
	want := ""
	for name, n := range nr {
		if n != 0 {
			script += fmt.Sprintf("print(%q, call(%d, 0, 0, 0, 0, 0))\n", name, n)
			want += name + map[bool]string{true: " Function not implemented", false: " Operation not permitted"}[name == "clone3" || name == "openat2"] + "\n"
		}
	}
	script += fmt.Sprintf("print('later', call(%d))\n", sysLast+1)
	want += "later Function not implemented\n"
	script += "print('ioctl', call(" + strconv.Itoa(syscall.SYS_IOCTL) + ", 0, 0x5412 | 1 << 32, 0))\n"
	want += "ioctl Operation not permitted\n"
	script += "print('vsock', call(" + strconv.Itoa(syscall.SYS_SOCKET) + ", 40, 1, 0))\n"
	want += "vsock Address family not supported by protocol\n"
	script += "print('route', call(" + strconv.Itoa(syscall.SYS_SOCKET) + ", 16, 3, 0))\n"
	want += "route done\n"
	script += "print('users', call(" + strconv.Itoa(syscall.SYS_UNSHARE) + ", 0x10000000))\n"
	want += "users Operation not permitted\n"
	if got := printed(t, s, "exec "+s.lookPath("python3")+" -I -c '"+strings.ReplaceAll(script, "'", "\"")+"'"); got != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// With leave for debuggers a traced program runs; without it none does.
func TestBoxDebuggers(t *testing.T) {
	needs(t, "strace", "strace")
	for _, allowed := range []bool{false, true} {
		s := testBox(t, func(c *boxConfig) { c.Debuggers = allowed })
		got := printed(t, s, "strace -f -e trace=none /bin/echo traced")
		if strings.Contains(got, "traced\n") != allowed {
			t.Errorf("debuggers %t: %s", allowed, got)
		}
		if got := printed(t, s, "unshare -Ur true && echo DONE; chmod u+s /tmp/home && echo DONE"); strings.Contains(got, "DONE") {
			t.Errorf("debuggers %t: %s", allowed, got)
		}
	}
}
