package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// plainCases are chunks, each with whether it is plain.
var plainCases = []struct {
	name, chunk string
	plain       bool
}{
	{"content", `{"id":"x","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":"a b"},"finish_reason":null}]}`, true},
	{"role and usage null", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"x"}`, true},
	{"reasoning", `{"choices":[{"delta":{"content":null,"reasoning":"r","reasoning_content":"s","tool_calls":null,"refusal":null,"function_call":null}}]}`, true},
	{"blanks", " { \"choices\" :\t[ {\r\n\"delta\" : { \"content\" : \"a\" } , \"index\" : 0 } ] } \n", true},
	{"escapes", `{"choices":[{"delta":{"content":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}}]}`, true},
	{"half a pair", `{"choices":[{"delta":{"content":"a\ud83d"}}]}`, true},
	{"bytes that are no UTF-8", "{\"choices\":[{\"delta\":{\"content\":\"\xff\xf0\x9f\"}}]}", true},
	{"content twice", `{"choices":[{"delta":{"content":"abc","content":"d"}}]}`, true},
	{"delta twice", `{"choices":[{"delta":{"content":"abc"},"delta":{"reasoning":"d"}}]}`, true},
	{"content that is a number", `{"choices":[{"index":"1","delta":{"content":-1.5e9}}]}`, true},
	{"no choices", `{"created":1,"usage":null}`, true},
	{"empty", `{}`, true},

	{"choices twice", `{"choices":[{"delta":{"content":"abc"}}],"choices":[{"delta":{"reasoning":"d"}}]}`, false},
	{"choices null", `{"choices":null}`, false},
	{"no choice", `{"choices":[]}`, false},
	{"two choices", `{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}`, false},
	{"name in other case", `{"choices":[{"delta":{"Content":"a"}}]}`, false},
	{"name with the long s", `{"choices":[{"delta":{"reaſoning":"a","content":"a"}}]}`, false},
	{"name with an escape", `{"choices":[{"delta":{"\u0063ontent":"a"}}]}`, false},
	{"finish reason", `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, false},
	{"calls", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, false},
	{"function call", `{"choices":[{"delta":{"function_call":{"name":"a"}}}]}`, false},
	{"message", `{"choices":[{"message":{"content":"a"}}]}`, false},
	{"usage", `{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}`, false},
	{"usage in the choice", `{"choices":[{"delta":{"content":"a"},"usage":{"prompt_tokens":1}}]}`, false},
	{"usage of Groq", `{"choices":[{"delta":{"content":"a"}}],"x_groq":{"usage":{"prompt_tokens":1}}}`, false},
	{"error", `{"error":"x","choices":[{"delta":{"content":"a"}}]}`, false},
	{"message and detail", `{"message":"x","detail":"y"}`, false},
	{"other object", `{"object":"error","choices":[{"delta":{"content":"a"}}]}`, false},
	{"parts", `{"choices":[{"delta":{"content":[{"text":"a"}]}}]}`, false},
	{"other member that is a list", `{"x":[1],"choices":[{"delta":{"content":"a"}}]}`, false},
	{"bad escape", `{"choices":[{"delta":{"content":"\x"}}]}`, false},
	{"bad escape of a character", `{"choices":[{"delta":{"content":"\u12g4"}}]}`, false},
	{"control character", "{\"choices\":[{\"delta\":{\"content\":\"a\tb\"}}]}", false},
	{"number with a zero before", `{"created":01}`, false},
	{"unknown word", `{"created":nul}`, false},
	{"no value", `{"created":}`, false},
	{"comma at the end", `{"created":1,}`, false},
	{"comma at the start", `{,"created":1}`, false},
	{"no comma", `{"created":1 "id":2}`, false},
	{"no colon", `{"created" 1}`, false},
	{"cut in a string", `{"choices":[{"delta":{"content":"a`, false},
	{"cut in an escape", `{"choices":[{"delta":{"content":"a\`, false},
	{"cut", `{"choices":[{"delta":{"content":"a"}}]`, false},
	{"more after it", `{"choices":[{"delta":{"content":"a"}}]} {}`, false},
	{"a zero byte after it", "{}\x00", false},
	{"list", `[]`, false},
	{"nothing", ``, false},
}

func TestPlainChunk(t *testing.T) {
	for _, c := range plainCases {
		t.Run(c.name, func(t *testing.T) {
			if plain := samePlain(t, []byte(c.chunk)); plain != c.plain {
				t.Errorf("%s: plain is %v", c.chunk, plain)
			}
		})
	}
}

// samePlain compares both ways to decode a chunk, and reports whether it is plain.
func samePlain(t *testing.T, raw []byte) bool {
	t.Helper()
	sent := bytes.Clone(raw)
	var got, want wireChunk
	plain := plainChunk(raw, &got)
	if !bytes.Equal(raw, sent) {
		t.Fatalf("%q was changed to %q", sent, raw)
	}
	if valid := decodeLoosely(raw, &want); plain && (!valid || !reflect.DeepEqual(got, want)) {
		t.Fatalf("%q is %+v, not %+v (JSON: %v)", raw, got, want, valid)
	}
	return plain
}

// FuzzPlainChunk compares the decoder of plain chunks with encoding/json.
func FuzzPlainChunk(f *testing.F) {
	for _, c := range plainCases {
		f.Add([]byte(c.chunk))
	}
	files, _ := filepath.Glob("testdata/openai/*.txt")
	if len(files) == 0 {
		f.Fatal("no recordings")
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if data, ok := strings.CutPrefix(line, "data:"); ok {
				f.Add([]byte(data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) { samePlain(t, raw) })
}

// Every member that the full decoder knows, in every place, with every kind of value: what is not plain is left to it.
func TestPlainChunkKnowsEveryMember(t *testing.T) {
	var names []string
	for _, v := range []any{wireChunk{}, wireChoice{}, wireDelta{}, wireUsage{}} {
		for i := range reflect.TypeOf(v).NumField() {
			field := reflect.TypeOf(v).Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				name = strings.ToLower(field.Name)
			}
			names = append(names, name)
		}
	}
	plain := 0
	for _, frame := range []string{`{%}`, `{"choices":[{%}]}`, `{"choices":[{"delta":{%}}]}`, `{"choices":[{"delta":{"content":"a"}}],%}`} {
		for _, name := range names {
			for _, val := range []string{`null`, `"a"`, `""`, `1`, `true`, `{}`, `[]`, `{"content":"a"}`, `[{"index":2}]`, `"chat.completion.chunk"`} {
				if samePlain(t, []byte(strings.Replace(frame, "%", `"`+name+`":`+val, 1))) {
					plain++
				}
			}
		}
	}
	if plain == 0 {
		t.Error("none is plain")
	}
}
