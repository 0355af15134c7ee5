package main

import (
	"os"
	"testing"
	"time"
	"context"
	"fmt"
)

func TestBoxZZRace(t *testing.T) {
	var home string
	s := testBox(t, func(c *boxConfig) { home = os.Getenv("HOME"); os.Mkdir(home+"/out", 0o755); write(t, home+"/out/.git/secret", "hunter2"); os.Mkdir(home+"/out2", 0o755) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool)
	go func() {
		res := s.Exec(ctx, sh(python+`mkdir sub; mkdir sub/.git; ln -s /oldroot`+home+`/out2 l; ln -s `+home+`/out m; touch ready; timeout 15 python3 -I -c "import ctypes
libc=ctypes.CDLL(None)
while 1:
    for n in (b'l', b'm'):
        libc.syscall(316,-100,b'sub',-100,n,2); libc.syscall(316,-100,b'sub',-100,n,2)
"`))
		fmt.Printf("%s %s\n", res.Stdout, res.Stderr)
		close(done)
	}()
	waitForFile(t, s.roots[0]+"/ready")
	time.Sleep(50*time.Millisecond)
	n, errs, leaks := 0, map[string]int{}, 0
	for end := time.Now().Add(8*time.Second); time.Now().Before(end); n++ {
		res := s.Exec(context.Background(), sh("cat sub/.git/secret; cat m/.git/secret l/.git/secret; grep sub /proc/self/mountinfo"))
		if res.Err != "" { errs[res.Err[:min(60,len(res.Err))]]++ }
		if e, _ := os.ReadDir(home+"/out2"); len(e) > 0 { t.Logf("CREATED %v", e); os.RemoveAll(home+"/out2/.git") }
		if string(res.Stdout) != "" && res.Stdout[0]=='h' { leaks++; t.Logf("LEAK %s", res.Stdout) }
	}
	cancel()
	<-done
	t.Log(n, errs, leaks)
}
