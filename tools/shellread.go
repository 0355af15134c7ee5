package tools

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// builtin handles what the shell does itself and reports whether it did.
func (a *analysis) builtin(name string, c *command) bool {
	args := c.words[1:]
	why := new(shellParser).hides(c.words, false)
	if why != "" { // the parser has not looked behind wrappers
		a.setOpaque(why)
	}
	switch name {
	case "cd":
		a.cd(args, c)
	case "true", "false", ":", "echo", "pwd", "test", "[", "printf", "exit", "return", "break", "continue", "shift", "wait", "jobs", "fg", "bg",
		"umask", "ulimit", "times", "type", "set":
	case "read", "unset", "getopts":
		for i, w := range args {
			if w.Const && !strings.HasPrefix(w.Text, "-") && (name != "getopts" || i == 1) {
				a.setName(w.Text)
			}
		}
	case "export", "readonly":
		for _, w := range args {
			name, value, ok := strings.Cut(w.Text, "=")
			if !w.Const || !ok && !strings.HasPrefix(name, "-") {
				a.setOpaque("export of something that is not constant")
			} else if ok {
				a.assign(name, Word{Raw: value, Text: value, Const: true}, true)
			}
		}
	case "command", "exec":
		a.commandBuiltin(name, args, c)
		return true
	case "pushd", "popd": // of bash only
		c.cwd.at = []folder{{any: true}}
		a.setOpaque(name)
	default:
		if why == "" {
			return false
		}
		if (name == "." || name == "source") && len(args) > 0 {
			a.script(args[0], c) // what was asked about is what it reads
		}
		if name == "history" {
			a.warn("changes a log or a history")
		}
		if slices.ContainsFunc(args, substituted) {
			a.warn(name + " runs code that another command prints")
		}
		c.cwd.at = []folder{{any: true}}
	}
	if name == ":" {
		name = "true"
	}
	if !slices.Contains(a.builtins, name) {
		a.builtins = append(a.builtins, name)
	}
	return true
}

// commandBuiltin looks through "command", "exec" and "builtin".
func (a *analysis) commandBuiltin(name string, args []Word, c *command) {
	inner := *c
	inner.depth++
	for len(args) > 0 && args[0].Const && strings.HasPrefix(args[0].Text, "-") {
		opt := args[0].Text
		args = args[1:]
		switch {
		case opt == "--":
		case name == "command" && (opt == "-v" || opt == "-V"):
			return // only says what it would run
		case name == "command" && opt == "-p", name == "exec" && (opt == "-c" || opt == "-l"):
			inner.exec = name == "exec"
		default:
			a.setOpaque(fmt.Sprintf("%s %s is not analysed", name, opt))
		}
	}
	if name == "exec" {
		inner.exec = true
		if len(args) == 0 {
			a.setOpaque("exec with redirections")
		}
	}
	inner.words = args
	if inner.depth > maxDepth {
		a.setOpaque("too many programs within programs")
		return
	}
	a.command(inner)
}

// substituted reports whether a word holds the output of a command.
func substituted(w Word) bool {
	return !w.Const && (strings.Contains(w.Raw, "$(") || strings.Contains(w.Raw, "`"))
}

func isStdin(s string) bool {
	return s == "-" || s == "/dev/stdin" || s == "/dev/fd/0" || s == "/proc/self/fd/0"
}

// readInterpreter finds the code that a shell or another interpreter runs: in
// its arguments, in a file, or in its input.
func readInterpreter(a *analysis, c *command, o *options) {
	base := path.Base(c.call.word)
	p := lookupProgram(base)
	odd := o.unknown != "" || o.loose || o.firm() != "" && plusWord(o.operands[0])
	for _, set := range o.seen {
		odd = odd || set.name == "-o" && !listed(" pipefail errexit nounset xtrace noglob noclobber verbose posix ", set.val.Text)
	}
	if o.glued && p.shell {
		// To a shell the rest of "-cx" is options: its code comes after them all.
		a.setOpaque("letters after -c of " + base)
		return
	}
	if odd && p.shell {
		a.setOpaque("an option of " + base + " is not known")
	}
	if o.code != nil {
		a.code(base, p, *o.code, o.args, c)
		return
	}
	fromInput := odd || len(o.operands) == 0 || o.has("-s")
	if len(o.operands) > 0 && !fromInput {
		script := o.operands[0]
		if fromInput = script.Const && isStdin(script.Text); !fromInput {
			if substituted(script) {
				a.warn(base + " runs a file that another command names")
			}
			a.script(script, c)
			return
		}
	}
	switch {
	case !p.stdin && len(o.operands) == 0:
	case c.body != nil && p.shell:
		if !c.body.Const {
			a.setOpaque("a shell runs text that is not constant")
		} else {
			a.shellText(base, c.body.Text, c)
		}
	case c.body != nil:
		a.noSecret(base, *c.body)
		a.warn(base + " runs code from a here-document")
	case c.piped:
		a.warn(base + " runs code that comes through a pipe")
	case c.input != nil:
		opened := *c
		opened.cwd = c.inputAt
		a.script(*c.input, &opened)
	case c.fed:
		a.warn(base + " runs what it is given by another command")
	}
}

// code handles code that stands in an argument.
func (a *analysis) code(base string, p *program, code Word, args []Word, c *command) {
	a.noSecret(base, code)
	switch {
	case substituted(code):
		a.warn(base + " runs code that another command prints")
		fallthrough
	case !code.Const:
		if p.shell {
			a.setOpaque("a shell runs text that is not constant")
		}
	case p.shell:
		a.shellText(base, code.Text, c)
	case len(args) > 0 && args[0].Const: // python -m pip install
		if m := lookupProgram(code.Text); m != nil && m.net != "" && strings.Contains(m.net, " "+args[0].Text+" ") {
			a.network = true
		}
	}
	if c.fed && code.Raw == "" {
		a.warn(base + " runs what it is given by another command")
	}
}

// shellText analyses text that a shell runs as a line of its own. The shells
// that read it as sh does need no key themselves.
func (a *analysis) shellText(base, text string, c *command) {
	a.inner(text, c.cwd, c.depth+1)
	c.call.through = strings.Contains(" sh dash bash ash ", " "+base+" ")
}

// readEnv looks through env, whose assignments are those of the environment.
func readEnv(a *analysis, c *command, o *options) {
	rest := o.operands
	if len(rest) > 0 && rest[0].Const && rest[0].Text == "-" { // the same as -i
		rest = rest[1:]
	}
	for len(rest) > 0 {
		name, value, ok := strings.Cut(rest[0].Text, "=")
		if !rest[0].Const {
			name, _, ok = strings.Cut(rest[0].Prefix, "=")
		}
		if !ok {
			break
		}
		a.assign(name, Word{Raw: value, Text: value, Const: rest[0].Const}, true)
		rest = rest[1:]
	}
	if len(rest) == 0 {
		c.limit("it runs what it is given")
		return
	}
	c.call.through = true
	a.run(rest, c)
}

// readXargs looks through xargs: what it runs gets further words from its
// input, or has them put in for a mark.
func readXargs(a *analysis, c *command, o *options) {
	if len(o.operands) == 0 {
		a.setOpaque("xargs without a program that can be seen")
		return
	}
	mark := ""
	for _, s := range o.seen {
		if s.name == "-l" || s.name == "--max-lines" {
			continue
		}
		if mark = s.val.Text; mark == "" && s.mark == '?' {
			mark = "{}"
		}
		if mark == "" || s.mark != '?' && !s.val.Const {
			a.setOpaque("the mark of xargs is not constant")
			return
		}
	}
	inner := *c
	inner.fed = true
	words := slices.Clone(o.operands)
	if mark == "" {
		words = append(words, Word{Raw: "…", Fields: true})
	} else {
		markWords(words, mark, "")
	}
	c.call.through = true
	a.run(words, &inner)
}

// markWords makes words that hold a mark what they are: not constant. What is
// put in for the mark begins with prefix.
func markWords(words []Word, mark, prefix string) {
	for i := range words {
		w := &words[i]
		text := w.Text
		if !w.Const {
			text = w.Raw
		}
		if before, _, ok := strings.Cut(text, mark); ok {
			*w = Word{Raw: w.Raw, Prefix: before}
			if before == "" {
				w.Prefix = prefix
			}
		}
	}
}

func readSu(a *analysis, c *command, o *options) {
	a.noSecret("su", c.words...)
	if o.code != nil && o.code.Const {
		a.inner(o.code.Text, c.cwd, c.depth+1)
	}
}

// readAwk: the program is the first operand or a file.
func readAwk(a *analysis, c *command, o *options) {
	for _, s := range o.seen {
		if s.val.Const && isStdin(s.val.Text) && (c.piped || c.body != nil) {
			a.warn("awk runs code that comes through a pipe")
		}
		a.script(s.val, c)
	}
	if len(o.seen) == 0 && len(o.operands) > 0 {
		a.noSecret("awk", o.operands[0])
	}
	if len(o.seen) == 0 && len(o.operands) > 0 && substituted(o.operands[0]) {
		a.warn("awk runs code that another command prints")
	}
}

// findTests are the parts of a find expression that only look or print, with
// the number of words that follow.
const findTests = " -name:1 -iname:1 -path:1 -ipath:1 -wholename:1 -iwholename:1 -regex:1 -iregex:1 -regextype:1 -type:1 -xtype:1 -size:1 -mtime:1 -ctime:1 -atime:1 -mmin:1 " +
	"-cmin:1 -amin:1 -newer:1 -anewer:1 -cnewer:1 -newermt:1 -newerct:1 -newerat:1 -user:1 -group:1 -uid:1 -gid:1 -perm:1 -links:1 -inum:1 -samefile:1 -lname:1 -ilname:1 " +
	"-fstype:1 -maxdepth:1 -mindepth:1 -printf:1 -used:1 -print:0 -print0:0 -prune:0 -ls:0 -quit:0 -empty:0 -depth:0 -d:0 -xdev:0 -mount:0 -true:0 -false:0 -not:0 -and:0 -or:0 " +
	"-a:0 -o:0 -follow:0 -daystart:0 -executable:0 -readable:0 -writable:0 -nouser:0 -nogroup:0 -noleaf:0 -ignore_readdir_race:0 !:0 (:0 ):0 ,:0 -H:0 -L:0 -P:0 "

func readFind(a *analysis, c *command, o *options) {
	words, start := c.words[1:], ""
	for i := 0; i < len(words); i++ {
		w := words[i]
		if !w.Const {
			if w.Prefix == "" || strings.HasPrefix(w.Prefix, "-") || w.Fields && i > 0 {
				c.limit("a word of it is not constant and can be an action")
				start = "-"
			}
			continue
		}
		switch w.Text {
		case "-exec", "-execdir", "-ok", "-okdir":
			end := i + 1
			for end < len(words) && !(words[end].Const && (words[end].Text == ";" || words[end].Text == "+" && words[end-1].Raw == "{}")) {
				end++
			}
			inner := *c
			if strings.HasSuffix(w.Text, "dir") {
				start, inner.cwd = "./", &cwd{[]folder{{any: true}}}
			} else if start == "" {
				start = "."
			}
			run := slices.Clone(words[i+1 : min(end, len(words))])
			markWords(run, "{}", strings.TrimPrefix(start, "-"))
			if len(run) > 0 && run[0].Const && path.Base(run[0].Text) == "rm" {
				a.warn("deletes what it finds")
			}
			a.run(run, &inner)
			i = end
		case "-delete":
			a.warn("deletes what it finds")
			c.limit("it deletes what it finds")
		case "-fprint", "-fprint0", "-fls", "-fprintf":
			if i+1 < len(words) {
				i++
				a.writeWord(words[i], c.cwd)
			}
			c.limit("it writes a file")
		default:
			at := strings.Index(findTests, " "+w.Text+":")
			switch {
			case at >= 0 && !strings.ContainsAny(w.Text, " :"):
				i += int(findTests[at+len(w.Text)+2] - '0')
			case strings.HasPrefix(w.Text, "-"):
				c.limit("a part of it is not known")
			case start == "":
				start = w.Text
			default:
				start = commonStart(start, w.Text)
			}
		}
	}
}

func commonStart(a, b string) string {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n == 0 {
		return "-" // anything, as far as a reader of options is concerned
	}
	return a[:n]
}

// readSed: only scripts that print, delete and substitute are plain.
func readSed(a *analysis, c *command, o *options) {
	files := o.operands
	scripts := 0
	for _, s := range o.seen {
		if s.mark != '=' {
			continue
		}
		scripts++
		if s.name == "-f" || s.name == "--file" {
			c.limit("its script is in a file")
			a.script(s.val, c)
		} else {
			a.sedScript(s.val, c)
		}
	}
	if scripts == 0 && len(files) > 0 {
		a.sedScript(files[0], c)
		files = files[1:]
	}
	if o.has("-i", "--in-place") {
		c.limit("it writes the files it reads")
		for _, w := range files {
			a.writeWord(w, c.cwd)
		}
	}
}

// sedScript limits the grant unless the script is one of the plain kind.
func (a *analysis) sedScript(w Word, c *command) {
	a.noSecret("sed", w)
	switch plain, runs := plainSed(w.Text); {
	case w.Const && plain:
	case w.Const && runs:
		a.warn("sed runs a command or writes a file")
		fallthrough
	default:
		c.limit("its script is not one of the plain kind")
	}
}

// plainSed reads a sed script of which it knows addresses, the commands that
// print, delete, move, replace and branch, and text. For any other it says
// whether the command at which it stopped is one that runs or writes.
func plainSed(script string) (plain, runs bool) {
	r := sedReader{s: script}
	for r.skip(" \t\n;{}!"); r.i < len(r.s); r.skip(" \t\n;{}!") {
		if !r.address() {
			return false, false
		}
		for r.skip(" "); r.at() == ','; r.skip(" ") {
			r.i++
			if r.skip(" "); !r.address() {
				return false, false
			}
		}
		r.skip(" !")
		cmd := r.at()
		r.i++
		switch cmd {
		case '{':
			continue
		case '}', '=', 'd', 'D', 'g', 'G', 'h', 'H', 'n', 'N', 'p', 'P', 'x', 'z', 'F':
		case 'q', 'Q', 'l', 'L':
			r.skip(" 0123456789")
		case ':', 'b', 't', 'T': // a blank may end the label, and a command follow
			for r.skip(" "); isNameByte(r.at(), false); r.i++ {
			}
		case '#':
			r.until("\n")
		case 'a', 'i', 'c':
			for r.until("\n\\"); r.at() == '\\'; r.until("\n\\") {
				r.i += 2
			}
		case 's', 'y':
			delim := r.at()
			if r.i++; delim == 0 || delim == '\n' || delim == '\\' || !r.pattern(delim, true) || !r.pattern(delim, false) {
				return false, false
			}
			if r.skip("gpiImM0123456789"); r.at() == 'e' || r.at() == 'w' {
				return false, true
			}
		default:
			return false, cmd == 'e' || cmd == 'w' || cmd == 'W'
		}
		if r.skip(" "); r.at() != 0 && strings.IndexByte(";}\n#", r.at()) < 0 {
			return false, false
		}
	}
	return true, false
}

type sedReader struct {
	s string
	i int
}

// at returns the next byte, 0 at the end (a script has no NUL).
func (r *sedReader) at() byte {
	if r.i < len(r.s) {
		return r.s[r.i]
	}
	return 0
}

func (r *sedReader) skip(set string) {
	for r.i < len(r.s) && strings.IndexByte(set, r.s[r.i]) >= 0 {
		r.i++
	}
}

func (r *sedReader) until(set string) {
	for r.i < len(r.s) && strings.IndexByte(set, r.s[r.i]) < 0 {
		r.i++
	}
}

// pattern reads past the closing delimiter.
func (r *sedReader) pattern(delim byte, regex bool) bool {
	for ; r.i < len(r.s); r.i++ {
		switch c := r.s[r.i]; {
		case c == delim:
			r.i++
			return true
		case c == '\n' && regex:
			return false
		case c == '\\':
			r.i++
		case c == '[' && regex && !r.bracket(delim):
			return false
		}
	}
	return false
}

// bracket reads a bracket expression up to its end. A delimiter, a backslash or
// a line end in one is not understood: implementations differ.
func (r *sedReader) bracket(delim byte) bool {
	if r.i++; r.at() == '^' {
		r.i++
	}
	for first := true; ; first = false {
		switch c := r.at(); {
		case c == 0 || c == delim || c == '\\' || c == '\n':
			return false
		case c == ']' && !first:
			return true
		case c == '[':
			end := strings.Index(r.s[r.i:], ":]")
			if end < 2 || strings.Trim(r.s[r.i+1:r.i+end], ":abcdefghijklmnopqrstuvwxyz") != "" || r.s[r.i+1] != ':' {
				return false
			}
			r.i += end + 1
		}
		r.i++
	}
}

// address reads one address, or none.
func (r *sedReader) address() bool {
	delim := r.at()
	switch delim {
	case '\\':
		r.i++
		if delim = r.at(); delim == 0 || delim == '\n' || delim == '\\' {
			return false
		}
		fallthrough
	case '/':
		r.i++
		if !r.pattern(delim, true) {
			return false
		}
	default:
		r.skip("0123456789$~+")
	}
	r.skip("IM")
	return true
}

// tarOptions are those of GNU tar; a first word without a dash is a cluster.
const tarOptions = "ctxruAdzjJvkpmhwWlaOSUZBGio0 f> C= b: L: N: K: V: X: H: I! F! T! g> --create --extract --get --list --append --update --diff --file> --directory= --gzip " +
	"--bzip2 --xz --zstd --verbose --exclude: --exclude-vcs --exclude-from: --strip-components: --strip: --no-same-owner --no-same-permissions --same-owner --overwrite --keep-old-files " +
	"--wildcards --transform: --owner: --group: --mode: --mtime: --sort: --numeric-owner --one-file-system --dereference --auto-compress --totals --to-stdout --preserve-permissions " +
	"--null --no-recursion --anchored --format: --skip-old-files --keep-newer-files --unlink-first --verify --help --version " +
	"--to-command! --checkpoint-action! --use-compress-program! --info-script! --new-volume-script! --rsh-command! --rmt-command! --files-from! --index-file> --listed-incremental>"

func readTar(a *analysis, c *command, o *options) {
	words := slices.Clone(c.words[1:])
	if len(words) > 0 && words[0].Const && !strings.HasPrefix(words[0].Text, "-") && words[0].Text != "" {
		// The values of an old cluster follow in its order, as words.
		cluster, rest := words[0].Text, words[1:]
		words = nil
		for k := range len(cluster) {
			opt := "-" + cluster[k:k+1]
			words = append(words, Word{Raw: opt, Text: opt, Const: true})
			if c := cluster[k]; c < 128 && strings.IndexByte(":>=!", optionsOf(tarOptions).short[c]) >= 0 && len(rest) > 0 {
				words, rest = append(words, rest[0]), rest[1:]
			}
		}
		words = append(words, rest...)
	}
	*o = *readOptions(tarOptions, words)
	creates := slices.ContainsFunc(words, func(w Word) bool {
		return w.Const && strings.HasPrefix(w.Text, "-") && (w.Text == "--create" || w.Text == "--append" || w.Text == "--update" || !strings.HasPrefix(w.Text, "--") && strings.ContainsAny(w.Text, "cruA"))
	})
	kept := o.seen[:0]
	for _, s := range o.seen {
		switch {
		case s.name == "-f" || s.name == "--file":
			if !s.val.Const || strings.Contains(s.val.Text, ":") { // a remote archive starts rsh
				o.unknown = s.name
			}
			if creates {
				kept = append(kept, s)
			}
		case s.mark == '=' && !creates: // the folder that is unpacked into
			a.writeWord(s.val, c.cwd)
		case s.mark == '>':
			kept = append(kept, s)
		}
	}
	o.seen = kept
}

func readDD(a *analysis, c *command, o *options) {
	for _, w := range c.words[1:] {
		if file, ok := strings.CutPrefix(w.Text, "of="); ok && w.Const {
			a.write(file, c.cwd)
		} else if !w.Const && (w.Prefix == "" || strings.HasPrefix(w.Prefix, "of=")) {
			a.writeWord(w, c.cwd)
		}
	}
}

// globsOption reports whether a pattern matches a file whose name is an option of
// rm's.
func globsOption(pattern string) bool {
	return slices.ContainsFunc([]string{"-r", "-R", "-f", "-rf", "-fr", "-Rf", "-rfv", "--recursive"}, func(name string) bool {
		ok, err := path.Match(pattern, name)
		return ok || err != nil
	})
}

func readRm(a *analysis, c *command, o *options) {
	if strings.TrimPrefix(path.Base(c.call.word), "g") != "rm" {
		return
	}
	dynamic := slices.ContainsFunc(o.operands, func(w Word) bool { return !w.Const && w.Prefix == "" && strings.ContainsAny(w.Raw, "$`…") })
	globs := slices.ContainsFunc(c.words[1:], func(w Word) bool { return !w.Const && globsOption(w.Raw) })
	switch {
	case o.has("-r", "-R", "--recursive"):
		a.warn("deletes recursively")
	case o.has("-f", "--force"):
		a.warn("deletes without asking")
	case c.fed:
		a.warn("deletes what it reads from its input")
	case globs || o.loose && dynamic || o.unknown != "":
		a.warn("deletes with options that are not constant")
	}
}

// readChmod: recursive changes of more than plain folders below.
func readChmod(a *analysis, c *command, o *options) {
	if mode := o.firm(); path.Base(c.call.word) == "chmod" && (strings.Contains(mode, "s") || len(strings.TrimLeft(mode, "0")) >= 4) {
		a.warn("makes a program run with the rights of its owner")
	}
	if !o.has("-R", "--recursive") && !(o.loose && c.fed) {
		return
	}
	mode := o.firm()
	if strings.HasSuffix(mode, "7") || strings.Contains(mode, "o+w") || strings.Contains(mode, "a+w") || strings.Contains(mode, "o=") {
		a.warn("opens files to everybody, recursively")
	}
	for _, w := range o.operands[min(1, len(o.operands)):] {
		if p := logical(w.Text); !w.Const || p == "" || rooted(p) || strings.HasPrefix(p, "..") {
			a.warn(path.Base(c.call.word) + " changes everything below a broad path")
		}
	}
	if len(o.operands) < 2 || c.fed {
		a.warn(path.Base(c.call.word) + " changes everything below a broad path")
	}
}

func readKill(a *analysis, c *command, o *options) {
	words := c.words[1:]
	for i, w := range words {
		if w.Const && w.Text == "-1" && i > 0 || w.Const && w.Text == "0" {
			a.warn("ends every process")
		}
	}
}

// readSSH: an -o is plain if it names none of the settings that start programs
// or read further settings.
func readSSH(a *analysis, c *command, o *options) {
	base := path.Base(c.call.word)
	for _, s := range o.seen {
		if s.mark != '=' {
			continue
		}
		v := strings.ToLower(s.val.Text)
		if !s.val.Const || strings.Contains(v, "command") || strings.Contains(v, "provider") || strings.Contains(v, "include") || strings.Contains(v, "match") {
			a.warn(base + " -o can make it run or load something else")
			o.bad = s.name
		}
	}
	if len(o.operands) > 1 && base != "scp" && base != "sftp" {
		a.noSecret(base, o.operands[1:]...) // a line for the shell at the other end
	}
	if base == "ssh" && c.body != nil {
		a.noSecret(base, *c.body)
	}
	if base == "ssh" && len(o.operands) == 1 && (c.piped || c.body != nil) {
		a.warn("ssh runs code that comes through a pipe or here-document")
	}
}

func readRsync(a *analysis, c *command, o *options) {
	if slices.ContainsFunc(o.operands, func(w Word) bool { return strings.Contains(w.Text, ":") || !w.Const && strings.Contains(w.Raw, ":") }) {
		a.network = true
		last := o.operands[len(o.operands)-1]
		if strings.Contains(last.Text, ":") {
			o.operands = nil // nothing is written here
		}
	}
}

// readCurl: only http and https are plain, and -w may not name a file.
func readCurl(a *analysis, c *command, o *options) {
	for _, s := range o.seen {
		if (s.name == "-w" || s.name == "--write-out") && (!s.val.Const || strings.HasPrefix(s.val.Text, "@") || strings.Contains(s.val.Text, "%output")) {
			o.unknown = s.name
		}
		if s.name == "--url" {
			o.operands = append(o.operands, s.val)
		}
	}
	for _, w := range o.operands {
		text := w.Text
		if !w.Const {
			text = w.Prefix
		}
		if scheme, _, ok := strings.Cut(text, "://"); ok && scheme != "http" && scheme != "https" {
			o.bad = scheme + "://"
		}
	}
	for _, w := range o.operands { // http is what it adds
		if text := w.Text + w.Prefix; !strings.Contains(text, "://") && (w.Const || strings.Contains(text, "/")) {
			a.hosts = addHosts(a.hosts, "http://"+text)
		}
	}
}

// goCommands are the sub-commands of go that only build and look, with their
// options; any other form runs code or changes settings.
var goCommands = map[string]string{
	"build":   "-C: -race -v -x -a -n -trimpath -mod: -tags: -o> -ldflags: -gcflags: -asmflags: -buildvcs: -buildmode: -cover -p: -json",
	"vet":     "-v -x -n -tags: -mod: -json -race",
	"fmt":     "-n -x -mod:",
	"list":    "-m -json? -f: -deps -test -e -u -versions -find -mod: -tags: -compiled -retracted",
	"doc":     "-all -src -u -short -c -cmd -http!",
	"version": "-m -v",
	"env":     "-json -changed -w! -u!",
	"mod":     "-v -x -e -go: -json -m -why -vendor -compat: -diff -fmt -print -require: -replace: -droprequire: -dropreplace: -exclude: -module: -o>",
	"help":    "-h",
	"clean":   "-n -x -cache -testcache -modcache -fuzzcache -i -r",
}

func readGo(a *analysis, c *command, o *options) {
	words := c.words[1:]
	for len(words) > 1 && words[0].Const && (words[0].Text == "-C" || words[0].Text == "--C") {
		words = words[2:]
	}
	if len(words) == 0 {
		return
	}
	sub := words[0].Text
	opts, ok := goCommands[sub]
	if !words[0].Const || !ok {
		c.limit(workCode)
	} else {
		*o = *readOptions(opts, words[1:])
		flags := slices.ContainsFunc(words[1:], func(w Word) bool {
			return strings.Contains(w.Raw, "extld") || strings.Contains(w.Raw, "linkmode") // -ldflags can name a linker
		})
		if o.bad != "" || o.unknown != "" || o.loose || flags {
			c.limit("this form of it can run something else or write elsewhere")
		}
	}
	first := ""
	if len(words) > 1 {
		first = words[1].Text
	}
	remote := slices.ContainsFunc(words[1:], func(w Word) bool { return strings.Contains(w.Text, "@") })
	switch {
	case sub == "get", sub == "mod" && (first == "tidy" || first == "download" || first == "why"), sub == "work" && first == "sync",
		(sub == "install" || sub == "run" || sub == "list") && remote, sub == "list" && slices.ContainsFunc(words, func(w Word) bool { return w.Text == "-u" || w.Text == "-versions" }):
		a.network = true
	}
}
