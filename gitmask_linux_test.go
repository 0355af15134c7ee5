package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"picket/tools"
)

// git runs git on the host, without the settings of whoever runs the tests.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main",
		"-c", "protocol.file.allow=always", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// gitBox is a box whose workspace is a repository with one commit.
func gitBox(t *testing.T) *sandbox {
	t.Helper()
	needs(t, "git", "git")
	return testBox(t, func(c *boxConfig) {
		if gitTemplate == nil {
			git(t, c.Workspace, "init", "-q")
			write(t, c.Workspace+"/file", "one\n")
			git(t, c.Workspace, "add", "file")
			git(t, c.Workspace, "commit", "-qm", "one")
			gitTemplate = fstest.MapFS{}
			if err := filepath.WalkDir(c.Workspace, func(p string, e fs.DirEntry, err error) error {
				name, _ := filepath.Rel(c.Workspace, p)
				f := &fstest.MapFile{Mode: fs.ModeDir | 0o755}
				if !e.IsDir() {
					f.Mode = 0o644
					f.Data, err = os.ReadFile(p)
				}
				gitTemplate[name] = f
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return
		}
		if err := os.CopyFS(c.Workspace, gitTemplate); err != nil {
			t.Fatal(err)
		}
	})
}

// gitTemplate is the repository of gitBox, made once.
var gitTemplate fstest.MapFS

// rename is a command that renames, and does not copy where it cannot.
const rename = "ren() { perl -e 'rename($ARGV[0], $ARGV[1]) or exit 1' $1 $2; }; "

const identity = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "

func writing(line string) tools.Command {
	c := sh(identity + line)
	c.GitWrite = true
	return c
}

func TestBoxReadsGit(t *testing.T) {
	s := gitBox(t)
	if got := printed(t, s, "git log --format=%s; git status --short; git show HEAD:file; git blame file | wc -l"); got != "one\none\n1" {
		t.Error(got)
	}
}

// What can be planted in a repository must not be there after a call.
func TestBoxPlantsNothingInGit(t *testing.T) {
	attempts := map[string]string{
		"hook":               "echo x >.git/hooks/pre-commit",
		"hook by rename":     "mv .git .x; mkdir -p .git/hooks; echo x >.git/hooks/pre-commit",
		"copy in its place":  "cp -r .git .x; rm -rf .git; mv .x .git",
		"exchange":           "cp -r .git .x; mv -T --exchange .x .git",
		"setting":            "git config core.fsmonitor ./x || echo '[core]fsmonitor=./x' >>.git/config",
		"worktree setting":   "echo '[core]fsmonitor=./x' >.git/config.worktree",
		"common directory":   "echo ../evil >.git/commondir",
		"index":              "git init -q sub; cd sub; git commit -q --allow-empty -m x; cd ..; git add sub",
		"link":               "ln -s ../x .git/logs/y",
		"unmount":            "umount .git; umount -l .git",
		"no HEAD":            "rm -f .git/HEAD",
		"over it":            "mount -t tmpfs x .git",
		"alternates":         "echo /x >.git/objects/info/alternates",
		"by another name":    "ln -s .git g; echo x >g/hooks/post-checkout",
		"through the parent": "cd ..; mv ws ws2",
		"unfinished rebase":  "mkdir .git/rebase-merge && echo 'exec x' >.git/rebase-merge/git-rebase-todo",
	}
	s := gitBox(t)
	before := tree(t, s.roots[0]+"/.git")
	for name, line := range attempts {
		res := in(t, s, sh(identity+line))
		unchanged(t, fmt.Sprintf("%s: %s%s", name, res.Stdout, res.Stderr), s.roots[0]+"/.git", before)
		for _, made := range []string{".x", "sub", "g", "../ws2"} {
			if err := os.RemoveAll(s.roots[0] + "/" + made); err != nil {
				t.Fatal(err)
			}
		}
	}
	res := in(t, s, sh("git -c user.name=a -c user.email=b commit -q --allow-empty -m x"))
	if res.Exit == 0 || !strings.Contains(string(res.Stderr), "Read-only file system") {
		t.Errorf("%+v", res)
	}
}

func TestBoxWritesGit(t *testing.T) {
	s := gitBox(t)
	ws := s.roots[0]
	before := tree(t, ws+"/.git/hooks")
	c := writing("echo two >>file; git add file && git commit -qm two && git checkout -q -b side && git merge -q main && git stash -q; git gc -q; git log --format=%s")
	res := in(t, s, c)
	if string(res.Stdout) != "two\none\n" || res.Exit != 0 {
		t.Errorf("%+v %s %s", res, res.Stdout, res.Stderr)
	}
	if len(res.Notes) > 0 {
		t.Errorf("nothing happened, but: %q", res.Notes)
	}
	if got := git(t, ws, "log", "--format=%s"); got != "two\none\n" {
		t.Errorf("on the host: %q", got)
	}
	res = in(t, s, writing("echo x >.git/hooks/pre-commit; echo x >>.git/config; git config user.x y; mv .git .y; mv .git/hooks .git/h; rm -rf .git/hooks .git/config; mv .git/config .git/c"))
	if got, _ := os.ReadFile(ws + "/.git/config"); bytes.Contains(got, []byte("x")) || tree(t, ws+"/.git/hooks") != before || len(res.Notes) > 0 {
		t.Errorf("%q %q", got, res.Notes)
	}
	c = sh("git config user.x y")
	c.GitConfig = true
	res = in(t, s, c)
	if got := git(t, ws, "config", "user.x"); got != "y\n" || res.Exit != 0 || !strings.Contains(strings.Join(res.Notes, ""), ".git/config") {
		t.Errorf("with leave for settings: %q %+v", got, res)
	}
	c = sh("echo x >.git/hooks/pre-commit")
	c.GitConfig = true
	if in(t, s, c); tree(t, ws+"/.git/hooks") != before {
		t.Error("leave for settings is not leave for hooks")
	}
}

// With leave to write, what the masks do not cover is found afterwards.
func TestBoxNamesWhatAWriteChanged(t *testing.T) {
	defer func(n int) { maxGitFiles = n }(maxGitFiles)
	maxGitFiles = 300
	for name, c := range map[string]struct{ line, want string }{
		"common directory":         {"echo ../evil >.git/commondir", ".git/commondir"},
		"worktree setting":         {"echo x >.git/config.worktree", ".git/config.worktree"},
		"link in the logs":         {"rm .git/logs/HEAD; ln -s ../../x .git/logs/HEAD", ".git/logs/HEAD"},
		"link for a message":       {"ln -s ../x .git/FETCH_HEAD", ".git/FETCH_HEAD"},
		"submodule":                {"git init -q sub; cd sub; git commit -q --allow-empty -m x; cd ..; git add sub", ".git/index"},
		"submodule's settings":     {"mkdir -p .git/modules/x; echo >.git/modules/x/HEAD; echo x >.git/modules/x/config", ".git/modules/x/config"},
		"worktree's directory":     {"mkdir -p .git/worktrees/x; echo >.git/worktrees/x/HEAD; echo x >.git/worktrees/x/commondir", ".git/worktrees/x/commondir"},
		"no HEAD":                  {"rm .git/HEAD", ".git/HEAD"},
		"unfinished rebase":        {"mkdir .git/rebase-merge; echo 'exec x' >.git/rebase-merge/git-rebase-todo", "git-rebase-todo"},
		"hidden in a shared index": {"git update-index --split-index", ".git/sharedindex."},
		"no index":                 {"echo x >.git/index", ".git/index"},
		"too many files":           {"mkdir .git/x; cd .git/x; seq 300 | xargs touch", "too large to compare"},
	} {
		t.Run(name, func(t *testing.T) {
			s := gitBox(t)
			res := in(t, s, writing(c.line))
			if got := strings.Join(res.Notes, "\n"); !strings.Contains(got, c.want) {
				t.Errorf("%q: %s%s", got, res.Stdout, res.Stderr)
			}
		})
	}
}

// New repositories in reach of the user are named whatever the call may write.
func TestBoxNamesNewRepositories(t *testing.T) {
	s := gitBox(t)
	for line, want := range map[string]string{
		"mkdir a && git init -q a":             "a/.git",
		"mkdir b && echo 'gitdir: /x' >b/.git": "b/.git",
		"mkdir c && ln -s ../.git c/.git":      "c/.git",
		"mkdir HEAD objects refs; true":        "",
		"echo x >plain":                        "",
	} {
		res := in(t, s, sh(line))
		if got := strings.Join(res.Notes, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q %s", line, got, res.Stderr)
		}
	}
	if res := in(t, s, sh("rm b/.git && git init -q b")); !strings.Contains(strings.Join(res.Notes, ""), "b/.git") && res.Exit == 0 {
		t.Errorf("another in its place: %+v", res)
	}
	if got := printed(t, s, "echo x >a/.git/hooks/post-commit; test -e a/.git/hooks/post-commit && echo DONE; mv a z && echo DONE"); strings.Contains(got, "DONE") {
		t.Errorf("a repository of an earlier call: %s", got)
	}
}

func TestBoxProtectsNestedRepositories(t *testing.T) {
	s := testBox(t, func(c *boxConfig) {
		needs(t, "git", "git")
		lib := c.Workspace + "/../lib"
		os.MkdirAll(lib, 0o755)
		git(t, lib, "init", "-q")
		git(t, lib, "commit", "-q", "--allow-empty", "-m", "lib")
		for _, name := range []string{"/one", "/two"} {
			os.MkdirAll(c.Workspace+name, 0o755)
			git(t, c.Workspace+name, "init", "-q")
		}
		git(t, c.Workspace+"/one", "submodule", "--quiet", "add", lib, "deep/in/lib")
		git(t, c.Workspace+"/one", "submodule", "--quiet", "add", lib, "gone")
		git(t, c.Workspace+"/one", "commit", "-qm", "subs")
		git(t, c.Workspace+"/one", "submodule", "--quiet", "deinit", "-f", "gone")
	})
	one := s.roots[0] + "/one"
	before := tree(t, s.roots[0])
	needs(t, "perl", "perl")
	got := printed(t, s, identity+rename+`for c in "touch one/.git/hooks/x" "touch two/.git/x" "ren one x" "ren two/.git x" "ren one/deep x" "ren one/deep/in/lib x" "rm one/deep/in/lib/.git" \
		"ren one/deep/in/lib/.git x" "git init -q one/gone" "touch one/gone/x" "rmdir one/gone" "ren one/gone x" "touch one/.git/modules/deep/in/lib/hooks/x"; do $c && echo "DONE $c"; done
		git -C one/deep/in/lib log --format=%s`)
	if strings.Contains(got, "DONE") || !strings.HasSuffix(got, "\nlib") {
		t.Error(got)
	}
	unchanged(t, "", s.roots[0], before)
	res := in(t, s, writing("cd one/deep/in/lib && git commit -q --allow-empty -m two && cd ../../.. && git add deep && git commit -qm up; touch .git/modules/deep/in/lib/hooks/x; echo x >>.git/modules/deep/in/lib/config"))
	if got := git(t, one, "log", "--format=%s", "-1"); got != "up\n" || len(res.Notes) > 0 {
		t.Errorf("%q %+v %s", got, res, res.Stderr)
	}
	if b, _ := os.ReadFile(one + "/.git/modules/deep/in/lib/config"); bytes.HasSuffix(b, []byte("x\n")) {
		t.Error("a submodule's settings were written")
	}
}

// A workspace that is a worktree, or a submodule, has its repository elsewhere.
func TestBoxWorktree(t *testing.T) {
	needs(t, "git", "git")
	for _, kind := range []string{"worktree", "submodule"} {
		t.Run(kind, func(t *testing.T) {
			var main string
			s := testBox(t, func(c *boxConfig) {
				main = filepath.Dir(c.Workspace) + "/main"
				write(t, main+"/private", "hunter2")
				git(t, main, "init", "-q")
				git(t, main, "commit", "-q", "--allow-empty", "-m", "one")
				c.Workspace = main + "/../tree"
				if kind == "worktree" {
					git(t, main, "worktree", "add", "-q", c.Workspace)
				} else {
					git(t, main, "submodule", "--quiet", "add", main, "sub")
					c.Workspace = main + "/sub"
				}
			})
			before := tree(t, main+"/.git")
			got := printed(t, s, "git log --format=%s; ls -A "+main+"; touch "+main+"/.git/x "+main+"/.git/hooks/x && echo DONE; echo >.git && echo DONE; mv .git x && echo DONE")
			if !strings.HasPrefix(got, "one\n") || strings.Contains(got, "DONE") || strings.Contains(got, "private") {
				t.Error(got)
			}
			unchanged(t, "", main+"/.git", before)
			res := in(t, s, writing("git commit -q --allow-empty -m two; touch "+main+"/.git/hooks/x; echo x >>"+main+"/.git/config; echo x >../main/.git/worktrees/tree/commondir"))
			if got := git(t, s.roots[0], "log", "--format=%s"); got != "two\none\n" || kind == "worktree" && len(res.Notes) > 0 {
				t.Errorf("%q %+v %s", got, res, res.Stderr)
			}
			if _, err := os.Stat(main + "/.git/hooks/x"); err == nil {
				t.Error("a hook was written")
			}
		})
	}
}

// A .git file or link that a boxed call could have written must not bring
// anything into the next box.
func TestBoxFollowsNoForgedGitFile(t *testing.T) {
	needs(t, "git", "git")
	home := t.TempDir()
	other := home + "/other"
	write(t, other+"/secret", "hunter2")
	git(t, other, "init", "-q")
	write(t, other+"/.git/secret", "hunter2")
	for name, plant := range map[string]func(ws string) error{
		"file to a folder":     func(ws string) error { return os.WriteFile(ws+"/.git", []byte("gitdir: "+other+"\n"), 0o644) },
		"file to a repository": func(ws string) error { return os.WriteFile(ws+"/.git", []byte("gitdir: "+other+"/.git\n"), 0o644) },
		"link to a repository": func(ws string) error { return os.Symlink(other+"/.git", ws+"/.git") },
		"common directory": func(ws string) error {
			git(t, ws, "init", "-q")
			return os.WriteFile(ws+"/.git/commondir", []byte(other+"/.git\n"), 0o644)
		},
		"submodule through a link": func(ws string) error {
			git(t, ws, "init", "-q")
			git(t, ws, "-C", other, "commit", "-q", "--allow-empty", "-m", "x")
			git(t, ws, "submodule", "--quiet", "add", other, "a/sub")
			if err := os.RemoveAll(ws + "/a"); err != nil {
				return err
			}
			return os.Symlink(other, ws+"/a")
		},
		"empty file": func(ws string) error { return os.WriteFile(ws+"/.git", nil, 0o644) },
		"fifo":       func(ws string) error { return exec.Command("mkfifo", ws+"/.git").Run() },
	} {
		t.Run(name, func(t *testing.T) {
			s := testBox(t, nil)
			if err := plant(s.roots[0]); err != nil {
				t.Fatal(err)
			}
			got := printed(t, s, "cat "+other+"/secret "+other+"/.git/secret; ls -A "+other)
			if strings.Contains(got, "hunter2") || strings.Contains(got, "\nsecret") {
				t.Error(got)
			}
			c := writing("cat " + other + "/.git/secret; touch " + other + "/.git/x")
			in(t, s, c)
			if _, err := os.Stat(other + "/.git/x"); err == nil {
				t.Error("written")
			}
		})
	}
}

func TestGitlinks(t *testing.T) {
	needs(t, "git", "git")
	for _, version := range []string{"2", "3", "4"} {
		for _, format := range []string{"sha1", "sha256"} {
			if version == "2" && format == "sha256" {
				continue // 3 differs from it in nothing else
			}
			t.Run(version+" "+format, func(t *testing.T) {
				dir := t.TempDir()
				git(t, dir, "init", "-q", "--object-format="+format)
				hash := strings.Repeat("1", map[string]int{"sha1": 40, "sha256": 64}[format])
				for i := range 100 {
					write(t, fmt.Sprintf("%s/a/%s%d", dir, strings.Repeat("x", i), i), "")
				}
				git(t, dir, "add", "a")
				for _, name := range []string{"a/sub", "z sub", "a/s"} {
					git(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+hash+","+name)
				}
				if version == "3" {
					write(t, dir+"/later", "")
					git(t, dir, "add", "-N", "later") // needs the extended flags
				}
				git(t, dir, "update-index", "--index-version", version)
				got := readGitlinks(dir + "/.git/index")
				if want := []string{"a/s", "a/sub", "z sub"}; !slices.Equal(got, want) {
					t.Errorf("%q", got)
				}
			})
		}
	}
}

func FuzzGitlinks(f *testing.F) {
	f.Add([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00aaaaaaaaaaaaaaaaaaaa"))
	f.Add([]byte("DIRC\x00\x00\x00\x04\xff\xff\xff\xff" + strings.Repeat("\xe0\x00", 40) + "\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00link\xff\xff\xff\xffaaaaaaaaaaaaaaaaaaaa"))
	f.Fuzz(func(t *testing.T, b []byte) {
		start := time.Now()
		for _, hash := range []int{20, 32} {
			links, ok := parseGitlinks(b, hash)
			if ok && len(links) > len(b) {
				t.Errorf("%d entries from %d bytes", len(links), len(b))
			}
		}
		if time.Since(start) > 10*time.Second {
			t.Error("it hangs")
		}
	})
}
