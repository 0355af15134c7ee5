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
	N      int    // the last so many records; all if negative
	Kind   string // only these, if not empty
	Chat   string
	JSON   bool                // the lines as they are, else a table
	Follow bool                // go on with what is added, until the context ends
	Safe   func(string) string // makes text fit for a terminal
}

// followPoll is how often a file that is followed is looked at.
const followPoll = 200 * time.Millisecond

// auditColumns are the fields that a row of the table shows, by kind; of other
// kinds it shows all.
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
	at   mark
}

// logLine is one line for a reader; damage says what is wrong with it, if
// anything is.
type logLine struct {
	raw    []byte
	seq    int64
	damage string
}

func (r *logReader) open() (err error) {
	if r.f, err = os.Open(r.path); err != nil {
		return err
	}
	r.at = mark{}
	r.id, err = idOf(r.f)
	return err
}

// read calls fn for each line up to size that was not read yet.
func (r *logReader) read(size int64, fn func(logLine) error) error {
	_, err := scanLines(r.f, r.at.off, size, func(line []byte, end int64) error {
		l := logLine{raw: line}
		n, err := r.at.next(line)
		if err != nil {
			l.damage = fmt.Sprintf("line %d does not continue the one before; see \"picket audit verify\"", r.at.seq+1)
			n.seq = r.at.seq + 1
			if _, seq, _, ok := lineHead(line); ok {
				n.seq = seq
			}
			n.hash = sha256.Sum256(line)
		}
		n.off = end
		r.at, l.seq = n, n.seq
		return fn(l)
	})
	return err
}

// showAudit writes the log in the data folder to w. An error is one of reading
// the log or of writing to w.
func showAudit(ctx context.Context, w io.Writer, dir string, v auditView) error {
	view, err := look(dir, auditName)
	if err != nil {
		return err
	}
	r := &logReader{path: filepath.Join(dir, auditName)}
	if view.f != nil {
		view.f.Close()
		if err := r.open(); err != nil {
			return err
		}
	}
	defer func() {
		if r.f != nil {
			r.f.Close()
		}
	}()
	if r.f != nil {
		var last []logLine
		err := r.read(view.size, func(l logLine) error {
			if !v.wants(l) {
				return nil
			}
			l.raw = bytes.Clone(l.raw)
			if last = append(last, l); v.N >= 0 && len(last) > 2*v.N+64 {
				last = slices.Clone(last[len(last)-v.N:])
			}
			return nil
		})
		if err != nil {
			return err
		}
		if v.N >= 0 {
			last = last[max(0, len(last)-v.N):]
		}
		for _, l := range last {
			if err := v.write(w, l); err != nil {
				return err
			}
		}
		if r.at.off < view.size && !v.Follow {
			return v.write(w, logLine{seq: r.at.seq + 1, damage: "the last line was not finished"})
		}
	}
	if !v.Follow {
		return nil
	}
	return v.follow(ctx, w, r)
}

// follow writes what is added. A file that took the place of the one that is
// open is read from its beginning, after the rest of the old one.
func (v auditView) follow(ctx context.Context, w io.Writer, r *logReader) error {
	show := func(l logLine) error {
		if !v.wants(l) {
			return nil
		}
		return v.write(w, l)
	}
	for {
		if r.f != nil {
			fi, err := r.f.Stat()
			if err != nil {
				return err
			}
			if fi.Size() < r.at.off {
				if err := v.write(w, logLine{seq: r.at.seq, damage: "the file became shorter: lines were cut off"}); err != nil {
					return err
				}
				r.at.off = fi.Size()
			}
			if err := r.read(fi.Size(), show); err != nil {
				return err
			}
		}
		id, _, err := statName(r.path)
		switch {
		case err == nil && r.f == nil, err == nil && id != r.id:
			if r.f != nil {
				r.f.Close()
			}
			if err := r.open(); err != nil {
				return err
			}
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPoll):
		}
	}
}

// wants reports whether the view includes a line. Damage is always included.
func (v auditView) wants(l logLine) bool {
	_, _, kind, ok := lineHead(l.raw)
	if l.damage != "" || !ok {
		return true
	}
	if v.Kind != "" && string(kind) != v.Kind {
		return false
	}
	if v.Chat == "" {
		return true
	}
	n, err := parseLine(l.raw)
	return err != nil || n.Chat == v.Chat
}

func (v auditView) write(w io.Writer, l logLine) error {
	if l.damage == "" && !json.Valid(l.raw) {
		l.damage = fmt.Sprintf("line %d is not JSON; see \"picket audit verify\"", l.seq)
	}
	var b []byte
	switch {
	case v.JSON && l.damage != "":
		b = append(b, `{"kind":"damage","what":`...)
		b = append(appendText(b, l.damage), `,"text":`...)
		b = append(appendText(b, cutText(string(l.raw), maxField)), "}\n"...)
	case v.JSON:
		b = append(append(b, l.raw...), '\n')
	case l.damage != "":
		b = fmt.Appendf(b, "!! %s\n", l.damage)
	}
	if !v.JSON && json.Valid(l.raw) {
		b = fmt.Appendf(b, "%s\n", v.row(l.raw))
	}
	_, err := w.Write(b)
	return err
}

// row is one line of the table.
func (v auditView) row(raw []byte) string {
	n, err := parseLine(raw)
	if err != nil {
		return v.Safe(string(raw[:min(len(raw), 200)]))
	}
	fields := ownFields(raw)
	if cols, ok := auditColumns[n.Kind]; ok {
		var picked []ownField
		for _, name := range strings.Fields(cols) {
			for _, f := range fields {
				if f.name == name {
					picked = append(picked, f)
				}
			}
		}
		fields = picked
	}
	var cells []string
	for _, f := range fields {
		switch text := f.text(); {
		case text == "", text == "null", text == "[]", text == "{}", text == "false":
		case f.value[0] == '"':
			cells = append(cells, text)
		default:
			cells = append(cells, f.name+"="+text)
		}
	}
	for i, c := range cells {
		if r := []rune(c); len(r) > 160 {
			c = string(r[:160]) + "…"
		}
		cells[i] = v.Safe(c)
	}
	return fmt.Sprintf("%6d  %s  %-12s  %-12s  %s", n.Seq, n.Time.Local().Format(time.DateTime), v.Safe(n.Kind), v.Safe(n.Chat), strings.Join(cells, "  "))
}

type ownField struct {
	name  string
	value json.RawMessage
}

// text is a string's text, or the JSON of anything else.
func (f ownField) text() string {
	var s string
	if json.Unmarshal(f.value, &s) == nil {
		return s
	}
	return string(f.value)
}

// ownFields returns what stands in a line after what all lines have, in order.
func ownFields(raw []byte) (list []ownField) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.Token()
	for d.More() {
		key, err := d.Token()
		f := ownField{}
		f.name, _ = key.(string)
		if err != nil || d.Decode(&f.value) != nil {
			return list
		}
		if !slices.Contains([]string{"prev", "seq", "ts", "kind", "run", "chat", "channel", "call"}, f.name) {
			list = append(list, f)
		}
	}
	return list
}

// showRecord writes every record of a call or a run, or the one with a number,
// in full. safe makes text fit for a terminal.
func showRecord(w io.Writer, dir, id string, safe func(string) string) error {
	view, err := look(dir, auditName)
	if err != nil {
		return err
	}
	found := false
	if view.f != nil {
		defer view.f.Close()
		r := &logReader{f: view.f}
		err = r.read(view.size, func(l logLine) error {
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
			for _, f := range slices.Concat([]ownField{{"run", quoted(n.Run)}, {"chat", quoted(n.Chat)}, {"channel", quoted(n.Channel)}, {"call", quoted(n.Call)}}, ownFields(l.raw)) {
				if text := f.text(); text != "" {
					fmt.Fprintf(w, "  %s: %s\n", safe(f.name), safe(text))
				}
			}
			_, err = fmt.Fprintln(w)
			return err
		})
	}
	if err == nil && !found {
		err = fmt.Errorf("the log has no record %q", id)
	}
	return err
}

func quoted(s string) json.RawMessage { return appendText(nil, s) }
