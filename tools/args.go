package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits on the arguments of one call.
const (
	MaxArgs      = 1 << 20 // bytes of the JSON text
	maxArgsDepth = 16
)

// Args are the frozen, validated arguments of one call, defaults filled in.
type Args struct {
	Values map[string]any // string, int64, bool, []string or map[string]string
}

// String returns a string argument, "" if absent.
func (a Args) String(name string) string { s, _ := a.Values[name].(string); return s }

// Int returns an integer argument, 0 if absent.
func (a Args) Int(name string) int64 { n, _ := a.Values[name].(int64); return n }

// Bool returns a boolean argument, false if absent.
func (a Args) Bool(name string) bool { b, _ := a.Values[name].(bool); return b }

// Strings returns a list argument, nil if absent.
func (a Args) Strings(name string) []string { l, _ := a.Values[name].([]string); return l }

// Map returns a map argument, nil if absent.
func (a Args) Map(name string) map[string]string {
	m, _ := a.Values[name].(map[string]string)
	return m
}

// Has reports whether the argument was given or has a default.
func (a Args) Has(name string) bool { _, ok := a.Values[name]; return ok }

// Schema returns the tool's parameters as JSON Schema, in the plain subset that
// every server accepts. It is made once: parameters never change, and neither may
// the result.
func (t Tool) Schema() json.RawMessage {
	if len(t.Params) == 0 {
		return t.makeSchema()
	}
	key := schemaKey{&t.Params[0], len(t.Params)}
	if made, ok := schemas.Load(key); ok {
		return made.(json.RawMessage)
	}
	made, _ := schemas.LoadOrStore(key, t.makeSchema())
	return made.(json.RawMessage)
}

// A schemaKey stands for a list of parameters, which it keeps in memory.
type schemaKey struct {
	first *Param
	count int
}

var schemas sync.Map // schemaKey to json.RawMessage

func (t Tool) makeSchema() json.RawMessage {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","properties":{`)
	var required []string
	for i, p := range t.Params {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s", quoteJSON(p.Name), p.schema())
		if p.Required {
			required = append(required, p.Name)
		}
	}
	b.WriteByte('}')
	if len(required) > 0 {
		fmt.Fprintf(&b, `,"required":%s`, quoteJSON(required))
	}
	b.WriteByte('}')
	return b.Bytes()
}

func (p Param) schema() string {
	s := `{"type":`
	switch p.Type {
	case "strings":
		s += `"array","items":{"type":"string"}`
	case "map":
		s += `"object","additionalProperties":{"type":"string"}`
	default:
		s += quoteJSON(p.Type)
	}
	if p.Description != "" {
		s += `,"description":` + quoteJSON(p.Description)
	}
	if len(p.Enum) > 0 {
		s += `,"enum":` + quoteJSON(p.Enum)
	}
	if p.Min != 0 || p.Max != 0 {
		s += fmt.Sprintf(`,"minimum":%d,"maximum":%d`, p.Min, p.Max)
	}
	return s + "}"
}

// quoteJSON encodes v without the escapes for HTML that json.Marshal adds.
func quoteJSON(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // only strings and lists of them come here
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Parse validates the arguments of a call against the tool's parameters. The
// error names the field at fault and is meant for the model.
func (t Tool) Parse(raw []byte) (Args, error) {
	if len(raw) > MaxArgs {
		return Args{}, fmt.Errorf("the arguments are longer than %d bytes", MaxArgs)
	}
	v, err := DecodeStrict(raw)
	if err != nil {
		return Args{}, err
	}
	obj, ok := v.(map[string]any)
	if !ok {
		return Args{}, fmt.Errorf("the arguments must be one JSON object")
	}
	args := Args{Values: map[string]any{}}
	for name, val := range obj {
		i := slices.IndexFunc(t.Params, func(p Param) bool { return p.Name == name })
		if i < 0 {
			return Args{}, fmt.Errorf("unknown argument %q", name)
		}
		if val == nil && !t.Params[i].Required {
			continue // some models send null for what they leave out
		}
		if args.Values[name], err = t.Params[i].convert(val); err != nil {
			return Args{}, err
		}
	}
	for _, p := range t.Params {
		if args.Has(p.Name) {
			continue
		}
		if p.Required {
			return Args{}, fmt.Errorf("argument %q is missing", p.Name)
		}
		if p.Default != nil {
			args.Values[p.Name] = p.Default
		}
	}
	return args, nil
}

func (p Param) convert(v any) (any, error) {
	kind := "a list of strings"
	switch p.Type {
	case "string":
		kind = "a string"
		if s, ok := v.(string); ok {
			if len(p.Enum) > 0 && !slices.Contains(p.Enum, s) {
				return nil, fmt.Errorf("argument %q must be one of %s", p.Name, strings.Join(p.Enum, ", "))
			}
			return s, nil
		}
	case "integer":
		kind = "a whole number"
		if n, ok := wholeNumber(v); ok {
			if (p.Min != 0 || p.Max != 0) && (n < p.Min || n > p.Max) {
				return nil, fmt.Errorf("argument %q must be from %d to %d", p.Name, p.Min, p.Max)
			}
			return n, nil
		}
	case "boolean":
		kind = "true or false"
		if b, ok := v.(bool); ok {
			return b, nil
		}
	case "map":
		kind = "an object of strings"
		obj, ok := v.(map[string]any)
		out := make(map[string]string, len(obj))
		for k, e := range obj {
			s, isString := e.(string)
			out[k], ok = s, ok && isString
		}
		if ok {
			return out, nil
		}
	case "strings":
		list, ok := v.([]any)
		out := make([]string, len(list))
		for i, e := range list {
			s, isString := e.(string)
			out[i], ok = s, ok && isString
		}
		if ok {
			return out, nil
		}
	}
	return nil, fmt.Errorf("argument %q must be %s", p.Name, kind)
}

func wholeNumber(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	if i, err := n.Int64(); err == nil {
		return i, true
	}
	f, err := n.Float64() // 5.0 and 1e2 are whole numbers too
	return int64(f), err == nil && f == math.Trunc(f) && math.Abs(f) <= 1<<53
}

// DecodeStrict reads one JSON value in which every string is UTF-8 without NUL
// and no object has a key twice, also not in another case: encoding/json would
// take the last one, and what was approved must be what is read. Numbers are
// json.Number.
func DecodeStrict(raw []byte) (any, error) {
	if !utf8.Valid(raw) {
		return nil, fmt.Errorf("the arguments are not valid UTF-8")
	}
	if halfSurrogate(raw) {
		return nil, fmt.Errorf("a string holds half of a surrogate pair")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = fmt.Errorf("there is text after the JSON value")
		}
	}
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		err = fmt.Errorf("the JSON ends too early")
	case err != nil && strings.Contains(err.Error(), "in string literal"):
		err = fmt.Errorf("a control character stands raw in a string: write line breaks as \\n")
	}
	return v, err
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	tok, err := d.Token()
	open, composite := tok.(json.Delim)
	if s, ok := tok.(string); ok && strings.IndexByte(s, 0) >= 0 {
		return nil, fmt.Errorf("a string holds a NUL byte")
	}
	if err != nil || !composite {
		return tok, err
	}
	if depth == maxArgsDepth {
		return nil, fmt.Errorf("the JSON is nested deeper than %d", maxArgsDepth)
	}
	list, obj, seen := []any{}, map[string]any{}, map[string]bool{}
	for d.More() {
		key := ""
		if open == '{' {
			k, err := decodeValue(d, depth)
			if err != nil {
				return nil, err
			}
			key = k.(string) // the decoder lets nothing else be a key
			if fold := strings.ToLower(key); seen[fold] {
				return nil, fmt.Errorf("the key %q stands twice", key)
			} else {
				seen[fold] = true
			}
		}
		v, err := decodeValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		if open == '{' {
			obj[key] = v
		} else {
			list = append(list, v)
		}
	}
	if _, err := d.Token(); err != nil { // the end of it
		return nil, err
	}
	if open == '{' {
		return obj, nil
	}
	return list, nil
}

// halfSurrogate reports an escape that is half of a surrogate pair. Decoding
// makes U+FFFD of it, so that what is shown would not be what was sent.
func halfSurrogate(raw []byte) bool {
	unit := func(b []byte) (rune, bool) {
		if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
		return rune(n), err == nil
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if r, ok := unit(raw[i:]); ok && utf16.IsSurrogate(r) {
			low, ok := unit(raw[i+6:])
			if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
				return true
			}
			i += 10
		}
		i++ // what is escaped is no backslash of its own
	}
	return false
}
