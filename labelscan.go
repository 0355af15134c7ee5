package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// What a call has changed is found by a scan of the folders that it could write
// to, for what has a time of change that is not before the call's.

// fileStat is what a scan needs to know of a file.
type fileStat struct {
	key     fileKey
	dev     uint64
	changed int64 // its inode or content; no program can set it
	links   uint64
	owner   int
	dir     bool
}

// Limits of a scan, and of what it labels one by one: beyond, the whole root is.
var (
	maxScanned  = 100_000
	maxLabelled = 20_000
	maxScanTime = 30 * time.Second
)

var errTooMany = errors.New("there is too much in it")

// scan visits root and what it holds, with deep all that lies below, and follows
// no link. It sees what a program of this user's could have changed.
func (l *labelStore) scan(root string, deep bool, visit func(string, fileStat) error) error {
	st, err := statFile(root)
	if runtime.GOOS == "windows" { // no time there but can be set by a program
		err = errors.ErrUnsupported
	}
	if err == nil {
		err = visit(root, st)
	}
	if err != nil || !st.dir {
		return err
	}
	hide := slices.DeleteFunc(slices.Clone(l.hide), func(dir string) bool { return !within(dir, root) })
	todo, seen, end := []string{root}, 0, time.Now().Add(maxScanTime)
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		err := eachEntry(dir, func(name string) error {
			path := filepath.Join(dir, name)
			st, err := statFile(path)
			if errors.Is(err, fs.ErrNotExist) || slices.Contains(hide, path) {
				return nil
			}
			if seen++; err == nil && (seen > maxScanned || time.Now().After(end)) {
				err = errTooMany
			}
			if err == nil {
				err = visit(path, st)
			}
			if st.dir && deep {
				todo = append(todo, path)
			}
			return err
		})
		if errors.Is(err, fs.ErrPermission) {
			// Who may not look into another's folder could not write there either.
			if st, e := statFile(dir); e == nil && st.owner != os.Geteuid() {
				err = nil
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func eachEntry(dir string, fn func(name string) error) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|openFolder, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if err := fn(name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// stampOf is the time of now as the file system of a path tells it, 0 if that
// cannot be learned: then everything counts as changed since.
func stampOf(path string) int64 {
	f, err := makeStamp(path)
	if dir := filepath.Dir(path); err != nil && dir != path {
		return stampOf(dir)
	} else if err != nil {
		return 0
	}
	t, err := changedOf(f)
	f.Close()
	if f.Name() != path { // it has a name
		os.Remove(f.Name())
	}
	if err != nil {
		return 0
	}
	return t - int64(scanSlack)
}

// begin is called before a call may change what is below roots, with the labels
// of its chat. What it returns is for end.
func (l *labelStore) begin(call string, roots []string, set []chatLabel, unboxed bool) (*labelLine, error) {
	w := &labelLine{Call: call, Run: l.run, Set: set, Unboxed: unboxed}
	for _, root := range roots {
		w.Roots, w.Start = append(w.Roots, pathText(root)), append(w.Start, stampOf(root))
	}
	w.began = time.Now()
	if len(set) == 0 || len(roots) == 0 {
		return w, nil
	}
	return w, l.locked(func() error { return l.append(true, *w) })
}

// end is called when nothing of the call runs any more, with the labels that its
// chat has now. It returns what it labelled.
func (l *labelStore) end(w *labelLine, set []chatLabel) (files []labelFile, err error) {
	if w.Set = set; len(set) == 0 || len(w.Roots) == 0 {
		return nil, nil
	}
	for i, root := range w.Roots { // a clock that was set back meanwhile hides nothing
		w.Start[i] = min(w.Start[i], stampOf(string(root))-int64(time.Since(w.began)))
	}
	err = l.locked(func() error {
		if p := l.open[w.Call]; p != nil {
			for i := range w.Start {
				w.Start[i] = min(w.Start[i], p.Start[i])
			}
		}
		files, err = l.settle(w, false)
		return err
	})
	return files, err
}

// settle labels what a call has changed, and ends it. Where a scan fails, and with
// whole, all of a root is labelled. What was labelled there and is gone is
// forgotten.
func (l *labelStore) settle(w *labelLine, whole bool) (files []labelFile, err error) {
	seen, complete := map[fileKey]bool{}, true
	for i, root := range w.Roots {
		some, err := []labelFile(nil), errTooMany
		if !whole {
			some, err = l.changed(string(root), w.Start[i], labelsIn(w.Set), seen)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			st, _ := statFile(string(root))
			some, complete = []labelFile{{st.key, root, true}}, false
		}
		files = append(files, some...)
	}
	for id := range l.open { // another one can hide a file from the scan
		complete = complete && id == w.Call
	}
	last := labelLine{Call: w.Call, Set: w.Set, Files: files, Done: true}
	for k, e := range l.byKey {
		inside := func(root pathText) bool { return within(e.path, string(root)) && e.path != string(root) }
		if complete && !seen[k] && slices.ContainsFunc(w.Roots, inside) && !e.hidden() {
			last.Gone = append(last.Gone, k)
		}
	}
	return files, l.append(false, last)
}

// changed lists what has changed under root since start, or has moved, and is not
// labelled so yet. It adds to seen what is labelled.
func (l *labelStore) changed(root string, start int64, set Labels, seen map[fileKey]bool) (out []labelFile, err error) {
	for e := range l.all { // what moves out of a folder that is labelled as a whole does not show
		if e.tree && (within(e.path, root) || within(root, e.path)) {
			return nil, errTooMany
		}
	}
	dev := uint64(0)
	err = l.scan(root, true, func(path string, st fileStat) error {
		if path == root {
			dev = st.dev
			if st.dir && st.key.Born < start { // its name was not given by the call
				return nil
			}
		}
		e := l.byKey[st.key]
		there := e != nil && e.path == path
		if e != nil && !there { // another hard link of it, or it was moved
			at, err := statFile(e.path)
			there = err == nil && at.key == st.key
		}
		if e != nil {
			seen[st.key] = true
		}
		// Another device can have another clock.
		isNew := st.changed >= start || st.dev != dev
		replaced := l.byPath[path] != nil && l.byPath[path].key != st.key
		if isNew && (!there || labelsIn(e.set).adds(set)) || e != nil && !there || replaced {
			out = append(out, labelFile{fileKey: st.key, Path: pathText(path)})
		}
		if len(out) > maxLabelled {
			return errTooMany
		}
		return nil
	})
	return out, err
}
