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
		if u.Failed != "" && u.In == 0 {
			g.note(u.Dest, "it could not be reached: "+u.Failed)
		}
		rec := g.record(u.Dest, Allow, g.by[u.Host])
		if u.Refused != "" {
			rec.Verdict, rec.By = "deny", "guard"
			g.note(u.Dest, u.Refused)
		}
		rec.BytesOut, rec.BytesIn = u.Out, u.In
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
func (g *netGate) connect(ctx context.Context, d tools.Dest) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			g.s.debug("panic in call %s, connecting: %v\n%s", g.c.id, p, debug.Stack())
			err = errors.New("the gate failed with an internal error")
		}
	}()
	s, c := g.s, g.c
	in, n := g.input(ctx, d)
	v, by, why := g.decide(ctx, n, in)
	record := func() error {
		return s.log.Append(context.WithoutCancel(ctx), true, c.record(g.record(d, v, by)))
	}
	if v == Allow && n.d.Grants != nil { // that none of them is revoked before the record of it
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
		v, why = Deny, "it could not be recorded, or is granted no longer"
	}
	if v == Allow {
		g.by[d.Host] = by
		return nil
	}
	g.note(d, why)
	return errors.New(why)
}

// input is the connection as a call of its own.
func (g *netGate) input(ctx context.Context, d tools.Dest) (Input, *callState) {
	n := &callState{id: g.c.id, t: g.c.t, tool: g.c.tool, j: g.c.judgeHost(d)}
	n.plan.Secrets = g.c.plan.Secrets // which may not go everywhere
	if why, _ := g.s.judgeSecrets(n); why != "" {
		n.j.Refuse = why
	}
	n.tool.Risk = tools.Moderate // of a connection; that of the program was weighed before
	n.args.Values = map[string]any{"host": d.Host, "method": d.Method}
	if g.s.policy.listed(d.Host) && (d.Method == "CONNECT" || !d.Sends) {
		n.j.Risk = tools.Moderate
	}
	in := g.s.input(n, g.s.approvals.Held(ctx, n.t.ID))
	in.Labels = g.c.before
	switch {
	case d.URL != "":
		n.args.Values["url"] = d.URL
		in.URLs = []string{d.URL}
	case d.Method == "CONNECT":
		in.URLs = []string{"https://" + d.Host + "/", "http://" + d.Host + "/"}
	}
	return in, n
}

// decide asks the policy, and the owner if it says so.
func (g *netGate) decide(ctx context.Context, n *callState, in Input) (v Verdict, by, why string) {
	s, c := g.s, g.c
	n.d = s.policy.Decide(in)
	switch {
	case n.d.Verdict == Allow:
		return Allow, n.d.By, ""
	case n.d.Verdict != Ask:
		return Deny, n.d.By, n.d.Reasons[0]
	case n.d.Step != stepRules && slices.Contains(c.j.Egress.Hosts, n.args.String("host")):
		return Allow, c.by, "" // it was part of what was decided on
	case g.asked >= maxNetQuestions || g.declined >= maxNetDeclined:
		return Deny, "guard", "this call was refused, or has asked for, too many hosts"
	}
	g.asked++
	sum := sha256.Sum256([]byte(jsonText(n.args.Values)))
	n.digest, n.asked = hex.EncodeToString(sum[:]), c.asked
	a, err := s.question(ctx, n, in)
	c.asked = n.asked
	if err == nil && a.Allow {
		err = s.approvals.Grant(ctx, n.record(nil), c.t.ID, grantsFor(&in, a.Scope))
	}
	switch {
	case err == nil && a.Allow:
		return Allow, "owner", ""
	case err != nil:
		by, why = "expired", err.Error()
	case a.Expired:
		by, why = "expired", "it was not answered: "+a.Reason
	default:
		by, why = "owner", "the owner declined it"
		if a.Reason != "" {
			why += ": " + a.Reason
		}
	}
	g.declined++
	return Deny, by, why
}

// judgeHost is what it means that the call connects to a host.
func (c *callState) judgeHost(d tools.Dest) tools.Judgement {
	return tools.Judgement{
		Summary: fmt.Sprintf("connect to %s, port %d, for %s", hostShown(d.Host), d.Port, c.j.Summary),
		Risk:    tools.Sensitive,
		Why:     []string{"the call as it was decided on did not name this host"},
		Targets: []tools.Target{{Key: "net:" + d.Host, Widest: tools.Always}}, Widest: tools.Always,
		Egress: tools.Egress{Kind: tools.EgressHosts, Hosts: []string{d.Host}},
		URL:    d.URL,
		Sends:  d.Sends, RequestBytes: d.Bytes, Network: true, Proxied: true, Boxed: true, ReadsUntrusted: true,
	}
}
