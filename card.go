package main

import (
	"fmt"
	"slices"
	"strings"

	"picket/tools"
)

// A Card is a question as the owner sees it, on every surface the same. Lines
// are made safe to show. Offered are the scopes that may be given once all of
// them were shown; before that, Once. Denying always can be.
type Card struct {
	Lines   []string
	Offered []tools.Scope
}

// cardInput is what a question tells. Nothing of it is the model's word but
// the arguments, and the summary that the tool made of them.
type cardInput struct {
	Input    *Input
	Decision Decision
	Words    string // that led to the call
	Source   string // whose they are: owner, app, goal
	Chat     string
	Labels   []string // the chat's label sources, one line each
	Secrets  []string // "NAME → where it goes"
	Change   *tools.FileChange
	Redact   func(string) string // takes secrets out of a text; nil leaves it
}

// Limits of a card that approvals.jsonl can hold whole (see records.go).
const (
	maxCardLines = 500
	maxCardBytes = 40 << 10
	cardWidth    = 2000 // bytes of a line before it is continued on the next
	maxWords     = 2000 // bytes of the owner's words
)

// makeCard writes the question, the same for every place that shows it.
func makeCard(c cardInput) Card {
	in, d, j := c.Input, &c.Decision, &c.Input.Judgement
	b := cardText{redact: c.Redact}
	b.line("", j.Summary)
	b.line("risk: ", in.risk().String())
	for _, r := range d.Reasons {
		b.line("  - ", r)
	}
	b.list("not granted yet: ", d.Missing)
	b.list("granted: ", covering(in.targets(), d.Missing))
	if e := in.egress(); e == tools.EgressHosts {
		for _, h := range j.Egress.Hosts {
			b.lines = append(b.lines, "sends to: "+hostShown(h))
		}
	} else if e == tools.EgressUnknown {
		b.line("", "sends to: any host")
	}
	b.list("writes: ", j.Writes)
	whose := map[string]string{"owner": "you asked", "app": "another app asked", "goal": "a goal says"}[c.Source]
	if whose == "" {
		whose = "somebody else asked"
	}
	words := c.Words
	if len(words) > maxWords {
		words = strings.ToValidUTF8(words[:maxWords], "") + fmt.Sprintf(" … (%d bytes in all)", len(words))
	}
	b.block(whose, words)
	b.line("chat: ", c.Chat+", channel "+in.Channel)
	for _, l := range c.Labels {
		b.line("  - ", l)
	}
	b.args(in)
	b.list("secret: ", c.Secrets)
	if c.Change != nil {
		b.diff(c.Change)
	}
	offered, size := d.Offered, 0
	for _, l := range b.lines {
		size += len(l) + strings.Count(l, `\`) + 3
	}
	if len(b.lines) > maxCardLines || size > maxCardBytes {
		offered = onlyOnce(offered)
	}
	for _, s := range offered {
		b.line(s.String()+" allows: ", effect(s, grantsFor(in, s)))
	}
	if d.Narrow != "" && len(offered) < len(d.Offered)+1 {
		b.line("no wider: ", d.Narrow)
	}
	return Card{b.lines, offered}
}

func covering(targets []tools.Target, missing []string) []string {
	var out []string
	for _, t := range targets {
		if !slices.Contains(missing, t.Key) {
			out = append(out, t.Key)
		}
	}
	return out
}

// cardText collects the lines of a card.
type cardText struct {
	lines  []string
	redact func(string) string
}

// line adds one line of text, in pieces if it is very long.
func (b *cardText) line(lead, text string) {
	if b.redact != nil {
		text = b.redact(text)
	}
	text = printable(text)
	for len(text) > cardWidth {
		i := strings.LastIndexByte(text[:cardWidth], ' ')
		if i < cardWidth/2 {
			i = len(strings.ToValidUTF8(text[:cardWidth], "")) // no rune is split
		}
		b.lines = append(b.lines, lead+text[:i])
		lead, text = "  … ", text[i:]
	}
	b.lines = append(b.lines, lead+text)
}

func (b *cardText) list(lead string, items []string) {
	for _, s := range items {
		b.line(lead, s)
	}
}

// block adds text that may have several lines, each of them marked, so that
// none can pass for a line of the card.
func (b *cardText) block(name, text string) {
	if b.redact != nil {
		text = b.redact(text)
	}
	text = strings.TrimSuffix(text, "\n")
	if !strings.Contains(text, "\n") {
		b.line(name+": ", text)
		return
	}
	b.line("", name+":")
	for l := range strings.SplitSeq(text, "\n") {
		b.line("  | ", l)
	}
}

// args adds the arguments, whole, in the order of the tool's own list.
func (b *cardText) args(in *Input) {
	var names []string
	for _, p := range in.Tool.Params {
		names = append(names, p.Name)
	}
	var rest []string
	for name := range in.Args {
		if !slices.Contains(names, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	for _, name := range append(names, rest...) {
		switch v := in.Args[name].(type) {
		case nil:
		case string:
			b.block(name, v)
		default:
			b.line(name+": ", jsonText(v))
		}
	}
}

// diff adds what a change takes away and puts in, with the lines around it.
func (b *cardText) diff(c *tools.FileChange) {
	if c.Created {
		b.line("", fmt.Sprintf("%s is a new file, %d bytes", c.Path, len(c.New)))
		return
	}
	old, now := strings.Split(c.Old, "\n"), strings.Split(c.New, "\n")
	head := 0
	for head < min(len(old), len(now)) && old[head] == now[head] {
		head++
	}
	tail := 0
	for tail < min(len(old), len(now))-head && old[len(old)-1-tail] == now[len(now)-1-tail] {
		tail++
	}
	const around = 3
	b.line("", fmt.Sprintf("change of %s from line %d on:", c.Path, head+1))
	add := func(mark string, lines []string) {
		for _, l := range lines {
			b.line("  "+mark, l)
		}
	}
	add(" ", old[max(0, head-around):head])
	add("-", old[head:len(old)-tail])
	add("+", now[head:len(now)-tail])
	add(" ", old[len(old)-tail:min(len(old), len(old)-tail+around)])
}
