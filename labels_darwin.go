package main

import (
	"io/fs"
	"os"
	"syscall"
)

// openFolder are flags for opening a folder, and nothing that took its place.
const openFolder = syscall.O_DIRECTORY | syscall.O_NOFOLLOW

// statFile looks a name up without following a link.
func statFile(path string) (fileStat, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return fileStat{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return fileStat{key: fileKey{Ino: st.Ino, Born: st.Birthtimespec.Nano()}, dev: uint64(st.Dev), changed: st.Ctimespec.Nano(),
		links: uint64(st.Nlink), owner: int(st.Uid), dir: st.Mode&syscall.S_IFMT == syscall.S_IFDIR}, nil
}

func makeStamp(dir string) (*os.File, error) { return os.CreateTemp(dir, ".picket-") }

// changedOf is when an open file was changed.
func changedOf(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Sys().(*syscall.Stat_t).Ctimespec.Nano(), nil
}
