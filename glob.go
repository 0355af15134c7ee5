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
	text        string
	first, last string   // before the first star and after the last
	parts       []string // between two stars
	star        bool     // else first is all
	wild        bool     // there is a "?"
}

func compileGlob(pattern string) (glob, error) {
	if !utf8.ValidString(pattern) || strings.IndexByte(pattern, 0) >= 0 {
		return glob{}, fmt.Errorf("bad pattern %q: it can match no value", pattern)
	}
	parts := strings.Split(pattern, "*")
	g := glob{text: pattern, first: parts[0], wild: strings.Contains(pattern, "?")}
	if n := len(parts) - 1; n > 0 {
		g.star, g.last, g.parts = true, parts[n], parts[1:n]
	}
	return g, nil
}

// plain reports whether the pattern has no wildcard.
func (g *glob) plain() bool { return !g.star && !g.wild }

func (g *glob) match(s string) bool {
	if !g.wild {
		if !g.star {
			return s == g.first
		}
		if len(s) < len(g.first)+len(g.last) || !strings.HasPrefix(s, g.first) || !strings.HasSuffix(s, g.last) {
			return false
		}
		s = s[len(g.first) : len(s)-len(g.last)]
		for _, part := range g.parts {
			i := strings.Index(s, part)
			if i < 0 {
				return false
			}
			s = s[i+len(part):]
		}
		return true
	}
	n := wildPrefix(g.first, s)
	if n < 0 || !g.star {
		return n == len(s)
	}
	s = s[n:]
	end := len(s)
	for range utf8.RuneCountInString(g.last) {
		_, w := utf8.DecodeLastRuneInString(s[:end])
		end -= w // 0 at the start: too short, and found so below
	}
	if wildPrefix(g.last, s[end:]) != len(s)-end {
		return false
	}
	s = s[:end]
next:
	for _, part := range g.parts {
		for {
			if n := wildPrefix(part, s); n >= 0 {
				s = s[n:]
				continue next
			}
			_, w := utf8.DecodeRuneInString(s)
			if w == 0 {
				return false
			}
			s = s[w:]
		}
	}
	return true
}

func (g *glob) matchAny(list []string) bool {
	for _, s := range list {
		if g.match(s) {
			return true
		}
	}
	return false
}

// wildPrefix returns how many bytes of s the part matches at its start, or -1.
func wildPrefix(part, s string) int {
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
