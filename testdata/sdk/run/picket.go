package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A picket is a server of its own: own settings, keys, log and model.
type picket struct {
	program, home, ws string
	env               []string
	model             *model
	stub              *httptest.Server
	cmd               *exec.Cmd
	base              string // http://127.0.0.1:PORT
	key, token        string
}

var serving = regexp.MustCompile(`serving on (http://\S+?);`)

// startPicket starts a server in a new folder; its API is on.
func startPicket(ctx context.Context, program, home string) (*picket, error) {
	p := &picket{program: program, home: home, ws: filepath.Join(home, "ws"), env: append(plainEnviron(), "PICKET_HOME="+home, "PICKET_LISTEN=127.0.0.1:0"),
		model: &model{asked: make(chan struct{}, 100), release: make(chan struct{}, 100)}}
	if err := os.MkdirAll(filepath.Join(p.ws, "keep"), 0o700); err != nil {
		return nil, err
	}
	key, err := p.run(ctx, "api", "key")
	if err == nil {
		_, err = p.run(ctx, "api", "on")
	}
	if err != nil {
		return nil, err
	}
	p.key = strings.TrimSpace(key)
	p.stub = httptest.NewServer(p.model)
	p.cmd = p.command(ctx, "serve", "--workspace", p.ws, "--model", "stub", "--base-url", p.stub.URL+"/v1")
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(stderr)
	var said []string
	for p.base == "" && lines.Scan() {
		said = append(said, lines.Text())
		if found := serving.FindStringSubmatch(lines.Text()); found != nil {
			p.base = found[1]
		}
	}
	if p.base == "" {
		return nil, fmt.Errorf("the server did not start: %s", strings.Join(said, "\n"))
	}
	go io.Copy(io.Discard, stderr) // ends with the server
	token, err := os.ReadFile(filepath.Join(home, "data", "owner.token"))
	p.token = strings.TrimSpace(string(token))
	return p, err
}

// plainEnviron is the environment without what would lead picket or a client
// elsewhere.
func plainEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(strings.ToUpper(v), "=")
		return strings.HasPrefix(name, "PICKET_") || strings.HasPrefix(name, "OPENAI_") || strings.HasSuffix(name, "_PROXY") || strings.HasPrefix(name, "LANGCHAIN") ||
			strings.HasPrefix(name, "LANGSMITH")
	})
}

func (p *picket) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Env = p.env
	return cmd
}

func (p *picket) run(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := p.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("picket %s: %w: %s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// close ends the server as its owner would; then the log must be whole.
func (p *picket) close(ctx context.Context) error {
	p.stub.CloseClientConnections()
	err := p.cmd.Process.Signal(os.Interrupt)
	if werr := p.cmd.Wait(); err == nil && p.cmd.ProcessState.ExitCode() != 130 {
		err = fmt.Errorf("the server ended with %v", werr)
	}
	p.stub.Close()
	_, verr := p.run(ctx, "audit", "verify")
	return errors.Join(err, verr)
}

// owner asks the owner's API.
func (p *picket) owner(ctx context.Context, method, path string, body, into any) error {
	return p.request(ctx, method, "/api"+path, p.token, body, into)
}

func (p *picket) request(ctx context.Context, method, path, key string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(answer, into)
	}
	return err
}

// deny waits for a question and answers it with no.
func (p *picket) deny(ctx context.Context) error {
	for {
		var list struct {
			Questions []struct{ ID, Digest string }
		}
		if err := p.owner(ctx, "GET", "/approvals", nil, &list); err != nil {
			return err
		}
		for _, q := range list.Questions {
			return p.owner(ctx, "POST", "/approvals/"+q.ID, map[string]string{"answer": "deny", "digest": q.Digest}, nil)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return errors.New("no question came")
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turns counts by the audit log how often a message was given to picket, for
// each text, in one chat of another app.
func (p *picket) turns(chat string) (map[string]int, error) {
	data, err := os.ReadFile(filepath.Join(p.home, "data", "audit.jsonl"))
	counts := map[string]int{}
	for line := range bytes.Lines(data) {
		var rec struct{ Kind, Chat, Source, Text string }
		if err := json.Unmarshal(line, &rec); err != nil {
			return nil, err
		}
		if rec.Kind == "user_message" && rec.Chat == "api:"+chat {
			counts[rec.Text]++
		}
	}
	return counts, err
}
