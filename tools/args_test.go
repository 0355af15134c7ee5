package tools

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

var everyKind = Tool{Name: "t", Params: []Param{
	{Name: "s", Type: "string", Required: true},
	{Name: "e", Type: "string", Enum: []string{"a", "b"}, Default: "a"},
	{Name: "n", Type: "integer", Min: 1, Max: 600, Default: int64(60)},
	{Name: "b", Type: "boolean"},
	{Name: "l", Type: "strings"},
	{Name: "m", Type: "map"},
}}

func TestParseArguments(t *testing.T) {
	args, err := everyKind.Parse([]byte(`{"s":"x","n":5e0,"b":true,"l":["1","2"],"m":{"K":"v"}}`))
	want := map[string]any{"s": "x", "e": "a", "n": int64(5), "b": true, "l": []string{"1", "2"}, "m": map[string]string{"K": "v"}}
	if err != nil || !reflect.DeepEqual(args.Values, want) {
		t.Errorf("%v %v", args.Values, err)
	}
	if args.String("s") != "x" || args.Int("n") != 5 || !args.Bool("b") || len(args.Strings("l")) != 2 || args.Map("m")["K"] != "v" || args.Has("x") {
		t.Error("the getters differ from the values")
	}
	if args, err := everyKind.Parse([]byte(`{"s":"x","b":null}`)); err != nil || args.Has("b") {
		t.Errorf("null for what may be left out: %v %v", args.Values, err)
	}
}

// Each of these differs from good arguments by one fault, and the error names it.
func TestParseArgumentsRefuses(t *testing.T) {
	for args, says := range map[string]string{
		`{}`:                              `"s" is missing`,
		`{"s":null}`:                      `"s" must be a string`,
		`{"s":1}`:                         `"s" must be a string`,
		`{"s":"x","S":"y"}`:               `twice`,
		`{"s":"x","s":"y"}`:               `twice`,
		`{"s":"x","\u0073":"y"}`:          `twice`,
		`{"S":"x"}`:                       `unknown argument "S"`,
		`{"s":"x","sandbox":false}`:       `unknown argument "sandbox"`,
		`{"s":"x","e":"c"}`:               `one of a, b`,
		`{"s":"x","n":0}`:                 `from 1 to 600`,
		`{"s":"x","n":601}`:               `from 1 to 600`,
		`{"s":"x","n":1.5}`:               `whole number`,
		`{"s":"x","n":"5"}`:               `whole number`,
		`{"s":"x","n":1e400}`:             `whole number`,
		`{"s":"x","b":"true"}`:            `true or false`,
		`{"s":"x","l":"a"}`:               `list of strings`,
		`{"s":"x","l":[1]}`:               `list of strings`,
		`{"s":"x","m":{"K":1}}`:           `object of strings`,
		`{"s":"x","m":{"K":"1","k":"2"}}`: `twice`,
		`{"s":"a\u0000b"}`:                `NUL`,
		`{"s":"\ud800"}`:                  `surrogate`,
		"{\"s\":\"\xff\"}":                `UTF-8`,
		"{\"s\":\"a\nb\"}":                `write line breaks as \n`,
		`{"s":"x"}{}`:                     `after`,
		`{"s":"x"`:                        `too early`,
		`{"s":"x",}`:                      ``,
		`["s"]`:                           `object`,
		`"s"`:                             `object`,
		`null`:                            `object`,
		``:                                `too early`,
		strings.Repeat(`{"s":`, 50):       `nested`,
	} {
		_, err := everyKind.Parse([]byte(args))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
	if _, err := everyKind.Parse(append([]byte(`{"s":"x"}`), bytes.Repeat([]byte(" "), MaxArgs)...)); err == nil {
		t.Error("arguments beyond the limit were taken")
	}
	// U+FFFD that was sent as such is a character like any other.
	if args, err := everyKind.Parse([]byte("{\"s\":\"\uFFFD\"}")); err != nil || args.String("s") != "\uFFFD" {
		t.Errorf("%v %v", args, err)
	}
}

// What is accepted is what encoding/json reads.
func FuzzParseArguments(f *testing.F) {
	f.Add([]byte(`{"s":"x","n":5,"l":["a"],"m":{"k":"v"}}`))
	f.Add([]byte(`{"s":"\ud83d\ude00 \u0041"}`))
	f.Add([]byte(`{"s":"x","s":"y"}`))
	f.Add([]byte(`[[[[[[`))
	f.Add([]byte("{\"s\":\"\uFFFD\"}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		args, err := everyKind.Parse(raw)
		if err != nil {
			return
		}
		var plain struct {
			S string
			L []string
			M map[string]string
		}
		if err := json.Unmarshal(raw, &plain); err != nil {
			t.Fatalf("%q was accepted, but: %v", raw, err)
		}
		if args.String("s") != plain.S || strings.ContainsRune(plain.S, 0) || len(args.Strings("l")) != len(plain.L) || len(args.Map("m")) != len(plain.M) {
			t.Errorf("%q: %v differs from %+v", raw, args.Values, plain)
		}
	})
}
