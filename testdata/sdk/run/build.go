package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// build makes picket and the clients in the folder work.
func build(ctx context.Context, work string) ([]client, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	sdk := filepath.Dir(here)
	in := func(name string) string { return filepath.Join(work, name) }
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	do := func(dir string, commands ...[]string) {
		all.Go(func() {
			for _, args := range commands {
				cmd := exec.CommandContext(ctx, args[0], args[1:]...)
				cmd.Dir = dir
				if out, err := cmd.CombinedOutput(); err != nil {
					mu.Lock()
					failed = append(failed, fmt.Errorf("%q in %s: %w\n%s", args, dir, err, out))
					mu.Unlock()
					return
				}
			}
		})
	}
	js := in("js")
	err = os.MkdirAll(js, 0o700)
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		data, rerr := os.ReadFile(filepath.Join(sdk, "js", name))
		err = errors.Join(err, rerr, os.WriteFile(filepath.Join(js, name), data, 0o600))
	}
	if err != nil {
		return nil, err
	}
	do(js, []string{"npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"})
	do(filepath.Join(sdk, "python"), []string{"python3", "-m", "venv", in("venv")},
		[]string{in("venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt"})
	do(filepath.Dir(filepath.Dir(sdk)), []string{"go", "build", "-o", in("picket"), "."})
	do(filepath.Join(sdk, "go-v1"), []string{"go", "build", "-o", in("go-v1"), "."})
	do(filepath.Join(sdk, "go-v3"), []string{"go", "build", "-o", in("go-v3"), "."})
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	// The libraries want a newer Node than systems have; npm brings it.
	node := "node"
	if own, _ := filepath.Glob(filepath.Join(js, "node_modules/node-linux-*/bin/node")); len(own) > 0 {
		node = own[0]
	}
	library := func(name string) []string { return []string{node, filepath.Join(js, "client.mjs"), name} }
	unmarked := map[string]string{"models": noModels, "sent again": noMark}
	return []client{
		{"openai (JavaScript)", library("openai"), nil},
		{"@ai-sdk/openai-compatible", library("ai"), unmarked},
		{"@langchain/openai", library("langchain"), unmarked},
		{"@openai/agents", library("agents"), map[string]string{"models": noModels}},
		{"openai-go v1.12", []string{in("go-v1")}, nil},
		{"openai-go v3", []string{in("go-v3")}, nil},
		{"openai (Python)", []string{in("venv/bin/python"), filepath.Join(sdk, "python/client.py")}, nil},
		{"curl", []string{filepath.Join(sdk, "curl/client")}, map[string]string{"sent again": noResend}},
	}, nil
}
