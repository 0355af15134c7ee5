package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func newTestLog(t *testing.T) (*Log, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	return reopenTestLog(t, dir), dir
}

func reopenTestLog(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := openAudit(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func say(text string) Record {
	return Record{Chat: "test", Body: userMessageRecord{Text: text, Source: "owner"}}
}

func mustAppend(t *testing.T, l *Log, sync bool, recs ...Record) {
	t.Helper()
	if err := l.Append(context.Background(), sync, recs...); err != nil {
		t.Fatal(err)
	}
}

func mustClose(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func readTestFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeTestFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// wantVerify checks the outcome for audit.jsonl.
func wantVerify(t *testing.T, dir string, status int) fileReport {
	t.Helper()
	r, err := verifyFile(dir, auditName)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != status {
		t.Fatalf("verify: status %d, want %d: %+v", r.Status, status, *r)
	}
	return *r
}

func kindsOf(t *testing.T, path string) (kinds []string) {
	t.Helper()
	for line := range bytes.Lines(readTestFile(t, path)) {
		n, err := parseLine(line)
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, n.Kind)
	}
	return kinds
}

func TestLinesCheckByHand(t *testing.T) {
	needProgram(t, "sha256sum")
	needProgram(t, "jq")
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("<a> & b\u2028c"), benchRecord())
	mustAppend(t, l, false, say("x\n{\"event\":\"approved\"}"))
	mustClose(t, l)
	path := filepath.Join(dir, auditName)
	run := func(script string) string {
		out, err := exec.Command("sh", "-c", script, "sh", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	sum := run(`tail -n2 "$1" | head -n1 | tr -d '\n' | sha256sum | cut -d' ' -f1`)
	if prev := run(`tail -n1 "$1" | jq -r .prev`); prev != sum {
		t.Errorf("prev %s, sha256sum %s", prev, sum)
	}
	if got := run(`jq -c .seq "$1" | tr '\n' ' '`); got != "1 2 3 4" {
		t.Errorf("seq: %s", got)
	}
	if got, want := run(`jq -c keys_unsorted "$1" | sed -n 3p | cut -c1-64`), `["prev","seq","ts","kind","run","chat","channel","call","tool",`; !strings.HasPrefix(got, want) {
		t.Errorf("keys: %s", got)
	}
	if got := run(`jq -r 'select(.seq == 2).text' "$1"`); got != "<a> & b\u2028c" {
		t.Errorf("text: %q", got)
	}
	raw := readTestFile(t, path)
	if !bytes.Contains(raw, []byte(`"<a> & b\u2028c"`)) {
		t.Errorf("escapes:\n%s", raw)
	}
	for line := range bytes.Lines(raw) {
		var b bytes.Buffer
		if err := json.Compact(&b, line); err != nil || b.String()+"\n" != string(line) {
			t.Errorf("blanks, or not JSON: %v\n%s", err, line)
		}
	}
	for _, name := range []string{auditName, stateName, "audit.lock"} {
		if err := checkOwn(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	wantVerify(t, dir, auditProven)
}

func TestReopenGoesOn(t *testing.T) {
	l, dir := newTestLog(t)
	for i := range 5 {
		mustAppend(t, l, i%2 == 0, say(strconv.Itoa(i)))
		mustClose(t, l)
		if err := l.Append(context.Background(), false, say("closed")); !errors.Is(err, errAudit) {
			t.Fatalf("append to a closed log: %v", err)
		}
		l = reopenTestLog(t, dir)
	}
	mustClose(t, l)
	if r := wantVerify(t, dir, auditProven); r.Lines != 6 {
		t.Errorf("%d lines", r.Lines)
	}
}

// TestHelperAppend is the child of the tests below.
func TestHelperAppend(t *testing.T) {
	dir := os.Getenv("PICKET_TEST_APPEND")
	if dir == "" {
		return
	}
	n, _ := strconv.Atoi(os.Getenv("PICKET_TEST_APPEND_N"))
	l, err := openAudit(dir)
	if err != nil {
		fmt.Println("ERR", err)
		os.Exit(3)
	}
	var wg sync.WaitGroup
	var count atomic.Int64
	var mu sync.Mutex
	for g := range 4 {
		wg.Go(func() {
			for i := 0; n == 0 || i < n; i++ {
				sync := i%4 == 0
				if err := l.Append(context.Background(), sync, say(fmt.Sprintf("%d %d %d", os.Getpid(), g, i)), benchRecord()); err != nil {
					fmt.Println("ERR", err)
					os.Exit(3)
				}
				if sync {
					mu.Lock()
					fmt.Printf("DONE %d %d %d\n", os.Getpid(), g, i)
					mu.Unlock()
				}
				count.Add(2)
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		fmt.Println("ERR", err)
		os.Exit(3)
	}
	os.Exit(0)
}

func helperAppend(dir string, n int) *exec.Cmd {
	c := exec.Command(os.Args[0], "-test.run=^TestHelperAppend$")
	c.Env = append(os.Environ(), "PICKET_TEST_APPEND="+dir, "PICKET_TEST_APPEND_N="+strconv.Itoa(n))
	c.Stderr = os.Stderr
	return c
}

func TestTwoProcessesOneChain(t *testing.T) {
	_, dir := newTestLog(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if out, err := helperAppend(dir, 50).Output(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	l := reopenTestLog(t, dir)
	for range 50 {
		wg.Go(func() { mustAppend(t, l, true, say("in this process")) })
	}
	wg.Wait()
	mustClose(t, l)
	if r := wantVerify(t, dir, auditProven); r.Lines != 1+2*4*50*2+50 {
		t.Errorf("%d lines", r.Lines)
	}
}

func TestKilledWriter(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs signals")
	}
	_, dir := newTestLog(t)
	done := map[string]bool{}
	for i := range 12 {
		c := helperAppend(dir, 0)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(out)
		for n := 0; n < 5+i*3 && sc.Scan(); n++ {
			if strings.HasPrefix(sc.Text(), "ERR") {
				t.Fatal(sc.Text())
			}
			done[strings.TrimPrefix(sc.Text(), "DONE ")] = true
		}
		c.Process.Kill()
		for sc.Scan() {
			done[strings.TrimPrefix(sc.Text(), "DONE ")] = true
		}
		c.Wait()
	}
	l := reopenTestLog(t, dir)
	if _, err := l.Accept(context.Background()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	wantVerify(t, dir, auditProven)
	for _, k := range kindsOf(t, filepath.Join(dir, auditName)) {
		if k == "gap" {
			t.Error("a kill left a gap")
		}
	}
	raw := readTestFile(t, filepath.Join(dir, auditName))
	for id := range done {
		if !bytes.Contains(raw, []byte(`"text":"`+id+`"`)) {
			t.Errorf("record %q was acknowledged and is gone", id)
		}
	}
}

// crash returns the folder of a log of five lines as a killed process leaves it
// whose state knows the first three.
func crash(t *testing.T) (dir string, lines [][]byte) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	mustAppend(t, l, true, say("two"))
	state := readTestFile(t, filepath.Join(dir, stateName))
	mustAppend(t, l, false, say("three"))
	mustAppend(t, l, false, say("four"))
	mustClose(t, l)
	writeTestFile(t, filepath.Join(dir, stateName), state)
	return dir, bytes.SplitAfter(readTestFile(t, filepath.Join(dir, auditName)), []byte("\n"))[:5]
}

func TestCrashRules(t *testing.T) {
	join := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	for _, tt := range []struct {
		name    string
		file    func(l [][]byte) []byte
		before  int      // verify, before picket looks at it
		kinds   []string // appended at open
		after   int
		damaged bool
	}{
		{"log ahead of its state is taken in", func(l [][]byte) []byte { return join(l...) }, auditIncomplete, nil, auditProven, false},
		{"log where the state is", func(l [][]byte) []byte { return join(l[:3]...) }, auditProven, nil, auditProven, false},
		{"torn line after the state's", func(l [][]byte) []byte { return join(l[0], l[1], l[2], l[3][:50]) }, auditIncomplete, []string{"recovered"}, auditUnaccepted, false},
		{"torn line after lines ahead", func(l [][]byte) []byte { return join(l[0], l[1], l[2], l[3], l[4][:1]) }, auditIncomplete, []string{"recovered"}, auditUnaccepted, false},
		{"line without its newline", func(l [][]byte) []byte { return join(l[0], l[1], l[2], l[3][:len(l[3])-1]) }, auditIncomplete, []string{"recovered"}, auditUnaccepted, false},
		{"zeros after the end", func(l [][]byte) []byte { return join(l[0], l[1], l[2], make([]byte, 300<<10)) }, auditIncomplete, []string{"recovered"}, auditUnaccepted, false},
		{"cut before the state's line", func(l [][]byte) []byte { return join(l[:2]...) }, auditIncomplete, []string{"gap"}, auditUnaccepted, false},
		{"cut in the state's line", func(l [][]byte) []byte { return join(l[0], l[1], l[2][:70]) }, auditIncomplete, []string{"recovered", "gap"}, auditUnaccepted, false},
		{"cut to the first line", func(l [][]byte) []byte { return l[0] }, auditIncomplete, []string{"gap"}, auditUnaccepted, false},
		{"cut in the first line", func(l [][]byte) []byte { return l[0][:20] }, auditIncomplete, nil, 0, true},
		{"empty", func(l [][]byte) []byte { return nil }, auditIncomplete, nil, 0, true},
		{"state's line changed", func(l [][]byte) []byte { return join(l[0], l[1], bytes.Replace(l[2], []byte("two"), []byte("2wo"), 1)) }, auditTampered, nil, 0, true},
		{"line before the state's taken out", func(l [][]byte) []byte { return join(l[0], l[2], l[3], l[4]) }, auditTampered, nil, auditTampered, false},
		{"line before the state's changed", func(l [][]byte) []byte { return join(l[0], bytes.Replace(l[1], []byte("one"), []byte("two"), 1), l[2]) }, auditTampered, nil, auditTampered, false},
		{"foreign line at the end", func(l [][]byte) []byte { return join(l[0], l[1], l[2], []byte("{\"prev\":\"\"}\n")) }, auditTampered, nil, 0, true},
		{"line ahead is linked to nothing", func(l [][]byte) []byte { return join(l[0], l[1], l[2], l[4]) }, auditTampered, nil, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // it waits for a process that does not come
			dir, lines := crash(t)
			path := filepath.Join(dir, auditName)
			was := tt.file(lines)
			writeTestFile(t, path, was)
			wantVerify(t, dir, tt.before)
			if got := readTestFile(t, path); !bytes.Equal(got, was) {
				t.Fatal("verify wrote to the log")
			}
			l, err := openAudit(dir)
			if tt.damaged {
				if !errors.Is(err, errDamaged) || !errors.Is(err, errAudit) {
					t.Fatalf("open: %v", err)
				}
				testRestart(t, dir, was)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			mustAppend(t, l, true, say("goes on"))
			mustClose(t, l)
			kinds := kindsOf(t, path)
			if got := strings.Join(kinds[len(kinds)-1-len(tt.kinds):], " "); got != strings.Join(append(tt.kinds, "user_message"), " ") {
				t.Errorf("kinds at the end: %s", got)
			}
			r := wantVerify(t, dir, tt.after)
			if tt.after != auditUnaccepted {
				return
			}
			if !bytes.Contains(readTestFile(t, path), []byte(`"kind":"`+kinds[r.Line-1]+`"`)) {
				t.Errorf("line %d is no gap or recovery", r.Line)
			}
			l = reopenTestLog(t, dir)
			if _, err := l.Accept(context.Background()); err != nil {
				t.Fatal(err)
			}
			mustClose(t, l)
			wantVerify(t, dir, auditProven)
		})
	}
}

// testRestart sets a log aside that cannot be opened.
func testRestart(t *testing.T, dir string, was []byte) {
	t.Helper()
	aside, err := restartLogs(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(aside) != 1 || !bytes.Equal(readTestFile(t, filepath.Join(dir, aside[0])), was) {
		t.Fatalf("set aside: %q", aside)
	}
	l := reopenTestLog(t, dir)
	mustAppend(t, l, true, say("again"))
	mustClose(t, l)
	wantVerify(t, dir, auditProven)
	path := filepath.Join(dir, auditName)
	if got := strings.Join(kindsOf(t, path), " "); got != "genesis restart user_message" {
		t.Errorf("kinds: %s", got)
	}
	var g genesisRecord
	line, _, _ := bytes.Cut(readTestFile(t, path), []byte("\n"))
	if err := json.Unmarshal(line, &g); err != nil || g.File != aside[0] {
		t.Errorf("first line: %s", line)
	}
}

func TestRestartLeavesAGoodLogAlone(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	aside, err := restartLogs(context.Background(), dir)
	if err != nil || len(aside) != 0 {
		t.Fatal(aside, err)
	}
	mustAppend(t, l, true, say("two"))
	mustClose(t, l)
	wantVerify(t, dir, auditProven)
}

func TestRestartUnderARunningProcess(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	mustAppend(t, l, false, say("two"))
	if _, err := restartLog(context.Background(), dir, nil); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, true, say("three"))
	mustClose(t, l)
	if got := strings.Join(kindsOf(t, filepath.Join(dir, auditName)), " "); got != "genesis restart user_message" {
		t.Errorf("kinds: %s", got)
	}
	wantVerify(t, dir, auditProven)
}

func TestRecoveredHoldsTheTornLine(t *testing.T) {
	dir, lines := crash(t)
	tail := append(bytes.Clone(lines[3][:40]), 0xff, 0x1b)
	path := filepath.Join(dir, auditName)
	writeTestFile(t, path, append(bytes.Join(lines[:3], nil), tail...))
	mustClose(t, reopenTestLog(t, dir))
	raw := bytes.SplitAfter(readTestFile(t, path), []byte("\n"))
	var r recoveredRecord
	if err := json.Unmarshal(raw[3], &r); err != nil {
		t.Fatal(err)
	}
	want := string(tail[:40]) + "\uFFFD<ff>\x1b"
	if r.Bytes != int64(len(tail)) || r.Text != want || len(r.Digest) != 64 {
		t.Errorf("%q %q", r.Text, want)
	}
}

func TestStateSlots(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	mustAppend(t, l, true, say("two"))
	mustClose(t, l)
	path := filepath.Join(dir, stateName)
	good, log := readTestFile(t, path), readTestFile(t, filepath.Join(dir, auditName))
	for _, tt := range []struct {
		name   string
		change func(b []byte) []byte
		opens  bool
	}{
		{"slot 0 torn", func(b []byte) []byte { rand.Read(b[100:300]); return b }, true},
		{"slot 1 torn", func(b []byte) []byte { rand.Read(b[slotStride+100 : slotStride+300]); return b }, true},
		{"both torn", func(b []byte) []byte { b[100]++; b[slotStride+100]++; return b }, false},
		{"cut to slot 0", func(b []byte) []byte { return b[:slotSize] }, true},
		{"empty", func(b []byte) []byte { return nil }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			os.Chmod(dir, 0o700)
			writeTestFile(t, filepath.Join(dir, auditName), log)
			writeTestFile(t, filepath.Join(dir, stateName), tt.change(bytes.Clone(good)))
			before, err := verifyFile(dir, auditName)
			if err != nil {
				t.Fatal(err)
			}
			l, err := openAudit(dir)
			if !tt.opens {
				if !errors.Is(err, errDamaged) || before.Status != auditIncomplete {
					t.Fatalf("open: %v; verify: %+v", err, before)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			mustClose(t, l)
			wantVerify(t, dir, auditProven)
		})
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantVerify(t, dir, auditIncomplete)
	if _, err := openAudit(dir); !errors.Is(err, errDamaged) {
		t.Fatalf("open without a state: %v", err)
	}
}

func TestStateOfAnotherLog(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	mustClose(t, l)
	m, other := newTestLog(t)
	mustAppend(t, m, true, say("one"))
	mustClose(t, m)
	writeTestFile(t, filepath.Join(dir, auditName), readTestFile(t, filepath.Join(other, auditName)))
	wantVerify(t, dir, auditTampered)
	if _, err := openAudit(dir); !errors.Is(err, errDamaged) {
		t.Fatalf("open: %v", err)
	}
}

func TestShorterLogInItsPlace(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	mustAppend(t, l, true, say("two"))
	mustClose(t, l)
	m, other := newTestLog(t)
	mustClose(t, m)
	writeTestFile(t, filepath.Join(dir, auditName), readTestFile(t, filepath.Join(other, auditName)))
	wantVerify(t, dir, auditTampered)
	if _, err := openAudit(dir); !errors.Is(err, errDamaged) {
		t.Fatalf("open: %v", err)
	}
}

func TestRenamedAwayWhileOpen(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	path := filepath.Join(dir, auditName)
	if err := os.Rename(path, path+".x"); err != nil {
		t.Fatal(err)
	}
	was := readTestFile(t, path+".x")
	if err := l.Append(context.Background(), false, say("two")); !errors.Is(err, errDamaged) {
		t.Fatalf("append without a log: %v", err)
	}
	if !bytes.Equal(was, readTestFile(t, path+".x")) {
		t.Error("it wrote to the renamed file")
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("it made a new file")
	}
	if err := os.Rename(path+".x", path); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, false, say("three"))
	mustClose(t, l)
	wantVerify(t, dir, auditProven)
}

func TestCutWhileOpen(t *testing.T) {
	for _, sync := range []bool{true, false} {
		l, dir := newTestLog(t)
		for _, s := range []string{"one", "two", "three"} {
			mustAppend(t, l, sync, say(s))
		}
		path := filepath.Join(dir, auditName)
		raw := readTestFile(t, path)
		if err := os.Truncate(path, int64(bytes.LastIndexByte(raw[:len(raw)-1], '\n')+1)); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, true, say("four"))
		mustClose(t, l)
		if got := strings.Join(kindsOf(t, path), " "); got != "genesis user_message user_message gap user_message" {
			t.Errorf("sync %v: kinds: %s", sync, got)
		}
		wantVerify(t, dir, auditUnaccepted)
	}
}

func TestSyncedWithinASecond(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, false, say("nobody waits"))
	head := func() int64 {
		f, err := os.Open(filepath.Join(dir, stateName))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := readState(f)
		if err != nil {
			t.Fatal(err)
		}
		return st.Head.Seq
	}
	for end := time.Now().Add(10 * time.Second); head() != 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the record was never synced")
		}
	}
}

func TestLockHeldElsewhere(t *testing.T) {
	l, dir := newTestLog(t)
	f, err := os.OpenFile(filepath.Join(dir, "audit.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ok, err := tryLockFile(f); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	before := readTestFile(t, filepath.Join(dir, auditName))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := l.Append(ctx, true, say("no")); !errors.Is(err, errAudit) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("append: %v", err)
			}
		})
	}
	wg.Wait()
	unlockFile(f)
	if !bytes.Equal(before, readTestFile(t, filepath.Join(dir, auditName))) {
		t.Error("something was written without the lock")
	}
	mustAppend(t, l, true, say("yes"))
}

func TestLockFileRemoved(t *testing.T) {
	l, dir := newTestLog(t)
	mustAppend(t, l, true, say("one"))
	if err := os.Remove(filepath.Join(dir, "audit.lock")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * lately)
	m := reopenTestLog(t, dir)
	var wg sync.WaitGroup
	for _, l := range []*Log{l, m} {
		for range 4 {
			wg.Go(func() {
				for range 50 {
					mustAppend(t, l, false, say("x"))
				}
			})
		}
	}
	wg.Wait()
	mustClose(t, l)
	mustClose(t, m)
	wantVerify(t, dir, auditProven)
}

func TestModesAreChecked(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes on Windows")
	}
	l, dir := newTestLog(t)
	mustClose(t, l)
	for _, tt := range []struct {
		path string
		mode fs.FileMode
		want string
	}{
		{dir, 0o755, "chmod 700 '" + dir + "'"},
		{filepath.Join(dir, auditName), 0o640, "chmod 600 '" + filepath.Join(dir, auditName) + "'"},
		{filepath.Join(dir, stateName), 0o604, "chmod 600 '" + filepath.Join(dir, stateName) + "'"},
		{filepath.Join(dir, "audit.lock"), 0o666, "chmod 600 '" + filepath.Join(dir, "audit.lock") + "'"},
	} {
		fi, err := os.Stat(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		os.Chmod(tt.path, tt.mode)
		if _, err := openAudit(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("mode %o: %v; want %q", tt.mode, err, tt.want)
		}
		if aside, err := restartLogs(context.Background(), dir); err == nil || aside != nil {
			t.Errorf("mode %o: a restart set aside %q", tt.mode, aside)
		}
		os.Chmod(tt.path, fi.Mode().Perm())
	}
	path := filepath.Join(dir, auditName)
	os.Rename(path, path+".real")
	os.Symlink(path+".real", path)
	if _, err := openAudit(dir); err == nil {
		t.Error("a link was taken for the log")
	}
}

// TestDiskFull fills a file system of its own.
func TestDiskFull(t *testing.T) {
	need(t, runtime.GOOS == "linux" && os.Geteuid() == 0, "root on Linux, for a small tmpfs")
	mnt := t.TempDir()
	if err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", mnt).Run(); err != nil {
		need(t, false, "the right to mount a tmpfs")
	}
	defer exec.Command("umount", "-l", mnt).Run()
	dir := filepath.Join(mnt, "data")
	l := reopenTestLog(t, dir)
	testFull(t, l, dir)
	mustClose(t, l)
	if err := exec.Command("mount", "-o", "remount,ro", mnt).Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := openAudit(dir); !errors.Is(err, errAudit) {
		t.Errorf("open on a read-only disk: %v", err)
	}
	wantVerify(t, dir, auditProven)
}

func testFull(t *testing.T, l *Log, dir string) {
	text := strings.Repeat("x", 5000)
	ok, path, ballast := 0, filepath.Join(dir, auditName), filepath.Join(dir, "ballast")
	writeTestFile(t, ballast, make([]byte, 8<<10))
	for ; ; ok++ {
		before := readTestFile(t, path)
		err := l.Append(context.Background(), true, say(text))
		if err == nil {
			continue
		}
		if !errors.Is(err, errAudit) {
			t.Fatalf("append: %v", err)
		}
		if !bytes.Equal(before, readTestFile(t, path)) {
			t.Error("a failed append left something")
		}
		break
	}
	if ok == 0 {
		t.Fatal("nothing fitted")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, true, say("fits"))
}

// TestHelperFileSize is the child of TestFileSizeLimit.
func TestHelperFileSize(t *testing.T) {
	if dir := os.Getenv("PICKET_TEST_FSIZE"); dir != "" {
		l := reopenTestLog(t, dir)
		limitFileSize(t, 20<<10)
		testFull(t, l, dir)
		mustClose(t, l)
	}
}

func TestFileSizeLimit(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no limits on Windows")
	}
	dir := filepath.Join(t.TempDir(), "data")
	c := exec.Command(os.Args[0], "-test.run=^TestHelperFileSize$", "-test.v")
	c.Env = append(os.Environ(), "PICKET_TEST_FSIZE="+dir)
	if out, err := c.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Fatalf("%v\n%s", err, out)
	}
	wantVerify(t, dir, auditProven)
}

func TestRuns(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if !runGone(dir, "never") {
		t.Error("a run that never was is not gone")
	}
	release, err := holdRun(context.Background(), dir, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // asking changes nothing
		if runGone(dir, "mine") {
			t.Error("a run that lives is gone")
		}
	}
	if runGone(dir, "../runs/never") || runGone(dir, "") {
		t.Error("a run without a proper name is gone")
	}
	// A killed process leaves its file, without the lock.
	writeTestFile(t, filepath.Join(dir, "runs", "killed"), nil)
	if !runGone(dir, "killed") {
		t.Error("a killed run is not gone")
	}
	second, err := holdRun(context.Background(), dir, "second")
	if err != nil {
		t.Fatal(err)
	}
	defer second()
	if _, err := os.Stat(filepath.Join(dir, "runs", "killed")); err == nil {
		t.Error("a killed run's file was not swept")
	}
	if runGone(dir, "mine") {
		t.Error("sweeping took a run that lives")
	}
	release()
	if !runGone(dir, "mine") {
		t.Error("a run that was released is not gone")
	}
}

func TestWriteFileAtomic(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeTestFile(t, path+".new", []byte("left by a crash"))
	for _, s := range []string{"one", "two"} {
		if err := writeFileAtomic(path, []byte(s)); err != nil {
			t.Fatal(err)
		}
		if got := readTestFile(t, path); string(got) != s {
			t.Errorf("%q", got)
		}
		if err := checkOwn(path); err != nil {
			t.Error(err)
		}
	}
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
		t.Errorf("left: %v", list)
	}
}
