package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	minSecret  = 8  // a shorter value counts only where it stands alone as a word
	minLine    = 16 // a shorter line of a value is not looked for on its own
	maxWindow  = 32
	maxBreaks  = 2 // a CR LF in the middle of an encoded value
	apiKeyHead = "picket_"
	minAPIKey  = 32 // base62 digits after the head
	maxAPIKey  = 64
)

// A redactor replaces secrets in everything that leaves picket. It finds them
// as they are; escaped for JSON, Go, URLs and HTML; in hexadecimal and base64 in
// any alignment, also when broken into lines. All matches are found on the text
// as it came, those that overlap are replaced as a whole by the mark of the
// longest, and marks are never searched. It may be used by several goroutines.
// The nil redactor and one without secrets still find picket's own API keys.
type redactor struct{ set atomic.Pointer[redactSet] }

type redactSet struct {
	marks []string
	plain *matcher
	loose *matcher // of encoded forms, within which line breaks do not count
	quick *quick
}

func newRedactor(list []secretValue) *redactor {
	r := &redactor{}
	r.Update(list)
	return r
}

// Update replaces the whole set of secrets.
func (r *redactor) Update(list []secretValue) { r.set.Store(newRedactSet(list)) }

var noSecrets = newRedactSet(nil)

func (r *redactor) current() *redactSet {
	if r != nil {
		if set := r.set.Load(); set != nil {
			return set
		}
	}
	return noSecrets
}

// String returns s without secrets; s itself if there are none.
func (r *redactor) String(s string) string {
	if out := r.Bytes([]byte(s)); len(out) != len(s) || string(out) != s {
		return string(out)
	}
	return s
}

// Bytes returns text without secrets; text itself if there are none.
func (r *redactor) Bytes(text []byte) []byte {
	st := redactStream{r: r}
	return st.feed(text, true)
}

// Stream returns a redactor for one text that comes in pieces.
func (r *redactor) Stream() *redactStream { return &redactStream{r: r} }

// redactStream redacts a text in pieces. What it gives out in all is what
// Bytes gives for the whole text, however that was cut, unless the set of
// secrets changes on the way.
type redactStream struct {
	r    *redactor
	held []byte  // the suffix that could still become, or be part of, a secret
	prev byte    // the byte before it, 0 at the start
	open []match // at most one, that starts before held and may still grow
}

// Feed takes the next piece and returns what can be given out.
func (st *redactStream) Feed(piece []byte) []byte { return st.feed(piece, false) }

// End returns the rest. The stream can then be used for another text.
func (st *redactStream) End() []byte { return st.feed(nil, true) }

func (st *redactStream) feed(text []byte, final bool) []byte {
	set := st.r.current()
	if len(st.held) > 0 {
		text = append(st.held, text...)
	}
	found, safe := set.find(text, st.prev, st.open, final)
	if len(found) == 0 && safe == len(text) && final {
		*st = redactStream{r: st.r}
		return text
	}
	out := make([]byte, 0, safe+64)
	at := 0
	st.open = nil
	for _, m := range found {
		if m.start >= safe {
			break
		}
		out = append(out, text[at:max(at, m.start)]...)
		if at = min(m.end, safe); m.end > safe {
			m.start, m.end = m.start-safe, m.end-safe
			st.open = []match{m}
			break
		}
		out = append(out, set.marks[m.secret]...)
	}
	out = append(out, text[at:safe]...)
	if safe > 0 {
		st.prev = text[safe-1]
	}
	st.held = bytes.Clone(text[safe:])
	if final {
		*st = redactStream{r: st.r}
	}
	return out
}

// A match is a stretch of text that is replaced by one mark.
type match struct {
	start, end int
	secret     int // whose mark it gets: that of the longest match in it
	length     int // of that one
}

// addMatch adds m to a list of disjoint matches in order, as one with those
// that it overlaps. New matches end no earlier than those in the list.
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

// find returns the matches in text, disjoint and in order, and the offset up to
// which they are certain; prev is the byte before the text and open a match that
// reaches into it.
func (set *redactSet) find(text []byte, prev byte, open []match, final bool) (found []match, safe int) {
	keys, safe := findAPIKeys(text, final)
	plain := finding{text: text, prev: prev, final: final, safe: safe}
	loose := plain
	set.search(&plain, &loose)
	marks := plain.marks
	if safe = min(plain.safe, loose.safe); final {
		safe = len(text)
	}
	for _, k := range marks {
		if k.start < safe && safe < k.end {
			safe = k.start
		}
	}
	all := slices.Concat(open, plain.found, loose.found, keys)
	slices.SortStableFunc(all, func(x, y match) int { return x.start - y.start })
	i := 0
	for _, m := range all {
		for i < len(marks) && marks[i].end < m.end {
			i++
		}
		if i == len(marks) || m.start < marks[i].start {
			found = addMatch(found, m)
		}
	}
	return found, safe
}

// findAPIKeys finds texts of the shape of the keys that picket gives out.
func findAPIKeys(text []byte, final bool) (found []match, safe int) {
	const head = len(apiKeyHead)
	for at := 0; ; {
		i := bytes.IndexByte(text[at:], apiKeyHead[head-1])
		if i < 0 {
			break
		}
		if at += i + 1; !bytes.HasSuffix(text[:at], []byte(apiKeyHead)) {
			continue
		}
		end := at
		for end < len(text) && end-at < maxAPIKey && isWord(text[end]) && text[end] != '_' && text[end] < utf8.RuneSelf {
			end++
		}
		if end == len(text) && end-at < maxAPIKey && !final {
			return found, at - head
		}
		if end-at >= minAPIKey {
			found = append(found, match{at - head, end, 0, end - at + head})
			at = end
		}
	}
	for n := head - 1; n > 0 && !final; n-- {
		if bytes.HasSuffix(text, []byte(apiKeyHead[:n])) {
			return found, len(text) - n
		}
	}
	return found, len(text)
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= utf8.RuneSelf
}

// A pattern is one form of one secret, or a mark, which must not be searched.
type pattern struct {
	text   string
	secret int  // -1 for a mark
	word   bool // only where it stands alone
	next   int32
}

// newRedactSet builds the tables. Mark 0 is that of API keys.
func newRedactSet(list []secretValue) *redactSet {
	set := &redactSet{marks: []string{"[redacted: API key]"}}
	var plain, loose []pattern
	for _, s := range list {
		mark := fmt.Sprintf("[redacted: %s]", s.Mark)
		if s.Name != "" {
			mark = "{{vault:" + s.Name + "}}"
		}
		n := len(set.marks)
		set.marks = append(set.marks, mark)
		if s.Value == "" {
			continue
		}
		if len(s.Value) < minSecret {
			plain = append(plain, pattern{text: s.Value, secret: n, word: true})
			continue
		}
		values := []string{s.Value}
		if t := strings.TrimSpace(s.Value); t != s.Value && len(t) >= minSecret {
			values = append(values, t)
		}
		for _, v := range values {
			for _, f := range encodedForms(v) {
				loose = append(loose, pattern{text: f, secret: n})
			}
		}
		if strings.Contains(s.Value, "\n") {
			for line := range strings.SplitSeq(s.Value, "\n") {
				line = strings.TrimSpace(line)
				armor := strings.HasPrefix(line, "-----") && strings.HasSuffix(line, "-----") // says nothing
				if len(line) >= minLine && !armor {
					values = append(values, line)
				}
			}
		}
		for _, v := range values {
			for _, f := range escapedForms(v) {
				plain = append(plain, pattern{text: f, secret: n})
			}
		}
	}
	for _, m := range set.marks {
		if inMark := func(p pattern) bool { return strings.Contains(m, p.text) }; slices.ContainsFunc(plain, inMark) || slices.ContainsFunc(loose, inMark) {
			plain = append(plain, pattern{text: m, secret: -1})
		}
	}
	set.plain, set.loose = newMatcher(plain, false), newMatcher(loose, true)
	set.quick = newQuick(set.plain, set.loose)
	return set
}

// escapedForms returns a value as it stands in ordinary text, in JSON (as Go,
// JavaScript, Python and PHP write it), in Go's %q and %+q, in URLs (by the
// several sets of bytes that encoders leave alone) and in HTML.
func escapedForms(v string) []string {
	forms := []string{v}
	for _, f := range []func(any) ([]byte, error){json.Marshal, marshalPlain} {
		if b, err := f(v); err == nil {
			s := string(b[1 : len(b)-1])
			forms = append(forms, s)
			var ascii strings.Builder
			for _, r := range s {
				if r < utf8.RuneSelf {
					ascii.WriteRune(r)
				} else if r > 0xffff {
					fmt.Fprintf(&ascii, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
				} else {
					fmt.Fprintf(&ascii, `\u%04x`, r)
				}
			}
			forms = append(forms, ascii.String(), strings.ReplaceAll(ascii.String(), "/", `\/`), strings.ReplaceAll(s, "/", `\/`))
		}
	}
	for _, q := range []string{strconv.Quote(v), strconv.QuoteToASCII(v)} {
		forms = append(forms, q[1:len(q)-1])
	}
	for _, lower := range []bool{false, true} {
		forms = append(forms, strings.ReplaceAll(percent(v, "", lower), "%20", "+"))
	}
	for _, keep := range []string{"", "/", "!'()*", "$&+=:@", "!$&'()*+,;=:@/?", "!#$&'()*+,;=:@/?[]"} {
		forms = append(forms, percent(v, keep, false), percent(v, keep, true))
	}
	for _, quotes := range [][2]string{{`"`, `'`}, {"&#34;", "&#39;"}, {"&quot;", "&#39;"}, {"&quot;", "&#x27;"}, {"&quot;", "&apos;"}, {"&quot;", "'"}} {
		h := strings.NewReplacer("&#34;", quotes[0], "&#39;", quotes[1]).Replace(html.EscapeString(v))
		forms = append(forms, h)
	}
	return forms
}

// percent encodes for a URL all but the unreserved bytes of RFC 3986, section
// 2.3, and those in keep.
func percent(v, keep string, lower bool) string {
	format := "%%%02X"
	if lower {
		format = "%%%02x"
	}
	var b strings.Builder
	for i := range len(v) {
		c := v[i]
		if c < utf8.RuneSelf && isWord(c) || strings.IndexByte("-.~", c) >= 0 || strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, format, c)
		}
	}
	return b.String()
}

// encodedForms returns a value in hexadecimal and, for each of the three places
// that it can have in a longer text, the digits in base64 that depend on it
// alone. The matcher takes both alphabets as one.
func encodedForms(v string) []string {
	forms := []string{hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v)))}
	for before, skip := range []int{0, 2, 3} {
		s := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), v...))
		forms = append(forms, s[skip:(before+len(v))*8/6])
	}
	return forms
}

// A matcher finds all patterns at once: an Aho-Corasick automaton (CACM 18,
// 1975) in which a state has a single child or a full row of them, so that its
// size is linear in the patterns.
type matcher struct {
	pats  []pattern // from 1
	loose bool
	nodes []acNode     // 0 is the root
	out   []int32      // by node: the longest pattern that ends there
	rows  [][256]int32 // 0 is that of the root
	fold  [256]byte    // what the automaton sees
}

type acNode struct {
	child, fail, depth int32
	char               byte // that leads to child
	rows, ends         bool // there are several children, and child is their row; a pattern ends here
}

func newMatcher(pats []pattern, loose bool) *matcher {
	m := &matcher{loose: loose, pats: make([]pattern, 1), nodes: []acNode{{rows: true}}, out: make([]int32, 1), rows: make([][256]int32, 1)}
	for c := range m.fold {
		m.fold[c] = byte(c)
	}
	if loose { // the alphabet of URLs as the standard one
		m.fold['-'], m.fold['_'] = '+', '/'
	}
	slices.SortStableFunc(pats, func(a, b pattern) int { return len(a.text) - len(b.text) })
	for _, p := range pats {
		m.insert(p)
	}
	m.link()
	return m
}

// insert adds a pattern; of equal ones the first stays.
func (m *matcher) insert(p pattern) {
	at := int32(0)
	for i := range len(p.text) {
		next := m.child(at, p.text[i])
		if next == 0 {
			next = int32(len(m.nodes))
			m.nodes, m.out = append(m.nodes, acNode{depth: int32(i + 1)}), append(m.out, 0)
			m.addChild(at, p.text[i], next)
		}
		at = next
	}
	if m.out[at] == 0 {
		m.out[at] = int32(len(m.pats))
		m.pats = append(m.pats, p)
	}
}

// child returns the state that c leads to, 0 if there is none.
func (m *matcher) child(at int32, c byte) int32 {
	n := &m.nodes[at]
	if n.rows {
		return m.rows[n.child][c]
	}
	if n.char == c {
		return n.child
	}
	return 0
}

func (m *matcher) addChild(at int32, c byte, next int32) {
	n := &m.nodes[at]
	if !n.rows && n.child == 0 {
		n.child, n.char = next, c
		return
	}
	if !n.rows {
		var row [256]int32
		row[n.char] = n.child
		n.rows, n.child = true, int32(len(m.rows))
		m.rows = append(m.rows, row)
	}
	m.rows[n.child][c] = next
}

// link sets the fail links, breadth first, and by them the next shorter pattern
// that ends where one does.
func (m *matcher) link() {
	queue := []int32{0}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		first, last := 0, 255
		if n := m.nodes[at]; !n.rows {
			first, last = int(n.char), int(n.char)
		}
		for c := first; c <= last; c++ {
			next := m.child(at, byte(c))
			if next == 0 {
				continue
			}
			queue = append(queue, next)
			n := &m.nodes[next]
			if at != 0 {
				n.fail = m.step(m.nodes[at].fail, byte(c))
			}
			if below := m.out[n.fail]; m.out[next] == 0 {
				m.out[next] = below
			} else {
				m.pats[m.out[next]].next = below
			}
			n.ends = m.out[next] != 0
		}
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

// quick skips what cannot begin a match, by the table of shifts of Wu and Manber
// (TR-94-17, Arizona) over three bytes, and a second one of the first four. It
// serves both matchers. In all, the time is linear in the text, whatever that is.
type quick struct {
	window int       // length of the shortest pattern, at most maxWindow; less than 4: it skips nothing
	shift  []uint8   // by hash of three bytes: how far on the first pattern can begin that has them in its window
	heads  []uint8   // by hash of four bytes: whose patterns can begin with them, a bit for each matcher
	used   [256]bool // bytes on either side of a line break that a loose match can go over
}

// The bits of the matchers.
const isPlain, isLoose = 1, 2

func newQuick(list ...*matcher) *quick {
	q := &quick{window: maxWindow, shift: make([]uint8, 1<<16), heads: make([]uint8, 1<<16)}
	for _, m := range list {
		for _, p := range m.pats[1:] {
			q.window = min(q.window, len(p.text))
		}
	}
	if q.window < 4 {
		return q
	}
	for i := range q.shift {
		q.shift[i] = uint8(q.window - 2)
	}
	q.used['\n'], q.used['\r'] = true, true
	for which, m := range list {
		var spelled [256]string
		for c, f := range m.fold {
			spelled[f] += string([]byte{byte(c)})
		}
		for _, p := range m.pats[1:] {
			for i := range q.window - 2 {
				for _, s := range spellings(p.text[i:i+3], &spelled) {
					h := hash3([]byte("_" + s))
					q.shift[h] = min(q.shift[h], uint8(q.window-3-i))
				}
			}
			for _, s := range spellings(p.text[:4], &spelled) {
				q.heads[hash4([]byte(s))] |= isPlain << which
			}
			for i := 0; i < len(p.text) && m.loose; i++ {
				for _, c := range []byte(spelled[p.text[i]]) {
					q.used[c] = true
				}
			}
		}
	}
	return q
}

// spellings returns the texts that an automaton takes as s.
func spellings(s string, spelled *[256]string) []string {
	all := []string{""}
	for i := range len(s) {
		var next []string
		for _, a := range all {
			for _, c := range []byte(spelled[s[i]]) {
				next = append(next, a+string([]byte{c}))
			}
		}
		all = next
	}
	return all
}

// hash3 is a hash of the last three of four bytes, hash4 of all four.
func hash3(b []byte) uint16 { return uint16(binary.LittleEndian.Uint32(b) >> 8 * 2654435761 >> 16) }
func hash4(b []byte) uint16 { return uint16(binary.LittleEndian.Uint32(b) * 2654435761 >> 16) }

// skip returns the first offset from at on where a match could begin, and for
// which matchers. brk is the first line break at or behind at, once known: a
// window that holds one is not judged by its end.
func (q *quick) skip(text []byte, at, brk int) (int, int, uint8) {
	last := q.window - 1
	for at+last < len(text) && last >= 3 {
		if brk > at+last {
			if s := q.shift[hash3(text[at+last-3:])]; s > 0 {
				at += int(s)
			} else if head := q.heads[hash4(text[at:])]; head != 0 {
				return at, brk, head
			} else {
				at++
			}
			continue
		}
		if brk < at {
			brk = nextBreak(text, at)
			continue
		}
		next := brk + 1
		if next < len(text) && text[next] == '\n' {
			next++
		}
		next = nextBreak(text, next)
		over := brk > at && q.used[text[brk-1]] && (brk+1 == len(text) || q.used[text[brk+1]])
		if over && next <= at+last {
			break // lines so short are not worth the trouble
		}
		for ; at <= brk && at+4 <= len(text); at++ {
			head := q.heads[hash4(text[at:])]
			if over && brk-at < 4 {
				head = head&isPlain | q.looseHead(text[at:], brk-at)
			}
			if head != 0 {
				return at, brk, head
			}
		}
		if at <= brk {
			break
		}
		brk = next
	}
	return at, brk, isPlain | isLoose
}

// looseHead is isLoose if a loose match could begin with these bytes, line
// breaks left out, of which the first is at brk.
func (q *quick) looseHead(text []byte, brk int) uint8 {
	var head [4]byte
	copy(head[:], text[:brk])
	for n := brk; n < 4; brk++ {
		if brk == len(text) || brk > 4+3*maxBreaks {
			return isLoose // the automaton knows
		}
		if c := text[brk]; c != '\n' && c != '\r' {
			head[n] = c
			n++
		}
	}
	return q.heads[hash4(head[:])] & isLoose
}

// nextBreak returns the offset of the first line break from at on.
func nextBreak(text []byte, at int) int {
	for at < len(text) {
		part := text[at:min(at+256, len(text))] // not all: the other byte may be far
		i := bytes.IndexByte(part, '\n')
		if i >= 0 {
			part = part[:i]
		}
		if j := bytes.IndexByte(part, '\r'); j >= 0 {
			i = j
		}
		if i >= 0 {
			return at + i
		}
		at += len(part)
	}
	return at
}

// A finding is what one matcher found in a text.
type finding struct {
	text         []byte
	prev         byte // before the text
	final        bool // the text is all there is
	found, marks []match
	safe         int // where the first match could begin that the text ends too early for
	next         int // no match begins before that is not found
}

// search looks for all patterns in the text of both findings.
func (set *redactSet) search(plain, loose *finding) {
	text := plain.text
	skips := set.quick.window >= 4
	var which uint8 // of the matchers
	for at, brk := 0, -1; at < len(text); at = min(plain.next, loose.next) {
		if at, brk, which = set.quick.skip(text, at, brk); at+set.quick.window > len(text) && plain.final && skips {
			return
		}
		upto := at
		if brk < at+set.quick.window {
			upto = at + 4*maxWindow
		}
		if plain.next <= at {
			if plain.next = at + 1; which&isPlain != 0 {
				set.plain.run(plain, at, upto, skips)
			}
		}
		if loose.next <= at {
			if loose.next = at + 1; which&isLoose != 0 {
				set.loose.run(loose, at, upto, skips)
			}
		}
	}
}

// run lets the automaton find what begins at from or later, at least as far as
// upto, until quick may go on at f.next.
func (m *matcher) run(f *finding, from, upto int, skips bool) {
	text, nodes, loose := f.text, m.nodes, m.loose
	state, breaks, last := int32(0), 0, -1 // line breaks in a row, and the latest
	for i := from; i < len(text); i++ {
		c := text[i]
		if loose {
			if c == '\n' || c == '\r' {
				if last, breaks = i, breaks+1; breaks > maxBreaks {
					state = 0
				}
				continue
			}
			breaks = 0
			c = m.fold[c]
		}
		n := &nodes[state]
		if n.char == c && !n.rows && n.child != 0 {
			state = n.child
		} else {
			state = m.step(state, c)
		}
		if n = &nodes[state]; n.ends {
			m.report(f, m.out[state], i+1, last)
		}
		if n.depth <= 1 && skips && i >= upto {
			if f.next = i + 1 - int(n.depth); f.next > from {
				return
			}
		}
	}
	for state != 0 && !nodes[state].rows && nodes[state].child == 0 {
		state = nodes[state].fail // nothing longer can come of it
	}
	f.safe = min(f.safe, m.startOf(text, len(text), int(nodes[state].depth), last))
	f.next = len(text)
}

// report adds the pattern that ends at end, or the longest of those that end it
// which counts there.
func (m *matcher) report(f *finding, out int32, end, last int) {
	for ; out != 0; out = m.pats[out].next {
		p := &m.pats[out]
		start := m.startOf(f.text, end, len(p.text), last)
		hit := match{start, end, p.secret, end - start}
		if p.secret < 0 {
			f.marks = addMatch(f.marks, hit)
			continue
		}
		if p.word {
			before, after := f.prev, byte(' ')
			if start > 0 {
				before = f.text[start-1]
			}
			if end < len(f.text) {
				after = f.text[end]
			} else if !f.final {
				f.safe = min(f.safe, start)
				continue
			}
			if isWord(before) || isWord(after) {
				continue
			}
		}
		f.found = addMatch(f.found, hit)
		return
	}
}

// startOf returns where the n bytes before end begin that are no line breaks in
// the loose sense; last is the latest line break, -1 if there was none.
func (m *matcher) startOf(text []byte, end, n, last int) int {
	if !m.loose || last < end-n {
		return end - n
	}
	for n > 0 {
		end--
		if c := text[end]; c != '\n' && c != '\r' {
			n--
		}
	}
	return end
}

// Filter takes secrets out of what is written to w. Close writes what was held
// back.
func (r *redactor) Filter(w io.Writer) io.WriteCloser { return &redactWriter{w, r.Stream()} }

type redactWriter struct {
	w  io.Writer
	st *redactStream
}

func (f *redactWriter) Write(p []byte) (int, error) {
	_, err := f.w.Write(f.st.Feed(p))
	return len(p), err
}

// Close implements io.Closer; it does not close what is written to.
func (f *redactWriter) Close() error {
	_, err := f.w.Write(f.st.End())
	return err
}
