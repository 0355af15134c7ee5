package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 678900123, time.FixedZone("", 3600))

func linesOf(m mark, recs ...Record) []byte {
	var e encoder
	e.lines(m, testTime, recs...)
	return e.b
}

// goldenRecords holds one record of each kind, every field filled.
func goldenRecords() []Record {
	exit := 1
	hash := strings.Repeat("0123456789abcdef", 4)
	return []Record{
		{Body: genesisRecord{1, hash[:32], hash, "audit.jsonl.damaged-20260101T000000.000000Z", hash}},
		{Body: restartRecord{"audit.jsonl.damaged-20260101T000000.000000Z", hash}},
		{Run: "r1", Body: startRecord{"v1", hash, hash, "bwrap 0.8.0", "rehearsal", "built in", "/home/u/w"}},
		{Run: "r1", Chat: "c", Channel: "cli", Body: userMessageRecord{"tidy <up> & \"go\"\n", "owner"}},
		{Run: "r1", Chat: "c", Channel: "cli", Body: modelTurnRecord{"m", "I will", 10, 20, []string{"shell"}, 1500, "tool_calls"}},
		{Run: "r1", Chat: "c", Channel: "cli", Call: "call_1", Body: questionRecord{hash, []string{"once", "always"}, []string{"deletes"}, "2026-01-02T03:04:05Z"}},
		{Run: "r1", Chat: "c", Channel: "cli", Call: "call_1", Body: answerRecord{"allow", "once", "terminal", ""}},
		{Run: "r1", Chat: "c", Channel: "cli", Call: "call_1", Body: decisionRecord{"shell", json.RawMessage(`{ "command": "rm -r \u0062uild", "n": 1.0 }`), hash, "rm -r build",
			"sensitive", []string{"private", "untrusted"}, "allow", "owner", "answer", "shell(rm *)", []string{"deletes"}, "", []string{"shell:rm"},
			egressFields{"hosts", []string{"example.com"}}, "make room"}},
		{Run: "r1", Chat: "c", Channel: "cli", Call: "call_1", Body: egressRecord{"example.com", 443, "CONNECT", "allow", "rule", 1, 2}},
		{Run: "r1", Chat: "c", Channel: "cli", Call: "call_1", Body: resultRecord{false, "exit status 1", &exit, 12, 34, hash, "rm: no", true}},
		{Run: "r1", Body: grantRecord{"shell:rm", "24h", "owner", "/home/u/w", []string{}, "2026-01-03T03:04:05Z"}},
		{Run: "r1", Body: revokeRecord{"shell:rm", "24h", "owner", "/home/u/w", nil, ""}},
		{Run: "r1", Chat: "c", Body: labelRecord{[]string{"untrusted"}, "web_fetch", "notes.txt"}},
		{Run: "r1", Channel: "cli", Body: vaultRecord{"set", "GITHUB_TOKEN", 17}},
		{Body: configRecord{"sentinel.mode", "ask", "auto"}},
		{Body: apiRecord{"on", map[string]int{"local_only": 2, "invalid_api_key": 1}}},
		{Chat: "c", Body: resetRecord{}},
		{Body: stopRecord{2}},
		{Body: recoveredRecord{3, hash, "{\"p\xff"}},
		{Body: gapRecord{18, 20}},
		{Body: acceptRecord{19}},
	}
}

func TestGoldenLines(t *testing.T) {
	recs := goldenRecords()
	got := linesOf(mark{}, recs...)
	path := filepath.Join("testdata", "audit", "golden.jsonl")
	if os.Getenv("PICKET_TEST_UPDATE") != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := readTestFile(t, path); !bytes.Equal(got, want) {
		t.Errorf("the format changed:\n%s\nwant:\n%s", got, want)
	}
	if end, err := readLinked(bytes.NewReader(got), mark{}, int64(len(got)), nil); err != nil || end.Seq != int64(len(recs)) {
		t.Errorf("it is no chain: %+v %v", end, err)
	}
	// What is read back is what was written.
	lines := bytes.Split(bytes.TrimSpace(got), []byte("\n"))
	for i, r := range recs {
		n, err := parseLine(lines[i])
		if err != nil {
			t.Fatal(err)
		}
		if n.Seq != int64(i+1) || n.Kind != r.Body.kind() || n.Run != r.Run || n.Chat != r.Chat || n.Channel != r.Channel || n.Call != r.Call ||
			!n.Time.Equal(testTime.Truncate(time.Microsecond)) {
			t.Errorf("%+v", n)
		}
		body := reflect.New(reflect.TypeOf(r.Body))
		d := json.NewDecoder(bytes.NewReader(lines[i]))
		if err := d.Decode(body.Interface()); err != nil {
			t.Errorf("%s: %v", n.Kind, err)
		}
		if got, want := plainJSON(t, body.Elem().Interface()), plainJSON(t, r.Body); n.Kind != "recovered" && !reflect.DeepEqual(got, want) {
			t.Errorf("wrote %v\nread %v", want, got)
		}
	}
}

// plainJSON is what any reader makes of v, with empty lists for missing ones.
func plainJSON(t *testing.T, v any) (out map[string]any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(bytes.ReplaceAll(b, []byte("null"), []byte("[]")), &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEveryKindIsGolden reads the source for the kinds that there are.
func TestEveryKindIsGolden(t *testing.T) {
	src := readTestFile(t, "records.go")
	kinds := regexp.MustCompile(`kind\(\) string +\{ return "(\w+)" \}`).FindAllSubmatch(src, -1)
	if len(kinds) < 20 {
		t.Fatalf("found only %d kinds", len(kinds))
	}
	recs := goldenRecords()
	for _, k := range kinds {
		if !slices.ContainsFunc(recs, func(r Record) bool { return r.Body.kind() == string(k[1]) }) {
			t.Errorf("no golden line of kind %q", k[1])
		}
	}
}

var textCases = []string{
	"", "plain", "<a href=\"x\">&\\", "x\n{\"event\":\"approved\"}", "tab\tcr\rnul\x00esc\x1b[31m\x7f",
	"\u2028\u2029", "é 日本 😀", "bidi \u202e\u2066\u200f zero\u200b\u200d\ufeff soft\u00ad c1\u009b tag\U000e0041\U000e007f",
	"cut \xe2\x82", "\xff\xfe", "\xed\xb2\x80 surrogate", "a\xf5b", "\ufffd", "\ufffd<80>", "\ufffd<", "<80>", "\ufffd\xff\ufffd<ff>", "\xef\xbf",
}

// unescapeBytes undoes what appendText does to bytes that are not UTF-8.
func unescapeBytes(s string) string {
	return regexp.MustCompile("\uFFFD<([0-9a-f]{2})>").ReplaceAllStringFunc(s, func(m string) string {
		n, _ := strconv.ParseUint(m[4:6], 16, 8)
		return string([]byte{byte(n)})
	})
}

func checkText(t *testing.T, s string) {
	t.Helper()
	b := appendText(nil, s)
	var back string
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatalf("%q: %v: %q", s, err, b)
	}
	if got := unescapeBytes(back); got != s {
		t.Errorf("%q came back as %q", s, got)
	}
	if utf8.ValidString(s) && !strings.Contains(s, "\ufffd<") && back != s {
		t.Errorf("%q reads as %q", s, back)
	}
	for _, r := range string(b) {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff || r >= 0xe0000 && r <= 0xe007f {
			t.Errorf("%q: raw %U in %q", s, r, b)
		}
	}
	if len(b) > 2+7*len(s) {
		t.Errorf("%q grew to %d bytes", s, len(b))
	}
}

func TestText(t *testing.T) {
	for _, s := range textCases {
		for n := range 9 { // every place in a word
			checkText(t, "01234567"[:n]+s+"01234567")
		}
	}
	for c := range 256 {
		for n := range 8 {
			s := []byte("01234567")
			s[n] = byte(c)
			checkText(t, string(s))
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range textCases {
		f.Add(s)
	}
	f.Fuzz(checkText)
}

// TestTextAsJqReadsIt compares with another reader of JSON.
func TestTextAsJqReadsIt(t *testing.T) {
	needProgram(t, "jq")
	var in bytes.Buffer
	for _, s := range textCases {
		in.Write(append(appendText(nil, s), '\n'))
	}
	c := exec.Command("jq", "-j", `., "\u0000END"`)
	c.Stdin = &in
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(string(out), "\x00END")
	for i, s := range textCases {
		if unescapeBytes(got[i]) != s {
			t.Errorf("jq reads %q as %q", s, got[i])
		}
	}
}

func TestArgs(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"object as it stands, without blanks", ` { "b" : [ 1.50 , true , null ] , "a" : { "x y" : "z z" } } `, `{"b":[1.50,true,null],"a":{"x y":"z z"}}`},
		{"escapes are normal", `{"a":"\u003c\/\u00e9\u2028\"\\"}`, `{"a":"</é\u2028\"\\"}`},
		{"half a surrogate", `{"a":"\ud800"}`, `{"a":"` + "\ufffd" + `"}`},
		{"twice the same key", `{"a":1,"a":2}`, `{"a":1,"a":2}`},
		{"empty object", `{}`, `{}`},
		{"no object", `[1]`, `"[1]"`},
		{"a string", `"x y"`, `"x y"`},
		{"does not parse", `{"a":`, `"{\"a\":"`},
		{"nothing", ``, `""`},
		{"not UTF-8", "{\"a\":\"\xff\"}", `"{\"a\":\"` + "\ufffd<ff>" + `\"}"`},
		{"two values", `{} {}`, `"{} {}"`},
	} {
		e := encoder{limit: maxField}
		e.args([]byte(tt.in))
		if got := string(e.b); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// FuzzArgs wants an object for an object, with the same values, and a string for
// all else.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,{"b":null},"\u00e9\n"],"c":-1.5e3}`, `{"a":1,}`, `{"a" 1}`, `[1,]`, `{"a":01}`, `{"a":tru}`, `{"a":"\x"}`, "{\"a\":\"\t\"}", `{}x`, `{"a":[}`, `"x"`, "{\"\xff\":1}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		e := encoder{b: []byte(`{"A":`), limit: 1 << 20}
		e.args(in)
		var got struct{ A any }
		if err := json.Unmarshal(append(e.b, '}'), &got); err != nil {
			t.Fatalf("%q: %v: %s", in, err, e.b)
		}
		var want any
		if _, object := got.A.(map[string]any); !object {
			if json.Unmarshal(in, &want) == nil && utf8.Valid(in) && reflect.TypeOf(want) == reflect.TypeFor[map[string]any]() {
				t.Errorf("%q became %T", in, got.A)
			}
			return
		}
		if err := json.Unmarshal(in, &want); err != nil || !utf8.Valid(in) {
			t.Fatalf("%q is no object, but became one: %s", in, e.b)
		}
		if !strings.ContainsRune(string(in), '\ufffd') && !strings.Contains(string(in), `\u`) && !reflect.DeepEqual(got.A, want) {
			t.Errorf("%q became %s", in, e.b)
		}
	})
}

func TestLongFieldsAreCut(t *testing.T) {
	whole := strings.Repeat("é", maxField/2)
	if got := cutText(whole, maxField); got != whole {
		t.Errorf("%d bytes were cut", len(whole))
	}
	got := cutText("HEAD"+whole+"TAIL", maxField)
	note := fmt.Sprintf("…[cut: %d bytes, sha256 ", len(whole)+8)
	if len(got) > maxField || !strings.HasPrefix(got, "HEADé") || !strings.HasSuffix(got, "éTAIL") || !strings.Contains(got, note) || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %.50q", len(got), got)
	}
	var back struct{ Args map[string]string }
	args, _ := json.Marshal(map[string]string{"short": "s", "long": strings.Repeat("x", 100_000)})
	line := linesOf(mark{}, Record{Body: decisionRecord{Args: args}})
	if err := json.Unmarshal(line, &back); err != nil || back.Args["short"] != "s" || len(back.Args["long"]) > maxField {
		t.Errorf("%v: %.200s", err, line)
	}
	// The longest go first.
	text := strings.Repeat("\x01", maxField)
	line = linesOf(mark{}, Record{Body: modelTurnRecord{Text: strings.Repeat("x", 1500), Calls: []string{text, text, text, text}}})
	if len(line) > maxLine || !bytes.Contains(line, []byte(strings.Repeat("x", 1500))) {
		t.Errorf("%d bytes: %.200s", len(line), line)
	}
}

// TestNoLineIsTooLong fills every field of every kind with the worst.
func TestNoLineIsTooLong(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"\x01", "\xff", "x"} {
		if underRace && bad != "\x01" {
			continue
		}
		text := strings.Repeat(bad, 8300)
		list := slices.Repeat([]string{text}, 4)
		for _, r := range goldenRecords() {
			v := reflect.New(reflect.TypeOf(r.Body)).Elem()
			fillWorst(v, text, list)
			rec := Record{Run: text, Chat: text, Channel: text, Call: text, Body: v.Interface().(recordBody)}
			b := linesOf(mark{Seq: 1 << 62}, rec)
			if len(b) > maxLine {
				t.Errorf("%s of %q: %d bytes", rec.Body.kind(), bad, len(b))
			}
			if !json.Valid(b) {
				t.Errorf("%s of %q is not JSON", rec.Body.kind(), bad)
			}
		}
	}
}

func fillWorst(v reflect.Value, text string, list []string) {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Type() == reflect.TypeFor[json.RawMessage]():
			b := []byte(`{"":0`)
			for i := range 4000 {
				b = fmt.Appendf(b, `,"%d":-1`, i)
			}
			f.SetBytes(append(b, '}'))
		case f.Kind() == reflect.String:
			f.SetString(text)
		case f.Kind() == reflect.Slice:
			f.Set(reflect.ValueOf(list))
		case f.Kind() == reflect.Struct:
			fillWorst(f, text, list)
		case f.CanInt():
			f.SetInt(-1 << 62)
		case f.Kind() == reflect.Map:
			f.Set(reflect.ValueOf(map[string]int{text: 1}))
		}
	}
}
