package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"picket/tools"
)

// within reports whether path is dir or lies in it, by whole components. Both
// are absolute and clean.
func within(path, dir string) bool {
	if dir == "" {
		return false
	}
	rel, err := filepath.Rel(fold(dir), fold(path))
	return err == nil && filepath.IsLocal(rel)
}

// firstWithin returns the first of dirs that path is or lies in, "" if there is
// none.
func firstWithin(path string, dirs []string) string {
	for _, dir := range dirs {
		if within(path, dir) {
			return dir
		}
	}
	return ""
}

// samePath compares two absolute paths.
func samePath(a, b string) bool { return fold(a) == fold(b) }

// fold drops the case where the file system does.
func fold(path string) string {
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		return strings.ToLower(path)
	}
	return path
}

// resolveExisting resolves the links of an absolute path as far as it exists, in
// the order in which the system does: "link/.." is the parent of what the link
// points to. A dangling link counts as what it points to.
func resolveExisting(path string) string {
	const sep = string(filepath.Separator)
	root := filepath.VolumeName(path) + sep
	at, rest := root, strings.Split(path[len(root)-1:], sep)
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name)
		target, err := os.Readlink(next)
		if name == ".." || err != nil {
			at = next
			continue
		}
		if links++; links > 255 { // a loop has no end of its own
			return filepath.Join(append([]string{next}, rest...)...)
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = append(strings.Split(target, sep), rest...)
	}
	return at
}

var lazyRegexp = tools.LazyRegexp
