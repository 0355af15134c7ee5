package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A glob is a pattern over a whole value: "*" is any run of characters, "/" and line breaks included, "?" is one
// character, and all else is literal. (In filepath.Match "*" stops at "/" and a bad class is taken for "no match".)
// Matching is linear in the value, unless "?" is used: then at most value × pattern.
type glob struct {
	text  string
	parts []string // what stands between the stars; nil without a wildcard
}

func compileGlob(pattern string) (glob, error) {
	if !utf8.ValidString(pattern) || strings.Contains(pattern, "\x00") {
		return glob{}, fmt.Errorf("bad pattern %q: it can match no value", pattern)
	}
	g := glob{text: pattern}
	if strings.ContainsAny(pattern, "*?") {
		g.parts = strings.Split(pattern, "*")
	}
	return g, nil
}

func (g *glob) match(s string) bool {
	last := len(g.parts) - 1
	if last < 0 {
		return s == g.text
	}
	n := prefix(g.parts[0], s)
	if n < 0 || last == 0 {
		return n == len(s)
	}
	s = s[n:]
	for _, part := range g.parts[1:last] {
		var ok bool
		if s, ok = cut(s, part); !ok {
			return false
		}
	}
	start := len(s)
	for range utf8.RuneCountInString(g.parts[last]) {
		_, w := utf8.DecodeLastRuneInString(s[:start])
		start -= w // 0 at the start: too short, and found so below
	}
	return prefix(g.parts[last], s[start:]) == len(s)-start
}

// cut returns what follows the first place in s that the part matches.
func cut(s, part string) (after string, ok bool) {
	if !strings.Contains(part, "?") {
		_, after, ok = strings.Cut(s, part)
		return after, ok
	}
	for i := range s {
		if n := prefix(part, s[i:]); n >= 0 {
			return s[i+n:], true
		}
	}
	return "", false
}

// prefix returns how many bytes of s the part matches at its start, or -1.
func prefix(part, s string) int {
	n := 0
	for i := range len(part) {
		switch {
		case n == len(s):
			return -1
		case part[i] == '?':
			_, w := utf8.DecodeRuneInString(s[n:])
			n += w
		case part[i] != s[n]:
			return -1
		default:
			n++
		}
	}
	return n
}
