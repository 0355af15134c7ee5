package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// A check is one line of doctor: what is right, or what is not and the command
// or setting that mends it.
type check struct {
	name string
	ok   bool
	line string
	fix  string
}

// doctor is "picket doctor". It writes nothing.
func (p *program) doctor(ctx context.Context) error {
	var list []check
	bad := false
	add := func(name string, err error, line, fix string) {
		c := check{name, err == nil, line, fix}
		if err != nil {
			c.line = err.Error()
		}
		bad = bad || !c.ok
		list = append(list, c)
	}
	a, err := p.settings(taskFlags{})
	if err == nil {
		add("settings", nil, a.folders.configFile()+presence(a.folders.configFile()), "")
		add("permissions", nil, "only you can reach the settings and data", "")
		a.reads = true
		err = a.facts()
	}
	if err != nil {
		add("start", err, "", "mend what the line names")
	} else {
		a.checkVault(ctx, add)
		a.checkModel(ctx, add)
		a.checkBox(add)
		a.checkLog(add)
		a.checkLabels(add)
		a.checkPolicy(add)
	}
	for _, c := range list {
		mark := "✓"
		if !c.ok {
			mark = "✗"
		}
		if err := p.print(fmt.Sprintf("%s %-12s %s\n", mark, c.name, printable(p.redact(strings.ReplaceAll(c.line, "\n", "; "))))); err != nil {
			return err
		}
		if c.fix != "" {
			if err := p.print("  → " + printable(c.fix) + "\n"); err != nil {
				return err
			}
		}
	}
	if bad {
		return exitCode(exitFailed)
	}
	return nil
}

func presence(path string) string {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return " (none; the defaults hold)"
	}
	return ""
}

func (a *app) checkModel(ctx context.Context, add func(name string, err error, line, fix string)) {
	err := a.chooseModel(ctx)
	if err != nil {
		add("model", err, "", "mend what the line names; model.base_url, model.name and model.api_key say which model (picket config path)")
		return
	}
	fix := ""
	if a.choice.Kind == "rehearsal" {
		fix = "for a real one: ollama pull qwen3, or set OPENAI_API_KEY, or model.base_url"
	}
	add("model", nil, a.choice.Why, fix)
	key := "no key is needed or set"
	if a.choice.Settings.APIKey != "" {
		key = "a key is set, and is only sent to " + urlOrigin(a.choice.Settings.BaseURL)
	}
	add("key", nil, key, "")
	for _, n := range a.cfg.Notes {
		add("key", errors.New(n), "", "set the key beside the base URL that it is for")
	}
}

func (a *app) checkBox(add func(name string, err error, line, fix string)) {
	st := a.box.State()
	var err error
	switch {
	case st.RefuseExec != "":
		err = errors.New(st.RefuseExec)
	case !st.Boxed && runtime.GOOS == "linux" && a.cfg.Sandbox.Mode != "off":
		err = errors.New(st.Line)
	case st.Boxed && !st.NetBlocked:
		err = errors.New(st.Line)
	}
	add("sandbox", err, st.Line, st.Hint)
	for _, n := range a.box.Notes() {
		add("sandbox", nil, n, "")
	}
	for _, m := range a.box.Missing() {
		add("sandbox", nil, m, "")
	}
}

func (a *app) checkLog(add func(name string, err error, line, fix string)) {
	path := filepath.Join(a.folders.Data, auditName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		add("log", nil, path+" (none yet)", "")
		return
	}
	r, err := verifyLog(a.folders.Data)
	if err != nil {
		add("log", err, "", "")
		return
	}
	for _, f := range r.Files {
		line, fix := f.File+": "+f.What, ""
		if f.Status == auditProven {
			add("log", nil, line, "")
			continue
		}
		switch f.Status {
		case auditUnaccepted:
			fix = "picket audit verify shows it; picket audit accept accepts it"
		default:
			fix = "picket audit verify shows it; picket audit restart sets the file aside"
		}
		if f.File == approvalsName {
			line += "; no grant holds"
		}
		add("log", errors.New(line), "", fix)
	}
	if last := lastTime(path); last.After(time.Now().Add(time.Minute)) {
		add("clock", fmt.Errorf("the clock is behind the log, which ends at %s", last.Local().Format(time.DateTime)), "", "set the clock")
	} else {
		add("clock", nil, "the clock is not behind the log", "")
	}
}

func (a *app) checkLabels(add func(name string, err error, line, fix string)) {
	l := &labelStore{path: filepath.Join(a.folders.Data, labelsName)}
	err := l.load()
	fix := ""
	if err != nil { // until then no tool reads a file
		fix = "mv " + shellWord(l.path) + " " + shellWord(l.path+".damaged") + ", after which no file has a label: look at what it says, or work in a new folder"
	}
	add("labels", err, fmt.Sprintf("%d files and folders hold words of others or private data", len(l.all)), fix)
}

func (a *app) checkPolicy(add func(name string, err error, line, fix string)) {
	lines, err := lintPolicy(a.cfg.Sentinel, a.tools)
	if err != nil {
		add("policy", err, "", "")
		return
	}
	for _, l := range lines {
		add("policy", errors.New(l), "", "picket policy lint")
	}
	if len(lines) == 0 {
		add("policy", nil, "mode "+a.mode()+"; no rule is unreachable, over-broad or without effect", "")
	}
}
