//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ownerFixes returns the commands that make path belong to this user alone.
// want is the mode that it should have; bits that it lacks are no fault.
func ownerFixes(path string, info fs.FileInfo, want fs.FileMode) (fixes []string) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		fixes = append(fixes, fmt.Sprintf("sudo chown %d %s", os.Geteuid(), shellQuote(path)))
	}
	if info.Mode().Perm()&^want != 0 {
		fixes = append(fixes, fmt.Sprintf("chmod %o %s", want, shellQuote(path)))
	}
	return fixes
}

// syncFolder makes a rename in dir last.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
