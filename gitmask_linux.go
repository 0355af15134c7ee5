package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"picket/tools"
)

// Bounds on what is looked at before and after each call.
const (
	maxRepos     = 256
	maxGitDirs   = 4096      // folders in which a repository is looked for
	maxIndexSize = 128 << 20 // bytes
)

var maxGitFiles = 50_000 // of repositories, compared after a call that may write them

// A gitRepo is a repository, or what git would take for one, that git on the
// host could come to read.
type gitRepo struct {
	dot     string      // DIR/.git; DIR itself for a bare one
	kind    fs.FileMode // type of dot: folder, regular file, link; ModeIrregular for a bare one
	text    string      // what the file or link says
	dir     string      // its git directory, "" if it is not followed
	common  string      // the directory that it shares with its worktrees, or dir
	missing []string    // folders of submodules that are not checked out
}

// findRepos finds the repositories at the top of each writable root, in the
// folders just below, and their submodules.
func (s *sandbox) findRepos() []gitRepo {
	var repos []gitRepo
	for _, root := range s.roots {
		if fi, err := os.Lstat(root); err != nil || !fi.IsDir() {
			continue
		}
		s.lookForRepo(&repos, root)
		f, err := os.Open(root)
		if err != nil {
			continue
		}
		entries, _ := f.ReadDir(maxGitDirs)
		f.Close()
		for _, e := range entries {
			if e.IsDir() && e.Name() != ".git" {
				s.lookForRepo(&repos, filepath.Join(root, e.Name()))
			}
		}
	}
	return repos
}

func (s *sandbox) lookForRepo(repos *[]gitRepo, dir string) {
	r := gitRepo{dot: filepath.Join(dir, ".git")}
	known := slices.ContainsFunc(*repos, func(o gitRepo) bool { return o.dot == r.dot })
	if known || len(*repos) >= maxRepos || firstWithin(dir, s.hide) != "" {
		return
	}
	fi, err := os.Lstat(r.dot)
	if err != nil {
		for _, name := range []string{"HEAD", "objects", "refs"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
				return
			}
		}
		*repos = append(*repos, gitRepo{dot: dir, kind: fs.ModeIrregular})
		return
	}
	switch r.kind = fi.Mode().Type(); r.kind {
	case fs.ModeDir:
		r.dir = r.dot
	case fs.ModeSymlink:
		r.text, _ = os.Readlink(r.dot)
		if p, err := filepath.EvalSymlinks(r.dot); err == nil && firstWithin(p, s.roots) != "" {
			r.dir = p
		}
	case 0:
		r.text = readSmall(r.dot)
		r.dir = s.gitFileTarget(r.dot, r.text)
	}
	if r.common = r.dir; r.dir != "" {
		// What lies in a writable root may say anything; what lies beyond leads
		// only upwards.
		if p, ok := followGit(r.dir, readSmall(filepath.Join(r.dir, "commondir"))); ok &&
			(firstWithin(p, s.roots) != "" || firstWithin(r.dir, s.roots) == "" && firstWithin(r.dir, []string{p}) != "" && s.tooWide(p) == "") {
			r.common = p
		}
	}
	var subs []string
	if r.dir != "" {
		for _, name := range s.box.gitlinks(filepath.Join(r.dir, "index")) {
			if p := filepath.Join(dir, name); filepath.IsLocal(name) && noLinks(dir, p) {
				subs = append(subs, p)
				if _, err := os.Lstat(filepath.Join(p, ".git")); err != nil {
					r.missing = append(r.missing, p)
				}
			}
		}
	}
	*repos = append(*repos, r)
	for _, p := range subs {
		s.lookForRepo(repos, p)
	}
}

// gitFileTarget returns the git directory that a .git file names. One beyond
// the writable roots counts only if it points back here, as those of worktrees
// and submodules do: a boxed call could have written the file, but not that.
func (s *sandbox) gitFileTarget(dot, text string) string {
	name, ok := strings.CutPrefix(text, "gitdir:")
	p, exists := followGit(filepath.Dir(dot), name)
	switch {
	case !ok || !exists:
		return ""
	case firstWithin(p, s.roots) != "":
		return p
	case firstWithin(p, s.hide) != "" || s.tooWide(p) != "" || readSmall(filepath.Join(p, "HEAD")) == "":
		return ""
	}
	if back := strings.TrimSpace(readSmall(filepath.Join(p, "gitdir"))); back != "" && resolveParent(back) == dot {
		return p
	}
	for line := range strings.Lines(readSmall(filepath.Join(p, "config"))) {
		key, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(key) == "worktree" {
			if back, ok := followGit(p, value); ok && back == filepath.Dir(dot) {
				return p
			}
		}
	}
	return ""
}

func followGit(dir, text string) (string, bool) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", false
	}
	if !filepath.IsAbs(text) {
		text = filepath.Join(dir, text)
	}
	p, err := filepath.EvalSymlinks(text)
	return p, err == nil
}

// noLinks reports whether p, below dir, is a folder reached without a link.
func noLinks(dir, p string) bool {
	for ; p != dir; p = filepath.Dir(p) {
		if fi, err := os.Lstat(p); err != nil || !fi.IsDir() {
			return false
		}
	}
	return true
}

// gitMounts protects the repositories. Without leave to write, all of a git
// directory is read-only; with it, only what makes git run something is, as far
// as it exists: nothing is created on the host to stand in for it.
func gitMounts(m mountSet, c tools.Command, repos []gitRepo) {
	write := c.GitWrite || c.GitConfig
	ro := func(p string) {
		if fi, err := os.Lstat(p); err == nil && fi.Mode()&fs.ModeSymlink == 0 {
			m.add(mount{dst: p, src: p, kind: mountRO})
		}
	}
	for _, r := range repos {
		if r.kind == 0 {
			ro(r.dot)
		}
		for _, dir := range slices.Compact([]string{r.dir, r.common}) {
			switch {
			case dir == "":
			case !write:
				ro(dir)
			default:
				if _, err := os.Lstat(dir); err == nil {
					m.add(mount{dst: dir, src: dir})
				}
				names := []string{"hooks", "commondir", "gitdir"}
				if !c.GitConfig {
					names = append(names, "config", "config.worktree")
				}
				for _, name := range names {
					ro(filepath.Join(dir, name))
				}
			}
		}
		for _, p := range r.missing {
			ro(p)
		}
	}
}

// gitNotes says what a call changed that git on the host would obey.
func (s *sandbox) gitNotes(c tools.Command, repos []gitRepo, before map[string]string) []string {
	var changed []string
	if c.GitWrite || c.GitConfig {
		after := gitSnapshot(repos)
		for p := range after {
			if before[p] != after[p] {
				changed = append(changed, p)
			}
		}
		for p := range before {
			if _, ok := after[p]; !ok {
				changed = append(changed, p)
			}
		}
	}
	for _, r := range s.findRepos() {
		same := func(o gitRepo) bool { return o.dot == r.dot && o.kind == r.kind && o.text == r.text }
		if !slices.ContainsFunc(repos, same) {
			changed = append(changed, r.dot)
		}
	}
	var notes []string
	if len(repos) >= maxRepos {
		notes = append(notes, fmt.Sprintf("the writable folders hold more repositories than the %d that are protected", maxRepos))
	}
	if len(changed) == 0 {
		return notes
	}
	slices.Sort(changed)
	more := ""
	if n := len(changed); n > 10 {
		changed, more = changed[:10], fmt.Sprintf(" and %d more", n-10)
	}
	return append(notes, fmt.Sprintf("this call changed what git obeys when it is used on this machine: %q%s; look at it before using git there", changed, more))
}

// gitSnapshot describes what makes git run something, or follow a path, in each
// repository: its settings, hooks, links, and the submodules in its index.
func gitSnapshot(repos []gitRepo) map[string]string {
	seen, left := map[string]string{}, maxGitFiles
	var dirs []string
	for _, r := range repos {
		dirs = append(dirs, r.dir, r.common)
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if dir == "" {
			continue
		}
		filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
			if left--; left < 0 {
				seen[dir+" (too large to compare)"] = time.Now().String() // never the same
				return filepath.SkipAll
			}
			if err != nil {
				return nil
			}
			parent := filepath.Dir(p)
			switch {
			case e.Type() == fs.ModeSymlink:
				target, _ := os.Readlink(p)
				seen[p] = "link " + target
			case e.IsDir() && e.Name() == "objects" && isGitDir(parent):
				return filepath.SkipDir
			case !e.Type().IsRegular():
			case e.Name() == "index" && isGitDir(parent):
				links, err := readGitlinks(p)
				seen[p] = fmt.Sprintf("%q %v", links, err)
			case e.Name() == "HEAD" && parent == dir:
				seen[p] = "present"
			case filepath.Base(parent) == "hooks", e.Name() == "git-rebase-todo",
				slices.Contains([]string{"config", "config.worktree", "commondir", "gitdir"}, e.Name()) && isGitDir(parent):
				fi, err := e.Info()
				if b, readErr := os.ReadFile(p); err == nil && readErr == nil {
					seen[p] = fmt.Sprintf("%v %x", fi.Mode(), sha256.Sum256(b))
				}
			}
			return nil
		})
	}
	return seen
}

func isGitDir(p string) bool {
	_, err := os.Lstat(filepath.Join(p, "HEAD"))
	return err == nil || filepath.Base(p) == ".git"
}

// gitlinks reads the submodules in an index, again only if it changed. The
// change time of a file cannot be set.
func (b *box) gitlinks(index string) []string {
	type state struct {
		ino   uint64
		size  int64
		ctime syscall.Timespec
	}
	type entry struct {
		state
		links []string
	}
	var st syscall.Stat_t
	if syscall.Lstat(index, &st) != nil {
		return nil
	}
	now := state{st.Ino, st.Size, st.Ctim}
	if old, ok := b.indexes.Load(index); ok && old.(entry).state == now {
		return old.(entry).links
	}
	links, _ := readGitlinks(index)
	b.indexes.Store(index, entry{now, links})
	return links
}

func readGitlinks(index string) ([]string, error) {
	fi, err := os.Lstat(index)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxIndexSize {
		return nil, errBadIndex
	}
	b, err := os.ReadFile(index)
	if err != nil {
		return nil, errBadIndex
	}
	links, err := parseGitlinks(b, 20) // SHA-1
	if err != nil {
		links, err = parseGitlinks(b, sha256.Size)
	}
	return links, err
}

var errBadIndex = errors.New("the index cannot be read")

// parseGitlinks returns the entries of a git index that are neither files nor
// links: submodules, and folders of a sparse index. hash is the size of an
// object name. (gitformat-index(5), versions 2 to 4.)
func parseGitlinks(b []byte, hash int) ([]string, error) {
	if len(b) < 12+hash || string(b[:4]) != "DIRC" {
		return nil, errBadIndex
	}
	version, n := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if version < 2 || version > 4 {
		return nil, errBadIndex
	}
	set := map[string]bool{}
	body := b[:len(b)-hash]
	at, name := 12, ""
	for range n {
		fixed := 42 + hash
		if len(body)-at < fixed+2 {
			return nil, errBadIndex
		}
		mode := binary.BigEndian.Uint32(body[at+24:])
		p := at + fixed
		if version >= 3 && body[p-2]&0x40 != 0 { // extended flags
			p += 2
		}
		strip := len(name)
		if version == 4 {
			cut, size := gitVarint(body[p:])
			if size == 0 || cut > strip {
				return nil, errBadIndex
			}
			strip, p = cut, p+size
		}
		end := bytes.IndexByte(body[p:], 0)
		if end < 0 {
			return nil, errBadIndex
		}
		name = name[:len(name)-strip] + string(body[p:p+end])
		if length := int(binary.BigEndian.Uint16(body[at+fixed-2:]) & 0xfff); length != min(len(name), 0xfff) {
			return nil, errBadIndex
		}
		if p += end; version == 4 {
			at = p + 1
		} else {
			at += (p - at + 8) &^ 7
		}
		if mode != 0o100644 && mode != 0o100755 && mode != 0o120000 {
			set[name] = true
		}
	}
	for at < len(body) { // extensions: four letters, a size, the data
		if len(body)-at < 8 {
			return nil, errBadIndex
		}
		if string(body[at:at+4]) == "link" {
			set["(entries in a shared index)"] = true
		}
		size := binary.BigEndian.Uint32(body[at+4:])
		if at += 8; uint64(size) > uint64(len(body)-at) {
			return nil, errBadIndex
		}
		at += int(size)
	}
	if at != len(body) {
		return nil, errBadIndex
	}
	return slices.Sorted(maps.Keys(set)), nil
}

// gitVarint reads git's variable-length number, 0 bytes if there is none that
// fits.
func gitVarint(b []byte) (value, size int) {
	for i, c := range b {
		if i > 0 {
			value++
		}
		if value = value<<7 | int(c&0x7f); value > 1<<30 {
			return 0, 0
		}
		if c&0x80 == 0 {
			return value, i + 1
		}
	}
	return 0, 0
}
