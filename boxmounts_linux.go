package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A mountKind says what stands at a place, the stricter the higher.
type mountKind int

const (
	mountBind   mountKind = iota // as on the host, writable
	mountRO                      // as on the host, readable
	mountShown                   // the same, inside a hidden folder too
	mountHidden                  // an empty folder
	mountNull                    // a file that cannot be opened
)

type mount struct {
	dst, src string
	kind     mountKind
}

// A mountSet holds one mount for each place, by place.
type mountSet map[string]mount

// add puts a mount at its place, unless what is there is stricter.
func (m mountSet) add(n mount) {
	if old, ok := m[n.dst]; !ok || n.kind > old.kind {
		m[n.dst] = n
	}
}

// above returns the mount in which a place lies.
func (m mountSet) above(p string) (mount, bool) {
	for p != "/" {
		p = filepath.Dir(p)
		if n, ok := m[p]; ok {
			return n, true
		}
	}
	return mount{}, false
}

// addResolver makes readable what the resolver's settings lead to beyond /etc: the
// file alone, since a service's socket beside it could be connected to.
func (m mountSet) addResolver(conf string) {
	src, err := filepath.EvalSymlinks(conf)
	at, linkErr := os.Readlink(conf)
	if !filepath.IsAbs(at) {
		at = filepath.Join(filepath.Dir(conf), at)
	}
	if err == nil && linkErr == nil && !within(at, "/etc") {
		m.add(mount{at, src, mountRO})
	}
}

// settle returns the mounts in the order in which they can be made: it drops
// what a hidden or read-only folder covers, and makes every folder between a
// writable root and a protected place a mount of its own, because the parent
// of a mount could be renamed and another put in its place. Every component is
// checked: bubblewrap would follow a link, and create what is missing, on the
// host.
func (m mountSet) settle() (out []mount, err error) {
	for _, dst := range slices.Sorted(maps.Keys(m)) {
		n := m[dst]
		above, ok := m.above(dst)
		if !ok {
			continue
		}
		if above.kind == mountHidden && n.kind != mountShown || above.kind == mountRO && n.kind == mountRO {
			delete(m, dst)
			continue
		}
		for p := dst; p != above.dst; p = filepath.Dir(p) {
			fi, err := os.Lstat(p)
			if err != nil || fi.Mode()&fs.ModeSymlink != 0 || p != dst && !fi.IsDir() {
				return nil, fmt.Errorf("the sandbox cannot protect %q: %q is missing or a link", dst, p)
			}
			if above.kind == mountBind && n.kind != mountBind {
				m.add(mount{p, p, mountBind})
			}
		}
	}
	for _, dst := range slices.Sorted(maps.Keys(m)) { // a folder sorts before what it holds
		out = append(out, m[dst])
	}
	return out, nil
}

// A boundTree is what mountinfo says of a mount: its device, and the path of its
// root on that.
type boundTree struct{ dev, root, kind string }

// readMounts reads a mountinfo file (proc_pid_mountinfo(5)) by mount point, in
// its own escaped form. Of two mounts at one place the later covers the other.
func readMounts(file string) (map[string]boundTree, error) {
	b, err := os.ReadFile(file)
	m := map[string]boundTree{}
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(line, " - ")
		if f := strings.Fields(before); ok && len(f) > 5 {
			kind, _, _ := strings.Cut(after, " ")
			m[f[4]] = boundTree{f[2], f[3], kind}
		}
	}
	return m, err
}

var mountEscapes = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// checkMounts compares what stands in the box of a process with what was to stand
// there. Between the look at a path and bubblewrap's use of it, a call in another
// box could have put a link in its place: its target would be bound.
func checkMounts(pid int, want []mount) error {
	here, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	there, err := readMounts(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return err
	}
	for _, m := range want {
		got := there[mountEscapes.Replace(m.dst)]
		if m.kind == mountHidden {
			if got.kind != "tmpfs" || got.root != "/" {
				return fmt.Errorf("%q was replaced while the sandbox was made", m.dst)
			}
			continue
		}
		src := mountEscapes.Replace(m.src)
		at := src
		for here[at].dev == "" && at != "/" {
			at = filepath.Dir(at)
		}
		tree := here[at]
		tree.root = filepath.Join(tree.root, strings.TrimPrefix(src, at))
		if got.dev != tree.dev || got.root != tree.root {
			return fmt.Errorf("%q was replaced while the sandbox was made", m.dst)
		}
	}
	return nil
}
