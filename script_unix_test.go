//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// detach gives a child a session of its own, so that it has no terminal.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
