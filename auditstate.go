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
	"strings"
	"time"
)

// The state beside the log, how a log is found again after a crash, and how one
// that cannot be continued is set aside.

// The state has two slots, at 0 and at 4096. The one with the higher generation
// counts and the other one is written next, so that a torn write loses nothing.
const (
	stateName  = "audit.state"
	stateMagic = "picket audit 1\n\x00"
	slotSize   = 512 // one sector: written whole or not at all
	slotStride = 4096
)

// auditState is what a slot holds, after the magic and before its checksum.
type auditState struct {
	Generation uint64
	Log        [16]byte
	Head       mark     // the last line of audit.jsonl known to be on the disk
	Epoch      uint64   // of Key
	Key, Next  [32]byte // Ed25519 seeds; Next is zero but while the key changes
	// The last line of approvals.jsonl, and the one that an append under way
	// is about to make the last.
	Approvals, Pending mark
	Vault              uint64 // generation of the vault
}

// renew makes it the state of a new log.
func (st *auditState) renew() {
	rand.Read(st.Log[:])
	rand.Read(st.Key[:])
	st.Head, st.Epoch, st.Next = mark{}, 0, [32]byte{}
}

func (st *auditState) genesis() genesisRecord {
	key := ed25519.NewKeyFromSeed(st.Key[:]).Public().(ed25519.PublicKey)
	return genesisRecord{Format: logFormat, Log: hex.EncodeToString(st.Log[:]), Key: hex.EncodeToString(key)}
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

// create replaces the file.
func (st *auditState) create(dir string) error {
	st.Generation++
	return writeFileAtomic(filepath.Join(dir, stateName), append(st.slot(), make([]byte, slotStride)...))
}

// readState returns the newer of the slots that are whole.
func readState(f io.ReaderAt) (best auditState, err error) {
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

// stateOf reads the state. It needs no lock: a slot that is half written does not
// count.
func stateOf(dir string) (auditState, error) {
	f, err := os.Open(filepath.Join(dir, stateName))
	if err != nil {
		return auditState{}, err
	}
	defer f.Close()
	return readState(f)
}

// editState changes the state, under the lock of audit.jsonl, unless fn returns
// false. With sync it is on the disk afterwards.
func (l *Log) editState(sync bool, fn func(*auditState) bool) (err error) {
	if l.state == nil || !linked(l.state) {
		l.state.Close()
		if l.state, err = os.OpenFile(filepath.Join(l.dir, stateName), os.O_RDWR|noFollow, 0); err != nil {
			return err
		}
	}
	st, err := readState(l.state)
	if err != nil || !fn(&st) {
		return err
	}
	st.Generation++
	if _, err := l.state.WriteAt(st.slot(), int64(st.Generation%2)*slotStride); err != nil || !sync {
		return err
	}
	return syncData(l.state)
}

// vouch makes the state say which line of approvals.jsonl is the last, and which
// one may be.
func (l *Log) vouch(ctx context.Context, sync bool, have, next mark) error {
	return l.opt.Anchor.locked(ctx, func(context.Context) error {
		return l.opt.Anchor.editState(sync, func(st *auditState) bool {
			st.Approvals, st.Pending = have, next
			return true
		})
	})
}

// knowVault makes the state know the generation of the vault that is in force.
func (l *Log) knowVault(ctx context.Context, generation uint64) error {
	return l.fail(l.locked(ctx, func(context.Context) error {
		return l.editState(true, func(st *auditState) bool {
			newer := generation > st.Vault
			st.Vault = max(st.Vault, generation)
			return newer
		})
	}))
}

// lineHead reads prev, seq and kind of a line at their places; ok is false if
// the line does not have the form of one.
func lineHead(line []byte) (prev []byte, seq int64, kind []byte, ok bool) {
	line, ok = bytes.CutPrefix(line, []byte(`{"prev":"`))
	if n := bytes.IndexByte(line, '"'); ok && (n == 0 || n == 64) {
		prev, line = line[:n], line[n:]
		line, ok = bytes.CutPrefix(line, []byte(`","seq":`))
		n = 0
		for ; n < len(line) && n < 18 && line[n]-'0' <= 9; n++ {
			seq = seq*10 + int64(line[n]-'0')
		}
		if ok && n > 0 && line[0] != '0' {
			line, ok = bytes.CutPrefix(line[n:], []byte(`,"ts":"`))
			if n = len(timeLayout); ok && len(line) > n {
				line, ok = bytes.CutPrefix(line[n:], []byte(`","kind":"`))
				if n = bytes.IndexByte(line, '"'); ok && n >= 0 {
					return prev, seq, line[:n], true
				}
			}
		}
	}
	return nil, 0, nil, false
}

// next returns the mark of a line, given with its LF, that continues m.
func (m mark) next(line []byte) (next mark, kind []byte, ok bool) {
	prev, seq, kind, ok := lineHead(line)
	var want [64]byte
	hex.Encode(want[:], m.Hash[:])
	n := len(line) - 1
	if !ok || n >= maxLine || line[n] != '\n' || seq != m.Seq+1 || (seq == 1) != (string(kind) == "genesis") ||
		(seq == 1) != (len(prev) == 0) || seq > 1 && string(prev) != string(want[:]) {
		return m, nil, false
	}
	return mark{seq, sha256.Sum256(line[:n]), m.Off + int64(len(line))}, kind, true
}

// scanLines calls fn with each line between two offsets of a file, and with
// where it ends. A line has its LF; what follows the last one comes at the end.
// Of a line that is much longer than maxLine fn gets the beginning.
func scanLines(r io.ReaderAt, from, to int64, fn func(line []byte, end int64) error) error {
	br := bufio.NewReaderSize(io.NewSectionReader(r, from, to-from), 2*maxLine)
	for {
		line, err := br.ReadSlice('\n')
		from += int64(len(line))
		if err == bufio.ErrBufferFull {
			line = bytes.Clone(line)
			for err == bufio.ErrBufferFull {
				var more []byte
				more, err = br.ReadSlice('\n')
				from += int64(len(more))
			}
			if err == nil {
				line = append(line, '\n')
			}
		}
		if err != nil && err != io.EOF {
			return err
		}
		if len(line) > 0 {
			if err := fn(line, from); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

// readLinked follows the chain from a mark to the end of the file, calls fn for
// each line, and returns the last one.
func readLinked(r io.ReaderAt, m mark, size int64, fn func(mark, []byte)) (mark, error) {
	err := scanLines(r, m.Off, size, func(line []byte, end int64) error {
		next, _, ok := m.next(line)
		if ok {
			if m = next; fn != nil {
				fn(m, line)
			}
		} else if end < size || line[len(line)-1] == '\n' {
			return fmt.Errorf("line %d does not continue the one before; %w", m.Seq+1, errDamaged)
		}
		return nil
	})
	return m, err
}

// catchUp finds the end of the file again, takes in what is new before it, and
// records what is wrong with it. goesOn says that the head is still in the file.
func (l *Log) catchUp(ctx context.Context, size int64, goesOn bool) error {
	audit := l.opt.Anchor == nil
	st, err := stateOf(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; %w", err, errDamaged)
		if audit && size == 0 {
			st.renew()
			err = st.create(l.dir)
		}
	}
	if err == nil {
		err = checkOwn(filepath.Join(l.dir, stateName))
	}
	have, from := st.Approvals, l.head
	if audit {
		have = st.Head
	} else if !goesOn {
		from = mark{}
	}
	if err == nil && size == 0 && have.Seq > 0 {
		err = fmt.Errorf("it is gone or empty but had %d lines; %w", have.Seq, errDamaged)
	}
	if err == nil && size > 0 {
		err = l.open(0)
	}
	if err != nil {
		return err
	}
	var recs []Record
	head := mark{}
	if audit {
		if l.logID != st.Log || from.Seq < have.Seq { // else this process knows of more
			from = have
		}
		l.logID = st.Log
		head, err = find(l.f, from, size)
		if err == nil && head.Seq > 0 && genesisLog(l.f, size) != hex.EncodeToString(st.Log[:]) {
			err = fmt.Errorf("%s belongs to another log; %w", stateName, errDamaged)
		}
	} else {
		head, err = l.believed(from, have, st.Pending, size)
	}
	if err != nil {
		return err
	}
	if l.head = head; head.Seq == 0 {
		if !audit {
			st.renew()
		}
		if l.genesis = st.genesis(); !audit {
			l.genesis.Key = ""
		}
	}
	if size > head.Off {
		sum := sha256.New()
		n, err := io.Copy(sum, io.NewSectionReader(l.f, head.Off, size-head.Off))
		if err != nil {
			return err
		}
		recs = append(recs, Record{Body: recoveredRecord{n, hex.EncodeToString(sum.Sum(nil)), excerpt(l.f, head.Off, size)}})
	}
	gap := audit && head.Seq < from.Seq
	if gap {
		recs = append(recs, Record{Body: gapRecord{Have: head.Seq, Expected: from.Seq}})
	}
	if l.known = true; len(recs) > 0 || audit && head.Seq == 0 {
		err = l.add(ctx, size, recs...)
	} else if audit && head.Seq > have.Seq {
		l.changed()
	}
	if err != nil || !gap {
		return err
	}
	if err := syncData(l.f); err != nil {
		return err
	}
	return l.editState(true, func(st *auditState) bool { st.Head = l.head; return true })
}

// find returns the last line of audit.jsonl that is linked to the one that is
// known. If that one is not there but the log ends well before it, that end.
func find(f io.ReaderAt, known mark, size int64) (mark, error) {
	if !endsAt(f, known, size) {
		found := false // elsewhere, after a change to the lines before it
		err := scanLines(f, 0, size, func(line []byte, end int64) error {
			if sha256.Sum256(bytes.TrimSuffix(line, []byte("\n"))) == known.Hash {
				found, known.Off = true, end
			}
			return nil
		})
		if err != nil {
			return mark{}, err
		}
		if !found {
			end, err := readLinked(f, mark{}, size, nil)
			if err == nil && (end.Seq == 0 || end.Seq >= known.Seq) {
				err = fmt.Errorf("line %d is not the one that %s knows; %w", known.Seq, stateName, errDamaged)
			}
			return end, err
		}
	}
	return readLinked(f, known, size, nil)
}

// genesisLog is the name that the first line gives the log.
func genesisLog(f io.ReaderAt, size int64) string {
	var g genesisRecord
	line, _, _ := strings.Cut(excerpt(f, 0, size), "\n")
	json.Unmarshal([]byte(line), &g) // else it has none
	return g.Log
}

// endsAt reports whether the line that ends at the mark's place is the mark's.
func endsAt(r io.ReaderAt, m mark, size int64) bool {
	if m.Seq == 0 || m.Off > size || m.Off < 2 {
		return m.Seq == 0
	}
	b := make([]byte, min(m.Off, maxLine+1))
	if _, err := r.ReadAt(b, m.Off-int64(len(b))); err != nil || b[len(b)-1] != '\n' {
		return false
	}
	b = b[:len(b)-1]
	return sha256.Sum256(b[bytes.LastIndexByte(b, '\n')+1:]) == m.Hash
}

// believed reads approvals.jsonl on from a mark and applies its lines, up to the
// end that the state vouches for: have, or next if there is one. What an append
// that was not finished left does not count.
func (l *Log) believed(from, have, next mark, size int64) (mark, error) {
	var lines [][]byte
	met, seen := from, 0
	end, err := readLinked(l.f, from, size, func(m mark, line []byte) {
		if lines = append(lines, bytes.Clone(line)); m.same(have) {
			met, seen = m, len(lines)
		}
	})
	switch {
	case err == nil && (end.same(have) || end.same(next)):
	case met.same(have) && !have.same(next):
		end, lines = met, lines[:seen]
	case err == nil:
		err = fmt.Errorf("its end, line %d, is not the one that %s knows, line %d; %w", end.Seq, stateName, have.Seq, errDamaged)
		fallthrough
	default:
		return end, err
	}
	for _, line := range lines {
		l.apply(line)
	}
	return end, nil
}

const excerptMax = 4 << 10

// excerpt is the beginning of a piece of a file.
func excerpt(f io.ReaderAt, from, to int64) string {
	b := make([]byte, min(to-from, excerptMax))
	n, _ := f.ReadAt(b, from)
	return string(b[:n])
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
	l, err := newLog(dir, name, LogOptions{Anchor: anchor})
	if err != nil {
		return "", l.fail(err)
	}
	defer l.lock.Close()
	err = l.locked(ctx, func(ctx context.Context) error {
		var head, old string
		err := lastHash(l.path, &head)
		if err == nil {
			aside = l.name + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000Z")
			old = filepath.Join(dir, aside)
			syncLog(nil, l.path) // as well as it can be
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		st, _ := stateOf(dir) // what it knows of other files, if anything
		st.renew()
		g := st.genesis()
		if g.File, g.Head = aside, head; anchor != nil {
			g.Key = ""
		}
		h := l.enc.lines(mark{}, time.Now(), Record{Body: g}, Record{Body: restartRecord{File: aside, Head: head}})
		fresh := l.path + ".new"
		if err := writeNew(fresh, l.enc.b); err != nil {
			return err
		}
		if anchor != nil {
			err = l.vouch(ctx, true, h, h)
		} else {
			st.Head = h
			err = st.create(dir)
		}
		if err == nil && aside != "" && os.Link(l.path, old) != nil {
			err = os.Rename(l.path, old) // no links here
		}
		if err == nil {
			err = os.Rename(fresh, l.path)
		}
		time.Sleep(lately) // so that all others look at the name again
		return errors.Join(err, syncDir(dir))
	})
	return aside, l.fail(err)
}

// lastHash returns the hash of a file's last whole line, in hex, "" if it has none.
func lastHash(path string, head *string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return scanLines(f, 0, fi.Size(), func(line []byte, _ int64) error {
		if line, ok := bytes.CutSuffix(line, []byte("\n")); ok {
			*head = fmt.Sprintf("%x", sha256.Sum256(line))
		}
		return nil
	})
}

// restartLogs sets aside every log that cannot be continued or was changed, and
// begins a new one in its place. It returns the names that the old ones have
// now; none if nothing was wrong.
func restartLogs(ctx context.Context, dir string) (aside []string, err error) {
	// mend calls use, which opens a log, and again after a restart if need be.
	mend := func(name string, anchor *Log, use func() error) error {
		err := use()
		if err == nil {
			if r, verr := verifyFile(dir, name); verr != nil || r == nil || r.Status != auditTampered {
				return verr
			}
		} else if !errors.Is(err, errDamaged) {
			return err
		}
		old, err := restartLog(ctx, dir, anchor)
		if old != "" {
			aside = append(aside, old)
		}
		if err != nil {
			return err
		}
		return use()
	}
	var audit *Log
	err = mend(auditName, nil, func() (err error) {
		audit, err = openAudit(dir)
		return err
	})
	if err != nil {
		return aside, err
	}
	defer audit.Close()
	l, err := OpenLog(dir, approvalsName, LogOptions{Anchor: audit})
	if err != nil {
		return aside, err
	}
	defer l.Close()
	err = mend(approvalsName, audit, func() error {
		return l.Update(ctx, func() ([]Record, error) { return nil, nil })
	})
	return aside, err
}
