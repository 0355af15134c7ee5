package main

import (
	"os"
	"syscall"
)

// TCGETS and TCSETSF, which also throws input away; ioctl_tty(2).
const getTermios, setTermios = syscall.TCGETS, 0x5404

// flushInput throws away what was typed and not yet read (tcflush): TCFLSH, with
// TCIFLUSH, which is 0; ioctl_tty(2).
func flushInput(f *os.File) error { return ioctl(f, 0x540b, nil) }
