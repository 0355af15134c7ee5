package tools

import (
	"path/filepath"
	"slices"
	"strings"
)

// What other programs start on their own accord: a call that writes there asks,
// whatever it writes. Names are compared without case, as some file systems do.
var (
	laterFolders = map[string]string{
		".git": "is part of a repository's own files: git may run it", ".husky": "is a git hook", ".githooks": "is a git hook",
		".vscode": "is read and run by the editor", ".idea": "is read and run by the editor", ".zed": "is read and run by the editor",
		".fleet": "is read and run by the editor", ".vim": "is run by the editor", ".emacs.d": "is run by the editor",
		".devcontainer": "is read and run by the editor", ".claude": "configures another agent", ".cursor": "configures another agent",
		".ssh": "decides who logs in and what ssh runs", "launchagents": "is started at login",
	}
	laterPaths = map[string]string{ // the folder above and the name or folder in it
		".config/autostart": "is started at login", ".config/systemd": "is started by systemd", ".config/fish": "is run by each shell",
		".config/git": "configures git", ".config/nvim": "is run by the editor", ".config/environment.d": "is read at login",
	}
	laterFiles = map[string]string{
		".envrc": "is run by direnv", ".gitconfig": "configures git", ".git": "says where the repository is",
		".exrc": "is run by the editor", ".vimrc": "is run by the editor", ".nvimrc": "is run by the editor", ".nvim.lua": "is run by the editor",
		".lvimrc": "is run by the editor", ".emacs": "is run by the editor", ".dir-locals.el": "is run by the editor",
	}
	shellFiles = []string{".profile", ".login", ".logout", ".inputrc", ".xinitrc", ".xprofile", ".xsession", ".xsessionrc", ".pam_environment",
		".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout",
		".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".shrc", "config.fish"}
)

// startedLater says why a file is one that another program will run or obey
// without being told, "" if it is none.
func startedLater(path string) string {
	parts := strings.Split(filepath.ToSlash(strings.ToLower(path)), "/")
	base := parts[len(parts)-1]
	for i, p := range parts[:len(parts)-1] {
		if why := laterFolders[p]; why != "" {
			return why
		}
		if why := laterPaths[p+"/"+parts[i+1]]; why != "" {
			return why
		}
	}
	if slices.Contains(shellFiles, base) {
		return "is run by each shell or login"
	}
	if strings.HasSuffix(base, ".code-workspace") {
		return "is read and run by the editor"
	}
	return laterFiles[base]
}

// runLater says when a file that belongs to a project is run, "" if it is no such
// file. Writing one is ordinary work: the result names it.
func runLater(path string) string {
	parts := strings.Split(filepath.ToSlash(strings.ToLower(path)), "/")
	base := parts[len(parts)-1]
	switch base {
	case "package.json":
		return "runs on your machine with npm install and npm run"
	case "makefile", "gnumakefile":
		return "runs on your machine with make"
	case "conftest.py", "setup.py", "noxfile.py", "pyproject.toml", "tox.ini", "setup.cfg":
		return "runs on your machine with the Python project's tests and builds"
	case "sitecustomize.py", "usercustomize.py":
		return "runs on your machine with each Python that finds it"
	case "justfile", "taskfile.yml", "rakefile", "gemfile", "vagrantfile", "build.rs", "cmakelists.txt", "build.gradle", "build.gradle.kts",
		"pom.xml", ".pre-commit-config.yaml", "gruntfile.js", "gulpfile.js", "deno.json":
		return "runs on your machine with the project's builds"
	}
	if strings.HasSuffix(base, ".pth") {
		return "runs on your machine with each Python that finds it"
	}
	if strings.Contains("/"+strings.Join(parts, "/"), "/.github/workflows/") {
		return "runs on the project's build servers"
	}
	return startedLater(path)
}
