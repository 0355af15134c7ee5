package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// In a network of its own, where the machine has an address besides loopback's:
// the port is closed there, and were it open, a request from or to that address
// would be refused, whatever it claims to be.
func TestServerFromElsewhere(t *testing.T) {
	const inside = "PICKET_TEST_IN_NETWORK"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestServerFromElsewhere$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			need(t, false, "network namespaces for users ("+err.Error()+")")
		}
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const here = "192.0.2.7" // RFC 5737: of documentation
	must(t, addAddress("lo", net.IPv4(127, 0, 0, 1)))
	must(t, addAddress("lo:1", net.IPv4(192, 0, 2, 7)))
	r := newServerRig(t, nil)
	if got := r.chat("w", "hi"); got.StatusCode != 200 {
		t.Fatalf("on loopback: %d %s", got.StatusCode, got.body)
	}
	_, port, _ := net.SplitHostPort(r.at[0])
	if c, err := net.Dial("tcp", here+":"+port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the port is open: %v, %v", c, err)
	}
	l, err := net.Listen("tcp", "0.0.0.0:0")
	must(t, err)
	srv := &http.Server{Handler: r.server}
	go srv.Serve(l)
	defer srv.Close()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	body := `{"messages":[{"role":"user","content":"hi"}]}`
	before := len(r.model.requests())
	for name, c := range map[string]struct {
		to, from string
		headers  http.Header
	}{
		"from and to it":             {here, here, nil},
		"from it":                    {"127.0.0.1", here, nil},
		"to it":                      {here, "127.0.0.1", nil},
		"as if a proxy passed it on": {here, here, http.Header{"X-Forwarded-For": {"127.0.0.1"}, "X-Real-Ip": {"127.0.0.1"}}},
		"as if from a page of ours":  {here, here, http.Header{"Origin": {"http://127.0.0.1:" + port}}},
	} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", c.to+":"+port)
		}}}
		for _, host := range []string{"127.0.0.1:" + port, "localhost:" + port, here + ":" + port} {
			for _, path := range []string{"/v1/chat/completions", "/api/stop", "/"} {
				req, err := http.NewRequest("POST", "http://"+c.to+":"+port+path, strings.NewReader(body))
				must(t, err)
				req.Host = host
				for k, v := range c.headers {
					req.Header[k] = v
				}
				req.Header.Set("Authorization", "Bearer "+r.key)
				r.client = &client
				if got := r.send(req); got.StatusCode != 403 || got.code() != "local_only" {
					t.Errorf("%s, %s as %s: %d %s", name, path, host, got.StatusCode, got.body)
				}
			}
		}
	}
	if n := len(r.model.requests()); n != before {
		t.Errorf("%d turns were begun", n-before)
	}
	// The same way, but on loopback in fact.
	r.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r.base = "http://127.0.0.1:" + port
	if got := r.chat("w", "hi"); got.StatusCode != 200 {
		t.Errorf("on loopback: %d %s", got.StatusCode, got.body)
	}
}

// addAddress gives an interface an address and turns it on; netdevice(7).
func addAddress(name string, ip net.IP) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	type request struct {
		name [syscall.IFNAMSIZ]byte
		data [24]byte
	}
	do := func(op uintptr, fill func(*[24]byte)) error {
		var r request
		copy(r.name[:], name)
		fill(&r.data)
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), op, uintptr(unsafe.Pointer(&r))); e != 0 {
			return os.NewSyscallError(name, e)
		}
		return nil
	}
	return errors.Join(do(syscall.SIOCSIFADDR, func(d *[24]byte) {
		d[0] = syscall.AF_INET
		copy(d[4:], ip.To4())
	}), do(syscall.SIOCSIFFLAGS, func(d *[24]byte) { d[0] = syscall.IFF_UP | syscall.IFF_RUNNING }))
}
