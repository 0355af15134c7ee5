package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// What every file of picket's own has in common: it belongs to the owner, is
// closed to all others from its first moment on, and is replaced as a whole or
// grows under a lock.

// lockWait is the longest that anything waits for a lock of another process.
const lockWait = 5 * time.Second

// lately is how long a look at a file's name goes on to count. People are not
// faster, and picket holds the lock for longer when it renames a log.
const lately = 100 * time.Microsecond

var errLockWait = errors.New("another picket process holds the lock")

// ensureDir makes a folder of picket's own, with its parents, and checks it.
func ensureDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	return checkInfo(path, fi)
}

// checkOwn reports what is wrong with the owner or the mode of a file or
// folder; the error holds the command that mends it. A link is refused.
func checkOwn(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	return checkInfo(path, fi)
}

func checkInfo(path string, fi fs.FileInfo) error {
	want := fs.FileMode(0o600)
	switch {
	case fi.IsDir():
		want = 0o700
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%q is not a plain file", path)
	}
	uid, ok := fileOwner(fi)
	if !ok {
		return nil // no owners and modes here
	}
	if me := os.Geteuid(); uid != me {
		return fmt.Errorf("%q belongs to user %d: sudo chown %d %s", path, uid, me, shellWord(path))
	}
	if fi.Mode().Perm()&^want != 0 {
		return fmt.Errorf("%q is open to others: chmod %o %s", path, want, shellWord(path))
	}
	return nil
}

// shellWord quotes s for a shell.
func shellWord(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// createFile makes a file that must not exist yet.
func createFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|noFollow, 0o600)
}

// writeFileAtomic replaces a file: after a crash it is the old or the new one.
// The caller holds the lock of what the file belongs to.
func writeFileAtomic(path string, data []byte) error {
	tmp := path + ".new"
	if err := writeNew(tmp, data); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		os.Remove(tmp)
		return err
	}
	return syncDir(filepath.Dir(path))
}

// writeNew writes and syncs a file of this name; one that was left over by a
// crash goes first.
func writeNew(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := createFile(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(path)
	}
	return err
}

// A fileLock excludes other goroutines by a mutex and other processes by a lock
// on a file that is never renamed.
type fileLock struct {
	path string
	mu   sync.Mutex
	f    *os.File
	end  time.Time // of the wait
	at   time.Time // when the lock was taken
	seen time.Time // when f was found to have a name still
}

// openLock makes the lock file if there is none.
func openLock(path string) (*fileLock, error) {
	k := &fileLock{path: path}
	return k, k.reopen()
}

func (k *fileLock) reopen() error {
	if k.f != nil {
		k.f.Close()
	}
	f, err := os.OpenFile(k.path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return err
	}
	k.f = f
	return checkOwn(k.path)
}

// Lock waits for both locks, at most lockWait.
func (k *fileLock) Lock(ctx context.Context) error {
	k.enter()
	err := k.flock(ctx)
	if err != nil {
		k.mu.Unlock()
	}
	return err
}

// TryLock takes both locks if they are free; else the error is errLockWait.
func (k *fileLock) TryLock() error {
	if !k.mu.TryLock() {
		return errLockWait
	}
	ok, err := tryLockFile(k.f)
	if err == nil && !ok {
		err = errLockWait
	}
	if err != nil {
		k.mu.Unlock()
	}
	return err
}

// tryLockPath takes the lock of a path without waiting.
func tryLockPath(path string) (unlock func(), ok bool, err error) {
	k, err := openLock(path)
	if err != nil {
		return nil, false, err
	}
	if err := k.TryLock(); err != nil {
		k.Close()
		if errors.Is(err, errLockWait) {
			err = nil
		}
		return nil, false, err
	}
	return func() { k.Unlock(); k.Close() }, true, nil
}

// Unlock gives both back.
func (k *fileLock) Unlock() {
	unlockFile(k.f)
	k.mu.Unlock()
}

// Close forgets the lock. The file stays, since others may hold it open.
func (k *fileLock) Close() error { return k.f.Close() }

// enter takes the mutex. Those who wait for it do so no longer than the one who
// has it may wait for the file.
func (k *fileLock) enter() {
	if k.mu.TryLock() {
		k.end = time.Time{}
		return
	}
	end := time.Now().Add(lockWait)
	k.mu.Lock()
	k.end = end
}

// flock takes the lock on the file, within the mutex.
func (k *fileLock) flock(ctx context.Context) error {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		ok, err := tryLockFile(k.f)
		if err != nil {
			return err
		}
		if k.at = time.Now(); ok && k.at.Sub(k.seen) < lately {
			return nil
		}
		if ok && linked(k.f) {
			k.seen = k.at
			return nil
		}
		if ok { // somebody removed the file: its successor is the lock now
			if err := k.reopen(); err != nil {
				return err
			}
			continue
		}
		if k.end.IsZero() {
			k.end = k.at.Add(lockWait)
		}
		if k.at.After(k.end) {
			return fmt.Errorf("%w: %q", errLockWait, k.path)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// holdRun locks runs/ID in the data folder until release is called or the
// process ends, however it ends. An id is used once.
func holdRun(ctx context.Context, dir, id string) (release func(), err error) {
	runs := filepath.Join(dir, "runs")
	if err := ensureDir(runs); err != nil {
		return nil, err
	}
	sweepRuns(runs)
	k, err := openLock(filepath.Join(runs, id))
	if err != nil {
		return nil, err
	}
	if err := k.Lock(ctx); err != nil {
		k.Close()
		return nil, err
	}
	return func() {
		os.Remove(k.path)
		k.Unlock()
		k.Close()
	}, nil
}

// runGone reports whether the process that called holdRun with this id has
// ended. If that cannot be found out, it has not.
func runGone(dir, id string) bool {
	if id == "" || id != filepath.Base(id) {
		return false
	}
	f, err := os.OpenFile(filepath.Join(dir, "runs", id), os.O_RDWR|noFollow, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	ok, err := tryLockShared(f)
	return ok && err == nil
}

// sweepRuns removes what processes left that were killed. It holds the lock
// meanwhile, so that a run that is just beginning sees its file go.
func sweepRuns(runs string) {
	list, _ := os.ReadDir(runs)
	for _, e := range list {
		if run, ok := strings.CutSuffix(e.Name(), servesSuffix); ok {
			if runGone(filepath.Dir(runs), run) {
				os.Remove(filepath.Join(runs, e.Name()))
			}
			continue
		}
		f, err := os.OpenFile(filepath.Join(runs, e.Name()), os.O_RDWR|noFollow, 0)
		if err != nil {
			continue
		}
		if ok, _ := tryLockFile(f); ok {
			os.Remove(f.Name())
		}
		f.Close()
	}
}
