package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"picket/tools"
)

// A desk is the approvals of one process, with its own handles on the files.
type desk struct {
	*Approvals
	t     *testing.T
	audit *Log
	dir   string
	shift atomic.Int64 // of the clock
	gone  func()       // ends the process, as far as others can tell
}

func openDesk(t *testing.T, dir, run string) *desk {
	t.Helper()
	d := &desk{t: t, dir: dir}
	release, err := holdRun(t.Context(), dir, run)
	if err != nil {
		t.Fatal(err)
	}
	d.gone = sync.OnceFunc(release)
	if d.audit, err = openAudit(dir); err != nil {
		t.Fatal(err)
	}
	if d.Approvals, err = openApprovals(t.Context(), dir, d.audit, run); err != nil {
		t.Fatal(err)
	}
	d.now = func() time.Time { return time.Now().Add(time.Duration(d.shift.Load())) }
	t.Cleanup(func() { d.Close(); d.audit.Close(); d.gone() })
	return d
}

func question(id string) Question {
	return Question{ID: id, Chat: "c", Channel: "cli", Digest: "d-" + id, Card: []string{"run rm x", "command: rm x"},
		Offered: []tools.Scope{tools.Once, tools.Task, tools.Session, tools.Day, tools.Always}, Until: time.Now().Add(time.Hour)}
}

// asked runs Ask aside and returns when the question is in the file.
func (d *desk) asked(ctx context.Context, q Question) <-chan Answer {
	d.t.Helper()
	done := make(chan Answer, 1)
	there := make(chan struct{})
	go func() {
		ans, err := d.Ask(ctx, q, func(context.Context) { close(there) })
		if err != nil {
			d.t.Error(err)
		}
		done <- ans
	}()
	select {
	case <-there:
	case <-time.After(10 * time.Second):
		d.t.Fatal("the question did not come")
	}
	return done
}

func (d *desk) await(done <-chan Answer) Answer {
	d.t.Helper()
	select {
	case ans := <-done:
		return ans
	case <-time.After(10 * time.Second):
		d.t.Fatal("the question did not end")
	}
	return Answer{}
}

// records returns the lines of a log of some kinds, as "kind call what".
func records(t *testing.T, dir, name string, kinds ...string) (out []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var r struct{ Kind, Call, Answer, Key, Scope string }
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(kinds, r.Kind) {
			out = append(out, strings.Join(strings.Fields(r.Kind+" "+r.Call+" "+r.Answer+" "+r.Key+" "+r.Scope), " "))
		}
	}
	return out
}

// closings checks that both logs hold exactly the records wanted about a
// question.
func (d *desk) closings(id string, want ...string) {
	d.t.Helper()
	d.audit.Append(d.t.Context(), true)
	for _, name := range []string{approvalsName, auditName} {
		var got []string
		for _, r := range records(d.t, d.dir, name, "question", "answer") {
			if strings.Contains(r, " "+id) {
				got = append(got, r)
			}
		}
		if !slices.Equal(got, want) {
			d.t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
}

func TestAnswersTaken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	asker, other := openDesk(t, dir, "r1"), openDesk(t, dir, "r2")
	ctx := t.Context()
	for name, at := range map[string]*desk{"here": asker, "there": other} {
		id := "allow-" + name
		done := asker.asked(ctx, question(id))
		if err := at.Answer(ctx, id, "d-"+id, Answer{Allow: true, Scope: tools.Session, By: "cli"}); err != nil {
			t.Fatal(name, err)
		}
		if ans := asker.await(done); !ans.Allow || ans.Scope != tools.Session || ans.By != "cli" {
			t.Errorf("%s: %+v", name, ans)
		}
		asker.closings(id, "question "+id, "answer "+id+" allow session")
		id = "deny-" + name
		done = asker.asked(ctx, question(id))
		if err := at.Answer(ctx, id, "", Answer{Reason: "no"}); err != nil {
			t.Fatal(name, err)
		}
		if ans := asker.await(done); ans.Allow || ans.Expired || ans.Reason != "no" {
			t.Errorf("%s: %+v", name, ans)
		}
		asker.closings(id, "question "+id, "answer "+id+" deny")
	}
}

func TestAnswersNotTaken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a, b := openDesk(t, dir, "r1"), openDesk(t, dir, "r2")
	ctx := t.Context()
	allow := Answer{Allow: true, By: "cli"}
	narrow := question("narrow")
	narrow.Offered = []tools.Scope{tools.Once}
	done := a.asked(ctx, narrow)
	for name, c := range map[string]struct {
		id, digest string
		ans        Answer
		want       error
	}{
		"unknown":          {"nobody", "", allow, errNoQuestion},
		"no id":            {"", "", allow, errNoQuestion},
		"other arguments":  {"narrow", "d-other", allow, errOtherCall},
		"not offered":      {"narrow", "", Answer{Allow: true, Scope: tools.Always}, errNotOffered},
		"no scope at all":  {"narrow", "", Answer{Allow: true, Scope: tools.Scope(-1)}, errNotOffered},
		"expired by hand":  {"narrow", "", Answer{Expired: true}, errNotOffered},
		"a scope too wide": {"narrow", "", Answer{Allow: true, Scope: tools.Task}, errNotOffered},
	} {
		for _, d := range []*desk{a, b} {
			if err := d.Answer(ctx, c.id, c.digest, c.ans); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
	}
	next := a.asked(ctx, question("next"))
	if err := b.Answer(ctx, "narrow", "", allow); err != nil {
		t.Fatal(err)
	}
	a.await(done)
	for _, d := range []*desk{a, b} { // the second and the contrary one
		for _, ans := range []Answer{allow, {}} {
			if err := d.Answer(ctx, "narrow", "", ans); !errors.Is(err, errAnswered) {
				t.Errorf("second answer: %v", err)
			}
		}
	}
	a.closings("narrow", "question narrow", "answer narrow allow once")
	select {
	case ans := <-next:
		t.Errorf("the next question ended with %+v", ans)
	default:
	}
	a.shift.Store(int64(2 * time.Hour))
	b.shift.Store(int64(2 * time.Hour))
	if err := b.Answer(ctx, "next", "", allow); !errors.Is(err, errExpired) {
		t.Errorf("late answer: %v", err)
	}
	if ans := a.await(next); ans.Allow || !ans.Expired {
		t.Errorf("an hour later: %+v", ans)
	}
	if err := b.Answer(ctx, "next", "", allow); !errors.Is(err, errExpired) {
		t.Errorf("after the end: %v", err)
	}
	a.closings("next", "question next", "answer next expired")
}

func TestOneOfManyAnswersCounts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	desks := []*desk{openDesk(t, dir, "r1"), openDesk(t, dir, "r2"), openDesk(t, dir, "r3")}
	done := desks[0].asked(t.Context(), question("q"))
	var taken atomic.Int32
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			err := desks[i%3].Answer(t.Context(), "q", "", Answer{Allow: i%2 == 0, By: fmt.Sprint(i)})
			switch {
			case err == nil:
				taken.Add(1)
			case !errors.Is(err, errAnswered):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	desks[0].await(done)
	if taken.Load() != 1 {
		t.Errorf("%d answers were taken", taken.Load())
	}
	if got := records(t, dir, approvalsName, "answer"); len(got) != 1 {
		t.Errorf("the file holds %q", got)
	}
}

func TestEveryWayOutCloses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := openDesk(t, dir, "r1")
	t.Run("stop", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		done := d.asked(ctx, question("stop"))
		stop()
		if ans := d.await(done); ans.Allow || !ans.Expired || ans.Reason != "stopped" {
			t.Errorf("%+v", ans)
		}
		d.closings("stop", "question stop", "answer stop expired")
	})
	t.Run("stop just after the answer", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ans, _ := d.Ask(ctx, question("both"), func(ctx context.Context) {
			d.Answer(ctx, "both", "", Answer{Allow: true})
			stop()
		})
		if ans.Allow {
			t.Error("a stopped call is allowed")
		}
		d.closings("both", "question both", "answer both allow once")
	})
	t.Run("panic", func(t *testing.T) {
		ans, err := d.Ask(t.Context(), question("panic"), func(context.Context) { panic("lost") })
		if err != nil || ans.Allow || !ans.Expired || !strings.Contains(ans.Reason, "lost") {
			t.Errorf("%+v, %v", ans, err)
		}
		d.closings("panic", "question panic", "answer panic expired")
		if err := d.Answer(t.Context(), "panic", "", Answer{Allow: true}); !errors.Is(err, errExpired) {
			t.Errorf("answered after the end: %v", err)
		}
	})
	t.Run("the same id again", func(t *testing.T) {
		done := d.asked(t.Context(), question("twice"))
		if _, err := d.Ask(t.Context(), question("twice"), nil); err == nil {
			t.Error("asked twice")
		}
		if err := d.Answer(t.Context(), "twice", "", Answer{Allow: true}); err != nil {
			t.Error(err)
		}
		if ans := d.await(done); !ans.Allow {
			t.Errorf("%+v", ans)
		}
	})
	t.Run("audit log fails", func(t *testing.T) {
		d := openDesk(t, dir, "r2")
		d.audit.Close()
		ans, err := d.Ask(t.Context(), question("lost"), func(context.Context) { t.Error("shown without a record") })
		if !errors.Is(err, errAudit) || ans.Allow {
			t.Errorf("%+v, %v", ans, err)
		}
		// What the file could still take is for the next process.
		d.gone()
		next := openDesk(t, dir, "r3")
		if err := next.Answer(t.Context(), "lost", "", Answer{Allow: true}); err == nil {
			t.Error("answered after the end")
		}
		if n := len(slices.DeleteFunc(records(t, dir, approvalsName, "answer"), func(r string) bool { return !strings.Contains(r, "lost") })); n > 1 {
			t.Errorf("%d closing records", n)
		}
	})
}

// TestAskerProcess is not a test but the process that others kill.
func TestAskerProcess(t *testing.T) {
	dir := os.Getenv("PICKET_TEST_ASKER")
	if dir == "" {
		return
	}
	d := openDesk(t, dir, "asker")
	ans, err := d.Ask(t.Context(), question("q"), func(context.Context) { fmt.Println("asked") })
	if ans.Scope > tools.Once {
		err = errors.Join(err, d.Grant(t.Context(), Record{Call: "q"}, "turn", []Grant{{Key: "shell:rm", Scope: ans.Scope, Who: "owner", Workspace: "/ws"}}))
	}
	fmt.Printf("answer %v %v %v\n", ans.Allow, ans.Scope, err)
	os.Exit(0)
}

func startAsker(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAskerProcess$")
	cmd.Env = append(os.Environ(), "PICKET_TEST_ASKER="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "asked" {
		t.Fatalf("the asker said %q", lines.Text())
	}
	return cmd, lines
}

// command runs "picket approvals" or "picket grants".
func (d *desk) command(parse func([]string) (approvalsAction, bool, error), args ...string) (string, error) {
	d.t.Helper()
	do, _, err := parse(args)
	if err != nil {
		d.t.Fatal(err)
	}
	var out bytes.Buffer
	err = do(d.t.Context(), d.Approvals, &out, &out)
	return out.String(), err
}

func TestAnswerFromAnotherProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	_, lines := startAsker(t, dir)
	d := openDesk(t, dir, "cli")
	if out, err := d.command(parseApprovals); err != nil || !strings.Contains(out, "command: rm x") {
		t.Fatalf("list: %v %s", err, out)
	}
	if out, err := d.command(parseApprovals, "allow", "q", "--for", "24h"); err != nil || out != "q  allowed 24h: shell:rm in /ws, for 24 hours\n" {
		t.Fatalf("%v %q", err, out)
	}
	if !lines.Scan() || lines.Text() != "answer true 24h <nil>" {
		t.Fatalf("the asker said %q", lines.Text())
	}
	if _, err := d.command(parseApprovals, "deny", "q", "too", "late"); !errors.Is(err, errAnswered) {
		t.Fatalf("second answer: %v", err)
	}
	d.closings("q", "question q", "answer q allow 24h")
}

func TestKilledAsker(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	cmd, _ := startAsker(t, dir)
	d := openDesk(t, dir, "cli")
	open, _, err := d.List(t.Context())
	if err != nil || len(open) != 1 || open[0].ID != "q" {
		t.Fatalf("%v, %v", open, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if open, _, err = d.List(t.Context()); err != nil || len(open) != 0 {
		t.Fatalf("a question without a process is listed: %v, %v", open, err)
	}
	if got := records(t, dir, approvalsName, "answer"); len(got) != 0 {
		t.Errorf("a list wrote %q", got)
	}
	if err := d.Answer(t.Context(), "q", "", Answer{Allow: true}); !errors.Is(err, errExpired) {
		t.Errorf("answered: %v", err)
	}
	d.closings("q", "question q", "answer q expired")
}

func (d *desk) grant(scope tools.Scope, keys ...string) {
	d.t.Helper()
	var list []Grant
	for _, k := range keys {
		list = append(list, Grant{Key: k, Scope: scope, Who: "owner", Workspace: "/ws"})
	}
	if err := d.Grant(d.t.Context(), Record{Chat: "c", Channel: "cli", Call: "c_1"}, "turn", list); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) holds(turn string, want ...string) {
	d.t.Helper()
	var got []string
	for _, g := range d.Held(d.t.Context(), turn) {
		got = append(got, g.Key+" "+g.Scope.String())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		d.t.Errorf("holds %q, want %q (%s)", got, want, d.Trouble())
	}
}

func TestWhereGrantsHold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a, b := openDesk(t, dir, "r1"), openDesk(t, dir, "r2")
	a.holds("turn")
	a.grant(tools.Task, "shell")
	a.grant(tools.Session, "web_fetch:a.test")
	a.grant(tools.Day, "shell:git")
	a.grant(tools.Always, "send_email:a@x.test")
	a.holds("turn", "send_email:a@x.test always", "shell task", "shell:git 24h", "web_fetch:a.test session")
	a.holds("another", "send_email:a@x.test always", "shell:git 24h", "web_fetch:a.test session")
	b.holds("turn", "send_email:a@x.test always", "shell:git 24h")
	a.EndTurn("turn")
	a.holds("turn", "send_email:a@x.test always", "shell:git 24h", "web_fetch:a.test session")
	// A narrower grant for a key does not take the place of a wider one.
	a.grant(tools.Task, "shell:git")
	a.EndTurn("turn")
	b.holds("turn", "send_email:a@x.test always", "shell:git 24h")
	// Revoked in one process is void in the other at its next use, in every scope.
	if n, err := b.Revoke(t.Context(), "web_fetch:a.test"); n != 1 || err != nil {
		t.Errorf("revoked %d, %v", n, err)
	}
	a.holds("turn", "send_email:a@x.test always", "shell:git 24h")
	if _, err := a.Revoke(t.Context(), "shell:gi"); !errors.Is(err, errNoGrant) {
		t.Errorf("revoked another key: %v", err)
	}
	if n, err := a.Revoke(t.Context(), ""); n != 2 || err != nil {
		t.Errorf("cleared %d, %v", n, err)
	}
	a.holds("turn")
	b.holds("turn")
	c := openDesk(t, dir, "r3")
	c.holds("turn")
	for _, name := range []string{approvalsName, auditName} {
		if g, r := len(records(t, dir, name, "grant")), len(records(t, dir, name, "revoke")); g != 5 || r != 3 {
			t.Errorf("%s has %d grants and %d revocations", name, g, r)
		}
	}
}

func TestGrantOutsideItsTime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a := openDesk(t, dir, "r1")
	a.grant(tools.Day, "shell:git")
	a.grant(tools.Always, "shell:ls")
	a.shift.Store(int64(-time.Hour))
	a.holds("", "shell:ls always") // not before it was given
	a.shift.Store(int64(23 * time.Hour))
	a.holds("", "shell:git 24h", "shell:ls always")
	a.shift.Store(int64(25 * time.Hour))
	a.holds("", "shell:ls always")
	a.shift.Store(0)
	a.holds("", "shell:ls always") // a clock set back does not revive it
}

// TestClockSetBack has records of tomorrow after a grant of today.
func TestClockSetBack(t *testing.T) {
	d := &desk{t: t, dir: t.TempDir()}
	d.Approvals = &Approvals{questions: map[string]*Question{}, waiting: map[string]chan struct{}{}}
	day := func(n int) time.Time { return time.Date(2030, 1, n, 0, 0, 0, 0, time.UTC) }
	line := func(at time.Time, kind, fields string) {
		d.read(Line{Time: at, Kind: kind, Raw: []byte("{" + fields + "}")})
	}
	grant := fmt.Sprintf(`"key":"k","scope":"24h","who":"owner","until":%q`, day(2).Format(timeLayout))
	line(day(9), "question", `"until":""`) // earlier, by a clock that ran ahead
	line(day(1), "grant", grant)
	if len(d.grants) != 1 {
		t.Fatalf("grants %v: %s", d.grants, d.distrust)
	}
	line(day(2), "answer", `"answer":"deny"`)
	if len(d.grants) != 1 {
		t.Error("a record at its end ended it")
	}
	line(day(3), "answer", `"answer":"deny"`)
	if len(d.grants) != 0 {
		t.Error("it outlived a record of a time after its end")
	}
}

func TestUnsoundGrants(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, fields := range map[string]string{
		"24h without an end":    `"key":"shell:git","scope":"24h","who":"owner","until":""`,
		"24h of a year":         `"key":"shell:git","scope":"24h","who":"owner","until":"2031-01-01T00:00:00Z"`,
		"always with an end":    `"key":"shell:git","scope":"always","who":"owner","until":"2030-01-01T01:00:00Z"`,
		"an end that is no end": `"key":"shell:git","scope":"always","who":"owner","until":"never"`,
		"unknown scope":         `"key":"shell:git","scope":"forever","who":"owner","until":""`,
		"no scope":              `"key":"shell:git","who":"owner","until":""`,
		"once":                  `"key":"shell:git","scope":"once","who":"owner","until":""`,
		"nobody's":              `"key":"shell:git","scope":"always","who":"","until":""`,
		"no key":                `"key":"","scope":"always","who":"owner","until":""`,
		"a list of keys":        `"key":["shell:git"],"scope":"always","who":"owner","until":""`,
		"no object":             ``,
	} {
		a := &Approvals{log: &Log{}, questions: map[string]*Question{}, now: func() time.Time { return at }}
		good := `{"key":"shell:ls","scope":"always","who":"owner","until":""}`
		a.read(Line{Time: at, Kind: "grant", Raw: []byte(good)})
		raw := "{" + fields + "}"
		if name == "no object" {
			raw = `["shell"]`
		}
		a.read(Line{Time: at, Kind: "grant", Raw: []byte(raw)})
		if a.distrust == "" || len(a.grants) != 1 {
			t.Errorf("%s: trusted, %v", name, a.grants)
		}
	}
}

func TestFileNotTrusted(t *testing.T) {
	for name, spoil := range map[string]func(old, now []byte) []byte{
		"an older copy": func(old, _ []byte) []byte { return old },
		"a line edited": func(_, now []byte) []byte {
			return bytes.Replace(now, []byte("shell:git"), []byte("shell:rm "), 1)
		},
		"cut":     func(_, now []byte) []byte { return now[:bytes.LastIndexByte(now[:len(now)-1], '\n')+1] },
		"emptied": func(_, _ []byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			path := filepath.Join(dir, approvalsName)
			d := openDesk(t, dir, "r1")
			d.grant(tools.Always, "shell:git")
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			d.grant(tools.Always, "web_fetch:a.test")
			d.Revoke(t.Context(), "web_fetch:a.test")
			now, _ := os.ReadFile(path)
			d.Close()
			if err := os.WriteFile(path, spoil(old, now), 0o600); err != nil {
				t.Fatal(err)
			}
			next := openDesk(t, dir, "r2")
			next.holds("turn")
			if next.Trouble() == "" {
				t.Error("no trouble")
			}
			if _, err := next.Ask(t.Context(), question("q"), nil); !errors.Is(err, errAudit) {
				t.Errorf("asked: %v", err)
			}
			if out, err := next.command(parseGrants); err == nil || out != "" {
				t.Errorf("grants: %v %s", err, out)
			}
		})
	}
	t.Run("a torn last line", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		d := openDesk(t, dir, "r1")
		d.grant(tools.Always, "shell:git")
		f, err := os.OpenFile(filepath.Join(dir, approvalsName), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"prev":"00`)
		f.Close()
		openDesk(t, dir, "r2").holds("turn", "shell:git always")
		d.holds("turn", "shell:git always")
	})
}

func TestGrantNeedsItsAuditRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := openDesk(t, dir, "r1")
	d.grant(tools.Always, "shell:ls")
	other, err := openAudit(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	d.Approvals.audit = other // which takes nothing, while the file itself would
	err = d.Grant(t.Context(), Record{}, "turn", []Grant{{Key: "shell:git", Scope: tools.Always, Who: "owner"}})
	if !errors.Is(err, errAudit) {
		t.Errorf("granted: %v", err)
	}
	if got := records(t, dir, approvalsName, "grant"); len(got) != 1 {
		t.Errorf("the file holds %q", got)
	}
}

func TestApprovalCommandUsage(t *testing.T) {
	for _, args := range []string{"frobnicate", "list x", "allow", "allow q always", "allow q --for", "allow q --for forever", "allow q r", "deny", "watch x"} {
		if _, _, err := parseApprovals(strings.Fields(args)); err == nil {
			t.Errorf("approvals %s is taken", args)
		}
	}
	for _, args := range []string{"revoke", "revoke a b", "clear all", "drop", "list x"} {
		if _, _, err := parseGrants(strings.Fields(args)); err == nil {
			t.Errorf("grants %s is taken", args)
		}
	}
	for args, lists := range map[string]bool{"": true, "list": true, "clear": false} {
		if _, list, err := parseGrants(strings.Fields(args)); err != nil || list != lists {
			t.Errorf("grants %s: %v, %v", args, list, err)
		}
	}
	if _, _, err := parseGrants([]string{"revoke", ""}); err == nil {
		t.Error("no key revokes everything")
	}
}

func TestGrantCommands(t *testing.T) {
	d := openDesk(t, filepath.Join(t.TempDir(), "data"), "r1")
	d.grant(tools.Always, "shell:git", "web_fetch:a.test")
	if out, err := d.command(parseGrants); err != nil || !strings.Contains(out, "shell:git in /ws, until revoked") || !strings.Contains(out, "web_fetch:a.test, until revoked") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := d.command(parseGrants, "revoke", "shell:git"); err != nil || out != "1 revoked\n" {
		t.Errorf("%v %s", err, out)
	}
	d.holds("", "web_fetch:a.test always")
	if out, err := d.command(parseGrants, "clear"); err != nil || out != "1 revoked\n" {
		t.Errorf("%v %s", err, out)
	}
	d.holds("")
}

func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a, b := openDesk(t, dir, "r1"), openDesk(t, dir, "r2")
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var out bytes.Buffer
	has := func(text string) bool { mu.Lock(); defer mu.Unlock(); return strings.Contains(out.String(), text) }
	until := func(text string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !has(text); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q did not come", text)
			}
		}
	}
	watched := make(chan error)
	go func() {
		watched <- b.watch(ctx, writerFunc(func(p []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return out.Write(p) }))
	}()
	done := a.asked(t.Context(), question("q"))
	until("command: rm x")
	if err := a.Answer(t.Context(), "q", "", Answer{}); err != nil {
		t.Fatal(err)
	}
	a.await(done)
	until("q  deny")
	stop()
	if err := <-watched; err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func FuzzReadApprovals(f *testing.F) {
	f.Add([]byte(`{"key":"shell:git","scope":"24h","who":"owner","until":"2030-01-01T00:00:00Z"}`), "grant")
	f.Add([]byte(`{"digest":"d","offered":["once","forever"],"reasons":[],"until":"x"}`), "question")
	f.Add([]byte(`{"answer":"allow","scope":"always"}`), "answer")
	f.Add([]byte(`{"key":""}`), "revoke")
	f.Add([]byte(`{"key":"shell:git","until":"never"}`), "revoke")
	f.Add([]byte(`{"key":"held","scope":"24h","until":"2029-12-31T00:00:00Z"}`), "revoke")
	f.Add([]byte(`{"key":"held","KEY":"","until":null}`), "revoke")
	f.Add([]byte(`{"key":"a","scope":"24h","who":"app","until":"2031-01-01T00:00:00Z"}`), "grant")
	f.Add([]byte(`{"key":"a","scope":"always","who":"owner","until":"","labels":["private","x"],"workspace":null}`), "grant")
	f.Add([]byte(`{"offered":["always"],"until":"2031-01-01T00:00:00Z"}`), "question")
	f.Add([]byte(`{"answer":"allow","scope":"Once"}`), "answer")
	f.Add([]byte(`["x"]`), "grant")
	f.Add([]byte(`{}`), "genesis")
	f.Add([]byte(``), "")
	f.Fuzz(func(t *testing.T, raw []byte, kind string) {
		at := time.Date(2029, 12, 31, 12, 0, 0, 0, time.UTC)
		a := &Approvals{log: &Log{}, questions: map[string]*Question{}, now: func() time.Time { return at }}
		a.read(Line{Time: at, Kind: "question", Call: "q", Raw: []byte(`{"offered":["once"],"until":"2030-01-01T00:00:00Z"}`)})
		held := Grant{Key: "held", Scope: tools.Always, Who: "owner", Given: at}
		a.grants = []Grant{held}
		a.read(Line{Time: at, Kind: kind, Call: "q", Raw: raw})
		if kind == "revoke" && len(a.grants) > 1 || a.distrust == "" && kind == "grant" && len(a.grants) != 2 {
			t.Fatalf("%s %s leaves %+v", kind, raw, a.grants)
		}
		for _, g := range a.grants {
			if g != held && (kind != "grant" || !g.sound()) {
				t.Fatalf("%s %s made %+v", kind, raw, g)
			}
		}
		if q := a.questions["q"]; q != nil && q.closed != nil && q.closed.Allow && q.closed.Scope != tools.Once {
			t.Fatalf("%s made %+v", raw, q.closed)
		}
		a.read(Line{Time: at, Kind: "revoke", Raw: []byte(`{"key":"","labels":[],"until":""}`)})
		if len(a.grants) > 0 || a.distrust != "" {
			t.Fatalf("after %s %s, clearing leaves %+v: %s", kind, raw, a.grants, a.distrust)
		}
	})
}
