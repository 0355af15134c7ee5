package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

// The loopback server: /v1 for other apps, /api for the owner. Both need a key
// of their own, and no request gets that far that did not come from this machine
// to a loopback address under a name of this machine.

// serverLimits bound what one client, or all of them, can hold.
type serverLimits struct {
	header time.Duration // to send the head of a request
	body   time.Duration // to send its body
	idle   time.Duration // between requests of a connection
	linger time.Duration // to stop sending a body that was refused, or to take the last answer
	stop   time.Duration // for the turns to end when the server does
	report time.Duration // between records of refused requests
	bytes  int64         // of a body
	conns  int           // of each listener
	places int           // requests with a right key, of other apps and of the owner each
}

var usualLimits = serverLimits{header: 10 * time.Second, body: 30 * time.Second, idle: 2 * time.Minute, linger: 500 * time.Millisecond,
	stop: 20 * time.Second, report: time.Minute, bytes: 1 << 20, conns: 512, places: 256}

const maxHeaderBytes = 32 << 10

// A server answers requests. It is made by newServer.
type server struct {
	app    *app
	owner  [sha256.Size]byte // digest of the owner's token
	limits serverLimits
	slots  chan struct{} // of other apps
	own    chan struct{} // of the owner, whom no app can keep from stopping it
	quit   chan struct{} // closed when the server ends
	at     []string      // what it listens on

	mu      sync.Mutex
	refused map[string]int // since the last record, by kind
}

func newServer(a *app, token string, limits serverLimits) *server {
	return &server{app: a, owner: sha256.Sum256([]byte(token)), limits: limits, slots: make(chan struct{}, limits.places),
		own: make(chan struct{}, limits.places), quit: make(chan struct{}), refused: map[string]int{}}
}

// listen opens the addresses; the name localhost stands for both of IPv4 and
// IPv6. A machine without the one or the other is served on what it has.
func (s *server) listen(addresses []string) (list []net.Listener, err error) {
	defer func() {
		for _, l := range list {
			if err != nil {
				l.Close()
			}
		}
	}()
	var all []string
	for _, a := range addresses {
		if port, ok := strings.CutPrefix(a, "localhost:"); ok {
			all = append(all, "127.0.0.1:"+port, "[::1]:"+port)
		} else {
			all = append(all, a)
		}
	}
	var missing error
	for _, a := range all {
		if at, perr := netip.ParseAddrPort(a); perr != nil || !at.Addr().IsLoopback() {
			return list, fmt.Errorf("%q is no loopback address and port", a)
		}
		l, lerr := net.Listen("tcp", a)
		switch {
		case errors.Is(lerr, syscall.EADDRNOTAVAIL), errors.Is(lerr, syscall.EAFNOSUPPORT):
			missing = lerr
			continue
		case lerr != nil:
			return list, fmt.Errorf("cannot listen on %s: %v (see picket api status; server.listen or PICKET_LISTEN set another port)", a, lerr)
		}
		list = append(list, jsonListener{netutil.LimitListener(l, s.limits.conns)})
		s.at = append(s.at, l.Addr().String())
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("there is nothing to listen on: %w", errors.Join(missing, errors.New("server.listen names no address")))
	}
	if missing != nil {
		s.app.prog.notef("not listening on all addresses: %v", missing)
	}
	return list, nil
}

// A jsonListener makes JSON of what net/http refuses by itself.
type jsonListener struct{ net.Listener }

func (l jsonListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return jsonConn{c}, nil
}

type jsonConn struct{ net.Conn }

// ownRefusal is what net/http writes about a request that no handler gets to see,
// in one piece: plain text, or an Expect field's 417. No answer from here has either,
// and none has a CR in its body, where a piece could begin as well.
var ownRefusal = regexp.MustCompile(`^HTTP/1\.[01] (?:([45]\d\d) [^\r\n]*\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n|(417) [^\r\n]*\r\n)`)

func (c jsonConn) Write(b []byte) (int, error) {
	m := ownRefusal.FindSubmatchIndex(b)
	if m == nil {
		return c.Conn.Write(b)
	}
	e := badRequest("invalid_request", "", "an Expect field can only be 100-continue")
	e.status = http.StatusExpectationFailed
	if m[2] >= 0 {
		e.status, _ = strconv.Atoi(string(b[m[2]:m[3]])) // three digits
		e.message = "the request is not understood: " + string(b[m[1]:])
	}
	out := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Should-Retry: false\r\nX-Request-Id: %s\r\nX-Content-Type-Options: nosniff\r\n"+
		"Cache-Control: no-store\r\nConnection: close\r\n\r\n{\"error\":%s}\n", e.status, http.StatusText(e.status), newID("q"), errorObject(e))
	if _, err := c.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// run serves until ctx ends, then stops the turns and lets their answers out.
func (s *server) run(ctx context.Context, list []net.Listener) error {
	srv := &http.Server{Handler: s, ReadHeaderTimeout: s.limits.header, IdleTimeout: s.limits.idle, MaxHeaderBytes: maxHeaderBytes,
		DisableGeneralOptionsHandler: true, ErrorLog: log.New(io.Discard, "", 0)}
	failed := make(chan error, len(list))
	var all sync.WaitGroup
	for _, l := range list {
		all.Go(func() { failed <- srv.Serve(l) })
	}
	report := time.NewTicker(s.limits.report)
	defer report.Stop()
	var err error
	for waiting := true; waiting; {
		select {
		case <-report.C:
			s.reportRefused(ctx)
		case err = <-failed:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.stop)
	defer cancel()
	turns := s.app.handler.turns.stop(true)
	if turns > 0 {
		err = errors.Join(err, s.recordStop(end, turns))
	}
	close(s.quit)
	let, drop := context.WithCancel(end)
	defer drop()
	all.Go(func() {
		if serr := srv.Shutdown(let); serr != nil { // some connection was not idle
			srv.Close()
		}
	})
	s.app.handler.turns.wait(end)
	time.AfterFunc(s.limits.linger, drop) // the answers are out by then
	all.Wait()
	s.reportRefused(end)
	return err
}

func (s *server) recordStop(ctx context.Context, turns int) error {
	return s.app.log.Append(ctx, true, Record{Run: s.app.run, Body: stopRecord{turns}})
}

// reportRefused records how many requests were refused since the last time.
func (s *server) reportRefused(ctx context.Context) {
	s.mu.Lock()
	counts := maps.Clone(s.refused)
	clear(s.refused)
	s.mu.Unlock()
	if len(counts) == 0 {
		return
	}
	if err := s.app.log.Append(ctx, false, Record{Run: s.app.run, Channel: channelAPI, Body: apiRecord{"refused", counts}}); err != nil {
		s.app.debugf("%v", err)
	}
}

// ServeHTTP guards and routes. Until a key was found right no body is read.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			s.app.debugf("panic in a request: %v\n%s", p, debug.Stack())
			// A 400, since clients send again what was answered with a 5xx; after
			// the first byte this only ends the answer.
			s.refuse(w, r, badRequest("internal_error", "", "picket failed at this request"))
		}
	}()
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(usualTimes.write))
	path := r.URL.EscapedPath()
	switch {
	case !local(r):
		s.refuse(w, r, &apiError{http.StatusForbidden, "local_only", "only programs on this computer may ask, under a name of this computer", ""})
	case path == "/v1" || strings.HasPrefix(path, "/v1/"):
		s.v1(w, r, strings.TrimSuffix(path[len("/v1"):], "/"))
	case path == "/api" || strings.HasPrefix(path, "/api/"):
		s.ownerAPI(w, r, strings.TrimSuffix(path[len("/api"):], "/"))
	default:
		s.refuse(w, r, s.unknown(r, ""))
	}
}

// refuse answers a request whose body is not read: the connection ends with it.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, e *apiError) {
	s.mu.Lock()
	s.refused[e.code]++
	s.mu.Unlock()
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.linger))
	}
	writeError(w, e)
}

func (s *server) unknown(r *http.Request, way string) *apiError {
	base := "http://" + r.Host + "/v1"
	if way == "" {
		way = "the base URL is " + base + ", and requests go to " + base + "/chat/completions"
	}
	return &apiError{http.StatusNotFound, "unknown_url", "there is nothing at this address: " + way, ""}
}

// loopback reports whether an address is of this machine alone.
func loopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// local reports whether a request came from this machine, to it, and under a
// name of it: not from elsewhere, not by way of a proxy, not from a web page, and
// not under a name that somebody else's DNS gave this machine. A whole URL as the
// target is what proxies get, and it hides the Host field (RFC 9112, 3.2.2).
func local(r *http.Request) bool {
	if r.URL.Scheme != "" || r.URL.Host != "" {
		return false
	}
	for name := range r.Header {
		if name == "Forwarded" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded") {
			return false
		}
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if !ok || !loopback(at) || err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}
	_, port, _ := net.SplitHostPort(at.String())
	names := []string{"127.0.0.1:" + port, "localhost:" + port, "[::1]:" + port}
	if port == "80" {
		names = append(names, "127.0.0.1", "localhost", "[::1]")
	}
	host := strings.ToLower(r.Host)
	if !slices.Contains(names, host) {
		return false
	}
	origin := r.Header["Origin"]
	return len(origin) == 0 || len(origin) == 1 && strings.ToLower(origin[0]) == "http://"+host
}

// requestKey returns the token of a request, "" if it has none or says it in another
// way. What stands in the address ends up in logs and histories, so it is no key.
func requestKey(r *http.Request) string {
	list := r.Header["Authorization"]
	if len(list) != 1 {
		return ""
	}
	for name, values := range r.URL.Query() {
		name = strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
		if slices.Contains([]string{"key", "apikey", "token", "accesstoken", "auth", "authorization", "bearer"}, name) ||
			slices.ContainsFunc(values, apiKey().MatchString) {
			return ""
		}
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(list[0]), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// sameKey compares a token with the digest of the right one.
func sameKey(token string, want [sha256.Size]byte) bool {
	got := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && token != ""
}

// v1 is the API for other apps.
func (s *server) v1(w http.ResponseWriter, r *http.Request, path string) {
	a := s.app
	sw, err := a.cfg.switches()
	if err != nil {
		a.debugf("%v", err)
	}
	if err != nil || !sw.API {
		s.refuse(w, r, &apiError{http.StatusNotFound, "api_off", "the API is off; its owner turns it on with: picket api on", ""})
		return
	}
	want, err := readKeyDigest(a.folders.Data)
	if err != nil || !sameKey(requestKey(r), want) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		s.refuse(w, r, &apiError{http.StatusUnauthorized, "invalid_api_key", "the API key is missing or wrong; send it as \"Authorization: Bearer …\" (picket api key makes a new one)", ""})
		return
	}
	id, isModel := strings.CutPrefix(path, "/models/")
	methods := []string{http.MethodGet, http.MethodHead}
	switch {
	case path == "/chat/completions":
		methods = []string{http.MethodPost}
	case path == "/models" || isModel:
	case path == "/responses" || strings.HasPrefix(path, "/responses/"):
		s.refuse(w, r, s.unknown(r, "use /v1/chat/completions (in @openai/agents set useResponses: false, in @ai-sdk/openai use .chat())"))
		return
	default:
		s.refuse(w, r, s.unknown(r, ""))
		return
	}
	if !s.method(w, r, methods) || !s.enter(w, r, s.slots) {
		return
	}
	defer func() { <-s.slots }()
	switch {
	case isModel:
		if id, err := url.PathUnescape(id); err != nil || id != modelID {
			writeError(w, &apiError{http.StatusNotFound, "model_not_found", fmt.Sprintf("there is no model %q here; use %q", id, modelID), "model"})
			return
		}
		s.answer(w, http.StatusOK, publishedModel)
	case path == "/models":
		s.answer(w, http.StatusOK, map[string]any{"object": "list", "data": []any{publishedModel}})
	default:
		c := &caller{Channel: channelAPI, Who: whoApp, Run: a.run, Wait: true, Memory: sw.AllowMemory, epoch: a.handler.turns.now(), Event: s.tell}
		if s.body(w, r) {
			a.handler.ServeHTTP(w, r.WithContext(withCaller(r.Context(), c)))
		}
	}
}

var publishedModel = map[string]any{"id": modelID, "object": "model", "created": 1, "owned_by": "picket"}

// tell shows the owner the questions of other apps' turns, with the command that
// answers them, and how they end.
func (s *server) tell(e Event) {
	switch e.Type {
	case "question":
		s.app.prog.notef("? another app asks for: %s (%s)\n  picket approvals allow %s --for %s\n  picket approvals deny %[3]s", e.Summary,
			strings.Join(e.Reasons, "; "), e.ID, strings.Join(e.Offered, "|"))
	case "answer":
		s.app.prog.notef("  %s: %s %s", e.ID, e.Answer, e.Scope)
	}
}

// method refuses other methods than those of an address.
func (s *server) method(w http.ResponseWriter, r *http.Request, methods []string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	s.refuse(w, r, &apiError{http.StatusMethodNotAllowed, "method_not_allowed", "this address takes " + strings.Join(methods, " or ") + " only", ""})
	return false
}

// enter takes one of the places for requests; whoever is let in gives it back.
func (s *server) enter(w http.ResponseWriter, r *http.Request, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		s.refuse(w, r, &apiError{http.StatusTooManyRequests, "too_many_requests", "too many requests are open; wait until some have ended", ""})
		return false
	}
}

// body reads the whole body of a request, which is taken as JSON in UTF-8 unless
// it says that it is something else.
func (s *server) body(w http.ResponseWriter, r *http.Request) bool {
	if why := notJSON(r.Header); why != "" {
		s.refuse(w, r, &apiError{http.StatusUnsupportedMediaType, "unsupported_encoding", why, ""})
		return false
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(s.limits.body))
	tooBig := r.ContentLength > s.limits.bytes
	if !tooBig {
		data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.limits.bytes))
		if err == nil {
			_ = c.SetReadDeadline(time.Time{})
			r.Body = io.NopCloser(bytes.NewReader(data))
			return true
		}
		var limit *http.MaxBytesError
		tooBig = errors.As(err, &limit)
	}
	if tooBig {
		s.refuse(w, r, &apiError{http.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("the request is larger than %d bytes", s.limits.bytes), ""})
	} else {
		s.refuse(w, r, badRequest("invalid_request", "", "the request did not arrive whole"))
	}
	return false
}

// notJSON says what a body cannot be read as, "" if it can.
func notJSON(h http.Header) string {
	for _, v := range h["Content-Encoding"] {
		if v != "" && !strings.EqualFold(v, "identity") {
			return "a compressed body is not supported"
		}
	}
	for _, v := range h["Content-Type"] {
		kind, params, err := mime.ParseMediaType(v)
		charset, v := strings.ToLower(params["charset"]), strings.ToLower(v)
		switch {
		case strings.HasPrefix(strings.TrimSpace(v), "multipart/") || strings.HasPrefix(kind, "multipart/"):
			return "a body of several parts is not supported; send JSON"
		case err != nil && strings.Contains(v, "charset"), charset != "" && charset != "utf-8" && charset != "utf8":
			return "the body must be JSON in UTF-8"
		}
	}
	return ""
}

// answer writes JSON.
func (s *server) answer(w http.ResponseWriter, status int, v any) {
	b, err := marshalPlain(v)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	if w.Header().Get("X-Request-Id") == "" {
		w.Header().Set("X-Request-Id", newID("q"))
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that is gone does not matter
}

// serve is "picket serve".
func (p *program) serve(ctx context.Context, args []string) error {
	f, words, err := p.parseTask(args)
	if err != nil {
		return p.helpOr(err)
	}
	if len(words) > 0 || f.chat != "" || f.cont || f.wait || f.json || f.think || f.noStdin || len(f.allow) > 0 {
		return usageErrorf("serve takes --mode, --auto, --workspace, --model, --base-url, --max-steps and --quiet only")
	}
	own, err := findFolders(os.Getenv)
	if err == nil {
		err = own.create()
	}
	if err != nil {
		return err
	}
	token, err := ownerToken(own.Data, true)
	if err != nil {
		return err
	}
	a, err := p.open(ctx, f)
	if err != nil {
		return err
	}
	defer a.close()
	s := newServer(a, token, usualLimits)
	list, err := s.listen(a.cfg.Server.Listen)
	if err != nil {
		return err
	}
	card := filepath.Join(own.Data, "runs", a.run+servesSuffix)
	text, _ := json.Marshal(s.at) // strings only
	if err := writeNew(card, text); err != nil {
		return err
	}
	defer os.Remove(card)
	sw, _ := a.cfg.switches() // whoever asks is told what is wrong with it
	state := map[bool]string{true: "on", false: "off (picket api on)"}[sw.API]
	p.notef("serving on http://%s; Ctrl-C ends it\nthe API for other apps is %s: http://%s/v1", strings.Join(s.at, " and http://"), state, s.at[0])
	if err := s.run(ctx, list); err != nil && ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}
