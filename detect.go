package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// localServers are asked together; the first in this order that answers in time is taken.
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

// chooseModel finds the model to use: the one that the settings in force name, else that of OpenAI's own variables,
// else one of a server on this machine, else the rehearsal model. In the settings key and headers are those for
// their base URL; from says where they came from. env looks up a variable.
func chooseModel(ctx context.Context, s modelSettings, from string, env func(string) string) (modelChoice, error) {
	if s.Name == "rehearsal" {
		return rehearsalChoice(s, "set by the "+from), nil
	}
	if file, ok := strings.CutPrefix(s.Name, "script:"); ok {
		t, err := newScript(file)
		s.BaseURL, s.APIKey, s.Headers, s.transport = "http://script.invalid/v1", "", nil, t
		return modelChoice{s, "script", fmt.Sprintf("replies from the script %q, set by the %s", boundedLine(file, 200), from)}, err
	}
	kind := "configured"
	switch key := env("OPENAI_API_KEY"); {
	case s.BaseURL != "":
	case s.APIKey != "":
		s.BaseURL = openaiBase
	case key != "":
		kind, from = "openai", "variable OPENAI_API_KEY"
		s.BaseURL, s.APIKey, s.Headers = cmp.Or(env("OPENAI_BASE_URL"), openaiBase), key, nil
	default:
		return chooseLocal(ctx, s)
	}
	u, err := parseBaseURL(s.BaseURL)
	if err != nil {
		return modelChoice{}, err
	}
	if s.Name == "" && u.Host == "api.openai.com" {
		s.Name = openaiDefault
	}
	return modelChoice{s, kind, fmt.Sprintf("model %s at %s://%s, set by the %s", boundedLine(s.Name, 100), u.Scheme, u.Host, from)}, nil
}

var notForChat = lazyRegexp(`(?i)embed|rerank|\bbge\b|\bgte\b|minilm|whisper|\btts\b`)

// firstChat returns the first model of a list that is not for something else, or "".
func firstChat(list []string) string {
	list = slices.DeleteFunc(slices.Clone(list), notForChat().MatchString)
	return append(list, "")[0]
}

// chooseLocal takes the first server on this machine that has a model.
func chooseLocal(ctx context.Context, s modelSettings) (modelChoice, error) {
	ctx, cancel := context.WithTimeout(ctx, localWait)
	defer cancel()
	s.APIKey, s.Headers = "", nil
	answers := make([]chan []string, len(localServers)) // nil: no server
	for i, l := range localServers {
		answers[i] = make(chan []string, 1)
		m, err := newModel(modelSettings{BaseURL: l.base, Name: "any"})
		if err != nil {
			return modelChoice{}, err
		}
		go func() {
			list, _ := m.names(ctx)
			m.client.CloseIdleConnections()
			answers[i] <- list
		}()
	}
	why := "no model is set, and none was found on this machine"
	for i, l := range localServers {
		list := <-answers[i]
		if list == nil {
			continue
		}
		if name := cmp.Or(s.Name, firstChat(list)); name != "" {
			s.Name, s.BaseURL = name, l.base
			return modelChoice{s, "local", fmt.Sprintf("model %s of %s at %s, found on this machine", boundedLine(name, 100), l.name, l.base)}, nil
		}
		why = l.name + " runs but has no model"
	}
	if s.Name != "" {
		return modelChoice{}, fmt.Errorf("no server for the model %q: start Ollama, or set a base URL (--base-url, PICKET_BASE_URL, model.base_url)", boundedLine(s.Name, 100))
	}
	return rehearsalChoice(s, why), nil
}

func rehearsalChoice(s modelSettings, why string) modelChoice {
	s.Name, s.BaseURL, s.APIKey, s.Headers = "rehearsal", "http://rehearsal.invalid/v1", "", nil
	s.transport = builtinModel(rehearse)
	return modelChoice{s, "rehearsal", "rehearsal model, which is not a language model: " + why}
}

// names asks the server for the names of its models, in its order. An error means that it did not answer with a list.
func (m *chatModel) names(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	hr, err := http.NewRequestWithContext(ctx, "GET", m.url.JoinPath("models").String(), nil)
	if err != nil {
		return nil, err
	}
	hr.Header = m.header()
	resp, err := m.client.Do(hr)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, cmp.Or(err, error(parseServerError(body)))
	}
	type model struct{ ID, Name, Model, Type anyText }
	var answer struct {
		Object       anyText
		Data, Models []model
	}
	if !decodeLoosely(body, &answer) || answer.Data == nil && answer.Models == nil && answer.Object != "list" {
		return nil, errors.New("the answer holds no list of models")
	}
	names := []string{}
	for _, list := range [][]model{answer.Data, answer.Models} {
		for _, l := range list {
			if id := string(cmp.Or(l.ID, l.Name, l.Model)); id != "" && !strings.Contains(string(l.Type), "embed") && !slices.Contains(names, id) {
				names = append(names, id)
			}
		}
	}
	return names, nil
}
