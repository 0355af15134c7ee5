package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// A chat is a file of JSON lines, chats/NAME.jsonl, that only grows. The first
// line names it; every other line is a message, a label, or a reset, so that a
// process that dies at any moment leaves a chat that can be read:
//
//	{"ts":…,"format":1,"name":…,"workspace":…}
//	{"ts":…,"turn":…,"channel":…,"role":"user","content":…}
//	{"ts":…,"turn":…,"channel":…,"role":"assistant","content":…,"calls":[…]}
//	{"ts":…,"turn":…,"channel":…,"role":"tool","call":…,"content":…}
//	{"ts":…,"labels":[{"label":"untrusted","source":"piped input"}]}
//	{"ts":…,"turn":…,"channel":"api","end":"done","content":…,"usage":{…}}
//	{"ts":…,"reset":true}
//	{"ts":…,"torn":true}
//
// The last says that the line before it was cut off by a crash or a full disk;
// it is the only reason for which a line that does not parse is passed over.
type chatLine struct {
	TS        string      `json:"ts"`
	Format    int         `json:"format,omitempty"`
	Name      string      `json:"name,omitempty"`
	Workspace string      `json:"workspace,omitempty"`
	Turn      string      `json:"turn,omitempty"`
	Channel   string      `json:"channel,omitempty"`
	Role      string      `json:"role,omitempty"`
	Content   string      `json:"content,omitempty"`
	Calls     []ToolCall  `json:"calls,omitempty"`
	Call      string      `json:"call,omitempty"`
	Made      string      `json:"made,omitempty"` // see Result
	Reasoning string      `json:"reasoning,omitempty"`
	Labels    []chatLabel `json:"labels,omitempty"`
	Reset     bool        `json:"reset,omitempty"`
	Torn      bool        `json:"torn,omitempty"`

	// Of the line that ends a turn of another app:
	End     string   `json:"end,omitempty"`
	NotDone []string `json:"not_done,omitempty"`
	Cut     bool     `json:"cut,omitempty"` // at a token limit
	Usage   *Usage   `json:"usage,omitempty"`
}

// How a turn ended.
const (
	endDone    = "done"
	endFailed  = "failed"
	endStopped = "stopped"
)

// chatLabel is one label of a chat and where it came from.
type chatLabel struct {
	Label  string `json:"label"` // private, untrusted
	Source string `json:"source"`
}

const (
	maxChatName  = 100      // characters
	maxChatLine  = 16 << 20 // bytes
	chatFormat   = 1
	apiNamespace = "api" // the folder of chats that other apps began
)

// chatStore is the folder of all chats.
type chatStore struct {
	dir    string
	redact func(string) string
	now    func() time.Time
}

// A chat is one opened chat. It is locked against every other turn, here and in
// other processes, until close.
type chat struct {
	store    *chatStore
	Name     string // as shown; those of other apps start with "api:"
	file     *os.File
	unlock   func()
	Messages []chatLine // since the last reset
	Sources  []chatLabel
	end      chatLine // of the last turn that another app had
	torn     bool
	New      bool
}

// checkChatName says what is wrong with the name of a chat.
func checkChatName(name string) error {
	if n := utf8.RuneCountInString(name); n == 0 || n > maxChatName {
		return fmt.Errorf("a chat's name has 1 to %d characters", maxChatName)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("a chat's name must be UTF-8")
	}
	for _, r := range name {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Bidi_Control, r) || r == utf8.RuneError {
			return fmt.Errorf("the chat name %q holds a control character", name)
		}
	}
	if strings.TrimSpace(name) == "" {
		return fmt.Errorf("a chat's name must not be blank")
	}
	return nil
}

// chatMapping folds what looks the same to one spelling: no case, NFC (UTS 46,
// the mapping for look-up). Its errors are about host names and do not matter.
var chatMapping = idna.New(idna.MapForLookup(), idna.StrictDomainName(false))

// chatFileName is the file of a chat, without its folder. Two names that map to
// the same spelling are the same chat.
func chatFileName(name string) string {
	mapped, err := chatMapping.ToUnicode(name)
	if err != nil || mapped == "" {
		mapped = strings.ToLower(name)
	}
	var b strings.Builder
	for i := range len(mapped) {
		c := mapped[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	s := b.String()
	if len(s) > 100 {
		sum := sha256.Sum256([]byte(s))
		s = s[:60] + "~" + hex.EncodeToString(sum[:8])
	}
	return s + ".jsonl"
}

// path returns the file of a chat; "api:NAME" is in the name space of other apps.
func (s *chatStore) path(name string) (string, error) {
	folder := s.dir
	if rest, ok := strings.CutPrefix(name, apiNamespace+":"); ok {
		folder, name = filepath.Join(folder, apiNamespace), rest
	}
	if err := checkChatName(name); err != nil {
		return "", err
	}
	return filepath.Join(folder, chatFileName(name)), nil
}

// errChatBusy means that another turn of the chat is running.
var errChatBusy = errors.New("another turn of this chat is running")

// open locks and reads a chat, or makes it. With wait it waits for a running
// turn until ctx ends, otherwise it returns errChatBusy.
func (s *chatStore) open(ctx context.Context, name, workspace string, wait bool) (*chat, error) {
	path, err := s.path(name)
	if err != nil {
		return nil, err
	}
	if err := ensureDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx, strings.TrimSuffix(path, ".jsonl")+".lock", wait)
	if err != nil {
		return nil, err
	}
	c := &chat{store: s, Name: name, unlock: unlock}
	if err := c.load(path, workspace); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// errTooManyChats means that other apps have as many chats as they may.
var errTooManyChats = errors.New("there are too many chats of other apps")

// openApp opens a chat of other apps without waiting, or makes it if there are
// not limit of them yet (0 is no limit). That is one step for every process.
func (s *chatStore) openApp(ctx context.Context, name, workspace string, limit int) (*chat, error) {
	name = apiNamespace + ":" + name
	path, err := s.path(name)
	if err != nil {
		return nil, err
	}
	folder := filepath.Dir(path)
	if err := ensureDir(folder); err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx, filepath.Join(folder, ".lock"), true) // no chat has this file
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) && limit > 0 {
		n, err := s.countApp()
		if err != nil {
			return nil, err
		}
		if n >= limit {
			return nil, errTooManyChats
		}
	}
	return s.open(ctx, name, workspace, false)
}

// countApp counts the chats of other apps.
func (s *chatStore) countApp() (n int, err error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, apiNamespace))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".jsonl") {
			n++
		}
	}
	return n, err
}

func (s *chatStore) lock(ctx context.Context, path string, wait bool) (func(), error) {
	k, err := openLock(path)
	if err != nil {
		return nil, err
	}
	for err = k.TryLock(); wait && errors.Is(err, errLockWait); {
		err = k.Lock(ctx) // it gives up after a while; the turn before may take longer
	}
	if err == nil {
		return func() { k.Unlock(); k.Close() }, nil
	}
	k.Close()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if errors.Is(err, errLockWait) {
		return nil, errChatBusy
	}
	return nil, err
}

func (c *chat) load(path, workspace string) error {
	var err error
	c.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|noFollow, 0o600)
	if err != nil {
		return err
	}
	lines, torn, err := readChat(c.file, path)
	if err != nil {
		return err
	}
	c.torn = torn
	if len(lines) == 0 {
		c.New = true
		return c.append(chatLine{Format: chatFormat, Name: c.Name, Workspace: workspace})
	}
	for _, l := range lines[1:] {
		c.apply(l)
	}
	return nil
}

// readChat reads every line of a chat. torn means that the file does not end
// with a line feed. An error names the file and the line.
func readChat(r io.Reader, path string) (lines []chatLine, torn bool, err error) {
	br := bufio.NewReaderSize(r, 64<<10)
	var held error // a line that did not parse, forgiven if the next says torn
	for n := 1; ; n++ {
		raw, err := readBounded(br, maxChatLine)
		if err == io.EOF && len(raw) == 0 {
			break
		}
		if err != nil && err != io.EOF {
			return nil, false, fmt.Errorf("chat file %q, line %d: %v", path, n, err)
		}
		var l chatLine
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		bad := d.Decode(&l)
		if bad == nil && n == 1 && l.Format != chatFormat {
			bad = fmt.Errorf("format %d is not known to this version", l.Format)
		}
		switch {
		case err == io.EOF && bad != nil:
			return lines, true, held
		case bad != nil && held == nil && n > 1:
			held = fmt.Errorf("chat file %q, line %d: %v", path, n, bad)
			continue
		case bad != nil:
			return nil, false, fmt.Errorf("chat file %q, line %d: %v", path, n, bad)
		case held != nil && !l.Torn:
			return nil, false, held
		}
		held = nil
		if !l.Torn {
			lines = append(lines, l)
		}
		if err == io.EOF {
			torn = true
			break
		}
	}
	return lines, torn, held
}

// readBounded reads up to a line feed, which it drops; more than limit bytes is an
// error. At the end it returns what is left with io.EOF.
func readBounded(r *bufio.Reader, limit int) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > limit {
			return nil, fmt.Errorf("a line longer than %d bytes", limit)
		}
		out = append(out, part...)
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == nil {
			out = out[:len(out)-1]
		}
		return out, err
	}
}

func (c *chat) apply(l chatLine) {
	if l.Reset {
		c.Messages, c.Sources, c.end = nil, nil, chatLine{}
		return
	}
	for _, lb := range l.Labels {
		if !slices.Contains(c.Sources, lb) {
			c.Sources = append(c.Sources, lb)
		}
	}
	if l.Role != "" {
		c.Messages = append(c.Messages, l)
	}
	if l.End != "" {
		c.end = l
	}
}

// append writes lines and takes them in. What fails to be written is not part
// of the chat.
func (c *chat) append(lines ...chatLine) error {
	var b bytes.Buffer
	ts := c.store.now().UTC().Format(timeLayout)
	if c.torn {
		fmt.Fprintf(&b, "\n{\"ts\":%q,\"torn\":true}\n", ts)
	}
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for i := range lines {
		l := &lines[i]
		l.TS = ts
		l.Content, l.Reasoning = c.store.redact(l.Content), c.store.redact(l.Reasoning)
		l.NotDone = slices.Clone(l.NotDone)
		for j := range l.NotDone {
			l.NotDone[j] = c.store.redact(l.NotDone[j])
		}
		l.Calls = slices.Clone(l.Calls)
		for j := range l.Calls {
			l.Calls[j].Function.Arguments = redactJSON(l.Calls[j].Function.Arguments, c.store.redact)
		}
		if err := e.Encode(l); err != nil {
			return err
		}
	}
	c.torn = true // until the whole has been written
	if _, err := c.file.Write(b.Bytes()); err != nil {
		return fmt.Errorf("%w: the chat %q: %v", errAudit, c.Name, err)
	}
	c.torn = false
	for _, l := range lines {
		if l.Format == 0 {
			c.apply(l)
		}
	}
	return nil
}

// labels are the labels of the chat as the policy sees them.
func (c *chat) labels() Labels {
	var l Labels
	for _, s := range c.Sources {
		l.Private = l.Private || s.Label == "private"
		l.Untrusted = l.Untrusted || s.Label == "untrusted"
	}
	return l
}

// label sets labels, once for each source, and returns those that are new.
func (c *chat) label(add ...chatLabel) ([]chatLabel, error) {
	var fresh []chatLabel
	for _, l := range add {
		if !slices.Contains(c.Sources, l) && !slices.Contains(fresh, l) {
			fresh = append(fresh, l)
		}
	}
	if len(fresh) == 0 {
		return nil, nil
	}
	return fresh, c.append(chatLine{Labels: fresh})
}

// close lets the next turn in. What was written is synced first.
func (c *chat) close() error {
	var err error
	if c.file != nil {
		err = errors.Join(c.file.Sync(), c.file.Close())
	}
	c.unlock()
	return err
}

// chatInfo is one line of "picket chats".
type chatInfo struct {
	Name, Workspace string
	Changed         time.Time
	Messages        int
	Labels          Labels
	Err             error
}

// list returns all chats, the newest first. A damaged one is listed with its error.
func (s *chatStore) list() ([]chatInfo, error) {
	var out []chatInfo
	for _, sub := range []string{"", apiNamespace} {
		entries, err := os.ReadDir(filepath.Join(s.dir, sub))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".jsonl") {
				continue
			}
			c, info := &chat{}, chatInfo{Name: strings.TrimSuffix(e.Name(), ".jsonl")}
			path := filepath.Join(s.dir, sub, e.Name())
			if st, err := e.Info(); err == nil {
				info.Changed = st.ModTime()
			}
			lines, err := readChatFile(path)
			if info.Err = err; err == nil && len(lines) > 0 {
				info.Name, info.Workspace = lines[0].Name, lines[0].Workspace
				for _, l := range lines[1:] {
					c.apply(l)
				}
			}
			info.Messages, info.Labels = len(c.Messages), c.labels()
			out = append(out, info)
		}
	}
	slices.SortFunc(out, func(a, b chatInfo) int { return b.Changed.Compare(a.Changed) })
	return out, nil
}

func readChatFile(path string) ([]chatLine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, _, err := readChat(f, path)
	return lines, err
}

var errNoChat = errors.New("there is no chat")

// read returns the lines of a chat without locking it.
func (s *chatStore) read(name string) ([]chatLine, error) {
	path, err := s.path(name)
	if err != nil {
		return nil, err
	}
	lines, err := readChatFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w %q", errNoChat, name)
	}
	return lines, err
}

// remove deletes a chat that has no running turn.
func (s *chatStore) remove(ctx context.Context, name string) error {
	path, err := s.path(name)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("%w %q", errNoChat, name)
	}
	unlock, err := s.lock(ctx, strings.TrimSuffix(path, ".jsonl")+".lock", false)
	if err != nil {
		return err
	}
	defer unlock()
	return os.Remove(path)
}

// last returns the newest chat of the owner's that began in a workspace.
func (s *chatStore) last(workspace string) (string, error) {
	all, err := s.list()
	if err != nil {
		return "", err
	}
	for _, c := range all {
		if c.Err == nil && c.Workspace == workspace && !strings.HasPrefix(c.Name, apiNamespace+":") {
			return c.Name, nil
		}
	}
	return "", fmt.Errorf("there is no chat of the workspace %q to continue", workspace)
}
