package tools

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

var argsTool = Tool{Params: []Param{
	{Name: "s", Type: "string", Required: true, Enum: []string{"a", "b"}},
	{Name: "t", Type: "string"},
	{Name: "n", Type: "integer", Min: 1, Max: 9, Default: int64(3)},
	{Name: "b", Type: "boolean"},
	{Name: "l", Type: "strings"},
	{Name: "m", Type: "map"},
}}

func TestParseArgs(t *testing.T) {
	for in, want := range map[string]map[string]any{
		`{"s":"a"}`: {"s": "a", "n": int64(3)},
		`{"s":"b","n":5.0,"b":true,"t":"","l":["x",""],"m":{"k":"v"}}`: {"s": "b", "n": int64(5), "b": true, "t": "",
			"l": []string{"x", ""}, "m": map[string]string{"k": "v"}},
		`{"s":"a","n":null,"t":null}`: {"s": "a", "n": int64(3)},
		` {"s":"\u0061","n":1e0} `:    {"s": "a", "n": int64(1)},
		`{"s":"a","l":[],"m":{}}`:     {"s": "a", "n": int64(3), "l": []string{}, "m": map[string]string{}},
	} {
		args, err := argsTool.Parse([]byte(in))
		if err != nil || !reflect.DeepEqual(args.Values, want) {
			t.Errorf("%s: %#v, %v", in, args.Values, err)
		}
	}
	for in, want := range map[string]string{
		`{"s":"a","x":1}`:               `unknown argument "x"`,
		`{}`:                            `"s" is missing`,
		`{"s":null}`:                    `"s" must be a string`,
		`{"s":1}`:                       `"s" must be a string`,
		`{"s":"c"}`:                     `"s" must be one of a, b`,
		`{"s":"a","n":0}`:               `"n" must be from 1 to 9`,
		`{"s":"a","n":1.5}`:             `"n" must be a whole number`,
		`{"s":"a","n":"1"}`:             `"n" must be a whole number`,
		`{"s":"a","n":1e400}`:           `"n" must be a whole number`,
		`{"s":"a","b":"true"}`:          `"b" must be true or false`,
		`{"s":"a","l":"x"}`:             `"l" must be a list of strings`,
		`{"s":"a","l":["x",1]}`:         `"l" must be a list of strings`,
		`{"s":"a","m":[]}`:              `"m" must be an object of strings`,
		`{"s":"a","m":{"k":"v","j":1}}`: `"m" must be an object of strings`,
		`[]`:                            `one JSON object`,
		`"s"`:                           `one JSON object`,
		``:                              `ends too early`,
		`{"s":"a"`:                      `ends too early`,
		`{"s":"a"}{}`:                   `text after`,
		`{"s":"a","s":"b"}`:             `stands twice`,
		`{"s":"a","S":"b"}`:             `stands twice`,
		`{"s":"a","\u0073":"b"}`:        `stands twice`,
		`{"s":"a","m":{"k":"","k":""}}`: `stands twice`,
		`{"s":"a","t":"\u0000"}`:        `NUL`,
		`{"s":"a","m":{"\u0000":""}}`:   `NUL`,
		`{"s":"a","t":"\ud800"}`:        `surrogate`,
		"{\"s\":\"a\",\"t\":\"\xff\"}":  `not valid UTF-8`,
		"{\"s\":\"a\",\"t\":\"\n\"}":    `write line breaks as \n`,
		`{"s":"a","l":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`: `nested deeper`,
		`{"s":"a","l":` + strings.Repeat("[", 100000) + `}`:                       `nested deeper`,
		`{"s":"a","t":"` + strings.Repeat("x", MaxArgs) + `"}`:                    `longer than`,
	} {
		if args, err := argsTool.Parse([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, %v", in, args, err)
		}
	}
}

// What is accepted means the same to encoding/json.
func FuzzDecodeStrict(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":null}],"c":"é"}`, `[]`, `1e5`, `"\u0000"`, `{"a":1,"A":2}`, `[[[`, `{"a":1}}`, `{1:2}`, `nul`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := DecodeStrict(raw)
		if err != nil {
			return
		}
		d := json.NewDecoder(strings.NewReader(string(raw)))
		d.UseNumber()
		var want any
		if err := d.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %#v, not %#v (%v)", raw, got, want, err)
		}
	})
}
