package tools

import (
	"math"
	"runtime"
	"strings"
)

// A wordState is what is known of the word being read.
type wordState struct {
	base   int // where its text starts in shellParser.buf
	prefix int // bytes of text before the first expansion, -1 if there is none yet
	brace  int // bytes of text up to and with the first {
	events int // expansions
	fields bool
	open   bool   // a field may begin with something other than the prefix
	number bool   // the last expansion is a number
	name   string // of the variable, if the last expansion is one
}

// expand records that something begins here that is not constant.
func (p *shellParser) expand(s *wordState, split bool) {
	if s.prefix < 0 {
		s.prefix = len(p.buf) - s.base
	}
	s.events++
	s.name, s.number = "", false
	s.fields, s.open = s.fields || split, s.open || split
}

// wordEnds reports whether no word can start or go on at pos. What follows a
// line continuation is no part of it, see blanks.
func (p *shellParser) wordEnds() bool {
	return endsWord(p.at()) || p.at() == '\\' && p.ahead(1) == '\n'
}

// word reads one word; it is empty where none stands. The value of an assignment
// is not split, and patterns and braces mean nothing in it.
func (p *shellParser) word(value bool) Word {
	start := p.pos
	s := wordState{base: len(p.buf), prefix: -1}
	for ; !p.wordEnds(); p.pos++ {
		c := p.src[p.pos]
		switch c {
		case '\'':
			text, _, ok := strings.Cut(p.src[p.pos+1:], "'")
			if !ok {
				p.stop("quote without end")
			}
			p.lines(text)
			for i := 0; p.places != nil && i < len(text); i++ {
				if text[i] == secretByte {
					p.place(p.pos+1+i, c)
				}
			}
			p.buf = append(p.buf, text...)
			p.pos += len(text) + 1
			continue
		case '"':
			p.pos++
			open := p.pos
			if p.quoted(&s, c, "$`\"\\"); p.at() != c {
				p.pos = open
				p.stop("quote without end")
			}
			p.lines(p.src[open:p.pos])
			continue
		case '\\':
			if p.pos++; p.pos == len(p.src) {
				p.stop("backslash at the end")
			}
			c = p.src[p.pos]
		case '$':
			p.dollar(&s, 0)
			p.pos--
			continue
		case '`':
			p.backquote(&s, true)
			continue
		case '~':
			if p.pos == start || !isNameByte(p.src[p.pos-1], false) && strings.IndexByte("./-", p.src[p.pos-1]) < 0 {
				p.expand(&s, false)
			}
		case '*', '?', '[':
			if alone := p.pos == start && endsWord(p.ahead(1)); !value && (c != '[' || !alone) {
				s.pattern(len(p.buf) - s.base)
			}
		case '{':
			if s.brace == 0 {
				s.brace = len(p.buf) - s.base + 1
			}
		case secretByte:
			p.place(p.pos, 0)
		}
		p.buf = append(p.buf, c)
	}
	raw := p.src[start:p.pos]
	if s.brace > 0 && !value && (strings.Contains(raw, ",") || strings.Contains(raw, "..")) { // bash may expand them
		if strings.ContainsAny(raw, "$`") {
			p.stop("braces around an expansion")
		}
		s.pattern(s.brace - 1)
	}
	return p.finish(raw, &s, value)
}

// pattern records that fields may differ after so many bytes of text.
func (s *wordState) pattern(at int) {
	s.fields = true
	if s.prefix < 0 || at < s.prefix {
		s.prefix = at
	}
}

// finish makes the word whose text has been collected.
func (p *shellParser) finish(raw string, s *wordState, single bool) Word {
	w, text := Word{Raw: raw}, p.buf[s.base:]
	p.buf = p.buf[:s.base]
	if s.prefix < 0 {
		w.Const, w.Text = true, raw
		if string(text) != raw {
			w.Text = string(text)
		}
		w.number = isNumber(w.Text)
		return w
	}
	w.Fields = s.fields && !single
	if !s.open || single {
		w.Prefix = string(text[:s.prefix])
	}
	if s.events == 1 && len(text) == 0 {
		w.Var, w.number = s.name, s.number
	}
	return w
}

// isNumber reports whether s is a decimal number, such as arithmetic evaluates
// to itself.
func isNumber(s string) bool {
	s, _ = strings.CutPrefix(s, "-")
	return s != "" && isDigit(s[0]) && strings.Trim(s, "0123456789") == ""
}

// lines checks text that may hold line ends and is part of a token: shells do not
// agree on where a here-document before it starts.
func (p *shellParser) lines(text string) {
	if (len(p.pending) > 0 || p.held) && strings.IndexByte(text, '\n') >= 0 {
		p.stop("here-document around a token of several lines")
	}
}

// quoted reads text up to the byte end: a double quote, or the line end in a
// here-document. A backslash quotes only the bytes of set.
func (p *shellParser) quoted(s *wordState, end byte, set string) {
	for ; p.pos < len(p.src) && p.src[p.pos] != end; p.pos++ {
		c := p.src[p.pos]
		switch next := p.ahead(1); {
		case c == '$':
			p.dollar(s, end)
			p.pos--
			continue
		case c == '`':
			p.backquote(s, false)
			continue
		case c == '\\' && next == '\n':
			p.pos++
			continue
		case c == '\\' && next != 0 && strings.IndexByte(set, next) >= 0:
			p.pos++
			c = next
		case c == secretByte:
			p.place(p.pos, end)
		}
		p.buf = append(p.buf, c)
	}
}

// dollar reads what a dollar sign begins. The quoting that it stands in ends with
// quote, which is 0 for none.
func (p *shellParser) dollar(s *wordState, quote byte) {
	p.pos++
	c := p.at()
	special := c != 0 && strings.IndexByte("0123456789?$!#-@*", c) >= 0
	switch {
	case c == '[' || c == '\\' && p.ahead(1) == '\n' || c >= 0x80 || (c == '\'' || c == '"') && quote != '"':
		p.stop("bash's $" + string(rune(c)))
	case !special && !isNameByte(c, true) && c != '{' && c != '(':
		p.buf = append(p.buf, '$')
		return
	}
	p.expand(s, quote == 0 || c == '@' || c == '*')
	switch {
	case special:
		s.name, s.number = string(c), strings.IndexByte("?#$!", c) >= 0
		p.pos++
	case c == '(' && p.ahead(1) == '(':
		p.pos += 2
		p.arithmetic()
		s.number = true
	case c == '(':
		p.substitution()
	case c == '{':
		p.pos++
		if s.name = p.name(); s.name == "" || p.at() != '}' {
			p.stop("a form of ${...} other than ${NAME}")
		}
		p.pos++
	default:
		s.name = p.name()
	}
}

// oldBash is whether sh can be bash 3.2, as on macOS. It finds the end of $( ) by
// counting quotes and parentheses, also in comments, patterns and
// here-documents, and takes the byte A0 for a blank where the C library does.
var oldBash = runtime.GOOS == "darwin"

// substitution reads $( ) from the opening parenthesis on.
func (p *shellParser) substitution() {
	p.pos++
	heres, compounds, first, start := p.heres, p.compounds, len(p.out.Commands), p.pos
	p.nested()
	if p.at() != ')' {
		p.stop("substitution without end")
	}
	text := p.src[start:p.pos]
	p.pos++
	if p.heres > heres && (p.heres > heres+1 || p.compounds > compounds || len(p.out.Commands) > first+1) {
		// bash 5.2 runs the commands as it prints them, and where a
		// here-document stands among others it leaves out separators.
		p.note("a here-document among the commands of a substitution")
	}
	if oldBash && (strings.ContainsAny(text, "#`") || strings.Contains(text, "case") ||
		p.heres > heres && strings.ContainsAny(text[strings.IndexByte(text, '\n')+1:], "()'\"\\")) {
		p.note("a substitution that bash 3.2 may end elsewhere")
	}
}

// backquote reads a substitution up to the closing backquote.
func (p *shellParser) backquote(s *wordState, split bool) {
	p.expand(s, split)
	src := p.src
	p.pos++
	n := strings.IndexByte(src[p.pos:], '`')
	if n < 0 || strings.IndexByte(src[p.pos:p.pos+n], '\\') >= 0 {
		p.stop("backslash in backquotes, or no end")
	}
	p.src = src[:p.pos+n]
	ticks := p.ticks
	p.ticks = true
	if p.nested(); p.pos < len(p.src) {
		p.stop(notShell)
	}
	p.src, p.ticks = src, ticks
}

// nested reads the commands of a substitution.
func (p *shellParser) nested() {
	outer, pending := p.shellContext, p.pending
	p.scope, p.subst, p.held, p.pending = p.newScope(p.scope), true, p.held || len(pending) > 0, nil
	if p.list(); len(p.pending) > 0 {
		p.stop("here-document without end in a substitution")
	}
	p.shellContext, p.pending = outer, pending
}

// arithmetic reads an arithmetic expansion after "$((". Only numbers, variables
// and operators that change nothing are understood: bash evaluates what it finds
// in a variable once more, and runs a substitution in a subscript there. "a$b" is
// the name of some other variable.
func (p *shellParser) arithmetic() {
	for depth := 0; depth >= 0; {
		c := p.at()
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case isNameByte(c, true):
			p.arith = append(p.arith, p.name())
			continue
		case isDigit(c):
			for isNameByte(p.ahead(1), false) {
				p.pos++
			}
		case c == '$' && isNameByte(p.ahead(1), true) && !isNameByte(p.src[p.pos-1], false):
		case c == 0 || strings.IndexByte(" \t+-*/%", c) < 0 || (c == '+' || c == '-') && p.ahead(1) == c:
			p.stop("more than numbers, names and plain operators in arithmetic")
		}
		p.pos++
	}
	if p.at() != ')' {
		p.stop("does not parse as arithmetic")
	}
	p.pos++
}

// redir adds a redirection to list, if one stands here.
func (p *shellParser) redir(list *[]Redir) bool {
	var r Redir
	c := p.at()
	if c == '>' {
		r.Fd = 1
	} else if next := p.ahead(1); isDigit(c) && (next == '<' || next == '>') {
		r.Fd = int(c - '0')
		p.pos++
	} else if c != '<' {
		return false
	}
	for _, r.Op = range []string{"<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">"} {
		if strings.HasPrefix(p.src[p.pos:], r.Op) {
			break
		}
	}
	if p.pos += len(r.Op); p.at() == '(' {
		p.stop("bash's process substitution")
	}
	p.blanks()
	r.Target = p.word(false)
	if r.Target.Raw == "" || p.at() == '(' || p.descriptor(r.Target) {
		p.stop(notShell)
	}
	switch t := r.Target.Raw; r.Op {
	case "<<", "<<-":
		delim := r.Target.Text
		if delim == "" || p.ticks || strings.ContainsFunc(delim, func(c rune) bool {
			return c >= 0x80 || c != '-' && c != '.' && !isNameByte(byte(c), false)
		}) {
			p.stop("here-document with an unusual delimiter or in backquotes")
		}
		r.Body = &Word{}
		h := hereDoc{r.Body, delim, strings.ContainsAny(t, `'"\`), r.Op == "<<-", p.shellContext}
		// What its substitutions read may be what the command reads.
		h.piped, h.feeders, h.input = true, nil, math.MaxInt
		p.pending = append(p.pending, h)
		p.heres++
	case "<<<":
		p.note("bash's <<<")
	case ">&", "<&":
		if t != "-" && !(len(t) == 1 && isDigit(t[0])) {
			p.note(r.Op + " and not a descriptor")
		}
	}
	*list = append(*list, r)
	return true
}

// descriptor reports whether a shell may take w, just read, for the descriptor of
// the redirection that touches it: bash takes {name} and any number.
func (p *shellParser) descriptor(w Word) bool {
	c := p.at()
	return (c == '<' || c == '>') && (isNumber(w.Raw) || strings.HasPrefix(w.Raw, "{"))
}

// A hereDoc is a here-document whose body is still to come.
type hereDoc struct {
	body         *Word
	delim        string
	quoted, tabs bool
	shellContext
}

// hereBody reads the body of a here-document, which starts at pos. An expansion
// must end on its line, since bash cuts the body out line by line before it looks
// for them.
func (p *shellParser) hereBody(h hereDoc) {
	src, outer, start := p.src, p.shellContext, p.pos
	p.shellContext = h.shellContext
	s := wordState{base: len(p.buf), prefix: -1}
	for continued := false; ; {
		from := p.pos
		line := p.restOfLine()
		next := from + len(line) + 1
		if h.tabs {
			line = strings.TrimLeft(line, "\t")
			p.pos = next - 1 - len(line)
		}
		if line == h.delim && !continued {
			*h.body = p.finish(src[start:from], &s, true)
			p.pos = min(next, len(src))
			break
		}
		if next > len(src) {
			p.pos = start
			p.stop("here-document without end")
		}
		// Where the body expands, bash joins continued lines before it looks
		// for tabs and the delimiter, dash does not. In a substitution bash also
		// takes the delimiter with something after it.
		continues := !h.quoted && (len(line)-len(strings.TrimRight(line, "\\")))%2 == 1
		if line == h.delim || p.subst && strings.HasPrefix(line, h.delim) ||
			continues && (h.tabs || strings.HasPrefix(h.delim, line[:len(line)-1])) {
			p.pos = from
			p.stop("here-document with a doubtful end")
		}
		continued = continues
		p.src = src[:next]
		if !h.quoted {
			p.quoted(&s, '\n', "$`\\")
		}
		p.buf = append(p.buf, p.src[p.pos:]...)
		p.src, p.pos = src, next
	}
	p.shellContext = outer
}
