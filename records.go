package main

import "encoding/json"

// The kinds of records in audit.jsonl and approvals.jsonl, one type each, with
// their fields in the order in which they are written, by their names in lower
// case. Every line starts with prev, seq, ts, kind and then those of run, chat,
// channel and call that apply; see audit.go for the format.
//
// Text is whole up to 8 KiB a field; of what is longer the head, the tail, the
// length and the SHA-256 are kept. A line is at most 64 KiB: what would be
// longer has its longest strings and lists cut further.
//
// What is not recorded, and why: secret values (placeholders and redaction
// marks stand for them), the model's reasoning (it is not acted on), chunks of
// a stream (the whole reply is), tool output beyond its preview (its length and
// digest are), and the bytes of files (the tool's own copy for undo has them).

// A Record is one line to append; what is empty of the first four is left out.
type Record struct {
	Run, Chat, Channel, Call string
	Body                     recordBody
}

// A recordBody is one of the types below; see encoder.value for the types that
// its fields may have.
type recordBody interface{ kind() string }

// genesisRecord is the first line. After a restart it names the file that was set
// aside and the hash of its last line.
type genesisRecord struct {
	Format int
	Log    string // 32 hex digits
	Key    string `json:",omitempty"` // Ed25519 public key in hex; approvals.jsonl has none
	File   string `json:",omitempty"`
	Head   string `json:",omitempty"`
}

type startRecord struct {
	Version, Settings, Tools string // the latter two are digests
	Sandbox                  string
	Model, Origin            string // the latter is where the model is
	Workspace                string
}

type userMessageRecord struct {
	Text, Source string // the latter is owner, piped, app or goal
}

type modelTurnRecord struct {
	Model, Text string
	In, Out     int      // tokens
	Calls       []string // names
	MS          int64
	Finish      string
}

type egressFields struct {
	Kind  string   `json:"kind"` // none, hosts, unknown
	Hosts []string `json:"hosts"`
}

type decisionRecord struct {
	Tool                  string
	Args                  json.RawMessage // object; the raw text as a string if it did not parse
	Digest, Summary, Risk string
	Labels                []string
	Verdict               string // allow, deny: what happened
	By                    string // rule, mode, grant, owner, expired, guard
	Step, Rule            string
	Reasons               []string
	Grant                 string
	Targets               []string
	Egress                egressFields
	Purpose               string
}

type resultRecord struct {
	OK              bool
	Error           string
	Exit            *int // null where there was no child
	MS, Bytes       int64
	Digest, Preview string
	Interrupted     bool
}

// egressRecord is about one redirect hop, or one host of a boxed call: one when it is decided on, before anything of it is
// looked up, and if it was connected to one more at the end of the call, with the bytes.
type egressRecord struct {
	Host                string
	Port                int
	Method, Verdict, By string
	BytesOut            int64 `json:"bytes_out"`
	BytesIn             int64 `json:"bytes_in"`
}

type questionRecord struct {
	Digest           string
	Offered, Reasons []string
	Until            string // when it expires
}

type answerRecord struct {
	Answer     string // allow, deny, expired
	Scope      string
	By, Reason string // terminal, cli, api; why
}

type grantRecord struct {
	Key, Scope     string
	Who, Workspace string   // owner, app; the folder in which it holds
	Labels         []string // of the chat in which it was given
	Until          string   // "" without an end
}

// revokeRecord has the fields of the grant that it ends.
type revokeRecord grantRecord

type labelRecord struct {
	Set          []string
	Source, Path string
}

// vaultRecord is about a change of the vault. It comes before the change: where
// the next one has the same number, a crash came between and this one was not made.
type vaultRecord struct {
	Op, Name   string // set, delete
	Generation uint64 // of the vault with it
}

type configRecord struct{ Key, Old, New string }

// apiRecord is about the API for other apps: it was turned on or off, its key
// was replaced, or requests were refused (how many, by kind).
type apiRecord struct {
	Op      string
	Refused map[string]int
}

type resetRecord struct{}

type stopRecord struct{ Turns int }

// recoveredRecord keeps what stood after the last whole line.
type recoveredRecord struct {
	Bytes        int64
	Digest, Text string
}

type gapRecord struct{ Have, Expected int64 }

type acceptRecord struct{ Upto int64 }

type restartRecord struct{ File, Head string }

func (genesisRecord) kind() string     { return "genesis" }
func (startRecord) kind() string       { return "start" }
func (userMessageRecord) kind() string { return "user_message" }
func (modelTurnRecord) kind() string   { return "model_turn" }
func (decisionRecord) kind() string    { return "decision" }
func (resultRecord) kind() string      { return "result" }
func (egressRecord) kind() string      { return "egress" }
func (questionRecord) kind() string    { return "question" }
func (answerRecord) kind() string      { return "answer" }
func (grantRecord) kind() string       { return "grant" }
func (revokeRecord) kind() string      { return "revoke" }
func (labelRecord) kind() string       { return "label" }
func (vaultRecord) kind() string       { return "vault" }
func (configRecord) kind() string      { return "config" }
func (apiRecord) kind() string         { return "api" }
func (resetRecord) kind() string       { return "reset" }
func (stopRecord) kind() string        { return "stop" }
func (recoveredRecord) kind() string   { return "recovered" }
func (gapRecord) kind() string         { return "gap" }
func (acceptRecord) kind() string      { return "accept" }
func (restartRecord) kind() string     { return "restart" }
