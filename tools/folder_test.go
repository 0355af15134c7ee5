package tools

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A writer that is killed at any moment leaves the old content or the new one.
func TestReplaceFileKilled(t *testing.T) {
	dir := t.TempDir()
	contents := [][]byte{bytes.Repeat([]byte("a"), 300000), bytes.Repeat([]byte("b"), 500000)}
	if os.Getenv("PICKET_TEST_WRITER") != "" {
		root, err := os.OpenRoot(os.Getenv("PICKET_TEST_WRITER"))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; ; i++ {
			info, err := root.Lstat("f")
			if err == nil {
				err = ReplaceFile(root, "f", info, contents[i%2])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	f := filepath.Join(dir, "f")
	if err := os.WriteFile(f, contents[1], 0o644); err != nil {
		t.Fatal(err)
	}
	seen := map[byte]int{}
	for i := range 12 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestReplaceFileKilled$")
		cmd.Env = append(os.Environ(), "PICKET_TEST_WRITER="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(40+7*i) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		data, err := os.ReadFile(f)
		if err != nil || !bytes.Equal(data, contents[0]) && !bytes.Equal(data, contents[1]) {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		seen[data[0]]++
	}
	if len(seen) < 2 {
		t.Logf("only one content was seen: %v", seen)
	}
}
