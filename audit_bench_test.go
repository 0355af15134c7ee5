package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// benchRecord makes a line of about 600 bytes.
func benchRecord() Record {
	return Record{Run: "20261130T160000-abcd", Chat: "default", Channel: "cli", Call: "call_0123456789", Body: decisionRecord{
		Tool: "shell", Args: json.RawMessage(`{"command":"git diff --staged | head -n 100"}`),
		Digest: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Summary: "shell: git diff --staged | head -n 100",
		Risk: "moderate", Labels: []string{}, Verdict: "allow", By: "grant", Step: "grants", Rule: "",
		Reasons: []string{"reads the workspace"}, Grant: "shell:git", Targets: []string{"shell:git", "shell:head"},
		Egress: egressFields{Kind: "none", Hosts: []string{}}}}
}

func benchLog(b *testing.B) *Log {
	l, err := openAudit(filepath.Join(b.TempDir(), "data"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	})
	return l
}

// benchFloor is what an append cannot do without: a lock and the bytes.
func benchFloor(b *testing.B, sync bool) {
	dir := b.TempDir()
	k, err := openLock(filepath.Join(dir, "lock"))
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	line := append(bytes.Repeat([]byte("x"), maxPrefix), encodeRecord(nil, benchRecord())...)
	for b.Loop() {
		if ok, err := tryLockFile(k.f); !ok || err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(line); err != nil {
			b.Fatal(err)
		}
		unlockFile(k.f)
		if sync {
			if err := syncData(f); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.SetBytes(int64(len(line)))
}

func benchAppend(b *testing.B, durable bool) {
	l, r, ctx := benchLog(b), benchRecord(), context.Background()
	for b.Loop() {
		if err := l.Append(ctx, durable, r); err != nil {
			b.Fatal(err)
		}
	}
}

// The target: at most 1.8 times its floor.
func BenchmarkAppend(b *testing.B) {
	b.Run("floor", func(b *testing.B) { benchFloor(b, false) })
	b.Run("log", func(b *testing.B) { benchAppend(b, false) })
}

// The target: at most 1.2 times its floor; and with 64 writers at least 15
// times as many records a second as with one.
func BenchmarkAppendDurable(b *testing.B) {
	b.Run("floor", func(b *testing.B) { benchFloor(b, true) })
	b.Run("log", func(b *testing.B) { benchAppend(b, true) })
	b.Run("log64", func(b *testing.B) {
		l, r, ctx := benchLog(b), benchRecord(), context.Background()
		var wg sync.WaitGroup
		todo := make(chan struct{}, 64)
		for range 64 {
			wg.Go(func() {
				for range todo {
					if err := l.Append(ctx, true, r); err != nil {
						b.Error(err)
					}
				}
			})
		}
		for b.Loop() {
			todo <- struct{}{}
		}
		close(todo)
		wg.Wait()
	})
}

func BenchmarkEncodeRecord(b *testing.B) {
	r := benchRecord()
	var buf []byte
	for b.Loop() {
		buf = encodeRecord(buf[:0], r)
	}
	b.SetBytes(int64(len(buf)))
}
