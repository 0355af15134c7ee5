package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"picket/tools"
)

// undoBench is a folder of copies and a file that was changed with one kept.
func undoBench(t *testing.T, prev, next []byte) (dir, file string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, file = filepath.Join(base, "undo"), filepath.Join(base, "ws", "f")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := keepUndo(dir, "c1", file, prev, next); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, next, 0o640); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

func TestUndoPutsBack(t *testing.T) {
	dir, file := undoBench(t, []byte("before"), []byte("after"))
	if err := os.Chmod(file, 0o751); err != nil {
		t.Fatal(err)
	}
	message, err := undo(dir, "c1", noLabel)
	if err != nil || !strings.Contains(message, file) {
		t.Fatal(message, err)
	}
	data, err := os.ReadFile(file)
	info, _ := os.Stat(file)
	if err != nil || string(data) != "before" || info.Mode().Perm() != 0o751 {
		t.Errorf("%q, %v, %v", data, info.Mode(), err)
	}
	if _, err := undo(dir, "c1", noLabel); err == nil {
		t.Error("undone twice")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestUndoOfAnEmptyFileAndOfANewOne(t *testing.T) {
	dir, file := undoBench(t, []byte{}, []byte("after"))
	if _, err := undo(dir, "c1", noLabel); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(file); err != nil || len(data) != 0 {
		t.Errorf("%q, %v", data, err)
	}
	dir, file = undoBench(t, nil, []byte("after"))
	if _, err := undo(dir, "c1", noLabel); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file); !os.IsNotExist(err) {
		t.Error("the new file is still there")
	}
}

func TestUndoRefusesWhatChangedSince(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir, file string) error{
		"other content":   func(_ *testing.T, _, file string) error { return os.WriteFile(file, []byte("aftex"), 0o644) },
		"longer content":  func(_ *testing.T, _, file string) error { return os.WriteFile(file, []byte("after and more"), 0o644) },
		"shorter content": func(_ *testing.T, _, file string) error { return os.WriteFile(file, nil, 0o644) },
		"gone":            func(_ *testing.T, _, file string) error { return os.Remove(file) },
		"a link to the same content": func(_ *testing.T, _, file string) error {
			if err := os.Rename(file, file+"2"); err != nil {
				return err
			}
			return os.Symlink("f2", file)
		},
		"a folder": func(_ *testing.T, _, file string) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Mkdir(file, 0o755)
		},
		"its folder is a link": func(_ *testing.T, _, file string) error {
			ws := filepath.Dir(file)
			if err := os.Rename(ws, ws+"2"); err != nil {
				return err
			}
			return os.Symlink("ws2", ws)
		},
		"the copy was changed": func(_ *testing.T, dir, _ string) error {
			p := filepath.Join(dir, "c1.undo")
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			return os.WriteFile(p, bytes.Replace(data, []byte("before"), []byte("befoRe"), 1), 0o600)
		},
		"the copy is cut": func(_ *testing.T, dir, _ string) error {
			p := filepath.Join(dir, "c1.undo")
			info, err := os.Stat(p)
			if err != nil {
				return err
			}
			return os.Truncate(p, info.Size()-1)
		},
		"the copy is gone": func(_ *testing.T, dir, _ string) error { return os.Remove(filepath.Join(dir, "c1.undo")) },
		"the copy is a link": func(_ *testing.T, dir, file string) error {
			p := filepath.Join(dir, "c1.undo")
			if err := os.Rename(p, p+"2"); err != nil {
				return err
			}
			return os.Symlink(p+"2", p)
		},
		"the entry is cut": func(_ *testing.T, dir, _ string) error { return os.Truncate(filepath.Join(dir, "c1.undo"), 20) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, file := undoBench(t, []byte("before"), []byte("after"))
			if err := change(t, dir, file); err != nil {
				t.Fatal(err)
			}
			want := snapshot(t, filepath.Dir(dir))
			if message, err := undo(dir, "c1", noLabel); err == nil {
				t.Error(message)
			}
			if got := snapshot(t, filepath.Dir(dir)); got != want {
				t.Errorf("changed:\n%s\nto\n%s", want, got)
			}
		})
	}
}

// snapshot lists all names below dir with kind and content.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		var data []byte
		if info.Mode().IsRegular() {
			if data, err = os.ReadFile(p); err != nil {
				return err
			}
		}
		fmt.Fprintf(&b, "%s %v %q\n", p, info.Mode(), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestUndoIDs(t *testing.T) {
	dir, file := undoBench(t, []byte("before"), []byte("after"))
	for _, id := range []string{"", "../c1", "c1/", "c1.json", ".", "c 1", "c1\n", "ü", strings.Repeat("a", 65)} {
		if _, err := undo(dir, id, noLabel); err == nil || !strings.Contains(err.Error(), "not valid") {
			t.Errorf("undo %q: %v", id, err)
		}
		if err := keepUndo(dir, id, file, nil, nil); err == nil {
			t.Errorf("keepUndo %q", id)
		}
	}
	if _, err := undo(dir, "c2", noLabel); err == nil || strings.Contains(err.Error(), "not valid") {
		t.Errorf("an id that is not kept: %v", err)
	}
	if _, err := undo(filepath.Join(dir, "none"), "c1", noLabel); err == nil {
		t.Error("undone from nothing")
	}
}

func TestKeepUndoIsPrivateAndNeverOverwrites(t *testing.T) {
	dir, file := undoBench(t, []byte("before"), []byte("after"))
	for name, want := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "c1.undo": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%q: %v, %v", name, info.Mode(), err)
		}
	}
	if err := keepUndo(dir, "c1", file, []byte("other"), []byte("x")); err == nil {
		t.Error("an entry was overwritten")
	}
	if err := keepUndo(dir, "c3", file, make([]byte, tools.MaxUndo+1), nil); err == nil {
		t.Error("a copy that is too large was kept")
	}
	var entry undoEntry
	data, err := os.ReadFile(filepath.Join(dir, "c1.undo"))
	line, content, _ := bytes.Cut(data, []byte("\n"))
	if err != nil || json.Unmarshal(line, &entry) != nil || entry.Path != file || entry.Prev != hexDigest([]byte("before")) || string(content) != "before" {
		t.Errorf("%s, %v", data, err)
	}
}

func TestKeepUndoPrunes(t *testing.T) {
	dir, file := undoBench(t, []byte("before"), []byte("after"))
	other := filepath.Join(dir, "README")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	age := func(id string, days int) {
		then := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, id+".undo"), then, then); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	age("c1", 31)
	if err := os.Chtimes(other, time.Now().AddDate(-1, 0, 0), time.Now().AddDate(-1, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if err := keepUndo(dir, "c2", file, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if exists("c1.undo") || !exists("c2.undo") || !exists("README") {
		t.Error("what is older than 30 days is not all that is gone")
	}
	// Copies without their bytes on disk, together over the limit.
	age("c2", 2)
	err := os.Truncate(filepath.Join(dir, "c2.undo"), undoTotal)
	need(t, err == nil, "a folder for temporary files with sparse files (set TMPDIR to one)")
	age("c2", 2)
	if err := keepUndo(dir, "c3", file, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if exists("c2.undo") || !exists("c3.undo") {
		t.Error("the oldest copy is not what made room")
	}
}

func TestKeepUndoFailsWhereNothingCanBeWritten(t *testing.T) {
	base := t.TempDir()
	blocked := filepath.Join(base, "undo")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keepUndo(blocked, "c1", filepath.Join(base, "f"), []byte("x"), nil); err == nil {
		t.Error("kept in a file")
	}
}

func noLabel(string, []chatLabel) error { return errors.New("it has no labels") }
