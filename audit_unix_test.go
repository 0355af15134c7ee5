//go:build unix

package main

import (
	"os/signal"
	"syscall"
	"testing"
)

// limitFileSize makes writes beyond n bytes fail, for the whole process.
func limitFileSize(t *testing.T, n uint64) {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
		t.Fatal(err)
	}
}
