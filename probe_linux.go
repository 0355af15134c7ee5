package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"picket/tools"
)

// findBox makes a box with the very arguments of a call, doing without what
// this machine cannot give, and says what came of it.
func (s *sandbox) findBox() {
	st := &s.state
	if s.cfg.Mode == "off" {
		*st = boxState{Line: "off: sandbox.mode is off", Hint: `set "mode" in "sandbox" to "auto"`}
		return
	}
	why, hint := s.probe()
	if st.Hint = hint; !st.Boxed {
		st.Line = "off: " + why
		if s.cfg.Mode == "bwrap" {
			st.RefuseExec = "sandbox.mode is bwrap, and there is no sandbox: " + why
		}
		return
	}
	st.Line = "bubblewrap"
	if !st.NetBlocked {
		st.Line += ", but the network cannot be blocked (" + why + ")"
	}
	if slices.Contains(s.box.without, "--disable-userns") {
		st.Line += ", further user namespaces not disabled"
	}
	if os.Geteuid() == 0 {
		st.Line += ", as root: the number of processes is not limited"
		if st.Hint == "" {
			st.Hint = "run picket as a plain user"
		}
	}
}

// probe sets what the box can do. If something is missing it says why, and what
// mends it.
func (s *sandbox) probe() (why, hint string) {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		if inContainer() {
			return "bubblewrap is not installed in this container", "install bubblewrap in the image; " + containerHint
		}
		return "bubblewrap is not installed", "install it: apt install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap"
	}
	if s.box.bwrap, err = filepath.EvalSymlinks(bwrap); err != nil || firstWithin(s.box.bwrap, s.roots) != "" {
		return fmt.Sprintf("%q lies where tools can write", bwrap), "take that folder off PATH"
	}
	s.layout()
	said := ""
	for _, without := range []string{"", "--disable-userns", "--disable-userns --size", // bubblewrap before 0.8, before 0.7
		"--unshare-net", "--unshare-net --disable-userns", "--unshare-net --disable-userns --size"} {
		s.box.without = strings.Fields(without)
		res := s.execBox(context.Background(), tools.Command{Argv: []string{"/bin/sh", "-c", ":"}})
		if s.state.Boxed = res.Started && res.Exit == 0; s.state.Boxed {
			if s.state.NetBlocked = !slices.Contains(s.box.without, "--unshare-net"); s.state.NetBlocked {
				return "", ""
			}
			break
		}
		said = strings.TrimPrefix(res.Err, "the command did not run: ")
	}
	return s.diagnose(said)
}

const containerHint = "a container must allow namespaces: docker run --security-opt seccomp=unconfined " +
	"--security-opt apparmor=unconfined --security-opt systempaths=unconfined"

// diagnose tells the known causes apart by what bubblewrap printed and what the
// kernel says.
func (s *sandbox) diagnose(said string) (why, hint string) {
	profile := fmt.Sprintf(`printf 'abi <abi/4.0>,\nprofile bwrap %s flags=(unconfined) {\n  userns,\n}\n' | `+
		"sudo tee /etc/apparmor.d/bwrap && sudo systemctl reload apparmor", s.box.bwrap)
	restricted := strings.TrimSpace(readSmall("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")) == "1"
	switch {
	case strings.Contains(said, "setting up uid map: Permission denied"):
		return "AppArmor blocks user namespaces (" + said + ")", profile
	case restricted && os.Geteuid() != 0, strings.Contains(said, "loopback: Failed RTM_NEWADDR"):
		return "AppArmor takes away what a user namespace may do (" + said + ")", profile
	case strings.Contains(said, "nknown option"):
		return "bubblewrap is too old (" + said + ")", "install bubblewrap 0.8 or later"
	case inContainer():
		return "this container does not allow it (" + said + ")", containerHint
	}
	return "bubblewrap failed: " + said, "run it by hand to see why: bwrap --ro-bind / / --unshare-all true"
}

var containerMarks = []string{"/.dockerenv", "/run/.containerenv"}

func inContainer() bool {
	return os.Getenv("container") != "" || // set by systemd-nspawn, podman and LXC
		slices.ContainsFunc(containerMarks, func(p string) bool { _, err := os.Lstat(p); return err == nil })
}
