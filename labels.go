package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"picket/tools"
)

// Labels of files are in labels.jsonl, which grows by lines of these forms:
//
//	{"sum":…,"ts":…,"call":…,"run":…,"roots":[…],"start":[…],"set":[…]}
//	{"sum":…,"ts":…,"call":…,"set":[…],"files":[{"ino":…,"born":…,"path":…},…],"gone":[…],"done":true}
//	{"sum":…,"ts":…,"clear":PATH,"gone":[…]}
//
// The first is written, and on disk, before a call in a labelled chat may change
// what is below roots. Until one says done, all of that counts as labelled, and if the
// process of the run is gone, whoever opens the file next does what it had left
// to do; so no moment at which a process is killed loses a label. sum is the CRC-32
// of all lines so far, each without its own sum: damage is an error and never
// fewer labels. A last line without its end was not yet written, and is cut off.
//
// A file is known by its inode with the time of its birth (or its device, where
// no birth is kept): a rename, another name and a new mount do not matter, and a
// number that is used again is another file. It is known by the path at which it
// was seen last as well, so that an editor that replaces it keeps its label.
type labelLine struct {
	TS    string      `json:"ts"`
	Call  string      `json:"call,omitempty"`
	Run   string      `json:"run,omitempty"`
	Roots []pathText  `json:"roots,omitempty"`
	Start []int64     `json:"start,omitempty"` // by root, in nanoseconds since 1970 of its file system's clock
	Set   []chatLabel `json:"set,omitempty"`
	Files []labelFile `json:"files,omitempty"`
	Gone  []fileKey   `json:"gone,omitempty"`
	Clear pathText    `json:"clear,omitempty"`
	Done  bool        `json:"done,omitempty"`
	// Unboxed: what the call started can outlive the process that did.
	Unboxed bool `json:"unboxed,omitempty"`

	began time.Time
}

type fileKey struct {
	Dev  uint64 `json:"dev,omitempty"`
	Ino  uint64 `json:"ino,omitempty"`
	Born int64  `json:"born,omitempty"`
}

type labelFile struct {
	fileKey
	Path pathText `json:"path"`
	Tree bool     `json:"tree,omitempty"` // and all that is below it
}

// pathText is a path in JSON. One that is not UTF-8 is written in hex after a NUL.
type pathText string

func (p pathText) MarshalText() ([]byte, error) {
	if utf8.ValidString(string(p)) {
		return []byte(p), nil
	}
	return []byte("\x00" + hex.EncodeToString([]byte(p))), nil
}

func (p *pathText) UnmarshalText(b []byte) error {
	rest, coded := bytes.CutPrefix(b, []byte{0})
	if *p = pathText(b); !coded {
		return nil
	}
	raw, err := hex.DecodeString(string(rest))
	*p = pathText(raw)
	return err
}

// labelled is one file or folder with labels.
type labelled struct {
	key  fileKey
	path string
	tree bool
	set  []chatLabel
	when string
}

// hidden reports whether it cannot be seen whether it is there.
func (e *labelled) hidden() bool {
	_, err := statFile(e.path)
	return errors.Is(err, fs.ErrPermission)
}

func labelsIn(set []chatLabel) Labels { return (&chat{Sources: set}).labels() }

// adds reports whether b has a label that l has not.
func (l Labels) adds(b Labels) bool { return b.Private && !l.Private || b.Untrusted && !l.Untrusted }

func (l Labels) with(b Labels) Labels {
	return Labels{l.Private || b.Private, l.Untrusted || b.Untrusted}
}

const (
	labelsName   = "labels.jsonl"
	maxLabelLine = 16 << 20
	labelBatch   = 500                    // files of one line
	maxSources   = 8                      // of one file
	scanSlack    = 10 * time.Millisecond  // more than a step of the kernel's clock for files
	boxEnd       = 100 * time.Millisecond // within which a box ends after its picket was killed
)

// A labelStore is the labels of all files. Several processes share it.
type labelStore struct {
	dir, path string
	run       string   // id of this process
	hide      []string // picket's own folders, which no call can change
	lock      *fileLock

	// Under the lock:
	id        fileID
	off, size int64 // the end of what was read, all of it whole lines; and of the file then
	sum       uint32
	n         int // lines
	labelState
}

// labelState is what the lines come to.
type labelState struct {
	all    map[*labelled]bool
	byKey  map[fileKey]*labelled // none has the zero key
	byPath map[string]*labelled
	open   map[string]*labelLine // calls that have not ended, by id
}

func openLabels(dir, run string, hide ...string) (*labelStore, error) {
	lock, err := openLock(filepath.Join(dir, "labels.lock"))
	return &labelStore{dir: dir, path: filepath.Join(dir, labelsName), run: run, hide: hide, lock: lock}, err
}

// locked runs fn with the newest state, which nobody changes meanwhile.
func (l *labelStore) locked(fn func() error) error {
	if err := l.lock.Lock(context.Background()); err != nil {
		return err
	}
	defer l.lock.Unlock()
	if err := l.load(); err != nil {
		return err
	}
	for _, w := range l.open {
		if w.Run != l.run && runGone(l.dir, w.Run) {
			time.Sleep(boxEnd)
			if _, err := l.settle(w, w.Unboxed); err != nil {
				return err
			}
		}
	}
	return fn()
}

// load reads what was added. An error names the line, and lasts.
func (l *labelStore) load() error {
	id, size, err := statName(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		l.reset()
		return nil
	}
	if err != nil || l.n > 0 && id == l.id && size == l.size {
		return err
	}
	if l.n == 0 || id != l.id || size < l.size {
		l.reset()
	}
	f, err := os.OpenFile(l.path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.Seek(l.off, io.SeekStart); err != nil {
		return err
	}
	r := bufio.NewReaderSize(f, 64<<10)
	for l.id, l.size = id, size; ; l.n++ {
		raw, err := readBounded(r, maxLabelLine)
		if err == io.EOF {
			return nil
		}
		var line labelLine
		sum := l.sum
		if err == nil {
			line, sum, err = parseLabels(raw, sum)
		}
		if err != nil {
			err = fmt.Errorf("labels file %q, line %d: %v", l.path, l.n+1, err)
			l.reset() // the next look finds it too
			return err
		}
		l.apply(&line)
		l.sum, l.off = sum, l.off+int64(len(raw))+1
	}
}

func (l *labelStore) reset() {
	l.off, l.size, l.sum, l.n = 0, 0, 0, 0
	l.labelState = labelState{map[*labelled]bool{}, map[fileKey]*labelled{}, map[string]*labelled{}, map[string]*labelLine{}}
}

var labelSum = crc32.MakeTable(crc32.Castagnoli)

func parseLabels(raw []byte, sum uint32) (line labelLine, _ uint32, err error) {
	head, rest, _ := bytes.Cut(raw, []byte(","))
	sum = crc32.Update(sum, labelSum, rest)
	if string(head) != fmt.Sprintf(`{"sum":"%08x"`, sum) {
		return line, sum, errors.New("it is damaged, or one before it is missing")
	}
	d := json.NewDecoder(io.MultiReader(strings.NewReader("{"), bytes.NewReader(rest)))
	d.DisallowUnknownFields()
	return line, sum, d.Decode(&line)
}

// append writes lines, under the lock, and takes them in. Long ones become several.
func (l *labelStore) append(sync bool, given ...labelLine) error {
	var lines []labelLine
	for _, line := range given {
		for len(line.Files)+len(line.Gone) > labelBatch {
			part := labelLine{Call: line.Call, Set: line.Set}
			if n := min(len(line.Files), labelBatch); n > 0 {
				part.Files, line.Files = line.Files[:n], line.Files[n:]
			} else {
				part.Gone, line.Gone = line.Gone[:labelBatch], line.Gone[labelBatch:]
			}
			lines = append(lines, part)
		}
		lines = append(lines, line)
	}
	var b []byte
	sum := l.sum
	for i := range lines {
		lines[i].TS = time.Now().UTC().Format(timeLayout)
		one, err := marshalPlain(lines[i])
		if err != nil {
			return err
		}
		sum = crc32.Update(sum, labelSum, one[1:])
		b = fmt.Appendf(b, "{\"sum\":\"%08x\",%s\n", sum, one[1:])
	}
	if err := l.put(b, sync); err != nil {
		l.reset()
		return fmt.Errorf("labels file %q: %w", l.path, err)
	}
	for i := range lines {
		l.apply(&lines[i])
	}
	l.off += int64(len(b))
	l.size, l.sum, l.n = l.off, sum, l.n+len(lines)
	return nil
}

func (l *labelStore) put(b []byte, sync bool) error {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|noFollow, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if l.size > l.off {
		err = f.Truncate(l.off)
	}
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil && sync {
		err = syncData(f)
	}
	if err == nil && l.n == 0 {
		err = syncDir(l.dir)
	}
	if err == nil {
		l.id, err = idOf(f)
	}
	return err
}

func (s *labelState) apply(line *labelLine) {
	if p := s.open[line.Call]; line.Done && p != nil {
		delete(s.open, line.Call)
		// A call that runs beside it can have moved what it wrote away from under
		// the scan, so that one's scan looks as far back.
		for _, o := range s.open {
			for i := range o.Start {
				o.Start[i] = min(o.Start[i], slices.Min(p.Start))
			}
		}
	}
	if len(line.Roots) > 0 && len(line.Start) == len(line.Roots) {
		p := *line
		p.Start = slices.Clone(line.Start)
		s.open[line.Call] = &p
	}
	if line.Clear != "" {
		for e := range s.all {
			if within(e.path, string(line.Clear)) {
				s.drop(e)
			}
		}
	}
	for _, k := range line.Gone {
		if e := s.byKey[k]; e != nil {
			s.drop(e)
		}
	}
	for _, f := range line.Files {
		path, set := string(f.Path), line.Set
		e, old := s.byKey[f.fileKey], s.byPath[path]
		if old != nil { // what is put in the place of a labelled file
			set = append(slices.Clip(old.set), set...)
		}
		if e == nil {
			if e = (&labelled{when: line.TS}); f.fileKey == (fileKey{}) && old != nil {
				e = old
			}
		}
		for _, lb := range set {
			if has := labelsIn(e.set); !slices.Contains(e.set, lb) && (len(e.set) < maxSources || has.adds(labelsIn([]chatLabel{lb}))) {
				e.set = append(slices.Clip(e.set), lb)
			}
		}
		if s.drop(e); old != nil && old.key == (fileKey{}) { // e is the same file, with more known of it
			s.drop(old)
			e.tree = e.tree || old.tree
		}
		e.key, e.path, e.tree = f.fileKey, path, f.Tree || e.tree
		if s.all[e], s.byPath[path] = true, e; e.key != (fileKey{}) {
			s.byKey[e.key] = e
		}
	}
}

func (s *labelState) drop(e *labelled) {
	delete(s.all, e)
	delete(s.byKey, e.key)
	if s.byPath[e.path] == e {
		delete(s.byPath, e.path)
	}
}

// labelHits are the paths of what was found to be labelled, by label.
type labelHits map[string][]string

func (h labelHits) add(path string, set []chatLabel) {
	for _, l := range set {
		h[l.Label] = append(h[l.Label], path)
	}
}

func (h labelHits) labels() Labels { return Labels{h["private"] != nil, h["untrusted"] != nil} }

// sources are the labels as a chat gets them, one of each.
func (h labelHits) sources(workspace string) (out []chatLabel) {
	for _, label := range slices.Sorted(maps.Keys(h)) {
		paths := slices.Compact(slices.Sorted(slices.Values(h[label])))
		source := paths[0]
		if rel, err := filepath.Rel(workspace, source); err == nil && filepath.IsLocal(rel) {
			source = rel
		}
		source = "file " + strings.ToValidUTF8(source, "\uFFFD")
		if len(paths) > 1 {
			source += fmt.Sprintf(" and %d more", len(paths)-1)
		}
		out = append(out, chatLabel{label, source})
	}
	return out
}

// at adds the labels of the file or folder that a path names, also those by which
// a folder above it is labelled as a whole, or a call that is running there now,
// other than call itself.
func (l *labelStore) at(path, call string, h labelHits) {
	for dir := path; len(l.all)+len(l.open) > 0; dir = filepath.Dir(dir) {
		st, _ := statFile(dir)
		for _, e := range []*labelled{l.byPath[dir], l.byKey[st.key]} {
			if e != nil && (e.tree || dir == path) {
				h.add(dir, e.set)
			}
		}
		for id, w := range l.open {
			if id != call && slices.Contains(w.Roots, pathText(dir)) {
				h.add(dir, w.Set)
			}
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// under adds labelled files that lie under roots, or in the further folders that
// are shown, as far as they bring labels that are not in have. What is no longer
// where it was seen last is looked for under roots. Without deep it is about what
// the one root holds, and no deeper.
func (l *labelStore) under(roots, shown []string, deep bool, call string, have Labels, h labelHits) error {
	for _, root := range roots {
		l.at(root, call, h)
		for id, w := range l.open {
			for _, r := range w.Roots {
				if id != call && within(string(r), root) {
					h.add(string(r), w.Set)
				}
			}
		}
	}
	lost := map[fileKey]*labelled{}
	for e := range l.all {
		if !have.adds(labelsIn(e.set)) {
			continue
		}
		inside := filepath.Dir(e.path) == roots[0]
		if deep {
			inside = firstWithin(e.path, roots) != "" || firstWithin(e.path, shown) != ""
		}
		switch st, err := statFile(e.path); {
		case err == nil && inside:
			h.add(e.path, e.set)
		case err == nil && st.key == e.key && (st.links <= 1 || st.dir): // here and nowhere else
		case e.key != fileKey{}:
			lost[e.key] = e
		}
	}
	var found labelLine
	for _, root := range roots {
		maps.DeleteFunc(lost, func(_ fileKey, e *labelled) bool { return !have.with(h.labels()).adds(labelsIn(e.set)) })
		if len(lost) == 0 {
			break
		}
		err := l.scan(root, deep, func(path string, st fileStat) error {
			if e := lost[st.key]; e != nil {
				h.add(path, e.set)
				found.Files = append(found.Files, labelFile{fileKey: st.key, Path: pathText(path)})
				delete(lost, st.key)
			}
			return nil
		})
		for k, e := range lost {
			switch {
			case !within(e.path, root):
			case err != nil: // it could be there
				h.add(e.path, e.set)
			case deep && len(l.open) == 0 && !e.hidden():
				found.Gone = append(found.Gone, k)
			}
		}
	}
	if len(found.Files)+len(found.Gone) == 0 {
		return nil
	}
	return l.append(false, found)
}

// of returns the labels of a file, but for those of a call that is under way.
func (l *labelStore) of(path, call string) (set []chatLabel, err error) {
	if l == nil {
		return nil, nil
	}
	h := labelHits{}
	err = l.locked(func() error { l.at(path, call, h); return nil })
	return h.sources(""), err
}

// set labels a file for a command of the owner's.
func (l *labelStore) set(path string, set []chatLabel) error {
	return l.locked(func() error {
		st, _ := statFile(path)
		return l.append(true, labelLine{Set: set, Files: []labelFile{{st.key, pathText(path), false}}}, labelLine{Done: true})
	})
}

// clear takes the labels from a file, or from all that lies under a folder, and
// returns from how many.
func (l *labelStore) clear(path string) (n int, err error) {
	err = l.locked(func() error {
		line := labelLine{Clear: pathText(path)}
		st, _ := statFile(path)
		for e := range l.all {
			switch {
			case e.tree && e.path != path && within(path, e.path):
				return fmt.Errorf("%q is labelled as a whole: picket labels clear %s", e.path, shellWord(e.path))
			case within(e.path, path):
				n++
			case e.key == st.key && e == l.byKey[st.key]:
				line.Gone = []fileKey{st.key}
				n++
			}
		}
		if n == 0 {
			return fmt.Errorf("nothing at %q has labels", path)
		}
		return l.append(true, line)
	})
	return n, err
}

// fileLabels are the labels of files that a judged call brings into its chat.
func (s *Sentinel) fileLabels(c *callState) ([]chatLabel, error) {
	l, action, h := s.labels, c.args.String("action"), labelHits{}
	if l == nil {
		return nil, nil
	}
	err := l.locked(func() error {
		switch {
		case runsCode(c.tool.Name):
			shown := append(slices.Clone(s.resolver.box.readOnly), readOnlyFolders...)
			return l.under(s.resolver.roots, shown, true, c.id, c.t.Chat.labels(), h)
		case c.tool.Name != tools.Files.Name || len(c.j.Bound) == 0 || action == "write": // which tells nothing of what was there
			return nil
		case action == "search" || action == "list":
			return l.under(c.j.Bound[:1], nil, action == "search", c.id, c.t.Chat.labels(), h)
		}
		l.at(c.j.Bound[0], c.id, h)
		return nil
	})
	return h.sources(s.host.Workspace), err
}

func runsCode(tool string) bool { return tool == tools.Shell.Name || tool == tools.Python.Name }

// mayChange are the files and folders that a call may change.
func (s *Sentinel) mayChange(c *callState) []string {
	switch {
	case runsCode(c.tool.Name):
		return s.resolver.roots
	case c.tool.Name != tools.Files.Name || len(c.j.Writes) == 0 || len(c.j.Bound) == 0:
		return nil
	}
	path := c.j.Bound[0]
	for dir := filepath.Dir(path); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil {
			break
		}
		path = dir // the call makes it too
	}
	return []string{path}
}

// follow labels the chat with what a call brings in, before it runs and whatever
// comes of it. What it returns is to be called once with the output: it labels the
// files that the call changed in a labelled chat, and the chat with what became
// labelled meanwhile. If that fails, the output is withheld.
func (s *Sentinel) follow(ctx context.Context, c *callState) (func(tools.Output) tools.Output, error) {
	err := s.label(ctx, c.t, append(c.labels(), c.reads...)...)
	if err != nil || s.labels == nil || !runsCode(c.tool.Name) && c.tool.Name != tools.Files.Name {
		return func(out tools.Output) tools.Output { return out }, err
	}
	roots := s.mayChange(c)
	w, err := s.labels.begin(c.id, roots, oneOfEach(c.t.Chat.Sources), runsCode(c.tool.Name) && !c.j.Boxed)
	return func(out tools.Output) tools.Output {
		var files []labelFile
		reads, err := s.fileLabels(c)
		if err == nil {
			err = s.label(ctx, c.t, reads...)
		}
		if err == nil {
			files, err = s.labels.end(w, oneOfEach(c.t.Chat.Sources))
		}
		if err == nil && len(files) > 0 {
			err = s.log.Append(context.WithoutCancel(ctx), false, s.fileRecords(c, files, roots)...)
		}
		if err != nil {
			s.debug("labels of call %s: %v", c.id, err)
			out = tools.Output{Err: "it ran, but the labels of what it changed could not be kept, so its output is withheld"}
		}
		return out
	}, err
}

// oneOfEach bounds the sources that go with a file: the first of each label.
func oneOfEach(all []chatLabel) (out []chatLabel) {
	for _, l := range all {
		if !slices.ContainsFunc(out, func(o chatLabel) bool { return o.Label == l.Label }) {
			out = append(out, l)
		}
	}
	return out
}

// fileRecords are the records of files that were labelled: one each, or one for
// all of them where they are many.
func (s *Sentinel) fileRecords(c *callState, files []labelFile, roots []string) (recs []Record) {
	source := c.tool.Name
	if len(files) > 8 {
		source, files = fmt.Sprintf("%s: %d files", source, len(files)), []labelFile{{Path: pathText(roots[0])}}
	}
	for _, f := range files {
		recs = append(recs, c.record(labelRecord{Set: c.t.Chat.labels().List(), Source: source, Path: s.redact(string(f.Path))}))
	}
	return recs
}
