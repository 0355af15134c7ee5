package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"picket/tools"
)

// An ownScenario is a chat of the kind that picket's own tools have: what was
// there before, and calls, each with what the gate has to say of it.
type ownScenario struct {
	Name    string   `json:"name"`
	Attack  bool     `json:"attack"`
	Mode    string   `json:"mode"`
	Channel string   `json:"channel"` // "" is cli
	Labels  string   `json:"labels"`
	Grants  []string `json:"grants"`  // "SCOPE KEY", the owner's
	Granted string   `json:"granted"` // labels of the chat in which they were given
	Owner   string   `json:"owner"`   // the owner's words
	Box     string   `json:"box"`     // none: commands run outside a box
	Calls   []struct {
		Tool   string         `json:"tool"`
		Args   map[string]any `json:"args"`
		Result string         `json:"result"`
		Want   string         `json:"want"`
	} `json:"calls"`
}

// TestOwnScenarios decides about scenarios that were written beside the policy
// and not for it: attacks have to stop at their last call, and everyday work has
// to go on without a question.
func TestOwnScenarios(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("lines and paths of Unix")
	}
	list := readLines[ownScenario](t, filepath.Join("testdata", "replay", "own.jsonl"))
	attacks, tasks := 0, 0
	for _, s := range list {
		stops := false
		for _, c := range s.Calls {
			stops = c.Want != "allow"
			if stops && !s.Attack {
				t.Errorf("%s: everyday work that is to ask", s.Name)
			}
		}
		if s.Attack && !stops {
			t.Errorf("%s: an attack that is to go through", s.Name)
		}
		if s.Attack {
			attacks++
		} else {
			tasks++
		}
		t.Run(s.Name, func(t *testing.T) { s.play(t) })
	}
	if attacks < 30 || tasks < 30 {
		t.Errorf("%d attacks and %d tasks", attacks, tasks)
	}
}

func (s *ownScenario) play(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, extra, data := filepath.Join(dir, "ws"), filepath.Join(dir, "extra"), filepath.Join(dir, "data")
	for _, d := range []string{ws, extra, data, ws + "/src", ws + "/.git", ws + "/.picket"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{ws + "/notes.txt", extra + "/report.txt", data + "/vault.enc"} {
		if err := os.WriteFile(f, []byte("a"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(ws+"/.picket", ws+"/link"); err != nil {
		t.Fatal(err)
	}
	cfgBox := boxConfig{Mode: "off", Workspace: ws}
	if strings.Contains(jsonText(s.Calls), "@EXTRA") { // with a further root, commands see the owner's private files
		cfgBox.ExtraRoots = []string{extra}
	}
	box, err := newSandbox(cfgBox)
	if err != nil {
		t.Fatal(err)
	}
	box.state = boxState{Boxed: s.Box == "", NetBlocked: s.Box == ""}
	cfg, err := loadConfig(testFolders(t, ""), func(string) string { return "" }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Mode != "" {
		cfg.Sentinel.Mode = s.Mode
	}
	gate := &Sentinel{tools: map[string]tools.Tool{}, redact: keepText, host: tools.Host{Workspace: ws},
		resolver: &resolver{workspace: ws, roots: box.Roots(), home: "/home/owner", hidden: []string{data, ws + "/.picket"}, box: box}}
	for _, tool := range allTools() {
		gate.tools[tool.Name] = tool
	}
	if gate.policy, err = compilePolicy(cfg.Sentinel, namesOf(allTools())); err != nil {
		t.Fatal(err)
	}
	channel := s.Channel
	if channel == "" {
		channel = channelCLI
	}
	turn := &Turn{Chat: &chat{}}
	turn.Chat.apply(chatLine{Role: "user", Channel: channel, Content: s.Owner})
	for _, l := range strings.Fields(s.Labels) {
		turn.Chat.apply(chatLine{Labels: []chatLabel{{l, "before"}}})
	}
	var grants []Grant
	for _, g := range s.Grants {
		word, key, _ := strings.Cut(g, " ")
		scope, ok := tools.ParseScope(word)
		if !ok || key == "" {
			t.Fatalf("no grant: %q", g)
		}
		grants = append(grants, Grant{Key: key, Scope: scope, Who: "owner", Workspace: ws,
			Labels: Labels{strings.Contains(s.Granted, "private"), strings.Contains(s.Granted, "untrusted")}})
	}
	place := strings.NewReplacer("@EXTRA", extra, "@DATA", data)
	for i, step := range s.Calls {
		raw, err := json.Marshal(step.Args)
		if err != nil {
			t.Fatal(err)
		}
		c := &callState{t: turn, call: ToolCall{Function: ToolFunction{Name: step.Tool, Arguments: place.Replace(string(raw))}}}
		var d Decision
		var in Input
		if why, _ := gate.prepare(c); why != "" {
			d = refusal(why)
		} else {
			in = Input{Tool: c.tool, Args: c.args.Values, Judgement: c.j, Labels: turn.Chat.labels(), Channel: channel, Workspace: ws,
				Grants: grants, URLSeen: c.j.URL != "" && turn.seen(c.args.String("url"), c.j.URL)}
			d = gate.policy.Decide(in)
		}
		if d.Verdict.String() != step.Want {
			t.Errorf("call %d, %s: %v by %s %q, want %s", i+1, place.Replace(string(raw)), d.Verdict, d.Step, d.Reasons, step.Want)
		}
		if d.Verdict == Deny {
			continue
		}
		if d.Verdict == Ask && slices.Contains(d.Offered, tools.Task) {
			grants = append(grants, grantsFor(&in, tools.Task)...)
		}
		turn.Chat.apply(chatLine{Labels: c.labels()})
		turn.Chat.apply(chatLine{Role: "tool", Content: step.Result})
	}
}
