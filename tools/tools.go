// Package tools holds everything the model can ask for, one file a topic.
//
// A tool never decides whether it may run. It says, as pure data, what a call
// names (Assess), what that means once the names have been looked up (Judge),
// and how to do it (Execute). The Sentinel in the root package is the only caller
// of Run, and this package cannot import it: no tool can reach the policy, the
// grants, the vault or the log.
//
// # Adding a tool honestly
//
// Declare its parameters, and nothing that the schema does not list will ever
// reach it. Let Assess name every path, program and host that the call touches;
// what it does not name the gate cannot look up. Let Judge raise the risk, never
// lower it below what Tool declares. Do only in Execute what Judge described: the
// arguments are frozen, so read them again rather than keep state. A fact that
// is unknown is the dangerous one.
package tools

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Risk is how much harm a call can do. The zero value is the highest, so that a
// forgotten one is not harmless.
type Risk int

const (
	Sensitive Risk = iota // hard to undo or visible to others
	Moderate              // reaches outside or changes state
	Safe                  // reversible and local
)

func (r Risk) String() string { return [...]string{"sensitive", "moderate", "safe"}[r] }

// Higher returns the more dangerous of two risks.
func Higher(a, b Risk) Risk { return min(a, b) }

// EgressKind says where a call can send data. The zero value is the widest.
type EgressKind int

const (
	EgressUnknown EgressKind = iota // any host
	EgressHosts                     // the hosts it names
	EgressNone
)

func (k EgressKind) String() string { return [...]string{"unknown", "hosts", "none"}[k] }

// Egress is where one call can send data. Hosts are in their canonical form
// (see ParseURL); a port other than the scheme's own is part of the host.
type Egress struct {
	Kind  EgressKind
	Hosts []string
}

// Scope is how long an answer lasts, from narrow to wide.
type Scope int

const (
	Once    Scope = iota // this call
	Task                 // until the turn ends
	Session              // until the process or the chat session ends
	Day                  // 24 hours
	Always               // until revoked
)

var scopeNames = [...]string{"once", "task", "session", "24h", "always"}

func (s Scope) String() string {
	if s < Once || s > Always {
		return "once"
	}
	return scopeNames[s]
}

// ParseScope reads the text form of a scope.
func ParseScope(s string) (Scope, bool) {
	i := slices.Index(scopeNames[:], s)
	return Scope(max(i, 0)), i >= 0
}

// A Target is one key that a grant of a call binds to, such as "shell:git" or
// "web_fetch:example.com". A call is covered when every one of its targets is.
type Target struct {
	Key    string
	Widest Scope  // the widest scope in which this key can be granted
	Why    string // why no wider, empty when Widest is Always
}

// A Param is one parameter of a tool.
type Param struct {
	Name        string
	Type        string // string, integer, boolean, strings (a list), map (of strings)
	Description string
	Required    bool
	Enum        []string // of a string
	Min, Max    int64    // of an integer; both 0 means any
	Default     any      // filled in when the model leaves it out: string, int64 or bool
}

// A Tool is the description of one tool. It is data except for its three
// functions, of which only Execute has an effect.
type Tool struct {
	Name        string // [a-z0-9_]{1,64}
	Description string // what the model is told
	Params      []Param

	Risk             Risk // the least risk of any call
	ReadsPrivateData bool // results may hold the owner's private data
	ReadsUntrusted   bool // results may hold words of others
	Egress           EgressKind
	AcceptsSecrets   []string // parameters in which {{vault:NAME}} may stand

	// Assess names what the call touches. It is pure: no file, network or
	// clock. An error is about the arguments and refuses the call.
	Assess func(Args) (Plan, error)

	// Judge says what the call means, given what its names turned out to be.
	// It is pure too.
	Judge func(Args, Plan, Facts) Judgement

	// Change says what the judged call would make of a file, for the question,
	// false if that cannot be told. It only reads. It is nil for a tool that
	// changes none.
	Change func(*Call) (FileChange, bool)

	// Execute does it. Only the gate calls it, in one place.
	Execute func(context.Context, *Call) Output
}

// FileChange is what a call would make of a file.
type FileChange struct {
	Path     string
	Created  bool // there is no such file yet
	Old, New string
}

// A Plan is what a call names.
type Plan struct {
	Paths    []PathUse
	Programs []string // program words as written, to be looked up on the child's PATH
	Hosts    []string // hosts that the arguments name, canonical
	Secrets  []SecretUse
	Detail   any // the tool's own reading of its arguments, for Judge and Execute
}

// PathUse is one path that a call names, as it stands in the arguments
// (relative to the workspace, unless absolute or starting with "~/").
type PathUse struct {
	Name  string
	Write bool
}

// Facts is what the names in a Plan are on this machine, as the call will see
// it. The gate fills it in; a name without an entry is unknown.
type Facts struct {
	Workspace string   // absolute, links resolved
	Roots     []string // writable roots, absolute and resolved, the workspace first
	Home      string   // the owner's home, resolved; "" if unknown

	Boxed      bool // shell and Python calls run in the sandbox
	NetBlocked bool // and their network can be taken away
	NetProxied bool // or reaches one host after the other, each decided on as it connects
	MoreShown  bool // and see more than the writable roots and the system's folders

	HostPorts []int // ports of this machine's loopback that such a call can reach

	Paths    map[string]PathFact    // by PathUse.Name
	Programs map[string]ProgramFact // by program word
	Env      map[string]bool        // names of the variables that the child inherits
}

// Place is where a path lies. The zero value is the one that may not be touched.
type Place int

const (
	Protected Place = iota // picket's settings, data or binary, or a kernel file system
	Outside                // anywhere else
	System                 // what every box sees read-only (/usr, /etc, /opt)
	ExtraRoot              // under a writable root other than the workspace
	Workspace              // under the workspace
	Scratch                // /tmp of the box, /dev/null and descriptors: no write that matters
)

// PathFact is what a path is.
type PathFact struct {
	Resolved string // absolute, links resolved as far as it exists
	Place    Place
	Exists   bool
	Dir      bool
	Regular  bool
	Size     int64
	Changed  int64 // when it was, in nanoseconds since 1970
}

// ProgramFact is what a program word runs.
type ProgramFact struct {
	Path     string // absolute and resolved; "" if there is no such program
	Writable bool   // lies under a writable root (or in a place unknown)
	Digest   string // hex SHA-256 of the file, only when Writable
	Shadowed bool   // a folder that is writable comes before it on the child's PATH
}

// A Judgement is what a call means. The zero Judgement is the most dangerous
// call that there can be, and no grant covers it.
type Judgement struct {
	Summary string // one line, verb and target first, from the real arguments
	Risk    Risk
	Why     []string // what raised the risk

	Warnings []string // each makes the call ask, once only
	Opaque   string   // why the call cannot be analysed; "" if it was
	Refuse   string   // why no answer can allow it; "" if nothing does

	Targets    []Target
	Widest     Scope  // caps what may be offered for the call as a whole
	WidestWhy  string // why, when it is not Always
	NotCovered string // why no grant covers this call although its targets are known; "" if one can

	Egress         Egress
	Sends          bool // sends more than a GET or HEAD would
	RequestBytes   int  // size of the URL or query that leaves, 0 if none
	Network        bool // a boxed call gets the network
	Proxied        bool // but of it no host that is not among those of Egress, unless it is decided on
	Boxed          bool // runs in the sandbox
	ReadsPrivate   bool // this call may bring private data in
	ReadsUntrusted bool // this call may bring words of others in
	ChangesOutside bool // changes state outside the workspace
	Instructs      bool // changes what later turns take as instructions or facts

	Writes []string // paths written where they are plain, as shown on the card
	URL    string   // the canonical URL of a fetch or navigation, "" otherwise

	// What rules may match besides the argument as it stands: for each
	// argument its other forms (a resolved path, a host).
	Forms map[string][]string
	// For shell: each simple command with single blanks, in order; and the
	// argv of every program reached, wrappers looked through.
	Commands []string
	Argv     [][]string

	// Facts that were part of what was approved: if any is different after
	// the question, the answer is void.
	Bound []string
	Pins  map[string]string // see Command
}

// A Host is what the gate lends to a running call.
type Host struct {
	Workspace  string
	ExtraRoots []string
	// Protected reports whether an absolute path is, or lies in, something no
	// tool may touch.
	Protected func(path string) bool
	// Exec starts a child the sandboxed way and waits for it to be gone.
	Exec func(context.Context, Command) ExecResult
	// Hop decides about a redirect target as a fresh call would be; an error
	// says why not, and that it was recorded.
	Hop func(ctx context.Context, url string) error
	// Ask puts a question of the model's to the owner.
	Ask func(ctx context.Context, question string) (string, error)
	// Keep stores the content that a write is about to replace, so that
	// "picket undo ID" can put it back. prev is nil for a file that is new.
	Keep func(path string, prev, next []byte) error
	// Redact takes secrets out of a text. The gate does it with all that a tool
	// returns; a tool that cuts a text calls it before.
	Redact func(string) string
	Now    func() time.Time
}

// clean is Redact where there is one: tests have none.
func (h *Host) clean(s string) string {
	if h == nil || h.Redact == nil {
		return s
	}
	return h.Redact(s)
}

// shown returns text[from:to] without secrets, also those that a cut goes through.
func (h *Host) shown(text string, from, to int) string {
	to = min(to, len(text))
	all, before, after := h.clean(text), h.clean(text[:from]), h.clean(text[to:])
	n := 0
	for n < min(len(before), len(all)) && all[n] == before[n] {
		n++
	}
	all, n = all[n:], 0
	for n < min(len(after), len(all)) && all[len(all)-1-n] == after[len(after)-1-n] {
		n++
	}
	return all[:len(all)-n]
}

// A Call is one approved call, as Execute gets it.
type Call struct {
	ID        string
	Args      Args // with placeholders substituted
	Plan      Plan
	Judgement Judgement
	Secrets   map[string]string // variables for the child's environment, by name
	Host      *Host
}

// Output is what came of a call. Both texts reach the model.
type Output struct {
	Text        string
	Err         string   // "" if it worked; lower case, no stop
	Exit        int      // exit status of a child, when HasExit
	HasExit     bool     //
	Bytes       int64    // bytes produced before any cut
	Interrupted bool     // ended by the time limit, a stop, or picket's end
	Notes       []string // for the model and the owner: hints, what was detected
}

// A Command is a child to start.
type Command struct {
	Argv      []string
	Script    []byte            // handed over as a private read-only file, named by ScriptArg in Argv
	Pins      map[string]string // programs that a bare name means, whatever comes to lie on PATH (only in a box)
	Env       map[string]string // on top of the scrubbed environment
	Network   bool
	Connect   func(context.Context, Dest) error // decides about each host before it is looked up; an error says why not
	GitWrite  bool                              // .git is writable but for hooks and config
	GitConfig bool                              // and its config too (the owner saw the warning)
	Timeout   time.Duration
	OutputMax int64 // bytes kept, head and tail; 0 means 1 MiB
}

// ScriptArg in Command.Argv stands for the path at which Command.Script is
// readable by the child.
const ScriptArg = "\x00script"

// ExecResult is how a child ended.
type ExecResult struct {
	Stdout, Stderr       []byte // head and tail, a line between them saying what was left out
	StdoutSize, StderrSz int64  // bytes written before the cut
	Exit                 int    // exit status; 128+n when ended by signal n
	Started              bool   // false: the command never ran, Err says why
	TimedOut             bool
	Stopped              bool // the context ended
	Err                  string
	Notes                []string
	Net                  []NetUse // hosts that were reached, or that no answer can admit
}

// A Dest is where a boxed program wants to connect.
type Dest struct {
	Host   string // canonical; without a port if that is 80 or 443
	Port   uint16
	Method string // of HTTP; CONNECT for what cannot be seen, TCP for a port of this machine
	URL    string // of a plain request, "" otherwise
	Sends  bool   // it can carry more than a GET or HEAD
	Bytes  int    // of the URL and the headers
}

// NetUse is what became of one destination.
type NetUse struct {
	Dest
	Refused string // why it is nothing to connect to, "" if it is
	Failed  string // why it could not be reached the last time, "" if it was
	Out, In int64  // bytes
}

// Manifest is the description of every tool as data, for the golden file, the
// digest in the log and "picket tools --json".
func Manifest(list []Tool) ([]byte, error) {
	type entry struct {
		Name             string          `json:"name"`
		Description      string          `json:"description"`
		Risk             string          `json:"risk"`
		ReadsPrivateData bool            `json:"reads_private_data"`
		ReadsUntrusted   bool            `json:"reads_untrusted"`
		Egress           string          `json:"egress"`
		AcceptsSecrets   []string        `json:"accepts_secrets"`
		Parameters       json.RawMessage `json:"parameters"`
	}
	out := make([]entry, len(list))
	for i, t := range list {
		out[i] = entry{t.Name, t.Description, t.Risk.String(), t.ReadsPrivateData,
			t.ReadsUntrusted, t.Egress.String(), append([]string{}, t.AcceptsSecrets...), t.Schema()}
	}
	return json.MarshalIndent(out, "", "  ")
}

// LazyRegexp compiles an expression when it is first used: most runs use few of
// them, and compiling all would be most of the time that picket takes to start.
func LazyRegexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
