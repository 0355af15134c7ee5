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
	"sync"
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
		if f.Want+f.Have != "" {
			fmt.Fprintf(w, "  want hash %s\n  have hash %s\n", safe(f.Want), safe(f.Have))
		}
		for _, s := range f.Shown {
			fmt.Fprintf(w, "  line %d: %s\n", s.Line, safe(s.Text))
		}
	}
}

// A logView is one look at a log and at the state, of the same moment.
type logView struct {
	f          *os.File // nil if there is none
	size       int64
	stErr      error
	log        string
	have, next mark // the ends that the state vouches for; next is have but during an append
}

// look opens a log for reading. It needs no lock: the state has a new generation
// if what it says of the end has changed meanwhile.
func look(dir, name string) (v logView, err error) {
	for range 1000 {
		before, _ := stateOf(dir)
		if v.f, err = os.Open(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return v, err
		}
		v.size = 0
		if v.f != nil {
			if v.size, err = v.f.Seek(0, io.SeekEnd); err != nil {
				v.f.Close()
				return v, err
			}
		}
		st, err := stateOf(dir)
		v.log = hex.EncodeToString(st.Log[:])
		if v.have, v.next, v.stErr = st.Head, st.Head, err; name != auditName {
			v.have, v.next = st.Approvals, st.Pending
		}
		if before.Generation == st.Generation {
			return v, nil
		}
		v.f.Close()
	}
	return v, fmt.Errorf("%s changes too fast", stateName)
}

// verifyFile checks one log; nil means that there is none and need not be one.
func verifyFile(dir, name string) (*fileReport, error) {
	v, err := look(dir, name)
	// A process that is alive moves the state on within a second: what is there
	// now is looked at once the state knows it.
	first := v.size
	for end := time.Now().Add(2 * flushDelay); err == nil && first > v.have.Off && time.Now().Before(end); {
		time.Sleep(flushDelay / 20)
		v.f.Close()
		v, err = look(dir, name)
	}
	if err != nil {
		return nil, err
	}
	if first <= v.have.Off {
		v.size = min(v.size, v.have.Off)
	}
	if v.f == nil && v.have.Seq == 0 {
		return nil, nil
	}
	defer v.f.Close()
	r := &fileReport{File: name}
	var c chain
	if err := c.readAll(v); err != nil {
		return nil, err
	}
	if c.bad {
		if c, err = r.diagnose(v); err != nil {
			return nil, err
		}
	}
	if r.Lines, r.Head, r.Accepted = c.end.Seq, hex.EncodeToString(c.end.Hash[:]), c.accepted; r.Status == auditProven {
		r.conclude(v, c)
	}
	return r, nil
}

// conclude says what an unbroken chain is worth.
func (r *fileReport) conclude(v logView, c chain) {
	say := func(status int, line int64, format string, a ...any) {
		r.Status, r.Line, r.What = status, line, fmt.Sprintf(format, a...)
	}
	end, rest, last := c.end.Seq, v.size-c.end.Off, max(v.have.Seq, v.next.Seq)
	switch {
	case v.stErr != nil:
		say(auditIncomplete, 0, "%d lines are linked, but nothing vouches for the end: %v", end, v.stErr)
	case end > 0 && r.File == auditName && genesisLog(v.f, v.size) != v.log:
		say(auditTampered, 1, "%s belongs to another log", stateName)
	case end < v.have.Seq && v.size >= v.have.Off:
		// Nothing is missing, so that a newline is no newline any more: that of
		// the last line, or the one before it.
		n, from := end, max(0, v.size-excerptMax)
		if rest > 0 {
			n, from = end+1, c.end.Off
		}
		say(auditTampered, n, "line %d has no end of its own", n)
		r.Want, r.Have, r.Shown = hex.EncodeToString(v.have.Hash[:]), r.Head, []shownLine{{n, excerpt(v.f, from, v.size)}}
	case end < v.have.Seq:
		say(auditIncomplete, end+1, "the end was cut off: it has %d whole lines, but had %d", end, v.have.Seq)
	case rest > 0:
		say(auditIncomplete, end+1, "line %d was not finished; picket saves what there is when it starts", end+1)
		r.Shown = []shownLine{{end + 1, excerpt(v.f, c.end.Off, v.size)}}
	case end > last && r.File != auditName:
		say(auditTampered, last+1, "it has lines that picket did not write, the first after line %d", last)
	case end > v.have.Seq && end != v.next.Seq:
		say(auditIncomplete, v.have.Seq+1, "%s does not know the last %d lines: a process was killed, or somebody added them; "+
			"picket sees to it when it starts", stateName, end-v.have.Seq)
	case c.open > c.accepted && r.File == auditName:
		say(auditUnaccepted, c.open, "%d lines are linked, but line %d tells of a gap or of a recovery after a crash: "+
			"\"picket audit accept\" says that it is known", end, c.open)
	default:
		say(auditProven, 0, "%d lines, proven", end)
	}
}

// A chain is what is known after reading some lines.
type chain struct {
	end      mark
	open     int64 // the last gap or recovery
	accepted int64 // what the owner has accepted
	bad      bool  // some line cannot follow
}

// add takes in the next line. It returns false, and changes nothing, if that one
// is not linked to the end or is another one than the state knows.
func (c *chain) add(line []byte, v logView) bool {
	m, kind, ok := c.end.next(line)
	if !ok || m.Seq == v.have.Seq && m.Hash != v.have.Hash || m.Seq == v.next.Seq && m.Hash != v.next.Hash {
		return false
	}
	c.end = m
	switch string(kind) {
	case "gap", "recovered":
		c.open = m.Seq
	case "accept":
		var a acceptRecord
		if json.Unmarshal(line, &a) == nil && a.Upto < m.Seq {
			c.accepted = max(c.accepted, a.Upto)
		}
	}
	return true
}

const blockSize = 1 << 20

// A block is the lines that begin within a piece of a file, read before it is
// known what they have to be linked to.
type block struct {
	buf  []byte
	from mark // what the first line says
	chain
	err error
}

// readAll reads a log in blocks, some at once, up to the first one with a fault.
func (c *chain) readAll(v logView) error {
	blocks := make([]block, min(runtime.GOMAXPROCS(0), 8))
	for at := int64(0); at < v.size; at += int64(len(blocks)) * blockSize {
		var wg sync.WaitGroup
		for i := range blocks {
			wg.Go(func() { blocks[i].read(v, at+int64(i)*blockSize) })
		}
		wg.Wait()
		for _, b := range blocks {
			switch {
			case b.err != nil:
				return b.err
			case b.bad || b.end.Seq > 0 && b.from != c.end:
				c.bad = true
				return nil
			case b.end.Seq > 0:
				c.end, c.open, c.accepted = b.end, max(c.open, b.open), max(c.accepted, b.accepted)
			}
		}
	}
	return nil
}

func (b *block) read(v logView, at int64) {
	b.from, b.chain, b.err = mark{}, chain{}, nil
	if at >= v.size {
		return
	}
	start := max(0, at-1) // a line begins after an LF
	n := min(blockSize+maxLine, v.size-start)
	if b.buf == nil {
		b.buf = make([]byte, min(blockSize+maxLine, v.size))
	}
	rest := b.buf[:n]
	if _, b.err = v.f.ReadAt(rest, start); b.err != nil {
		return // also io.EOF: it was longer just now
	}
	if at > 0 {
		i := bytes.IndexByte(rest, '\n') + 1
		if i == 0 {
			return
		}
		rest = rest[i:]
	}
	for {
		pos := start + n - int64(len(rest))
		i := bytes.IndexByte(rest, '\n') + 1
		if i == 0 || pos >= at+blockSize {
			b.bad = i == 0 && pos < at+blockSize && start+n < v.size // it is too long
			return
		}
		if b.end.Seq == 0 {
			prev, seq, _, _ := lineHead(rest[:i])
			b.from = mark{Seq: seq - 1, Off: pos}
			hex.Decode(b.from.Hash[:], prev)
			b.end = b.from
		}
		if !b.add(rest[:i], v) {
			b.bad = true
			return
		}
		rest = rest[i:]
	}
}

// diagnose reads a log that has a fault line by line and says which line is at
// fault, if there is one; it returns what comes before.
func (r *fileReport) diagnose(v logView) (c chain, err error) {
	var last, odd, after []byte // the last good line, the one that cannot follow, and the one after
	err = scanLines(v.f, 0, v.size, func(line []byte, end int64) error {
		switch {
		case odd != nil:
			after = bytes.Clone(line)
			return io.EOF
		case c.add(line, v):
			last = append(last[:0], line...)
		case end < v.size || line[len(line)-1] == '\n': // else it was not finished
			odd = bytes.Clone(line)
		}
		return nil
	})
	if err != nil && err != io.EOF || odd == nil {
		return c, err
	}
	// Either the odd line was changed, or the one before it: the latter if that is
	// no object any more, or if the odd one is what the line after it, or the
	// state, says that it is.
	own, n := sha256.Sum256(bytes.TrimSuffix(odd, []byte("\n"))), c.end.Seq+1
	prev, seq, _, ok := lineHead(odd)
	next, _, _, _ := lineHead(after)
	r.Status, r.Line, r.Want, r.Have = auditTampered, n, hex.EncodeToString(c.end.Hash[:]), string(prev)
	switch {
	case n > 1 && r.Want != r.Have && (!json.Valid(last) || ok && seq == n && (string(next) == hex.EncodeToString(own[:]) || own == v.have.Hash)):
		r.Line, r.Want, r.Have = n-1, r.Have, r.Want
		r.What = fmt.Sprintf("line %d is not the one that the line after it is linked to", n-1)
	case ok && seq != n:
		r.What = fmt.Sprintf("line %d has the number %d: lines were taken out, put in or moved", n, seq)
	case ok && r.Want == r.Have:
		r.What, r.Have = fmt.Sprintf("line %d is not the one that %s knows", n, stateName), hex.EncodeToString(own[:])
		r.Want = hex.EncodeToString(v.have.Hash[:])
	default:
		r.What = fmt.Sprintf("line %d is not linked to the line before, or is none of the log's", n)
	}
	for i, line := range [][]byte{last, odd} {
		if len(line) > 0 {
			r.Shown = append(r.Shown, shownLine{n - 1 + int64(i), string(line[:min(len(line), maxField)])})
		}
	}
	return c, nil
}
