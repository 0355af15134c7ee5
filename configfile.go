package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/mail"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
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

// readSettings decodes a whole file into the struct that into points to. Keys
// that the text leaves out keep their values.
func readSettings(file string, text []byte, into any) (*settingsReader, error) {
	r := &settingsReader{file: file, text: blankComments(text), where: map[string]int{}}
	for i := 0; i < len(r.text); {
		c, n := utf8.DecodeRune(r.text[i:])
		if c == utf8.RuneError && n == 1 {
			return nil, r.fail(i, "", "the file is not valid UTF-8")
		}
		i += n
	}
	r.dec = json.NewDecoder(bytes.NewReader(r.text))
	r.dec.UseNumber()
	if err := r.read(reflect.ValueOf(into).Elem(), "", ""); err != nil {
		return nil, err
	}
	at := r.next()
	if _, err := r.dec.Token(); err != io.EOF {
		return nil, r.fail(at, "", "there is text after the settings")
	}
	return r, nil
}

// blankComments replaces a byte order mark and each line that starts with //
// by blanks, so that offsets stay true. A JSON string never spans lines.
func blankComments(text []byte) []byte {
	out := bytes.Clone(text)
	if bytes.HasPrefix(out, []byte("\ufeff")) {
		copy(out, "   ")
	}
	for start := 0; start < len(out); {
		end := len(out)
		if i := bytes.IndexByte(out[start:], '\n'); i >= 0 {
			end = start + i
		}
		if line := out[start:end]; bytes.HasPrefix(bytes.TrimLeft(line, " \t\r"), []byte("//")) {
			for i := range line {
				line[i] = ' '
			}
		}
		start = end + 1
	}
	return out
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

func (r *settingsReader) token(key string) (json.Token, int, error) {
	at := r.next()
	tok, err := r.dec.Token()
	switch {
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, at, r.fail(at, key, "the file ends too early")
	case err != nil:
		return nil, at, r.fail(at, key, "%v", err)
	}
	if s, ok := tok.(string); ok && strings.ContainsAny(s, "\x00\ufffd") {
		return nil, at, r.fail(at, key, "a text holds NUL, U+FFFD or half of a surrogate pair")
	}
	return tok, at, nil
}

// read decodes the next value into v.
func (r *settingsReader) read(v reflect.Value, tag reflect.StructTag, key string) error {
	tok, at, err := r.token(key)
	if err != nil {
		return err
	}
	if key != "" {
		r.where[key] = at
	}
	if v.Kind() == reflect.Pointer {
		if tok == nil {
			v.SetZero()
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	wrong := func() error { return r.fail(at, key, "must be %s", typeName(v.Type())) }
	switch tok := tok.(type) {
	case json.Delim:
		switch {
		case tok == '{' && v.Kind() == reflect.Struct:
			err = r.readStruct(v, key)
		case tok == '{' && v.Kind() == reflect.Map:
			err = r.readMap(v, tag, key)
		case tok == '[' && v.Kind() == reflect.Slice:
			err = r.readList(v, tag, key)
		default:
			return wrong()
		}
		if err == nil {
			_, _, err = r.token(key) // the closing bracket
		}
		return err
	case string: // also of a duration or size, whose kind is Int64
		if v.Kind() != reflect.String && v.Kind() != reflect.Int64 || setFromText(v, tok) != nil {
			return wrong()
		}
	case json.Number:
		_, size := v.Interface().(byteSize)
		if v.Kind() != reflect.Int && v.Kind() != reflect.Float64 && !size || setFromText(v, tok.String()) != nil {
			return wrong()
		}
	case bool:
		if v.Kind() != reflect.Bool {
			return wrong()
		}
		v.SetBool(tok)
	default: // null
		return wrong()
	}
	if err := checkSetting(v, tag); err != nil {
		return r.fail(at, key, "%v", err)
	}
	return nil
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return `a duration in quotes, such as "90s", "3m", "1h" or "200d"`
	case t == reflect.TypeFor[byteSize]():
		return `a number of bytes or a text such as "64MiB"`
	}
	switch t.Kind() {
	case reflect.String:
		return "a text in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list in [ ]"
	}
	return "an object in { }"
}

// keyed reads the keys of an object, each of them once, and calls value for
// what follows.
func (r *settingsReader) keyed(prefix string, value func(name, key string, at int) error) error {
	if prefix != "" {
		prefix += "."
	}
	seen := map[string]bool{}
	for r.dec.More() {
		tok, at, err := r.token(strings.TrimSuffix(prefix, "."))
		if err != nil {
			return err
		}
		name, ok := tok.(string)
		if !ok {
			return r.fail(at, "", "a key in quotes is missing")
		}
		if seen[name] {
			return r.fail(at, prefix+name, "this key stands twice")
		}
		seen[name] = true
		if err := value(name, prefix+name, at); err != nil {
			return err
		}
	}
	return nil
}

func (r *settingsReader) readStruct(v reflect.Value, prefix string) error {
	return r.keyed(prefix, func(name, key string, at int) error {
		for i := range v.NumField() {
			if f := v.Type().Field(i); name != "-" && f.IsExported() && jsonName(f) == name {
				return r.read(v.Field(i), f.Tag, key)
			}
		}
		return r.fail(at, key, "unknown key")
	})
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func (r *settingsReader) readMap(v reflect.Value, tag reflect.StructTag, prefix string) error {
	v.Set(reflect.MakeMap(v.Type()))
	return r.keyed(prefix, func(name, key string, at int) error {
		if check := mapKeyChecks[tag.Get("is")]; check != nil {
			if err := check(name); err != nil {
				return r.fail(at, key, "%v", err)
			}
		}
		elem := reflect.New(v.Type().Elem())
		if d, ok := elem.Interface().(interface{ setDefaults() }); ok {
			d.setDefaults()
		}
		if err := r.read(elem.Elem(), tag, key); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(name), elem.Elem())
		return nil
	})
}

func (r *settingsReader) readList(v reflect.Value, tag reflect.StructTag, prefix string) error {
	list := reflect.MakeSlice(v.Type(), 0, 0)
	for r.dec.More() {
		elem := reflect.New(v.Type().Elem()).Elem()
		if err := r.read(elem, tag, fmt.Sprintf("%s[%d]", prefix, list.Len())); err != nil {
			return err
		}
		list = reflect.Append(list, elem)
	}
	v.Set(list)
	return nil
}

// setFromText gives a scalar its value as text; a list of texts is split at
// commas.
func setFromText(v reflect.Value, text string) error {
	switch v.Interface().(type) {
	case time.Duration:
		d, err := parseDuration(text)
		v.SetInt(int64(d))
		return err
	case byteSize:
		n, err := parseSize(text)
		v.SetInt(n)
		return err
	case []string:
		var list []string
		for s := range strings.SplitSeq(text, ",") {
			list = append(list, strings.TrimSpace(s))
		}
		v.Set(reflect.ValueOf(list))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return errors.New("must be a whole number")
		}
		v.SetInt(int64(n))
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return errors.New("must be a number")
		}
		v.SetFloat(f)
	default:
		return errors.New("cannot be given as text")
	}
	return nil
}

var daysPart = regexp.MustCompile(`^([0-9]{1,5})d`)

// parseDuration reads what time.ParseDuration does, with days of 24 hours (d)
// in front.
func parseDuration(s string) (time.Duration, error) {
	var days time.Duration
	if m := daysPart.FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[1]) // at most five digits
		days = time.Duration(n) * 24 * time.Hour
		if s = s[len(m[0]):]; s == "" {
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
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var sizeForm = regexp.MustCompile(`^([0-9]{1,18})\s*(|B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)$`)

func parseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("is no size")
	}
	n, _ := strconv.ParseInt(m[1], 10, 64) // at most 18 digits
	unit := map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
		"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[m[2]]
	if n > math.MaxInt64/unit {
		return 0, errors.New("is too large")
	}
	return n * unit, nil
}

// checkSetting checks a scalar, or each element of a list of scalars, by the
// tags of its field. The value of a secret is never in the error.
func checkSetting(v reflect.Value, tag reflect.StructTag) error {
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			if err := checkSetting(v.Index(i), tag); err != nil {
				return err
			}
		}
		return nil
	}
	if r := tag.Get("range"); r != "" {
		low, high, _ := strings.Cut(r, "..")
		min, _ := strconv.ParseFloat(low, 64)
		max, _ := strconv.ParseFloat(high, 64)
		var n float64
		switch {
		case v.Kind() == reflect.Pointer && v.IsNil():
			n = min
		case v.Kind() == reflect.Float64:
			n = v.Float()
		case v.Type() == reflect.TypeFor[time.Duration]():
			if n = time.Duration(v.Int()).Seconds(); n < min || n > max {
				return fmt.Errorf("must be from %s to %s", durationText(time.Duration(min)*time.Second), durationText(time.Duration(max)*time.Second))
			}
		default:
			n = float64(v.Int())
		}
		if !(n >= min && n <= max) {
			return fmt.Errorf("must be from %s to %s", low, high)
		}
	}
	if v.Kind() != reflect.String {
		return nil
	}
	s := v.String()
	if one := strings.Fields(tag.Get("one")); len(one) > 0 && !slices.Contains(one, s) {
		return fmt.Errorf("must be %s, not %q", strings.Join(one, ", "), s)
	}
	if check := textChecks[tag.Get("is")]; check != nil {
		return check(s)
	}
	return nil
}

var (
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	serverName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
)

func matches(re *regexp.Regexp, what string) func(string) error {
	return func(s string) error {
		if !re.MatchString(s) {
			return fmt.Errorf("%q is no %s", s, what)
		}
		return nil
	}
}

// mapKeyChecks are the checks, by the "is" tag, of the names in an object.
var mapKeyChecks = map[string]func(string) error{
	"envName":    matches(envName, "name of a variable"),
	"serverName": matches(serverName, "name of a server (letters, digits, _ and -)"),
	"header": func(s string) error {
		if !httpguts.ValidHeaderFieldName(s) {
			return fmt.Errorf("%q is no name of a header", s)
		}
		return nil
	},
}

// textChecks are the checks, by the "is" tag, of a text. An empty one means
// "not set" unless the check says otherwise.
var textChecks = map[string]func(string) error{
	"filled": func(s string) error {
		if s == "" {
			return errors.New("must not be empty")
		}
		return nil
	},
	"line": func(s string) error {
		if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return errors.New("must not hold control characters")
		}
		return nil
	},
	"headerValue": checkHeaderValue,
	"header":      checkHeaderValue,
	"absPath": func(s string) error {
		if s != "" && !filepath.IsAbs(s) && s != "~" && !strings.HasPrefix(s, "~/") {
			return fmt.Errorf("%q must be an absolute path, or start with ~/", s)
		}
		return nil
	},
	"variable": matches(envName, "name of a variable"),
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
	"hostPort": func(s string) error {
		if u, err := url.Parse("x://" + s); s != "" && (err != nil || u.Host != s || u.Hostname() == "" || !portForm.MatchString(u.Port())) {
			return fmt.Errorf("%q is no HOST:PORT", s)
		}
		return nil
	},
	"address": func(s string) error {
		if a, err := mail.ParseAddress(s); s != "" && (err != nil || a.Address != s) {
			return fmt.Errorf("%q is no mail address", s)
		}
		return nil
	},
	"loopback": func(s string) error {
		a, err := netip.ParseAddrPort(strings.Replace(s, "localhost:", "127.0.0.1:", 1))
		if err != nil || !a.Addr().IsLoopback() || a.Addr().Is4In6() || a.Addr().Zone() != "" {
			return fmt.Errorf("%q is no loopback address: picket listens on 127.0.0.1, [::1] or localhost and a port only", s)
		}
		return nil
	},
	"hostPattern": checkHostPattern,
}

func checkHeaderValue(s string) error {
	if !httpguts.ValidHeaderFieldValue(s) || strings.TrimSpace(s) != s {
		return errors.New("cannot be sent in a header: it holds a control character or blanks at an end")
	}
	return nil
}

var portForm = regexp.MustCompile(`^[1-9][0-9]{0,4}$`)

var hostLabel = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// checkHostPattern checks an entry of an allow-list: a host, or "*." and a
// domain of two labels or more for its sub-domains, in the form in which hosts
// are compared. An empty entry or a lone * would allow everything and is none.
func checkHostPattern(s string) error {
	host, wild := strings.CutPrefix(s, "*.")
	if a, err := netip.ParseAddr(host); err == nil && !wild && a.String() == s {
		return nil
	}
	labels := strings.Split(host, ".")
	for _, l := range labels {
		if !hostLabel.MatchString(l) {
			return fmt.Errorf("%q is no host, and no *.DOMAIN, in small ASCII letters", s)
		}
	}
	if wild && len(labels) < 2 {
		return fmt.Errorf("%q is too wide", s)
	}
	return nil
}

// marshalPlain encodes without the escapes for HTML that json.Marshal adds.
func marshalPlain(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
