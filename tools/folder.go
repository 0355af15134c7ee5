package tools

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Paths that a call names are resolved before it is decided about, so a link met
// afterwards was put there in the meantime. The functions below therefore follow
// none: they go down by handles, and after opening each name compare what was
// opened with what the folder held. os.Root alone keeps a swapped link from
// leading out of the root, but not into another part of it.

var errMoved = errors.New("it was replaced while it was being opened")

// descend opens the folder rel (slashes, relative, clean) below root. With create
// it makes the folders that are missing. The caller closes what it returns.
func descend(root *os.Root, rel string, create bool) (*os.Root, error) {
	dir, err := root.OpenRoot(".")
	if err != nil || rel == "." {
		return dir, err
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := openFolder(dir, name, create)
		dir.Close()
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

func openFolder(dir *os.Root, name string, create bool) (*os.Root, error) {
	info, err := dir.Lstat(name)
	if create && errors.Is(err, fs.ErrNotExist) {
		if err = dir.Mkdir(name, 0o777); err == nil {
			info, err = dir.Lstat(name)
		}
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%q is %s, not a folder", name, kindOf(info.Mode()))
	}
	sub, err := dir.OpenRoot(name + "/.") // as a folder: the opening of a pipe would wait
	if err != nil {
		return nil, err
	}
	if opened, err := sub.Stat("."); err != nil || !os.SameFile(info, opened) {
		sub.Close()
		return nil, errMoved
	}
	return sub, nil
}

// OpenRegular opens the regular file name in dir for reading, and nothing else:
// no link, pipe or device, also if it takes the file's place meanwhile.
func OpenRegular(dir *os.Root, name string) (*os.File, fs.FileInfo, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%q is %s, not a regular file", name, kindOf(info.Mode()))
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, nil, err
	}
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		f.Close()
		return nil, nil, errMoved
	}
	return f, info, nil
}

// ReplaceFile gives the file name in dir new content in one step: readers see the
// old or the new, and so does the next start after a crash. old is what the
// caller read before (nil: no file), whose owner and permissions stay; if the
// name has come to hold something else since, nothing is done. Another hard link
// to the old file keeps the old content.
func ReplaceFile(dir *os.Root, name string, old fs.FileInfo, content []byte) error {
	perm := fs.FileMode(0o666) // less the umask
	if old != nil {
		perm = 0o600 // until it has its owner
	}
	temp := ".picket-" + rand.Text()
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil && old != nil {
		if err = keepOwner(f, old); err == nil {
			err = f.Chmod(old.Mode().Perm())
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = unchanged(dir, name, old)
	}
	if err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(temp))
	}
	return nil
}

// unchanged fails if name in dir is not the file old, or is one although there was
// none.
func unchanged(dir *os.Root, name string, old fs.FileInfo) error {
	now, err := dir.Lstat(name)
	if old == nil && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (old == nil || !os.SameFile(old, now) || !now.ModTime().Equal(old.ModTime()) || now.Size() != old.Size()) {
		err = errors.New("it was changed by something else meanwhile")
	}
	return err
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m.IsRegular():
		return "a file"
	case m&fs.ModeSymlink != 0:
		return "a link"
	}
	return "a device, pipe or socket"
}

// below returns path relative to root with slashes ("." for root itself), and
// whether it lies there. Both are absolute and clean.
func below(root, path string) (string, bool) {
	rel, err := filepath.Rel(root, path)
	return filepath.ToSlash(rel), err == nil && filepath.IsLocal(rel)
}
