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
	listed, _ := modelServer(t, `{"data":[{"id":"text-embedding-3"},{"id":"big"}]}`)
	useLocal(t, nobody)
	type env = map[string]string
	for _, test := range []struct {
		name, flagModel, flagBase string
		cfg                       modelSettings
		env                       env
		kind, model, base, key    string
		why                       string
	}{
		{name: "nothing is set", kind: "rehearsal", model: "rehearsal", base: "http://rehearsal.invalid/v1", why: "not a language model"},
		{name: "rehearsal by flag", flagModel: "rehearsal", env: env{"OPENAI_API_KEY": "k"}, kind: "rehearsal", model: "rehearsal", base: "http://rehearsal.invalid/v1", why: "the command line"},
		{name: "rehearsal beats the file", flagModel: "rehearsal", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, kind: "rehearsal", model: "rehearsal", base: "http://rehearsal.invalid/v1"},
		{name: "the file", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, kind: "configured", model: "n", base: "https://a.example/v1", key: "fk", why: "the settings"},
		{name: "the environment beats the file", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, env: env{"PICKET_MODEL": "e", "PICKET_BASE_URL": "https://b.example/v1", "PICKET_API_KEY": "ek"}, kind: "configured", model: "e", base: "https://b.example/v1", key: "ek", why: "the environment"},
		{name: "flags beat all", flagModel: "f", flagBase: "https://c.example/v1", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, env: env{"PICKET_MODEL": "e", "PICKET_BASE_URL": "https://b.example/v1", "PICKET_API_KEY": "ek"}, kind: "configured", model: "f", base: "https://c.example/v1", why: "no API key is sent"},
		{name: "the file's key is for the file's server", flagBase: "https://c.example/v1", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, kind: "configured", model: "n", base: "https://c.example/v1", why: "no API key is sent"},
		{name: "another path is the same origin", flagBase: "https://A.example:443/v2", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, kind: "configured", model: "n", base: "https://A.example:443/v2", key: "fk"},
		{name: "another scheme is another origin", flagBase: "http://a.example/v1", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, kind: "configured", model: "n", base: "http://a.example/v1"},
		{name: "another port is another origin", flagBase: "https://a.example:8443/v1", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, kind: "configured", model: "n", base: "https://a.example:8443/v1"},
		{name: "the environment's key for the file's server", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1"}, env: env{"PICKET_API_KEY": "ek"}, kind: "configured", model: "n", base: "https://a.example/v1", key: "ek"},
		{name: "the environment's key beside a flag", flagModel: "n", flagBase: "https://c.example/v1", env: env{"PICKET_API_KEY": "ek"}, kind: "configured", model: "n", base: "https://c.example/v1", key: "ek"},
		{name: "the environment's URL, the file's key", cfg: modelSettings{Name: "n", BaseURL: "https://a.example/v1", APIKey: "fk"}, env: env{"PICKET_BASE_URL": "https://b.example/v1"}, kind: "configured", model: "n", base: "https://b.example/v1"},
		{name: "a key alone is OpenAI's", cfg: modelSettings{Name: "n", APIKey: "fk"}, kind: "configured", model: "n", base: openaiBase, key: "fk"},
		{name: "OpenAI's variables", env: env{"OPENAI_API_KEY": "ok"}, kind: "openai", model: openaiDefault, base: openaiBase, key: "ok", why: "OPENAI_API_KEY"},
		{name: "OpenAI's variables, another server", flagModel: "n", env: env{"OPENAI_API_KEY": "ok", "OPENAI_BASE_URL": "https://o.example/v1"}, kind: "openai", model: "n", base: "https://o.example/v1", key: "ok"},
		{name: "OpenAI's key is not for others", flagModel: "n", flagBase: "https://c.example/v1", env: env{"OPENAI_API_KEY": "ok"}, kind: "configured", model: "n", base: "https://c.example/v1"},
		{name: "no name: the server's first that chats", flagBase: listed, kind: "configured", model: "big", base: listed},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := chooseModel(t.Context(), test.flagModel, test.flagBase, test.cfg, func(k string) string { return test.env[k] })
			if err != nil {
				t.Fatal(err)
			}
			if s := c.Settings; c.Kind != test.kind || s.Name != test.model || s.BaseURL != test.base || s.APIKey != test.key || !strings.Contains(c.Why, test.why) {
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
	cfg := modelSettings{Name: "n", BaseURL: "https://a.example/v1", Headers: map[string]string{"api-key": "x"}}
	if c, err := chooseModel(t.Context(), "", "https://c.example/v1", cfg, func(string) string { return "" }); err != nil || c.Settings.Headers != nil {
		t.Errorf("headers went along: %+v, %v", c, err)
	}
	if _, err := chooseModel(t.Context(), "", nobody, modelSettings{}, func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "--model") {
		t.Errorf("no name and no server: %v", err)
	}
	if _, err := chooseModel(t.Context(), "qwen3", "", modelSettings{}, func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "qwen3") {
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
			cfg := modelSettings{Headers: map[string]string{"api-key": "x"}}
			c, err := chooseModel(t.Context(), test.flag, "", cfg, func(string) string { return "" })
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
