package tools

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// exchange swaps two names in one step (renameat2(2) with RENAME_EXCHANGE).
func exchange(a, b string) syscall.Errno {
	number := map[string]uintptr{"amd64": 316, "arm64": 276}[runtime.GOARCH]
	p, err1 := syscall.BytePtrFromString(a)
	q, err2 := syscall.BytePtrFromString(b)
	if number == 0 || err1 != nil || err2 != nil {
		return syscall.ENOSYS
	}
	cwd := -100 // AT_FDCWD
	_, _, errno := syscall.Syscall6(number, uintptr(cwd), uintptr(unsafe.Pointer(p)), uintptr(cwd), uintptr(unsafe.Pointer(q)), 2, 0)
	return errno
}

// While a name is swapped with a link out or to what is protected, no read returns
// what the link leads to and no write reaches it.
func TestFilesDuringSwaps(t *testing.T) {
	for _, c := range []struct{ name, swapped, to string }{
		{"file with a link out", "d/vault.enc", "../../app-evil/vault.enc"},
		{"file with a link to what is protected", "d/vault.enc", "../data/vault.enc"},
		{"file with a link to its protected neighbour", "d/vault.enc", "guarded.key"},
		{"folder with a link out", "d", "../app-evil"},
		{"folder with a link to what is protected", "d", "data"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newFilesBench(t)
			b.put("app-evil/vault.enc", "OUTSIDE")
			b.put("app/d/vault.enc", "inside")
			b.put("app/d/guarded.key", "PROTECTED")
			read := b.call("action", "read", "path", "d/vault.enc")
			write := b.call("action", "edit", "path", "d/vault.enc", "old", "inside", "content", "inside ")
			name, link := filepath.Join(b.ws, c.swapped), filepath.Join(b.ws, "link")
			if err := os.Symlink(c.to, filepath.Join(b.ws, "link")); err != nil {
				t.Fatal(err)
			}
			if filepath.Dir(name) != b.ws { // the link must stay right after the exchange
				link = filepath.Join(filepath.Dir(name), "link")
				if err := os.Rename(filepath.Join(b.ws, "link"), link); err != nil {
					t.Fatal(err)
				}
			}
			errno := exchange(name, link)
			need(t, errno == 0, "a folder for temporary files in which names can be exchanged (set TMPDIR to one on ext4, xfs or tmpfs)")
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				for !stop.Load() {
					exchange(name, link)
				}
			}()
			good, refused := 0, 0
			deadline := time.Now().Add(10 * time.Second)
			for n := 0; n < 1000 || good < 20 && time.Now().Before(deadline); n++ {
				out := Files.Execute(t.Context(), read)
				if strings.Contains(out.Text, "OUTSIDE") || strings.Contains(out.Text, "PROTECTED") {
					t.Errorf("read %d: %+v", n, out)
					break
				}
				if out.Err != "" {
					refused++
				} else {
					good++
				}
				if n%50 == 0 {
					Files.Execute(t.Context(), write)
				}
			}
			stop.Store(true)
			<-done
			if good == 0 || refused == 0 {
				t.Errorf("%d reads succeeded, %d were refused", good, refused)
			}
			if b.get("app-evil/vault.enc") != "OUTSIDE" || b.get("app/data/vault.enc") != "PROTECTED" || guardedKey(b) != "PROTECTED" {
				t.Error("a write followed the link")
			}
		})
	}
}

// guardedKey reads the neighbour by whichever name its folder has now.
func guardedKey(b *filesBench) string {
	for _, name := range []string{"d/guarded.key", "link/guarded.key"} {
		if data, err := os.ReadFile(filepath.Join(b.ws, name)); err == nil {
			return string(data)
		}
	}
	return ""
}
