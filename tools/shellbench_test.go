package tools

import (
	"encoding/json"
	"testing"
)

// A line of 58 bytes, as in most calls.
const benchLine = `git log --oneline -20 -- tools/shell.go | head -n 5; ls -la`

func BenchmarkShellAssessJudge(b *testing.B) {
	raw, _ := json.Marshal(map[string]any{"command": benchLine})
	args, err := Shell.Parse(raw)
	if err != nil {
		b.Fatal(err)
	}
	plan, _ := Shell.Assess(args)
	facts := factsFor(plan, true)
	b.ReportAllocs()
	for b.Loop() {
		plan, err := Shell.Assess(args)
		if err != nil {
			b.Fatal(err)
		}
		if j := Shell.Judge(args, plan, facts); j.Opaque != "" {
			b.Fatal(j.Opaque)
		}
	}
}

func BenchmarkShellParseOnly(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if s := ParseShell(benchLine); s.Opaque != "" {
			b.Fatal(s.Opaque)
		}
	}
}
