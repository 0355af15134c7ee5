package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The test binary is picket itself when it is started under that name, so that
// scripts run the real program in processes of its own. (A variable in the
// environment would not survive the sandbox's.)
// quickExit keeps a child with the race detector from sleeping for a second
// before it ends.
const quickExit = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "picket" {
		main()
	}
	name, value, _ := strings.Cut(quickExit, "=")
	os.Setenv(name, value)
	os.Exit(m.Run())
}

// need skips a test that cannot run here, or fails it where all must run. what
// says what to install.
func need(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("PICKET_TEST_REQUIRE") == "all":
		t.Fatal("needs " + what)
	default:
		t.Skip("needs " + what)
	}
}

// needs is need for a program and the package that it is in.
func needs(t testing.TB, program, install string) {
	t.Helper()
	_, err := exec.LookPath(program)
	need(t, err == nil, program+" (install "+install+")")
}

func needProgram(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		needs(t, name, cmp.Or(map[string]string{"bwrap": "bubblewrap", "sha256sum": "coreutils"}[name], name))
	}
}

// picketBinary is a path at which the test binary runs as picket.
func picketBinary(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "picket")
	if err := os.Link(self, path); err != nil {
		data, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// A script is a session of commands with what must come of them:
//
//	need PROGRAM…            skip without these programs
//	env NAME=VALUE           for the commands that follow
//	cd DIR
//	stdin FILE               what the next command gets
//	exec PROGRAM ARG…        run it; it must exit with 0
//	exit N PROGRAM ARG…      run it; it must exit with N
//	stdout PATTERN           a regular expression that the last output matches
//	! stdout PATTERN         or does not; the same with stderr
//	empty stdout             there is none
//	cmp stdout FILE          it is exactly this file
//	exists PATH, ! exists PATH
//	grep PATTERN FILE, ! grep PATTERN FILE
//	write FILE TEXT          make a file (\n is a line break)
//
// A line may be quoted as in a shell, with '…' only; $WORK is the folder of the
// script, $HOME its home, $DATA picket's data folder. After "-- NAME --" lines
// come files, put into the folder before the script starts, which runs in the
// sub-folder ws.
type script struct {
	t              *testing.T
	dir, cwd       string
	env            []string
	stdin          []byte
	stdout, stderr []byte
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			runScript(t, string(data))
		})
	}
}

func runScript(t *testing.T, text string) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, dir: dir, cwd: filepath.Join(dir, "ws")}
	for _, d := range []string{"ws", "home", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	picketBinary(t, filepath.Join(dir, "bin"))
	s.env = []string{"HOME=" + filepath.Join(dir, "home"), "WORK=" + dir, "LANG=C.UTF-8", "USER=tester",
		"DATA=" + filepath.Join(dir, "home", ".local", "share", "picket"),
		"PATH=" + filepath.Join(dir, "bin") + string(os.PathListSeparator) + os.Getenv("PATH"),
		"GOCOVERDIR=" + dir, quickExit}
	lines := strings.Split(text, "\n")
	body := lines
	for i, l := range lines {
		if name, ok := fileMarker(l); ok {
			if len(body) == len(lines) {
				body = lines[:i]
			}
			end := i + 1
			for end < len(lines) {
				if _, ok := fileMarker(lines[end]); ok {
					break
				}
				end++
			}
			path := filepath.Join(s.cwd, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			content := strings.Join(lines[i+1:end], "\n")
			if end < len(lines) {
				content += "\n"
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, l := range body {
		if l = strings.TrimSpace(l); l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		if err := s.line(l); err != nil {
			t.Fatalf("line %d: %s\n%v\nstdout:\n%s\nstderr:\n%s", i+1, l, err, s.stdout, s.stderr)
		}
	}
}

func fileMarker(l string) (string, bool) {
	name, ok := strings.CutPrefix(l, "-- ")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, " --")
}

// words splits a line; '…' quotes.
func (s *script) words(l string) []string {
	var out []string
	var cur strings.Builder
	in, any := false, false
	for _, r := range l {
		switch {
		case r == '\'':
			in, any = !in, true
		case r == ' ' && !in:
			if any || cur.Len() > 0 {
				out = append(out, cur.String())
			}
			cur.Reset()
			any = false
		default:
			cur.WriteRune(r)
		}
	}
	if any || cur.Len() > 0 {
		out = append(out, cur.String())
	}
	for i := range out {
		out[i] = os.Expand(out[i], func(name string) string {
			switch name {
			case "WORK", "HOME", "DATA":
				return s.getenv(name)
			}
			return "$" + name
		})
	}
	return out
}

func (s *script) getenv(name string) string {
	for i := len(s.env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(s.env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

func (s *script) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.cwd, name)
}

func (s *script) line(l string) error {
	w := s.words(l)
	not := w[0] == "!"
	if not {
		w = w[1:]
	}
	arg := func(i int) string {
		if i >= len(w) {
			s.t.Fatalf("%s: an argument is missing", l)
		}
		return w[i]
	}
	switch w[0] {
	case "need":
		needProgram(s.t, w[1:]...)
	case "env":
		s.env = append(s.env, w[1:]...)
	case "cd":
		s.cwd = s.path(arg(1))
	case "stdin":
		data, err := os.ReadFile(s.path(arg(1)))
		s.stdin = data
		return err
	case "write":
		text := strings.ReplaceAll(arg(2), `\n`, "\n")
		return os.WriteFile(s.path(arg(1)), []byte(text), 0o644)
	case "exec":
		return s.exec(0, w[1:])
	case "exit":
		code, err := strconv.Atoi(arg(1))
		if err != nil {
			return err
		}
		return s.exec(code, w[2:])
	case "stdout", "stderr":
		return matchPattern(*s.output(w[0]), arg(1), not)
	case "empty":
		if out := *s.output(arg(1)); len(out) > 0 {
			return fmt.Errorf("%s is not empty", arg(1))
		}
	case "cmp":
		want, err := os.ReadFile(s.path(arg(2)))
		if err != nil {
			return err
		}
		if got := *s.output(arg(1)); !bytes.Equal(got, want) {
			return fmt.Errorf("%s is not %s:\n%s", arg(1), arg(2), want)
		}
	case "grep":
		data, err := os.ReadFile(s.path(arg(2)))
		if err != nil {
			return err
		}
		return matchPattern(data, arg(1), not)
	case "exists":
		_, err := os.Lstat(s.path(arg(1)))
		if not != errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %v", arg(1), err)
		}
	default:
		return fmt.Errorf("there is no command %q", w[0])
	}
	return nil
}

func (s *script) output(name string) *[]byte {
	switch name {
	case "stdout":
		return &s.stdout
	case "stderr":
		return &s.stderr
	}
	s.t.Fatalf("no output is called %q", name)
	return nil
}

func matchPattern(data []byte, pattern string, not bool) error {
	re, err := regexp.Compile("(?m)" + pattern)
	if err != nil {
		return err
	}
	if re.Match(data) == not {
		return fmt.Errorf("the pattern %q decides otherwise", pattern)
	}
	return nil
}

func (s *script) exec(code int, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	name := args[0]
	if name == "picket" {
		name = filepath.Join(s.dir, "bin", "picket")
	}
	cmd := exec.CommandContext(ctx, name, args[1:]...)
	cmd.Dir, cmd.Env = s.cwd, s.env
	cmd.Stdin = bytes.NewReader(s.stdin)
	s.stdin = nil
	detach(cmd) // no terminal of the tester's is asked anything
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	s.stdout, s.stderr = stdout.Bytes(), stderr.Bytes()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		return fmt.Errorf("exit code %d, not %d (%v)", got, code, err)
	}
	return nil
}
