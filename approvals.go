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

// Why an answer is not taken. All but the first are conflicts with what happened meanwhile.
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

// Approvals are the questions, answers and grants of the owner, kept in approvals.jsonl and shared by all picket
// processes. A grant of a turn or a process holds only there; it is recorded all the same.
type Approvals struct {
	log, audit *Log
	dir        string
	run        string // of this process
	now        func() time.Time
	redact     func(string) string // of the reasons of answers; nil leaves them

	mu        sync.Mutex // comes after the lock of the file
	questions map[string]*Question
	grants    []Grant
	distrust  string                   // why no grant of the file holds
	failed    error                    // of the last look at it
	waiting   map[string]chan struct{} // by question of this process
}

// openApprovals opens the approvals in the data folder. audit is its log, and run what this process holds with holdRun.
// What is wrong with the file is no error here: Trouble says so, no grant holds and no question can be asked.
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
	f, err := os.Open(path)
	if err != nil {
		return time.Time{}
	}
	defer f.Close()
	size, _ := f.Seek(0, io.SeekEnd)
	end, _ := io.ReadAll(io.NewSectionReader(f, max(0, size-2*maxLine), 2*maxLine))
	end = end[:max(0, bytes.LastIndexByte(end, '\n'))]
	l, _ := parseLine(end[bytes.LastIndexByte(end, '\n')+1:])
	return l.Time
}

// update brings the state up to what the file holds, runs fn on it and appends the records that fn returns, all under the
// lock of the file. Questions whose process is gone are expired on the way, and grants past their end revoked, also where fn
// refuses; a nil fn writes nothing.
func (a *Approvals) update(ctx context.Context, fn func() ([]Record, error)) error {
	var refused error
	err := a.log.Update(ctx, func() (recs []Record, _ error) {
		if fn == nil {
			return nil, nil
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, q := range a.questions {
			if q.closed == nil && a.gone(q.Process) {
				recs = append(recs, q.record(answerRecord{"expired", "", "", "the process that asked is gone"}))
			}
		}
		for _, g := range a.grants {
			if g.over(a.now()) { // on record, so that a clock that is set back does not revive it
				recs = append(recs, g.revoked(a.run))
			}
		}
		if recs != nil {
			if err := a.audit.Append(ctx, true, recs...); err != nil {
				return nil, err
			}
		}
		more, err := fn()
		if refused = err; err == nil {
			recs = append(recs, more...)
		}
		return recs, nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
	return errors.Join(err, refused)
}

// Sweep expires the questions whose process is gone and ends the grants past their time, as every method does that writes.
func (a *Approvals) Sweep(ctx context.Context) error {
	return a.update(ctx, func() ([]Record, error) { return nil, nil })
}

func (a *Approvals) gone(run string) bool { return run != a.run && runGone(a.dir, run) }

func (q *Question) record(body recordBody) Record {
	return Record{Run: q.Process, Chat: q.Chat, Channel: q.Channel, Call: q.ID, Body: body}
}

// approvalLine is the union of the records of approvals.jsonl.
type approvalLine struct {
	Digest, Until            string
	Offered, Reasons, Labels []string
	Answer, Scope, By        string
	Reason, Key, Who         string
	Workspace                string
}

// read takes in one line of the file. One that says something unknown about a grant ends the trust in all of them.
func (a *Approvals) read(n Line) {
	a.mu.Lock()
	defer a.mu.Unlock()
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
		g := Grant{Key: l.Key, Scope: scope, Who: l.Who, Workspace: l.Workspace, Given: n.Time, Until: until, Process: n.Run, call: n.Call}
		g.Labels = Labels{slices.Contains(l.Labels, "private"), slices.Contains(l.Labels, "untrusted")}
		if !known || (err != nil) != (l.Until == "") || !g.sound() {
			a.distrust = fmt.Sprintf("%q holds a grant that nobody can have given: %q", a.log.path, l.Key)
			return
		}
		a.grants = append(a.grants, g)
	case "revoke":
		a.grants = slices.DeleteFunc(a.grants, func(g Grant) bool { // one with an end ends those that end by then
			return l.Key == "" || g.Key == l.Key && (err != nil || !g.Until.IsZero() && !g.Until.After(until))
		})
		if l.Key == "" {
			a.distrust = ""
		}
	}
}

// pass drops the grants that had ended at a time that was seen after they were given: a clock that is set back does not
// revive them.
func (a *Approvals) pass(ts time.Time) {
	a.grants = slices.DeleteFunc(a.grants, func(g Grant) bool { return g.over(ts) })
}

// Ask registers a question, waits for its answer and closes it: however this ends, the file holds exactly one closing
// record, after which no answer is taken. show puts the question to the owner, and may call Answer; it must return when its
// context ends. It may be nil. An error means that the answer does not allow.
func (a *Approvals) Ask(ctx context.Context, q Question, show func(context.Context)) (ans Answer, err error) {
	q.Process = a.run
	answered := make(chan struct{})
	asked := q.record(questionRecord{q.Digest, scopeNames(q.Offered), q.Card, q.Until.UTC().Format(timeLayout)})
	why := "the question failed"
	if err := a.update(ctx, func() ([]Record, error) {
		if a.questions[q.ID] != nil {
			return nil, fmt.Errorf("the question %q exists already", q.ID)
		}
		a.waiting[q.ID] = answered
		return []Record{asked}, nil
	}); err != nil {
		return Answer{Expired: true, Reason: why}, err
	}
	defer func() {
		closed, cerr := a.close(ctx, &q, why)
		if err = errors.Join(err, cerr); err != nil || ctx.Err() != nil {
			closed = Answer{Expired: true, Reason: why}
		}
		ans = closed
	}()
	if err = a.audit.Append(ctx, true, asked); err == nil {
		why = a.wait(ctx, &q, answered, show)
	}
	return ans, err
}

// wait returns when the question is answered or must end; the text says why it must.
func (a *Approvals) wait(ctx context.Context, q *Question, answered <-chan struct{}, show func(context.Context)) string {
	sctx, cancel := context.WithCancel(ctx)
	failed := make(chan string, 1)
	var shown sync.WaitGroup
	defer shown.Wait()
	defer cancel()
	if show != nil { // when it gives up, others can still answer
		shown.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					failed <- fmt.Sprintf("it could not be shown: %v", p)
				}
			}()
			show(sctx)
		})
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case why := <-failed:
			return why
		case <-answered:
			return ""
		case <-ctx.Done():
			return "stopped"
		case <-tick.C:
		}
		if !a.now().Before(q.Until) {
			return "no answer in time"
		}
		if err := a.update(ctx, nil); err != nil && ctx.Err() == nil {
			return err.Error()
		}
	}
}

// close writes the closing record unless an answer is there, and returns what closed the question. It does not end with
// ctx. The answer goes to the audit log with the process that asked, whoever gave it.
func (a *Approvals) close(ctx context.Context, q *Question, why string) (ans Answer, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err = a.update(ctx, func() ([]Record, error) {
		delete(a.waiting, q.ID)
		kept := a.questions[q.ID] // nil if the file was set aside meanwhile
		if kept != nil && kept.closed != nil {
			ans = *kept.closed
			return nil, nil
		}
		if ans = (Answer{Expired: true, Reason: why}); kept == nil {
			return nil, nil
		}
		return []Record{q.record(ans.record())}, nil
	})
	if err != nil {
		return Answer{}, err
	}
	return ans, a.audit.Append(ctx, true, q.record(ans.record()))
}

// Answer answers a question, of this process or of another. digest, if not empty, must be that of the question. The error
// is one of those above if the answer is not taken.
func (a *Approvals) Answer(ctx context.Context, id, digest string, ans Answer) error {
	if a.redact != nil {
		ans.Reason = a.redact(ans.Reason)
	}
	return a.update(ctx, func() ([]Record, error) {
		q := a.questions[id]
		switch {
		case q == nil:
			return nil, errNoQuestion
		case q.closed != nil && q.closed.Expired, q.closed == nil && !a.waits(q):
			return nil, errExpired
		case q.closed != nil:
			return nil, errAnswered
		case digest != "" && digest != q.Digest:
			return nil, errOtherCall
		case ans.Expired || ans.Allow && !slices.Contains(q.Offered, ans.Scope):
			return nil, errNotOffered
		}
		return []Record{q.record(ans.record())}, nil
	})
}

// Grant records what an answer granted, or the command line: first in the audit log, so that none holds which that does not
// have. call is the call that asked, with its chat and channel. Grants of Task end with EndTurn.
func (a *Approvals) Grant(ctx context.Context, call Record, turn string, grants []Grant) error {
	grants = slices.DeleteFunc(grants, func(g Grant) bool { // a key with a secret in it cannot be written down
		return a.redact != nil && a.redact(g.Key) != g.Key
	})
	if len(grants) == 0 {
		return nil
	}
	err := a.update(ctx, func() ([]Record, error) {
		var out []Record
		for _, g := range grants {
			if g.Given, g.Until = a.now(), (time.Time{}); g.Scope == tools.Day {
				g.Until = g.Given.Add(dayGrant)
			}
			out = append(out, Record{a.run, call.Chat, call.Channel, call.Call, g.record()})
		}
		return out, a.audit.Append(ctx, true, out...)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.grants {
		if g := &a.grants[i]; err == nil && g.Process == a.run && g.call == call.Call && g.turn == "" {
			g.turn = turn
		}
	}
	return err
}

// EndTurn ends the grants of a turn.
func (a *Approvals) EndTurn(turn string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.grants = slices.DeleteFunc(a.grants, func(g Grant) bool { return g.Scope == tools.Task && g.turn == turn })
}

// Held returns the grants that hold now for a turn of this process; none if the file cannot be read or trusted.
func (a *Approvals) Held(ctx context.Context, turn string) (held []Grant) {
	if a.While(ctx, turn, func(g []Grant) error { held = g; return nil }) != nil {
		return nil
	}
	return held
}

// While runs fn with the grants that hold, and nobody revokes one meanwhile. What they let through is to be recorded in it,
// so that after the record of a revocation no call runs by that grant.
func (a *Approvals) While(ctx context.Context, turn string, fn func(held []Grant) error) error {
	return a.update(ctx, func() ([]Record, error) {
		var held []Grant
		now := a.now()
		for _, g := range a.grants {
			ours := g.Process == a.run && (g.Scope == tools.Session || g.turn != "" && g.turn == turn)
			if a.distrust == "" && (g.Scope >= tools.Day || ours) && !g.over(now) && (g.Until.IsZero() || !now.Before(g.Given)) {
				held = append(held, g)
			}
		}
		return nil, fn(held)
	})
}

// waits reports whether an open question can still be answered.
func (a *Approvals) waits(q *Question) bool { return a.now().Before(q.Until) && !a.gone(q.Process) }

// List returns the questions that wait, the one that ends first before the others, and the grants of every process; of
// another's turns, some may have ended.
func (a *Approvals) List(ctx context.Context) (open []Question, grants []Grant, err error) {
	if err := a.update(ctx, nil); err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.questions {
		if q.closed == nil && a.waits(q) {
			open = append(open, *q)
		}
	}
	slices.SortFunc(open, func(x, y Question) int { return x.Until.Compare(y.Until) })
	return open, slices.DeleteFunc(slices.Clone(a.grants), func(g Grant) bool { return !a.live(g) }), nil
}

// live reports whether a grant can hold somewhere.
func (a *Approvals) live(g Grant) bool {
	return (g.Scope >= tools.Day || !a.gone(g.Process)) && !g.over(a.now())
}

// Revoke ends the grants of a key, for everybody and in every process, or all grants if key is empty. It returns how many
// there were.
func (a *Approvals) Revoke(ctx context.Context, key string) (n int, err error) {
	var unrecorded error
	err = a.update(ctx, func() ([]Record, error) {
		var recs []Record
		for _, g := range a.grants {
			if (key == "" || g.Key == key) && a.live(g) {
				recs = append(recs, g.revoked(a.run))
			}
		}
		n = len(recs)
		if n == 0 && key != "" {
			return nil, errNoGrant
		}
		if key == "" && a.distrust != "" { // whatever it was
			recs = append(recs, Record{Run: a.run, Body: revokeRecord{Labels: []string{}}})
		}
		if len(recs) > 0 { // in the order in which it takes effect; it does also where it cannot be recorded
			unrecorded = a.audit.Append(ctx, true, recs...)
		}
		return recs, nil
	})
	return n, errors.Join(err, unrecorded)
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
