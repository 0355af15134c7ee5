//go:build !linux

package main

import (
	"context"
	"path/filepath"
	"runtime"

	"picket/tools"
)

// There is no box outside Linux: a child gets the scrubbed environment, the
// workspace as its folder, and a session or group of its own.
type box struct{}

func (s *sandbox) findBox() {
	s.state.Line = "off: there is no sandbox on " + runtime.GOOS
	if s.cfg.Mode == "bwrap" {
		s.state.RefuseExec = "sandbox.mode is bwrap, and there is no sandbox on " + runtime.GOOS
	}
}

// shim has no box to start in.
func shim() {}

func (s *sandbox) see(p string) string {
	r, _ := filepath.EvalSymlinks(p)
	return r
}

// execBox is never called: no state has Boxed.
func (s *sandbox) execBox(context.Context, tools.Command) tools.ExecResult {
	return tools.ExecResult{Err: s.state.Line}
}

// endStragglers finds nothing more than the child's group does: a daemon in a
// session of its own lives on.
func endStragglers(string) error { return nil }
