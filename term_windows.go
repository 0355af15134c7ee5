package main

import (
	"errors"
	"fmt"
	"os"
)

type ttyFiles struct{ in, out *os.File }

func (t *ttyFiles) close() { errors.Join(t.in.Close(), t.out.Close()) }

// wait makes reads wait for input, which they do.
func (t *ttyFiles) wait() error { return nil }

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
	getConsoleWindow = kernel32.NewProc("GetConsoleWindow")
)

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
