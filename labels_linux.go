package main

import (
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// openFolder are flags for opening a folder, and nothing that took its place.
const openFolder = syscall.O_DIRECTORY | syscall.O_NOFOLLOW

// statxCall is the number of statx(2), which package syscall lacks.
var statxCall = map[string]uintptr{"amd64": 332, "arm64": 291, "riscv64": 291, "loong64": 291}[runtime.GOARCH]

// statFile looks a name up without following a link; statx(2).
func statFile(path string) (fileStat, error) {
	if statxCall != 0 {
		if s, err := statx(path); err != syscall.ENOSYS && err != syscall.EPERM {
			if err != 0 {
				return fileStat{}, &fs.PathError{Op: "statx", Path: path, Err: err}
			}
			return s, nil
		}
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return fileStat{}, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return fileStat{key: fileKey{Dev: st.Dev, Ino: st.Ino}, dev: st.Dev, changed: st.Ctim.Nano(), links: uint64(st.Nlink), owner: int(st.Uid), dir: fi.IsDir()}, nil
}

func statx(path string) (s fileStat, errno syscall.Errno) {
	type stamp struct {
		sec  int64
		nsec uint32
		_    int32
	}
	var b struct {
		mask, _             uint32
		_                   uint64
		links, uid, gid     uint32
		mode, _             uint16
		ino, _, _, _        uint64
		_, born, changed, _ stamp
		_, _, major, minor  uint32
		_                   [14]uint64
	}
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return s, syscall.EINVAL
	}
	const atFdcwd, noFollowLink, basicAndBirth = -100, 0x100, 0xfff
	dirfd := atFdcwd
	for errno = syscall.EINTR; errno == syscall.EINTR; {
		_, _, errno = syscall.Syscall6(statxCall, uintptr(dirfd), uintptr(unsafe.Pointer(p)), noFollowLink, basicAndBirth, uintptr(unsafe.Pointer(&b)), 0)
	}
	s = fileStat{dev: uint64(b.major)<<32 | uint64(b.minor), changed: b.changed.sec*1e9 + int64(b.changed.nsec), links: uint64(b.links),
		owner: int(b.uid), dir: b.mode&syscall.S_IFMT == syscall.S_IFDIR}
	s.key = fileKey{Dev: s.dev, Ino: b.ino}
	if b.mask&0x800 != 0 { // the number of a device can be another one after a start
		s.key = fileKey{Ino: b.ino, Born: b.born.sec*1e9 + int64(b.born.nsec)}
	}
	return s, errno
}

// makeStamp makes a file without a name, where that can be done.
func makeStamp(dir string) (*os.File, error) {
	const tmpfile = 0x400000 | syscall.O_DIRECTORY // O_TMPFILE, open(2)
	f, err := os.OpenFile(dir, os.O_RDWR|tmpfile, 0o600)
	if err != nil {
		return os.CreateTemp(dir, ".picket-")
	}
	return f, nil
}

// changedOf is when an open file was changed.
func changedOf(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Sys().(*syscall.Stat_t).Ctim.Nano(), nil
}
