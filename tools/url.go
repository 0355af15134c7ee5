package tools

import (
	"bytes"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const maxURL = 8 << 10 // bytes of an address as written

// A URL is an http or https address in the one form that the card, the grant,
// the policy and the request share. Only ParseURL and Resolve make one.
type URL struct {
	Scheme string // http or https
	Host   string // lower-case ASCII name without a final dot, or an IP address without brackets
	Script string // the host in its own script (a name shown beside its Punycode); "" if it is the same
	Port   uint16
	Path   string // percent-encoded, without dot segments, starts with "/"
	Query  string // percent-encoded with its "?", or ""
}

// ParseURL reads an address strictly. What browsers and libraries read in
// different ways (user-info, backslashes, blanks, control characters, addresses
// in other notations) is an error, whose text is for the model and holds no
// part of the query. A fragment is dropped: it is never sent. Placeholders
// {{vault:NAME}} may stand in the path and the query and are kept as they are.
//
// ParseURL reads; Refusal says whether the address may be fetched at all.
func ParseURL(s string) (URL, error) {
	if len(s) > maxURL || !utf8.ValidString(s) {
		return URL{}, fmt.Errorf("the URL is longer than %d bytes or not valid UTF-8", maxURL)
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if scheme = strings.ToLower(scheme); !ok || scheme != "http" && scheme != "https" {
		host, _ := cutAuthority(s)
		if u, err := ParseURL("https://" + host); err == nil {
			return URL{}, fmt.Errorf("the URL has no scheme: write https://%s", u.HostKey())
		}
		return URL{}, fmt.Errorf("the URL must start with https:// or http://: only http and https addresses can be fetched")
	}
	u := URL{Scheme: scheme}
	authority, rest := cutAuthority(rest)
	if err := u.setAuthority(authority); err != nil {
		return URL{}, err
	}
	return u.withTail(rest)
}

func cutAuthority(s string) (authority, rest string) {
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// withTail reads the path and query of an address whose host is that of u.
func (u URL) withTail(tail string) (URL, error) {
	tail, _, _ = strings.Cut(tail, "#")
	path, query, hasQuery := strings.Cut(tail, "?")
	path, err := encodeURLPart(path)
	if err != nil {
		return URL{}, err
	}
	if u.Query, err = encodeURLPart(query); err != nil {
		return URL{}, err
	}
	if hasQuery {
		u.Query = "?" + u.Query
	}
	u.Path = removeDotSegments(path)
	return u, nil
}

func (u URL) defaultPort() uint16 {
	if u.Scheme == "http" {
		return 80
	}
	return 443
}

// HostKey is the host as grants and egress lists name it: HOST for the scheme's
// own port, HOST:PORT for any other, an IPv6 address in brackets.
func (u URL) HostKey() string {
	host := u.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if u.Port != u.defaultPort() {
		host += ":" + strconv.Itoa(int(u.Port))
	}
	return host
}

// String is the canonical form: what is shown, matched and requested.
func (u URL) String() string { return u.Scheme + "://" + u.HostKey() + u.Path + u.Query }

func (u URL) origin() string { return u.Scheme + "://" + u.HostKey() }

// Display is String with the host's own script beside its Punycode.
func (u URL) Display() string {
	if u.Script == "" {
		return u.String()
	}
	return u.String() + " (" + u.Script + ")"
}

// setAuthority reads host and port.
func (u *URL) setAuthority(s string) (err error) {
	if strings.Contains(s, "@") {
		return fmt.Errorf("the URL holds a user name or password before the host")
	}
	host, port, hasPort := strings.Cut(s, ":")
	if strings.HasPrefix(s, "[") {
		host, after, closed := strings.Cut(s[1:], "]")
		port, hasPort = strings.CutPrefix(after, ":")
		addr, err := netip.ParseAddr(host)
		if err != nil || !closed || !hasPort && after != "" || !addr.Is6() || addr.Zone() != "" || addr.Is4In6() ||
			addr.String() != strings.ToLower(host) {
			return fmt.Errorf("the host %q is not an IPv6 address in its canonical form", s)
		}
		u.Host = addr.String()
	} else if u.Host, u.Script, err = parseHost(host); err != nil {
		return err
	}
	if u.Port = u.defaultPort(); hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '0' || port[0] == '+' {
			return fmt.Errorf("the port %q is not a number from 1 to 65535", port)
		}
		u.Port = uint16(n)
	}
	return nil
}

// hostProfile maps a name as browsers do before a look-up (UTS 46, not
// transitional). Letters, digits, hyphens and underscores are checked after it.
var hostProfile = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckJoiners(true),
	idna.StrictDomainName(false), idna.CheckHyphens(false))

// parseHost returns the canonical ASCII form of a host name or IPv4 address and,
// if it differs, its form in its own script.
func parseHost(s string) (host, script string, err error) {
	bad := func(why string) (string, string, error) {
		return "", "", fmt.Errorf("the host %.300q is not valid: %s", s, why)
	}
	if len(s) > 1000 { // the time that Punycode takes grows with the square
		return bad("it is too long")
	}
	ascii := true
	for _, r := range s {
		if !visible(r) || r == '\\' || r == '%' {
			return bad("it holds a blank, control or invisible character, a backslash or a percent sign")
		}
		ascii = ascii && r < utf8.RuneSelf
	}
	host = strings.ToLower(s)
	if !ascii {
		if host, err = hostProfile.ToASCII(s); err != nil {
			return bad("it is not an internationalised name")
		}
	}
	name := strings.TrimSuffix(host, ".")
	if len(name) > 253 {
		return bad("it is too long")
	}
	international, last := false, ""
	for l := range strings.SplitSeq(name, ".") {
		if len(l) == 0 || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return bad("a label is empty, too long or starts or ends with a hyphen")
		}
		if strings.IndexFunc(l, notHostRune) >= 0 {
			return bad("names are of letters, digits, hyphens and underscores")
		}
		if strings.HasPrefix(l, "xn--") {
			if a, err := hostProfile.ToASCII(l); err != nil || a != l {
				return bad("it is not an internationalised name")
			}
			international = true
		}
		last = l
	}
	// A name whose last label is a number is an IPv4 address to browsers (URL
	// Standard, "ends in a number") and to getaddrinfo, in whatever notation.
	if isNumeric(last) {
		if ip, err := netip.ParseAddr(host); err != nil || !ascii || ip.String() != host {
			return bad("it is not an IPv4 address in its canonical form")
		}
	}
	if international {
		if script, err = hostProfile.ToUnicode(name); err != nil || script == name || strings.ContainsFunc(script, notNameRune) {
			return bad("it is not an internationalised name")
		}
	}
	return name, script, nil
}

func notHostRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_')
}

// notNameRune keeps symbols out, which look like the marks around a host: names
// are of letters, marks and digits (RFC 5892) and of the characters allowed in
// context (its appendix A; hostProfile has checked the joiners).
func notNameRune(r rune) bool {
	return !unicode.In(r, unicode.L, unicode.M, unicode.Nd) && !strings.ContainsRune("-_.\u00b7\u0375\u05f3\u05f4\u200c\u200d\u30fb", r)
}

// isNumeric reports whether a label is a number in some base, which URL parsers
// elsewhere read as an address.
func isNumeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// visible reports whether a rune takes part in what a reader sees.
func visible(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }

// encodeURLPart percent-encodes what RFC 3986 does not allow in a path or query
// (brackets stay: they are common and harmless) and keeps valid escapes.
func encodeURLPart(s string) (string, error) {
	var out []byte // nil while s stays as it is
	for i, size := 0, 1; i < len(s); i += size {
		size = 1
		if inURL(s[i]) || s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			if out != nil {
				out = append(out, s[i])
			}
			continue
		}
		if out == nil {
			out = append(make([]byte, 0, len(s)+64), s[:i]...)
		}
		name, n := placeholder(s[i:])
		if n > 0 {
			out, size = append(out, "{{vault:"+name+"}}"...), n
			continue
		}
		var r rune
		if r, size = utf8.DecodeRuneInString(s[i:]); !visible(r) || r == '\\' {
			return "", fmt.Errorf("the URL holds a blank, control or invisible character or a backslash: write it as %%XX")
		}
		out = append(out, url.PathEscape(s[i:i+size])...)
	}
	if out == nil {
		return s, nil
	}
	return string(out), nil
}

// inURL reports whether a character of a path or query needs no encoding.
func inURL(c byte) bool {
	switch c {
	case '-', '.', '_', '~', '!', '$', '&', '\'', '(', ')', '*', '+', ',', ';', '=', ':', '@', '/', '?', '[', ']':
		return true
	}
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

// placeholder returns NAME of the "{{ vault:NAME }}" that s starts with, and its
// length; 0 if it starts with none.
func placeholder(s string) (name string, length int) {
	inner, _, closed := strings.Cut(s[:min(len(s), 128)], "}}")
	inner, opened := strings.CutPrefix(inner, "{{")
	name, ok := strings.CutPrefix(strings.Trim(inner, " "), "vault:")
	name = strings.Trim(name, " ")
	if !opened || !closed || !ok || name == "" || len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool {
		return notHostRune(r) && !(r >= 'A' && r <= 'Z' || r == '.')
	}) {
		return "", 0
	}
	return name, len("{{") + len(inner) + len("}}")
}

// EscapeURLValue encodes a value so that it stays one part of a path or a
// query wherever it is put: what the gate substitutes for a placeholder.
func EscapeURLValue(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// removeDotSegments resolves "." and ".." as RFC 3986, section 5.2.4, and also
// where a dot is written %2e, as browsers and many servers do: a rule for a path
// must see the path that is served.
func removeDotSegments(path string) string {
	if strings.HasPrefix(path, "/") && !strings.Contains(path, "/.") && !strings.Contains(path, "%2") {
		return path
	}
	out := make([]byte, 0, len(path)+1)
	path = strings.TrimPrefix(path, "/")
	for more := true; more; {
		var s string
		s, path, more = strings.Cut(path, "/")
		switch strings.ReplaceAll(strings.ReplaceAll(s, "%2e", "."), "%2E", ".") {
		case "..":
			out = out[:max(bytes.LastIndexByte(out, '/'), 0)]
		case ".":
		default:
			out = append(append(out, '/'), s...)
			continue
		}
		if !more {
			out = append(out, '/')
		}
	}
	return string(out)
}

// Resolve reads a reference found in a page or a redirect from u.
func (u URL) Resolve(ref string) (URL, error) {
	end := strings.IndexAny(ref, ":/?#")
	switch {
	case end >= 0 && ref[end] == ':': // with a scheme
		return ParseURL(ref)
	case strings.HasPrefix(ref, "//"):
		return ParseURL(u.Scheme + ":" + ref)
	case ref == "" || end == 0 && ref[0] == '#':
		return u, nil
	case end == 0 && ref[0] == '?':
		ref = u.Path + ref
	case end != 0:
		ref = u.Path[:strings.LastIndexByte(u.Path, '/')+1] + ref
	}
	if len(ref) > maxURL || !utf8.ValidString(ref) {
		return URL{}, fmt.Errorf("the URL is longer than %d bytes or not valid UTF-8", maxURL)
	}
	return u.withTail(ref)
}

// localNames are the domains that never name a public host: RFC 6761 and 6762,
// RFC 8375, ICANN's reservation of .internal (2024-07-29), and the names that
// distributions put into /etc/hosts.
var localNames = []string{"localhost", "localdomain", "local", "internal", "home.arpa", "ip6-localhost", "ip6-loopback"}

// Refusal says why an address may not be fetched whoever asks, from its text
// alone; "" if nothing speaks against it. What its name resolves to is checked
// when it is connected to.
func (u URL) Refusal() string {
	if ip, err := netip.ParseAddr(u.Host); err == nil && !IsPublicAddr(ip) {
		return u.Host + " is a private or special address"
	}
	for _, n := range localNames {
		if u.Host == n || strings.HasSuffix(u.Host, "."+n) {
			return u.Host + " is a name of this machine or its network"
		}
	}
	if !allowedPort(u.Port) {
		return fmt.Sprintf("port %d is not one of 80, 443 and those from 1024 on", u.Port)
	}
	return ""
}
