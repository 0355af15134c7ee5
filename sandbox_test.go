package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"picket/tools"
)

func sh(line string) tools.Command {
	return tools.Command{Argv: []string{"/bin/sh", "-c", line}, Timeout: 20 * time.Second}
}

// plainSandbox is one without a box, in a workspace of its own.
func plainSandbox(t *testing.T) *sandbox {
	t.Helper()
	s, err := newSandbox(boxConfig{Mode: "off", Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What the owner named, and no child gets, is said.
func TestChildEnvironmentSaysWhatItLacks(t *testing.T) {
	t.Setenv("PICKET_TEST_DIR", "/x")
	t.Setenv("MY_PLAIN", "v")
	t.Setenv("MY_TOKEN", "v")
	t.Setenv("MY_URL", "https://user:pw@host/")
	s, err := newSandbox(boxConfig{Mode: "off", Workspace: t.TempDir(), PassEnv: []string{"MY_PLAIN", "MY_TOKEN", "MY_URL", "PICKET_TEST_DIR", "MY_UNSET"}})
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(s.Notes(), "\n")
	if strings.Count(said, "no call gets") != 3 || !strings.Contains(said, "MY_TOKEN ") || !strings.Contains(said, "MY_URL ") || strings.Contains(said, "pw@") || s.Env()["MY_PLAIN"] != "v" {
		t.Errorf("%s\n%v", said, s.Env())
	}
}

func TestHeadTailKeepsBothEnds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		h := headTail{max: int64(2 + rnd.IntN(40))}
		var all []byte
		for range rnd.IntN(8) {
			p := make([]byte, rnd.IntN(30))
			for i := range p {
				p[i] = 'a' + byte(rnd.IntN(26))
			}
			h.Write(p)
			all = append(all, p...)
		}
		got := h.Bytes()
		if int64(len(all)) <= h.max {
			if !bytes.Equal(got, all) {
				t.Fatalf("max %d: %q became %q", h.max, all, got)
			}
			continue
		}
		cut := fmt.Sprintf("\n[%d bytes left out]\n", int64(len(all))-h.max)
		head, tail, ok := bytes.Cut(got, []byte(cut))
		if !ok || !bytes.HasPrefix(all, head) || !bytes.HasSuffix(all, tail) || int64(len(head)+len(tail)) != h.max {
			t.Fatalf("max %d: %q became %q", h.max, all, got)
		}
	}
}

func TestHeadTailCutsNoCharacter(t *testing.T) {
	for limit := int64(2); limit < 20; limit++ {
		h := headTail{max: limit}
		h.Write([]byte(strings.Repeat("€", 50)))
		if got := h.Bytes(); !utf8.Valid(got) {
			t.Errorf("max %d: %q", limit, got)
		}
	}
	h := headTail{max: 10}
	h.Write(bytes.Repeat([]byte{0xff}, 50)) // not text: nothing may be lost but the cut
	if got := h.Bytes(); bytes.Count(got, []byte{0xff}) < 5 {
		t.Errorf("%q", got)
	}
}

func TestChildEnvironment(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("names and paths of Unix")
	}
	s := plainSandbox(t)
	s.cfg.PassEnv = []string{"EXTRA", "MY_TOKEN", "NODE_OPTIONS", "PROXY_URL"}
	dir := t.TempDir()
	kept := map[string]string{
		"PATH": "/usr/bin:/bin", "HOME": "/home/u", "LANG": "C.UTF-8", "LC_ALL": "ca_ES.UTF-8@valencia", "TERM": "dumb", "TZ": "UTC",
		"USER": "u", "LOGNAME": "u", "https_proxy": "http://proxy:3128", "EXTRA": "x", "SHELL": "/bin/sh", "GOPATH": dir,
	}
	dropped := map[string]string{
		"credential by name":         "GITLAB_TOKEN=x",
		"credential in lower case":   "my_secret=x",
		"listed, but a credential":   "MY_TOKEN=x",
		"listed, but steers":         "NODE_OPTIONS=--require=/x",
		"listed, but with user-info": "PROXY_URL=https://h,http://u:p@h/",
		"not listed":                 "FOO=x",
		"database":                   "DATABASE_URL=postgres://h/db",
		"password file":              "PGPASSFILE=/x",
		"cluster settings":           "KUBECONFIG=/x",
		"docker":                     "DOCKER_HOST=unix:///x",
		"error tracker":              "SENTRY_DSN=https://a@b",
		"short name for a token":     "MY_PAT=x",
		"short name for credentials": "X_CREDS=x",
		"netrc":                      "NETRC=/x",
		"mysql":                      "MYSQL_PWD=x",
		"webhook":                    "SLACK_WEBHOOK_URL=https://x",
		"display":                    "XAUTHORITY=/x",
		"job token":                  "CI_JOB_JWT=x",
		"publishable key":            "STRIPE_PK=x",
		"proxy with a password":      "HTTP_PROXY=http://u:p@proxy:1",
		"proxy without a scheme":     "ALL_PROXY=u:p@proxy:1",
		"loader":                     "LD_PRELOAD=/x.so",
		"shell start-up":             "BASH_ENV=/x",
		"sh start-up":                "ENV=/x",
		"shell function":             "BASH_FUNC_ls%%=() { :; }",
		"python start-up":            "PYTHONSTARTUP=/x",
		"git settings":               "GIT_CONFIG_COUNT=1",
		"picket's own":               "PICKET_API_X=x",
		"cloud":                      "AWS_PROFILE=x",
		"agent":                      "SSH_AUTH_SOCK=/x",
		"bus":                        "DBUS_SESSION_BUS_ADDRESS=x",
		"folder that is not there":   "CARGO_HOME=/nonexistent",
		"relative folder":            "GOROOT=go",
		"no name":                    "=x",
		"no value":                   "LANG",
	}
	env := slices.Collect(maps.Values(dropped))
	for name, value := range kept {
		env = append(env, name+"="+value)
	}
	got := s.childEnv(env)
	if !maps.Equal(got, kept) {
		for what, entry := range dropped {
			if name, _, _ := strings.Cut(entry, "="); got[name] != kept[name] {
				t.Errorf("%s: %s got through", what, entry)
			}
		}
		t.Errorf("got %v\nwant %v", got, kept)
	}
	if got := s.childEnv([]string{"PATH=:.:bin:/bin::"})["PATH"]; got != "/bin" {
		t.Errorf("relative folders on PATH: %q", got)
	}
	if got := s.childEnv(nil)["PATH"]; got != defaultPath {
		t.Errorf("no PATH: %q", got)
	}
}

func TestSandboxSettingsAreChecked(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	data := filepath.Join(home, "data")
	file := filepath.Join(home, "file")
	for _, d := range []string{data, filepath.Join(home, "ws")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	ws := filepath.Join(home, "ws")
	for name, cfg := range map[string]boxConfig{
		"unknown mode":              {Mode: "docker", Workspace: ws},
		"unknown network":           {Network: "wide", Workspace: ws},
		"no workspace":              {},
		"workspace is missing":      {Workspace: filepath.Join(home, "none")},
		"workspace is a file":       {Workspace: file},
		"workspace is home":         {Workspace: home},
		"workspace holds home":      {Workspace: dir},
		"extra root is home":        {Workspace: ws, ExtraRoots: []string{home}},
		"writable holds home":       {Workspace: ws, Writable: []string{dir}},
		"readable is home":          {Workspace: ws, ReadOnly: []string{home}},
		"workspace is the data":     {Workspace: data, Hide: []string{data}},
		"readable lies in the data": {Workspace: ws, ReadOnly: []string{data}, Hide: []string{data}},
		"no box for data inside":    {Mode: "off", Workspace: ws, Hide: []string{filepath.Join(ws, "data")}},
		"name with NUL":             {Workspace: ws + "\x00"},
	} {
		if _, err := newSandbox(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if runtime.GOOS != "windows" {
		for _, wide := range []string{"/", "/tmp", "/usr", "/etc", "/var", "/proc/self", "/dev/shm"} {
			if _, err := newSandbox(boxConfig{Workspace: wide}); err == nil {
				t.Errorf("%q as workspace: accepted", wide)
			}
		}
	}
	s, err := newSandbox(boxConfig{Mode: "off", Workspace: ws, ReadOnly: []string{filepath.Join(home, "none")}})
	if err != nil || len(s.Notes()) != 1 {
		t.Errorf("a missing folder: %v, notes %q", err, s.Notes())
	}
}

func TestPlainChild(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs sh")
	}
	t.Setenv("A_TOKEN", "hunter2")
	s := plainSandbox(t)
	if st := s.State(); st.Boxed || st.NetBlocked || st.RefuseExec != "" || !strings.HasPrefix(st.Line, "off") || st.Hint == "" && runtime.GOOS == "linux" {
		t.Errorf("state %+v", st)
	}
	exec := func(c tools.Command) tools.ExecResult {
		t.Helper()
		start := time.Now()
		res := s.Exec(context.Background(), c)
		if time.Since(start) > 15*time.Second {
			t.Errorf("%q hung", c.Argv)
		}
		return res
	}
	if res := exec(sh("pwd -P; echo err >&2; exit 7")); !res.Started || res.Exit != 7 || string(res.Stdout) != s.roots[0]+"\n" || string(res.Stderr) != "err\n" {
		t.Errorf("%+v", res)
	}
	if res := exec(sh("kill -9 $$")); res.Exit != 137 {
		t.Errorf("killed by signal 9: %+v", res)
	}
	if res := exec(sh("env; cat; (: </dev/tty) 2>/dev/null && echo terminal")); strings.Contains(string(res.Stdout), "hunter2") ||
		strings.Contains(string(res.Stdout), "terminal") || !strings.Contains(string(res.Stdout), "PICKET_SANDBOX=off\n") {
		t.Errorf("%s", res.Stdout)
	}
	if res := exec(tools.Command{Argv: []string{"no such program"}}); res.Started || res.Err == "" {
		t.Errorf("%+v", res)
	}
	if res := exec(tools.Command{}); res.Started || res.Err == "" {
		t.Errorf("no program: %+v", res)
	}
	res := exec(tools.Command{Argv: []string{"/bin/sh", tools.ScriptArg, "arg"}, Script: []byte("echo $0; echo $1; ls -l $0")})
	lines := strings.Split(string(res.Stdout), "\n")
	if res.Exit != 0 || len(lines) < 3 || lines[1] != "arg" || !strings.HasPrefix(lines[2], "-r--------") {
		t.Fatalf("script: %+v %q", res, lines)
	}
	if _, err := os.Stat(filepath.Dir(lines[0])); !os.IsNotExist(err) {
		t.Errorf("the script was left behind: %v", err)
	}
	c := sh("sleep 300 & echo before; wait")
	c.Timeout = 200 * time.Millisecond
	if res := exec(c); !res.TimedOut || string(res.Stdout) != "before\n" {
		t.Errorf("time limit: %+v", res)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(200*time.Millisecond, cancel)
	if res := s.Exec(ctx, sh("trap 'echo ended; exit 3' TERM; while :; do sleep 0.01; done")); !res.Stopped || res.Exit != 3 || string(res.Stdout) != "ended\n" {
		t.Errorf("stopped: %+v", res)
	}
	if res := s.Exec(ctx, sh("touch late")); res.Started || !res.Stopped {
		t.Errorf("after the stop: %+v", res)
	}
}

func TestFilterSeesAllBeforeTheCut(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs sh")
	}
	s := plainSandbox(t)
	s.cfg.Filter = func(w io.Writer) io.WriteCloser { return &upper{w: w} }
	c := sh("i=0; while [ $i -lt 100 ]; do echo secret; i=$((i+1)); done")
	c.OutputMax = 25
	res := s.Exec(context.Background(), c)
	if strings.Contains(string(res.Stdout), "secr") || !strings.Contains(string(res.Stdout), "SECRET") ||
		!strings.HasSuffix(string(res.Stdout), "end") || res.StdoutSize != 700 {
		t.Errorf("%d %q", res.StdoutSize, res.Stdout)
	}
}

type upper struct{ w io.Writer }

func (u *upper) Write(p []byte) (int, error) { return u.w.Write(bytes.ToUpper(p)) }
func (u *upper) Close() error                { _, err := u.w.Write([]byte("end")); return err }
