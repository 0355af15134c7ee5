package tools

import (
	"slices"
	"strings"
)

// opaqueBuiltin says why the command of these words, which starts with a
// constant program, hides what runs; "" if it does not. That is the part of the
// shells' builtins that runs text, names other programs for words, or evaluates
// an argument as bash evaluates a subscript: with the substitutions in it. It
// has to be asked again for what "command" and other wrappers lead to.
func opaqueBuiltin(words []Word, redirected bool) string {
	name, args := words[0].Text, words[1:]
	doubtful := func(w Word) bool { return !w.Const && !w.number || strings.Contains(w.Text, "[") }
	switch name {
	case "eval", ".", "source", "alias", "unalias", "enable", "hash", "builtin", "coproc", "trap", "declare", "typeset",
		"local", "readonly", "let", "shopt", "bind", "complete", "compgen", "compopt", "mapfile", "readarray", "fc",
		"history", "select", "function", "[[":
		return name
	case "command":
		for len(args) > 0 && (args[0].Text == "-p" || args[0].Text == "--") {
			args = args[1:]
		}
		switch {
		case len(args) == 0 || args[0].Text == "-v" || args[0].Text == "-V":
		case !args[0].Const || args[0].Text != "" && args[0].Text[0] == '-':
			return notConstant
		default:
			return opaqueBuiltin(args, redirected)
		}
	case "exec":
		if redirected || len(args) > 0 && strings.HasPrefix(args[0].Text, "-") {
			return "exec with a redirection or options"
		}
		if len(args) > 0 && !args[0].Const {
			return notConstant
		}
	case "set":
		if !plainSet(args) {
			return "set with more than plain flags"
		}
	case "jobs":
		if len(args) > 0 {
			return "jobs with arguments"
		}
	case "read", "unset", "getopts", "wait", "export":
		for _, w := range args {
			before, _, assigned := strings.Cut(w.Text, "=")
			if !w.Const {
				before, _, assigned = strings.Cut(w.Prefix, "=")
			}
			if specialVariable(before) || strings.Contains(before, "[") || !(name == "export" && assigned) && doubtful(w) {
				return name + " of a variable that is not known"
			}
		}
	case "printf":
		if len(args) > 0 && (strings.HasPrefix(args[0].Text, "-v") || !args[0].Const && (args[0].Prefix == "" || args[0].Prefix[0] == '-')) {
			return "printf to a variable"
		}
	case "test", "[":
		dash := slices.ContainsFunc(args, func(w Word) bool { return w.Const && (w.Text == "-v" || w.Text == "-R") })
		for i, w := range args {
			// A value may be the operator -v, and unquoted the operand too.
			operator := !w.Const && !w.number && i+1 < len(args) && doubtful(args[i+1])
			if dash && doubtful(w) || operator || w.Fields && !w.number && w.Var == "" {
				return name + " may evaluate its arguments"
			}
		}
	case "time":
		if words[0].Raw == "time" {
			return opaqueTime(args)
		}
	}
	return ""
}

const notConstant = "the program's name is not constant"

// opaqueTime looks at the words after time, which is a reserved word in bash.
func opaqueTime(args []Word) string {
	if len(args) > 0 && args[0].Raw == "-p" {
		args = args[1:]
	}
	if len(args) == 0 {
		return ""
	}
	w := args[0]
	i := 0
	for i < len(w.Text) && isNameByte(w.Text[i], i == 0) {
		i++
	}
	if !w.Const || isKeyword(w.Text) || w.Text == "" || w.Text[0] == '-' || i > 0 && i < len(w.Text) && strings.IndexByte("=[+", w.Text[i]) >= 0 {
		return "time of something other than a plain command"
	}
	return opaqueBuiltin(args, false)
}

// plainSet accepts the flags that change nothing about how a line is read or
// what is passed on.
func plainSet(args []Word) bool {
	if len(args) == 0 {
		return false
	}
	for i := 0; i < len(args); i++ {
		t := args[i].Text
		if !args[i].Const || len(t) < 2 || t[0] != '-' && t[0] != '+' || strings.Trim(t[1:], "Cefuvxo") != "" {
			return false
		}
		switch strings.Count(t, "o") {
		case 0:
		case 1:
			i++
			if t[len(t)-1] != 'o' || i == len(args) || !slices.Contains([]string{"pipefail", "errexit", "nounset", "xtrace", "noglob", "noclobber", "verbose"}, args[i].Text) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// specialVariable knows the variables whose assignment makes a shell evaluate the
// value, now or when it traces, or read the line in another way. What others
// mean to the programs started is not looked at here.
func specialVariable(name string) bool {
	switch name {
	case "RANDOM", "SRANDOM", "SECONDS", "OPTIND", "HISTCMD", "LINENO", "PROMPT_COMMAND", "POSIXLY_CORRECT", "SHELLOPTS":
		return true
	}
	return strings.HasPrefix(name, "BASH") || len(name) == 3 && strings.HasPrefix(name, "PS")
}

func (p *shellParser) checkSpecial(name string) {
	if specialVariable(name) {
		p.note("assignment to " + name)
	}
}

// testOperands notes the variables that test gets unquoted: with a text for a
// value they could be the operator that evaluates.
func (p *shellParser) testOperands(words []Word) {
	for len(words) > 1 && (words[0].Text == "command" || words[0].Text == "time" || words[0].Text == "-p" || words[0].Text == "--") {
		words = words[1:]
	}
	if words[0].Text != "[" && words[0].Text != "test" {
		return
	}
	for _, w := range words {
		if w.Fields && !w.number && w.Var != "" {
			p.arith = append(p.arith, w.Var)
		}
	}
}

// checkVariables makes the script opaque unless each variable that it evaluates as
// arithmetic, or passes to test unquoted, is given only numbers, and by nothing
// but the script.
func (p *shellParser) checkVariables() {
	if len(p.arith) == 0 {
		return
	}
	known := map[string]bool{}
	give := func(name string, number bool) {
		if old, ok := known[name]; !ok || old {
			known[name] = number
		}
	}
	for _, l := range p.out.Loops {
		give(l.Name, l.Words != nil)
		for _, w := range l.Words {
			give(l.Name, w.number)
		}
	}
	for _, c := range p.out.Commands {
		for _, a := range c.Assigns {
			give(a.Name, a.Value.number)
		}
		if !slices.ContainsFunc(c.Words, func(w Word) bool { return slices.Contains([]string{"read", "export", "getopts", "wait"}, w.Text) }) {
			continue
		}
		for _, w := range c.Words {
			name, _, _ := strings.Cut(w.Text+w.Prefix, "=")
			give(name, false)
		}
	}
	for _, name := range p.arith {
		if !known[name] {
			p.note("$" + name + " may not be a number")
			return
		}
	}
}

// guess adds what may be commands in text that was not understood. It leaves out
// nothing that looks like a program's name at the start of a command.
func (p *shellParser) guess(text string) {
	unquote := strings.NewReplacer("'", "", `"`, "", `\`, "")
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(";&|\n\r(){}`<>", r) }) {
		var words []Word
		for _, f := range strings.Fields(part) {
			t := unquote.Replace(f)
			switch {
			case len(words) == 0 && (isKeyword(t) || slices.Contains([]string{"", "builtin", "command", "eval", "time", "trap"}, t) || strings.ContainsAny(t, "=$")):
			default:
				words = append(words, Word{Raw: f, Text: t, Const: true})
			}
		}
		if len(words) > 0 {
			p.out.Commands = append(p.out.Commands, Simple{Words: words, Maybe: true, Scope: p.scope})
		}
	}
}
