package main

import (
	"os"
	"syscall"
	"unsafe"
)

// flushInput throws away what was typed and not yet read (tcflush).
func flushInput(f *os.File) error {
	which := int32(1) // FREAD, sys/fcntl.h
	var errno syscall.Errno
	control(f, func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCFLUSH, uintptr(unsafe.Pointer(&which)))
	})
	if errno != 0 {
		return errno
	}
	return nil
}
