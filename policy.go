package main

// Verdict is the outcome of a decision. The zero value denies, so that whatever
// is forgotten is refused.
type Verdict int

const (
	Deny Verdict = iota
	Ask
	Allow
)

func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case Ask:
		return "ask"
	}
	return "deny"
}

// Labels are the two labels of a chat (or of a file, memory or grant).
type Labels struct{ Private, Untrusted bool }

// List returns the labels in their order of the log, never nil.
func (l Labels) List() []string {
	out := []string{}
	if l.Private {
		out = append(out, "private")
	}
	if l.Untrusted {
		out = append(out, "untrusted")
	}
	return out
}
