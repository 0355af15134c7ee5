package tools

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
)

func TestParseURLCanonical(t *testing.T) {
	for _, c := range []struct{ name, in, want, key string }{
		{"root", "https://example.com", "https://example.com/", "example.com"},
		{"upper case scheme and host", "HTTPS://EXAMPLE.com/Path", "https://example.com/Path", "example.com"},
		{"default port of https", "https://example.com:443/", "https://example.com/", "example.com"},
		{"default port of http", "http://example.com:80/", "http://example.com/", "example.com"},
		{"other port", "https://example.com:8443/", "https://example.com:8443/", "example.com:8443"},
		{"the other scheme's port", "http://example.com:443/", "http://example.com:443/", "example.com:443"},
		{"final dot", "http://example.com./a", "http://example.com/a", "example.com"},
		{"fragment", "https://example.com/a?b#c", "https://example.com/a?b", "example.com"},
		{"fragment before query", "https://example.com#a?b", "https://example.com/", "example.com"},
		{"query without path", "https://example.com?b=c", "https://example.com/?b=c", "example.com"},
		{"empty query", "https://example.com/?", "https://example.com/?", "example.com"},
		{"dot segments", "https://example.com/a/./b/../../c", "https://example.com/c", "example.com"},
		{"dot segments above the root", "https://example.com/../../c/..", "https://example.com/", "example.com"},
		{"encoded dot segments", "https://example.com/a/%2e%2E/b/.%2e", "https://example.com/", "example.com"},
		{"dots in names", "https://example.com/a../...b", "https://example.com/a../...b", "example.com"},
		{"empty segments", "https://example.com//a//b", "https://example.com//a//b", "example.com"},
		{"escapes stay", "https://example.com/a%2Fb?c=%26", "https://example.com/a%2Fb?c=%26", "example.com"},
		{"percent alone", "https://example.com/100%?x=%zz", "https://example.com/100%25?x=%25zz", "example.com"},
		{"letters beyond ASCII", "https://example.com/ü?q=日", "https://example.com/%C3%BC?q=%E6%97%A5", "example.com"},
		{"characters to encode", `https://example.com/a|b"<>^{}`, "https://example.com/a%7Cb%22%3C%3E%5E%7B%7D", "example.com"},
		{"brackets in the query", "https://example.com/?a[]=1", "https://example.com/?a[]=1", "example.com"},
		{"at sign and colon in the path", "https://example.com/@a:b", "https://example.com/@a:b", "example.com"},
		{"underscore", "https://a_b.example.com/", "https://a_b.example.com/", "a_b.example.com"},
		{"hyphens in third and fourth place", "https://r3---sn-ab.example.com/", "https://r3---sn-ab.example.com/", "r3---sn-ab.example.com"},
		{"digits in a label", "https://1and1.com/", "https://1and1.com/", "1and1.com"},
		{"number label inside", "https://1.2.3.4.example.com/", "https://1.2.3.4.example.com/", "1.2.3.4.example.com"},
		{"international name", "https://Bücher.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example"},
		{"international name in ASCII", "https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example"},
		{"ideographic full stop", "https://example。com/", "https://example.com/", "example.com"},
		{"full-width letters", "https://ｅｘａｍｐｌｅ.com/", "https://example.com/", "example.com"},
		{"IPv4", "http://8.8.8.8:8080/", "http://8.8.8.8:8080/", "8.8.8.8:8080"},
		{"IPv6", "http://[2606:4700::1111]/", "http://[2606:4700::1111]/", "[2606:4700::1111]"},
		{"IPv6 with capitals and port", "http://[2606:4700::ABCD]:8080/", "http://[2606:4700::abcd]:8080/", "[2606:4700::abcd]:8080"},
		{"placeholders", "https://example.com/{{vault:A.b-c}}/x?k={{ vault:K_1 }}&y", "https://example.com/{{vault:A.b-c}}/x?k={{vault:K_1}}&y", "example.com"},
		{"what is no placeholder", "https://example.com/{{vault:}}", "https://example.com/%7B%7Bvault:%7D%7D", "example.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := ParseURL(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if u.String() != c.want || u.HostKey() != c.key {
				t.Errorf("got %s, key %s", u, u.HostKey())
			}
			again, err := ParseURL(u.String())
			if err != nil || again.String() != u.String() || again.HostKey() != u.HostKey() {
				t.Errorf("not a fixed point: %s, %v", again, err)
			}
		})
	}
}

func TestParseURLRefuses(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, c := range []struct{ name, in string }{
		{"empty", ""},
		{"no scheme", "example.com/x"},
		{"no scheme, port", "example.com:8080/x"},
		{"scheme-relative", "//example.com/"},
		{"one slash", "https:/example.com/"},
		{"no slash", "https:example.com"},
		{"file", "file:///etc/passwd"},
		{"ftp", "ftp://example.com/"},
		{"gopher", "gopher://example.com/"},
		{"javascript", "javascript:alert(1)"},
		{"data", "data:text/html,x"},
		{"unknown scheme", "abc://example.com/"},
		{"blank before", " https://example.com/"},
		{"blank after", "https://example.com/ "},
		{"newline after", "https://example.com/\n"},
		{"tab in scheme", "ht\ttps://example.com/"},
		{"no host", "https:///x"},
		{"port only", "https://:80/"},
		{"user", "https://github.com@evil.test/"},
		{"user and password", "https://a:b@example.com/"},
		{"empty user", "https://@example.com/"},
		{"host and port as user", "http://allowed.test:80@127.0.0.1:6666/"},
		{"encoded at sign", "http://a%40example.com/"},
		{"backslash in host", `http://evil.com\@127.0.0.1/`},
		{"backslash for slash", `http:\\example.com\`},
		{"backslash in path", `http://example.com/a\b`},
		{"blank in host", "http://evil.test .github.com/"},
		{"blank in path", "http://example.com/a b"},
		{"no-break space in path", "http://example.com/a\u00a0b"},
		{"NUL in host", "http://evil.test\x00.github.com/"},
		{"encoded NUL in host", "http://evil.test%00.github.com/"},
		{"encoded letter in host", "http://ex%61mple.com/"},
		{"CR in path", "http://example.com/\r\nX: y"},
		{"DEL in path", "http://example.com/\x7f"},
		{"C1 in path", "http://example.com/\u0085"},
		{"zero-width space in host", "http://exam\u200bple.com/"},
		{"zero-width space in path", "http://example.com/\u200b"},
		{"soft hyphen in host", "http://exam\u00adple.com/"},
		{"bidi override in path", "http://example.com/\u202ex"},
		{"tag character in query", "http://example.com/?\U000E0041"},
		{"not UTF-8", "http://example.com/\xff"},
		{"integer host", "http://2130706433/"},
		{"hexadecimal host", "http://0x7f000001/"},
		{"hexadecimal last part", "http://127.0.0.0x1/"},
		{"octal part", "http://0177.0.0.1/"},
		{"leading zero", "http://8.8.8.08/"},
		{"two parts", "http://127.1/"},
		{"three parts", "http://127.0.1/"},
		{"five parts", "http://1.2.3.4.5/"},
		{"part too large", "http://8.8.8.256/"},
		{"IPv4 with a final dot", "http://127.0.0.1./"},
		{"name that ends in a number", "http://example.1/"},
		{"name that ends in 0x", "http://example.0x/"},
		{"full-width digits", "http://８.８.８.８/"},
		{"circled digits", "http://①②⑦.⓪.⓪.①/"},
		{"two final dots", "http://example.com../"},
		{"dot first", "http://.example.com/"},
		{"dot alone", "http://./"},
		{"empty label", "http://a..example.com/"},
		{"hyphen first", "http://-a.example.com/"},
		{"hyphen last", "http://a-.example.com/"},
		{"label too long", "http://" + long + ".com/"},
		{"name too long", "http://" + strings.Repeat(long[:60]+".", 5) + "com/"},
		{"exclamation mark", "http://a!b.com/"},
		{"comma", "http://a,b.com/"},
		{"slash of another script", "http://example.com⁄evil.test/"},
		{"full-width slash", "http://example.com／evil.test/"},
		{"full-width at sign", "http://example.com＠evil.test/"},
		{"Punycode that decodes to nothing", "http://xn--/"},
		{"Punycode of ASCII", "http://xn--example-.com/"},
		{"Punycode that is not canonical", "http://xn--BCHER-KVA-.example/"},
		{"Punycode of a full-width letter", "http://xn--mi7c.example/"},
		{"Punycode of a fraction slash", "http://xn--a-yjn.example/"},
		{"symbol", "http://☃.example/"},
		{"IPv6 without brackets", "http://2606:4700::1111/"},
		{"IPv6 not shortest", "http://[2606:4700:0:0:0:0:0:1111]/"},
		{"IPv6 with zone", "http://[fe80::1%25eth0]/"},
		{"IPv6 with bare zone", "http://[fe80::1%eth0]/"},
		{"IPv6 mapped, hexadecimal", "http://[::ffff:7f00:1]/"},
		{"IPv6 mapped, dotted", "http://[::ffff:8.8.8.8]/"},
		{"IPv4 in brackets", "http://[8.8.8.8]/"},
		{"name in brackets", "http://[example.com]/"},
		{"bracket not closed", "http://[2606:4700::1111/"},
		{"text after bracket", "http://[2606:4700::1111]x/"},
		{"empty port", "http://example.com:/"},
		{"port zero", "http://example.com:0/"},
		{"port too large", "http://example.com:65536/"},
		{"port with zero first", "http://example.com:0443/"},
		{"port with sign", "http://example.com:+80/"},
		{"port not a number", "http://example.com:http/"},
		{"two ports", "http://example.com:80:80/"},
		{"placeholder as host", "https://{{vault:H}}/"},
		{"placeholder in host", "https://a.{{vault:H}}.com/"},
		{"placeholder as port", "https://example.com:{{vault:P}}/"},
		{"too long", "https://example.com/" + strings.Repeat("a", maxURL)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if u, err := ParseURL(c.in); err == nil {
				t.Errorf("%q was read as %s", c.in, u)
			}
		})
	}
}

func TestParseURLErrorNamesWhatToWrite(t *testing.T) {
	_, err := ParseURL("Example.com/x?secret=1")
	if err == nil || !strings.Contains(err.Error(), "https://example.com") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	_, err = ParseURL("https://exa mple.com/x?secret=1")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

func TestURLDisplayShowsBothForms(t *testing.T) {
	u := testURL(t, "https://bücher.example/x")
	if got := u.Display(); got != "https://xn--bcher-kva.example/x (bücher.example)" {
		t.Error(got)
	}
	if got := testURL(t, "https://example.com/").Display(); got != "https://example.com/" {
		t.Error(got)
	}
}

func TestURLRefusal(t *testing.T) {
	for in, refused := range map[string]bool{
		"http://localhost/": true, "http://LOCALHOST./": true, "http://foo.localhost/": true, "http://a.b.localhost:8080/": true,
		"http://localhost.localdomain/": true, "http://printer.local/": true, "http://metadata.google.internal/": true,
		"http://router.home.arpa/": true, "http://ip6-localhost/": true, "http://ｌｏｃａｌｈｏｓｔ/": true,
		"http://127.0.0.1/": true, "http://10.0.0.1/": true, "http://169.254.169.254/": true, "http://[::1]/": true,
		"http://[64:ff9b::a9fe:a9fe]/": true, "http://[64:ff9b:1::1]/": true, "http://[::7f00:1]/": true,
		"http://100.100.100.200/": true, "http://0.0.0.0/": true, "http://[fd00:ec2::254]/": true,
		"http://example.com:22/": true, "http://example.com:25/": true, "http://example.com:1023/": true,
		"http://example.com/": false, "http://example.com:1024/": false, "https://example.com:80/": false, "http://example.com:65535/": false,
		"http://localhost.example.com/": false, "http://notlocalhost/": false, "http://8.8.8.8/": false, "http://[2606:4700::1111]/": false,
	} {
		if why := testURL(t, in).Refusal(); (why != "") != refused {
			t.Errorf("%s: %q", in, why)
		}
	}
}

func TestURLResolve(t *testing.T) {
	base := testURL(t, "https://example.com:8443/a/b?c=d")
	for ref, want := range map[string]string{
		"":                      "https://example.com:8443/a/b?c=d",
		"#x":                    "https://example.com:8443/a/b?c=d",
		"x":                     "https://example.com:8443/a/x",
		"../x":                  "https://example.com:8443/x",
		"/x":                    "https://example.com:8443/x",
		"?x":                    "https://example.com:8443/a/b?x",
		"//other.test/x":        "https://other.test/x",
		"http://other.test":     "http://other.test/",
		"x:y":                   "",
		"./x:y":                 "https://example.com:8443/a/x:y",
		"file:///etc/passwd":    "",
		"javascript:alert(1)":   "",
		"http:x":                "",
		`\\other.test\x`:        "",
		"//user@other.test/":    "",
		"x?y=http://other.test": "https://example.com:8443/a/x?y=http://other.test",
	} {
		u, err := base.Resolve(ref)
		if (err != nil) != (want == "") || err == nil && u.String() != want {
			t.Errorf("%q: got %s, %v", ref, u, err)
		}
	}
}

func TestEscapeURLValueStaysOnePart(t *testing.T) {
	for _, value := range []string{"plain-A_1.~", "a/../b?c#d&e=f", "x@evil.test:1", "{{vault:X}}", "100% +", "ü\r\n\x00", `\"'<>`} {
		raw := "https://example.com/p/" + EscapeURLValue(value) + "/end?k=" + EscapeURLValue(value) + "&z=1"
		std, err := url.Parse(testURL(t, raw).String())
		if err != nil {
			t.Fatal(err)
		}
		if got := std.Query().Get("k"); got != value || std.Query().Get("z") != "1" {
			t.Errorf("%q: the query says %q", value, got)
		}
		if std.Path != "/p/"+value+"/end" {
			t.Errorf("%q: the path is %q", value, std.Path)
		}
	}
}

// whatHTTPDials returns the host and port that net/http would connect to.
func whatHTTPDials(t *testing.T, s string) (host, port string) {
	req, err := http.NewRequest("GET", s, nil)
	if err != nil {
		t.Fatalf("net/http does not take %q: %v", s, err)
	}
	if req.URL.String() != s {
		t.Fatalf("net/http reads %q as %q", s, req.URL)
	}
	host, port = req.URL.Hostname(), req.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[req.URL.Scheme]
	}
	return host, port
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"https://example.com/a?b#c", "http://[2606:4700::1111]:8080/", "https://Bücher.example./ü", "http://8.8.8.8/%2e%2e/",
		"http://a:b@c/", `http://a\@b/`, "http://0x7f.1/", "https://xn--bcher-kva.example/", "https://h/{{vault:A}}", "example.com", "http://h:80:80/",
		"http://example。com／x", "http://h/%zz?%", "http://h//x", "http://h/*", "http://h/:", "http://h?", "http://h/;a=b/..;/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			if len(err.Error()) > 4*maxURL+200 {
				t.Fatal("the error is unbounded")
			}
			return
		}
		canonical := u.String()
		again, err := ParseURL(canonical)
		if err != nil || again != u {
			t.Fatalf("%q: %q is not canonical: %+v, %v", s, canonical, again, err)
		}
		if strings.ContainsAny(canonical, "\\ \t\r\n\x00@#") && !strings.Contains(u.Path+u.Query, "@") {
			t.Fatalf("%q: %q", s, canonical)
		}
		if strings.Contains(canonical, "{{vault:") {
			return // is never requested as it stands
		}
		host, port := whatHTTPDials(t, canonical)
		if host != u.Host || port != testURL(t, u.Scheme+"://x.test:"+port+"/").portText() || port != u.portText() {
			t.Fatalf("%q: judged %s, net/http dials %s:%s", s, u.HostKey(), host, port)
		}
	})
}

func (u URL) portText() string {
	b, _ := json.Marshal(u.Port)
	return string(b)
}

// What browsers make of an address that is accepted must be the same host, port
// and path; node has the URL Standard's parser.
func TestParseURLAgreesWithURLStandard(t *testing.T) {
	node := needProgram(t, "node", "nodejs")
	var in []string
	for _, host := range []string{"example.com", "EXAMPLE.com.", "a_b.example.com", "bücher.example", "faß.example", "xn--bcher-kva.example", "example。com",
		"r3---sn.example.com", "8.8.8.8", "[2606:4700::1111]", "[2606:4700::ABCD]", "1and1.com", "0x7f.example", "127.1", "0177.0.0.1", "1.2.3.4.5", "x.0x1",
		"日本語.example", "ＡＢＣ.example", "a.b-c.d", "example.com:8080", "example.com:443", "foo@bar", "a%2eb.com", "☃.example", "Ⅷ.example"} {
		for _, rest := range []string{"", "/", "/a/../b", "/a/%2E%2e/b/.", "/..", "//x/./y", "/a%2Fb", "?q=1", "/x?y#z", "/é", "/a;b/..;/c", "/{}|", "/%zz", "/a//../b"} {
			in = append(in, "http://"+host+rest, "https://"+host+rest)
		}
	}
	data, _ := json.Marshal(in)
	cmd := exec.Command(node, "-e", `
const out = JSON.parse(require("fs").readFileSync(0)).map(s => { try { const u = new URL(s); return [u.hostname, u.port, u.pathname]; } catch { return null; } });
console.log(JSON.stringify(out));`)
	cmd.Stdin = strings.NewReader(string(data))
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var theirs [][]string
	if err := json.Unmarshal(text, &theirs); err != nil || len(theirs) != len(in) {
		t.Fatal(err, len(theirs))
	}
	accepted := 0
	for i, s := range in {
		u, err := ParseURL(s)
		if err != nil {
			continue
		}
		accepted++
		if theirs[i] == nil {
			t.Errorf("%s: the URL Standard refuses it", s)
			continue
		}
		port := theirs[i][1]
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		ours, _ := url.PathUnescape(u.Path)
		path, err := url.PathUnescape(strings.ReplaceAll(theirs[i][2], "%zz", "%25zz"))
		if strings.TrimSuffix(strings.Trim(theirs[i][0], "[]"), ".") != u.Host || port != u.portText() || err != nil || path != ours {
			t.Errorf("%s: %v, ours is %s", s, theirs[i], u)
		}
	}
	if accepted < len(in)/2 {
		t.Errorf("only %d of %d were accepted", accepted, len(in))
	}
}

func BenchmarkParseURL(b *testing.B) {
	for b.Loop() {
		if _, err := ParseURL("https://en.wikipedia.org/wiki/Main_Page?action=raw&x=1"); err != nil {
			b.Fatal(err)
		}
	}
}
