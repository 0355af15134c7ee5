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
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of one search.
const (
	searchEntries = 100000
	searchDepth   = 64
	searchFile    = 2 << 20   // bytes of a file that are looked at
	searchBytes   = 512 << 20 // of all files
	searchTime    = 30 * time.Second
	searchLine    = 200 // bytes of a line that are shown
)

// A query is what a search looks for.
type query struct {
	glob []string // of names, by component; nil: all
	text []byte   // in lines; nil: names only
	both bool     // names that hold text are hits too
}

func newQuery(args Args) (query, error) {
	pattern, text := args.String("pattern"), args.String("content")
	var q query
	if strings.ContainsAny(pattern, "*?") || text != "" && pattern != "" {
		q.glob = strings.Split(strings.TrimPrefix(pattern, "./"), "/")
		if len(q.glob) == 1 {
			q.glob = []string{"**", q.glob[0]} // a name, in whatever folder
		}
		for _, g := range q.glob {
			if _, err := path.Match(g, ""); err != nil {
				return q, fmt.Errorf("the pattern %q is malformed", g)
			}
		}
		if len(q.glob) > searchDepth {
			return q, fmt.Errorf("the pattern has more than %d parts", searchDepth)
		}
	} else if text == "" {
		text, q.both = pattern, true
	}
	if text != "" {
		q.text = []byte(text)
	} else if q.glob == nil {
		return q, fmt.Errorf("argument %q is missing", "pattern")
	}
	return q, nil
}

// matchGlob matches a path by components; "**" stands for any number of them.
func matchGlob(glob, parts []string) bool {
	// reach[i]: the first i components of glob match the parts read so far.
	reach := make([]bool, len(glob)+1)
	for n := -1; n < len(parts); n++ {
		next := make([]bool, len(glob)+1)
		if n < 0 {
			next[0] = true
		}
		for i, g := range glob {
			switch {
			case g == "**":
				next[i+1] = next[i] || n >= 0 && (reach[i+1] || reach[i])
			case n >= 0 && reach[i]:
				ok, _ := path.Match(g, parts[n])
				next[i+1] = ok
			}
		}
		reach = next
	}
	return reach[len(glob)]
}

type searcher struct {
	target *target
	ctx    context.Context
	query
	skip, limit int

	out                   strings.Builder
	hits, seen, protected int
	read                  int64
	stopped               string // why the walk ended early
}

func (t *target) search(ctx context.Context, args Args) (Output, error) {
	q, err := newQuery(args)
	if err != nil {
		return Output{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	s := &searcher{target: t, ctx: ctx, query: q, skip: int(args.Int("offset")), limit: 100}
	if n := args.Int("limit"); n > 0 {
		s.limit = int(min(n, 1000))
	}
	dir, err := descend(t.root, path.Dir(t.rel), false)
	if err != nil {
		return Output{}, err
	}
	defer dir.Close()
	if info, err := dir.Lstat(path.Base(t.rel)); t.rel != "." && err == nil && info.Mode().IsRegular() {
		s.file(dir, path.Base(t.rel), path.Base(t.rel))
	} else {
		start, err := descend(t.root, t.rel, false)
		if err != nil {
			return Output{}, err
		}
		s.folder(start, "", nil)
		start.Close()
	}
	out := Output{Text: s.out.String()}
	if out.Text == "" {
		out.Text = fmt.Sprintf("(no hits among %d entries)", s.seen)
	}
	if s.protected > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d protected entries are left out", s.protected))
	}
	if s.stopped != "" {
		out.Notes = append(out.Notes, s.stopped)
	}
	return out, nil
}

// folder goes through dir, whose components from the start are parts and whose
// path is prefix. It reports whether to go on.
func (s *searcher) folder(dir *os.Root, prefix string, parts []string) bool {
	entries, more, err := readFolder(dir, maxEntries)
	if err != nil {
		return true
	}
	if more {
		s.stopped = fmt.Sprintf("of %s only the first %d entries were read", showName(cmp.Or(prefix, ".")), maxEntries)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		name := e.Name()
		if name == ".git" {
			continue
		}
		if s.seen++; s.seen > searchEntries || s.ctx.Err() != nil {
			s.stopped = fmt.Sprintf("the search ended after %d entries: start it in a smaller folder", s.seen-1)
			return false
		}
		if s.target.host.Protected(filepath.Join(s.target.path, filepath.FromSlash(prefix), name)) {
			s.protected++
			continue
		}
		at := append(slices.Clip(parts), name)
		rel := path.Join(prefix, name)
		named := s.glob == nil || matchGlob(s.glob, at)
		if (s.text == nil && named || s.both && strings.Contains(name, string(s.text))) && !s.hit(rel, e.IsDir(), "") {
			return false
		}
		switch {
		case e.IsDir() && len(at) < searchDepth:
			sub, err := openFolder(dir, name, false)
			if err != nil {
				continue
			}
			ok := s.folder(sub, rel, at)
			sub.Close()
			if !ok {
				return false
			}
		case e.Type().IsRegular() && s.text != nil && named:
			if !s.file(dir, name, rel) {
				return false
			}
		}
	}
	return true
}

// hit adds one line and reports whether there is room for more.
func (s *searcher) hit(rel string, folder bool, line string) bool {
	if s.hits++; s.hits <= s.skip {
		return true
	}
	if s.hits > s.skip+s.limit || s.out.Len() > maxRead {
		s.stopped = fmt.Sprintf("there are more hits: search on with offset %d", s.hits-1)
		return false
	}
	s.out.WriteString(showName(rel))
	if folder {
		s.out.WriteByte('/')
	}
	s.out.WriteString(line + "\n")
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
		s.stopped = "the search ended after 512 MiB: start it in a smaller folder"
		return false
	}
	if err != nil || bytes.IndexByte(data[:min(len(data), 8192)], 0) >= 0 {
		return true
	}
	number, from := 1, 0
	for {
		i := bytes.Index(data[from:], s.text)
		if i < 0 {
			return true
		}
		at := from + i
		start := bytes.LastIndexByte(data[:at], '\n') + 1
		end := len(data)
		if n := bytes.IndexByte(data[at:], '\n'); n >= 0 {
			end = at + n
		}
		number += bytes.Count(data[min(from, start):start], []byte{'\n'})
		if !s.hit(rel, false, fmt.Sprintf(":%d: %s", number, showLine(data[start:end], at-start))) {
			return false
		}
		if from = end + 1; from > len(data) {
			return true
		}
		number++
	}
}

// showLine returns the part of a line around a hit.
func showLine(line []byte, at int) string {
	start := max(0, min(at-searchLine/4, len(line)-searchLine))
	end := min(len(line), start+searchLine)
	for start > 0 && start < at && !utf8.RuneStart(line[start]) {
		start++
	}
	text := strings.ToValidUTF8(string(bytes.TrimSpace(line[start:end])), "\ufffd")
	if start > 0 {
		text = "…" + text
	}
	if end < len(line) {
		text += "…"
	}
	return text
}
