//go:build unix

package main

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

const (
	noFollow = syscall.O_NOFOLLOW
	// reopenLogs: log files are not kept open between appends.
	reopenLogs = false
)

// tryLockFile takes the lock on an open file if nobody has it; flock(2).
func tryLockFile(f *os.File) (bool, error) { return tryFlock(f, syscall.LOCK_EX) }

// tryLockShared is for readers; a file opened for reading will do.
func tryLockShared(f *os.File) (bool, error) { return tryFlock(f, syscall.LOCK_SH) }

func tryFlock(f *os.File, how int) (bool, error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

func unlockFile(f *os.File) { syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// linked reports whether an open file still has a name.
func linked(f *os.File) bool {
	var st syscall.Stat_t
	return syscall.Fstat(int(f.Fd()), &st) == nil && st.Nlink > 0
}

// A fileID tells two files apart.
type fileID struct{ dev, ino uint64 }

// statName looks up what a name points to now, without following a link.
func statName(path string) (id fileID, size int64, err error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return id, 0, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, st.Size, nil
}

// idOf is the same for an open file.
func idOf(f *os.File) (fileID, error) {
	var st syscall.Stat_t
	err := syscall.Fstat(int(f.Fd()), &st)
	return fileID{uint64(st.Dev), uint64(st.Ino)}, err
}

// fileOwner returns the user id of a file's owner, false where there is none.
func fileOwner(fi fs.FileInfo) (int, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// syncData brings a file's content to the disk. On macOS fdatasync(2) does not
// reach the medium; Sync does there.
func syncData(f *os.File) error {
	if runtime.GOOS != "linux" {
		return f.Sync()
	}
	for {
		switch _, _, e := syscall.Syscall(syscall.SYS_FDATASYNC, f.Fd(), 0, 0); e {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: e}
		}
	}
}

// syncDir makes a new name in a folder last.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
