package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"picket/tools"
)

const (
	pollEvery    = 200 * time.Millisecond // between looks at the file while a question waits
	closeTimeout = 15 * time.Second       // for the closing record, whatever became of the turn
	dayGrant     = 24 * time.Hour
)

// Why an answer is not taken. All but the first are conflicts with what
// happened meanwhile.
var (
	errNoQuestion = errors.New("there is no such question")
	errAnswered   = errors.New("the question is already answered")
	errExpired    = errors.New("the question has expired")
	errOtherCall  = errors.New("the answer is for other arguments")
	errNotOffered = errors.New("this answer was not offered")
	errNoGrant    = errors.New("there is no such grant")
)

// A Question is one call that waits for the owner.
type Question struct {
	ID, Chat, Channel string        // ID is the call's
	Process           string        // the run that asked
	Digest            string        // of its arguments
	Offered           []tools.Scope // of an answer that allows
	Card              []string      // what is shown, line by line, redacted
	Until             time.Time

	closed *Answer
}

// An Answer is how a question ended. The zero one does not allow.
type Answer struct {
	Allow   bool
	Expired bool // nobody answered: the time, a stop, or the end of picket
	Scope   tools.Scope
	By      string // terminal, cli, api
	Reason  string
}

func (ans Answer) record() answerRecord {
	switch {
	case ans.Expired:
		return answerRecord{"expired", "", ans.By, ans.Reason}
	case ans.Allow:
		return answerRecord{"allow", ans.Scope.String(), ans.By, ans.Reason}
	}
	return answerRecord{"deny", "", ans.By, ans.Reason}
}

// Approvals are the questions, answers and grants of the owner, kept in
// approvals.jsonl and shared by all picket processes. A grant of a turn or a
// process holds only there; it is recorded all the same.
type Approvals struct {
	log, audit *Log
	dir        string
	run        string // of this process
	now        func() time.Time

	mu        sync.Mutex
	questions map[string]*Question
	grants    []Grant
	distrust  string                   // why no grant of the file holds
	failed    error                    // of the last look at it
	seen      fileSeen                 // at the last look that wrote nothing
	turn      string                   // whose grants are being recorded
	waiting   map[string]chan struct{} // by question of this process
}

// openApprovals opens the approvals in the data folder. audit is its log, and
// run what this process holds with holdRun. What is wrong with the file is no
// error here: Trouble says so, no grant holds and no question can be asked.
func openApprovals(ctx context.Context, dir string, audit *Log, run string) (*Approvals, error) {
	a := &Approvals{audit: audit, dir: dir, run: run, now: time.Now,
		questions: map[string]*Question{}, waiting: map[string]chan struct{}{}}
	var err error
	if a.log, err = OpenLog(dir, approvalsName, LogOptions{Anchor: audit, Apply: a.read}); err != nil {
		return nil, err
	}
	if a.update(ctx, nil) == nil {
		// The audit log has a copy of each of these grants, so its end is later.
		a.pass(lastTime(filepath.Join(dir, auditName)))
	}
	return a, nil
}

// Close lets go of the file.
func (a *Approvals) Close() error { return a.log.Close() }

// lastTime is the time of the newest whole line of a log, zero if it has none.
func lastTime(path string) time.Time {
	var l Line
	f, err := os.Open(path)
	if err != nil {
		return l.Time
	}
	defer f.Close()
	size, _ := f.Seek(0, io.SeekEnd)
	end, _ := io.ReadAll(io.NewSectionReader(f, max(0, size-2*maxLine), 2*maxLine))
	lines := bytes.Split(end, []byte("\n"))
	if len(lines) > 1 {
		l, _ = parseLine(lines[len(lines)-2])
	}
	return l.Time
}

// update brings the state up to what the file holds, runs fn on it and appends
// the records that fn returns, all under the lock of the file; then to the
// audit log. Questions whose process is gone are expired on the way. The answer
// to a question goes to the audit log with the process that asked.
func (a *Approvals) update(ctx context.Context, fn func() []Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.updateLocked(ctx, fn)
}

func (a *Approvals) updateLocked(ctx context.Context, fn func() []Record) error {
	seen := a.look()
	var recs, before, after []Record
	a.failed = a.log.Update(ctx, func() ([]Record, error) {
		if fn == nil {
			return nil, nil
		}
		recs = append(a.orphans(), fn()...)
		for _, r := range recs {
			switch b := r.Body.(type) {
			case grantRecord: // none may hold that the audit log does not have
				before = append(before, r)
			case answerRecord:
				if r.Run != a.run && b.Answer == "expired" {
					after = append(after, r)
				}
			default:
				after = append(after, r)
			}
		}
		return recs, a.copy(ctx, before)
	})
	if a.failed != nil {
		return a.failed
	}
	if a.seen = (fileSeen{}); recs == nil {
		a.seen = seen
	}
	return a.copy(ctx, after)
}

func (a *Approvals) copy(ctx context.Context, recs []Record) error {
	if recs == nil {
		return nil
	}
	return a.audit.Append(ctx, true, recs...)
}

// Sweep expires the questions whose process is gone, as every other method does
// that writes.
func (a *Approvals) Sweep(ctx context.Context) error {
	return a.update(ctx, func() []Record { return nil })
}

// orphans are the closing records of questions whose process is gone.
func (a *Approvals) orphans() []Record {
	var out []Record
	for _, q := range a.questions {
		if q.closed == nil && a.gone(q.Process) {
			out = append(out, q.record(answerRecord{"expired", "", "", "the process that asked is gone"}))
		}
	}
	return out
}

func (a *Approvals) gone(run string) bool { return run != a.run && runGone(a.dir, run) }

func (q *Question) record(body recordBody) Record {
	return Record{Run: q.Process, Chat: q.Chat, Channel: q.Channel, Call: q.ID, Body: body}
}

// fileSeen tells whether the file has changed; the zero one says that it has.
type fileSeen struct {
	looked bool
	id     fileID // zero if there is no file
	size   int64
}

func (a *Approvals) look() fileSeen {
	id, size, _ := statName(a.log.path)
	return fileSeen{true, id, size}
}

// refresh reads what other processes have written.
func (a *Approvals) refresh(ctx context.Context) error {
	a.mu.Lock()
	same := a.look() == a.seen && a.failed == nil
	a.mu.Unlock()
	if same {
		return nil
	}
	return a.update(ctx, nil)
}

// approvalLine is the union of the records of approvals.jsonl.
type approvalLine struct {
	Digest, Until            string
	Offered, Reasons, Labels []string
	Answer, Scope, By        string
	Reason, Key, Who         string
	Workspace                string
}

// read takes in one line of the file. One that says something unknown about a
// grant ends the trust in all of them.
func (a *Approvals) read(n Line) {
	var l approvalLine
	if err := n.Decode(&l); err != nil {
		a.distrust = fmt.Sprintf("%q holds a line that is not a record: %v", a.log.path, err)
		return
	}
	a.pass(n.Time)
	scope, known := tools.ParseScope(l.Scope)
	until, err := time.Parse(time.RFC3339Nano, l.Until)
	switch n.Kind {
	case "genesis": // what came before was set aside
		a.questions, a.grants, a.distrust = map[string]*Question{}, nil, ""
	case "question":
		q := &Question{ID: n.Call, Process: n.Run, Chat: n.Chat, Channel: n.Channel, Digest: l.Digest, Card: l.Reasons, Until: until}
		for _, text := range l.Offered {
			if s, ok := tools.ParseScope(text); ok {
				q.Offered = append(q.Offered, s)
			}
		}
		if a.questions[q.ID] == nil {
			a.questions[q.ID] = q
		}
	case "answer":
		q := a.questions[n.Call]
		if q == nil || q.closed != nil {
			return
		}
		allow := l.Answer == "allow" && known && slices.Contains(q.Offered, scope)
		q.closed, q.Card = &Answer{allow, l.Answer == "expired", scope, l.By, l.Reason}, nil
		if w := a.waiting[q.ID]; w != nil {
			close(w)
			delete(a.waiting, q.ID)
		}
	case "grant":
		g := Grant{Key: l.Key, Scope: scope, Who: l.Who, Workspace: l.Workspace, Given: n.Time, Until: until, Process: n.Run, turn: a.turn}
		g.Labels = Labels{slices.Contains(l.Labels, "private"), slices.Contains(l.Labels, "untrusted")}
		if !known || (err != nil) != (l.Until == "") || !g.sound() {
			a.distrust = fmt.Sprintf("%q holds a grant that nobody can have given: %q", a.log.path, l.Key)
			return
		}
		a.grants = append(a.grants, g)
	case "revoke":
		a.grants = slices.DeleteFunc(a.grants, func(g Grant) bool { return l.Key == "" || g.Key == l.Key })
		if l.Key == "" {
			a.distrust = ""
		}
	}
}

// sound reports whether the grant is one that picket records: an end where the
// scope has one, and no later than it may be (but for a clock that is set while
// it is written).
func (g *Grant) sound() bool {
	return g.Key != "" && (g.Who == "owner" || g.Who == "app") && g.Scope != tools.Once &&
		(g.Scope == tools.Day) != g.Until.IsZero() && !g.Until.After(g.Given.Add(dayGrant+time.Minute))
}

// pass drops the grants that had ended at a time that was seen after they were
// given: a clock that is set back does not revive them.
func (a *Approvals) pass(ts time.Time) {
	a.grants = slices.DeleteFunc(a.grants, func(g Grant) bool { return !g.Until.IsZero() && ts.After(g.Until) })
}

// Ask registers a question, waits for its answer and closes it: however this
// ends, the file holds exactly one closing record, after which no answer is
// taken. show puts the question to the owner, and may call Answer; it must
// return when its context ends. It may be nil. An error means that the answer
// does not allow.
func (a *Approvals) Ask(ctx context.Context, q Question, show func(context.Context)) (ans Answer, err error) {
	q.Process = a.run
	why := "the question failed"
	defer func() {
		p := recover()
		got, cerr := a.close(ctx, &q, why)
		if err = errors.Join(err, cerr); err == nil && p == nil && ctx.Err() == nil {
			ans = got
		} else {
			ans = Answer{Expired: true, Reason: why}
		}
		if p != nil {
			panic(p)
		}
	}()
	answered := make(chan struct{})
	fresh := false
	err = a.update(ctx, func() []Record {
		if fresh = a.questions[q.ID] == nil; !fresh {
			return nil
		}
		a.waiting[q.ID] = answered
		return []Record{q.record(questionRecord{q.Digest, scopeNames(q.Offered), q.Card, q.Until.UTC().Format(timeLayout)})}
	})
	if err == nil && !fresh {
		err = fmt.Errorf("the question %q exists already", q.ID)
		q.ID = "" // that one is not this call's to close
	}
	if err != nil {
		return ans, err
	}
	why = a.wait(ctx, &q, answered, show)
	return ans, nil
}

// wait returns when the question is answered or must end; the text says why it
// must.
func (a *Approvals) wait(ctx context.Context, q *Question, answered <-chan struct{}, show func(context.Context)) string {
	sctx, cancel := context.WithCancel(ctx)
	shown, panicked := make(chan struct{}), any(nil)
	if show == nil {
		close(shown)
	} else {
		go func() {
			defer close(shown)
			defer func() { panicked = recover() }()
			show(sctx)
		}()
	}
	defer func() {
		cancel()
		if <-shown; panicked != nil {
			panic(panicked)
		}
	}()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for ended := shown; ; {
		select {
		case <-ended: // who shows it has given up; others can still answer
			if ended = nil; panicked != nil {
				return ""
			}
			continue
		case <-answered:
			return ""
		case <-ctx.Done():
			return "stopped"
		case <-tick.C:
		}
		if !a.now().Before(q.Until) {
			return "no answer in time"
		}
		if err := a.refresh(ctx); err != nil && ctx.Err() == nil {
			return err.Error()
		}
	}
}

// close writes the closing record unless an answer is there, and returns what
// closed the question. It does not end with ctx.
func (a *Approvals) close(ctx context.Context, q *Question, why string) (ans Answer, err error) {
	if q.ID == "" {
		return ans, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	known := false
	err = a.update(ctx, func() []Record {
		delete(a.waiting, q.ID)
		kept := a.questions[q.ID]
		if known = kept != nil; !known {
			return nil // it was never written
		}
		if kept.closed == nil {
			ans = Answer{Expired: true, Reason: why}
			return []Record{q.record(ans.record())}
		}
		ans = *kept.closed
		return nil
	})
	if err != nil || !known {
		return Answer{}, err
	}
	return ans, a.audit.Append(ctx, true, q.record(ans.record()))
}

// Answer answers a question, of this process or of another. digest, if not
// empty, must be that of the question. The error is one of those above if the
// answer is not taken.
func (a *Approvals) Answer(ctx context.Context, id, digest string, ans Answer) error {
	var refused error
	err := a.update(ctx, func() []Record {
		q := a.questions[id]
		switch {
		case q == nil:
			refused = errNoQuestion
		case q.closed != nil && q.closed.Expired, q.closed == nil && !a.waits(q):
			refused = errExpired
		case q.closed != nil:
			refused = errAnswered
		case digest != "" && digest != q.Digest:
			refused = errOtherCall
		case ans.Expired || ans.Allow && !slices.Contains(q.Offered, ans.Scope):
			refused = errNotOffered
		default:
			return []Record{q.record(ans.record())}
		}
		return nil
	})
	return errors.Join(err, refused)
}

// Grant records what an answer granted, or the command line. call is the call
// that asked, with its chat and channel. Grants of Task end with EndTurn.
func (a *Approvals) Grant(ctx context.Context, call Record, turn string, grants []Grant) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn = turn
	defer func() { a.turn = "" }()
	return a.updateLocked(ctx, func() []Record {
		var out []Record
		for _, g := range grants {
			if g.Given, g.Until = a.now(), (time.Time{}); g.Scope == tools.Day {
				g.Until = g.Given.Add(dayGrant)
			}
			out = append(out, Record{a.run, call.Chat, call.Channel, call.Call, g.record()})
		}
		return out
	})
}

// EndTurn ends the grants of a turn.
func (a *Approvals) EndTurn(turn string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.grants = slices.DeleteFunc(a.grants, func(g Grant) bool { return g.Scope == tools.Task && g.turn == turn })
}

// Held returns the grants that hold now for a turn of this process; none if
// the file cannot be read or trusted. It is to be called for each decision, and
// again before a call that a grant lets through is launched.
func (a *Approvals) Held(ctx context.Context, turn string) []Grant {
	if a.refresh(ctx) != nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.distrust != "" {
		return nil
	}
	now := a.now()
	a.pass(now)
	var out []Grant
	for _, g := range a.grants {
		ours := g.Process == a.run && (g.Scope == tools.Session || g.turn != "" && g.turn == turn)
		if (g.Scope >= tools.Day || ours) && (g.Until.IsZero() || !now.Before(g.Given)) {
			out = append(out, g)
		}
	}
	return out
}

// waits reports whether an open question can still be answered.
func (a *Approvals) waits(q *Question) bool { return a.now().Before(q.Until) && !a.gone(q.Process) }

// List returns the questions that wait, the one that ends first before the
// others, and the grants of every process; of another's turns, some may have
// ended.
func (a *Approvals) List(ctx context.Context) ([]Question, []Grant, error) {
	if err := a.refresh(ctx); err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pass(a.now())
	var open []Question
	for _, q := range a.questions {
		if q.closed == nil && a.waits(q) {
			open = append(open, *q)
		}
	}
	slices.SortFunc(open, func(x, y Question) int { return x.Until.Compare(y.Until) })
	var grants []Grant
	for _, g := range a.grants {
		if g.Scope >= tools.Day || !a.gone(g.Process) {
			grants = append(grants, g)
		}
	}
	return open, grants, nil
}

// ended says how a question ended.
func (a *Approvals) ended(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.questions[id]; q != nil && q.closed != nil {
		return q.closed.record().Answer
	}
	return "expired"
}

// Revoke ends the grants of a key, for everybody and in every process, or all
// grants if key is empty. It returns how many there were.
func (a *Approvals) Revoke(ctx context.Context, key string) (n int, err error) {
	err = a.update(ctx, func() []Record {
		var out []Record
		for _, g := range a.grants {
			if key == "" || g.Key == key {
				out = append(out, Record{Run: a.run, Body: revokeRecord(g.record())})
			}
		}
		if n = len(out); key == "" && a.distrust != "" {
			out = append(out, Record{Run: a.run, Body: revokeRecord{Labels: []string{}}}) // whatever it was
		}
		return out
	})
	if err == nil && n == 0 && key != "" {
		err = errNoGrant
	}
	return n, err
}

// Trouble says why no grant holds, "" if they do.
func (a *Approvals) Trouble() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.distrust == "" && a.failed != nil {
		return a.failed.Error()
	}
	return a.distrust
}
