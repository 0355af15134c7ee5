package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A serverError is what a server said went wrong, in whichever of the shapes
// that servers use. Its texts are the server's: they go through words before
// anybody sees them.
type serverError struct {
	Message, Code, Type, Param string

	body string // as sent
}

func (e *serverError) Error() string { return e.Message }

func readServerError(body []byte) error { return parseServerError(body) }

func parseServerError(body []byte) *serverError {
	e := &serverError{body: string(body)}
	body = bytes.TrimSpace(body)
	body = bytes.TrimSpace(bytes.TrimPrefix(body, []byte("data:")))
	switch {
	case json.Valid(body):
		e.find(body, 0)
	case !bytes.HasPrefix(body, []byte("<")): // a page of a proxy says nothing
		e.Message = string(body)
	}
	return e
}

// find takes the first message in a value, and the codes on the way to it.
func (e *serverError) find(val []byte, depth int) {
	if len(val) == 0 || depth > 6 || e.Message != "" {
		return
	}
	switch val[0] {
	case '"':
		s := valText(val)
		if raw := []byte(s); strings.HasPrefix(s, "{") && json.Valid(raw) { // a relay's own wrapping
			e.find(raw, depth+1)
		}
		if e.Message == "" {
			e.Message = s
		}
	case '[':
		jsonMembers(val, func(_, v []byte) { e.find(v, depth+1) })
	case '{':
		found := map[string][]byte{}
		jsonMembers(val, func(k, v []byte) { found[string(k)] = v })
		for key, to := range map[string]*string{"code": &e.Code, "type": &e.Type, "param": &e.Param} {
			if s := valText(found[key]); s != "" {
				*to = s
			}
		}
		for _, key := range []string{"error", "message", "detail", "msg", "error_description", "errors"} {
			e.find(found[key], depth+1)
		}
	}
}

// quota reports whether the account is used up, which waiting does not mend.
func (e *serverError) quota() bool {
	return e != nil && (e.Code == "insufficient_quota" || e.Type == "insufficient_quota") &&
		!strings.Contains(strings.ToLower(e.Message), "per minute")
}

// boundedLine makes a text of others one line of at most max characters.
func boundedLine(s string, max int) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
	}), " ")
	n := 0
	for i := range s {
		if n++; n > max {
			return s[:i] + "…"
		}
	}
	return s
}

var (
	urlQuery = regexp.MustCompile(`(\w+://[^\s?#"'<>]*)[?#][^\s"'<>]*`)
	urlUser  = regexp.MustCompile(`(\w+://)[^\s/@"'<>]+@`)
	bearer   = regexp.MustCompile(`(?i)\b(bearer\s+)[^\s"',]+`)
)

// hideQuery takes out of addresses what may be secret.
func hideQuery(s string) string {
	return urlUser.ReplaceAllString(urlQuery.ReplaceAllString(s, "$1?…"), "$1…@")
}

// words makes a text of the server fit to be shown.
func (m *chatModel) words(s string) string {
	secrets := []string{m.s.APIKey, url.QueryEscape(m.s.APIKey)}
	for _, v := range m.s.Headers {
		secrets = append(secrets, v)
	}
	for _, v := range secrets {
		if len(v) >= 8 || v != "" && v == m.s.APIKey {
			s = strings.ReplaceAll(s, v, "[key]")
		}
	}
	s = bearer.ReplaceAllString(hideQuery(s), "$1[key]")
	if m.s.Redact != nil {
		s = m.s.Redact(s)
	}
	return boundedLine(s, 300)
}

// rootCause returns the innermost text of an error, without the address that
// net/http puts before it.
func rootCause(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return strings.TrimSuffix(err.Error(), ".")
}

func isCertError(err error) bool {
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var host x509.HostnameError
	return errors.As(err, &verify) || errors.As(err, &record) || errors.As(err, &host) ||
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

var (
	noTools = regexp.MustCompile(`(?i)(tool|function)s?\b.{0,60}(not support|unsupported|not enabled|not available for|requires? --)` +
		`|(not support|unsupported).{0,40}\b(tools?|function)s?\b|support tool use|--enable-auto-tool-choice|--jinja`)
	noModel = regexp.MustCompile(`(?i)\bmodel\b.{0,120}(not found|not exist|unknown|not available|no such|not a valid)` +
		`|(unknown|invalid|no such|unsupported) model\b|not a valid model`)
	tooLong = regexp.MustCompile(`(?i)context.?(length|window|size)|maximum context|too many tokens|prompt is too long|exceeds? the (available )?context`)
)

// permanent reports whether a failure of the server's is one that trying again
// cannot mend.
func (m *chatModel) permanent(f *modelFailure) bool {
	return f.status == http.StatusNotImplemented ||
		f.server != nil && (noTools.MatchString(f.server.Message) || tooLong.MatchString(f.server.Message))
}

// unknownModel reports whether the server does not have the model.
func (f *modelFailure) unknownModel() bool {
	if f.server == nil {
		return false
	}
	return f.server.Code == "model_not_found" || noModel.MatchString(f.server.Message) && f.status != http.StatusUnauthorized
}

// explain says in one sentence what failed and what to do. have are the models
// that the server has, where it was asked.
func (m *chatModel) explain(f *modelFailure, req ModelRequest, have []string) string {
	if f.server == nil {
		return m.words(f.err.Error())
	}
	e, at, name := f.server, m.origin(), m.s.Name
	status := f.status
	if n, err := strconv.Atoi(e.Code); err == nil && f.status == http.StatusOK && n >= 400 && n < 600 {
		status = n
	}
	said := m.words(e.Message)
	if said == "" {
		said = cmpOrText(http.StatusText(status), "no reason given")
	}
	filtered := e.Code == "content_filter" || strings.Contains(e.body, "ResponsibleAIPolicyViolation")
	switch {
	case status/100 == 3:
		to, _ := url.Parse(f.header.Get("Location"))
		if to == nil {
			to = &url.URL{}
		}
		to.RawQuery, to.User = "", nil
		return fmt.Sprintf("%s redirects to %q, which is not followed: set the base URL to the right address", at, boundedLine(to.String(), 200))
	case filtered:
		return errFiltered.Error()
	case len(req.Tools) > 0 && noTools.MatchString(e.Message):
		return m.words(fmt.Sprintf("the model %q cannot call tools here: choose one that can%s (%s)", name, m.toolHint(e), said))
	case status == http.StatusUnauthorized && m.s.APIKey == "" && len(m.s.Headers) == 0:
		return fmt.Sprintf("%s wants an API key: set PICKET_API_KEY or model.api_key (%s)", at, said)
	case status == http.StatusUnauthorized:
		return fmt.Sprintf("%s refused the API key: check PICKET_API_KEY or model.api_key (%s)", at, said)
	case f.unknownModel():
		return m.explainModel(have, said)
	case status == http.StatusForbidden:
		return fmt.Sprintf("%s does not let this key use %q: check the key's rights or choose another model (%s)", at, name, said)
	case status == http.StatusPaymentRequired || e.quota():
		return fmt.Sprintf("the account at %s has no credit left: add credit or choose another server (%s)", at, said)
	case tooLong.MatchString(e.Message) || e.Code == "context_length_exceeded" || status == http.StatusRequestEntityTooLarge:
		return fmt.Sprintf("the conversation is longer than %q takes: lower model.context_tokens or start a new chat (%s)", name, said)
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || e.Code == "not_a_completion" ||
		strings.Contains(strings.ToLower(e.Message), "unexpected endpoint"):
		return fmt.Sprintf("%s has no chat completions: check the base URL, which usually ends in /v1 (%s)", hideQuery(m.url.String()), said)
	case status == http.StatusTooManyRequests:
		if d, ok := serverWait(f, m.now()); ok && d > maxServerWait {
			return fmt.Sprintf("%s allows no more requests for %s: wait, or choose another model (%s)", at, d.Round(time.Second), said)
		}
		return fmt.Sprintf("%s allows no more requests for now (%s)", at, said)
	case status >= 500:
		return fmt.Sprintf("%s failed with %d: try again later or choose another model (%s)", at, status, said)
	case status == http.StatusOK:
		return fmt.Sprintf("%s reported an error in its answer: %s", at, said)
	}
	return fmt.Sprintf("%s refused the request with %d: %s", at, status, said)
}

func (m *chatModel) explainModel(have []string, said string) string {
	s := fmt.Sprintf("%s has no model %q", m.origin(), m.s.Name)
	switch {
	case m.url.Port() == "11434" || strings.Contains(said, "pulling"):
		s += fmt.Sprintf(": run \"ollama pull %s\"", m.s.Name)
		if len(have) > 0 {
			s += " or use one of " + boundedList(have)
		}
		return s
	case len(have) > 0:
		return s + ": it has " + boundedList(have)
	}
	return s + ": choose another with --model (" + said + ")"
}

// boundedList names a few of many.
func boundedList(list []string) string {
	const most = 12
	more := ""
	if len(list) > most {
		more = fmt.Sprintf(" and %d more", len(list)-most)
		list = list[:most]
	}
	return boundedLine(strings.Join(list, ", "), 600) + more
}

// toolHint says how to come by a model that can call tools.
func (m *chatModel) toolHint(e *serverError) string {
	switch {
	case strings.Contains(e.Message, "--enable-auto-tool-choice"):
		return ", or start vLLM with --enable-auto-tool-choice and --tool-call-parser"
	case strings.Contains(e.Message, "--jinja"):
		return ", or start llama-server with --jinja"
	case m.url.Port() == "11434" || strings.Contains(e.Message, "ollama"):
		return `, for example "ollama pull qwen3" and --model qwen3`
	}
	return ""
}

var (
	unsupported = regexp.MustCompile(`(?i)unsupported|not support|unrecogni|unknown|not permitted|not allowed|unexpected|extra|deprecated|\bonly\b`)
	schemaWords = regexp.MustCompile(`(?i)schema|additionalProperties|exclusiveM|anyOf|oneOf|\$ref|\$defs|function_declarations|\bconst\b`)
)

// lesson says which quirk a refusal teaches: its name, and whether to put
// requests so from now on. The name is empty where there is nothing to learn.
func (m *chatModel) lesson(f *modelFailure, sent []byte) (quirk string, on bool) {
	e := f.server
	switch f.status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusInternalServerError:
	default:
		return "", false
	}
	msg := strings.ToLower(e.Message)
	refused := unsupported.MatchString(msg) || strings.HasPrefix(e.Code, "unsupported_") || strings.HasPrefix(e.Code, "unknown_")
	var params map[string]json.RawMessage
	json.Unmarshal(sent, &params)
	has := func(p string) bool {
		return params[p] != nil && refused && (e.Param == p || e.Param == "" && regexp.MustCompile(`\b`+p+`\b`).MatchString(msg))
	}
	switch {
	case strings.Contains(msg, "reasoning_content"):
		return quirkReasoning, strings.Contains(msg, "must be passed") || strings.Contains(msg, "missing") || strings.Contains(msg, "required")
	case has("max_tokens") && !strings.Contains(msg, "at most"):
		return quirkCompletionTokens, true
	case has("max_completion_tokens"):
		return quirkWithout + "max_tokens", true
	case strings.Contains(msg, "length of 9"):
		return quirkShortIDs, true
	case strings.Contains(msg, "after role 'tool'") || strings.Contains(msg, `after role "tool"`):
		return quirkBridge, true
	case strings.Contains(msg, "system") && strings.Contains(msg, "role") && refused:
		return quirkNoSystem, true
	}
	for _, p := range []string{"temperature", "top_p", "seed", "stop", "stream_options"} {
		if has(p) {
			return quirkWithout + p, true
		}
	}
	if params["tools"] != nil && (schemaWords.MatchString(e.Message) || strings.HasPrefix(e.Param, "tools")) && !noTools.MatchString(e.Message) {
		return quirkPlainSchemas, true
	}
	return "", false
}

var (
	askedWait = regexp.MustCompile(`(?i)(?:try again|retry)(?: after| in)\s+((?:\d+(?:\.\d+)?(?:ms|[hms]))+|\d+(?:\.\d+)?\s*(?:milliseconds|seconds?|secs?|minutes?|mins?|hours?)?)`)
	retryWait = regexp.MustCompile(`"retryDelay"\s*:\s*"([\d.]+s)"`)
	numUnit   = regexp.MustCompile(`^([\d.]+)\s*([a-z]*)$`)
)

// serverWait returns the wait that a server asked for in its headers (RFC 9110,
// section 10.2.3) or its words.
func serverWait(f *modelFailure, now time.Time) (time.Duration, bool) {
	if ms, err := strconv.ParseFloat(f.header.Get("Retry-After-Ms"), 64); err == nil && ms >= 0 {
		return seconds(ms / 1000), true
	}
	after := strings.TrimSpace(f.header.Get("Retry-After"))
	if s, err := strconv.ParseFloat(after, 64); err == nil && s >= 0 {
		return seconds(s), true
	}
	if t, err := http.ParseTime(after); err == nil {
		return max(t.Sub(now), 0), true
	}
	if f.server == nil || f.status != http.StatusTooManyRequests && f.status < 500 {
		return 0, false
	}
	if m := retryWait.FindStringSubmatch(f.server.body); m != nil {
		d, err := time.ParseDuration(m[1])
		return d, err == nil
	}
	m := askedWait.FindStringSubmatch(f.server.Message)
	if m == nil {
		return 0, false
	}
	if d, err := time.ParseDuration(strings.ToLower(m[1])); err == nil {
		return d, true
	}
	n := numUnit.FindStringSubmatch(strings.ToLower(m[1]))
	if n == nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(n[1], 64)
	for unit, by := range map[string]float64{"milli": 0.001, "min": 60, "hour": 3600} {
		if strings.HasPrefix(n[2], unit) {
			v *= by
		}
	}
	return seconds(v), err == nil
}

// seconds is a duration of s seconds, at most a year.
func seconds(s float64) time.Duration {
	return time.Duration(min(s, 366*24*3600) * float64(time.Second))
}
