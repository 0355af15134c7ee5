package tools

import (
	"encoding/json"
	"path"
	"strings"
	"testing"
)

// The machine that the tests of the analysis see: a workspace /ws, an extra root
// /extra, the owner's home /home/u, picket's data in /data, every bare program in
// /usr/bin, and in the workspace what wsFiles lists.
var wsFiles = map[string]bool{ // true: a folder
	"/": true, "/tmp": true, "/home/u": true, "/data": true, "/ws": true, "/ws/sub": true, "/etc": true, "/ws/src": true, "/ws/frontend": true, "/ws/build": true, "/ws/job.py": false, "/ws/x.sh": false, "/ws/cat": false,
	"/ws/sub/tool": false, "/ws/bin/git": false,
}

func factsFor(plan Plan, boxed bool) Facts {
	f := Facts{
		Workspace: "/ws", Roots: []string{"/ws"}, Home: "/home/u", Boxed: boxed, NetBlocked: boxed,
		Paths: map[string]PathFact{}, Programs: map[string]ProgramFact{},
		Env: map[string]bool{"PATH": true, "HOME": true, "LANG": true, "USER": true, "GOPATH": true, "FROMENV": true},
	}
	for _, p := range plan.Paths {
		f.Paths[p.Name] = pathFact(p.Name, boxed)
	}
	for _, w := range plan.Programs {
		switch {
		case strings.HasPrefix(w, "missing"):
			f.Programs[w] = ProgramFact{}
		case w == "ownbuild":
			f.Programs[w] = ProgramFact{Path: "/ws/bin/ownbuild", Writable: true, Digest: "d0"}
		case !strings.Contains(w, "/"):
			f.Programs[w] = ProgramFact{Path: "/usr/bin/" + w}
		default:
			p := pathFact(w, boxed)
			pf := ProgramFact{Path: p.Resolved, Writable: p.Place == Workspace || p.Place == Scratch}
			if pf.Writable && !p.Exists {
				pf = ProgramFact{}
			}
			if pf.Writable {
				pf.Digest = "d-" + path.Base(w)
			}
			if strings.HasPrefix(pf.Path, "/bin/") {
				pf.Path = "/usr" + pf.Path
			}
			f.Programs[w] = pf
		}
	}
	return f
}

func pathFact(name string, boxed bool) PathFact {
	p := name
	switch {
	case p == "~" || strings.HasPrefix(p, "~/"):
		p = "/home/u" + p[1:]
	case !strings.HasPrefix(p, "/"):
		p = "/ws/" + p
	}
	p = path.Clean(p)
	if p == "/ws/link" { // a link that leads out
		p = "/etc"
	}
	f := PathFact{Resolved: p, Place: Outside}
	under := func(dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
	switch {
	case under("/ws"):
		f.Place = Workspace
	case under("/extra"):
		f.Place = ExtraRoot
	case under("/data"), under("/proc"), under("/sys"):
		f.Place = Protected
	case under("/usr"), under("/etc"), under("/opt"), under("/bin"):
		f.Place = System
	case boxed && under("/tmp"):
		f.Place = Scratch
	}
	f.Dir, f.Exists = wsFiles[p]
	if under("/usr") || under("/bin") {
		f.Exists = true
	}
	f.Regular = f.Exists && !f.Dir
	return f
}

func judgeLine(t testing.TB, line string, boxed bool) Judgement {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"command": line})
	if err != nil {
		t.Fatal(err)
	}
	return judgeRaw(t, &Shell, raw, boxed)
}

func judgeRaw(t testing.TB, tool *Tool, raw []byte, boxed bool) Judgement {
	t.Helper()
	args, err := tool.Parse(raw)
	if err != nil {
		t.Fatalf("%.300s: %v", raw, err)
	}
	plan, err := tool.Assess(args)
	if err != nil {
		t.Fatalf("%.300s: %v", raw, err)
	}
	return tool.Judge(args, plan, factsFor(plan, boxed))
}

// keys are the targets of a judgement; those that get no standing grant end in
// an exclamation mark.
func keys(j Judgement) string {
	var list []string
	for _, t := range j.Targets {
		k := strings.TrimPrefix(t.Key, "shell:")
		if t.Widest < Session {
			k += "!"
		}
		list = append(list, k)
	}
	return strings.Join(list, " ")
}
