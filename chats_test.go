package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newTestChats(t *testing.T) *chatStore {
	t.Helper()
	return &chatStore{dir: filepath.Join(t.TempDir(), "chats"), redact: keepText, now: time.Now}
}

func openTestChat(t *testing.T, s *chatStore, name string) *chat {
	t.Helper()
	c, err := s.open(context.Background(), name, "/ws", false)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestChatNames(t *testing.T) {
	for name, file := range map[string]string{
		"work":                    "work.jsonl",
		"Work":                    "work.jsonl",
		"WORK 1":                  "work%201.jsonl",
		"../x":                    "%2e%2e%2fx.jsonl",
		"caf\u00e9":               "caf%c3%a9.jsonl",
		"cafe\u0301":              "caf%c3%a9.jsonl",
		"CAFE\u0301":              "caf%c3%a9.jsonl",
		"a.b":                     "a%2eb.jsonl",
		"con":                     "con.jsonl",
		strings.Repeat("a", 100):  strings.Repeat("a", 100) + ".jsonl",
		"2026-11-30 16.31.01 ckg": "2026-11-30%2016%2e31%2e01%20ckg.jsonl",
	} {
		if got := chatFileName(name); got != file {
			t.Errorf("chatFileName(%q) = %q, want %q", name, got, file)
		}
		if err := checkChatName(name); err != nil {
			t.Errorf("checkChatName(%q): %v", name, err)
		}
	}
	long := chatFileName(strings.Repeat("é", 100))
	if len(long) != 60+1+16+len(".jsonl") || long[60] != '~' || long == chatFileName(strings.Repeat("é", 99)) {
		t.Errorf("a long name gives %q", long)
	}
	for _, bad := range []string{"", "  ", "a\x00b", "a\nb", "\u202eabc", "a\u200bb", "a\u2066b", "\xff", strings.Repeat("a", 101)} {
		if checkChatName(bad) == nil {
			t.Errorf("the name %q is taken", bad)
		}
	}
}

func TestChatKeepsItsLines(t *testing.T) {
	s := newTestChats(t)
	c := openTestChat(t, s, "One")
	if !c.New {
		t.Error("the chat is not new")
	}
	must(t, c.append(chatLine{Role: "user", Content: "a <b> & \u2028"}, chatLine{Role: "assistant", Content: "c"}))
	if _, err := c.label(chatLabel{"untrusted", "x"}, chatLabel{"untrusted", "x"}); err != nil {
		t.Fatal(err)
	}
	if fresh, err := c.label(chatLabel{"untrusted", "x"}); err != nil || fresh != nil {
		t.Errorf("the same label again: %v %v", fresh, err)
	}
	must(t, c.close())
	c = openTestChat(t, s, "ONE")
	if c.New || len(c.Messages) != 2 || c.Messages[0].Content != "a <b> & \u2028" || len(c.Sources) != 1 || !c.labels().Untrusted {
		t.Errorf("%+v", c)
	}
	must(t, c.append(chatLine{Reset: true}))
	must(t, c.close())
	c = openTestChat(t, s, "one")
	defer c.close()
	if len(c.Messages) != 0 || len(c.Sources) != 0 {
		t.Errorf("after a reset: %+v", c)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestChatOneTurnAtATime(t *testing.T) {
	s := newTestChats(t)
	c := openTestChat(t, s, "one")
	if _, err := s.open(context.Background(), "One", "/ws", false); !errors.Is(err, errChatBusy) {
		t.Errorf("a second turn: %v", err)
	}
	other := openTestChat(t, s, "two")
	must(t, other.close())
	got := make(chan error, 1)
	go func() {
		c, err := s.open(context.Background(), "one", "/ws", true)
		if err == nil {
			err = c.close()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("the second turn did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, c.close())
	must(t, <-got)
	// A wait ends with its context.
	c = openTestChat(t, s, "one")
	defer c.close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.open(ctx, "one", "/ws", true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its time: %v", err)
	}
}

// Every way of cutting a chat off leaves one that can be read and goes on.
func TestChatTorn(t *testing.T) {
	s := newTestChats(t)
	c := openTestChat(t, s, "one")
	must(t, c.append(chatLine{Role: "user", Content: "first"}, chatLine{Role: "assistant", Content: "second"}))
	must(t, c.close())
	path, _ := s.path("one")
	whole, err := os.ReadFile(path)
	must(t, err)
	first := strings.IndexByte(string(whole), '\n') + 1
	for cut := first; cut < len(whole); cut++ {
		must(t, os.WriteFile(path, whole[:cut], 0o600))
		c := openTestChat(t, s, "one")
		had := len(c.Messages)
		must(t, c.append(chatLine{Role: "user", Content: "later"}))
		must(t, c.close())
		c = openTestChat(t, s, "one")
		if len(c.Messages) != had+1 || c.Messages[had].Content != "later" {
			t.Fatalf("cut at %d: %+v", cut, c.Messages)
		}
		must(t, c.close())
		now, err := os.ReadFile(path)
		must(t, err)
		if string(now[:cut]) != string(whole[:cut]) {
			t.Fatalf("cut at %d: what was there was changed", cut)
		}
	}
}

// A damaged line is an error that names file and line, and nothing is changed.
func TestChatDamaged(t *testing.T) {
	s := newTestChats(t)
	for i := range 3 {
		name := fmt.Sprint("c", i)
		c := openTestChat(t, s, name)
		must(t, c.append(chatLine{Role: "user", Content: "first"}, chatLine{Role: "assistant", Content: "second"}))
		must(t, c.close())
		path, _ := s.path(name)
		data, err := os.ReadFile(path)
		must(t, err)
		lines := strings.SplitAfter(string(data), "\n")
		lines[i] = "x" + lines[i]
		bad := strings.Join(lines, "")
		must(t, os.WriteFile(path, []byte(bad), 0o600))
		_, err = s.open(context.Background(), name, "/ws", false)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("line %d", i+1)) || !strings.Contains(err.Error(), path) {
			t.Errorf("line %d: %v", i+1, err)
		}
		if now, _ := os.ReadFile(path); string(now) != bad {
			t.Error("the damaged file was changed")
		}
	}
	list, err := s.list()
	if err != nil || len(list) != 3 || list[0].Err == nil {
		t.Errorf("%+v %v", list, err)
	}
}

func FuzzReadChat(f *testing.F) {
	f.Add([]byte(`{"ts":"","format":1,"name":"a"}` + "\n" + `{"ts":"","role":"user","content":"x"}` + "\n"))
	f.Add([]byte(`{"ts":"","format":1}` + "\n" + `{"ts":"20` + "\n" + `{"ts":"","torn":true}` + "\n"))
	f.Add([]byte("\n\n{}\x00"))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines, _, err := readChat(strings.NewReader(string(data)), "x")
		if err != nil && !strings.Contains(err.Error(), "line ") {
			t.Errorf("an error without its line: %v", err)
		}
		if err == nil && len(lines) > 0 && lines[0].Format != chatFormat {
			t.Errorf("a chat of format %d was read", lines[0].Format)
		}
	})
}
