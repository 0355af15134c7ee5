package tools

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of one search or listing.
const (
	maxEntries    = 20000 // of one folder
	searchEntries = 100000
	searchDepth   = 64
	searchFile    = 2 << 20   // bytes of a file that are looked at
	searchBytes   = 512 << 20 // of all files
	searchTime    = 30 * time.Second
	searchLine    = 200 // bytes of a line that are shown
)

// A query is what a search looks for. A listing is a search for all names of one
// folder.
type query struct {
	list  bool
	names *regexp.Regexp // of paths from the start; nil: all
	text  []byte         // in lines; nil: names only
	both  bool           // names that hold text are hits too
}

func newQuery(args Args) (q query, err error) {
	pattern, text := args.String("pattern"), args.String("content")
	switch {
	case args.String("action") == "list":
		q.list = true
	case pattern == "" && text == "":
		return q, fmt.Errorf("argument %q is missing", "pattern")
	case len(pattern) > maxPath:
		return q, fmt.Errorf("the pattern is longer than %d bytes", maxPath)
	case pattern == "":
		q.text = []byte(text)
	case text == "" && !strings.ContainsAny(pattern, "*?"):
		q.text, q.both = []byte(pattern), true
	default:
		q.text, q.names = []byte(text), globRegexp(pattern)
	}
	return q, nil
}

// globRegexp reads a pattern in which * and ? stand for characters of one name
// and ** for any number of folders. Without a slash it is that of a name in
// whatever folder.
func globRegexp(glob string) *regexp.Regexp {
	if glob = strings.TrimPrefix(glob, "./"); !strings.Contains(glob, "/") {
		glob = "**/" + glob
	}
	form := strings.NewReplacer(`\*\*/`, `(?:.*/)?`, `/\*\*`, `(?:/.*)?`, `\*\*`, `.*`, `\*`, `[^/]*`, `\?`, `[^/]`)
	return regexp.MustCompile(`(?s)^` + form.Replace(regexp.QuoteMeta(glob)) + `$`)
}

type searcher struct {
	query
	target      *target
	ctx         context.Context
	skip, limit int

	out                   strings.Builder
	hits, seen, protected int
	read                  int64
	stopped               string // why the walk ended early
}

func (t *target) search(ctx context.Context, args Args) (out Output, err error) {
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	s := &searcher{target: t, ctx: ctx, skip: int(args.Int("offset")), limit: int(min(cmp.Or(args.Int("limit"), 200), 1000))}
	if s.query, err = newQuery(args); err != nil {
		return out, err
	}
	dir, err := descend(t.root, path.Dir(t.rel), false)
	if err != nil {
		return out, err
	}
	defer dir.Close()
	name := path.Base(t.rel)
	if info, err := dir.Lstat(name); err == nil && info.Mode().IsRegular() && !s.list {
		s.file(dir, name, name)
	} else {
		start, err := openFolder(dir, name, false)
		if err != nil {
			return out, err
		}
		defer start.Close()
		s.folder(start, "", 0)
	}
	none := fmt.Sprintf("(no hits among %d entries)", s.seen)
	if s.list && s.seen == 0 {
		none = "(the folder is empty)"
	}
	out.Text = cmp.Or(s.out.String(), none)
	if s.protected > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d protected or denied entries are left out", s.protected))
	}
	if s.stopped != "" {
		out.Notes = append(out.Notes, s.stopped)
	}
	return out, nil
}

// folder goes through dir, whose path from the start is prefix, and reports
// whether to go on.
func (s *searcher) folder(dir *os.Root, prefix string, depth int) bool {
	entries, err := s.readFolder(dir)
	if err != nil {
		s.stopped = fmt.Sprintf("a folder could not be read: %s", plainError(err))
	}
	if err != nil || depth == searchDepth {
		return true
	}
	for _, e := range entries {
		if e.Name() == ".git" && !s.list {
			continue
		}
		if s.seen++; s.seen > searchEntries || s.ctx.Err() != nil {
			s.stopped = fmt.Sprintf("the search ended after %d entries: start it in a smaller folder", s.seen-1)
			return false
		}
		rel := path.Join(prefix, e.Name())
		if s.target.host.Protected(filepath.Join(s.target.path, filepath.FromSlash(rel))) {
			s.protected++
		} else if !s.entry(dir, e, rel, depth) {
			return false
		}
	}
	return true
}

// readFolder reads at most maxEntries, by name.
func (s *searcher) readFolder(dir *os.Root) ([]fs.DirEntry, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries)
	if len(entries) == maxEntries {
		s.stopped = fmt.Sprintf("of a folder only %d entries were read", maxEntries)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	if err == io.EOF {
		err = nil
	}
	return entries, err
}

func (s *searcher) entry(dir *os.Root, e fs.DirEntry, rel string, depth int) bool {
	named := s.names == nil || s.names.MatchString(rel)
	if len(s.text) == 0 && named || s.both && strings.Contains(e.Name(), string(s.text)) {
		if !s.hit(rel, s.kind(dir, e)) {
			return false
		}
	}
	switch {
	case s.list:
	case e.IsDir():
		sub, err := openFolder(dir, e.Name(), false)
		if err != nil {
			break
		}
		defer sub.Close()
		return s.folder(sub, rel, depth+1)
	case len(s.text) > 0 && named && e.Type().IsRegular():
		return s.file(dir, e.Name(), rel)
	}
	return true
}

// kind is what stands after a name.
func (s *searcher) kind(dir *os.Root, e fs.DirEntry) string {
	if e.IsDir() {
		return "/"
	}
	info, err := dir.Lstat(e.Name())
	switch {
	case !s.list || err != nil:
		return ""
	case info.Mode()&fs.ModeSymlink != 0:
		to, _ := dir.Readlink(e.Name())
		return " -> " + showName(to)
	case info.Mode().IsRegular():
		return fmt.Sprintf("  %d", info.Size())
	}
	return "  (" + kindOf(info.Mode()) + ")"
}

// hit adds one line and reports whether there is room for more.
func (s *searcher) hit(rel, rest string) bool {
	if s.hits++; s.hits <= s.skip {
		return true
	}
	if s.hits > s.skip+s.limit || s.out.Len() > maxRead {
		s.stopped = fmt.Sprintf("there are more: go on with offset %d", s.hits-1)
		return false
	}
	s.out.WriteString(showName(rel) + rest + "\n")
	return true
}

// file looks for the text in one file and reports whether to go on.
func (s *searcher) file(dir *os.Root, name, rel string) bool {
	f, _, err := OpenRegular(dir, name)
	if err != nil {
		return true
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, searchFile))
	if s.read += int64(len(data)); s.read > searchBytes {
		s.stopped = fmt.Sprintf("the search ended after %d MiB: start it in a smaller folder", searchBytes>>20)
		return false
	}
	if err != nil || !bytes.Contains(data, s.text) || bytes.IndexByte(data[:min(len(data), 8192)], 0) >= 0 {
		return true
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if at := bytes.Index(line, s.text); at >= 0 && !s.hit(rel, fmt.Sprintf(":%d: %s", number, s.showLine(line, at))) {
			return false
		}
	}
	return true
}

// showLine returns the part of a line around a hit.
func (s *searcher) showLine(line []byte, at int) string {
	line = bytes.TrimRight(line, "\r\n")
	start := max(0, min(at-searchLine/4, len(line)-searchLine))
	end := min(len(line), start+searchLine)
	for start > 0 && start < at && !utf8.RuneStart(line[start]) {
		start++
	}
	text := s.target.host.shown(string(line), start, end)
	text = strings.ToValidUTF8(strings.TrimSpace(text), "\ufffd")
	if start > 0 {
		text = "…" + text
	}
	if end < len(line) {
		text += "…"
	}
	return text
}
