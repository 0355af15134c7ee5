package main

// The vault: the only file of picket's that holds secrets. It is
//
//	picket-vault/1 LF
//	{"kdf":"key","salt":BASE64,"generation":N} LF
//	32 bytes: SHA-256 of the two lines
//	32 bytes: HMAC-SHA256 of all before it, by which a wrong key is known
//	24 bytes: nonce
//	XChaCha20-Poly1305 of the entries, with all before it as associated data
//
// The entries are JSON, padded with blanks so that neither names nor their number
// show. Both keys come by HKDF-SHA256 (RFC 5869) from a master key and the salt,
// which is new with each write. The master key is 32 random bytes, or Argon2id
// (RFC 9106) of a passphrase.
//
// A change is recorded, then made under vault.lock by replacing the file, and then
// audit.state learns its generation. So the file is never behind the state, unless
// an older one was put back; readers, who take no lock, read the state first.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/chacha20poly1305"
)

const (
	vaultName    = "vault.enc"
	vaultKeyName = "vault.key"
	vaultMagic   = "picket-vault/1"
	vaultPad     = 4 << 10
	maxVault     = 256 << 10
	maxVaultHead = 512     // the two lines
	maxSecret    = 8 << 10 // bytes of a value; looking for one takes up to 3 KB for each
)

var (
	errVaultHead   = errors.New("the vault's header is damaged")
	errVaultNewer  = errors.New("the vault was written by a newer picket")
	errVaultKey    = errors.New("the vault has another key or passphrase than this one")
	errVaultBody   = errors.New("the vault's content is damaged")
	errVaultOlder  = errors.New("the vault is an older file that was put back")
	errVaultLocked = errors.New("the vault needs its passphrase") // by Unlock
	errSecretName  = errors.New("the name of a secret is 1 to 64 letters, digits, _, . or -")
	secretName     = lazyRegexp(`^[A-Za-z0-9_.-]{1,64}$`)
)

// A vaultEntry is one secret. Without Hosts and Tools it is bound to nothing.
type vaultEntry struct {
	Name    string    `json:"name"`
	Value   string    `json:"value"`
	Hosts   []string  `json:"hosts,omitempty"` // that it may go to, as in an allow-list
	Tools   []string  `json:"tools,omitempty"` // that may use it
	Short   bool      `json:"short,omitempty"` // the owner knows that it is too short to be redacted well
	Created time.Time `json:"created"`
	Changed time.Time `json:"changed"`
}

// check says what is wrong with an entry; the value is not in the error.
func (e *vaultEntry) check() error {
	switch {
	case !secretName().MatchString(e.Name):
		return errSecretName
	case strings.TrimSpace(e.Value) == "":
		return errors.New("the value is empty")
	case len(e.Value) > maxSecret:
		return fmt.Errorf("the value is longer than %d bytes", maxSecret)
	case !utf8.ValidString(e.Value) || strings.ContainsRune(e.Value, 0):
		return errors.New("the value is not UTF-8 text without NUL: encode it, in base64 for example")
	}
	return nil
}

// A vaultHeader is the second line, in exactly the form that json.Marshal gives it.
type vaultHeader struct {
	KDF        string `json:"kdf"`               // key or argon2id
	Time       uint32 `json:"time,omitempty"`    // of Argon2id: passes,
	Memory     uint32 `json:"memory,omitempty"`  // KiB
	Threads    uint8  `json:"threads,omitempty"` // and lanes
	Salt       []byte `json:"salt"`
	Generation uint64 `json:"generation"` // from 1, more with each write
}

// argonHeader has the second parameters that RFC 9106, section 4, recommends.
var argonHeader = vaultHeader{KDF: "argon2id", Time: 3, Memory: 64 << 10, Threads: 4}

// valid bounds what a header can make its reader spend before the key is known to
// be right.
func (h *vaultHeader) valid() bool {
	if len(h.Salt) != 16 || h.Generation == 0 {
		return false
	}
	return h.KDF == "key" && h.Time == 0 && h.Memory == 0 && h.Threads == 0 ||
		h.KDF == "argon2id" && h.Time >= 1 && h.Time <= 10 && h.Threads >= 1 && h.Threads <= 16 &&
			h.Memory >= 8*uint32(h.Threads) && h.Memory <= 256<<10
}

// vaultKeys makes of a master key what checks one file and what encrypts it.
func vaultKeys(master, salt []byte) (check hash.Hash, aead cipher.AEAD) {
	k, err := hkdf.Key(sha256.New, master, salt, vaultMagic, 64)
	if err == nil {
		aead, err = chacha20poly1305.NewX(k[32:])
	}
	if err != nil {
		panic(err) // both lengths are constant
	}
	return hmac.New(sha256.New, k[:32]), aead
}

// sealVault makes a file.
func sealVault(h vaultHeader, master []byte, list []vaultEntry) ([]byte, error) {
	line, err := json.Marshal(h)
	text, err2 := json.Marshal(list)
	text = append(text, bytes.Repeat([]byte(" "), vaultPad-len(text)%vaultPad)...)
	switch {
	case err != nil || err2 != nil:
		return nil, errors.Join(err, err2)
	case len(text) > maxVault-vaultPad:
		return nil, fmt.Errorf("the vault is full: it holds at most %d bytes", maxVault-vaultPad)
	}
	check, aead := vaultKeys(master, h.Salt)
	b := fmt.Appendf(nil, "%s\n%s\n", vaultMagic, line)
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	check.Write(b)
	b = check.Sum(b)
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce)
	b = append(b, nonce...)
	return aead.Seal(b, nonce, text, b), nil
}

// unsealVault reads a file. It asks for the master key once it knows that the
// header is whole and of this version.
func unsealVault(b []byte, master func(vaultHeader) ([]byte, error)) (h vaultHeader, list []vaultEntry, err error) {
	lines := bytes.SplitN(b[:min(len(b), maxVaultHead)], []byte("\n"), 3)
	if len(lines) < 3 {
		return h, nil, errVaultHead
	}
	end := len(lines[0]) + len(lines[1]) + 2
	checked := end + sha256.Size
	nonce := checked + sha256.Size
	body := nonce + chacha20poly1305.NonceSizeX
	json.Unmarshal(lines[1], &h) // what is no header has another form again
	again, _ := json.Marshal(h)
	switch sum := sha256.Sum256(b[:end]); {
	case len(b) < checked || !bytes.Equal(sum[:], b[end:checked]):
		return h, nil, errVaultHead
	case string(lines[0]) != vaultMagic && bytes.HasPrefix(lines[0], []byte("picket-vault/")):
		return h, nil, errVaultNewer
	case string(lines[0]) != vaultMagic || !bytes.Equal(again, lines[1]) || !h.valid():
		return h, nil, errVaultHead
	case len(b) < body:
		return h, nil, errVaultBody
	}
	key, err := master(h)
	if err != nil {
		return h, nil, err
	}
	check, aead := vaultKeys(key, h.Salt)
	check.Write(b[:checked])
	if !hmac.Equal(check.Sum(nil), b[checked:nonce]) {
		return h, nil, errVaultKey
	}
	text, err := aead.Open(nil, b[nonce:body], b[body:], b[:body])
	if err != nil || json.Unmarshal(text, &list) != nil {
		return h, nil, errVaultBody
	}
	return h, list, nil
}

// vaultOptions say where the vault is and what may be done with it.
type vaultOptions struct {
	Data, Config string              // folders
	Key          string              // as in PICKET_VAULT_KEY; "" is the key file
	Log          *Log                // for changes; nil if there are to be none
	Run          string              // of the process, for the records
	Changed      func([]secretValue) // called with all that must not be shown, when the file was read
}

// A vault is the file and what was read of it. It may be used by several
// goroutines, and sees what other processes do to the file.
type vault struct {
	path string

	mu      sync.Mutex
	opt     vaultOptions
	f       *os.File // the file that was read, kept open so that no other gets its id
	id      fileID
	known   bool        // what follows is what it holds
	header  vaultHeader // KDF is "" if there is no vault
	entries []vaultEntry

	phrase string
	salt   []byte // that master was made with
	master []byte
}

// openVault reads the vault, if there is one, and makes nothing. The vault can be
// used even with an error: all that it does tries again, or returns that error.
func openVault(o vaultOptions) (*vault, error) {
	v := &vault{path: filepath.Join(o.Data, vaultName), opt: o}
	return v, v.Refresh()
}

// Refresh reads the file again if it is not the one that was read before; else it
// costs one look at its name.
func (v *vault) Refresh() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.refresh()
}

// Unlock opens a vault that has a passphrase. If there is no vault, the first write
// makes one with it.
func (v *vault) Unlock(phrase string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.phrase, v.salt, v.known = phrase, nil, false
	err := v.refresh()
	if err != nil {
		v.phrase = ""
	}
	return err
}

// refresh reads the file again if need be; its caller holds the mutex.
func (v *vault) refresh() error {
	id, _, err := statName(v.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if v.known && id == v.id {
		return nil
	}
	v.f.Close()
	v.f, v.id, v.known, v.header, v.entries = nil, fileID{}, false, vaultHeader{}, nil
	if err := v.read(); err != nil {
		return err
	}
	v.known = true
	list := []secretValue{{Value: v.phrase, Mark: "vault passphrase"}, {Value: string(v.master), Mark: "vault key"},
		{Value: base64.StdEncoding.EncodeToString(v.master), Mark: "vault key"}}
	for _, e := range v.entries {
		list = append(list, secretValue{Name: e.Name, Value: e.Value})
	}
	if v.opt.Changed != nil {
		v.opt.Changed(list)
	}
	return nil
}

func (v *vault) read() error {
	st, err := stateOf(v.opt.Data)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		if err = checkOwn(v.path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	if v.f, err = os.OpenFile(v.path, os.O_RDONLY|noFollow, 0); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(v.f, maxVault)) // a longer one is damaged
	if err == nil {
		v.id, err = idOf(v.f)
	}
	if reopenLogs { // there, an open file cannot be replaced
		v.f.Close()
	}
	if err != nil {
		return err
	}
	h, list, err := unsealVault(b, v.masterKey)
	if err == nil && h.Generation < st.Vault {
		list, err = nil, errVaultOlder
	}
	v.header, v.entries = h, list
	return err
}

// masterKey returns the key for a file with this header. One that was made for the
// same salt is not made again.
func (v *vault) masterKey(h vaultHeader) (key []byte, err error) {
	switch {
	case h.KDF == "key":
		v.master, err = v.readKey()
		v.salt = nil
	case v.phrase == "":
		return nil, errVaultLocked
	case !bytes.Equal(v.salt, h.Salt):
		v.salt, v.master = h.Salt, argon2.IDKey([]byte(v.phrase), h.Salt, h.Time, h.Memory, h.Threads, 32)
	}
	return v.master, err
}

func (v *vault) keyFile() string { return filepath.Join(v.opt.Config, vaultKeyName) }

// readKey returns the key of PICKET_VAULT_KEY or the key file.
func (v *vault) readKey() ([]byte, error) {
	text, where := cmp.Or(v.opt.Key, "file:"+v.keyFile()), "PICKET_VAULT_KEY"
	if path, ok := strings.CutPrefix(text, "file:"); ok {
		err := checkOwn(path)
		var b []byte
		if err == nil {
			b, err = readSmallFile(path)
		}
		if err != nil {
			return nil, fmt.Errorf("the key of the vault: %w", err)
		}
		text, where = strings.TrimSpace(string(b)), path
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("the key of the vault must be 32 bytes in base64, which %q does not hold", where)
	}
	return key, nil
}

// makeKey makes the key file, unless there is one: it may be of several vaults.
func (v *vault) makeKey() error {
	key := make([]byte, 32)
	rand.Read(key)
	path := v.keyFile() + "." + rand.Text()
	text := base64.StdEncoding.EncodeToString(key) + "\n"
	if err := errors.Join(ensureDir(v.opt.Config), writeNew(path, []byte(text))); err != nil {
		return err
	}
	defer os.Remove(path)
	if err := os.Link(path, v.keyFile()); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(v.opt.Config)
}

// current returns the entries of the file as it is now, in the order of their
// names. They are not to be changed.
func (v *vault) current() ([]vaultEntry, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.refresh(); err != nil {
		return nil, err
	}
	return v.entries, nil
}

func findEntry(list []vaultEntry, name string) int {
	return slices.IndexFunc(list, func(e vaultEntry) bool { return e.Name == name })
}

// Lookup returns the entry of a name.
func (v *vault) Lookup(name string) (vaultEntry, bool, error) {
	list, err := v.current()
	if i := findEntry(list, name); i >= 0 {
		return list[i], true, nil
	}
	return vaultEntry{}, false, err
}

// Set adds an entry or replaces that of the same name. Of a replaced one Created
// stays, and so do the bindings if e has none.
func (v *vault) Set(ctx context.Context, e vaultEntry) error {
	if err := e.check(); err != nil {
		return err
	}
	return v.change(ctx, "set", e)
}

// Delete removes an entry, which must be there.
func (v *vault) Delete(ctx context.Context, name string) error {
	return v.change(ctx, "delete", vaultEntry{Name: name})
}

// edited returns the entries with one change made in them.
func (v *vault) edited(op string, e vaultEntry) ([]vaultEntry, error) {
	list := slices.Clone(v.entries)
	e.Changed = time.Now().UTC().Truncate(time.Second)
	e.Created = e.Changed
	if i := findEntry(list, e.Name); i >= 0 {
		if e.Created = list[i].Created; len(e.Hosts)+len(e.Tools) == 0 {
			e.Hosts, e.Tools = list[i].Hosts, list[i].Tools
		}
		list = slices.Delete(list, i, i+1)
	} else if op == "delete" {
		return nil, fmt.Errorf("there is no secret %q in the vault", e.Name)
	}
	if op == "set" {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b vaultEntry) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// change makes one change of the newest entries: it is recorded, the file is
// replaced, and the state learns of it. After a crash in between the file is the
// old or the new one; the number in the record tells which.
func (v *vault) change(ctx context.Context, op string, e vaultEntry) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.opt.Log == nil {
		return fmt.Errorf("%w: the vault was opened for reading", errAudit)
	}
	lock, err := openLock(filepath.Join(v.opt.Data, "vault.lock"))
	if err != nil {
		return err
	}
	defer lock.Close() // which gives it back
	if err := lock.Lock(ctx); err != nil {
		return err
	}
	if err := v.refresh(); err != nil {
		return err
	}
	list, err := v.edited(op, e)
	if err != nil {
		return err
	}
	h, err := v.nextHeader()
	if err != nil {
		return err
	}
	master, err := v.masterKey(h)
	if err != nil {
		return err
	}
	b, err := sealVault(h, master, list)
	if err == nil {
		err = v.opt.Log.Append(ctx, true, Record{Run: v.opt.Run, Channel: channelCLI, Body: vaultRecord{op, e.Name, h.Generation}})
	}
	if err == nil {
		err = writeFileAtomic(v.path, b)
	}
	if err == nil {
		err = v.opt.Log.knowVault(context.WithoutCancel(ctx), h.Generation)
	}
	return errors.Join(err, v.refresh())
}

// nextHeader returns the header for the next write. The first one of all says how
// the vault is opened ever after.
func (v *vault) nextHeader() (vaultHeader, error) {
	h := v.header
	st, err := stateOf(v.opt.Data) // which also knows of a vault that was removed
	switch {
	case err != nil:
	case h.KDF == "key" && v.phrase != "":
		err = errors.New("there is a vault already, which a key opens")
	case h.KDF == "" && v.phrase != "":
		h = argonHeader
	case h.KDF == "":
		if h.KDF = "key"; v.opt.Key == "" {
			err = v.makeKey()
		}
	}
	h.Generation, h.Salt = max(h.Generation, st.Vault)+1, make([]byte, 16)
	rand.Read(h.Salt)
	return h, err
}

// Close lets go of the file.
func (v *vault) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = false
	v.f.Close()
	return nil
}
