package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// modelServer serves a list of models and remembers the headers it got.
func modelServer(t *testing.T, body string) (base string, headers func() []http.Header) {
	t.Helper()
	var mu sync.Mutex
	var got []http.Header
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = append(got, r.Header)
		mu.Unlock()
		if strings.HasPrefix(body, "->") {
			http.Redirect(w, r, body[2:], http.StatusFound)
			return
		}
		io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/v1", func() []http.Header {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func useLocal(t *testing.T, bases ...string) {
	t.Helper()
	old := localServers
	t.Cleanup(func() { localServers = old })
	localServers = nil
	for i, b := range bases {
		localServers = append(localServers, localServer{[]string{"Ollama", "llama.cpp", "LM Studio"}[i], b})
	}
}

func TestChooseModel(t *testing.T) {
	const nobody = "http://127.0.0.1:1/v1"
	useLocal(t, nobody)
	type env = map[string]string
	const rehearsal = "http://rehearsal.invalid/v1"
	header := map[string]string{"api-key": "x"}
	for _, test := range []struct {
		name                   string
		set                    modelSettings
		env                    env
		kind, model, base, key string
		why                    string
	}{
		{name: "nothing is set", kind: "rehearsal", model: "rehearsal", base: rehearsal, why: "not a language model"},
		{name: "rehearsal", set: modelSettings{Name: "rehearsal"}, env: env{"OPENAI_API_KEY": "k"}, kind: "rehearsal", model: "rehearsal", base: rehearsal, why: "set by the flag"},
		{name: "rehearsal beside a server", set: modelSettings{Name: "rehearsal", BaseURL: "https://a.example/v1", APIKey: "fk", Headers: header}, kind: "rehearsal", model: "rehearsal", base: rehearsal},
		{name: "a server and its key", set: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, kind: "configured", model: "n", base: "https://a.example/v1", key: "fk", why: "model n at https://a.example, set by the flag"},
		{name: "a server without a key", set: modelSettings{Name: "n", BaseURL: "https://a.example/v1"}, kind: "configured", model: "n", base: "https://a.example/v1"},
		{name: "a key alone is OpenAI's", set: modelSettings{Name: "n", APIKey: "fk"}, kind: "configured", model: "n", base: openaiBase, key: "fk"},
		{name: "OpenAI's variables", env: env{"OPENAI_API_KEY": "ok"}, kind: "openai", model: openaiDefault, base: openaiBase, key: "ok", why: "OPENAI_API_KEY"},
		{name: "OpenAI's variables, another server", set: modelSettings{Name: "n", Headers: header}, env: env{"OPENAI_API_KEY": "ok", "OPENAI_BASE_URL": "https://o.example/v1"}, kind: "openai", model: "n", base: "https://o.example/v1", key: "ok"},
		{name: "OpenAI's key is not for others", set: modelSettings{Name: "n", BaseURL: "https://c.example/v1"}, env: env{"OPENAI_API_KEY": "ok"}, kind: "configured", model: "n", base: "https://c.example/v1"},
		{name: "a key of picket's own beats OpenAI's", set: modelSettings{Name: "n", APIKey: "fk"}, env: env{"OPENAI_API_KEY": "ok", "OPENAI_BASE_URL": "https://o.example/v1"}, kind: "configured", model: "n", base: openaiBase, key: "fk"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := chooseModel(t.Context(), test.set, fromFlag, func(k string) string { return test.env[k] })
			if err != nil {
				t.Fatal(err)
			}
			if s := c.Settings; c.Kind != test.kind || s.Name != test.model || s.BaseURL != test.base || s.APIKey != test.key || s.Headers != nil || !strings.Contains(c.Why, test.why) {
				t.Errorf("%+v", c)
			}
			if strings.Contains(c.Why, "\n") || test.key != "" && strings.Contains(c.Why, test.key+" ") {
				t.Errorf("why: %q", c.Why)
			}
			if _, err := newModel(c.Settings); err != nil {
				t.Errorf("the choice is no model: %v", err)
			}
		})
	}
	if _, err := chooseModel(t.Context(), modelSettings{Name: "qwen3"}, fromFlag, func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "qwen3") {
		t.Errorf("a name and no server: %v", err)
	}
}

func TestLocalServers(t *testing.T) {
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Second):
		}
	}))
	defer slow.Close()
	good, headers := modelServer(t, `{"object":"list","data":[{"id":"nomic-embed-text"},{"id":"bge-m3"},{"id":"qwen3:8b"},{"id":"other"}]}`)
	typed, _ := modelServer(t, `{"data":[{"id":"vectors","type":"embeddings"},{"id":"chat","type":"llm"}]}`)
	named, _ := modelServer(t, `{"models":[{"name":"a.gguf","model":"a.gguf"}]}`)
	page, _ := modelServer(t, "<html>a development server</html>")
	object, _ := modelServer(t, `{"status":"up"}`)
	empty, _ := modelServer(t, `{"object":"list","data":null}`)
	moved, _ := modelServer(t, "->"+good+"/models")
	const nobody = "http://127.0.0.1:1/v1"
	for _, test := range []struct {
		name        string
		bases       []string
		flag        string
		kind, model string
		base        string
		why         string
	}{
		{"the first that answers", []string{good, typed}, "", "local", "qwen3:8b", good, "Ollama"},
		{"one that does not listen", []string{nobody, typed}, "", "local", "chat", typed, "llama.cpp"},
		{"one that is silent", []string{slow.URL + "/v1", good}, "", "local", "qwen3:8b", good, ""},
		{"another kind of server", []string{page, object, named}, "", "local", "a.gguf", named, "LM Studio"},
		{"one without models", []string{empty, nobody}, "", "rehearsal", "rehearsal", "", "Ollama runs but has no model"},
		{"one that redirects", []string{moved}, "", "rehearsal", "rehearsal", "", "none was found"},
		{"a name that was given", []string{good}, "llama4", "local", "llama4", good, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			useLocal(t, test.bases...)
			set := modelSettings{Name: test.flag, Headers: map[string]string{"api-key": "x"}}
			c, err := chooseModel(t.Context(), set, fromFlag, func(string) string { return "" })
			if err != nil || c.Kind != test.kind || c.Settings.Name != test.model || !strings.Contains(c.Why, test.why) || test.base != "" && c.Settings.BaseURL != test.base || c.Settings.Headers != nil {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
	for _, h := range headers() {
		if h.Get("api-key") != "" || h.Get("Authorization") != "" {
			t.Errorf("a server that was only looked for got %v", h)
		}
	}
}
