package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// smallLog returns the folder of a closed log of n records after the first.
func smallLog(t testing.TB, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	l, err := openAudit(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r := Record{Chat: "c", Body: userMessageRecord{Text: fmt.Sprint("text ", i), Source: "owner"}}
		if err := l.Append(context.Background(), false, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEveryChangedByteIsFound(t *testing.T) {
	dir := smallLog(t, 3)
	path := filepath.Join(dir, auditName)
	good := readTestFile(t, path)
	for i := range good {
		line := int64(bytes.Count(good[:i], []byte("\n")) + 1)
		for _, c := range []byte{good[i] ^ 1, '\n'} {
			if c == good[i] {
				continue
			}
			b := bytes.Clone(good)
			b[i] = c
			writeTestFile(t, path, b)
			r, err := verifyFile(dir, auditName)
			if err != nil || r.Status != auditTampered || r.Line != line {
				t.Fatalf("byte %d of line %d changed from %q to %q: %v %+v", i, line, good[i], c, err, r)
			}
			if len(r.Shown) == 0 {
				t.Fatalf("byte %d: no line shown", i)
			}
		}
	}
}

func TestEveryCutIsFound(t *testing.T) {
	dir := smallLog(t, 3)
	path := filepath.Join(dir, auditName)
	good := readTestFile(t, path)
	for n := range good {
		writeTestFile(t, path, good[:n])
		r, err := verifyFile(dir, auditName)
		if err != nil || r.Status != auditIncomplete {
			t.Fatalf("cut to %d bytes: %+v %v", n, r, err)
		}
	}
}

// relink gives the lines numbers and hashes that fit, as somebody would who
// knows the format but has neither the state nor the key.
func relink(lines []string) string {
	var out strings.Builder
	prev := ""
	for i, l := range lines {
		_, rest, _ := strings.Cut(l, `,"ts":`)
		l = fmt.Sprintf(`{"prev":%q,"seq":%d,"ts":%s`, prev, i+1, rest)
		sum := sha256.Sum256([]byte(l))
		prev = hex.EncodeToString(sum[:])
		out.WriteString(l + "\n")
	}
	return out.String()
}

func TestTampering(t *testing.T) {
	first := smallLog(t, 9)
	good := readTestFile(t, filepath.Join(first, auditName))
	state := readTestFile(t, filepath.Join(first, stateName))
	lines := strings.Split(strings.TrimSuffix(string(good), "\n"), "\n")
	other := strings.Split(string(readTestFile(t, filepath.Join(smallLog(t, 9), auditName))), "\n")
	edit := func(fn func(l []string) []string) []string { return fn(append([]string{}, lines...)) }
	for _, tt := range []struct {
		name   string
		lines  []string
		relink bool
		status int
		line   int64
	}{
		{"taken out", edit(func(l []string) []string { return append(l[:4], l[5:]...) }), false, auditTampered, 5},
		{"put in twice", edit(func(l []string) []string { return append(l[:5], append([]string{l[4]}, lines[5:]...)...) }), false, auditTampered, 6},
		{"two exchanged", edit(func(l []string) []string { l[4], l[5] = l[5], l[4]; return l }), false, auditTampered, 5},
		{"spliced with another log", edit(func(l []string) []string { return append(l[:5], other[5:10]...) }), false, auditTampered, 5},
		{"first line taken out", lines[1:], false, auditTampered, 1},
		{"first line of another log", append([]string{other[0]}, lines[1:]...), false, auditTampered, 1},
		{"edited and linked anew", edit(func(l []string) []string { l[4] = strings.Replace(l[4], "text", "lies", 1); return l }), true, auditTampered, 10},
		{"taken out and linked anew", edit(func(l []string) []string { return append(l[:4], l[5:]...) }), true, auditIncomplete, 10},
		{"put in and linked anew", edit(func(l []string) []string { return append(l, l[4]) }), true, auditIncomplete, 11},
		{"replaced by another log", other[:10], false, auditTampered, 10},
		{"line of no object", edit(func(l []string) []string { l[9] = "null"; return l }), false, auditTampered, 10},
		{"empty line", edit(func(l []string) []string { l[9] = ""; return l }), false, auditTampered, 10},
		{"very long line", edit(func(l []string) []string { l[4] = strings.Repeat("x", 3<<20); return l }), false, auditTampered, 5},
		{"long line that is linked", edit(func(l []string) []string {
			return append(l[:9], strings.Replace(l[9], "text", strings.Repeat("x", maxLine), 1))
		}), true, auditTampered, 10},
		{"number zero before the first", append([]string{strings.Replace(lines[1], `"seq":2`, `"seq":0`, 1)}, lines...), false, auditTampered, 1},
		{"a second beginning", append(append([]string{}, lines...), lines...), false, auditTampered, 11},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // it waits for a process that does not come
			dir := t.TempDir()
			path := filepath.Join(dir, auditName)
			writeTestFile(t, filepath.Join(dir, stateName), state)
			text := strings.Join(tt.lines, "\n") + "\n"
			if tt.relink {
				text = relink(tt.lines)
			}
			writeTestFile(t, path, []byte(text))
			if r := wantVerify(t, dir, tt.status); r.Line != tt.line {
				t.Errorf("line %d named, want %d: %s", r.Line, tt.line, r.What)
			}
		})
	}
}

// TestBlocksAreJoined makes a log of several blocks and breaks it where they
// meet.
func TestBlocksAreJoined(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	l := reopenTestLog(t, dir)
	r := say(strings.Repeat("x", 8000))
	for range 40 {
		mustAppend(t, l, false, r, r, r, r, r, r, r, r, r, r)
	}
	mustClose(t, l)
	path := filepath.Join(dir, auditName)
	good := readTestFile(t, path)
	if len(good) < 3*blockSize {
		t.Fatalf("%d bytes are too few", len(good))
	}
	for _, procs := range []int{1, 2, 4} {
		old := runtime.GOMAXPROCS(procs)
		wantVerify(t, dir, auditProven)
		runtime.GOMAXPROCS(old)
	}
	for off := blockSize - 20000; off < blockSize+20000; off += 4001 {
		b := bytes.Clone(good)
		b[off] ^= 1
		writeTestFile(t, path, b)
		if r, want := wantVerify(t, dir, auditTampered), int64(bytes.Count(good[:off], []byte("\n"))+1); r.Line != want {
			t.Errorf("byte %d: line %d named, want %d", off, r.Line, want)
		}
	}
	cut := bytes.LastIndexByte(good[:blockSize], '\n') + 1
	next := cut + bytes.IndexByte(good[cut:], '\n') + 1
	writeTestFile(t, path, append(bytes.Clone(good[:cut]), good[next:]...))
	wantVerify(t, dir, auditTampered)
}

func TestVerifyWritesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes on Windows")
	}
	dir := smallLog(t, 3)
	list := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			fi, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, fmt.Sprint(e.Name(), fi.Size(), fi.ModTime()))
		}
		return names
	}
	if err := os.Remove(filepath.Join(dir, "audit.lock")); err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprint(list())
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700)
	wantVerify(t, dir, auditProven)
	var out bytes.Buffer
	if err := showAudit(context.Background(), &out, dir, auditView{N: 10, Safe: testSafe}); err != nil {
		t.Fatal(err)
	}
	if err := showRecord(&out, dir, "2", testSafe); err != nil {
		t.Fatal(err)
	}
	if after := fmt.Sprint(list()); after != before {
		t.Errorf("before %s\nafter %s", before, after)
	}
}

func TestVerifyOfNothing(t *testing.T) {
	r, err := verifyLog(t.TempDir())
	if err != nil || r.Status != auditProven || len(r.Files) != 0 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestReport(t *testing.T) {
	dir := smallLog(t, 3)
	path := filepath.Join(dir, auditName)
	b := readTestFile(t, path)
	b = bytes.Replace(b, []byte("text 1"), []byte("\x1b[2J\xff 1"), 1)
	writeTestFile(t, path, b)
	r, err := verifyLog(dir)
	if err != nil || r.Status != auditTampered {
		t.Fatal(r, err)
	}
	var out bytes.Buffer
	r.print(&out, testSafe)
	if strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "line 3") || !strings.Contains(out.String(), "want hash") {
		t.Errorf("%s", out.String())
	}
	j, err := json.Marshal(r)
	if err != nil || !bytes.Contains(j, []byte(`"status":1,"files":[{"file":"audit.jsonl","status":1,`)) {
		t.Errorf("%s %v", j, err)
	}
}

// FuzzVerify gives both readers any bytes as the log, and wants them to agree
// with a reader that is as simple as can be.
func FuzzVerify(f *testing.F) {
	dir := smallLog(f, 3)
	path := filepath.Join(dir, auditName)
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(bytes.ReplaceAll(good, []byte("\n"), nil))
	f.Add(append(bytes.Clone(good), good...))
	f.Add([]byte("\n\n"))
	f.Add([]byte(`{"prev":"","seq":1,"ts":"2006-01-02T15:04:05.000000Z","kind":"genesis"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tmp := filepath.Join(t.TempDir(), "l")
		writeTestFile(t, tmp, b)
		file, err := os.Open(tmp)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		v := logView{f: file, size: int64(len(b))}
		var c chain
		if err := c.readAll(v); err != nil {
			t.Fatal(err)
		}
		linked, n := true, int64(0)
		prev := ""
		for rest := b; linked && bytes.IndexByte(rest, '\n') >= 0; n++ {
			line, after, _ := bytes.Cut(rest, []byte("\n"))
			want := fmt.Sprintf(`{"prev":"%s","seq":%d,"ts":"`, prev, n+1)
			linked = len(line) < maxLine && len(line) >= len(want)+len(timeLayout)+10 && strings.HasPrefix(string(line), want) &&
				string(line[len(want)+len(timeLayout):][:10]) == `","kind":"` && bytes.Count(line[len(want)+len(timeLayout)+10:], []byte(`"`)) > 0 &&
				strings.HasPrefix(string(line[len(want)+len(timeLayout)+10:]), `genesis"`) == (n == 0)
			sum := sha256.Sum256(line)
			prev, rest = hex.EncodeToString(sum[:]), after
		}
		if c.bad == linked || linked && c.end.Seq != n {
			t.Errorf("bad %v, %d lines; the simple reader: linked %v, %d lines", c.bad, c.end.Seq, linked, n)
		}
		r := fileReport{File: auditName}
		if _, err := r.diagnose(v); err != nil {
			t.Fatal(err)
		}
		if c.bad != (r.Status == auditTampered) {
			t.Errorf("bad %v, but the slow reader says %+v", c.bad, r)
		}
	})
}

// testSafe stands in for the printer of the terminal.
func testSafe(s string) string { q := fmt.Sprintf("%+q", s); return q[1 : len(q)-1] }

func sumLine(line []byte) [sha256.Size]byte {
	return sha256.Sum256(bytes.TrimSuffix(line, []byte("\n")))
}
