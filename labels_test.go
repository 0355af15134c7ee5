package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func labelStoreIn(t testing.TB, data string) *labelStore {
	t.Helper()
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := openLabels(data, "r_"+newID("x"), data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.lock.Close() })
	return l
}

func makeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// labelsFile makes a labels file of every kind of line, and names what it labels.
func labelsFile(t testing.TB) (data, ws string, labelled []string) {
	data, ws = filepath.Join(t.TempDir(), "data"), t.TempDir()
	ws = resolveExisting(ws)
	l := labelStoreIn(t, data)
	dirty := []chatLabel{{"private", "files"}, {"untrusted", "web_fetch a.test"}}
	w, err := l.begin("c_1", []string{ws}, dirty, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "d/b", "d/c", "gone"} {
		makeFile(t, filepath.Join(ws, name), "x")
	}
	if _, err := l.end(w, dirty); err != nil {
		t.Fatal(err)
	}
	_, err = l.clear(filepath.Join(ws, "gone"))
	err = errors.Join(err, os.Remove(filepath.Join(ws, "gone")), l.set(filepath.Join(ws, "e\xff"), dirty[:1]))
	w, err2 := l.begin("c_2", []string{filepath.Join(ws, "d")}, dirty[1:], false)
	_, err3 := l.end(w, dirty[1:])
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "d/b", "d/c", "e\xff"} {
		labelled = append(labelled, filepath.Join(ws, name))
	}
	return data, ws, labelled
}

// labelsAt reads the file anew.
func labelsAt(t testing.TB, data, path string) (Labels, error) {
	set, err := labelStoreIn(t, data).of(path, "")
	return labelsIn(set), err
}

// A flipped bit is an error that names the file and the line, or changes nothing:
// it never takes a label away.
func TestLabelsMangled(t *testing.T) {
	data, _, labelled := labelsFile(t)
	path := filepath.Join(data, labelsName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Labels{}
	for _, p := range labelled {
		if want[p], err = labelsAt(t, data, p); err != nil || want[p] == (Labels{}) {
			t.Fatalf("%q has %v, %v", p, want[p], err)
		}
	}
	found := 0
	for i := range whole {
		for _, flip := range []byte{1, 0x20, 0x80} {
			mangled := bytes.Clone(whole)
			mangled[i] ^= flip
			if err := errors.Join(os.Remove(path), os.WriteFile(path, mangled, 0o600)); err != nil {
				t.Fatal(err)
			}
			l := &labelStore{dir: data, path: path}
			if err := l.load(); err != nil {
				if line := fmt.Sprintf("line %d:", bytes.Count(whole[:i], []byte("\n"))+1); !strings.Contains(err.Error(), labelsName) || !strings.Contains(err.Error(), line) {
					t.Fatalf("byte %d: %v, want %s", i, err, line)
				}
				found++
				continue
			}
			for _, p := range labelled {
				h := labelHits{}
				if l.at(p, "", h); want[p].adds(h.labels()) || h.labels().adds(want[p]) {
					t.Fatalf("byte %d^%#x: %q has %v, had %v", i, flip, p, h.labels(), want[p])
				}
			}
		}
	}
	if found < len(whole)*3-8 {
		t.Errorf("%d of %d flips were found", found, 3*len(whole))
	}
}

// A file cut anywhere, as a crash leaves it, goes on; what was begun and not
// ended counts as labelled.
func TestLabelsTorn(t *testing.T) {
	data, ws, labelled := labelsFile(t)
	path := filepath.Join(data, labelsName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begun := bytes.Index(whole, []byte("\n")) + 1
	for n := 0; n <= len(whole); n++ {
		if n%16 != 0 && n > 200 && n < len(whole)-2 && whole[n] != '\n' && whole[n-1] != '\n' {
			continue
		}
		if err := errors.Join(os.Remove(path), os.WriteFile(path, whole[:n], 0o600)); err != nil {
			t.Fatal(err)
		}
		l := labelStoreIn(t, data)
		if err := l.locked(func() error { return nil }); err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		for _, p := range labelled[:3] {
			if got, err := labelsAt(t, data, p); err != nil || n >= begun && got != (Labels{true, true}) {
				t.Fatalf("cut at %d: %q has %v, %v", n, p, got, err)
			}
		}
		if err := l.set(filepath.Join(ws, "later"), []chatLabel{{"private", "x"}}); err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if got, err := labelsAt(t, data, filepath.Join(ws, "later")); err != nil || !got.Private {
			t.Fatalf("cut at %d, then went on: %v, %v", n, got, err)
		}
	}
}

// Whole lines that are missing or moved are found too, but for those at the end.
func TestLabelsLinesMissing(t *testing.T) {
	data, _, _ := labelsFile(t)
	path := filepath.Join(data, labelsName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(whole, []byte("\n")), []byte("\n"))
	for i := range lines[:len(lines)-1] {
		for what, cut := range map[string][][]byte{
			"missing": slices.Delete(slices.Clone(lines), i, i+1),
			"twice":   slices.Insert(slices.Clone(lines), i, lines[i]),
		} {
			if err := os.WriteFile(path, append(bytes.Join(cut, nil), '\n'), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := (&labelStore{dir: data, path: path}).load(); err == nil {
				t.Errorf("line %d %s: not found", i+1, what)
			}
		}
	}
}

// Two processes that write at once lose nothing.
func TestLabelsWritersAtOnce(t *testing.T) {
	data, ws := filepath.Join(t.TempDir(), "data"), resolveExisting(t.TempDir())
	var done []chan error
	for i := range 4 {
		l, end := labelStoreIn(t, data), make(chan error, 1)
		done = append(done, end)
		go func() {
			for j := range 20 {
				name := filepath.Join(ws, fmt.Sprintf("%d-%d", i, j))
				if err := errors.Join(os.WriteFile(name, nil, 0o644), l.set(name, []chatLabel{{"private", "x"}})); err != nil {
					end <- err
					return
				}
			}
			end <- nil
		}()
	}
	for _, end := range done {
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	}
	l := labelStoreIn(t, data)
	if err := l.locked(func() error { return nil }); err != nil || len(l.all) != 80 {
		t.Errorf("%d files, %v", len(l.all), err)
	}
}

// Clearing a folder clears what lies under it, and a file by any of its names.
func TestLabelsClear(t *testing.T) {
	data, ws, labelled := labelsFile(t)
	l := labelStoreIn(t, data)
	if _, err := l.clear(filepath.Join(ws, "nothing")); err == nil {
		t.Error("nothing was cleared")
	}
	if n, err := l.clear(filepath.Join(ws, "d")); err != nil || n != 3 { // d, d/b, d/c
		t.Errorf("%d, %v", n, err)
	}
	link := filepath.Join(ws, "link")
	if err := os.Link(labelled[0], link); err != nil {
		t.Fatal(err)
	}
	if n, err := l.clear(link); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	for _, p := range labelled[:3] {
		if got, err := labelsAt(t, data, p); err != nil || got != (Labels{}) {
			t.Errorf("%q has %v, %v", p, got, err)
		}
	}
	if got, err := labelsAt(t, data, labelled[3]); err != nil || !got.Private {
		t.Errorf("%q has %v, %v", labelled[3], got, err)
	}
}

// Every way in which others' words and private data come into a chat labels it.
func TestLabelsOfMessages(t *testing.T) {
	for name, c := range map[string]struct {
		turn func(*Turn)
		want Labels
	}{
		"the owner":   {func(*Turn) {}, Labels{}},
		"piped data":  {func(t *Turn) { t.Piped = "x" }, Labels{Untrusted: true}},
		"another app": {func(t *Turn) { t.Caller.Channel, t.Caller.Who = channelAPI, whoApp }, Labels{Untrusted: true}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newGateRig(t)
			c.turn(r.turn)
			a := &Agent{gate: r.gate, log: r.gate.log, redact: keepText, now: time.Now}
			if err := a.begin(context.Background(), r.turn); err != nil {
				t.Fatal(err)
			}
			if got := r.turn.Chat.labels(); got != c.want {
				t.Errorf("labels %v, want %v", got, c.want)
			}
			if n := len(r.records("label")); n != len(c.want.List()) {
				t.Errorf("%d records", n)
			}
		})
	}
}

func FuzzLabels(f *testing.F) {
	data, _, _ := labelsFile(f)
	whole, err := os.ReadFile(filepath.Join(data, labelsName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	for _, body := range []string{`{"roots":["/","/a"],"start":[1],"set":[]}`, `{"call":"c","roots":["/"],"start":[1]}`, `{"call":"c","done":true}`,
		`{"files":[{"path":""},{"ino":1,"path":"/a"},{"ino":1,"path":"/b","tree":true}],"set":[{"label":"?"}]}`, `{"clear":"/","gone":[{}]}`, `{"clear":"\u0000zz"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		l := &labelStore{path: filepath.Join(t.TempDir(), labelsName)}
		if err := os.WriteFile(l.path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.load(); err == nil && l.n > 0 && !bytes.HasPrefix(raw, []byte(`{"sum":"`)) {
			t.Errorf("lines without a sum were believed")
		}
		// What lines with a right sum say must do no harm either.
		l.reset()
		var all []byte
		sum := uint32(0)
		for _, line := range bytes.Split(raw, []byte("\n")) {
			line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("{"))
			_, sum, _ = parseLabels(append([]byte("x,"), line...), sum)
			all = fmt.Appendf(all, "{\"sum\":\"%08x\",%s\n", sum, line)
		}
		if err := os.WriteFile(l.path, all, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.load(); err == nil {
			h := labelHits{}
			l.at("/a/b", "", h)
			h.sources("/a")
			for e := range l.all {
				if l.byPath[e.path] != e && l.byKey[e.key] != e {
					t.Errorf("%q is not found", e.path)
				}
			}
		}
	})
}

// What does not fit a line is in several, of which only the last ends the call.
func TestLabelsOfManyFiles(t *testing.T) {
	data, ws := filepath.Join(t.TempDir(), "data"), resolveExisting(t.TempDir())
	l := labelStoreIn(t, data)
	set := []chatLabel{{"untrusted", "x"}}
	time.Sleep(2 * scanSlack) // the folder itself is older
	all := func(do func(string) error) {
		t.Helper()
		w, err := l.begin("c_1", []string{ws}, set, false)
		for i := range 3*labelBatch + 7 {
			err = errors.Join(err, do(filepath.Join(ws, fmt.Sprint(i))))
		}
		if _, err2 := l.end(w, set); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
	}
	for i, do := range []func(string) error{func(p string) error { return os.WriteFile(p, nil, 0o644) }, os.Remove} {
		all(do)
		again := labelStoreIn(t, data)
		if err := again.locked(func() error { return nil }); err != nil || len(again.all) != (1-i)*(3*labelBatch+7) || len(again.open) != 0 {
			t.Errorf("%d files, %d calls, %v", len(again.all), len(again.open), err)
		}
	}
	if got := l.n; got != 1+4+1+4 {
		t.Errorf("%d lines", got)
	}
}
