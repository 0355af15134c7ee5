package tools

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// A secret of the vault stands in an argument as "{{vault:NAME}}", blanks around
// the name allowed, where the tool takes it (Tool.AcceptsSecrets). The value is
// put in by the gate, after the decision, and is never looked at for
// placeholders again.

// A SecretUse is one placeholder of a call.
type SecretUse struct {
	Name  string // in the vault
	Param string // the parameter that it stands in
	Var   string // the variable of the child that holds the value; "" if the value takes the placeholder's place
}

// secretForm finds what looks like a placeholder, also a malformed one.
var secretForm = LazyRegexp(`\{\{\s*vault\s*:`)

// SplitPlaceholders cuts a text at its placeholders: there is one text more than
// there are names. An error says that something else looks like one.
func SplitPlaceholders(s string) (texts, names []string, err error) {
	rest, from := s, 0
	for {
		i := strings.Index(rest[from:], "{{")
		if i < 0 {
			break
		}
		i += from
		name, n := placeholder(rest[i:])
		if from = i + 1; n > 0 {
			texts, names = append(texts, rest[:i]), append(names, name)
			rest, from = rest[i+n:], 0
		}
	}
	texts = append(texts, rest)
	for _, t := range texts {
		if secretForm().MatchString(t) {
			return nil, nil, fmt.Errorf("what names a secret is written {{vault:NAME}}, with a name of 1 to 64 of the characters A-Z a-z 0-9 _ . -")
		}
	}
	return texts, names, nil
}

// FillPlaceholders puts values in place of placeholders, in one pass.
func FillPlaceholders(s string, value func(name string) string) (string, error) {
	texts, names, err := SplitPlaceholders(s)
	if err != nil {
		return "", err
	}
	out := texts[0]
	for i, name := range names {
		out += value(name) + texts[i+1]
	}
	return out, nil
}

// secretVar begins the names of the variables that hold the secrets of a line.
const secretVar = "PICKET_SECRET_"

// A secretLine is a command line with references to variables in place of its
// placeholders: what is analysed and run.
type secretLine struct {
	text string
	uses []SecretUse
	back *strings.Replacer // from references to placeholders
}

// readSecretLine replaces each placeholder of a command line by a reference that
// is quoted for its place, so that a shell reads the value as no more than a part
// of a word. The parser says where a place is: it reads the line with a letter in
// place of each placeholder. Where it sees none, or a shell might see another,
// there is an error.
func readSecretLine(line string) (secretLine, error) {
	l := secretLine{text: line, back: strings.NewReplacer()}
	if strings.Contains(line, secretVar) {
		return l, fmt.Errorf("variables that begin with %s are for picket alone: write {{vault:NAME}}", secretVar)
	}
	texts, names, err := SplitPlaceholders(line)
	if err != nil || len(names) == 0 {
		return l, err
	}
	letter := secretLetter
	for strings.ContainsRune(line, letter) {
		letter++ // a private one, and a line is shorter than there are
	}
	p := newShellParser(strings.Join(texts, string(letter)))
	p.places = map[int]byte{}
	p.read()
	pos, width := 0, utf8.RuneLen(letter)
	var vars, back []string
	var out strings.Builder
	for i, name := range names {
		out.WriteString(texts[i])
		pos += len(texts[i])
		place, known := p.places[pos]
		if pos += width; place != '\'' && (len(texts[i])-len(strings.TrimRight(texts[i], `\`)))%2 == 1 {
			known = false // a backslash takes it for what it stands for
		}
		if !known {
			return l, fmt.Errorf("{{vault:%s}} stands where the shell expands nothing or picket does not know what it expands: %s", name, useEnv)
		}
		n := slices.Index(vars, name)
		if n < 0 {
			n, vars = len(vars), append(vars, name)
		}
		variable := fmt.Sprint(secretVar, n+1)
		ref := map[byte]string{0: `"$` + variable + `"`, '\'': `'"$` + variable + `"'`}[place]
		if ref == "" {
			ref = "${" + variable + "}"
		}
		out.WriteString(ref)
		back = append(back, ref, "{{vault:"+name+"}}")
		l.uses = append(l.uses, SecretUse{Name: name, Param: "command", Var: variable})
	}
	out.WriteString(texts[len(names)])
	l.text = out.String()
	l.back = strings.NewReplacer(back...)
	return l, nil
}

const useEnv = `give it in "env" and let the program read that variable`

// secretLetter is the first of the private letters that stand for a placeholder
// while a line is read; secretByte is that with which they all begin.
const (
	secretLetter = '\ue000'
	secretByte   = 0xee
)

// noSecret makes a line opaque in which a secret would be a part of the code that a
// program runs: quoting it for the shell does not quote it for that.
func (a *analysis) noSecret(program string, words ...Word) {
	if slices.ContainsFunc(words, func(w Word) bool { return strings.Contains(w.Raw, secretVar) }) {
		a.setOpaque("it would be code of " + program)
	}
}

// secretLine reads the command line and the variables of a call of the shell. What
// is not analysed refuses the secrets in it: nobody knows what they would come to.
func (a *analysis) secretLine(args Args) (uses []SecretUse, err error) {
	if uses, err = secretEnv(args.Map("env")); err == nil {
		a.secret, err = readSecretLine(args.String("command"))
	}
	if err != nil {
		return nil, err
	}
	a.line(a.secret.text, 0)
	if len(a.secret.uses) > 0 && a.opaque != "" {
		return nil, fmt.Errorf("a secret cannot stand in this line (%s): %s", a.secret.back.Replace(a.opaque), useEnv)
	}
	return append(uses, a.secret.uses...), nil
}

// shown puts the placeholders back into what is shown of a line and matched by
// rules that allow. Rules that deny or ask are tried on what runs too.
func (l *secretLine) shown(j *Judgement) {
	if len(l.uses) == 0 {
		return
	}
	if j.Opaque != "" {
		j.Refuse = "a secret cannot stand in this line (" + j.Opaque + "): " + useEnv
	}
	j.Forms = map[string][]string{"command": append([]string{l.text}, j.Commands...)}
	back := func(list []string) (out []string) {
		for _, s := range list {
			out = append(out, l.back.Replace(s))
		}
		return out
	}
	j.Commands = back(j.Commands)
	for _, argv := range slices.Clip(j.Argv) {
		j.Argv = append(slices.Clip(j.Argv), back(argv))
	}
	for _, list := range []*[]string{&j.Warnings, &j.Why, &j.Writes} {
		*list = back(*list)
	}
	j.NotCovered = l.back.Replace(j.NotCovered)
}

// credentialVar are names that hold a credential although they begin as those that
// steer programs do, such as CARGO_REGISTRY_TOKEN.
var credentialVar = LazyRegexp(`^(CARGO|GEM|YARN|BUNDLE)_[A-Z0-9_]*(TOKEN|KEY|PASSWORD)$`)

// secretEnv reads variables that a call wants set: each value is exactly one
// placeholder, and no name decides which programs run or what they load.
func secretEnv(env map[string]string) (uses []SecretUse, err error) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		secret, n := placeholder(env[name])
		switch {
		case !isName(name):
			return nil, fmt.Errorf("env: %q is not the name of a variable", name)
		case steersPrograms(name) && !credentialVar().MatchString(name):
			return nil, fmt.Errorf("env: %q steers what programs do and cannot be set", name)
		case n == 0 || n != len(env[name]):
			return nil, fmt.Errorf("env: the value of %q must be exactly one {{vault:NAME}}", name)
		}
		uses = append(uses, SecretUse{Name: secret, Param: "env", Var: name})
	}
	return uses, nil
}
