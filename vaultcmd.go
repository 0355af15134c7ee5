package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// unlock opens the vault, if there is one; it may have to ask for its passphrase.
func (a *app) unlock(ctx context.Context) error {
	err := a.vault.Refresh()
	if !errors.Is(err, errVaultLocked) {
		return err
	}
	phrase, perr := a.askHidden(ctx, "passphrase of the vault: ")
	if perr != nil {
		return fmt.Errorf("%w: %w", err, perr)
	}
	return a.vault.Unlock(phrase)
}

// askHidden asks the owner for a line that is not shown.
func (a *app) askHidden(ctx context.Context, prompt string) (string, error) {
	for !a.reads {
		unlock, ok, err := a.tryTerminalLock(ttyName())
		if err != nil {
			return "", err
		}
		if ok {
			defer unlock()
			break
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return readHidden(ctx, prompt)
}
