package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A glob is a pattern over a whole value: "*" is any run of characters, "/" and
// line breaks included, "?" is one character, and all else is literal. It is
// not filepath.Match, in which "*" stops at "/" and a bad class is an error
// that is easily taken for "no match". Matching is linear in the value unless
// "?" is used, then at most value × pattern.
type glob struct {
	text  string
	parts []string // between the stars; one part means that there is no star
	wild  bool     // some part holds "?"
}

func compileGlob(pattern string) (glob, error) {
	if !utf8.ValidString(pattern) || strings.IndexByte(pattern, 0) >= 0 {
		return glob{}, fmt.Errorf("bad pattern %q: it can match no value", pattern)
	}
	return glob{pattern, strings.Split(pattern, "*"), strings.Contains(pattern, "?")}, nil
}

// plain reports whether the pattern has no wildcard.
func (g *glob) plain() bool { return len(g.parts) == 1 && !g.wild }

func (g *glob) match(s string) bool {
	first, last := g.parts[0], g.parts[len(g.parts)-1]
	if !g.wild { // the cheap cases first, since there may be many rules
		if len(first)+len(last) > len(s) && len(g.parts) > 1 || !strings.HasPrefix(s, first) {
			return false
		}
		if len(g.parts) <= 2 {
			return len(g.parts) == 1 && len(s) == len(first) || len(g.parts) == 2 && strings.HasSuffix(s, last)
		}
	}
	n := g.prefix(first, s)
	if n < 0 || len(g.parts) == 1 {
		return n == len(s)
	}
	s = s[n:]
	for _, part := range g.parts[1 : len(g.parts)-1] {
		if s = g.after(part, s); s == "\x00" {
			return false
		}
	}
	if !g.wild {
		return strings.HasSuffix(s, last)
	}
	i := len(s)
	for range utf8.RuneCountInString(last) {
		if i == 0 {
			return false
		}
		_, w := utf8.DecodeLastRuneInString(s[:i])
		i -= w
	}
	return g.prefix(last, s[i:]) == len(s)-i
}

// prefix returns how many bytes of s the part matches at its start, or -1.
func (g *glob) prefix(part, s string) int {
	if !g.wild {
		if strings.HasPrefix(s, part) {
			return len(part)
		}
		return -1
	}
	n := 0
	for _, r := range part {
		c, w := utf8.DecodeRuneInString(s[n:])
		if w == 0 || r != '?' && r != c {
			return -1
		}
		n += w
	}
	return n
}

// after returns what follows the first place in s that the part matches, or
// "\x00", which no value can be, if there is none.
func (g *glob) after(part, s string) string {
	if !g.wild {
		if i := strings.Index(s, part); i >= 0 {
			return s[i+len(part):]
		}
		return "\x00"
	}
	for i := range s {
		if n := g.prefix(part, s[i:]); n >= 0 {
			return s[i+n:]
		}
	}
	if part == "" {
		return s
	}
	return "\x00"
}
