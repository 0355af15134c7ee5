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

// What files have replaced is kept for "picket undo ID": for each call ID.undo,
// a line that says what was changed, then the content before. Limits on them:
const (
	undoAge   = 30 * 24 * time.Hour
	undoTotal = 1 << 30 // bytes of all; the oldest go first
)

type undoEntry struct {
	Path string    `json:"path"` // absolute, links resolved
	Time time.Time `json:"time"`
	Prev string    `json:"prev"` // SHA-256 of the content before, "" if there was no file
	Next string    `json:"next"` // SHA-256 of the content that the call left

	Labels []chatLabel `json:"labels,omitempty"` // of the content before
}

func checkUndoID(id string) error {
	if len(id) < 1 || len(id) > 64 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
		return fmt.Errorf("the id %q is not valid", id)
	}
	return nil
}

// keepUndo stores what the call callID is about to replace in the file path: prev
// (nil for a file that is new), of at most tools.MaxUndo bytes, by next. dir is
// made if it is missing. Nothing may be written to path if it fails. set are the
// labels of prev.
func keepUndo(dir string, callID, path string, prev, next []byte, set ...chatLabel) error {
	if err := checkUndoID(callID); err != nil {
		return err
	}
	if len(prev) > tools.MaxUndo {
		return fmt.Errorf("larger than %d bytes", tools.MaxUndo)
	}
	entry := undoEntry{Path: path, Time: time.Now().UTC(), Next: hexDigest(next), Labels: set}
	if prev != nil {
		entry.Prev = hexDigest(prev)
	}
	line, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	if err := ensureDir(dir); err != nil {
		return err
	}
	f, err := createFile(filepath.Join(dir, callID+".undo"))
	if err != nil {
		return err
	}
	_, err = f.Write(slices.Concat(line, []byte("\n"), prev))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		pruneUndo(dir, callID+".undo", entry.Time)
	}
	return err
}

func hexDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// pruneUndo deletes what is too old, and the oldest until the rest is small
// enough, but not the entry keep. What cannot be deleted is tried again next time.
func pruneUndo(dir, keep string, now time.Time) {
	entries, _ := os.ReadDir(dir)
	var list []fs.FileInfo
	total := int64(0)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && strings.HasSuffix(e.Name(), ".undo") {
			list, total = append(list, info), total+info.Size()
		}
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range list {
		if now.Sub(info.ModTime()) <= undoAge && total <= undoTotal {
			return
		}
		if info.Name() != keep && os.Remove(filepath.Join(dir, info.Name())) == nil {
			total -= info.Size()
		}
	}
}

// readRegular reads a regular file of at most limit bytes, following no link.
func readRegular(root *os.Root, name string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := tools.OpenRegular(root, name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%q is larger than %d bytes", name, limit)
	}
	return data, info, err
}

// undo puts back what the file of a call held before it, and removes a file that
// was new, if the file still is as the call left it. label is called before and
// after if what is put back has labels. message says what was done.
func undo(dir, id string, label func(path string, set []chatLabel) error) (message string, err error) {
	if err := checkUndoID(id); err != nil {
		return "", err
	}
	store, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("there is nothing to undo: %w", err)
	}
	defer store.Close()
	data, _, err := readRegular(store, id+".undo", tools.MaxUndo+64<<10)
	if err != nil {
		return "", fmt.Errorf("no change %q is kept: it changed no file, was undone, or is older than %d days: %w", id, undoAge/(24*time.Hour), err)
	}
	line, prev, _ := bytes.Cut(data, []byte("\n"))
	var entry undoEntry
	if json.Unmarshal(line, &entry) != nil || !filepath.IsAbs(entry.Path) || entry.Prev != "" && hexDigest(prev) != entry.Prev {
		return "", fmt.Errorf("what was kept of %q is damaged", id)
	}
	folder, name := filepath.Dir(entry.Path), filepath.Base(entry.Path)
	if resolveExisting(folder) != folder {
		return "", fmt.Errorf("the folder %q is a link now", folder)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", err
	}
	defer root.Close()
	now, info, err := readRegular(root, name, tools.MaxUndo+tools.MaxArgs)
	if err == nil && hexDigest(now) != entry.Next {
		err = fmt.Errorf("it was changed since; its content before stands in %q after the first line", filepath.Join(dir, id+".undo"))
	}
	message = fmt.Sprintf("put back the previous content of %q", entry.Path)
	if err == nil && entry.Prev == "" {
		message = fmt.Sprintf("removed %q, which was new", entry.Path)
		err = root.Remove(name)
	} else if err == nil {
		if len(entry.Labels) > 0 {
			err = label(entry.Path, entry.Labels)
		}
		if err == nil {
			err = tools.ReplaceFile(root, name, info, prev)
		}
		if err == nil && len(entry.Labels) > 0 {
			err = label(entry.Path, entry.Labels)
		}
	}
	if err != nil {
		return "", fmt.Errorf("%q was not changed back: %w", entry.Path, err)
	}
	return message, store.Remove(id + ".undo")
}
