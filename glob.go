package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// A glob is a pattern over a whole value: "*" is any run of characters, "/" and line breaks included, "?" is one
// character, and all else is literal. (In filepath.Match "*" stops at "/" and a bad class is taken for "no match".)
type glob struct {
	text  string
	parts []string       // between the stars; one if there is none
	re    *regexp.Regexp // of a pattern with "?", else nil; the parts alone are much faster
}

func compileGlob(pattern string) (g glob, err error) {
	if !utf8.ValidString(pattern) || strings.Contains(pattern, "\x00") {
		return g, fmt.Errorf("bad pattern %q: it can match no value", pattern)
	}
	g = glob{text: pattern, parts: strings.Split(pattern, "*")}
	if strings.Contains(pattern, "?") {
		g.re, err = regexp.Compile("(?s)^" + strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(pattern)) + "$")
	}
	return g, err
}

// plain reports whether the pattern has no wildcard.
func (g *glob) plain() bool { return len(g.parts) == 1 && g.re == nil }

func (g *glob) match(s string) bool {
	last := len(g.parts) - 1
	switch {
	case g.re != nil:
		return g.re.MatchString(s)
	case last == 0:
		return s == g.text
	case len(s) < len(g.parts[0])+len(g.parts[last]), !strings.HasPrefix(s, g.parts[0]), !strings.HasSuffix(s, g.parts[last]):
		return false
	}
	s = s[len(g.parts[0]) : len(s)-len(g.parts[last])]
	for _, part := range g.parts[1:last] {
		_, after, ok := strings.Cut(s, part)
		if !ok {
			return false
		}
		s = after
	}
	return true
}
