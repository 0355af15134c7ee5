package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf16"
	"unicode/utf8"
)

// A secretValue is one text that must not be shown.
type secretValue struct {
	Name  string // in the vault; "" if it is not from there
	Value string
	Mark  string // what it is, such as "model key", where Name is empty
}

// Limits of what is looked for, in bytes.
const (
	minSecret = 8  // a shorter value counts only where it stands alone as a word
	minLine   = 16 // a shorter line of a value is not looked for on its own
	maxWindow = 32
	maxBreaks = 2 // a CR LF in the middle of an encoded value
)

// A redactor replaces secrets in everything that leaves picket. It finds them
// as they are; escaped for JSON, Go, URLs and HTML; in hexadecimal and base64 in
// any alignment; and what consists of such digits also when broken into lines.
// All matches are found on the text as it came, and those that overlap are
// replaced as a whole by the mark of the longest. It may be used by several
// goroutines. The nil redactor still finds picket's own API keys.
type redactor struct {
	set   atomic.Pointer[redactSet]
	fresh func() // if set, called before each use; it may Update
}

type redactSet struct {
	marks []string // mark 0 is that of API keys
	*matcher
}

func newRedactor(list []secretValue) *redactor {
	r := &redactor{}
	r.Update(list)
	return r
}

// Update replaces the whole set of secrets.
func (r *redactor) Update(list []secretValue) { r.set.Store(newRedactSet(list)) }

var noSecrets = sync.OnceValue(func() *redactSet { return newRedactSet(nil) })

func (r *redactor) current() *redactSet {
	if r == nil {
		return noSecrets()
	}
	if r.fresh != nil {
		r.fresh()
	}
	return r.set.Load()
}

// String returns s without secrets.
func (r *redactor) String(s string) string {
	if s == "" {
		return s
	}
	return string(r.Bytes([]byte(s)))
}

// Holds reports whether a text holds a secret that is not too short to be sure.
func (r *redactor) Holds(s string) bool {
	set := r.current()
	found, _ := set.find([]byte(s), 0, nil, true)
	return slices.ContainsFunc(found, func(m match) bool { return m.length >= minSecret && s[m.start:m.end] != set.marks[m.secret] })
}

// Bytes returns text without secrets; text itself if there are none.
func (r *redactor) Bytes(text []byte) []byte { return r.Stream().feed(text, true) }

// Stream returns a redactor for one text that comes in pieces.
func (r *redactor) Stream() *redactStream { return &redactStream{r: r} }

// Filter takes secrets out of what is written to w. Close writes what was held
// back, and does not close w.
func (r *redactor) Filter(w io.Writer) io.WriteCloser { return &redactStream{r: r, w: w} }

// redactStream redacts a text in pieces. What it gives out in all is what
// Bytes gives for the whole text, however that was cut, unless the set of
// secrets changes on the way.
type redactStream struct {
	r    *redactor
	w    io.Writer // of a filter
	held []byte    // the suffix that could still become, or be part of, a secret
	prev byte      // the byte before it, 0 at the start
	open []match   // at most one, that starts before held and may still grow
}

// Feed takes the next piece and returns what can be given out.
func (st *redactStream) Feed(piece []byte) []byte { return st.feed(piece, false) }

// End returns the rest. The stream can then be used for another text.
func (st *redactStream) End() []byte { return st.feed(nil, true) }

// Write implements io.Writer.
func (st *redactStream) Write(p []byte) (int, error) {
	_, err := st.w.Write(st.Feed(p))
	return len(p), err
}

// Close implements io.Closer.
func (st *redactStream) Close() error {
	_, err := st.w.Write(st.End())
	return err
}

func (st *redactStream) feed(text []byte, final bool) []byte {
	set := st.r.current()
	if len(st.held) > 0 {
		text = append(st.held, text...)
	}
	found, safe := set.find(text, st.prev, st.open, final)
	st.open, st.held = nil, bytes.Clone(text[safe:])
	if safe > 0 {
		st.prev = text[safe-1]
	}
	out := text[:safe]
	at := 0
	if len(found) > 0 {
		out = make([]byte, 0, safe+64)
	}
	for _, m := range found {
		if m.start >= safe {
			break
		}
		out = append(out, text[at:max(at, m.start)]...)
		if at = min(m.end, safe); m.end > safe {
			st.open = []match{{m.start - safe, m.end - safe, m.secret, m.length}}
			break
		}
		out = append(out, set.marks[m.secret]...)
	}
	if len(found) > 0 {
		out = append(out, text[at:safe]...)
	}
	if final {
		*st = redactStream{r: st.r, w: st.w}
	}
	return out
}

// A match is a stretch of text that is replaced by one mark.
type match struct {
	start, end int
	secret     int // whose mark it gets: that of the longest match in it
	length     int // of the form that it is of
}

// addMatch adds m to a list of disjoint matches in order, as one with those
// that it overlaps. Matches come in the order of their starts or of their ends.
func addMatch(list []match, m match) []match {
	for len(list) > 0 && list[len(list)-1].end > m.start {
		o := list[len(list)-1]
		list = list[:len(list)-1]
		m.start, m.end = min(m.start, o.start), max(m.end, o.end)
		if o.length > m.length || o.length == m.length && o.secret < m.secret {
			m.secret, m.length = o.secret, o.length
		}
	}
	return append(list, m)
}

// The shape of the keys that picket gives out, and of what could become one.
var (
	apiKey     = lazyRegexp(`picket_[0-9A-Za-z]{32,64}`)
	apiKeyPart = lazyRegexp(`p(i(c(k(e(t(_[0-9A-Za-z]{0,63})?)?)?)?)?)?$`)
)

// find returns the matches in text, disjoint and in order, and the offset up to
// which they are certain; prev is the byte before the text and open a match that
// reaches into it.
func (set *redactSet) find(text []byte, prev byte, open []match, final bool) (found []match, safe int) {
	all, safe := set.search(text, prev, final, true)
	joined, where := joinLines(text)
	broken, brokenSafe := set.search(joined, 0, false, false)
	if brokenSafe < len(joined) {
		safe = min(safe, where[brokenSafe])
	}
	for _, m := range broken {
		all = append(all, match{where[m.start], where[m.end-1] + 1, m.secret, m.length})
	}
	for _, m := range apiKey().FindAllIndex(text, -1) {
		all = append(all, match{m[0], m[1], 0, m[1] - m[0]})
	}
	if tail := max(0, len(text)-70); !final {
		if m := apiKeyPart().FindIndex(text[tail:]); m != nil {
			safe = min(safe, tail+m[0])
		}
	} else {
		safe = len(text)
	}
	all = append(all, open...)
	slices.SortStableFunc(all, func(x, y match) int { return x.start - y.start })
	for _, m := range all {
		found = addMatch(found, m)
	}
	return found, safe
}

// Classes of bytes: the digits of base64 in both alphabets, and so of
// hexadecimal; and what is part of a word, besides all that is not ASCII.
var codedByte, wordByte = byteClass(base62 + "+/-_"), byteClass(base62 + "_")

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func byteClass(s string) (class [256]bool) {
	for i := range len(s) {
		class[s[i]] = true
	}
	return class
}

func isWord(c byte) bool { return wordByte[c] || c >= utf8.RuneSelf }

// joinLines returns what of a text could be encoded and broken into lines,
// without the line breaks: at most maxBreaks bytes between two digits. where
// holds the offset in the text of each byte of it.
func joinLines(text []byte) (joined []byte, where []int) {
	for at := 0; at < len(text); {
		end := at + bytes.IndexByte(text[at:], '\n')
		if end < at {
			if end = len(text) - 1; text[end] != '\r' {
				break
			}
		} else if end > at && text[end-1] == '\r' {
			end--
		}
		from := end
		for from > at && codedByte[text[from-1]] {
			from--
		}
		if at = from; from == end {
			at = end + 1
			continue
		}
		for gap := 0; at < len(text); {
			n := lineBreak(text, at)
			if codedByte[text[at]] {
				joined, where = append(joined, text[at]), append(where, at)
				gap, n = 0, 1
			} else if gap += n; n == 0 || gap > maxBreaks {
				break
			}
			at += n
		}
		if at < len(text) {
			joined, where = append(joined, '\n'), append(where, at)
		}
	}
	return joined, where
}

// lineBreak is the length of the line break at an offset, 0 if there is none. At
// the end of a text a CR counts, since an LF may follow.
func lineBreak(text []byte, at int) int {
	switch {
	case text[at] == '\n', text[at] == '\r' && at+1 == len(text):
		return 1
	case text[at] == '\r' && text[at+1] == '\n':
		return 2
	}
	return 0
}

// A pattern is one form of one secret.
type pattern struct {
	text   string
	secret int
	word   bool  // only where it stands alone
	next   int32 // the next shorter one that ends where this does
}

func newRedactSet(list []secretValue) *redactSet {
	set := &redactSet{marks: []string{"[redacted: API key]"}}
	var pats []pattern
	for i, s := range list {
		mark := "[redacted: " + s.Mark + "]"
		if s.Name != "" {
			mark = "{{vault:" + s.Name + "}}"
		}
		set.marks = append(set.marks, mark)
		values := []string{s.Value, strings.TrimSpace(s.Value)}
		for line := range strings.SplitSeq(s.Value, "\n") {
			line = strings.TrimSpace(line)
			armor := strings.HasPrefix(line, "-----") && strings.HasSuffix(line, "-----") // says nothing
			if len(line) >= minLine && !armor {
				values = append(values, line)
			}
		}
		for _, v := range values {
			if len(v) >= minSecret {
				for _, f := range formsOf(v) {
					pats = append(pats, pattern{text: f, secret: i + 1})
				}
			}
		}
		if s.Value != "" && len(s.Value) < minSecret {
			pats = append(pats, pattern{text: s.Value, secret: i + 1, word: true})
		}
	}
	// Text passes through here more than once: a mark that holds a form of a
	// secret counts as one of its own, which is the longer one.
	for i, mark := range set.marks {
		if slices.ContainsFunc(pats, func(p pattern) bool { return strings.Contains(mark, p.text) }) {
			pats = append(pats, pattern{text: mark, secret: i})
		}
	}
	set.matcher = newMatcher(pats)
	return set
}

// formsOf returns a value as it stands in ordinary text, in JSON (as Go,
// JavaScript, Python and PHP write it), in Go's %q and %+q, in the single quotes
// of a shell, of Python and of JavaScript, in URLs (by the
// several sets of bytes that encoders leave alone), in HTML, in hexadecimal and,
// for each of the three places that it can have in a longer text, the digits in
// base64 that depend on it alone.
func formsOf(v string) []string {
	inner := func(s string) string { return s[1 : len(s)-1] }
	forms := []string{v, inner(strconv.Quote(v)), inner(strconv.QuoteToASCII(v)), strings.ReplaceAll(v, "'", `'\''`), strings.ReplaceAll(v, "'", `'"'"'`)}
	for _, s := range forms[1:3] { // in single quotes
		s = strings.ReplaceAll(s, `\"`, `"`)
		forms = append(forms, s, strings.ReplaceAll(s, "'", `\'`))
	}
	for _, encode := range []func(any) ([]byte, error){json.Marshal, marshalPlain} {
		b, _ := encode(v) // a string has a form always
		var ascii []byte
		for _, u := range utf16.Encode([]rune(string(b))) {
			if u < utf8.RuneSelf {
				ascii = append(ascii, byte(u))
			} else {
				ascii = fmt.Appendf(ascii, `\u%04x`, u)
			}
		}
		for _, s := range []string{inner(string(b)), inner(string(ascii))} {
			forms = append(forms, s, strings.ReplaceAll(s, "/", `\/`))
		}
	}
	for _, digits := range []string{"%%%02X", "%%%02x"} {
		for _, keep := range []string{"", "/", "!'()*", "$&+=:@", "!$&'()*+,;=:@/?", "!#$&'()*+,;=:@/?[]"} {
			forms = append(forms, percent(v, keep, digits))
		}
		forms = append(forms, strings.ReplaceAll(percent(v, " ", digits), " ", "+"))
	}
	for _, q := range [][2]string{{`"`, `'`}, {"&#34;", "&#39;"}, {"&quot;", "&#39;"}, {"&quot;", "&#x27;"}, {"&quot;", "&apos;"}, {"&quot;", "'"}} {
		forms = append(forms, strings.NewReplacer("&#34;", q[0], "&#39;", q[1]).Replace(html.EscapeString(v)))
	}
	forms = append(forms, fmt.Sprintf("%x", v), fmt.Sprintf("%X", v))
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before, skip := range []int{0, 2, 3} {
			s := alphabet.EncodeToString(append(make([]byte, before), v...))
			forms = append(forms, s[skip:(before+len(v))*8/6])
		}
	}
	return forms
}

// percent encodes for a URL all but the unreserved bytes of RFC 3986, section
// 2.3, and those in keep.
func percent(v, keep, digits string) string {
	var b []byte
	for _, c := range []byte(v) {
		if strings.IndexByte(base62+"_-.~"+keep, c) >= 0 {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, digits, c)
		}
	}
	return string(b)
}

// A matcher finds all patterns at once: an Aho-Corasick automaton (CACM 18,
// 1975) in which a state has a single child or a full row of them, so that its
// size is linear in the patterns, behind the tables of Wu and Manber (TR-94-17,
// Arizona), which skip what cannot begin a match. In all, the time is linear in
// the text, whatever that is.
type matcher struct {
	pats  []pattern    // from 1
	nodes []acNode     // 0 is the root
	rows  [][256]int32 // 0 is that of the root

	window int     // length of the shortest pattern, at most maxWindow; less than 4: nothing is skipped
	shift  []uint8 // by hash of three bytes: how far on a pattern can begin at the soonest, if they end a window
	heads  []bool  // by hash of four bytes: whether a pattern begins with them
}

type acNode struct {
	child, fail, out, depth int32 // out is the longest pattern that ends here
	char                    byte  // that leads to child
	row                     bool  // there are several children, and child is their row
}

func newMatcher(pats []pattern) *matcher {
	m := &matcher{pats: make([]pattern, 1), nodes: []acNode{{row: true}}, rows: make([][256]int32, 1), window: maxWindow,
		shift: make([]uint8, 1<<16), heads: make([]bool, 1<<16)}
	slices.SortStableFunc(pats, func(a, b pattern) int { return len(b.text) - len(a.text) })
	states := make([]int32, len(pats))
	for depth := 0; ; depth++ { // all states of one depth, so that those of the suffixes are there
		for len(pats) > 0 && len(pats[len(pats)-1].text) == depth {
			pats = pats[:len(pats)-1]
		}
		if len(pats) == 0 {
			break
		}
		for i, p := range pats {
			at, c := states[i], p.text[depth]
			next := m.child(at, c)
			if next == 0 {
				n := acNode{depth: int32(depth) + 1}
				if at != 0 {
					n.fail = m.step(m.nodes[at].fail, c)
				}
				n.out = m.nodes[n.fail].out
				next = int32(len(m.nodes))
				m.nodes = append(m.nodes, n)
				m.addChild(at, c, next)
			}
			states[i] = next
			// Of equal patterns the first stays.
			if n := &m.nodes[next]; len(p.text) == depth+1 && len(m.pats[n.out].text) <= depth {
				p.next, n.out = n.out, int32(len(m.pats))
				m.pats = append(m.pats, p)
			}
		}
	}
	m.skipTables()
	return m
}

// child returns the state that c leads to, 0 if there is none.
func (m *matcher) child(at int32, c byte) int32 {
	switch n := &m.nodes[at]; {
	case n.row:
		return m.rows[n.child][c]
	case n.char == c:
		return n.child
	}
	return 0
}

func (m *matcher) addChild(at int32, c byte, next int32) {
	switch n := &m.nodes[at]; {
	case !n.row && n.child == 0:
		n.child, n.char = next, c
	case !n.row:
		row := [256]int32{}
		row[n.char], row[c] = n.child, next
		n.row, n.child = true, int32(len(m.rows))
		m.rows = append(m.rows, row)
	default:
		m.rows[n.child][c] = next
	}
}

func (m *matcher) step(at int32, c byte) int32 {
	for {
		if next := m.child(at, c); next != 0 || at == 0 {
			return next
		}
		at = m.nodes[at].fail
	}
}

// hash3 is a hash of the last three of four bytes, hash4 of all four.
func hash3(b []byte) uint16 { return uint16(binary.LittleEndian.Uint32(b) >> 8 * 2654435761 >> 16) }
func hash4(b []byte) uint16 { return uint16(binary.LittleEndian.Uint32(b) * 2654435761 >> 16) }

func (m *matcher) skipTables() {
	for _, p := range m.pats[1:] {
		m.window = min(m.window, len(p.text))
	}
	if m.window < 4 {
		return
	}
	for i := range m.shift {
		m.shift[i] = uint8(m.window - 2)
	}
	for _, p := range m.pats[1:] {
		m.heads[hash4([]byte(p.text[:4]))] = true
		for i := range m.window - 2 {
			h := hash3([]byte("_" + p.text[i:i+3]))
			m.shift[h] = min(m.shift[h], uint8(m.window-3-i))
		}
	}
}

// skip returns the first offset from at on where a match could begin.
func (m *matcher) skip(text []byte, at int) int {
	for last := m.window - 1; last >= 3 && at+last < len(text); {
		if s := m.shift[hash3(text[at+last-3:])]; s > 0 {
			at += int(s)
		} else if m.heads[hash4(text[at:])] {
			break
		} else {
			at++
		}
	}
	return at
}

// search returns the matches in text, disjoint and in order, and where the
// first match could begin that the text ends too early for. Words are sought too
// if it says so, and if final also at the end.
func (m *matcher) search(text []byte, prev byte, final, words bool) (found []match, safe int) {
	safe = len(text)
	state := int32(0)
	for i := m.skip(text, 0); i < len(text); i++ {
		state = m.step(state, text[i])
		n := &m.nodes[state]
		for out := n.out; out != 0; out = m.pats[out].next { // the longest that counts
			p := &m.pats[out]
			start, end := i+1-len(p.text), i+1
			switch {
			case p.word && (!words || start > 0 && isWord(text[start-1]) || start == 0 && isWord(prev) || end < len(text) && isWord(text[end])):
				continue
			case p.word && end == len(text) && !final:
				safe = min(safe, start)
				continue
			}
			found = addMatch(found, match{start, end, p.secret, len(p.text)})
			break
		}
		if n.depth <= 1 {
			at := i + 1 - int(n.depth)
			if next := m.skip(text, at); next > at {
				state, i = 0, next-1
			}
		}
	}
	for state != 0 && !m.nodes[state].row && m.nodes[state].child == 0 {
		state = m.nodes[state].fail // nothing longer can come of it
	}
	if !final {
		safe = min(safe, len(text)-int(m.nodes[state].depth))
	}
	return found, safe
}
