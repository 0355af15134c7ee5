package tools

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The differential test runs lines under real shells in which every word that
// the lines are made of is also the name of a program that leaves a mark. What
// left one must have been announced.

// shellStubs are the programs: letters, and the words that shells treat in a
// special way. Those that start with f fail.
var shellStubs = strings.Fields(`a b c d e f fa 1 2 12 0 x x= x=1 a=b a+=b a[1]=b a[1] {a} {a,b} {a {} a} a#b #a -a -p -v --
	! { } [[ ]] case coproc do done elif else esac fi for function if in select then time until while
	git curl cat id diff ls tee nc tr wc sed find env gofmt bash sh python3 read test prog
	~ * ? $x $a $ $0 % , : = @ ] ^ + - . .. \ ' " a-b a.b EOF E é Á ĂÇ Ćł̂ň 漢 eval exec command ab ba aa bb fi; a; b; a& $(a) (a) ((a)) a) (a`)

type realShell struct {
	name string // for messages
	path string
}

// realShells finds the shells and skips the test if one is missing.
func realShells(t *testing.T) []realShell {
	t.Helper()
	var found []realShell
	dir := t.TempDir()
	for _, name := range []string{"dash", "bash"} {
		path := needProgram(t, name, name)
		found = append(found, realShell{name, path})
		if name == "bash" {
			sh := filepath.Join(dir, "sh") // by this name bash is a POSIX shell
			if err := os.Symlink(path, sh); err != nil {
				t.Fatal(err)
			}
			found = append(found, realShell{"bash as sh", sh})
		}
	}
	return found
}

// stubMark leaves the mark of the program whose name and arguments are "$@".
const stubMark = "printf '%s\\037' \"\036$PICKET_LINE\" \"$@\" >>\"$PICKET_MARKS\""

// A startedProgram is a mark: which line started what.
type startedProgram struct {
	line int
	argv []string
}

// shellField is a place where lines can be run.
type shellField struct {
	dir   string
	stubs string
}

func newShellField(t *testing.T) shellField {
	t.Helper()
	f := shellField{dir: t.TempDir()}
	f.stubs = filepath.Join(f.dir, "stubs")
	if err := os.Mkdir(f.stubs, 0o700); err != nil {
		t.Fatal(err)
	}
	dash, err := exec.LookPath("dash")
	if err != nil {
		t.Fatal(err)
	}
	stub := filepath.Join(f.dir, "stub")
	script := "#!" + dash + "\nset -- \"${0##*/}\" \"$@\"\n" + stubMark + "\ncase $0 in */f*) exit 1; esac\n"
	if err := os.WriteFile(stub, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range shellStubs {
		if name == "." || name == ".." {
			continue
		}
		if err := os.Link(stub, filepath.Join(f.stubs, name)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// run executes the lines with numbers from first on and returns what they started.
// Direct means a shell of its own for each; if not, each has a subshell of one
// shell, which is faster and reads a line by the same rules. Quick lets functions
// stand in for the most frequent programs.
func (f shellField) run(t *testing.T, sh realShell, first int, lines []string, direct, quick bool) []startedProgram {
	t.Helper()
	dir, err := os.MkdirTemp(f.dir, "cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b1", "-a", "x y"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("a\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	marks := filepath.Join(f.dir, filepath.Base(dir)+".marks")
	var script strings.Builder
	script.WriteString("w='a b'; v='-a  *'; u=; k=7; export w v u k\n")
	for _, name := range strings.Fields("a b c d e f fa") {
		if quick {
			fmt.Fprintf(&script, "%s() { set -- %[1]s \"$@\"; %s; %t; }\n", name, stubMark, name[0] != 'f')
		}
	}
	start := "eval"
	if direct {
		start = "'" + sh.path + "' -c"
	}
	for i, line := range lines {
		fmt.Fprintf(&script, "(PICKET_LINE=%d; export PICKET_LINE; %s '%s') </dev/null\n", first+i, start, strings.ReplaceAll(line, "'", `'\''`))
	}
	path := marks + ".sh"
	if err := os.WriteFile(path, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, sh.path, path)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + f.stubs, "HOME=" + dir, "PICKET_MARKS=" + marks, "LC_ALL=C.UTF-8"}
	cmd.WaitDelay = 10 * time.Second
	out, _ := cmd.CombinedOutput() // to its end: commands in the background hold it open
	if ctx.Err() != nil {
		t.Fatalf("%s: lines from %d on do not end: %s", sh.name, first, out[max(0, len(out)-500):])
	}
	data, err := os.ReadFile(marks)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	os.RemoveAll(dir)
	var started []startedProgram
	for _, rec := range strings.Split(string(data), "\036")[1:] {
		fields := strings.Split(strings.TrimSuffix(rec, "\037"), "\037")
		n, err := strconv.Atoi(fields[0])
		if err != nil || n < first || n >= first+len(lines) || len(fields) < 2 {
			t.Fatalf("%s: bad mark %q", sh.name, rec)
		}
		started = append(started, startedProgram{n, fields[1:]})
	}
	return started
}

// announced reports whether a script says that argv can be started.
func announced(s Script, argv []string) bool {
	return slices.ContainsFunc(s.Commands, func(c Simple) bool {
		for words := c.Words; len(words) > 0; words = words[1:] {
			if words[0].Text == argv[0] && wordsMatch(words, argv) {
				return true
			}
			// These start what follows them: as words of the shell, not as stubs.
			if !slices.Contains([]string{"time", "exec", "command", "-p", "--"}, words[0].Text) {
				break
			}
		}
		return false
	})
}

// wordsMatch reports whether argv can come of words, given what each says of
// its fields.
func wordsMatch(words []Word, argv []string) bool {
	if len(words) == 0 {
		return len(argv) == 0
	}
	w := words[0]
	if w.Const {
		return len(argv) > 0 && argv[0] == w.Text && wordsMatch(words[1:], argv[1:])
	}
	if w.Fields && wordsMatch(words[1:], argv) {
		return true
	}
	if len(argv) == 0 || !strings.HasPrefix(argv[0], w.Prefix) {
		return false
	}
	return wordsMatch(words[1:], argv[1:]) || w.Fields && wordsMatch(words, argv[1:])
}

// compareWithShells checks that each analysable line starts nothing that its
// script does not announce, and returns how many lines there were, and how many
// programs ran. Without every, each line meets dash and one kind of bash.
func compareWithShells(t *testing.T, shells []realShell, lines []string, every, direct bool) (analysable, ran int) {
	t.Helper()
	var scripts []Script
	var keep []string
	for _, l := range lines {
		if s := ParseShell(l); s.Opaque == "" {
			scripts, keep = append(scripts, s), append(keep, l)
		}
	}
	field := newShellField(t)
	const batch = 100
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	for first := 0; first < len(keep); first += batch {
		part := keep[first:min(first+batch, len(keep))]
		for i, sh := range shells {
			if !every && i > 0 && i-1 != (first/batch)%2 {
				continue
			}
			wg.Add(1)
			slots <- struct{}{}
			go func() {
				defer func() { <-slots; wg.Done() }()
				started := field.run(t, sh, first, part, direct, !every)
				mu.Lock()
				defer mu.Unlock()
				ran += len(started)
				for _, m := range started {
					if !announced(scripts[m.line], m.argv) {
						t.Errorf("%s started %q, not announced, from %q", sh.name, m.argv, keep[m.line])
					}
				}
			}()
		}
	}
	wg.Wait()
	return len(keep), ran
}

// TestShellAgainstRealShells runs a sample of generated lines; with
// PICKET_TEST_FULL=1 it runs many more, each under every shell. PICKET_TEST_SEED
// makes other lines.
func TestShellAgainstRealShells(t *testing.T) {
	t.Parallel()
	shells := realShells(t)
	n, every := 1500, false
	if os.Getenv("PICKET_TEST_FULL") == "1" {
		n, every = 24000, true
	}
	seed := uint64(1)
	if s := os.Getenv("PICKET_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = v
	}
	g := lineGenerator{r: rand.New(rand.NewPCG(seed, 7))}
	lines := make([]string, n)
	for i := range lines {
		lines[i] = g.line()
	}
	analysable, ran := compareWithShells(t, shells, lines, every, false)
	t.Logf("%d lines, %d of them analysable, %d programs started", n, analysable, ran)
	if analysable < n/2 || ran < analysable {
		t.Errorf("%d of %d lines are analysable and started %d programs: too few to prove anything", analysable, n, ran)
	}
}

func TestShellLinesUnderRealShells(t *testing.T) {
	t.Parallel()
	shells := realShells(t)
	var lines []string
	for _, c := range understoodLines {
		lines = append(lines, c.line)
	}
	for _, c := range opaqueLines {
		lines = append(lines, c.line) // those that are opaque are not run
	}
	analysable, ran := compareWithShells(t, shells, lines, true, true)
	if analysable != len(understoodLines) || ran < 3*analysable {
		t.Errorf("%d lines started %d programs", analysable, ran)
	}
}

// A lineGenerator makes command lines: most by the grammar, some then damaged.
type lineGenerator struct {
	r     *rand.Rand
	b     strings.Builder
	here  []string // bodies of the here-documents since the last line end
	loops bool     // a loop that could run for ever was made
	flat  int      // no line ends here
}

func (g *lineGenerator) pick(list ...string) string { return list[g.r.IntN(len(list))] }
func (g *lineGenerator) one(n int) bool             { return g.r.IntN(n) == 0 }
func (g *lineGenerator) put(s ...string)            { g.b.WriteString(strings.Join(s, "")) }

func (g *lineGenerator) line() string {
	g.b.Reset()
	g.here, g.loops = nil, false
	if g.one(5) {
		return g.soup()
	}
	g.list(0)
	if len(g.here) > 0 {
		g.newline()
	}
	line := g.b.String()
	if !g.loops && g.one(4) {
		for range 1 + g.r.IntN(2) {
			line = g.damage(line)
		}
	}
	return line
}

// soup is a row of tokens that no grammar holds together, but for closing what
// was opened most of the time.
func (g *lineGenerator) soup() string {
	var open []string
	for range 2 + g.r.IntN(9) {
		if len(open) > 0 && g.one(3) {
			g.put(open[len(open)-1])
			open = open[:len(open)-1]
			continue
		}
		t := g.pick("a", "b", "c", "a b", "'a'", "\"a b\"", "\\a", "$w", "\"$v\"", "x=", "x=a", "$(a)", "`b`", "*", "{a,b}", "~", "#", " # a", "$((1))", "é", "1", "2", "-a",
			"if ", "if a", "(", "( ", "{ ", "$(", "$( ", "\"", "\"$(", "`", "'", "case a in a) ", "for x in a; do ", "for x ", "in ", "! ", "<<E ", "<<'E'\n", "<<-E", "E", "\nE\n", "\t", "time ",
			";", ";", ";;", "&", "&&", "|", "||", "\n", "\\\n", "<", ">", ">>", ">&", "<&", "<>", ">|", ")", "}", "then ", "else ", "fi", "do ", "done", "esac", "$", "=", "[", "]", "exec ", "command ")
		g.put(t)
		switch t {
		case "if ", "if a":
			open = append(open, "; then b; fi")
		case "(", "( ", "$(", "$( ":
			open = append(open, ")")
		case "{ ":
			open = append(open, "; }")
		case "\"", "'", "`":
			open = append(open, t)
		case "\"$(":
			open = append(open, ")\"")
		case "case a in a) ":
			open = append(open, ";; esac")
		case "for x in a; do ":
			open = append(open, "; done")
		case "<<E ", "<<'E'\n", "<<-E":
			open = append([]string{"\nE\n"}, open...)
		}
		g.put(g.pick("", "", " "))
	}
	for len(open) > 0 {
		g.put(open[len(open)-1])
		open = open[:len(open)-1]
	}
	return g.b.String()
}

// damage makes one change that may turn one construct into another.
func (g *lineGenerator) damage(line string) string {
	i := g.r.IntN(len(line) + 1)
	switch g.r.IntN(5) {
	case 0:
		return line[:i] + line[min(i+1, len(line)):]
	case 1, 2:
		return line[:i] + g.pick(" ", ";", "&", "|", "<", ">", "(", ")", "{", "}", "$", "`", "'", "\"", "\\", "\n", "#", "=", "*", "?", "[", "]", "!", "~",
			",", "-", "+", "%", "0", "1", "x", "a", "\t", "\\\n", "é") + line[i:]
	case 3:
		j := i + g.r.IntN(min(6, len(line)-i+1))
		return line[:j] + line[i:j] + line[j:]
	default:
		return line[:i] + g.pick("$'a'", "$\"a\"", "${a}", "${a:-b}", "${a#b}", "<<<a", "|&", "&>a", ">&a", ">&1", ";&", ";;", "a+=b", "a[1]=b", "a=(b)", "# a",
			"`a`", "$(a)", "$( (a) )", "$((1))", "$((k+1))", "((a))", "<(a)", ">(a)", "<<a", "<<-a", "<<'E'", "\na\n", "\nE\n", "{x}>b", "12>a", "2>&1", ">|a", "<>a",
			" esac ", " in ", " do ", " done\n", " fi ", "}", " { ", "!", "&&", "||", "$[1]", "$", "$$", "$?", "\"", "'", "a()", "{a,b}", "{1..3}", "~", "time ", "\\\n",
			"if a; then b; fi", "case a in a) b;; esac", "exec a", "command a", "eval a", ". a", "x= ", "\\`", "'\\''", "[[ a ]]", "coproc a", "function a", "select a") + line[i:]
	}
}

func (g *lineGenerator) newline() {
	g.put("\n")
	here := g.here
	g.here = nil
	for _, h := range here {
		g.put(h)
	}
}

// sep ends a command.
func (g *lineGenerator) sep() {
	switch n := g.r.IntN(8); {
	case n < 3 || g.flat > 0 && n < 7:
		g.put(g.pick(";", " ; ", "; ", ";\t"))
	case n == 7:
		g.put(g.pick("&", " & ", "& "))
	default:
		g.put(g.pick("", "", "", "", " ", " # a; b", " # it's )", " # \"`$(\\"))
		g.newline()
		g.put(g.pick("", "", "\t", "\n", "# it's\n", " \\\n "))
	}
}

// blank stands between words.
func (g *lineGenerator) blank() {
	if g.one(30) && len(g.here) == 0 && g.flat == 0 {
		g.put(g.pick(" \\\n", "\\\n ", " \\\n\\\n\t"))
		return
	}
	g.put(g.pick(" ", " ", " ", "  ", "\t"))
}

// linebreak stands where a command may go on in the next line.
func (g *lineGenerator) linebreak() {
	if g.one(6) && g.flat == 0 {
		g.put(g.pick("", " # a"))
		g.newline()
	}
	g.put(g.pick("", " "))
}

func (g *lineGenerator) list(depth int) {
	for i := range 1 + g.r.IntN(2)*g.r.IntN(2+depth%2) {
		if i > 0 {
			g.sep()
		}
		g.andOr(depth)
	}
	if g.one(5) {
		g.sep()
	}
}

// closed is a list that a reserved word can follow.
func (g *lineGenerator) closed(depth int) {
	g.put(" ")
	g.andOr(depth + 1)
	for g.one(6) {
		g.sep()
		g.andOr(depth + 1)
	}
	g.sep()
}

func (g *lineGenerator) andOr(depth int) {
	g.pipeline(depth)
	for g.one(6) {
		g.put(g.pick("&&", "||", " && ", " || "))
		g.linebreak()
		g.pipeline(depth)
	}
}

func (g *lineGenerator) pipeline(depth int) {
	if g.one(12) {
		g.put("! ")
	}
	g.command(depth)
	for g.one(8) {
		g.put(g.pick("|", " | "))
		g.linebreak()
		g.command(depth)
	}
}

func (g *lineGenerator) command(depth int) {
	if depth > 3 || !g.one(5) {
		g.simple(depth)
		return
	}
	switch g.r.IntN(8) {
	case 0:
		g.put("{")
		g.closed(depth)
		g.put("}")
	case 1:
		g.put("(", g.pick(" ", "", " "))
		if s := g.b.String(); s[len(s)-1] == '(' {
			g.simple(depth + 1)
		} else {
			g.list(depth + 1)
		}
		g.put(g.pick("", " "), ")")
	case 2, 3:
		g.put("if")
		g.closed(depth)
		g.put("then")
		g.closed(depth)
		for g.one(4) {
			g.put("elif")
			g.closed(depth)
			g.put("then")
			g.closed(depth)
		}
		if g.one(3) {
			g.put("else")
			g.closed(depth)
		}
		g.put("fi")
	case 4:
		g.loops = true
		g.put(g.pick("while fa", "until a", "while ! a"))
		if g.one(2) {
			g.put(" && ")
			g.simple(depth + 1)
			g.put("; fa")
			g.put("; do")
			g.closed(depth)
			g.put("break; done")
			break
		}
		g.put(g.pick("; do", " ; do", "\ndo"))
		if s := g.b.String(); s[len(s)-3] == '\n' && (g.flat > 0 || len(g.here) > 0) {
			g.put(" a; done | esac") // whatever it is, it is one line
			break
		}
		g.closed(depth)
		g.put("break; done")
	case 5:
		g.put("for ", g.pick("x", "y", "a"))
		if g.one(6) {
			g.put(g.pick(" do", "; do"))
		} else {
			g.put(" in")
			for range g.r.IntN(4) {
				g.blank()
				g.word(depth + 1)
			}
			if g.one(4) && g.flat == 0 {
				g.newline()
				g.put(g.pick("do", " do", "# a\ndo"))
			} else {
				g.put(g.pick("; do", " ; do", ";do"))
			}
		}
		g.closed(depth)
		g.put("done")
	default:
		g.put("case ")
		g.word(depth + 1)
		g.put(g.pick(" in", " in "))
		g.linebreak()
		for range g.r.IntN(3) {
			g.put(" ", g.pick("", "("), g.pick("a", "*", "a|b", "a | b", "[ab]", "'a b'", "$x", "?", "\"$w\"", "é", "Á", "'ň'", "--", "7"), g.pick(")", " ) "))
			if g.one(5) {
				g.linebreak()
			} else {
				g.list(depth + 1)
			}
			g.put(g.pick(";;", " ;; ", ";; "))
			g.linebreak()
		}
		if g.one(3) {
			g.put(" *) ")
			g.closed(depth)
		}
		g.put(" esac")
	}
	for g.one(4) {
		g.put(" ")
		g.redirection(depth)
	}
}

func (g *lineGenerator) simple(depth int) {
	for g.one(10) {
		g.put(g.pick("x", "y", "z"), "=")
		if !g.one(4) {
			g.word(depth + 1)
		}
		g.put(" ")
	}
	for g.one(14) {
		g.redirection(depth)
		g.put(" ")
	}
	if g.one(25) {
		g.put(g.pick("exec ", "command ", "time ", "time -p ", "command -p ", "command -- "))
	}
	if g.one(30) {
		g.put(g.pick("[ a = \"$w\" ]", "test -n \"$v\"", "[ $# -gt 0 ]", "[ -f a -o 'b' = 'c' ]", "set -eu", "cd a", "echo $w", "printf '%s\\n' \"$v\"", "export x=\"$w\"", "wait $!", "exit 3", "true", "Á", "\\漢 ", "'ňĄ'"))
		return
	}
	g.put(g.pick("a", "b", "c", "d", "e", "f", "fa", "a", "b", "c", "'a'", "\"b\"", "\\c", "a''", "\"\"d", "\"if\"", "\\{", "'!'", "'time'", "\\case", "é", "a#b", "{a}", "}a",
		"-a", "'a=b'", "a\\=b", "\"x\"=1", "'*'", "]", "%", "1", "12", "\\$x", "'$(a)'", "$", "a\\\nb", "'a;'", "\"a&\"", "'('a\\)", "^", ",", ":", "[", "test"))
	for g.r.IntN(9) > 4 {
		if g.one(8) {
			g.put(g.pick(" ", ""))
			g.redirection(depth)
			continue
		}
		g.blank()
		g.word(depth)
	}
}

func (g *lineGenerator) redirection(depth int) {
	if g.one(4) {
		g.heredoc(depth)
		return
	}
	s := g.b.String()
	if s != "" && s[len(s)-1] >= '0' && s[len(s)-1] <= '9' {
		g.put(" ")
	}
	g.put(g.pick("", "", "", "2", "1", "0", "3"), g.pick(">", ">>", "<", ">|", "<>", "> ", "< "), g.pick("a", "b", "'c d'", "x1", "\"$w\"", "$u", "if", "$(a)"))
	if g.one(3) {
		g.put(g.pick(" 2>&1", " >&2", " 2>&-", " <&-", " 1>& 2"))
	}
}

func (g *lineGenerator) heredoc(depth int) {
	delim := g.pick("E", "EOF", "a", "if")
	op := g.pick("<<", "<<", "<<-", "<< ", "0<<")
	if s := g.b.String(); s != "" && s[len(s)-1] >= '0' && s[len(s)-1] <= '9' {
		op = " <<"
	}
	quoted := g.one(2)
	if g.flat > 0 {
		return
	}
	g.put(op, map[bool]string{true: g.pick("'"+delim+"'", "\""+delim+"\"", "\\"+delim), false: delim}[quoted])
	var body strings.Builder
	tab := ""
	if op == "<<-" {
		tab = g.pick("", "\t", "\t\t")
	}
	for range g.r.IntN(4) {
		body.WriteString(tab)
		body.WriteString(g.pick("a", "a; b", "it's", "\"a", "$(a)", "`b`", "$w ${k} $((1+2))", "\\$(a) \\`", "a \\\nb", "# a", "$(a 'b' \"c\")", "\\\\", "$", "( {", ")", "a\\", "E O F", " EOF", "fi", "`a \\`b\\``", "é", "Á$(Á Ă)Ă", "\\Á", "`ň Ą`"))
		body.WriteByte('\n')
	}
	body.WriteString(tab + delim + "\n")
	g.here = append(g.here, body.String())
}

// nested writes the commands of a substitution.
func (g *lineGenerator) nested(depth int) {
	outer := g.here
	g.here = nil
	if len(outer) > 0 || g.one(2) {
		g.flat++
		defer func() { g.flat-- }()
	}
	if g.flat == 0 && g.one(4) {
		g.put(g.pick("a", "b c", "! a", "'d'"), " ")
		g.heredoc(depth)
		g.put(g.pick("", "", " 2>&1", " e"))
	} else {
		g.list(depth + 2)
	}
	if len(g.here) > 0 {
		g.newline()
	}
	g.here = outer
}

func (g *lineGenerator) word(depth int) {
	for n := 1 + g.r.IntN(5)/4; n > 0; n-- {
		if depth > 3 {
			g.put(g.pick("a", "b", "c"))
			return
		}
		switch g.r.IntN(24) {
		default:
			g.put(g.pick("a", "b", "c", "d", "e", "ab", "if", "do", "done", "esac", "in", "}", "{", "!", "1", "2", "12", "-a", "a=b", "a=", "x+=1", "#a"[1:], "a#b", "é", "Á", "ĂÇ", "Ćł̂ň", "漢", "fi", "%", "^",
				",", ":", "@", "=", "]", "a{b}c", "{}", "a..b", "time", "[[", "--", "+", "."))
		case 1:
			g.put(g.pick("'a b'", "'$(a)'", "'`b`'", "'a;b'", "'\"'", "''", "'Á'", "'a\nb'", "'a|b'", "'#'", "'\\'", "'*'", "'{a,b}'"))
		case 2, 3:
			g.put("\"")
			for range g.r.IntN(3) {
				switch g.r.IntN(6) {
				case 0:
					g.put("$(")
					g.nested(depth)
					g.put(g.pick(")", " )"))
				case 1:
					g.put("`", g.pick("a", "b c", "a; b", "a 'b'", "a \\`b\\`", "a \\$x", "a | b", "", "if a; then b; fi", "a \\\\\\\\ b", "a \\\\\\$x", "a \"b\"", "a <<E\nb $w\nE\n", "a\nb"), "`")
				default:
					g.put(g.pick("a", " ", "$w", "${v}", "$", "\\$(a)", "\\\"", "\\\\", "\\a", "'", "#", ";", "&", "|", "(", ")", "*", "~", "{a,b}", "$k", "$((k+1))", "$@", "$*", "$?", "\\`", "é", "Á", "\\ĂÇ", "$'", "<<E"))
				}
			}
			g.put("\"")
		case 4:
			g.put(g.pick("\\a", "\\ ", "\\;", "\\&", "\\|", "\\(", "\\)", "\\$", "\\`", "\\\"", "\\'", "\\#", "\\*", "\\<", "\\\\", "\\{", "\\é"))
		case 5, 6:
			g.put(g.pick("$w", "${w}", "$v", "$u", "$k", "$?", "$#", "$1", "$@", "$*", "${12}", "$", "a$", "$%", "$w$v", "$k-a", "a$v", "$x", "$y"))
		case 7:
			g.put("$(", g.pick("", " ", ""))
			s := g.b.String()
			g.nested(depth)
			if rest := g.b.String()[len(s):]; strings.HasPrefix(rest, "(") {
				text := s + " " + rest
				g.b.Reset()
				g.put(text)
			}
			g.put(g.pick(")", " )"))
		case 8:
			g.put("`", g.pick("a", "b c", "a; b", "a \"b\"", "a 'b c'", "a \\`b\\`", "\\$x", "a \\$w", "a $w", "a | b", "", " ", "a \\\\a", "a & b", "{ a; }", "(a)"), "`")
		case 9:
			g.put(g.pick("*", "?", "[ab]*", "a*", "*1", "[", "[]", "a[", "-*", "[!a]*", "x\\ *", "'x '*", "?*\"y\""))
		case 10:
			g.put(g.pick("$((1))", "$((1+2))", "$(( (1+2)*3 ))", "$((1<2))", "$((1<<2))", "$((2>=1?3:4))", "$(((1)))", "$((~1))", "$((!1))", "$((0x1f))", "$((010))", "$(($?+$#))"))
		case 11:
			g.put(g.pick("{a,b}", "a{b,c}d", "{1..3}", "{a,b}{c,d}", "~", "~a", "a=~", "a:~", "a~", "{a,\"b\"}", "\\{a,b}", "{\"a,b\"}"))
		}
	}
}
