package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What "picket audit" shows of the log. Nothing here writes to the data folder,
// and damage is shown where it is met.

// auditView says what of the log to show, and how.
type auditView struct {
	N      int    // the last so many records
	Kind   string // only these, if not empty
	Chat   string
	Width  int                 // columns of a row of the table; 0 is as long as it is
	JSON   bool                // the lines as they are, else a table
	Follow bool                // go on with what is added, until the context ends
	Safe   func(string) string // makes text fit for a terminal
}

// auditColumns are the fields that a row of the table shows; of other kinds all.
var auditColumns = map[string]string{
	"start":        "version model origin sandbox workspace",
	"user_message": "source text",
	"model_turn":   "model calls finish text",
	"decision":     "verdict tool summary by rule grant reasons",
	"result":       "ok error exit ms bytes interrupted",
	"question":     "offered reasons until",
}

// A logReader reads a log from its beginning on, as far as it has got.
type logReader struct {
	path string
	f    *os.File
	id   fileID
	size int64
	at   mark
}

// logLine is one line for a reader, without its LF.
type logLine struct {
	raw, kind []byte
	damage    string // what is wrong with it, if anything is
}

// read calls fn for each line that was not read yet, also of a file that took
// the place of the one that is open.
func (r *logReader) read(fn func(logLine) error) error {
	for {
		if r.f != nil {
			var err error
			if r.size, err = r.f.Seek(0, io.SeekEnd); err != nil {
				return err
			}
			if r.size < r.at.Off {
				r.at.Off = r.size
				err = fn(logLine{damage: "the file became shorter: lines were cut off"})
			}
			if err == nil {
				err = scanLines(r.f, r.at.Off, r.size, func(raw []byte, end int64) error { return r.line(raw, end, fn) })
			}
			if err != nil {
				return err
			}
		}
		id, _, err := statName(r.path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && r.f != nil && id == r.id {
			return nil
		}
		r.f.Close()
		if r.f, err = os.Open(r.path); err != nil {
			return err
		}
		if r.id, err = idOf(r.f); err != nil {
			return err
		}
		r.at = mark{}
	}
}

func (r *logReader) line(raw []byte, end int64, fn func(logLine) error) error {
	l := logLine{raw: bytes.TrimSuffix(raw, []byte("\n"))}
	if len(l.raw) == len(raw) && end == r.size {
		return nil // not finished yet
	}
	next, kind, ok := r.at.next(raw)
	if !ok { // go on from it
		l.damage = fmt.Sprintf("line %d does not continue the one before; see \"picket audit verify\"", r.at.Seq+1)
		next = mark{r.at.Seq + 1, sha256.Sum256(l.raw), 0}
		if _, seq, k, ok := lineHead(raw); ok {
			next.Seq, kind = seq, k
		}
	}
	next.Off = end
	l.kind, r.at = kind, next
	return fn(l)
}

// showAudit writes the log in the data folder to w. An error is one of reading
// the log or of writing to w.
func showAudit(ctx context.Context, w io.Writer, dir string, v auditView) error {
	r := &logReader{path: filepath.Join(dir, auditName)}
	defer func() { r.f.Close() }()
	var last []logLine
	keep := func(l logLine) error {
		if v.wants(l) {
			l.raw = bytes.Clone(l.raw)
			last = append(last, l)
			last = last[max(0, len(last)-v.N):]
		}
		return nil
	}
	err := r.read(keep)
	if err == nil && r.at.Off < r.size { // perhaps it is just being written
		time.Sleep(flushDelay / 5)
		err = r.read(keep)
	}
	for _, l := range last {
		if err == nil {
			err = v.write(w, l)
		}
	}
	if err == nil && !v.Follow && r.at.Off < r.size {
		return v.write(w, logLine{damage: "the last line was not finished"})
	}
	for err == nil && v.Follow {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
		err = r.read(func(l logLine) error {
			if !v.wants(l) {
				return nil
			}
			return v.write(w, l)
		})
	}
	return err
}

// wants reports whether the view includes a line. Damage is always included.
func (v auditView) wants(l logLine) bool {
	if l.damage != "" || v.Chat == "" {
		return l.damage != "" || v.Kind == "" || v.Kind == string(l.kind)
	}
	n, err := parseLine(l.raw)
	return err != nil || n.Chat == v.Chat && (v.Kind == "" || v.Kind == n.Kind)
}

func (v auditView) write(w io.Writer, l logLine) error {
	n, perr := parseLine(l.raw)
	if l.damage == "" && perr != nil {
		l.damage = "a line is not JSON; see \"picket audit verify\""
	}
	var b []byte
	if v.JSON && l.damage != "" {
		b = appendText([]byte(`{"kind":"damage","what":`), l.damage)
		b = append(appendText(append(b, `,"text":`...), cutText(string(l.raw), maxField)), "}\n"...)
	} else if v.JSON {
		b = append(n.Raw, '\n')
	} else {
		if l.damage != "" {
			b = fmt.Appendf(b, "!! %s\n", l.damage)
		}
		if perr == nil {
			b = append(append(b, v.row(n)...), '\n')
		}
	}
	_, err := w.Write(b)
	return err
}

// row is one line of the table.
func (v auditView) row(n Line) string {
	row := fmt.Sprintf("%6d  %s  %-12s  %-18s  %-12s", n.Seq, n.Time.Local().Format(time.DateTime), v.Safe(n.Kind), v.Safe(n.Call), v.Safe(n.Chat))
	if v.Width > 0 && v.Width < 120 { // the chat and the day are left out for what was done
		row = fmt.Sprintf("%6d  %s  %-12s  %-18s", n.Seq, n.Time.Local().Format(time.TimeOnly), v.Safe(n.Kind), v.Safe(n.Call))
	}
	cols, picked := strings.Fields(auditColumns[n.Kind]), map[string]string{}
	for name, val := range members(n.Raw) {
		text := memberText(val)
		if text == "" || text == "null" || text == "[]" || text == "{}" || text == "false" || slices.Contains(lineFields[:], name) {
			continue
		}
		if val[0] != '"' {
			text = name + "=" + text
		}
		if r := []rune(text); len(r) > 160 {
			text = string(r[:160]) + "…"
		}
		if picked[name] = "  " + v.Safe(text); auditColumns[n.Kind] == "" {
			cols = append(cols, name)
		}
	}
	for _, name := range cols {
		row += picked[name]
	}
	if v.Width > 0 && cutCols(row, v.Width) != row {
		return cutCols(row, v.Width-2) + "…"
	}
	return row
}

// members are those of a line, in order, but the ones that a row begins with.
func members(raw []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.Token()
		for d.More() {
			key, _ := d.Token()
			name, _ := key.(string)
			var val json.RawMessage
			if d.Decode(&val) != nil {
				return
			}
			if !slices.Contains([]string{"prev", "seq", "ts", "kind"}, name) && !yield(name, val) {
				return
			}
		}
	}
}

// memberText is a string's text, or the JSON of anything else.
func memberText(val json.RawMessage) string {
	text := string(val)
	json.Unmarshal(val, &text)
	return text
}

// showRecord writes every record of a call or a run, or the one with a number,
// in full. safe makes text fit for a terminal.
func showRecord(w io.Writer, dir, id string, safe func(string) string) error {
	found := false
	r := &logReader{path: filepath.Join(dir, auditName)}
	defer func() { r.f.Close() }()
	err := r.read(func(l logLine) error {
		if !bytes.Contains(l.raw, []byte(id)) {
			return nil
		}
		n, err := parseLine(l.raw)
		if err != nil || n.Call != id && n.Run != id && fmt.Sprint(n.Seq) != id {
			return nil
		}
		found = true
		if l.damage != "" {
			fmt.Fprintf(w, "!! %s\n", l.damage)
		}
		fmt.Fprintf(w, "%d  %s  %s\n", n.Seq, n.Time.Local().Format(time.DateTime), safe(n.Kind))
		for name, val := range members(l.raw) {
			if text := memberText(val); text != "" {
				fmt.Fprintf(w, "  %s: %s\n", safe(name), safe(text))
			}
		}
		_, err = fmt.Fprintln(w)
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("the log has no record %q", id)
	}
	return err
}
