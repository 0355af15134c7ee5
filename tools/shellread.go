package tools

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// builtin handles what the shell does itself and reports whether it did.
func (a *analysis) builtin(name string, c *command) bool {
	args := c.words[1:]
	why := new(shellParser).hides(c.words, false)
	a.setOpaque(why) // the parser has not looked behind wrappers
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
		inner := *c
		inner.depth++
		inner.exec = name == "exec"
		for len(args) > 0 && strings.HasPrefix(args[0].Text, "-") { // any that are not plain are opaque by now
			if name == "command" && strings.ContainsAny(args[0].Text, "vV") {
				return true // only says what it would run
			}
			args = args[1:]
		}
		if inner.words = args; inner.exec && len(args) == 0 {
			a.setOpaque("exec with redirections")
		}
		a.command(inner)
		return true
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
	default: // python -m pip install
		m := lookupProgram(code.Text)
		a.network = a.network || m != nil && m.networked(args)
	}
	if c.fed && code.Raw == "" {
		a.warn(base + " runs what it is given by another command")
	}
}

// shellText analyses text that a shell runs as a line of its own. The shells
// that read it as sh does need no key themselves.
func (a *analysis) shellText(base, text string, c *command) {
	n := len(a.argv)
	a.inner(text, c.cwd, c.depth+1)
	if c.call.through = listed(" sh dash bash ash ", base); c.call.through {
		return
	}
	for _, argv := range a.argv[n:] { // what the other shells reserve, and zsh's =program
		if listed(" repeat noglob nocorrect - foreach begin end and or not switch onintr ", argv[0]) || strings.HasPrefix(argv[0], "=") || strings.HasPrefix(argv[0], "%") {
			a.setOpaque(base + " may read " + argv[0] + " in its own way")
		}
	}
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
	switch {
	case o.code != nil && o.code.Const:
		a.inner(o.code.Text, c.cwd, c.depth+1)
	case o.code != nil || o.unknown != "" || o.loose || len(o.operands) > 1:
		a.setOpaque("what " + path.Base(c.call.word) + " runs cannot be told from its options")
	}
}

// readAwk: the program is the first operand or a file.
func readAwk(a *analysis, c *command, o *options) {
	for _, s := range o.seen {
		a.script(s.val, c)
	}
	if len(o.seen) == 0 && len(o.operands) > 0 {
		a.noSecret("awk", o.operands[0])
	}
	if len(o.seen) == 0 && len(o.operands) > 0 && substituted(o.operands[0]) {
		a.warn("awk runs code that another command prints")
	}
}

// readFind looks through the commands of find, in which a mark stands for what it
// finds: that begins as the paths do.
func readFind(a *analysis, c *command, o *options) {
	start, some := ".", false
	for _, w := range o.operands {
		text := w.Text + w.Prefix
		if text != "" && strings.Contains("(),!", text) {
			continue
		}
		if !some {
			start, some = text, true
		}
		for !strings.HasPrefix(text, start) {
			start = start[:len(start)-1]
		}
	}
	if o.loose {
		start = ""
	}
	for _, in := range o.inner {
		inner, run, mark := *c, slices.Clone(in.words), start
		if strings.HasSuffix(in.by, "dir") {
			inner.cwd, mark = &cwd{[]folder{{any: true}}}, "./"
		}
		markWords(run, "{}", mark)
		if len(run) > 0 && run[0].Const && path.Base(run[0].Text) == "rm" {
			a.warn("deletes what it finds")
		}
		a.run(run, &inner)
	}
	o.inner = nil
	if o.has("-delete") {
		a.warn("deletes what it finds")
		c.limit("it deletes what it finds")
	}
	if slices.ContainsFunc(o.seen, func(s option) bool { return s.mark == '>' }) {
		c.limit("it writes a file")
	}
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
	plain, runs := plainSed(w.Text)
	if runs && w.Const {
		a.warn("sed runs a command or writes a file")
	}
	if !plain || !w.Const {
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
	if !creates { // what is unpacked, where it is said
		for _, w := range o.operands {
			a.named(w)
		}
	}
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

// specialMode matches a mode that sets the set-user-ID or set-group-ID bit.
var specialMode = regexp.MustCompile(`[+=][rwxXt]*s|^0*[2-7][0-7]{3}$`)

const specialWarning = "makes a program run with the rights of its owner"

// readChmod: recursive changes of more than plain folders below.
func readChmod(a *analysis, c *command, o *options) {
	base, mode := path.Base(c.call.word), o.firm()
	if slices.ContainsFunc(c.words[1:], func(w Word) bool { // where it is not an operand
		return strings.HasPrefix(w.Text, "--ref") || len(w.Text) > 1 && w.Text[0] == '-' && strings.Trim(w.Text[1:], "rwxXstugo,=+-") == ""
	}) {
		mode, o.operands = "", append([]Word{{Const: true}}, o.operands...)
	}
	if base == "chmod" && specialMode.MatchString(mode) {
		a.warn(specialWarning)
	}
	if !o.has("-R", "--recursive") && !(o.loose && c.fed) {
		return
	}
	if strings.HasSuffix(mode, "7") || strings.Contains(mode, "o+w") || strings.Contains(mode, "a+w") || strings.Contains(mode, "o=") {
		a.warn("opens files to everybody, recursively")
	}
	for _, w := range o.operands[min(1, len(o.operands)):] {
		if p := logical(w.Text); !w.Const || p == "" || rooted(p) || strings.HasPrefix(p, "..") {
			a.warn(base + " changes everything below a broad path")
		}
	}
	if len(o.operands) < 2 || c.fed {
		a.warn(base + " changes everything below a broad path")
	}
}

// readIP: exec of a namespace is the one action of ip that starts a program.
func readIP(a *analysis, c *command, o *options) {
	if i := slices.IndexFunc(o.operands, func(w Word) bool { return w.Text == "exec" || w.Text == "e" }); i >= 0 {
		a.run(o.operands[min(i+2, len(o.operands)):], c)
	}
	if slices.ContainsFunc(o.operands, func(w Word) bool {
		return !w.Const || w.Text == "-b" || strings.HasPrefix(w.Text, "-ba") || strings.HasPrefix(w.Text, "-n")
	}) {
		c.limit(startsAny)
	}
}

func readInstall(a *analysis, c *command, o *options) {
	if slices.ContainsFunc(o.seen, func(s option) bool { return s.mark == '=' && specialMode.MatchString(s.val.Text) }) {
		a.warn(specialWarning)
	}
	for i := 0; i < len(o.operands) && o.has("-d", "--directory"); i++ {
		a.writeWord(o.operands[i], c.cwd)
	}
}

func readKill(a *analysis, c *command, o *options) {
	for i, w := range c.words[1:] {
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
	if o.has("-O", "--remote-name", "--remote-name-all") {
		a.namedByURL(o.operands)
	}
	for _, w := range o.operands {
		text := w.Text + w.Prefix
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

func readWget(a *analysis, c *command, o *options) {
	if !o.has("-O", "--output-document") {
		a.namedByURL(o.operands)
	}
}

// namedByURL warns of files that get the last name of a URL's path.
func (a *analysis) namedByURL(urls []Word) {
	for _, w := range urls {
		name, _, _ := strings.Cut(w.Text+w.Prefix, "?")
		if _, rest, ok := strings.Cut(name, "://"); ok {
			name = rest
		}
		if strings.Contains(name, "/") {
			a.named(Word{Const: true, Text: path.Base(name)})
		}
	}
}

// goCommands are the sub-commands of go that only build and look, with their
// options; any other form runs code or changes settings.
var goCommands = map[string]string{
	"build":   "-C: -race -v -x -a -n -trimpath -mod: -tags: -o> -ldflags= -gcflags= -asmflags= -buildvcs: -buildmode: -cover -p: -json",
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

// plainGoFlags knows the flags for compiler and linker that name no program and no
// file, in a value like "all=-N -l" or "-s -w -X main.version=1".
func plainGoFlags(w Word) bool {
	flags := w.Text
	if !strings.HasPrefix(flags, "-") {
		flags = flags[strings.IndexByte(flags, '=')+1:]
	}
	for f := range strings.FieldsSeq(flags) {
		f = strings.Trim(f, `'"`)
		if name, _, _ := strings.Cut(f, "="); f != "" && f[0] == '-' && !listed(" -s -w -X -N -l -m -S -e -live -v ", name) {
			return false
		}
	}
	return w.Const
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
		flags := slices.ContainsFunc(o.seen, func(s option) bool { return s.mark == '=' && !plainGoFlags(s.val) })
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
