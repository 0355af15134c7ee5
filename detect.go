package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// modelChoice is the model that a run uses.
type modelChoice struct {
	Settings modelSettings
	Kind     string // configured, openai, local, rehearsal, script
	Why      string // one line for the owner
}

// A localServer is a place where a model server may run on this machine.
type localServer struct{ name, base string }

// localServers are asked in this order; all answer within localWait or not at
// all.
var localServers = []localServer{
	{"Ollama", "http://127.0.0.1:11434/v1"},
	{"llama.cpp", "http://127.0.0.1:8080/v1"},
	{"LM Studio", "http://127.0.0.1:1234/v1"},
}

const (
	localWait     = 200 * time.Millisecond
	openaiBase    = "https://api.openai.com/v1"
	openaiDefault = "gpt-5-mini"
)

// chooseModel finds the model to use: the flags, else the environment, else the
// settings of the file (cfg); else OpenAI's own variables; else a server on
// this machine; else the rehearsal model. env looks up a variable. A key or a
// header is used only with the origin that it was set for.
func chooseModel(ctx context.Context, flagModel, flagBaseURL string, cfg modelSettings, env func(string) string) (modelChoice, error) {
	s := cfg
	s.Name = cmp.Or(flagModel, env("PICKET_MODEL"), cfg.Name)
	s.BaseURL = cmp.Or(flagBaseURL, env("PICKET_BASE_URL"), cfg.BaseURL)
	from := "the settings"
	switch {
	case flagModel != "" || flagBaseURL != "":
		from = "the command line"
	case env("PICKET_MODEL") != "" || env("PICKET_BASE_URL") != "":
		from = "the environment"
	}
	if s.Name == "rehearsal" && flagBaseURL == "" {
		return rehearsalChoice(s, from+" asks for it"), nil
	}
	if file, ok := strings.CutPrefix(s.Name, "script:"); ok {
		return scriptChoice(s, file, from)
	}
	withheld := keepKeys(&s, cfg, flagBaseURL, env)
	if s.BaseURL == "" && s.APIKey != "" {
		s.BaseURL = openaiBase
	}
	kind := "configured"
	if s.BaseURL == "" && env("OPENAI_API_KEY") != "" {
		kind, from = "openai", "OPENAI_API_KEY"
		s.BaseURL, s.APIKey = cmp.Or(env("OPENAI_BASE_URL"), openaiBase), env("OPENAI_API_KEY")
	}
	if s.BaseURL == "" {
		return chooseLocal(ctx, s)
	}
	u, err := parseBaseURL(s.BaseURL)
	if err != nil {
		return modelChoice{}, err
	}
	if s.Name == "" && u.Host == "api.openai.com" {
		s.Name = openaiDefault
	}
	if s.Name == "" {
		if s.Name, err = firstModel(ctx, s); err != nil {
			return modelChoice{}, err
		}
	}
	why := fmt.Sprintf("model %s at %s, from %s", boundedLine(s.Name, 100), u.Scheme+"://"+u.Host, from)
	if withheld != "" {
		why += "; " + withheld
	}
	return modelChoice{s, kind, why}, nil
}

// keepKeys leaves in s only the key and headers that belong to the origin of
// s.BaseURL, and says so if there were others. A key belongs to the base URL
// that was set beside it: in the environment, in the file, or OpenAI's.
func keepKeys(s *modelSettings, cfg modelSettings, flagBaseURL string, env func(string) string) string {
	withheld := ""
	owner := cmp.Or(cfg.BaseURL, openaiBase)
	if key := env("PICKET_API_KEY"); key != "" {
		s.APIKey = key
		owner = cmp.Or(env("PICKET_BASE_URL"), cfg.BaseURL, flagBaseURL, openaiBase)
	}
	target := cmp.Or(s.BaseURL, owner)
	if s.APIKey != "" && !sameOrigin(owner, target) {
		s.APIKey = ""
		withheld = "no API key is sent, since the one that is set belongs to another server"
	}
	if len(s.Headers) > 0 && !sameOrigin(cmp.Or(cfg.BaseURL, openaiBase), target) {
		s.Headers = nil
		withheld = cmp.Or(withheld, "model.headers are not sent, since they belong to another server")
	}
	return withheld
}

func sameOrigin(a, b string) bool {
	u, err := parseBaseURL(a)
	v, err2 := parseBaseURL(b)
	return err == nil && err2 == nil && u.Scheme == v.Scheme && strings.EqualFold(u.Hostname(), v.Hostname()) && portOf(u) == portOf(v)
}

func portOf(u *url.URL) string {
	return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

// firstModel returns the name of the first model of a server that can chat.
func firstModel(ctx context.Context, s modelSettings) (string, error) {
	s.Name = "none"
	m, err := newChatModel(s)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := modelNames(ctx, m.client, m.url, m.header())
	if err != nil {
		return "", fmt.Errorf("no model is named, and %s does not say which it has: use --model, PICKET_MODEL or model.name (%s)", m.origin(), m.words(rootCause(err)))
	}
	name := firstChat(list)
	if name == "" {
		return "", fmt.Errorf("%s has no model that can chat", m.origin())
	}
	return name, nil
}

// firstChat returns the first model of a list that is not for something else.
func firstChat(list []string) string {
	i := slices.IndexFunc(list, func(n string) bool { return !notForChat.MatchString(n) })
	if i < 0 {
		return ""
	}
	return list[i]
}

var notForChat = regexp.MustCompile(`(?i)embed|rerank|\bbge\b|\bgte\b|minilm|whisper|\btts\b`)

// chooseLocal takes the first server on this machine that has a model.
func chooseLocal(ctx context.Context, s modelSettings) (modelChoice, error) {
	ctx, cancel := context.WithTimeout(ctx, localWait)
	defer cancel()
	client := newModelClient(nil)
	defer client.CloseIdleConnections()
	answers := make([]chan []string, len(localServers)) // nil: none
	for i, l := range localServers {
		answers[i] = make(chan []string, 1)
		go func() {
			var list []string
			if u, err := parseBaseURL(l.base); err == nil {
				if list, err = modelNames(ctx, client, u, nil); err == nil && list == nil {
					list = []string{}
				}
			}
			answers[i] <- list
		}()
	}
	empty := ""
	for i, l := range localServers {
		list := <-answers[i]
		if list == nil {
			continue
		}
		name := cmp.Or(s.Name, firstChat(list))
		if name == "" {
			empty = cmp.Or(empty, l.name+" runs but has no model")
			continue
		}
		s.Name, s.BaseURL, s.APIKey, s.Headers = name, l.base, "", nil
		return modelChoice{s, "local", fmt.Sprintf("model %s of %s at %s, found on this machine", boundedLine(name, 100), l.name, l.base)}, nil
	}
	if s.Name != "" {
		return modelChoice{}, fmt.Errorf("no server for the model %q: start Ollama, or set a base URL (--base-url, PICKET_BASE_URL, model.base_url)", boundedLine(s.Name, 100))
	}
	return rehearsalChoice(s, cmp.Or(empty, "no model is set, and none was found on this machine")), nil
}

func rehearsalChoice(s modelSettings, why string) modelChoice {
	s.Name, s.BaseURL, s.APIKey, s.Headers = "rehearsal", "http://rehearsal.invalid/v1", "", nil
	s.transport = newRehearsal()
	return modelChoice{s, "rehearsal", "rehearsal model, which is not a language model: " + why}
}

func scriptChoice(s modelSettings, file, from string) (modelChoice, error) {
	t, err := newScript(file)
	if err != nil {
		return modelChoice{}, err
	}
	s.BaseURL, s.APIKey, s.Headers, s.transport = "http://script.invalid/v1", "", nil, t
	return modelChoice{s, "script", fmt.Sprintf("replies from the script %q, from %s", boundedLine(file, 200), from)}, nil
}

// readModelNames reads the list that /v1/models gives.
func readModelNames(body []byte) ([]string, error) {
	if !json.Valid(body) {
		return nil, errors.New("the list of models is not JSON")
	}
	v := pick(bytes.TrimSpace(body), "data", "models")
	list := cmp.Or(string(v[0]), string(v[1]))
	if list == "" || list[0] != '[' && list != "null" {
		return nil, errors.New("the answer holds no list of models")
	}
	var names []string
	jsonMembers([]byte(list), func(_, val []byte) {
		v := pick(val, "id", "name", "model", "type")
		id := cmp.Or(valText(v[0]), valText(v[1]), valText(v[2]))
		if id != "" && !strings.Contains(valText(v[3]), "embed") {
			names = append(names, id)
		}
	})
	return names, nil
}
