package main

import "encoding/json"

// The kinds of records in audit.jsonl and approvals.jsonl, one type each, with
// their fields in the order in which they are written. Every line starts with
// prev, seq, ts, kind and then those of run, chat, channel and call that apply;
// see audit.go for the format.
//
// Text is whole up to 8 KiB a field; of what is longer the head, the tail, the
// length and the SHA-256 are kept. A line is at most 64 KiB: what would be
// longer has its longest strings and lists cut further.
//
// What is not recorded, and why: secret values (placeholders and redaction
// marks stand for them), the model's reasoning (it is not acted on), chunks of
// a stream (the whole reply is), tool output beyond its preview (its length and
// digest are), and the bytes of files (the tool's own copy for undo has them).

// A Record is one line to append.
type Record struct {
	Run, Chat, Channel, Call string // left out where empty
	Body                     recordBody
}

// A recordBody is one of the types below. Its fields are written in the order of
// the struct; see encoder.value for the types that they may have.
type recordBody interface{ kind() string }

type genesisRecord struct {
	Format int    `json:"format"`
	Log    string `json:"log"`            // 32 hex digits
	Key    string `json:"key,omitempty"`  // Ed25519 public key in hex; approvals.jsonl has none
	File   string `json:"file,omitempty"` // the file that a restart set aside
	Head   string `json:"head,omitempty"` // and the hash of its last line
}

type startRecord struct {
	Version   string `json:"version"`
	Settings  string `json:"settings"` // digest
	Tools     string `json:"tools"`    // digest of the manifest
	Sandbox   string `json:"sandbox"`
	Model     string `json:"model"`
	Origin    string `json:"origin"` // where the model is
	Workspace string `json:"workspace"`
}

type userMessageRecord struct {
	Text   string `json:"text"`
	Source string `json:"source"` // owner, piped, app, goal
}

type modelTurnRecord struct {
	Model  string   `json:"model"`
	Text   string   `json:"text"`
	In     int      `json:"in"`
	Out    int      `json:"out"`
	Calls  []string `json:"calls"` // names
	MS     int64    `json:"ms"`
	Finish string   `json:"finish"`
}

type egressFields struct {
	Kind  string   `json:"kind"` // none, hosts, unknown
	Hosts []string `json:"hosts"`
}

type decisionRecord struct {
	Tool    string          `json:"tool"`
	Args    json.RawMessage `json:"args"` // object; the raw text as a string if it did not parse
	Digest  string          `json:"digest"`
	Summary string          `json:"summary"`
	Risk    string          `json:"risk"`
	Labels  []string        `json:"labels"`
	Verdict string          `json:"verdict"` // allow, deny
	By      string          `json:"by"`      // rule, mode, grant, owner, expired, guard
	Step    string          `json:"step"`
	Rule    string          `json:"rule"`
	Reasons []string        `json:"reasons"`
	Grant   string          `json:"grant"`
	Targets []string        `json:"targets"`
	Egress  egressFields    `json:"egress"`
	Purpose string          `json:"purpose"`
}

type resultRecord struct {
	OK          bool   `json:"ok"`
	Error       string `json:"error"`
	Exit        *int   `json:"exit"` // null where there was no child
	MS          int64  `json:"ms"`
	Bytes       int64  `json:"bytes"`
	Digest      string `json:"digest"`
	Preview     string `json:"preview"`
	Interrupted bool   `json:"interrupted"`
}

type egressRecord struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Method   string `json:"method"`
	Verdict  string `json:"verdict"`
	By       string `json:"by"`
	BytesOut int64  `json:"bytes_out"`
	BytesIn  int64  `json:"bytes_in"`
}

type questionRecord struct {
	Digest  string   `json:"digest"`
	Offered []string `json:"offered"`
	Reasons []string `json:"reasons"`
	Until   string   `json:"until"` // the time at which it expires
}

type answerRecord struct {
	Answer string `json:"answer"` // allow, deny, expired
	Scope  string `json:"scope"`
	By     string `json:"by"` // terminal, cli, api
	Reason string `json:"reason"`
}

type grantRecord struct {
	Key       string   `json:"key"`
	Scope     string   `json:"scope"`
	Who       string   `json:"who"` // owner, app
	Workspace string   `json:"workspace"`
	Labels    []string `json:"labels"` // of the chat in which it was given
	Until     string   `json:"until"`  // "" without an end
}

// revokeRecord has the fields of the grant that it ends.
type revokeRecord grantRecord

type labelRecord struct {
	Set    []string `json:"set"`
	Source string   `json:"source"`
	Path   string   `json:"path"`
}

type configRecord struct {
	Key string `json:"key"`
	Old string `json:"old"`
	New string `json:"new"`
}

// apiRecord is about the API for other apps: it was turned on or off, its key
// was replaced, or requests were refused (how many, by kind).
type apiRecord struct {
	Op      string         `json:"op"`
	Refused map[string]int `json:"refused"`
}

type resetRecord struct{}

type stopRecord struct {
	Turns int `json:"turns"`
}

type recoveredRecord struct {
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"`
	Text   string `json:"text"`
}

type gapRecord struct {
	Have     int64 `json:"have"`
	Expected int64 `json:"expected"`
}

type acceptRecord struct {
	Upto int64 `json:"upto"`
}

type restartRecord struct {
	File string `json:"file"`
	Head string `json:"head"`
}

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
func (configRecord) kind() string      { return "config" }
func (apiRecord) kind() string         { return "api" }
func (resetRecord) kind() string       { return "reset" }
func (stopRecord) kind() string        { return "stop" }
func (recoveredRecord) kind() string   { return "recovered" }
func (gapRecord) kind() string         { return "gap" }
func (acceptRecord) kind() string      { return "accept" }
func (restartRecord) kind() string     { return "restart" }
