package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"picket/tools"
)

// A Card is a question as the owner sees it, on every surface the same. Lines are made safe to show. Offered are the scopes
// that may be given once all of them were shown; before that, Once. Denying always can be.
type Card struct {
	Lines   []string
	Offered []tools.Scope
}

// cardInput is what a question tells. Nothing of it is the model's word but the arguments, and the summary that the tool
// made of them.
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
	b.list("  - ", d.Reasons)
	b.list("not granted yet: ", d.Missing)
	for _, t := range in.targets() {
		if !slices.Contains(d.Missing, t.Key) {
			b.line("granted: ", t.Key)
		}
	}
	switch in.egress() {
	case tools.EgressUnknown:
		b.line("", "sends to: any host")
	case tools.EgressHosts:
		for _, h := range j.Egress.Hosts {
			b.lines = append(b.lines, "sends to: "+b.clean(hostShown(h)))
		}
	}
	b.list("writes: ", j.Writes)
	whose := map[string]string{"owner": "you asked", "app": "another app asked", "goal": "a goal says"}[c.Source]
	b.block(cmp.Or(whose, "somebody else asked"), cutBytes(b.clean(c.Words), maxWords))
	b.line("chat: ", c.Chat+", channel "+in.Channel)
	b.list("  - ", c.Labels)
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
	if d.Narrow != "" {
		b.line("no wider: ", d.Narrow)
	}
	return Card{b.lines, offered}
}

// cardText collects the lines of a card.
type cardText struct {
	lines  []string
	redact func(string) string
}

func (b *cardText) clean(text string) string {
	if b.redact == nil {
		return text
	}
	return b.redact(text)
}

// line adds one line of text, in pieces if it is very long.
func (b *cardText) line(lead, text string) {
	text = printable(b.clean(text))
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

// block adds text that may have several lines, each of them marked, so that none can pass for a line of the card.
func (b *cardText) block(name, text string) {
	text = b.clean(text)
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
	names := slices.Sorted(maps.Keys(in.Args))
	place := func(name string) uint { // what is not in the list comes last
		return uint(slices.IndexFunc(in.Tool.Params, func(p tools.Param) bool { return p.Name == name }))
	}
	slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(place(x), place(y)) })
	for _, name := range names {
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
	head, tail, most := 0, 0, min(len(old), len(now))
	for head < most && old[head] == now[head] {
		head++
	}
	for tail < most-head && old[len(old)-1-tail] == now[len(now)-1-tail] {
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
