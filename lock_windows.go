package main

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"unsafe"
)

const (
	noFollow = 0
	// reopenLogs: an open file cannot be renamed here, so that log files are
	// opened for each append.
	reopenLogs = true
)

// LockFileEx and its flags:
// https://learn.microsoft.com/windows/win32/api/fileapi/nf-fileapi-lockfileex
var (
	kernel32     = syscall.NewLazyDLL("kernel32.dll")
	lockFileEx   = kernel32.NewProc("LockFileEx")
	unlockFileEx = kernel32.NewProc("UnlockFileEx")
)

const (
	lockFailImmediately = 1
	lockExclusive       = 2
	errorLockViolation  = syscall.Errno(33)
)

// tryLockFile takes the lock on an open file if nobody has it.
func tryLockFile(f *os.File) (bool, error) {
	return lockEx(f, lockExclusive|lockFailImmediately)
}

// tryLockShared is for readers; a file opened for reading will do.
func tryLockShared(f *os.File) (bool, error) { return lockEx(f, lockFailImmediately) }

func lockEx(f *os.File, flags uintptr) (bool, error) {
	var o syscall.Overlapped
	r, _, err := lockFileEx.Call(f.Fd(), flags, 0, 1, 0, uintptr(unsafe.Pointer(&o)))
	switch {
	case r != 0:
		return true, nil
	case errors.Is(err, errorLockViolation), errors.Is(err, syscall.ERROR_IO_PENDING):
		return false, nil
	}
	return false, &fs.PathError{Op: "LockFileEx", Path: f.Name(), Err: err}
}

func unlockFile(f *os.File) {
	var o syscall.Overlapped
	unlockFileEx.Call(f.Fd(), 0, 1, 0, uintptr(unsafe.Pointer(&o)))
}

// linked reports whether an open file still has a name: one that is open
// cannot lose it here.
func linked(*os.File) bool { return true }

// A fileID tells two files apart.
type fileID struct{ volume, high, low uint32 }

// statName looks up what a name points to now.
func statName(path string) (id fileID, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return id, 0, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return id, 0, err
	}
	id, err = idOf(f)
	return id, fi.Size(), err
}

// idOf is the same for an open file.
func idOf(f *os.File) (fileID, error) {
	var d syscall.ByHandleFileInformation
	err := syscall.GetFileInformationByHandle(syscall.Handle(f.Fd()), &d)
	return fileID{d.VolumeSerialNumber, d.FileIndexHigh, d.FileIndexLow}, err
}

// fileOwner returns the user id of a file's owner, false where there is none.
func fileOwner(fs.FileInfo) (int, bool) { return 0, false }

// syncData brings a file's content to the disk.
func syncData(f *os.File) error { return f.Sync() }

// syncDir makes a new name in a folder last; the file system does that here.
func syncDir(string) error { return nil }
