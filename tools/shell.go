package tools

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Shell runs one command line with /bin/sh. What the line does is read from the
// line (see analysis); what it can do is for the sandbox to hold.
var Shell = Tool{
	Name: "shell",
	Description: "Run one command line with /bin/sh (POSIX shell, not bash) in the workspace and return its output. " +
		"There is no network unless the line plainly needs it or network is true. " +
		"Each call starts anew in the workspace; standard input is empty.",
	Params: []Param{
		{Name: "command", Type: "string", Required: true, Description: "The command line. {{vault:NAME}} in it stands for a secret, in any quotes or none."},
		{Name: "timeout", Type: "integer", Min: 1, Max: 600, Default: int64(60), Description: "Seconds after which it is ended."},
		{Name: "network", Type: "boolean", Default: false, Description: "True if it needs the network."},
		{Name: "env", Type: "map", Description: "Secrets for its environment: each value is exactly one {{vault:NAME}}."},
	},
	Risk:           Sensitive,
	ReadsUntrusted: true,
	Egress:         EgressUnknown,
	AcceptsSecrets: []string{"command", "env"},
	Assess:         assessShell,
	Judge:          judgeShell,
	Execute:        runShell,
}

func assessShell(args Args) (Plan, error) {
	if strings.TrimSpace(args.String("command")) == "" {
		return Plan{}, fmt.Errorf("argument %q is empty", "command")
	}
	a := &analysis{}
	uses, err := a.secretLine(args)
	return Plan{Paths: a.paths, Programs: a.programs, Secrets: uses, Detail: a}, err
}

func judgeShell(args Args, plan Plan, facts Facts) Judgement {
	a, ok := plan.Detail.(*analysis)
	if !ok {
		return Judgement{Summary: "shell", Opaque: "it was not analysed"}
	}
	line := args.String("command")
	network := a.network || args.Bool("network")
	j := Judgement{
		Risk: Sensitive, Widest: Always, Opaque: a.opaque,
		Warnings: slices.Clone(a.warnings),
		Commands: a.commands, Argv: a.argv,
	}
	j.reach(facts, network, a.hosts)
	j.Summary = "shell: " + oneLine(line)
	if network && facts.Boxed {
		j.Summary = "shell (network): " + oneLine(line)
	}
	for _, name := range a.names {
		if (facts.Env[name] || args.Map("env")[name] != "") && j.Opaque == "" {
			j.Opaque = fmt.Sprintf("it changes the environment variable %q", name)
		}
	}
	if a.moved && facts.Env["CDPATH"] && j.Opaque == "" {
		j.Opaque = "CDPATH decides where cd goes"
	}
	if strings.ContainsFunc(line, invisible) {
		j.warn("it holds characters that do not show")
	}
	a.judgeWrites(&j, facts)
	for i := range a.calls {
		a.calls[i].judge(&j, facts, len(a.calls) > 1)
	}
	if len(j.Targets) == 0 {
		// Nothing but builtins: still something to name on a card and grant.
		for _, name := range a.builtins {
			j.addTarget(Target{Key: "shell:" + name, Widest: Always})
		}
		if len(j.Targets) == 0 {
			j.addTarget(Target{Key: "shell:true", Widest: Always})
		}
	}
	for _, t := range j.netTargets() {
		j.addTarget(t)
	}
	if !facts.Boxed {
		j.Why = append(j.Why, "it runs outside the sandbox")
	}
	if network {
		j.Why = append(j.Why, j.networkWhy())
	}
	if len(j.Warnings) > 0 {
		j.Widest, j.WidestWhy = Once, "a call with a warning is asked for each time"
	}
	if j.Opaque != "" {
		j.Targets, j.Widest = nil, Once
		j.WidestWhy = "the line could not be analysed: " + j.Opaque
	}
	a.secret.shown(&j)
	return j
}

const (
	reachesNetwork = "it can reach the network and what listens on this machine"
	reachesHosts   = "it can use the network; about a host that is not named here it is decided when it connects"
)

func (j *Judgement) networkWhy() string {
	if j.Proxied {
		return reachesHosts
	}
	return reachesNetwork
}

// reach fills in what follows from where code runs and whether it can have the
// network, alike for the shell and for Python.
func (j *Judgement) reach(facts Facts, network bool, hosts []string) {
	j.Boxed, j.Network = facts.Boxed, network
	open := network || !facts.Boxed || !facts.NetBlocked
	switch j.Proxied = network && facts.NetProxied; {
	case !open:
		j.Egress = Egress{Kind: EgressNone}
	case j.Proxied:
		j.Egress = Egress{Kind: EgressHosts, Hosts: facts.reachable(hosts)}
	}
	j.Sends, j.ReadsUntrusted = open, open
	j.ReadsPrivate = !facts.Boxed || facts.MoreShown || len(facts.Roots) > 1
	j.ChangesOutside = open
}

func (j *Judgement) addTarget(t Target) {
	for i := range j.Targets {
		if o := &j.Targets[i]; o.Key == t.Key {
			if t.Widest < o.Widest {
				*o = t
			}
			return
		}
	}
	j.Targets = append(j.Targets, t)
}

// sureFolder reports whether a cd to this path cannot fail.
func (f *Facts) sureFolder(name string) bool {
	p := f.Paths[name]
	return name != "" && p.Exists && p.Dir && p.Place >= ExtraRoot
}

// judgeWrites sorts the paths that the line writes by where they lie.
func (a *analysis) judgeWrites(j *Judgement, facts Facts) {
	for _, w := range a.writes {
		if facts.sureFolder(w.unless) {
			continue // the cd that had to fail for this does not
		}
		if !slices.Contains(j.Writes, w.name) {
			j.Writes = append(j.Writes, w.name)
		}
		f, known := facts.Paths[w.name]
		via := facts.Paths[w.via]
		if w.via != "" && !(via.Dir && (via.Resolved == path.Join(facts.Workspace, w.via) || via.Resolved == path.Clean(w.via))) && j.NotCovered == "" {
			j.NotCovered = fmt.Sprintf("it writes %q, which goes back from a folder that may be a link", w.name)
		}
		switch {
		case w.any:
			if j.NotCovered == "" {
				j.NotCovered = fmt.Sprintf("it writes %q after a cd to a folder that is not known", w.name)
			}
		case known && f.Place == Protected && !kernelPath(f.Resolved):
			j.Refuse = fmt.Sprintf("%q belongs to picket", w.name)
		case !known || f.Place < ExtraRoot:
			if j.NotCovered == "" {
				j.NotCovered = fmt.Sprintf("it writes %q, outside the writable folders", w.name)
			}
			j.ChangesOutside = true
		case f.Place == ExtraRoot:
			j.ChangesOutside = true
		}
		if known && f.Resolved != w.name {
			if why := writeWarning(f.Resolved); why != "" {
				j.warn(why + ": " + w.name)
			}
		}
	}
	for _, t := range a.touched {
		f, known := facts.Paths[t.name]
		if known && f.Place == Protected && !kernelPath(f.Resolved) {
			j.Refuse = fmt.Sprintf("%q belongs to picket", t.name)
		}
		// Without a sandbox: which of them it writes is known of few programs. That
		// /a/,/b/p names nothing shows in the folder that it would lie in.
		if known && !facts.Boxed && f.Place == Outside && j.NotCovered == "" && !facts.sureFolder(t.unless) &&
			(f.Exists || facts.Paths[path.Dir(t.name)].Exists) {
			j.NotCovered = "it names " + oneLine(t.name) + ", which lies outside the workspace"
		}
	}
	if a.loose != "" && !facts.Boxed && j.NotCovered == "" {
		j.NotCovered = a.loose // the sandbox would hold it inside the writable folders
	}
}

func (j *Judgement) pin(name, path string) {
	if j.Pins == nil {
		j.Pins = map[string]string{}
	}
	j.Pins[name] = path
}

func (j *Judgement) warn(w string) {
	if !slices.Contains(j.Warnings, w) {
		j.Warnings = append(j.Warnings, w)
	}
}

// kernelPath: such a path is no file of anybody's. It is not looked up, since the
// gate refuses what is; a write to it is covered by nothing.
func kernelPath(p string) bool {
	p += "/"
	return strings.HasPrefix(p, "/dev/") || strings.HasPrefix(p, "/proc/") || strings.HasPrefix(p, "/sys/") || strings.HasPrefix(p, "/run/user/")
}

// systemDirs hold the programs that belong to the machine.
var systemDirs = []string{"/usr/", "/bin/", "/sbin/", "/lib/", "/opt/", "/nix/store/", "/gnu/store/", "/snap/", "/System/", "/Library/", "/Applications/"}

func systemPath(p string) bool {
	return slices.ContainsFunc(systemDirs, func(dir string) bool { return strings.HasPrefix(p, dir) })
}

// judge turns one program that the line reaches into its target.
func (c *progCall) judge(j *Judgement, facts Facts, among bool) {
	if facts.sureFolder(c.unless) {
		return
	}
	t := Target{Key: "shell:" + c.word, Widest: c.widest, Why: c.why}
	limit := func(why string) {
		if t.Widest > Task {
			t.Widest, t.Why = Task, why
		}
	}
	f, known := facts.Programs[c.word]
	qualified := strings.Contains(c.word, "/")
	if f.Shadowed && among { // what runs before it can put another one there
		if f.Path != "" && facts.Boxed {
			j.pin(c.word, f.Path)
		} else {
			limit("a folder of programs that can be changed here comes before it")
		}
	}
	switch {
	case !known:
		limit("it could not be looked up")
	case f.Path == "" && !qualified:
		if c.through {
			return // nothing runs
		}
	case f.Path == "" || f.Writable || qualified && !(systemPath(f.Path) && systemPath(path.Clean(c.word))):
		p := f.Path
		if p == "" || systemPath(p) { // not there, or a link that may lead elsewhere by then
			p = path.Join(facts.Workspace, c.word)
			if strings.HasPrefix(c.word, "/") {
				p = path.Clean(c.word)
			}
		}
		if c.script && f.Path != "" && !f.Writable {
			return // nothing that a call can change
		}
		j.Bound = append(j.Bound, fmt.Sprintf("program %s %s", p, f.Digest))
		if c.download {
			j.warn("runs a file in a line that also downloads: " + c.word)
		}
		if c.script {
			return // its interpreter has the target
		}
		t.Key = "shell:" + p
		limit("the program file can be changed by what runs here")
	case c.through || c.script:
		return
	case qualified:
		base := path.Base(c.word)
		t.Key = "shell:" + f.Path
		if bare := facts.Programs[base]; bare.Path == f.Path && !bare.Writable {
			t.Key = "shell:" + base
		}
	}
	if f.Path != "" && !f.Writable {
		if p := lookupProgram(path.Base(f.Path)); p != nil && p.code != "" {
			limit(p.code)
		}
	}
	j.addTarget(t)
}

// oneLine makes a text fit a summary: line breaks are shown as such. The gate cuts it.
func oneLine(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r", `\r`), "\n", `\n`)
}

func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i] | 0x20; s[i] != '_' && (c < 'a' || c > 'z') && (i == 0 || s[i] < '0' || s[i] > '9') {
			return false
		}
	}
	return s != ""
}

// steering names variables that decide which programs run, what code they load
// or where they connect; a name ending in * stands for all that begin so.
const steering = " PATH ENV IFS CDPATH HOME PWD OLDPWD SHELL SHELLOPTS FPATH ZDOTDIR PROMPT_COMMAND PS0 PS1 PS2 PS3 PS4 BASH* TMPDIR TEMP TMP " +
	"LD_* DYLD_* GIT_* PYTHON* PERL* RUBY* BUNDLE_* GEM_* NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_TLS_* NPM_CONFIG_* YARN_* JAVA_* JDK_* _JAVA_* " +
	"CLASSPATH GOFLAGS GOPROXY GOROOT GOPATH GOENV GOBIN GOTOOLCHAIN GOSUMDB GONOSUMDB GONOSUMCHECK GOINSECURE GOPRIVATE GOWORK GOCACHE GOMODCACHE CGO_* " +
	"CARGO_* RUSTC* RUSTDOC* RUSTFLAGS RUSTUP_* LUA_* PHPRC PHP_INI* R_* MAKE* CMAKE_* GCC_* COMPILER_* GCONV_* CC CXX CPP LD AR CFLAGS CXXFLAGS " +
	"CPPFLAGS LDFLAGS EDITOR VISUAL PAGER MANPAGER BROWSER LESS* SSH_* SUDO_* TERMINFO* TERMCAP LOCPATH NLSPATH XDG_* PICKET_* HTTP_PROXY HTTPS_PROXY " +
	"ALL_PROXY FTP_PROXY NO_PROXY SSL_* CURL_HOME CURL_CA_BUNDLE REQUESTS_CA_BUNDLE WGETRC DOCKER_HOST DOCKER_CONFIG DOTNET_* CORECLR_* COR_* ERL_* GUILE_* TCLLIBPATH KUBECONFIG VIMINIT EXINIT INPUTRC " +
	"TAR_OPTIONS GZIP RSYNC_* CVS_RSH RIPGREP_CONFIG_PATH HOSTALIASES RES_OPTIONS OPENSSL_* POSIXLY_CORRECT "

// steeringEnd is how names of such variables end.
var steeringEnd = LazyRegexp(`(OPTS|OPTIONS|PATH|PAGER|FLAGS|ARGS|RUNNER|TUNABLES|PRELOAD)$|_(HOME|CONFIG|CONFIG_FILE)$`)

func steersPrograms(name string) bool {
	name = strings.ToUpper(name)
	if strings.Contains(steering, " "+name+" ") || steeringEnd().MatchString(name) {
		return true
	}
	for i := range name {
		if strings.Contains(steering, " "+name[:i+1]+"* ") {
			return true
		}
	}
	return false
}

func runShell(ctx context.Context, c *Call) Output {
	a, ok := c.Plan.Detail.(*analysis)
	if !ok {
		return Output{Err: "the line was not analysed"}
	}
	cmd := Command{Argv: []string{"/bin/sh", "-c", a.secret.text}, Pins: c.Judgement.Pins}
	if c.Judgement.Opaque == "" && !slices.ContainsFunc(c.Judgement.Targets,
		func(t Target) bool { return strings.Contains(t.Key, "/") }) {
		cmd.GitWrite, cmd.GitConfig = a.gitAccess()
	}
	return runCommand(ctx, c, cmd)
}

// runCommand starts a child for the shell or the Python tool and turns how it
// ended into what the model is told. Nothing that was printed is lost.
func runCommand(ctx context.Context, c *Call, cmd Command) Output {
	cmd.Network = c.Judgement.Network
	cmd.Env = c.Secrets
	cmd.Timeout = time.Duration(c.Args.Int("timeout")) * time.Second
	r := c.Host.Exec(ctx, cmd)
	out := Output{
		Text: string(r.Stdout), Bytes: r.StdoutSize + r.StderrSz, Notes: slices.Clone(r.Notes),
		Exit: r.Exit, HasExit: r.Started, Interrupted: r.TimedOut || r.Stopped,
	}
	if len(r.Stderr) > 0 {
		if out.Text != "" && !strings.HasSuffix(out.Text, "\n") {
			out.Text += "\n"
		}
		out.Text += "[stderr]\n" + string(r.Stderr)
	}
	switch {
	case !r.Started:
		out.Err = "it never ran"
		if r.Err != "" {
			out.Err += ": " + r.Err
		}
	case r.TimedOut:
		out.Err = fmt.Sprintf("ended by the time limit of %d s; what it printed until then is above", c.Args.Int("timeout"))
	case r.Stopped:
		out.Err = "stopped before it ended"
	case r.Err != "":
		out.Err = r.Err
	case r.Exit != 0:
		out.Err = fmt.Sprintf("exit status %d", r.Exit)
	}
	if out.Err == "" || !r.Started || r.Stopped {
		return out
	}
	switch {
	case !c.Judgement.Boxed || !lacksNetwork(out.Text):
	case !cmd.Network:
		out.Notes = append(out.Notes, "it had no network: if it needs one, call again with network=true")
	case c.Judgement.Proxied:
		out.Notes = append(out.Notes, noProxy)
	}
	if c.Judgement.Boxed && strings.Contains(out.Text, "Read-only file system") && strings.Contains(out.Text, ".git") {
		out.Notes = append(out.Notes, "the repository's .git is read-only here: use a line of plain git commands to change it")
	}
	return out
}

// noProxy is for a call that had the proxy and still found no network.
const noProxy = "the only way to the network is the HTTP proxy that the *_PROXY variables name: what cannot use one (ssh, git over ssh, " +
	"fetch of Node before 24, a resolver of its own) reaches nothing; the owner can give such calls the machine's network with \"sandbox\": {\"network\": \"host\"}"

// networkErrors are what resolvers, libc and common clients print without a route.
var networkErrors = []string{"could not resolve", "couldn't resolve", "name or service not known", "name resolution", "network is unreachable",
	"network unreachable", "no address associated", "nodename nor servname", "getaddrinfo", "eai_again", "enotfound", "enetunreach",
	"failed to connect", "couldn't connect", "could not connect", "no route to host", "no such host", "dial tcp", "unable to look up", "server misbehaving"}

func lacksNetwork(text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(networkErrors, func(s string) bool { return strings.Contains(text, s) })
}
