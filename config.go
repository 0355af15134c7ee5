package main

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"picket/tools"
)

// defaultSettings is what "config init" writes. The defaults are read from it,
// so that the two cannot differ.
//
//go:embed config.default.json
var defaultSettings []byte

// config holds the settings. The tags say what a value must be: json is its key,
// one lists the values allowed, range bounds a number, is names a check (of each
// element of a list or map), mark is what redaction calls a secret.
type config struct {
	Model     modelConfig     `json:"model"`
	Agent     agentConfig     `json:"agent"`
	Workspace string          `json:"workspace"`                // "" is the current folder
	Roots     []string        `json:"extra_roots" is:"absPath"` // also writable by tools
	Sentinel  sentinelConfig  `json:"sentinel"`
	Sandbox   sandboxConfig   `json:"sandbox"`
	Approvals approvalsConfig `json:"approvals"`
	Server    serverConfig    `json:"server"`
	OpenAIAPI apiConfig       `json:"openai_api"`
	Search    searchConfig    `json:"search"`
	Email     emailConfig     `json:"email"`
	MCP       mcpConfig       `json:"mcp"`
	Browser   browserConfig   `json:"browser"`
	Memory    memoryConfig    `json:"memory"`
	Audit     auditConfig     `json:"audit"`

	VaultKey Secret   `json:"-"` // from PICKET_VAULT_KEY only
	Notes    []string `json:"-"` // lines for stderr

	origin  map[string]string // by key: where its value came from
	file    *settingsReader
	folders folders
}

type modelConfig struct {
	BaseURL       string            `json:"base_url" is:"httpURL"` // "" looks for a local server
	Name          string            `json:"name" is:"line"`
	APIKey        Secret            `json:"api_key" is:"headerValue" mark:"model key"` // "" unless BaseURL has the origin it was set for
	Headers       map[string]Secret `json:"headers" is:"header" mark:"model header"`   // the same holds
	ContextTokens int               `json:"context_tokens" range:"2048..100000000"`
	MaxTokens     int               `json:"max_tokens" range:"0..100000000"` // 0 is the server's own
	Temperature   *float64          `json:"temperature" range:"0..2"`        // nil is the server's own
	Timeout       time.Duration     `json:"timeout" range:"1s..1d"`          // between bytes
	Retries       int               `json:"retries" range:"0..100"`
}

type agentConfig struct {
	MaxSteps     int    `json:"max_steps" range:"1..10000"` // model calls in a turn
	Instructions string `json:"instructions"`
}

type sentinelConfig struct {
	Mode            string       `json:"mode" one:"ask strict auto"` // see switches
	DenyTools       []string     `json:"deny_tools" is:"filled"`
	Rules           []ruleConfig `json:"rules"` // the policy compiles them
	AlwaysAllow     []string     `json:"always_allow_tools" is:"filled"`
	AlwaysAsk       []string     `json:"always_ask_tools" is:"filled"`
	TaintTracking   bool         `json:"taint_tracking"`
	EgressAllowlist []string     `json:"egress_allowlist" is:"hostPattern"` // HOST or *.HOST, lower case
}

type ruleConfig struct {
	Tool    string            `json:"tool" is:"filled"`
	Match   map[string]string `json:"match"`
	Channel string            `json:"channel" one:"cli api daemon"`
	Action  string            `json:"action" one:"allow ask deny"`
	Reason  string            `json:"reason"`
}

type sandboxConfig struct {
	Mode      string   `json:"mode" one:"auto bwrap off"`
	Network   string   `json:"network" one:"proxy host"`
	HostPorts []int    `json:"host_ports" range:"1..65535"`
	Env       []string `json:"env" is:"variable"`
	Writable  []string `json:"writable" is:"absPath"`
	ReadOnly  []string `json:"read_only" is:"absPath"`
	Debuggers bool     `json:"debuggers"` // boxed processes may trace each other (ptrace(2))
}

type approvalsConfig struct {
	Timeout time.Duration `json:"timeout" range:"1s..365d"`
	Notify  []string      `json:"notify" is:"filled"` // argv
}

type serverConfig struct {
	Listen []string `json:"listen" is:"loopback"`
}

type apiConfig struct {
	Enabled     bool `json:"enabled"`      // see switches
	AllowMemory bool `json:"allow_memory"` // see switches
	MaxChats    int  `json:"max_chats" range:"1..1000000"`
}

type searchConfig struct {
	Provider string `json:"provider" one:"duckduckgo brave tavily searxng"`
	BaseURL  string `json:"base_url" is:"httpURL"`
	APIKey   Secret `json:"api_key" is:"headerValue" mark:"search key"`
}

type emailConfig struct {
	IMAP      string `json:"imap" is:"hostPort"`
	SMTP      string `json:"smtp" is:"hostPort"`
	Address   string `json:"address" is:"address"`
	User      string `json:"user" is:"line"`
	Password  Secret `json:"password" mark:"email password"`
	MaskCodes bool   `json:"mask_codes"`
}

type mcpConfig struct {
	Servers map[string]mcpServer `json:"servers" is:"serverName"`
}

// mcpServer is a program to start (Command) or an address (URL).
type mcpServer struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]Secret `json:"env" is:"envName"`
	URL     string            `json:"url" is:"httpURL"`
	Headers map[string]Secret `json:"headers" is:"header"`

	Network          bool     `json:"network"`
	ReadOnly         []string `json:"read_only" is:"absPath"`
	Writable         []string `json:"writable" is:"absPath"`
	Risk             string   `json:"risk" one:"safe moderate sensitive"`
	Egress           string   `json:"egress" one:"none hosts unknown"`
	ReadsPrivateData bool     `json:"reads_private_data"`
	ReadsUntrusted   bool     `json:"reads_untrusted"`
}

var defaultServer = mcpServer{Risk: "moderate", Egress: "unknown", ReadsPrivateData: true, ReadsUntrusted: true}

type browserConfig struct {
	Enabled bool   `json:"enabled"`
	Path    string `json:"path" is:"absPath"` // "" looks on PATH
}

type memoryConfig struct {
	MaxInject int `json:"max_inject" range:"0..1000"`
}

type auditConfig struct {
	RotateBytes byteSize      `json:"rotate_bytes" range:"64KiB..1TiB"`
	Keep        time.Duration `json:"keep" range:"1d..36500d"`
}

// A Secret is a setting that is never shown: every way of printing or encoding
// it gives a mask. A lone placeholder is shown as it is, since it is only a name.
type Secret string

// Reveal returns the value itself. What it goes to must not be kept or shown.
func (s Secret) Reveal() string { return string(s) }

// Placeholder reports whether the value is the name of one in the vault.
func (s Secret) Placeholder() bool {
	texts, names, err := tools.SplitPlaceholders(string(s))
	return err == nil && len(names) == 1 && texts[0]+texts[1] == ""
}

func (s Secret) String() string {
	if s == "" || s.Placeholder() {
		return string(s)
	}
	return "(hidden)"
}

// Format prints the mask for every verb.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// MarshalJSON encodes the mask.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// overrides lists the settings that the environment and flags can give.
var overrides = []struct{ key, env, flag string }{
	{"model.name", "PICKET_MODEL", "--model"},
	{"model.base_url", "PICKET_BASE_URL", "--base-url"},
	{"model.api_key", "PICKET_API_KEY", ""},
	{"sentinel.mode", "PICKET_MODE", "--mode"},
	{"workspace", "PICKET_WORKSPACE", "--workspace"},
	{"server.listen", "PICKET_LISTEN", ""},
	{"agent.max_steps", "", "--max-steps"},
}

// Where a value came from, as "config show" prints it.
const (
	fromDefault  = "default"
	fromFile     = "file"
	fromSwitches = "switches"
	fromEnv      = "environment"
	fromFlag     = "flag"
)

// loadConfig reads the settings. flags holds those given, by flag
// ("--mode" → "auto"). An empty variable counts as unset. Every error names
// where the fault stands, and then nothing may run.
func loadConfig(f folders, getenv func(string) string, flags map[string]string) (*config, error) {
	c := &config{folders: f, origin: map[string]string{}}
	if _, err := readSettings("picket's own defaults", defaultSettings, c); err != nil {
		return nil, err
	}
	text, err := readSmallFile(f.configFile())
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte("{}"), nil
	}
	if err == nil {
		c.file, err = readSettings(f.configFile(), text, c)
	}
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		return nil, err
	}
	for _, l := range c.leaves() {
		if c.origin[l.key] = fromDefault; c.file.where[l.key] > 0 {
			c.origin[l.key] = fromFile
		}
	}
	fileURL := c.Model.BaseURL
	for _, o := range overrides {
		if err := c.set(o.key, getenv(o.env), fromEnv, o.env); err != nil {
			return nil, err
		}
	}
	envURL := c.Model.BaseURL
	for _, o := range overrides {
		if err := c.set(o.key, flags[o.flag], fromFlag, o.flag); err != nil {
			return nil, err
		}
	}
	c.Workspace = f.expand(c.Workspace)
	for _, list := range [][]string{c.Roots, c.Sandbox.Writable, c.Sandbox.ReadOnly} {
		for i := range list {
			list[i] = f.expand(list[i])
		}
	}
	if c.VaultKey = Secret(getenv("PICKET_VAULT_KEY")); c.VaultKey != "" {
		raw, err := base64.StdEncoding.DecodeString(c.VaultKey.Reveal())
		path, isFile := strings.CutPrefix(c.VaultKey.Reveal(), "file:")
		if path = f.expand(path); isFile && filepath.IsAbs(path) {
			c.VaultKey = Secret("file:" + path)
		} else if err != nil || len(raw) != 32 {
			return nil, errors.New("PICKET_VAULT_KEY: must be 32 bytes in base64, or file: and an absolute path")
		}
	}
	c.bindKeys(fileURL, envURL)
	_, err = c.switches()
	return c, err
}

// bindKeys drops the model's key and headers unless they were set for the
// server that is in force: what the file holds is for the file's base_url, what
// the environment holds for its own or else the file's or else any.
func (c *config) bindKeys(fileURL, envURL string) {
	now := urlOrigin(c.Model.BaseURL)
	goes := func(what, was string) bool {
		if was = urlOrigin(was); now == "" || was == now {
			return true
		}
		c.Notes = append(c.Notes, fmt.Sprintf("%s was set for %s and is not sent to %s", what, cmp.Or(was, "no base_url"), now))
		return false
	}
	key, was := "model.api_key", fileURL
	if c.origin[key] == fromEnv {
		key, was = "PICKET_API_KEY", cmp.Or(envURL, c.Model.BaseURL)
	}
	if c.Model.APIKey != "" && !goes(key, was) {
		c.Model.APIKey = ""
	}
	if len(c.Model.Headers) > 0 && !goes("model.headers", fileURL) {
		c.Model.Headers = nil
	}
}

// urlOrigin returns scheme, host and port of a checked URL, "" of none.
func urlOrigin(s string) string {
	u, err := url.Parse(strings.ToLower(s))
	if err != nil || u.Host == "" {
		return ""
	}
	if u.Port() == "" {
		u.Host = strings.TrimSuffix(u.Host, ":") + map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	}
	return u.Scheme + "://" + u.Host
}

// validate checks what concerns several settings of the file at once.
func (c *config) validate() error {
	for name, s := range c.MCP.Servers {
		if (s.Command == "") == (s.URL == "") {
			return c.fault("mcp.servers."+name, "needs either command or url")
		}
		if s.URL != "" && (len(s.Args) > 0 || len(s.Env) > 0) || s.Command != "" && len(s.Headers) > 0 {
			return c.fault("mcp.servers."+name, "args and env go with command, headers with url")
		}
	}
	for i, r := range c.Sentinel.Rules {
		if r.Tool == "" || r.Action == "" {
			return c.fault(fmt.Sprintf("sentinel.rules[%d]", i), "needs tool and action")
		}
	}
	if c.Search.Provider == "searxng" && c.Search.BaseURL == "" {
		return c.fault("search.provider", "searxng needs search.base_url")
	}
	return nil
}

// fault is an error about a setting, with the place in the file if it stands
// there. A list element is named as in "sentinel.rules[0]".
func (c *config) fault(key, format string, args ...any) error {
	if at, ok := c.file.where[key]; ok {
		return c.file.fail(at, key, format, args...)
	}
	return fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...))
}

// A leaf is one setting: a key and its value. Lists and maps are leaves.
type leaf struct {
	key string
	val reflect.Value
	tag reflect.StructTag
}

func (c *config) leaves() []leaf { return leavesOf(reflect.ValueOf(c).Elem(), "") }

func leavesOf(v reflect.Value, prefix string) (out []leaf) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("json")
		switch {
		case name == "" || name == "-":
		case f.Type.Kind() == reflect.Struct:
			out = append(out, leavesOf(v.Field(i), prefix+name+".")...)
		default:
			out = append(out, leaf{prefix + name, v.Field(i), f.Tag})
		}
	}
	return out
}

// set gives a setting its value as text, unless that is empty, from the variable
// or flag named. A list is split at commas.
func (c *config) set(key, text, origin, name string) error {
	if text == "" || name == "" {
		return nil
	}
	var v any = text
	if n, err := strconv.Atoi(text); err == nil && key == "agent.max_steps" {
		v = n
	} else if key == "server.listen" {
		v = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	}
	for _, part := range slices.Backward(strings.Split(key, ".")) {
		v = map[string]any{part: v}
	}
	doc, err := json.Marshal(v)
	if err == nil {
		_, err = readSettings(name, doc, c)
	}
	if e := (*settingError)(nil); errors.As(err, &e) {
		err = fmt.Errorf("%s: %s", name, e.Msg)
	}
	c.origin[key] = origin
	return err
}

// inForce lists every setting as its key, its value in JSON with secrets masked,
// and its origin; with what has been switched.
func (c *config) inForce() ([][3]string, error) {
	sw, err := c.switches()
	if err != nil {
		return nil, err
	}
	var out [][3]string
	for _, l := range c.leaves() {
		v, from := l.val.Interface(), c.origin[l.key]
		if s, ok := sw.switched[l.key]; ok && !c.given(l.key) {
			v, from = s, fromSwitches
		}
		if d, ok := v.(time.Duration); ok {
			v = durationText(d)
		}
		text, err := marshalPlain(v)
		if err != nil {
			return nil, err
		}
		out = append(out, [3]string{l.key, string(text), from})
	}
	return out, nil
}

// show prints the settings in force, each with its origin; secrets are masked.
func (c *config) show(w io.Writer) error {
	list, err := c.inForce()
	from := fromDefault
	if c.VaultKey != "" {
		from = fromEnv
	}
	for _, l := range append(list, [3]string{"PICKET_VAULT_KEY", strconv.Quote(c.VaultKey.String()), from}) {
		if err == nil {
			_, err = fmt.Fprintf(w, "%-28s %-11s  %s\n", l[0], l[2], printable(l[1]))
		}
	}
	return err
}

// digest identifies the settings in force but for the secrets, which are in it
// as masks only.
func (c *config) digest() (string, error) {
	list, err := c.inForce()
	h := sha256.New()
	for _, l := range list {
		fmt.Fprintf(h, "%s=%s\n", l[0], l[1])
	}
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

var (
	credentialName = lazyRegexp(`(?i)KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|SESSION`)
	authScheme     = lazyRegexp(`^[A-Za-z][A-Za-z0-9_-]* (.+)$`) // Bearer …
)

// secrets lists what stands in the settings in clear and must not be shown
// anywhere. Of headers and variables only those named like a credential count:
// the rest are ordinary words that would be redacted out of ordinary text.
func (c *config) secrets() []secretValue {
	var out []secretValue
	add := func(s Secret, mark string) {
		if _, names, err := tools.SplitPlaceholders(s.Reveal()); s == "" || names != nil || err != nil {
			return
		}
		out = append(out, secretValue{Value: s.Reveal(), Mark: mark})
		if m := authScheme().FindStringSubmatch(s.Reveal()); m != nil {
			out = append(out, secretValue{Value: m[1], Mark: mark})
		}
	}
	addMap := func(m map[string]Secret, mark string) {
		for name, s := range m {
			if credentialName().MatchString(name) {
				add(s, mark+" "+name)
			}
		}
	}
	for _, l := range c.leaves() {
		switch v := l.val.Interface().(type) {
		case Secret:
			add(v, l.tag.Get("mark"))
		case map[string]Secret:
			addMap(v, l.tag.Get("mark"))
		}
	}
	for _, s := range c.MCP.Servers {
		addMap(s.Env, "MCP variable")
		addMap(s.Headers, "MCP header")
	}
	if !strings.HasPrefix(c.VaultKey.Reveal(), "file:") {
		add(c.VaultKey, "vault key")
	}
	return out
}

// switchState is what can be switched while picket runs, as it is now. The keys
// of switches.json are those of the settings.
type switchState struct {
	Mode        string `json:"sentinel.mode" one:"ask strict auto"`
	API         bool   `json:"openai_api.enabled"`
	AllowMemory bool   `json:"openai_api.allow_memory"`

	switched map[string]any // by key: what the file says
}

func (c *config) switchFile() string { return filepath.Join(c.folders.Data, "switches.json") }

// switches returns what is in force by the settings and switches.json, which is
// read each time. With an error it is the narrowest: strict, and no API.
func (c *config) switches() (switchState, error) {
	st := switchState{c.Sentinel.Mode, c.OpenAIAPI.Enabled, c.OpenAIAPI.AllowMemory, map[string]any{}}
	text, err := readSmallFile(c.switchFile())
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	var r *settingsReader
	if err == nil {
		r, err = readSettings(c.switchFile(), text, &st)
	}
	if err != nil {
		return switchState{Mode: "strict"}, err
	}
	for _, l := range leavesOf(reflect.ValueOf(&st).Elem(), "") {
		if r.where[l.key] > 0 {
			st.switched[l.key] = l.val.Interface()
		}
	}
	if c.given("sentinel.mode") {
		st.Mode = c.Sentinel.Mode
	}
	return st, nil
}

// given reports whether a setting came with this run, which goes before
// switches.
func (c *config) given(key string) bool { return c.origin[key] == fromEnv || c.origin[key] == fromFlag }

// setSwitch changes one value in switches.json and returns the old and new
// state. The caller holds the lock of that file.
func (c *config) setSwitch(key, value string) (before, after switchState, err error) {
	if before, err = c.switches(); err != nil {
		return before, before, err
	}
	next := maps.Clone(before.switched)
	switch {
	case key == "sentinel.mode" && slices.Contains([]string{"ask", "strict", "auto"}, value):
		next[key] = value
	case (key == "openai_api.enabled" || key == "openai_api.allow_memory") && (value == "true" || value == "false"):
		next[key] = value == "true"
	default:
		return before, before, fmt.Errorf("%q cannot be switched to %q", key, value)
	}
	text, err := json.Marshal(next)
	if err == nil {
		err = writeFileAtomic(c.switchFile(), append(text, '\n'))
	}
	if err != nil {
		return before, before, err
	}
	after, err = c.switches()
	return before, after, err
}
