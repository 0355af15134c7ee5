package main

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// endGroup ends a child that still runs, and its descendants. Windows has no
// gentle way that works without a console, and uses a process's number again.
func endGroup(pid int, hard bool) {
	if !hard {
		cmd := exec.Command(os.Getenv("SYSTEMROOT")+`\System32\taskkill.exe`, "/T", "/F", "/PID", strconv.Itoa(pid))
		cmd.Run()
	}
}

// closeInherited has nothing to do: Windows passes on only what is listed.
func closeInherited() {}
