package tools

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Python runs a script in isolated mode: no environment variables, no user site
// and not the working directory decide what it imports. What its source shows
// can only raise the level of the call; the sandbox is what holds.
var Python = Tool{
	Name: pythonName,
	Description: "Run a Python 3 script in the workspace and return what it prints. Isolated mode (-I): modules in the workspace cannot be imported. " +
		"There is no network unless the script imports a network module or network is true. Each call starts anew; standard input is empty.",
	Params: []Param{
		{Name: "code", Type: "string", Required: true, Description: "The script."},
		{Name: "timeout", Type: "integer", Min: 1, Max: 600, Default: int64(60), Description: "Seconds after which it is ended."},
		{Name: "network", Type: "boolean", Default: false, Description: "True if it needs the network."},
		{Name: "env", Type: "map", Description: "Secrets for its environment: each value is exactly one {{vault:NAME}}."},
	},
	Risk:           Moderate,
	ReadsUntrusted: true,
	Egress:         EgressUnknown,
	AcceptsSecrets: []string{"env"},
	Assess:         assessPython,
	Judge:          judgePython,
	Execute:        runPython,
}

const pythonName = "python_execute"

// pythonCommand is the interpreter and its options, before the script.
func pythonCommand() []string {
	if runtime.GOOS == "windows" {
		return []string{"py", "-3", "-I"}
	}
	return []string{"python3", "-I"}
}

func assessPython(args Args) (Plan, error) {
	if strings.TrimSpace(args.String("code")) == "" {
		return Plan{}, fmt.Errorf("argument %q is empty", "code")
	}
	uses, err := secretEnv(args.Map("env"))
	return Plan{Programs: pythonCommand()[:1], Secrets: uses, Detail: scanPython(args.String("code"))}, err
}

func judgePython(args Args, plan Plan, facts Facts) Judgement {
	scan, ok := plan.Detail.(*pythonScan)
	if !ok {
		return Judgement{Summary: pythonName, Opaque: "it was not analysed"}
	}
	network := scan.network || args.Bool("network")
	t := Target{Key: pythonName, Widest: Always}
	j := Judgement{Risk: Moderate, Widest: Always}
	j.reach(facts, network, scan.hosts)
	j.Summary = "python: " + oneLine(strings.TrimSpace(args.String("code")))
	raise := func(is bool, why string) {
		if is {
			j.Risk = Sensitive
			j.Why = append(j.Why, why)
		}
	}
	raise(!facts.Boxed, "it runs outside the sandbox")
	raise(network, j.networkWhy())
	raise(scan.processes, "the code starts other programs")
	raise(scan.dynamic, "the code builds code when it runs")
	raise(scan.outside || slices.ContainsFunc(scan.absolute, func(p string) bool {
		return p != facts.Workspace && !strings.HasPrefix(p, facts.Workspace+"/") && p != "/dev/null" && !(facts.Boxed && (p == "/tmp" || strings.HasPrefix(p, "/tmp/")))
	}), "the code names paths outside the workspace")
	raise(scan.environment, "the code uses the environment")
	raise(scan.deletion, "the code deletes files")
	if scan.environment {
		j.warn("the code uses the environment")
	}
	if scan.deletion {
		j.warn("the code deletes files")
	}
	if scan.later != "" {
		j.warn("the code names " + scan.later)
	}
	if scan.git && !facts.Boxed { // a box protects repositories that are there, and names new ones
		j.warn("the code names .git")
	}
	if network || !facts.Boxed || !facts.NetBlocked {
		t.Widest, t.Why = Task, "it can send data to any host"
	}
	if f, known := facts.Programs[plan.Programs[0]]; !known || f.Writable {
		t.Widest, t.Why = Task, "the interpreter can be changed by what runs here"
		j.Bound = append(j.Bound, fmt.Sprintf("program %s %s", f.Path, f.Digest))
	}
	j.Targets = append([]Target{t}, j.netTargets()...)
	if len(j.Warnings) > 0 {
		j.Widest, j.WidestWhy = Once, "a call with a warning is asked for each time"
	}
	return j
}

func runPython(ctx context.Context, c *Call) Output {
	return runCommand(ctx, c, Command{Argv: append(pythonCommand(), ScriptArg), Script: []byte(c.Args.String("code"))})
}

// pythonScan is what the source of a script shows.
type pythonScan struct {
	network, processes, environment, deletion, outside, dynamic bool

	absolute []string // absolute paths in string literals
	hosts    []string // named by URLs in them
	later    string   // a file that others run or obey, and who
	git      bool     // the folder's bare name: mostly one to be skipped
}

const (
	pyNetwork = " socket _socket ssl urllib urllib2 urllib3 http httplib httplib2 httpx requests aiohttp ftplib smtplib imaplib poplib nntplib telnetlib xmlrpc socketserver " +
		"asyncore asynchat websocket websockets paramiko fabric pycurl boto3 botocore grpc redis pymongo psycopg psycopg2 pymysql MySQLdb mysql asyncpg twisted tornado scapy dns " +
		"selenium playwright mechanize scrapy ldap3 pika kafka zmq openai anthropic google azure webbrowser antigravity wget gevent trio anyio pip ensurepip "
	pyNetworkCalls = " open_connection create_connection start_server create_server create_datagram_endpoint open_unix_connection start_unix_server sock_connect "
	pyProcesses    = " subprocess pty multiprocessing ctypes _ctypes cffi posix nt _posixsubprocess pexpect sh plumbum invoke "
	pyProcessCalls = " system popen Popen execv execve execvp execvpe execl execle execlp execlpe spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe posix_spawn " +
		"posix_spawnp fork forkpty startfile killpg create_subprocess_exec create_subprocess_shell "
	pyDynamic      = " importlib imp runpy builtins __builtin__ marshal pickle cPickle dill shelve code codeop pdb bdb zipimport pkgutil pkg_resources inspect gc "
	pyDynamicNames = " __import__ import_module __builtins__ __subclasses__ __globals__ __loader__ __spec__ __code__ f_globals f_builtins globals "
	pyEnvironment  = " environ environb getenv getenvb putenv unsetenv expandvars "
	pyDeletion     = " rmtree unlink rmdir removedirs send2trash "
	pyOutside      = " expanduser chdir fchdir chroot getpwuid getpwnam "
)

// scanPython looks at the names, imports and string literals of a script. A
// name in a comment or a string counts for nothing; one in an f-string does.
func scanPython(code string) *pythonScan {
	s := &pythonScan{}
	s.encoding(code)
	s.tokens(code, 0)
	return s
}

// encoding looks for a declared encoding (PEP 263) and for letters that Python
// takes for others (PEP 3131: names are compared after NFKC).
func (s *pythonScan) encoding(code string) {
	line := 0
	for text := range strings.SplitSeq(code, "\n") {
		if line++; line > 2 {
			break
		}
		if _, name, ok := strings.Cut(text, "coding"); ok && strings.HasPrefix(strings.TrimSpace(text), "#") && name != "" && (name[0] == ':' || name[0] == '=') {
			name = strings.ToLower(strings.TrimLeft(name[1:], " "))
			s.dynamic = s.dynamic || !strings.HasPrefix(name, "utf-8") && !strings.HasPrefix(name, "utf8")
		}
	}
	for _, r := range code {
		if r >= 0xFB00 && r < 0xFB07 || r >= 0xFF21 && r < 0xFF5B || r >= 0x1D400 && r < 0x1D800 || r >= 0x2070 && r < 0x2150 || r == 'ª' || r == 'º' || r == 'ſ' || r >= 0x24B6 && r < 0x24EA {
			s.dynamic = true
		}
	}
}

// pyState is where tokens is in an import statement.
type pyState int

const (
	pyPlain  pyState = iota
	pyFrom           // after "from": the module follows
	pyModule         // after "import" or its comma: a module follows
	pyPath           // in the dotted name of one, or after it
	pyAlias          // after "as", for the module os
	pyNames          // after "from MODULE import"
)

func (s *pythonScan) tokens(code string, depth int) {
	var (
		state        pyState
		prev, before string // the last two tokens: a name, or one byte
		from, module string
		osNames      = " os "
		open         int // brackets
	)
	for i := 0; i < len(code); {
		c := code[i]
		token := code[i : i+1]
		switch {
		case c == ' ' || c == '\t' || c == '\r' || c == '\f':
			i++
			continue
		case c == '\\' && i+1 < len(code) && code[i+1] == '\n':
			i += 2
			continue
		case c == '#':
			for i < len(code) && code[i] != '\n' {
				i++
			}
			continue
		case isNameByte(c, true) || c >= 0x80:
			end := i + 1
			for end < len(code) && (isNameByte(code[end], false) || code[end] >= 0x80) {
				end++
			}
			if end < len(code) && (code[end] == '"' || code[end] == '\'') && end-i <= 2 {
				i = s.literal(code, end, strings.ToLower(code[i:end]), depth)
				before, prev = prev, `"`
				continue
			}
			token = code[i:end]
			i = end
			state, from, module = s.statement(token, state, from, module, &osNames)
			s.name(token, prev, before, osNames, state == pyNames && listed(osNames, from))
			before, prev = prev, token
			continue
		case c == '"' || c == '\'':
			i = s.literal(code, i, "", depth)
			before, prev = prev, `"`
			continue
		case strings.IndexByte("([{", c) >= 0:
			open++
		case strings.IndexByte(")]}", c) >= 0:
			open = max(open-1, 0)
		case c == ';' || c == '\n' && open == 0:
			state, from = pyPlain, ""
		case c == '*' && state == pyNames && listed(osNames, from):
			s.dynamic = true
		case c == ',' && state == pyPath:
			state = pyModule
		}
		i++
		before, prev = prev, token
	}
}

// statement follows import statements by their names.
func (s *pythonScan) statement(token string, state pyState, from, module string, osNames *string) (pyState, string, string) {
	switch {
	case token == "from" && state == pyPlain:
		return pyFrom, "", module
	case token == "import" && (state == pyPlain || from != ""):
		if from != "" {
			s.module(from)
			return pyNames, from, module
		}
		return pyModule, "", module
	case state == pyFrom:
		return pyPlain, token, module
	case state == pyModule:
		s.module(token)
		return pyPath, from, token
	case state == pyPath && token == "as" && module == "os":
		return pyAlias, from, module
	case state == pyAlias:
		*osNames += token + " "
		return pyPath, from, module
	}
	return state, from, module
}

func (s *pythonScan) module(root string) {
	s.network = s.network || listed(pyNetwork, root)
	s.processes = s.processes || listed(pyProcesses, root)
	s.dynamic = s.dynamic || listed(pyDynamic, root)
}

// name looks at one name, with the two tokens before it.
func (s *pythonScan) name(token, prev, before, osNames string, fromOS bool) {
	dotted := prev == "."
	ofOS := dotted && listed(osNames, before) || fromOS
	s.network = s.network || listed(pyNetworkCalls, token)
	s.processes = s.processes || listed(pyProcessCalls, token) && !(dotted && before == "platform") || ofOS && token == "kill"
	s.environment = s.environment || listed(pyEnvironment, token)
	s.deletion = s.deletion || listed(pyDeletion, token) || ofOS && (token == "remove" || token == "truncate")
	s.outside = s.outside || listed(pyOutside, token) || dotted && token == "home" && strings.HasSuffix(before, "Path")
	s.dynamic = s.dynamic || listed(pyDynamicNames, token) ||
		!dotted && (token == "eval" || token == "exec" || token == "compile") ||
		dotted && before == "sys" && (token == "path" || token == "modules" || token == "meta_path" || token == "path_hooks") ||
		prev == "(" && before == "getattr" && (listed(osNames, token) || listed(" sys builtins subprocess shutil socket ", token))
}

// literal reads the string literal whose quote stands at code[i] and returns the
// index after it. Expressions in an f-string are code.
func (s *pythonScan) literal(code string, i int, prefix string, depth int) int {
	quote := code[i : i+1]
	if strings.HasPrefix(code[i:], strings.Repeat(quote, 3)) {
		quote = code[i : i+3]
	}
	start := i + len(quote)
	for i = start; i < len(code) && !strings.HasPrefix(code[i:], quote); i++ {
		if code[i] == '\\' {
			i++
		} else if code[i] == '\n' && len(quote) == 1 {
			break // not closed: an error for Python
		}
	}
	text := code[start:min(i, len(code))]
	if text == ".git" {
		s.git = true
	} else {
		s.text(text)
	}
	if strings.ContainsAny(prefix, "ft") && strings.Contains(text, "{") {
		if depth > 4 {
			s.dynamic = true
		} else {
			s.tokens(text, depth+1)
		}
	}
	return min(i+len(quote), len(code))
}

// text looks for paths in a literal.
func (s *pythonScan) text(t string) {
	s.hosts = addHosts(s.hosts, t)
	if why := startedLater(t); why != "" && len(t) < 200 {
		s.later = t + ", which " + why
	}
	switch {
	case len(t) > 1 && t[0] == '/' && t[1] != '/' && t[1] != ' ' && !strings.Contains(t, "\n"):
		if len(s.absolute) < 100 {
			s.absolute = append(s.absolute, strings.TrimRight(t, "/"))
		}
		s.outside = s.outside || strings.Contains(t, "/..")
	case t == "~" || strings.HasPrefix(t, "~/") || t == ".." || strings.HasPrefix(t, "../") || strings.Contains(t, "/../"),
		len(t) > 2 && t[1] == ':' && (t[2] == '\\' || t[2] == '/'):
		s.outside = true
	}
}
