package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

func TestRedact(t *testing.T) {
	a := secretValue{Name: "A", Value: "supersecret-1"}
	pem := "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA1234\nshort\nqqqqwwwweeeerrrr\n-----END KEY-----\n"
	for _, tt := range []struct {
		name     string
		secrets  []secretValue
		in, want string
	}{
		{"nothing to find", []secretValue{a}, "an ordinary line", "an ordinary line"},
		{"no secrets", nil, "an ordinary line", "an ordinary line"},
		{"empty text", []secretValue{a}, "", ""},
		{"empty value", []secretValue{{Name: "E"}}, "an ordinary line", "an ordinary line"},
		{"raw", []secretValue{a}, "x supersecret-1 y", "x {{vault:A}} y"},
		{"inside a word", []secretValue{a}, "xsupersecret-1y", "x{{vault:A}}y"},
		{"twice without a gap", []secretValue{a}, "supersecret-1supersecret-1", "{{vault:A}}{{vault:A}}"},
		{"not from the vault", []secretValue{{Value: "supersecret-1", Mark: "model key"}}, "k=supersecret-1", "k=[redacted: model key]"},
		{"longest first", []secretValue{{Name: "S", Value: "password"}, {Name: "L", Value: "password123"}}, "password123 password12", "{{vault:L}} {{vault:S}}12"},
		{"overlap is masked whole", []secretValue{{Name: "L", Value: "abcdefghij"}, {Name: "R", Value: "ghijklmnop!!"}}, "<abcdefghijklmnop!!>", "<{{vault:R}}>"},
		{"one inside another that does not end", []secretValue{{Name: "L", Value: "xx-abcdefgh-yy"}, {Name: "R", Value: "abcdefgh"}}, "xx-abcdefgh-yz", "xx-{{vault:R}}-yz"},
		{"overlap with itself", []secretValue{{Name: "Z", Value: "aaaaaaaa"}}, "<aaaaaaaaaaaaaaaaaaa>", "<{{vault:Z}}>"},
		{"marks are not searched", []secretValue{a, {Name: "B", Value: "vault"}, {Name: "C", Value: "A"}}, "supersecret-1 vault", "{{vault:A}} {{vault:B}}"},
		{"nor is a mark that stands in the text", []secretValue{a, {Name: "B", Value: "vault"}}, "{{vault:A}} vault", "{{vault:A}} {{vault:B}}"},
		{"short values as words", []secretValue{{Name: "N", Value: "no"}, {Name: "O", Value: "1"}, {Name: "T", Value: "true"}}, "/v1/ no north 1 v1 true, untrue é1", "/v1/ {{vault:N}} north {{vault:O}} v1 {{vault:T}}, untrue é1"},
		{"short value at both ends", []secretValue{{Name: "P", Value: "pass"}}, "pass", "{{vault:P}}"},
		{"lines of a value", []secretValue{{Name: "K", Value: pem}}, "a MIIEpAIBAAKCAQEA1234\r\nshort\nqqqqwwwweeeerrrr -----BEGIN KEY-----", "a {{vault:K}}\r\nshort\n{{vault:K}} -----BEGIN KEY-----"},
		{"all of such a value", []secretValue{{Name: "K", Value: pem}}, "<" + pem + ">", "<{{vault:K}}>"},
		{"without its last line end", []secretValue{{Name: "K", Value: "correct horse\n"}}, "<correct horse>", "<{{vault:K}}>"},
		{"shape of an API key", nil, "key picket_" + strings.Repeat("aB3", 14) + ".", "key [redacted: API key]."},
		{"no key by its shape", nil, "picket_run picket_" + strings.Repeat("a", 31), "picket_run picket_" + strings.Repeat("a", 31)},
		{"wrapped at 76", []secretValue{{Name: "W", Value: strings.Repeat("0123456789", 9)}}, wrap(base64.StdEncoding.EncodeToString([]byte("ab"+strings.Repeat("0123456789", 9)+"cd")), 76, "\r\n"), "YWIw{{vault:W}}Y2Q=\r\n"},
		{"too many line breaks", []secretValue{a}, "c3VwZXJz\n\n\nZWNyZXQtMQ", "c3VwZXJz\n\n\nZWNyZXQtMQ"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRedactor(tt.secrets)
			got := r.String(tt.in)
			if tt.name == "wrapped at 76" { // some digits at the borders belong to both
				if strings.Contains(got, "MDEyMzQ1Njc4OT") || !strings.Contains(got, "{{vault:W}}") {
					t.Errorf("got %q", got)
				}
				return
			}
			if got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if again := r.String(got); again != got {
				t.Errorf("a second pass changes %q to %q", got, again)
			}
			var s strings.Builder
			st := r.Stream()
			for i := range len(tt.in) {
				s.Write(st.Feed([]byte{tt.in[i]}))
			}
			s.Write(st.End())
			if s.String() != tt.want {
				t.Errorf("by single bytes %q", s.String())
			}
		})
	}
}

func wrap(s string, n int, end string) string {
	var b strings.Builder
	for len(s) > n {
		b.WriteString(s[:n] + end)
		s = s[n:]
	}
	return b.String() + s + end
}

// Every form of a secret with everything in it that encoders treat differently
// must go, and leave nothing behind that decodes to more than its borders.
func TestRedactForms(t *testing.T) {
	v := "pÄ\"s's/w+rd <&> \\ \x01\t\U0001f511=100%~_-?x;y,z"
	r := newRedactor([]secretValue{{Name: "V", Value: v}})
	js := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	forms := map[string]string{
		"raw": v, "json": js(v), "%q": strconv.Quote(v), "%+q": strconv.QuoteToASCII(v),
		"query": url.QueryEscape(v), "path": url.PathEscape(v), "html": html.EscapeString(v),
		"query in lower case": lowerPercent(url.QueryEscape(v)),
		"url":                 (&url.URL{Scheme: "http", Host: "h", RawQuery: "k=" + url.QueryEscape(v)}).String(),
		"hex":                 hex.EncodeToString([]byte(v)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(v))),
		"python json":           `"p\u00c4\"s's/w+rd <&> \\ \u0001\t\ud83d\udd11=100%~_-?x;y,z"`,
		"javascript json":       "\"pÄ\\\"s's/w+rd <&> \\\\ \\u0001\\t\U0001f511=100%~_-?x;y,z\"",
		"php json":              `"p\u00c4\"s's\/w+rd <&> \\ \u0001\t\ud83d\udd11=100%~_-?x;y,z"`,
		"encodeURIComponent":    "p%C3%84%22s's%2Fw%2Brd%20%3C%26%3E%20%5C%20%01%09%F0%9F%94%91%3D100%25~_-%3Fx%3By%2Cz",
		"encodeURI":             "p%C3%84%22s's/w+rd%20%3C&%3E%20%5C%20%01%09%F0%9F%94%91=100%25~_-?x;y,z",
		"python quote":          "p%C3%84%22s%27s/w%2Brd%20%3C%26%3E%20%5C%20%01%09%F0%9F%94%91%3D100%25~_-%3Fx%3By%2Cz",
		"python html":           "pÄ&quot;s&#x27;s/w+rd &lt;&amp;&gt; \\ \x01\t\U0001f511=100%~_-?x;y,z",
		"html of a text node":   "pÄ\"s's/w+rd &lt;&amp;&gt; \\ \x01\t\U0001f511=100%~_-?x;y,z",
		"sh -x":                 `'pÄ"s'\''s/w+rd <&> \ ` + "\x01\t\U0001f511=100%~_-?x;y,z'",
		"dash -x":               `'pÄ"s'"'"'s/w+rd <&> \ ` + "\x01\t\U0001f511=100%~_-?x;y,z'",
		"repr":                  `'pÄ"s\'s/w+rd <&> \\ \x01\t` + "\U0001f511=100%~_-?x;y,z'",
		"xxd -p":                wrap(hex.EncodeToString([]byte("ab"+v)), 60, "\n"),
		"base64 broken anyhow":  wrap(base64.StdEncoding.EncodeToString([]byte(v)), 7, "\n"),
		"base64 in CR LF lines": wrap(base64.URLEncoding.EncodeToString([]byte("xyz"+v)), 64, "\r\n"),
	}
	for before := range 4 {
		for name, enc := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.URLEncoding, "raw": base64.RawURLEncoding} {
			forms[fmt.Sprintf("base64 %s behind %d", name, before)] = enc.EncodeToString([]byte(strings.Repeat("a", before) + v + "tail"))
		}
	}
	for name, f := range forms {
		got := r.String("before " + f + " after")
		rest := strings.ReplaceAll(got, "{{vault:V}}", "")
		if !strings.Contains(got, "{{vault:V}}") || len(rest) > len("before  after")+len(f)/8+22 {
			t.Errorf("%s: %q of %q", name, got, f)
		}
		if stream := inPieces(r, []byte("before "+f+" after"), 3, 1); stream != got {
			t.Errorf("%s: in a stream %q, at once %q", name, stream, got)
		}
	}
}

func lowerPercent(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '%' {
			copy(b[i:], bytes.ToLower(b[i:i+3]))
		}
	}
	return string(b)
}

func inPieces(r *redactor, text []byte, sizes ...int) string {
	var out []byte
	st := r.Stream()
	for i := 0; len(text) > 0; i++ {
		n := min(sizes[i%len(sizes)], len(text))
		out = append(out, st.Feed(text[:n])...)
		text = text[n:]
	}
	return string(append(out, st.End()...))
}

// slowRedact is the definition: it tries every pattern at every offset.
func slowRedact(set *redactSet, text string) string {
	var spans []match
	for _, p := range set.pats[1:] {
		loose := !p.word && !strings.ContainsFunc(p.text, func(r rune) bool { return r > 0xff || !codedByte[r] })
		for at := range len(text) {
			end, ok := at, true
			for i, breaks := 0, ""; i < len(p.text) && ok; {
				if end == len(text) {
					ok = false
					break
				}
				if c := text[end]; loose && i > 0 && (c == '\n' || c == '\r') {
					breaks += string(c)
				} else {
					ok = c == p.text[i] && slices.Contains([]string{"", "\n", "\r\n", "\n\n"}, breaks)
					breaks = ""
					i++
				}
				end++
			}
			if ok && (!p.word || (at == 0 || !isWord(text[at-1])) && (end == len(text) || !isWord(text[end]))) {
				spans = append(spans, match{at, end, p.secret, len(p.text)})
			}
		}
	}
	slices.SortFunc(spans, func(a, b match) int { return a.start - b.start })
	var b strings.Builder
	at := 0
	for i := 0; i < len(spans); {
		s := spans[i]
		for i++; i < len(spans) && spans[i].start < s.end; i++ {
			o := spans[i]
			s.end = max(s.end, o.end)
			if o.length > s.length || o.length == s.length && o.secret < s.secret {
				s.secret, s.length = o.secret, o.length
			}
		}
		b.WriteString(text[at:s.start] + set.marks[s.secret])
		at = s.end
	}
	return b.String() + text[at:]
}

// A small alphabet and related values make overlaps, near misses and repeats
// likely.
func checkRedact(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	alphabet := "ab"
	if seed%3 == 0 {
		alphabet = "abc-_\n\r {}%"
	}
	word := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = alphabet[rnd.IntN(len(alphabet))]
		}
		return string(b)
	}
	var list []secretValue
	for i := range 1 + rnd.IntN(4) {
		n := 8 + rnd.IntN(8)
		if rnd.IntN(4) == 0 && seed%2 == 0 {
			n = 1 + rnd.IntN(7)
		}
		list = append(list, secretValue{Name: string(rune('A' + i)), Value: word(n)})
	}
	if seed%5 == 0 {
		list = append(list, secretValue{Name: "Q", Value: "vault"})
	}
	r := newRedactor(list)
	var text []byte
	for range 2 + rnd.IntN(8) {
		s := list[rnd.IntN(len(list))].Value
		switch rnd.IntN(7) {
		case 0:
			s = s[:rnd.IntN(len(s)+1)]
		case 1:
			s = s[rnd.IntN(len(s)+1):]
		case 2:
			s = base64.URLEncoding.EncodeToString([]byte(word(rnd.IntN(3)) + s + word(rnd.IntN(3))))
			s = wrap(s, 1+rnd.IntN(12), []string{"\n", "\r\n", "\n\n\n"}[rnd.IntN(3)])
		case 3:
			s = wrap(hex.EncodeToString([]byte(s)), 1+rnd.IntN(40), "\n")
		case 4:
			s = "{{vault:" + list[rnd.IntN(len(list))].Name + "}}"
		case 5:
			s = word(rnd.IntN(40))
		}
		text = append(text, s...)
	}
	got := string(r.Bytes(text))
	if want := slowRedact(r.current(), string(text)); got != want {
		t.Fatalf("seed %d: %q with %+v\ngot  %q\nwant %q", seed, text, list, got, want)
	}
	for range 3 {
		sizes := []int{1 + rnd.IntN(20), 1 + rnd.IntN(3), 1}
		if s := inPieces(r, text, sizes...); s != got {
			t.Fatalf("seed %d: %q with %+v\nin pieces of %v %q\nat once %q", seed, text, list, sizes, s, got)
		}
	}
}

func TestRedactAgainstDefinition(t *testing.T) {
	for seed := range uint64(300) {
		checkRedact(t, seed)
	}
}

func FuzzRedactSeeds(f *testing.F) {
	f.Add(uint64(1 << 40))
	f.Fuzz(func(t *testing.T, seed uint64) { checkRedact(t, seed) })
}

func FuzzRedact(f *testing.F) {
	f.Add("supersecret-1", "password", []byte("x supersecret-1 c3VwZXJzZWNyZXQtMQ"), uint8(3))
	f.Add("aaaaaaaa", "a", []byte("aaaaaaaaaaaaaaaa\na\xff"), uint8(1))
	f.Add("line one is long enough\nline two", "no", []byte("picket_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa {{vault:A}}"), uint8(7))
	f.Fuzz(func(t *testing.T, a, b string, text []byte, size uint8) {
		if len(a)+len(b) > 200 || len(text) > 2000 {
			return
		}
		r := newRedactor([]secretValue{{Name: "A", Value: a}, {Name: "B", Value: b}})
		text = append(text, a...)
		got := string(r.Bytes(text))
		if s := inPieces(r, text, int(size)+1, 1); s != got {
			t.Fatalf("in pieces %q, at once %q", s, got)
		}
		marks := regexp.MustCompile(`\{\{vault:[AB]\}\}`)
		for _, v := range []string{a, b} {
			left := slices.ContainsFunc(marks.Split(got, -1), func(s string) bool { return strings.Contains(s, v) })
			if len(v) >= minSecret && !strings.Contains(v, "vault") && left {
				t.Fatalf("%q is left in %q", v, got)
			}
		}
	})
}

func TestRedactUpdate(t *testing.T) {
	r := newRedactor(nil)
	st := r.Stream()
	out := string(st.Feed([]byte("supersecret-1 supersec")))
	r.Update([]secretValue{{Name: "A", Value: "supersecret-1"}})
	out += string(st.Feed([]byte("ret-1 supersecret-1"))) + string(st.End())
	if !strings.HasSuffix(out, "{{vault:A}}") {
		t.Errorf("a new secret is not found: %q", out)
	}
	var none *redactor
	if got := none.String("x"); got != "x" {
		t.Errorf("the nil redactor: %q", got)
	}
}

// A stream gives out all but what could still become a secret.
func TestRedactHoldsLittle(t *testing.T) {
	r := newRedactor([]secretValue{{Name: "A", Value: "supersecret-1"}})
	for in, held := range map[string]string{"plain text. ": "", "my supersec": "supersec", "supersecret-1": "", "all supersupers": "supers", "pick": "pick"} {
		st := r.Stream()
		st.Feed([]byte(in))
		if string(st.held) != held {
			t.Errorf("%q: holds %q, want %q", in, st.held, held)
		}
	}
	z := newRedactor([]secretValue{{Name: "Z", Value: "aaaaaaaa"}})
	st := z.Stream()
	for range 1000 {
		if st.Feed([]byte("aaaa")); len(st.held) > 8 {
			t.Fatalf("holds %d bytes of a run that is one match", len(st.held))
		}
	}
	if got := string(st.End()); got != "{{vault:Z}}" {
		t.Errorf("the run became %q", got)
	}
}

// benchSecrets are tokens of 20 to 49 characters with the usual beginnings.
func benchSecrets(k int) []secretValue {
	rnd := rand.New(rand.NewPCG(7, 7))
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	var list []secretValue
	for i := range k {
		v := []byte([]string{"sk-proj-", "ghp_", "AKIA", "xoxb-"}[i%4])
		for n := 20 + rnd.IntN(30); len(v) < n; {
			v = append(v, digits[rnd.IntN(len(digits))])
		}
		list = append(list, secretValue{Name: fmt.Sprintf("S%d", i), Value: string(v)})
	}
	return list
}

func benchText(size int, list []secretValue) []byte {
	rnd := rand.New(rand.NewPCG(8, 8))
	var b []byte
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "2026-03-%02dT12:%02d:%02d.%06dZ INFO request id=%08x path=/api/v1/items/%d status=200 took=%dms user=alice msg=\"the quick brown fox\"\n",
			1+i%28, i%60, i%60, rnd.IntN(1e6), rnd.Uint32(), rnd.IntN(1e5), rnd.IntN(900))
		if i%330 == 0 {
			b = append(b, list[rnd.IntN(len(list))].Value...)
		}
	}
	return b[:size]
}

func allForms(set *redactSet) []string {
	var pairs []string
	for _, p := range set.pats[1:] {
		if !p.word {
			pairs = append(pairs, p.text, set.marks[p.secret])
		}
	}
	return pairs
}

func BenchmarkRedact(b *testing.B) {
	hostile := func(list []secretValue) ([]secretValue, []byte) {
		tail := strings.Repeat("q", 20)
		for i := range list {
			list[i].Value = list[i].Value[:8] + list[i].Value[len(list[i].Value)-8:] + tail
		}
		return list, bytes.Repeat([]byte("q"), 1<<20)
	}
	near := func(list []secretValue) ([]secretValue, []byte) { // almost every secret, one after another
		var text []byte
		for i := 0; len(text) < 1<<20; i++ {
			v := list[i%len(list)].Value
			text = append(text, v[:len(v)-1]...)
		}
		return list, text
	}
	base := func(list []secretValue) ([]secretValue, []byte) { // of a picture, in lines
		raw := make([]byte, 3<<18)
		for i, rnd := 0, rand.New(rand.NewPCG(9, 9)); i < len(raw); i++ {
			raw[i] = byte(rnd.Uint32())
		}
		return list, []byte(wrap(base64.StdEncoding.EncodeToString(raw), 76, "\n"))
	}
	log := func(size int) func([]secretValue) ([]secretValue, []byte) {
		return func(list []secretValue) ([]secretValue, []byte) { return list, benchText(size, list) }
	}
	for _, bb := range []struct {
		name string
		k    int
		make func([]secretValue) ([]secretValue, []byte)
	}{
		{"log/k=10/1MiB", 10, log(1 << 20)}, {"log/k=10/10MiB", 10, log(10 << 20)},
		{"log/k=100/1MiB", 100, log(1 << 20)}, {"log/k=100/10MiB", 100, log(10 << 20)},
		{"tail/k=100/1MiB", 100, hostile}, {"near/k=100/1MiB", 100, near}, {"base64/k=100/1MiB", 100, base},
	} {
		list, text := bb.make(benchSecrets(bb.k))
		r := newRedactor(list)
		pairs := allForms(r.current())
		replacer := strings.NewReplacer(pairs...)
		replacer.Replace("") // builds it
		b.Run(bb.name+"/picket", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				r.Bytes(text)
			}
		})
		b.Run(bb.name+"/NewReplacer", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			s := string(text)
			for b.Loop() {
				replacer.Replace(s)
			}
		})
	}
	b.Run("build/k=100", func(b *testing.B) {
		list := benchSecrets(100)
		var set *redactSet
		for b.Loop() {
			set = newRedactSet(list)
		}
		b.ReportMetric(float64(set.bytes())/(1<<20), "MiB-tables")
	})
}

func (m *matcher) bytes() int {
	n := len(m.nodes)*int(unsafe.Sizeof(acNode{})) + len(m.rows)*1024 + len(m.shift) + len(m.heads)
	for _, p := range m.pats {
		n += len(p.text) + 40
	}
	return n
}

func TestRedactTableSize(t *testing.T) {
	list := benchSecrets(100)
	for i := range list { // the dearest: every form differs
		list[i].Value += " <&>\"'\\/+é\n" + list[99-i].Value[:20]
	}
	set := newRedactSet(list)
	if n := set.bytes(); n > 16<<20 {
		t.Errorf("the tables take %d bytes", n)
	}
}
