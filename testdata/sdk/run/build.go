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
	node := nodeOf(work)
	library := func(name string) []string { return []string{node, filepath.Join(js, "client.mjs"), name} }
	none := map[string]string{"models": noModels}
	return []client{
		{name: "openai (JavaScript)", args: library("openai")},
		{name: "@ai-sdk/openai-compatible", args: library("ai"), not: none, unmarked: true},
		{name: "@langchain/openai", args: library("langchain"), not: none, unmarked: true},
		{name: "@openai/agents", args: library("agents"), not: none},
		{name: "openai-go v1.12", args: []string{in("go-v1")}},
		{name: "openai-go v3", args: []string{in("go-v3")}},
		{name: "openai (Python)", args: []string{in("venv/bin/python"), filepath.Join(sdk, "python/client.py")}},
		{name: "curl", args: []string{filepath.Join(sdk, "curl/client")}, not: map[string]string{"lost early": noResend, "lost late": noResend}},
	}, nil
}

// nodeOf is the Node to use: the libraries want a newer one than systems have, so
// that npm brings it.
func nodeOf(work string) string {
	if own, _ := filepath.Glob(filepath.Join(work, "js/node_modules/node-linux-*/bin/node")); len(own) > 0 {
		return own[0]
	}
	return "node"
}
