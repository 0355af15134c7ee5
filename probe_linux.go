package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

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
	switch {
	case why != "" && !st.Boxed && s.cfg.Mode == "bwrap":
		st.RefuseExec = "sandbox.mode is bwrap, and there is no sandbox: " + why
		fallthrough
	case !st.Boxed:
		st.Line, st.Hint = "off: "+why, hint
		return
	}
	st.Line = "bubblewrap"
	if !st.NetBlocked {
		st.Line += ", but the network cannot be blocked (" + why + ")"
		st.Hint = hint
	}
	if s.box.without["--disable-userns"] {
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
	if s.box.bwrap, err = filepath.Abs(resolveExisting(bwrap)); err != nil || firstWithin(s.box.bwrap, s.roots) != "" {
		return fmt.Sprintf("%q lies where tools can write", bwrap), "take that folder off PATH"
	}
	s.layout()
	s.state.Boxed = true // for the PATH that the probe gets
	s.env = s.childEnv(os.Environ())
	first := ""
	noSize := false
	for _, without := range [][]string{{}, {"--disable-userns"}, {"--unshare-net"}, {"--disable-userns", "--unshare-net"}} {
		for range 2 {
			s.box.without = map[string]bool{"--size": noSize}
			for _, opt := range without {
				s.box.without[opt] = true
			}
			res := s.execBox(context.Background(), tools.Command{Argv: []string{"/bin/sh", "-c", ":"}, Timeout: 10 * time.Second})
			if res.Started && res.Exit == 0 {
				if s.state.NetBlocked = !s.box.without["--unshare-net"]; s.state.NetBlocked {
					return "", ""
				}
				return s.diagnose(first)
			}
			if first == "" {
				first = res.Err
			}
			if noSize || !strings.Contains(res.Err, "nknown option --size") { // before 0.7
				break
			}
			noSize, first = true, ""
		}
	}
	s.state.Boxed = false
	return s.diagnose(first)
}

const containerHint = "a container must allow namespaces: docker run --security-opt seccomp=unconfined " +
	"--security-opt apparmor=unconfined --security-opt systempaths=unconfined"

// diagnose tells the known causes apart by what bubblewrap printed and what the
// kernel says.
func (s *sandbox) diagnose(said string) (why, hint string) {
	sysctl := func(name string) string { return strings.TrimSpace(readSmall("/proc/sys/" + name)) }
	profile := fmt.Sprintf(`printf 'abi <abi/4.0>,\nprofile bwrap %s flags=(unconfined) {\n  userns,\n}\n' | `+
		"sudo tee /etc/apparmor.d/bwrap && sudo systemctl reload apparmor", s.box.bwrap)
	said = strings.TrimPrefix(said, "the command did not run: ")
	switch {
	case strings.Contains(said, "setting up uid map: Permission denied"):
		return "AppArmor blocks user namespaces (" + said + ")", profile
	case sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" && os.Geteuid() != 0,
		strings.Contains(said, "loopback: Failed RTM_NEWADDR"):
		return "AppArmor takes away what a user namespace may do (" + said + ")", profile
	case strings.Contains(said, "nknown option"):
		return "bubblewrap is too old (" + said + ")", "install bubblewrap 0.8 or later"
	case inContainer():
		return "this container does not allow it (" + said + ")", containerHint
	case sysctl("kernel/unprivileged_userns_clone") == "0":
		return "user namespaces are switched off", "sudo sysctl -w kernel.unprivileged_userns_clone=1"
	case sysctl("user/max_user_namespaces") == "0":
		return "user namespaces are switched off", "sudo sysctl -w user.max_user_namespaces=10000"
	}
	return "bubblewrap failed: " + said, "run it by hand to see why: bwrap --ro-bind / / --unshare-all true"
}

var containerMarks = []string{"/.dockerenv", "/run/.containerenv"}

func inContainer() bool {
	for _, p := range containerMarks {
		if _, err := os.Lstat(p); err == nil {
			return true
		}
	}
	return os.Getenv("container") != "" // set by systemd-nspawn, podman and LXC
}
