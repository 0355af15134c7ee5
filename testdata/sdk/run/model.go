package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A model is the model server behind picket. What it answers follows from the
// last message of the user.
type model struct {
	asked   chan struct{} // gets an element when a turn began to wait
	release chan struct{} // ends the wait
}

type message struct {
	Role    string
	Content string
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct{ Messages []message }
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	last, word := "", "none"
	for _, msg := range req.Messages {
		if msg.Role == "user" {
			last = msg.Content
			if found := secret.FindStringSubmatch(last); found != nil {
				word = found[1]
			}
		}
	}
	heard := func(s string) bool { return strings.Contains(last, s) }
	switch {
	case heard(sayWait):
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		m.asked <- struct{}{}
		select {
		case <-m.release:
			say(w, "waited")
		case <-r.Context().Done():
		}
	case heard(sayFail):
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"the stub model fails","type":"invalid_request_error"}}`)
	case heard(sayRemove) && slices.ContainsFunc(req.Messages, func(m message) bool { return m.Role == "tool" }):
		say(w, "The folder is still there.")
	case heard(sayRemove):
		event(w, `{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"shell","arguments":"{\"command\":\"rm -r keep\"}"}}]}`, `"tool_calls"`)
	case heard(sayRemember):
		say(w, "noted")
	case heard(sayRecall):
		say(w, "the word was "+word)
	default:
		say(w, "one ", "two ", "three")
	}
}

// What the clients say.
const (
	sayPlain    = "count to three"
	sayRemember = "the word is heron, remember it"
	sayRecall   = "which word did you hear?"
	sayRemove   = "remove the folder keep"
	sayWait     = "wait for me"
	sayFail     = "fail, please"
)

var secret = regexp.MustCompile(`the word is (\w+)`)

func say(w http.ResponseWriter, pieces ...string) {
	for i, p := range pieces {
		if i > 0 { // so that a client can see them come one by one
			time.Sleep(200 * time.Millisecond)
		}
		event(w, fmt.Sprintf(`{"content":%q}`, p), "null")
	}
	event(w, `{}`, `"stop"`)
	fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":2,\"total_tokens\":42}}\n\ndata: [DONE]\n\n")
}

func event(w http.ResponseWriter, delta, finish string) {
	fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n", delta, finish)
	w.(http.Flusher).Flush()
}
