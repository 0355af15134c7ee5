package main

import (
	"encoding/binary"
	"slices"
	"syscall"

	"golang.org/x/net/bpf"
)

// A sysCall is a system call and its number on each architecture; 0, which is
// none of these, where there is no such call. The numbers are those of Linux
// (arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl): package
// syscall lacks the newer ones.
type sysCall struct {
	name         string
	amd64, arm64 uint32
}

// sysRefused are the calls that fail with EPERM in a box. Most need capabilities
// that no box has: they are here for a machine on which a user namespace gives
// some back. A system call later than sysLast is not known, and does not exist.
var sysRefused = []sysCall{
	// Keys, tracing of the kernel, and interfaces that had many holes.
	{"add_key", 248, 217}, {"request_key", 249, 218}, {"keyctl", 250, 219}, {"bpf", 321, 280}, {"perf_event_open", 298, 241},
	{"userfaultfd", 323, 282}, {"io_uring_setup", 425, 425}, {"io_uring_enter", 426, 426}, {"io_uring_register", 427, 427},
	{"modify_ldt", 154, 0}, {"fanotify_init", 300, 262}, {"open_by_handle_at", 304, 265}, {"lookup_dcookie", 212, 18},
	// Mounts and namespaces.
	{"mount", 165, 40}, {"umount2", 166, 39}, {"pivot_root", 155, 41}, {"chroot", 161, 51}, {"setns", 308, 268},
	{"open_tree", 428, 428}, {"move_mount", 429, 429}, {"fsopen", 430, 430}, {"fsconfig", 431, 431}, {"fsmount", 432, 432},
	{"fspick", 433, 433}, {"mount_setattr", 442, 442}, {"open_tree_attr", 467, 467},
	// The machine as a whole.
	{"syslog", 103, 116}, {"sethostname", 170, 161}, {"setdomainname", 171, 162}, {"reboot", 169, 142}, {"kexec_load", 246, 104},
	{"kexec_file_load", 320, 294}, {"init_module", 175, 105}, {"finit_module", 313, 273}, {"delete_module", 176, 106},
	{"iopl", 172, 0}, {"ioperm", 173, 0}, {"swapon", 167, 224}, {"swapoff", 168, 225}, {"acct", 163, 89}, {"vhangup", 153, 58},
	{"settimeofday", 164, 170}, {"clock_settime", 227, 112}, {"quotactl", 179, 60}, {"quotactl_fd", 443, 443},
}

// sysTracing are refused too, unless the owner lets debuggers in.
var sysTracing = []sysCall{{"ptrace", 101, 117}, {"process_vm_readv", 310, 270}, {"process_vm_writev", 311, 271},
	{"kcmp", 312, 272}, {"pidfd_getfd", 438, 438}}

// sysAbsent fail with ENOSYS, for which runtimes have a way round: what they ask
// for is in memory, where no filter can look.
var sysAbsent = []sysCall{{"clone3", 435, 435}, {"openat2", 437, 437}}

const sysLast = 467

// Numbers of the kernel's headers: linux/seccomp.h, linux/audit.h, linux/sched.h,
// asm-generic/ioctls.h, linux/socket.h, asm-generic/fcntl.h.
const (
	retKill  = 0x80000000 // the whole process
	retErrno = 0x00050000
	retAllow = 0x7fff0000

	archAMD64 = 0xc000003e
	archARM64 = 0xc00000b7

	cloneSpaces = 0x7e020000 // CLONE_NEW*, but for the next
	cloneTime   = 0x80       // CLONE_NEWTIME: for clone(2) part of a signal's number
	tiocsti     = 0x5412
	tioclinux   = 0x541c
	afNetlink   = 16
	opensNew    = 0x40 | 0x400000 // O_CREAT, __O_TMPFILE: only then is there a mode
)

// syscallFilter returns the program that "bwrap --seccomp" reads, nil for an
// architecture whose numbers are not known. Root's boxes make no set-group-ID
// file either: a plain user's folders may rightly have that bit.
func syscallFilter(arch string, debuggers, root bool) []byte {
	raw, err := bpf.Assemble(filterProgram(arch, debuggers, root))
	if err != nil || len(raw) == 0 {
		return nil
	}
	var b []byte
	for _, r := range raw { // struct sock_filter
		b = binary.NativeEndian.AppendUint16(b, r.Op)
		b = append(b, r.Jt, r.Jf)
		b = binary.NativeEndian.AppendUint32(b, r.K)
	}
	return b
}

// filterProgram reads a struct seccomp_data: number, architecture, instruction
// pointer, and six arguments of 64 bits. Jumps reach 255 instructions, so each
// test is followed by what it leads to.
func filterProgram(arch string, debuggers, root bool) (p []bpf.Instruction) {
	token, number := uint32(archAMD64), func(c sysCall) uint32 { return c.amd64 }
	switch arch {
	case "amd64":
	case "arm64":
		token, number = archARM64, func(c sysCall) uint32 { return c.arm64 }
	default:
		return nil
	}
	type code = []bpf.Instruction
	ret := func(val uint32) code { return code{bpf.RetConstant{Val: val}} }
	fail := func(errno syscall.Errno) code { return ret(retErrno | uint32(errno)) }
	when := func(cond bpf.JumpTest, val uint32, then ...code) code {
		body := slices.Concat(then...)
		return append(code{bpf.JumpIf{Cond: cond, Val: val, SkipFalse: uint8(len(body))}}, body...)
	}
	// The kernel takes the low words of all that is compared here: a test of the
	// high word as well would be passed by setting a bit of it.
	arg := func(i uint32) code { return code{bpf.LoadAbsolute{Off: 16 + 8*i, Size: 4}} }
	on := func(name string, amd64, arm64 uint32, then ...code) {
		if n := number(sysCall{name, amd64, arm64}); n != 0 {
			p = append(p, when(bpf.JumpEqual, n, append(then, ret(retAllow))...)...)
		}
	}

	p = append(p, bpf.LoadAbsolute{Off: 4, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: token, SkipTrue: 1}, bpf.RetConstant{Val: retKill},
		bpf.LoadAbsolute{Off: 0, Size: 4})
	p = append(p, when(bpf.JumpGreaterThan, sysLast, fail(syscall.ENOSYS))...) // x32 has bit 30 set

	setID := uint32(syscall.S_ISUID)
	if root {
		setID |= syscall.S_ISGID
	}
	without := func(bits uint32) code { return when(bpf.JumpBitsSet, bits, fail(syscall.EPERM)) }
	on("openat", 257, 56, arg(2), when(bpf.JumpBitsSet, opensNew, arg(3), without(setID)))
	on("open", 2, 0, arg(1), when(bpf.JumpBitsSet, opensNew, arg(2), without(setID)))
	on("ioctl", 16, 29, arg(1), when(bpf.JumpEqual, tiocsti, fail(syscall.EPERM)), when(bpf.JumpEqual, tioclinux, fail(syscall.EPERM)))
	on("clone", 56, 220, arg(0), without(cloneSpaces))
	on("unshare", 272, 97, arg(0), without(cloneSpaces|cloneTime))
	allow := ret(retAllow)
	on("socket", 41, 198, arg(0), when(bpf.JumpEqual, syscall.AF_UNIX, allow), when(bpf.JumpEqual, syscall.AF_INET, allow),
		when(bpf.JumpEqual, syscall.AF_INET6, allow), when(bpf.JumpEqual, afNetlink, arg(2), when(bpf.JumpEqual, 0, allow)), // NETLINK_ROUTE
		fail(syscall.EAFNOSUPPORT))
	on("socketpair", 53, 199, arg(0), when(bpf.JumpEqual, syscall.AF_UNIX, allow), fail(syscall.EAFNOSUPPORT))
	on("creat", 85, 0, arg(1), without(setID))
	on("chmod", 90, 0, arg(1), without(setID))
	on("fchmod", 91, 52, arg(1), without(setID))
	on("fchmodat", 268, 53, arg(2), without(setID))
	on("fchmodat2", 452, 452, arg(2), without(setID))
	on("mknod", 133, 0, arg(1), without(setID))
	on("mknodat", 259, 33, arg(2), without(setID))

	refused := sysRefused
	if !debuggers {
		refused = append(slices.Clip(refused), sysTracing...)
	}
	for _, list := range []struct {
		calls []sysCall
		errno syscall.Errno
	}{{refused, syscall.EPERM}, {sysAbsent, syscall.ENOSYS}} {
		for _, c := range list.calls {
			if n := number(c); n != 0 {
				p = append(p, when(bpf.JumpEqual, n, fail(list.errno))...)
			}
		}
	}
	return append(p, bpf.RetConstant{Val: retAllow})
}
