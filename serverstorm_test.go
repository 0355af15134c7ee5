package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"picket/tools"
)

// Clients that connect, hang up, stall, stop, replace the key and turn the API
// off, all at once, with questions open: afterwards nothing is left over, each
// call has one decision, each question one end, and the log holds.
func TestServerStorm(t *testing.T) {
	const clients, each = 48, 8
	r := newServerRig(t, func(w http.ResponseWriter, hr *http.Request, req stubRequest) {
		switch {
		case req.results() == 0 && strings.HasSuffix(req.last(), "call"):
			stubCalls(w, "I try", "shell", jsonObject{"command": "true"})
		case strings.HasSuffix(req.last(), "wait"):
			select {
			case <-hr.Context().Done():
			case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
				stubSays(w, "waited")
			}
		default:
			stubSays(w, "some ", "words")
		}
	})
	r.app.handler.maxChats = 20
	r.limits.body = 200 * time.Millisecond
	r.chat("0", "warm up")
	r.client.CloseIdleConnections()
	r.app.model.(*chatModel).client.CloseIdleConnections()
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)

	ctx, cancel := context.WithCancel(context.Background())
	var owner, all sync.WaitGroup
	owner.Go(func() { // answers what it sees
		for ctx.Err() == nil {
			open, _, _ := r.app.approvals.List(context.Background())
			for _, q := range open {
				ans := Answer{Allow: rand.IntN(2) == 0, Scope: tools.Once, By: "cli"}
				if rand.IntN(3) > 0 {
					_ = r.app.approvals.Answer(context.Background(), q.ID, q.Digest, ans) // it may have ended
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	var mu sync.Mutex
	key := r.key
	current := func() string { mu.Lock(); defer mu.Unlock(); return key }
	answers := map[int]int{}
	for i := range clients {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for n := range each {
				what := []string{"call", "wait", "talk"}[rand.IntN(3)]
				body := fmt.Sprintf(`{"user":"%d","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, rand.IntN(24), rand.IntN(2) == 0, what)
				hang, cancel := context.WithCancel(context.Background())
				method, path, auth := "POST", "/v1/chat/completions", current()
				switch op := (i + n) % 16; op {
				case 0:
					path, auth, body = "/api/stop", r.token, ""
				case 1:
					mu.Lock()
					k, err := r.app.newKey(context.Background())
					if err == nil {
						key = k
					}
					mu.Unlock()
				case 2:
					method, path, auth = "PATCH", "/api/config", r.token
					body = fmt.Sprintf(`{"openai_api":{"enabled":%v}}`, rand.IntN(4) > 0)
				case 3, 4, 5:
					time.AfterFunc(time.Duration(rand.IntN(20))*time.Millisecond, cancel)
				case 6: // stalls in its body
					if c, err := net.Dial("tcp", r.at[0]); err == nil {
						fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 99\r\n\r\n{", path, r.at[0], auth)
						time.AfterFunc(time.Duration(rand.IntN(300))*time.Millisecond, func() { c.Close() })
					}
				}
				req, _ := http.NewRequestWithContext(hang, method, r.base+path, strings.NewReader(body))
				req.Header.Set("Authorization", "Bearer "+auth)
				resp, err := client.Do(req)
				status := 0
				if err == nil {
					status = resp.StatusCode
					var b [512]byte
					for err == nil {
						_, err = resp.Body.Read(b[:])
					}
					resp.Body.Close()
				}
				cancel()
				mu.Lock()
				answers[status]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	r.ask("POST", "/api/stop", r.token, "")
	r.turns(0)
	cancel()
	owner.Wait()
	r.client.CloseIdleConnections()
	t.Logf("answers by status: %v", answers)
	if answers[500] > 0 || answers[502] > 0 || answers[503] > 0 || answers[200] == 0 {
		t.Errorf("answers by status: %v", answers)
	}
	r.app.model.(*chatModel).client.CloseIdleConnections()
	r.eventually("every request is let go", func() bool { return len(r.slots) == 0 })
	r.eventually("goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+3 })
	r.eventually("descriptors are closed", func() bool { return openDescriptors(t) <= descriptors+3 })
	open, _, err := r.app.approvals.List(context.Background())
	if err != nil || len(open) > 0 {
		t.Errorf("questions are left open: %+v, %v", open, err)
	}
	counts := map[string]map[string]int{}
	for _, kind := range []string{"decision", "question", "answer", "result"} {
		counts[kind] = map[string]int{}
		for _, rec := range r.records(kind) {
			counts[kind][rec["call"].(string)]++
		}
	}
	if len(counts["question"]) == 0 {
		t.Error("nothing was asked")
	}
	for id, n := range counts["decision"] {
		if n != 1 {
			t.Errorf("%d decisions about %s", n, id)
		}
	}
	for id, n := range counts["question"] {
		if n != 1 || counts["answer"][id] != 1 {
			t.Errorf("question %s: %d times, %d ends", id, n, counts["answer"][id])
		}
		if call, _, _ := strings.Cut(id, "-"); counts["decision"][call] != 1 {
			t.Errorf("no decision about %s", call)
		}
	}
	for id := range counts["result"] {
		if counts["decision"][id] != 1 {
			t.Errorf("%s ran without a decision", id)
		}
	}
	must(t, r.app.switchTo(context.Background(), "openai_api.enabled", "true"))
	r.key = key
	if got := r.chat("0", "talk"); got.StatusCode != 200 {
		t.Errorf("after the storm: %d %s", got.StatusCode, got.body)
	}
	if rep, err := verifyLog(r.app.folders.Data); err != nil || rep.Status != auditProven {
		t.Errorf("the log: %+v, %v", rep, err)
	}
}

// openDescriptors counts those of this process, 0 where that cannot be seen.
func openDescriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	}
	return len(list)
}
