package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"picket/tools"
)

// A recording is what a server sent and what must come out of it.
type recording struct {
	name, kind        string
	cut               bool // the connection breaks at the end
	tools             []tools.Tool
	text, reasoning   *string
	finish, raw       string
	calls, invalid    []string // "name arguments", "name words of the sentence"
	id, extra, failed string
	usage             string
	body              []byte
}

func readRecording(t *testing.T, file string) recording {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, body, ok := bytes.Cut(raw, []byte("\n---\n"))
	if !ok {
		t.Fatalf("%s has no line ---", file)
	}
	r := recording{name: strings.TrimSuffix(filepath.Base(file), ".txt"), kind: "text/event-stream", body: body}
	expects := false
	for _, line := range strings.Split(string(head), "\n") {
		key, val, ok := strings.Cut(line, ": ")
		if !ok {
			t.Fatalf("%s: bad header line %q", file, line)
		}
		quoted := func() *string {
			var s string
			if err := json.Unmarshal([]byte(val), &s); err != nil {
				t.Fatalf("%s: %s is not a JSON string: %v", file, key, err)
			}
			return &s
		}
		switch key {
		case "show":
			continue
		case "type":
			r.kind = val
			continue
		case "end":
			if r.cut = val == "cut"; !r.cut {
				t.Fatalf("%s: unknown end %q", file, val)
			}
			continue
		case "tools":
			for _, n := range strings.Fields(val) {
				r.tools = append(r.tools, tools.Tool{Name: n})
			}
			continue
		case "text":
			r.text = quoted()
		case "reasoning":
			r.reasoning = quoted()
		case "finish":
			r.finish = val
		case "raw":
			r.raw = val
		case "call":
			r.calls = append(r.calls, val)
		case "invalid":
			r.invalid = append(r.invalid, val)
		case "id":
			r.id = val
		case "extra":
			r.extra = val
		case "error":
			r.failed = val
		case "usage":
			r.usage = val
		default:
			t.Fatalf("%s: unknown header %q", file, key)
		}
		expects = true
	}
	if !expects {
		t.Fatalf("%s says nothing about what must come out", file)
	}
	return r
}

func recordings(t *testing.T) []recording {
	t.Helper()
	files, err := filepath.Glob("testdata/openai/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	var out []recording
	for _, f := range files {
		out = append(out, readRecording(t, f))
	}
	return out
}

func (r recording) check(t *testing.T, reply Reply, err error) {
	t.Helper()
	if r.failed != "" {
		if err == nil || !strings.Contains(err.Error(), r.failed) {
			t.Errorf("error is %v, not one with %q", err, r.failed)
		}
		if len(reply.Calls) > 0 {
			t.Errorf("calls beside an error: %v", reply.Calls)
		}
	} else if err != nil {
		t.Fatalf("error: %v", err)
	}
	if r.text != nil && reply.Text != *r.text || r.text == nil && reply.Text != "" {
		t.Errorf("text is %q", reply.Text)
	}
	if r.reasoning != nil && reply.Reasoning != *r.reasoning || r.reasoning == nil && reply.Reasoning != "" {
		t.Errorf("reasoning is %q", reply.Reasoning)
	}
	if r.finish != "" && reply.Finish != r.finish {
		t.Errorf("finish is %q, want %q", reply.Finish, r.finish)
	}
	if r.raw != "" && reply.RawFinish != r.raw {
		t.Errorf("raw finish is %q, want %q", reply.RawFinish, r.raw)
	}
	if r.usage != "" {
		if got := fmt.Sprint(reply.Usage.In, reply.Usage.Out, reply.Usage.Total); got != r.usage {
			t.Errorf("usage is %s, want %s", got, r.usage)
		}
	}
	var valid, invalid []ToolCall
	ids := map[string]bool{}
	for _, c := range reply.Calls {
		if c.ID == "" || ids[c.ID] || c.Type != "function" {
			t.Errorf("id or type of call %+v", c)
		}
		ids[c.ID] = true
		if c.Invalid == "" {
			valid = append(valid, c)
		} else {
			invalid = append(invalid, c)
		}
	}
	var got []string
	for _, c := range valid {
		got = append(got, c.Function.Name+" "+c.Function.Arguments)
	}
	if strings.Join(got, "\n") != strings.Join(r.calls, "\n") {
		t.Errorf("calls are %q, want %q (invalid: %v)", got, r.calls, invalid)
	}
	if len(invalid) != len(r.invalid) {
		t.Fatalf("invalid calls are %v, want %v", invalid, r.invalid)
	}
	for i, c := range invalid {
		name, words, _ := strings.Cut(r.invalid[i], " ")
		if c.Function.Name != name || !strings.Contains(c.Invalid, words) {
			t.Errorf("invalid call %q says %q, want %q", c.Function.Name, c.Invalid, r.invalid[i])
		}
	}
	if r.id != "" && (len(reply.Calls) == 0 || reply.Calls[0].ID != r.id) {
		t.Errorf("the id is not %q: %v", r.id, reply.Calls)
	}
	if r.extra != "" && (len(reply.Calls) == 0 || string(reply.Calls[0].Extra) != r.extra) {
		t.Errorf("extra data is not %s: %v", r.extra, reply.Calls)
	}
}

// TestRecordings sends every recording through a real connection and the whole
// client.
func TestRecordings(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			base := rawServer(t, func(c net.Conn, _ *http.Request) {
				head := "HTTP/1.1 200 OK\r\nContent-Type: " + r.kind + "\r\nConnection: close\r\n"
				if r.cut { // a chunked body without its end
					fmt.Fprintf(c, "%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", head, len(r.body), r.body)
					return
				}
				fmt.Fprintf(c, "%s\r\n%s", head, r.body)
			})
			m := testModel(t, modelSettings{BaseURL: base})
			var text, reasoning strings.Builder
			reply, err := m.Chat(t.Context(), ModelRequest{Tools: r.tools}, func(d Delta) {
				if d.Wait != "" {
					t.Errorf("waits: %s", d.Wait)
				}
				text.WriteString(d.Text)
				reasoning.WriteString(d.Reasoning)
			})
			r.check(t, reply, err)
			// What was passed on is what came out, but where a closing tag
			// showed only later that text had been reasoning.
			if !strings.Contains(r.name, "orphan") && (text.String() != reply.Text || reasoning.String() != reply.Reasoning) {
				t.Errorf("passed on were %q and %q", text.String(), reasoning.String())
			}
		})
	}
}

// TestRecordingsInPieces reads every recording byte by byte and in halves: how
// the bytes arrive must not matter.
func TestRecordingsInPieces(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			read := func(wrap func(io.Reader) io.Reader) (Reply, string) {
				var body io.Reader = bytes.NewReader(r.body)
				if r.cut {
					body = io.MultiReader(body, iotest.ErrReader(errors.New("reset")))
				}
				rr := newReplyReader(newToolNames(r.tools), nil)
				reply, err := rr.reply(rr.read(wrap(body)))
				for i := range reply.Calls {
					if !bytes.Contains(r.body, []byte(`"`+reply.Calls[i].ID+`"`)) {
						reply.Calls[i].ID = "own"
					}
				}
				return reply, fmt.Sprint(err)
			}
			whole, wholeErr := read(func(r io.Reader) io.Reader { return r })
			for name, wrap := range map[string]func(io.Reader) io.Reader{
				"bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "with the error": iotest.DataErrReader,
			} {
				if got, err := read(wrap); !sameReply(got, whole) || err != wholeErr {
					t.Errorf("%s: %+v, %v; at once: %+v, %v", name, got, err, whole, wholeErr)
				}
			}
		})
	}
}

// sameReply compares replies but for the ids that are random.
func sameReply(a, b Reply) bool {
	for i := range min(len(a.Calls), len(b.Calls)) {
		if a.Calls[i].ID == "own" || strings.HasPrefix(a.Calls[i].ID, "call_") && strings.HasPrefix(b.Calls[i].ID, "call_") {
			a.Calls[i].ID = b.Calls[i].ID
		}
	}
	return reflect.DeepEqual(a, b)
}

// rawServer serves connections of one request each and returns its base URL.
func rawServer(t *testing.T, serve func(net.Conn, *http.Request)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				io.Copy(io.Discard, req.Body)
				serve(c, req)
			}()
		}
	}()
	return "http://" + l.Addr().String() + "/v1"
}

// testModel returns a client that does not really wait.
func testModel(t *testing.T, s modelSettings) *chatModel {
	t.Helper()
	if s.Name == "" {
		s.Name = "m"
	}
	m, err := newModel(s)
	if err != nil {
		t.Fatal(err)
	}
	m.sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	t.Cleanup(m.client.CloseIdleConnections)
	return m
}

func readReply(body io.Reader, names ...string) (Reply, error) {
	var list []tools.Tool
	for _, n := range names {
		list = append(list, tools.Tool{Name: n})
	}
	r := newReplyReader(newToolNames(list), nil)
	return r.reply(r.read(body))
}

func contentChunk(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return `data: {"choices":[{"index":0,"delta":{"content":` + string(b) + `}}]}` + "\n\n"
}

// repeated is an endless reader of one text.
type repeated struct {
	text string
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}

func TestLongLines(t *testing.T) {
	for _, n := range []int{64<<10 - 1, 64 << 10, 200_000, 1 << 20} {
		s := strings.Repeat("ä", n/2)
		reply, err := readReply(strings.NewReader(contentChunk(s) + contentChunk("end") + "data: [DONE]\n\n"))
		if err != nil || reply.Text != s+"end" {
			t.Errorf("a line of %d bytes: %d bytes came, %v", n, len(reply.Text), err)
		}
	}
	long := strings.Repeat("x", maxStreamLine+1)
	reply, err := readReply(strings.NewReader(contentChunk("a") + "data: " + long))
	if err == nil || !strings.Contains(err.Error(), "longer than 16 MiB") || reply.Text != "a" {
		t.Errorf("a line over the limit: %v, text %q", err, reply.Text)
	}
}

// TestEndlessStreams shows that no stream is read without a bound.
func TestEndlessStreams(t *testing.T) {
	call := func(args string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"a","arguments":` + args + `}}]}}]}` + "\n\n"
	}
	many := func(line string, next func(int) string) io.Reader {
		var readers []io.Reader
		for i := range 200 {
			readers = append(readers, strings.NewReader(strings.ReplaceAll(line, "%", next(i))))
		}
		return io.MultiReader(readers...)
	}
	newCall := `data: {"choices":[{"delta":{"tool_calls":[{"index":%,"id":"c%","function":{"name":"a","arguments":"{}"}}]}}]}` + "\n\n"
	big := strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		body io.Reader
		want string
	}{
		"text":           {&repeated{text: contentChunk(big)}, "longer than 8 MiB"},
		"reasoning":      {&repeated{text: strings.ReplaceAll(contentChunk(big), "content", "reasoning")}, "longer than 8 MiB"},
		"arguments":      {&repeated{text: call(`"` + strings.Repeat(`\n`, 500) + `"`)}, "arguments without end"},
		"blank argument": {io.MultiReader(strings.NewReader(strings.Repeat(call(`"\n"`), 5_000)), &repeated{text: call(`"` + strings.Repeat(big, 20) + `"`)}), "arguments without end"},
		"a line":         {&repeated{text: "data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}, "16 MiB"},
		"an event":       {&repeated{text: "data: " + big + "\n"}, "16 MiB"},
		"comments":       {&repeated{text: ": " + big + big + big + "\n\n"}, "256 MiB"},
		"calls":          {many(newCall, strconv.Itoa), "128 calls"},
		"calls, no ids":  {many(strings.ReplaceAll(newCall, `"id":"c%",`, ""), func(int) string { return "-1" }), "128 calls"},
		"a name":         {&repeated{text: `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"ab"}},{"index":0,"function":{"name":"cd"}}]}}]}` + "\n\n"}, "256 bytes"},
		"a document":     {io.MultiReader(strings.NewReader("{"), &repeated{text: `"a":"` + big + big + `",` + "\n"}), "16 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reply, err := readReply(test.body, "a")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
			if len(reply.Calls) > 0 {
				t.Errorf("%d calls would run", len(reply.Calls))
			}
		})
	}
}

// TestHostileStreamsTakeLinearTime reads texts that are slow for readers which
// look again at what they have seen.
func TestHostileStreamsTakeLinearTime(t *testing.T) {
	const n = 1 << 18
	for name, body := range map[string]string{
		"carriage returns":  strings.Repeat("\r", n),
		"half tags":         contentChunk(strings.Repeat("<thin", n/5)) + strings.Repeat(contentChunk("<"), 2000),
		"tags in a line":    contentChunk(strings.Repeat("x<think>", n/8)),
		"tags in a fence":   contentChunk("```\n" + strings.Repeat("<think>\n", n/8)),
		"blanks and tags":   contentChunk(strings.Repeat(" ", n) + strings.Repeat("<thinx", n/8)),
		"blocks":            contentChunk(strings.Repeat("<think>a</think>\n", n/17)),
		"quotes":            `data: {"choices":[{"delta":{"content":"` + strings.Repeat(`\"`, n/2) + `"}}]}` + "\n\n",
		"deep":              "data: " + strings.Repeat("[", n) + "\n\n",
		"surrogates":        `data: {"choices":[{"delta":{"content":"` + strings.Repeat(`\ud83d`, n/6) + `"}}]}` + "\n\n",
		"braces in a call":  strings.Repeat(`data: {"choices":[{"delta":{"tool_calls":[{"id":"c","function":{"name":"b","arguments":"}"}}]}}]}`+"\n\n", 2000),
		"pieces of a call":  strings.Repeat(`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"a","arguments":"{\"a\":\"}"}}]}}]}`+"\n\n", 2000),
		"lines of an event": strings.Repeat("data: {}\n", n/9) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				readReply(strings.NewReader(body+"data: [DONE]\n\n"), "a", "b")
			}()
			select {
			case <-done:
			case <-time.After(time.Minute): // a quadratic reader needs many times that
				t.Fatal("still reading after a minute")
			}
		})
	}
}

func FuzzReplyReader(f *testing.F) {
	files, _ := filepath.Glob("testdata/openai/*.txt")
	if len(files) == 0 {
		f.Fatal("no recordings")
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		_, body, _ := bytes.Cut(raw, []byte("\n---\n"))
		f.Add(body, 7)
	}
	f.Fuzz(func(t *testing.T, body []byte, piece int) {
		list := []tools.Tool{{Name: "a"}, {Name: "b"}, {Name: "time"}, {Name: "get_time"}}
		read := func(in io.Reader) (Reply, string, string) {
			var passed strings.Builder
			r := newReplyReader(newToolNames(list), func(d Delta) { passed.WriteString(d.Text) })
			reply, err := r.reply(r.read(in))
			return reply, fmt.Sprint(err), passed.String()
		}
		reply, err, _ := read(bytes.NewReader(body))
		again, err2, _ := read(&pieceReader{body, 1 + max(piece, -piece)%64})
		if err != err2 || reply.Text != again.Text || reply.Reasoning != again.Reasoning || len(reply.Calls) != len(again.Calls) {
			t.Fatalf("at once: %+v, %v; in pieces: %+v, %v", reply, err, again, err2)
		}
		if err != "<nil>" && len(reply.Calls) > 0 {
			t.Fatalf("calls beside the error %v", err)
		}
		ids := map[string]bool{}
		for i, c := range reply.Calls {
			if c.ID == "" || ids[c.ID] {
				t.Fatalf("bad id in %+v", c)
			}
			ids[c.ID] = true
			if c.Invalid != again.Calls[i].Invalid {
				t.Fatalf("call %d is invalid %q and %q", i, c.Invalid, again.Calls[i].Invalid)
			}
			if c.Invalid != "" {
				continue
			}
			if c.Function.Name != "a" && c.Function.Name != "b" && c.Function.Name != "time" && c.Function.Name != "get_time" {
				t.Fatalf("the tool %q was not offered", c.Function.Name)
			}
			if v, err := tools.DecodeStrict([]byte(c.Function.Arguments)); err != nil {
				t.Fatalf("arguments %q: %v", c.Function.Arguments, err)
			} else if _, ok := v.(map[string]any); !ok {
				t.Fatalf("arguments %q are no object", c.Function.Arguments)
			}
		}
	})
}

type pieceReader struct {
	rest []byte
	n    int
}

func (r *pieceReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest[:min(r.n, len(r.rest))])
	r.rest = r.rest[n:]
	return n, nil
}

// FuzzTextJoiner cuts a text in JSON in two, also inside a character: what comes
// out is what encoding/json reads in the whole.
func FuzzTextJoiner(f *testing.F) {
	for _, s := range []string{`a`, `\u00e9\ud83d\ude00`, `\\\"\/\b\f\n\r\t`, "é😀", `x\\ud83d`, `\ud83dx\ude00`, "\xf0\x9f\x98", `\\\ud83d\ude00`} {
		for cut := range len(s) + 1 {
			f.Add(s, cut)
		}
	}
	f.Fuzz(func(t *testing.T, s string, cut int) {
		cut = min(max(cut, 0), len(s))
		whole, head, tail := []byte(`"`+s+`"`), []byte(`"`+s[:cut]+`"`), []byte(`"`+s[cut:]+`"`)
		var want string
		if json.Unmarshal(whole, &want) != nil || !json.Valid(head) || !json.Valid(tail) {
			return
		}
		var j textJoiner
		got := j.add(head, false)
		if !utf8.ValidString(got) || len(j.held) > 6 {
			t.Fatalf("%q, %q is held", got, j.held)
		}
		if got += j.add(tail, false) + j.add(nil, true); got != want {
			t.Fatalf("%q is %q, not %q", s, got, want)
		}
	})
}

func BenchmarkReplyReader(b *testing.B) {
	const events = 1000
	chunk := `data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"some-model","choices":[{"index":0,"delta":{"content":"fifty bytes of content that a model might say, yes."},"finish_reason":null}]}` + "\n\n"
	body := []byte(strings.Repeat(chunk, events) + "data: [DONE]\n\n")
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readReply(bytes.NewReader(body)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*events/b.Elapsed().Seconds(), "chunks/s")
}

// BenchmarkReplyByEncodingJSON is the least that a reader with encoding/json
// does, to compare with.
func BenchmarkReplyByEncodingJSON(b *testing.B) {
	const events = 1000
	chunk := `data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"some-model","choices":[{"index":0,"delta":{"content":"fifty bytes of content that a model might say, yes."},"finish_reason":null}]}` + "\n\n"
	body := []byte(strings.Repeat(chunk, events))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		sc := bufio.NewScanner(bytes.NewReader(body))
		var text strings.Builder
		for sc.Scan() {
			data, ok := bytes.CutPrefix(sc.Bytes(), []byte("data: "))
			if !ok {
				continue
			}
			var c struct {
				Choices []struct {
					Delta struct {
						Content string `json:"content"`
					} `json:"delta"`
				} `json:"choices"`
			}
			if err := json.Unmarshal(data, &c); err != nil {
				b.Fatal(err)
			}
			text.WriteString(c.Choices[0].Delta.Content)
		}
	}
	b.ReportMetric(float64(b.N)*events/b.Elapsed().Seconds(), "chunks/s")
}
