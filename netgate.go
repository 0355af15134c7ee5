package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"picket/tools"
)

// More than this from one call is not put to the owner: a program that tries one
// host after the other would teach to say yes.
const (
	maxNetQuestions = 20
	maxNetDeclined  = 3
	maxNetNotes     = 5
)

// A netGate decides about the hosts of one boxed call, as it connects to them.
type netGate struct {
	s *Sentinel
	c *callState

	mu       sync.Mutex        // one decision, and one question, at a time
	by       map[string]string // who allowed it, by host
	asked    int
	declined int
	notes    []string
}

// exec runs a child of a call that passed the gate, and records where it went.
func (s *Sentinel) exec(ctx context.Context, c *callState, cmd tools.Command) tools.ExecResult {
	g := &netGate{s: s, c: c, by: map[string]string{}}
	cmd.Connect = g.connect
	res := s.host.Exec(ctx, cmd)
	g.mu.Lock()
	defer g.mu.Unlock()
	var recs []Record
	for _, u := range res.Net {
		rec := g.record(u.Dest, Allow, g.by[u.Host])
		rec.BytesOut, rec.BytesIn = u.Out, u.In
		if u.Refused != "" {
			rec.Verdict, rec.By = "deny", "guard"
			g.note(u.Dest, u.Refused)
		} else if u.Failed != "" && u.In == 0 {
			g.note(u.Dest, "it could not be reached: "+u.Failed)
		}
		recs = append(recs, c.record(rec))
	}
	if len(recs) > 0 {
		if err := s.log.Append(context.WithoutCancel(ctx), false, recs...); err != nil {
			s.debug("egress of call %s: %v", c.id, err)
		}
	}
	res.Notes = append(res.Notes, g.notes...)
	return res
}

func (g *netGate) record(d tools.Dest, v Verdict, by string) egressRecord {
	return egressRecord{Host: g.s.redact(d.Host), Port: int(d.Port), Method: cutBytes(d.Method, 20), Verdict: v.String(), By: by}
}

func (g *netGate) note(d tools.Dest, why string) {
	if len(g.notes) < maxNetNotes {
		g.notes = append(g.notes, fmt.Sprintf("no connection to %s: %s", d.Host, why))
	}
}

// connect decides about one destination and records the decision before anything
// is looked up or connected to. An error says why not.
func (g *netGate) connect(ctx context.Context, d tools.Dest) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	by, why := g.admit(ctx, d)
	if why == "" {
		g.by[d.Host] = by
		return nil
	}
	if err := g.s.log.Append(context.WithoutCancel(ctx), true, g.c.record(g.record(d, Deny, by))); err != nil {
		g.s.debug("egress of call %s: %v", g.c.id, err)
	}
	g.note(d, why)
	return errors.New(why)
}

// admit asks the policy, and the owner if it says so. If why is "", the
// destination is allowed, and that is recorded.
func (g *netGate) admit(ctx context.Context, d tools.Dest) (by, why string) {
	s, c := g.s, g.c
	defer func() {
		if p := recover(); p != nil {
			s.debug("panic in call %s, connecting: %v\n%s", c.id, p, debug.Stack())
			by, why = "guard", "the gate failed with an internal error"
		}
	}()
	in, n := g.input(ctx, d)
	n.d = s.policy.Decide(in)
	switch by = n.d.By; {
	case n.d.Verdict == Allow:
	case n.d.Verdict != Ask:
		return by, n.d.Reasons[0]
	case n.d.Step != stepRules && slices.Contains(c.j.Egress.Hosts, d.Host):
		by = c.by // it was part of what was decided on
	case g.asked >= maxNetQuestions || g.declined >= maxNetDeclined:
		return "guard", "this call was refused, or has asked for, too many hosts"
	default:
		if by, why = g.ask(ctx, n, in); why != "" {
			return by, why
		}
	}
	record := func() error { return s.log.Append(context.WithoutCancel(ctx), true, c.record(g.record(d, Allow, by))) }
	var err error
	if n.d.Verdict == Allow && n.d.Grants != nil { // that none of them is revoked before the record of it
		err = s.approvals.While(ctx, c.t.ID, func(held []Grant) error {
			if in.Grants = held; s.policy.Decide(in).Verdict != Allow {
				return errNoGrant
			}
			return record()
		})
	} else {
		err = record()
	}
	if err != nil {
		s.debug("egress of call %s: %v", c.id, err)
		return "guard", "it could not be recorded, or is granted no longer"
	}
	return by, ""
}

// input is the connection as a call of its own.
func (g *netGate) input(ctx context.Context, d tools.Dest) (Input, *callState) {
	c := g.c
	n := &callState{id: c.id, t: c.t, tool: c.tool, j: tools.Judgement{
		Summary: fmt.Sprintf("connect to %s, port %d, for %s", hostShown(d.Host), d.Port, c.j.Summary),
		Risk:    tools.Sensitive,
		Why:     []string{"the call as it was decided on did not name this host"},
		Targets: []tools.Target{{Key: "net:" + d.Host, Widest: tools.Always}}, Widest: tools.Always,
		Egress: tools.Egress{Kind: tools.EgressHosts, Hosts: []string{d.Host}},
		URL:    d.URL, Sends: d.Sends, RequestBytes: d.Bytes, Network: true, Proxied: true, Boxed: true, ReadsUntrusted: true,
	}}
	n.plan.Secrets = c.plan.Secrets // which may not go everywhere
	if why, _ := g.s.judgeSecrets(n); why != "" {
		n.j.Refuse = why
	}
	n.tool.Risk = tools.Moderate // of a connection; that of the program was weighed before
	n.args.Values = map[string]any{"host": d.Host, "method": d.Method}
	if g.s.policy.listed(d.Host) && (d.Method == "CONNECT" || !d.Sends) {
		n.j.Risk = tools.Moderate
	}
	in := g.s.input(n, g.s.approvals.Held(ctx, n.t.ID))
	in.Labels = c.before
	switch {
	case d.URL != "":
		n.args.Values["url"] = d.URL
		in.URLs = []string{d.URL}
	case d.Method == "CONNECT":
		in.URLs = []string{"https://" + d.Host + "/", "http://" + d.Host + "/"}
	}
	return in, n
}

// ask puts a connection to the owner; why is "" if it was allowed.
func (g *netGate) ask(ctx context.Context, n *callState, in Input) (by, why string) {
	s, c := g.s, g.c
	g.asked++
	sum := sha256.Sum256([]byte(jsonText(n.args.Values)))
	n.digest, n.asked = hex.EncodeToString(sum[:]), c.asked
	a, err := s.question(ctx, n, in)
	c.asked = n.asked
	if err == nil && a.Allow {
		if err = s.approvals.Grant(ctx, n.record(nil), c.t.ID, grantsFor(&in, a.Scope)); err == nil {
			return "owner", ""
		}
	}
	g.declined++
	return whyNot(a, err)
}
