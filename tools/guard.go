package tools

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// notPublic4 is what of IPv4 is not globally reachable unicast: IANA IPv4
// Special-Purpose Address Registry (RFC 6890; entries "Globally Reachable: False"
// or "N/A", 192.0.0.0/24 as a whole) and multicast (RFC 5771).
var notPublic4 = prefixes(
	"0.0.0.0/8",       // this network, RFC 791
	"10.0.0.0/8",      // private use, RFC 1918
	"100.64.0.0/10",   // shared address space, RFC 6598
	"127.0.0.0/8",     // loopback, RFC 1122
	"169.254.0.0/16",  // link local, RFC 3927; cloud metadata
	"172.16.0.0/12",   // private use, RFC 1918
	"192.0.0.0/24",    // IETF protocol assignments, RFC 6890
	"192.0.2.0/24",    // documentation, RFC 5737
	"192.88.99.0/24",  // 6to4 relay anycast, deprecated by RFC 7526
	"192.168.0.0/16",  // private use, RFC 1918
	"198.18.0.0/15",   // benchmarking, RFC 2544
	"198.51.100.0/24", // documentation, RFC 5737
	"203.0.113.0/24",  // documentation, RFC 5737
	"224.0.0.0/4",     // multicast, RFC 5771
	"240.0.0.0/4",     // reserved and limited broadcast, RFC 1112, RFC 8190
	// In no registry: the host agent of Azure virtual machines, reachable from
	// each of them (learn.microsoft.com, "What is IP address 168.63.129.16?").
	"168.63.129.16/32",
)

// global6 is the only part of IPv6 from which global unicast addresses are
// assigned (IANA IPv6 Global Unicast Address Assignments), and notPublic6 what of
// it is special (IANA IPv6 Special-Purpose Address Registry; 2001::/23 as a
// whole). Everything else (loopback, mapped, compatible, 64:ff9b:1::/48,
// discard-only, unique local, link and site local, multicast) lies outside.
var (
	global6    = netip.MustParsePrefix("2000::/3")
	notPublic6 = prefixes(
		"2001::/23",     // IETF protocol assignments, RFC 2928: Teredo, benchmarking, ORCHID, …
		"2001:db8::/32", // documentation, RFC 3849
		"2002::/16",     // 6to4, RFC 3056
		"3fff::/20",     // documentation, RFC 9637
	)
	// nat64 reaches the IPv4 address in its last 32 bits (RFC 6052): how an
	// IPv6-only network reaches any IPv4 host.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// IsPublicAddr reports whether ip is globally routable unicast. An IPv6 address
// that carries an IPv4 one is public only if both are.
func IsPublicAddr(ip netip.Addr) bool {
	if ip.Zone() != "" {
		return false
	}
	if ip = ip.Unmap(); ip.Is4() {
		return !inPrefixes(ip, notPublic4)
	}
	b := ip.As16() // zero for the invalid address, which no prefix contains
	embedded := netip.AddrFrom4([4]byte(b[12:]))
	if nat64.Contains(ip) {
		return IsPublicAddr(embedded)
	}
	if !global6.Contains(ip) || inPrefixes(ip, notPublic6) {
		return false
	}
	// ISATAP (RFC 5214, section 6.1): interface identifier [00|02]00:5efe:a.b.c.d.
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		return IsPublicAddr(embedded)
	}
	return true
}

func inPrefixes(ip netip.Addr, list []netip.Prefix) bool {
	for _, p := range list {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// allowedPort keeps fetches off the services that speak something else.
func allowedPort(p uint16) bool { return p == 80 || p == 443 || p >= 1024 }

// A guard connects to public addresses only. The zero value is the one in use.
type guard struct {
	lookup        func(ctx context.Context, host string) ([]netip.Addr, error) // nil: the system's resolver
	testOnlyAllow func(netip.AddrPort) bool                                    // admits a test's own server; nil outside tests
}

// A refusedError says that the guard would not connect.
type refusedError string

func (e refusedError) Error() string { return string(e) }

// DialPublic connects to "host:port" if every address of the host is public. The
// address checked is the one connected to, so that a name whose answer changes
// between check and connection gains nothing. No proxy is used.
func DialPublic(ctx context.Context, network, addr string) (net.Conn, error) {
	return guard{}.dial(ctx, network, addr)
}

// Refused says why DialPublic would not connect, "" if its error is another one.
func Refused(err error) string {
	var r refusedError
	errors.As(err, &r)
	return string(r)
}

func (g guard) check(ap netip.AddrPort) error {
	if g.testOnlyAllow != nil && g.testOnlyAllow(ap) {
		return nil
	}
	if !IsPublicAddr(ap.Addr()) {
		return refusedError(ap.Addr().String() + " is a private or special address")
	}
	if !allowedPort(ap.Port()) {
		return refusedError(fmt.Sprintf("port %d is not one of 80, 443 and those from 1024 on", ap.Port()))
	}
	return nil
}

func (g guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	addrs, err := g.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if err := g.check(netip.AddrPortFrom(a, uint16(port))); err != nil {
			if a.String() != host {
				err = refusedError(host + " resolves to " + err.Error())
			}
			return nil, err
		}
	}
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: g.control}
	for i, a := range addrs {
		var conn net.Conn
		if conn, err = dialer.DialContext(ctx, network, netip.AddrPortFrom(a, uint16(port)).String()); err == nil {
			return conn, nil
		}
		if i == 3 {
			break
		}
	}
	return nil, err
}

// control checks the address of a socket that is about to connect, whatever led
// to it.
func (g guard) control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return g.check(ap)
}

// resolve returns at least one address. The final dot keeps the resolver from
// trying the name under the domains of its search list.
func (g guard) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	lookup := g.lookup
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host+".")
		}
	}
	addrs, err := lookup(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}
