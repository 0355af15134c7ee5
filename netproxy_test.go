package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"picket/tools"
)

// A web is servers for every name under .test, with certificates of their own.
type web struct {
	mux    *http.ServeMux // by host
	ca     []byte         // PEM
	roots  *x509.CertPool
	mu     sync.Mutex
	dialed []string
	plain  *httptest.Server
	secure *httptest.Server
}

func newWeb(t testing.TB) *web {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "picket test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	w := &web{mux: http.NewServeMux(), ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), roots: x509.NewCertPool()}
	w.roots.AppendCertsFromPEM(w.ca)
	w.plain, w.secure = httptest.NewServer(w.mux), httptest.NewUnstartedServer(w.mux)
	w.secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.secure.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		name := hello.ServerName
		if name == "" {
			name = "unnamed.test"
		}
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: root.NotBefore, NotAfter: root.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, key)
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
	}}
	w.secure.StartTLS()
	t.Cleanup(func() { w.plain.Close(); w.secure.Close() })
	w.mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) { fmt.Fprintf(rw, "%s says hello\n", r.Host) })
	return w
}

// dial reaches the servers by their names; everything else goes the real way.
func (w *web) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	w.dialed = append(w.dialed, addr)
	w.mu.Unlock()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	switch {
	case host == "gone.test":
		return nil, errors.New("no such host")
	case !strings.HasSuffix(host, ".test"):
		return tools.DialPublic(ctx, network, addr)
	case port == "443":
		return d.DialContext(ctx, network, w.secure.Listener.Addr().String())
	}
	return d.DialContext(ctx, network, w.plain.Listener.Addr().String())
}

// proxyRig is a proxy on an ordinary listener.
type proxyRig struct {
	t     testing.TB
	p     *netProxy
	web   *web
	addr  string
	asked atomic.Int32
	held  atomic.Int32
	uses  []tools.NetUse
}

func newProxyRig(t testing.TB, connect func(context.Context, tools.Dest) error) *proxyRig {
	t.Helper()
	r := &proxyRig{t: t, web: newWeb(t)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	counted := func(ctx context.Context, d tools.Dest) error {
		r.asked.Add(1)
		return connect(ctx, d)
	}
	r.p = newNetProxy(context.Background(), counted, r.web.dial, func() func() {
		r.held.Add(1)
		return func() { r.held.Add(-1) }
	})
	r.p.serve([]net.Listener{l}, []int{0})
	t.Cleanup(func() { r.end() })
	return r
}

func (r *proxyRig) end() []tools.NetUse {
	if r.uses == nil {
		r.uses = append([]tools.NetUse{}, r.p.close()...)
	}
	return r.uses
}

// send writes bytes to the proxy and returns all that it answers, up to the
// refusal of one more request, which ends the connection.
func (r *proxyRig) send(raw string) string {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, raw+"GET http://end.test:9/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	b, _ := io.ReadAll(conn)
	got := string(b)
	if strings.Contains(got, "picket: end.test:9") {
		got = got[:strings.LastIndex(got, "HTTP/1.1 403")]
	}
	return got
}

// tunnel opens a tunnel and speaks TLS with a name in it.
func (r *proxyRig) tunnel(target, name string) (string, error) {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "CONNECT"})
	if err != nil {
		return "", err
	}
	if res.StatusCode != 200 {
		b, _ := io.ReadAll(res.Body)
		return "", fmt.Errorf("%d %s", res.StatusCode, b)
	}
	c := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.0\r\nHost: inner\r\n\r\n"); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func all(context.Context, tools.Dest) error { return nil }

func TestNetProxyRequests(t *testing.T) {
	const get = "GET http://a.test/x?q=a;b&c HTTP/1.1\r\nHost: a.test\r\n"
	connect := func(target string) string { return "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n" }
	for name, c := range map[string]struct{ raw, want string }{
		"a plain request":                      {get + "\r\n", "200 OK"},
		"its host from the request line":       {"GET http://a.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "a.test says hello"},
		"a name with a final dot and capitals": {"GET http://A.Test./ HTTP/1.1\r\nHost: x\r\n\r\n", "a.test says hello"},
		"HTTP/1.0":                             {"GET http://a.test/ HTTP/1.0\r\n\r\n", "a.test says hello"},
		"a request for the proxy itself":       {"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"https as a plain request":             {"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"another scheme":                       {"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"a file":                               {"GET file:///etc/passwd HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"user-info":                            {"GET http://a.test@evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"a backslash":                          {"GET http://a.test\\@evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"an escaped host":                      {"GET http://evil%2etest/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"a NUL in the host":                    {"GET http://evil.test\x00.a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"two Host lines":                       {"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", "400 Bad"},
		"a header with a blank in its name":    {get + "X y: z\r\n\r\n", "400 Bad"},
		"a header that never ends":             {get + "X: " + strings.Repeat("y", 3*netHeaders) + "\r\n\r\n", "431 "},
		"a length that is none":                {"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1, 2\r\n\r\nxx", "400 Bad"},
		"two lengths":                          {"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "400 Bad"},
		"an encoding that is not known":        {"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501 "},
		"another port":                         {"GET http://a.test:8080/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "403 Forbidden"},
		"an address of this machine":           {"GET http://127.0.0.1/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "403 Forbidden"},
		"its name":                             {"GET http://localhost/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "403 Forbidden"},
		"a name below it":                      {"GET http://x.localhost./ HTTP/1.1\r\nHost: a.test\r\n\r\n", "403 Forbidden"},
		"cloud metadata":                       {"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: a.test\r\n\r\n", "403 Forbidden"},
		"an address as a number":               {"GET http://2130706433/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400 Bad"},
		"a host that is gone":                  {"GET http://gone.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "502 Bad"},
		"CONNECT to ssh":                       {connect("a.test:22"), "403 Forbidden"},
		"CONNECT to a high port":               {connect("a.test:8443"), "403 Forbidden"},
		"CONNECT to this machine":              {connect("127.0.0.1:443"), "403 Forbidden"},
		"CONNECT to it by IPv6":                {connect("[::1]:443"), "403 Forbidden"},
		"CONNECT to it by mapped IPv6":         {connect("[::ffff:7f00:1]:443"), "400 Bad"},
		"CONNECT by NAT64":                     {connect("[64:ff9b::7f00:1]:443"), "403 Forbidden"},
		"CONNECT to a local name":              {connect("db.internal:443"), "403 Forbidden"},
		"CONNECT without a port":               {connect("a.test"), "400 Bad"},
		"CONNECT with a path":                  {connect("a.test:443/x"), "400 Bad"},
		"CONNECT with user-info":               {connect("a.test@evil.test:443"), "400 Bad"},
		"CONNECT to a URL":                     {connect("https://a.test:443"), "400 Bad"},
		"CONNECT to a host that is gone":       {connect("gone.test:443"), "502 Bad"},
		"CONNECT and no TLS":                   {connect("a.test:443") + "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "200 Connection established\r\n\r\n$"},
		"CONNECT and ssh":                      {connect("a.test:443") + "SSH-2.0-OpenSSH_9\r\n", "200 Connection established\r\n\r\n$"},
		"CONNECT to port 80 and no TLS":        {connect("a.test:80") + "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "200 Connection established\r\n\r\n$"},
		"not HTTP at all":                      {"\x16\x03\x01\x00\x01", "400 Bad"},
		"SOCKS":                                {"\x05\x01\x00", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newProxyRig(t, all)
			got := r.send(c.raw)
			if want, whole := strings.CutSuffix(c.want, "$"); whole && !strings.HasSuffix(got, want) || !whole && !strings.Contains(got, want) {
				t.Errorf("answered %q, want %q", got, c.want)
			}
			for _, addr := range r.web.dialed {
				if host, _, _ := strings.Cut(addr, ":"); !strings.HasSuffix(host, ".test") || host == "evil.test" || strings.Contains(c.want, "40") {
					t.Errorf("connected to %s", addr)
				}
			}
		})
	}
}

// Whatever the box writes, a server gets whole requests of ours, one for each
// that was decided on.
func TestNetProxySmuggling(t *testing.T) {
	var decided []string
	r := newProxyRig(t, func(_ context.Context, d tools.Dest) error {
		decided = append(decided, d.Host)
		if d.Host == "evil.test" {
			return errors.New("no")
		}
		return nil
	})
	var mu sync.Mutex
	var got []string
	r.web.mux.HandleFunc("a.test/", func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %s %q", req.Method, req.RequestURI, b))
		for name := range req.Header {
			if slices.Contains([]string{"Connection", "X-Hop", "Proxy-Authorization", "Keep-Alive", "Te", "Upgrade", "Proxy-Connection", "X-Forwarded-For", "Via", "Expect"}, name) {
				t.Errorf("the server got %s", name)
			}
		}
		w.Header().Set("Connection", "X-Secret")
		w.Header().Set("X-Secret", "1")
	})
	out := r.send("POST http://a.test/1 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"24\r\nGET http://evil.test/ HTTP/1.1\r\nX: y\r\n0\r\n\r\n" +
		"GET http://a.test/2?x;y=%zz HTTP/1.1\r\nHost: a.test\r\nConnection: X-Hop, keep-alive, Upgrade\r\nX-Hop: 1\r\nUpgrade: websocket\r\nProxy-Authorization: Basic eDp5\r\n" +
		"Keep-Alive: 5\r\nTE: gzip\r\nExpect: 100-continue\r\n\r\n" +
		"GET http://evil.test/3 HTTP/1.1\r\nHost: a.test\r\n\r\n" +
		"GET http://a.test/not-read HTTP/1.1\r\nHost: a.test\r\n\r\n")
	if want := []string{`POST /1 "GET http://evil.test/ HTTP/1.1\r\nX: y"`, `GET /2?x;y=%25zz ""`}; !slices.Equal(got, want) {
		t.Errorf("the server got %q, want %q", got, want)
	}
	if !strings.Contains(out, "403 Forbidden") || strings.Contains(out, "X-Secret") || strings.Count(out, "HTTP/1.1 ") != 3 {
		t.Errorf("answered %q", out)
	}
	if !slices.Equal(decided, []string{"a.test", "evil.test"}) {
		t.Errorf("decided about %q", decided)
	}
}

func TestNetProxyServerName(t *testing.T) {
	for name, c := range map[string]struct{ target, sni, want, refused string }{
		"the same":            {"a.test:443", "a.test", "inner says hello", ""},
		"in other letters":    {"A.TEST:443", "a.tEST", "inner says hello", ""},
		"another":             {"a.test:443", "evil.test", "", `the TLS server name is "evil.test"`},
		"a part of it":        {"a.test:443", "x.a.test", "", `the TLS server name is "x.a.test"`},
		"none":                {"a.test:443", "", "", `the TLS server name is ""`},
		"one for another one": {"evil.test:443", "a.test", "", `the TLS server name is "a.test"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newProxyRig(t, all)
			got, err := r.tunnel(c.target, c.sni)
			if c.refused != "" && (err == nil || got != "") || c.refused == "" && (err != nil || !strings.Contains(got, c.want)) {
				t.Errorf("got %q, %v", got, err)
			}
			uses := r.end()
			if i := slices.IndexFunc(uses, func(u tools.NetUse) bool { return u.Refused != "" }); (i >= 0) != (c.refused != "") || i >= 0 && uses[i].Refused != c.refused {
				t.Errorf("uses %+v", uses)
			}
			for _, u := range uses {
				if u.Refused == "" && (u.Host != strings.ToLower(strings.TrimSuffix(c.target, ":443")) || (u.Out > 0) != (c.refused == "") || (u.In > 100) != (c.refused == "")) {
					t.Errorf("use %+v", u)
				}
			}
		})
	}
	if err := sameHost("", "192.0.2.1"); err != nil {
		t.Error(err)
	}
	if err := sameHost("a.test", "192.0.2.1"); err == nil {
		t.Error("a name was taken for an address")
	}
}

// A ClientHello can come in pieces, down to one byte a record.
func TestNetProxySplitHello(t *testing.T) {
	r := newProxyRig(t, all)
	var hello bytes.Buffer
	tls.Client(&mutedConn{from: strings.NewReader("")}, nil)
	a, b := net.Pipe()
	go tls.Client(a, &tls.Config{ServerName: "evil.test"}).Handshake()
	head := make([]byte, 5)
	io.ReadFull(b, head)
	body := make([]byte, int(head[3])<<8|int(head[4]))
	io.ReadFull(b, body)
	b.Close()
	for _, c := range body {
		hello.Write([]byte{22, 3, 1, 0, 1, c})
	}
	got := r.send("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n" + hello.String())
	uses := r.end()
	if !strings.HasSuffix(got, "established\r\n\r\n") || !slices.ContainsFunc(uses, func(u tools.NetUse) bool { return strings.Contains(u.Refused, "evil.test") }) {
		t.Errorf("answered %q, uses %+v", got, uses)
	}
}

func TestNetProxyDecidesOnce(t *testing.T) {
	let := make(chan error)
	r := newProxyRig(t, func(ctx context.Context, d tools.Dest) error {
		select {
		case err := <-let:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	get := func(host string) chan string {
		out := make(chan string, 1)
		go func() { out <- r.send("GET http://" + host + "/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
		return out
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for range 1000 {
			if ok() {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Fatal("not reached: " + what)
	}
	// One that gives up does not end the question.
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "GET http://a.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
	until("the question", func() bool { return r.asked.Load() == 1 && r.held.Load() == 1 })
	conn.Close()
	first, second := get("a.test"), get("a.test")
	time.Sleep(50 * time.Millisecond)
	if n := r.asked.Load(); n != 1 || r.held.Load() != 1 {
		t.Fatalf("%d questions, %d holds", n, r.held.Load())
	}
	let <- nil
	for _, c := range []chan string{first, second, get("a.test")} {
		if got := <-c; !strings.Contains(got, "a.test says hello") {
			t.Errorf("got %q", got)
		}
	}
	until("the clock", func() bool { return r.held.Load() == 0 })
	// A denied host stays denied, also for another kind of request.
	denied := get("b.test")
	let <- errors.New("the owner declined it")
	if got := <-denied; !strings.Contains(got, "403 ") || !strings.Contains(got, "picket: b.test: the owner declined it") {
		t.Errorf("got %q", got)
	}
	for range 3 {
		if _, err := r.tunnel("b.test:443", "b.test"); err == nil || !strings.Contains(err.Error(), "the owner declined it") {
			t.Errorf("after a denial: %v", err)
		}
	}
	if n := r.asked.Load(); n != 2 {
		t.Errorf("%d questions, want 2", n)
	}
	// What was allowed to be read is not allowed to be written.
	post := make(chan string, 1)
	go func() {
		post <- r.send("POST http://a.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
	}()
	let <- errors.New("not that")
	if got := <-post; !strings.Contains(got, "not that") || r.asked.Load() != 3 {
		t.Errorf("got %q after %d questions", got, r.asked.Load())
	}
	if got := <-get("a.test"); !strings.Contains(got, "not that") {
		t.Errorf("got %q", got)
	}
	for _, addr := range r.web.dialed {
		if addr != "a.test:80" {
			t.Errorf("connected to %s", addr)
		}
	}
	// The end of the call ends its questions.
	last := get("c.test")
	until("the last question", func() bool { return r.asked.Load() == 4 })
	r.end()
	if got := <-last; strings.Contains(got, "200 OK") {
		t.Errorf("got %q", got)
	}
}

// Many small look-ups are not small.
func TestNetProxyAddsLookupsUp(t *testing.T) {
	r := newProxyRig(t, func(_ context.Context, d tools.Dest) error {
		if d.Sends {
			return errors.New("that is a lot")
		}
		return nil
	})
	sent := 0
	for range 200 {
		rec := httptest.NewRecorder()
		r.p.ServeHTTP(rec, httptest.NewRequest("GET", "http://a.test/"+strings.Repeat("x", 400), nil))
		if rec.Code != 200 {
			break
		}
		sent += 400
	}
	if sent < 8<<10 || sent > maxLookups || r.asked.Load() != 2 {
		t.Errorf("%d bytes of data went out after %d decisions", sent, r.asked.Load())
	}
}

// A name that turns out to be of this machine or its network is refused when it
// is connected to, and that is told apart from a failure.
func TestNetProxyGuardsTheAddress(t *testing.T) {
	r := newProxyRig(t, all)
	dial := r.p.dial
	r.p.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return tools.DialPublic(ctx, network, strings.Replace(addr, "inside.test", "10.0.0.1", 1))
	}
	defer func() { r.p.dial = dial }()
	if got := r.send("GET http://inside.test/ HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.Contains(got, "403 ") || !strings.Contains(got, "private or special address") {
		t.Errorf("got %q", got)
	}
	if _, err := r.tunnel("inside.test:443", "inside.test"); err == nil || !strings.Contains(err.Error(), "private or special address") {
		t.Errorf("got %v", err)
	}
	for _, u := range r.end() {
		if !strings.Contains(u.Refused, "private or special address") {
			t.Errorf("use %+v", u)
		}
	}
	if len(r.uses) != 2 {
		t.Errorf("uses %+v", r.uses)
	}
}

// A client that has said all may be waiting for the answer still.
func TestNetProxyClientThatSaidAll(t *testing.T) {
	r := newProxyRig(t, all)
	said := make(chan struct{})
	r.web.mux.HandleFunc("ok.test/late", func(w http.ResponseWriter, _ *http.Request) {
		<-said
		io.WriteString(w, "late")
	})
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, "CONNECT ok.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "CONNECT"}); err != nil {
		t.Fatal(err)
	}
	c := tls.Client(conn, &tls.Config{ServerName: "ok.test", InsecureSkipVerify: true})
	io.WriteString(c, "GET /late HTTP/1.0\r\nHost: ok.test\r\n\r\n")
	conn.(*net.TCPConn).CloseWrite()
	time.AfterFunc(100*time.Millisecond, func() { close(said) })
	if b, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(b), "late") {
		t.Errorf("in a tunnel: %q, %v", b, err)
	}

	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		if c, err := server.Accept(); err == nil {
			b, _ := io.ReadAll(c)
			fmt.Fprintf(c, "%s answered", b)
			c.Close()
		}
	}()
	relayed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer relayed.Close()
	go r.p.relay(relayed, uint16(server.Addr().(*net.TCPAddr).Port))
	conn, err = net.Dial("tcp", relayed.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, "asked and")
	conn.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(conn); err != nil || string(b) != "asked and answered" {
		t.Errorf("of a port of this machine: %q, %v", b, err)
	}
}

func TestNetProxyWithoutAGateAllowsNothing(t *testing.T) {
	w := newWeb(t)
	p := newNetProxy(context.Background(), nil, w.dial, func() func() { return func() {} })
	defer p.close()
	rec := httptest.NewRecorder()
	p.ServeHTTP(rec, httptest.NewRequest("GET", "http://a.test/", nil))
	if rec.Code != 403 || len(w.dialed) > 0 {
		t.Errorf("%d %s, connected to %q", rec.Code, rec.Body, w.dialed)
	}
}

func TestNetProxyBounds(t *testing.T) {
	r := newProxyRig(t, func(context.Context, tools.Dest) error { return errors.New("no") })
	for i := range netHosts + 50 {
		rec := httptest.NewRecorder()
		r.p.ServeHTTP(rec, httptest.NewRequest("GET", fmt.Sprintf("http://h%d.test/", i), nil))
		if rec.Code != 403 {
			t.Fatalf("%d: %d", i, rec.Code)
		}
	}
	if n := r.asked.Load(); n != netHosts {
		t.Errorf("%d decisions, want %d", n, netHosts)
	}
}

// However much is refused, what was reached is accounted for.
func TestNetProxyAccountIsWhole(t *testing.T) {
	r := newProxyRig(t, all)
	for i := range 3 * netHosts {
		rec := httptest.NewRecorder()
		r.p.ServeHTTP(rec, httptest.NewRequest("GET", fmt.Sprintf("http://10.0.%d.%d/", i/250, i%250), nil))
		if rec.Code != 403 {
			t.Fatalf("%d: %d", i, rec.Code)
		}
	}
	for i := range 3 * netHosts {
		rec := httptest.NewRecorder()
		r.p.ServeHTTP(rec, httptest.NewRequest(fmt.Sprintf("M%d", i), "http://a.test/", nil))
	}
	r.send("GET http://b.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
	reached, refused := []string{}, 0
	for _, u := range r.end() {
		if u.Refused != "" {
			refused++
		} else if reached = append(reached, u.Host); u.In == 0 || u.Out == 0 {
			t.Errorf("use %+v", u)
		}
	}
	if !slices.Equal(reached, []string{"a.test", "b.test"}) || refused != netHosts {
		t.Errorf("reached %q, refused %d", reached, refused)
	}
}

// The end of a call waits for what still goes on in it, so that its account is
// whole and no record comes after that of its result.
func TestNetProxyEndWaits(t *testing.T) {
	r := newProxyRig(t, all)
	began, ended := make(chan bool), atomic.Bool{}
	r.p.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		close(began)
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond)
		ended.Store(true)
		return nil, errors.New("too late")
	}
	go r.send("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n")
	<-began
	if uses := r.end(); !ended.Load() || len(uses) != 1 || uses[0].Failed != "too late" {
		t.Errorf("ended: %v, uses %+v", ended.Load(), uses)
	}
	rec := httptest.NewRecorder()
	if r.p.ServeHTTP(rec, httptest.NewRequest("GET", "http://a.test/", nil)); rec.Body.Len() > 0 || r.asked.Load() != 1 {
		t.Errorf("after the end: %s, asked %d times", rec.Body, r.asked.Load())
	}
}

func TestNetProxyCarriesBodiesBothWays(t *testing.T) {
	r := newProxyRig(t, all)
	const size = 3 << 20
	r.web.mux.HandleFunc("big.test/", func(w http.ResponseWriter, req *http.Request) {
		n, _ := io.Copy(io.Discard, req.Body)
		w.Header().Set("X-Got", strconv.FormatInt(n, 10))
		io.Copy(w, io.LimitReader(rand.Reader, size))
	})
	proxy, _ := url.Parse("http://" + r.addr)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: r.web.roots}}}
	defer client.CloseIdleConnections()
	for _, scheme := range []string{"http", "https"} {
		res, err := client.Post(scheme+"://big.test/", "x/y", io.LimitReader(rand.Reader, size))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if n != size || err != nil || res.Header.Get("X-Got") != strconv.Itoa(size) {
			t.Errorf("%s: %d bytes back, %v, %s bytes out", scheme, n, err, res.Header.Get("X-Got"))
		}
	}
	client.CloseIdleConnections()
	for _, u := range r.end() {
		if u.Host != "big.test" || u.Out < size || u.In < size || u.Out > 2*size || u.In > 2*size {
			t.Errorf("use %+v", u)
		}
	}
}

// Nothing is connected to that was not decided on under the same name, whatever
// the request is.
func FuzzProxyRequest(f *testing.F) {
	for _, seed := range []string{"GET http://a.ok/ HTTP/1.1\r\nHost: b\r\n\r\n", "CONNECT a.ok:443 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET http://a.ok:80@b/ HTTP/1.1\r\nHost: b\r\n\r\n", "CONNECT [::1]:443 HTTP/1.0\r\n\r\n", "POST http://x.ok:8080/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"GET http://a.ok\x00.evil/ HTTP/1.1\r\nHost:\r\n\r\n", "CONNECT a.ok.evil:443#x.ok:443 HTTP/1.1\r\nHost: a.ok\r\n\r\n", "GET //a.ok/ HTTP/1.1\r\nHost: a.ok\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a.ok\r\n\r\n", "GET http://%61.ok/ HTTP/1.1\r\nHost: a.ok\r\n\r\n", "CONNECT A.OK.:443 HTTP/1.1\r\nHost: a.ok\r\n\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		allowed := map[string]bool{}
		p := newNetProxy(context.Background(), func(_ context.Context, d tools.Dest) error {
			if u, err := tools.ParseURL("http://" + d.Host); err != nil || u.NetKey() != d.Host || u.Refusal() != "" || d.Port != 80 && d.Port != 443 {
				t.Errorf("%q is decided on as %+v", raw, d)
			}
			if !strings.HasSuffix(d.Host, ".ok") {
				return errors.New("no")
			}
			allowed[net.JoinHostPort(d.Host, fmt.Sprint(d.Port))] = true
			return nil
		}, func(_ context.Context, _, addr string) (net.Conn, error) {
			if !allowed[addr] {
				t.Errorf("%q connects to %q", raw, addr)
			}
			return nil, errors.New("not connected")
		}, func() func() { return func() {} })
		defer p.close()
		p.ServeHTTP(httptest.NewRecorder(), req)
	})
}

// A proxied request against a direct one.
func BenchmarkNetProxy(b *testing.B) {
	r := newProxyRig(b, all)
	get := func(b *testing.B, client *http.Client, url string) {
		for b.Loop() {
			res, err := client.Get(url)
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	proxy, _ := url.Parse("http://" + r.addr)
	for _, reuse := range []bool{true, false} {
		for _, scheme := range []string{"http", "https"} {
			conf := &tls.Config{RootCAs: r.web.roots}
			direct := &http.Client{Transport: &http.Transport{DialContext: r.web.dial, TLSClientConfig: conf, DisableKeepAlives: !reuse}}
			proxied := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: conf, DisableKeepAlives: !reuse}}
			name := fmt.Sprintf("%s/reuse=%t/", scheme, reuse)
			b.Run(name+"direct", func(b *testing.B) { get(b, direct, scheme+"://a.test/") })
			b.Run(name+"proxied", func(b *testing.B) { get(b, proxied, scheme+"://a.test/") })
			direct.CloseIdleConnections()
			proxied.CloseIdleConnections()
		}
	}
}

// caFile writes the certificate that programs in the box are to trust.
func (w *web) caFile(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(path, w.ca, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
