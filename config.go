package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// defaultSettings is what "config init" writes. The defaults are read from it,
// so that the two cannot differ.
//
//go:embed config.default.json
var defaultSettings []byte

// config holds the settings. The tags say what a value must be: json is its key,
// one lists the values allowed, range bounds a number (in seconds for a
// duration), is names a check (of each element of a list or map), mark is what
// redaction calls a secret.
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

	origin  map[string]string // by leaf key: where its value came from
	lines   *settingsReader   // of the file, nil if there is none
	folders folders
	live    liveSwitches
}

type modelConfig struct {
	BaseURL       string            `json:"base_url" is:"httpURL"` // "" looks for a local server
	Name          string            `json:"name" is:"line"`
	APIKey        Secret            `json:"api_key" is:"headerValue" mark:"model key"` // "" unless BaseURL has the origin it was set for
	Headers       map[string]Secret `json:"headers" is:"header" mark:"model header"`   // the same holds
	ContextTokens int               `json:"context_tokens" range:"2048..100000000"`
	MaxTokens     int               `json:"max_tokens" range:"0..100000000"` // 0 is the server's own
	Temperature   *float64          `json:"temperature" range:"0..2"`        // nil is the server's own
	Timeout       time.Duration     `json:"timeout" range:"1..86400"`        // between bytes
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

// ruleConfig is one rule as it stands in the settings.
type ruleConfig struct {
	Tool    string            `json:"tool" is:"filled"`
	Match   map[string]string `json:"match"`
	Channel string            `json:"channel" one:"cli api daemon"`
	Action  string            `json:"action" one:"allow ask deny"`
	Reason  string            `json:"reason"`
}

type sandboxConfig struct {
	Mode      string   `json:"mode" one:"auto bwrap off"`
	Network   string   `json:"network" one:"host"`
	HostPorts []int    `json:"host_ports" range:"1..65535"`
	Env       []string `json:"env" is:"variable"`
	Writable  []string `json:"writable" is:"absPath"`
	ReadOnly  []string `json:"read_only" is:"absPath"`
}

type approvalsConfig struct {
	Timeout time.Duration `json:"timeout" range:"1..31536000"`
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
	Env     map[string]Secret `json:"env" is:"envName" mark:"MCP variable"`
	URL     string            `json:"url" is:"httpURL"`
	Headers map[string]Secret `json:"headers" is:"header" mark:"MCP header"`

	Network          bool     `json:"network"`
	ReadOnly         []string `json:"read_only" is:"absPath"`
	Writable         []string `json:"writable" is:"absPath"`
	Risk             string   `json:"risk" one:"safe moderate sensitive"`
	Egress           string   `json:"egress" one:"none hosts unknown"`
	ReadsPrivateData bool     `json:"reads_private_data"`
	ReadsUntrusted   bool     `json:"reads_untrusted"`
}

func (s *mcpServer) setDefaults() {
	*s = mcpServer{Risk: "moderate", Egress: "unknown", ReadsPrivateData: true, ReadsUntrusted: true}
}

type browserConfig struct {
	Enabled bool   `json:"enabled"`
	Path    string `json:"path" is:"absPath"` // "" looks on PATH
}

type memoryConfig struct {
	MaxInject int `json:"max_inject" range:"0..1000"`
}

type auditConfig struct {
	RotateBytes byteSize      `json:"rotate_bytes" range:"65536..1099511627776"`
	Keep        time.Duration `json:"keep" range:"86400..3153600000"`
}

// A Secret is a setting that is never shown: every way of printing or encoding
// it gives a mask. A lone placeholder is shown as it is, since it is only a name.
type Secret string

// Reveal returns the value itself. What it goes to must not be kept or shown.
func (s Secret) Reveal() string { return string(s) }

var wholePlaceholder = regexp.MustCompile(`^\{\{vault:\s*[A-Za-z0-9_.-]{1,64}\s*\}\}$`)

// Placeholder reports whether the value is the name of one in the vault.
func (s Secret) Placeholder() bool { return wholePlaceholder.MatchString(string(s)) }

func (s Secret) String() string {
	if s == "" || s.Placeholder() {
		return string(s)
	}
	return "(hidden)"
}

// Format prints the mask for every verb.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// MarshalJSON encodes the mask.
func (s Secret) MarshalJSON() ([]byte, error) { return marshalPlain(s.String()) }

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
	if _, err := readSettings("defaults", defaultSettings, c); err != nil {
		return nil, fmt.Errorf("picket's own defaults: %v", err)
	}
	for _, l := range c.leaves() {
		c.origin[l.key] = fromDefault
	}
	path := f.configFile()
	text, err := readSmallFile(path)
	if err == nil {
		if c.lines, err = readSettings(path, text, c); err == nil {
			err = c.validate()
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if c.lines != nil {
		for _, l := range c.leaves() {
			if _, ok := c.lines.where[l.key]; ok {
				c.origin[l.key] = fromFile
			}
		}
	}
	bound := c.Model.BaseURL
	for _, o := range overrides {
		if v := getenv(o.env); o.env != "" && v != "" {
			if err := c.setText(o.key, v, fromEnv, o.env); err != nil {
				return nil, err
			}
		}
	}
	fileBound, envBound := bound, c.Model.BaseURL
	for name, v := range flags {
		i := slices.IndexFunc(overrides, func(o struct{ key, env, flag string }) bool { return o.flag == name })
		if i < 0 {
			return nil, fmt.Errorf("%s: sets nothing", name)
		}
		if err := c.setText(overrides[i].key, v, fromFlag, name); err != nil {
			return nil, err
		}
	}
	if c.VaultKey = Secret(getenv("PICKET_VAULT_KEY")); c.VaultKey != "" {
		raw, err := base64.StdEncoding.DecodeString(c.VaultKey.Reveal())
		if (err != nil || len(raw) != 32) && !strings.HasPrefix(c.VaultKey.Reveal(), "file:") {
			return nil, errors.New("PICKET_VAULT_KEY: must be 32 bytes in base64, or file: and a path")
		}
	}
	c.bindKeys(fileBound, envBound)
	_, err = c.switches()
	return c, err
}

// bindKeys drops the model's key and headers unless they were set for the
// server that is in force: what the file holds is for the file's base_url, what
// the environment holds for its own or else the file's.
func (c *config) bindKeys(fileURL, envURL string) {
	now := urlOrigin(c.Model.BaseURL)
	drop := func(what, was string) {
		if was = urlOrigin(was); was == "" {
			was = "no base_url"
		}
		c.Notes = append(c.Notes, fmt.Sprintf("%s was set for %s and is not sent to %s", what, was, now))
	}
	if k := c.Model.APIKey; k != "" && now != "" {
		switch {
		case c.origin["model.api_key"] == fromFile && urlOrigin(fileURL) != now:
			drop("model.api_key", fileURL)
			c.Model.APIKey = ""
		case c.origin["model.api_key"] == fromEnv && envURL != "" && urlOrigin(envURL) != now:
			drop("PICKET_API_KEY", envURL)
			c.Model.APIKey = ""
		}
	}
	if len(c.Model.Headers) > 0 && now != "" && urlOrigin(fileURL) != now {
		drop("model.headers", fileURL)
		c.Model.Headers = nil
	}
}

// urlOrigin returns scheme, host and port of a checked URL, "" of none.
func urlOrigin(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	}
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return strings.ToLower(u.Scheme) + "://" + host + ":" + port
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
	if c.lines != nil {
		if at, ok := c.lines.where[key]; ok {
			return c.lines.fail(at, key, format, args...)
		}
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

func leavesOf(v reflect.Value, prefix string) []leaf {
	var out []leaf
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

// setText gives a setting its value as text, from the variable or flag named.
func (c *config) setText(key, text, origin, name string) error {
	for _, l := range c.leaves() {
		if l.key != key {
			continue
		}
		err := setFromText(l.val, text)
		if err == nil {
			err = checkSetting(l.val, l.tag)
		}
		if err != nil {
			return fmt.Errorf("%s: %v", name, err)
		}
		c.origin[key] = origin
		return nil
	}
	return fmt.Errorf("%s: there is no setting %s", name, key)
}

// inForce lists every setting as "key", its value in JSON with secrets masked,
// and its origin; with what has been switched.
func (c *config) inForce() ([][3]string, error) {
	sw, err := c.switches()
	if err != nil {
		return nil, err
	}
	var out [][3]string
	for _, l := range c.leaves() {
		v, from := l.val.Interface(), c.origin[l.key]
		if s, ok := sw.switched[l.key]; ok {
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
	if err != nil {
		return err
	}
	key := [3]string{"PICKET_VAULT_KEY", strconv.Quote(c.VaultKey.String()), fromDefault}
	if c.VaultKey != "" {
		key[2] = fromEnv
	}
	for _, l := range append(list, key) {
		if _, err := fmt.Fprintf(w, "%-28s %-11s  %s\n", l[0], l[2], printable(l[1])); err != nil {
			return err
		}
	}
	return nil
}

// digest identifies the settings in force but for the secrets, which are in it
// as masks only.
func (c *config) digest() (string, error) {
	list, err := c.inForce()
	h := sha256.New()
	for _, l := range list {
		fmt.Fprintf(h, "%s=%s\n", l[0], l[1])
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

var credentialName = regexp.MustCompile(`(?i)KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|SESSION`)

// secrets lists what stands in the settings in clear and must not be shown
// anywhere. Of headers and variables only those named like a credential count:
// the rest are ordinary words that would be redacted out of ordinary text.
func (c *config) secrets() []secretValue {
	var out []secretValue
	add := func(s Secret, mark string) {
		if s == "" || s.Placeholder() {
			return
		}
		out = append(out, secretValue{Value: s.Reveal(), Mark: mark})
		if scheme, rest, ok := strings.Cut(s.Reveal(), " "); ok && rest != "" && httpguts.ValidHeaderFieldName(scheme) {
			out = append(out, secretValue{Value: rest, Mark: mark}) // "Bearer …"
		}
	}
	addMap := func(m map[string]Secret, mark string) {
		for name, s := range m {
			if credentialName.MatchString(name) {
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

// switchFile is what can be switched while picket runs, in switches.json.
type switchFile struct {
	Mode      string `json:"mode,omitempty" one:"ask strict auto"`
	OpenAIAPI struct {
		Enabled     *bool `json:"enabled,omitempty"`
		AllowMemory *bool `json:"allow_memory,omitempty"`
	} `json:"openai_api"`
}

// liveSwitches is switches.json as it was read last.
type liveSwitches struct {
	mu   sync.Mutex
	info fs.FileInfo // nil: there was no file
	file switchFile
	err  error
}

// switchState is what is in force now.
type switchState struct {
	Mode             string
	API, AllowMemory bool
	switched         map[string]any // by key, what the file decided
}

// switches returns what is in force, reading switches.json again if it has
// changed. With an error it is the narrowest: strict, and no API.
func (c *config) switches() (switchState, error) {
	l := &c.live
	l.mu.Lock()
	defer l.mu.Unlock()
	path := filepath.Join(c.folders.Data, "switches.json")
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.info, l.file, l.err = nil, switchFile{}, nil
	case err != nil:
		l.info, l.err = nil, err
	case l.info == nil || !os.SameFile(info, l.info) || info.Size() != l.info.Size() || !info.ModTime().Equal(l.info.ModTime()):
		l.info, l.file = info, switchFile{}
		var text []byte
		if text, l.err = readSmallFile(path); l.err == nil {
			_, l.err = readSettings(path, text, &l.file)
		}
	}
	if l.err != nil {
		return switchState{Mode: "strict"}, l.err
	}
	st := switchState{c.Sentinel.Mode, c.OpenAIAPI.Enabled, c.OpenAIAPI.AllowMemory, map[string]any{}}
	if from := c.origin["sentinel.mode"]; l.file.Mode != "" && from != fromEnv && from != fromFlag {
		st.Mode, st.switched["sentinel.mode"] = l.file.Mode, l.file.Mode
	}
	if p := l.file.OpenAIAPI.Enabled; p != nil {
		st.API, st.switched["openai_api.enabled"] = *p, *p
	}
	if p := l.file.OpenAIAPI.AllowMemory; p != nil {
		st.AllowMemory, st.switched["openai_api.allow_memory"] = *p, *p
	}
	return st, nil
}

// setSwitch changes one of mode, openai_api.enabled and
// openai_api.allow_memory in switches.json and returns the old and new state.
// The caller holds the lock of that file.
func (c *config) setSwitch(key, value string) (before, after switchState, err error) {
	if before, err = c.switches(); err != nil {
		return before, before, err
	}
	c.live.mu.Lock()
	next := c.live.file
	c.live.mu.Unlock()
	on := value == "true"
	switch {
	case key == "mode" && slices.Contains([]string{"ask", "strict", "auto"}, value):
		next.Mode = value
	case key == "openai_api.enabled" && (on || value == "false"):
		next.OpenAIAPI.Enabled = &on
	case key == "openai_api.allow_memory" && (on || value == "false"):
		next.OpenAIAPI.AllowMemory = &on
	default:
		return before, before, fmt.Errorf("%q cannot be switched to %q", key, value)
	}
	text, err := marshalPlain(next)
	if err == nil {
		err = replaceFile(filepath.Join(c.folders.Data, "switches.json"), append(text, '\n'))
	}
	if err != nil {
		return before, before, err
	}
	after, err = c.switches()
	return before, after, err
}
