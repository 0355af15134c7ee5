package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Text of models, tools and others is shown only through this file. Whatever
// does not show as itself is written as a visible escape, such as \u{200b}:
// control characters, everything of the Unicode categories "other" (C) and
// "separator" (Z), code points that are ignored by default (UAX #44), marks
// that have nothing to stand on or pile up, and bytes that are not UTF-8.

// Runs of blanks longer than this are counted instead of shown, and of marks on
// one letter escaped.
const (
	maxBlanks = 16
	maxMarks  = 4
)

// printable makes a text safe to show on one line. Showing what it returns
// again changes nothing.
func printable(s string) string {
	var p printer
	return string(p.append(nil, []byte(s), true))
}

// printableText does the same but keeps line ends, tabs and what ordinary prose
// in any script is made of.
func printableText(s string) string {
	p := printer{prose: true}
	return string(p.append(nil, []byte(s), true))
}

// printer is printable for a text that comes in pieces: what it gives out does
// not depend on how the text was cut.
type printer struct {
	prose  bool
	held   []byte // the start of a rune or line end that is not complete
	last   rune   // what was shown last, 0 at the start
	marks  int    // marks shown since the last base
	blanks int    // blanks not yet shown
}

// append adds the safe form of the next piece to dst; final ends the text.
func (p *printer) append(dst, piece []byte, final bool) []byte {
	if len(p.held) > 0 {
		piece = append(p.held, piece...)
		p.held = nil
	}
	for len(piece) > 0 {
		if !final && (!utf8.FullRune(piece) || p.prose && len(piece) == 1 && piece[0] == '\r') {
			p.held = append([]byte(nil), piece...)
			break
		}
		r, n := utf8.DecodeRune(piece)
		if !p.prose && r == ' ' {
			p.blanks++
			piece = piece[1:]
			continue
		}
		dst = p.flushBlanks(dst)
		switch {
		case p.prose && r == '\r' && len(piece) > 1 && piece[1] == '\n':
			// the line end that follows says it
		case r == utf8.RuneError && n == 1:
			dst = p.escape(dst, `\x%02x`, rune(piece[0]))
		case p.shows(r):
			if p.last = r; unicode.In(r, unicode.Mn, unicode.Me) {
				p.marks++
			} else {
				p.marks = 0
			}
			dst = append(dst, piece[:n]...)
		case r == '\n' || r == '\r' || r == '\t':
			dst = p.escape(dst, `\%c`, map[rune]rune{'\n': 'n', '\r': 'r', '\t': 't'}[r])
		default:
			dst = p.escape(dst, `\u{%x}`, r)
		}
		piece = piece[n:]
	}
	if final {
		dst = p.flushBlanks(dst)
		*p = printer{prose: p.prose}
	}
	return dst
}

func (p *printer) escape(dst []byte, format string, r rune) []byte {
	p.last, p.marks = '}', 0
	return fmt.Appendf(dst, format, r)
}

func (p *printer) flushBlanks(dst []byte) []byte {
	switch {
	case p.blanks > maxBlanks:
		dst = fmt.Appendf(dst, " [%d blanks] ", p.blanks)
	default:
		dst = append(dst, strings.Repeat(" ", p.blanks)...)
	}
	if p.blanks > 0 {
		p.last, p.marks, p.blanks = ' ', 0, 0
	}
	return dst
}

// shows reports whether r is seen as itself after what was shown last.
func (p *printer) shows(r rune) bool {
	if r < 0x7f {
		return r >= ' ' || p.prose && (r == '\n' || r == '\t')
	}
	onEmoji := p.last > 0x7f && unicode.In(p.last, unicode.So, unicode.Sk)
	switch {
	case r == 0xfe0e || r == 0xfe0f: // shapes a symbol
		return onEmoji || p.prose && strings.ContainsRune("0123456789#*‼⁉", p.last)
	case unicode.In(r, unicode.Variation_Selector):
		return false
	case r == 0x200c || r == 0x200d: // joins emoji, and letters of scripts that join
		return p.prose && (onEmoji || p.last == 0xfe0f ||
			p.last >= 0x600 && unicode.In(p.last, unicode.L, unicode.M) && !unicode.In(p.last, unicode.Variation_Selector))
	case r == 0x2800 || r == 0x1d159 || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point):
		return false // drawn as nothing
	case unicode.In(r, unicode.Mn, unicode.Me):
		return p.last > ' ' && p.marks < maxMarks
	case unicode.In(r, unicode.Zs):
		return p.prose
	}
	return unicode.IsPrint(r)
}

// hostShown is how a host is shown to the owner: what is compared and looked up
// first, and what it stands for beside it where that differs.
func hostShown(host string) string {
	name, port := host, ""
	if i := strings.IndexByte(host, ':'); i > 0 {
		name, port = host[:i], host[i:]
	}
	ascii := name
	if a, err := idna.Lookup.ToASCII(name); err == nil && !strings.Contains(name, "xn--") && !strings.Contains(name, "_") {
		ascii = a
	}
	if wide, err := idna.Punycode.ToUnicode(ascii); err == nil && wide != ascii {
		return printable(ascii + port + " (" + wide + ")")
	}
	return printable(ascii + port)
}
