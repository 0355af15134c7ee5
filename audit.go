package main

// The log: a file that only grows, in which each line is chained to the one
// before. audit.jsonl is one, approvals.jsonl another. A line is one JSON object
// without blanks, UTF-8, ended by one LF:
//
//	{"prev":HEX64,"seq":N,"ts":"2006-01-02T15:04:05.000000Z","kind":KIND,…}
//
// prev is the SHA-256 of the exact bytes of the line before, without its LF:
//
//	tail -n2 audit.jsonl | head -n1 | tr -d '\n' | sha256sum
//
// seq counts from 1 by 1. After kind come those of run, chat, channel and call
// that apply, then the kind's own fields; see records.go. The first line is
//
//	{"prev":"","seq":1,"ts":…,"kind":"genesis","format":1,"log":HEX32,"key":HEX64}
//
// where log is random and key an Ed25519 public key (none in approvals.jsonl).
// After a restart it also names the file that was set aside and its last hash.
//
// audit.state holds what the log cannot say about itself: its last line that is
// known to be on the disk, the private key, and the last line of
// approvals.jsonl. That of audit.jsonl is written after a sync, within a second
// of an append: it can be behind the log, and picket rolls it forward over lines
// that are linked, but not ahead of it unless the log lost something, which a
// "gap" then records. For approvals.jsonl, where a line gives rights, the state
// first learns which line is about to become the last, and no other end of the
// file is believed.
//
// Appends happen under audit.lock (approvals.lock), which is never renamed. Who
// holds both took approvals.lock first. Who renames a log syncs it before.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	auditName     = "audit.jsonl"
	approvalsName = "approvals.jsonl"
	logFormat     = 1
	timeLayout    = "2006-01-02T15:04:05.000000Z"
	// flushDelay bounds how long a record that nobody waits for stays unsynced.
	flushDelay = 250 * time.Millisecond
)

var (
	// errAudit is wrapped by every error that means "this could not be
	// recorded"; the exit code is then 4.
	errAudit = errors.New("the log could not be written")
	// errDamaged is wrapped, besides errAudit, where a log cannot be continued
	// until "picket audit restart" has set it aside.
	errDamaged = errors.New(`its end is damaged: see "picket audit verify", then "picket audit restart"`)
)

// A mark is a line of a log: its number, its hash, and where it ends.
type mark struct {
	Seq  int64
	Hash [sha256.Size]byte
	Off  int64
}

func (m mark) same(o mark) bool { return m.Seq == o.Seq && m.Hash == o.Hash }

// LogOptions are for a log that is read as well. Its last line is vouched for by
// the state of another log, the anchor. Apply is called with each line in order
// and under the lock, first with those that there are, then with those that were
// added, its own included; it must not call the Log. After a genesis the lines
// before it no longer count.
type LogOptions struct {
	Anchor *Log
	Apply  func(Line)
}

// Log is an append-only, hash-chained file that several processes share. Its
// methods may be called from several goroutines.
type Log struct {
	dir, name, path string

	opt  LogOptions
	lock *fileLock

	// Under the lock:
	f       *os.File // nil until it is needed; changed under mu too
	state   *os.File // the same
	id      fileID
	known   bool      // head is the end of the file with this id
	looked  time.Time // when its name was looked up
	head    mark
	logID   [16]byte
	genesis genesisRecord // of a log that has no line yet
	enc     encoder

	// For those who sync, whose lock comes after the other one:
	mu      sync.Mutex
	done    *sync.Cond
	syncing bool
	written uint64 // writes
	synced  uint64 // those of them that are on disk
	last    mark   // what was written last, of the log lastID
	lastID  [16]byte
	err     error // a sync failed and what was written may be lost, or it is closed
	armed   bool  // flush will be called
}

// openAudit opens the audit log in the data folder, makes it if there is none,
// and does what a crash left undone. Its errors wrap errAudit.
func openAudit(dir string) (*Log, error) { return OpenLog(dir, auditName, LogOptions{}) }

// OpenLog opens a log. One with an anchor is read at the first Update.
func OpenLog(dir, name string, opt LogOptions) (*Log, error) {
	l, err := newLog(dir, name, opt)
	if err == nil && opt.Anchor == nil {
		if err = l.locked(context.Background(), l.fresh); err != nil {
			l.lock.Close()
		}
	}
	return l, l.fail(err)
}

func newLog(dir, name string, opt LogOptions) (l *Log, err error) {
	l = &Log{dir: dir, name: name, path: filepath.Join(dir, name), opt: opt}
	l.done = sync.NewCond(&l.mu)
	if err = ensureDir(dir); err == nil {
		l.lock, err = openLock(strings.TrimSuffix(l.path, ".jsonl") + ".lock")
	}
	return l, err
}

// fail makes err one of this log's.
func (l *Log) fail(err error) error {
	if err == nil || errors.Is(err, errAudit) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", errAudit, l.name, err)
}

func (l *Log) locked(ctx context.Context, fn func(context.Context) error) error {
	if err := l.lock.Lock(ctx); err != nil {
		return err
	}
	defer l.lock.Unlock()
	if reopenLogs {
		defer l.letGo()
	}
	return fn(ctx)
}

// Append writes records in one batch, chained, under the lock. With sync it
// returns only once they are on disk (one fdatasync is shared by all who wait);
// without, they are there within a second. ctx limits the wait for the lock,
// which is at most 5 s. Every error wraps errAudit.
func (l *Log) Append(ctx context.Context, sync bool, recs ...Record) error {
	_, err := l.append(ctx, sync, func() []Record { return recs })
	return err
}

// Accept records that the owner has seen the gaps and recoveries up to now. It
// returns the number of the last line that this covers.
func (l *Log) Accept(ctx context.Context) (upto int64, err error) {
	return l.append(ctx, true, func() []Record { return []Record{{Body: acceptRecord{Upto: l.head.Seq}}} })
}

// append returns the number of the line before those that it added.
func (l *Log) append(ctx context.Context, sync bool, recs func() []Record) (seq int64, err error) {
	if l.opt.Anchor != nil {
		return 0, l.fail(errors.New("this log is written by Update"))
	}
	n := uint64(0)
	err = l.locked(ctx, func(ctx context.Context) error {
		err := l.fresh(ctx)
		if seq = l.head.Seq; err == nil {
			err = l.add(ctx, l.head.Off, recs()...)
		}
		n = l.written
		return err
	})
	if err == nil && sync {
		err = l.syncTo(n)
	}
	return seq, l.fail(err)
}

// Update is how a log with an anchor is read and written. Under the lock it
// takes in what was added, calls fn, and appends what that returns, synced; fn
// sees the newest state and nobody changes it meanwhile. If the file is not the
// one that the anchor vouches for, or the records could not be written, the error
// wraps errAudit and nothing of them counts. An error of fn is returned as it is.
func (l *Log) Update(ctx context.Context, fn func() ([]Record, error)) (err error) {
	var recs []Record
	lerr := l.locked(ctx, func(ctx context.Context) error {
		if err := l.fresh(ctx); err != nil {
			return err
		}
		if recs, err = fn(); err != nil || len(recs) == 0 {
			return nil
		}
		return l.add(ctx, l.head.Off, recs...)
	})
	if lerr != nil {
		return l.fail(lerr)
	}
	return err
}

// fresh brings what is known about the file up to date, under the lock.
func (l *Log) fresh(ctx context.Context) error {
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return err
	}
	now := time.Now()
	if l.known && l.f != nil && now.Sub(l.looked) < lately {
		// Asking for the size alone spares the next write the work that a stat
		// makes for it (the time of change is then kept more finely).
		if size, err := l.f.Seek(0, io.SeekEnd); err == nil && size == l.head.Off {
			return nil
		}
	}
	id, size, err := statName(l.path)
	if l.looked = now; err == nil && l.known && id == l.id && size == l.head.Off {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	goesOn := l.known && id == l.id && size >= l.head.Off
	if l.known = false; id != l.id {
		l.letGo()
	}
	return l.catchUp(ctx, size, goesOn)
}

// open opens the file; flag is os.O_CREATE if there may be none.
func (l *Log) open(flag int) error {
	if l.f != nil {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|noFollow|flag, 0o600)
	if err != nil {
		return err
	}
	if l.id, err = idOf(f); err == nil {
		err = checkOwn(l.path)
	}
	if err != nil {
		f.Close()
		return err
	}
	l.mu.Lock()
	l.f = f
	l.mu.Unlock()
	if flag != 0 {
		err = syncDir(l.dir)
	}
	return err
}

func (l *Log) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.syncing {
		l.done.Wait()
	}
	l.f.Close()
	l.state.Close()
	l.f, l.state = nil, nil
}

// add appends records, after the first line if there is none yet, over what
// stands after the head up to size. If there is an anchor, it learns first what is
// coming, and in the end, after a sync, that it is there. After an error nothing
// of it counts, or whoever looks next finds a torn line.
func (l *Log) add(ctx context.Context, size int64, recs ...Record) error {
	if l.head.Seq == 0 {
		recs = append([]Record{{Body: l.genesis}}, recs...)
	}
	if l.enc.b = l.enc.b[:0]; cap(l.enc.b) > 1<<20 {
		l.enc.b = nil
	}
	h := l.enc.lines(l.head, time.Now(), recs...)
	b := l.enc.b
	anchored := l.opt.Anchor != nil
	if anchored {
		if err := l.vouch(ctx, true, l.head, h); err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
	}
	err := l.put(b, size)
	if err == nil && anchored {
		if err = syncData(l.f); err == nil {
			err = l.vouch(ctx, false, h, h)
		}
	}
	if err != nil {
		l.known = false
		if l.f != nil {
			err = errors.Join(err, l.f.Truncate(l.head.Off))
		}
		if anchored {
			err = errors.Join(err, l.vouch(ctx, true, l.head, l.head))
		}
		return err
	}
	if l.head = h; !anchored {
		l.changed()
		return nil
	}
	for raw := range bytes.Lines(b) {
		l.apply(raw)
	}
	return nil
}

// put writes b after the head. The lines that tell what a torn one held go over
// it, so that there is no moment at which it is in neither.
func (l *Log) put(b []byte, size int64) error {
	if err := l.open(os.O_CREATE); err != nil {
		return err
	}
	if size == l.head.Off {
		_, err := l.f.Write(b)
		return err
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|noFollow, 0) // O_APPEND rules WriteAt out
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.WriteAt(b, l.head.Off); err == nil {
		err = f.Truncate(l.head.Off + int64(len(b)))
	}
	return err
}

// changed tells those who sync that there is something to sync up to the head.
func (l *Log) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written++
	if l.last, l.lastID = l.head, l.logID; !l.armed {
		l.armed = true
		time.AfterFunc(flushDelay, l.flush)
	}
}

// flush syncs what nobody waited for.
func (l *Log) flush() {
	l.mu.Lock()
	l.armed = false
	n := l.written
	l.mu.Unlock()
	l.syncTo(n)
}

// syncTo returns when the first n writes are on disk and the state knows of
// them. One goroutine syncs for all who have written by then.
func (l *Log) syncTo(n uint64) error {
	l.mu.Lock()
	for l.syncing && l.err == nil && l.synced < n {
		l.done.Wait()
	}
	if l.err != nil || l.synced >= n {
		defer l.mu.Unlock()
		return l.err
	}
	l.syncing = true
	f, at, h, id := l.f, l.written, l.last, l.lastID
	l.mu.Unlock()
	err := syncLog(f, l.path)
	l.mu.Lock()
	if l.syncing = false; err == nil {
		l.synced = at
	} else {
		l.err = err
	}
	l.done.Broadcast()
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.locked(context.Background(), func(context.Context) error {
		err := l.editState(false, func(st *auditState) bool {
			if st.Log != id || st.Head.Seq >= h.Seq { // another process was further
				return false
			}
			st.Head = h
			return true
		})
		l.known = l.known && err == nil // else it is to be looked at again
		return err
	})
}

// syncLog syncs a log that need not be open: if its name has gone to another
// file, that one was synced before.
func syncLog(f *os.File, path string) (err error) {
	if f == nil {
		if f, err = os.OpenFile(path, os.O_RDWR|noFollow, 0); err != nil {
			return err
		}
		defer f.Close()
	}
	return syncData(f)
}

// Close syncs what is pending. The log cannot be used after.
func (l *Log) Close() error {
	l.mu.Lock()
	closed, n := errors.Is(l.err, fs.ErrClosed), l.written
	l.mu.Unlock()
	if closed {
		return nil
	}
	err := l.syncTo(n)
	l.lock.mu.Lock() // nobody is writing
	defer l.lock.mu.Unlock()
	l.letGo()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fs.ErrClosed
	return l.fail(errors.Join(err, l.lock.Close()))
}

// A Line is one line of a log; Raw is the whole of it.
type Line struct {
	Seq                            int64
	Time                           time.Time `json:"ts"`
	Kind, Run, Chat, Channel, Call string
	Raw                            []byte `json:"-"`
}

// Decode reads the kind's own fields into v, a pointer to its record.
func (n Line) Decode(v any) error { return json.Unmarshal(n.Raw, v) }

func parseLine(raw []byte) (Line, error) {
	n := Line{Raw: bytes.Clone(raw)}
	return n, json.Unmarshal(raw, &n)
}

func (l *Log) apply(raw []byte) {
	n, err := parseLine(raw)
	if err != nil {
		n.Kind = "" // of no kind: it does nothing
	}
	if l.opt.Apply != nil {
		l.opt.Apply(n)
	}
}
