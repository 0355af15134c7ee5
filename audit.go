package main

import (
	"context"
	"errors"
)

// errAudit is wrapped by every error that means "this could not be recorded";
// the exit code is then 4.
var errAudit = errors.New("the log could not be written")

// Log is an append-only, hash-chained file that several processes share.
type Log struct{}

// Append writes records in one batch, chained, under the lock. With sync it
// returns only once they are on disk (one fdatasync is shared by all who wait).
// Every error wraps errAudit.
func (l *Log) Append(ctx context.Context, sync bool, recs ...Record) error { panic("not yet") }

// Close syncs what is pending.
func (l *Log) Close() error { panic("not yet") }
