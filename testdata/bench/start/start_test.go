// Package start measures how long picket takes to begin and how large it is,
// against an empty Go program and, where it is installed, node:
//
//	go test -bench . -benchtime 41x
package start

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func build(b *testing.B, dir, pkg, out string) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), out)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, text)
	}
	return path
}

func once(b *testing.B, argv ...string) float64 {
	begin := time.Now()
	if err := exec.Command(argv[0], argv[1:]...).Run(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begin).Seconds()
}

// BenchmarkVersion interleaves "picket version" with the others and reports the
// median of the ratios pair by pair.
func BenchmarkVersion(b *testing.B) {
	dir := b.TempDir()
	empty := "package main\n\nfunc main() {}\n"
	for name, text := range map[string]string{"main.go": empty, "go.mod": "module empty\n\ngo 1.26\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	picket, nothing := build(b, "../../..", ".", "picket"), build(b, dir, ".", "empty")
	node, _ := exec.LookPath("node")
	var toEmpty, toNode []float64
	for b.Loop() {
		p := once(b, picket, "version")
		toEmpty = append(toEmpty, p/once(b, nothing))
		if node != "" {
			toNode = append(toNode, p/once(b, node, "-e", "0"))
		}
	}
	b.ReportMetric(median(toEmpty), "xEmpty")
	if info, err := os.Stat(picket); err == nil {
		b.ReportMetric(float64(info.Size())/1e6, "MB")
	}
	if node != "" {
		b.ReportMetric(median(toNode), "xNode")
	}
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
