package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"picket/tools"
)

// Limits of one call's proxy.
const (
	netConns      = 256              // open connections of the box to each listener
	netHosts      = 200              // hosts that are decided on
	netHeaders    = 64 << 10         // bytes of a request's head
	netHeaderTime = 30 * time.Second // for a head, or a ClientHello (RFC 8446, section 4.1.2)
	maxHello      = 64 << 10         // bytes until its end
	maxNetURL     = maxListedURL     // bytes of a URL and headers that are no more than a look-up
	maxLookups    = 32 * maxNetURL   // bytes of all of them to one host
)

var proxyURL = fmt.Sprintf("http://127.0.0.1:%d", proxyPort)

// A netProxy is the one way out of one boxed call: an HTTP/1.1 proxy for plain
// requests (RFC 9112, section 3.2.2) and tunnels for TLS (RFC 9110, section
// 9.3.6), and relays for ports of this machine. Each host is decided on once,
// before its name is looked up. Every answer holds for the call.
type netProxy struct {
	connect func(context.Context, tools.Dest) error // decides
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	hold    func() (release func()) // makes the call's time stand still

	ctx     context.Context // of the call
	end     context.CancelFunc
	running sync.WaitGroup // all that is done for the call
	server  *http.Server
	forward *httputil.ReverseProxy

	mu    sync.Mutex
	hosts map[string]*netHost
	used  []*netUse
}

// A netHost is what was decided about one host.
type netHost struct {
	mu          sync.Mutex // held while it is decided
	look, sends bool       // what was asked
	err         error      // the last answer; a refusal stays
	lookups     int        // bytes
}

type netUse struct {
	tools.NetUse
	out, in atomic.Int64
}

type destKey struct{} // of the Dest in a request's context

// newNetProxy makes the proxy of one call. connect may be nil: then nothing is
// allowed. The caller ends it with close.
func newNetProxy(ctx context.Context, connect func(context.Context, tools.Dest) error,
	dial func(ctx context.Context, network, addr string) (net.Conn, error), hold func() func()) *netProxy {
	p := &netProxy{connect: connect, dial: dial, hold: hold, hosts: map[string]*netHost{}}
	p.ctx, p.end = context.WithCancel(ctx)
	quiet := log.New(io.Discard, "", 0)
	p.server = &http.Server{Handler: p, MaxHeaderBytes: netHeaders, ReadHeaderTimeout: netHeaderTime, IdleTimeout: time.Minute,
		DisableGeneralOptionsHandler: true, ErrorLog: quiet, BaseContext: func(net.Listener) context.Context { return p.ctx }}
	p.forward = &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: quiet, ErrorHandler: p.failed,
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.RawQuery = r.In.URL.RawQuery }, // as it was decided on
		Transport: &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 256 << 10, MaxIdleConnsPerHost: -1, // none stays open
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				return p.dialUse(addr, ctx.Value(destKey{}).(tools.Dest))
			}},
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols {
				return errors.New("the server changed the protocol")
			}
			return nil
		}}
	return p
}

// serve answers on the listeners of a box until close: that of the proxy, then
// those that stand for ports of this machine.
func (p *netProxy) serve(listeners []net.Listener, ports []int) {
	for i, l := range listeners {
		l = netutil.LimitListener(l, netConns)
		context.AfterFunc(p.ctx, func() { l.Close() })
		p.running.Go(func() {
			if i == 0 {
				p.server.Serve(l)
			} else {
				p.relay(l, uint16(ports[i]))
			}
		})
	}
}

// enter admits a part of the work, for which close then waits; the caller ends it.
func (p *netProxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.running.Add(1)
	return true
}

// close ends all connections, and the questions that are open, and returns where
// the call went.
func (p *netProxy) close() (uses []tools.NetUse) {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.server.Close()
	p.running.Wait() // then nobody adds to the account
	for _, u := range p.used {
		u.Out, u.In = u.out.Load(), u.in.Load()
		uses = append(uses, u.NetUse)
	}
	return uses
}

// environ is what makes programs use the proxy: some read one case of the names
// only, and Node from 24 on (22.21) uses it if told to.
func (p *netProxy) environ() (env []string) {
	if p == nil {
		return nil
	}
	for name, value := range map[string]string{"http_proxy": proxyURL, "https_proxy": proxyURL, "all_proxy": proxyURL, "no_proxy": "localhost,127.0.0.1,::1"} {
		env = append(env, name+"="+value, strings.ToUpper(name)+"="+value)
	}
	return append(env, "NODE_USE_ENV_PROXY=1")
}

// decide returns why a destination is refused, nil if it is not. It asks once
// for each host, and once more if the box then wants to send to it. All that want
// to go there wait, and what a client did not wait for is its answer next time.
func (p *netProxy) decide(d tools.Dest) error {
	p.mu.Lock()
	h := p.hosts[d.Host]
	if h == nil && len(p.hosts) < netHosts {
		h = &netHost{}
		p.hosts[d.Host] = h
	}
	p.mu.Unlock()
	if h == nil || p.connect == nil {
		return errors.New("this call has asked for too many hosts, or may reach none")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.look && !d.Sends {
		h.lookups += d.Bytes
		d.Sends = h.lookups > maxLookups
	}
	if h.err != nil || h.sends || h.look && !d.Sends {
		return h.err
	}
	defer p.hold()()
	h.err = p.connect(p.ctx, d)
	h.look, h.sends = true, d.Sends
	return h.err
}

// use is the account of one destination; of one that is refused whoever asks, why.
// Only of those are some left out if there are too many.
func (p *netProxy) use(d tools.Dest, refused string) *netUse {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.used {
		if u.Host == d.Host && u.Port == d.Port && u.Refused == refused {
			return u
		}
	}
	u := &netUse{NetUse: tools.NetUse{Dest: d, Refused: refused}}
	if refused == "" || len(p.used) < netHosts {
		p.used = append(p.used, u)
	}
	return u
}

// dialUse connects to what was decided on, and counts. The transport does not wait
// for it; close does.
func (p *netProxy) dialUse(addr string, d tools.Dest) (*countedConn, error) {
	if !p.enter() {
		return nil, p.ctx.Err()
	}
	defer p.running.Done()
	conn, err := p.dial(p.ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{conn, p.use(d, "")}, nil
}

type countedConn struct {
	net.Conn
	use *netUse
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.use.in.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.use.out.Add(int64(n))
	return n, err
}

// CloseWrite ends what is sent; the answer may be yet to come.
func (c *countedConn) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return c.Close()
}

// refuse answers a request that is not carried on.
func (p *netProxy) refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Connection", "close")
	http.Error(w, "picket: "+printable(why), status)
}

// failed answers where the server could not be reached, or may not be.
func (p *netProxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	d := r.Context().Value(destKey{}).(tools.Dest)
	if why := tools.Refused(err); why != "" {
		p.use(d, why)
		p.refuse(w, http.StatusForbidden, d.Host+": "+why)
		return
	}
	u := p.use(d, "")
	p.mu.Lock()
	u.Failed = printable(cutBytes(err.Error(), 300))
	p.mu.Unlock()
	p.refuse(w, http.StatusBadGateway, d.Host+" could not be reached: "+err.Error())
}

// dest reads where a request goes. It is an error if that can be read in two ways.
func dest(r *http.Request) (u tools.URL, d tools.Dest, err error) {
	target, tunnel := r.RequestURI, r.Method == http.MethodConnect
	if tunnel {
		target = "https://" + target
	}
	if u, err = tools.ParseURL(target); err != nil {
		return u, d, err
	}
	if tunnel && (strings.ContainsAny(r.RequestURI, "/?#") || !strings.HasSuffix(target, fmt.Sprint(":", u.Port))) || !tunnel && u.Scheme != "http" {
		return u, d, errors.New("a request is for http://HOST/, or CONNECT HOST:PORT for https")
	}
	d = tools.Dest{Host: u.NetKey(), Port: u.Port, Method: r.Method, Sends: true}
	if !tunnel {
		d.URL, d.Bytes = u.String(), len(u.String())
		for name, values := range r.Header {
			for _, v := range values {
				d.Bytes += len(name) + len(v)
			}
		}
		d.Sends = r.Method != http.MethodGet && r.Method != http.MethodHead || r.ContentLength != 0 || d.Bytes > maxNetURL
	}
	return u, d, nil
}

// ServeHTTP carries one request or one tunnel.
func (p *netProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		return
	}
	defer p.running.Done()
	u, d, err := dest(r)
	if err != nil {
		p.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	why := u.Refusal()
	if why == "" && u.Port != 80 && u.Port != 443 {
		why = fmt.Sprintf("port %d is neither 80 nor 443", u.Port)
	}
	if why != "" {
		p.use(d, why)
	} else if err := p.decide(d); err != nil {
		why = err.Error()
	}
	if why != "" {
		p.refuse(w, http.StatusForbidden, d.Host+": "+why)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), destKey{}, d))
	if r.Method == http.MethodConnect {
		p.tunnel(w, r, u, d)
		return
	}
	out, err := url.Parse(u.String())
	if err != nil || out.String() != u.String() || out.Host != u.HostKey() {
		p.refuse(w, http.StatusBadRequest, "the URL is read in two ways")
		return
	}
	r.URL, r.Host, r.RequestURI = out, "", ""
	for _, name := range []string{"Upgrade", "Expect", "Proxy-Authorization"} {
		r.Header.Del(name)
	}
	p.forward.ServeHTTP(w, r)
}

// tunnel connects a CONNECT request with its host, once the client has said in
// TLS that this is whom it means.
func (p *netProxy) tunnel(w http.ResponseWriter, r *http.Request, u tools.URL, d tools.Dest) {
	server, err := p.dialUse(net.JoinHostPort(u.Host, fmt.Sprint(u.Port)), d)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	defer server.Close()
	client, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	defer context.AfterFunc(p.ctx, func() { client.Close(); server.Close() })()
	client.SetDeadline(time.Now().Add(netHeaderTime))
	io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n")
	hello, name, err := readHello(client, buf.Reader)
	if err == nil {
		err = sameHost(name, u.Host)
	}
	if err != nil {
		p.use(d, err.Error())
		return
	}
	client.SetDeadline(time.Time{})
	if _, err := server.Write(hello); err == nil {
		join(client, buf.Reader, server)
	}
}

// join copies both ways until the server ends: what it sent before is passed on.
func join(client net.Conn, from io.Reader, server *countedConn) {
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(server, from)
		server.CloseWrite()
	}()
	io.Copy(client, server)
	client.Close()
	<-done
}

var errHello = errors.New("read")

// readHello reads the first message of a TLS client, and returns what was read
// and the server name in it.
func readHello(conn net.Conn, from *bufio.Reader) (read []byte, name string, err error) {
	var seen bytes.Buffer
	got := false
	err = tls.Server(&mutedConn{conn, io.TeeReader(io.LimitReader(from, maxHello), &seen)}, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			got, name = true, hello.ServerName
			return nil, errHello
		}}).Handshake()
	if !got || !errors.Is(err, errHello) {
		return nil, "", errors.New("what is sent to it is not TLS")
	}
	return seen.Bytes(), name, nil
}

// A mutedConn reads from elsewhere and says nothing.
type mutedConn struct {
	net.Conn
	from io.Reader
}

func (c *mutedConn) Read(b []byte) (int, error)  { return c.from.Read(b) }
func (c *mutedConn) Write(b []byte) (int, error) { return len(b), nil }

// sameHost compares the server name of a TLS client (RFC 6066, section 3; with
// Encrypted Client Hello the outer one) with the host of its tunnel. There is
// none for an address.
func sameHost(name, host string) error {
	_, err := netip.ParseAddr(host)
	if err == nil && name == "" || err != nil && len(name) == len(host) && strings.EqualFold(name, host) {
		return nil
	}
	return fmt.Errorf("the TLS server name is %q", cutBytes(name, 100))
}

// relay carries connections to a port of this machine's loopback, which the
// owner let boxes reach.
func (p *netProxy) relay(l net.Listener, port uint16) {
	d := tools.Dest{Host: tools.LocalHost(port), Port: port, Method: "TCP", Sends: true}
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() {
			defer client.Close()
			if p.decide(d) != nil {
				return
			}
			var direct net.Dialer
			server, err := direct.DialContext(p.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return
			}
			defer server.Close()
			defer context.AfterFunc(p.ctx, func() { client.Close(); server.Close() })()
			join(client, client, &countedConn{server, p.use(d, "")})
		})
	}
}
