package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A home is a place in which picket runs in processes of its own.
type home struct {
	t        *testing.T
	dir, bin string
	env      []string
}

func newHome(t *testing.T) *home {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, "ws"), 0o755))
	return &home{t, dir, picketBinary(t, dir), []string{"PICKET_HOME=" + filepath.Join(dir, "own"), "HOME=" + dir, "PATH=" + os.Getenv("PATH"),
		"GOCOVERDIR=" + dir, "PICKET_LISTEN=127.0.0.1:0"}}
}

func (h *home) command(args ...string) *exec.Cmd {
	cmd := exec.Command(h.bin, args...)
	cmd.Dir, cmd.Env = filepath.Join(h.dir, "ws"), h.env
	detach(cmd)
	return cmd
}

// picket runs a command to its end and returns what it printed.
func (h *home) picket(code int, args ...string) string {
	h.t.Helper()
	cmd := h.command(args...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		h.t.Fatalf("picket %v: exit %d, not %d\n%s", args, got, code, &diag)
	}
	return out.String()
}

// serve starts a server and returns it with its address.
func (h *home) serve(args ...string) (*exec.Cmd, string) {
	h.t.Helper()
	cmd := h.command(append([]string{"serve"}, args...)...)
	diag, err := cmd.StderrPipe()
	must(h.t, err)
	must(h.t, cmd.Start())
	h.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	at := make(chan string, 1)
	go func() {
		for r := bufio.NewScanner(diag); r.Scan(); {
			if m := regexp.MustCompile(`serving on (http://\S+);`).FindStringSubmatch(r.Text()); m != nil {
				at <- m[1]
			}
		}
		close(at)
	}()
	select {
	case base := <-at:
		if base == "" {
			h.t.Fatal("the server ended")
		}
		return cmd, base
	case <-time.After(20 * time.Second):
		h.t.Fatal("the server did not start")
	}
	return nil, ""
}

func (h *home) post(base, key, body string, headers ...string) (int, string) {
	req, err := http.NewRequest("POST", base+"/v1/chat/completions", strings.NewReader(body))
	must(h.t, err)
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(key))
	for _, l := range headers {
		name, value, _ := strings.Cut(l, ": ")
		req.Header.Set(name, value)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// A server as people use it, up to its death in the middle of a turn: the next
// one does not run that turn again, and ends its question.
func TestServeCommand(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("signals of Unix")
	}
	h := newHome(t)
	if out := h.picket(0, "stop"); out != "no server is running\n" {
		t.Errorf("%q", out)
	}
	if out := h.picket(0, "api", "status"); !strings.Contains(out, "off (picket api on)") || !strings.Contains(out, "not made yet") {
		t.Errorf("%s", out)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "own")); err == nil {
		t.Error("looking made something")
	}
	h.picket(0, "api", "on")
	key := h.picket(0, "api", "key")
	if !apiKey().MatchString(key) || strings.Count(key, "\n") != 1 {
		t.Errorf("the key is %q", key)
	}
	for _, args := range [][]string{{"api"}, {"api", "on", "now"}, {"api", "maybe"}, {"stop", "the", "server"}, {"serve", "now"}, {"serve", "--chat", "x"}, {"serve", "--allow", "shell:ls"}} {
		h.picket(2, args...)
	}
	server, base := h.serve("--model", "rehearsal")
	if code, body := h.post(base, key, `{"messages":[{"role":"user","content":"list"}]}`); code != 200 || !strings.Contains(body, "files list returned") {
		t.Errorf("%d %s", code, body)
	}
	if out := h.picket(0, "api", "status"); !strings.Contains(out, "serving          "+base) || !strings.Contains(out, base+"/v1") || !strings.Contains(out, "1 of 100") {
		t.Errorf("%s", out)
	}
	ask := `{"user":"w","messages":[{"role":"user","content":"run: touch mark"}]}`
	waits := func() {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); h.picket(0, "approvals") == ""; {
			if time.Now().After(end) {
				t.Fatal("no question came")
			}
		}
	}
	done := make(chan string, 1)
	go func() { _, body := h.post(base, key, ask); done <- body }()
	waits()
	if out := h.picket(0, "stop"); !strings.HasSuffix(out, ": turns stopped: 1\n") {
		t.Errorf("stop: %q", out)
	}
	if body := <-done; !strings.Contains(body, `"stopped"`) {
		t.Errorf("%s", body)
	}
	go func() { _, body := h.post(base, key, ask); done <- body }()
	waits()
	must(t, server.Process.Kill())
	<-done
	server.Wait()
	if out := h.picket(0, "stop"); out != "no server is running\n" {
		t.Errorf("of a server that was killed: %q", out)
	}

	second, base := h.serve("--model", "rehearsal")
	if out := h.picket(0, "approvals"); out != "" {
		t.Errorf("a question is left over: %s", out)
	}
	third, other := h.serve("--model", "rehearsal")
	if out := h.picket(0, "api", "status"); !strings.Contains(out, base) || !strings.Contains(out, other) {
		t.Errorf("of two servers: %s", out)
	}
	must(t, third.Process.Signal(syscall.SIGTERM))
	third.Wait()
	code, body := h.post(base, key, ask, "X-Stainless-Retry-Count: 1")
	if code != 400 || !strings.Contains(body, "turn_failed") {
		t.Errorf("sent again: %d %s", code, body)
	}
	if list := h.picket(0, "chats"); !strings.Contains(list, "api:w") || !strings.Contains(list, "another app (API)") {
		t.Errorf("chats: %s", list)
	}
	h.picket(0, "api", "off")
	if code, body := h.post(base, key, ask); code != 404 || !strings.Contains(body, "api_off") {
		t.Errorf("off: %d %s", code, body)
	}
	must(t, second.Process.Signal(syscall.SIGTERM))
	second.Wait()
	if code := second.ProcessState.ExitCode(); code != 143 {
		t.Errorf("SIGTERM: exit %d", code)
	}
	if left, err := filepath.Glob(filepath.Join(h.dir, "own", "data", "runs", "r_*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "ws", "mark")); err == nil {
		t.Error("a call ran that nobody allowed")
	}
	log, err := os.ReadFile(filepath.Join(h.dir, "own", "data", auditName))
	if err != nil || strings.Contains(string(log), strings.TrimSpace(key)) {
		t.Errorf("the log holds the key, or %v", err)
	}
	h.picket(0, "audit", "verify")
	h.env = append(h.env, "PICKET_LISTEN=0.0.0.0:7717")
	h.picket(1, "serve")
}
