package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"picket/tools"
)

// What files have replaced is kept for "picket undo ID": for each call ID.json,
// which says what was changed, and ID.prev, the content before (none for a file
// that was new). Limits on them:
const (
	undoAge   = 30 * 24 * time.Hour
	undoTotal = 1 << 30 // bytes of all copies; the oldest go first
)

type undoEntry struct {
	Path string    `json:"path"` // absolute, links resolved
	Time time.Time `json:"time"`
	New  bool      `json:"new"`  // there was no file before
	Prev string    `json:"prev"` // SHA-256 of the content before, "" if New
	Next string    `json:"next"` // SHA-256 of the content that the call left
	Size int64     `json:"size"` // of that content, in bytes
}

func validUndoID(id string) bool {
	return len(id) >= 1 && len(id) <= 64 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// keepUndo stores what the call callID is about to replace in the file path: prev
// (nil for a file that is new), of at most tools.MaxUndo bytes, by next. dir is
// made if it is missing. Nothing may be written to path if it fails.
func keepUndo(dir string, callID, path string, prev, next []byte) error {
	if !validUndoID(callID) {
		return fmt.Errorf("the id %q is not valid", callID)
	}
	if len(prev) > tools.MaxUndo {
		return fmt.Errorf("larger than %d bytes", tools.MaxUndo)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entry := undoEntry{Path: path, Time: time.Now().UTC(), New: prev == nil, Next: hexDigest(next), Size: int64(len(next))}
	if !entry.New {
		entry.Prev = hexDigest(prev)
		if err := writeOnce(filepath.Join(dir, callID+".prev"), prev); err != nil {
			return err
		}
	}
	line, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	if err := writeOnce(filepath.Join(dir, callID+".json"), append(line, '\n')); err != nil {
		return err
	}
	pruneUndo(dir, callID, entry.Time)
	return nil
}

// writeOnce makes a file that must not exist yet.
func writeOnce(path string, data []byte) error {
	f, err := createFile(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func hexDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// pruneUndo deletes what is too old, and the oldest until the rest is small
// enough, but not the entry keep. What cannot be deleted is tried again next time.
func pruneUndo(dir, keep string, now time.Time) {
	files, _ := os.ReadDir(dir)
	type kept struct {
		name string
		info fs.FileInfo
	}
	var list []kept
	total := int64(0)
	for _, f := range files {
		id, ext := strings.TrimSuffix(f.Name(), filepath.Ext(f.Name())), filepath.Ext(f.Name())
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() || !validUndoID(id) || ext != ".json" && ext != ".prev" {
			continue
		}
		total += info.Size()
		if id != keep {
			list = append(list, kept{f.Name(), info})
		}
	}
	slices.SortFunc(list, func(a, b kept) int { return a.info.ModTime().Compare(b.info.ModTime()) })
	for _, k := range list {
		if now.Sub(k.info.ModTime()) <= undoAge && total <= undoTotal {
			return
		}
		if os.Remove(filepath.Join(dir, k.name)) == nil {
			total -= k.info.Size()
		}
	}
}

// undo puts back what the file of a call held before it, and removes a file that
// was new, if the file still is as the call left it. message says what was done.
func undo(dir, id string) (message string, err error) {
	if !validUndoID(id) {
		return "", fmt.Errorf("the id %q is not valid", id)
	}
	entry, prev, err := readUndo(dir, id)
	if err != nil {
		return "", err
	}
	folder, name := filepath.Split(entry.Path)
	folder = filepath.Clean(folder)
	if real, err := filepath.EvalSymlinks(folder); err != nil || real != folder {
		return "", fmt.Errorf("the folder %q is gone or a link now", folder)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, info, err := tools.OpenRegular(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%q is gone: nothing was changed", entry.Path)
	} else if err != nil {
		return "", fmt.Errorf("%q was not changed back: %w", entry.Path, err)
	}
	defer f.Close()
	now, err := io.ReadAll(io.LimitReader(f, entry.Size+1))
	if err != nil {
		return "", err
	}
	if hexDigest(now) != entry.Next {
		where := ""
		if !entry.New {
			where = fmt.Sprintf("; its previous content is in %q", filepath.Join(dir, id+".prev"))
		}
		return "", fmt.Errorf("%q was changed since: nothing was changed%s", entry.Path, where)
	}
	if entry.New {
		err = root.Remove(name)
		message = fmt.Sprintf("removed %q, which was new", entry.Path)
	} else {
		err = tools.ReplaceFile(root, name, info, prev)
		message = fmt.Sprintf("put back the previous content of %q (%d bytes)", entry.Path, len(prev))
	}
	if err != nil {
		return "", fmt.Errorf("%q was not changed back: %w", entry.Path, err)
	}
	return message, errors.Join(os.Remove(filepath.Join(dir, id+".json")), ignoreMissing(os.Remove(filepath.Join(dir, id+".prev"))))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readUndo(dir, id string) (entry undoEntry, prev []byte, err error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return entry, nil, fmt.Errorf("there is nothing to undo")
	} else if err != nil {
		return entry, nil, err
	}
	defer root.Close()
	read := func(name string, limit int64) ([]byte, error) {
		f, _, err := tools.OpenRegular(root, name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, limit))
	}
	line, err := read(id+".json", 64<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return entry, nil, fmt.Errorf("no change %q is kept: it changed no file, was undone, or is older than %d days", id, undoAge/(24*time.Hour))
	} else if err != nil {
		return entry, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&entry); err != nil || !filepath.IsAbs(entry.Path) || entry.Size < 0 || entry.Size > 2*tools.MaxUndo {
		return entry, nil, fmt.Errorf("the entry of %q is damaged", id)
	}
	if entry.New {
		return entry, nil, nil
	}
	if prev, err = read(id+".prev", tools.MaxUndo+1); err != nil || hexDigest(prev) != entry.Prev {
		return entry, nil, fmt.Errorf("the copy of %q is damaged or gone", id)
	}
	return entry, prev, nil
}
