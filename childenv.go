package main

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Children inherit what is named here and nothing else. Names compare byte for
// byte, on Windows without case.
var (
	inherited = []string{"PATH", "HOME", "LANG", "LANGUAGE", "TERM", "COLORTERM", "NO_COLOR", "TZ", "USER", "LOGNAME",
		"COLUMNS", "LINES", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}

	// Where a language keeps its tools: passed on if the child sees the place.
	inheritedPaths = []string{"SHELL", "TMPDIR", "GOROOT", "GOPATH", "GOMODCACHE", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME",
		"NVM_DIR", "PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "GEM_HOME", "DOTNET_ROOT", "ANDROID_HOME",
		"SSL_CERT_FILE", "SSL_CERT_DIR"}

	// Without these no Windows program starts.
	inheritedWindows = []string{"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERNAME",
		"USERPROFILE", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES",
		"PROGRAMFILES(X86)", "PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "OS"}
)

const (
	defaultPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
	boxHome     = "/tmp/home" // HOME in a box
)

// childEnv picks from an environment what children inherit.
func (s *sandbox) childEnv(environ []string) map[string]string {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		switch {
		case !ok, envCredential(name), envSteers(name), envHasUserInfo(name, value):
		case envListed(inherited, name), strings.HasPrefix(name, "LC_"), slices.Contains(s.cfg.PassEnv, name),
			runtime.GOOS == "windows" && envListed(inheritedWindows, name),
			envListed(inheritedPaths, name) && filepath.IsAbs(value) && s.see(value) != "":
			env[name] = value
		}
	}
	if runtime.GOOS == "windows" {
		return env
	}
	var path []string
	for _, dir := range filepath.SplitList(s.pathFirst + ":" + env["PATH"]) {
		if filepath.IsAbs(dir) { // another one would mean the workspace
			path = append(path, dir)
		}
	}
	if env["PATH"] = strings.Join(path, ":"); len(path) == 0 {
		env["PATH"] = defaultPath
	}
	if s.state.Boxed {
		env["HOME"], env["TMPDIR"] = boxHome, "/tmp"
	}
	return env
}

func envListed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(n string) bool {
		return n == name || runtime.GOOS == "windows" && strings.EqualFold(n, name)
	})
}

// envCredential reports whether a variable of this name may hold a credential,
// or lead to one.
func envCredential(name string) bool {
	name = strings.ToUpper(name)
	for _, part := range []string{"KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE", "SESSION"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return envPrefix(name, "PICKET_", "AWS_", "AZURE_", "GOOGLE_", "GH_", "GITHUB_", "NPM_") || name == "GPG_AGENT_INFO"
}

// envSteers reports whether a variable of this name makes programs run or load
// something, or read other settings.
func envSteers(name string) bool {
	name = strings.ToUpper(name)
	return envPrefix(name, "LD_", "DYLD_", "BASH_", "GIT_", "PYTHON", "NODE_", "PERL", "RUBY", "JAVA_TOOL_", "JDK_JAVA_",
		"_JAVA_", "GCONV_", "GLIBC_", "MALLOC_", "DBUS_") ||
		slices.Contains([]string{"ENV", "IFS", "CDPATH", "PS4", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "LESSOPEN", "LESSCLOSE",
			"PAGER", "EDITOR", "VISUAL", "BROWSER", "ZDOTDIR", "GOFLAGS", "RUSTC_WRAPPER", "MAKEFLAGS"}, name)
}

func envPrefix(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// envHasUserInfo reports whether a value holds a URL with a user or password.
// A proxy may be given without its scheme.
func envHasUserInfo(name, value string) bool {
	if _, rest, ok := strings.Cut(value, "://"); ok && strings.Contains(rest, "@") {
		return true
	}
	return strings.HasSuffix(strings.ToLower(name), "_proxy") && strings.Contains(value, "@")
}
