//go:build unix

package tools

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// filesBench is a workspace, an extra root and something outside both.
type filesBench struct {
	t                            testing.TB
	dir, ws, extra, out, private string
	kept                         []string // "PATH PREV NEXT"
	keepErr                      error
}

func newFilesBench(t testing.TB) *filesBench {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &filesBench{t: t, dir: dir, ws: filepath.Join(dir, "app"), extra: filepath.Join(dir, "extra"), out: filepath.Join(dir, "app-evil"),
		private: filepath.Join(dir, "app", "data")}
	for _, d := range []string{b.ws, b.extra, b.out, b.private} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.put("app-evil/x", "OUTSIDE")
	b.put("app/data/vault.enc", "PROTECTED")
	return b
}

func (b *filesBench) put(name, content string) {
	b.t.Helper()
	p := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *filesBench) get(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

// fact looks a path up as the gate does.
func (b *filesBench) fact(name string) PathFact {
	full := absolute(name, Facts{Workspace: b.ws, Home: b.dir})
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(full)
		if err == nil {
			full = filepath.Join(real, rest)
			break
		}
		if _, err := os.Lstat(full); err == nil { // a link to nothing
			return PathFact{Resolved: full, Place: Outside}
		}
		rest = filepath.Join(filepath.Base(full), rest)
		full = filepath.Dir(full)
	}
	f := PathFact{Resolved: full, Place: Outside}
	if _, ok := below(b.ws, full); ok {
		f.Place = Workspace
	}
	if _, ok := below(b.extra, full); ok {
		f.Place = ExtraRoot
	}
	if b.isProtected(full) {
		f.Place = Protected
	}
	if info, err := os.Stat(full); err == nil {
		f.Exists, f.Dir, f.Regular, f.Size = true, info.IsDir(), info.Mode().IsRegular(), info.Size()
	}
	return f
}

func (b *filesBench) isProtected(path string) bool {
	_, ok := below(b.private, path)
	return ok || filepath.Base(path) == "guarded.key"
}

// call assesses and judges a call. Values are argument name and value in turn.
func (b *filesBench) call(values ...any) *Call {
	b.t.Helper()
	args := Args{Values: map[string]any{}}
	for i := 0; i < len(values); i += 2 {
		if n, ok := values[i+1].(int); ok {
			values[i+1] = int64(n)
		}
		args.Values[values[i].(string)] = values[i+1]
	}
	plan, err := Files.Assess(args)
	if err != nil {
		b.t.Fatal(err)
	}
	facts := Facts{Workspace: b.ws, Home: b.dir, Paths: map[string]PathFact{plan.Paths[0].Name: b.fact(plan.Paths[0].Name)}}
	return &Call{ID: "c1", Args: args, Plan: plan, Judgement: Files.Judge(args, plan, facts), Host: &Host{
		Workspace: b.ws, ExtraRoots: []string{b.extra}, Protected: b.isProtected,
		Keep: func(path string, prev, next []byte) error {
			if prev == nil {
				prev = []byte("NEW")
			}
			b.kept = append(b.kept, fmt.Sprintf("%s %s %s", path, prev, next))
			return b.keepErr
		}}}
}

// do runs a call that the gate would let through; a refusal is an error too.
func (b *filesBench) do(values ...any) Output {
	b.t.Helper()
	call := b.call(values...)
	if call.Judgement.Refuse != "" {
		return Output{Err: call.Judgement.Refuse}
	}
	return Files.Execute(b.t.Context(), call)
}

func TestFilesAssessRefuses(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"read without path":            {"action": "read"},
		"write without content":        {"action": "write", "path": "a"},
		"edit without old":             {"action": "edit", "path": "a", "content": "b"},
		"edit that changes nothing":    {"action": "edit", "path": "a", "content": "b", "old": "b"},
		"search without pattern":       {"action": "search"},
		"pattern longer than any path": {"action": "search", "pattern": strings.Repeat("*", maxPath+1)},
		"read of a folder by slash":    {"action": "read", "path": "a/"},
		"write with a slash":           {"action": "write", "path": "link/", "content": ""},
		"write with a line break":      {"action": "write", "path": "a\nb", "content": ""},
		"write with a zero-width":      {"action": "write", "path": ".bash\u200brc", "content": ""},
		"write with a bidi override":   {"action": "write", "path": "a\u202eb", "content": ""},
		"path longer than any can be":  {"action": "read", "path": strings.Repeat("a", maxPath+1)},
	} {
		if _, err := Files.Assess(Args{Values: values}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestFilesJudgement(t *testing.T) {
	b := newFilesBench(t)
	b.put("extra/e", "x")
	b.put("app/a", "x")
	if err := os.Symlink("a", filepath.Join(b.ws, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name           string
		values         []any
		risk           Risk
		refused, warns bool
		private        bool
	}{
		{"read", []any{"action", "read", "path", "a"}, Safe, false, false, false},
		{"write", []any{"action", "write", "path", "new/b", "content", "x"}, Safe, false, false, false},
		{"read in an extra root", []any{"action", "read", "path", b.extra + "/e"}, Moderate, false, false, true},
		{"search in an extra root", []any{"action", "search", "path", "~/extra", "pattern", "x"}, Moderate, false, false, true},
		{"write in an extra root", []any{"action", "write", "path", "../extra/e", "content", "x"}, Sensitive, false, false, true},
		{"outside", []any{"action", "read", "path", "/etc/hostname"}, Safe, true, false, false},
		{"name that starts like the workspace", []any{"action", "read", "path", "../app-evil/x"}, Safe, true, false, false},
		{"protected", []any{"action", "read", "path", "data/vault.enc"}, Safe, true, false, false},
		{"process", []any{"action", "read", "path", "/proc/self/environ"}, Safe, true, false, false},
		{"device", []any{"action", "read", "path", "/dev/zero"}, Safe, true, false, false},
		{"git hook", []any{"action", "write", "path", ".git/hooks/pre-commit", "content", "x"}, Safe, false, true, false},
		{"git configuration of a module", []any{"action", "append", "path", "sub/.GIT/config", "content", "x"}, Safe, false, true, false},
		{"repository pointer", []any{"action", "write", "path", "sub/.git", "content", "x"}, Safe, false, true, false},
		{"direnv", []any{"action", "write", "path", ".envrc", "content", "x"}, Safe, false, true, false},
		{"editor tasks", []any{"action", "edit", "path", "p/.vscode/tasks.json", "old", "a", "content", "x"}, Safe, false, true, false},
		{"shell start-up", []any{"action", "write", "path", ".bashrc", "content", "x"}, Safe, false, true, false},
		{"shell start-up in an extra root", []any{"action", "write", "path", "~/extra/.ZSHRC", "content", "x"}, Sensitive, false, true, true},
		{"reading a hook", []any{"action", "read", "path", ".git/hooks/pre-commit"}, Safe, false, false, false},
		{"package.json", []any{"action", "write", "path", "package.json", "content", "x"}, Safe, false, false, false},
		{"names that only look like it", []any{"action", "write", "path", "git/hooks/bashrc", "content", "x"}, Safe, false, false, false},
	} {
		j := b.call(c.values...).Judgement
		if (j.Refuse != "") != c.refused || !c.refused && j.Risk != c.risk || (len(j.Warnings) > 0) != c.warns || j.ReadsPrivate != c.private ||
			len(j.Targets) != 0 || j.Widest != Task || j.Egress.Kind != EgressNone || len(j.Bound) == 0 || len(j.Bound) > 2 {
			t.Errorf("%s: %+v", c.name, j)
		}
	}
	j := b.call("action", "read", "path", "./link").Judgement
	for _, form := range []string{"a", "link", b.ws + "/a", b.ws + "/link"} {
		if !slices.Contains(j.Forms["path"], form) {
			t.Errorf("%q is not among %q", form, j.Forms["path"])
		}
	}
	if !slices.Equal(j.Bound, []string{b.ws + "/a"}) || !strings.Contains(j.Summary, "files read ./link → "+b.ws+"/a") {
		t.Errorf("%+v", j)
	}
	args := Args{Values: map[string]any{"action": "read", "path": "a"}}
	plan, err := Files.Assess(args)
	if err != nil {
		t.Fatal(err)
	}
	if j := Files.Judge(args, plan, Facts{Workspace: b.ws}); j.Refuse == "" {
		t.Error("a path that was not looked up is not refused")
	}
	big := Facts{Workspace: b.ws, Paths: map[string]PathFact{"a": {Resolved: b.ws + "/a", Place: Workspace, Exists: true, Regular: true, Size: MaxUndo + 1}}}
	args.Values["action"], args.Values["content"] = "write", "x"
	if j := Files.Judge(args, plan, big); j.Risk != Sensitive || len(j.Why) == 0 {
		t.Errorf("a file too large to undo: %+v", j)
	}
}

func TestFilesRead(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/a.txt", "one\ntwo é\n")
	b.put("app/empty", "")
	b.put("app/bin", "\x7fELF\x00\x00MARK")
	b.put("app/latin1", "caf\xe9 MARK")
	b.put("app/long", strings.Repeat("é", maxRead)) // two bytes each
	for _, c := range []struct {
		name string
		args []any
		want string
	}{
		{"whole", []any{"path", "a.txt"}, "one\ntwo é\n"},
		{"absolute", []any{"path", b.ws + "/a.txt"}, "one\ntwo é\n"},
		{"from home", []any{"path", "~/app/a.txt"}, "one\ntwo é\n"},
		{"dots", []any{"path", "data/../a.txt"}, "one\ntwo é\n"},
		{"offset", []any{"path", "a.txt", "offset", 4}, "two é\n"},
		{"offset inside a character", []any{"path", "a.txt", "offset", 9}, "\n"},
		{"offset beyond the end", []any{"path", "a.txt", "offset", 99}, "(nothing at offset 99: the file has 11 bytes)"},
		{"empty", []any{"path", "empty"}, "(nothing at offset 0: the file has 0 bytes)"},
	} {
		if out := b.do(append([]any{"action", "read"}, c.args...)...); out.Err != "" || out.Text != c.want {
			t.Errorf("%s: %+v", c.name, out)
		}
	}
	for _, name := range []string{"bin", "latin1"} {
		if out := b.do("action", "read", "path", name); out.Err != "" || strings.Contains(out.Text, "MARK") || !strings.Contains(out.Text, "not shown") {
			t.Errorf("%s: %+v", name, out)
		}
	}
	// Pages put together are the file, whatever their size.
	for _, limit := range []int{0, 17, 1001} {
		whole, offset := "", 0
		if limit == 17 {
			offset = 2*maxRead - 1000
			whole = strings.Repeat("é", maxRead-500)
		}
		for {
			out := b.do("action", "read", "path", "long", "offset", offset, "limit", limit)
			if out.Err != "" || len(out.Text) > maxRead {
				t.Fatalf("limit %d, offset %d: %s, %d bytes", limit, offset, out.Err, len(out.Text))
			}
			whole += out.Text
			if len(out.Notes) == 0 {
				break
			}
			if _, err := fmt.Sscanf(out.Notes[0][strings.Index(out.Notes[0], "offset"):], "offset %d", &offset); err != nil {
				t.Fatal(err)
			}
			if limit == 1001 && offset > 20000 {
				whole = strings.Repeat("é", maxRead)
				break
			}
		}
		if whole != strings.Repeat("é", maxRead) {
			t.Errorf("limit %d: %d bytes", limit, len(whole))
		}
	}
	for _, name := range []string{".", "data/..", "missing", "a.txt/x"} {
		if out := b.do("action", "read", "path", name); out.Err == "" {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func TestFilesLinksNeverLeadOut(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/in/ok", "INSIDE")
	for link, to := range map[string]string{
		"secret.txt": "../app-evil/x", "absolute": b.out + "/x", "dir": "../app-evil", "dangling": "../app-evil/new", "up": "..",
		"guarded": "data", "inner": "in", "loop": "loop",
	} {
		if err := os.Symlink(to, filepath.Join(b.ws, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"secret.txt", "absolute", "dir/x", "dir/../dir/x", "up/app-evil/x", "inner/../../app-evil/x", "guarded/vault.enc", "dangling", "loop", "dir/new"} {
		for _, action := range []string{"read", "write", "append", "edit"} {
			out := b.do("action", action, "path", path, "content", "x", "old", "OUTSIDE")
			if out.Err == "" || strings.Contains(out.Text+out.Err, "OUTSIDE") || strings.Contains(out.Text+out.Err, "PROTECTED") {
				t.Errorf("%s %s: %+v", action, path, out)
			}
		}
	}
	for _, path := range []string{"dir", "dir/", "up", "guarded", "guarded/", "../app-evil", "/"} {
		for _, action := range []string{"list", "search"} {
			if out := b.do("action", action, "path", path, "pattern", "*"); out.Err == "" {
				t.Errorf("%s %s: %+v", action, path, out)
			}
		}
	}
	if out := b.do("action", "read", "path", "inner/ok"); out.Text != "INSIDE" {
		t.Errorf("a link that stays inside: %+v", out)
	}
	if b.get("app-evil/x") != "OUTSIDE" || b.get("app/data/vault.enc") != "PROTECTED" || len(b.kept) != 0 {
		t.Error("something outside was changed")
	}
	if _, err := os.Lstat(filepath.Join(b.out, "new")); err == nil {
		t.Error("the target of a dangling link was made")
	}
}

// What was resolved before the decision may be a link by the time of the run.
func TestFilesRunFollowsNoLinkThatCameLater(t *testing.T) {
	for _, c := range []struct{ name, path, replace, by string }{
		{"file by a link out", "f", "f", "../app-evil/x"},
		{"file by a link to what is protected", "f", "f", "data/vault.enc"},
		{"folder by a link out", "d/x", "d", "../app-evil"},
		{"folder by a link to what is protected", "d/vault.enc", "d", "data"},
		{"folder by a link inside", "d/x", "d", "in"},
	} {
		for _, action := range []string{"read", "write", "append", "edit", "list", "search"} {
			t.Run(action+" "+c.name, func(t *testing.T) {
				b := newFilesBench(t)
				b.put("app/f", "old")
				b.put("app/d/x", "old")
				b.put("app/d/vault.enc", "old")
				b.put("app/in/x", "INNER")
				call := b.call("action", action, "path", c.path, "content", "PROTECTED", "old", "old", "pattern", "*")
				if call.Judgement.Refuse != "" {
					t.Fatal(call.Judgement.Refuse)
				}
				p := filepath.Join(b.ws, c.replace)
				if err := os.Rename(p, p+".was"); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(c.by, p); err != nil {
					t.Fatal(err)
				}
				if out := Files.Execute(t.Context(), call); out.Err == "" || out.Text != "" {
					t.Errorf("%+v", out)
				}
				if b.get("app-evil/x") != "OUTSIDE" || b.get("app/data/vault.enc") != "PROTECTED" || b.get("app/in/x") != "INNER" {
					t.Error("the link was followed")
				}
			})
		}
	}
}

func TestFilesSpecialFilesAreRefused(t *testing.T) {
	b := newFilesBench(t)
	makePipe(t, filepath.Join(b.ws, "pipe"))
	for _, action := range []string{"read", "write", "append", "edit", "search", "list"} {
		// As judged, and as run when a pipe takes the place of a file in between.
		if out := b.do("action", action, "path", "pipe", "content", "x", "old", "y", "pattern", "z"); out.Err == "" {
			t.Errorf("%s: %+v", action, out)
		}
		call := b.call("action", action, "path", "later", "content", "x", "old", "y", "pattern", "z")
		makePipe(t, filepath.Join(b.ws, "later"))
		if out := Files.Execute(t.Context(), call); out.Err == "" {
			t.Errorf("%s: %+v", action, out)
		}
		os.Remove(filepath.Join(b.ws, "later"))
	}
}

func TestFilesWriteAppendEdit(t *testing.T) {
	b := newFilesBench(t)
	steps := []struct {
		args       []any
		want, kept string // content afterwards; what was kept
	}{
		{[]any{"action", "write", "path", "new/dir/f", "content", "a\\nb\n"}, "a\\nb\n", "NEW a\\nb\n"},
		{[]any{"action", "append", "path", "new/dir/f", "content", "c\n"}, "a\\nb\nc\n", "a\\nb\n a\\nb\nc\n"},
		{[]any{"action", "edit", "path", "new/dir/f", "old", "c", "content", ""}, "a\\nb\n\n", "a\\nb\nc\n a\\nb\n\n"},
		{[]any{"action", "write", "path", "new/dir/f", "content", ""}, "", "a\\nb\n\n "},
		{[]any{"action", "append", "path", "new/dir/f", "content", "x"}, "x", " x"},
		{[]any{"action", "append", "path", "new/dir/g", "content", "y"}, "", "NEW y"},
	}
	for i, s := range steps {
		out := b.do(s.args...)
		if out.Err != "" || len(b.kept) != i+1 {
			t.Fatalf("step %d: %+v", i, out)
		}
		name := s.args[3].(string)
		if name == "new/dir/f" && b.get("app/"+name) != s.want || b.kept[i] != b.ws+"/"+name+" "+s.kept {
			t.Errorf("step %d: %q, kept %q", i, b.get("app/"+name), b.kept[i])
		}
	}
	entries, err := os.ReadDir(filepath.Join(b.ws, "new/dir"))
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestFilesChangeForTheQuestion(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/f", "one\ntwo\n")
	b.put("app/bin", "\xff")
	for _, c := range []struct {
		name   string
		values []any
		want   FileChange
		ok     bool
	}{
		{"edit", []any{"action", "edit", "path", "f", "old", "two", "content", "2"}, FileChange{Path: "f", Old: "one\ntwo\n", New: "one\n2\n"}, true},
		{"append", []any{"action", "append", "path", "f", "content", "x"}, FileChange{Path: "f", Old: "one\ntwo\n", New: "one\ntwo\nx"}, true},
		{"new file in a new folder", []any{"action", "write", "path", "new/g", "content", "x"}, FileChange{Path: "new/g", Created: true, New: "x"}, true},
		{"edit that would fail", []any{"action", "edit", "path", "f", "old", "three", "content", "3"}, FileChange{}, false},
		{"edit of nothing", []any{"action", "edit", "path", "new/g", "old", "three", "content", "3"}, FileChange{}, false},
		{"not text", []any{"action", "write", "path", "bin", "content", "3"}, FileChange{}, false},
		{"outside", []any{"action", "write", "path", "../app-evil/x", "content", "3"}, FileChange{}, false},
		{"protected", []any{"action", "write", "path", "data/vault.enc", "content", "3"}, FileChange{}, false},
		{"read", []any{"action", "read", "path", "f"}, FileChange{}, false},
	} {
		if got, ok := Files.Change(b.call(c.values...)); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
	}
	if _, err := os.Lstat(filepath.Join(b.ws, "new")); err == nil || b.get("app/f") != "one\ntwo\n" || len(b.kept) > 0 {
		t.Error("asking changed something")
	}
}

func TestFilesEditNeedsOneMatch(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/f", "one two two aaa\r\nend\r\n")
	b.put("app/bin", "one\x00")
	for _, c := range []struct{ path, old, err string }{
		{"f", "three", "not occur"}, {"f", "two", "more than once"}, {"f", "aa", "more than once"}, {"f", "aaa\nend", `end in \r\n`}, {"bin", "one", "not UTF-8"}, {"missing", "x", "no such file"},
		{"data/../missing/f", "x", "no such file"},
	} {
		if out := b.do("action", "edit", "path", c.path, "old", c.old, "content", "X"); !strings.Contains(out.Err, c.err) {
			t.Errorf("%s %q: %+v", c.path, c.old, out)
		}
	}
	if b.get("app/f") != "one two two aaa\r\nend\r\n" || len(b.kept) != 0 {
		t.Error("an edit that failed changed something")
	}
	if _, err := os.Stat(filepath.Join(b.ws, "missing")); err == nil {
		t.Error("an edit made a folder")
	}
}

func TestFilesWriteKeepsOwnerAndMode(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/f", "old")
	p := filepath.Join(b.ws, "f")
	if err := os.Chmod(p, 0o751); err != nil {
		t.Fatal(err)
	}
	owned := os.Chown(p, 12345, 23456) == nil // only root may
	before, err := os.Stat(p)
	if err != nil {
		t.Fatal(err)
	}
	if out := b.do("action", "write", "path", "f", "content", "new"); out.Err != "" {
		t.Fatal(out.Err)
	}
	after, err := os.Stat(p)
	if err != nil || after.Mode() != before.Mode() || os.SameFile(before, after) {
		t.Errorf("mode %v, %v", after.Mode(), err)
	}
	if owned && owner(after) != "12345:23456" {
		t.Errorf("owner %s", owner(after))
	}
}

func TestFilesWriteBreaksHardLinks(t *testing.T) {
	b := newFilesBench(t)
	err := os.Link(filepath.Join(b.out, "x"), filepath.Join(b.ws, "hard"))
	need(t, err == nil, "a folder for temporary files with hard links (set TMPDIR to one)")
	for _, args := range [][]any{{"action", "write", "content", "new"}, {"action", "append", "content", "more"}, {"action", "edit", "old", "new", "content", "x"}} {
		if out := b.do(append(args, "path", "hard")...); out.Err != "" {
			t.Error(out.Err)
		}
	}
	if b.get("app-evil/x") != "OUTSIDE" || b.get("app/hard") != "xmore" {
		t.Errorf("%q, %q", b.get("app-evil/x"), b.get("app/hard"))
	}
}

func TestFilesWithoutACopyNothingIsWritten(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/f", "old")
	b.keepErr = errors.New("disk full")
	for _, name := range []string{"f", "new"} {
		if out := b.do("action", "write", "path", name, "content", "x"); !strings.Contains(out.Err, "disk full") {
			t.Errorf("%+v", out)
		}
	}
	call := b.call("action", "write", "path", "f", "content", "x")
	call.Host.Keep = nil
	if out := Files.Execute(t.Context(), call); out.Err == "" {
		t.Error("written without Keep")
	}
	if _, err := os.Lstat(filepath.Join(b.ws, "new")); err == nil || b.get("app/f") != "old" {
		t.Error("something was written")
	}
}

func TestFilesReadOnlyAndLargeFiles(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/ro", "old")
	if err := os.Chmod(filepath.Join(b.ws, "ro"), 0o444); err != nil {
		t.Fatal(err)
	}
	if out := b.do("action", "write", "path", "ro", "content", "x"); !strings.Contains(out.Err, "read-only") {
		t.Errorf("%+v", out)
	}
	b.put("app/big", "")
	safe := b.call("action", "write", "path", "big", "content", "x")
	if err := os.Truncate(filepath.Join(b.ws, "big"), MaxUndo+1); err != nil {
		t.Fatal(err)
	}
	if out := Files.Execute(t.Context(), safe); out.Err == "" {
		t.Error("a file that grew beyond undo was replaced as if it could be undone")
	}
	for _, action := range []string{"append", "edit"} {
		if out := b.do("action", action, "path", "big", "content", "x", "old", "y"); out.Err == "" {
			t.Errorf("%s: %+v", action, out)
		}
	}
	if out := b.do("action", "write", "path", "big", "content", "x"); out.Err != "" || b.get("app/big") != "x" || len(b.kept) != 0 {
		t.Errorf("%+v, kept %d", out, len(b.kept))
	}
}

// A file that something else changes between the reading and the replacing keeps
// the other's change.
func TestFilesChangeMeanwhile(t *testing.T) {
	for name, change := range map[string]func(b *filesBench){
		"content": func(b *filesBench) { b.put("app/f", "theirs") },
		"another file of the same time and size": func(b *filesBench) {
			b.put("app/g", "odd")
			if info, err := os.Stat(filepath.Join(b.ws, "f")); err == nil {
				os.Chtimes(filepath.Join(b.ws, "g"), info.ModTime(), info.ModTime())
			}
			os.Rename(filepath.Join(b.ws, "g"), filepath.Join(b.ws, "f"))
		},
		"link": func(b *filesBench) {
			os.Remove(filepath.Join(b.ws, "f"))
			os.Symlink("../app-evil/x", filepath.Join(b.ws, "f"))
		},
		"gone": func(b *filesBench) { os.Remove(filepath.Join(b.ws, "f")) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newFilesBench(t)
			b.put("app/f", "old")
			call := b.call("action", "edit", "path", "f", "old", "old", "content", "ours")
			call.Host.Keep = func(string, []byte, []byte) error { change(b); return nil }
			if out := Files.Execute(t.Context(), call); out.Err == "" {
				t.Errorf("%+v", out)
			}
			if data, err := os.ReadFile(filepath.Join(b.ws, "f")); err == nil && strings.Contains(string(data), "ours") {
				t.Error("the other's change is lost")
			}
			if b.get("app-evil/x") != "OUTSIDE" {
				t.Error("the link was followed")
			}
			left, _ := filepath.Glob(filepath.Join(b.ws, ".picket-*"))
			if len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
	b := newFilesBench(t)
	call := b.call("action", "write", "path", "new", "content", "ours")
	call.Host.Keep = func(string, []byte, []byte) error { b.put("app/new", "theirs"); return nil }
	if out := Files.Execute(t.Context(), call); out.Err == "" || b.get("app/new") != "theirs" {
		t.Errorf("%+v", out)
	}
}

func TestFilesFailClosed(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/f", "x")
	for name, spoil := range map[string]func(*Call){
		"nothing bound":       func(c *Call) { c.Judgement.Bound = nil },
		"no check":            func(c *Call) { c.Host.Protected = nil },
		"no plan":             func(c *Call) { c.Plan = Plan{} },
		"no workspace":        func(c *Call) { c.Host.Workspace = "" },
		"outside":             func(c *Call) { c.Judgement.Bound = []string{b.out + "/x"} },
		"protected by now":    func(c *Call) { c.Host.Protected = func(string) bool { return true } },
		"relative":            func(c *Call) { c.Judgement.Bound = []string{"f"} },
		"dots after the root": func(c *Call) { c.Judgement.Bound = []string{b.ws + "/../app-evil/x"} },
	} {
		call := b.call("action", "read", "path", "f")
		spoil(call)
		if out := Files.Execute(t.Context(), call); out.Err == "" {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func TestFilesNamesWhatRunsLater(t *testing.T) {
	b := newFilesBench(t)
	for name, noted := range map[string]bool{
		"package.json": true, "sub/Makefile": true, "conftest.py": true, ".github/workflows/ci.yml": true, ".envrc": true, ".vscode/tasks.json": true,
		"notes.txt": false, "src/main.go": false, "package.json.md": false,
	} {
		if out := b.do("action", "write", "path", name, "content", "x"); out.Err != "" || (len(out.Notes) > 0) != noted {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func TestFilesList(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/b.txt", "12345")
	b.put("app/a/x", "")
	b.put("app/z\n\u202e", "")
	if err := os.Symlink("b.txt", filepath.Join(b.ws, "l")); err != nil {
		t.Fatal(err)
	}
	out := b.do("action", "list")
	if out.Text != "a/\nb.txt  5\nl -> b.txt\n\"z\\n\\u202e\"  0\n" || len(out.Notes) != 1 || out.Notes[0] != "1 protected or denied entries are left out" {
		t.Errorf("%+v", out)
	}
	out = b.do("action", "list", "path", ".", "limit", 1, "offset", 1)
	if out.Text != "b.txt  5\n" || len(out.Notes) != 2 || !strings.Contains(out.Notes[1], "offset 2") {
		t.Errorf("%+v", out)
	}
	if out = b.do("action", "list", "path", "b.txt"); out.Err == "" {
		t.Errorf("%+v", out)
	}
	if out = b.do("action", "list", "path", "a"); out.Text != "x  0\n" {
		t.Errorf("%+v", out)
	}
}

func TestFilesSearch(t *testing.T) {
	b := newFilesBench(t)
	b.put("app/main.go", "package main\n\nfunc main() {}\n// the needle\n")
	b.put("app/pkg/sub/needle.go", "nothing\n")
	b.put("app/pkg/a.txt", "a needle and a needle\nno\nneedle*x")
	b.put("app/.git/config", "needle")
	b.put("app/data/n.txt", "needle")
	b.put("app/bin", "needle\x00")
	b.put("app/long.txt", strings.Repeat("x", 5000)+"needle"+strings.Repeat("é", 5000))
	if err := os.Symlink("../app-evil", filepath.Join(b.ws, "out")); err != nil {
		t.Fatal(err)
	}
	b.put("app-evil/needle.txt", "needle")
	for _, c := range []struct {
		name string
		args []any
		want []string
	}{
		{"name", []any{"pattern", "*.go"}, []string{"main.go", "pkg/sub/needle.go"}},
		{"name in a folder", []any{"pattern", "pkg/*"}, []string{"pkg/a.txt", "pkg/sub/"}},
		{"name at any depth", []any{"pattern", "pkg/**/*.go"}, []string{"pkg/sub/needle.go"}},
		{"name, all depths", []any{"pattern", "**/*.txt"}, []string{"long.txt", "pkg/a.txt"}},
		{"text", []any{"pattern", "func main"}, []string{"main.go:3: func main() {}"}},
		{"text in names to look in", []any{"pattern", "*.go", "content", "needle"}, []string{"main.go:4: // the needle"}},
		{"text with a star", []any{"content", "needle*"}, []string{"pkg/a.txt:3: needle*x"}},
		{"text in one file", []any{"path", "main.go", "pattern", "package"}, []string{"main.go:1: package main"}},
		{"from a folder", []any{"path", "pkg/sub", "pattern", "needle"}, []string{"needle.go"}},
		{"nothing", []any{"pattern", "absent text"}, []string{"(no hits among 9 entries)"}},
	} {
		out := b.do(append([]any{"action", "search"}, c.args...)...)
		if out.Err != "" || !slices.Equal(strings.Split(strings.TrimSuffix(out.Text, "\n"), "\n"), c.want) {
			t.Errorf("%s: %+v", c.name, out)
		}
	}
	out := b.do("action", "search", "pattern", "needle")
	if strings.Count(out.Text, "\n") != 5 || strings.Contains(out.Text, ".git") || strings.Contains(out.Text, "out/") || strings.Contains(out.Text, "data") ||
		!slices.Equal(out.Notes, []string{"1 protected or denied entries are left out"}) {
		t.Errorf("%+v", out)
	}
	for line := range strings.SplitSeq(out.Text, "\n") {
		if len(line) > searchLine+60 {
			t.Errorf("%d bytes in a line", len(line))
		}
	}
	out = b.do("action", "search", "pattern", "needle", "limit", 2, "offset", 1)
	if strings.Count(out.Text, "\n") != 2 || !strings.Contains(fmt.Sprint(out.Notes), "offset 3") {
		t.Errorf("%+v", out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if out := Files.Execute(ctx, b.call("action", "search", "pattern", "needle")); !strings.Contains(fmt.Sprint(out.Notes), "ended after") {
		t.Errorf("a stopped search: %+v", out)
	}
}

func TestGlobRegexp(t *testing.T) {
	for _, c := range []struct {
		glob, path string
		want       bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"*", "a", true}, {"*", "a/b", true}, {"a/*", "a/b", true}, {"a/*", "a", false},
		{"**", "a/b/c", true}, {"**/c", "c", true}, {"**/c", "a/b/c", true}, {"a/**", "a", true}, {"a/**", "a/b", true}, {"a/**/b", "a/b", true},
		{"a/**/b", "a/x/y/b", true}, {"a/**/b", "x/a/b", false}, {"**/a/**", "x/a/y", true}, {"?.go", "a.go", true}, {"[ab].go", "a.go", false}, {"a.go", "abgo", false}, {"*.go", "d/a.go", true},
	} {
		if got := globRegexp(c.glob).MatchString(c.path); got != c.want {
			t.Errorf("%s on %s: %v", c.glob, c.path, got)
		}
	}
	if globRegexp(strings.Repeat("**/a*a*a*a*b/", 30)).MatchString(strings.Repeat(strings.Repeat("a", 100)+"/", 40)) {
		t.Error("matched")
	}
}

// Whatever path a call names, nothing outside the roots is read or written.
func FuzzFilesPath(f *testing.F) {
	for _, s := range []string{"a", "../app-evil/x", "l/x", "l/../app-evil/x", "./l//x", "d/../../app-evil/x", "/etc/passwd", "~/app-evil/x", "l/", "data/vault.enc", "a/..", "..", "~", "~/", "l\x00", "a\nb"} {
		f.Add(s, true)
	}
	b := newFilesBench(f)
	b.put("app/d/x", "in")
	if err := os.Symlink("../app-evil", filepath.Join(b.ws, "l")); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path string, write bool) {
		b.t = t
		action := "read"
		if write {
			action = "write"
		}
		values := map[string]any{"action": action, "path": path, "content": "WRITTEN"}
		plan, err := Files.Assess(Args{Values: values})
		if err != nil || strings.ContainsRune(path, 0) {
			return
		}
		out := b.do("action", action, "path", path, "content", "WRITTEN")
		if strings.Contains(out.Text, "OUTSIDE") || strings.Contains(out.Text, "PROTECTED") {
			t.Fatalf("%q: %+v", plan.Paths[0].Name, out)
		}
		err = filepath.WalkDir(b.dir, func(p string, e fs.DirEntry, err error) error {
			if _, ok := below(b.ws, p); !ok && p != b.dir && p != b.extra && p != b.out && p != b.out+"/x" {
				return errors.New(p)
			}
			return err
		})
		if err != nil || b.get("app-evil/x") != "OUTSIDE" || b.get("app/data/vault.enc") != "PROTECTED" {
			t.Fatalf("%q changed something outside: %v", path, err)
		}
	})
}

func BenchmarkFilesSearch(bench *testing.B) {
	b := newFilesBench(bench)
	for i := range 1000 {
		b.put(fmt.Sprintf("app/d%d/f%d.txt", i%30, i), strings.Repeat("some line of text\n", 100))
	}
	call := b.call("action", "search", "pattern", "absent")
	for bench.Loop() {
		Files.Execute(context.Background(), call)
	}
}

// An answer about a change is bound to the content that it was to change.
func TestFilesBindsTheContentItChanges(t *testing.T) {
	args, err := Files.Parse([]byte(`{"action":"append","path":"f","content":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Files.Assess(args)
	if err != nil {
		t.Fatal(err)
	}
	bound := func(size, changed int64) string {
		facts := Facts{Workspace: "/ws", Roots: []string{"/ws"}, Paths: map[string]PathFact{
			"f": {Resolved: "/ws/f", Place: Workspace, Exists: true, Regular: true, Size: size, Changed: changed}}}
		return strings.Join(Files.Judge(args, plan, facts).Bound, "; ")
	}
	if bound(1, 1) == bound(1, 2) || bound(1, 1) == bound(2, 1) {
		t.Errorf("bound to %q and %q", bound(1, 1), bound(1, 2))
	}
}

// What a read or a search cuts, it has without the secrets that the cut goes through.
func TestFilesCutsHideSecrets(t *testing.T) {
	const secret = "0123456789abcdef"
	host := &Host{Redact: func(s string) string { return strings.ReplaceAll(s, secret, "{{vault:K}}") }}
	b := newFilesBench(t)
	b.put("app/f", strings.Repeat("x", 1000)+secret+strings.Repeat("y", 1000)+"\nfind "+strings.Repeat("z", searchLine-10)+secret+" end\n")
	for _, offset := range []int64{0, 990, 1001, 1008, 1015} {
		for _, limit := range []int64{16, 20, 1005, 5000} {
			call := b.call("action", "read", "path", "f", "offset", offset, "limit", limit)
			call.Host.Redact = host.Redact
			if out := Files.Execute(t.Context(), call); out.Err != "" || strings.ContainsAny(strings.ReplaceAll(out.Text, "{{vault:K}}", ""), "0123456789") {
				t.Errorf("from %d, %d bytes: %+v", offset, limit, out)
			}
		}
	}
	call := b.call("action", "search", "path", ".", "pattern", "find")
	call.Host.Redact = host.Redact
	out := Files.Execute(t.Context(), call)
	if _, line, _ := strings.Cut(out.Text, "find"); !strings.HasSuffix(strings.TrimSpace(line), "{{vault:K}}…") {
		t.Errorf("search: %+v", out)
	}
}
