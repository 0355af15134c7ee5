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

// endGroup ends a child and its descendants. Windows has no gentle way that
// works without a console.
func endGroup(pid int, hard bool) {
	if hard {
		exec.Command(os.Getenv("SYSTEMROOT")+`\System32\taskkill.exe`, "/T", "/F", "/PID", strconv.Itoa(pid)).Run()
	}
}

func exitStatus(st *os.ProcessState) int { return st.ExitCode() }

func newMark() string { return "PICKET_CALL=1" }

// closeInherited has nothing to do: Windows passes on only what is listed.
func closeInherited() {}
