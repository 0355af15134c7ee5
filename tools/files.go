package tools

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxRead = 256 << 10 // bytes of one read
	// readMargin is what is looked at around a read for secrets that its ends cut:
	// the longest form of one is shorter.
	readMargin = 96 << 10
	MaxUndo    = 16 << 20 // bytes of a file up to which its previous content is kept
	maxPath    = 4096     // bytes
)

// Files reads and changes files under the workspace and the extra roots.
var Files = Tool{
	Name: "files",
	Description: "Read, list, search and change files in the workspace. Paths are relative to it, absolute, or start with ~/." +
		" read: text from byte offset, at most limit bytes (256 KiB). list: a folder." +
		" search: pattern with * or ? finds names (\"*.go\", \"src/**/*.ts\"); any other pattern is text looked for as it stands" +
		" in names and lines; with content, content is the text and pattern the names to look in." +
		" write: replace or create. append: add at the end. edit: replace old, which must occur exactly once, by content.",
	Params: []Param{
		{Name: "action", Type: "string", Required: true, Enum: []string{"read", "list", "search", "write", "append", "edit"}},
		{Name: "path", Type: "string", Description: "file or folder; list and search start in the workspace without it"},
		{Name: "content", Type: "string", Description: "what to write, append or put in place of old"},
		{Name: "old", Type: "string", Description: "for edit: the text to replace, as it stands in the file"},
		{Name: "pattern", Type: "string", Description: "for search: part of a name with * or ?, or text"},
		{Name: "limit", Type: "integer", Min: 1, Max: maxRead, Description: "read: bytes; list, search: entries"},
		{Name: "offset", Type: "integer", Min: 0, Max: 1 << 50, Description: "read: first byte; list, search: entries to skip"},
	},
	Risk:    Safe,
	Egress:  EgressNone,
	Assess:  assessFiles,
	Judge:   judgeFiles,
	Change:  filesChange,
	Execute: runFiles,
}

func changes(action string) bool { return action == "write" || action == "append" || action == "edit" }

func assessFiles(args Args) (Plan, error) {
	action, name := args.String("action"), args.String("path")
	folder, write := action == "list" || action == "search", changes(action)
	if name == "" && folder {
		name = "."
	}
	switch {
	case name == "":
		return Plan{}, fmt.Errorf("argument %q is missing", "path")
	case len(name) > maxPath:
		return Plan{}, fmt.Errorf("the path is longer than %d bytes", maxPath)
	case !folder && (strings.HasSuffix(name, "/") || os.IsPathSeparator(name[len(name)-1])):
		return Plan{}, fmt.Errorf("the path ends in a slash, which names a folder")
	case write && showName(name) != name:
		return Plan{}, fmt.Errorf("the path holds an invisible or control character")
	case write && !args.Has("content"):
		return Plan{}, fmt.Errorf("argument %q is missing", "content")
	case action == "edit" && (args.String("old") == "" || args.String("old") == args.String("content")):
		return Plan{}, fmt.Errorf("argument %q must be the text to replace, and differ from content", "old")
	}
	if action == "search" {
		if _, err := newQuery(args); err != nil {
			return Plan{}, err
		}
	}
	return Plan{Paths: []PathUse{{Name: name, Write: write}}}, nil
}

func judgeFiles(args Args, plan Plan, facts Facts) Judgement {
	action := args.String("action")
	write := changes(action)
	j := Judgement{
		Risk:      Safe,
		Widest:    Task,
		WidestWhy: "each change of a file is looked at on its own",
		Egress:    Egress{Kind: EgressNone},
	}
	if len(plan.Paths) != 1 {
		j.Refuse = "the call was not assessed"
		return j
	}
	name := plan.Paths[0].Name
	fact, known := facts.Paths[name]
	j.Summary = "files " + action + " " + name
	switch action {
	case "write", "append":
		j.Summary += fmt.Sprintf(" (%d bytes)", len(args.String("content")))
	case "search":
		j.Summary += " for " + strings.TrimSpace(args.String("pattern")+" "+args.String("content"))
	}
	full := absolute(name, facts)
	j.Forms = map[string][]string{"path": spellings(facts.Workspace, full, fact.Resolved)}
	j.Bound = []string{fact.Resolved}
	if write && fact.Regular { // what an answer was about is the change of this content
		j.Bound = append(j.Bound, fmt.Sprintf("%d bytes of %d", fact.Size, fact.Changed))
	}
	switch {
	case !known || fact.Resolved == "" || fact.Place == Protected:
		j.Refuse = name + " may not be touched by any tool"
		return j
	case fact.Place != Workspace && fact.Place != ExtraRoot:
		j.Refuse = name + " is outside the workspace (and extra_roots names no folder that holds it)"
		return j
	case fact.Exists && !fact.Dir && !fact.Regular:
		j.Refuse = name + " is no regular file"
		return j
	}
	if fact.Resolved != full {
		j.Summary += " → " + fact.Resolved
	}
	if fact.Place == ExtraRoot {
		j.Risk, j.ReadsPrivate = Moderate, true
		j.Why = append(j.Why, "outside the workspace")
		if write {
			j.Risk, j.ChangesOutside = Sensitive, true
		}
	}
	if !write {
		return j
	}
	j.Writes = []string{name}
	if fact.Size > MaxUndo {
		j.Risk = Sensitive
		j.Why = append(j.Why, fmt.Sprintf("larger than %d MiB: cannot be undone", MaxUndo>>20))
	}
	inside := fact.Resolved
	if rel, ok := below(facts.Workspace, inside); ok { // where the workspace itself lies is the owner's choice
		inside = rel
	}
	if why := startedLater(inside); why != "" {
		j.Warnings = append(j.Warnings, name+" "+why)
	}
	return j
}

// absolute is the path as named, without looking at links.
func absolute(name string, facts Facts) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		return filepath.Join(facts.Home, rest)
	}
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(facts.Workspace, name)
}

// spellings are the forms of paths that rules are tried on: absolute, and from
// the workspace for what lies there.
func spellings(workspace string, paths ...string) (out []string) {
	for _, p := range paths {
		if out = append(out, p); workspace != "" && p != "" {
			if rel, ok := below(workspace, p); ok {
				out = append(out, rel)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(slices.DeleteFunc(out, func(p string) bool { return p == "" }))
}

// A target is the file or folder of one call.
type target struct {
	root     *os.Root
	rootPath string
	rel      string // from root, with slashes; "." is the root itself
	path     string // absolute and resolved
	host     *Host
}

// locate finds the root of the path that was approved.
func locate(call *Call) (*target, error) {
	if len(call.Judgement.Bound) == 0 || call.Host == nil || call.Host.Protected == nil {
		return nil, errors.New("the call was not judged")
	}
	t := &target{path: call.Judgement.Bound[0], host: call.Host}
	for _, root := range append([]string{call.Host.Workspace}, call.Host.ExtraRoots...) {
		if rel, ok := below(root, t.path); ok && filepath.IsAbs(root) && len(root) > len(t.rootPath) {
			t.rootPath, t.rel = root, rel
		}
	}
	if t.rootPath == "" {
		return nil, errors.New("it is outside the workspace")
	}
	if t.host.Protected(t.path) {
		return nil, errors.New("it may not be touched by any tool")
	}
	var err error
	t.root, err = os.OpenRoot(t.rootPath)
	return t, err
}

func runFiles(ctx context.Context, call *Call) Output {
	if len(call.Plan.Paths) != 1 {
		return Output{Err: "the call was not assessed"}
	}
	name := call.Plan.Paths[0].Name
	t, err := locate(call)
	if err != nil {
		return Output{Err: name + ": " + plainError(err)}
	}
	defer t.root.Close()
	var out Output
	switch call.Args.String("action") {
	case "read":
		out, err = t.read(name, call.Args)
	case "list", "search":
		out, err = t.search(ctx, call.Args)
	default:
		out, err = t.change(name, call)
	}
	if err != nil {
		return Output{Err: name + ": " + plainError(err)}
	}
	out.Bytes = max(out.Bytes, int64(len(out.Text)))
	return out
}

// plainError leaves out the operation and the part of the path that os adds.
func plainError(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err.Error()
	}
	return err.Error()
}

func (t *target) read(name string, args Args) (Output, error) {
	dir, err := descend(t.root, path.Dir(t.rel), false)
	if err != nil {
		return Output{}, err
	}
	defer dir.Close()
	f, info, err := OpenRegular(dir, path.Base(t.rel))
	if err != nil {
		if st, e := dir.Lstat(path.Base(t.rel)); e == nil && st.IsDir() {
			err = errors.New("it is a folder: use list")
		}
		return Output{}, err
	}
	defer f.Close()
	offset, limit := args.Int("offset"), max(cmp.Or(args.Int("limit"), maxRead), 16)
	// What lies around is read too, so that a secret which the ends of the window
	// cut is seen.
	lead := min(offset, readMargin)
	around, err := io.ReadAll(io.NewSectionReader(f, offset-lead, lead+min(limit, maxRead)+readMargin))
	if err != nil {
		return Output{}, err
	}
	text := around[min(lead, int64(len(around))):]
	text = text[:min(limit, maxRead, int64(len(text)))]
	if len(text) == 0 {
		return Output{Text: fmt.Sprintf("(nothing at offset %d: the file has %d bytes)", offset, info.Size())}, nil
	}
	end := offset + int64(len(text))
	start := offset
	for i := 0; offset > 0 && i < utf8.UTFMax-1 && len(text) > 0 && !utf8.RuneStart(text[0]); i++ {
		text, start = text[1:], start+1
	}
	for i := 1; i < utf8.UTFMax && end < info.Size() && len(text) > 0; i++ { // a character that is cut is left for the next read
		if r, n := utf8.DecodeLastRune(text); r != utf8.RuneError || n != 1 {
			break
		}
		text, end = text[:len(text)-1], end-1
	}
	if bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text) {
		return Output{Text: fmt.Sprintf("%s: %d bytes that are not UTF-8 text: not shown", name, info.Size())}, nil
	}
	from := start - offset + lead
	out := Output{Text: t.host.shown(string(around), int(from), int(from)+len(text))}
	if end < info.Size() {
		out.Notes = []string{fmt.Sprintf("up to byte %d of %d: read on with offset %d", end, info.Size(), end)}
	}
	return out, nil
}

// showName keeps a name on one line.
func showName(name string) string {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return invisible(r) || r < ' ' }) {
		return fmt.Sprintf("%+q", name)
	}
	return name
}

// An edit is what a call makes of a file.
type edit struct {
	dir        *os.Root // its folder; the caller closes it
	base       string
	old        fs.FileInfo // nil: there is no such file
	prev, next []byte      // prev is nil too if the file is too large to be kept
}

// prepare reads what a call changes and works out what becomes of it. With
// create it makes the folders that are missing.
func (t *target) prepare(call *Call, create bool) (e *edit, err error) {
	action, content := call.Args.String("action"), []byte(call.Args.String("content"))
	e = &edit{base: path.Base(t.rel), next: content}
	if e.dir, err = descend(t.root, path.Dir(t.rel), create && action != "edit"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.dir.Close()
		}
	}()
	f, old, err := OpenRegular(e.dir, e.base)
	if errors.Is(err, fs.ErrNotExist) && action != "edit" {
		return e, nil
	} else if err != nil {
		return e, err
	}
	defer f.Close()
	e.old = old
	switch large := old.Size() > MaxUndo; {
	case old.Mode().Perm()&0o222 == 0:
		return e, errors.New("it is read-only")
	case large && (action != "write" || call.Judgement.Risk != Sensitive):
		return e, fmt.Errorf("it is larger than %d MiB: change it with a shell command", MaxUndo>>20)
	case large:
		return e, nil
	}
	if e.prev, err = io.ReadAll(io.LimitReader(f, MaxUndo+1)); err != nil {
		return e, err
	}
	switch action {
	case "append":
		e.next = slices.Concat(e.prev, content)
	case "edit":
		e.next, err = editText(e.prev, []byte(call.Args.String("old")), content)
	}
	return e, err
}

// filesChange is Tool.Change of Files.
func filesChange(call *Call) (change FileChange, ok bool) {
	action := call.Args.String("action")
	if !changes(action) || len(call.Plan.Paths) != 1 {
		return change, false
	}
	t, err := locate(call)
	if err != nil {
		return change, false
	}
	defer t.root.Close()
	change = FileChange{Path: call.Plan.Paths[0].Name, Created: true, New: call.Args.String("content")}
	e, err := t.prepare(call, false)
	if err != nil { // a new file in a new folder is one too
		return change, errors.Is(err, fs.ErrNotExist) && action != "edit"
	}
	defer e.dir.Close()
	if e.old == nil {
		return change, true
	}
	change.Created, change.Old, change.New = false, string(e.prev), string(e.next)
	return change, e.prev != nil && utf8.Valid(e.prev)
}

// change runs write, append and edit.
func (t *target) change(name string, call *Call) (out Output, err error) {
	e, err := t.prepare(call, true)
	if err != nil {
		return out, err
	}
	defer e.dir.Close()
	if e.old == nil || e.prev != nil {
		err = errors.New("nothing keeps it")
		if call.Host.Keep != nil {
			err = call.Host.Keep(t.path, e.prev, e.next)
		}
		if err != nil {
			return out, fmt.Errorf("its previous content cannot be kept: %w", err)
		}
	}
	if err := ReplaceFile(e.dir, e.base, e.old, e.next); err != nil {
		return out, err
	}
	if out.Text = fmt.Sprintf("%s: %d bytes", name, len(e.next)); e.old == nil {
		out.Text += ", new"
	}
	if why := runLater(t.rel); why != "" {
		out.Notes = []string{name + " " + why}
	}
	return out, nil
}

// editText replaces the one occurrence of old in text.
func editText(text, old, with []byte) ([]byte, error) {
	at := bytes.Index(text, old)
	switch {
	case !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0:
		return nil, errors.New("it is not UTF-8 text")
	case at >= 0 && at == bytes.LastIndex(text, old):
		return slices.Concat(text[:at], with, text[at+len(old):]), nil
	case at >= 0:
		return nil, errors.New("old occurs more than once in it: add the lines around it")
	case bytes.Contains(text, []byte("\r\n")):
		return nil, errors.New("old does not occur in it: read it again, and note that its lines end in \\r\\n")
	}
	return nil, errors.New("old does not occur in it: read it again")
}
