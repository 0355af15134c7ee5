package tools

import (
	"runtime"
	"strings"
)

// A wordState is what is known of the word being read.
type wordState struct {
	base   int // where its text starts in shellParser.buf
	prefix int // bytes of text before the first expansion, -1 if there is none yet
	events int // expansions
	fields bool
	open   bool   // a field may begin with something other than the prefix
	subst  bool   // some expansion is a command substitution
	arith  bool   // the last expansion is arithmetic
	name   string // of the variable, if the last expansion is one

	star, bracket, brace mark // the first * or ?, [ and {
}

// A mark is a place in a word, as written and in its text. The zero mark is none.
type mark struct{ raw, text int }

// Where an expansion stands.
type quoting int

const (
	unquoted quoting = iota
	inDouble
	inHere
)

// expand records that something begins here that is not constant.
func (p *shellParser) expand(s *wordState, q quoting) {
	if s.prefix < 0 {
		s.prefix = len(p.buf) - s.base
	}
	s.events++
	s.name, s.arith = "", false
	if q == unquoted {
		s.fields, s.open = true, true
	}
}

// wordEnds reports whether no word can start or go on at pos.
func (p *shellParser) wordEnds() bool {
	return p.pos >= len(p.src) || byteClass[p.src[p.pos]] == byteEnd
}

// word reads one word into w; it is empty where none stands. The value of an
// assignment is not split, and patterns and braces mean nothing in it.
func (p *shellParser) word(w *Word, value bool) {
	start, i := p.pos, p.pos
	for i < len(p.src) && byteClass[p.src[i]] == bytePlain {
		i++
	}
	if i == len(p.src) || byteClass[p.src[i]] == byteEnd {
		p.pos = i
		w.Raw, w.Const = p.src[start:i], true
		w.Text, w.number = w.Raw, isNumber(w.Raw)
		return
	}
	src := p.src
	if p.buf == nil {
		p.buf = make([]byte, 0, 64)
	}
	s := wordState{base: len(p.buf), prefix: -1}
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		if byteClass[c] == bytePlain {
			run := p.pos
			for p.pos < len(p.src) && byteClass[p.src[p.pos]] == bytePlain {
				p.pos++
			}
			p.buf = append(p.buf, p.src[run:p.pos]...)
			continue
		}
		if byteClass[c] == byteEnd {
			break
		}
		here := mark{p.pos - start + 1, len(p.buf) - s.base}
		switch c {
		case '\'':
			p.single()
			continue
		case '"':
			p.double(&s)
			continue
		case '\\':
			p.backslash()
			continue
		case '$':
			p.dollar(&s, unquoted)
			continue
		case '`':
			p.backquote(&s, unquoted)
			continue
		case '~':
			if p.pos == start || !isNameByte(src[p.pos-1], false) && strings.IndexByte("./-", src[p.pos-1]) < 0 {
				p.expand(&s, inDouble)
			}
		case '*', '?':
			setMark(&s.star, here)
		case '[':
			setMark(&s.bracket, here)
		case '{':
			setMark(&s.brace, here)
		}
		p.buf = append(p.buf, c)
		p.pos++
	}
	w.Raw = src[start:p.pos]
	p.finish(w, &s, value)
}

func setMark(m *mark, here mark) {
	if m.raw == 0 {
		*m = here
	}
}

// finish fills in the word whose text has been collected.
func (p *shellParser) finish(w *Word, s *wordState, value bool) {
	raw, text := w.Raw, p.buf[s.base:]
	p.buf = p.buf[:s.base]
	if value {
		s.fields, s.open = false, false
	} else {
		pattern := func(m mark) {
			s.fields = true
			s.events += 2 // no longer one expansion and nothing else
			if s.prefix < 0 || m.text < s.prefix {
				s.prefix = m.text
			}
		}
		if s.star.raw > 0 {
			pattern(s.star)
		}
		if s.bracket.raw > 0 && strings.IndexByte(raw[s.bracket.raw:], ']') >= 0 {
			pattern(s.bracket)
		}
		if s.brace.raw > 0 && hasBraces(raw[s.brace.raw:]) {
			pattern(s.brace)
			if s.subst {
				p.stop("braces around a substitution")
			}
		}
	}
	if s.prefix < 0 {
		w.Const = true
		if n := len(raw) - 2; n >= 0 && string(text) == raw[1:n+1] {
			w.Text = raw[1 : n+1] // the usual quoted word, without a copy
		} else {
			w.Text = string(text)
		}
		w.number = isNumber(w.Text)
		return
	}
	w.Fields = s.fields
	if !s.open {
		w.Prefix = string(text[:s.prefix])
	}
	if s.events == 1 && len(text) == 0 {
		w.Var = s.name
		w.number = s.arith || s.name != "" && strings.IndexByte("?#$!", s.name[0]) >= 0
	}
}

// hasBraces reports whether bash could expand braces in a word, given what
// follows the first {.
func hasBraces(rest string) bool {
	i := strings.IndexByte(rest, ',')
	if j := strings.Index(rest, ".."); i < 0 || j >= 0 && j < i {
		i = j
	}
	return i >= 0 && strings.IndexByte(rest[i:], '}') >= 0
}

// isNumber reports whether s is a decimal number, such as arithmetic evaluates
// to itself.
func isNumber(s string) bool {
	if len(s) > 1 && s[0] == '-' {
		s = s[1:]
	}
	for i := 0; i < len(s); i++ {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// lines checks text that may hold line ends and is part of a token: shells do not
// agree on where a here-document before it starts.
func (p *shellParser) lines(text string) {
	if len(p.pending) > 0 && strings.IndexByte(text, '\n') >= 0 {
		p.stop("here-document around a token of several lines")
	}
}

func (p *shellParser) single() {
	text := p.src[p.pos+1:]
	n := strings.IndexByte(text, '\'')
	if n < 0 {
		p.stop("quote without end")
		return
	}
	p.buf = append(p.buf, text[:n]...)
	p.pos += n + 2
	p.lines(text[:n])
}

// backslash reads a backslash outside of quotes and what it quotes.
func (p *shellParser) backslash() {
	if p.pos+1 == len(p.src) {
		p.stop("backslash at the end")
		return
	}
	if c := p.src[p.pos+1]; c != '\n' {
		p.buf = append(p.buf, c)
	}
	p.lines(p.src[p.pos : p.pos+2])
	p.pos = min(p.pos+2, len(p.src))
}

// double reads a string in double quotes.
func (p *shellParser) double(s *wordState) {
	src := p.src
	p.pos++
	start := p.pos
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; c {
		case '"':
			p.lines(src[start:p.pos])
			p.pos = min(p.pos+1, len(p.src))
			return
		case '\\':
			p.escape("$`\"\\")
		case '$':
			p.dollar(s, inDouble)
		case '`':
			p.backquote(s, inDouble)
		default:
			p.buf = append(p.buf, c)
			p.pos++
		}
	}
	p.pos = start
	p.stop("quote without end")
}

// escape reads a backslash which quotes only a line end and the bytes of set.
func (p *shellParser) escape(set string) {
	c := p.ahead(1)
	switch {
	case c == '\n':
		p.pos += 2
	case c != 0 && strings.IndexByte(set, c) >= 0:
		p.buf = append(p.buf, c)
		p.pos += 2
	default:
		p.buf = append(p.buf, '\\')
		p.pos++
	}
}

// dollar reads what a dollar sign begins.
func (p *shellParser) dollar(s *wordState, q quoting) {
	p.pos++
	switch c := p.at(); {
	case isNameByte(c, true):
		p.expand(s, q)
		s.name = p.name()
	case c != 0 && strings.IndexByte("0123456789?$!#-@*", c) >= 0:
		p.expand(s, q)
		s.name = p.src[p.pos : p.pos+1]
		if c == '@' || c == '*' {
			s.fields, s.open = true, true
		}
		p.pos++
	case c == '{':
		p.pos++
		p.expand(s, q)
		if s.name = p.name(); s.name == "" {
			start := p.pos
			for isDigit(p.at()) {
				p.pos++
			}
			s.name = p.src[start:p.pos]
		}
		if s.name == "" || p.at() != '}' {
			p.stop("a form of ${...} other than ${NAME}")
			return
		}
		p.pos++
	case c == '(' && p.ahead(1) == '(':
		p.expand(s, q)
		p.pos += 2
		p.arithmetic()
		s.arith = true
	case c == '(':
		p.expand(s, q)
		s.subst = true
		p.pos++
		p.substitution()
	case c == '[' || c == '\\' && p.ahead(1) == '\n' || c >= 0x80 || (c == '\'' || c == '"') && q != inDouble:
		p.stop("bash's $" + string(rune(c)))
	default:
		p.buf = append(p.buf, '$')
	}
}

// oldBash is whether sh can be bash 3.2, as on macOS. It finds the end of $( ) by
// counting quotes and parentheses, also in comments, patterns and
// here-documents, and takes the byte A0 for a blank where the C library does.
var oldBash = runtime.GOOS == "darwin"

// substitution reads the commands of $( ) and the closing parenthesis.
func (p *shellParser) substitution() {
	if p.continued() {
		p.stop("line continuation in an operator")
	}
	base, subst, outer := p.pendBase, p.subst, p.scope
	heres, compounds, first, start := p.heres, p.compounds, len(p.out.Commands), p.pos
	p.scope, p.subst, p.pendBase = p.newScope(outer), true, len(p.pending)
	p.list()
	if p.heres > heres && (p.heres > heres+1 || p.compounds > compounds || len(p.out.Commands) > first+1) {
		// bash 5.2 runs the commands as it prints them, and where a
		// here-document stands among others it leaves out separators.
		p.note("a here-document among the commands of a substitution")
	}
	if text := p.src[start:min(p.pos, len(p.src))]; oldBash && (strings.ContainsAny(text, "#`") || strings.Contains(text, "case") ||
		p.heres > heres && strings.ContainsAny(text[strings.IndexByte(text, '\n')+1:], "()'\"\\")) {
		p.note("a substitution that bash 3.2 may end elsewhere")
	}
	if p.at() != ')' {
		p.stop("substitution without end")
	} else {
		p.pos++
	}
	if len(p.pending) > p.pendBase {
		p.stop("here-document without end in a substitution")
		p.pending = p.pending[:p.pendBase]
	}
	p.scope, p.subst, p.pendBase = outer, subst, base
}

// backquote reads a substitution in backquotes.
func (p *shellParser) backquote(s *wordState, q quoting) {
	p.expand(s, q)
	s.subst = true
	start := p.pos + 1
	var text []byte
	i := start
	for ; i < len(p.src) && p.src[i] != '`'; i++ {
		c := p.src[i]
		if c == '\\' && i+1 < len(p.src) {
			switch next := p.src[i+1]; {
			case next == '$' || next == '`' || next == '\\':
				c = next
				i++
			case next == '\n' || next == '"' && q != unquoted:
				p.stop("backslash in backquotes")
				return
			}
		}
		text = append(text, c)
	}
	if i >= len(p.src) {
		p.stop("backquote without end")
		return
	}
	if p.lines(p.src[start:i]); p.dead {
		return
	}
	if p.back == 0 {
		p.tick = p.pos
	}
	src, end := p.src, i+1
	base, subst, outer := p.pendBase, p.subst, p.scope
	p.scope, p.subst, p.pendBase = p.newScope(outer), true, len(p.pending)
	p.src, p.pos = string(text), 0
	p.back++
	p.list()
	if p.pos < len(p.src) || len(p.pending) > p.pendBase {
		p.stop("does not parse as shell")
		p.pending = p.pending[:p.pendBase]
	}
	p.back--
	p.src, p.pos = src, end
	p.scope, p.subst, p.pendBase = outer, subst, base
	if p.dead {
		p.src = p.src[:p.pos]
	}
}

// arithmetic reads an arithmetic expansion after "$((". Only numbers, variables
// and operators that change nothing are understood: bash evaluates what it finds
// in a variable once more, and would run a substitution in a subscript there.
func (p *shellParser) arithmetic() {
	for depth := 0; ; p.pos++ {
		switch c := p.at(); {
		case isDigit(c):
			for isNameByte(p.ahead(1), false) {
				p.pos++
			}
		case isNameByte(c, true):
			p.arith = append(p.arith, p.name())
			p.pos--
		case c == '$':
			p.pos++
			brace := p.at() == '{'
			if brace {
				p.pos++
			}
			if n := p.name(); n != "" {
				p.arith = append(p.arith, n)
				p.pos--
			} else if brace || p.at() == 0 || strings.IndexByte("?#$!", p.at()) < 0 {
				p.stop("substitution in arithmetic")
				return
			}
			if brace {
				if p.pos++; p.at() != '}' {
					p.stop("substitution in arithmetic")
					return
				}
			}
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth < 0 {
				if p.ahead(1) != ')' {
					p.stop("does not parse as arithmetic")
					return
				}
				p.pos += 2
				return
			}
		case c == '=' && p.ahead(1) == '=':
			p.pos++
		case (c == '<' || c == '>') && p.ahead(1) == '(':
			p.stop("bash's process substitution")
			return
		case (c == '<' || c == '>' || c == '!') && p.ahead(1) == '=':
			p.pos++
		case (c == '<' || c == '>') && p.ahead(1) == c && p.ahead(2) != '=':
			p.pos++
		case (c == '+' || c == '-') && (p.ahead(1) == c || p.ahead(1) == '='):
			p.stop("assignment in arithmetic")
			return
		case c == ' ' || c == '\t' || c != 0 && strings.IndexByte("+-*/%<>!&|^~?:", c) >= 0:
		default:
			p.stop("more than numbers, names and operators in arithmetic")
			return
		}
	}
}

// redir adds a redirection to list, if one stands here.
func (p *shellParser) redir(list *[]Redir) bool {
	r := Redir{Fd: -1}
	if isDigit(p.at()) && (p.ahead(1) == '<' || p.ahead(1) == '>') {
		r.Fd = int(p.at() - '0')
		p.pos++
	}
	if p.at() != '<' && p.at() != '>' {
		return false
	}
	start := p.pos
	two, three := p.ahead(1), p.ahead(2)
	switch c := p.at(); {
	case two == '(':
		p.stop("bash's process substitution")
		return true
	case c == '<' && two == '<' && three == '<':
		p.note("bash's <<<")
		p.pos += 3
	case c == '<' && two == '<' && three == '-':
		p.pos += 3
	case two == '&', c == '<' && (two == '<' || two == '>'), c == '>' && (two == '>' || two == '|'):
		p.pos += 2
	default:
		p.pos++
	}
	r.Op = p.src[start:p.pos]
	if r.Fd < 0 && r.Op[0] == '>' {
		r.Fd = 1
	}
	r.Fd = max(r.Fd, 0)
	if p.continued() {
		p.stop("line continuation in an operator")
	}
	p.blanks()
	if p.word(&r.Target, false); r.Target.Raw == "" {
		p.stop("does not parse as shell")
	}
	switch r.Op {
	case "<<", "<<-":
		r.Body = &Word{}
		p.hereDelimiter(&r)
	case ">&", "<&":
		if t := r.Target.Raw; t != "-" && !(len(t) == 1 && isDigit(t[0])) {
			p.note(r.Op + " and not a descriptor")
		}
	}
	if p.at() == '(' || p.descriptor(&r.Target) {
		p.stop("does not parse as shell")
	}
	*list = append(*list, r)
	return true
}

// descriptor reports whether a shell may take w, just read, for the descriptor of
// the redirection that touches it: bash takes {name} and any number.
func (p *shellParser) descriptor(w *Word) bool {
	if c := p.at(); c != '<' && c != '>' || w.Raw == "" {
		return false
	}
	return w.Raw[0] == '{' || isNumber(strings.ReplaceAll(w.Raw, "\\\n", ""))
}

// A hereDoc is a here-document whose body is still to come.
type hereDoc struct {
	body                  *Word
	delim                 string
	quoted, tabs          bool
	scope                 int
	subst, maybe, repeats bool
}

func (p *shellParser) hereDelimiter(r *Redir) {
	for i := 0; i < len(r.Target.Text); i++ {
		if c := r.Target.Text[i]; !isNameByte(c, false) && strings.IndexByte("-+.,:%@/=!", c) < 0 {
			r.Target.Const = false
		}
	}
	if !r.Target.Const || r.Target.Text == "" || strings.Contains(r.Target.Raw, "\n") {
		p.stop("here-document with an unusual delimiter")
		return
	}
	p.heres++
	p.pending = append(p.pending, hereDoc{r.Body, r.Target.Text, strings.ContainsAny(r.Target.Raw, `'"\`), r.Op == "<<-",
		p.scope, p.subst, p.maybe, p.repeats})
}

// hereBody reads the body of a here-document, which starts at pos.
func (p *shellParser) hereBody(h hereDoc) {
	start, expands := p.pos, false
	end := -1
	for end < 0 {
		if p.pos >= len(p.src) {
			p.pos = start
			p.stop("here-document without end")
			return
		}
		// Where the body expands, bash joins continued lines before it looks
		// for the delimiter; dash does not.
		from, joined := p.pos, false
		line := p.line(h.tabs)
		for last := line; !h.quoted && oddBackslashes(last) && p.pos < len(p.src); joined = true {
			last = p.line(false)
			if len(line) <= len(h.delim) {
				line = line[:len(line)-1] + last
			}
			if h.tabs {
				line = strings.TrimLeft(line, "\t")
			}
		}
		switch {
		case line == h.delim && !joined:
			end = from
		case line == h.delim || p.subst && strings.HasPrefix(line, h.delim):
			p.pos = start
			p.stop("here-document with a doubtful end")
			return
		}
		expands = expands || joined || !h.quoted && strings.ContainsAny(line, "\\$`")
	}
	next := p.pos
	body := p.src[start:end]
	*h.body = Word{Raw: body, Text: body, Const: true}
	if h.tabs {
		h.body.Text = stripTabs(body)
	}
	if expands {
		p.hereExpand(h, start, end)
	}
	p.pos = min(next, len(p.src))
}

// line reads the rest of a line and returns it without its end, and without the
// tabs it starts with if those are to go.
func (p *shellParser) line(tabs bool) string {
	line, _, _ := strings.Cut(p.src[p.pos:], "\n")
	p.pos = min(p.pos+len(line)+1, len(p.src))
	if tabs {
		line = strings.TrimLeft(line, "\t")
	}
	return line
}

func oddBackslashes(line string) bool {
	return (len(line)-len(strings.TrimRight(line, "\\")))%2 == 1
}

func stripTabs(body string) string {
	lines := strings.SplitAfter(body, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimLeft(l, "\t")
	}
	return strings.Join(lines, "")
}

// hereExpand reads the expansions in a body. Each must end on its line, since
// bash cuts the body out line by line before it looks for them.
func (p *shellParser) hereExpand(h hereDoc, start, end int) {
	src, outer, base, first := p.src, p.scope, p.pendBase, len(p.out.Commands)
	subst, maybe, repeats := p.subst, p.maybe, p.repeats
	p.scope, p.subst, p.maybe, p.repeats = h.scope, h.subst, h.maybe, h.repeats
	p.pendBase = len(p.pending)
	p.src, p.pos = p.src[:end], start
	s := wordState{base: len(p.buf), prefix: -1}
	for p.pos < len(p.src) {
		from := p.pos
		switch c := p.src[p.pos]; c {
		case '\\':
			p.escape("$`\\")
			continue
		case '$':
			p.dollar(&s, inHere)
		case '`':
			p.backquote(&s, inHere)
		case '\t':
			if !h.tabs || p.src[p.pos-1] != '\n' {
				p.buf = append(p.buf, c)
			}
			p.pos++
		default:
			p.buf = append(p.buf, c)
			p.pos++
			continue
		}
		if strings.IndexByte(src[from:min(p.pos, len(src))], '\n') >= 0 {
			p.stop("expansion of several lines in a here-document")
		}
	}
	*h.body = Word{Raw: h.body.Raw}
	p.finish(h.body, &s, true)
	p.scope, p.subst, p.maybe, p.repeats, p.pendBase = outer, subst, maybe, repeats, base
	for i := first; i < len(p.out.Commands); i++ {
		// It may be that of the command, or of a pipe the command reads.
		p.out.Commands[i].PipedIn = true
	}
	p.src = src
	if p.dead {
		p.src = p.src[:p.pos]
	}
}
