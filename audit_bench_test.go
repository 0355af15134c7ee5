package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
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

// floorAppend returns what an append cannot do without: the lock, the bytes,
// and, if durable, the sync.
func floorAppend(b *testing.B, durable bool, r Record) func() {
	dir := b.TempDir()
	k, err := openLock(filepath.Join(dir, "lock"))
	if err != nil {
		b.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { k.Close(); f.Close() })
	line := linesOf(mark{Seq: 1000}, r)
	return func() {
		if ok, err := tryLockFile(k.f); !ok || err != nil {
			b.Fatal(ok, err)
		}
		if _, err := f.Write(line); err != nil {
			b.Fatal(err)
		}
		unlockFile(k.f)
		if durable {
			if err := syncData(f); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func logAppend(b *testing.B, durable bool, r Record) func() {
	l, ctx := benchLog(b), context.Background()
	return func() {
		if err := l.Append(ctx, durable, r); err != nil {
			b.Fatal(err)
		}
	}
}

// ratio times two things in turn, so that what else the machine does hits both
// alike, and reports the median of the ratios of each round.
func ratio(b *testing.B, n int, floor, ours func()) {
	var ratios, times []float64
	clock := func(fn func()) float64 {
		start := time.Now()
		for range n {
			fn()
		}
		return float64(time.Since(start).Nanoseconds()) / float64(n)
	}
	for b.Loop() {
		f, o := clock(floor), clock(ours)
		ratios, times = append(ratios, o/f), append(times, o)
	}
	slices.Sort(ratios)
	slices.Sort(times)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratios[len(ratios)/2], "x-floor")
	b.ReportMetric(times[len(times)/2], "ns/append")
}

// Target: 1.8 times the floor. Of the work beyond it the hash alone is 0.85 ns a
// byte, so that it depends on the length.
func BenchmarkAppend(b *testing.B) {
	answer := benchRecord()
	answer.Body = answerRecord{Answer: "allow", Scope: "once", By: "terminal"}
	for _, r := range []Record{answer, benchRecord()} {
		b.Run(r.Body.kind(), func(b *testing.B) {
			ratio(b, 20, floorAppend(b, false, r), logAppend(b, false, r))
		})
	}
}

// Target: 1.2 times the floor.
func BenchmarkAppendDurable(b *testing.B) {
	ratio(b, 5, floorAppend(b, true, benchRecord()), logAppend(b, true, benchRecord()))
}

// How many times the records a second of one durable writer 64 of them reach.
// Target: 15.
func BenchmarkAppendDurable64(b *testing.B) {
	l, r, ctx := benchLog(b), benchRecord(), context.Background()
	many := func() {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 8 {
					if err := l.Append(ctx, true, r); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	one := logAppend(b, true, r)
	var ratios []float64
	for b.Loop() {
		start := time.Now()
		for range 8 {
			one()
		}
		single := time.Since(start) / 8
		start = time.Now()
		many()
		ratios = append(ratios, float64(single)/(float64(time.Since(start))/(64*8)))
	}
	slices.Sort(ratios)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratios[len(ratios)/2], "x-one-writer")
}

func BenchmarkEncodeRecord(b *testing.B) {
	r, now := benchRecord(), time.Now()
	var e encoder
	for b.Loop() {
		e.b = e.b[:0]
		e.lines(mark{Seq: 1000}, now, r)
	}
	b.SetBytes(int64(len(e.b)))
}

// BenchmarkVerify reads a log of 100 MB, in turn with "openssl dgst -sha256" of
// the same file. Targets: 1.5 times its time on one thread, 0.8 on two.
func BenchmarkVerify(b *testing.B) {
	needProgram(b, "openssl")
	dir := filepath.Join(b.TempDir(), "data")
	l, err := openAudit(dir)
	if err != nil {
		b.Fatal(err)
	}
	batch := slices.Repeat([]Record{benchRecord()}, 1000)
	for range 150 {
		if err := l.Append(context.Background(), false, batch...); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	for _, procs := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", procs), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			ratio(b, 1, func() {
				if err := exec.Command("openssl", "dgst", "-sha256", filepath.Join(dir, auditName)).Run(); err != nil {
					b.Fatal(err)
				}
			}, func() {
				if r, err := verifyFile(dir, auditName); err != nil || r.Status != auditProven {
					b.Fatal(r, err)
				}
			})
		})
	}
}
