//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The owner's notifier is run, unless a call could have written it.
func TestNotifier(t *testing.T) {
	ws, elsewhere := t.TempDir(), t.TempDir()
	t.Setenv("PICKET_TEST_TOKEN", "no child gets it")
	for _, c := range []struct {
		name, dir, argv0 string
		runs             bool
	}{
		{"elsewhere", elsewhere, "", true},
		{"in the workspace", ws, "", false},
		{"in the workspace, by a relative path", ws, "./say", false},
		{"in the workspace, by PATH", ws, "say", false},
		{"a link to the workspace", ws, filepath.Join(elsewhere, "link"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			said, script := filepath.Join(t.TempDir(), "said"), filepath.Join(c.dir, "say")
			if err := os.WriteFile(script, []byte("#!/bin/sh\necho \"$1 $PICKET_TEST_TOKEN\" >"+shellWord(said+".new")+"; mv "+shellWord(said+".new")+" "+shellWord(said)+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			link := filepath.Join(elsewhere, "link")
			os.Remove(link)
			if err := os.Symlink(script, link); err != nil {
				t.Fatal(err)
			}
			t.Chdir(ws)
			t.Setenv("PATH", c.dir+":"+os.Getenv("PATH"))
			if c.argv0 == "" {
				c.argv0 = script
			}
			var stderr bytes.Buffer
			a := &app{cfg: &config{}, box: &sandbox{roots: []string{resolveExisting(ws)}, env: map[string]string{"PATH": os.Getenv("PATH")}},
				prog: &program{stderr: &stderr, redact: keepText}}
			a.cfg.Approvals.Notify = []string{c.argv0}
			a.notify(context.Background(), "a question")
			if !c.runs {
				if !strings.Contains(stderr.String(), "where tools can write") {
					t.Errorf("%q", stderr.String())
				}
				return
			}
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if b, err := os.ReadFile(said); err == nil {
					if string(b) != "a question \n" {
						t.Errorf("%q", b)
					}
					return
				}
			}
			t.Errorf("it was not run: %s", stderr.String())
		})
	}
}
