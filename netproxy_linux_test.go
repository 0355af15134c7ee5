package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"picket/tools"
)

// proxiedBox is a box whose calls reach the servers of a web by their names.
func proxiedBox(t testing.TB, change func(*boxConfig)) (*sandbox, *web) {
	t.Helper()
	w := newWeb(t)
	s := testBox(t, func(c *boxConfig) {
		c.Network = "proxy"
		if change != nil {
			change(c)
		}
	})
	if !s.State().NetProxied || !strings.Contains(s.State().Line, "network by proxy") {
		t.Fatalf("no proxy: %+v", s.State())
	}
	s.dial = w.dial
	w.caFile(t, s.roots[0])
	return s, w
}

// networked is a line with network whose hosts are decided by allow.
func (w *web) networked(s *sandbox, line string, allow func(tools.Dest) error) tools.Command {
	ca := s.roots[0] + "/ca.pem"
	c := sh(line)
	c.Timeout = time.Minute
	c.Network = true
	c.Connect = func(_ context.Context, d tools.Dest) error { return allow(d) }
	c.Env = map[string]string{"SSL_CERT_FILE": ca, "CURL_CA_BUNDLE": ca, "GIT_SSL_CAINFO": ca, "PIP_CERT": ca, "NODE_EXTRA_CA_CERTS": ca, "GIT_TERMINAL_PROMPT": "0"}
	return c
}

func only(hosts ...string) func(tools.Dest) error {
	return func(d tools.Dest) error {
		if !slices.Contains(hosts, d.Host) {
			return errors.New("not this one")
		}
		return nil
	}
}

// Programs of each kind reach an allowed host over TLS, and no other.
func TestBoxNetworkPrograms(t *testing.T) {
	s, w := proxiedBox(t, nil)
	w.packages(t)
	for _, c := range []struct{ program, install, line, want, denied string }{
		{"curl", "curl", "curl -sS https://ok.test/; curl -sS http://ok.test/", "ok.test says hello\nok.test says hello\n", "curl -sS https://no.test/"},
		{"wget", "wget", "wget -q --ca-certificate=ca.pem -O- https://ok.test/; wget -q -O- http://ok.test/", "ok.test says hello\nok.test says hello\n",
			"wget -q -O- --tries=1 http://no.test/"},
		{"git", "git", "git clone -q https://ok.test/repo.git r && cat r/file", "content\n", "git clone -q https://no.test/repo.git r2"},
		{"python3", "python3", `python3 -c 'import urllib.request as u; print(u.urlopen("https://ok.test/").read().decode(), end="")'`, "ok.test says hello\n",
			`python3 -c 'import urllib.request as u; u.urlopen("https://no.test/")'`},
		{"pip", "python3-pip", "/usr/bin/python3 -m pip install -q --no-deps --disable-pip-version-check --target lib --index-url https://ok.test/simple pickettest && cat lib/pickettest.py", "x = 1\n",
			"/usr/bin/python3 -m pip install -q --retries 0 --disable-pip-version-check --target lib --index-url https://no.test/simple pickettest"},
		{"npm", "npm", "npm install --silent --no-audit --no-fund --fetch-retries 0 --cafile ca.pem --registry https://ok.test/npm/ pickettest >out 2>&1 || cat out; cat node_modules/pickettest/index.js", "y = 2\n",
			"npm install --silent --no-audit --no-fund --fetch-retries 0 --registry https://no.test/npm/ other"},
		{"go", "Go", "mkdir m && cd m && go mod init -q m 2>/dev/null || go mod init m >/dev/null 2>&1; GOPROXY=https://ok.test/go GOSUMDB=off GOFLAGS=-mod=mod go get pickettest.test/z@v1.0.0 2>/dev/null; grep -c pickettest go.mod",
			"1\n", "cd m && GOPROXY=https://no.test/go GOSUMDB=off go get pickettest.test/other@v1.0.0"},
	} {
		t.Run(c.program, func(t *testing.T) {
			needs(t, c.program, c.install)
			if c.program != "pip" && s.lookPath(c.program) == "" || c.program == "pip" && exec.Command("/usr/bin/python3", "-m", "pip", "--version").Run() != nil {
				need(t, false, c.program+" in the box (install "+c.install+" for all users)")
			}
			res := in(t, s, w.networked(s, c.line, only("ok.test")))
			if string(res.Stdout) != c.want || res.Exit != 0 {
				t.Errorf("exit %d, %s\n%s", res.Exit, res.Stdout, res.Stderr)
			}
			if len(res.Net) == 0 {
				t.Error("no account of where it went")
			}
			for _, u := range res.Net {
				if u.Host != "ok.test" || u.Refused != "" || u.In == 0 || u.Out == 0 {
					t.Errorf("use %+v", u)
				}
			}
			w.dialed = nil
			res = in(t, s, w.networked(s, c.denied, only("ok.test")))
			if res.Exit == 0 || len(res.Net) > 0 || len(w.dialed) > 0 {
				t.Errorf("a denied host: exit %d, %+v, connected to %q\n%s%s", res.Exit, res.Net, w.dialed, res.Stdout, res.Stderr)
			}
		})
	}
}

// There is no way out but the proxy.
func TestBoxNetworkHasOneWayOut(t *testing.T) {
	needs(t, "python3", "python3")
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	abstract, err := net.Listen("unix", fmt.Sprintf("@picket-net-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	dns, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dns.Close()
	s, w := proxiedBox(t, nil)
	port := host.Addr().(*net.TCPAddr).Port
	script := fmt.Sprintf(`import socket, os
def tried(name, f):
    try: f(); print(name, "GOT OUT")
    except OSError as e: print(name, "refused")
tcp = lambda a, family=socket.AF_INET: (lambda: socket.socket(family).connect(a))
tried("loopback", tcp(("127.0.0.1", %d)))
tried("address", tcp(("1.1.1.1", 53)))
tried("ipv6", tcp(("2606:4700:4700::1111", 53), socket.AF_INET6))
tried("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\0%s"))
tried("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53)))
tried("name", lambda: socket.getaddrinfo("ok.test", 443))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.sendto(b"x", ("127.0.0.1", %d))
print(sorted(int(f) for f in os.listdir("/proc/self/fd"))[:4], sorted(os.listdir("/run")))
print(len([p for p in os.listdir("/proc") if p.isdigit()]))
`, port, strings.TrimPrefix(abstract.Addr().String(), "@"), dns.LocalAddr().(*net.UDPAddr).Port)
	c := w.networked(s, "", only())
	c.Argv, c.Script = []string{s.lookPath("python3"), "-I", tools.ScriptArg}, []byte(script)
	res := in(t, s, c)
	want := "loopback refused\naddress refused\nipv6 refused\nabstract refused\nudp refused\nname refused\n[0, 1, 2, 3] ['picket', 'script']\n2\n"
	if string(res.Stdout) != want {
		t.Errorf("%s%s", res.Stdout, res.Stderr)
	}
	dns.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, _, err := dns.ReadFrom(make([]byte, 9)); err == nil {
		t.Errorf("%d bytes came out by UDP", n)
	}
	if len(w.dialed) > 0 {
		t.Errorf("connected to %q", w.dialed)
	}
	// A call without network has no proxy either.
	if got := printed(t, s, fmt.Sprintf("env | grep -ci proxy; ls /run 2>/dev/null; curl -sS -x http://127.0.0.1:%d http://ok.test/ 2>&1 | cut -c1-9", proxyPort)); got != "0\ncurl: (7)" {
		t.Errorf("without network: %q", got)
	}
}

// The command is what the box runs: its own exit status, arguments and script.
func TestBoxNetworkRunsTheCommandItself(t *testing.T) {
	s, w := proxiedBox(t, nil)
	for line, want := range map[string]int{"exit 7": 7, "kill -9 $$": 137, "kill -TERM $$": 143, "exec nothing-here": 127, "true": 0} {
		if res := in(t, s, w.networked(s, line, only())); res.Exit != want {
			t.Errorf("%s: exit %d, want %d", line, res.Exit, want)
		}
	}
	c := w.networked(s, "", only())
	c.Argv = []string{"/bin/sh", "-c", `printf '%s\n' "$0" "$@" "$PPID" "$$"`, "--", "a b", "", shimWord + "3"}
	if res := in(t, s, c); string(res.Stdout) != "--\na b\n\nshim:3\n1\n2\n" {
		t.Errorf("%q %s", res.Stdout, res.Stderr)
	}
	c.Argv = []string{"no-such-program"}
	if res := s.Exec(context.Background(), c); res.Exit != 127 || !strings.Contains(string(res.Stderr), "no-such-program") {
		t.Errorf("%+v: %s", res, res.Stderr)
	}
	// A box that cannot have the port says so, and nothing runs.
	c = w.networked(s, "echo ran", only())
	s.cfg.HostPorts = []int{70000}
	if res := s.Exec(context.Background(), c); len(res.Stdout) > 0 || res.Exit == 0 {
		t.Errorf("%+v", res)
	}
}

// While a question is open, the time limit stands still; and a client that did
// not wait gets the answer.
func TestBoxNetworkTimeStandsStill(t *testing.T) {
	needs(t, "curl", "curl")
	s, w := proxiedBox(t, nil)
	asked := 0
	c := w.networked(s, "curl -sS -m 1 https://ok.test/ || curl -sS https://ok.test/", nil)
	c.Timeout = 3 * time.Second
	c.Connect = func(context.Context, tools.Dest) error {
		asked++
		time.Sleep(3500 * time.Millisecond)
		return nil
	}
	if res := in(t, s, c); string(res.Stdout) != "ok.test says hello\n" || asked != 1 || res.TimedOut {
		t.Errorf("asked %d times: %s%s", asked, res.Stdout, res.Stderr)
	}
	c = w.networked(s, "curl -sS http://ok.test/; sleep 60", only("ok.test"))
	c.Timeout = 3 * time.Second
	if res := s.Exec(context.Background(), c); !res.TimedOut || string(res.Stdout) != "ok.test says hello\n" {
		t.Errorf("%+v", res)
	}
	// A stop ends a question.
	ctx, stop := context.WithCancel(context.Background())
	c = w.networked(s, "curl -sS http://ok.test/", nil)
	c.Connect = func(ctx context.Context, _ tools.Dest) error { stop(); <-ctx.Done(); return ctx.Err() }
	if res := s.Exec(ctx, c); !res.Stopped {
		t.Errorf("%+v", res)
	}
}

// The owner's ports of this machine, and no others.
func TestBoxNetworkHostPorts(t *testing.T) {
	needs(t, "curl", "curl")
	w := newWeb(t)
	port := w.plain.Listener.Addr().(*net.TCPAddr).Port
	s, w2 := proxiedBox(t, func(c *boxConfig) { c.HostPorts = []int{port, 80, proxyPort} })
	if n := s.Notes(); len(n) != 1 || !strings.Contains(n[0], "port 80") {
		t.Errorf("notes %q", n)
	}
	line := fmt.Sprintf("curl -sS http://127.0.0.1:%d/; curl -sS http://localhost:%[1]d/; curl -sS http://127.0.0.1:%d/", port, w2.plain.Listener.Addr().(*net.TCPAddr).Port)
	want := fmt.Sprintf("127.0.0.1:%d says hello\nlocalhost:%[1]d says hello\n", port)
	res := in(t, s, w2.networked(s, line, only(tools.LocalHost(uint16(port)))))
	if string(res.Stdout) != want || len(res.Net) != 1 || res.Net[0].Method != "TCP" || res.Net[0].In == 0 {
		t.Errorf("%s%s%+v", res.Stdout, res.Stderr, res.Net)
	}
	if res := in(t, s, w2.networked(s, line, only())); len(res.Stdout) > 0 || len(res.Net) > 0 {
		t.Errorf("denied: %s", res.Stdout)
	}
}

// Calls at the same time have a proxy each.
func TestBoxNetworkKnowsTheCall(t *testing.T) {
	needs(t, "curl", "curl")
	s, w := proxiedBox(t, nil)
	done := make(chan string, 4)
	for i := range 4 {
		go func() {
			host := fmt.Sprintf("h%d.test", i)
			res := s.Exec(context.Background(), w.networked(s, "for i in 0 1 2 3; do curl -sS http://h$i.test/; done", only(host)))
			if n := strings.Count(string(res.Stdout), "says hello"); n != 1 || !strings.Contains(string(res.Stdout), host+" says") || len(res.Net) != 1 || res.Net[0].Host != host {
				done <- fmt.Sprintf("%s: %s%+v", host, res.Stdout, res.Net)
			} else {
				done <- ""
			}
		}()
	}
	for range 4 {
		if got := <-done; got != "" {
			t.Error(got)
		}
	}
}

// Nothing of a call's network outlives it, and a program that keeps connections
// open does not hold it up.
func TestBoxNetworkEndsWithTheCall(t *testing.T) {
	needs(t, "curl", "curl")
	s, w := proxiedBox(t, nil)
	w.mux.HandleFunc("slow.test/", func(rw http.ResponseWriter, r *http.Request) {
		rw.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
	})
	before := openFiles(t)
	for range 3 {
		in(t, s, w.networked(s, "curl -sS https://slow.test/ >/dev/null & curl -sS http://slow.test/ >/dev/null & sleep 0.3", only("slow.test")))
	}
	for range 1000 {
		if openFiles(t) <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d open files, %d before", openFiles(t), before)
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// The shim is picket's own file, whatever lies at its path by now.
func TestBoxNetworkNeedsItsOwnBinary(t *testing.T) {
	needBox(t)
	dir := t.TempDir()
	self := copySelf(t, dir)
	for name, spoil := range map[string]func() error{
		"whole":   func() error { return nil },
		"removed": func() error { return os.Remove(self) },
		"replaced": func() error {
			return errors.Join(os.Remove(self), os.WriteFile(self, []byte("#!/bin/sh\necho planted\n"), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			copySelf(t, dir)
			cmd := exec.Command(self, "-test.run=^TestBoxNetworkHelper$", "-test.v")
			cmd.Env = append(os.Environ(), "PICKET_TEST_HELPER=1", "TMPDIR="+dir)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			stdin.Close()
			cmd.Wait()
			want := "was replaced or removed: start picket again"
			if name == "whole" {
				want = "ran"
			}
			if got := out.String(); !strings.Contains(got, want) || strings.Contains(got, "planted") || name != "whole" && strings.Contains(got, "ran\n") {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestBoxNetworkHelper(t *testing.T) {
	if os.Getenv("PICKET_TEST_HELPER") == "" {
		return // it is run by the test above
	}
	io.Copy(io.Discard, os.Stdin)
	s, w := proxiedBox(t, nil)
	res := s.Exec(context.Background(), w.networked(s, "echo ran", only()))
	fmt.Printf("%s%s\n", res.Stdout, res.Err)
}

// Where there is no box or no network to take away, the proxy is off and said so.
func TestNetworkByHostNeedsABox(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	ws := filepath.Join(home, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := newSandbox(boxConfig{Mode: "off", Network: "proxy", Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	if st := s.State(); st.NetProxied || !strings.Contains(st.Line, "not decided on by host") {
		t.Errorf("%+v", st)
	}
	s.state = boxState{Boxed: true}
	if s.findNetwork(); s.state.NetProxied || !strings.Contains(s.state.Line, "not decided on by host") {
		t.Errorf("%+v", s.state)
	}
	s.state, s.cfg.Network = boxState{Boxed: true, NetBlocked: true}, "host"
	if s.findNetwork(); s.state.NetProxied || !strings.Contains(s.state.Line, "all of the machine's") {
		t.Errorf("%+v", s.state)
	}
}

func TestShimArguments(t *testing.T) {
	if fd, ports, ok := parseShim(shimArg(7, []int{47128, 5432})); fd != 7 || !slices.Equal(ports, []int{47128, 5432}) || !ok {
		t.Error(fd, ports, ok)
	}
	for _, arg := range []string{"", "shim", "shim:", "shim:x", "shim:7,", "shim:7,x", "shim:0,47128", "shim:-3,5000", "version", "shim:7 ,8"} {
		if _, _, ok := parseShim(arg); ok {
			t.Errorf("%q was read", arg)
		}
	}
}

// packages serves a repository and a package of each kind.
func (w *web) packages(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if _, err := exec.LookPath("git"); err == nil {
		for _, args := range [][]string{{"init", "-q", "-b", "main", "r"}, {"-C", "r", "add", "file"},
			{"-C", "r", "-c", "user.name=a", "-c", "user.email=b@c", "commit", "-q", "-m", "one"}, {"clone", "-q", "--bare", "r", "repo.git"},
			{"-C", "repo.git", "config", "http.receivepack", "true"}} {
			if args[len(args)-1] == "file" {
				write(t, dir+"/r/file", "content\n")
			}
			cmd := exec.Command("git", args...)
			cmd.Dir = dir
			cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1"}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("git %q: %s", args, out)
			}
		}
		w.mux.Handle("/repo.git/", &cgi.Handler{Path: filepath.Join(gitCore(t), "git-http-backend"),
			Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + dir, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}})
	}
	static := func(path string, b []byte) {
		w.mux.HandleFunc(path, func(rw http.ResponseWriter, r *http.Request) { rw.Write(b) })
	}
	digest := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	wheel := zipOf(t, "pickettest.py", "x = 1\n", "pickettest-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pickettest\nVersion: 1.0\n",
		"pickettest-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"pickettest-1.0.dist-info/RECORD", "pickettest.py,,\n")
	const file = "pickettest-1.0-py3-none-any.whl"
	static("/simple/pickettest/", fmt.Appendf(nil, `<!DOCTYPE html><a href="/files/%s#sha256=%s">%[1]s</a>`, file, digest(wheel)))
	static("/files/"+file, wheel)

	var pack bytes.Buffer
	gz := gzip.NewWriter(&pack)
	tw := tar.NewWriter(gz)
	for name, text := range map[string]string{"package/package.json": `{"name":"pickettest","version":"1.0.0"}`, "package/index.js": "y = 2\n"} {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(tw, text)
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha1.Sum(pack.Bytes())
	static("/npm/pickettest", fmt.Appendf(nil, `{"name":"pickettest","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"pickettest","version":"1.0.0",`+
		`"dist":{"tarball":"https://ok.test/npm/pickettest.tgz","integrity":"sha1-%s"}}}}`, base64.StdEncoding.EncodeToString(sum[:])))
	static("/npm/pickettest.tgz", pack.Bytes())

	const mod = "/go/pickettest.test/z/@v/v1.0.0"
	static(mod+".info", []byte(`{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}`))
	static(mod+".mod", []byte("module pickettest.test/z\n"))
	static(mod+".zip", zipOf(t, "pickettest.test/z@v1.0.0/go.mod", "module pickettest.test/z\n", "pickettest.test/z@v1.0.0/z.go", "package z\n"))
}

func zipOf(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		f, err := z.Create(files[i])
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(f, files[i+1])
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gitCore(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// The cost of the proxy in starting a box, and of one request through it.
func BenchmarkBoxNetwork(b *testing.B) {
	for _, network := range []bool{false, true} {
		b.Run(fmt.Sprintf("network=%t", network), func(b *testing.B) {
			s, w := proxiedBox(b, nil)
			c := w.networked(s, "true", only())
			c.Network = network
			for b.Loop() {
				in(b, s, c)
			}
		})
	}
}
