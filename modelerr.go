package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
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

// notCompletion is our own code for an answer that is no completion.
const notCompletion = "not_a_completion"

func (e *serverError) Error() string { return e.Message }

func readServerError(body []byte) error { return parseServerError(body) }

func parseServerError(body []byte) *serverError {
	e := &serverError{body: string(body)}
	body = bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(body), []byte("data:")))
	switch {
	case json.Valid(body):
		e.find(body, 0)
	case !bytes.HasPrefix(body, []byte("<")): // a page of a proxy says nothing
		e.Message = string(body[:min(len(body), 64<<10)])
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
		s = s[:min(len(s), 64<<10)]
		if raw := []byte(s); strings.HasPrefix(s, "{") && json.Valid(raw) { // a relay's own wrapping
			e.find(raw, depth+1)
		}
		e.Message = cmp.Or(e.Message, s)
	case '[':
		jsonMembers(val, func(_, v []byte) { e.find(v, depth+1) })
	case '{':
		v := pick(val, "code", "type", "param")
		for i, to := range []*string{&e.Code, &e.Type, &e.Param} {
			*to = cmp.Or(valText(v[i]), *to)
		}
		for _, v := range pick(val, "error", "message", "detail", "msg", "error_description", "errors") {
			e.find(v, depth+1)
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
	s = s[:min(len(s), 16*max)]
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
	}), " ")
	if r := []rune(s); len(r) > max {
		return string(r[:max-1]) + "…"
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

// words makes a text of the server fit to be shown: one line without secrets.
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

// rootCause returns the text of an error without the address that net/http puts
// before it.
func rootCause(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return strings.TrimSuffix(err.Error(), ".")
}

func isTLSError(err error) bool {
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &verify) || errors.As(err, &record) || strings.Contains(err.Error(), "HTTP response to HTTPS client")
}

var (
	noTools = regexp.MustCompile(`(?i)(tool|function)s?\b.{0,60}(not support|unsupported|not enabled|requires? --)` +
		`|(not support|unsupported).{0,40}\b(tool|function)s?\b|support tool use|--enable-auto-tool-choice|--jinja`)
	noModel = regexp.MustCompile(`(?i)\bmodel\b.{0,120}(not found|not exist|unknown|not available|no such|not a valid)` +
		`|(unknown|invalid|no such|unsupported) model\b|not a valid model`)
	tooLong = regexp.MustCompile(`(?i)context.?(length|window|size)|maximum context|too many tokens|prompt is too long`)
)

// unknownModel reports whether the server does not have the model.
func (f *modelFailure) unknownModel() bool {
	return f.server != nil && f.status != http.StatusUnauthorized &&
		(f.server.Code == "model_not_found" || noModel.MatchString(f.server.Message))
}

// explain says in one sentence what failed and what to do. have are the models
// that the server has, where it was asked.
func (m *chatModel) explain(f *modelFailure, req ModelRequest, have []string) string {
	if f.server == nil {
		return m.words(f.err.Error())
	}
	e, at, name, status := f.server, m.origin(), m.s.Name, f.status
	if n, err := strconv.Atoi(e.Code); err == nil && status == http.StatusOK && n >= 400 && n < 600 {
		status = n
	}
	said := cmp.Or(m.words(e.Message), http.StatusText(status), "no reason given")
	because := " (" + said + ")"
	switch {
	case status/100 == 3:
		to, _, _ := strings.Cut(f.header.Get("Location"), "?")
		return fmt.Sprintf("%s redirects to %q, which is not followed: set the base URL to the right address", at, m.words(to))
	case e.Code == "content_filter" || strings.Contains(e.body, "ResponsibleAIPolicyViolation"):
		return errFiltered.Error()
	case len(req.Tools) > 0 && noTools.MatchString(e.Message):
		return fmt.Sprintf("the model %q cannot call tools here: choose one that can%s", name, m.toolHint(e)) + because
	case status == http.StatusUnauthorized && m.s.APIKey == "" && len(m.s.Headers) == 0:
		return at + " wants an API key: set PICKET_API_KEY or model.api_key" + because
	case status == http.StatusUnauthorized:
		return at + " refused the API key: check PICKET_API_KEY or model.api_key" + because
	case f.unknownModel():
		s := fmt.Sprintf("%s has no model %q: ", at, name)
		if m.url.Port() == "11434" || strings.Contains(said, "pulling") {
			s += fmt.Sprintf("run \"ollama pull %s\" or ", name)
		}
		if len(have) > 0 {
			return s + "use one of " + boundedLine(strings.Join(have[:min(len(have), 12)], ", "), 600)
		}
		return s + "choose another with --model" + because
	case status == http.StatusForbidden:
		return fmt.Sprintf("%s does not let this key use %q: check the key's rights or choose another model", at, name) + because
	case status == http.StatusPaymentRequired || e.quota():
		return fmt.Sprintf("the account at %s has no credit left: add credit or choose another server", at) + because
	case tooLong.MatchString(e.Message) || e.Code == "context_length_exceeded" || status == http.StatusRequestEntityTooLarge:
		return fmt.Sprintf("the conversation is longer than %q takes: lower model.context_tokens or start a new chat", name) + because
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || e.Code == notCompletion ||
		strings.Contains(strings.ToLower(e.Message), "unexpected endpoint"):
		return hideQuery(m.url.String()) + " has no chat completions: check the base URL, which usually ends in /v1" + because
	case status == http.StatusTooManyRequests:
		if d, ok := serverWait(f, m.now()); ok && d > maxServerWait {
			return fmt.Sprintf("%s allows no more requests for %s: wait, or choose another model", at, d.Round(time.Second)) + because
		}
		return at + " allows no more requests for now" + because
	case status >= 500:
		return fmt.Sprintf("%s failed with %d", at, status) + because
	case status == http.StatusOK:
		return at + " reported an error in its answer: " + said
	}
	return fmt.Sprintf("%s refused the request with %d: %s", at, status, said)
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
	return ", with --model"
}

var (
	unsupported = regexp.MustCompile(`(?i)unsupported|not support|unrecogni|unknown|not permitted|not allowed|unexpected|extra|deprecated|\bonly\b`)
	schemaWords = regexp.MustCompile(`(?i)schema|additionalProperties|exclusiveM|anyOf|oneOf|\$ref|\$defs|function_declarations|\bconst\b`)
	mustReturn  = regexp.MustCompile(`must be passed|missing|required`)
)

// lesson says which quirk a refusal teaches: its name, and whether to put
// requests so from now on. The name is empty where there is nothing to learn.
func (m *chatModel) lesson(f *modelFailure, sent []byte) (quirk string, on bool) {
	e, msg := f.server, strings.ToLower(f.server.Message)
	if s := f.status; s != http.StatusBadRequest && s != http.StatusUnprocessableEntity && s != http.StatusInternalServerError {
		return "", false
	}
	refused := unsupported.MatchString(msg) || strings.HasPrefix(e.Code, "unsupported_") || strings.HasPrefix(e.Code, "unknown_")
	has := func(p string) bool {
		return refused && pick(sent, p)[0] != nil && (e.Param == p || e.Param == "" && regexp.MustCompile(`\b`+p+`\b`).MatchString(msg))
	}
	switch {
	case strings.Contains(msg, "reasoning_content"):
		return quirkReasoning, mustReturn.MatchString(msg)
	case has("max_tokens") && !strings.Contains(msg, "at most"):
		return quirkCompletionTokens, true
	case has("max_completion_tokens"):
		return quirkWithout + "max_tokens", true
	case strings.Contains(msg, "length of 9"):
		return quirkShortIDs, true
	case strings.Contains(msg, "after role 'tool'") || strings.Contains(msg, `after role "tool"`):
		return quirkBridge, true
	case refused && strings.Contains(msg, "system") && strings.Contains(msg, "role"):
		return quirkNoSystem, true
	}
	for _, p := range []string{"temperature", "top_p", "seed", "stop", "stream_options"} {
		if has(p) {
			return quirkWithout + p, true
		}
	}
	if pick(sent, "tools")[0] != nil && (schemaWords.MatchString(e.Message) || strings.HasPrefix(e.Param, "tools")) && !noTools.MatchString(e.Message) {
		return quirkPlainSchemas, true
	}
	return "", false
}

var (
	askedWait = regexp.MustCompile(`(?i)(?:try again|retry)(?: after| in)\s+((?:\d+(?:\.\d+)?(?:ms|[hms]))+\b|\d+(?:\.\d+)?\s*(?:milliseconds?|seconds?|secs?|minutes?|mins?|hours?)?\b)|"retryDelay"\s*:\s*"([\d.]+s)"`)
	waitUnit  = regexp.MustCompile(`([\d.]+)\s*([a-z]{0,3})[a-z]*\s*`)
)

// serverWait returns the wait that a server asked for in its headers (RFC 9110,
// section 10.2.3) or its words.
func serverWait(f *modelFailure, now time.Time) (time.Duration, bool) {
	after := strings.TrimSpace(f.header.Get("Retry-After"))
	if d, err := time.ParseDuration(f.header.Get("Retry-After-Ms") + "ms"); err == nil && d >= 0 {
		return d, true
	}
	if s, err := strconv.ParseFloat(after, 64); err == nil && s >= 0 {
		return time.Duration(min(s, 1e9) * float64(time.Second)), true
	}
	if t, err := http.ParseTime(after); err == nil {
		return max(t.Sub(now), 0), true
	}
	if f.server == nil || f.status != http.StatusTooManyRequests && f.status < 500 {
		return 0, false
	}
	w := askedWait.FindStringSubmatch(f.server.body)
	if w == nil {
		return 0, false
	}
	short := waitUnit.ReplaceAllStringFunc(strings.ToLower(w[1]+w[2]), func(s string) string {
		p := waitUnit.FindStringSubmatch(s)
		unit, ok := map[string]string{"ms": "ms", "mil": "ms", "m": "m", "min": "m", "h": "h", "hou": "h"}[p[2]]
		if !ok {
			unit = "s"
		}
		return p[1] + unit
	})
	d, err := time.ParseDuration(short)
	return d, err == nil
}
