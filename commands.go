package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"picket/tools"
)

// The commands besides a task and a chat. Lists write nothing.

// configCommand is "picket config".
func (p *program) configCommand(args []string) error {
	if len(args) != 1 {
		return usageErrorf("config takes init, show or path")
	}
	f, err := findFolders(os.Getenv)
	if err != nil {
		return err
	}
	switch args[0] {
	case "path":
		return p.print(f.configFile() + "\n")
	case "init":
		if err := f.create(); err != nil {
			return err
		}
		path, err := f.initConfig()
		if err != nil {
			return err
		}
		return p.print(path + "\n")
	case "show":
		a, err := p.settings(taskFlags{})
		if err != nil {
			return err
		}
		return a.cfg.show(p.stdout)
	}
	return usageErrorf("config takes init, show or path, not %q", args[0])
}

// toolsCommand is "picket tools".
func (p *program) toolsCommand(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "--json":
		b, err := tools.Manifest(allTools())
		if err != nil {
			return err
		}
		return p.print(string(b) + "\n")
	case len(args) > 0:
		return usageErrorf("tools takes --json or nothing, not %q", args[0])
	}
	for _, t := range allTools() {
		first, _, _ := strings.Cut(t.Description, "\n")
		if err := p.print(fmt.Sprintf("%-16s %-10s %s\n", t.Name, t.Risk, first)); err != nil {
			return err
		}
	}
	return nil
}

// approvalsCommand is "picket approvals" and "picket grants".
func (p *program) approvalsCommand(ctx context.Context, parse func([]string) (approvalsAction, bool, error), args []string) error {
	do, list, err := parse(args)
	if err != nil {
		return usageErrorf("%v", err)
	}
	return p.withData(ctx, list, func(a *app) error { return do(ctx, a.approvals, p.stdout, p.stderr) })
}

func codeError(code int) error {
	if code == 0 {
		return nil
	}
	return exitCode(code)
}

// withData runs f with the log and the approvals open. Where there are none
// yet, a list is empty, and nothing is made for it.
func (p *program) withData(ctx context.Context, list bool, f func(*app) error) error {
	a, err := p.settings(taskFlags{})
	if err != nil {
		return err
	}
	if a.reads = list; list {
		if _, err := os.Stat(filepath.Join(a.folders.Data, auditName)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	if err := a.data(ctx); err != nil {
		return err
	}
	return errors.Join(f(a), a.close())
}

// policyCommand is "picket policy".
func (p *program) policyCommand(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usageErrorf("policy takes explain or lint")
	}
	a, err := p.settings(taskFlags{})
	if err != nil {
		return err
	}
	switch {
	case args[0] == "lint" && len(args) == 1:
		lines, err := lintPolicy(a.cfg.Sentinel, a.tools)
		if err != nil {
			return err
		}
		for _, l := range lines {
			if err := p.print(printable(l) + "\n"); err != nil {
				return err
			}
		}
		if len(lines) > 0 {
			return exitCode(exitFailed)
		}
		return nil
	case args[0] == "explain":
		return a.explain(args[1:])
	}
	return usageErrorf("policy takes explain, or lint alone, not %q", args)
}

// explain says what the gate would decide about a call that is not run.
func (a *app) explain(args []string) error {
	e, err := parseExplain(args)
	if err != nil {
		return usageErrorf("%v", err)
	}
	a.reads = true
	if err := a.facts(); err != nil {
		return err
	}
	call := ToolCall{Function: ToolFunction{Name: e.Tool, Arguments: e.Args}}
	gate := &Sentinel{tools: map[string]tools.Tool{}, resolver: a.resolver, host: tools.Host{Workspace: a.workspace}, redact: a.red.String, lookup: a.vault.Lookup, holds: a.red.Holds}
	for _, t := range a.tools {
		gate.tools[t.Name] = t
	}
	if _, ok := gate.tools[e.Tool]; !ok {
		return usageErrorf("there is no tool %q", e.Tool)
	}
	c := &callState{call: call}
	var d Decision
	in := Input{Channel: e.Channel, Labels: e.Labels, Mode: e.Mode, Workspace: a.workspace, Grants: e.whatIf(a.workspace)}
	why, step := gate.prepare(c)
	in.Tool, in.Args, in.Judgement = c.tool, c.args.Values, c.j
	if why != "" {
		d = refusal(why)
		d.Step = step
	} else {
		sw, err := a.cfg.switches()
		if err != nil {
			return err
		}
		if in.Mode == "" {
			in.Mode = sw.Mode
		}
		d = a.policy.Decide(in)
	}
	if e.JSON {
		return a.prog.print(jsonText(explain(&in, d)) + "\n")
	}
	explain(&in, d).print(a.prog.stdout, in.Judgement.Summary, d.Narrow)
	return nil
}

// labelsCommand is "picket labels".
func (p *program) labelsCommand(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == "list":
		a, err := p.settings(taskFlags{})
		if err != nil {
			return err
		}
		l := &labelStore{path: filepath.Join(a.folders.Data, labelsName)}
		if err := l.load(); err != nil {
			return err
		}
		return p.listLabels(l)
	case len(args) != 2 || args[0] != "clear":
		return usageErrorf("labels takes list or clear PATH")
	}
	path, err := filepath.Abs(args[1])
	if err != nil {
		return err
	}
	path = filepath.Join(resolveExisting(filepath.Dir(path)), filepath.Base(path))
	return p.withData(ctx, false, func(a *app) error {
		n, err := a.labels.clear(path)
		if err != nil {
			return err
		}
		if err := a.log.Append(ctx, true, Record{Run: a.run, Channel: channelCLI, Body: labelRecord{Set: []string{}, Source: "cleared by the owner", Path: path}}); err != nil {
			return err
		}
		return p.print(fmt.Sprintf("cleared %d\n", n))
	})
}

func (p *program) listLabels(l *labelStore) error {
	list := slices.SortedFunc(maps.Keys(l.all), func(a, b *labelled) int { return cmp.Compare(a.path, b.path) })
	for _, e := range list {
		what := ""
		if st, err := statFile(string(e.path)); err != nil {
			what = "  (not there)"
		} else if st.key != e.key {
			what = "  (replaced)"
		}
		if e.tree {
			what += "  and all below it"
		}
		line := fmt.Sprintf("%s  %-17s  %s%s  %s", e.when[:min(16, len(e.when))], strings.Join(labelsIn(e.set).List(), ","), e.path, what,
			strings.Join(labelLines(e.set), "; "))
		if err := p.print(printable(line) + "\n"); err != nil {
			return err
		}
	}
	for _, o := range l.open {
		for _, root := range o.Roots {
			if err := p.print(printable(fmt.Sprintf("call %s of %s counts as labelling all of %s until it is looked at", o.Call, o.TS, root)) + "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// chatsCommand is "picket chats".
func (p *program) chatsCommand(ctx context.Context, args []string) error {
	a, err := p.settings(taskFlags{})
	if err != nil {
		return err
	}
	store := a.chatStore()
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == "list":
		list, err := store.list()
		for _, c := range list {
			what := fmt.Sprintf("%d messages  %s", c.Messages, strings.Join(c.Labels.List(), ","))
			if c.Err != nil {
				what = "damaged: " + c.Err.Error()
			}
			if strings.HasPrefix(c.Name, apiNamespace+":") {
				what += "  another app (API)"
			}
			line := fmt.Sprintf("%s  %-30s  %s", c.Changed.Local().Format(time.DateTime), printable(c.Name), printable(what))
			if err := p.print(strings.TrimRight(line, " ") + "\n"); err != nil {
				return err
			}
		}
		return err
	case len(args) == 2 && args[0] == "show":
		lines, err := store.read(args[1])
		if err != nil {
			return err
		}
		return p.showChat(lines)
	case len(args) == 2 && args[0] == "delete":
		return store.remove(ctx, args[1])
	}
	return usageErrorf("chats takes list, show NAME or delete NAME")
}

func (p *program) showChat(lines []chatLine) error {
	for _, l := range lines {
		var b strings.Builder
		switch {
		case l.Reset:
			b.WriteString("--- reset\n")
		case l.Role != "":
			fmt.Fprintf(&b, "%s:\n", l.Role)
			for _, t := range strings.Split(l.Content, "\n") {
				fmt.Fprintf(&b, "  %s\n", printable(t))
			}
			for _, c := range l.Calls {
				fmt.Fprintf(&b, "  → %s %s\n", printable(c.Function.Name), printable(c.Function.Arguments))
			}
		}
		for _, lb := range l.Labels {
			fmt.Fprintf(&b, "--- %s: %s\n", printable(lb.Label), printable(lb.Source))
		}
		if err := p.print(b.String()); err != nil {
			return err
		}
	}
	return nil
}

// undoCommand is "picket undo".
func (p *program) undoCommand(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return usageErrorf("undo takes the id of one call, as picket audit shows it")
	}
	a, err := p.settings(taskFlags{})
	if err != nil {
		return err
	}
	said, err := undo(filepath.Join(a.folders.Data, "undo"), args[0], func(path string, set []chatLabel) error {
		return p.withData(ctx, false, func(a *app) error {
			rec := labelRecord{Set: labelsIn(set).List(), Source: "undo", Path: path}
			return errors.Join(a.labels.set(path, set), a.log.Append(ctx, true, Record{Run: a.run, Channel: channelCLI, Body: rec}))
		})
	})
	if err != nil {
		return err
	}
	return p.print(printable(said) + "\n")
}

// auditCommand is "picket audit". The log can be read whatever the settings say.
func (p *program) auditCommand(ctx context.Context, args []string) error {
	fold, err := findFolders(os.Getenv)
	if err == nil {
		err = fold.check()
	}
	if err != nil && len(args) > 0 && args[0] == "verify" {
		return p.notProven(err)
	}
	if err != nil {
		return err
	}
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	switch verb {
	case "":
		return p.auditTable(ctx, fold.Data, args)
	case "show":
		if len(args) != 1 {
			return usageErrorf("audit show takes the id of one call")
		}
		return showRecord(p.stdout, fold.Data, args[0], printable)
	case "verify":
		return p.auditVerify(fold.Data, args)
	case "accept", "restart":
		if len(args) > 0 {
			return usageErrorf("audit %s takes no arguments", verb)
		}
		a, err := p.settings(taskFlags{})
		if err != nil {
			return err
		}
		return a.auditMend(ctx, verb)
	}
	return usageErrorf("audit takes show, verify, accept or restart, not %q", verb)
}

func (p *program) auditTable(ctx context.Context, dir string, args []string) error {
	v := auditView{Safe: printable}
	fs := newFlags("audit")
	n := fs.String("n", "50", "")
	fs.BoolVar(&v.JSON, "json", false, "")
	fs.BoolVar(&v.Follow, "f", false, "")
	fs.StringVar(&v.Kind, "kind", "", "")
	fs.StringVar(&v.Chat, "chat", "", "")
	if err := parseFlags(fs, args); err != nil {
		return p.helpOr(err)
	}
	if isTerminal(p.stdout) {
		width, _ := sizeOf(p.stdout)
		v.Width, _ = strconv.Atoi(cmp.Or(os.Getenv("COLUMNS"), strconv.Itoa(width)))
	}
	var err error
	if v.N, err = strconv.Atoi(*n); err != nil || v.N < 0 || fs.NArg() > 0 {
		return usageErrorf("audit takes -n NUMBER, --json, -f, --kind KIND and --chat CHAT")
	}
	return showAudit(ctx, p.stdout, dir, v)
}

// exitVerifyUsage is the exit code of "audit verify" for a mistake on the
// command line, since 2 says that the log is incomplete.
const exitVerifyUsage = 64

// notProven reports why the log could not be looked at; 1 would say that it was
// tampered with.
func (p *program) notProven(err error) error {
	p.errorf("%v", err)
	return exitCode(auditIncomplete)
}

func (p *program) auditVerify(dir string, args []string) error {
	asJSON := len(args) == 1 && args[0] == "--json"
	if len(args) > 0 && !asJSON {
		p.errorf("audit verify takes --json or nothing, not %q", args[0])
		return exitCode(exitVerifyUsage)
	}
	r, err := verifyLog(dir)
	if err != nil {
		return p.notProven(err)
	}
	if !asJSON {
		r.print(p.stdout, printable)
		return codeError(r.Status)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return errors.Join(p.print(string(b)+"\n"), codeError(r.Status))
}

// auditMend accepts what happened to the log, or sets it aside.
func (a *app) auditMend(ctx context.Context, verb string) error {
	if err := a.folders.create(); err != nil {
		return err
	}
	if verb == "restart" {
		aside, err := restartLogs(ctx, a.folders.Data)
		for _, f := range aside {
			if perr := a.prog.print("set aside: " + printable(f) + "\n"); perr != nil {
				return perr
			}
		}
		return err
	}
	r, err := verifyLog(a.folders.Data)
	if err != nil {
		return err
	}
	if r.Status == auditTampered {
		return errors.New("the log was tampered with, which cannot be accepted: picket audit verify shows where, and picket audit restart sets it aside")
	}
	log, err := openAudit(a.folders.Data)
	if err != nil {
		return err
	}
	upto, err := log.Accept(ctx)
	if err = errors.Join(err, log.Close()); err != nil {
		return err
	}
	return a.prog.print(fmt.Sprintf("accepted up to record %d\n", upto))
}
