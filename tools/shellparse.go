package tools

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits on a command line that can be analysed.
const (
	maxShellLine  = 8 << 10 // bytes
	maxShellDepth = 32      // nested lists, substitutions included
	maxCopies     = 4096    // a redirection for each command of a compound command
)

// A Script is what a command line does, as far as its text tells.
type Script struct {
	// Opaque is empty if every command that dash or bash (by either name) can start
	// from this line is in Commands. If not, it says why in a few words, and the
	// rest is a guess: good for warnings and rules that deny, for nothing else.
	Opaque   string
	Commands []Simple // in source order, with those in substitutions and here-documents

	// Scopes holds the parent of each subshell, which may have the higher number;
	// scope 0 is the shell itself, its parent -1. A cd lasts until its scope ends. A
	// scope starts in the directory that its parent is in when, in source order,
	// the first command of the scope or of one under it appears.
	Scopes []int
	Loops  []Loop
}

// A Simple is one simple command. A bare assignment or redirection has no Words.
type Simple struct {
	Assigns []Assign // before the program
	Words   []Word   // Words[0] is the program, Const unless the script is opaque
	Redirs  []Redir  // with those of enclosing compound commands, which come first

	Feeders []int // indexes of the commands on the other side of its pipe, if that is known
	Scope   int   // the shell or subshell that runs it
	PipedIn bool  // its standard input may be the end of a pipe
	Subst   bool  // its output becomes part of another command's text
	Repeats bool  // stands in a loop
	Maybe   bool  // may not run: in a body, or after && or ||

	input int // how near its input is: the index of the first reader of that pipe, or math.MaxInt
}

// A Loop is one "for NAME in WORDS"; its commands are Commands[First:End].
type Loop struct {
	Name       string
	Words      []Word // nil: the positional parameters
	First, End int
}

// A Word is one word of a command. Shells differ about braces; such a word is
// not Const.
type Word struct {
	Raw    string // as written
	Text   string // what the program receives, when Const
	Prefix string // not Const: text with which every field begins; "" means any, "-" included
	Var    string // not Const: the variable or special parameter that is the whole word
	Const  bool   // always exactly one field, exactly Text
	Fields bool   // not Const: may become none or several fields
	number bool   // is a whole number, or an arithmetic expansion and nothing else
}

// An Assign is NAME=value. The value is always one field.
type Assign struct {
	Name  string
	Value Word
}

// A Redir is one redirection.
type Redir struct {
	Fd     int
	Op     string // < > >> <> >| <& >& << <<- and, in opaque scripts, <<<
	Target Word   // the delimiter, for a here-document
	Body   *Word  // the text of a here-document, nil otherwise
	Outer  bool   // stands on an enclosing compound command, whose first command has it too, with Outer unset
}

type shellParser struct {
	src string // the line, or its start up to the end of what is being read
	pos int
	out Script
	shellContext
	depth            int
	pending          []hereDoc // their bodies are still to come
	heres, compounds int       // here-documents and compound commands so far
	copies           int       // redirections of compound commands recorded with the commands in them
	words            []Word    // of the commands being read
	buf              []byte    // the texts of the words being read
	arith            []string  // variables that must hold numbers

	// For readSecretLine: by offset, in what quotes a private letter stands, as
	// for dollar, or a single quote. Nil if nobody asks.
	places map[int]byte
}

// A shellContext is what surrounds a command.
type shellContext struct {
	scope, input                 int
	feeders                      []int
	piped, subst, maybe, repeats bool
	ticks                        bool // in backquotes
	held                         bool // a here-document waits outside of the substitution
}

// ParseShell reads one command line as the shells do. It understands a subset of
// the POSIX shell command language (IEEE Std 1003.1, XCU 2) in which dash and
// bash agree, and calls everything else opaque. It is pure and takes time linear
// in the line; no text makes it fail.
func ParseShell(line string) Script {
	p := newShellParser(line)
	p.read()
	return p.out
}

func newShellParser(line string) shellParser {
	p := shellParser{src: line, words: make([]Word, 0, 12), buf: make([]byte, 0, 64)}
	p.out.Scopes = append(make([]int, 0, 4), -1)
	p.out.Commands = make([]Simple, 0, 1+len(line)/32)
	return p
}

func (p *shellParser) read() {
	line := p.src
	switch {
	case len(line) > maxShellLine:
		p.note("longer than 8 KiB")
	case line != "" && (line[0] == '-' || line[0] == '+'):
		p.note("the shell takes it for an option") // what "sh -c" is given next
	case !utf8.ValidString(line):
		p.note("not valid UTF-8")
	case strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\t' && r != '\n' }):
		p.note("control character")
	case oldBash && strings.IndexByte(line, 0xa0) >= 0:
		p.note("a character that bash 3.2 may split")
	}
	if !p.whole() {
		p.guess(line[min(p.pos, len(line)):])
	}
	p.checkVariables()
}

// place notes where a private letter stands. In backquotes nobody relies on it.
func (p *shellParser) place(at int, quote byte) {
	if p.places != nil && !p.ticks {
		p.places[at] = quote
	}
}

type shellStop struct{}

// whole reads the whole line; false means that it had to stop.
func (p *shellParser) whole() (ok bool) {
	defer func() {
		if r := recover(); r != nil && r != any(shellStop{}) {
			panic(r)
		}
	}()
	p.list()
	if p.pos < len(p.src) {
		p.stop(notShell)
	}
	if len(p.pending) > 0 {
		p.stop("here-document without end")
	}
	return true
}

const notShell = "does not parse as shell"

// note makes the script opaque; reading goes on, for the sake of warnings.
func (p *shellParser) note(why string) {
	if p.out.Opaque == "" {
		p.out.Opaque = why
	}
}

// stop makes the script opaque and ends the reading at pos.
func (p *shellParser) stop(why string) {
	p.note(why)
	panic(shellStop{})
}

func (p *shellParser) at() byte { return p.ahead(0) }

// ahead returns the byte n after the next one, 0 at the end.
func (p *shellParser) ahead(n int) byte {
	if p.pos+n < len(p.src) {
		return p.src[p.pos+n]
	}
	return 0
}

// endsWord knows the bytes that end a word where no quote is open.
func endsWord(c byte) bool {
	switch c {
	case 0, ' ', '\t', '\n', ';', '&', '|', '<', '>', '(', ')':
		return true
	}
	return false
}

func isNameByte(c byte, first bool) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || !first && isDigit(c)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// name reads a variable's name, "" if there is none.
func (p *shellParser) name() string {
	start := p.pos
	for isNameByte(p.at(), p.pos == start) {
		p.pos++
	}
	return p.src[start:p.pos]
}

// blanks skips what may stand between two tokens of a line. A line continuation
// must not join what would be one token: only beside a blank do all shells see
// two without looking back.
func (p *shellParser) blanks() {
	for start := p.pos; ; {
		switch c := p.at(); {
		case c == ' ' || c == '\t':
			p.pos++
		case c == '\\' && p.ahead(1) == '\n':
			if len(p.pending) > 0 || p.held {
				p.stop("line continuation before a here-document")
			}
			after := p.ahead(2)
			if p.pos == start && p.pos > 0 && p.src[p.pos-1] != '\n' && after != ' ' && after != '\t' {
				p.stop("line continuation in a word or operator")
			}
			p.pos += 2
		case c == '#':
			if p.ticks {
				p.stop("comment in backquotes")
			}
			p.pos += len(p.restOfLine())
		default:
			return
		}
	}
}

func (p *shellParser) restOfLine() string {
	line, _, _ := strings.Cut(p.src[p.pos:], "\n")
	return line
}

// linebreak skips blanks, comments and line ends.
func (p *shellParser) linebreak() {
	for p.blanks(); p.at() == '\n'; p.blanks() {
		p.newline()
	}
}

// newline reads a line end and the here-documents that begin after it.
func (p *shellParser) newline() {
	p.pos++
	if p.held {
		p.stop("here-document around a substitution of several lines")
	}
	docs := p.pending
	p.pending = nil
	for _, h := range docs {
		p.hereBody(h)
	}
}

// keyword returns the reserved word of any shell that stands at pos, "" if none
// does. Only where a command may start is it one.
func (p *shellParser) keyword() string {
	i := p.pos
	for i < min(len(p.src), p.pos+9) && !endsWord(p.src[i]) {
		i++
	}
	if w := p.src[p.pos:i]; isKeyword(w) {
		return w
	}
	return ""
}

// isKeyword knows the reserved words of both shells, but for "time": in bash it
// starts a pipeline, in dash a program, see hides.
func isKeyword(w string) bool {
	switch w {
	case "!", "{", "}", "case", "do", "done", "elif", "else", "esac", "fi", "for", "if", "in", "then", "until", "while",
		"[[", "coproc", "function", "select":
		return true
	}
	return false
}

// expect reads a reserved word that must come next.
func (p *shellParser) expect(kw string) {
	if p.keyword() != kw {
		p.stop(notShell)
	}
	p.pos += len(kw)
}

// list reads commands up to what cannot start one, and reports whether there
// was any.
func (p *shellParser) list() bool {
	if p.depth++; p.depth > maxShellDepth {
		p.stop("nested too deep")
	}
	some := false
	for p.linebreak(); !p.listEnds(); p.linebreak() {
		some = true
		first, scopes := len(p.out.Commands), len(p.out.Scopes)
		p.andOr()
		switch c := p.at(); {
		case c == ';':
			if next := p.ahead(1); next != ';' && next != '&' {
				p.pos++
			}
		case c == '&':
			p.pos++
			if p.at() == '>' {
				p.stop("&>")
			}
			p.rescope(first, scopes)
		case c != '\n' && c != ')' && p.pos < len(p.src):
			p.stop(notShell)
		}
	}
	p.depth--
	return some
}

func (p *shellParser) listEnds() bool {
	switch p.at() {
	case 0:
		return p.pos >= len(p.src)
	case ')':
		return true
	case ';':
		return p.ahead(1) == ';' || p.ahead(1) == '&'
	}
	switch p.keyword() {
	case "}", "do", "done", "elif", "else", "esac", "fi", "then":
		return true
	}
	return false
}

// block reads a list that may not be empty.
func (p *shellParser) block() {
	if !p.list() {
		p.stop(notShell)
	}
}

func (p *shellParser) andOr() {
	maybe := p.maybe
	for p.pipeline(); p.at() == '&' && p.ahead(1) == '&' || p.at() == '|'; p.pipeline() {
		p.pos += 2
		p.linebreak()
		p.maybe = true
	}
	p.maybe = maybe
}

func (p *shellParser) pipeline() {
	if p.keyword() == "!" {
		p.pos++
		if p.at() == '(' {
			p.stop("!(")
		}
		p.blanks()
	}
	outer, first, scopes := p.shellContext, len(p.out.Commands), len(p.out.Scopes)
	p.command()
	for p.blanks(); p.at() == '|' && p.ahead(1) != '|'; p.blanks() {
		if p.pos++; p.at() == '&' {
			p.note("|&")
			p.pos++
		}
		if p.scope == outer.scope {
			p.rescope(first, scopes)
		}
		p.linebreak()
		p.scope, p.piped, p.feeders, p.input = p.newScope(outer.scope), true, nil, len(p.out.Commands)
		for i := first; i < p.input; i++ {
			if p.subst || !p.out.Commands[i].Subst {
				p.feeders = append(p.feeders, i)
			}
		}
		first = p.input
		p.command()
	}
	p.shellContext = outer
}

func (p *shellParser) newScope(parent int) int {
	p.out.Scopes = append(p.out.Scopes, parent)
	return len(p.out.Scopes) - 1
}

// rescope moves the commands since first, which turned out to run in a subshell,
// to a scope of their own, and the scopes opened since under it.
func (p *shellParser) rescope(first, scopes int) {
	s := p.newScope(p.scope)
	for i := range p.out.Commands[first:] {
		if c := &p.out.Commands[first+i]; c.Scope == p.scope {
			c.Scope = s
		}
	}
	for i := scopes; i < s; i++ {
		if p.out.Scopes[i] == p.scope {
			p.out.Scopes[i] = s
		}
	}
}

func (p *shellParser) command() {
	outer, first := p.shellContext, len(p.out.Commands)
	switch kw := p.keyword(); kw {
	case "":
		if p.at() != '(' {
			p.simple()
			return
		}
		if p.pos++; p.at() == '(' {
			p.stop("((")
		}
		p.scope = p.newScope(p.scope)
		p.block()
		if p.at() != ')' {
			p.stop(notShell)
		}
		p.pos++
	case "{":
		p.pos++
		p.block()
		p.expect("}")
	case "if":
		p.ifClause()
	case "while", "until":
		p.pos += len(kw)
		p.repeats = true
		p.block()
		p.body()
	case "for":
		p.forClause()
	case "case":
		p.caseClause()
	case "[[", "coproc", "function", "select":
		p.stop("bash's " + kw)
	default:
		p.stop(notShell)
	}
	p.compounds++
	p.shellContext = outer
	p.trailing(first)
}

// body reads the body of a loop.
func (p *shellParser) body() {
	p.expect("do")
	p.maybe, p.repeats = true, true
	p.block()
	p.expect("done")
}

func (p *shellParser) ifClause() {
	for kw := "if"; kw == "if" || kw == "elif"; kw = p.keyword() {
		p.pos += len(kw)
		p.block()
		p.expect("then")
		p.maybe = true
		p.block()
	}
	if p.keyword() == "else" {
		p.expect("else")
		p.block()
	}
	p.expect("fi")
}

func (p *shellParser) forClause() {
	p.expect("for")
	p.blanks()
	loop := Loop{Name: p.name()}
	if loop.Name == "" || isKeyword(loop.Name) || !endsWord(p.at()) {
		p.stop(notShell)
	}
	p.checkSpecial(loop.Name)
	p.blanks()
	if p.at() == ';' {
		p.pos++
	} else if p.linebreak(); p.keyword() == "in" {
		p.expect("in")
		loop.Words = []Word{}
		for p.blanks(); !p.wordEnds(); p.blanks() {
			loop.Words = append(loop.Words, p.word(false))
		}
		switch p.at() {
		case ';':
			p.pos++
		case '\n':
		default:
			p.stop(notShell)
		}
	}
	p.linebreak()
	n := len(p.out.Loops)
	loop.First = len(p.out.Commands)
	loop.End = loop.First
	p.out.Loops = append(p.out.Loops, loop)
	p.body()
	p.out.Loops[n].End = len(p.out.Commands)
}

func (p *shellParser) caseClause() {
	p.expect("case")
	p.blanks()
	p.pattern()
	p.linebreak()
	p.expect("in")
	for p.linebreak(); p.keyword() != "esac"; p.linebreak() {
		if p.at() == '(' {
			p.pos++
			p.blanks()
		}
		for p.pattern(); p.at() == '|'; p.pattern() {
			p.pos++
			p.blanks()
		}
		if p.at() != ')' {
			p.stop(notShell)
		}
		p.pos++
		p.maybe = true
		p.list()
		if p.at() != ';' {
			break
		}
		if p.pos += 2; p.src[p.pos-1] == '&' || p.at() == '&' {
			p.stop("bash's ;&")
		}
	}
	p.expect("esac")
}

// pattern reads a word of a case clause.
func (p *shellParser) pattern() {
	if w := p.word(false); w.Raw == "" || isKeyword(w.Text) {
		p.stop(notShell)
	}
	p.blanks()
}

// trailing reads the redirections of a compound command, which the commands in
// it have too.
func (p *shellParser) trailing(first int) {
	var redirs []Redir
	for p.blanks(); p.redir(&redirs); p.blanks() {
	}
	n := len(p.out.Commands)
	if p.copies += len(redirs) * (n - first); p.copies > maxCopies {
		p.stop("too many redirections around commands")
	}
	p.redirect(first, n, redirs)
}

// redirect records the redirections of the commands from first on. They take them
// off a pipe that is not nearer.
func (p *shellParser) redirect(first, end int, redirs []Redir) {
	for i := first; i < end && redirs != nil; i++ {
		c := &p.out.Commands[i]
		list, nearer := make([]Redir, 0, len(redirs)+len(c.Redirs)), c.input > first
		for _, r := range redirs {
			if r.Fd == 0 && nearer {
				continue
			} else if r.Fd == 0 {
				c.PipedIn, c.Feeders, c.input = false, nil, math.MaxInt
			}
			r.Outer = i > first
			list = append(list, r)
		}
		c.Redirs = append(list, c.Redirs...)
	}
}

// simple reads a simple command.
func (p *shellParser) simple() {
	n, start := len(p.out.Commands), p.pos
	p.out.Commands = append(p.out.Commands, Simple{Scope: p.scope, Subst: p.subst, Maybe: p.maybe, Repeats: p.repeats,
		PipedIn: p.piped, Feeders: p.feeders, input: p.input})
	base := len(p.words)
	var assigns []Assign
	var redirs []Redir
	defer func() { // also where the reading stops
		p.redirect(n, n+1, redirs)
		c := &p.out.Commands[n]
		c.Assigns, c.Words = assigns, slices.Clone(p.words[base:])
		p.words = p.words[:base]
	}()
	for p.blanks(); ; p.blanks() {
		if p.redir(&redirs) || len(p.words) == base && p.assign(&assigns) {
			continue
		}
		if p.wordEnds() {
			break
		}
		w := p.word(false)
		p.words = append(p.words, w)
		switch {
		case p.at() == '(':
			p.stop("( after a word: a function, an array or an extended pattern")
		case p.descriptor(w):
			p.stop("bash's descriptor before a redirection")
		case len(p.words) == base+1 && isKeyword(w.Raw):
			p.stop("reserved word after an assignment or redirection")
		}
	}
	switch words := p.words[base:]; {
	case len(words) > 0 && !words[0].Const:
		p.note(notConstant)
	case len(words) > 0:
		if why := p.hides(words, redirs != nil); why != "" {
			p.note(why)
			p.guess(p.src[start:p.pos])
		}
	case len(redirs)+len(assigns) == 0:
		p.stop(notShell)
	}
}

// assign adds an assignment to list, if one stands here.
func (p *shellParser) assign(list *[]Assign) bool {
	start := p.pos
	name := p.name()
	switch c := p.at(); {
	case name != "" && c == '=':
		p.pos++
		*list = append(*list, Assign{name, p.word(true)})
		if p.at() == '(' {
			p.stop("bash's array")
		}
		p.checkSpecial(name)
		return true
	case name != "" && (c == '[' || c == '+' && p.ahead(1) == '='):
		p.stop("bash's assignment to an array, or +=")
	}
	p.pos = start
	return false
}
