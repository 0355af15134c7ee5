package tools

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxHosts bounds the hosts that one call is judged by; those beyond are decided
// on when they are connected to.
const maxHosts = 32

// addHosts adds the host of each http or https URL in a text, in the form of
// NetKey. A host that is not constant is none.
func addHosts(hosts []string, text string) []string {
	for {
		i := strings.Index(text, "://")
		if i < 0 || len(hosts) >= maxHosts {
			return hosts
		}
		scheme := text[strings.LastIndexFunc(text[:i], func(r rune) bool { return notHostRune(r | 0x20) })+1 : i]
		text = text[i+3:]
		end := strings.IndexAny(text, "/?# \t\r\n\"'<>()`,;|&")
		if end < 0 {
			end = len(text)
		}
		if u, err := ParseURL(scheme + "://" + text[:end]); err == nil && !slices.Contains(hosts, u.NetKey()) {
			hosts = append(hosts, u.NetKey())
		}
	}
}

// reachable leaves out what is a box's own, unless it is a port of this machine
// that the owner let boxes reach.
func (f *Facts) reachable(hosts []string) (out []string) {
	for _, h := range hosts {
		u, err := ParseURL("http://" + h)
		ip, _ := netip.ParseAddr(u.Host)
		switch {
		case err != nil:
			continue
		case u.Host == "localhost" || ip.IsLoopback():
			if !slices.Contains(f.HostPorts, int(u.Port)) {
				continue
			}
			h = LocalHost(u.Port)
		}
		if !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	return out
}

// NetKey is the host as grants of boxed calls name it: HOST for the ports of http
// and https, HOST:PORT for any other.
func (u URL) NetKey() string {
	if u.Port == 80 || u.Port == 443 {
		u.Port = u.defaultPort()
	}
	return u.HostKey()
}

// LocalHost is how a port of this machine's loopback is named where hosts are.
func LocalHost(port uint16) string { return "localhost:" + strconv.Itoa(int(port)) }

// netTargets are the keys of the hosts that a call names. Those of its programs
// do not cover them.
func (j *Judgement) netTargets() (out []Target) {
	for _, h := range j.Egress.Hosts {
		out = append(out, Target{Key: "net:" + h, Widest: Always})
	}
	return out
}
