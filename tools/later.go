package tools

import (
	"path"
	"path/filepath"
	"strings"
)

// What other programs start or obey on their own accord: folders, by name or with
// the folder above, and files. Names are compared without case, as some file
// systems do.
var startedByOthers = []struct{ why, folders, files string }{
	{"is part of a repository's own files: git may run it", ".git .husky .githooks .config/git .hg", ".git .gitconfig .hgrc"},
	{"is read and run by the editor", ".vscode .idea .zed .fleet .vim .emacs.d .devcontainer .theia .config/nvim",
		".exrc .vimrc .nvimrc .nvim.lua .lvimrc .emacs .dir-locals.el .devcontainer.json"},
	{"is run by each shell or login", ".config/fish .config/environment.d", ".profile .login .logout .inputrc .xinitrc .xprofile .xsession" +
		" .xsessionrc .pam_environment .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .zshrc .zshenv .zprofile .zlogin .zlogout" +
		" .kshrc .mkshrc .cshrc .tcshrc .shrc config.fish"},
	{"is started at login", "launchagents .config/autostart .config/systemd", ""},
	{"configures another agent", ".claude .cursor .codex .gemini", ".mcp.json"},
	{"decides who logs in and what ssh runs", ".ssh", ""},
	{"is run by direnv", "", ".envrc"},
}

// runByProjects are files of a project that its own tools run.
var runByProjects = []struct{ with, files string }{
	{"npm install and npm run", "package.json"},
	{"make", "makefile gnumakefile"},
	{"the Python project's tests and builds", "conftest.py setup.py noxfile.py pyproject.toml tox.ini setup.cfg"},
	{"each Python that finds it", "sitecustomize.py usercustomize.py"},
	{"the project's builds", "justfile taskfile.yml rakefile gemfile vagrantfile build.rs cmakelists.txt build.gradle build.gradle.kts" +
		" pom.xml .pre-commit-config.yaml gruntfile.js gulpfile.js deno.json lefthook.yml .lefthook.yml mise.toml .mise.toml .npmrc .pnpmfile.cjs .yarnrc.yml"},
}

// lists reports whether name is a word of list.
func lists(list, name string) bool { return name != "" && strings.Contains(" "+list+" ", " "+name+" ") }

// startedLater says why a file is one that another program will run or obey
// without being told, "" if it is none.
func startedLater(name string) string {
	parts := strings.Split(filepath.ToSlash(strings.ToLower(name)), "/")
	last := len(parts) - 1
	for _, s := range startedByOthers {
		for i, p := range parts[:last] {
			if lists(s.folders, p) || lists(s.folders, p+"/"+parts[i+1]) {
				return s.why
			}
		}
		if lists(s.files, parts[last]) {
			return s.why
		}
	}
	if strings.HasSuffix(parts[last], ".code-workspace") {
		return "is read and run by the editor"
	}
	return ""
}

// startedPattern warns of a pattern of the shell's that can match the name of such
// a file. A wildcard never matches a leading dot.
func startedPattern(pattern string) string {
	for part := range strings.SplitSeq(strings.ToLower(pattern), "/") {
		if !strings.HasPrefix(part, ".") || !strings.ContainsAny(part, "*?[{") || part == ".*" {
			continue
		}
		part, _, _ = strings.Cut(part, "{")
		for _, s := range startedByOthers {
			for name := range strings.FieldsSeq(s.folders + " " + s.files) {
				if ok, err := path.Match(part, name); ok || err != nil || len(part) > 1 && strings.HasPrefix(name, part) {
					return "writes what " + s.why
				}
			}
		}
	}
	return ""
}

// runLater says when a file that belongs to a project is run, "" if it is no such
// file. Writing one is ordinary work: the result names it.
func runLater(name string) string {
	name = filepath.ToSlash(strings.ToLower(name))
	for _, r := range runByProjects {
		if lists(r.files, path.Base(name)) {
			return "runs on your machine with " + r.with
		}
	}
	if strings.HasSuffix(name, ".pth") {
		return "runs on your machine with each Python that finds it"
	}
	if strings.Contains("/"+name, "/.github/workflows/") {
		return "runs on the project's build servers"
	}
	return startedLater(name)
}
