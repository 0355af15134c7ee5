package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// Outcomes of verifying, also the exit codes of "picket audit verify".
const (
	auditProven     = 0 // every line is linked up to the one that the state knows
	auditTampered   = 1 // a line is not what was written
	auditIncomplete = 2 // nothing was found changed, but not all can be vouched for
	auditUnaccepted = 3 // a gap or a recovery that the owner has not accepted yet
)

// auditReport is the outcome of verifying.
type auditReport struct {
	Status int          `json:"status"` // the worst of the files
	Files  []fileReport `json:"files"`
}

// fileReport is about one log. Line, where it is not 0, is the one at fault.
type fileReport struct {
	File   string `json:"file"`
	Status int    `json:"status"`
	What   string `json:"what"`
	Lines  int64  `json:"lines"` // whole ones that were read
	Head   string `json:"head"`  // hash of the last of them

	Line     int64  `json:"line,omitempty"`
	Want     string `json:"want,omitempty"` // the hash that the line has to have, or prev
	Have     string `json:"have,omitempty"`
	Accepted int64  `json:"accepted,omitempty"` // what the owner has accepted, up to this line

	Shown []shownLine `json:"shown,omitempty"` // the lines on both sides of the fault
}

type shownLine struct {
	Line int64  `json:"line"`
	Text string `json:"text"`
}

// verifyLog checks the logs in the data folder against themselves and against
// the state. It writes nothing. An error means that a file could not be read.
func verifyLog(dir string) (auditReport, error) {
	var r auditReport
	for _, name := range []string{auditName, approvalsName} {
		f, err := verifyFile(dir, name)
		if err != nil {
			return r, err
		}
		if f != nil {
			r.Files = append(r.Files, *f)
			if r.Status == auditProven || f.Status != auditProven && f.Status < r.Status {
				r.Status = f.Status
			}
		}
	}
	return r, nil
}

// print writes the report for people; safe makes text fit to be shown.
func (r auditReport) print(w io.Writer, safe func(string) string) {
	for _, f := range r.Files {
		fmt.Fprintf(w, "%s: %s\n", f.File, f.What)
		if f.Line == 0 {
			continue
		}
		fmt.Fprintf(w, "  line %d\n", f.Line)
		if f.Want+f.Have != "" {
			fmt.Fprintf(w, "  want hash %s\n  have hash %s\n", safe(f.Want), safe(f.Have))
		}
		for _, s := range f.Shown {
			fmt.Fprintf(w, "  line %d: %s\n", s.Line, safe(s.Text))
		}
	}
}

// A logView is one look at a log and its state that belong together.
type logView struct {
	f       *os.File // nil if there is none
	size    int64
	st      auditState
	stErr   error
	anchors []mark // ends that the state vouches for
}

// look opens a log for reading. It waits for writers to be done, if they let it,
// through a lock file that is only read.
func look(dir, name string) (v logView, err error) {
	locks := []string{auditName}
	if name != auditName {
		locks = []string{name, auditName} // in the order of those who write
	}
	for _, n := range locks {
		k, err := os.Open(lockName(dir, n))
		if err != nil {
			continue
		}
		defer k.Close()
		for end := time.Now().Add(lockWait); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if ok, err := tryLockShared(k); ok || err != nil {
				break
			}
		}
	}
	if s, err := os.Open(filepath.Join(dir, stateName)); err != nil {
		v.stErr = err
	} else {
		v.st, v.stErr = readState(s)
		s.Close()
	}
	if name == auditName {
		v.anchors = []mark{v.st.Head.mark()}
	} else {
		v.anchors = []mark{v.st.Approvals.mark(), v.st.Pending.mark()}
	}
	v.f, err = os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	fi, err := v.f.Stat()
	if err != nil {
		v.f.Close()
		return v, err
	}
	v.size = fi.Size()
	return v, nil
}

// behind reports whether all that is wrong is that the state does not know the
// last lines yet.
func (v logView) behind() bool {
	known := v.st.Head.mark()
	if v.f == nil || v.stErr != nil || !endsAt(v.f, known, v.size) {
		return false
	}
	h, err := readLinked(v.f, known, v.size, nil)
	return err == nil && h.off == v.size && h.off > known.off
}

// verifyFile checks one log; nil means that there is none and need not be one.
func verifyFile(dir, name string) (*fileReport, error) {
	v, err := look(dir, name)
	if err == nil && name == auditName && v.behind() {
		// A process that is alive moves the state on within a second: what is
		// there now is looked at once the state knows it.
		first := v.size
		for end := time.Now().Add(4 * flushDelay); err == nil && first > v.st.Head.Off && time.Now().Before(end); {
			time.Sleep(flushDelay / 10)
			v.f.Close()
			v, err = look(dir, name)
		}
		if first <= v.st.Head.Off {
			v.size = min(v.size, v.st.Head.Off)
		}
	}
	if err != nil {
		return nil, err
	}
	r := &fileReport{File: name}
	known := v.anchors[0]
	if v.f == nil {
		if known.seq == 0 {
			if name == auditName && v.stErr == nil {
				r.Status, r.What = auditIncomplete, "it has not been begun"
				return r, nil
			}
			return nil, nil
		}
		r.Status, r.What = auditIncomplete, fmt.Sprintf("it is gone, but had %d lines", known.seq)
		return r, nil
	}
	defer v.f.Close()
	c := newChain(v.anchors)
	if err := c.readAll(v.f, v.size); err != nil {
		return nil, err
	}
	if c.bad {
		return r, diagnose(v, r)
	}
	r.Lines, r.Head = c.end.seq, hex.EncodeToString(c.end.hash[:])
	return r, conclude(v, c, r)
}

// conclude says what an unbroken chain is worth.
func conclude(v logView, c *chain, r *fileReport) error {
	known := v.anchors[0]
	rest := v.size - c.end.off
	for i, m := range v.anchors {
		if m.seq > 0 && c.met[i] == metOther {
			return diagnose(v, r)
		}
	}
	var g genesisRecord
	if r.File == auditName && v.stErr == nil && c.end.seq > 0 {
		if err := firstLine(v.f, &g); err != nil || g.Log != hex.EncodeToString(v.st.Log[:]) {
			r.Status, r.Line = auditTampered, 1
			r.What = fmt.Sprintf("the log is not the one that %s belongs to", stateName)
			r.Want, r.Have = hex.EncodeToString(v.st.Log[:]), g.Log
			return nil
		}
	}
	r.Accepted = c.accepted
	last := v.anchors[len(v.anchors)-1]
	switch {
	case v.stErr != nil:
		r.Status = auditIncomplete
		r.What = fmt.Sprintf("%d lines are linked, but %s cannot be read, so that nothing vouches for the end: %v", r.Lines, stateName, v.stErr)
	case c.end.seq < known.seq && known.off > 0 && v.size >= known.off:
		// Nothing is missing, so that a newline is no newline any more: that of
		// the last line, or the one before it.
		r.Status, r.Line = auditTampered, c.end.seq+1
		from := c.end.off
		if rest == 0 {
			r.Line, from = c.end.seq, max(0, v.size-excerptMax)
		}
		r.What = fmt.Sprintf("line %d has no end of its own", r.Line)
		r.Want, r.Have = hex.EncodeToString(known.hash[:]), r.Head
		r.Shown = []shownLine{{r.Line, excerpt(v.f, from, v.size)}}
	case c.end.seq < known.seq:
		r.Status, r.Line = auditIncomplete, c.end.seq+1
		r.What = fmt.Sprintf("the end was cut off: it has %d whole lines, but had %d", r.Lines, known.seq)
		r.Want = hex.EncodeToString(known.hash[:])
	case rest > 0:
		r.Status, r.Line = auditIncomplete, c.end.seq+1
		r.What = "the last line was not finished; picket saves and cuts it when it starts"
		r.Shown = []shownLine{{r.Line, excerpt(v.f, c.end.off, v.size)}}
	case r.File == auditName && c.end.seq > known.seq:
		r.Status, r.Line = auditIncomplete, known.seq+1
		r.What = fmt.Sprintf("the last %d lines are linked, but %s does not know them yet: a process was killed, or they were added by another; picket takes them in when it starts", c.end.seq-known.seq, stateName)
	case r.File != auditName && c.end.seq != known.seq && c.end.seq < last.seq:
		r.Status, r.Line = auditIncomplete, known.seq+1
		r.What = "an append was not finished; picket saves and cuts it when it starts"
	case r.File != auditName && c.end.seq > max(known.seq, last.seq):
		r.Status, r.Line = auditTampered, max(known.seq, last.seq)+1
		r.What = fmt.Sprintf("it has lines that picket did not write, from line %d on", r.Line)
	case r.File == auditName && c.open > c.accepted:
		r.Status, r.Line = auditUnaccepted, c.open
		r.What = fmt.Sprintf("%d lines are linked, but line %d tells of a gap or of a recovery after a crash: \"picket audit accept\" says that it is known", r.Lines, c.open)
	default:
		r.What = fmt.Sprintf("%d lines, proven", r.Lines)
	}
	return nil
}

const excerptMax = 4 << 10

// excerpt is the beginning of a piece of a file.
func excerpt(f io.ReaderAt, from, to int64) string {
	b := make([]byte, min(to-from, excerptMax))
	n, _ := f.ReadAt(b, from)
	return string(b[:n])
}

// How a line that the state knows was found.
const (
	metNot   = iota // the file ends before
	metSame         // with the hash that it has to have
	metOther        // with another one
)

// A chain is what is known after reading some blocks of lines.
type chain struct {
	anchors  []mark
	met      []int
	end      mark
	open     int64 // the last gap or recovery
	accepted int64 // what the owner has accepted
	bad      bool
}

func newChain(anchors []mark) *chain {
	return &chain{anchors: anchors, met: make([]int, len(anchors))}
}

// A block is a run of whole lines, and what reading them alone says: whether
// they are linked among themselves, and what they have to be linked to.
type block struct {
	buf   []byte
	first int64
	prev  [64]byte
	chain
	done chan struct{}
}

const blockSize = 1 << 20

// readAll reads the file once, in blocks that several goroutines hash. It stops
// at the first block with a fault.
func (c *chain) readAll(f io.ReaderAt, size int64) error {
	workers := runtime.GOMAXPROCS(0)
	free := make(chan *block, workers+2)
	for range cap(free) {
		free <- &block{buf: make([]byte, 0, min(size, blockSize))}
	}
	work, ordered := make(chan *block, cap(free)), make(chan *block, cap(free))
	for range workers {
		go func() {
			for b := range work {
				b.read(c.anchors)
				close(b.done)
			}
		}()
	}
	var readErr error
	stop := make(chan struct{})
	go func() {
		defer close(ordered)
		defer close(work)
		var carry []byte
		for off := int64(0); off < size; {
			var b *block
			select {
			case b = <-free:
			case <-stop:
				return
			}
			b.buf = append(b.buf[:0], carry...)
			n := min(int64(cap(b.buf)-len(b.buf)), size-off)
			part := b.buf[len(b.buf) : len(b.buf)+int(n)]
			if _, err := f.ReadAt(part, off); err != nil {
				readErr = err // also io.EOF: it was longer just now
				return
			}
			off += n
			b.buf = b.buf[:len(b.buf)+int(n)]
			cut := bytes.LastIndexByte(b.buf, '\n') + 1
			carry = append(carry[:0], b.buf[cut:]...)
			if b.buf = b.buf[:cut]; len(carry) > 2*maxLine {
				carry = carry[:0]
				b.buf = append(b.buf, '\n') // a line that is too long: not one of ours
				off = size
			}
			b.done = make(chan struct{})
			work <- b
			ordered <- b
		}
	}()
	defer close(stop)
	for b := range ordered {
		<-b.done
		if !c.bad {
			c.join(b)
		}
		if c.bad {
			return nil
		}
		free <- b
	}
	return readErr
}

// read checks a block by itself.
func (b *block) read(anchors []mark) {
	b.chain = chain{anchors: anchors, met: make([]int, len(anchors))}
	var want [64]byte
	for rest := b.buf; len(rest) > 0; {
		n := bytes.IndexByte(rest, '\n')
		line := rest[:n]
		rest = rest[n+1:]
		prev, seq, kind, ok := lineHead(line)
		if !ok || len(line) >= maxLine {
			b.bad = true
			return
		}
		m := b.end
		if m.seq == 0 {
			b.first = seq
			copy(b.prev[:], prev)
			m.seq = seq - 1
		} else if string(prev) != string(want[:]) {
			b.bad = true
			return
		}
		if seq != m.seq+1 || (seq == 1) != (len(prev) == 0) || (seq == 1) != (string(kind) == "genesis") {
			b.bad = true
			return
		}
		b.end = mark{seq, sha256.Sum256(line), m.off + int64(n) + 1}
		hex.Encode(want[:], b.end.hash[:])
		for i, a := range anchors {
			if seq == a.seq {
				b.met[i] = metOther
				if a.hash == b.end.hash {
					b.met[i] = metSame
				}
			}
		}
		b.note(kind, line)
	}
}

// note keeps what a gap, a recovery or an acceptance says.
func (c *chain) note(kind, line []byte) {
	switch string(kind) {
	case "gap", "recovered":
		c.open = c.end.seq
	case "accept":
		var a acceptRecord
		if json.Unmarshal(line, &a) == nil && a.Upto < c.end.seq {
			c.accepted = max(c.accepted, a.Upto)
		}
	}
}

// join puts the next block at the end of the chain.
func (c *chain) join(b *block) {
	if len(b.buf) == 0 {
		return
	}
	var want [64]byte
	hex.Encode(want[:], c.end.hash[:])
	if b.bad || b.first != c.end.seq+1 || c.end.seq > 0 && b.prev != want {
		c.bad = true
		return
	}
	off := c.end.off
	c.end = b.end
	c.end.off += off
	for i, m := range b.met {
		c.met[i] = max(c.met[i], m)
	}
	c.open, c.accepted = max(c.open, b.open), max(c.accepted, b.accepted)
}

// diagnose reads a log that has a fault line by line and says which line is at
// fault.
func diagnose(v logView, r *fileReport) error {
	c := newChain(v.anchors)
	var prev, line []byte // the last good line, and the one after
	var m mark
	// after is the last line to be shown; the one before it is shown too.
	fault := func(n int64, what, want, have string, after int64, lines ...[]byte) {
		r.Status, r.Line, r.Want, r.Have = auditTampered, n, want, have
		r.What = fmt.Sprintf("line %d %s", n, what)
		for i, text := range lines {
			if line := after - int64(len(lines)-1-i); line > 0 {
				r.Shown = append(r.Shown, shownLine{line, string(text[:min(len(text), maxField)])})
			}
		}
	}
	var broken []byte // the first line that does not continue, until the one after it is seen
	_, err := scanLines(v.f, 0, v.size, func(l []byte, _ int64) error {
		if broken != nil {
			line = bytes.Clone(l)
			return errUnlinked
		}
		n, err := m.next(l)
		if err != nil {
			broken = bytes.Clone(l)
			return nil
		}
		for _, a := range v.anchors {
			if a.seq == n.seq && a.hash != n.hash {
				fault(n.seq, fmt.Sprintf("is not the one that %s knows", stateName),
					hex.EncodeToString(a.hash[:]), hex.EncodeToString(n.hash[:]), n.seq, prev, l)
				return errUnlinked
			}
		}
		m, prev = n, bytes.Clone(l)
		c.end = n
		_, _, kind, _ := lineHead(l)
		c.note(kind, l)
		return nil
	})
	r.Lines, r.Head = m.seq, hex.EncodeToString(m.hash[:])
	switch {
	case err != nil && !errors.Is(err, errUnlinked):
		return err
	case r.Status != 0:
		return nil
	case broken == nil: // what has no end is longer than a block takes
		return conclude(v, c, r)
	}
	// Either the broken line was changed, or the one before it was: the latter
	// if that is no object any more, or if this one is what the one after it,
	// or the state, says that it is.
	got, seq, _, ok := lineHead(broken)
	own := sha256.Sum256(broken)
	next, _, _, _ := lineHead(line)
	intact := ok && string(next) == hex.EncodeToString(own[:])
	for _, a := range v.anchors {
		intact = intact || ok && a.seq == seq && a.hash == own
	}
	have := hex.EncodeToString(m.hash[:])
	switch {
	case m.seq > 0 && (!json.Valid(prev) || intact && seq == m.seq+1):
		fault(m.seq, "is not the one that the line after it is linked to", string(got), have, m.seq+1, prev, broken)
	case ok && seq != m.seq+1:
		fault(m.seq+1, fmt.Sprintf("has the number %d: lines were taken out, put in or moved", seq), have, string(got), m.seq+1, prev, broken)
	case !ok:
		fault(m.seq+1, "does not have the form of a line", have, "", m.seq+1, prev, broken)
	default:
		fault(m.seq+1, "is not linked to the line before", have, string(got), m.seq+1, prev, broken)
	}
	return nil
}
