package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"picket/tools"
)

// The owner's API. Whoever has the token of owner.token can do what the owner can
// at the command line; what changes something is recorded as if done there.

// jsonObject is an answer.
type jsonObject = map[string]any

// An ownerCall answers a request; rest is what of the path stands for a name.
type ownerCall func(s *server, r *http.Request, rest string) (any, error)

// ownerRoutes are the addresses below /api. One that ends in a slash takes a name.
var ownerRoutes = map[string]map[string]ownerCall{
	"/state":             {"GET": (*server).getState},
	"/approvals":         {"GET": (*server).getApprovals, "DELETE": (*server).deleteGrants},
	"/approvals/":        {"POST": (*server).postAnswer},
	"/approvals/grants":  {"GET": (*server).getGrants},
	"/approvals/grants/": {"DELETE": (*server).deleteGrants},
	"/config":            {"GET": (*server).getConfig, "PATCH": (*server).patchConfig},
	"/openai-api/key":    {"POST": (*server).postKey},
	"/stop":              {"POST": (*server).postStop},
	"/chats":             {"GET": (*server).getChats},
	"/chats/":            {"GET": (*server).getChat, "DELETE": (*server).deleteChat},
	"/activity":          {"GET": (*server).getActivity},
	"/events":            {"GET": nil}, // a stream
}

// ownerAPI answers a request below /api.
func (s *server) ownerAPI(w http.ResponseWriter, r *http.Request, path string) {
	if !sameKey(requestKey(r), s.owner) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		s.refuse(w, r, &apiError{http.StatusUnauthorized, "invalid_token", "the owner's token is missing or wrong; it is in owner.token in picket's data folder", ""})
		return
	}
	calls, rest := route(path)
	name, err := url.PathUnescape(rest)
	if calls == nil || err != nil {
		s.refuse(w, r, &apiError{http.StatusNotFound, "unknown_url", "there is nothing at this address", ""})
		return
	}
	var methods []string
	for m := range calls {
		methods = append(methods, m)
	}
	slices.Sort(methods)
	if !s.method(w, r, methods) || !s.enter(w, r, s.own) {
		return
	}
	defer func() { <-s.own }()
	if r.Method != http.MethodGet && !s.body(w, r) {
		return
	}
	if path == "/events" {
		s.events(w, r)
		return
	}
	out, err := calls[r.Method](s, r, name)
	var bad *apiError
	switch {
	case err == nil:
		s.answer(w, http.StatusOK, out)
	case errors.As(err, &bad):
		writeError(w, bad)
	default:
		s.app.debugf("%s %s: %v", r.Method, path, err)
		writeError(w, &apiError{http.StatusInternalServerError, "failed", s.app.red.String(err.Error()), ""})
	}
}

// route finds what answers a path, and the name in it.
func route(path string) (calls map[string]ownerCall, rest string) {
	if c, ok := ownerRoutes[path]; ok && !strings.HasSuffix(path, "/") { // an empty name is none
		return c, ""
	}
	for _, name := range []string{"/approvals/grants/", "/approvals/", "/chats/"} {
		if rest, ok := strings.CutPrefix(path, name); ok && rest != "" {
			return ownerRoutes[name], rest
		}
	}
	return nil, ""
}

// decodeStrict reads a small object; a member that is not known is an error.
func decodeStrict(r io.Reader, into any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && d.More() {
		err = errors.New("there is more than one value")
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return badRequest("invalid_request", wrong.Field, "%q has the wrong type", wrong.Field)
	case errors.As(err, &wrong):
		return badRequest("invalid_request", "", "the body must be a JSON object")
	case err != nil:
		return badRequest("invalid_request", "", "the body is not understood: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

func (s *server) getState(r *http.Request, _ string) (any, error) {
	a := s.app
	open, _, err := a.approvals.List(r.Context())
	if err != nil {
		return nil, err
	}
	config, err := s.getConfig(r, "")
	if err != nil {
		return nil, err
	}
	st := a.box.State()
	return jsonObject{"version": versionLine(), "run": a.run, "listen": s.at, "workspace": a.workspace,
		"model": jsonObject{"name": a.model.Name(), "why": a.choice.Why}, "sandbox": jsonObject{"line": st.Line, "boxed": st.Boxed, "network_blocked": st.NetBlocked},
		"config": config, "turns": orEmpty(a.handler.turns.list()), "questions": len(open), "trouble": a.approvals.Trouble()}, nil
}

func orEmpty[T any](list []T) []T { return append([]T{}, list...) } // [] in JSON, not null

func (s *server) getApprovals(r *http.Request, _ string) (any, error) {
	open, _, err := s.app.approvals.List(r.Context())
	list := []jsonObject{}
	for _, q := range open {
		list = append(list, jsonObject{"id": q.ID, "chat": q.Chat, "channel": q.Channel, "run": q.Process, "digest": q.Digest,
			"offered": scopeNames(q.Offered), "card": q.Card, "until": q.Until})
	}
	return jsonObject{"questions": list}, err
}

func (s *server) postAnswer(r *http.Request, id string) (any, error) {
	var in struct{ Answer, Scope, Reason, Digest string }
	if err := decodeStrict(r.Body, &in); err != nil {
		return nil, err
	}
	ans := Answer{Allow: in.Answer == "allow", By: "api", Reason: in.Reason, Scope: tools.Once}
	scope, known := tools.ParseScope(in.Scope)
	switch {
	case in.Answer != "allow" && in.Answer != "deny":
		return nil, badRequest("invalid_request", "answer", "\"answer\" must be allow or deny")
	case in.Scope != "" && !known:
		return nil, badRequest("invalid_request", "scope", "\"scope\" must be once, task, session, 24h or always")
	case known:
		ans.Scope = scope
	}
	err := s.app.approvals.Answer(r.Context(), id, in.Digest, ans)
	switch {
	case errors.Is(err, errNoQuestion):
		err = &apiError{http.StatusNotFound, "no_question", err.Error(), ""}
	case errors.Is(err, errAnswered), errors.Is(err, errExpired), errors.Is(err, errOtherCall), errors.Is(err, errNotOffered):
		err = &apiError{http.StatusConflict, "not_taken", err.Error(), ""}
	}
	return jsonObject{"id": id, "answer": in.Answer}, err
}

func (s *server) getGrants(r *http.Request, _ string) (any, error) {
	_, grants, err := s.app.approvals.List(r.Context())
	list := []jsonObject{}
	for _, g := range grants {
		o := jsonObject{"key": g.Key, "scope": g.Scope.String(), "who": g.Who, "workspace": g.Workspace, "labels": g.Labels.List(),
			"given": g.Given, "covers": effect(g.Scope, []Grant{g})}
		if !g.Until.IsZero() {
			o["until"] = g.Until
		}
		list = append(list, o)
	}
	return jsonObject{"grants": list, "trouble": s.app.approvals.Trouble()}, err
}

// deleteGrants ends the grants of a key, or all of them.
func (s *server) deleteGrants(r *http.Request, key string) (any, error) {
	n, err := s.app.approvals.Revoke(r.Context(), key)
	if errors.Is(err, errNoGrant) {
		err = &apiError{http.StatusNotFound, "no_grant", err.Error(), ""}
	}
	return jsonObject{"revoked": n}, err
}

func (s *server) getConfig(*http.Request, string) (any, error) {
	sw, err := s.app.cfg.switches()
	return jsonObject{"mode": sw.Mode, "openai_api": jsonObject{"enabled": sw.API, "allow_memory": sw.AllowMemory,
		"max_chats": s.app.cfg.OpenAIAPI.MaxChats, "has_key": hasKey(s.app.folders.Data)}}, err
}

func (s *server) patchConfig(r *http.Request, _ string) (any, error) {
	var in struct {
		Mode   *string `json:"mode"`
		OpenAI struct {
			Enabled     *bool `json:"enabled"`
			AllowMemory *bool `json:"allow_memory"`
		} `json:"openai_api"`
	}
	if err := decodeStrict(r.Body, &in); err != nil {
		return nil, err
	}
	if in.Mode != nil && !slices.Contains([]string{"ask", "strict", "auto"}, *in.Mode) {
		return nil, badRequest("invalid_request", "mode", "\"mode\" must be ask, strict or auto")
	}
	change := func(key string, v *bool) error {
		if v == nil {
			return nil
		}
		return s.app.switchTo(r.Context(), key, strconv.FormatBool(*v))
	}
	err := errors.Join(change("openai_api.enabled", in.OpenAI.Enabled), change("openai_api.allow_memory", in.OpenAI.AllowMemory))
	if err == nil && in.Mode != nil {
		err = s.app.switchTo(r.Context(), "sentinel.mode", *in.Mode)
	}
	if err != nil {
		return nil, err
	}
	return s.getConfig(r, "")
}

func (s *server) postKey(r *http.Request, _ string) (any, error) {
	key, err := s.app.newKey(r.Context())
	return jsonObject{"key": key}, err
}

// postStop ends every turn. It does so also where that cannot be recorded.
func (s *server) postStop(r *http.Request, _ string) (any, error) {
	n := s.app.handler.turns.stop(false)
	return jsonObject{"stopped": n}, s.recordStop(context.WithoutCancel(r.Context()), n)
}

func (s *server) getChats(*http.Request, string) (any, error) {
	chats, err := s.app.chats.list()
	list := []jsonObject{}
	for _, c := range chats {
		o := jsonObject{"name": c.Name, "workspace": c.Workspace, "changed": c.Changed, "messages": c.Messages, "labels": c.Labels.List(),
			"another_app": strings.HasPrefix(c.Name, apiNamespace+":")}
		if c.Err != nil {
			o["damage"] = c.Err.Error()
		}
		list = append(list, o)
	}
	return jsonObject{"chats": list}, err
}

func (s *server) getChat(_ *http.Request, name string) (any, error) {
	lines, err := s.app.chats.read(name)
	return jsonObject{"name": name, "lines": orEmpty(lines)}, chatError(name, err)
}

func (s *server) deleteChat(r *http.Request, name string) (any, error) {
	return jsonObject{"deleted": name}, chatError(name, s.app.chats.remove(r.Context(), name))
}

func chatError(name string, err error) error {
	switch {
	case errors.Is(err, errNoChat), err != nil && checkChatName(strings.TrimPrefix(name, apiNamespace+":")) != nil:
		return &apiError{http.StatusNotFound, "no_chat", "there is no such chat", ""}
	case errors.Is(err, errChatBusy):
		return &apiError{http.StatusConflict, "chat_busy", "this chat has a running turn", ""}
	}
	return err
}

// getActivity returns the last records of the log, 100 or n of them.
func (s *server) getActivity(r *http.Request, _ string) (any, error) {
	n := 100
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 0 || n > 1000 {
			return nil, badRequest("invalid_request", "n", "\"n\" must be from 0 to 1000")
		}
	}
	var b bytes.Buffer
	err := showAudit(r.Context(), &b, s.app.folders.Data, auditView{N: n, JSON: true})
	records := []json.RawMessage{}
	for l := range bytes.Lines(b.Bytes()) {
		records = append(records, json.RawMessage(bytes.TrimSpace(l)))
	}
	return jsonObject{"records": records}, err
}

// events streams the records of the log as they are written, questions and
// answers among them, of every picket process.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	c, write := http.NewResponseController(w), usualTimes.write
	log := &logReader{path: filepath.Join(s.app.folders.Data, auditName)}
	defer func() { log.f.Close() }()
	err := log.read(func(logLine) error { return nil })
	if err != nil {
		writeError(w, &apiError{http.StatusInternalServerError, "failed", "the log cannot be read", ""})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Request-Id", newID("q"))
	send := func(b []byte) error {
		_ = c.SetWriteDeadline(time.Now().Add(write))
		if _, err := w.Write(b); err != nil {
			return err
		}
		return c.Flush()
	}
	poll, ping := time.NewTicker(pollEvery), time.NewTicker(usualTimes.ping)
	defer poll.Stop()
	defer ping.Stop()
	err = send([]byte(": the log from here on\n"))
	for err == nil {
		select {
		case <-r.Context().Done():
			return
		case <-s.quit:
			return
		case <-ping.C:
			err = send([]byte(": ping\n"))
		case <-poll.C:
			var b bytes.Buffer
			err = log.read(func(l logLine) error { return auditView{JSON: true}.write(&b, l) })
			if b.Len() > 0 && err == nil {
				err = send(fmt.Appendf(nil, "data: %s\n\n", bytes.ReplaceAll(bytes.TrimSpace(b.Bytes()), []byte("\n"), []byte("\n\ndata: "))))
			}
		}
	}
}
