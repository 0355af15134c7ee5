package tools

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// Addresses at the first and last of each special block and just outside it.
func TestIsPublicAddr(t *testing.T) {
	for _, c := range []struct {
		addrs string
		want  bool
	}{
		{"0.0.0.0 0.1.2.3 0.255.255.255", false},
		{"10.0.0.0 10.255.255.255 100.64.0.0 100.100.100.200 100.127.255.255", false},
		{"127.0.0.1 127.255.255.255 169.254.0.0 169.254.169.254 172.16.0.0 172.31.255.255", false},
		{"192.0.0.1 192.0.0.9 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.0 192.168.255.255", false},
		{"198.18.0.0 198.19.255.255 198.51.100.1 203.0.113.255 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255", false},
		{"168.63.129.16", false},
		{"1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0", true},
		{"169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0", true},
		{"198.17.255.255 198.20.0.0 198.51.101.0 203.0.112.255 223.255.255.255 8.8.8.8", true},
		{":: ::1 ::2 ::7f00:1 ::8.8.8.8", false},                            // loopback and compatible
		{"::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:a9fe:a9fe", false},          // mapped
		{"::ffff:0:7f00:1 ::ffff:0:8.8.8.8", false},                         // translated, RFC 2765
		{"64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::192.168.1.1", false},  // NAT64
		{"64:ff9b:1::1 64:ff9b:1::8.8.8.8 64:ff9b:1:ffff::1", false},        // NAT64, local
		{"64:ff9b:0:0:1::1 64:ff9a::1", false},                              // beside it
		{"2001::1 2001:0:7f00:1::1 2001:2::1 2001:10::1 2001:20::1", false}, // Teredo and kin
		{"2001:1ff:ffff::1 2001:db8::1 2002:7f00:1:: 2002:808:808::1", false},
		{"3fff::1 3fff:fff:ffff::1 5f00::1 4000::1 1fff::1", false},
		{"100::1 100:0:0:1::1 fc00::1 fd00:ec2::254 fe80::1 febf::1 fec0::1 feff::1 ff02::1", false},
		{"2606:4700::5efe:7f00:1 2606:4700::200:5efe:10.0.0.1 2606:4700:0:0:0:5efe:a9fe:a9fe", false}, // ISATAP
		{"fe80::1%eth0 2606:4700::1%eth0", false},
		{"2606:4700::1111 2a00:1450::1 2400:cb00::1 2001:200::1 2001:4860:4860::8888 3ffe::1", true},
		{"64:ff9b::8.8.8.8 ::ffff:8.8.8.8 2606:4700::5efe:808:808", true},
		{"2003::1 2000::1 2001:db7::1 2001:db9::1 3fff:1000::1 2620:4f:8000::1", true},
	} {
		for _, s := range strings.Fields(c.addrs) {
			if got := IsPublicAddr(netip.MustParseAddr(s)); got != c.want {
				t.Errorf("%s: %v", s, got)
			}
		}
	}
	if IsPublicAddr(netip.Addr{}) {
		t.Error("no address is public")
	}
}

func FuzzIsPublicAddr(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1}, []byte(netip.MustParseAddr("2001:db8::1").AsSlice()))
	f.Fuzz(func(t *testing.T, four, sixteen []byte) {
		if len(four) != 4 || len(sixteen) != 16 {
			return
		}
		v4, v6 := netip.AddrFrom4([4]byte(four)), netip.AddrFrom16([16]byte(sixteen))
		for _, a := range []netip.Addr{v4, v6} {
			if IsPublicAddr(a) && (a.IsPrivate() || a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast() || !a.IsGlobalUnicast()) {
				t.Errorf("%s is public", a)
			}
		}
		mapped := netip.AddrFrom16(v4.As16())
		nat := netip.MustParseAddr("64:ff9b::").As16()
		copy(nat[12:], four)
		for _, a := range []netip.Addr{mapped, netip.AddrFrom16(nat)} {
			if IsPublicAddr(a) != IsPublicAddr(v4) {
				t.Errorf("%s and %s differ", a, v4)
			}
		}
	})
}

// listener counts connections on a loopback port.
func listener(t *testing.T) (addr netip.AddrPort, count *atomic.Int32) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	count = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String()), count
}

func answers(list ...string) func(context.Context, string) ([]netip.Addr, error) {
	return func(context.Context, string) ([]netip.Addr, error) {
		var out []netip.Addr
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out, nil
	}
}

func TestDialRefusesWhatResolvesInside(t *testing.T) {
	server, connections := listener(t)
	port := server.String()[strings.LastIndexByte(server.String(), ':'):]
	for name, list := range map[string][]string{
		"loopback":                   {"127.0.0.1"},
		"mapped loopback":            {"::ffff:127.0.0.1"},
		"IPv6 loopback":              {"::1"},
		"this network":               {"0.0.0.0"},
		"public first, then inside":  {"8.8.8.8", "127.0.0.1"},
		"inside first, then public":  {"127.0.0.1", "8.8.8.8"},
		"public, then metadata":      {"2606:4700::1111", "169.254.169.254"},
		"IPv6 that embeds a private": {"64:ff9b::7f00:1"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := guard{lookup: answers(list...)}.dial(t.Context(), "tcp", "in.example.test"+port)
			var refused refusedError
			if !errors.As(err, &refused) {
				t.Errorf("conn %v, error %v", conn, err)
			}
		})
	}
	for _, host := range []string{"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"} {
		if _, err := DialPublic(t.Context(), "tcp", host+port); err == nil {
			t.Errorf("connected to %s", host)
		}
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

// One bad address among several refuses the host, also where a good one comes
// first and would answer.
func TestDialRefusesMixedAnswers(t *testing.T) {
	server, connections := listener(t)
	g := guard{
		lookup:        answers(server.Addr().String(), "127.9.9.9"),
		testOnlyAllow: func(ap netip.AddrPort) bool { return ap == server },
	}
	_, port, _ := strings.Cut(server.String(), ":")
	if _, err := g.dial(t.Context(), "tcp", "mixed.example.test:"+port); err == nil || connections.Load() != 0 {
		t.Errorf("%v, %d connections", err, connections.Load())
	}
}

// The name is looked up once for each connection, and what was checked is what
// is connected to: an answer that changes afterwards is never asked for.
func TestDialConnectsToWhatItChecked(t *testing.T) {
	server, connections := listener(t)
	calls := 0
	g := guard{
		lookup: func(context.Context, string) ([]netip.Addr, error) {
			if calls++; calls == 1 {
				return []netip.Addr{server.Addr()}, nil
			}
			return []netip.Addr{netip.MustParseAddr("127.9.9.9")}, nil
		},
		testOnlyAllow: func(ap netip.AddrPort) bool { return ap == server },
	}
	addr := "rebind.example.test:" + server.String()[strings.LastIndexByte(server.String(), ':')+1:]
	conn, err := g.dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if calls != 1 || conn.RemoteAddr().String() != server.String() {
		t.Errorf("%d look-ups, connected to %s", calls, conn.RemoteAddr())
	}
	if _, err := g.dial(t.Context(), "tcp", addr); err == nil {
		t.Error("the changed answer was connected to")
	}
	if n := connections.Load(); n > 1 {
		t.Errorf("%d connections", n)
	}
}

func TestControlChecksTheSocketsAddress(t *testing.T) {
	server, connections := listener(t)
	dialer := net.Dialer{Control: guard{}.control}
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
		_, port, _ := strings.Cut(server.String(), ":")
		var refused refusedError
		if _, err := dialer.DialContext(t.Context(), "tcp", host+":"+port); !errors.As(err, &refused) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if connections.Load() != 0 {
		t.Error("connected")
	}
}

func TestDialRefusesPorts(t *testing.T) {
	for _, port := range []string{"0", "22", "25", "81", "1023"} {
		_, err := guard{lookup: answers("8.8.8.8")}.dial(t.Context(), "tcp", "example.test:"+port)
		var refused refusedError
		if !errors.As(err, &refused) {
			t.Errorf("port %s: %v", port, err)
		}
	}
}

func TestResolverIsAskedForTheWholeName(t *testing.T) {
	asked := ""
	g := guard{lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
		asked = host
		return nil, nil
	}}
	_, err := g.dial(t.Context(), "tcp", "nothing.example.test:443")
	var dns *net.DNSError
	if asked != "nothing.example.test" || !errors.As(err, &dns) || !dns.IsNotFound {
		t.Errorf("asked %q, %v", asked, err)
	}
}
