package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"picket/tools"
)

// Secrets in calls. The model writes {{vault:NAME}}; so does the log, the card and
// all that a decision is about. The value is looked up once to learn what it is
// bound to, and forgotten; it is put in after the decision is recorded. A program
// gets it in its environment, and what the line makes an argument of it, others in
// the same box can see, and without a box all of the owner's processes.

// checkSecrets says what is wrong with the secrets in the arguments of a call, ""
// if nothing is: no value stands there in clear, each placeholder stands where the
// tool takes one, and the tool has told what it does with it.
func (s *Sentinel) checkSecrets(c *callState) (why, step string) {
	for _, p := range c.tool.Params {
		texts, names := argTexts(c.args.Values[p.Name])
		for _, t := range slices.Concat(texts, names) {
			if !c.hop && s.holds != nil && s.holds(t) {
				return fmt.Sprintf("the argument %q holds the value of a secret: name it as {{vault:NAME}}", p.Name), stepGuard
			}
		}
		for _, t := range names {
			if _, found, err := tools.SplitPlaceholders(t); err != nil || found != nil {
				return fmt.Sprintf("a name in %q cannot be a secret", p.Name), stepArguments
			}
		}
		untold := 0
		for _, t := range texts {
			_, found, err := tools.SplitPlaceholders(t)
			if err != nil {
				return fmt.Sprintf("argument %q: %v", p.Name, err), stepArguments
			}
			if untold += len(found); len(found) > 0 && !slices.Contains(c.tool.AcceptsSecrets, p.Name) {
				where := "no argument of " + c.tool.Name + " can hold one"
				if c.tool.AcceptsSecrets != nil {
					where = c.tool.Name + " takes one in " + strings.Join(c.tool.AcceptsSecrets, " and ")
				}
				return fmt.Sprintf("the secret {{vault:%s}} cannot stand in %q: %s", found[0], p.Name, where), stepArguments
			}
		}
		for _, u := range c.plan.Secrets {
			if u.Param == p.Name {
				untold--
			}
		}
		if untold != 0 {
			return fmt.Sprintf("a secret cannot stand there in %q", p.Name), stepArguments
		}
	}
	return "", ""
}

// argTexts returns the strings in a value, and the names of one that has names.
func argTexts(v any) (texts, names []string) {
	switch v := v.(type) {
	case string:
		texts = []string{v}
	case []string:
		texts = v
	case map[string]string:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			texts, names = append(texts, v[name]), append(names, name)
		}
	}
	return texts, names
}

// secrets returns what the vault has for a call, in the order of its uses.
func (s *Sentinel) secrets(c *callState) (list []vaultEntry, err error) {
	for _, u := range c.plan.Secrets {
		if slices.ContainsFunc(list, func(e vaultEntry) bool { return e.Name == u.Name }) {
			continue
		}
		e, ok := vaultEntry{}, false
		if s.lookup != nil {
			if e, ok, err = s.lookup(u.Name); err != nil {
				return nil, err
			}
		}
		if !ok {
			return nil, fmt.Errorf("there is no secret %q in the vault (the owner can add it: picket vault set %s)", u.Name, u.Name)
		}
		list = append(list, e)
	}
	return list, nil
}

// judgeSecrets says where the secrets of a call go, and warns of each that leaves
// what it is bound to.
func (s *Sentinel) judgeSecrets(c *callState) (why, step string) {
	c.secrets = nil
	switch {
	case len(c.plan.Secrets) == 0:
		return "", ""
	case c.hop:
		return "a redirect names a secret", stepGuard
	}
	list, err := s.secrets(c)
	if err != nil {
		return err.Error(), stepGuard
	}
	var warnings []string
	c.secrets, warnings = secretWarnings(list, c.tool.Name, &c.j)
	c.j.Warnings = append(slices.Clip(c.j.Warnings), warnings...)
	return "", ""
}

// secretWarnings returns a line for each secret, and those that are warnings.
func secretWarnings(list []vaultEntry, tool string, j *tools.Judgement) (lines, warnings []string) {
	var to []string
	switch e := (&Input{Judgement: *j}).egress(); {
	case e == tools.EgressHosts && !runsCode(tool):
		to = j.Egress.Hosts
	default:
		for _, t := range j.Targets { // of the tool; hosts are told below
			if name, ok := strings.CutPrefix(t.Key, tool+":"); ok {
				to = append(to, name)
			}
		}
		if len(to) == 0 {
			to = []string{tool}
		}
		if e == tools.EgressUnknown {
			to = append(to, "any host")
		} else if e == tools.EgressHosts {
			to = append(to, j.Egress.Hosts...)
		}
	}
	clear := strings.HasPrefix(j.URL, "http://")
	where := strings.Join(to, ", ")
	if clear {
		where += " over http, so that all on the way can read it"
	}
	for _, e := range list {
		line := e.Name + " → " + where
		lines = append(lines, line)
		if clear || !e.covers(tool, j) {
			warnings = append(warnings, "secret "+line)
		}
	}
	return lines, warnings
}

// covers reports whether a call uses a secret as its owner bound it: by a tool that
// it is bound to, if it is to any, and with all that can be reached among its hosts,
// if it has any. For code, which decides by itself where it sends, the
// tool must be named; for all else the host.
func (e *vaultEntry) covers(tool string, j *tools.Judgement) bool {
	named := len(e.Hosts) > 0
	if runsCode(tool) {
		named = len(e.Tools) > 0
	}
	if !named || len(e.Tools) > 0 && !slices.Contains(e.Tools, tool) {
		return false
	}
	egress := (&Input{Judgement: *j}).egress()
	if egress == tools.EgressNone || len(e.Hosts) == 0 {
		return true
	}
	if egress == tools.EgressUnknown {
		return false
	}
	for _, host := range j.Egress.Hosts {
		if !slices.ContainsFunc(e.Hosts, func(pattern string) bool {
			g, err := compileGlob(pattern)
			return err == nil && g.match(host)
		}) {
			return false
		}
	}
	return true
}

// reveal looks the secrets of a decided call up once more. It returns the arguments
// with the values in them, and the variables of the child that has them.
func (s *Sentinel) reveal(c *callState) (args tools.Args, vars map[string]string, err error) {
	if len(c.plan.Secrets) == 0 {
		return c.args, nil, nil
	}
	list, err := s.secrets(c)
	if err != nil {
		return args, nil, fmt.Errorf("%w, so the call was not run", err)
	}
	if _, warnings := secretWarnings(list, c.tool.Name, &c.j); slices.ContainsFunc(warnings, func(w string) bool { return !slices.Contains(c.j.Warnings, w) }) {
		return args, nil, errors.New("a secret was bound to something else meanwhile, so the call was not run")
	}
	value := func(name string) string {
		return list[slices.IndexFunc(list, func(e vaultEntry) bool { return e.Name == name })].Value
	}
	vars, args = map[string]string{}, tools.Args{Values: maps.Clone(c.args.Values)}
	for _, u := range c.plan.Secrets {
		if u.Var != "" {
			vars[u.Var] = value(u.Name)
			continue
		}
		switch v := c.args.Values[u.Param].(type) {
		case string: // a URL, in the form that was approved
			args.Values[u.Param], err = tools.FillPlaceholders(c.j.URL, func(name string) string { return tools.EscapeURLValue(value(name)) })
		case map[string]string:
			filled := map[string]string{}
			for key, text := range v {
				if filled[key], err = tools.FillPlaceholders(text, value); err != nil {
					return args, nil, err
				}
			}
			args.Values[u.Param] = filled
		default:
			err = fmt.Errorf("%q cannot hold a secret", u.Param)
		}
		if err != nil {
			return args, nil, err
		}
	}
	return args, vars, nil
}

// redactJSON takes secrets out of JSON text, also where they are escaped in ways of
// which a redactor does not know. What is not JSON is redacted as it is.
func redactJSON(raw string, redact func(string) string) string {
	if !strings.Contains(raw, `\`) || !json.Valid([]byte(raw)) {
		return redact(raw)
	}
	var b strings.Builder
	for rest := raw; ; {
		from := strings.IndexByte(rest, '"')
		if from < 0 {
			return redact(b.String() + rest)
		}
		end := from + 1
		for ; rest[end] != '"'; end++ {
			if rest[end] == '\\' {
				end++
			}
		}
		token, text := rest[from:end+1], ""
		if strings.Contains(token, `\`) && json.Unmarshal([]byte(token), &text) == nil {
			if clean := redact(text); clean != text {
				token = jsonText(clean)
			}
		}
		b.WriteString(rest[:from] + token)
		rest = rest[end+1:]
	}
}
