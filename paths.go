package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// resolveExisting resolves the links of an absolute path as far as it exists; a
// dangling link counts as what it points to.
func resolveExisting(path string) string {
	path = filepath.Clean(path)
	rest, dir := "", path
	for range 255 { // a loop of links has no end of its own
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if target, err := os.Readlink(dir); err == nil {
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(dir), target)
			}
			rest, dir = filepath.Join(filepath.Base(target), rest), filepath.Dir(target)
			continue
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		rest, dir = filepath.Join(filepath.Base(dir), rest), parent
	}
	return path
}
