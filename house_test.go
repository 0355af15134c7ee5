package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"picket/tools"
)

var update = flag.Bool("update", false, "write golden files anew")

// Ceilings, in lines that are not blank. Those of all files together may only be
// lowered: 8,500, 5,500 and 3,600 are what they should come to.
const (
	maxFile     = 750
	maxFunction = 80
	maxRoot     = 19000
	maxTools    = 7100
	maxCore     = 8600
)

// core is the code that has to be right for the gate to hold.
var core = []string{"sentinel.go", "gaterecord.go", "resolve.go", "policy.go", "approvals.go", "audit.go", "verify.go",
	"records.go", "redact.go", "sandbox.go", "sandbox_linux.go", "gitmask_linux.go", "auditstate.go", "encode.go", "grants.go", "glob.go", "store.go",
	"vault.go", "netproxy.go", "netgate.go", "shim_linux.go", "seccomp_linux.go", "boxmounts_linux.go", "secrets.go", "labels.go", "labelscan.go", "labels_linux.go"}

type goFile struct {
	path string
	src  []byte
	ast  *ast.File
}

func goFiles(t *testing.T) ([]goFile, *token.FileSet) {
	t.Helper()
	fset := token.NewFileSet()
	var out []goFile
	for _, dir := range []string{".", "tools"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("no Go files in %q: %v", dir, err)
		}
		for _, name := range names {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			f, err := parser.ParseFile(fset, name, src, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, goFile{name, src, f})
		}
	}
	return out, fset
}

func isTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

func nonBlank(b []byte) int {
	n := 0
	for _, l := range bytes.Split(b, []byte("\n")) {
		if len(bytes.TrimSpace(l)) > 0 {
			n++
		}
	}
	return n
}

func TestHouseFormat(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		got, err := format.Source(f.src)
		if err != nil || !bytes.Equal(got, f.src) {
			t.Errorf("%s is not formatted by gofmt (%v)", f.path, err)
		}
	}
}

func TestHouseBudgets(t *testing.T) {
	files, fset := goFiles(t)
	root, leaf, trusted := 0, 0, 0
	for _, f := range files {
		if isTest(f.path) {
			continue
		}
		n := nonBlank(f.src)
		if n > maxFile {
			t.Errorf("%s has %d lines, at most %d", f.path, n, maxFile)
		}
		if filepath.Dir(f.path) == "tools" {
			leaf += n
		} else {
			root += n
		}
		if slices.Contains(core, f.path) {
			trusted += n
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			from, to := fset.Position(fn.Pos()), fset.Position(fn.End())
			if lines := nonBlank(f.src[from.Offset:to.Offset]); lines > maxFunction && !strings.HasSuffix(fn.Name.Name, "Table") {
				t.Errorf("%s: %s has %d lines, at most %d", f.path, fn.Name.Name, lines, maxFunction)
			}
		}
	}
	if root > maxRoot || leaf > maxTools || trusted > maxCore {
		t.Errorf("too many lines: root %d of %d, tools %d of %d, core %d of %d", root, maxRoot, leaf, maxTools, trusted, maxCore)
	}
	t.Logf("lines: root %d, tools %d, core %d", root, leaf, trusted)
}

// Which files may import what lets a program act on the world. A new entry is a
// decision about the gate.
var imports = map[string]*regexp.Regexp{
	"flag":                       regexp.MustCompile(`^(main|commands)\.go$`),
	"os/exec":                    regexp.MustCompile(`^(sandbox.*|notify|shim_linux)\.go$`),
	"net":                        regexp.MustCompile(`^(tools/(fetch|guard|url)|model|detect|sandbox|netproxy|shim_linux|server)\.go$`),
	"net/http":                   regexp.MustCompile(`^(tools/fetch|tools/files|model|modelerr|stream|detect|rehearsal|openai|completion|sse|task|view|netproxy|server|ownerapi|apicmd)\.go$`),
	"unsafe":                     regexp.MustCompile(`^(lock_windows|labels_linux|sandbox_linux|sandbox_other|tty.*|term_.*)\.go$`),
	"golang.org/x/net/bpf":       regexp.MustCompile(`^seccomp_linux\.go$`),
	"golang.org/x/net/html":      regexp.MustCompile(`^tools/html\.go$`),
	"golang.org/x/net/idna":      regexp.MustCompile(`^(tools/url|chats|term|printable)\.go$`),
	"golang.org/x/term":          regexp.MustCompile(`^(term.*|task|main)\.go$`),
	"plugin":                     regexp.MustCompile(`^$`),
	"net/http/pprof":             regexp.MustCompile(`^$`),
	"golang.org/x/sys/unix":      regexp.MustCompile(`^$`),
	"golang.org/x/crypto/argon2": regexp.MustCompile(`^vault\.go$`),
}

func TestHouseImports(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		if isTest(f.path) {
			continue
		}
		for _, imp := range f.ast.Imports {
			path := strings.Trim(imp.Path.Value, `"`)
			if allowed, ok := imports[path]; ok && !allowed.MatchString(filepath.ToSlash(f.path)) {
				t.Errorf("%s must not import %q", f.path, path)
			}
			if filepath.Dir(f.path) == "tools" && strings.HasPrefix(path, "picket") {
				t.Errorf("%s imports %q: a tool must not reach the gate", f.path, path)
			}
		}
	}
}

// A tool runs only inside the gate: its field Execute is selected in one place of
// the program, and the tools only set it.
func TestHouseOneCallSite(t *testing.T) {
	files, fset := goFiles(t)
	var sites []string
	for _, f := range files {
		if isTest(f.path) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Execute" {
				sites = append(sites, fmt.Sprintf("%s:%d", f.path, fset.Position(n.Pos()).Line))
			}
			return true
		})
	}
	if len(sites) != 1 || !strings.HasPrefix(sites[0], "sentinel.go:") {
		t.Errorf("tools must be run in one place, in sentinel.go; found %v", sites)
	}
}

func TestHouseModule(t *testing.T) {
	data, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	allowed := regexp.MustCompile(`^golang\.org/x/(crypto|net|term) v`)
	in, found := false, 0
	for _, l := range strings.Split(string(data), "\n") {
		l = strings.TrimSpace(l)
		one, single := strings.CutPrefix(l, "require ")
		switch {
		case l == "require (":
			in = true
		case l == ")":
			in = false
		case (in || single) && !strings.HasSuffix(l, "// indirect"):
			if single {
				l = one
			}
			if l == "" {
				continue
			}
			found++
			if !allowed.MatchString(l) {
				t.Errorf("go.mod requires %q", l)
			}
		}
	}
	if found == 0 {
		t.Error("no requirement was found in go.mod")
	}
}

// Usage is one text, printed by the program and quoted by the README.
func TestHouseREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), usage) {
		t.Error("README.md does not hold the usage text word for word")
	}
	files, _ := goFiles(t)
	for _, f := range files {
		if name := filepath.ToSlash(f.path); !isTest(f.path) && !strings.Contains(string(readme), "`"+name+"`") {
			t.Errorf("README.md does not say what %s holds", name)
		}
	}
	for _, doc := range []string{"SECURITY.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		tests := regexp.MustCompile("`(Test[A-Za-z0-9_]+|Fuzz[A-Za-z0-9_]+)").FindAllStringSubmatch(string(text), -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test", doc)
		}
		for _, m := range tests {
			if !slices.ContainsFunc(files, func(f goFile) bool { return bytes.Contains(f.src, []byte("func "+m[1]+"(")) }) {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`testdata/script/([a-z_]+\\.txt)`").FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat("testdata/script/" + m[1]); err != nil {
				t.Errorf("%s names a script that does not exist: %v", doc, err)
			}
		}
	}
}

// What the model is told about the tools is pinned, so that a change is seen.
func TestHouseManifest(t *testing.T) {
	got, err := tools.Manifest(allTools())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/tools.json", append(got, '\n'))
}

// golden compares with a file, which -update writes anew.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what it was; run with -update and read the change:\n%s", path, got)
	}
}

// The project speaks of itself alone.
func TestHouseWords(t *testing.T) {
	bad := regexp.MustCompile(`/wor[k]/|/far[m]|/tmp/bash_[j]obs|\.\./share[d]|CLAUD[E]|sub-?agen[t]|SPE[C] ?\d|issue #?\d+\b`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules") || path == ".ci" {
			return filepath.SkipDir
		}
		if !slices.Contains([]string{".go", ".md", ".txt", ".json", ".mod"}, filepath.Ext(path)) {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if m := bad.Find(data); m != nil {
			t.Errorf("%s holds %q", path, m)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
