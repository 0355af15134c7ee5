package tools

import (
	"strings"
	"unicode/utf8"
)

// Limits on a command line that can be analysed.
const (
	maxShellLine  = 8 << 10 // bytes
	maxShellDepth = 32      // nested lists, substitutions included
	maxCopies     = 4096    // a redirection for each command of a compound command
)

const wordChunk = 256 // words that are allocated together

// A Script is what a command line does, as far as its text tells.
type Script struct {
	// Opaque is empty if every command that any of the shells understood here
	// (dash, and bash by either name) can start from this line is in Commands.
	// If not, it says why in a few words, and the rest is a guess: good for
	// warnings and for rules that deny, for nothing else.
	Opaque string

	Commands []Simple // in source order, with those in substitutions and here-documents

	// Scopes holds the parent of each shell or subshell; scope 0 is the shell
	// itself, its parent -1. A cd lasts until its scope ends. A scope starts in
	// the directory that its parent is in when, in source order, the first
	// command of the scope or of one under it appears. A parent may have the
	// higher number.
	Scopes []int
	Loops  []Loop
}

// A Simple is one simple command. A bare assignment or redirection has no Words.
type Simple struct {
	Assigns []Assign // before the program
	Words   []Word   // Words[0] is the program, Const unless the script is opaque
	Redirs  []Redir  // with those of enclosing compound commands, which come first

	Feeders  []int // indexes of the commands on the other side of its pipe, if that is known
	Scope    int   // the shell or subshell that runs it
	PipedIn  bool  // its standard input may be the end of a pipe
	Subst    bool  // its output becomes part of another command's text
	Repeats  bool  // stands in a loop
	Maybe    bool  // may not run: in a body, or after && or ||
	stdinSet bool  // a redirection or pipe nearer than what encloses it gives its standard input
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
	Const  bool   // always exactly one field, exactly Text
	Prefix string // not Const: text with which every field begins; "" means any, "-" included
	Fields bool   // not Const: may become none or several fields
	Var    string // not Const: the variable or special parameter that is the whole word

	number bool // is a whole number, or an arithmetic expansion and nothing else
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

// ParseShell reads one command line as the shells do. It understands a subset of
// the POSIX shell command language (IEEE Std 1003.1, XCU 2) in which dash and
// bash agree, and calls everything else opaque. It is pure and takes time linear
// in the line; no text makes it fail.
func ParseShell(line string) Script {
	p := shellParser{src: line, rest: -1}
	p.out.Scopes = append(make([]int, 0, 4), -1)
	if len(line) > maxShellLine {
		p.note("longer than 8 KiB")
	}
	if line != "" && (line[0] == '-' || line[0] == '+') {
		p.note("the shell takes it for an option") // what "sh -c" is given next
	}
	p.survey()
	p.list()
	if p.pos < len(p.src) {
		p.stop("does not parse as shell")
	}
	if len(p.pending) > 0 {
		p.stop("here-document without end")
	}
	p.checkVariables()
	if p.rest >= 0 {
		p.guess(line[p.rest:])
	}
	return p.out
}

type shellParser struct {
	src  string // the line, or the text of a backquoted substitution
	pos  int
	out  Script
	dead bool // reading has stopped
	rest int  // where in the line, -1 if it has not
	tick int  // where in the line the outermost backquoted substitution starts
	back int  // backquoted substitutions around pos

	depth, scope          int
	subst, maybe, repeats bool
	pending               []hereDoc
	pendBase              int      // pending entries before it belong to commands around a substitution
	heres, compounds      int      // here-documents and compound commands so far
	copies                int      // redirections of compound commands recorded with the commands in them
	arena                 []Word   // where commands that are not in another one's words keep their words
	busy                  bool     // such a command is being read
	buf                   []byte   // the texts of the words being read
	arith                 []string // variables whose value is evaluated as arithmetic
}

// note makes the script opaque; reading goes on, for the sake of warnings.
func (p *shellParser) note(why string) {
	if p.out.Opaque == "" {
		p.out.Opaque = why
	}
}

// stop makes the script opaque and ends the reading here.
func (p *shellParser) stop(why string) {
	p.note(why)
	if !p.dead {
		p.dead, p.rest = true, p.pos
		if p.back > 0 {
			p.rest = p.tick
		}
	}
	p.src = p.src[:min(p.pos, len(p.src))]
}

func (p *shellParser) at() byte { return p.ahead(0) }

// ahead returns the byte n after the next one, 0 at the end.
func (p *shellParser) ahead(n int) byte {
	if p.pos+n < len(p.src) {
		return p.src[p.pos+n]
	}
	return 0
}

// survey refuses what shells or terminals may take in different ways, and makes
// room for what the line may hold.
func (p *shellParser) survey() {
	ascii, separators, blanks := true, 1, 1
	for i := 0; i < len(p.src); i++ {
		switch c := p.src[i]; {
		case c == ' ' || c == '\t':
			blanks++
		case c == '\n' || c == ';' || c == '|' || c == '&' || c == '(' || c == '`':
			separators++
		case c < ' ' || c == 0x7f:
			p.note("control character")
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	p.out.Commands = make([]Simple, 0, min(separators, 4+len(p.src)/24))
	p.arena = make([]Word, 0, min(separators+blanks, wordChunk))
	if ascii {
		return
	}
	if !utf8.ValidString(p.src) {
		p.note("not valid UTF-8")
	} else if oldBash && strings.IndexByte(p.src, 0xa0) >= 0 {
		p.note("a character that bash 3.2 may split")
	} else if strings.ContainsFunc(p.src, func(r rune) bool { return r >= 0x80 && r < 0xa0 }) {
		p.note("control character")
	}
}

// What a byte can mean where no quote is open.
const (
	bytePlain   = iota
	byteEnd     // ends a word
	byteSpecial // quotes, expands or is a pattern
)

var byteClass = func() (t [256]uint8) {
	for _, c := range "\x00 \t\n;&|<>()" {
		t[c] = byteEnd
	}
	for _, c := range "'\"\\$`*?[{~" {
		t[c] = byteSpecial
	}
	return t
}()

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

// continued reports a line continuation at pos. Where one cannot be told from
// part of an operator or name, the callers stop.
func (p *shellParser) continued() bool { return p.at() == '\\' && p.ahead(1) == '\n' }

// blanks skips what may stand between two tokens of a line.
func (p *shellParser) blanks() {
	for {
		switch c := p.at(); {
		case c == ' ' || c == '\t':
			p.pos++
		case c == '\\' && p.ahead(1) == '\n':
			if len(p.pending) > 0 {
				p.stop("line continuation before a here-document")
				return
			}
			p.pos += 2
		case c == '#':
			if p.back > 0 {
				p.stop("comment in backquotes")
				return
			}
			n := strings.IndexByte(p.src[p.pos:], '\n')
			if n < 0 {
				n = len(p.src) - p.pos
			}
			p.pos += n
		default:
			return
		}
	}
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
	if len(p.pending) == 0 {
		return
	}
	if p.pendBase > 0 {
		p.stop("here-document around a substitution of several lines")
		return
	}
	for i := 0; i < len(p.pending) && !p.dead; i++ {
		p.hereBody(p.pending[i])
	}
	p.pending = p.pending[:0]
}

// keyword returns the reserved word of any shell that stands at pos, "" if none
// does. Only where a command may start is it one.
func (p *shellParser) keyword() string {
	i := p.pos
	for i < len(p.src) && i < p.pos+9 && (p.src[i] >= 'a' && p.src[i] <= 'z' || strings.IndexByte("!{}[", p.src[i]) >= 0) {
		i++
	}
	w := p.src[p.pos:i]
	if !isKeyword(w) {
		return ""
	}
	if i < len(p.src) && byteClass[p.src[i]] != byteEnd {
		return "" // where a line continuation follows, see simple
	}
	return w
}

// isKeyword knows the reserved words of both shells, but for "time": in bash it
// starts a pipeline, in dash a program, see opaqueTime.
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
		p.stop("does not parse as shell")
		return
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
		p.blanks()
		switch p.at() {
		case ';':
			if c := p.ahead(1); c != ';' && c != '&' {
				p.pos++
			}
		case '&':
			p.pos++
			if p.at() == '>' || p.continued() {
				p.stop("&>")
			}
			p.rescope(first, scopes)
		case '\n', ')':
		default:
			if p.pos < len(p.src) {
				p.stop("does not parse as shell")
			}
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
		p.stop("does not parse as shell")
	}
}

func (p *shellParser) andOr() {
	maybe := p.maybe
	p.pipeline()
	for p.blanks(); p.at() == '&' && p.ahead(1) == '&' || p.at() == '|' && p.ahead(1) == '|'; p.blanks() {
		p.pos += 2
		p.linebreak()
		p.maybe = true
		p.pipeline()
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
	first, scopes, outer := len(p.out.Commands), len(p.out.Scopes), p.scope
	p.command()
	p.blanks()
	for n := 0; p.at() == '|' && p.ahead(1) != '|'; n++ {
		p.pos++
		if n == 0 {
			p.rescope(first, scopes)
		}
		if p.at() == '&' {
			p.note("|&")
			p.pos++
		}
		p.linebreak()
		start := len(p.out.Commands)
		p.scope = p.newScope(outer)
		p.command()
		p.feed(first, start)
		first = start
		p.blanks()
	}
	p.scope = outer
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

// feed records that the commands from start on read what those from first on
// write, unless something nearer gives them their input.
func (p *shellParser) feed(first, start int) {
	var feeders []int
	for i := start; i < len(p.out.Commands); i++ {
		c := &p.out.Commands[i]
		if c.stdinSet {
			continue
		}
		if feeders == nil {
			for j := first; j < start; j++ {
				if p.subst || !p.out.Commands[j].Subst {
					feeders = append(feeders, j)
				}
			}
		}
		c.stdinSet, c.PipedIn, c.Feeders = true, true, feeders
	}
}

func (p *shellParser) command() {
	first := len(p.out.Commands)
	maybe, repeats := p.maybe, p.repeats
	kw := p.keyword()
	switch kw {
	case "":
		if p.at() != '(' {
			p.simple()
			return
		}
		p.subshell()
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
		p.expect("do")
		p.maybe = true
		p.block()
		p.expect("done")
	case "for":
		p.forClause()
	case "case":
		p.caseClause()
	case "[[", "coproc", "function", "select":
		p.stop("bash's " + kw)
	default:
		p.stop("does not parse as shell")
	}
	p.compounds++
	p.maybe, p.repeats = maybe, repeats
	p.trailing(first)
}

func (p *shellParser) subshell() {
	p.pos++
	if p.at() == '(' || p.continued() {
		p.stop("((")
	}
	outer := p.scope
	p.scope = p.newScope(outer)
	p.block()
	p.scope = outer
	if p.at() != ')' {
		p.stop("does not parse as shell")
		return
	}
	p.pos++
}

func (p *shellParser) ifClause() {
	for kw := "if"; ; kw = "elif" {
		p.pos += len(kw)
		p.block()
		p.expect("then")
		p.maybe = true
		p.block()
		if p.keyword() != "elif" {
			break
		}
	}
	if p.keyword() == "else" {
		p.pos += len("else")
		p.block()
	}
	p.expect("fi")
}

func (p *shellParser) forClause() {
	p.pos += len("for")
	p.blanks()
	loop := Loop{Name: p.name()}
	if loop.Name == "" || isKeyword(loop.Name) || byteClass[p.at()] != byteEnd {
		p.stop("does not parse as shell")
	}
	p.checkSpecial(loop.Name)
	p.blanks()
	if p.at() == ';' {
		p.pos++
		p.linebreak()
	} else if p.linebreak(); p.keyword() == "in" {
		p.pos += len("in")
		words, own := p.room()
		for p.blanks(); !p.wordEnds(); p.blanks() {
			words = append(words, Word{})
			p.word(&words[len(words)-1], false)
		}
		if loop.Words = p.keep(words, own); loop.Words == nil {
			loop.Words = []Word{}
		}
		switch p.at() {
		case ';':
			p.pos++
		case '\n':
		default:
			p.stop("does not parse as shell")
		}
		p.linebreak()
	}
	p.expect("do")
	n := len(p.out.Loops)
	loop.First = len(p.out.Commands)
	p.out.Loops = append(p.out.Loops, loop)
	p.maybe, p.repeats = true, true
	p.block()
	p.expect("done")
	p.out.Loops[n].End = len(p.out.Commands)
}

func (p *shellParser) caseClause() {
	p.pos += len("case")
	p.blanks()
	p.pattern()
	p.linebreak()
	p.expect("in")
	for p.linebreak(); p.keyword() != "esac" && !p.dead; p.linebreak() {
		if p.at() == '(' {
			p.pos++
			p.blanks()
		}
		for p.pattern(); p.at() == '|'; p.pattern() {
			p.pos++
			p.blanks()
		}
		if p.at() != ')' {
			p.stop("does not parse as shell")
			return
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
	var w Word
	if p.word(&w, false); w.Raw == "" || isKeyword(w.Text) {
		p.stop("does not parse as shell")
	}
	p.blanks()
}

// trailing reads the redirections of a compound command and records them with
// the commands in it.
func (p *shellParser) trailing(first int) {
	var outer []Redir
	for p.blanks(); p.redir(&outer); p.blanks() {
	}
	for i := first; i < len(p.out.Commands) && outer != nil; i++ {
		if p.copies += len(outer); p.copies > maxCopies {
			p.stop("too many redirections around commands")
			return
		}
		c := &p.out.Commands[i]
		list := make([]Redir, 0, len(outer)+len(c.Redirs))
		set := c.stdinSet
		for _, r := range outer {
			if r.Fd == 0 && c.stdinSet {
				continue
			}
			set = set || r.Fd == 0
			r.Outer = i > first
			list = append(list, r)
		}
		c.Redirs, c.stdinSet = append(list, c.Redirs...), set
	}
}

// simple reads a simple command.
func (p *shellParser) simple() {
	n, start := len(p.out.Commands), p.pos
	p.out.Commands = append(p.out.Commands, Simple{Subst: p.subst, Maybe: p.maybe, Repeats: p.repeats, Scope: p.scope})
	var redirs []Redir
	var assigns []Assign
	words, own := p.room()
	for p.blanks(); !p.dead; p.blanks() {
		if p.redir(&redirs) || len(words) == 0 && p.assign(&assigns) {
			continue
		}
		if p.wordEnds() {
			break
		}
		first := len(words) == 0
		words = append(words, Word{})
		w := &words[len(words)-1]
		p.word(w, false)
		switch {
		case p.at() == '(':
			p.stop("( after a word: a function, an array or an extended pattern")
		case p.descriptor(w):
			p.stop("bash's descriptor before a redirection")
		case first && isKeyword(w.Raw):
			p.stop("reserved word after an assignment or redirection")
		case first && isKeyword(w.Text) && strings.Contains(w.Raw, "\\\n"):
			p.stop("line continuation in a reserved word")
		}
	}
	s := &p.out.Commands[n]
	s.Words, s.Redirs, s.Assigns = p.keep(words, own), redirs, assigns
	for _, r := range redirs {
		s.stdinSet = s.stdinSet || r.Fd == 0
	}
	switch {
	case len(words) > 0 && !words[0].Const:
		p.note(notConstant)
	case len(words) > 0:
		p.testOperands(words)
		if why := opaqueBuiltin(words, redirs != nil); why != "" {
			p.note(why)
			p.guess(p.src[start:min(p.pos, len(p.src))])
		}
	case len(redirs)+len(assigns) == 0:
		p.stop("does not parse as shell")
	}
}

// room returns an empty list for the words of a command or loop, and whether it
// is the end of the arena.
func (p *shellParser) room() ([]Word, bool) {
	if p.busy {
		return nil, false
	}
	p.busy = true
	if len(p.arena) == cap(p.arena) {
		p.arena = make([]Word, 0, wordChunk) // what the old one holds stays there
	}
	return p.arena[len(p.arena):], true
}

// keep ends a list of words from room.
func (p *shellParser) keep(words []Word, own bool) []Word {
	if own {
		p.busy = false
		// If they outgrew it, append has moved them out of the arena.
		p.arena = p.arena[:min(len(p.arena)+len(words), cap(p.arena))]
	}
	return words[:len(words):len(words)]
}

// assign adds an assignment to list, if one stands here.
func (p *shellParser) assign(list *[]Assign) bool {
	start := p.pos
	name := p.name()
	switch {
	case name == "":
		return false
	case p.at() == '=':
		p.pos++
		a := Assign{Name: name}
		p.word(&a.Value, true)
		if p.at() == '(' {
			p.stop("bash's array")
		}
		p.checkSpecial(name)
		*list = append(*list, a)
		return true
	case p.at() == '[' || p.at() == '+' && p.ahead(1) == '=':
		p.stop("bash's assignment to an array, or +=")
		return true
	case p.continued():
		for p.continued() || isNameByte(p.at(), false) {
			p.pos++
			if p.at() == '\n' {
				p.pos++
			}
		}
		if c := p.at(); c == '=' || c == '[' || c == '+' {
			p.stop("line continuation in a name")
			return true
		}
	}
	p.pos = start
	return false
}
