package main

import (
	"context"
	"os/exec"
	"slices"
	"time"
)

// notify runs the owner's notifier; what becomes of it does not matter.
func (a *app) notify(ctx context.Context, line string) {
	argv := a.cfg.Approvals.Notify
	if len(argv) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	cmd := exec.CommandContext(ctx, argv[0], append(slices.Clone(argv[1:]), printable(line))...)
	cmd.Env = a.box.environ(nil)
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		a.debugf("approvals.notify: %v", err)
		return
	}
	go func() { defer cancel(); _ = cmd.Wait() }()
}
