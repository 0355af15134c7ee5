//go:build unix

package tools

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// openNonblock keeps the opening of a pipe from waiting for its other end.
const openNonblock = syscall.O_NONBLOCK

// keepOwner gives f the owner and group of old.
func keepOwner(f *os.File, old fs.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	a, ok1 := old.Sys().(*syscall.Stat_t)
	b, ok2 := now.Sys().(*syscall.Stat_t)
	if !ok1 || !ok2 {
		return errors.New("the system does not tell owners")
	}
	if a.Uid == b.Uid && a.Gid == b.Gid {
		return nil
	}
	return f.Chown(int(a.Uid), int(a.Gid))
}
