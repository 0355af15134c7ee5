package main

import (
	"os"
	"syscall"
)

// flushInput throws away what was typed and not yet read (tcflush).
func flushInput(f *os.File) error {
	const tcflsh = 0x540b // TCFLSH, ioctl_tty(2); syscall lacks it
	var errno syscall.Errno
	control(f, func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, tcflsh, syscall.TCIFLUSH)
	})
	if errno != 0 {
		return errno
	}
	return nil
}
