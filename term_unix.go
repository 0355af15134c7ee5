//go:build unix

package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// ttyFiles are the two directions of the controlling terminal.
type ttyFiles struct{ in, out *os.File }

func (t *ttyFiles) close() { t.in.Close() }

// openTTY opens the controlling terminal, whatever stdin is.
func openTTY() (*ttyFiles, error) {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return &ttyFiles{f, f}, nil
}

// inForeground reports whether this process group is the one that the terminal
// listens to (tcgetpgrp). On another it would be stopped when it reads.
func inForeground(f *os.File) bool {
	var group int32
	return ioctl(f, syscall.TIOCGPGRP, unsafe.Pointer(&group)) == nil && int(group) == syscall.Getpgrp()
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) (err error) {
	control(f, func(fd uintptr) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
			err = errno
		}
	})
	return err
}

// hideTyping makes a terminal not show what is typed, until show is called; as
// getpass(3) does, it throws away what was typed before.
func hideTyping(f *os.File) (show func(), err error) {
	var before syscall.Termios
	if err := ioctl(f, getTermios, unsafe.Pointer(&before)); err != nil {
		return nil, err
	}
	hidden := before
	hidden.Lflag = hidden.Lflag&^syscall.ECHO | syscall.ICANON | syscall.ISIG
	hidden.Iflag |= syscall.ICRNL
	return func() { ioctl(f, setTermios, unsafe.Pointer(&before)) }, ioctl(f, setTermios, unsafe.Pointer(&hidden))
}

// ttyName names the controlling terminal among this user's: by its session,
// which has no other.
func ttyName() string {
	sid, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	if errno != 0 {
		return "tty"
	}
	return fmt.Sprintf("tty-%d", sid)
}
