package tools

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Whatever the real wrappers start is among the programs that the analysis
// names, or the line is opaque.
func TestWrappersAgainstTheRealOnes(t *testing.T) {
	needProgram(t, "sh", "a POSIX shell")
	dir := t.TempDir()
	mark := filepath.Join(dir, "mark")
	for name, body := range map[string]string{"inner": "#!/bin/sh\n: > " + mark + "\n", "words": "inner\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	before := []string{
		"env", "env -i PATH=" + dir + ":/usr/bin:/bin", "env -u HOME", "env --unset=HOME", "env -S", "env A=1", "env --", "env -v", "nice", "nice -5", "nice -n 5", "nice --adjustment=5", "nice -n5 --",
		"nohup", "nohup --", "timeout 5", "timeout -s KILL 5", "timeout --signal=KILL 5", "timeout -k 1 5", "timeout --kill-after 1 5", "timeout --foreground 5", "timeout -- 5", "timeout -v 5",
		"setsid", "setsid -w", "setsid --wait", "stdbuf -o0", "stdbuf -o 0", "stdbuf --output=L", "stdbuf -i0 -oL", "command", "command -p", "command --", "exec", "time", "time -p", "! ", "{", "(",
		"flock -n words", "flock --nonblock words", "flock -n -x words", "flock -nx words -c", "chrt -o 0", "chrt --other 0", "taskset 1", "taskset -c 0", "taskset --cpu-list 0", "ionice -c 3", "ionice -c3", "ionice -t",
		"echo x | xargs", "echo x | xargs -n1", "echo x | xargs -n 1 --", "echo x | xargs -r -t", "echo x | xargs --max-args=1", "echo x | xargs -P2", "echo x | xargs -d x", "echo x | xargs -l1",
		"xargs -a words", "xargs --arg-file=words", "xargs < words", "xargs -I{} env {} < words", "xargs -i {} < words", "xargs -I% % < words",
		"find . -maxdepth 0 -exec", "find . -maxdepth 0 -execdir", "find words -exec", "find . -prune -ok", "find -maxdepth 0 -exec", "true &&", "false ||", "true;", "if true; then", "echo `", "echo $(", `echo "$(`,
		"sh -c", "sh -ec", "sh -c --", "bash -c", "bash --norc -c", "bash -lc", "bash -o pipefail -c", "sh -e -u -c", "sh +e -c", "sh -s <", "bash -xc", "sh -c -e", "busybox sh -c", "env sh -c",
	}
	after := map[string]string{"{": "; }", "(": ")", "if true; then": "; fi", "echo `": "`", "echo $(": ")", `echo "$(`: `)"`}
	rnd := rand.New(rand.NewPCG(3, 4))
	ran, understood := 0, 0
	for n := range 150 {
		line := "inner a"
		for i := range 1 + rnd.IntN(3) {
			w := before[rnd.IntN(len(before))]
			if i == 0 && n < len(before) {
				w = before[n] // each at least once
			}
			switch {
			case strings.HasSuffix(w, "c") || strings.HasSuffix(w, "-c --") || strings.HasSuffix(w, "-c -e"):
				line = w + " " + quote(line)
			case strings.HasPrefix(w, "find"):
				line = w + " " + line + []string{` \;`, ` {} \;`, ` {} +`, ` ";"`}[rnd.IntN(4)]
			default:
				line = w + " " + line + after[w]
			}
		}
		os.Remove(mark)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
		cmd.WaitDelay = time.Second
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir}
		cmd.Run() // many of them fail in some way
		cancel()
		j := judgeLine(t, line, true)
		if _, err := os.Stat(mark); err != nil {
			continue
		}
		ran++
		named := slices.ContainsFunc(j.Argv, func(argv []string) bool { return filepath.Base(argv[0]) == "inner" }) && strings.Contains(keys(j), "inner")
		script := slices.ContainsFunc(j.Bound, func(b string) bool { return strings.Contains(b, "/inner ") })
		if j.Opaque == "" {
			understood++
			if !named && !script {
				t.Errorf("%q runs inner; the analysis names %q", line, j.Argv)
			}
		}
	}
	if ran < 80 || understood < 50 {
		t.Errorf("inner ran from %d lines, of which %d were understood: too few to tell", ran, understood)
	}
	t.Logf("inner ran from %d lines, %d of them understood", ran, understood)
}

// No form in which a real program starts another one is covered by a grant for
// the program alone, abbreviated options included.
func TestProgramsAgainstTheRealOnes(t *testing.T) {
	for _, p := range []string{"git", "tar", "sort", "sed", "split", "find", "awk"} {
		needProgram(t, p, p)
	}
	dir, err := os.MkdirTemp("", "picket-programs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) // git may still be tidying up in it
	mark := filepath.Join(dir, "mark")
	inner := filepath.Join(dir, "inner")
	var big strings.Builder
	for i := range 9000 {
		big.WriteString(strings.Repeat(string(rune('a'+i%26)), i%20) + "\n")
	}
	for name, body := range map[string]string{"inner": "#!/bin/sh\n: > " + mark + "\n", "f": "x\n", "big": big.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=gc.auto", "GIT_CONFIG_VALUE_0=0", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
	run := func(line string) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, time.Second
		cmd.Run() // most forms are errors
	}
	run("git init -q -b master . && git add f && git commit -qm one && echo y >> f && git commit -qam two && tar cf a.tar f && echo z >> f")
	lines := []string{
		"git -c alias.q='!INNER' q", "git -calias.q='!INNER' q", "git -c core.fsmonitor=INNER status", "git -c diff.external=INNER diff", "git grep -OINNER x", "git grep -O INNER x", "git -c core.editor=INNER commit --amend",
		"git rebase -x INNER HEAD~1", "git bisect start HEAD HEAD~1; git bisect run INNER", "git submodule foreach INNER", "git -c protocol.ext.allow=always ls-remote 'ext::INNER'", "git ls-remote --exec=INNER .",
		"git -c core.sshCommand=INNER ls-remote ssh://h.invalid/x", "git filter-branch -f --tree-filter INNER HEAD", "git archive --format=tgz -o x.tgz HEAD", "git -c tar.q.command=INNER archive --format=q HEAD",
		"tar -cf x -IINNER f", "tar cIf INNER x f", "tar -I INNER -cf x f", "tar cf x -F INNER f", "sed '1e INNER' f", "sed 's/x/INNER/e' f", "sed -n '1{e INNER\n}' f", "sed -e p -e 'e INNER' f", "sed --expression='e INNER' f",
		"sed ':a e INNER' f", "awk 'BEGIN{system(\"INNER\")}'", "find f -exec INNER \\;", "find f -exec true '{}' + -exec INNER \\;", "find -- f -exec INNER {} +", "tar cf x f --checkpoint=1 --checkpoint-act exec=INNER", "git -c protocol.ext.allow=always push --repo=ext::INNER",
		"find f -name f -a -okdir true \\; -o -exec INNER '{}' ';'", "find f -execdir INNER {} +", "split --filter=INNER f", "sort -S 16k --compress-program=INNER big",
	}
	for option, form := range map[string]string{
		"--checkpoint-action": "tar cf x --checkpoint=1 OPT=exec=INNER f", "--to-command": "tar xf a.tar OPT=INNER", "--use-compress-program": "tar cf x OPT=INNER f",
		"--compress-program": "sort -S 16k OPT=INNER big", "--filter": "split OPT=INNER f", "--expression": "sed OPT='e INNER' f", "--exec": "git rebase OPT=INNER HEAD~1", "--open-files-in-pager": "git grep OPT=INNER x",
		"--upload-pack": "git ls-remote OPT=INNER .", "--receive-pack": "git push OPT=INNER . HEAD:refs/heads/q", "--extcmd": "git difftool -y OPT=INNER", "--ext-diff": "git -c diff.external=INNER log -p OPT",
	} {
		for n := len(option); n >= 3; n -= 4 {
			lines = append(lines, strings.Replace(form, "OPT", option[:n], 1))
			if strings.Contains(form, "OPT=") {
				lines = append(lines, strings.Replace(form, "OPT=", option[:n]+" ", 1))
			}
		}
	}
	ran := 0
	for _, line := range lines {
		os.Remove(mark)
		line = strings.ReplaceAll(line, "INNER", inner)
		run(line)
		if strings.HasPrefix(line, "git rebase") || strings.HasPrefix(line, "git bisect") {
			run("git bisect reset; git rebase --abort; git checkout -qf master; echo z >> f")
		}
		if _, err := os.Stat(mark); err != nil {
			continue
		}
		ran++
		if j := judgeLine(t, line, true); covered(j, "shell:"+inner) {
			t.Errorf("%q starts another program and is covered by grants of %s", line, keys(j))
		}
	}
	if ran < 40 {
		t.Errorf("only %d of %d lines started it: too few to tell", ran, len(lines))
	}
	t.Logf("%d of %d lines started it", ran, len(lines))
}
