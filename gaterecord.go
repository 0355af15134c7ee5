package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"picket/tools"
)

// How a call that went through the gate ends: refused, declined or run, each
// recorded before anything else happens.

const (
	maxPreview = 2000 // bytes of a result that are recorded
	maxSummary = 420  // bytes
)

// refuse records a denial and tells the model: blocked, why in a few words, and
// not to retry.
func (s *Sentinel) refuse(ctx context.Context, c *callState, step, why string) Result {
	c.d.Verdict, c.d.Step = Deny, step
	c.by = "guard"
	switch {
	case c.d.By != "" && step != stepArguments && step != stepGuard && step != stepRepeat:
		c.by = c.d.By
	}
	if len(c.d.Reasons) == 0 || step == stepArguments || step == stepGuard || step == stepRepeat {
		c.d.Reasons = []string{why}
	}
	s.announce(c)
	c.t.Emit(Event{Type: "result", ID: c.id, OK: new(bool), Verdict: "deny", Error: s.redact(why)})
	if err := s.recordDecision(ctx, c, Deny); err != nil {
		return s.logFailed(c, err)
	}
	text := "Blocked: " + why + ". Do not retry the same call."
	if step == stepArguments {
		text = "The call was not run: " + why + "."
		return Result{Text: s.redact(text)}
	}
	return Result{Text: s.redact(text), Refused: true, Declined: step == stepRepeat}
}

// announce tells once what is asked for.
func (s *Sentinel) announce(c *callState) {
	if c.said {
		return
	}
	c.said = true
	c.t.Emit(Event{Type: "call", ID: c.id, Tool: c.call.Function.Name, Summary: s.summary(c), Risk: c.j.Risk.String()})
}

// summary is what the call would do, or at least its tool.
func (s *Sentinel) summary(c *callState) string {
	return s.redact(cmp.Or(c.j.Summary, c.call.Function.Name))
}

// whyNot tells who ended a question that did not allow, and why.
func whyNot(a Answer, err error) (by, why string) {
	switch {
	case err != nil:
		return "expired", err.Error()
	case a.Expired:
		return "expired", "it was not answered: " + a.Reason
	case a.Reason != "":
		return "owner", "the owner declined it: " + a.Reason
	}
	return "owner", "the owner declined it"
}

// decline ends a call that was asked about and not allowed.
func (s *Sentinel) decline(ctx context.Context, c *callState, a Answer, err error) Result {
	c.t.declined[c.key()] = true
	c.d.Verdict = Deny
	if errors.Is(err, errAudit) {
		c.by, c.d.Reasons = "guard", append(c.d.Reasons, err.Error())
		if logErr := s.recordDecision(ctx, c, Deny); logErr != nil {
			err = logErr
		}
		return s.logFailed(c, err)
	}
	by, why := whyNot(a, err)
	c.by = by
	c.d.Reasons = append(c.d.Reasons, why)
	c.t.Emit(Event{Type: "result", ID: c.id, OK: new(bool), Verdict: "deny", Error: s.redact(why)})
	if err := s.recordDecision(ctx, c, Deny); err != nil {
		return s.logFailed(c, err)
	}
	return Result{Text: s.redact("Not done: " + why + ". Do not retry the same call; say that it was not done."), Refused: true, Declined: true}
}

// recordDecision writes the decision before the act, and has it on disk if the
// call is not safe.
func (s *Sentinel) recordDecision(ctx context.Context, c *callState, v Verdict) error {
	if c.decided {
		return nil
	}
	c.decided = true
	targets := []string{}
	for _, t := range c.j.Targets {
		targets = append(targets, s.redact(t.Key))
	}
	reasons := c.d.Reasons
	if reasons == nil {
		reasons = []string{}
	}
	e := egressFields{Kind: c.j.Egress.Kind.String(), Hosts: s.redactAll(c.j.Egress.Hosts)}
	if c.plan.Detail == nil && c.j.Summary == "" { // never judged
		e.Kind = "none"
	}
	verdict := "deny"
	if v == Allow {
		verdict = "allow"
	}
	rec := c.record(decisionRecord{
		Tool: c.call.Function.Name, Args: s.recordedArgs(c.call.Function.Arguments), Digest: c.digest,
		Summary: s.redact(c.j.Summary), Risk: c.j.Risk.String(), Labels: c.t.Chat.labels().with(labelsIn(c.reads)).List(),
		Verdict: verdict, By: c.by, Step: c.d.Step, Rule: c.d.Rule, Reasons: s.redactAll(reasons),
		Grant: s.redact(strings.Join(c.d.Grants, " ")), Targets: targets, Egress: e, Purpose: firstChars(s.redact(c.t.Text), 200),
	})
	sync := v == Allow && c.by == "owner" && c.j.Risk != tools.Safe // see decide for the others
	return s.log.Append(context.WithoutCancel(ctx), sync, rec)
}

// recordedArgs is the arguments as they are recorded: an object with its keys
// in the order sent, or the raw text as a string if it did not parse.
func (s *Sentinel) recordedArgs(raw string) json.RawMessage {
	if v, err := tools.DecodeStrict([]byte(raw)); err == nil {
		if _, ok := v.(map[string]any); ok {
			red := redactJSON(raw, s.redact)
			if json.Valid([]byte(red)) {
				return json.RawMessage(red)
			}
		}
	}
	b, err := json.Marshal(s.redact(raw))
	if err != nil {
		return json.RawMessage(`""`)
	}
	return b
}

func (s *Sentinel) redactAll(list []string) []string {
	out := make([]string, len(list))
	for i, l := range list {
		out[i] = s.redact(l)
	}
	return out
}

// logFailed refuses because the log could not be written: no record, no act.
func (s *Sentinel) logFailed(c *callState, err error) Result {
	s.debug("call %s: %v", c.id, err)
	c.t.Emit(Event{Type: "result", ID: c.id, OK: new(bool), Verdict: "deny", Error: "it could not be recorded"})
	return Result{Text: "Blocked: the call could not be recorded, so it was not run.", Refused: true, LogFailed: err}
}

// finish redacts the output, records it, and makes the text for the model.
func (s *Sentinel) finish(ctx context.Context, c *callState, out tools.Output, failed error) Result {
	out.Text, out.Err = s.redact(out.Text), s.redact(out.Err)
	if !utf8.ValidString(out.Text) {
		out.Text = strings.ToValidUTF8(out.Text, "\uFFFD")
	}
	sum := sha256.Sum256([]byte(out.Text))
	rec := resultRecord{OK: out.Err == "", Error: out.Err, Bytes: out.Bytes, Digest: hex.EncodeToString(sum[:]),
		Preview: cutBytes(out.Text, maxPreview), Interrupted: out.Interrupted || ctx.Err() != nil}
	if rec.Bytes == 0 {
		rec.Bytes = int64(len(out.Text))
	}
	if out.HasExit {
		rec.Exit = &out.Exit
	}
	if c.running {
		rec.MS = s.now().Sub(c.started).Milliseconds()
	}
	err := s.log.Append(context.WithoutCancel(ctx), false, c.record(rec))
	if err == nil && failed != nil && errors.Is(failed, errAudit) {
		err = failed
	}
	ok := rec.OK
	notes := s.redactAll(out.Notes)
	c.t.Emit(Event{Type: "result", ID: c.id, OK: &ok, Verdict: "allow", Error: out.Err, MS: &rec.MS, Reasons: notes})
	res := Result{Text: resultText(out, notes)}
	if err != nil {
		s.debug("result of call %s: %v", c.id, err)
		res.LogFailed = err
	}
	return res
}

// afterPanic makes sure that a call whose handling broke has its records.
func (s *Sentinel) afterPanic(ctx context.Context, c *callState) Result {
	const why = "the gate failed with an internal error"
	if c.decided && c.running {
		return s.finish(ctx, c, tools.Output{Err: why}, nil)
	}
	if c.decided {
		return Result{Text: "Blocked: " + why + ".", Refused: true}
	}
	c.d = Decision{}
	return s.refuse(ctx, c, stepGuard, why)
}

// resultText is what the model gets: output and error, and the notes.
func resultText(out tools.Output, notes []string) string {
	var parts []string
	if out.Text != "" {
		parts = append(parts, strings.TrimRight(out.Text, "\n"))
	}
	if out.Err != "" {
		parts = append(parts, "[error: "+out.Err+"]")
	}
	for _, n := range notes {
		parts = append(parts, "[note: "+n+"]")
	}
	if len(parts) == 0 {
		return "[no output]"
	}
	return strings.Join(parts, "\n")
}

// cutBytes keeps the beginning of a text, whole runes only.
func cutBytes(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// shortSummary bounds a summary, which is for one line.
func shortSummary(s string) string {
	if short := cutBytes(s, maxSummary); short != s {
		return fmt.Sprintf("%s (%d bytes)", short, len(s))
	}
	return s
}

func firstChars(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n]) + "…"
}

// splitHostPort reads the host key of a judgement; without a port of its own it
// is the default of the URL's scheme.
func splitHostPort(host, raw string) (string, int) {
	u, err := url.Parse(raw)
	if err != nil {
		return host, 0
	}
	if p, err := strconv.Atoi(u.Port()); err == nil {
		return u.Hostname(), p
	}
	port := 80
	if u.Scheme == "https" {
		port = 443
	}
	if host == "" {
		host = u.Hostname()
	}
	return host, port
}
