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
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
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
	running sync.WaitGroup
	server  *http.Server
	forward *httputil.ReverseProxy

	mu       sync.Mutex
	verdicts map[netKey]*netVerdict
	used     map[netKey]*netUse
	lookups  map[string]int // bytes, by host
}

type netKey struct {
	host, what string // what is a method, a refusal, or whether it sends
}

type netVerdict struct {
	done chan struct{}
	err  error
}

type netUse struct {
	tools.NetUse
	out, in atomic.Int64
}

// newNetProxy makes the proxy of one call. connect may be nil: then nothing is
// allowed. The caller ends it with close.
func newNetProxy(ctx context.Context, connect func(context.Context, tools.Dest) error,
	dial func(ctx context.Context, network, addr string) (net.Conn, error), hold func() func()) *netProxy {
	p := &netProxy{connect: connect, dial: dial, hold: hold, verdicts: map[netKey]*netVerdict{}, used: map[netKey]*netUse{}, lookups: map[string]int{}}
	p.ctx, p.end = context.WithCancel(ctx)
	quiet := log.New(io.Discard, "", 0)
	p.server = &http.Server{Handler: p, MaxHeaderBytes: netHeaders, ReadHeaderTimeout: netHeaderTime, IdleTimeout: time.Minute,
		DisableGeneralOptionsHandler: true, ErrorLog: quiet, BaseContext: func(net.Listener) context.Context { return p.ctx }}
	p.forward = &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: quiet,
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.RawQuery = r.In.URL.RawQuery }, // as it was decided on
		Transport: &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 256 << 10, MaxIdleConns: 32,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return p.dialUse(ctx, addr, ctx.Value(netUseKey{}).(tools.Dest))
			}},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { p.failed(w, r, err) },
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols {
				return errors.New("the server changed the protocol")
			}
			return nil
		}}
	return p
}

type netUseKey struct{}

// serve answers on the listeners of a box until close: that of the proxy, then
// those that stand for ports of this machine.
func (p *netProxy) serve(listeners []net.Listener, ports []int) {
	for i, l := range listeners {
		l = netutil.LimitListener(l, netConns)
		if i > 0 {
			p.relay(l, uint16(ports[i]))
			continue
		}
		p.running.Go(func() {
			p.server.Serve(l)
			l.Close()
		})
	}
}

// close ends all connections, and the questions that are open, and returns where
// the call went.
func (p *netProxy) close() (uses []tools.NetUse) {
	if p == nil {
		return nil
	}
	p.mu.Lock() // nothing is decided on after this
	p.end()
	p.mu.Unlock()
	p.server.Close()
	p.running.Wait()
	p.forward.Transport.(*http.Transport).CloseIdleConnections()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(p.used), func(a, b netKey) int { return strings.Compare(a.host+a.what, b.host+b.what) }) {
		u := p.used[key]
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
// for each host, and once more if the box then wants to send to it. One that was
// refused stays so. A client that does not wait gets the answer next time.
func (p *netProxy) decide(ctx context.Context, d tools.Dest) error {
	key := func(sends bool) netKey { return netKey{d.Host, fmt.Sprint(sends)} }
	p.mu.Lock()
	if !d.Sends && p.verdicts[key(false)] != nil { // so bounded are the hosts in it
		p.lookups[d.Host] += d.Bytes
		d.Sends = p.lookups[d.Host] > maxLookups
	}
	v, other := p.verdicts[key(d.Sends)], p.verdicts[key(!d.Sends)]
	if other != nil {
		select {
		case <-other.done:
			if other.err != nil || !d.Sends {
				v = other
			}
		default:
			if !d.Sends {
				v = other
			}
		}
	}
	if v == nil {
		if len(p.verdicts) >= netHosts || p.ctx.Err() != nil {
			p.mu.Unlock()
			return errors.New("this call has asked for too many hosts, or has ended")
		}
		v = &netVerdict{done: make(chan struct{}), err: errors.New("it could not be decided")}
		p.verdicts[key(d.Sends)] = v
		p.running.Go(func() {
			defer close(v.done)
			if p.connect != nil {
				defer p.hold()()
				v.err = p.connect(p.ctx, d)
			}
		})
	}
	p.mu.Unlock()
	select {
	case <-v.done:
		return v.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// use is the account of one destination; of one that is refused whoever asks, why.
func (p *netProxy) use(d tools.Dest, refused string) *netUse {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := netKey{d.Host, d.Method + refused}
	u := p.used[key]
	if u == nil {
		u = &netUse{NetUse: tools.NetUse{Dest: d, Refused: refused}}
		if len(p.used) < 2*netHosts {
			p.used[key] = u
		}
	}
	return u
}

// dialUse connects to what was decided on, and counts.
func (p *netProxy) dialUse(ctx context.Context, addr string, d tools.Dest) (*countedConn, error) {
	conn, err := p.dial(ctx, "tcp", addr)
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
	d, _ := r.Context().Value(netUseKey{}).(tools.Dest)
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
	target, scheme := r.RequestURI, "http"
	if r.Method == http.MethodConnect {
		target, scheme = "https://"+target, "https"
		if strings.ContainsAny(r.RequestURI, "/?#") {
			return u, d, errors.New("CONNECT takes HOST:PORT")
		}
	}
	if u, err = tools.ParseURL(target); err != nil {
		return u, d, err
	}
	d = tools.Dest{Host: u.NetKey(), Port: u.Port, Method: r.Method, Sends: true}
	if u.Scheme != scheme || r.Method == http.MethodConnect && !strings.HasSuffix(target, fmt.Sprint(":", u.Port)) {
		return u, d, errors.New("a request is for http://HOST/, or CONNECT HOST:PORT for https")
	}
	if scheme == "http" {
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
		p.refuse(w, http.StatusForbidden, d.Host+": "+why)
		return
	}
	if err := p.decide(r.Context(), d); err != nil {
		p.refuse(w, http.StatusForbidden, d.Host+": "+err.Error())
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), netUseKey{}, d))
	if r.Method == http.MethodConnect {
		p.tunnel(w, r, u, d)
		return
	}
	out, err := http.NewRequest(r.Method, u.String(), nil)
	if err != nil || out.URL.String() != u.String() || out.URL.Host != u.HostKey() {
		p.refuse(w, http.StatusBadRequest, "the URL is read in two ways")
		return
	}
	r.URL, r.Host, r.RequestURI = out.URL, "", ""
	for _, name := range []string{"Upgrade", "Expect", "Proxy-Authorization"} {
		r.Header.Del(name)
	}
	p.forward.ServeHTTP(w, r)
}

// tunnel connects a CONNECT request with its host, once the client has said in
// TLS that this is whom it means.
func (p *netProxy) tunnel(w http.ResponseWriter, r *http.Request, u tools.URL, d tools.Dest) {
	host := net.JoinHostPort(u.Host, fmt.Sprint(u.Port))
	server, err := p.dialUse(r.Context(), host, d)
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
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
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
	stop := context.AfterFunc(p.ctx, func() { l.Close() })
	d := tools.Dest{Host: tools.LocalHost(port), Port: port, Method: "TCP", Sends: true}
	carry := func(client net.Conn) {
		defer client.Close()
		defer context.AfterFunc(p.ctx, func() { client.Close() })()
		if p.decide(p.ctx, d) != nil {
			return
		}
		var direct net.Dialer
		server, err := direct.DialContext(p.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return
		}
		defer context.AfterFunc(p.ctx, func() { server.Close() })()
		join(client, client, &countedConn{server, p.use(d, "")})
	}
	p.running.Go(func() {
		defer l.Close()
		defer stop()
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { carry(client) })
		}
	})
}
