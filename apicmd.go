package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The keys of the server, and the commands that speak to it or about it.

// servesSuffix is that of the file beside a run's lock in which a server says
// where it listens.
const servesSuffix = ".serve"

// newToken makes a key of the shape that the redactor knows.
func newToken() string { return "picket_" + rand.Text() + rand.Text() }

// ownerToken reads the token of the owner's API. With create it is made if there
// is none; it then stays.
func ownerToken(dir string, create bool) (string, error) {
	path := filepath.Join(dir, "owner.token")
	if create {
		f, err := createFile(path)
		switch {
		case err == nil:
			_, err = f.WriteString(newToken() + "\n")
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				os.Remove(path)
				return "", err
			}
		case !errors.Is(err, fs.ErrExist):
			return "", err
		}
	}
	if err := checkOwn(path); err != nil {
		return "", err
	}
	data, err := readSmallFile(path)
	token := strings.TrimSpace(string(data))
	if err == nil && apiKey().FindString(token) != token {
		err = fmt.Errorf("%q does not hold a token: remove it, and picket serve makes a new one", path)
	}
	return token, err
}

func keyFile(dir string) string { return filepath.Join(dir, "api.key") }

// readKeyDigest reads the digest of the key for other apps. It is read at each
// request, so that a new key counts at once.
func readKeyDigest(dir string) (digest [sha256.Size]byte, err error) {
	data, err := readSmallFile(keyFile(dir))
	if err != nil {
		return digest, err
	}
	n, err := hex.Decode(digest[:], bytes.TrimSpace(data[:min(len(data), 2*sha256.Size+1)]))
	if err == nil && n != len(digest) {
		err = fmt.Errorf("%q does not hold a digest", keyFile(dir))
	}
	return digest, err
}

func hasKey(dir string) bool {
	_, err := readKeyDigest(dir)
	return err == nil
}

// locked runs f while no other picket process changes what can be switched.
func (a *app) locked(ctx context.Context, f func() error) error {
	k, err := openLock(filepath.Join(a.folders.Data, "switches.lock"))
	if err != nil {
		return err
	}
	defer k.Close()
	if err := k.Lock(ctx); err != nil {
		return err
	}
	defer k.Unlock()
	return f()
}

// newKey replaces the key for other apps. Only its digest is kept.
func (a *app) newKey(ctx context.Context) (key string, err error) {
	key = newToken()
	err = a.locked(ctx, func() error {
		if err := a.log.Append(ctx, true, Record{Run: a.run, Body: apiRecord{"key", map[string]int{}}}); err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(key))
		return writeFileAtomic(keyFile(a.folders.Data), []byte(hex.EncodeToString(sum[:])+"\n"))
	})
	if err != nil {
		return "", err
	}
	return key, nil
}

// switchTo changes what can be switched while picket runs, recorded first.
func (a *app) switchTo(ctx context.Context, key, value string) error {
	return a.locked(ctx, func() error {
		sw, err := a.cfg.switches()
		if err != nil {
			return err
		}
		old := map[string]string{"sentinel.mode": sw.Mode, "openai_api.enabled": fmt.Sprint(sw.API), "openai_api.allow_memory": fmt.Sprint(sw.AllowMemory)}[key]
		recs := []Record{{Run: a.run, Body: configRecord{key, old, value}}}
		if key == "openai_api.enabled" {
			recs = append(recs, Record{Run: a.run, Body: apiRecord{map[string]string{"true": "on", "false": "off"}[value], map[string]int{}}})
		}
		if err := a.log.Append(ctx, true, recs...); err != nil {
			return err
		}
		_, _, err = a.cfg.setSwitch(key, value)
		return err
	})
}

// apiCommand is "picket api".
func (p *program) apiCommand(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return usageErrorf("api takes on, off, key or status")
	}
	switch args[0] {
	case "on", "off":
		return p.withData(ctx, false, func(a *app) error {
			err := a.switchTo(ctx, "openai_api.enabled", fmt.Sprint(args[0] == "on"))
			if err == nil && args[0] == "on" && !hasKey(a.folders.Data) {
				p.notef("no key has been made yet: picket api key")
			}
			return err
		})
	case "key":
		return p.withData(ctx, false, func(a *app) error {
			key, err := a.newKey(ctx)
			if err != nil {
				return err
			}
			p.notef("this is shown once and not kept; an older key no longer works")
			return p.print(key + "\n")
		})
	case "status":
		return p.apiStatus()
	}
	return usageErrorf("api takes on, off, key or status, not %q", args[0])
}

func (p *program) apiStatus() error {
	a, err := p.settings(taskFlags{})
	if err != nil {
		return err
	}
	sw, err := a.cfg.switches()
	if err != nil {
		return err
	}
	chats, err := a.chatStore().countApp()
	if err != nil {
		return err
	}
	word := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	serving, servers := "no (picket serve)", a.servers()
	if len(servers) > 0 {
		serving = "http://" + strings.Join(slices.Concat(servers...), ", http://")
	}
	at := append(slices.Clone(a.cfg.Server.Listen), "")[0]
	if len(servers) > 0 {
		at = servers[0][0]
	}
	return p.print("the API is       " + word(sw.API, "on", "off (picket api on)") + "\n" +
		"its key          " + word(hasKey(a.folders.Data), "set", "not made yet (picket api key)") + "\n" +
		"base URL         http://" + printable(at) + "/v1\n" +
		"serving          " + printable(serving) + "\n" +
		"memory for apps  " + word(sw.AllowMemory, "allowed", "kept from them") + "\n" +
		fmt.Sprintf("chats            %d of %d\n", chats, a.cfg.OpenAIAPI.MaxChats))
}

// servers are the addresses of the servers that run on this data folder.
func (a *app) servers() [][]string {
	var out [][]string
	names, _ := filepath.Glob(filepath.Join(a.folders.Data, "runs", "*"+servesSuffix))
	for _, name := range names {
		var at []string
		data, err := readSmallFile(name)
		if err == nil && json.Unmarshal(data, &at) == nil && len(at) > 0 && !runGone(a.folders.Data, strings.TrimSuffix(filepath.Base(name), servesSuffix)) {
			out = append(out, at)
		}
	}
	return out
}

// stopCommand is "picket stop".
func (p *program) stopCommand(ctx context.Context) error {
	a, err := p.settings(taskFlags{})
	if err != nil {
		return err
	}
	servers := a.servers()
	if len(servers) == 0 {
		return p.print("no server is running\n")
	}
	token, err := ownerToken(a.folders.Data, false)
	if err != nil {
		return err
	}
	for _, at := range servers {
		n, serr := postStopTo(ctx, at[0], token)
		if serr != nil {
			err = errors.Join(err, fmt.Errorf("the server on %s was not stopped: %v", at[0], serr))
			continue
		}
		if perr := p.print(fmt.Sprintf("%s: turns stopped: %d\n", printable(at[0]), n)); perr != nil {
			return perr
		}
	}
	return err
}

func postStopTo(ctx context.Context, at, token string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at+"/api/stop", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, // and no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var out struct{ Stopped int }
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("it answered %d", resp.StatusCode)
	}
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	return out.Stopped, err
}
