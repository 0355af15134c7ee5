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
// links, tables by rows, preformatted blocks. It reads tokens and builds no tree,
// in time and memory linear in the page; it ends with the token in which the text
// grows longer than limit bytes.
//
// Left out is what a reader would not see either: scripts, comments, elements
// hidden by an attribute or an inline style, invisible characters. What a style
// sheet hides cannot be told and stays.
func htmlText(page []byte, base URL, limit int) (title, text string) {
	w := &textWriter{base: base, out: make([]byte, 0, min(len(page)*3/4, limit)+64)}
	z := html.NewTokenizer(bytes.NewReader(page))
	for len(w.out) <= limit {
		kind := z.Next()
		if kind == html.ErrorToken { // the end
			break
		}
		switch kind {
		case html.TextToken:
			if w.hidden == "" {
				w.text(z.Text())
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			name := tagName(z.Raw()[1:])
			if string(name) == "title" && title == "" && w.hidden == "" {
				if z.Next() == html.TextToken {
					text := z.Text()
					title = strings.TrimSpace(cleanText(string(text[:min(len(text), 1000)])))
				}
				continue
			}
			w.start(z, name, kind == html.SelfClosingTagToken)
		case html.EndTagToken:
			w.end(tagName(z.Raw()[2:]))
		}
	}
	w.closeLink()
	w.endPre()
	return title, string(bytes.TrimSpace(w.out))
}

// tagName returns the name at the start of a tag, made lower-case in place. The
// tokenizer's own method copies it.
func tagName(tag []byte) []byte {
	for i, c := range tag {
		if c <= ' ' || c == '/' || c == '>' {
			return tag[:i]
		}
		if c >= 'A' && c <= 'Z' {
			tag[i] = c | 0x20
		}
	}
	return tag
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

// appendVisible leaves out invisible characters, and joiners after another: a run
// of them spells something out in bits.
func appendVisible(out []byte, r rune) []byte {
	joiner := r == '\u200c' || r == '\u200d'
	if invisible(r) || joiner && (bytes.HasSuffix(out, []byte("\u200c")) || bytes.HasSuffix(out, []byte("\u200d"))) {
		return out
	}
	return utf8.AppendRune(out, r)
}

// cleanText leaves invisible characters out of a text that is not HTML.
func cleanText(s string) string {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		out = appendVisible(out, r)
	}
	return string(out)
}

const maxLink = 2000 // bytes

type textWriter struct {
	out  []byte
	base URL

	breaks int    // line breaks due before the next word
	space  bool   // a blank is due before the next word
	prefix string // and this after the breaks: a heading or list mark
	pre    bool
	lists  []int  // open lists: the number of the next item, 0 without numbers
	cells  int    // cells so far in this row of a table
	link   string // address of the open link
	opened bool   // its bracket is written
	hidden string // name of the open element that is hidden; "" if none is
	depth  int    // open elements in it that keep a tag from being its end
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
	if w.link != "" && !w.opened {
		w.out = append(w.out, '[')
		w.opened = true
	}
}

func (w *textWriter) text(b []byte) {
	for i := 0; i < len(b); {
		start, c := i, b[i] // a run of ASCII: with all white space where it is kept, else of words with one blank between
		if w.pre {
			for i < len(b) && b[i] < 0x7f && (b[i] >= ' ' || b[i] == '\n' || b[i] == '\t') {
				i++
			}
		} else if c > ' ' {
			for i < len(b) && b[i] < 0x7f && (b[i] > ' ' || b[i] == ' ' && b[i-1] != ' ') {
				i++
			}
		}
		switch {
		case i > start:
			w.due()
			if w.out = append(w.out, b[start:i]...); b[i-1] == ' ' && !w.pre {
				w.out, w.space = w.out[:len(w.out)-1], true
			}
		case c <= ' ':
			w.space = true
			i++
		default: // U+FFFD for what is not UTF-8: its bytes could join across what is left out
			r, n := utf8.DecodeRune(b[i:])
			i += n
			if invisible(r) {
				continue
			}
			if !w.pre && unicode.IsSpace(r) {
				w.space = true
				continue
			}
			w.due()
			w.out = appendVisible(w.out, r)
		}
	}
}

// How an element is laid out: the line breaks around it, or one of the others.
type layout int

const (
	inline    layout = iota
	line             // begins a line
	paragraph        // has a blank line around it
	void             // holds nothing
	unseen           // with all that it holds
)

func layoutOf(name []byte) layout {
	switch string(name) {
	case "a", "b", "i", "em", "strong", "span", "code", "td", "th":
		return inline
	case "div", "section", "article", "header", "footer", "main", "aside", "nav", "form", "fieldset", "figure",
		"figcaption", "address", "dt", "dd", "tr", "li", "ul", "ol", "details", "summary", "option", "caption", "legend",
		"tbody", "thead", "tfoot", "body", "html", "center", "hgroup", "search", "select", "optgroup", "menu":
		return line
	case "p", "blockquote", "pre", "table", "dl", "h1", "h2", "h3", "h4", "h5", "h6":
		return paragraph
	case "br", "img", "hr", "base", "input", "meta", "link", "area", "col", "embed", "source", "track", "wbr", "param", "keygen":
		return void
	case "script", "style", "iframe", "noembed", "noframes", "noscript", "template", "svg", "object", "audio", "video", "canvas", "datalist":
		return unseen
	}
	return inline
}

// block makes the breaks around a block due.
func (w *textWriter) block(l layout) {
	if (l == line || l == paragraph) && !w.pre {
		w.breaks, w.space = max(w.breaks, int(l)), false
	}
}

// attributes are those of a tag that matter.
type attributes struct {
	hidden, open bool
	href, alt    string
}

// readAttributes reads those of a tag, and no more than it must: the tokenizer
// takes its time to hand them out.
func readAttributes(z *html.Tokenizer, name string) (a attributes) {
	tag := z.Raw()
	hides := bytes.Contains(tag, []byte("hidden")) || bytes.Contains(tag, []byte("style")) || bytes.ContainsAny(tag, "HIDENSTYL")
	for more := hides || name == "a" || name == "img" || name == "base" || name == "dialog"; more && (hides || a.href == "" || name != "a"); {
		var key, val []byte
		key, val, more = z.TagAttr()
		switch string(key) {
		case "hidden":
			a.hidden = true
		case "style":
			a.hidden = a.hidden || hidingStyle(string(val))
		case "open":
			a.open = true
		case "href":
			a.href = string(bytes.TrimSpace(val))
		case "alt":
			a.alt = string(val)
		}
	}
	return a
}

func (w *textWriter) start(z *html.Tokenizer, name []byte, selfClosing bool) {
	kind := layoutOf(name)
	empty := kind == void || selfClosing && string(name) == "svg"
	if w.hidden != "" {
		by, _ := impliedEnd(w.hidden)
		if w.depth > 0 || !lists(by, string(name)) && !(w.hidden == "p" && (kind == line || kind == paragraph)) {
			if !empty && w.nests(name, kind) {
				w.depth++
			}
			return
		}
		w.hidden = ""
	}
	var a attributes
	if len(z.Raw()) > len(name)+2 {
		a = readAttributes(z, string(name))
	}
	if kind == unseen || a.hidden || string(name) == "dialog" && !a.open {
		if !empty {
			w.hidden = string(name)
		}
		return
	}
	w.block(kind)
	switch string(name) {
	case "a":
		w.closeLink()
		w.setLink(a.href)
	case "base":
		if u, err := w.base.Resolve(a.href); err == nil && len(a.href) < maxLink {
			w.base = u
		}
	case "br":
		if w.pre {
			w.out = append(w.out, '\n')
		}
		w.block(line)
	case "h1", "h2", "h3", "h4", "h5", "h6":
		w.prefix = "###### "['6'-name[1]:]
	case "hr":
		w.block(paragraph)
		w.text([]byte("---"))
		w.block(paragraph)
	case "img":
		if a.alt != "" {
			w.text([]byte("[image: " + a.alt + "]"))
		}
	case "li":
		w.prefix = "- "
		if in := len(w.lists) - 1; in >= 0 {
			if w.lists[in] > 0 {
				w.prefix = strconv.Itoa(w.lists[in]) + ". "
				w.lists[in]++
			}
			w.prefix = strings.Repeat("  ", min(in, 8)) + w.prefix
		}
	case "ol":
		w.lists = append(w.lists, 1)
	case "ul":
		w.lists = append(w.lists, 0)
	case "pre":
		w.due()
		w.out = append(w.out, "```\n"...)
		w.pre = true
	case "td", "th":
		if w.cells++; w.cells > 1 {
			w.text([]byte(" | "))
		}
	case "tr":
		w.cells = 0
	}
}

func (w *textWriter) end(name []byte) {
	kind := layoutOf(name)
	if w.hidden != "" {
		_, optional := impliedEnd(w.hidden)
		switch {
		case w.depth > 0 && w.nests(name, kind):
			w.depth--
			return
		case w.depth == 0 && string(name) == w.hidden:
			w.hidden = ""
			return
		case w.depth > 0 || !optional || kind != line && kind != paragraph || string(name) == "p":
			return
		}
		w.hidden = "" // by the end of what is around it
	}
	switch string(name) {
	case "a":
		w.closeLink()
	case "pre":
		w.endPre()
	case "ul", "ol":
		if w.lists = w.lists[:max(len(w.lists)-1, 0)]; len(w.lists) == 0 {
			kind = paragraph
		}
	}
	if kind == paragraph {
		w.prefix = "" // of a heading without words
	}
	w.block(kind)
}

// nests reports whether tags of this name open and close a level in the hidden
// element: its own name, or, where its end tag may be left out, any block whose
// may not.
func (w *textWriter) nests(name []byte, kind layout) bool {
	if _, optional := impliedEnd(w.hidden); !optional {
		return string(name) == w.hidden
	}
	_, optional := impliedEnd(string(name))
	return !optional && (kind == line || kind == paragraph)
}

// impliedEnd tells of an element whether its end tag may be left out, and which
// start tags then end it (HTML Standard, 13.1.2.4). A paragraph ends at any block.
func impliedEnd(name string) (by string, optional bool) {
	switch name {
	case "p":
		by = "td th hr"
	case "li":
		by = "li"
	case "dt", "dd":
		by = "dt dd"
	case "option", "optgroup":
		by = "option optgroup"
	case "td", "th":
		by = "td th tr tbody tfoot"
	case "tr":
		by = "tr tbody tfoot"
	case "thead", "tbody", "tfoot":
		by = "tbody tfoot"
	}
	return by, by != ""
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

func (w *textWriter) closeLink() {
	if w.opened {
		w.out = append(w.out, "]("+w.link+")"...)
	}
	w.link, w.opened = "", false
}

// setLink makes the target of a link absolute, so that it can be fetched as it
// stands in the text. What is no page gives no link.
func (w *textWriter) setLink(href string) {
	if href == "" || href[0] == '#' || len(href) > maxLink {
		return
	}
	if u, err := w.base.Resolve(strings.ReplaceAll(href, " ", "%20")); err == nil {
		w.link = u.String()
	}
}

// hidingStyle reports whether an inline style keeps an element from being seen:
// not shown, transparent, without size, off the page, or in the colour of its
// background.
func hidingStyle(css string) bool {
	style := map[string]string{}
	for declaration := range strings.SplitSeq(strings.ToLower(css), ";") {
		prop, val, _ := strings.Cut(declaration, ":")
		style[strings.TrimSpace(prop)] = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(val), "!important"))
	}
	is := func(values string, props ...string) bool {
		return slices.ContainsFunc(props, func(p string) bool { return style[p] != "" && strings.Contains(values, " "+style[p]+" ") })
	}
	atMost := func(limit float64, props ...string) bool { // in pixels, or of zero in any unit
		return slices.ContainsFunc(props, func(p string) bool {
			number := strings.TrimRight(style[p], "abcdefghijklmnopqrstuvwxyz% ")
			n, err := strconv.ParseFloat(number, 64)
			unit := style[p][len(number):]
			return err == nil && n <= limit && (n <= 0 || unit == "" || unit == "px" || unit == "pt")
		})
	}
	color := style["color"]
	return is(" none ", "display") || is(" hidden collapse ", "visibility", "content-visibility") ||
		atMost(0.09, "opacity") || atMost(1.9, "font-size") ||
		atMost(-900, "text-indent", "left", "top", "right", "bottom", "margin-left", "margin-top") ||
		strings.HasPrefix(strings.ReplaceAll(style["clip"], " ", ""), "rect(0") ||
		atMost(1, "width", "height", "max-width", "max-height") && is(" hidden clip ", "overflow", "overflow-x", "overflow-y") ||
		color == "transparent" || color != "" && (color == style["background"] || color == style["background-color"])
}
