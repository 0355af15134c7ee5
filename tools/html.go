package tools

import (
	"bytes"
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
	w := &textWriter{base: base, origin: base.origin(), out: make([]byte, 0, min(len(page)/2, limit)+64)}
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
			raw = w.start(z, false)
		case html.SelfClosingTagToken:
			raw = w.start(z, true)
		case html.EndTagToken:
			w.end(tagName(z.Raw()[1:]))
		}
	}
	return w.finish()
}

type textWriter struct {
	out    []byte
	base   URL
	origin string // of base

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

func (w *textWriter) finish() (title, text string) {
	w.closeLink()
	if w.pre {
		w.endPre()
	}
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
		c := b[i]
		if c <= ' ' {
			if w.pre && (c == '\n' || c == ' ' || c == '\t') {
				w.due()
				w.out = append(w.out, c)
			} else {
				w.space = true
			}
			i++
			continue
		}
		j := i
		for j < len(b) && b[j] < 0x7f && (b[j] > ' ' || b[j] == ' ' && j > i && j+1 < len(b) && b[j+1] > ' ' && b[j+1] < 0x7f) {
			j++ // words with single blanks between them
		}
		if j == i { // not ASCII, or DEL
			r, n := utf8.DecodeRune(b[i:])
			j += n
			if r == 0x7f || !w.keeps(r) {
				i = j
				continue
			}
			if r == utf8.RuneError && n == 1 { // else what is left out could join two halves
				w.due()
				w.out = append(w.out, "\ufffd"...)
				i = j
				continue
			}
			if unicode.IsSpace(r) && !w.pre {
				w.space = true
				i = j
				continue
			}
		} else {
			w.joiner = false
		}
		if w.breaks > 0 || w.space || len(w.link) > 0 {
			w.due()
		}
		w.out = append(w.out, b[i:j]...)
		i = j
	}
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
	inline layout = iota
	line          // begins a line
	paragraph
	heading
	list
	special   // its attributes matter
	unseen    // with all that it holds
	rawUnseen // and what it holds is one text
	void      // unseen, and holds nothing
)

func layoutOf(name []byte) layout {
	switch string(name) {
	case "a", "img", "ol", "base", "dialog":
		return special
	case "b", "i", "em", "strong", "span", "code", "br":
		return inline
	case "div", "section", "article", "header", "footer", "main", "aside", "nav", "form", "fieldset", "figure",
		"figcaption", "address", "dt", "dd", "tr", "li", "details", "summary", "option", "caption", "legend",
		"tbody", "thead", "tfoot", "body", "html", "center", "hgroup", "search", "select", "optgroup", "menu":
		return line
	case "p", "blockquote", "pre", "table", "dl", "hr":
		return paragraph
	case "h1", "h2", "h3", "h4", "h5", "h6":
		return heading
	case "ul":
		return list
	case "script", "style", "iframe", "noembed", "noframes":
		return rawUnseen
	case "noscript", "template", "svg", "object", "audio", "video", "canvas", "datalist":
		return unseen
	case "input", "meta", "link", "area", "col", "embed", "source", "track", "wbr", "param", "keygen":
		return void
	}
	return inline
}

// tagName returns the lower-case name at the start of a tag without its "<" or
// "</". The tokenizer's own method copies each name several times.
func tagName(tag []byte) []byte {
	if tag[0] == '/' {
		tag = tag[1:]
	}
	end, upper := 0, false
	for end < len(tag) && tag[end] > ' ' && tag[end] != '/' && tag[end] != '>' {
		upper = upper || tag[end] >= 'A' && tag[end] <= 'Z'
		end++
	}
	if upper {
		return bytes.ToLower(tag[:end])
	}
	return tag[:end]
}

// start takes a start tag in. It reports whether raw text follows that is not
// to be shown.
func (w *textWriter) start(z *html.Tokenizer, selfClosing bool) (raw bool) {
	tag := z.Raw()[1:]
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
	var a attributes
	if len(tag) > len(name)+1 {
		a.read(tag[len(name):])
	}
	if kind == unseen || a.hidden || string(name) == "dialog" && !a.open {
		w.enterHidden(name, selfClosing)
		return false
	}
	switch kind {
	case line:
		w.block(1)
		w.startLine(name)
	case paragraph:
		w.block(2)
		switch string(name) {
		case "pre":
			w.due()
			w.out = append(w.out, "```\n"...)
			w.pre = true
		case "hr":
			w.due()
			w.out = append(w.out, "---"...)
			w.block(2)
		}
	case heading:
		w.block(2)
		w.prefix = "######"[:name[1]-'0'] + " "
	case list:
		w.block(1)
		w.openList(-1)
	case inline:
		w.startInline(name)
	case special:
		w.startSpecial(name, &a)
	}
	return false
}

// attributes are those of a tag that matter.
type attributes struct {
	hidden, open     bool
	href, alt, start []byte
}

func (a *attributes) read(tag []byte) {
	for len(tag) > 1 { // the last byte is ">"
		var key, val []byte
		key, val, tag = nextAttribute(tag)
		switch len(key) {
		case 3:
			a.set(&a.alt, key, "alt", val)
		case 4:
			a.set(&a.href, key, "href", val)
			a.open = a.open || equalFold(key, "open")
		case 5:
			a.set(&a.start, key, "start", val)
			a.hidden = a.hidden || equalFold(key, "style") && hidingStyle(html.UnescapeString(string(val)))
		case 6:
			a.hidden = a.hidden || equalFold(key, "hidden")
		}
	}
}

func (a *attributes) set(field *[]byte, key []byte, name string, val []byte) {
	if *field == nil && equalFold(key, name) {
		if *field = val; bytes.IndexByte(val, '&') >= 0 {
			*field = []byte(html.UnescapeString(string(val)))
		}
	}
}

// equalFold compares with a lower-case name of the same length.
func equalFold(key []byte, name string) bool {
	return key[0]|0x20 == name[0] && strings.EqualFold(string(key), name)
}

// nextAttribute reads one attribute of a tag as the tokenizer does, whose own
// method copies each several times.
func nextAttribute(tag []byte) (key, val, rest []byte) {
	i := 0
	for i < len(tag) && (isBlank(tag[i]) || tag[i] == '/') {
		i++
	}
	start := i
	for i < len(tag) && !isBlank(tag[i]) && tag[i] != '/' && tag[i] != '>' && (tag[i] != '=' || i == start) {
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

func isBlank(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' }

func (w *textWriter) startSpecial(name []byte, a *attributes) {
	switch string(name) {
	case "a":
		w.closeLink()
		w.setLink(a.href)
	case "img":
		if len(a.alt) > 0 {
			w.text([]byte("[image: " + string(a.alt) + "]"))
		}
	case "ol":
		w.block(1)
		n, err := strconv.Atoi(string(a.start))
		if err != nil || n < 0 {
			n = 1
		}
		w.openList(n)
	case "base":
		if b, err := w.base.Resolve(string(a.href)); err == nil && len(a.href) > 0 {
			w.base, w.origin = b, b.origin()
		}
	}
}

func (w *textWriter) openList(number int) {
	if len(w.lists) < 8 {
		w.lists = append(w.lists, number)
	}
}

func (w *textWriter) startInline(name []byte) {
	switch string(name) {
	case "br":
		if w.pre {
			w.out = append(w.out, '\n')
		} else {
			w.breaks, w.space = max(w.breaks, 1), false
		}
	case "td", "th":
		if w.cells++; w.cells > 1 {
			w.space = true
			w.due()
			w.out = append(w.out, '|')
			w.space = true
		}
	case "title":
		w.inTitle = w.title == nil
	}
}

func (w *textWriter) startLine(name []byte) {
	switch string(name) {
	case "li":
		depth := len(w.lists)
		w.prefix = strings.Repeat("  ", max(depth-1, 0)) + "- "
		if depth > 0 && w.lists[depth-1] >= 0 {
			w.prefix = strings.Repeat("  ", depth-1) + strconv.Itoa(w.lists[depth-1]) + ". "
			w.lists[depth-1]++
		}
	case "tr":
		w.cells = 0
	}
}

func (w *textWriter) end(name []byte) {
	if len(w.hidden) > 0 {
		w.leaveHidden(name)
		return
	}
	switch layoutOf(name) {
	case line:
		w.block(1)
	case paragraph:
		if string(name) == "pre" && w.pre {
			w.endPre()
		}
		w.block(2)
	case heading:
		w.prefix = ""
		w.block(2)
	case list, special:
		switch string(name) {
		case "a":
			w.closeLink()
		case "ul", "ol":
			if len(w.lists) > 0 {
				w.lists = w.lists[:len(w.lists)-1]
			}
			w.block(2 - min(len(w.lists), 1))
		}
	case inline:
		if w.inTitle && string(name) == "title" {
			w.inTitle = false
		}
	}
}

func (w *textWriter) endPre() {
	w.pre = false
	if n := len(w.out); n > 0 && w.out[n-1] != '\n' {
		w.out = append(w.out, '\n')
	}
	w.out = append(w.out, "```"...)
}

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
	if plainRef(href) {
		if href[0] == '/' {
			w.link = append(append(w.link, w.origin...), href...)
			return
		}
		if bytes.HasPrefix(href, []byte("http://")) || bytes.HasPrefix(href, []byte("https://")) {
			w.link = append(w.link, href...)
			return
		}
	}
	if u, err := w.base.Resolve(strings.ReplaceAll(string(href), " ", "%20")); err == nil {
		w.link = append(w.link, u.String()...)
	}
}

// inRef are the characters of a reference that need no encoding.
var inRef = func() (t [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_~!$&*+,;=:?#./") {
		t[c] = true
	}
	return t
}()

// plainRef reports whether a reference needs no encoding and has no empty or
// dot segments but after its scheme.
func plainRef(ref []byte) bool {
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
	if _, ok := impliedEnd[w.hidden[0]]; ok && layoutOf(name) >= line && layoutOf(name) <= list && string(name) != "p" {
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
