package main

import (
	"os"
	"syscall"
	"unsafe"
)

// flushInput throws away what was typed and not yet read (tcflush).
func flushInput(f *os.File) error {
	which := int32(1) // FREAD, sys/fcntl.h
	return ioctl(f, syscall.TIOCFLUSH, unsafe.Pointer(&which))
}
