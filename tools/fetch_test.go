package tools

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fetchBench is a local server that stands for every host named *.test.
type fetchBench struct {
	*httptest.Server
	fetcher
	addr netip.AddrPort
	mu   sync.Mutex
	seen []string // "METHOD HOST PATH" of each request
	hops []string
	deny string // the host to which redirects are refused
}

func newFetchBench(t *testing.T, handler http.HandlerFunc) *fetchBench {
	b := &fetchBench{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.seen = append(b.seen, r.Method+" "+r.Host+" "+r.URL.RequestURI())
		b.mu.Unlock()
		handler(w, r)
	}))
	t.Cleanup(b.Close)
	b.addr = netip.MustParseAddrPort(b.Listener.Addr().String())
	b.guard = guard{
		lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			if !strings.HasSuffix(host, ".test") {
				return nil, fmt.Errorf("asked for %s", host)
			}
			return []netip.Addr{b.addr.Addr()}, nil
		},
		testOnlyAllow: func(ap netip.AddrPort) bool { return ap == b.addr },
	}
	return b
}

func (b *fetchBench) url(host, path string) string {
	return fmt.Sprintf("http://%s:%d%s", host, b.addr.Port(), path)
}

// fetchCall assesses and judges a call as the gate does.
func fetchCall(t *testing.T, values map[string]any) *Call {
	t.Helper()
	args := Args{Values: map[string]any{"method": "GET", "max_chars": int64(20000)}}
	for k, v := range values {
		args.Values[k] = v
	}
	plan, err := WebFetch.Assess(args)
	if err != nil {
		t.Fatal(err)
	}
	return &Call{ID: "c1", Args: args, Plan: plan, Judgement: WebFetch.Judge(args, plan, Facts{}), Host: &Host{}}
}

func (b *fetchBench) do(t *testing.T, values map[string]any) Output {
	t.Helper()
	call := fetchCall(t, values)
	call.Host.Hop = func(_ context.Context, s string) error {
		b.hops = append(b.hops, s)
		if u := testURL(t, s); b.deny != "" && u.Host == b.deny {
			return errors.New("declined")
		}
		return nil
	}
	return b.run(t.Context(), call)
}

func TestFetchText(t *testing.T) {
	latin1 := "caf\xe9"
	lateUTF8 := "<p>" + strings.Repeat("a ", 2000) + "é"
	pages := map[string]struct{ kind, body, want string }{
		"/html":        {"text/html; charset=utf-8", "<title>T</title><h1>A</h1><a href=b>c</a>", "# A\n\n[c](URL/b)"},
		"/json":        {"application/json", `{"a": [1,2],` + "\n" + ` "b":"<p>"}`, `{"a": [1,2],` + "\n" + ` "b":"<p>"}`},
		"/plain":       {"text/plain", "a\n  <b>\tc\u200b\U000E0041", "a\n  <b>\tc"},
		"/feed":        {"application/atom+xml", "<feed/>", "<feed/>"},
		"/latin1":      {"text/plain; charset=iso-8859-1", latin1, "café"},
		"/latin1guess": {"text/plain", latin1, "café"},
		"/latin1meta":  {"text/html", "<meta charset=iso-8859-1><p>" + latin1, "café"},
		"/late":        {"text/html", lateUTF8, strings.Repeat("a ", 2000) + "é"},
		"/wrongutf8":   {"text/plain; charset=utf-8", latin1, "caf\ufffd"},
		"/bom":         {"text/plain", "\ufeffa", "a"},
		"/utf16":       {"text/plain", "\xff\xfea\x00\xe9\x00", "aé"},
		"/sjis":        {"text/html", "<meta charset=shift_jis><p>\x93\xfa\x96\x7b", "日本"},
		"/notype":      {"", "<html><p>a</html>", "a"},
		"/empty":       {"text/html", "", "(no text)"},
	}
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		p := pages[r.URL.Path]
		if w.Header().Set("Content-Type", p.kind); p.kind == "" {
			w.Header()["Content-Type"] = nil
		}
		io.WriteString(w, p.body)
	})
	for path, p := range pages {
		t.Run(path[1:], func(t *testing.T) {
			out := b.do(t, map[string]any{"url": b.url("site.test", path)})
			head, text, _ := strings.Cut(out.Text, "\n\n")
			want := strings.ReplaceAll(p.want, "URL", b.url("site.test", ""))
			if out.Err != "" || text != want || !strings.HasPrefix(head, b.url("site.test", path)+" (200, ") {
				t.Errorf("%+v\nhead %q", out, head)
			}
		})
	}
}

func TestFetchNamesWhatIsNoText(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/png":
			w.Header().Set("Content-Type", "image/png")
		case "/pdf":
			w.Header().Set("Content-Type", "application/pdf")
		case "/nul":
			w.Header().Set("Content-Type", "text/plain")
		case "/sniff":
			w.Header()["Content-Type"] = nil
		case "/br":
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Content-Encoding", "br")
		}
		io.WriteString(w, "\x89PNG\r\n\x1a\n\x00\x00MARK")
	})
	for _, path := range []string{"/png", "/pdf", "/nul", "/sniff", "/br"} {
		out := b.do(t, map[string]any{"url": b.url("site.test", path)})
		if out.Err != "" || !strings.Contains(out.Text, "not shown") || strings.Contains(out.Text, "MARK") {
			t.Errorf("%s: %+v", path, out)
		}
	}
}

func TestFetchErrorStatusKeepsTheText(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, "<p>no such entry")
	})
	out := b.do(t, map[string]any{"url": b.url("site.test", "/x")})
	if out.Err != "the server answered 404 Not Found" || !strings.HasSuffix(out.Text, "no such entry") {
		t.Errorf("%+v", out)
	}
}

func TestFetchHead(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Mark", "yes")
		w.Header().Set("Set-Cookie", "a=b")
	})
	out := b.do(t, map[string]any{"url": b.url("site.test", "/x"), "method": "HEAD"})
	if out.Err != "" || !strings.Contains(out.Text, "X-Mark: yes\n") || strings.Contains(out.Text, "a=b") || b.seen[0][:4] != "HEAD" {
		t.Errorf("%+v, %q", out, b.seen)
	}
}

func TestFetchCutsAtMaxChars(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(w, strings.Repeat("é", 500))
	})
	out := b.do(t, map[string]any{"url": b.url("site.test", "/"), "max_chars": int64(100)})
	if strings.Count(out.Text, "é") != 100 || !strings.Contains(out.Text, "[cut after 100 characters]") {
		t.Errorf("%+v", out)
	}
}

// A small body that unpacks to a huge one is read up to the limit and no further.
func TestFetchBoundsDecompression(t *testing.T) {
	var member bytes.Buffer
	z := gzip.NewWriter(&member)
	z.Write(bytes.Repeat([]byte("a"), 1<<20))
	z.Close()
	bomb := bytes.Repeat(member.Bytes(), 256)
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Errorf("accepts %q", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(bomb)
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out := b.do(t, map[string]any{"url": b.url("site.test", "/")})
	runtime.ReadMemStats(&after)
	if out.Bytes != fetchBody || len(out.Notes) != 1 || out.Err != "" {
		t.Errorf("%d bytes, %q, %q", out.Bytes, out.Notes, out.Err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
		t.Errorf("%d bytes were allocated", used)
	}
}

func TestFetchKeepsWhatCameBeforeABreak(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, "start")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	out := b.do(t, map[string]any{"url": b.url("site.test", "/")})
	if !strings.HasSuffix(out.Text, "start") || len(out.Notes) != 1 {
		t.Errorf("%+v", out)
	}
}

func TestFetchRedirects(t *testing.T) {
	var b *fetchBench
	b = newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Referer") != "" {
			t.Errorf("sends the Referer %q", r.Header.Get("Referer"))
		}
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header().Set("Location", strings.ReplaceAll(to, "PORT", fmt.Sprint(b.addr.Port())))
			w.WriteHeader(http.StatusFound)
			return
		}
		io.WriteString(w, "arrived")
	})
	for _, c := range []struct {
		name, to, deny, err string
		hops, requests      int
	}{
		{"same host", "/end", "", "", 1, 2},
		{"other host", "http://other.test:PORT/end?x=1", "", "", 1, 2},
		{"scheme-relative", "//other.test:PORT/end", "", "", 1, 2},
		{"declined", "http://evil.test:PORT/?d=1", "evil.test", "declined", 1, 1},
		{"metadata address", "http://169.254.169.254/latest/", "", "private or special", 0, 1},
		{"loopback on another port", "http://127.0.0.1:1/", "", "private or special", 0, 1},
		{"localhost", "http://localhost:PORT/", "", "this machine", 0, 1},
		{"integer address", "http://2130706433:PORT/", "", "not valid", 0, 1},
		{"file", "file:///etc/passwd", "", "only http and https", 0, 1},
		{"gopher", "gopher://evil.test/", "", "only http and https", 0, 1},
		{"scheme of no standard", "x-thing:evil", "", "must start with", 0, 1},
		{"user-info", "http://a@evil.test:PORT/", "", "user name", 0, 1},
		{"backslash", `http://evil.test\a.test:PORT/`, "", "backslash", 0, 1},
		{"port of another service", "http://other.test:22/", "", "port 22", 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.seen, b.hops, b.deny = nil, nil, c.deny
			out := b.do(t, map[string]any{"url": b.url("a.test", "/?to="+EscapeURLValue(c.to))})
			if (out.Err == "") != (c.err == "") || !strings.Contains(out.Err, c.err) || len(b.hops) != c.hops || len(b.seen) != c.requests {
				t.Errorf("error %q, hops %q, requests %q", out.Err, b.hops, b.seen)
			}
			if c.err == "" && !strings.HasSuffix(out.Text, "arrived") {
				t.Errorf("%q", out.Text)
			}
		})
	}
}

func TestFetchLimitsRedirects(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path+"x", http.StatusMovedPermanently)
	})
	out := b.do(t, map[string]any{"url": b.url("a.test", "/")})
	if !strings.Contains(out.Err, "redirects more than 5 times") || len(b.seen) != 6 || len(b.hops) != 5 {
		t.Errorf("%q, %d requests, %d hops", out.Err, len(b.seen), len(b.hops))
	}
}

func TestFetchWithoutHopFollowsNothing(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/y", http.StatusFound) })
	out := b.run(t.Context(), fetchCall(t, map[string]any{"url": b.url("a.test", "/x")}))
	if out.Err == "" || len(b.seen) != 1 {
		t.Errorf("%q, %q", out.Err, b.seen)
	}
}

func TestFetchHeadersStayWithTheirHost(t *testing.T) {
	var got []string
	var b *fetchBench
	b = newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Host[:strings.IndexByte(r.Host, ':')]+r.URL.Path+"="+r.Header.Get("X-Api-Key")+r.Header.Get("Authorization")+r.Header.Get("Cookie"))
		switch r.URL.Path {
		case "/1":
			http.Redirect(w, r, "/2", http.StatusFound)
		case "/2":
			http.Redirect(w, r, b.url("b.test", "/3"), http.StatusTemporaryRedirect)
		case "/3":
			http.Redirect(w, r, b.url("a.test", "/4"), http.StatusPermanentRedirect)
		}
	})
	b.do(t, map[string]any{"url": b.url("a.test", "/1"), "headers": map[string]string{"x-api-key": "K", "authorization": "A", "Cookie": "C"}})
	if want := []string{"a.test/1=KAC", "a.test/2=KAC", "b.test/3=", "a.test/4="}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A host whose name leads inside after a redirect is refused when connected to,
// and one whose answer changes between two hops too.
func TestFetchChecksEachConnection(t *testing.T) {
	var b *fetchBench
	b = newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, b.url(r.URL.Query().Get("next"), "/x"), http.StatusFound)
	})
	inside, connections := listener(t)
	lookups := map[string]int{}
	b.guard.lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
		lookups[host]++
		if host == "inside.test" || lookups[host] > 1 {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), inside.Addr()}, nil
		}
		return []netip.Addr{b.addr.Addr()}, nil
	}
	b.guard.testOnlyAllow = func(ap netip.AddrPort) bool {
		return ap == b.addr && lookups["inside.test"] == 0 && lookups["a.test"] < 2
	}
	for _, next := range []string{"inside.test", "a.test"} {
		clear(lookups)
		out := b.do(t, map[string]any{"url": b.url("a.test", "/?next="+next)})
		if !strings.Contains(out.Err, next) || !strings.Contains(out.Err, "resolves to 127.0.0.1 is a private") && !strings.Contains(out.Err, "private or special") {
			t.Errorf("%s: %q", next, out.Err)
		}
	}
	if connections.Load() != 0 {
		t.Error("the inside was connected to")
	}
}

// net/http reads the environment once, so the test is a process of its own.
func TestFetchUsesNoProxy(t *testing.T) {
	if os.Getenv("PICKET_TEST_PROXY") == "" {
		proxy, connections := listener(t)
		cmd := exec.Command(os.Args[0], "-test.run=^TestFetchUsesNoProxy$")
		cmd.Env = append(os.Environ(), "PICKET_TEST_PROXY=1")
		for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
			cmd.Env = append(cmd.Env, name+"=http://"+proxy.String())
		}
		if out, err := cmd.CombinedOutput(); err != nil || connections.Load() != 0 {
			t.Errorf("%v, %d connections to the proxy: %s", err, connections.Load(), out)
		}
		return
	}
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "direct") })
	if out := b.do(t, map[string]any{"url": b.url("site.test", "/")}); !strings.HasSuffix(out.Text, "direct") {
		t.Errorf("%+v", out)
	}
}

func TestFetchErrorsHoldNoQuery(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(closed.Addr().String())
	closed.Close()
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/garbage":
			c, _, _ := w.(http.Hijacker).Hijack()
			io.WriteString(c, "garbage\r\n\r\n")
			c.Close()
		case "/hang":
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
		case "/loop":
			http.Redirect(w, r, r.URL.RequestURI(), http.StatusFound)
		case "/away":
			http.Redirect(w, r, "ftp://x.test"+r.URL.RequestURI(), http.StatusFound)
		}
	})
	allow := b.guard.testOnlyAllow
	b.guard.testOnlyAllow = func(ap netip.AddrPort) bool { return ap == addr || allow(ap) }
	for _, u := range []string{
		fmt.Sprintf("http://refused.test:%d/p/SECRET?key=SECRET", addr.Port()),
		b.url("a.test", "/garbage?key=SECRET"), b.url("a.test", "/hang?key=SECRET"), b.url("a.test", "/loop?key=SECRET"),
		b.url("a.test", "/away?key=SECRET"), "http://nowhere.invalid:8080/?key=SECRET",
	} {
		out := b.do(t, map[string]any{"url": u})
		if out.Err == "" || strings.Contains(out.Err, "SECRET") {
			t.Errorf("%s: %q", u, out.Err)
		}
	}
}

func TestFetchOverTLS(t *testing.T) {
	b := newFetchBench(t, nil)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, b.url("example.com", "/"), http.StatusFound)
			return
		}
		io.WriteString(w, r.Host+r.Header.Get("X-Key"))
	}))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	addr := netip.MustParseAddrPort(secure.Listener.Addr().String())
	b.guard = guard{
		lookup:        func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{addr.Addr()}, nil },
		testOnlyAllow: func(ap netip.AddrPort) bool { return ap == addr },
	}
	url := fmt.Sprintf("https://example.com:%d/", addr.Port())
	if out := b.do(t, map[string]any{"url": url}); !strings.Contains(out.Err, "certificate") {
		t.Errorf("an unknown certificate was taken: %+v", out)
	}
	pool := x509.NewCertPool()
	pool.AddCert(secure.Certificate())
	b.testOnlyTLS = &tls.Config{RootCAs: pool}
	if out := b.do(t, map[string]any{"url": url, "headers": map[string]string{"X-Key": "K"}}); out.Err != "" || !strings.HasSuffix(out.Text, fmt.Sprintf("example.com:%dK", addr.Port())) {
		t.Errorf("%+v", out)
	}
}

func TestFetchStops(t *testing.T) {
	release := make(chan struct{})
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	out := b.run(ctx, fetchCall(t, map[string]any{"url": b.url("a.test", "/")}))
	if out.Err == "" || !out.Interrupted {
		t.Errorf("%+v", out)
	}
}

func TestFetchRunsOnlyWhatWasApproved(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "x") })
	for _, u := range []string{b.url("evil.test", "/p"), "https://a.test/p", "http://a.test/p", "nothing"} {
		call := fetchCall(t, map[string]any{"url": b.url("a.test", "/{{vault:K}}")})
		call.Args.Values["url"] = u
		if out := b.run(t.Context(), call); out.Err == "" {
			t.Errorf("%s was fetched", u)
		}
	}
	call := fetchCall(t, map[string]any{"url": b.url("a.test", "/p?k={{vault:K}}")})
	call.Args.Values["url"] = b.url("a.test", "/p?k="+EscapeURLValue("a/b?c&d"))
	if out := b.run(t.Context(), call); out.Err != "" {
		t.Error(out.Err)
	}
	if want := []string{fmt.Sprintf("GET a.test:%d /p?k=a%%2Fb%%3Fc%%26d", b.addr.Port())}; !slices.Equal(b.seen, want) {
		t.Errorf("%q", b.seen)
	}
}

// What is in use has no way past the guard.
func TestFetchRefusesLocalServer(t *testing.T) {
	b := newFetchBench(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "x") })
	call := fetchCall(t, map[string]any{"url": b.Server.URL})
	if call.Judgement.Refuse == "" {
		t.Error("not refused before it runs")
	}
	if out := WebFetch.Execute(t.Context(), call); out.Err == "" || len(b.seen) != 0 {
		t.Errorf("%+v, %q", out, b.seen)
	}
}

func TestFetchHeaderRules(t *testing.T) {
	for _, c := range []struct {
		name  string
		given map[string]string
		ok    bool
	}{
		{"usual ones", map[string]string{"Accept": "text/html", "Authorization": "Bearer {{vault:K}}", "Cookie": "a=b", "X-Y": "é"}, true},
		{"line break in the value", map[string]string{"X-A": "a\r\nHost: b"}, false},
		{"line feed in the value", map[string]string{"X-A": "a\nb"}, false},
		{"line break in the name", map[string]string{"X-A\r\nB": "a"}, false},
		{"blank in the name", map[string]string{"X A": "a"}, false},
		{"colon in the name", map[string]string{"X:A": "a"}, false},
		{"empty name", map[string]string{"": "a"}, false},
		{"name beyond ASCII", map[string]string{"é": "a"}, false},
		{"host", map[string]string{"hOST": "a"}, false},
		{"connection", map[string]string{"Connection": "X-A"}, false},
		{"transfer encoding", map[string]string{"transfer-encoding": "chunked"}, false},
		{"content length", map[string]string{"Content-Length": "5"}, false},
		{"te", map[string]string{"TE": "trailers"}, false},
		{"proxy authorization", map[string]string{"Proxy-Authorization": "x"}, false},
		{"accept encoding", map[string]string{"Accept-Encoding": "br"}, false},
		{"referer", map[string]string{"Referer": "https://x.test/"}, false},
		{"twice", map[string]string{"X-A": "a", "x-a": "b"}, false},
		{"too long", map[string]string{"X-A": strings.Repeat("a", fetchHeaders)}, false},
	} {
		_, err := WebFetch.Assess(Args{Values: map[string]any{"url": "https://example.com/", "headers": c.given}})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestFetchJudgement(t *testing.T) {
	j := fetchCall(t, map[string]any{"url": "https://Example.com:443/a?b=c"}).Judgement
	if j.Risk != Moderate || j.Refuse != "" || j.Sends || !j.ReadsUntrusted || j.ReadsPrivate || j.URL != "https://example.com/a?b=c" ||
		j.RequestBytes != len(j.URL) || j.Egress.Kind != EgressHosts || !slices.Equal(j.Egress.Hosts, []string{"example.com"}) ||
		len(j.Targets) != 1 || j.Targets[0] != (Target{Key: "web_fetch:example.com", Widest: Always}) || j.Widest != Always ||
		j.Summary != "web_fetch https://example.com/a?b=c" {
		t.Errorf("%+v", j)
	}
	if j := fetchCall(t, map[string]any{"url": "https://example.com:8443/"}).Judgement; j.Targets[0].Key != "web_fetch:example.com:8443" || j.Egress.Hosts[0] != "example.com:8443" {
		t.Errorf("%+v", j)
	}
	for _, u := range []string{"http://127.0.0.1/", "http://[::1]/", "http://localhost/", "http://169.254.169.254/x", "http://example.com:25/", "http://100.100.100.200/"} {
		if j := fetchCall(t, map[string]any{"url": u}).Judgement; j.Refuse == "" {
			t.Errorf("%s is not refused", u)
		}
	}
	for name, c := range map[string]struct {
		headers map[string]string
		sends   bool
	}{
		"secret":                {map[string]string{"X-Key": "{{vault:K}}"}, false},
		"secret with a scheme":  {map[string]string{"Authorization": "Bearer {{ vault:K }}"}, false},
		"usual Accept":          {map[string]string{"accept": "application/json"}, false},
		"free text":             {map[string]string{"X-Key": "what the file said"}, true},
		"text beside a secret":  {map[string]string{"X-Key": "{{vault:K}} and more"}, true},
		"text in Accept":        {map[string]string{"Accept": "what/file-said"}, true},
		"a plain bearer":        {map[string]string{"Authorization": "Bearer abc"}, true},
		"empty":                 {map[string]string{"X-Key": ""}, true},
		"something of a secret": {map[string]string{"X-Key": "{{K}}"}, true},
	} {
		j := fetchCall(t, map[string]any{"url": "https://example.com/", "headers": c.headers}).Judgement
		if j.Sends != c.sends || j.RequestBytes <= len(j.URL) {
			t.Errorf("%s: sends %v, %d bytes", name, j.Sends, j.RequestBytes)
		}
	}
	if j := WebFetch.Judge(Args{}, Plan{}, Facts{}); j.Refuse == "" {
		t.Error("a call without a plan is not refused")
	}
}
