package tools

import (
	"encoding/json"
	"strings"
	"testing"
)

func judgePy(t testing.TB, code string, boxed bool) Judgement {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"code": code})
	if err != nil {
		t.Fatal(err)
	}
	return judgeRaw(t, &Python, raw, boxed)
}

func TestPythonScan(t *testing.T) {
	for _, c := range []struct{ name, code, want string }{
		{"arithmetic", "print(sum(range(10)))", ""},
		{"files in the workspace", "with open('a.csv') as f:\n    print(len(f.read()))", ""},
		{"absolute paths in the workspace", "open('/ws/a/b')", ""},
		{"the box's tmp", "open('/tmp/x', 'w')", ""},
		{"ordinary modules", "import json, re, os.path, sys, math, csv\nfrom collections import Counter\nre.compile('x')\nprint(os.path.join('a', 'b'), os.listdir('.'), sys.argv)", ""},
		{"names in comments and strings", "# import socket, os.environ\nprint('subprocess and eval( and os.remove')", ""},
		{"remove of a list", "a = [1]\na.remove(1)", ""},
		{"method called eval", "model.eval()\ndf.eval('a')", ""},
		{"platform.system", "import platform\nprint(platform.system())", ""},
		{"a separator is no path", "print('a/b'.split('/'), '//')", ""},
		{"socket", "import socket", "network"},
		{"in a list of modules", "import os, socket", "network"},
		{"a part of a package", "import json, urllib.request", "network"},
		{"renamed", "import numpy as np, requests as r", "network"},
		{"from", "from smtplib import SMTP", "network"},
		{"from a part", "from urllib.request import urlopen", "network"},
		{"after a semicolon", "x=1;import http.client", "network"},
		{"in a block", "if 1: import ssl", "network"},
		{"on a continued line", "import \\\n  socket", "network"},
		{"asyncio", "import asyncio\nasyncio.open_connection('h', 1)", "network"},
		{"subprocess", "import subprocess", "processes"},
		{"os.system", "import os\nos.system('x')", "processes"},
		{"os renamed", "import os as o\no.system('x')", "processes"},
		{"from os", "from os import system", "processes"},
		{"in brackets over lines", "from os import (\n  path,\n  popen,\n)", "processes"},
		{"os.kill", "import os\nos.kill(1, 9)", "processes"},
		{"ctypes", "import ctypes", "processes"},
		{"fork", "import os\nos.fork()", "processes"},
		{"asyncio processes", "asyncio.create_subprocess_exec('x')", "processes"},
		{"environ", "import os\nprint(os.environ)", "environment"},
		{"getenv from os", "from os import getenv", "environment"},
		{"in an f-string", `print(f"{os.environ['X']}")`, "environment"},
		{"in a nested f-string", `print(f"{f'{os.environ}'}")`, "environment"},
		{"rmtree", "import shutil\nshutil.rmtree('x')", "deletion"},
		{"os.remove", "import os\nos.remove('x')", "deletion"},
		{"remove of os renamed", "import os as q\nq.remove('x')", "deletion"},
		{"remove from os", "from os import remove", "deletion"},
		{"Path.unlink", "from pathlib import Path\nPath('x').unlink()", "deletion"},
		{"up", "open('../../data/x')", "outside"},
		{"chdir", "import os\nos.chdir('..')", "outside"},
		{"other roots", "open('/srv/x'), open('/mnt/y')", "outside"},
		{"a prefix of the workspace's name", "open('/ws-evil/x')", "outside"},
		{"out of the workspace again", "open('/ws/../etc/x')", "outside"},
		{"home", "from pathlib import Path\nPath.home()", "outside"},
		{"a tilde", "import os\nos.path.expanduser('~/x')", "outside"},
		{"raw and byte strings", "open(rb'/etc/x')", "outside"},
		{"three quotes", `open("""/etc/x""")`, "outside"},
		{"a file that direnv runs", "open('.envrc', 'w').write('x')", "later"},
		{"a git hook", "open('a/b/.git/hooks/pre-commit', 'w')", "later"},
		{"eval", "eval('1')", "dynamic"},
		{"__import__", "__import__('socket')", "dynamic"},
		{"importlib", "import importlib", "dynamic"},
		{"getattr of os", "getattr(os, 'sys' + 'tem')('x')", "dynamic"},
		{"star of os", "from os import *", "dynamic"},
		{"sys.path", "import sys\nsys.path.insert(0, '.')", "dynamic"},
		{"builtins", "print(__builtins__)", "dynamic"},
		{"subclasses", "().__class__.__base__.__subclasses__()", "dynamic"},
		{"another encoding", "# -*- coding: utf-7 -*-\nprint(1)", "dynamic"},
		{"letters that stand for others", "import os\nos.ｓystem('x')", "dynamic"},
		{"a quote that does not close", "print('a\nimport socket", "network"},
		{"an escaped quote", `print('a\'); import socket')`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := judgePy(t, c.code, true)
			reason := map[string]string{"network": "network", "processes": "other programs", "environment": "environment", "deletion": "deletes", "outside": "outside the workspace", "dynamic": "builds code", "later": ""}[c.want]
			why := strings.Join(j.Why, "; ")
			if (j.Risk == Sensitive) != (c.want != "" && c.want != "later") || !strings.Contains(why, reason) {
				t.Errorf("risk %v because %q, want %q", j.Risk, why, c.want)
			}
			if warns := c.want == "environment" || c.want == "deletion" || c.want == "later"; (len(j.Warnings) > 0) != warns || (j.Widest == Once) != warns {
				t.Errorf("warnings %q, widest %v", j.Warnings, j.Widest)
			}
			if j.Network != (c.want == "network") {
				t.Errorf("network %v", j.Network)
			}
			if u := judgePy(t, c.code, false); u.Risk != Sensitive || u.Egress.Kind != EgressUnknown || u.Targets[0].Widest != Task || !u.ReadsPrivate {
				t.Errorf("without a box: %+v", u)
			}
		})
	}
}

func TestPythonScope(t *testing.T) {
	j := judgePy(t, "print(1)", true)
	if j.Egress.Kind != EgressNone || keys(j) != "python_execute" || j.ReadsUntrusted || j.Risk != Moderate {
		t.Errorf("boxed, plain: %+v", j)
	}
	j = judgePy(t, "import socket", true)
	if j.Egress.Kind != EgressUnknown || keys(j) != "python_execute!" || !j.ReadsUntrusted {
		t.Errorf("boxed, network: %+v", j)
	}
	j = judgePy(t, "import subprocess\nsubprocess.run(['curl', 'x'])", true)
	if j.Network || j.Egress.Kind != EgressNone {
		t.Errorf("a script that starts programs has the network: %+v", j)
	}
	j = judgeRaw(t, &Python, []byte(`{"code":"import subprocess","network":true}`), true)
	if !j.Network || keys(j) != "python_execute!" {
		t.Errorf("network=true: %+v", j)
	}
	args, _ := Python.Parse([]byte(`{"code":"print(1)"}`))
	plan, _ := Python.Assess(args)
	facts := factsFor(plan, true)
	facts.NetBlocked = false
	if j := Python.Judge(args, plan, facts); j.Egress.Kind != EgressUnknown || keys(j) != "python_execute!" {
		t.Errorf("a box that cannot take the network away: %+v", j)
	}
	if j := Python.Judge(args, plan, Facts{}); j.Risk != Sensitive || keys(j) != "python_execute!" {
		t.Errorf("without facts: %+v", j)
	}
	if _, err := Python.Assess(Args{Values: map[string]any{"code": "x", "env": map[string]string{"PYTHONPATH": "{{vault:X}}"}}}); err == nil {
		t.Error("PYTHONPATH can be set")
	}
}

// Scripts that walk a tree leave .git out by name; where nothing protects it, that
// is worth a look.
func TestPythonNamesGit(t *testing.T) {
	for code, warns := range map[string]bool{
		"skip = {'.git', 'node_modules', '.vscode'}": false,
		"open('.git/hooks/pre-commit', 'w')":         true,
		"x = '.git' + '/hooks'; open('.envrc')":      true,
	} {
		if j := judgePy(t, code, true); (len(j.Warnings) > 0) != warns {
			t.Errorf("%q: warnings %q", code, j.Warnings)
		}
		if j := judgePy(t, code, false); (len(j.Warnings) > 0) != (warns || strings.Contains(code, "'.git'")) {
			t.Errorf("%q without a box: warnings %q", code, j.Warnings)
		}
	}
}

func FuzzPythonScan(f *testing.F) {
	for _, s := range []string{"import os", "f'{x!r:{w}}'", `"""`, `'\`, "from os import (a,\n b)", "rb'/x' f\"{f'{1}'}\"", "# coding: x", "import a.b as c, d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, code string) {
		s := scanPython(code)
		// More code never lowers what was seen, if the first part ends cleanly.
		if strings.Count(code, `"`)+strings.Count(code, `'`)+strings.Count(code, "#")+strings.Count(code, `\`) == 0 {
			more := scanPython(code + "\n" + "x = 1\n")
			if s.network && !more.network || s.processes && !more.processes || s.dynamic && !more.dynamic {
				t.Errorf("%q: lowered by a further line", code)
			}
		}
	})
}
