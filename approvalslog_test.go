package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// grantedBy follows approvals.jsonl as its users do.
type grantedBy struct {
	*Log
	mu   sync.Mutex
	keys []string
}

func openGranted(t *testing.T, audit *Log, dir string) *grantedBy {
	t.Helper()
	g := &grantedBy{}
	l, err := OpenLog(dir, approvalsName, LogOptions{Anchor: audit, Apply: g.apply})
	if err != nil {
		t.Fatal(err)
	}
	g.Log = l
	t.Cleanup(func() { l.Close() })
	return g
}

func (g *grantedBy) apply(n Line) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var r grantRecord
	switch n.Kind {
	case "genesis":
		g.keys = nil
	case "grant":
		if n.Decode(&r) == nil {
			g.keys = append(g.keys, r.Key)
		}
	case "revoke":
		if n.Decode(&r) == nil {
			g.keys = slices.DeleteFunc(g.keys, func(k string) bool { return k == r.Key })
		}
	}
}

func (g *grantedBy) add(keys ...string) error {
	return g.Update(context.Background(), func() (recs []Record, err error) {
		for _, k := range keys {
			recs = append(recs, Record{Body: grantRecord{Key: k}})
		}
		return recs, nil
	})
}

func (g *grantedBy) want(t *testing.T, keys ...string) {
	t.Helper()
	if err := g.add(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.keys, keys) {
		t.Errorf("grantedBy %q, want %q", g.keys, keys)
	}
}

func TestUpdateSeesOthers(t *testing.T) {
	a, dir := newTestLog(t)
	b := reopenTestLog(t, dir)
	g, h := openGranted(t, a, dir), openGranted(t, b, dir)
	g.want(t)
	if err := g.add("one", "two"); err != nil {
		t.Fatal(err)
	}
	h.want(t, "one", "two")
	if err := h.Update(context.Background(), func() ([]Record, error) {
		return []Record{{Body: revokeRecord{Key: "one"}}}, nil
	}); err != nil {
		t.Fatal(err)
	}
	g.want(t, "two")
	refused := errors.New("no")
	if err := g.Update(context.Background(), func() ([]Record, error) {
		return []Record{{Body: grantRecord{Key: "never"}}}, refused
	}); err != refused {
		t.Fatal(err)
	}
	h.want(t, "two")
	if err := g.Append(context.Background(), true, say("x")); !errors.Is(err, errAudit) {
		t.Errorf("append past the anchor: %v", err)
	}
	r, err := verifyLog(dir)
	if err != nil || r.Status != auditProven || len(r.Files) != 2 || r.Files[1].Lines != 4 {
		t.Errorf("%+v %v", r, err)
	}
	if bytes.Contains(readTestFile(t, filepath.Join(dir, approvalsName)), []byte(`"key":""`)) {
		t.Error("its first line has a key")
	}
}

// TestApprovalsEnds gives approvals.jsonl every end that a crash can leave, and
// those that only somebody else can.
func TestApprovalsEnds(t *testing.T) {
	join := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	for _, tt := range []struct {
		name    string
		pending bool // the state announces lines 4 and 5 after line 3, else line 5 is the last
		file    func(l [][]byte) []byte
		keys    []string // believed; nil: nothing is
		status  int      // of verify, before
	}{
		{"as it was", false, func(l [][]byte) []byte { return join(l[:5]...) }, []string{"a", "b", "c", "d"}, auditProven},
		{"killed before the append", true, func(l [][]byte) []byte { return join(l[:3]...) }, []string{"a", "b"}, auditProven},
		{"killed after the append", true, func(l [][]byte) []byte { return join(l[:5]...) }, []string{"a", "b", "c", "d"}, auditProven},
		{"killed in the append, a line is whole", true, func(l [][]byte) []byte { return join(l[:4]...) }, []string{"a", "b"}, auditIncomplete},
		{"killed in the append, a line is torn", true, func(l [][]byte) []byte { return join(join(l[:3]...), l[3][:30]) }, []string{"a", "b"}, auditIncomplete},
		{"garbage after a crash", true, func(l [][]byte) []byte { return join(join(l[:3]...), []byte("\x00\n\x00")) }, []string{"a", "b"}, auditTampered},
		{"foreign line instead of the announced one", true, func(l [][]byte) []byte {
			return join(join(l[:3]...), forge(l[2], 4, "evil"), forge(forge(l[2], 4, "evil"), 5, "evil"))
		}, []string{"a", "b"}, auditTampered},
		{"cut by a line", false, func(l [][]byte) []byte { return join(l[:4]...) }, nil, auditIncomplete},
		{"cut in a line", false, func(l [][]byte) []byte { return join(l[:5]...)[:len(join(l[:5]...))-9] }, nil, auditIncomplete},
		{"rolled back to its beginning", false, func(l [][]byte) []byte { return l[0] }, nil, auditIncomplete},
		{"empty", false, func(l [][]byte) []byte { return nil }, nil, auditIncomplete},
		{"rolled back and continued", false, func(l [][]byte) []byte { return join(join(l[:4]...), forge(l[3], 5, "evil")) }, nil, auditTampered},
		{"foreign line at the end", false, func(l [][]byte) []byte { return join(join(l[:5]...), forge(l[4], 6, "evil")) }, nil, auditTampered},
		{"cut before the announced lines", true, func(l [][]byte) []byte { return join(l[:2]...) }, nil, auditIncomplete},
		{"changed in the middle", false, func(l [][]byte) []byte {
			return bytes.Replace(join(l[:5]...), []byte(`"key":"a"`), []byte(`"key":"*"`), 1)
		}, nil, auditTampered},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // verify waits for a process that does not come
			audit, dir := newTestLog(t)
			g := openGranted(t, audit, dir)
			for _, k := range []string{"a", "b"} {
				if err := g.add(k); err != nil {
					t.Fatal(err)
				}
			}
			have := g.head
			if err := g.add("c", "d"); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, approvalsName)
			file := tt.file(bytes.SplitAfter(readTestFile(t, path), []byte("\n")))
			if tt.pending {
				if err := g.vouch(context.Background(), true, have, g.head); err != nil {
					t.Fatal(err)
				}
			}
			writeTestFile(t, path, file)
			if r, err := verifyFile(dir, approvalsName); err != nil || r.Status != tt.status {
				t.Fatalf("verify: %+v %v", r, err)
			}
			fresh := openGranted(t, audit, dir)
			err := fresh.add()
			if tt.keys == nil {
				if !errors.Is(err, errDamaged) || !errors.Is(err, errAudit) || fresh.keys != nil {
					t.Fatalf("believed %q: %v", fresh.keys, err)
				}
				// A process that had it open knows the true lines by itself, and
				// sees a change of the length.
				if int64(len(file)) != g.head.Off {
					if err := g.add("more"); !errors.Is(err, errDamaged) {
						t.Fatalf("the process that had it open: %v", err)
					}
				}
				if !bytes.Equal(readTestFile(t, path), file) {
					t.Fatal("it was written to")
				}
				aside, err := restartLogs(context.Background(), dir)
				if err != nil || len(aside) != 1 || !strings.HasPrefix(aside[0], approvalsName) {
					t.Fatal(aside, err)
				}
				fresh.want(t)
				g.want(t)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			fresh.want(t, tt.keys...)
			if err := fresh.add("e"); err != nil {
				t.Fatal(err)
			}
			openGranted(t, audit, dir).want(t, append(slices.Clone(tt.keys), "e")...)
			if r, err := verifyFile(dir, approvalsName); err != nil || r.Status != auditProven {
				t.Fatalf("verify after: %+v %v", r, err)
			}
		})
	}
}

// forge makes a line that continues another.
func forge(after []byte, seq int, key string) []byte {
	m := mark{Seq: int64(seq - 1), Hash: sumLine(after)}
	return linesOf(m, Record{Body: grantRecord{Key: key}})
}

func TestApprovalsFailedAppendLeavesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no limits on Windows")
	}
	dir := filepath.Join(t.TempDir(), "data")
	c := exec.Command(os.Args[0], "-test.run=^TestHelperApprovalsFull$", "-test.v")
	c.Env = append(os.Environ(), "PICKET_TEST_APPROVALS_FULL="+dir)
	if out, err := c.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Fatalf("%v\n%s", err, out)
	}
	openGranted(t, reopenTestLog(t, dir), dir).want(t, "small", "fits")
}

func TestHelperApprovalsFull(t *testing.T) {
	dir := os.Getenv("PICKET_TEST_APPROVALS_FULL")
	if dir == "" {
		return
	}
	g := openGranted(t, reopenTestLog(t, dir), dir)
	if err := g.add("small"); err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, 5000)
	if err := g.add(strings.Repeat("x", 8000)); !errors.Is(err, errAudit) {
		t.Fatalf("no error: %v", err)
	}
	g.want(t, "small")
	if err := g.add("fits"); err != nil {
		t.Fatal(err)
	}
}

// TestHelperApprovals is the child of TestKilledApprovals.
func TestHelperApprovals(t *testing.T) {
	dir := os.Getenv("PICKET_TEST_APPROVALS")
	if dir == "" {
		return
	}
	audit, err := openAudit(dir)
	if err != nil {
		fmt.Println("ERR", err)
		os.Exit(3)
	}
	g := &grantedBy{}
	if g.Log, err = OpenLog(dir, approvalsName, LogOptions{Anchor: audit, Apply: g.apply}); err != nil {
		fmt.Println("ERR", err)
		os.Exit(3)
	}
	for i := 0; ; i++ {
		key := fmt.Sprintf("%d-%d", os.Getpid(), i)
		if err := g.add(key, key+"b"); err != nil {
			fmt.Println("ERR", err)
			os.Exit(3)
		}
		fmt.Println(key)
	}
}

func TestKilledApprovals(t *testing.T) {
	_, dir := newTestLog(t)
	var done []string
	for i := range 15 {
		c := exec.Command(os.Args[0], "-test.run=^TestHelperApprovals$")
		c.Env = append(os.Environ(), "PICKET_TEST_APPROVALS="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(out)
		for n := 0; n < 2+i && sc.Scan(); n++ {
			done = append(done, sc.Text())
		}
		c.Process.Kill()
		for sc.Scan() {
			done = append(done, sc.Text())
		}
		c.Wait()
	}
	g := openGranted(t, reopenTestLog(t, dir), dir)
	if err := g.add(); err != nil {
		t.Fatal(err)
	}
	for _, key := range done {
		if !slices.Contains(g.keys, key) || !slices.Contains(g.keys, key+"b") {
			t.Errorf("%q was acknowledged and is gone", key)
		}
	}
	for _, key := range g.keys {
		if pair := strings.TrimSuffix(key, "b"); !slices.Contains(g.keys, pair) || !slices.Contains(g.keys, pair+"b") {
			t.Errorf("half of %q counts", pair)
		}
	}
}
