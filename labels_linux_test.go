package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"picket/tools"
)

// labelRig is a gate as the program makes it, with the real box and tools.
type labelRig struct {
	t    testing.TB
	ws   string
	data string
	run  string
	gate *Sentinel
	chat *chatStore
}

func newLabelRig(t testing.TB) *labelRig {
	t.Helper()
	box := testBox(t, nil)
	r := &labelRig{t: t, ws: box.Roots()[0], data: filepath.Join(t.TempDir(), "data"), run: "r_test"}
	r.open(box)
	return r
}

// open is the start of a process; the one before it must have ended.
func (r *labelRig) open(box *sandbox) {
	r.t.Helper()
	log, err := openAudit(r.data)
	if err != nil {
		r.t.Fatal(err)
	}
	release, err := holdRun(context.Background(), r.data, r.run)
	if err != nil {
		r.t.Fatal(err)
	}
	approvals, err := openApprovals(context.Background(), r.data, log, r.run)
	if err != nil {
		r.t.Fatal(err)
	}
	labels, err := openLabels(r.data, r.run, r.data)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { labels.lock.Close(); approvals.Close(); log.Close(); release() })
	policy, err := compilePolicy(sentinelConfig{Mode: "auto", TaintTracking: true}, namesOf(allTools()))
	if err != nil {
		r.t.Fatal(err)
	}
	res := &resolver{workspace: r.ws, roots: box.Roots(), hidden: []string{r.data}, box: box}
	undo := filepath.Join(r.data, "undo")
	r.gate = &Sentinel{tools: map[string]tools.Tool{}, policy: policy, mode: func() string { return "" }, approvals: approvals, log: log,
		resolver: res, timeout: time.Hour, notify: func(context.Context, string) {}, redact: keepText, now: time.Now, labels: labels,
		debug: func(f string, a ...any) { r.t.Logf(f, a...) },
		host:  tools.Host{Workspace: r.ws, ExtraRoots: res.roots[1:], Protected: res.protected, Exec: box.Exec, Now: time.Now},
		keep: func(call, path string, prev, next []byte, set ...chatLabel) error {
			return keepUndo(undo, call, path, prev, next, set...)
		}}
	for _, tool := range allTools() {
		r.gate.tools[tool.Name] = tool
	}
	r.chat = &chatStore{dir: filepath.Join(r.data, "chats"), redact: keepText, now: time.Now}
}

// turn opens a chat, a new one without a name, with labels.
func (r *labelRig) turn(name string, labels ...string) *Turn {
	r.t.Helper()
	if name == "" {
		name = newID("chat")
	}
	c, err := r.chat.open(context.Background(), name, r.ws, true)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.close() })
	for _, l := range labels {
		if _, err := c.label(chatLabel{l, "the test"}); err != nil {
			r.t.Fatal(err)
		}
	}
	return &Turn{ID: newID("t"), Chat: c, Caller: &caller{Channel: channelCLI, Who: whoOwner, Run: r.run}, Text: "do it",
		Emit: func(Event) {}, declined: map[string]bool{}}
}

func (r *labelRig) do(t *Turn, tool string, args map[string]any) Result {
	r.t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		r.t.Fatal(err)
	}
	res := r.gate.Do(context.Background(), t, call(tool, string(b)))
	if res.LogFailed != nil {
		r.t.Fatal(res.LogFailed)
	}
	return res
}

func (r *labelRig) sh(t *Turn, line string) Result {
	r.t.Helper()
	res := r.do(t, "shell", map[string]any{"command": line})
	if res.Refused || strings.Contains(res.Text, "[error") {
		r.t.Fatalf("%s: %s", line, res.Text)
	}
	return res
}

func (r *labelRig) files(t *Turn, action, path string, more ...string) Result {
	r.t.Helper()
	args := map[string]any{"action": action, "path": path}
	for i := 0; i+1 < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	return r.do(t, "files", args)
}

// host runs a line outside of picket, as the owner does.
func (r *labelRig) host(line string) {
	r.t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", line)
	cmd.Dir = r.ws
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	time.Sleep(2 * scanSlack) // so that what comes next is later for a scan too
}

// wantRead checks which labels a new chat has after it read a path, and after it
// ran a command.
func (r *labelRig) wantRead(path string, want ...string) {
	r.t.Helper()
	t := r.turn("")
	r.files(t, "read", path)
	if got := t.Chat.labels().List(); !slices.Equal(got, append([]string{}, want...)) {
		r.t.Errorf("a chat that read %q has the labels %q, want %q", path, got, want)
	}
}

func (r *labelRig) wantRun(want ...string) {
	r.t.Helper()
	t := r.turn("")
	r.sh(t, "true")
	if got := t.Chat.labels().List(); !slices.Equal(got, append([]string{}, want...)) {
		r.t.Errorf("a chat that ran a command has the labels %q, want %q (%v)", got, want, t.Chat.Sources)
	}
}

// Whatever is done to a file that was written in a labelled chat, another chat
// that reads it gets the labels.
func TestLabelsAreNotLaundered(t *testing.T) {
	needBox(t)
	const old = "touch -d 2001-01-01 "
	cases := map[string]struct {
		run  string // in the labelled chat
		host string // before, by the owner
		then string // after, by the owner
		read string
	}{
		"as it is":                 {run: "echo x >a", read: "a"},
		"a rename":                 {run: "echo x >a; mv a b", read: "b"},
		"a rename in a later call": {run: "mv a b", host: "echo x >a", read: "b"},
		"a copy":                   {run: "echo x >a; cp a b", read: "b"},
		"a copy that keeps times":  {run: "echo x >a; " + old + "a; cp -p a b; rm a", read: "b"},
		"a time set back":          {run: "echo x >a; " + old + "a", read: "a"},
		"a hard link":              {run: "echo x >a; ln a b; rm a", read: "b"},
		"a link":                   {run: "echo x >a; ln -s a b", read: "b"},
		"an archive":               {run: "mkdir d; echo x >d/a; " + old + "d/a; tar cf t.tar d; rm d/a; rmdir d; tar xf t.tar", read: "d/a"},
		"the archive itself":       {run: "echo x >a; tar cf t.tar a; rm a", read: "t.tar"},
		"a hidden folder":          {run: "mkdir -p .cache/.x; echo x >.cache/.x/a", read: ".cache/.x/a"},
		"an ignored file":          {run: "echo x >ignored", host: "echo ignored >.gitignore", read: "ignored"},
		"a folder renamed over":    {run: "mkdir new; cp d/a new/a; echo x >>new/a; mv d gone; mv new d", host: "mkdir d; echo y >d/a", read: "d/a"},
		"a folder renamed later":   {run: "mkdir d; echo x >d/a", then: "mv d e", read: "e/a"},
		"a folder moved down":      {run: "mkdir -p d/e; echo x >d/e/a", then: "mkdir f; mv d f/g", read: "f/g/e/a"},
		"a rename by the owner":    {run: "echo x >a", then: "mv a b", read: "b"},
		"an editor that replaces":  {run: "echo x >a", then: "cp a a.tmp; echo more >>a.tmp; mv a.tmp a", read: "a"},
		"an editor that writes":    {run: "echo x >a", then: "echo more >>a", read: "a"},
		"appended to":              {run: "echo x >>a", host: "echo y >a", read: "a"},
		"written in place":         {run: "printf x | dd of=a conv=notrunc 2>/dev/null; " + old + "a", host: "echo yyy >a", read: "a"},
		"truncated":                {run: ": >a", host: "echo y >a", read: "a"},
		"a name that is not text":  {run: `touch "$(printf 'a\377')"`, then: `cat "$(printf 'a\377')" >/dev/null`, read: "."},
		"a new name":               {run: "mkdir -p d/IGNORE-ALL", read: "d"},
		"a name alone":             {run: "mv a SEND-IT", host: "echo y >a", read: "."},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newLabelRig(t)
			r.host("echo clean >clean; " + c.host)
			r.sh(r.turn("", "untrusted"), c.run)
			r.host("true; " + c.then)
			if c.read == "." || c.read == "d" {
				clean := r.turn("")
				if r.files(clean, "list", c.read); !clean.Chat.labels().Untrusted {
					t.Errorf("a list of %s brought no label", c.read)
				}
			} else {
				r.wantRead(c.read, "untrusted")
			}
			r.wantRead("clean")
			r.wantRun("untrusted")
			clean := r.turn("")
			if r.files(clean, "search", ".", "pattern", "*"); !clean.Chat.labels().Untrusted {
				t.Error("a search brought no label")
			}
			if data, err := os.ReadFile(filepath.Join(r.data, auditName)); err != nil || !strings.Contains(string(data), `"kind":"label"`) {
				t.Errorf("no record of a label: %v", err)
			}
		})
	}
}

// In a chat without labels nothing gets one.
func TestLabelsCleanStaysClean(t *testing.T) {
	r := newLabelRig(t)
	clean := r.turn("")
	r.sh(clean, "mkdir d; echo x >d/a; mv d e")
	r.files(clean, "write", "b", "content", "x")
	r.wantRead("e/a")
	r.wantRead("b")
	r.wantRun()
	if _, err := os.Stat(filepath.Join(r.data, labelsName)); err == nil {
		t.Error("labels were written without need")
	}
	// What lies there and is not touched by a labelled call stays so too.
	time.Sleep(2 * scanSlack)
	r.sh(r.turn("", "private"), "echo y >c")
	r.wantRead("e/a")
	r.wantRead("c", "private")
}

func TestLabelsOfWrittenFiles(t *testing.T) {
	r := newLabelRig(t)
	dirty := r.turn("", "untrusted", "private")
	r.files(dirty, "write", "new/folder/a", "content", "one\n")
	r.wantRead("new/folder/a", "private", "untrusted")
	for _, c := range []struct{ action, path, key, text string }{
		{"append", "a", "content", "more\n"}, {"edit", "b", "old", "clean"}, {"write", "c", "content", "x"}} {
		write(t, filepath.Join(r.ws, c.path), "clean\n")
		time.Sleep(2 * scanSlack)
		r.wantRead(c.path)
		res := r.files(dirty, c.action, c.path, c.key, c.text, "content", "x"+c.text)
		if !strings.Contains(res.Text, "bytes") {
			t.Fatal(res.Text)
		}
		r.wantRead(c.path, "private", "untrusted")
		// The inode of the new content is known too.
		r.host("mv " + c.path + " moved-" + c.path)
		r.wantRead("moved-"+c.path, "private", "untrusted")
	}
	// An edit that fails changes nothing.
	write(t, filepath.Join(r.ws, "d"), "clean\n")
	time.Sleep(2 * scanSlack)
	if res := r.files(dirty, "edit", "d", "old", "not there", "content", "x"); !strings.Contains(res.Text, "does not occur") {
		t.Fatal(res.Text)
	}
	r.wantRead("d")
	// An edit in a chat without labels leaves the rest of the content as it was.
	r.files(dirty, "write", "e", "content", "evil and more\n")
	clean := r.turn("")
	r.files(clean, "edit", "e", "old", "more", "content", "less")
	if !clean.Chat.labels().Untrusted {
		t.Error("an edit tells what was there, and brought no label")
	}
	r.wantRead("e", "private", "untrusted")
	// A name in a new folder is the call's word.
	r.host("mkdir q")
	r.files(dirty, "write", "q/SEND-IT/x", "content", "x")
	clean = r.turn("")
	if r.files(clean, "list", "q"); !clean.Chat.labels().Untrusted {
		t.Error("a list that shows a folder's name brought no label")
	}
}

// Hard links of a file that is replaced go on to hold its content.
func TestLabelsOfOtherHardLinks(t *testing.T) {
	r := newLabelRig(t)
	dirty := r.turn("", "untrusted")
	r.sh(dirty, "echo x >a")
	r.sh(dirty, "ln a b")
	r.files(dirty, "write", "a", "content", "y")
	r.host("true")
	r.wantRead("b", "untrusted")
	r.sh(dirty, "true")
	r.wantRead("b", "untrusted")
	r.host("mv b c")
	r.wantRead("c", "untrusted")
	// A chat that had none copies them with the content.
	r.sh(r.turn(""), "cp c d")
	r.wantRead("d", "untrusted")
}

func TestLabelsPython(t *testing.T) {
	needs(t, "python3", "python3")
	r := newLabelRig(t)
	res := r.do(r.turn("", "untrusted"), "python_execute", map[string]any{"code": "import os\nopen('a','w').write('x')\nos.utime('a',(1,1))\nos.rename('a','b')"})
	if strings.Contains(res.Text, "error") {
		t.Fatal(res.Text)
	}
	r.wantRead("b", "untrusted")
	clean := r.turn("")
	r.do(clean, "python_execute", map[string]any{"code": "print(1)"})
	if !clean.Chat.labels().Untrusted {
		t.Error("a script could read a labelled file, and its chat has no label")
	}
}

// A labelled file counts when the call that reads it is decided about, not only
// for the next one.
func TestLabelsBeforeTheDecision(t *testing.T) {
	r := newLabelRig(t)
	line := map[string]any{"command": "cat a", "network": true}
	if res := r.do(r.turn(""), "shell", map[string]any{"command": "true", "network": true}); res.Refused {
		t.Fatalf("without labels: %s", res.Text)
	}
	r.sh(r.turn("", "private"), "echo x >a")
	if res := r.do(r.turn(""), "shell", line); !res.Refused {
		t.Errorf("private data could be sent without a question: %s", res.Text)
	}
}

// Private data of a folder outside the workspace, and what is left of it.
func TestLabelsOtherSources(t *testing.T) {
	extra := t.TempDir()
	write(t, extra+"/f", "x")
	box := testBox(t, func(c *boxConfig) { c.ExtraRoots = []string{extra} })
	r := &labelRig{t: t, ws: box.Roots()[0], data: filepath.Join(t.TempDir(), "data"), run: "r_test"}
	r.open(box)
	r.wantRead(extra+"/f", "private")
	r.wantRun("private")
	turn := r.turn("")
	r.sh(turn, "cp "+extra+"/f copy")
	r.wantRead("copy", "private")
	r.sh(r.turn("", "untrusted"), "echo y >"+extra+"/g")
	r.wantRead(extra+"/g", "private", "untrusted")
}

// One process sees at once what another has labelled, and a running call labels
// whatever is below its roots.
func TestLabelsOfTwoProcesses(t *testing.T) {
	r := newLabelRig(t)
	other := &labelRig{t: t, ws: r.ws, data: r.data, run: "r_other"}
	other.open(r.gate.resolver.box)
	r.wantRun()
	other.wantRun()
	write(t, r.ws+"/clean", "x")
	time.Sleep(2 * scanSlack)
	dirty := other.turn("dirty", "untrusted")
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		other.do(dirty, "shell", map[string]any{"command": "echo x >a; while test ! -e stop; do sleep 0.02; done"})
	}()
	for range 200 {
		if _, err := os.Stat(r.ws + "/a"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.wantRead("a", "untrusted")
	r.wantRead("clean", "untrusted") // it could have been changed a moment ago
	write(t, r.ws+"/stop", "")
	wg.Wait()
	r.wantRead("a", "untrusted")
	r.wantRead("clean")
	r.wantRun("untrusted")
}

// A call that began without labels, beside one that has some, can have read what
// that one wrote.
func TestLabelsOfCallsThatOverlap(t *testing.T) {
	r := newLabelRig(t)
	clean, dirty := r.turn(""), r.turn("", "untrusted")
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		r.do(clean, "shell", map[string]any{"command": "touch began; while test ! -e a; do sleep 0.02; done; cp a b"})
	}()
	for range 200 {
		if _, err := os.Stat(r.ws + "/began"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.sh(dirty, "echo x >a")
	wg.Wait()
	if !clean.Chat.labels().Untrusted {
		t.Error("the chat of the other call has no label")
	}
	r.wantRead("b", "untrusted")
}

// What one call hides from the scan of another is found by its own scan.
func TestLabelsHiddenFromAScan(t *testing.T) {
	r := newLabelRig(t)
	l, set := r.gate.labels, []chatLabel{{"untrusted", "x"}}
	r.sh(r.turn("", "untrusted"), "mkdir -p old/d; echo x >old/d/a")
	r.host("true")
	one, err := l.begin("c_1", []string{r.ws}, set, false)
	r.host("mkdir d; echo x >d/a")
	two, err2 := l.begin("c_2", []string{r.ws}, set, false)
	r.host("mv d ../away; mv old ../older")
	_, err3 := l.end(one, set)
	r.host("mv ../away e; mv ../older new")
	_, err4 := l.end(two, set)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	r.wantRead("e/a", "untrusted")
	r.wantRead("new/d/a", "untrusted")
}

// A process that is killed in the middle of a call leaves what the call wrote
// labelled: at once, and after others have looked.
func TestLabelsAfterKill(t *testing.T) {
	r := newLabelRig(t)
	write(t, r.ws+"/clean", "x")
	time.Sleep(2 * scanSlack)
	killed, err := openLabels(r.data, "r_gone", r.data)
	if err != nil {
		t.Fatal(err)
	}
	defer killed.lock.Close()
	release, err := holdRun(context.Background(), r.data, "r_gone")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := killed.begin("c_1", []string{r.ws}, []chatLabel{{"untrusted", "x"}}, false); err != nil {
		t.Fatal(err)
	}
	r.host("echo x >a; mkdir d; mv a d/b; touch -d 2001-01-01 d/b")
	r.wantRead("clean", "untrusted") // the process lives
	release()
	r.wantRead("d/b", "untrusted")
	r.wantRead("clean")
	r.wantRun("untrusted")
	// Without a box, what was started may live on and write later.
	release, err = holdRun(context.Background(), r.data, "r_gone")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := killed.begin("c_2", []string{r.ws}, []chatLabel{{"private", "x"}}, true); err != nil {
		t.Fatal(err)
	}
	release()
	r.wantRun("private", "untrusted")
	r.host("echo x >later")
	r.wantRead("later", "private", "untrusted")
}

// Beyond the limits, and where a scan cannot see everything, the root is labelled
// as a whole.
func TestLabelsOfWholeRoots(t *testing.T) {
	for name, c := range map[string]struct {
		scanned, labelled int
		run               string
	}{
		"more entries than are scanned":  {3, 1000, "touch a b c d"},
		"more files than are kept":       {1000, 3, "touch a b c d"},
		"a folder that cannot be opened": {1000, 1000, "d=dddddddddddddddddddddddddddddddddddddddddddddddddd; for i in $(seq 100); do mkdir $d; cd $d; done; touch a"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLabelRig(t)
			write(t, r.ws+"/clean", "x")
			time.Sleep(2 * scanSlack)
			defer func(a, b int) { maxScanned, maxLabelled = a, b }(maxScanned, maxLabelled)
			maxScanned, maxLabelled = c.scanned, c.labelled
			dirty := r.turn("", "untrusted")
			r.sh(dirty, c.run)
			r.wantRead("clean", "untrusted")
			r.sh(dirty, "true")
			maxScanned, maxLabelled = 1000, 1000
			r.wantRead("clean", "untrusted")
			r.wantRun("untrusted")
			r.host("mkdir later; touch later/x")
			r.wantRead("later/x", "untrusted")
			// The folder is known by more than its path.
			r.host("mv ../ws ../moved; mkdir ../ws; mv clean ../ws")
			r.wantRead("clean", "untrusted") // at the path
			if set, err := r.gate.labels.of(filepath.Dir(r.ws)+"/moved/later/x", ""); err != nil || !labelsIn(set).Untrusted {
				t.Errorf("in the folder that was moved: %v, %v", set, err)
			}
			if _, err := r.gate.labels.clear(r.ws + "/clean"); err == nil || !strings.Contains(err.Error(), "as a whole") {
				t.Errorf("one file was cleared: %v", err)
			}
			if _, err := r.gate.labels.clear(r.ws); err != nil {
				t.Error(err)
			}
			r.wantRead("clean")
		})
	}
}

// The number of an inode that is used again means another file.
func TestLabelsInodeReuse(t *testing.T) {
	r := newLabelRig(t)
	r.sh(r.turn("", "untrusted"), "echo x >a")
	before, err := statFile(r.ws + "/a")
	if err != nil || before.key.Born == 0 {
		need(t, err != nil, "a file system that keeps the time of birth")
	}
	reused := false
	r.host("rm a")
	for i := range 200 {
		name := fmt.Sprintf("%s/b%d", r.ws, i)
		write(t, name, "mine")
		if st, err := statFile(name); err == nil && st.key.Ino == before.key.Ino {
			reused = true
			r.wantRead(filepath.Base(name))
		}
	}
	t.Logf("the number was used again: %v", reused)
	// The same without luck.
	again := before.key
	again.Born++
	if r.gate.labels.byKey[before.key] == nil || r.gate.labels.byKey[again] != nil {
		t.Error("the birth is no part of what a file is known by")
	}
}

// What a labelled call removed is forgotten, so that no later file is taken for
// it; what the owner removed is looked for once.
func TestLabelsOfFilesThatAreGone(t *testing.T) {
	r := newLabelRig(t)
	dirty := r.turn("", "untrusted")
	r.sh(dirty, "mkdir d; echo x >d/a; echo x >b")
	r.sh(dirty, "rm d/a; rmdir d")
	if n := len(r.gate.labels.all); n != 1 { // b
		t.Errorf("%d labels are kept", n)
	}
	r.host("echo mine >a; rm b")
	r.wantRead("a")
	r.wantRun()
	if n := len(r.gate.labels.all); n != 0 {
		t.Errorf("%d labels are left", n)
	}
}

// A clock that is set back while a call runs hides nothing, and neither does one
// of the file system that is behind.
func TestLabelsClockSetBack(t *testing.T) {
	r := newLabelRig(t)
	w, err := r.gate.labels.begin("c_1", []string{r.ws}, []chatLabel{{"untrusted", "x"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	write(t, r.ws+"/a", "x")
	ahead := int64(time.Hour) // as if the clock had gone back by one since
	w.Start[0] += ahead
	r.gate.labels.open["c_1"].Start[0] += ahead
	if files, err := r.gate.labels.end(w, w.Set); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
	r.wantRead("a", "untrusted")
}

// undo puts back content, and with it its labels.
func TestLabelsUndo(t *testing.T) {
	r := newLabelRig(t)
	dirty := r.turn("", "untrusted")
	r.files(dirty, "write", "a", "content", "evil\n")
	clean := r.turn("")
	r.files(clean, "write", "a", "content", "good\n")
	if clean.Chat.labels().Untrusted {
		t.Error("to write a file tells nothing of what it held")
	}
	if _, err := r.gate.labels.clear(r.ws + "/a"); err != nil {
		t.Fatal(err)
	}
	r.wantRead("a")
	id := lastCall(t, r.data, "write")
	if _, err := undo(filepath.Join(r.data, "undo"), id, r.gate.labels.set); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(r.ws + "/a"); string(b) != "evil\n" {
		t.Fatalf("a holds %q", b)
	}
	r.wantRead("a", "untrusted")
	r.host("mv a b")
	r.wantRead("b", "untrusted")
}

// lastCall is the id of the last call whose summary holds a text.
func lastCall(t *testing.T, data, text string) (id string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(data, auditName))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var d struct{ Kind, Call, Summary string }
		if json.Unmarshal([]byte(line), &d) == nil && d.Kind == "decision" && strings.Contains(d.Summary, text) {
			id = d.Call
		}
	}
	return id
}

// Damage stops every tool, names the place and overwrites nothing.
func TestLabelsDamagedStopTools(t *testing.T) {
	r := newLabelRig(t)
	r.sh(r.turn("", "untrusted"), "echo x >a")
	path := filepath.Join(r.data, labelsName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := errors.Join(os.Remove(path), os.WriteFile(path, b, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.gate.labels.reset() // as in a new process
	clean := r.turn("")
	res := r.do(clean, "shell", map[string]any{"command": "touch ran"})
	if !res.Refused || !strings.Contains(res.Text, "labels.jsonl") || !strings.Contains(res.Text, "line ") {
		t.Errorf("shell: %s", res.Text)
	}
	if res := r.files(clean, "read", "a"); !res.Refused {
		t.Errorf("files: %s", res.Text)
	}
	if _, err := os.Stat(r.ws + "/ran"); err == nil {
		t.Error("it ran")
	}
	if now, _ := os.ReadFile(path); string(now) != string(b) {
		t.Error("the file was changed")
	}
}

// No record of the intent, no act.
func TestLabelsIntentFirst(t *testing.T) {
	r := newLabelRig(t)
	if err := os.Mkdir(filepath.Join(r.data, labelsName), 0o700); err != nil {
		t.Fatal(err)
	}
	r.do(r.turn("", "untrusted"), "shell", map[string]any{"command": "touch ran"})
	if _, err := os.Stat(r.ws + "/ran"); err == nil {
		t.Error("it ran")
	}
}

func BenchmarkLabelScan10000(b *testing.B) {
	dir := b.TempDir()
	for i := range 100 {
		for j := range 100 {
			write(b, fmt.Sprintf("%s/d%d/f%d", dir, i, j), "")
		}
	}
	l, err := openLabels(b.TempDir(), "r")
	if err != nil {
		b.Fatal(err)
	}
	defer l.lock.Close()
	l.reset()
	start := stampOf(dir) + 2*int64(scanSlack)
	for b.Loop() {
		if out, err := l.changed(dir, start, Labels{Untrusted: true}, map[fileKey]bool{}); err != nil || len(out) > 200 {
			b.Fatal(len(out), err)
		}
	}
}

// What labels cost a call of the shell that does nothing, among 10,000 files.
func BenchmarkLabelledCall(b *testing.B) {
	for _, labels := range [][]string{nil, {"untrusted"}} {
		b.Run(fmt.Sprint(labels), func(b *testing.B) {
			r := newLabelRig(b)
			for i := range 100 {
				for j := range 100 {
					write(b, fmt.Sprintf("%s/d%d/f%d", r.ws, i, j), "")
				}
			}
			time.Sleep(2 * scanSlack)
			turn := r.turn("", labels...)
			for b.Loop() {
				r.sh(turn, "true")
			}
		})
	}
}
