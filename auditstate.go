package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// The state beside the log, how a log is found again after a crash, and how one
// that cannot be continued is set aside.

const (
	stateName  = "audit.state"
	stateMagic = "picket audit 1\n\x00"
	slotSize   = 512 // one sector: written whole or not at all
	slotStride = 4096
)

// stateMark is a mark in the state.
type stateMark struct {
	Seq  int64
	Hash [sha256.Size]byte
	Off  int64
}

func (s stateMark) mark() mark { return mark{s.Seq, s.Hash, s.Off} }

func (m mark) stored() stateMark { return stateMark{m.seq, m.hash, m.off} }

// auditState is what a slot holds, after the magic and before its checksum.
type auditState struct {
	Generation uint64
	Log        [16]byte
	Head       stateMark // the last line of audit.jsonl known to be on the disk
	Epoch      uint64    // of Key
	Key, Next  [32]byte  // Ed25519 seeds; Next is zero but while the key changes
	// The last line of approvals.jsonl, and the one that an append under way
	// is about to make the last.
	Approvals, Pending stateMark
	Vault              uint64 // generation of the vault
}

func newState() auditState {
	var st auditState
	rand.Read(st.Log[:])
	rand.Read(st.Key[:])
	return st
}

// public is the public key, in hex.
func (st *auditState) public() string {
	return hex.EncodeToString(ed25519.NewKeyFromSeed(st.Key[:]).Public().(ed25519.PublicKey))
}

func (st *auditState) slot() []byte {
	b, err := binary.Append([]byte(stateMagic), binary.LittleEndian, st)
	if err != nil {
		panic(err) // a fixed-size struct
	}
	b = append(b, make([]byte, slotSize-sha256.Size-len(b))...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// readState returns the newer of the slots that are whole.
func readState(f io.ReaderAt) (auditState, error) {
	var best auditState
	found := false
	for off := int64(0); off <= slotStride; off += slotStride {
		b := make([]byte, slotSize)
		if _, err := f.ReadAt(b, off); err != nil && err != io.EOF {
			return best, err
		}
		body, sum := b[:slotSize-sha256.Size], b[slotSize-sha256.Size:]
		if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) || !bytes.HasPrefix(body, []byte(stateMagic)) {
			continue
		}
		var st auditState
		if _, err := binary.Decode(body[len(stateMagic):], binary.LittleEndian, &st); err != nil {
			return best, err
		}
		if !found || st.Generation > best.Generation {
			best, found = st, true
		}
	}
	if !found {
		return best, fmt.Errorf("%s holds no whole state; %w", stateName, errDamaged)
	}
	return best, nil
}

// writeState puts st into the slot that does not count now.
func writeState(f io.WriterAt, st *auditState) error {
	st.Generation++
	_, err := f.WriteAt(st.slot(), int64(st.Generation%2)*slotStride)
	return err
}

func (l *Log) statePath() string { return filepath.Join(l.dir, stateName) }

// openState opens and reads the state. Under the lock, like all below.
func (l *Log) openState() (auditState, error) {
	if l.state != nil {
		l.state.Close()
		l.state = nil
	}
	if err := checkOwn(l.statePath()); err != nil {
		return auditState{}, err
	}
	f, err := os.OpenFile(l.statePath(), os.O_RDWR|noFollow, 0)
	if err != nil {
		return auditState{}, err
	}
	l.state = f
	return readState(f)
}

// editState changes the state, under the lock of audit.jsonl.
func (l *Log) editState(sync bool, fn func(*auditState) bool) error {
	if _, err := os.Lstat(l.statePath()); err != nil || !linked(l.state) {
		return fmt.Errorf("%s was removed: %w", stateName, errDamaged)
	}
	st, err := readState(l.state)
	if err != nil {
		return err
	}
	if !fn(&st) {
		return nil
	}
	if err := writeState(l.state, &st); err != nil || !sync {
		return err
	}
	return syncData(l.state)
}

// saveHead moves the state to a line that is on the disk, if the log is still
// the same; not back, unless after a gap, since another process may have been
// further.
func (l *Log) saveHead(h mark, id [16]byte, back bool) error {
	err := l.editState(false, func(st *auditState) bool {
		if st.Log != id || st.Head.Seq >= h.seq && !back {
			return false
		}
		st.Head = h.stored()
		return true
	})
	if err != nil {
		l.syncMu.Lock()
		l.doubt = true
		l.syncMu.Unlock()
	}
	return err
}

// anchored returns what the state knows of the end of approvals.jsonl.
func (l *Log) anchored(ctx context.Context) (have, next mark, err error) {
	err = l.locked(ctx, func() error {
		return l.editState(false, func(st *auditState) bool {
			have, next = st.Approvals.mark(), st.Pending.mark()
			return false
		})
	})
	return have, next, err
}

// setAnchored changes it. With sync it is on the disk afterwards.
func (l *Log) setAnchored(ctx context.Context, sync bool, have, next mark) error {
	return l.locked(ctx, func() error {
		return l.editState(sync, func(st *auditState) bool {
			st.Approvals, st.Pending = have.stored(), next.stored()
			return true
		})
	})
}

// lineHead reads prev, seq and kind of a line at their places; ok is false if
// the line does not have the form of one.
func lineHead(line []byte) (prev []byte, seq int64, kind []byte, ok bool) {
	const before, between, after, last = `{"prev":"`, `","seq":`, `,"ts":"`, `","kind":"`
	if len(line) < len(before)+64 || string(line[:len(before)]) != before {
		return nil, 0, nil, false
	}
	line = line[len(before):]
	n := 64
	if line[0] == '"' {
		n = 0
	}
	prev, line = line[:n], line[n:]
	if !bytes.HasPrefix(line, []byte(between)) {
		return nil, 0, nil, false
	}
	line = line[len(between):]
	digits, i := line, 0
	for ; i < len(line) && i < 18 && line[i]-'0' <= 9; i++ {
		seq = seq*10 + int64(line[i]-'0')
	}
	line = line[i:]
	tail := len(after) + len(timeLayout)
	if i == 0 || digits[0] == '0' || len(line) < tail+len(last) || string(line[:len(after)]) != after || string(line[tail:tail+len(last)]) != last {
		return nil, 0, nil, false
	}
	kind, _, ok = bytes.Cut(line[tail+len(last):], []byte(`"`))
	return prev, seq, kind, ok
}

var errUnlinked = errors.New("a line does not continue the one before")

// next returns the mark of a line that continues m.
func (m mark) next(line []byte) (mark, error) {
	prev, seq, kind, ok := lineHead(line)
	var want [64]byte
	hex.Encode(want[:], m.hash[:])
	switch {
	case !ok || len(line) >= maxLine || seq != m.seq+1,
		(seq == 1) != (string(kind) == "genesis"),
		(seq == 1) != (len(prev) == 0),
		seq > 1 && string(prev) != string(want[:]):
		return m, fmt.Errorf("%w: line %d", errUnlinked, m.seq+1)
	}
	return mark{seq, sha256.Sum256(line), m.off + int64(len(line)) + 1}, nil
}

// scanLines calls fn with each whole line, its LF left out, between two offsets
// of a file, and with where it ends; it returns where the last one does. Of a
// line that is much longer than maxLine fn gets the beginning.
func scanLines(r io.ReaderAt, from, to int64, fn func(line []byte, end int64) error) (int64, error) {
	br := bufio.NewReaderSize(io.NewSectionReader(r, from, to-from), 2*maxLine)
	end := from
	for {
		line, err := br.ReadSlice('\n')
		end += int64(len(line))
		if err == bufio.ErrBufferFull {
			line = bytes.Clone(line)
			for err == bufio.ErrBufferFull {
				var more []byte
				more, err = br.ReadSlice('\n')
				end += int64(len(more))
			}
		}
		if err == io.EOF {
			return from, nil
		}
		if err != nil {
			return from, err
		}
		if err := fn(bytes.TrimSuffix(line, []byte("\n")), end); err != nil {
			return from, err
		}
		from = end
	}
}

// readLinked follows the chain from a mark to the end of the file, calls fn for
// each line, and returns the last one.
func readLinked(r io.ReaderAt, m mark, size int64, fn func(mark, []byte)) (mark, error) {
	_, err := scanLines(r, m.off, size, func(line []byte, _ int64) error {
		n, err := m.next(line)
		if err != nil {
			return err
		}
		m = n
		if fn != nil {
			fn(m, line)
		}
		return nil
	})
	if errors.Is(err, errUnlinked) {
		err = fmt.Errorf("%w; %w", err, errDamaged)
	}
	return m, err
}

// readOn takes in what other processes appended.
func (l *Log) readOn(size int64) error {
	if err := l.openFile(); err != nil {
		return err
	}
	h, err := readLinked(l.f, l.head, size, nil)
	if err != nil {
		return err
	}
	l.head = h
	if h.off < size {
		return l.repair(size, false)
	}
	return l.letGo()
}

// attach finds the log's end anew: at the start, and when the file is not the
// one that was there or has become shorter.
func (l *Log) attach() error {
	_, size, err := statName(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	missing := err != nil
	st, err := l.openState()
	if errors.Is(err, fs.ErrNotExist) && size == 0 {
		st = newState()
		slots := append(st.slot(), make([]byte, slotStride)...)
		if err = writeFileAtomic(l.statePath(), slots); err == nil {
			st, err = l.openState()
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is gone; %w", stateName, errDamaged)
	}
	if err != nil {
		return err
	}
	known := st.Head.mark()
	if l.logID == st.Log && l.last.seq > known.seq {
		known = l.last // this process wrote more, and has not synced it yet
	}
	l.logID = st.Log
	if st.Head.Seq > 0 && size == 0 {
		return fmt.Errorf("it is gone or empty but had %d lines; %w", st.Head.Seq, errDamaged)
	}
	l.syncMu.Lock()
	l.doubt = false
	l.syncMu.Unlock()
	if missing {
		if err := makeFile(l.path); err != nil {
			return err
		}
	}
	if err := l.openFile(); err != nil {
		return err
	}
	h, gap, err := l.find(known, size)
	if err != nil {
		return err
	}
	l.head = h
	if h.seq == 0 {
		return l.begin(&st, size)
	}
	var g genesisRecord
	if err := firstLine(l.f, &g); err != nil || g.Log != hex.EncodeToString(st.Log[:]) {
		return fmt.Errorf("%s belongs to another log; %w", stateName, errDamaged)
	}
	if gap != nil {
		return l.repair(size, true, Record{Body: *gap})
	}
	if h.off < size {
		return l.repair(size, false)
	}
	if h.seq == st.Head.Seq && h.off == st.Head.Off {
		return nil
	}
	return l.settle(false)
}

func firstLine(f io.ReaderAt, g *genesisRecord) error {
	b := make([]byte, 4<<10)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return err
	}
	line, _, _ := bytes.Cut(b[:n], []byte("\n"))
	return json.Unmarshal(line, g)
}

// find returns the last line that is linked to the one that the state knows. If
// that one is not there but the log ends well before it, it returns the end and
// a gap.
func (l *Log) find(known mark, size int64) (mark, *gapRecord, error) {
	if !endsAt(l.f, known, size) {
		var last mark
		linked, found := true, false
		_, err := scanLines(l.f, 0, size, func(line []byte, end int64) error {
			n, err := last.next(line)
			if linked = err == nil; !linked {
				_, seq, _, _ := lineHead(line)
				n = mark{seq, sha256.Sum256(line), end}
			}
			if last = n; n.hash == known.hash {
				known, found = n, true
			}
			return nil
		})
		switch {
		case err != nil:
			return last, nil, fmt.Errorf("%w; %w", err, errDamaged)
		case !found && linked && last.seq > 0 && last.seq < known.seq:
			return last, &gapRecord{Have: last.seq, Expected: known.seq}, nil
		case !found:
			return last, nil, fmt.Errorf("line %d is not the one that %s knows; %w", known.seq, stateName, errDamaged)
		}
	}
	h, err := readLinked(l.f, known, size, nil)
	return h, nil, err
}

// endsAt reports whether the line that ends at the mark's place is the mark's.
func endsAt(r io.ReaderAt, m mark, size int64) bool {
	if m.seq == 0 {
		return true
	}
	if m.off > size || m.off < 2 {
		return false
	}
	b := make([]byte, min(m.off, maxLine+1))
	if _, err := r.ReadAt(b, m.off-int64(len(b))); err != nil || b[len(b)-1] != '\n' {
		return false
	}
	b = b[:len(b)-1]
	return sha256.Sum256(b[bytes.LastIndexByte(b, '\n')+1:]) == m.hash
}

// begin writes the first line. What may be in the file is a torn first line.
func (l *Log) begin(st *auditState, size int64) error {
	g := genesisRecord{Format: logFormat, Log: hex.EncodeToString(st.Log[:]), Key: st.public()}
	b, h := l.encode(nil, encodeRecords(Record{Body: g}), time.Now())
	if err := l.put(b, size); err != nil {
		return err
	}
	l.advance(h)
	return l.settle(false)
}

// settle brings the file and its name to the disk, then the state to its end.
func (l *Log) settle(back bool) error {
	if err := l.syncFile(); err != nil {
		return err
	}
	if err := syncDir(l.dir); err != nil {
		return err
	}
	return l.saveHead(l.head, l.logID, back)
}

// torn returns the record that keeps what is in a file after its last line.
func torn(f io.ReaderAt, from, size int64) (Record, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, io.NewSectionReader(f, from, size-from))
	r := recoveredRecord{Bytes: n, Digest: hex.EncodeToString(sum.Sum(nil)), Text: excerpt(f, from, size)}
	return Record{Body: r}, err
}

// repair writes what was found wrong with the end: first what a torn line held,
// if there is one, then recs. The lines go over the torn one, so that there is no
// moment at which its bytes are in neither.
func (l *Log) repair(size int64, back bool, recs ...Record) error {
	if size > l.head.off {
		r, err := torn(l.f, l.head.off, size)
		if err != nil {
			return err
		}
		recs = append([]Record{r}, recs...)
	}
	b, h := l.encode(nil, encodeRecords(recs...), time.Now())
	if err := l.put(b, size); err != nil {
		return err
	}
	l.advance(h)
	return l.settle(back)
}

// restartLog sets a log aside and begins a new one that names it. With an
// anchor it is about approvals.jsonl. It returns the name of the old file, ""
// if there was none. Whatever happens in between, the old file has its old name
// or its new one, and the state fits the new one only.
func restartLog(ctx context.Context, dir string, anchor *Log) (aside string, err error) {
	name := auditName
	if anchor != nil {
		name = approvalsName
	}
	l, err := newLog(dir, name, LogOptions{})
	defer l.release()
	if err != nil {
		return "", l.fail(err)
	}
	err = l.locked(ctx, func() error {
		head, err := lastHash(l.path)
		if err == nil {
			aside = l.name + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000Z")
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		st := newState()
		g := genesisRecord{Format: logFormat, Log: hex.EncodeToString(st.Log[:]), File: aside, Head: head}
		if anchor == nil {
			g.Key = st.public()
		}
		body := encodeRecords(Record{Body: g}, Record{Body: restartRecord{File: aside, Head: head}})
		lines, h := l.encode(nil, body, time.Now())
		fresh := l.path + ".new"
		if err := writeNew(fresh, lines); err != nil {
			return err
		}
		if anchor != nil {
			err = anchor.setAnchored(ctx, true, h, h)
		} else {
			err = l.replaceState(&st, h)
		}
		if err != nil {
			return err
		}
		if aside != "" {
			old := filepath.Join(dir, aside)
			if os.Link(l.path, old) != nil {
				if err := os.Rename(l.path, old); err != nil {
					return err
				}
			}
		}
		if err := os.Rename(fresh, l.path); err != nil {
			return err
		}
		time.Sleep(lately) // so that all others look at the name again
		return syncDir(dir)
	})
	return aside, l.fail(err)
}

// replaceState makes st the state, but keeps what the one before knew of other
// files, if it can be read.
func (l *Log) replaceState(st *auditState, h mark) error {
	old, err := l.openState()
	st.Head = h.stored()
	if err != nil {
		os.Remove(l.statePath())
		return writeFileAtomic(l.statePath(), append(st.slot(), make([]byte, slotStride)...))
	}
	st.Generation, st.Approvals, st.Pending, st.Vault = old.Generation, old.Approvals, old.Pending, old.Vault
	if err := writeState(l.state, st); err != nil {
		return err
	}
	return syncData(l.state)
}

// lastHash is the hash of a file's last whole line, in hex, "" if it has none.
func lastHash(path string) (head string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", err
	}
	_, err = scanLines(f, 0, fi.Size(), func(line []byte, _ int64) error {
		sum := sha256.Sum256(line)
		head = hex.EncodeToString(sum[:])
		return nil
	})
	return head, err
}

// restartLogs sets aside every log that cannot be continued or was changed, and
// begins a new one in its place. It returns the names that the old ones have
// now; none if nothing was wrong.
func restartLogs(ctx context.Context, dir string) (aside []string, err error) {
	again := func(anchor *Log) error {
		old, err := restartLog(ctx, dir, anchor)
		if err == nil && old != "" {
			aside = append(aside, old)
		}
		return err
	}
	changed := func(name string) bool {
		r, err := verifyFile(dir, name)
		return err == nil && r != nil && r.Status == auditTampered
	}
	audit, err := openAudit(dir)
	if errors.Is(err, errDamaged) || err == nil && changed(auditName) {
		if audit != nil {
			audit.Close()
		}
		if err := again(nil); err != nil {
			return aside, err
		}
		audit, err = openAudit(dir)
	}
	if err != nil {
		return aside, err
	}
	defer audit.Close()
	l, err := OpenLog(dir, approvalsName, LogOptions{Anchor: audit})
	if err != nil {
		return aside, err
	}
	defer l.Close()
	err = l.Update(ctx, func() ([]Record, error) { return nil, nil })
	if errors.Is(err, errDamaged) || err == nil && changed(approvalsName) {
		err = again(audit)
	}
	return aside, err
}
