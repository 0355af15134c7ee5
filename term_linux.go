package main

import "os"

// flushInput throws away what was typed and not yet read (tcflush): TCFLSH, with
// TCIFLUSH, which is 0; ioctl_tty(2).
func flushInput(f *os.File) error { return ioctl(f, 0x540b, nil) }
