package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// notify runs the owner's notifier; what becomes of it does not matter. A program
// that a call could have written is not run: no box holds it.
func (a *app) notify(ctx context.Context, line string) {
	argv := a.cfg.Approvals.Notify
	if len(argv) == 0 {
		return
	}
	program, err := exec.LookPath(argv[0])
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if err == nil && firstWithin(resolveExisting(program), a.box.Roots()) != "" {
		err = fmt.Errorf("%q lies where tools can write", program)
	}
	if err != nil {
		a.debugf("approvals.notify: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(argv[1:]), printable(line))...)
	cmd.Env = a.box.environ(nil)
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		a.debugf("approvals.notify: %v", err)
		return
	}
	go func() { defer cancel(); _ = cmd.Wait() }()
}
