package main

// The log: a file that only grows, in which each line is chained to the one
// before. audit.jsonl is one, approvals.jsonl another.
//
// # Format
//
// One JSON object a line, without blanks, UTF-8, ended by one LF:
//
//	{"prev":HEX64,"seq":N,"ts":"2006-01-02T15:04:05.000000Z","kind":KIND,…}
//
// prev is the SHA-256 of the exact bytes of the line before, without its LF, so
// that a line can be checked by hand:
//
//	tail -n2 audit.jsonl | head -n1 | tr -d '\n' | sha256sum
//
// seq counts from 1 by 1. After kind come those of run, chat, channel and call
// that apply, then the kind's own fields; records.go has them all, how text is
// escaped and cut, and what is not recorded and why. The first line is
//
//	{"prev":"","seq":1,"ts":…,"kind":"genesis","format":1,"log":HEX32,"key":HEX64}
//
// where log is random and key an Ed25519 public key (none in approvals.jsonl).
// After a restart it also names the file that was set aside and the hash of
// that file's last line.
//
// # State
//
// audit.state holds what the log cannot say about itself: its last line that is
// known to be on the disk, the private key, and the last line of
// approvals.jsonl. It has two slots, at 0 and at 4096, each of 512 bytes and
// with its own checksum; the one with the higher generation counts and the other
// one is written next, so that a torn write loses nothing. The state of
// audit.jsonl is written after the log was synced, within a second of
// an append: it can be behind the log, and picket rolls it forward over lines
// that are linked, but not ahead of it unless the log lost something, which a
// "gap" then records. For approvals.jsonl, where a line gives rights, it is the
// other way round: the state first learns which line is about to become the
// last, and no other end of the file is believed.
//
// # Locks
//
// Appends happen under audit.lock (approvals.lock), which is never renamed. Who
// holds both took approvals.lock first.

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
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
	errClosed  = errors.New("it is closed")
)

// A mark is a line of a log: its number, its hash, and where it ends.
type mark struct {
	seq  int64
	hash [sha256.Size]byte
	off  int64
}

func (m mark) same(o mark) bool { return m.seq == o.seq && m.hash == o.hash }

// LogOptions say which kind of log one is.
type LogOptions struct {
	// Anchor is the log whose state vouches for this one's last line; nil for
	// the log that has a state of its own.
	Anchor *Log
	// Apply is called for each line, in order and under the lock: those that
	// Update finds when it first looks, then those that were added, its own
	// included. A genesis means that all lines before it no longer count. It
	// must not call the Log.
	Apply func(Line)
}

// Log is an append-only, hash-chained file that several processes share. Its
// methods may be called from several goroutines.
type Log struct {
	dir, name, path string

	opt   LogOptions
	lock  *fileLock
	state *os.File // nil with an anchor
	timer *time.Timer

	// Under the lock:
	known   bool      // head and id are the file's, as this process last saw it
	looked  time.Time // when that was, by name
	head    mark
	id      fileID
	logID   [16]byte
	
	buf     []byte
	clock   int64 // Unix time of seconds
	seconds [len("2006-01-02T15:04:05.")]byte

	fileMu sync.Mutex // against changing f while it is synced
	f      *os.File

	syncMu  sync.Mutex
	last    mark          // what was written last, of the log with the id lastID
	lastID  [16]byte      //
	written uint64        // writes
	synced  uint64        // those of them that are on disk
	round   chan struct{} // the sync under way, closed at its end
	broken  error         // a sync failed: what was written may be lost, for good
	doubt   bool          // the state could not be written: look at it again
	armed   bool          // the timer runs
	closed  bool
}

// openAudit opens the audit log in the data folder, makes it if there is none,
// and does what a crash left undone. Its errors wrap errAudit.
func openAudit(dir string) (*Log, error) { return OpenLog(dir, auditName, LogOptions{}) }

// OpenLog opens a log. One with an anchor is read at the first Update.
func OpenLog(dir, name string, opt LogOptions) (*Log, error) {
	l, err := newLog(dir, name, opt)
	if err == nil && opt.Anchor == nil {
		err = l.locked(context.Background(), l.fresh)
	}
	if err != nil {
		l.release()
		return nil, l.fail(err)
	}
	return l, nil
}

func newLog(dir, name string, opt LogOptions) (l *Log, err error) {
	l = &Log{dir: dir, name: name, path: filepath.Join(dir, name), opt: opt}
	l.timer = time.AfterFunc(time.Hour, l.flush)
	l.timer.Stop()
	if err = ensureDir(dir); err == nil {
		l.lock, err = openLock(lockName(dir, name))
	}
	return l, err
}

func lockName(dir, name string) string {
	return filepath.Join(dir, strings.TrimSuffix(name, ".jsonl")+".lock")
}

// fail makes err one of this log's.
func (l *Log) fail(err error) error {
	if err == nil || errors.Is(err, errAudit) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", errAudit, l.name, err)
}

func (l *Log) locked(ctx context.Context, fn func() error) error {
	if err := l.lock.Lock(ctx); err != nil {
		return err
	}
	defer l.lock.Unlock()
	return fn()
}

// Append writes records in one batch, chained, under the lock. With sync it
// returns only once they are on disk (one fdatasync is shared by all who wait);
// without, they are there within a second. ctx limits the wait for the lock,
// which is at most 5 s. Every error wraps errAudit.
func (l *Log) Append(ctx context.Context, sync bool, recs ...Record) error {
	if l.opt.Anchor != nil {
		return l.fail(errors.New("this log is written by Update"))
	}
	l.lock.enter()
	body := encodeRecords(recs...)
	err := l.lock.flock(ctx)
	if err == nil {
		if err = l.fresh(); err == nil {
			err = l.write(body)
		}
		unlockFile(l.lock.f)
	}
	n := l.written
	l.lock.mu.Unlock()
	if err == nil && sync {
		err = l.syncTo(n)
	}
	return l.fail(err)
}

// fresh brings what is known about the file up to date, under the lock.
func (l *Log) fresh() error {
	l.syncMu.Lock()
	broken, closed, doubt := l.broken, l.closed, l.doubt
	l.syncMu.Unlock()
	switch {
	case closed:
		return errClosed
	case broken != nil:
		return broken
	}
	sound := l.known && !doubt
	if sound && l.f != nil && l.lock.at.Sub(l.looked) < lately {
		// Asking for the size alone spares the next write the work that a
		// stat makes for it (the time of change is then kept more finely).
		if size, err := l.f.Seek(0, io.SeekEnd); err == nil && size == l.head.off {
			return nil
		}
	}
	id, size, err := statName(l.path)
	if l.looked = l.lock.at; err == nil && id == l.id && sound {
		if size == l.head.off {
			return nil
		}
		if size > l.head.off {
			return l.readOn(size)
		}
	}
	if err := l.attach(); err != nil {
		l.known = false
		return err
	}
	l.known = true
	return nil
}

// write appends what encodeRecords made, to a file that was looked at.
func (l *Log) write(body []byte) error {
	buf, h := l.encode(l.buf[:0], body, l.lock.at)
	if l.buf = buf; cap(buf) > 1<<20 {
		l.buf = nil
	}
	if err := l.put(buf, l.head.off); err != nil {
		return err
	}
	l.advance(h)
	return l.letGo()
}

// encode appends the lines that continue the head, and returns the new head.
func (l *Log) encode(b, body []byte, now time.Time) ([]byte, mark) {
	h := l.head
	if s := now.Unix(); s != l.clock {
		now.UTC().AppendFormat(l.seconds[:0], "2006-01-02T15:04:05.")
		l.clock = s
	}
	us := now.Nanosecond() / 1000
	for len(body) > 0 {
		n := bytes.IndexByte(body, '\n') + 1
		from := len(b)
		b = append(b, `{"prev":"`...)
		if h.seq > 0 {
			b = hex.AppendEncode(b, h.hash[:])
		}
		h.seq++
		b = append(b, `","seq":`...)
		b = strconv.AppendInt(b, h.seq, 10)
		b = append(b, `,"ts":"`...)
		b = append(b, l.seconds[:]...)
		for d := 100000; d > 0; d /= 10 {
			b = append(b, byte('0'+us/d%10))
		}
		b = append(b, `Z",`...)
		b = append(b, body[:n]...)
		h.hash = sha256.Sum256(b[from : len(b)-1])
		h.off += int64(len(b) - from)
		body = body[n:]
	}
	return b, h
}

// put writes lines after the head; if the file is longer, over what stands
// there. After an error nothing of them is in the file, or whoever looks next
// finds a torn line.
func (l *Log) put(b []byte, size int64) error {
	if size > l.head.off {
		return l.overwrite(b, size)
	}
	if l.f == nil {
		if err := l.openFile(); err != nil {
			return err
		}
	}
	if _, err := l.f.Write(b); err != nil {
		if l.f.Truncate(l.head.off) != nil {
			l.known = false
		}
		return err
	}
	return nil
}

func (l *Log) overwrite(b []byte, size int64) error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|noFollow, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(b, l.head.off); err != nil {
		return err
	}
	if end := l.head.off + int64(len(b)); end < size {
		return f.Truncate(end)
	}
	return nil
}

// advance moves the head, and tells those who sync what there is to sync.
func (l *Log) advance(h mark) {
	l.head = h
	l.syncMu.Lock()
	l.written++
	l.last, l.lastID = h, l.logID
	if !l.armed && !l.closed {
		l.armed = true
		l.timer.Reset(flushDelay)
	}
	l.syncMu.Unlock()
}

// syncTo returns when the first n writes are on disk and the state knows of
// them. One goroutine syncs for all who have written by then.
func (l *Log) syncTo(n uint64) error {
	l.syncMu.Lock()
	for l.broken == nil && l.synced < n && l.round != nil {
		round := l.round
		l.syncMu.Unlock()
		<-round
		l.syncMu.Lock()
	}
	if l.broken != nil || l.synced >= n {
		defer l.syncMu.Unlock()
		return l.broken
	}
	round := make(chan struct{})
	l.round = round
	at, h, id := l.written, l.last, l.lastID
	l.syncMu.Unlock()
	err := l.syncFile()
	l.syncMu.Lock()
	if l.round = nil; err == nil {
		l.synced = at
	} else {
		l.broken = err
	}
	l.syncMu.Unlock()
	close(round)
	if err != nil {
		return err
	}
	return l.locked(context.Background(), func() error { return l.saveHead(h, id, false) })
}

func (l *Log) syncFile() error {
	l.fileMu.Lock()
	defer l.fileMu.Unlock()
	if l.f != nil {
		return syncData(l.f)
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|noFollow, 0) // see reopenLogs
	if err != nil {
		return err
	}
	return errors.Join(syncData(f), f.Close())
}

// flush syncs what nobody waited for, and then the state.
func (l *Log) flush() {
	l.syncMu.Lock()
	l.armed = false
	n := l.written
	l.syncMu.Unlock()
	if l.syncTo(n) == nil {
		l.locked(context.Background(), func() error { return syncData(l.state) })
	}
}

// Close syncs what is pending. The log cannot be used after.
func (l *Log) Close() error {
	l.syncMu.Lock()
	was, n := l.closed, l.written
	l.closed = true
	l.syncMu.Unlock()
	if was {
		return nil
	}
	var err error
	if l.timer.Stop(); l.opt.Anchor == nil {
		if err = l.syncTo(n); err == nil {
			err = l.locked(context.Background(), func() error { return syncData(l.state) })
		}
	}
	l.lock.mu.Lock() // nobody is writing
	defer l.lock.mu.Unlock()
	l.release()
	return l.fail(err)
}

func (l *Log) release() {
	l.fileMu.Lock()
	defer l.fileMu.Unlock()
	for _, f := range []*os.File{l.f, l.state} {
		if f != nil {
			f.Close()
		}
	}
	if l.f = nil; l.lock != nil {
		l.lock.Close()
	}
}

// setFile changes the file; what was written to the old one is synced first.
func (l *Log) setFile(f *os.File) (err error) {
	l.fileMu.Lock()
	defer l.fileMu.Unlock()
	if l.f != nil {
		if !reopenLogs {
			err = syncData(l.f)
		}
		l.f.Close()
	}
	l.f = f
	return err
}

// openFile opens the file of this name, which must exist, unless it is open.
func (l *Log) openFile() error {
	id, _, err := statName(l.path)
	if err != nil || l.f != nil && id == l.id {
		return err
	}
	if err := checkOwn(l.path); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|noFollow, 0)
	if err != nil {
		return err
	}
	if err := l.setFile(f); err != nil {
		return err
	}
	l.id, err = idOf(f)
	return err
}

// letGo closes the file where it cannot stay open.
func (l *Log) letGo() error {
	if reopenLogs {
		return l.setFile(nil)
	}
	return nil
}

// Accept records that the owner has seen the gaps and recoveries up to now. It
// returns the number of the last line that this covers.
func (l *Log) Accept(ctx context.Context) (upto int64, err error) {
	err = l.locked(ctx, func() error {
		err := l.fresh()
		upto = l.head.seq
		return err
	})
	if err != nil {
		return 0, l.fail(err)
	}
	return upto, l.Append(ctx, true, Record{Body: acceptRecord{Upto: upto}})
}

// A Line is one line of a log.
type Line struct {
	Seq     int64     `json:"seq"`
	Time    time.Time `json:"ts"`
	Kind    string    `json:"kind"`
	Run     string    `json:"run"`
	Chat    string    `json:"chat"`
	Channel string    `json:"channel"`
	Call    string    `json:"call"`
	Raw     []byte    `json:"-"` // the whole line
}

// Decode reads the kind's own fields into v, a pointer to its record.
func (n Line) Decode(v any) error { return json.Unmarshal(n.Raw, v) }

func parseLine(raw []byte) (Line, error) {
	n := Line{Raw: bytes.Clone(raw)}
	return n, json.Unmarshal(raw, &n)
}

// Update is how a log with an anchor is read and written. Under the lock it
// takes in what was added, calls fn, and appends what that returns, synced; fn
// sees the newest state and nobody changes it meanwhile. If the file is not the
// one that the anchor vouches for, or the records could not be written, the error
// wraps errAudit and nothing of them counts. An error of fn is returned as it is.
func (l *Log) Update(ctx context.Context, fn func() ([]Record, error)) error {
	if err := l.lock.Lock(ctx); err != nil {
		return l.fail(err)
	}
	defer l.lock.Unlock()
	if err := l.catchUp(ctx); err != nil {
		l.known = false
		return l.fail(err)
	}
	recs, err := fn()
	if err != nil || len(recs) == 0 {
		return err
	}
	return l.fail(l.commit(ctx, l.head.off, recs...))
}

// commit appends to a log with an anchor, over what stands after the head up to
// size: first the anchor learns what is coming, then it is written and synced,
// then the anchor learns that it is there.
func (l *Log) commit(ctx context.Context, size int64, recs ...Record) error {
	if l.head.seq == 0 {
		var id [16]byte
		rand.Read(id[:])
		g := genesisRecord{Format: logFormat, Log: hex.EncodeToString(id[:])}
		recs = append([]Record{{Body: g}}, recs...)
	}
	b, h := l.encode(nil, encodeRecords(recs...), time.Now())
	a := l.opt.Anchor
	if err := a.setAnchored(ctx, true, l.head, h); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	err := l.place(b, size)
	if err == nil {
		err = a.setAnchored(ctx, false, h, h)
	}
	if err != nil {
		l.known = false
		return errors.Join(err, os.Truncate(l.path, l.head.off), a.setAnchored(ctx, true, l.head, l.head))
	}
	l.head = h
	for line := range bytes.Lines(b) {
		n, err := parseLine(line)
		if err != nil {
			panic("unreachable: a line of ours does not parse: " + err.Error())
		}
		l.apply(n)
	}
	return l.letGo()
}

// place makes the file if there is none, and puts b there, synced.
func (l *Log) place(b []byte, size int64) error {
	if l.head.seq == 0 && size == 0 {
		if err := makeFile(l.path); err != nil {
			return err
		}
		if err := syncDir(l.dir); err != nil {
			return err
		}
	}
	if err := l.openFile(); err != nil {
		return err
	}
	if err := l.put(b, size); err != nil {
		return err
	}
	return syncData(l.f)
}

// catchUp reads and applies what is new in the file, if its end is the one that
// the anchor knows.
func (l *Log) catchUp(ctx context.Context) error {
	id, size, err := statName(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if l.known && id == l.id && size == l.head.off {
		return nil
	}
	have, next, err := l.opt.Anchor.anchored(ctx)
	if err != nil {
		return err
	}
	if size == 0 && have.seq > 0 {
		return fmt.Errorf("it is gone or empty but had %d lines; %w", have.seq, errDamaged)
	}
	if size == 0 {
		l.id, l.head, l.known = id, mark{}, true
		return nil
	}
	from := l.head
	if !l.known || id != l.id || size < l.head.off {
		from = mark{}
	}
	if err := l.openFile(); err != nil {
		return err
	}
	var lines []Line
	met, seen := from, 0
	end, err := readLinked(l.f, from, size, func(m mark, line []byte) {
		n, err := parseLine(line)
		if err != nil {
			n.Kind = "" // of no kind: it does nothing
		}
		if lines = append(lines, n); m.same(have) {
			met, seen = m, len(lines)
		}
	})
	whole := err == nil && end.off == size
	switch {
	case whole && end.same(have):
	case whole && end.same(next):
		if err := l.opt.Anchor.setAnchored(ctx, false, end, end); err != nil {
			return err
		}
	case met.same(have) && (!have.same(next) || err == nil && end.same(have)):
		end, lines = met, lines[:seen] // an append that was not finished, or half a line
	case err != nil:
		return err
	default:
		return fmt.Errorf("its end, line %d, is not the one that %s knows, line %d; %w", end.seq, stateName, have.seq, errDamaged)
	}
	l.head, l.known = end, true
	for _, n := range lines {
		l.apply(n)
	}
	if end.off == size {
		return l.letGo()
	}
	r, err := torn(l.f, end.off, size)
	if err != nil {
		return err
	}
	return l.commit(ctx, size, r)
}

func (l *Log) apply(n Line) {
	if l.opt.Apply != nil {
		l.opt.Apply(n)
	}
}
