package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// testReadme runs the examples of the README as they are printed, but for the
// port.
func testReadme(ctx context.Context, work, home string) (err error) {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	sdk := filepath.Dir(here)
	readme, err := os.ReadFile(filepath.Join(sdk, "../../README.md"))
	if err != nil {
		return err
	}
	p, err := startPicket(ctx, filepath.Join(work, "picket"), home)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := p.close(ctx); err == nil {
			err = cerr
		}
	}()
	for _, e := range []struct {
		language, dir, file string
		program             []string
	}{
		{"sh", work, "readme.sh", []string{"bash"}},
		{"js", filepath.Join(work, "js"), "readme.mjs", []string{nodeOf(work)}},
		{"python", work, "readme.py", []string{filepath.Join(work, "venv/bin/python")}},
		{"go", filepath.Join(sdk, "go-v3"), "readme.go", []string{"go", "run"}},
	} {
		found := regexp.MustCompile("(?ms)^```"+e.language+"\n(.*?)^```$").FindAllSubmatch(readme, -1)
		if len(found) != 1 {
			return fmt.Errorf("README.md has %d examples for %s, not one", len(found), e.language)
		}
		text := strings.ReplaceAll(string(found[0][1]), "http://127.0.0.1:7717", p.base)
		file := filepath.Join(work, e.file)
		if e.language == "js" { // beside its libraries
			file = filepath.Join(e.dir, e.file)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		before, err := p.turns("notes")
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
		cmd := exec.CommandContext(limited, e.program[0], append(e.program[1:], file)...)
		cmd.Dir, cmd.Env = e.dir, append(plainEnviron(), "KEY="+p.key)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil || strings.TrimSpace(string(out)) != "one two three" {
			return fmt.Errorf("the README's example for %s: %v: %s", e.language, err, out)
		}
		after, err := p.turns("notes")
		if n := total(after) - total(before); err != nil || n != 1 {
			return fmt.Errorf("the README's example for %s: %d turns ran (%v)", e.language, n, err)
		}
		fmt.Printf("the README's example for %s: right, 1 turn\n", e.language)
	}
	return nil
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
