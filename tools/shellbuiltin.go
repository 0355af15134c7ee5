package tools

import (
	"slices"
	"strings"
)

const notConstant = "the program's name is not constant"

// plainSet matches the flags of set that change nothing about how a line is read
// or what is passed on.
var plainSet = LazyRegexp(`^( [-+]([Cefuvx]+|[Cefuvx]*o (pipefail|errexit|nounset|xtrace|noglob|noclobber|verbose)))+$`)

// hides says why the command of these words, which starts with a constant
// program, hides what runs; "" if it does not. That is the part of the shells'
// builtins that runs text, names other programs for words, or evaluates an
// argument as bash evaluates a subscript: with the substitutions in it.
func (p *shellParser) hides(words []Word, redirected bool) string {
	name, args := words[0].Text, words[1:]
	var first Word
	if len(args) > 0 {
		first = args[0]
	}
	switch name {
	case "eval", ".", "source", "alias", "unalias", "enable", "hash", "builtin", "coproc", "trap", "declare", "typeset",
		"local", "readonly", "let", "shopt", "bind", "complete", "compgen", "compopt", "mapfile", "readarray", "fc",
		"history", "pushd", "popd", "select", "function", "[[", "getopts", "jobs":
		return name
	case "command":
		for len(args) > 0 && (args[0].Text == "-p" || args[0].Text == "--") {
			args = args[1:]
		}
		switch {
		case len(args) == 0 || args[0].Text == "-v" || args[0].Text == "-V":
			return ""
		case !args[0].Const || strings.HasPrefix(args[0].Text, "-"):
			return notConstant
		}
		return p.hides(args, redirected)
	case "exec":
		if redirected || strings.HasPrefix(first.Text, "-") || len(args) > 0 && !first.Const {
			return "exec with a redirection, options or a name that is not constant"
		}
	case "set":
		flags := ""
		for _, w := range args {
			flags += " " + w.Raw
		}
		if !plainSet().MatchString(flags) {
			return "set with more than plain flags"
		}
	case "read", "unset", "wait", "export":
		for _, w := range args {
			variable, _, assigned := strings.Cut(w.Text+w.Prefix, "=")
			known := w.Const || w.number || name == "export" && assigned
			// Options of read may be followed by the name of an array.
			option := name == "read" && strings.HasPrefix(variable, "-") && variable != "-r"
			if !known || option || specialVariable(variable) || strings.Contains(variable, "[") {
				return name + " of a variable that is not known"
			}
		}
	case "printf":
		if strings.HasPrefix(first.Text, "-v") || len(args) > 0 && !first.Const && (first.Prefix == "" || first.Prefix[0] == '-') {
			return "printf to a variable"
		}
	case "test", "[":
		for i, w := range args {
			unknown := !w.Const && !w.number
			// A value may be the operator -v, and unquoted the operand too.
			operator := unknown && i+1 < len(args) && (!args[i+1].Const && !args[i+1].number || strings.Contains(args[i+1].Text, "["))
			if w.Text == "-v" || w.Text == "-R" || operator || unknown && w.Fields && w.Var == "" {
				return name + " may evaluate its arguments"
			}
			if unknown && w.Fields {
				p.arith = append(p.arith, w.Var)
			}
		}
	case "time": // where it is not quoted, a reserved word in bash
		if words[0].Raw != name || len(args) == 0 {
			return ""
		}
		if first.Raw == "-p" && len(args) > 1 {
			args = args[1:]
		}
		if w := args[0]; !w.Const || w.Text == "" || isKeyword(w.Text) || w.Text[0] == '-' || strings.ContainsAny(w.Raw, "=[") {
			return "time of something other than a plain command"
		}
		return p.hides(args, redirected)
	}
	return ""
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

// checkVariables makes the script opaque unless each variable that it evaluates as
// arithmetic, or passes to test unquoted, is given only numbers, and by nothing
// but the script. With a text for a value, test could take it for an operator.
func (p *shellParser) checkVariables() {
	if len(p.arith) == 0 {
		return
	}
	known := map[string]bool{"_": false, "REPLY": false} // the shells set these
	give := func(name string, number bool) {
		old, ok := known[name]
		known[name] = number && (old || !ok)
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
		for _, w := range c.Words { // it may be read or export
			name, _, _ := strings.Cut(w.Text+w.Prefix, "=")
			give(name, false)
		}
	}
	if i := slices.IndexFunc(p.arith, func(name string) bool { return !known[name] }); i >= 0 {
		p.note("$" + p.arith[i] + " may not be a number")
	}
}

// guess adds what may be commands in text that was not understood. It leaves out
// nothing that looks like a program's name at the start of a command.
func (p *shellParser) guess(text string) {
	unquote := strings.NewReplacer("'", "", `"`, "", `\`, "")
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(";&|\n\r(){}`<>", r) }) {
		var words []Word
		for f := range strings.FieldsSeq(part) {
			t := unquote.Replace(f)
			skip := isKeyword(t) || strings.ContainsAny(t, "=$") ||
				slices.Contains([]string{"", "builtin", "command", "eval", "time", "trap"}, t)
			if len(words) > 0 || !skip {
				words = append(words, Word{Raw: f, Text: t, Const: true})
			}
		}
		if len(words) > 0 {
			p.out.Commands = append(p.out.Commands, Simple{Words: words, Maybe: true, Scope: p.scope})
		}
	}
}
