package tools

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

// execWith runs a call whose child ends as given and returns what was started.
func execWith(t *testing.T, c *Call, r ExecResult) Command {
	t.Helper()
	var got Command
	c.Host = &Host{Exec: func(_ context.Context, cmd Command) ExecResult { got = cmd; return r }}
	Shell.Execute(context.Background(), c)
	return got
}

func runShellCall(tool *Tool, raw string, j Judgement, secrets map[string]string, r ExecResult) (Output, Command) {
	args, err := tool.Parse([]byte(raw))
	if err != nil {
		panic(err)
	}
	plan, err := tool.Assess(args)
	if err != nil {
		panic(err)
	}
	var got Command
	c := &Call{Args: args, Plan: plan, Judgement: j, Secrets: secrets,
		Host: &Host{Exec: func(_ context.Context, cmd Command) ExecResult { got = cmd; return r }}}
	return tool.Execute(context.Background(), c), got
}

func TestShellRun(t *testing.T) {
	boxed := Judgement{Boxed: true}
	for _, c := range []struct {
		name, args string
		j          Judgement
		r          ExecResult
		text, err  string
		note       string
	}{
		{"works", `{"command":"ls"}`, boxed, ExecResult{Started: true, Stdout: []byte("a\n"), StdoutSize: 2}, "a\n", "", ""},
		{"both streams", `{"command":"ls"}`, boxed, ExecResult{Started: true, Stdout: []byte("a"), Stderr: []byte("b\n")}, "a\n[stderr]\nb\n", "", ""},
		{"ends with a status", `{"command":"ls"}`, boxed, ExecResult{Started: true, Exit: 3, Stderr: []byte("no\n")}, "[stderr]\nno\n", "exit status 3", ""},
		{"never ran", `{"command":"ls"}`, boxed, ExecResult{Err: "no sandbox"}, "", "it never ran: no sandbox", ""},
		{"time limit keeps what was printed", `{"command":"ls","timeout":7}`, boxed, ExecResult{Started: true, TimedOut: true, Exit: 137, Stdout: []byte("half\n")}, "half\n", "ended by the time limit of 7 s; what it printed until then is above", ""},
		{"stopped", `{"command":"ls"}`, boxed, ExecResult{Started: true, Stopped: true, Exit: 137, Stdout: []byte("half\n")}, "half\n", "stopped before it ended", ""},
		{"no network", `{"command":"curl x"}`, boxed, ExecResult{Started: true, Exit: 6, Stderr: []byte("curl: (6) Could not resolve host: x\n")}, "[stderr]\ncurl: (6) Could not resolve host: x\n", "exit status 6", "network=true"},
		{"with network no such note", `{"command":"curl x"}`, Judgement{Boxed: true, Network: true}, ExecResult{Started: true, Exit: 6, Stderr: []byte("Could not resolve host: x\n")}, "[stderr]\nCould not resolve host: x\n", "exit status 6", ""},
		{"by the proxy, and it cannot use one", `{"command":"ssh x"}`, Judgement{Boxed: true, Network: true, Proxied: true}, ExecResult{Started: true, Exit: 255, Stderr: []byte("ssh: Could not resolve hostname x: Temporary failure in name resolution\n")}, "[stderr]\nssh: Could not resolve hostname x: Temporary failure in name resolution\n", "exit status 255", `"sandbox": {"network": "host"}`},
		{"by the proxy, and another failure", `{"command":"pip x"}`, Judgement{Boxed: true, Network: true, Proxied: true}, ExecResult{Started: true, Exit: 1, Stderr: []byte("no such package\n")}, "[stderr]\nno such package\n", "exit status 1", ""},
		{"read-only repository", `{"command":"git commit -m x"}`, boxed, ExecResult{Started: true, Exit: 128, Stderr: []byte("fatal: Unable to create '/ws/.git/index.lock': Read-only file system\n")}, "[stderr]\nfatal: Unable to create '/ws/.git/index.lock': Read-only file system\n", "exit status 128", "read-only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, cmd := runShellCall(&Shell, c.args, c.j, map[string]string{"S": "v"}, c.r)
			if out.Text != c.text || out.Err != c.err {
				t.Errorf("text %q, error %q", out.Text, out.Err)
			}
			if got := strings.Join(out.Notes, "\n"); c.note == "" && got != "" || !strings.Contains(got, c.note) {
				t.Errorf("notes %q, want %q", got, c.note)
			}
			if out.HasExit != c.r.Started || out.Exit != c.r.Exit || out.Interrupted != (c.r.TimedOut || c.r.Stopped) {
				t.Errorf("exit %d %v, interrupted %v", out.Exit, out.HasExit, out.Interrupted)
			}
			if !slices.Equal(cmd.Argv[:2], []string{"/bin/sh", "-c"}) || len(cmd.Argv) != 3 || cmd.Env["S"] != "v" || cmd.Network != c.j.Network || cmd.Timeout < time.Second {
				t.Errorf("started %+v", cmd)
			}
		})
	}
}

func TestPythonRun(t *testing.T) {
	out, cmd := runShellCall(&Python, `{"code":"print(1)\n","timeout":5}`, Judgement{Boxed: true}, nil, ExecResult{Started: true, Stdout: []byte("1\n")})
	if out.Text != "1\n" || out.Err != "" {
		t.Errorf("output %+v", out)
	}
	if cmd.Argv[len(cmd.Argv)-1] != ScriptArg || cmd.Argv[len(cmd.Argv)-2] != "-I" || string(cmd.Script) != "print(1)\n" || cmd.Timeout != 5*time.Second || cmd.Network {
		t.Errorf("started %+v", cmd)
	}
}
