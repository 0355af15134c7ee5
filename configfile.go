package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A byteSize is a number of bytes, in a settings file also a text such as
// "64MiB".
type byteSize int64

// A settingError is a fault in a settings file. It never holds a secret value.
type settingError struct {
	File      string
	Line, Col int    // from 1; columns count characters
	Key       string // "" where the text is no JSON
	Msg       string
}

func (e *settingError) Error() string {
	where := fmt.Sprintf("%s:%d:%d: ", e.File, e.Line, e.Col)
	if e.Key != "" {
		where += e.Key + ": "
	}
	return where + e.Msg
}

// settingsReader decodes a settings file into a struct by its tags (see config),
// and knows where each value stands.
type settingsReader struct {
	file  string
	text  []byte // comments blanked out
	dec   *json.Decoder
	where map[string]int // by key: the offset of its value
}

// A byte order mark, and lines that start with //. A JSON string never spans
// lines.
var comment = lazyRegexp(`(?m)^\x{feff}?[ \t]*//.*$|\A\x{feff}`)

// readSettings decodes a whole file into the struct that into points to. Keys
// that the text leaves out keep their values.
func readSettings(file string, text []byte, into any) (*settingsReader, error) {
	r := &settingsReader{file: file, where: map[string]int{}}
	r.text = comment().ReplaceAllFunc(text, func(s []byte) []byte { return bytes.Repeat([]byte(" "), len(s)) })
	r.dec = json.NewDecoder(bytes.NewReader(r.text))
	if err := r.read(reflect.ValueOf(into).Elem(), "", ""); err != nil {
		return nil, err
	}
	at := r.next()
	if _, err := r.dec.Token(); err != io.EOF {
		return nil, r.fail(at, "", "there is text after the settings")
	}
	return r, nil
}

func (r *settingsReader) fail(at int, key, format string, args ...any) error {
	before := r.text[:at]
	line := bytes.LastIndexByte(before, '\n') + 1
	return &settingError{r.file, bytes.Count(before, []byte("\n")) + 1,
		utf8.RuneCount(before[line:]) + 1, key, fmt.Sprintf(format, args...)}
}

// next returns the offset at which the next token starts.
func (r *settingsReader) next() int {
	at := int(r.dec.InputOffset())
	for at < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[at]) >= 0 {
		at++
	}
	return at
}

// read decodes the next value into v.
func (r *settingsReader) read(v reflect.Value, tag reflect.StructTag, key string) error {
	at := r.next()
	if key != "" {
		r.where[key] = at
	}
	var err error
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		err = r.within('{', v, key, func(i int) error { return r.member(v, tag, key) })
	case reflect.Slice:
		list := reflect.MakeSlice(v.Type(), 0, 0)
		err = r.within('[', v, key, func(i int) error {
			list = reflect.Append(list, reflect.Zero(v.Type().Elem()))
			return r.read(list.Index(i), tag, fmt.Sprintf("%s[%d]", key, i))
		})
		v.Set(list)
	default:
		var raw json.RawMessage
		if err := r.dec.Decode(&raw); err != nil {
			return r.syntax(at, key, err)
		}
		if err := setScalar(v, tag, raw); err != nil {
			return r.fail(at, key, "%v", err)
		}
	}
	return err
}

// within reads the members of an object or list.
func (r *settingsReader) within(open json.Delim, v reflect.Value, key string, member func(i int) error) error {
	at := r.next()
	if tok, err := r.dec.Token(); err != nil {
		return r.syntax(at, key, err)
	} else if tok != open {
		return r.fail(at, key, "must be %s", typeName(v.Type()))
	}
	if v.Kind() == reflect.Map {
		v.Set(reflect.MakeMap(v.Type()))
	}
	for i := 0; r.dec.More(); i++ {
		if err := member(i); err != nil {
			return err
		}
	}
	at = r.next()
	_, err := r.dec.Token()
	return r.syntax(at, key, err)
}

func (r *settingsReader) syntax(at int, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		return r.fail(at, key, "the file ends too early")
	}
	return r.fail(at, key, "%v", err)
}

// member reads one member of an object into a struct or a map.
func (r *settingsReader) member(v reflect.Value, tag reflect.StructTag, prefix string) error {
	at := r.next()
	tok, err := r.dec.Token()
	if err != nil {
		return r.syntax(at, prefix, err)
	}
	name, ok := tok.(string)
	if !ok {
		return r.fail(at, prefix, "a key in quotes is missing")
	}
	key := strings.TrimPrefix(prefix+"."+name, ".")
	if strings.ContainsAny(name, notText) {
		return r.fail(at, prefix, "a key holds NUL, U+FFFD, half of a surrogate pair or what is not UTF-8")
	}
	if _, ok := r.where[key]; ok {
		return r.fail(at, key, "this key stands twice")
	}
	if v.Kind() == reflect.Map {
		if check := mapKeyChecks[tag.Get("is")]; check != nil {
			if err := check(name); err != nil {
				return r.fail(at, key, "%v", err)
			}
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		if elem.Type() == reflect.TypeFor[mcpServer]() {
			elem.Set(reflect.ValueOf(defaultServer))
		}
		err := r.read(elem, tag, key)
		v.SetMapIndex(reflect.ValueOf(name), elem)
		return err
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); name != "-" && name != "" && f.Tag.Get("json") == name {
			return r.read(v.Field(i), f.Tag, key)
		}
	}
	return r.fail(at, key, "unknown key")
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return `a duration in quotes, such as "90s", "3m", "1h" or "200d"`
	case reflect.TypeFor[byteSize]():
		return `a number of bytes or a text such as "64MiB"`
	}
	return map[reflect.Kind]string{reflect.String: "a text in quotes", reflect.Bool: "true or false", reflect.Int: "a whole number",
		reflect.Float64: "a number", reflect.Slice: "a list in [ ]", reflect.Map: "an object in { }", reflect.Struct: "an object in { }"}[t.Kind()]
}

// notText is what texts must not hold. The decoder puts U+FFFD for what is none.
const notText = "\x00\ufffd"

// setScalar gives v a value in JSON and checks it by the tags. The value of a
// secret is never in the error.
func setScalar(v reflect.Value, tag reflect.StructTag, raw []byte) error {
	if v.Kind() == reflect.Pointer {
		if v.SetZero(); string(raw) == "null" {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	var text string
	quoted := json.Unmarshal(raw, &text) == nil && raw[0] == '"'
	var err error
	switch _, size := v.Interface().(byteSize); {
	case string(raw) == "null":
		err = errors.New("is null")
	case v.Type() == reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = parseDuration(text)
		v.SetInt(int64(d))
	case size && quoted:
		var n int64
		n, err = parseSize(text)
		v.SetInt(n)
	default:
		err = json.Unmarshal(raw, v.Addr().Interface())
	}
	if err != nil {
		return fmt.Errorf("must be %s", typeName(v.Type()))
	}
	if strings.ContainsAny(text, notText) {
		return errors.New("a text holds NUL, U+FFFD, half of a surrogate pair or what is not UTF-8")
	}
	if r := tag.Get("range"); r != "" && !inRange(v, r) {
		low, high, _ := strings.Cut(r, "..")
		return fmt.Errorf("must be from %s to %s", low, high)
	}
	if v.Kind() != reflect.String {
		return nil
	}
	if one := strings.Fields(tag.Get("one")); len(one) > 0 && !slices.Contains(one, text) {
		return fmt.Errorf("must be %s, not %q", strings.Join(one, ", "), text)
	}
	if check := textChecks[tag.Get("is")]; check != nil {
		return check(text)
	}
	return nil
}

// inRange compares a number with bounds in its own notation.
func inRange(v reflect.Value, bounds string) bool {
	value := func(s string) float64 {
		switch v.Interface().(type) {
		case time.Duration:
			d, _ := parseDuration(s)
			return float64(d)
		case byteSize:
			size, _ := parseSize(s)
			return float64(size)
		}
		n, _ := strconv.ParseFloat(s, 64)
		return n
	}
	low, high, _ := strings.Cut(bounds, "..")
	n := v.Convert(reflect.TypeFor[float64]()).Float()
	return n >= value(low) && n <= value(high)
}

var daysPart = lazyRegexp(`^([0-9]{1,5})d(.*)$`)

// parseDuration reads what time.ParseDuration does, with days of 24 hours (d)
// in front.
func parseDuration(s string) (time.Duration, error) {
	var days time.Duration
	if m := daysPart().FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[1]) // at most five digits
		if days, s = time.Duration(n)*24*time.Hour, m[2]; s == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > math.MaxInt64-days {
		return 0, errors.New("is no duration")
	}
	return days + d, nil
}

// durationText writes a duration so that parseDuration reads it back.
func durationText(d time.Duration) string {
	if day := 24 * time.Hour; d > 0 && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return strings.Replace(strings.Replace(d.String(), "m0s", "m", 1), "h0m", "h", 1)
}

var sizeForm = lazyRegexp(`^([0-9]{1,6})([KMGT])iB$`)

func parseSize(s string) (int64, error) {
	m := sizeForm().FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("is no size")
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	return n << (10 + 10*strings.Index("KMGT", m[2])), err
}

// textForm returns a check of a text by a regular expression; %q in the fault is the
// text.
func textForm(expr, fault string) func(string) error {
	re := lazyRegexp(expr)
	return func(s string) error {
		if re().MatchString(s) {
			return nil
		}
		return errors.New(strings.Replace(fault, "%q", strconv.Quote(s), 1))
	}
}

// mapKeyChecks are the checks, by the "is" tag, of the names in an object.
var mapKeyChecks = map[string]func(string) error{
	"envName":    textChecks["variable"],
	"serverName": textForm(`^[A-Za-z0-9_-]{1,32}$`, "%q is no name of a server (letters, digits, _ and -)"),
	"header":     textForm("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", "%q is no name of a header"), // RFC 9110, section 5.6.2
}

// textChecks are the checks, by the "is" tag, of a text. An empty one means
// "not set" where the form allows it.
var textChecks = map[string]func(string) error{
	"filled":      textForm(`.`, "must not be empty"),
	"line":        textForm(`^[^\x00-\x1f\x7f]*$`, "must not hold control characters"),
	"headerValue": headerValue,
	"header":      headerValue,
	"variable":    textForm(`^[A-Za-z_][A-Za-z0-9_]*$`, "%q is no name of a variable"),
	"hostPort":    textForm(`^$|^([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\]):[1-9][0-9]{0,4}$`, "%q is no HOST:PORT"),
	"address":     textForm(`^$|^[^\s\x00-\x1f\x7f@<>(),;:\\"]+@[^\s\x00-\x1f\x7f@<>(),;:\\"]+$`, "%q is no mail address"),
	"loopback": textForm(`^(127\.0\.0\.1|\[::1\]|localhost):[0-9]{1,5}$`,
		"%q is no loopback address: picket listens on 127.0.0.1, [::1] or localhost and a port only"),
	"hostPattern": checkHostPattern,
	"absPath": func(s string) error {
		if s != "" && !filepath.IsAbs(s) && s != "~" && !strings.HasPrefix(s, "~/") {
			return fmt.Errorf("%q must be an absolute path, or start with ~/", s)
		}
		return nil
	},
	"httpURL": func(s string) error {
		u, err := url.Parse(s)
		switch {
		case s == "":
			return nil
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			return errors.New("must be a URL that starts with http:// or https:// and a host")
		case u.User != nil:
			return errors.New("must not hold a user name or password")
		case u.Fragment != "" || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }):
			return errors.New("must not hold a fragment, a backslash or blanks")
		}
		return nil
	},
}

// checkHostPattern checks an entry of an allow-list. An empty one or a lone *
// would allow every host.
var checkHostPattern = textForm(`^(\*\.[a-z0-9_-]+(\.[a-z0-9_-]+)+|[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f]*:[0-9a-f:.]*)$`,
	"%q is no host, and no *.DOMAIN of two labels or more, in small ASCII letters")

var headerValue = textForm(`^([^\x00-\x20\x7f]([^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?$`,
	"cannot be sent in a header: it holds a control character or blanks at an end")

// marshalPlain encodes without the escapes for HTML that json.Marshal adds.
func marshalPlain(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
