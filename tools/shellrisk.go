package tools

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An analysis is what can be read from one command line: the programs it can
// start, what it writes, whether it needs the network, and what a person must
// see before it runs. It is built by construction: what is not understood makes
// the line opaque or a program's grant narrow, never less.
type analysis struct {
	opaque   string
	loose    string // why no grant covers it where no sandbox holds its writes
	warnings []string
	network  bool
	hosts    []string // named by URLs

	calls    []progCall
	builtins []string // of the shell, in the line
	names    []string // shell variables set: opaque if the child inherits one
	writes   []pathWrite
	moved    bool        // there is a cd
	touched  []pathWrite // other paths that it names

	paths    []PathUse
	programs []string
	commands []string
	argv     [][]string

	downloads           bool // fetches something from elsewhere
	gitWrite, gitConfig bool // a git command that changes the repository, its configuration
	notGit              bool // something else than git and plain file tools
	lines               int  // parsed so far, inner ones too

	secret secretLine // what is analysed
}

// progCall is one program that needs to be looked up.
type progCall struct {
	word     string // as the lookup needs it: a bare name, or a path from the workspace
	widest   Scope
	why      string
	through  bool   // looked through: no target of its own, if it is what it seems
	script   bool   // a file that an interpreter runs: no target, but bound by digest
	download bool   // the line fetched something before
	unless   string // see folder
}

// pathWrite is one path that may be written. A line with a cd has one for each
// folder that it may be in.
type pathWrite struct {
	name string // from the workspace, absolute, or from "~/"
	via  string // its part before a "..": if that is a link, it leads elsewhere
	folder
}

// cwd is the set of folders in which a (sub)shell may be.
type cwd struct{ at []folder }

type folder struct {
	dir    string
	any    bool   // anywhere
	unless string // not if this is a folder that exists: the cd to it cannot fail
}

// A command is one program with its arguments, as it will be started.
type command struct {
	words   []Word
	piped   bool  // its input is a pipe
	body    *Word // its input is this here-document or here-string
	input   *Word // its input is this file
	inputAt *cwd  // which was opened here
	cwd     *cwd
	repeats bool
	exec    bool // not started by a shell: builtins are programs here
	fed     bool // further words come from its input
	depth   int
	call    progCall
}

const (
	maxInnerLines = 64
	maxDepth      = 12
	maxListed     = 200 // warnings and written paths
)

func (a *analysis) setOpaque(why string) {
	if a.opaque == "" {
		a.opaque = why
	}
}

func (a *analysis) warn(w string) {
	if len(a.warnings) < maxListed && !slices.Contains(a.warnings, w) {
		a.warnings = append(a.warnings, w)
	}
}

// line analyses one command line, in the workspace.
func (a *analysis) line(text string, depth int) { a.inner(text, &cwd{at: []folder{{}}}, depth) }

// inner analyses a line that is started in the folders of from.
func (a *analysis) inner(text string, from *cwd, depth int) {
	if a.lines++; a.lines > maxInnerLines || depth > maxDepth {
		a.setOpaque("too many lines within lines")
		a.beyond(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n;&|(){}<>`'\"\\", r) }))
		return
	}
	s := ParseShell(text)
	if s.Opaque != "" {
		a.setOpaque(s.Opaque)
		if forkBomb(text) {
			a.warn("looks like a fork bomb")
		}
	}
	for _, l := range s.Loops {
		a.setName(l.Name)
		for _, w := range l.Words {
			a.network = a.network || namesURL(w.Raw)
			a.hosts = addHosts(a.hosts, w.Raw)
			a.reach(w, from)
		}
	}
	scopes := make([]*cwd, len(s.Scopes))
	var enter func(int) *cwd
	enter = func(i int) *cwd {
		if scopes[i] == nil {
			start := from
			if s.Scopes[i] >= 0 {
				start = enter(s.Scopes[i])
			}
			scopes[i] = &cwd{start.at} // never changed in place
		}
		return scopes[i]
	}
	if n := len(s.Commands); a.commands == nil {
		a.commands, a.argv = make([]string, 0, n), make([][]string, 0, n)
		a.calls, a.programs = make([]progCall, 0, n), make([]string, 0, n)
	}
	for i := range s.Commands {
		a.simple(&s.Commands[i], enter(s.Commands[i].Scope), depth)
	}
}

// beyond notes what may be programs in words that are not followed: for rules that
// deny, which no limit may turn into a question.
func (a *analysis) beyond(words []string) {
	for i := range words {
		a.argv = append(a.argv, words[i:min(i+16, len(words))])
	}
}

func (a *analysis) simple(s *Simple, at *cwd, depth int) {
	c := command{words: s.Words, piped: s.PipedIn, cwd: at, inputAt: at, repeats: s.Repeats, depth: depth}
	a.commands = append(a.commands, commandText(s))
	for i := range s.Assigns {
		a.assign(s.Assigns[i].Name, s.Assigns[i].Value, len(s.Words) > 0)
	}
	for i := range s.Redirs {
		r := &s.Redirs[i]
		input := r.Fd == 0
		switch r.Op {
		case "<<", "<<-", "<<<":
			if input {
				c.body, c.input, c.piped = r.Body, nil, false
				if r.Op == "<<<" {
					c.body = &r.Target
				}
			}
			continue
		case ">&", "<&":
			if input && r.Target.Text != "-" {
				c.body, c.input, c.piped = nil, nil, true // from who knows where
			}
			continue
		}
		p, ok := plainPath(r.Target)
		switch {
		case !ok:
			a.setOpaque("a redirection to a path that is not constant")
		case strings.HasPrefix(p, "/dev/tcp/") || strings.HasPrefix(p, "/dev/udp/"):
			a.network = true
			a.warn("opens a network connection by a redirection")
		case r.Op == "<":
			a.touch(p, at)
			if a.peek(p); input {
				c.body, c.input, c.piped = nil, &r.Target, false
			}
		case !r.Outer:
			a.write(p, at)
		}
	}
	a.command(c)
}

// commandText is the command as written, with single blanks: what rules match.
func commandText(s *Simple) string {
	var b strings.Builder
	add := func(text ...string) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		for _, t := range text {
			b.WriteString(t)
		}
	}
	for i := range s.Assigns {
		add(s.Assigns[i].Name, "=", s.Assigns[i].Value.Raw)
	}
	for i := range s.Words {
		add(s.Words[i].Raw)
	}
	for i := range s.Redirs {
		if r := &s.Redirs[i]; r.Fd != 0 && r.Op[0] == '<' || r.Fd != 1 && r.Op[0] == '>' {
			add(strconv.Itoa(r.Fd), r.Op)
		} else {
			add(r.Op)
		}
		add(s.Redirs[i].Target.Raw)
	}
	return b.String()
}

// benign are variables that only choose a language, a format or a platform.
const benign = " LANG LANGUAGE TZ NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE TERM COLUMNS LINES CI DEBIAN_FRONTEND NODE_ENV " +
	"GOOS GOARCH CGO_ENABLED RUST_BACKTRACE PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONIOENCODING SOURCE_DATE_EPOCH GIT_TERMINAL_PROMPT "

// listed reports whether a name stands in a list that has blanks around each.
func listed(list, name string) bool { return strings.Contains(list, " "+name+" ") }

// assign checks one assignment. Before a program, or exported, it reaches the
// program's environment; alone it only sets a variable of this shell.
func (a *analysis) assign(name string, v Word, exported bool) {
	switch {
	case v.Const && (listed(benign, name) || strings.HasPrefix(name, "LC_")):
		return
	case steersPrograms(name):
		a.warn(fmt.Sprintf("sets %s, which steers programs", name))
		a.setOpaque(fmt.Sprintf("an assignment to %s", name))
	case exported:
		a.setOpaque(fmt.Sprintf("the environment variable %s is set", name))
	case !v.Const:
		a.setOpaque(fmt.Sprintf("%s is set to something that is not constant", name))
	default:
		a.setName(name)
	}
}

// shellNames are special to the shell beside those that steer programs.
const shellNames = " LINENO PPID OPTARG OPTIND OPTERR MAIL MAILPATH MAILCHECK UID EUID RANDOM SECONDS SRANDOM EPOCHSECONDS EPOCHREALTIME FUNCNEST GLOBIGNORE " +
	"EXECIGNORE GROUPS DIRSTACK HISTFILE HISTSIZE HISTFILESIZE HISTCONTROL HISTIGNORE HISTTIMEFORMAT HISTCMD TIMEFORMAT TMOUT FIGNORE COMP_WORDS COMPREPLY " +
	"COPROC FUNCNAME FCEDIT HOSTFILE HOSTNAME HOSTTYPE MACHTYPE OSTYPE REPLY MAPFILE PIPESTATUS READLINE_LINE LC_ALL "

// setName notes that a variable of the shell gets a value.
func (a *analysis) setName(name string) {
	if !isName(name) || listed(shellNames, name) || steersPrograms(name) {
		a.setOpaque(fmt.Sprintf("%s is special to the shell", name))
	}
	a.names = append(a.names, name)
}

// plainPath returns the path that a word stands for where that is plain.
func plainPath(w Word) (string, bool) {
	if w.Const {
		if strings.HasPrefix(w.Text, "~") {
			return "./" + w.Text, true
		}
		return w.Text, w.Text != ""
	}
	if w.Raw == "~" || strings.HasPrefix(w.Raw, "~/") && strings.Trim(w.Raw[1:], plainBytes) == "" {
		return w.Raw, true
	}
	return "", false
}

const plainBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-+@%,"

func rooted(p string) bool {
	return strings.HasPrefix(p, "/") || p == "~" || strings.HasPrefix(p, "~/")
}

func joinPath(dir, p string) string {
	if dir == "" || dir == "." || rooted(p) {
		return p
	}
	return dir + "/" + p
}

// write notes a path that is written, in every folder where it may lie.
func (a *analysis) write(p string, at *cwd) {
	switch {
	case p == "/dev/null" || p == "/dev/stdout" || p == "/dev/stderr" || p == "/dev/tty" || p == "/dev/full" || p == "/dev/zero" || strings.HasPrefix(p, "/dev/fd/"):
		return
	case p == ".git" || strings.HasPrefix(p, ".git/") || strings.Contains(p, "/.git"):
		a.notGit = true
	}
	if why := writeWarning(p); why != "" {
		a.warn(why + ": " + p)
	}
	add := func(w pathWrite) {
		if len(a.writes) >= maxListed {
			a.setOpaque("it writes too many files")
		} else if !slices.Contains(a.writes, w) {
			if n := backStep(w.name); n > 0 && !w.any {
				w.via = w.name[:n]
				a.paths = append(a.paths, PathUse{Name: w.via})
			}
			a.writes = append(a.writes, w)
			if !w.any && !kernelPath(w.name) {
				a.paths = append(a.paths, PathUse{Name: w.name, Write: true})
			}
		}
	}
	if rooted(p) {
		add(pathWrite{name: p})
		return
	}
	for _, f := range at.at {
		add(pathWrite{name: joinPath(f.dir, p), folder: f})
	}
}

// backStep returns the length of a path up to a ".." that follows a name, 0
// without one.
func backStep(p string) int {
	named := false
	for i := 0; i < len(p); {
		end := strings.IndexByte(p[i:], '/')
		if end < 0 {
			end = len(p) - i
		}
		switch part := p[i : i+end]; part {
		case "", ".":
		case "..":
			if named {
				return i
			}
		default:
			named = true
		}
		i += end + 1
	}
	return 0
}

// peek notes where the line may look at other processes.
func (a *analysis) peek(p string) {
	rest, ok := strings.CutPrefix(strings.TrimLeft(p, `"'`), "/proc/")
	if ok && a.loose == "" && (rest == "" || !isNameByte(rest[0], true) || strings.HasPrefix(rest, "self")) {
		a.loose = "it looks at what the system knows of a process"
	}
}

// writeWord is write for an operand, which need not be constant.
func (a *analysis) writeWord(w Word, at *cwd) {
	if p, ok := plainPath(w); ok {
		a.write(p, at)
		return
	}
	if a.loose == "" {
		a.loose = "it writes to a path that is not constant"
	}
	a.named(w)
}

// named warns of what a word says of the path that is written, where that is not
// known: its name, or a pattern of names.
func (a *analysis) named(w Word) {
	p := w.Text
	if !w.Const {
		p = strings.NewReplacer(`"`, "", "'", "", `\`, "").Replace(w.Raw)
	}
	if why := cmp.Or(writeWarning(p), writeWarning(w.Prefix), startedPattern(p)); why != "" {
		a.warn(why + ": " + p)
	}
}

// reach notes where a word leads: of one that is not constant, where it begins.
func (a *analysis) reach(w Word, at *cwd) {
	p, ok := plainPath(w)
	if !ok {
		p = strings.TrimPrefix(w.Raw, `"`)
		if rest, home := strings.CutPrefix(strings.NewReplacer("{", "", "}", "").Replace(p), "$HOME"); home && (rest == "" || rest[0] == '/' || rest[0] == '"') {
			p = "~"
		} else if p = w.Prefix; p == "" || p == "/" {
			return
		}
	}
	a.touch(attachedPath(p), at)
}

// touch notes a path that the line names if it leads out of the folder at hand.
func (a *analysis) touch(p string, at *cwd) {
	if clean := path.Clean(p); !rooted(p) && strings.HasPrefix(clean, "..") {
		p = clean
	}
	if !rooted(p) && p != ".." && !strings.HasPrefix(p, "../") {
		return
	}
	for _, f := range at.at {
		t := pathWrite{name: joinPath(f.dir, p), folder: folder{unless: f.unless}}
		switch {
		case f.any || kernelPath(t.name) || slices.Contains(a.touched, t):
		case len(a.touched) >= maxListed:
			a.setOpaque("it names too many paths")
		default:
			a.touched = append(a.touched, t)
			a.paths = append(a.paths, PathUse{Name: t.name}, PathUse{Name: path.Dir(t.name)})
		}
	}
}

// writeWarning says why a person should see a write to this path, "" if there is
// no reason.
func writeWarning(p string) string {
	if strings.HasPrefix(p, "/dev/") && !strings.HasPrefix(p, "/dev/shm/") {
		return "writes to a device"
	}
	if why := cmp.Or(startedLater(p), startedLater(p+"/")); why != "" { // it can be a folder
		return "writes what " + why
	}
	switch base := path.Base(p); {
	case base == "pre-commit" || base == "pre-push" || base == "post-commit":
		return "writes a git hook"
	case strings.HasSuffix(base, "_history") || strings.Contains("/"+p, "/var/log/"):
		return "changes a log or a history"
	}
	for _, dir := range []string{"/etc/cron", "/var/spool/cron", "/systemd/", "/LaunchDaemons/", "/etc/init.d/", "/etc/profile", "/etc/bash", "/etc/zsh", "/etc/environment", "/etc/sudoers", "/etc/ld.so"} {
		if strings.Contains("/"+p, dir) {
			return "writes what the system starts or each shell runs"
		}
	}
	return ""
}

// cd follows a change of the folder.
func (a *analysis) cd(args []Word, c *command) {
	a.moved = true
	for len(args) > 0 && args[0].Const && (args[0].Text == "-L" || args[0].Text == "--") {
		args = args[1:]
	}
	target, ok := "~", true
	if len(args) == 1 {
		target, ok = plainPath(args[0])
	} else {
		a.touch(target, c.cwd)
	}
	if !ok || len(args) > 1 || strings.HasPrefix(target, "-") || c.repeats && !rooted(target) {
		c.cwd.at = []folder{{any: true}}
		return
	}
	var after []folder
	add := func(f folder) {
		if !slices.Contains(after, f) {
			after = append(after, f)
		}
	}
	for _, f := range c.cwd.at {
		if f.any && !rooted(target) {
			add(f)
			continue
		}
		dir := logical(joinPath(f.dir, target))
		if dir == "" {
			dir = "."
		}
		a.paths = append(a.paths, PathUse{Name: dir})
		add(folder{dir: dir, unless: f.unless})
		// It may fail and leave the shell where it was; only a folder that
		// nothing earlier in this line can have removed is sure to be there.
		if len(a.calls) == 0 && !c.repeats && f.unless == "" {
			f.unless = dir
		}
		add(f)
	}
	if len(after) > 6 {
		after = []folder{{any: true}}
	}
	c.cwd.at = after
}

// logical takes "." and ".." out of a path as cd does: by text, not by links.
func logical(p string) string {
	var out []string
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "." || part == "" && len(out) > 0:
		case part == ".." && len(out) > 0 && out[len(out)-1] != ".." && out[len(out)-1] != "~":
			if out[len(out)-1] != "" {
				out = out[:len(out)-1]
			}
		default:
			out = append(out, part)
		}
	}
	if len(out) == 1 && out[0] == "" {
		return "/"
	}
	return strings.Join(out, "/")
}

var defines = regexp.MustCompile(`(?:^|[;&|{(])(?:function)?([^;&|(){}]+)(?:\(\)[{(]|\{)`)

// forkBomb reports whether a function is defined that starts itself twice. It
// looks at the text: a line with a function is not analysed.
func forkBomb(text string) bool {
	text = strings.NewReplacer(" ", "", "\t", "", "\n", ";").Replace(text)
	return slices.ContainsFunc(defines.FindAllStringSubmatchIndex(text, -1), func(m []int) bool {
		name, body := text[m[2]:m[3]], text[m[1]:]
		return strings.Contains(body, name+"|"+name) || strings.Contains(body, name+"&"+name) || strings.Contains(body, name+"&}") && strings.Count(body, name) > 2
	})
}
