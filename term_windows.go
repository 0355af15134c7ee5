package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

type ttyFiles struct{ in, out *os.File }

func (t *ttyFiles) close() { errors.Join(t.in.Close(), t.out.Close()) }

// openTTY opens the console, whatever stdin is.
func openTTY() (*ttyFiles, error) {
	in, err := os.OpenFile("CONIN$", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile("CONOUT$", os.O_RDWR, 0)
	if err != nil {
		in.Close()
		return nil, err
	}
	return &ttyFiles{in, out}, nil
}

// inForeground is true: a console has no process groups in the background.
func inForeground(*os.File) bool { return true }

var (
	flushConsole     = kernel32.NewProc("FlushConsoleInputBuffer")
	setConsoleMode   = kernel32.NewProc("SetConsoleMode")
	getConsoleWindow = kernel32.NewProc("GetConsoleWindow")
)

// hideTyping makes a console not show what is typed, until show is called.
func hideTyping(f *os.File) (show func(), err error) {
	var mode uint32
	set := func(mode uint32) (err error) {
		control(f, func(fd uintptr) {
			if ok, _, e := setConsoleMode.Call(fd, uintptr(mode)); ok == 0 {
				err = e
			}
		})
		return err
	}
	control(f, func(fd uintptr) { err = syscall.GetConsoleMode(syscall.Handle(fd), &mode) })
	if err != nil {
		return nil, err
	}
	const echo, lines = 4, 2 // ENABLE_ECHO_INPUT, ENABLE_LINE_INPUT
	return func() { set(mode) }, set(mode&^echo | lines)
}

// ttyName names the console among this user's.
func ttyName() string {
	h, _, _ := getConsoleWindow.Call()
	return fmt.Sprintf("tty-%d", h)
}

func flushInput(f *os.File) error {
	var err error
	control(f, func(fd uintptr) {
		if ok, _, e := flushConsole.Call(fd); ok == 0 {
			err = e
		}
	})
	return err
}
