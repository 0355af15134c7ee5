package tools

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// htmlText turns a page into text in the manner of Markdown: headings, lists,
// links, tables by rows, preformatted blocks. It reads tokens, builds no tree
// and takes time and memory linear in the page; the text ends once it is longer
// than limit bytes.
//
// Left out is what a reader would not see either: scripts, styles, comments,
// elements hidden by an attribute or an inline style, invisible characters. What
// a style sheet hides cannot be told and stays.
func htmlText(page []byte, base URL, limit int) (title, text string) {
	w := &textWriter{out: make([]byte, 0, min(len(page)*3/4, limit)+64)}
	w.setBase(base)
	z := html.NewTokenizer(bytes.NewReader(page))
	raw := false // the text that comes is a script or the like
	for len(w.out) <= limit {
		switch z.Next() {
		case html.ErrorToken: // the end, or a token longer than the page can be
			return w.finish()
		case html.TextToken:
			if len(w.hidden) == 0 && !raw {
				w.text(z.Text())
			}
			raw = false
		case html.StartTagToken:
			raw = w.start(z.Raw()[1:], false)
		case html.SelfClosingTagToken:
			raw = w.start(z.Raw()[1:], true)
		case html.EndTagToken:
			w.end(tagName(z.Raw()[2:]))
		}
	}
	return w.finish()
}

const maxLists = 8 // deeper ones are indented as this

type textWriter struct {
	out    []byte
	base   URL
	origin string // of base
	folder string // of base: what a relative reference is appended to

	breaks  int    // line breaks due before the next word
	space   bool   // a blank is due before the next word
	prefix  string // and this after the breaks: a heading or list mark
	pre     bool
	joiner  bool           // the last character was a zero-width joiner
	lists   []int          // open lists: the number of the next item, -1 without numbers
	cells   int            // cells so far in this row of a table
	link    []byte         // address of the open link
	opened  bool           // its bracket is written
	hidden  []string       // names of the open elements from the hidden one on
	count   map[string]int // how often each stands in hidden
	title   []byte
	inTitle bool
}

func (w *textWriter) setBase(u URL) {
	w.base, w.origin = u, u.origin()
	w.folder = w.origin + u.Path[:strings.LastIndexByte(u.Path, '/')+1]
}

func (w *textWriter) finish() (title, text string) {
	w.closeLink()
	w.endPre()
	return string(bytes.TrimSpace(w.title)), string(bytes.TrimSpace(w.out))
}

// due writes the white space and marks that stand before the next word.
func (w *textWriter) due() {
	if w.breaks > 0 {
		if len(w.out) > 0 {
			w.out = append(w.out, "\n\n"[:w.breaks]...)
		}
		w.out = append(w.out, w.prefix...)
	} else if w.space && len(w.out) > 0 {
		if c := w.out[len(w.out)-1]; c != ' ' && c != '\n' {
			w.out = append(w.out, ' ')
		}
	}
	w.breaks, w.space, w.prefix = 0, false, ""
	if len(w.link) > 0 && !w.opened {
		w.out = append(w.out, '[')
		w.opened = true
	}
}

func (w *textWriter) text(b []byte) {
	if w.inTitle {
		if len(w.title) < 1000 {
			w.title = append(w.title, cleanText(string(b[:min(len(b), 1000)]))...)
		}
		return
	}
	for i := 0; i < len(b); {
		if j := plainEnd(b, i); j > i {
			w.plain(b[i:j])
			i = j
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		i += n
		switch {
		case r <= ' ' && (!w.pre || r != '\n' && r != '\t' && r != ' '):
			w.space = true
		case !w.keeps(r):
		case unicode.IsSpace(r) && !w.pre:
			w.space = true
		default: // with U+FFFD for what is not UTF-8, or its bytes could be joined by what is left out
			w.due()
			w.out = utf8.AppendRune(w.out, r)
		}
	}
}

// plain takes in printable ASCII without two blanks in a row.
func (w *textWriter) plain(s []byte) {
	w.joiner = false
	if s[0] == ' ' && !w.pre {
		w.space = true
		if s = s[1:]; len(s) == 0 {
			return
		}
	}
	if w.breaks > 0 || w.space || len(w.link) > 0 {
		w.due()
	}
	if w.out = append(w.out, s...); s[len(s)-1] == ' ' && !w.pre {
		w.out, w.space = w.out[:len(w.out)-1], true
	}
}

// plainEnd returns the index of the first byte from i on that is not printable
// ASCII or is a blank before another. It looks at eight bytes at a time.
func plainEnd(b []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 < len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		del, blank := x^0x7f*ones, x^0x20*ones // have a zero byte where x has that character
		blank = (blank - ones) &^ blank & highs
		if (x|(x-0x20*ones)|(del-ones)&^del)&highs != 0 || blank&(blank>>8) != 0 || blank>>63 != 0 && b[i+8] == ' ' {
			break
		}
	}
	for i < len(b) && b[i] >= ' ' && b[i] < 0x7f && (b[i] != ' ' || i+1 == len(b) || b[i+1] != ' ') {
		i++
	}
	return i
}

func (w *textWriter) keeps(r rune) bool {
	ok := !invisible(r)
	if joiner := r == '\u200c' || r == '\u200d'; joiner && w.joiner {
		ok = false // a run of them spells something out in bits
	} else {
		w.joiner = joiner
	}
	return ok
}

// invisible reports whether a character shows nothing by itself and can carry
// hidden text or turn what is shown: controls, format and tag characters, bidi
// controls, fillers, and variation selectors but for the two that choose between
// text and picture. The joiners of Persian, Indic scripts and emoji are kept.
func invisible(r rune) bool {
	switch {
	case r < 0x7f:
		return r < ' ' && r != '\n' && r != '\t' && r != '\r'
	case r == '\u200c', r == '\u200d', r == '\ufe0e', r == '\ufe0f':
		return false
	case r >= 0xfe00 && r <= 0xfe0f, r >= 0xe0000 && r <= 0xe0fff,
		r == 0x034f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x3164, r == 0xffa0, r == 0x2800:
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// cleanText leaves invisible characters out of a text that is not HTML.
func cleanText(s string) string {
	w := textWriter{}
	return strings.Map(func(r rune) rune {
		if r < 0x7f {
			w.joiner = false
		}
		if r < 0x7f && r >= ' ' || w.keeps(r) {
			return r
		}
		return -1
	}, s)
}

func (w *textWriter) block(breaks int) {
	if w.pre {
		return
	}
	w.breaks, w.space = max(w.breaks, breaks), false
}

// How an element is laid out.
type layout uint8

const (
	inline    layout = iota
	line             // begins a line
	paragraph        // has a blank line around it
	unseen           // with all that it holds
	rawUnseen        // and what it holds is one text
	void             // unseen, and holds nothing
)

func layoutOf(name []byte) layout {
	switch string(name) {
	case "a", "b", "i", "em", "strong", "span", "code", "br", "img":
		return inline
	case "div", "section", "article", "header", "footer", "main", "aside", "nav", "form", "fieldset", "figure",
		"figcaption", "address", "dt", "dd", "tr", "li", "ul", "ol", "details", "summary", "option", "caption", "legend",
		"tbody", "thead", "tfoot", "body", "html", "center", "hgroup", "search", "select", "optgroup", "menu":
		return line
	case "p", "blockquote", "pre", "table", "dl", "hr", "h1", "h2", "h3", "h4", "h5", "h6":
		return paragraph
	case "script", "style", "iframe", "noembed", "noframes":
		return rawUnseen
	case "noscript", "template", "svg", "object", "audio", "video", "canvas", "datalist":
		return unseen
	case "input", "meta", "link", "area", "col", "embed", "source", "track", "wbr", "param", "keygen":
		return void
	}
	return inline
}

// start takes a start tag in. It reports whether raw text follows that is not
// to be shown.
func (w *textWriter) start(tag []byte, selfClosing bool) (raw bool) {
	name := tagName(tag)
	kind := layoutOf(name)
	if len(w.hidden) > 0 {
		if !w.endsHidden(name) {
			w.enterHidden(name, selfClosing)
			return kind == rawUnseen
		}
		w.hidden = w.hidden[:0]
	}
	if kind == rawUnseen {
		return true
	}
	a := readAttributes(tag[len(name):])
	if kind == unseen || a.hidden || string(name) == "dialog" && !a.open {
		w.enterHidden(name, selfClosing)
		return false
	}
	switch kind {
	case line:
		w.block(1)
	case paragraph:
		w.block(2)
	}
	w.mark(name, &a)
	return false
}

// mark writes, or makes due, what stands for the start of an element.
func (w *textWriter) mark(name []byte, a *attributes) {
	switch string(name) {
	case "a":
		w.closeLink()
		w.setLink(a.href)
	case "img":
		if len(a.alt) > 0 {
			w.text([]byte("[image: "))
			w.text(a.alt)
			w.text([]byte("]"))
		}
	case "br":
		if w.pre {
			w.out = append(w.out, '\n')
		} else {
			w.block(1)
		}
	case "h1", "h2", "h3", "h4", "h5", "h6":
		w.prefix = "###### "['6'-name[1]:]
	case "ul", "ol":
		number := -1
		if string(name) == "ol" {
			n, err := strconv.ParseUint(string(a.start), 10, 31)
			if number = int(n); err != nil {
				number = 1
			}
		}
		if len(w.lists) < maxLists {
			w.lists = append(w.lists, number)
		}
	case "li":
		const indent = "              - " // of the deepest list
		inner := max(len(w.lists)-1, 0)
		w.prefix = indent[2*(maxLists-1-inner):]
		if inner < len(w.lists) && w.lists[inner] >= 0 {
			w.prefix = indent[:2*inner] + strconv.Itoa(w.lists[inner]) + ". "
			w.lists[inner]++
		}
	case "tr":
		w.cells = 0
	case "td", "th":
		if w.cells++; w.cells > 1 {
			w.space = true
			w.due()
			w.out = append(w.out, '|')
			w.space = true
		}
	case "pre":
		w.due()
		w.out = append(w.out, "```\n"...)
		w.pre = true
	case "hr":
		w.due()
		w.out = append(w.out, "---"...)
		w.block(2)
	case "title":
		w.inTitle = w.title == nil
	case "base":
		if b, err := w.base.Resolve(string(a.href)); err == nil && len(a.href) > 0 {
			w.setBase(b)
		}
	}
}

func (w *textWriter) end(name []byte) {
	if len(w.hidden) > 0 {
		w.leaveHidden(name)
		return
	}
	kind := layoutOf(name)
	switch string(name) {
	case "a":
		w.closeLink()
	case "pre":
		w.endPre()
	case "ul", "ol":
		if w.lists = w.lists[:max(len(w.lists)-1, 0)]; len(w.lists) == 0 {
			kind = paragraph
		}
	case "title":
		w.inTitle = false
	}
	switch kind {
	case line:
		w.block(1)
	case paragraph:
		w.prefix = "" // of a heading without words
		w.block(2)
	}
}

func (w *textWriter) endPre() {
	if !w.pre {
		return
	}
	w.pre = false
	if n := len(w.out); n > 0 && w.out[n-1] != '\n' {
		w.out = append(w.out, '\n')
	}
	w.out = append(w.out, "```"...)
}

// tagName returns the lower-case name at the start of a tag without its "<" or
// "</". Here and below tags are read from their bytes, as the tokenizer's own
// methods copy each name and value several times.
func tagName(tag []byte) []byte {
	end := 0
	for end < len(tag) && tag[end] > ' ' && tag[end] != '/' && tag[end] != '>' {
		end++
	}
	return lower(tag[:end])
}

// lower returns an ASCII name in lower case, of the same length whatever it holds.
func lower(name []byte) []byte {
	if !slices.ContainsFunc(name, func(c byte) bool { return c >= 'A' && c <= 'Z' }) {
		return name
	}
	name = bytes.Clone(name)
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			name[i] = c | 0x20
		}
	}
	return name
}

// attributes are those of a tag that matter.
type attributes struct {
	hidden, open     bool
	href, alt, start []byte
}

func readAttributes(tag []byte) (a attributes) {
	for len(tag) > 1 { // the last byte is ">"
		var key, val []byte
		key, val, tag = nextAttribute(tag)
		switch string(lower(key)) {
		case "hidden":
			a.hidden = true
		case "style":
			a.hidden = a.hidden || hidingStyle(string(unescape(val)))
		case "open":
			a.open = true
		case "href":
			a.href = unescape(val)
		case "alt":
			a.alt = unescape(val)
		case "start":
			a.start = val
		}
	}
	return a
}

func unescape(val []byte) []byte {
	if bytes.IndexByte(val, '&') < 0 {
		return val
	}
	if bytes.Count(val, []byte("&")) == bytes.Count(val, []byte("&amp;")) {
		return bytes.ReplaceAll(val, []byte("&amp;"), []byte("&")) // by far the most common
	}
	return []byte(html.UnescapeString(string(val)))
}

// nextAttribute reads one attribute of a tag as the tokenizer does.
func nextAttribute(tag []byte) (key, val, rest []byte) {
	i := 0
	for i < len(tag) && (isBlank(tag[i]) || tag[i] == '/') {
		i++
	}
	start := i
	if i < len(tag) && tag[i] == '=' {
		i++ // is part of the name there
	}
	for i < len(tag) && inKey[tag[i]] {
		i++
	}
	key = tag[start:i]
	for i < len(tag) && isBlank(tag[i]) {
		i++
	}
	if i == len(tag) || tag[i] != '=' {
		if i == start {
			i++ // the end of the tag
		}
		return key, nil, tag[min(i, len(tag)):]
	}
	for i++; i < len(tag) && isBlank(tag[i]); i++ {
	}
	if i == len(tag) {
		return key, nil, nil
	}
	if quote := tag[i]; quote == '"' || quote == '\'' {
		end := bytes.IndexByte(tag[i+1:], quote)
		if end < 0 {
			return key, tag[i+1:], nil
		}
		return key, tag[i+1 : i+1+end], tag[i+end+2:]
	}
	start = i
	for i < len(tag) && !isBlank(tag[i]) && tag[i] != '>' {
		i++
	}
	return key, tag[start:i], tag[i:]
}

// inKey are the characters of an attribute's name.
var inKey = func() (set [256]bool) {
	for c := range set {
		set[c] = !isBlank(byte(c)) && c != '/' && c != '>' && c != '='
	}
	return set
}()

func isBlank(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' }

func (w *textWriter) closeLink() {
	if w.opened {
		w.out = append(w.out, "]("...)
		w.out = append(w.out, w.link...)
		w.out = append(w.out, ')')
	}
	w.link, w.opened = w.link[:0], false
}

// setLink makes the target of a link absolute, so that it can be fetched as it
// stands in the text. What is no page gives no link.
func (w *textWriter) setLink(href []byte) {
	href = bytes.TrimSpace(href)
	if len(href) == 0 || href[0] == '#' || len(href) > 2000 {
		return
	}
	from, rest := w.folder, href
	for bytes.HasPrefix(rest, []byte("../")) {
		rest = rest[3:]
		if len(from) > len(w.origin)+1 {
			from = from[:strings.LastIndexByte(from[:len(from)-1], '/')+1]
		}
	}
	switch {
	case !plainRef(rest):
	case bytes.HasPrefix(href, []byte("http://")) || bytes.HasPrefix(href, []byte("https://")):
		w.link = append(w.link, href...)
		return
	case href[0] == '/':
		w.link = append(append(w.link, w.origin...), href...)
		return
	case rest[0] != '?' && bytes.IndexByte(rest, ':') < 0:
		w.link = append(append(w.link, from...), rest...)
		return
	}
	if u, err := w.base.Resolve(strings.ReplaceAll(string(href), " ", "%20")); err == nil {
		w.link = append(w.link, u.String()...)
	}
}

// inRef are the characters of a reference that need no encoding.
var inRef = func() (set [256]bool) {
	for c := byte('!'); c < 0x7f; c++ {
		set[c] = strings.IndexByte("\"'()<>@[\\]^`{|}", c) < 0
	}
	return set
}()

// plainRef reports whether a reference needs no encoding and has no empty or
// dot segments but after its scheme. Most are such, and ParseURL takes its time.
func plainRef(ref []byte) bool {
	if len(ref) == 0 || ref[0] == '.' || ref[0] == '#' {
		return false
	}
	for i, c := range ref {
		if !inRef[c] || i > 0 && ref[i-1] == '/' && (c == '.' || c == '/' && (i < 5 || i > 7 || ref[i-2] != ':')) {
			return false
		}
	}
	return true
}

// Elements whose end tag may be left out, and the start tags that end them then
// (HTML Standard, 13.1.2.4).
var impliedEnd = map[string]string{
	"li": " li ", "dt": " dt dd ", "dd": " dt dd ", "option": " option optgroup ", "tr": " tr tbody tfoot ",
	"td": " td th tr tbody tfoot ", "th": " td th tr tbody tfoot ",
	"p": " address article aside blockquote details div dl fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6" +
		" header hr main menu nav ol p pre search section table ul ",
}

// listings open a new level, in which such a start tag ends nothing outside.
var listings = []string{"ul", "ol", "dl", "table", "select", "menu"}

// endsHidden reports whether a start tag implies the end of the hidden element.
func (w *textWriter) endsHidden(name []byte) bool {
	ends, ok := impliedEnd[w.hidden[0]]
	return ok && strings.Contains(ends, " "+string(name)+" ") &&
		!slices.ContainsFunc(listings, func(s string) bool { return w.count[s] > 0 })
}

func (w *textWriter) enterHidden(name []byte, selfClosing bool) {
	switch s := string(name); {
	case layoutOf(name) == void, s == "br", s == "img", s == "hr", s == "base", s == "svg" && selfClosing:
	default:
		if w.count == nil {
			w.count = map[string]int{}
		} else if len(w.hidden) == 0 {
			clear(w.count)
		}
		w.hidden = append(w.hidden, s)
		w.count[s]++
	}
}

func (w *textWriter) leaveHidden(name []byte) {
	if w.count[string(name)] > 0 {
		for {
			last := w.hidden[len(w.hidden)-1]
			w.hidden = w.hidden[:len(w.hidden)-1]
			if w.count[last]--; last == string(name) {
				return
			}
		}
	}
	// The end of an element around it ends one whose own end tag is optional.
	// Otherwise browsers ignore an end tag that fits nothing, and so does this.
	if _, ok := impliedEnd[w.hidden[0]]; ok && (layoutOf(name) == line || layoutOf(name) == paragraph) && string(name) != "p" {
		w.hidden = w.hidden[:0]
		w.end(name)
	}
}

// hidingStyle reports whether an inline style keeps an element from being seen:
// not shown, transparent, without size, off the page, or in the colour of its
// background.
func hidingStyle(css string) bool {
	var color, background string
	var flat, clipped bool
	for decl := range strings.SplitSeq(strings.ToLower(css), ";") {
		prop, val, _ := strings.Cut(decl, ":")
		val = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(val), "!important"))
		num, isNum := leadingNumber(val)
		switch strings.TrimSpace(prop) {
		case "display":
			if val == "none" {
				return true
			}
		case "visibility", "content-visibility":
			if val == "hidden" || val == "collapse" {
				return true
			}
		case "opacity":
			if isNum && num < 0.1 {
				return true
			}
		case "font-size":
			if isNum && num < 2 && (strings.HasSuffix(val, "px") || strings.HasSuffix(val, "pt") || num == 0) {
				return true
			}
		case "text-indent", "left", "top", "right", "bottom", "margin-left", "margin-top":
			if isNum && num <= -900 {
				return true
			}
		case "clip":
			if strings.HasPrefix(strings.ReplaceAll(val, " ", ""), "rect(0") {
				return true
			}
		case "width", "height", "max-height", "max-width":
			flat = flat || isNum && num <= 1 && !strings.HasSuffix(val, "em") && !strings.HasSuffix(val, "fr")
		case "overflow", "overflow-y", "overflow-x":
			clipped = clipped || val == "hidden" || val == "clip"
		case "color":
			color = val
		case "background", "background-color":
			background = val
		}
	}
	return flat && clipped || color == "transparent" || color != "" && color == background
}

func leadingNumber(s string) (float64, bool) {
	end := 0
	for end < len(s) && (s[end] >= '0' && s[end] <= '9' || s[end] == '.' || s[end] == '-' && end == 0) {
		end++
	}
	f, err := strconv.ParseFloat(s[:end], 64)
	return f, err == nil
}
