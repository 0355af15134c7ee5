package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"

	"picket/tools"
)

// A resolver turns names into facts by looking at the file system as the box
// will see it. It decides nothing, and looks no host up.
type resolver struct {
	workspace string   // absolute, links resolved
	roots     []string // writable roots, the workspace first
	home      string
	hidden    []string // settings and data folders, and picket's own binary
	shown     bool     // a box shows more than the roots and the system's folders
	box       *sandbox
}

// maxProgramFile bounds the program files whose digest is bound to an approval;
// a larger one has none, and so covers nothing but once.
const maxProgramFile = 64 << 20

// readOnlyFolders are what every box sees read-only.
var readOnlyFolders = []string{"/usr", "/etc", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// kernelFolders hold no files of the owner's; reading them says things about
// this process.
var kernelFolders = []string{"/proc", "/sys", "/dev", "/run/user"}

// facts looks up what a plan names.
func (r *resolver) facts(p tools.Plan) tools.Facts {
	state := r.box.State()
	f := tools.Facts{
		Workspace: r.workspace, Roots: r.roots, Home: r.home,
		Boxed: state.Boxed, NetBlocked: state.NetBlocked, NetProxied: state.NetProxied, MoreShown: r.shown,
		Paths:    make(map[string]tools.PathFact, len(p.Paths)),
		Programs: make(map[string]tools.ProgramFact, len(p.Programs)),
		Env:      map[string]bool{},
	}
	if f.NetProxied {
		f.HostPorts = r.box.netPorts()[1:]
	}
	for name := range r.box.Env() {
		f.Env[name] = true
	}
	for _, u := range p.Paths {
		f.Paths[u.Name] = r.path(u.Name)
	}
	for _, name := range p.Programs {
		f.Programs[name] = r.program(name)
	}
	return f
}

// absolute makes a path of the arguments absolute, without resolving anything.
func (r *resolver) absolute(name string) string {
	const sep = string(filepath.Separator)
	if rest, ok := strings.CutPrefix(name, "~"); ok && r.home != "" && (rest == "" || os.IsPathSeparator(rest[0])) {
		return r.home + rest
	}
	if filepath.IsAbs(name) {
		return name
	}
	return r.workspace + sep + name
}

func (r *resolver) path(name string) tools.PathFact {
	abs := r.absolute(name)
	f := tools.PathFact{Resolved: resolveExisting(abs)}
	if st, err := os.Lstat(f.Resolved); err == nil {
		f.Exists, f.Dir, f.Regular, f.Size, f.Changed = true, st.IsDir(), st.Mode().IsRegular(), st.Size(), st.ModTime().UnixNano()
	}
	f.Place = r.place(f.Resolved)
	// What is reached through a link under a hidden folder is hidden too.
	if r.protected(filepath.Clean(abs)) {
		f.Place = tools.Protected
	}
	return f
}

func (r *resolver) place(path string) tools.Place {
	switch {
	case path == "/dev/null" || path == "/dev/stdout" || path == "/dev/stderr" || path == "/dev/tty" || path == "/dev/zero":
		return tools.Scratch
	case r.protected(path):
		return tools.Protected
	case within(path, r.workspace):
		return tools.Workspace
	}
	for _, root := range r.roots {
		if within(path, root) {
			return tools.ExtraRoot
		}
	}
	if r.box.State().Boxed && within(path, "/tmp") {
		return tools.Scratch // the box has a /tmp of its own
	}
	for _, dir := range readOnlyFolders {
		if within(path, dir) {
			return tools.System
		}
	}
	return tools.Outside
}

// protected reports whether no tool may touch a path.
func (r *resolver) protected(path string) bool {
	for _, h := range r.hidden {
		if within(path, h) {
			return true
		}
	}
	for _, k := range kernelFolders {
		if within(path, k) {
			return true
		}
	}
	return false
}

func (r *resolver) program(name string) tools.ProgramFact {
	path, shadowed := name, false
	if !strings.ContainsRune(name, '/') {
		path = r.box.lookPath(name)
		if shadowed = r.box.shadowed(name, path); path == "" {
			return tools.ProgramFact{Shadowed: shadowed}
		}
	}
	path = resolveExisting(r.absolute(path))
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		return tools.ProgramFact{}
	}
	f := tools.ProgramFact{Path: path, Shadowed: shadowed}
	if p := r.place(path); p != tools.System {
		f.Writable, f.Digest = true, fileDigest(path, st.Size())
	}
	return f
}

func fileDigest(path string, size int64) string {
	if size > maxProgramFile {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxProgramFile)); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
