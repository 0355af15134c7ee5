package tools

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSplitPlaceholders(t *testing.T) {
	long := strings.Repeat("n", 64)
	for _, c := range []struct{ name, text, want string }{
		{"none", "a {b} {{c}} {{ d }}", "a {b} {{c}} {{ d }}"},
		{"alone", "{{vault:K}}", "|K|"},
		{"blanks", "{{ vault: K }}", "|K|"},
		{"two", "a{{vault:A}}b{{vault:B}}c", "a|A|b|B|c"},
		{"side by side", "{{vault:A}}{{vault:A}}", "|A||A|"},
		{"all characters of a name", "{{vault:aZ09_.-}}", "|aZ09_.-|"},
		{"the longest name", "{{vault:" + long + "}}", "|" + long + "|"},
		{"braces around", `{"t":{{{vault:K}}}}`, `{"t":{|K|}}`},
		{"a template's variable", "{{ vault_password }} {{ vault }} {{vault.x}}", "{{ vault_password }} {{ vault }} {{vault.x}}"},
		{"another case", "{{VAULT:K}}", "{{VAULT:K}}"},
		{"no name", "{{vault:}}", "error"},
		{"not closed", "{{vault:K", "error"},
		{"closed by one", "{{vault:K}", "error"},
		{"a name too long", "{{vault:" + long + "n}}", "error"},
		{"a character too many", "{{vault:a/b}}", "error"},
		{"another letter", "{{vault:é}}", "error"},
		{"a line break", "{{vault:\nK}}", "error"},
		{"a tab", "{{vault:\tK}}", "error"},
		{"a blank before the colon", "{{vault :K}}", "error"},
		{"one in another", "{{vault:{{vault:K}}}}", "error"},
		{"a good one and a bad one", "{{vault:K}} {{vault:}}", "error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			texts, names, err := SplitPlaceholders(c.text)
			got := "error"
			if err == nil {
				got = texts[0]
				for i, n := range names {
					got += "|" + n + "|" + texts[i+1]
				}
			}
			if got != c.want {
				t.Errorf("%q: %q, want %q", c.text, got, c.want)
			}
		})
	}
	filled, err := FillPlaceholders("{{vault:A}}-{{vault:B}}", func(n string) string { return "{{vault:" + n + n + "}}" })
	if err != nil || filled != "{{vault:AA}}-{{vault:BB}}" {
		t.Errorf("filled %q, %v: a value was looked at", filled, err)
	}
}

// shellLine reads a line as the gate does, and returns what runs and why not.
func shellLine(line string, env map[string]string) (Plan, string, error) {
	plan, err := Shell.Assess(Args{Values: map[string]any{"command": line, "env": env}})
	if err != nil {
		return plan, "", err
	}
	return plan, plan.Detail.(*analysis).secret.text, nil
}

func TestSecretReferences(t *testing.T) {
	for _, c := range []struct{ name, line, want string }{
		{"bare", `curl -u {{vault:K}} h`, `curl -u "$PICKET_SECRET_1" h`},
		{"bare with blanks", `curl -u {{ vault: K }} h`, `curl -u "$PICKET_SECRET_1" h`},
		{"a part of a word", `curl -ux:{{vault:K}}@y h`, `curl -ux:"$PICKET_SECRET_1"@y h`},
		{"in double quotes", `curl -H "A: {{vault:K}}x" h`, `curl -H "A: ${PICKET_SECRET_1}x" h`},
		{"in single quotes", `curl -H 'A: {{vault:K}}x' h`, `curl -H 'A: '"$PICKET_SECRET_1"'x' h`},
		{"two secrets, one twice", `echo {{vault:A}} '{{vault:B}}' "{{vault:A}}"`, `echo "$PICKET_SECRET_1" ''"$PICKET_SECRET_2"'' "${PICKET_SECRET_1}"`},
		{"after a variable", `echo $HOME{{vault:K}} "$HOME{{vault:K}}"`, `echo $HOME"$PICKET_SECRET_1" "$HOME${PICKET_SECRET_1}"`},
		{"after two backslashes", `echo \\{{vault:K}} "\\{{vault:K}}"`, `echo \\"$PICKET_SECRET_1" "\\${PICKET_SECRET_1}"`},
		{"after a backslash in single quotes", `echo '\{{vault:K}}'`, `echo '\'"$PICKET_SECRET_1"''`},
		{"in a here-document", "cat <<E\nk={{vault:K}}\nE", "cat <<E\nk=${PICKET_SECRET_1}\nE"},
		{"in a substitution", `echo "$(curl -u '{{vault:K}}' h)"`, `echo "$(curl -u ''"$PICKET_SECRET_1"'' h)"`},
		{"in JSON", `curl -d '{"t":"{{vault:K}}"}' h`, `curl -d '{"t":"'"$PICKET_SECRET_1"'"}' h`},
		{"beside a private letter", "echo \ue000 {{vault:K}}", "echo \ue000 \"$PICKET_SECRET_1\""},
		{"through env and sudo's kin", `nohup curl -u {{vault:K}} h`, `nohup curl -u "$PICKET_SECRET_1" h`},
		{"an argument of a shell's code", `sh -c 'echo "$1"' sh {{vault:K}}`, `sh -c 'echo "$1"' sh "$PICKET_SECRET_1"`},
		{"none", `echo "{{K}}" $HOME`, `echo "{{K}}" $HOME`},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, got, err := shellLine(c.line, nil)
			if err != nil || got != c.want {
				t.Fatalf("%q, %v; want %q", got, err, c.want)
			}
			if _, names, _ := SplitPlaceholders(c.line); len(plan.Secrets) != len(names) {
				t.Errorf("uses %v", plan.Secrets)
			}
		})
	}
}

func TestSecretReferencesRefused(t *testing.T) {
	for _, c := range []struct{ name, line, want string }{
		{"the program", `{{vault:K}} x`, "env"},
		{"a part of the program", `./{{vault:K}} x`, "env"},
		{"an assignment", `K={{vault:K}} curl h`, "env"},
		{"an assignment alone", `K='{{vault:K}}'`, "env"},
		{"an export", `export K={{vault:K}}`, "env"},
		{"a redirection", `echo x > {{vault:K}}`, "env"},
		{"a quoted here-document", "cat <<'E'\n{{vault:K}}\nE", "env"},
		{"the end of a here-document", "cat <<{{vault:K}}\nx\n{{vault:K}}", "env"},
		{"a comment", `echo x # {{vault:K}}`, "env"},
		{"backquotes", "echo `curl -u {{vault:K}} h`", "env"},
		{"arithmetic", `echo $(({{vault:K}}+1))`, "env"},
		{"a parameter", `echo ${X:-{{vault:K}}}`, "env"},
		{"after a dollar", `echo "${{vault:K}}"`, "env"},
		{"after a backslash", `echo \{{vault:K}}`, "env"},
		{"after a backslash in double quotes", `echo "\{{vault:K}}"`, "env"},
		{"after a backslash in a here-document", "cat <<E\n\\{{vault:K}}\nE", "env"},
		{"dollar quotes", `echo $'{{vault:K}}'`, "env"},
		{"a shell's code", `sh -c 'echo {{vault:K}}'`, "env"},
		{"a shell's code in double quotes", `bash -c "echo {{vault:K}}"`, "env"},
		{"a shell's code through wrappers", `nohup env timeout 5 sh -c "echo {{vault:K}}"`, "env"},
		{"a shell's here-document", "sh <<E\necho {{vault:K}}\nE", "env"},
		{"Python code", `python3 -c "print('{{vault:K}}')"`, "env"},
		{"Python's here-document", "python3 <<E\nprint('{{vault:K}}')\nE", "env"},
		{"awk code", `awk '{ print "{{vault:K}}" }'`, "env"},
		{"a sed script", `sed "s/x/{{vault:K}}/" f`, "env"},
		{"a line for ssh", `ssh h "echo {{vault:K}}"`, "env"},
		{"a here-document for ssh", "ssh h <<E\necho {{vault:K}}\nE", "env"},
		{"code behind find", `find . -exec sh -c "echo {{vault:K}} {}" \;`, "env"},
		{"code behind xargs", `ls | xargs -I% sh -c "echo {{vault:K}} %"`, "env"},
		{"a program behind a wrapper", `timeout 5 {{vault:K}} x`, "env"},
		{"what su runs", `su -c "echo {{vault:K}}" x`, "env"},
		{"test's operator", `test {{vault:K}} 'a[$(id)]'`, "env"},
		{"eval", `eval "echo {{vault:K}}"`, "env"},
		{"an opaque line", `f() { :; }; echo {{vault:K}}`, "env"},
		{"braces", `echo {a,{{vault:K}}}`, "env"},
		{"a line that does not parse", `echo {{vault:K}} "`, "env"},
		{"a variable of a call", `echo $PICKET_SECRET_1`, "PICKET_SECRET_"},
		{"a variable beside a secret", `sh -c 'echo $PICKET_SECRET_1' {{vault:K}}`, "PICKET_SECRET_"},
		{"malformed", `echo {{vault:K`, "{{vault:NAME}}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got, err := shellLine(c.line, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, %v; want an error with %q", got, err, c.want)
			}
		})
	}
	// What is opaque only on this machine is refused as well.
	args := Args{Values: map[string]any{"command": `TOKEN=x; curl -u {{vault:K}} h`, "env": map[string]string{"TOKEN": "{{vault:T}}"}}}
	plan, err := Shell.Assess(args)
	if err != nil {
		t.Fatal(err)
	}
	if j := Shell.Judge(args, plan, factsFor(plan, true)); !strings.Contains(j.Refuse, "TOKEN") {
		t.Errorf("a line that changes the variable of a secret: %+v", j)
	}
}

// Rules that allow see what the owner sees; rules that deny see what runs too.
func TestSecretLineJudgement(t *testing.T) {
	args := Args{Values: map[string]any{"command": `curl -H "X: {{vault:K}}" https://h/  | tee "$HOME"`, "env": map[string]string{}}}
	plan, err := Shell.Assess(args)
	if err != nil {
		t.Fatal(err)
	}
	j := Shell.Judge(args, plan, factsFor(plan, true))
	again := Shell.Judge(args, plan, factsFor(plan, true))
	if !slices.Equal(j.Commands, []string{`curl -H "X: {{vault:K}}" https://h/`, `tee "$HOME"`}) || !slices.Equal(j.Commands, again.Commands) {
		t.Errorf("commands %q", j.Commands)
	}
	for _, want := range []string{`curl -H "X: ${PICKET_SECRET_1}" https://h/`, plan.Detail.(*analysis).secret.text} {
		if !slices.Contains(j.Forms["command"], want) {
			t.Errorf("forms %q lack %q", j.Forms["command"], want)
		}
	}
	if !slices.ContainsFunc(j.Argv, func(a []string) bool { return slices.Contains(a, `"X: {{vault:K}}"`) }) || len(again.Argv) != len(j.Argv) {
		t.Errorf("argv %q", j.Argv)
	}
	if strings.Contains(j.Summary, secretVar) || !strings.Contains(j.Summary, "{{vault:K}}") {
		t.Errorf("summary %q", j.Summary)
	}
}

func TestSecretEnvNames(t *testing.T) {
	for name, ok := range map[string]bool{"API_KEY": true, "AWS_SECRET_ACCESS_KEY": true, "CARGO_REGISTRY_TOKEN": true, "GEM_HOST_API_KEY": true,
		"PATH": false, "LD_PRELOAD": false, "LD_TOKEN": false, "BASH_ENV": false, "ENV": false, "IFS": false, "GIT_TOKEN": false, "NODE_OPTIONS": false,
		"PYTHONSTARTUP": false, "PICKET_SECRET_1": false, "CARGO_HOME": false, "": false, "A-B": false, "1A": false} {
		for _, tool := range []Tool{Shell, Python} {
			args := Args{Values: map[string]any{"command": "true", "code": "pass", "env": map[string]string{name: "{{vault:K}}"}}}
			plan, err := tool.Assess(args)
			if (err == nil) != ok || ok && !slices.Equal(plan.Secrets, []SecretUse{{"K", "env", name}}) {
				t.Errorf("%s %q: %v, %v", tool.Name, name, plan.Secrets, err)
			}
		}
	}
}

// hardValues hold every byte that is special to a shell, and what would run.
func hardValues(mark string) []string {
	all := ""
	for c := byte(1); c != 0; c++ {
		all += string([]byte{c})
	}
	return []string{"plain-value-1", "$(touch " + mark + ")", "`touch " + mark + "`", "'; touch " + mark + "; '", `"; touch ` + mark + `; "`,
		"x\ntouch " + mark + "\n", "a  b\t*  ?", `\`, `\\"'$`, "'", `"`, `${HOME}`, "-rf", "E\nE\n", "é漢\xff\xfe", "\t\tE", "~", "{a,b}", "!!", all}
}

// Under real shells a secret reaches a program as exactly one argument, or as it
// is in a here-document, and nothing else runs.
func TestSecretsUnderRealShells(t *testing.T) {
	dir := t.TempDir()
	mark, show := filepath.Join(dir, "mark"), filepath.Join(dir, "show")
	// Each argument is written with its length before it.
	script := "#!/bin/sh\nLC_ALL=C; export LC_ALL\nfor a do printf '%s:' \"${#a}\" >>\"$OUT\"; printf '%s' \"$a\" >>\"$OUT\"; done\n"
	if err := os.WriteFile(show, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	values := hardValues(mark)
	for _, sh := range realShells(t) {
		for i, value := range values {
			other := values[(i+7)%len(values)]
			for _, c := range []struct {
				line string
				want []string
			}{
				{"show {{vault:A}}", []string{value}},
				{"show x{{vault:A}}y{{vault:B}}", []string{"x" + value + "y" + other}},
				{`show "{{vault:A}}" "p {{vault:A}} q{{vault:B}}"`, []string{value, "p " + value + " q" + other}},
				{`show '{{vault:A}}' 'p {{vault:A}} q{{vault:B}}'`, []string{value, "p " + value + " q" + other}},
				{`show '{"k":"{{vault:A}}"}' {{vault:B}}`, []string{`{"k":"` + value + `"}`, other}},
				{`if true; then for x in 1; do show {{vault:A}} $x; done; fi`, []string{value, "1"}},
				{`true && ( show '{{vault:A}}' ) | cat`, []string{value}},
				{`nice show \\{{vault:A}} "\\{{vault:A}}"`, []string{`\` + value, `\` + value}},
				{"cat >hd <<E\n{{vault:A}}|\"{{vault:B}}\"\nE\n show 1", []string{"1"}},
			} {
				plan, run, err := shellLine(c.line, nil)
				if err != nil {
					t.Fatalf("%s: %v", c.line, err)
				}
				out := filepath.Join(dir, "out")
				os.Remove(out)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				cmd := exec.CommandContext(ctx, sh.path, "-c", run)
				cmd.Dir = dir
				cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=/nowhere", "OUT=" + out}
				for _, u := range plan.Secrets {
					cmd.Env = append(cmd.Env, u.Var+"="+map[string]string{"A": value, "B": other}[u.Name])
				}
				text, err := cmd.CombinedOutput()
				cancel()
				want := ""
				for _, w := range c.want {
					want += fmt.Sprintf("%d:%s", len(w), w)
				}
				got, _ := os.ReadFile(out)
				if err != nil || string(got) != want {
					t.Errorf("%s: %s with %q: got %q, want %q (%v %s)", sh.name, c.line, value, got, want, err, text)
				}
				if doc, _ := os.ReadFile(filepath.Join(dir, "hd")); strings.Contains(c.line, "<<") && string(doc) != value+`|"`+other+"\"\n" {
					t.Errorf("%s: the here-document with %q is %q", sh.name, value, doc)
				}
				if _, err := os.Stat(mark); err == nil {
					t.Fatalf("%s: %s with %q ran it", sh.name, c.line, value)
				}
			}
		}
	}
}

// FuzzPlaceholder: whatever the line, a placeholder that is accepted becomes one
// reference, the rest stays as it was, and the shell's reading of the line is
// the same but for it.
func FuzzPlaceholder(f *testing.F) {
	for _, s := range []string{`curl -u {{vault:K}} h`, `a "{{vault:A}}$x" '{{vault:B}}' \\{{vault:A}}`, "cat <<E\n{{vault:K}}\nE", "a `{{vault:K}}`", `a $(b "{{vault:K}}")`,
		`{{vault:K`, "a \ue000{{vault:K}}\ue001", `case {{vault:K}} in {{vault:K}}) a;; esac`, "a # {{vault:K}}\nb {{vault:K}}", "cat <<'E' <<F\n{{vault:K}}\nE\n{{vault:K}}\nF"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		l, err := readSecretLine(line)
		if err != nil {
			return
		}
		texts, names, err := SplitPlaceholders(line)
		if err != nil || len(names) != len(l.uses) {
			t.Fatalf("%q: %v, %v", line, l.uses, err)
		}
		rest := l.text
		for i, name := range names {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, texts[i]); !ok || l.uses[i].Name != name {
				t.Fatalf("%q became %q", line, l.text)
			}
			v := l.uses[i].Var
			for _, ref := range []string{`"$` + v + `"`, `'"$` + v + `"'`, "${" + v + "}"} {
				if after, found := strings.CutPrefix(rest, ref); found {
					rest, ok = after, false
					break
				}
			}
			if ok {
				t.Fatalf("%q became %q", line, l.text)
			}
		}
		if rest != texts[len(names)] {
			t.Fatalf("%q became %q", line, l.text)
		}
		// A word without anything to expand stands for what a placeholder does.
		plain := strings.Join(texts, "SECRET")
		a, b := ParseShell(l.text), ParseShell(plain)
		if len(names) == 0 || a.Opaque != "" || b.Opaque != "" {
			return
		}
		if len(a.Commands) != len(b.Commands) || len(a.Scopes) != len(b.Scopes) {
			t.Fatalf("%q reads differently from %q", l.text, plain)
		}
		for i := range a.Commands {
			if len(a.Commands[i].Words) != len(b.Commands[i].Words) || len(a.Commands[i].Redirs) != len(b.Commands[i].Redirs) {
				t.Fatalf("%q: command %d reads differently from %q", l.text, i, plain)
			}
		}
	})
}

// What a tool cuts, it has without secrets, also those that the cut goes through.
func TestCutsHideSecrets(t *testing.T) {
	const secret = "0123456789abcdef"
	host := &Host{Redact: func(s string) string { return strings.ReplaceAll(s, secret, "{{vault:K}}") }}
	text := "ab" + secret + "cd" + secret + secret
	for _, c := range []struct {
		from, to int
		want     string
	}{
		{0, 100, "ab{{vault:K}}cd{{vault:K}}{{vault:K}}"},
		{0, 2, "ab"},
		{0, 3, "ab{{vault:K}}"},
		{0, 17, "ab{{vault:K}}"},
		{5, 19, "{{vault:K}}c"},
		{5, 9, "{{vault:K}}"},
		{17, 21, "{{vault:K}}cd{{vault:K}}"},
		{18, 20, "cd"},
		{18, 19, "c"},
		{30, 40, "{{vault:K}}{{vault:K}}"},
		{4, 4, "{{vault:K}}"},
		{18, 18, ""},
	} {
		if got := host.shown(text, c.from, c.to); got != c.want {
			t.Errorf("[%d:%d]: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}
