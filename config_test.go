package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// testFolders has a settings file with that text, and a home of its own.
func testFolders(t *testing.T, settings string) folders {
	t.Helper()
	home := t.TempDir()
	f := folders{Config: filepath.Join(home, ".config", "picket"), Data: filepath.Join(home, ".local", "share", "picket"), Home: home}
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	if settings != "" {
		if err := os.WriteFile(f.configFile(), []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestDefaults(t *testing.T) {
	c, err := loadConfig(testFolders(t, ""), env(), nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.inForce()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, l := range list {
		if fmt.Fprintf(&got, "%s %s\n", l[0], l[1]); l[2] != "default" {
			t.Errorf("%s comes from %s", l[0], l[2])
		}
	}
	const want = `model.base_url ""
model.name ""
model.api_key ""
model.headers {}
model.context_tokens 32768
model.max_tokens 0
model.temperature null
model.timeout "3m"
model.retries 5
agent.max_steps 30
agent.instructions ""
workspace ""
extra_roots []
sentinel.mode "ask"
sentinel.deny_tools []
sentinel.rules []
sentinel.always_allow_tools []
sentinel.always_ask_tools []
sentinel.taint_tracking true
sentinel.egress_allowlist ["*.wikipedia.org","github.com","*.github.com","*.githubusercontent.com","pypi.org","*.pypi.org","proxy.golang.org","pkg.go.dev"]
sandbox.mode "auto"
sandbox.network "proxy"
sandbox.host_ports []
sandbox.env []
sandbox.writable []
sandbox.read_only []
sandbox.debuggers false
approvals.timeout "1h"
approvals.notify []
server.listen ["127.0.0.1:7717","[::1]:7717"]
openai_api.enabled false
openai_api.allow_memory false
openai_api.max_chats 100
search.provider "duckduckgo"
search.base_url ""
search.api_key ""
email.imap ""
email.smtp ""
email.address ""
email.user ""
email.password "{{vault:EMAIL_PASSWORD}}"
email.mask_codes true
mcp.servers {}
browser.enabled false
browser.path ""
memory.max_inject 20
audit.rotate_bytes 67108864
audit.keep "200d"
`
	if got.String() != want {
		t.Errorf("defaults:\n%s", got.String())
	}
}

// Every setting must stand in the commented file, so that nobody has to look
// for it elsewhere.
func TestInitWritesEveryDefault(t *testing.T) {
	f := testFolders(t, "")
	path, err := f.initConfig()
	if err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(f, env(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range c.leaves() {
		if from := c.origin[l.key]; from != fromFile && l.key != "model.temperature" {
			t.Errorf("%s is not in the file", l.key)
		}
	}
	if !bytes.Contains(defaultSettings, []byte(`// "temperature"`)) {
		t.Error("model.temperature is not in the file")
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	os.WriteFile(path, []byte(`{"workspace":"/x"}`), 0o600)
	if _, err := f.initConfig(); err == nil {
		t.Error("an existing file was overwritten")
	}
	if text, _ := os.ReadFile(path); string(text) != `{"workspace":"/x"}` {
		t.Errorf("the file is now %q", text)
	}
}

func TestWholeFile(t *testing.T) {
	f := testFolders(t, "\ufeff// mine\r\n"+`{
  // a comment
  "model": {"base_url": "http://127.0.0.1:11434/v1", "name": "qwen3", "temperature": 0.5, "timeout": "90s", "headers": {"X-Title": "me // not a comment"}},
  "sentinel": {"mode": "strict", "egress_allowlist": ["*.example.org", "10.0.0.1"],
    "rules": [{"tool": "shell", "match": {"command": "git *"}, "channel": "cli", "action": "allow", "reason": "mine"}]},
  "mcp": {"servers": {"docs": {"command": "npx", "args": ["x"], "env": {"TOKEN": "{{vault:T}}"}}, "web": {"url": "https://example.org/mcp", "risk": "safe"}}},
  "audit": {"rotate_bytes": 1000000, "keep": "1d12h"},
  "sandbox": {"host_ports": [5432, 6379], "env": ["GOFLAGS"]}
}
// the end`)
	c, err := loadConfig(f, env(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Model.Timeout != 90*time.Second || *c.Model.Temperature != 0.5 || c.Audit.RotateBytes != 1e6 || c.Audit.Keep != 36*time.Hour ||
		!slices.Equal(c.Sandbox.HostPorts, []int{5432, 6379}) || c.Model.Headers["X-Title"].Reveal() != "me // not a comment" {
		t.Errorf("%+v", c)
	}
	docs := c.MCP.Servers["docs"]
	if docs.Risk != "moderate" || docs.Egress != "unknown" || !docs.ReadsPrivateData || !docs.ReadsUntrusted || c.MCP.Servers["web"].Risk != "safe" {
		t.Errorf("%+v", c.MCP)
	}
	want := ruleConfig{"shell", map[string]string{"command": "git *"}, "cli", "allow", "mine"}
	if len(c.Sentinel.Rules) != 1 || !reflect.DeepEqual(c.Sentinel.Rules[0], want) {
		t.Errorf("%+v", c.Sentinel.Rules)
	}
	if err := c.fault("sentinel.rules[0]", "bad"); !strings.HasSuffix(err.Error(), "config.json:6:15: sentinel.rules[0]: bad") {
		t.Errorf("a fault found later: %v", err)
	}
}

func TestFaultsInTheFile(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown key", `{"modle": {}}`, `:1:2: modle: unknown key`},
		{"unknown key below", "{\n  \"model\": {\n    \"nme\": 1}}", `:3:5: model.nme: unknown key`},
		{"in another case", `{"Model": {}}`, `:1:2: Model: unknown key`},
		{"twice", `{"workspace": "/a", "workspace": "/b"}`, `:1:21: workspace: this key stands twice`},
		{"twice by an escape", `{"workspace": "/a", "work\u0073pace": "/b"}`, `:1:21: workspace: this key stands twice`},
		{"twice in a map", `{"mcp": {"servers": {"a": {"command": "x"}, "a": {"command": "y"}}}}`, `:1:45: mcp.servers.a: this key stands twice`},
		{"number for text", `{"workspace": 5}`, `:1:15: workspace: must be a text in quotes`},
		{"text for number", `{"agent": {"max_steps": "30"}}`, `:1:25: agent.max_steps: must be a whole number`},
		{"fraction", `{"agent": {"max_steps": 1.5}}`, `:1:25: agent.max_steps: must be a whole number`},
		{"out of range", `{"agent": {"max_steps": 0}}`, `:1:25: agent.max_steps: must be from 1 to 10000`},
		{"too large for any number", `{"agent": {"max_steps": 99999999999999999999}}`, `:1:25: agent.max_steps: must be a whole number`},
		{"text for truth", `{"email": {"mask_codes": "false"}}`, `:1:26: email.mask_codes: must be true or false`},
		{"null", `{"workspace": null}`, `:1:15: workspace: must be a text in quotes`},
		{"list for object", `{"model": []}`, `:1:11: model: must be an object in { }`},
		{"object for list", `{"extra_roots": {}}`, `:1:17: extra_roots: must be a list in [ ]`},
		{"bare text for list", `{"extra_roots": "/a"}`, `:1:17: extra_roots: must be a list in [ ]`},
		{"wrong element", `{"extra_roots": ["/a", 1]}`, `:1:24: extra_roots[1]: must be a text in quotes`},
		{"relative root", `{"extra_roots": ["a"]}`, `:1:18: extra_roots[0]: "a" must be an absolute path, or start with ~/`},
		{"not one of", `{"sentinel": {"mode": "yolo"}}`, `:1:23: sentinel.mode: must be ask, strict, auto, not "yolo"`},
		{"network that does not exist", `{"sandbox": {"network": "none"}}`, `:1:25: sandbox.network: must be proxy, host, not "none"`},
		{"duration as number", `{"approvals": {"timeout": 60}}`, `:1:27: approvals.timeout: must be a duration in quotes, such as "90s", "3m", "1h" or "200d"`},
		{"negative duration", `{"approvals": {"timeout": "-1h"}}`, `:1:27: approvals.timeout: must be a duration in quotes, such as "90s", "3m", "1h" or "200d"`},
		{"no duration at all", `{"approvals": {"timeout": "0s"}}`, `:1:27: approvals.timeout: must be from 1s to 365d`},
		{"size", `{"audit": {"rotate_bytes": "64 mb"}}`, `:1:28: audit.rotate_bytes: must be a number of bytes or a text such as "64MiB"`},
		{"size too small", `{"audit": {"rotate_bytes": "1KiB"}}`, `:1:28: audit.rotate_bytes: must be from 64KiB to 1TiB`},
		{"temperature", `{"model": {"temperature": 3}}`, `:1:27: model.temperature: must be from 0 to 2`},
		{"empty host", `{"sentinel": {"egress_allowlist": [""]}}`, `:1:36: sentinel.egress_allowlist[0]: "" is no host, and no *.DOMAIN of two labels or more, in small ASCII letters`},
		{"every host", `{"sentinel": {"egress_allowlist": ["*"]}}`, `:1:36: sentinel.egress_allowlist[0]: "*" is no host, and no *.DOMAIN of two labels or more, in small ASCII letters`},
		{"every host of a top domain", `{"sentinel": {"egress_allowlist": ["a.b", "*.com"]}}`, `:1:43: sentinel.egress_allowlist[1]: "*.com" is no host, and no *.DOMAIN of two labels or more`},
		{"star in the middle", `{"sentinel": {"egress_allowlist": ["a.*.com"]}}`, `:1:36: sentinel.egress_allowlist[0]: "a.*.com" is no host, and no *.DOMAIN of two labels or more, in small ASCII letters`},
		{"host in capitals", `{"sentinel": {"egress_allowlist": ["GitHub.com"]}}`, `:1:36: sentinel.egress_allowlist[0]: "GitHub.com" is no host`},
		{"host as people write it", `{"sentinel": {"egress_allowlist": ["*.bücher.de"]}}`, `:1:36: sentinel.egress_allowlist[0]: "*.bücher.de" is no host`},
		{"URL for host", `{"sentinel": {"egress_allowlist": ["https://a.b"]}}`, `:1:36: sentinel.egress_allowlist[0]: "https://a.b" is no host, and no *.DOMAIN of two labels or more, in small ASCII letters`},
		{"server for all", `{"server": {"listen": ["0.0.0.0:80"]}}`, `:1:24: server.listen[0]: "0.0.0.0:80" is no loopback address: picket listens on 127.0.0.1, [::1] or localhost and a port only`},
		{"server by an empty host", `{"server": {"listen": [":80"]}}`, `:1:24: server.listen[0]: ":80" is no loopback address: picket listens on 127.0.0.1, [::1] or localhost and a port only`},
		{"server without a port", `{"server": {"listen": ["localhost"]}}`, `:1:24: server.listen[0]: "localhost" is no loopback address`},
		{"server that looks like loopback", `{"server": {"listen": ["127.0.0.1.example:80"]}}`, `:1:24: server.listen[0]: "127.0.0.1.example:80" is no loopback address`},
		{"URL of another kind", `{"model": {"base_url": "ftp://a"}}`, `:1:24: model.base_url: must be a URL that starts with http:// or https:// and a host`},
		{"URL with a password", `{"model": {"base_url": "https://u:hunter2@h/v1"}}`, `:1:24: model.base_url: must not hold a user name or password`},
		{"header with a line end", `{"model": {"api_key": "hunter2\nX: y"}}`, `:1:23: model.api_key: cannot be sent in a header: it holds a control character or blanks at an end`},
		{"name of a header", `{"model": {"headers": {"a b": "c"}}}`, `:1:24: model.headers.a b: "a b" is no name of a header`},
		{"variable", `{"sandbox": {"env": ["A=1"]}}`, `:1:22: sandbox.env[0]: "A=1" is no name of a variable`},
		{"variable of a server", `{"mcp": {"servers": {"a": {"command": "x", "env": {"A B": "c"}}}}}`, `:1:52: mcp.servers.a.env.A B: "A B" is no name of a variable`},
		{"server of no kind", `{"mcp": {"servers": {"a": {}}}}`, `:1:27: mcp.servers.a: needs either command or url`},
		{"rule without action", `{"sentinel": {"rules": [{"tool": "shell"}]}}`, `:1:25: sentinel.rules[0]: needs tool and action`},
		{"rule that matches a number", `{"sentinel": {"rules": [{"tool": "x", "match": {"n": 5}, "action": "deny"}]}}`, `:1:54: sentinel.rules[0].match.n: must be a text in quotes`},
		{"searxng", `{"search": {"provider": "searxng"}}`, `:1:25: search.provider: searxng needs search.base_url`},
		{"mail server", `{"email": {"imap": "mail.example.org"}}`, `:1:20: email.imap: "mail.example.org" is no HOST:PORT`},
		{"trailing comma", "{\n\"workspace\": \"/a\",\n}", `:3:1: invalid character '}'`},
		{"missing comma", `{"workspace": "/a" "model": {}}`, `:1:20: invalid character '"' after object key:value pair`},
		{"comment behind a value", `{"workspace": "/a" // here` + "\n}", `:1:20: invalid character '/' after object key:value pair`},
		{"cut off", `{"model": {`, `:1:12: model: the file ends too early`},
		{"empty", ` `, `:1:2: the file ends too early`},
		{"no object", `[]`, `:1:1: must be an object in { }`},
		{"more behind", `{} {}`, `:1:4: there is text after the settings`},
		{"not UTF-8", "{\"workspace\": \"/\xff\"}", `:1:15: workspace: a text holds NUL, U+FFFD, half of a surrogate pair or what is not UTF-8`},
		{"half of a surrogate pair", `{"workspace": "/\ud800"}`, `:1:15: workspace: a text holds NUL, U+FFFD, half of a surrogate pair`},
		{"columns count characters", "{\"agent\": {\"instructions\": \"äöü€\", \"x\": 1}}", `:1:36: agent.x: unknown key`},
		{"vault key", `{"vault_key": "x"}`, `:1:2: vault_key: unknown key`},
		{"the key of no setting", `{"-": "x"}`, `:1:2: -: unknown key`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := testFolders(t, tt.text)
			c, err := loadConfig(f, env(), nil)
			if err == nil {
				t.Fatalf("no error: %v", c)
			}
			if got := strings.TrimPrefix(err.Error(), f.configFile()); !strings.HasPrefix(got, tt.want) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error holds a secret: %v", err)
			}
		})
	}
}

func TestPrecedence(t *testing.T) {
	const file = `{"model": {"name": "of-file"}, "sentinel": {"mode": "strict"}}`
	f := testFolders(t, file)
	origins := func(getenv func(string) string, flags map[string]string) string {
		t.Helper()
		c, err := loadConfig(f, getenv, flags)
		if err != nil {
			t.Fatal(err)
		}
		sw, err := c.switches()
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		c.show(&b)
		var from string
		for line := range strings.Lines(b.String()) {
			if rest, ok := strings.CutPrefix(line, "sentinel.mode "); ok {
				from = strings.Fields(rest)[0]
			}
		}
		return c.Model.Name + " " + sw.Mode + " " + from
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	want(origins(env(), nil), "of-file strict file")
	os.WriteFile(filepath.Join(f.Data, "switches.json"), []byte(`{"sentinel.mode": "auto"}`), 0o600)
	want(origins(env(), nil), "of-file auto switches")
	want(origins(env("PICKET_MODE", "ask", "PICKET_MODEL", "of-env"), nil), "of-env ask environment")
	want(origins(env("PICKET_MODE", "", "PICKET_MODEL", ""), nil), "of-file auto switches")
	want(origins(env("PICKET_MODE", "ask"), map[string]string{"--mode": "strict", "--model": "of-flag"}), "of-flag strict flag")

	for _, tt := range []struct {
		name, want string
		getenv     func(string) string
		flags      map[string]string
	}{
		{"bad variable", `PICKET_MODE: must be ask, strict, auto, not "yolo"`, env("PICKET_MODE", "yolo"), nil},
		{"bad flag", `--max-steps: must be a whole number`, env(), map[string]string{"--max-steps": "many"}},
		{"bad address", `PICKET_LISTEN: "0.0.0.0:1" is no loopback address: picket listens on 127.0.0.1, [::1] or localhost and a port only`, env("PICKET_LISTEN", "127.0.0.1:1, 0.0.0.0:1"), nil},
		{"bad key", `PICKET_VAULT_KEY: must be 32 bytes in base64, or file: and an absolute path`, env("PICKET_VAULT_KEY", "hunter2"), nil},
	} {
		if _, err := loadConfig(f, tt.getenv, tt.flags); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestSwitches(t *testing.T) {
	f := testFolders(t, "")
	c, err := loadConfig(f, env(), nil)
	if err != nil {
		t.Fatal(err)
	}
	before, after, err := c.setSwitch("sentinel.mode", "auto")
	if err != nil || before.Mode != "ask" || after.Mode != "auto" {
		t.Fatalf("%v %v %v", before, after, err)
	}
	other, err := loadConfig(f, env(), nil) // as another process
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.setSwitch("openai_api.enabled", "true"); err != nil {
		t.Fatal(err)
	}
	if sw, err := c.switches(); err != nil || !sw.API || sw.Mode != "auto" || sw.AllowMemory {
		t.Errorf("the change of another process is not seen: %+v %v", sw, err)
	}
	for _, bad := range [][2]string{{"sentinel.mode", "yolo"}, {"openai_api.enabled", "yes"}, {"model.name", "x"}} {
		if _, _, err := c.setSwitch(bad[0], bad[1]); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	path := filepath.Join(f.Data, "switches.json")
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if list, _ := os.ReadDir(f.Data); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
	os.WriteFile(path, []byte(`{"sentinel.mode": "auto", "openai_api.enabled": true, "x": 1}`), 0o600)
	if sw, err := c.switches(); err == nil || sw.Mode != "strict" || sw.API {
		t.Errorf("a damaged file leaves %+v %v", sw, err)
	}
	if _, err := loadConfig(f, env(), nil); err == nil {
		t.Error("picket starts with a damaged file")
	}
	os.Remove(path)
	if sw, err := c.switches(); err != nil || sw.Mode != "ask" || sw.API {
		t.Errorf("without the file %+v %v", sw, err)
	}
}

func TestKeyGoesOnlyWhereItWasSetFor(t *testing.T) {
	const file = `{"model": {"base_url": "https://a.example/v1", "api_key": "file-key-1", "headers": {"api-key": "file-key-2"}}}`
	for _, tt := range []struct {
		name, file string
		env        []string
		flagURL    string
		want       string
	}{
		{"as in the file", file, nil, "", "file-key-1 file-key-2"},
		{"another path of the same server", file, nil, "https://A.example:443/v2", "file-key-1 file-key-2"},
		{"another server by flag", file, nil, "https://b.example/v1", " "},
		{"another server by environment", file, []string{"PICKET_BASE_URL", "https://b.example/v1"}, "", " "},
		{"another port", file, nil, "https://a.example:8443/v1", " "},
		{"no TLS", file, nil, "http://a.example/v1", " "},
		{"key and server in the environment", file, []string{"PICKET_BASE_URL", "https://b.example/v1", "PICKET_API_KEY", "env-key"}, "", "env-key "},
		{"that key for a third server", file, []string{"PICKET_BASE_URL", "https://b.example/v1", "PICKET_API_KEY", "env-key"}, "https://c.example", " "},
		{"key of the environment for the file's server", file, []string{"PICKET_API_KEY", "env-key"}, "", "env-key file-key-2"},
		{"that key for another server", file, []string{"PICKET_API_KEY", "env-key"}, "https://c.example", " "},
		{"only a key and a flag", "", []string{"PICKET_API_KEY", "env-key"}, "https://c.example", "env-key "},
		{"key of a file without a server", `{"model": {"api_key": "file-key-1"}}`, nil, "https://c.example", " "},
	} {
		flags := map[string]string{}
		if tt.flagURL != "" {
			flags["--base-url"] = tt.flagURL
		}
		c, err := loadConfig(testFolders(t, tt.file), env(tt.env...), flags)
		if err != nil {
			t.Fatal(err)
		}
		got := c.Model.APIKey.Reveal() + " " + c.Model.Headers["api-key"].Reveal()
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if dropped := tt.want == " "; dropped != (len(c.Notes) > 0) && tt.name != "key and server in the environment" {
			t.Errorf("%s: notes %q", tt.name, c.Notes)
		}
		if notes := strings.Join(c.Notes, " "); strings.Contains(notes, "-key-") {
			t.Errorf("%s: %q holds a key", tt.name, notes)
		}
	}
}

func TestSecretsAreMaskedByType(t *testing.T) {
	const file = `{"model": {"base_url": "https://a.example", "api_key": "hunter2-model", "headers": {"X-Api-Key": "hunter2-header", "X-Title": "ordinary"}},
 "search": {"api_key": "hunter2-search"}, "email": {"password": "hunter2-mail"},
 "mcp": {"servers": {"a": {"command": "x", "env": {"GH_TOKEN": "hunter2-env"}}, "b": {"url": "https://b", "headers": {"Authorization": "Bearer hunter2-bearer"}}}}}`
	f := testFolders(t, file)
	vaultKey := "aHVudGVyMi12YXVsdC1odW50ZXIyLXZhdWx0LWh1bnQ="
	c, err := loadConfig(f, env("PICKET_VAULT_KEY", vaultKey), nil)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.show(&b); err != nil {
		t.Fatal(err)
	}
	js, _ := json.Marshal(c)
	all := b.String() + string(js) + fmt.Sprintf("%v %+v %#v %v %#v %+v", c, c, c, c.Model, c.Email, c.MCP) + fmt.Sprint(c.Model.APIKey, c.Notes)
	if strings.Contains(all, "hunter2") || strings.Contains(all, vaultKey) || strings.Contains(all, "68756e746572") {
		t.Errorf("a secret is shown in %s", all)
	}
	if !strings.Contains(b.String(), `"(hidden)"`) || !strings.Contains(b.String(), "model.api_key") {
		t.Errorf("nothing is shown: %s", b.String())
	}

	r := newRedactor(c.secrets())
	for v, want := range map[string]string{
		"hunter2-model": "[redacted: model key]", "hunter2-header": "[redacted: model header X-Api-Key]", "hunter2-search": "[redacted: search key]",
		"hunter2-mail": "[redacted: email password]", "hunter2-env": "[redacted: MCP variable GH_TOKEN]", "hunter2-bearer": "[redacted: MCP header Authorization]",
		vaultKey: "[redacted: vault key]", "ordinary": "ordinary",
	} {
		if got := r.String(v); got != want {
			t.Errorf("%q is redacted to %q, want %q", v, got, want)
		}
	}

	one, _ := c.digest()
	c2, err := loadConfig(testFolders(t, strings.Replace(file, "hunter2-model", "another-key", 1)), env(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if two, _ := c2.digest(); one != two {
		t.Error("the digest depends on a secret")
	}
	c2.Agent.MaxSteps++
	if two, _ := c2.digest(); one == two {
		t.Error("the digest does not depend on a setting")
	}
}

func TestDurations(t *testing.T) {
	for in, want := range map[string]time.Duration{"3m": 3 * time.Minute, "200d": 200 * 24 * time.Hour, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "90s": 90 * time.Second, "0s": 0, "1500ms": 1500 * time.Millisecond} {
		d, err := parseDuration(in)
		if err != nil || d != want {
			t.Errorf("%q: %v %v", in, d, err)
		}
		if back, err := parseDuration(durationText(d)); err != nil || back != d {
			t.Errorf("%v is written %q", d, durationText(d))
		}
	}
	for _, in := range []string{"", "5", "d", "-1d", "1d-1h", "99999d99999999h", "1w", "3 m", "999999d"} {
		if d, err := parseDuration(in); err == nil {
			t.Errorf("%q is %v", in, d)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add(string(defaultSettings))
	f.Add(`{"mcp": {"servers": {"a": {"command": "x", "args": ["b"], "network": true}}}}`)
	f.Add(`{"model": {"temperature": null, "headers": {"a": "b"}}, "sentinel": {"rules": [{"tool": "x", "match": {"a": "*"}, "action": "deny"}]}}`)
	f.Add("// a\n{\"audit\": {\"keep\": \"1d\"}} // b")
	f.Fuzz(func(t *testing.T, text string) {
		var c config
		r, err := readSettings("f", []byte(text), &c)
		if err == nil {
			// What is accepted is JSON but for the comments, and what was read
			// is what it says.
			var v map[string]any
			if err := json.Unmarshal(r.text, &v); err != nil {
				t.Fatalf("accepted, but: %v", err)
			}
			for key, at := range r.where {
				if at <= 0 || at >= len(r.text) {
					t.Fatalf("%s stands at %d of %d", key, at, len(r.text))
				}
			}
			if m, ok := v["workspace"].(string); ok && m != c.Workspace {
				t.Fatalf("%q was read as %q", m, c.Workspace)
			}
			return
		}
		e, ok := err.(*settingError)
		lines := strings.Split(text, "\n")
		if !ok || e.Line < 1 || e.Line > len(lines) || e.Col < 1 || e.Col > len(lines[e.Line-1])+1 {
			t.Fatalf("no place in the text: %#v", err)
		}
	})
}
