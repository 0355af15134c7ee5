package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestResolveExisting(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	for _, d := range []string{"a/b", "c"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for name, target := range map[string]string{
		"link": "a/b", "abs": filepath.Join(dir, "c"), "gone": "nowhere/x", "loop": "loop2", "loop2": "loop", "a/up": "../c"} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	for path, want := range map[string]string{
		"a/b":             "a/b",
		"a//./b/":         "a/b",
		"a/../c":          "c",
		"link":            "a/b",
		"link/..":         "a", // not the workspace itself, as cleaning the text would have it
		"link/../up/f":    "c/f",
		"abs/new/file":    "c/new/file",
		"gone":            "nowhere/x",
		"gone/y":          "nowhere/x/y",
		"missing/../c":    "c",
		"link/../../../x": "../x",
	} {
		if got := resolveExisting(dir + "/" + path); got != filepath.Join(dir, want) {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	resolveExisting(filepath.Join(dir, "loop")) // ends
	// What exists is what the system finds.
	for _, path := range []string{"link", "link/..", "a/up/../c", "abs/.."} {
		want, err := filepath.EvalSymlinks(dir + "/" + path)
		if err != nil {
			t.Fatal(err)
		}
		a, err1 := os.Stat(dir + "/" + path)
		b, err2 := os.Stat(resolveExisting(dir + "/" + path))
		if err1 != nil || err2 != nil || !os.SameFile(a, b) {
			t.Errorf("%s: %v %v, EvalSymlinks says %s", path, err1, err2, want)
		}
	}
}

func TestWithinWholeComponents(t *testing.T) {
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/w/app", "/w/app", true}, {"/w/app/x", "/w/app", true}, {"/w/app-evil/x", "/w/app", false}, {"/w", "/w/app", false}, {"/x", "", false}, {"/x", "/", true}, {"/w/..x", "/w", true}} {
		if got := within(c.path, c.dir); got != c.want {
			t.Errorf("within(%q, %q) = %v", c.path, c.dir, got)
		}
	}
}
