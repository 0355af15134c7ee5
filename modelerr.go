package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A serverError is what a server said went wrong, in whichever of the shapes that servers use. Its texts are the
// server's: they go through words before anybody sees them.
type serverError struct {
	Message, Code, Type, Param string

	body string // as sent
}

func (e *serverError) Error() string { return e.Message }

// notCompletion is our own code for an answer that is no completion.
const notCompletion = "not_a_completion"

// member finds what matters wherever a server puts it: the first text under one of the names, and the last codes.
var member = lazyRegexp(`"(error|message|detail|msg|error_description|code|type|param)"\s*:\s*("(?:[^"\\]|\\.)*"|\d+)`)

func parseServerError(body []byte) *serverError {
	body = body[:min(len(body), 64<<10)]
	e := &serverError{body: string(body)}
	text := bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(body), []byte("data:")))
	if bytes.HasPrefix(text, []byte("<")) { // a page of a proxy says nothing
		return e
	}
	var val anyText
	for _, m := range member().FindAllSubmatch(text, 64) {
		_ = json.Unmarshal(m[2], &val) // a string or a number
		switch to := map[string]*string{"code": &e.Code, "type": &e.Type, "param": &e.Param}[string(m[1])]; {
		case to != nil:
			*to = string(val)
		case e.Message == "" && strings.HasPrefix(string(val), "{"): // a relay's own wrapping
			e.Message = parseServerError([]byte(val)).Message
		case e.Message == "":
			e.Message = string(val)
		}
	}
	if val = anyText(text); e.Message == "" && (!json.Valid(text) || text[0] == '"' && json.Unmarshal(text, &val) == nil) {
		e.Message = string(val)
	}
	return e
}

// boundedLine makes a text of others one line of at most max characters.
func boundedLine(s string, max int) string {
	r := []rune(printable(strings.Join(strings.Fields(s[:min(len(s), 16*max)]), " ")))
	if len(r) > max {
		return string(r[:max-1]) + "…"
	}
	return string(r)
}

var (
	urlQuery = lazyRegexp(`(\w+://[^\s?#"'<>]*)[?#][^\s"'<>]*`)
	urlUser  = lazyRegexp(`(\w+://)[^\s/@"'<>]+@`)
	bearer   = lazyRegexp(`(?i)\b(bearer\s+)[^\s"',]+`)
)

// hideQuery takes out of addresses what may be secret.
func hideQuery(s string) string {
	return urlUser().ReplaceAllString(urlQuery().ReplaceAllString(s, "$1?…"), "$1…@")
}

// words makes a text of the server fit to be shown: one line without secrets.
func (m *chatModel) words(s string) string {
	if m.s.Redact != nil { // before anything else is taken out
		s = m.s.Redact(s)
	}
	secrets := []string{m.s.APIKey, url.QueryEscape(m.s.APIKey)}
	for _, v := range m.s.Headers {
		secrets = append(secrets, v)
	}
	for _, v := range secrets {
		if len(v) >= 8 || v != "" && v == m.s.APIKey {
			s = strings.ReplaceAll(s, v, "[key]")
		}
	}
	return boundedLine(bearer().ReplaceAllString(hideQuery(s), "$1[key]"), 300)
}

// rootCause returns the text of an error without the address that net/http puts before it.
func rootCause(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return strings.TrimSuffix(err.Error(), ".")
}

// A verdict says what failed, in whose words, and what to do.
type verdict struct {
	what, said, todo string
	again            bool // waiting may mend it
}

func (v verdict) sentence() string {
	switch {
	case v.said == "":
		return v.what
	case v.todo == "":
		return v.what + ": " + v.said
	}
	return v.what + ": " + v.todo + " (" + v.said + ")"
}

const toolless = "the model {model} cannot call tools here"

var noTools = lazyRegexp(`(?i)(tool|function)s?\b.{0,60}(not support|unsupported|not enabled|requires? --)` +
	`|(not support|unsupported).{0,40}\b(tool|function)s?\b|support tool use`)

// verdicts are found by what "STATUS CODE TYPE MESSAGE" holds, the first that fits; the status is 0 where there was
// no connection.
var verdicts = []struct {
	holds      func() *regexp.Regexp
	what, todo string
	again      bool
}{
	{holding(`^0 `), "cannot reach {at}", "is the server running, and is the base URL right?", true},
	{holding(`^3`), "{at} redirects to {to}, which is not followed", "set the base URL to the right address", false},
	{holding(`content_filter|ResponsibleAIPolicyViolation`), "the provider's content filter stopped the answer", "put the request in other words, or choose another model", false},
	{holding(`--enable-auto-tool-choice`), toolless, "start vLLM with --enable-auto-tool-choice and --tool-call-parser", false},
	{holding(`--jinja`), toolless, "start llama-server with --jinja", false},
	{noTools, toolless, `choose one that can, for example "ollama pull qwen3" and --model qwen3`, false},
	{holding(`^401`), "{at} wants an API key", "set PICKET_API_KEY or model.api_key to the right one", false},
	{holding(`model.*not found.*pulling`), "{at} has no model {model}", `run "ollama pull {name}" or {have}`, false},
	{holding(`model_not_found|\bmodel\b.{0,120}(not found|not exist|unknown|not available|no such|not a valid)|(unknown|invalid|no such|unsupported) model\b|not a valid model`),
		"{at} has no model {model}", "{have}", false},
	{holding(`^403`), "{at} does not let this key use {model}", "check the key's rights or choose another model", false},
	{holding(`^429 insufficient_quota.*per minute`), "{at} allows no more requests for {wait}", "wait, or choose another model", true},
	{holding(`^402|insufficient_quota`), "the account at {at} has no credit left", "add credit or choose another server", false},
	{holding(`^413|context.?(length|window|size)|maximum context|too many tokens|prompt is too long`),
		"the conversation is longer than {model} takes", "lower model.context_tokens or start a new chat", false},
	{holding(`^404|^405|` + notCompletion + `|unexpected endpoint`), "{url} has no chat completions", "check the base URL, which usually ends in /v1", false},
	{holding(`^429`), "{at} allows no more requests for {wait}", "wait, or choose another model", true},
	{holding(`^5`), "{at} failed with {status}", "try again later or choose another model", true},
	{holding(`^200`), "{at} reported an error in its answer", "", false},
	{holding(`^40[89]`), "{at} refused the request with {status}", "", true},
	{holding(``), "{at} refused the request with {status}", "", false},
}

func holding(pattern string) func() *regexp.Regexp { return lazyRegexp(`(?is)` + pattern) }

// judge says what an attempt failed of. Where the server does not have the model, it is asked which it has.
func (m *chatModel) judge(ctx context.Context, f *modelFailure) verdict {
	var own replyError
	if errors.As(f.err, &own) {
		return verdict{what: m.words(own.Error()), again: true}
	}
	var v verdict
	holds := fmt.Sprintf("%d %v", f.status, f.err)
	if e := f.server; e != nil {
		holds = fmt.Sprintf("%d %s %s %s", f.status, e.Code, e.Type, e.Message)
		v.said = cmp.Or(m.words(e.Message), http.StatusText(f.status), "no reason given")
	} else {
		v.said = m.words(rootCause(f.err))
	}
	for _, row := range verdicts {
		if row.holds().MatchString(holds) {
			v.what, v.todo, v.again = row.what, row.todo, row.again
			break
		}
	}
	have, wait := "choose another with --model", "now"
	if strings.Contains(v.todo, "{have}") {
		if list, err := m.names(ctx); err == nil && len(list) > 0 {
			have = "use one of " + boundedLine(strings.Join(list[:min(len(list), 12)], ", "), 600)
		}
	}
	if d, ok := serverWait(f, m.now()); ok && d > maxServerWait {
		wait = d.Round(time.Second).String()
	}
	to, _, _ := strings.Cut(f.header.Get("Location"), "?")
	fill := strings.NewReplacer("{at}", m.origin(), "{url}", hideQuery(m.url.String()), "{model}", strconv.Quote(m.s.Name), "{name}", m.s.Name,
		"{status}", strconv.Itoa(f.status), "{to}", strconv.Quote(m.words(to)), "{have}", have, "{wait}", wait)
	v.what, v.todo = fill.Replace(v.what), fill.Replace(v.todo)
	return v
}

// loading reports whether the server said that it is still starting.
func (f *modelFailure) loading() bool {
	return f.status == http.StatusServiceUnavailable && f.server != nil && strings.Contains(strings.ToLower(f.server.Message), "loading")
}

const maxServerWait = 2 * time.Minute

// backoff returns the wait before the next attempt: the server's own, or one that doubles from 1 s to 60 s, with
// jitter. It reports false where there must be none.
func (m *chatModel) backoff(f *modelFailure, attempt int) (time.Duration, bool) {
	if f.final || f.header.Get("X-Should-Retry") == "false" {
		return 0, false
	}
	if d, ok := serverWait(f, m.now()); ok {
		return d, d <= maxServerWait
	}
	d := min(time.Second<<min(attempt, 6), time.Minute)
	return min(d+rand.N(d/2), time.Minute), true
}

var askedWait = lazyRegexp(`(?i)(?:(?:try again|retry)(?: after| in)|"retryDelay" ?:) *"?(\d[\d.hms]*)( mil| min| h)?`)

// serverWait returns the wait that a server asked for in its headers (RFC 9110, section 10.2.3) or its words.
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
	w := askedWait().FindStringSubmatch(f.server.body)
	if w == nil {
		return 0, false
	}
	number := strings.TrimRight(strings.ToLower(w[1]), ".")
	d, err := time.ParseDuration(number)
	if err != nil {
		d, err = time.ParseDuration(number + cmp.Or(map[string]string{" mil": "ms", " min": "m", " h": "h"}[strings.ToLower(w[2])], "s"))
	}
	return d, err == nil
}

var (
	refuses     = lazyRegexp(`unsupported|not support|unrecogni|unknown|not permitted|not allowed|unexpected|extra|deprecated|\bonly\b`)
	optional    = lazyRegexp(`\b(max_tokens|max_completion_tokens|temperature|top_p|seed|stop|stream_options)\b`)
	schemaWords = lazyRegexp(`(?i)schema|additionalProperties|exclusiveM|anyOf|oneOf|\$ref|\$defs|function_declarations|\bconst\b`)
	mustReturn  = lazyRegexp(`must be passed|missing|required`)
	afterTool   = lazyRegexp(`after role ['"]tool`)
)

// learn takes a lesson from a refusal and reports whether the next request will differ by it.
func (m *chatModel) learn(f *modelFailure, known quirks, sent []byte) bool {
	if f.final || f.server == nil || f.status != http.StatusBadRequest && f.status != http.StatusUnprocessableEntity && f.status != http.StatusInternalServerError {
		return false
	}
	key, on := lesson(f.server, sent)
	if was, tried := known[key]; key == "" || tried && (on || !was) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.learned[key] = on
	return true
}

// lesson says which quirk a refusal teaches, and whether to put requests so from now on. The name is empty where
// there is nothing to learn.
func lesson(e *serverError, sent []byte) (quirk string, on bool) {
	says := strings.ToLower(e.Code + " " + e.Message)
	refused := refuses().MatchString(says)
	switch {
	case strings.Contains(says, "reasoning_content"):
		return quirkReasoning, mustReturn().MatchString(says)
	case strings.Contains(says, "length of 9"):
		return quirkShortIDs, true
	case afterTool().MatchString(says):
		return quirkBridge, true
	case refused && strings.Contains(says, "system") && strings.Contains(says, "role"):
		return quirkNoSystem, true
	}
	for _, p := range optional().FindAllString(cmp.Or(e.Param, says), 8) {
		switch {
		case !refused || !bytes.Contains(sent, []byte(`"`+p+`":`)):
		case p == "max_tokens":
			return quirkCompletionTokens, true
		default:
			return quirkWithout + p, true
		}
	}
	if bytes.Contains(sent, []byte(`"tools":`)) && (schemaWords().MatchString(e.Message) || strings.HasPrefix(e.Param, "tools")) && !noTools().MatchString(e.Message) {
		return quirkPlainSchemas, true
	}
	return "", false
}
