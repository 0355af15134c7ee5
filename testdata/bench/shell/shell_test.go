// Package shell compares picket's reader of command lines with mvdan.cc/sh, a
// full parser of the same language in Go.
//
//	go test -bench . -benchtime 200x
package shell

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mvdan.cc/sh/v3/syntax"

	"picket/tools"
)

const command = `git -C repo log --oneline -n 20 "$branch" | head -5 >out.tx`

// statements is a script of the plain kind that models write.
const statements = `set -eu
for f in *.go; do gofmt -l "$f" || echo "not formatted: $f" >&2; done
if [ -f go.mod ] && grep -q '^module ' go.mod; then
	go build -o "$HOME/bin/app" ./cmd/app 2>build.log
else
	echo 'no module here'
fi
cat <<'EOF' | tee notes.txt
it is $text, not (code)
EOF
git commit -m "fix: $(git diff --name-only | wc -l) files" && git status -s
# a comment; it's ignored
n=0; while [ "$n" -lt 3 ]; do n=$((n + 1)); done
case "$1" in start|stop) echo "$1" ;; *) exit 1 ;; esac
`

// BenchmarkPairs times both on the same text in turn and reports the median of
// the ratios, so that a busy machine slows both.
func BenchmarkPairs(b *testing.B) {
	for _, c := range []struct {
		name, text string
		repeat     int // runs in one measurement
	}{
		{"58B", command[:58], 2000},
		{"8KiB", repeat(statements, 8<<10), 20},
		{"100KB", repeat(statements, 100_000), 2},
	} {
		b.Run(c.name, func(b *testing.B) {
			if s := tools.ParseShell(c.text); s.Opaque != "" && len(c.text) <= 8<<10 {
				b.Fatalf("opaque: %s", s.Opaque)
			}
			parse := func(p *syntax.Parser) {
				if _, err := p.Parse(strings.NewReader(c.text), ""); err != nil {
					b.Fatal(err)
				}
			}
			reused := syntax.NewParser(syntax.Variant(syntax.LangPOSIX))
			var own, toNew, toReused []float64
			for b.Loop() {
				o := measure(c.repeat, func() { tools.ParseShell(c.text) })
				n := measure(c.repeat, func() { parse(syntax.NewParser(syntax.Variant(syntax.LangPOSIX))) })
				r := measure(c.repeat, func() { parse(reused) })
				own, toNew, toReused = append(own, o), append(toNew, o/n), append(toReused, o/r)
			}
			b.ReportMetric(median(own), "ns/parse")
			b.ReportMetric(median(toNew), "x-new-parser")
			b.ReportMetric(median(toReused), "x-reused-parser")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkGrowth reports how the time grows from 100 kB to 1 MB; linear is 10.
func BenchmarkGrowth(b *testing.B) {
	small, large := repeat(statements, 100_000), repeat(statements, 1_000_000)
	var growth []float64
	for b.Loop() {
		s := measure(10, func() { tools.ParseShell(small) })
		l := measure(1, func() { tools.ParseShell(large) })
		growth = append(growth, l/s)
	}
	b.ReportMetric(median(growth), "x-for-10x")
	b.ReportMetric(0, "ns/op")
}

// repeat returns whole copies of text, as many as fit.
func repeat(text string, size int) string { return strings.Repeat(text, size/len(text)) }

func measure(n int, f func()) float64 {
	start := time.Now()
	for range n {
		f()
	}
	return float64(time.Since(start).Nanoseconds()) / float64(n)
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
