package tools

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
	"golang.org/x/net/http/httpguts"
)

const (
	fetchTimeout   = 60 * time.Second // one call, redirects included
	fetchBody      = 5 << 20          // bytes of a body, decompressed
	fetchRedirects = 5
	fetchHeaders   = 8 << 10 // bytes of the headers that a call gives
)

// WebFetch reads a page or file from a public host.
var WebFetch = Tool{
	Name: "web_fetch",
	Description: "Fetch an http or https URL of a public host and return it as text: HTML as Markdown, JSON and plain text as they are." +
		" Other types are named, not shown.",
	Params: []Param{
		{Name: "url", Type: "string", Required: true, Description: "the whole address, with https://; {{vault:NAME}} in its path or query stands for a secret"},
		{Name: "method", Type: "string", Enum: []string{"GET", "HEAD"}, Default: "GET"},
		{Name: "headers", Type: "map", Description: "request headers; {{vault:NAME}} in a value stands for a secret"},
		{Name: "max_chars", Type: "integer", Min: 1, Max: 60000, Default: int64(20000), Description: "characters of text to return"},
	},
	Risk:           Moderate,
	ReadsUntrusted: true,
	Egress:         EgressHosts,
	AcceptsSecrets: []string{"url", "headers"},
	Assess:         assessFetch,
	Judge:          judgeFetch,
	Execute:        func(ctx context.Context, call *Call) Output { return fetcher{}.run(ctx, call) },
}

func assessFetch(args Args) (Plan, error) {
	u, err := ParseURL(args.String("url"))
	if _, names, bad := SplitPlaceholders(args.String("url")); err != nil && (names != nil || bad != nil) {
		return Plan{}, fmt.Errorf("%w; a secret may stand only in its path and query", err)
	}
	if err != nil { // Judge refuses it: an address that is not what it seems is no slip
		return Plan{Detail: err}, nil
	}
	if _, err := requestHeaders(args.Map("headers")); err != nil {
		return Plan{}, err
	}
	plan := Plan{Hosts: []string{u.HostKey()}, Detail: u}
	_, whole, err := SplitPlaceholders(args.String("url"))
	_, names, _ := SplitPlaceholders(u.Path + u.Query)
	if err == nil && !slices.Equal(whole, names) {
		err = errors.New("a secret may stand only in the path and the query of a URL, and not where ./ and ../ take it out")
	}
	for _, name := range names {
		plan.Secrets = append(plan.Secrets, SecretUse{Name: name, Param: "url"})
	}
	headers := args.Map("headers")
	for _, key := range slices.Sorted(maps.Keys(headers)) {
		_, names, bad := SplitPlaceholders(headers[key])
		for _, name := range names {
			plan.Secrets = append(plan.Secrets, SecretUse{Name: name, Param: "headers"})
		}
		err = errors.Join(err, bad)
	}
	return plan, err
}

func judgeFetch(args Args, plan Plan, _ Facts) Judgement {
	u, ok := plan.Detail.(URL)
	if !ok {
		return Judgement{Summary: "web_fetch " + args.String("url"), Refuse: fmt.Sprint(plan.Detail), Egress: Egress{Kind: EgressNone}}
	}
	j := Judgement{
		Summary:        "web_fetch " + u.Display(),
		Risk:           Moderate,
		Refuse:         u.Refusal(),
		Targets:        []Target{{Key: "web_fetch:" + u.HostKey(), Widest: Always}},
		Widest:         Always,
		Egress:         Egress{Kind: EgressHosts, Hosts: []string{u.HostKey()}},
		RequestBytes:   len(u.String()),
		ReadsUntrusted: true,
		URL:            u.String(),
		Forms:          map[string][]string{"url": {u.String()}},
	}
	for name, value := range args.Map("headers") {
		j.RequestBytes += len(name) + len(value)
		if !carriesNothing(name, value) {
			j.Sends = true
			j.Why = append(j.Why, fmt.Sprintf("sends the header %q", http.CanonicalHeaderKey(name)))
		}
	}
	slices.Sort(j.Why)
	return j
}

// carriesNothing reports whether a header cannot take data of the chat along: a
// secret alone, with or without its scheme, or a usual Accept.
func carriesNothing(name, value string) bool {
	if strings.EqualFold(name, "Accept") {
		switch value {
		case "*/*", "text/html", "text/plain", "text/markdown", "application/json", "application/xml", "application/vnd.github+json":
			return true
		}
	}
	for _, scheme := range []string{"Bearer ", "Basic ", "Token ", "token "} {
		value = strings.TrimPrefix(value, scheme)
	}
	_, n := placeholder(value)
	return value != "" && n == len(value)
}

// notAllowedHeaders are the connection's own (RFC 9110, section 7.6.1), those
// that picket sets, and those that name where a request comes from.
var notAllowedHeaders = []string{"Host", "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization",
	"Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings", "Content-Length", "Expect",
	"Accept-Encoding", "Referer"}

func requestHeaders(given map[string]string) (http.Header, error) {
	h := http.Header{}
	size := 0
	for name, value := range given {
		key := http.CanonicalHeaderKey(name)
		size += len(name) + len(value)
		switch {
		case size > fetchHeaders:
			return nil, fmt.Errorf("the headers are longer than %d bytes", fetchHeaders)
		case !httpguts.ValidHeaderFieldName(name):
			return nil, fmt.Errorf("%q is not a header name", name)
		case !httpguts.ValidHeaderFieldValue(value):
			return nil, fmt.Errorf("the value of the header %q holds a line break or control character", key)
		case slices.Contains(notAllowedHeaders, key):
			return nil, fmt.Errorf("the header %q cannot be set", key)
		case h[key] != nil:
			return nil, fmt.Errorf("the header %q stands twice", key)
		}
		h[key] = []string{strings.TrimSpace(value)}
	}
	return h, nil
}

// A fetcher makes the requests of one call. The zero value is the one in use.
type fetcher struct {
	guard       guard
	testOnlyTLS *tls.Config // a test's certificates; nil outside tests
}

// A page is what a server answered.
type page struct {
	*http.Response
	url  URL    // after redirects
	kind string // media type, in lower case; "" if none was declared
	body []byte
	note string // why there is not all of it
}

func (f fetcher) run(ctx context.Context, call *Call) Output {
	approved, ok := call.Plan.Detail.(URL)
	u, err := ParseURL(call.Args.String("url"))
	if err != nil {
		return Output{Err: err.Error()}
	}
	// A secret put into the URL cannot have moved it to another host, nor, as "..",
	// to another folder.
	if !ok || u.origin() != approved.origin() || len(call.Plan.Secrets) > 0 && u.String() != call.Args.String("url") {
		return Output{Err: "the URL is not the one that was approved"}
	}
	header, err := requestHeaders(call.Args.Map("headers"))
	if err != nil {
		return Output{Err: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	p, err := f.fetch(ctx, call.Args.String("method"), u, header, call.Host.Hop)
	if err != nil {
		return Output{Err: call.Host.shown(err.Error(), 0, 500), Interrupted: ctx.Err() != nil}
	}
	out := Output{Bytes: int64(len(p.body)), Text: p.text(call)}
	if p.note != "" {
		out.Notes = []string{p.note}
	}
	if p.StatusCode >= 400 {
		out.Err = strings.TrimSpace(fmt.Sprintf("the server answered %d %s", p.StatusCode, http.StatusText(p.StatusCode)))
	}
	return out
}

// fetch follows redirects. Its errors hold hosts, never paths or queries.
func (f fetcher) fetch(ctx context.Context, method string, u URL, header http.Header, hop func(context.Context, string) error) (*page, error) {
	transport := &http.Transport{
		DialContext:            f.guard.dial, // and Proxy is nil: the environment's would connect for it
		TLSClientConfig:        f.testOnlyTLS,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  30 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	}
	defer transport.CloseIdleConnections()
	for redirects := 0; ; redirects++ {
		if why := u.Refusal(); why != "" {
			return nil, errors.New(why)
		}
		res, err := f.roundTrip(ctx, transport, method, u, header)
		if err != nil {
			return nil, fmt.Errorf("fetching from %s: %s", u.HostKey(), requestError(ctx, err))
		}
		location := res.Header.Get("Location")
		if res.StatusCode/100 != 3 || location == "" {
			defer res.Body.Close()
			return readPage(u, res), nil
		}
		res.Body.Close()
		if redirects == fetchRedirects {
			return nil, fmt.Errorf("%s redirects more than %d times", u.HostKey(), fetchRedirects)
		}
		next, err := u.Resolve(strings.ReplaceAll(location, " ", "%20"))
		if err == nil && next.Refusal() != "" {
			err = errors.New(next.Refusal())
		}
		if err != nil {
			return nil, fmt.Errorf("%s redirects to where nothing is fetched: %w", u.HostKey(), err)
		}
		if hop == nil {
			return nil, errors.New("redirects cannot be decided here")
		}
		if err := hop(ctx, next.String()); err != nil {
			return nil, fmt.Errorf("%s redirects to %s: %w", u.HostKey(), next.HostKey(), err)
		}
		// What the call gave was meant for its host, and over TLS if it was.
		if next.HostKey() != u.HostKey() || u.Scheme == "https" && next.Scheme != "https" {
			header = nil
		}
		u = next
	}
}

func (f fetcher) roundTrip(ctx context.Context, transport *http.Transport, method string, u URL, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil || req.URL.String() != u.String() || req.URL.Host != u.HostKey() {
		return nil, errors.New("the URL is read in two ways")
	}
	req.Header.Set("User-Agent", "picket")
	req.Header.Set("Accept", "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5")
	maps.Copy(req.Header, header)
	return transport.RoundTrip(req)
}

// requestError says what went wrong without what net/http adds.
func requestError(ctx context.Context, err error) string {
	var refused refusedError
	var dns *net.DNSError
	switch {
	case errors.As(err, &refused):
		return refused.Error()
	case ctx.Err() != nil:
		return "no answer in time, or stopped"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	}
	return cleanText(err.Error())
}

func readPage(u URL, res *http.Response) *page {
	kind, _, _ := strings.Cut(strings.ToLower(res.Header.Get("Content-Type")), ";")
	p := &page{Response: res, url: u, kind: strings.TrimSpace(kind)}
	if !p.isText() {
		return p
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, fetchBody+1))
	if err != nil {
		p.note = "the connection ended before the body did"
	} else if len(body) > fetchBody {
		body, p.note = body[:fetchBody], fmt.Sprintf("the body is longer than %d bytes: the rest was not read", fetchBody)
	}
	p.body = body
	return p
}

// isText reports whether the type is one of text, or not declared, and the body
// readable (net/http has taken gzip off).
func (p *page) isText() bool {
	if enc := p.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return false
	}
	if p.kind == "" || strings.HasPrefix(p.kind, "text/") || strings.HasSuffix(p.kind, "+json") || strings.HasSuffix(p.kind, "+xml") {
		return true
	}
	switch strings.TrimPrefix(strings.TrimPrefix(p.kind, "application/"), "x-") {
	case "json", "xml", "javascript", "ecmascript", "ndjson", "jsonlines", "yaml", "toml", "sql", "graphql", "sh":
		return true
	}
	return false
}

// text is what the model gets: a line naming what was read, then its text.
func (p *page) text(call *Call) string {
	maxChars := int(call.Args.Int("max_chars"))
	kind, shown := p.kind, p.isText()
	if kind == "" {
		kind, _, _ = strings.Cut(http.DetectContentType(p.body), ";")
		shown = strings.HasPrefix(kind, "text/")
	}
	utf16 := bytes.HasPrefix(p.body, []byte("\xff\xfe")) || bytes.HasPrefix(p.body, []byte("\xfe\xff"))
	if bytes.IndexByte(p.body[:min(len(p.body), 1024)], 0) >= 0 && !utf16 {
		shown = false
	}
	about := fmt.Sprintf("%s (%d, %s", p.url, p.StatusCode, cleanText(kind))
	if call.Args.String("method") == "HEAD" {
		return about + ")\n\n" + headerText(p.Header)
	}
	if !shown {
		return fmt.Sprintf("%s, %d bytes, encoding %q): not text, not shown", about, p.ContentLength, p.Header.Get("Content-Encoding"))
	}
	text := string(decode(p.body, p.Header.Get("Content-Type")))
	if kind == "text/html" || kind == "application/xhtml+xml" {
		var title string
		if title, text = htmlText([]byte(text), p.url, 8*maxChars+1024); title != "" {
			about += fmt.Sprintf(", %q", title)
		}
	} else {
		text = cleanText(text)
	}
	text = call.Host.clean(text)
	n := 0
	for i := range text {
		if n++; n > maxChars {
			text = text[:i] + fmt.Sprintf("\n[cut after %d characters]", maxChars)
			break
		}
	}
	return about + ")\n\n" + cmp.Or(text, "(no text)")
}

func headerText(h http.Header) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			if name != "Set-Cookie" && b.Len() < 16<<10 {
				fmt.Fprintf(&b, "%s: %s\n", name, cleanText(v))
			}
		}
	}
	return b.String()
}

// decode turns a body into UTF-8: by its byte order mark, the declared charset
// or the page's own declaration; UTF-8 where that fits and nothing else is
// certain.
func decode(body []byte, contentType string) []byte {
	enc, name, certain := charset.DetermineEncoding(body[:min(len(body), 1024)], contentType)
	if name == "utf-8" || !certain && name == "windows-1252" && utf8.Valid(body) {
		return bytes.ToValidUTF8(bytes.TrimPrefix(body, []byte("\ufeff")), []byte("\ufffd"))
	}
	out, err := enc.NewDecoder().Bytes(body)
	if err != nil {
		out = body
	}
	return bytes.ToValidUTF8(out, []byte("\ufffd"))
}
