package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"picket/tools"
)

// damaged is a data folder whose approvals.jsonl is changed again and again; between the tries all is put back.
type damaged struct {
	t                *testing.T
	dir, path        string
	audit            *Log
	file, state, log []byte   // as they were
	honest           []string // the grants that hold for another process
	brief            bool     // do not look at the list too
}

// newDamaged makes a file with a question, an answer, grants of each scope and a revocation.
func newDamaged(t *testing.T) *damaged {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	d := openDesk(t, dir, "r1")
	done := d.asked(t.Context(), question("q"))
	if err := d.Answer(t.Context(), "q", "", Answer{Allow: true, Scope: tools.Always}); err != nil {
		t.Fatal(err)
	}
	d.await(done)
	d.grant(tools.Always, "shell:git", "web_fetch:a.test")
	d.grant(tools.Day, "shell:ls")
	d.grant(tools.Session, "files")
	d.grant(tools.Task, "shell")
	d.grant(tools.Always, "shell:rm")
	if _, err := d.Revoke(t.Context(), "shell:rm"); err != nil {
		t.Fatal(err)
	}
	d.grant(tools.Always, "send_email:a@x.test")
	d.Close()
	d.audit.Close()
	g := &damaged{t: t, dir: dir, path: filepath.Join(dir, approvalsName), audit: reopenTestLog(t, dir),
		honest: []string{"send_email:a@x.test always", "shell:git always", "shell:ls 24h", "web_fetch:a.test always"}}
	g.file, g.state, g.log = readTestFile(t, g.path), readTestFile(t, filepath.Join(dir, stateName)), readTestFile(t, filepath.Join(dir, auditName))
	return g
}

func (g *damaged) lines() [][]byte { return bytes.SplitAfter(g.file, []byte("\n")) }

// held opens the changed file as a process does that starts, and returns what holds, and what it says is wrong.
func (g *damaged) held(what string, file []byte) (held []string, trouble string) {
	g.t.Helper()
	writeTestFile(g.t, g.path, file)
	a, err := openApprovals(context.Background(), g.dir, g.audit, "r2")
	if err != nil {
		g.t.Fatalf("%s: %v", what, err)
	}
	defer a.Close()
	for _, h := range a.Held(context.Background(), "turn") {
		held = append(held, h.Key+" "+h.Scope.String())
	}
	slices.Sort(held)
	trouble = a.Trouble()
	// What the list and a question say fits what holds.
	if g.brief {
		return held, trouble
	}
	if _, _, err := a.List(context.Background()); (err != nil) != (trouble != "") {
		g.t.Errorf("%s: the list says %v, trouble is %q", what, err, trouble)
	}
	return held, trouble
}

// none checks that with this file nothing holds, that this is said, and that nothing is answered or granted.
func (g *damaged) none(what string, file []byte) {
	g.t.Helper()
	held, trouble := g.held(what, file)
	if len(held) > 0 || trouble == "" {
		g.t.Errorf("%s: %q holds, trouble is %q", what, held, trouble)
	}
	if now := readTestFile(g.t, g.path); !bytes.Equal(now, file) {
		g.t.Errorf("%s: the damaged file was written to", what)
	}
}

func (g *damaged) mend() {
	writeTestFile(g.t, g.path, g.file)
	f, err := os.OpenFile(filepath.Join(g.dir, stateName), os.O_WRONLY, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(g.state, 0); err != nil {
		g.t.Fatal(err)
	}
}

// TestEveryByteOfApprovals changes each byte of the file, and cuts it at each.
func TestEveryByteOfApprovals(t *testing.T) {
	t.Parallel()
	g := newDamaged(t)
	if held, trouble := g.held("as it was", g.file); !slices.Equal(held, g.honest) || trouble != "" {
		t.Fatalf("%q holds, trouble is %q", held, trouble)
	}
	g.brief = true
	for i := range g.file {
		if underRace && i%8 != 0 {
			continue
		}
		file := bytes.Clone(g.file)
		file[i] ^= []byte{1, 0x20, 0x80}[i%3]
		g.none(fmt.Sprintf("byte %d changed", i), file)
		g.none(fmt.Sprintf("cut at %d", i), g.file[:i])
	}
	if held, trouble := g.held("put back", g.file); !slices.Equal(held, g.honest) || trouble != "" {
		t.Errorf("%q holds, trouble is %q", held, trouble)
	}
}

// linkedAnew makes a chain of lines again, as somebody can who does not have the state.
func linkedAnew(lines [][]byte) []byte {
	var text []string
	for _, l := range lines {
		text = append(text, string(bytes.TrimSuffix(l, []byte("\n"))))
	}
	return []byte(relink(text))
}

func TestLinesOfApprovals(t *testing.T) {
	t.Parallel()
	g := newDamaged(t)
	l := g.lines()
	l = l[:len(l)-1] // after the last LF there is nothing
	if !bytes.Equal(linkedAnew(l), g.file) {
		t.Fatal("linking anew changes a good chain")
	}
	other := newDamaged(t)
	o := other.lines()
	edit := func(line int, old, new string) [][]byte {
		out := slices.Clone(l)
		if out[line] = bytes.Replace(l[line], []byte(old), []byte(new), 1); bytes.Equal(out[line], l[line]) {
			t.Fatalf("line %d has no %q", line, old)
		}
		return out
	}
	at := func(text string) int {
		return slices.IndexFunc(l, func(b []byte) bool { return bytes.Contains(b, []byte(text)) })
	}
	without := func(i int) [][]byte { return slices.Delete(slices.Clone(l), i, i+1) }
	git, revoked := at(`"key":"shell:git"`), at(`"kind":"revoke"`)
	for name, lines := range map[string][][]byte{
		"another key":                  edit(git, "shell:git", "shell:sh"),
		"a wider scope":                edit(at(`"scope":"24h"`), `"scope":"24h"`, `"scope":"always"`),
		"another workspace":            edit(git, `"workspace":"/ws"`, `"workspace":"/"`),
		"for another app":              edit(git, `"who":"owner"`, `"who":"app"`),
		"more labels":                  edit(git, `"labels":[]`, `"labels":["private"]`),
		"a later end":                  edit(at(`"scope":"24h"`), `"until":"2`, `"until":"3`),
		"a denial made an answer":      edit(at(`"kind":"answer"`), `"answer":"allow"`, `"answer":"deny"`),
		"no revocation":                without(revoked),
		"a revocation of another":      edit(revoked, "shell:rm", "shell:xx"),
		"a grant left out":             without(git),
		"two lines changed places":     slices.Concat(l[:git], [][]byte{l[git+1], l[git]}, l[git+2:]),
		"a revocation before its line": slices.Concat(l[:revoked-1], [][]byte{l[revoked], l[revoked-1]}, l[revoked+1:]),
		"a line twice":                 slices.Concat(l[:git+1], l[git:]),
		"the last line twice":          slices.Concat(l, l[len(l)-1:]),
		"a revoked grant once more":    slices.Concat(l, l[revoked-1:revoked]),
		"lines of another file":        slices.Concat(l[:git], o[git:]),
		"another file's beginning":     slices.Concat(o[:git], l[git:]),
		"another file":                 o[:len(o)-1],
	} {
		g.none(name, bytes.Join(lines, nil))
		if file := linkedAnew(lines); !bytes.Equal(file, bytes.Join(lines, nil)) {
			g.none(name+", linked again", file)
		}
	}
	for n := range l {
		g.none(fmt.Sprintf("only %d lines", n), bytes.Join(l[:n], nil))
	}
	if err := os.Remove(g.path); err != nil {
		t.Fatal(err)
	}
	a, err := openApprovals(t.Context(), g.dir, g.audit, "r2")
	if err != nil {
		t.Fatal(err)
	}
	if held := a.Held(t.Context(), ""); len(held) > 0 || a.Trouble() == "" {
		t.Errorf("without the file %v holds, trouble is %q", held, a.Trouble())
	}
	a.Close()
	// An older state with the file that goes with it is not told apart by the two; the audit log's end is beyond both.
	g.mend()
	if r, err := verifyLog(g.dir); err != nil || r.Status != auditProven {
		t.Errorf("put back: %+v %v", r, err)
	}
}

// TestTornApprovals leaves half a line after the last, as a crash does: it is kept in a record, and what was granted holds.
func TestTornApprovals(t *testing.T) {
	t.Parallel()
	g := newDamaged(t)
	next := linesOf(mark{Seq: int64(len(g.lines()) - 1), Hash: sumLine(g.lines()[len(g.lines())-2])},
		Record{Run: "r1", Body: grantRecord{"shell:evil", "always", "owner", "/ws", []string{}, ""}})
	for n := 1; n < len(next); n += 5 {
		what := fmt.Sprintf("%d bytes of a line that nobody announced", n)
		held, trouble := g.held(what, append(bytes.Clone(g.file), next[:n]...))
		if !slices.Equal(held, g.honest) || trouble != "" {
			t.Errorf("%s: %q holds, trouble is %q", what, held, trouble)
		}
		if got := records(t, g.dir, approvalsName, "recovered"); len(got) != 1 {
			t.Errorf("%s: %q", what, got)
		}
		g.mend()
	}
	g.none("a whole line that nobody announced", append(bytes.Clone(g.file), next...))
}

// Two slots of the state say which end of the file is the last: without them nothing holds.
func TestApprovalsWithoutTheirState(t *testing.T) {
	g := newDamaged(t)
	g.audit.Close()
	path := filepath.Join(g.dir, stateName)
	old, err := restateApprovals(g.state, mark{})
	if err != nil {
		t.Fatal(err)
	}
	for name, state := range map[string][]byte{"none": nil, "empty": {}, "damaged": bytes.Repeat([]byte{0}, len(g.state)), "of no approvals": old} {
		if writeTestFile(t, path, state); state == nil {
			os.Remove(path)
		}
		audit, err := openAudit(g.dir)
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		g.audit = audit
		if name != "of no approvals" {
			t.Errorf("%s: the log opens", name)
		}
		g.none(name, g.file)
		audit.Close()
	}
}

// restateApprovals is a state that knows another end of the approvals.
func restateApprovals(state []byte, m mark) ([]byte, error) {
	st, err := readState(bytes.NewReader(state))
	if err != nil {
		return nil, err
	}
	st.Generation++
	st.Approvals, st.Pending = m, m
	return append(st.slot(), make([]byte, slotStride)...), nil
}

// TestEndOfAGrantIsKept lets a process see that a grant's time is over. After that no clock revives it, and a grant of the
// same key that has no end holds on.
func TestEndOfAGrantIsKept(t *testing.T) {
	for name, use := range map[string]func(*desk){
		"a task starts":    func(d *desk) { d.Sweep(t.Context()) },
		"a call asks":      func(d *desk) { d.Held(t.Context(), "turn") },
		"a grant is given": func(d *desk) { d.grant(tools.Always, "shell:x") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			a := openDesk(t, dir, "r1")
			a.grant(tools.Day, "shell:git", "shell:ls")
			a.grant(tools.Always, "shell:ls")
			b := openDesk(t, dir, "r2")
			b.shift.Store(int64(25 * time.Hour))
			if _, grants, err := b.List(t.Context()); err != nil || len(grants) != 1 {
				t.Errorf("after their time: %v %v", grants, err)
			}
			if got := records(t, dir, approvalsName, "revoke"); len(got) != 0 {
				t.Errorf("a list wrote %q", got)
			}
			use(b)
			b.shift.Store(0)
			if name == "a grant is given" {
				b.Revoke(t.Context(), "shell:x")
			}
			for _, d := range []*desk{a, b, openDesk(t, dir, "r3")} {
				d.holds("turn", "shell:ls always")
			}
			for _, log := range []string{approvalsName, auditName} {
				got := slices.DeleteFunc(records(t, dir, log, "revoke"), func(r string) bool { return strings.Contains(r, ":x ") })
				if !slices.Equal(got, []string{"revoke shell:git 24h", "revoke shell:ls 24h"}) {
					t.Errorf("%s: %q", log, got)
				}
			}
			// Given again, it holds again.
			a.grant(tools.Day, "shell:git")
			b.holds("turn", "shell:git 24h", "shell:ls always")
		})
	}
}

// A record of the audit log with a time after a grant's end ends it for who comes later, too.
func TestLaterAuditRecordEndsAGrant(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := openDesk(t, dir, "r1")
	d.grant(tools.Day, "shell:git")
	d.grant(tools.Always, "shell:ls")
	mustAppend(t, d.audit, true, say("x"))
	d.Close()
	d.audit.Close()
	path := filepath.Join(dir, auditName)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(readTestFile(t, path), []byte("\n"))
	n := len(lines) - 1
	var e encoder
	e.lines(mark{Seq: int64(n), Hash: sumLine(lines[n-1])}, time.Now().Add(25*time.Hour), say("tomorrow"))
	f.Write(e.b)
	f.Close()
	openDesk(t, dir, "r2").holds("", "shell:ls always")
}
