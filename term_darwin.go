package main

import (
	"os"
	"syscall"
	"unsafe"
)

// As tcsetattr(3) has them; the latter also throws input away.
const getTermios, setTermios = syscall.TIOCGETA, syscall.TIOCSETAF

// flushInput throws away what was typed and not yet read (tcflush).
func flushInput(f *os.File) error {
	which := int32(1) // FREAD, sys/fcntl.h
	return ioctl(f, syscall.TIOCFLUSH, unsafe.Pointer(&which))
}
