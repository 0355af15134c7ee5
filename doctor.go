package main

import "context"

func (p *program) doctor(ctx context.Context) error { return nil }
