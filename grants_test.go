package main

import (
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

// Grants and answers when several do things at once, in one process and in several.

// TestHelperAnswers is not a test but a process in which several answer the same question.
func TestHelperAnswers(t *testing.T) {
	dir := os.Getenv("PICKET_TEST_ANSWERS")
	if dir == "" {
		return
	}
	d := openDesk(t, dir, fmt.Sprintf("answers%d", os.Getpid()))
	fmt.Println("ready")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 200 { // until there is something to answer
				err := d.Answer(context.Background(), "q", "d-q", Answer{Allow: i%2 == 0, Scope: tools.Once, By: fmt.Sprintf("%d-%d", os.Getpid(), i)})
				if !errors.Is(err, errNoQuestion) {
					fmt.Printf("said %v\n", err)
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			fmt.Println("said no question came")
		})
	}
	wg.Wait()
	os.Exit(0)
}

// startAnswers starts a process that answers as soon as the question is there; the channel has what it said, line by line.
func startAnswers(t *testing.T, dir string) <-chan string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperAnswers$")
	cmd.Env = append(os.Environ(), "PICKET_TEST_ANSWERS="+dir)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait(); r.Close() })
	if n, err := r.Read(make([]byte, 6)); n != 6 || err != nil {
		t.Fatalf("no process: %v", err)
	}
	out := make(chan string, 16)
	go func() {
		defer close(out)
		var all bytes.Buffer
		all.ReadFrom(r)
		for _, l := range strings.Fields(strings.ReplaceAll(all.String(), " ", "_")) {
			out <- strings.ReplaceAll(l, "_", " ")
		}
	}()
	return out
}

func TestManyProcessesAnswer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	first := openDesk(t, dir, "first")
	procs := []<-chan string{startAnswers(t, dir), startAnswers(t, dir), startAnswers(t, dir)}
	_, asker := startAsker(t, dir)
	taken, refused := 0, 0
	for _, p := range procs {
		for l := range p {
			switch l {
			case "said <nil>":
				taken++
			case "said " + errAnswered.Error():
				refused++
			default:
				t.Errorf("an answer %s", l)
			}
		}
	}
	if taken != 1 || refused != 11 {
		t.Errorf("%d answers were taken and %d refused", taken, refused)
	}
	if !asker.Scan() || !strings.HasPrefix(asker.Text(), "answer ") {
		t.Errorf("the asker said %q", asker.Text())
	}
	first.audit.Append(t.Context(), true)
	for _, name := range []string{approvalsName, auditName} {
		if got := records(t, dir, name, "answer"); len(got) != 1 {
			t.Errorf("%s holds %q", name, got)
		}
	}
}

// TestAskerKilledAmongAnswers kills the process that asks while others answer it. Whatever is in time is one answer, and
// without that process it is no grant.
func TestAskerKilledAmongAnswers(t *testing.T) {
	t.Parallel()
	for i := range 5 {
		dir := filepath.Join(t.TempDir(), "data")
		cmd, _ := startAsker(t, dir)
		d := openDesk(t, dir, "cli")
		var wg sync.WaitGroup
		var taken atomic.Int32
		for range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				err := d.Answer(t.Context(), "q", "", Answer{Allow: true, Scope: tools.Once})
				if err == nil {
					taken.Add(1)
				} else if !errors.Is(err, errAnswered) && !errors.Is(err, errExpired) {
					t.Error(err)
				}
			})
		}
		cmd.Process.Kill()
		cmd.Wait()
		wg.Wait()
		if err := d.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := records(t, dir, approvalsName, "answer", "grant")
		want := map[int32]string{0: "answer q expired", 1: "answer q allow once"}[taken.Load()]
		if len(got) != 1 || got[0] != want {
			t.Errorf("%d answers were taken, the file holds %q", taken.Load(), got)
		}
		for _, scope := range []string{"once", "always"} {
			if out, err := d.command(parseApprovals, "allow", "q", "--for", scope); err == nil {
				t.Errorf("answered after the end: %s", out)
			}
		}
		d.holds("")
	}
}

// An answer that comes too late, in whatever way, leaves neither an answer nor a grant.
func TestLateAnswersGrantNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a, other := openDesk(t, dir, "r1"), openDesk(t, dir, "r2")
	for name, end := range map[string]func(cancel func()){
		"stopped": func(cancel func()) { cancel() },
		"late":    func(func()) { a.shift.Store(int64(2 * time.Hour)) },
	} {
		a.shift.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		done := a.asked(ctx, question(name))
		end(cancel)
		a.await(done)
		cancel()
		if out, err := other.command(parseApprovals, "allow", name, "--for", "always"); !errors.Is(err, errExpired) || out != "" {
			t.Errorf("%s: %v %q", name, err, out)
		}
		a.closings(name, "question "+name, "answer "+name+" expired")
	}
	if got := records(t, dir, approvalsName, "grant"); len(got) != 0 {
		t.Errorf("granted %q", got)
	}
}

func TestTwoAskersEachGetTheirAnswer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a, b, cli := openDesk(t, dir, "r1"), openDesk(t, dir, "r2"), openDesk(t, dir, "cli")
	one, two := a.asked(t.Context(), question("one")), b.asked(t.Context(), question("two"))
	if err := cli.Answer(t.Context(), "two", "d-one", Answer{Allow: true}); !errors.Is(err, errOtherCall) {
		t.Errorf("an answer for the other call: %v", err)
	}
	for id, verb := range map[string]string{"one": "deny", "two": "allow"} {
		if _, err := cli.command(parseApprovals, verb, id); err != nil {
			t.Fatal(err)
		}
	}
	if ans := a.await(one); ans.Allow || ans.Expired {
		t.Errorf("the first got %+v", ans)
	}
	if ans := b.await(two); !ans.Allow {
		t.Errorf("the second got %+v", ans)
	}
}

// What was not offered is refused in each process, by the function and by the command.
func TestOnlyOfferedScopesAreTaken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a, cli := openDesk(t, dir, "r1"), openDesk(t, dir, "cli")
	for widest := tools.Once; widest < tools.Always; widest++ {
		q := question("up-to-" + widest.String())
		q.Offered = q.Offered[:widest+1]
		done := a.asked(t.Context(), q)
		for s := widest + 1; s <= tools.Always; s++ {
			if out, err := cli.command(parseApprovals, "allow", q.ID, "--for", s.String()); !errors.Is(err, errNotOffered) || out != "" {
				t.Errorf("%s: %s is taken: %v %q", q.ID, s, err, out)
			}
		}
		if err := cli.Answer(t.Context(), q.ID, "", Answer{}); err != nil {
			t.Fatal(err)
		}
		if ans := a.await(done); ans.Allow {
			t.Errorf("%s: %+v", q.ID, ans)
		}
	}
}

// asksFor makes a rig's call one that asks, and answers it so.
func (r *gateRig) asksFor(answer func(Card) Answer) {
	r.j.Risk = tools.Sensitive
	r.turn.Caller.Ask = func(_ context.Context, c Card) (Answer, error) { return answer(c), nil }
}

// other opens the rig's files as another process would.
func (r *gateRig) other(run string) *desk { return openDesk(r.t, filepath.Join(r.dir, "data"), run) }

// TestRevokeAgainstLaunch revokes and grants again while calls run. By the order of the log, no call runs by a grant that
// is not in force.
func TestRevokeAgainstLaunch(t *testing.T) {
	t.Parallel()
	r := newGateRig(t)
	r.asksFor(func(Card) Answer { return Answer{} })
	cli := r.other("cli")
	const rounds = 120
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for i := range rounds {
			cli.grant(tools.Always, "act")
			time.Sleep(time.Duration(i%7) * time.Millisecond)
			if n, err := cli.Revoke(t.Context(), "act"); n != 1 || err != nil {
				t.Errorf("revoked %d: %v", n, err)
			}
		}
	})
	var mu sync.Mutex
	var started []string // calls that ran
	r.does = func(_ context.Context, c *tools.Call) tools.Output {
		mu.Lock()
		defer mu.Unlock()
		started = append(started, c.ID)
		return tools.Output{}
	}
	n := 0
	for open := true; open; n++ {
		select {
		case <-stop:
			open = false
		default:
			r.gate.Do(context.Background(), r.turn, call("act", fmt.Sprintf(`{"x":"%d"}`, n)))
		}
	}
	wg.Wait()
	r.gate.log.Append(t.Context(), true)
	allowed := r.inForce()
	for _, id := range started {
		if !allowed[id] {
			t.Errorf("call %s ran without a record", id)
		}
	}
	if len(started) != len(allowed) || len(allowed) == 0 || len(allowed) == n {
		t.Errorf("%d of %d calls were let through, %d ran", len(allowed), n, len(started))
	}
}

// inForce checks by the order of the log that each call which ran by a grant did so while one was in force, and returns
// those calls.
func (r *gateRig) inForce() map[string]bool {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "data", auditName))
	if err != nil {
		r.t.Fatal(err)
	}
	inForce, allowed := false, map[string]bool{}
	for line := range bytes.Lines(data) {
		var rec struct {
			Kind, Call, By, Verdict string
			Seq                     int
		}
		if err := json.Unmarshal(line, &rec); err != nil {
			r.t.Fatal(err)
		}
		switch {
		case rec.Kind == "grant":
			inForce = true
		case rec.Kind == "revoke":
			inForce = false
		case rec.Kind == "decision" && rec.Verdict == "allow":
			if allowed[rec.Call] = true; !inForce || rec.By != "grant" {
				r.t.Errorf("record %d lets a call run by %s after the grant was revoked", rec.Seq, rec.By)
			}
		}
	}
	return allowed
}

// TestRevokeInMidDecision revokes a grant just when the gate decides by it: the revocation comes after the record of the
// call, or the call does not run.
func TestRevokeInMidDecision(t *testing.T) {
	r := newGateRig(t)
	r.asksFor(func(Card) Answer { return Answer{} })
	cli := r.other("cli")
	cli.grant(tools.Always, "act")
	revoked := make(chan error, 1)
	r.gate.mode = func() string { // is asked for in the decision
		r.gate.mode = func() string { return "" }
		go func() { _, err := cli.Revoke(context.Background(), "act"); revoked <- err }()
		select {
		case err := <-revoked:
			revoked <- err
		case <-time.After(200 * time.Millisecond):
		}
		return ""
	}
	r.gate.Do(t.Context(), r.turn, call("act", `{"x":"1"}`))
	if err := <-revoked; err != nil {
		t.Error(err)
	}
	if n := len(r.inForce()); n != int(r.ran.Load()) {
		t.Errorf("%d were allowed, %d ran", n, r.ran.Load())
	}
	r.gate.Do(t.Context(), r.turn, call("act", `{"x":"2"}`))
	r.inForce()
	if d := r.records("decision"); len(d) != 2 || d[1]["verdict"] != "deny" {
		t.Errorf("after it: %v", d)
	}
}

// A grant that is gone at the next call, in whatever way, lets nothing through: the call asks.
func TestGrantGone(t *testing.T) {
	for name, take := range map[string]func(r *gateRig, cli *desk){
		"revoked":  func(r *gateRig, cli *desk) { cli.Revoke(t.Context(), "act") },
		"cleared":  func(r *gateRig, cli *desk) { cli.Revoke(t.Context(), "") },
		"at end":   func(r *gateRig, _ *desk) { r.later(25 * time.Hour) },
		"set back": func(r *gateRig, _ *desk) { r.later(-time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newGateRig(t)
			asked := 0
			r.asksFor(func(Card) Answer { asked++; return Answer{} })
			cli := r.other("cli")
			cli.grant(tools.Day, "act")
			if r.gate.Do(t.Context(), r.turn, call("act", `{"x":"before"}`)); asked != 0 || r.ran.Load() != 1 {
				t.Fatalf("asked %d times, ran %d times", asked, r.ran.Load())
			}
			take(r, cli)
			r.gate.Do(t.Context(), r.turn, call("act", `{}`))
			if d := r.records("decision"); asked != 1 || r.ran.Load() != 1 || len(d) != 2 || d[1]["verdict"] != "deny" {
				t.Errorf("asked %d times, ran %d times: %v", asked, r.ran.Load(), d)
			}
		})
	}
}

func (r *gateRig) later(d time.Duration) {
	r.gate.approvals.now = func() time.Time { return time.Now().Add(d) }
}

// What an answer grants that is void, since the call changed while it waited, is not granted either.
func TestVoidAnswerGrantsNothing(t *testing.T) {
	r := newGateRig(t)
	r.j.Bound = []string{"one"}
	n := 0
	r.asksFor(func(Card) Answer {
		if n++; n == 1 {
			r.j.Bound = []string{"two"}
			return Answer{Allow: true, Scope: tools.Always}
		}
		return Answer{Allow: true, Scope: tools.Task}
	})
	r.gate.Do(t.Context(), r.turn, call("act", `{}`))
	if got := r.records("grant"); n != 2 || len(got) != 1 || got[0]["scope"] != "task" {
		t.Errorf("asked %d times, granted %v", n, got)
	}
}

// TestHelperGrants is not a test but a process that takes grants of each scope and waits to be killed.
func TestHelperGrants(t *testing.T) {
	dir := os.Getenv("PICKET_TEST_GRANTS")
	if dir == "" {
		return
	}
	d := openDesk(t, dir, "child")
	d.grant(tools.Task, "shell")
	d.grant(tools.Session, "web_fetch:a.test")
	d.grant(tools.Always, "shell:git")
	d.holds("turn", "shell task", "shell:git always", "web_fetch:a.test session")
	if t.Failed() {
		os.Exit(3)
	}
	fmt.Println("granted")
	time.Sleep(time.Minute)
}

// Grants of a turn and of a session end with their process, also if it is killed; until then others see them.
func TestGrantsOfAKilledProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := openDesk(t, dir, "cli")
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperGrants$")
	cmd.Env = append(os.Environ(), "PICKET_TEST_GRANTS="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	said := make([]byte, 64)
	if n, _ := out.Read(said); string(said[:n]) != "granted\n" {
		t.Fatalf("the child said %q", said[:n])
	}
	d.holds("turn", "shell:git always")
	if out, err := d.command(parseGrants); err != nil || strings.Count(out, "\n") != 3 {
		t.Errorf("of a live process: %v %s", err, out)
	}
	cmd.Process.Kill()
	cmd.Wait()
	d.holds("turn", "shell:git always")
	d = openDesk(t, dir, "next")
	d.holds("turn", "shell:git always")
	if out, err := d.command(parseGrants); err != nil || !strings.HasPrefix(out, "shell:git in /ws, until revoked") || strings.Count(out, "\n") != 1 {
		t.Errorf("after it: %v %s", err, out)
	}
	if _, err := d.command(parseGrants, "revoke", "shell"); !errors.Is(err, errNoGrant) {
		t.Errorf("a dead grant is revoked: %v", err)
	}
	if out, err := d.command(parseGrants, "clear"); err != nil || out != "1 revoked\n" {
		t.Errorf("clear: %v %q", err, out)
	}
	d.holds("turn")
}

// TestClearWhileGranting clears all grants while others are given, and checks every process against the file.
func TestClearWhileGranting(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	desks := []*desk{openDesk(t, dir, "r1"), openDesk(t, dir, "r2"), openDesk(t, dir, "r3")}
	var wg sync.WaitGroup
	var cleared atomic.Int32
	for i := range 12 {
		wg.Go(func() {
			d := desks[i%3]
			for j := range 8 {
				if i%4 == 3 {
					n, err := d.Revoke(context.Background(), "")
					if cleared.Add(int32(n)); err != nil {
						t.Error(err)
					}
					continue
				}
				g := Grant{Key: fmt.Sprintf("shell:p%d-%d", i, j), Scope: tools.Always, Who: "owner", Workspace: "/ws"}
				if err := d.Approvals.Grant(context.Background(), Record{}, "", []Grant{g}); err != nil {
					t.Error(err)
				}
				d.Held(context.Background(), "")
			}
		})
	}
	wg.Wait()
	// By the file, a grant holds if no revocation comes after it.
	var want []string
	for _, r := range records(t, dir, approvalsName, "grant", "revoke") {
		kind, rest, _ := strings.Cut(r, " ")
		if kind == "grant" {
			want = append(want, rest)
		} else {
			want = slices.DeleteFunc(want, func(k string) bool { return k == rest })
		}
	}
	slices.Sort(want)
	for _, d := range append(desks, openDesk(t, dir, "new")) {
		d.holds("", want...)
	}
	if int(cleared.Load())+len(want) != 72 {
		t.Errorf("%d were cleared and %d are left, of 72", cleared.Load(), len(want))
	}
	if n, err := desks[0].Revoke(t.Context(), ""); n != len(want) || err != nil {
		t.Errorf("%d: %v", n, err)
	}
	for _, d := range desks {
		d.holds("")
	}
	if got := records(t, dir, auditName, "grant", "revoke"); !slices.Equal(got, records(t, dir, approvalsName, "grant", "revoke")) {
		t.Error("the two logs tell of grants in different orders")
	}
}

// TestApprovalsLockHeld holds the lock of the approvals elsewhere: nothing is answered or granted, and no call runs by a
// grant that could not be looked at.
func TestApprovalsLockHeld(t *testing.T) {
	t.Parallel()
	r := newGateRig(t)
	r.asksFor(func(Card) Answer { t.Error("asked without a record"); return Answer{Allow: true} })
	cli := r.other("cli")
	cli.grant(tools.Always, "act")
	if res := r.gate.Do(t.Context(), r.turn, call("act", `{"x":"1"}`)); res.Refused || r.ran.Load() != 1 {
		t.Fatalf("%+v", res)
	}
	lock, err := openLock(filepath.Join(r.dir, "data", "approvals.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { lock.Unlock(); lock.Close() }()
	var wg sync.WaitGroup
	for name, act := range map[string]func() error{
		"answer": func() error { return cli.Answer(context.Background(), "q", "", Answer{Allow: true}) },
		"revoke": func() error { _, err := cli.Revoke(context.Background(), "act"); return err },
		"grant": func() error {
			return r.gate.approvals.Grant(context.Background(), Record{}, "", []Grant{{Key: "b", Scope: tools.Always, Who: "owner"}})
		},
	} {
		wg.Go(func() {
			if err := act(); !errors.Is(err, errLockWait) || !errors.Is(err, errAudit) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	res := r.gate.Do(t.Context(), r.turn, call("act", `{"x":"2"}`))
	if !res.Refused || r.ran.Load() != 1 {
		t.Errorf("%+v, ran %d times", res, r.ran.Load())
	}
	wg.Wait()
	d := r.records("decision")
	if len(d) != 2 || d[1]["verdict"] != "deny" || d[1]["by"] != "guard" {
		t.Errorf("decisions %v", d)
	}
}
