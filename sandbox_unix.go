//go:build unix

package main

import (
	"os"
	"strconv"
	"syscall"
)

// ownSession gives a child a session of its own: no controlling terminal, and
// one group that can be ended as a whole.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// endGroup signals the group that a child made with ownSession leads.
func endGroup(pid int, hard bool) {
	sig := syscall.SIGTERM
	if hard {
		sig = syscall.SIGKILL
	}
	syscall.Kill(-pid, sig)
}

// closeInherited keeps the descriptors that picket was started with, beyond the
// first three, from its children: Go passes on what it did not open itself.
func closeInherited() {
	entries, err := os.ReadDir("/dev/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	for fd := 3; err != nil && fd < 4096; fd++ {
		syscall.CloseOnExec(fd)
	}
}
