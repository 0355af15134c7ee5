package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func viewOf(t *testing.T, dir string, v auditView) string {
	t.Helper()
	v.Safe = testSafe
	var out bytes.Buffer
	if err := showAudit(context.Background(), &out, dir, v); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func viewLog(t *testing.T) string {
	l, dir := newTestLog(t)
	mustAppend(t, l, false, benchRecord(), say("hello \x1b[2J\u202e\nforged row"), Record{Chat: "other", Body: userMessageRecord{Text: "elsewhere", Source: "app"}})
	mustAppend(t, l, false, say(strings.Repeat("long ", 100)))
	mustClose(t, l)
	return dir
}

func TestTable(t *testing.T) {
	dir := viewLog(t)
	out := viewOf(t, dir, auditView{N: 50})
	if n := strings.Count(out, "\n"); n != 5 {
		t.Errorf("%d rows:\n%s", n, out)
	}
	for _, want := range []string{"genesis", "allow  shell  shell: git diff --staged", "grant  shell:git", `hello \x1b[2J\u202e\nforged row`, "elsewhere", `long \u2026`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, tt := range []struct {
		v    auditView
		rows int
		has  string
	}{
		{auditView{N: 2}, 2, "elsewhere"},
		{auditView{N: 5}, 5, "genesis"},
		{auditView{N: 0}, 0, ""},
		{auditView{N: 50, Kind: "decision"}, 1, "shell"},
		{auditView{N: 50, Kind: "none"}, 0, ""},
		{auditView{N: 50, Chat: "other"}, 1, "elsewhere"},
		{auditView{N: 50, Chat: "test", Kind: "user_message"}, 2, "hello"},
	} {
		out := viewOf(t, dir, tt.v)
		if strings.Count(out, "\n") != tt.rows || !strings.Contains(out, tt.has) {
			t.Errorf("%+v:\n%s", tt.v, out)
		}
	}
	raw := readTestFile(t, filepath.Join(dir, auditName))
	if out := viewOf(t, dir, auditView{N: 50, JSON: true}); out != string(raw) {
		t.Errorf("--json:\n%s", out)
	}
}

// On a terminal no row is wider than it, and what was done is still in it.
func TestTableFitsTheTerminal(t *testing.T) {
	dir := viewLog(t)
	whole := viewOf(t, dir, auditView{N: 50})
	for _, width := range []int{40, 80, 119, 120, 200, 100000} {
		out := viewOf(t, dir, auditView{N: 50, Width: width})
		if strings.Count(out, "\n") != 5 {
			t.Errorf("%d columns:\n%s", width, out)
		}
		for row := range strings.Lines(out) {
			if cols(strings.TrimSuffix(row, "\n")) > width {
				t.Errorf("%d columns: %q", width, row)
			}
		}
		if width >= 80 && !strings.Contains(out, "allow  shell  shell: git") {
			t.Errorf("%d columns do not say what was done:\n%s", width, out)
		}
		if width == 100000 && out != whole {
			t.Errorf("cut without need:\n%s", out)
		}
	}
}

func TestTableReportsDamage(t *testing.T) {
	dir := viewLog(t)
	path := filepath.Join(dir, auditName)
	raw := readTestFile(t, path)
	raw = bytes.Replace(raw, []byte("elsewhere"), []byte("else\x1b[1m!!"), 1)
	writeTestFile(t, path, append(raw, "{\"prev\":\"\x1b"...))
	for _, v := range []auditView{{N: 50}, {N: 50, Kind: "decision"}, {N: 50, Chat: "test"}} {
		out := viewOf(t, dir, v)
		if !strings.Contains(out, "!! line 5 does not continue the one before") || !strings.Contains(out, "!! the last line was not finished") {
			t.Errorf("%+v: damage is not shown:\n%s", v, out)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("raw escape:\n%q", out)
		}
	}
	out := viewOf(t, dir, auditView{N: 50, JSON: true})
	if strings.Contains(out, "\x1b") {
		t.Errorf("raw escape:\n%q", out)
	}
	damage := 0
	for line := range strings.Lines(out) {
		var r struct{ Kind, What, Text string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Errorf("%v: %q", err, line)
		}
		if r.Kind == "damage" {
			damage++
		}
	}
	if damage != 3 { // the changed line, the one after it, the end
		t.Errorf("%d reports:\n%s", damage, out)
	}
}

func TestShowRecord(t *testing.T) {
	dir := viewLog(t)
	var out bytes.Buffer
	if err := showRecord(&out, dir, "call_0123456789", testSafe); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"call: call_0123456789\n", "verdict: allow\n", `args: {"command":"git diff --staged | head -n 100"}`, "targets: [\"shell:git\",\"shell:head\"]"} {
		if !strings.Contains(out.String(), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := showRecord(&out, dir, "3", testSafe); err != nil || !strings.Contains(out.String(), `hello \x1b[2J\u202e`) || strings.Contains(out.String(), "elsewhere") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if err := showRecord(&out, dir, "99", testSafe); err == nil {
		t.Error("a record that is not there")
	}
}

// syncBuffer can be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) wait(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		got := s.b.String()
		s.mu.Unlock()
		if strings.Contains(got, text) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q did not come:\n%s", text, got)
		}
	}
}

func TestFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out syncBuffer
	done := make(chan error)
	go func() { done <- showAudit(ctx, &out, dir, auditView{N: 10, Follow: true, Safe: testSafe}) }()
	l := reopenTestLog(t, dir)
	mustAppend(t, l, false, say("first"))
	out.wait(t, "first")
	mustAppend(t, l, false, say("second"))
	out.wait(t, "second")
	mustAppend(t, l, false, say("third"))
	if _, err := restartLog(context.Background(), dir, nil); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, false, say("fourth"))
	out.wait(t, "fourth")
	out.wait(t, "third")
	out.wait(t, "restart")
	if err := os.Truncate(filepath.Join(dir, auditName), 100); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "!! the file became shorter")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := strings.Count(out.b.String(), "!!"); n != 1 {
		t.Errorf("%d reports of damage:\n%s", n, out.b.String())
	}
}
