package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"picket/tools"
)

// Bounds on what is looked at before and after each call.
const (
	maxRepos     = 256
	maxGitDirs   = 1 << 16   // entries of a folder in which a repository is looked for
	maxIndexSize = 128 << 20 // bytes
	maxGitName   = 1 << 12   // bytes; submodules too
)

// gitSettings are the files of a git directory that lead git elsewhere, then
// those that tell it what to run.
var gitSettings = []string{"commondir", "gitdir", "config", "config.worktree"}

var maxGitFiles = 50_000 // of a repository, compared after a call that may write it

// A gitRepo is what git on the host takes for a repository.
type gitRepo struct {
	dot   string   // DIR/.git
	what  string   // its type and, of a file or link, what it says
	fixed []string // never writable: a .git file, folders of submodules that are not checked out
	dirs  []string // its git directory and the one shared with its worktrees; none if it is not followed
	subs  []string // folders of its submodules
}

// findRepos finds the repositories at the top of each writable root, in the
// folders just below, and their submodules. It fails where it could not protect
// them all.
func (s *sandbox) findRepos() (repos []gitRepo, err error) {
	dirs := slices.Clone(s.roots)
	for _, root := range s.roots {
		f, err := os.Open(root)
		if err != nil {
			continue
		}
		entries, _ := f.ReadDir(maxGitDirs) // none of a file
		f.Close()
		if len(entries) == maxGitDirs {
			return nil, fmt.Errorf("%q holds too much to look for repositories: choose a narrower workspace", root)
		}
		for _, e := range entries {
			if e.IsDir() && e.Name() != ".git" {
				dirs = append(dirs, filepath.Join(root, e.Name()))
			}
		}
	}
	seen := map[string]bool{}
	for i := 0; i < len(dirs); i++ { // submodules are appended
		if seen[dirs[i]] || firstWithin(dirs[i], s.hide) != "" {
			continue
		}
		seen[dirs[i]] = true
		if r, ok := s.lookForRepo(dirs[i]); ok {
			repos, dirs = append(repos, r), append(dirs, r.subs...)
		}
		if len(repos) > maxRepos {
			return nil, fmt.Errorf("%q holds more than %d repositories: choose a narrower workspace", s.roots, maxRepos)
		}
	}
	return repos, nil
}

func (s *sandbox) lookForRepo(dir string) (gitRepo, bool) {
	r := gitRepo{dot: filepath.Join(dir, ".git")}
	fi, err := os.Lstat(r.dot)
	if err != nil {
		return r, false
	}
	text, p, file := "", "", fi.Mode().IsRegular()
	switch {
	case fi.IsDir():
		p = r.dot
	case file:
		r.fixed = []string{r.dot}
		text = readSmall(r.dot)
		if name, ok := strings.CutPrefix(text, "gitdir:"); ok {
			p = follow(dir, name)
		}
	default:
		text, _ = os.Readlink(r.dot)
		p = follow(dir, text)
	}
	r.what = fi.Mode().Type().String() + text
	mine := firstWithin(p, s.roots) != ""
	if p == "" || !mine && !(file && pointsBack(p, r.dot)) {
		return r, true
	}
	r.dirs = []string{p}
	// What lies in a writable root may say anything; what lies beyond leads only
	// upwards.
	if common := follow(p, readSmall(filepath.Join(p, "commondir"))); firstWithin(common, s.roots) != "" || !mine && within(p, common) {
		r.dirs = append(r.dirs, common)
	}
	for _, name := range readGitlinks(filepath.Join(p, "index")) {
		sub := filepath.Join(dir, name)
		if !filepath.IsLocal(name) || follow(dir, name) != sub { // missing, or reached by a link
			continue
		}
		r.subs = append(r.subs, sub)
		if _, err := os.Lstat(filepath.Join(sub, ".git")); err != nil {
			r.fixed = append(r.fixed, sub)
		}
	}
	return r, true
}

// pointsBack reports whether a git directory names the .git file that named it,
// as those of worktrees and submodules do. A boxed call could have written the
// file, but not what lies beyond the writable roots.
func pointsBack(dir, dot string) bool {
	back := []string{readSmall(filepath.Join(dir, "gitdir"))}
	for line := range strings.Lines(readSmall(filepath.Join(dir, "config"))) {
		if key, value, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "worktree" {
			back = append(back, strings.TrimSpace(value)+"/.git")
		}
	}
	return slices.ContainsFunc(back, func(name string) bool { return follow(dir, name) == dot })
}

// follow resolves a path that git reads in a folder, "" if there is none.
func follow(dir, name string) string {
	if name = strings.TrimSpace(name); name == "" {
		return ""
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	p, _ := filepath.EvalSymlinks(name)
	return p
}

// gitMounts protects the repositories. Without leave to write, all of a git
// directory is read-only; with it, only what makes git run something is, as far
// as it exists: nothing is created on the host to stand in for it.
func gitMounts(m mountSet, c tools.Command, repos []gitRepo) {
	add := func(kind mountKind, p string) {
		if fi, err := os.Lstat(p); err == nil && fi.Mode()&fs.ModeSymlink == 0 {
			m.add(mount{p, p, kind})
		}
	}
	names := append([]string{"hooks"}, gitSettings...)
	if c.GitConfig {
		names = names[:3]
	}
	for _, r := range repos {
		for _, p := range r.fixed {
			add(mountRO, p)
		}
		for _, dir := range r.dirs {
			if !c.GitWrite && !c.GitConfig {
				add(mountRO, dir)
				continue
			}
			add(mountBind, dir) // so that it cannot be moved away
			for _, name := range names {
				add(mountRO, filepath.Join(dir, name))
			}
		}
	}
}

// gitState describes what git on the host would obey: which repositories there
// are and, after a call that may write them, their settings, hooks, links, and
// the submodules in their index.
func gitState(repos []gitRepo, written bool) map[string]string {
	state := map[string]string{}
	for _, r := range repos {
		state[r.dot] = r.what
		for _, dir := range r.dirs {
			left := maxGitFiles
			filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
				if left--; left < 0 {
					state[dir+" (too large to compare)"] = time.Now().String() // never the same
				}
				if left < 0 || !written {
					return filepath.SkipAll
				}
				parent := filepath.Dir(p)
				switch {
				case err != nil:
				case e.Type() == fs.ModeSymlink:
					state[p], _ = os.Readlink(p)
				case e.IsDir() && e.Name() == "objects" && isGitDir(parent):
					return filepath.SkipDir
				case !e.Type().IsRegular():
				case (e.Name() == "index" || strings.HasPrefix(e.Name(), "sharedindex.")) && isGitDir(parent):
					state[p] = fmt.Sprintf("%q", readGitlinks(p))
				case e.Name() == "HEAD" && parent == dir:
					state[p] = "present"
				case e.Name() == "git-rebase-todo", filepath.Base(parent) == "hooks" && isGitDir(filepath.Dir(parent)),
					slices.Contains(gitSettings, e.Name()) && isGitDir(parent):
					if fi, err := e.Info(); err == nil {
						state[p] = fmt.Sprint(fi.Mode(), fi.Size(), fileDigest(p, fi.Size()))
					}
				}
				return nil
			})
		}
	}
	return state
}

func isGitDir(p string) bool {
	_, err := os.Lstat(filepath.Join(p, "HEAD"))
	return err == nil || filepath.Base(p) == ".git"
}

// gitNotes says what changed.
func gitNotes(before, after map[string]string) []string {
	var changed []string
	all := maps.Clone(before)
	maps.Copy(all, after)
	for p := range all {
		if before[p] != after[p] {
			changed = append(changed, p)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	slices.Sort(changed)
	return []string{fmt.Sprintf("this call changed what git obeys when it is used on this machine (%d in all): %q; look at it before using git there",
		len(changed), changed[:min(len(changed), 10)])}
}

// readGitlinks returns the submodules in an index file. What cannot be read
// counts as one that cannot be a path.
func readGitlinks(index string) []string {
	fi, err := os.Lstat(index)
	if err != nil {
		return nil
	}
	var b []byte
	if fi.Mode().IsRegular() && fi.Size() <= maxIndexSize {
		b, _ = os.ReadFile(index)
	}
	short, ok := parseGitlinks(b, 20) // SHA-1
	long, ok2 := parseGitlinks(b, 32) // SHA-256
	if !ok && !ok2 {
		return []string{""}
	}
	return append(short, long...)
}

// parseGitlinks returns the submodules in a git index. hash is the size of an
// object name. (gitformat-index(5), versions 2 to 4.)
func parseGitlinks(b []byte, hash int) (links []string, ok bool) {
	if len(b) < 12+hash || string(b[:4]) != "DIRC" {
		return nil, false
	}
	version, n := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	b = b[12 : len(b)-hash]
	var name []byte
	for ; n > 0; n-- {
		at := 42 + hash
		if version < 2 || version > 4 || len(b) < at+3 {
			return nil, false
		}
		mode, flags := binary.BigEndian.Uint32(b[24:]), binary.BigEndian.Uint16(b[at-2:])
		if flags&0x4000 != 0 { // extended
			at += 2
		}
		cut := len(name)
		if version == 4 { // a number in git's own form: how much of the name before is not shared
			cut = 0
			for more := true; more && at < len(b) && cut < 1<<30; at++ {
				cut = cut<<7 | int(b[at]&0x7f)
				if more = b[at]&0x80 != 0; more {
					cut++
				}
			}
		}
		size := bytes.IndexByte(b[at:], 0)
		if size < 0 || cut > len(name) {
			return nil, false
		}
		name = append(name[:len(name)-cut], b[at:at+size]...)
		if at += size + 1; version < 4 {
			at = (at + 7) &^ 7
		}
		if int(flags&0xfff) != min(len(name), 0xfff) || at > len(b) || len(name) > maxGitName || len(links) > maxGitName {
			return nil, false
		}
		if b = b[at:]; mode&0o170000 == 0o160000 {
			links = append(links, string(name))
		}
	}
	return links, true
}
