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
// The entries are JSON, with blanks after it up to a multiple of 4 KiB, so that
// neither names nor their number show. Both keys come by HKDF-SHA256 (RFC 5869)
// from a master key and the salt, which is new with each write, as the nonce is.
// The master key is 32 random bytes (PICKET_VAULT_KEY or the key file), or
// Argon2id (RFC 9106) of a passphrase and the salt.
//
// A change is recorded, then made under vault.lock by replacing the file, and then
// audit.state learns its generation. So the file is never behind the state, unless
// somebody put an older one back; readers, who take no lock, read the state first.

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

// A vaultError is what is wrong with the file as such.
type vaultError string

func (e vaultError) Error() string { return string(e) }

const (
	errVaultHead  = vaultError("the vault's header is damaged")
	errVaultNewer = vaultError("the vault was written by a newer picket")
	errVaultKey   = vaultError("the vault has another key or passphrase than this one")
	errVaultBody  = vaultError("the vault's content is damaged")
	errVaultOlder = vaultError("the vault is an older file that was put back")
)

var (
	errVaultLocked = errors.New("the vault needs its passphrase") // by Unlock
	errSecretName  = errors.New("the name of a secret is 1 to 64 letters, digits, _, . or -")
	secretName     = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
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
	case !secretName.MatchString(e.Name):
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
	if h.KDF == "key" {
		return h.Time == 0 && h.Memory == 0 && h.Threads == 0 && len(h.Salt) == 16 && h.Generation > 0
	}
	return h.KDF == "argon2id" && h.Time >= 1 && h.Time <= 10 && h.Threads >= 1 && h.Threads <= 16 &&
		h.Memory >= 8*uint32(h.Threads) && h.Memory <= 256<<10 && len(h.Salt) == 16 && h.Generation > 0
}

// vaultKeys makes of a master key those of one file: for the HMAC and for what is
// encrypted.
func vaultKeys(master, salt []byte) (check, payload []byte) {
	k, err := hkdf.Key(sha256.New, master, salt, vaultMagic, 64)
	if err != nil {
		panic(err) // so short a key can always be made
	}
	return k[:32], k[32:]
}

func vaultMAC(key, b []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(b)
	return m.Sum(nil)
}

// sealVault makes a file.
func sealVault(h vaultHeader, master []byte, list []vaultEntry) ([]byte, error) {
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	if text = append(text, bytes.Repeat([]byte(" "), vaultPad-len(text)%vaultPad)...); len(text) > maxVault-vaultPad {
		return nil, fmt.Errorf("the vault is full: it holds at most %d bytes", maxVault-vaultPad)
	}
	b := fmt.Appendf(nil, "%s\n%s\n", vaultMagic, line)
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	check, payload := vaultKeys(master, h.Salt)
	nonce := make([]byte, chacha20poly1305.NonceSizeX)
	rand.Read(nonce)
	b = append(append(b, vaultMAC(check, b)...), nonce...)
	aead, err := chacha20poly1305.NewX(payload)
	if err != nil {
		return nil, err
	}
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
	check := end + sha256.Size
	nonce := check + sha256.Size
	body := nonce + chacha20poly1305.NonceSizeX
	if sum := sha256.Sum256(b[:end]); len(b) < check || !bytes.Equal(sum[:], b[end:check]) {
		return h, nil, errVaultHead
	}
	if string(lines[0]) != vaultMagic && bytes.HasPrefix(lines[0], []byte("picket-vault/")) {
		return h, nil, errVaultNewer
	}
	if string(lines[0]) != vaultMagic || json.Unmarshal(lines[1], &h) != nil || !h.valid() {
		return h, nil, errVaultHead
	}
	if again, err := json.Marshal(h); err != nil || !bytes.Equal(again, lines[1]) {
		return h, nil, errVaultHead
	}
	if len(b) < body {
		return h, nil, errVaultBody
	}
	key, err := master(h)
	if err != nil {
		return h, nil, err
	}
	checkKey, payload := vaultKeys(key, h.Salt)
	if !hmac.Equal(vaultMAC(checkKey, b[:check]), b[check:nonce]) {
		return h, nil, errVaultKey
	}
	aead, err := chacha20poly1305.NewX(payload)
	if err != nil {
		return h, nil, err
	}
	text, err := aead.Open(nil, b[nonce:body], b[body:], b[:body])
	if err != nil || json.Unmarshal(text, &list) != nil {
		return h, nil, errVaultBody
	}
	return h, list, nil
}

// vaultOptions say where the vault is and what may be done with it.
type vaultOptions struct {
	Data, Config string // folders
	Key          string // as in PICKET_VAULT_KEY; "" is the key file
	New          string // passphrase of a vault that is yet to be made; "" is a key
	Log          *Log   // for changes; nil if there are to be none
	Run          string // of the process, for the records
	// Changed is called with Values whenever the file was read.
	Changed func([]secretValue)
}

// A vault is the file and what was read of it. It may be used by several
// goroutines, and sees what other processes do to the file.
type vault struct {
	path string

	mu      sync.Mutex
	opt     vaultOptions
	lock    *fileLock
	f       *os.File // the file that was read, kept open so that no other gets its id
	id      fileID
	looked  bool // that file needs no second look: what follows is what it holds
	err     error
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

// Unlock opens a vault that has a passphrase.
func (v *vault) Unlock(phrase string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.phrase, v.salt, v.looked = phrase, nil, false
	err := v.refresh()
	if err != nil {
		v.phrase = ""
	}
	return err
}

func (v *vault) refresh() error {
	id, _, err := statName(v.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if v.looked && id == v.id {
		return v.err
	}
	v.f.Close()
	v.f, v.id, v.header, v.entries = nil, fileID{}, vaultHeader{}, nil
	v.err = v.read()
	fault := vaultError("")
	v.looked = v.err == nil || errors.As(v.err, &fault) // else it may go better next time
	if v.err == nil && v.opt.Changed != nil {
		v.opt.Changed(v.values())
	}
	return v.err
}

func (v *vault) read() error {
	st, err := stateOf(v.opt.Data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := checkOwn(v.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	f, err := os.OpenFile(v.path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return err
	}
	if v.f = f; reopenLogs { // there, an open file cannot be replaced
		defer f.Close()
	}
	if v.id, err = idOf(f); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxVault+1))
	if err != nil {
		return err
	}
	h, list, err := unsealVault(b, v.masterKey)
	switch v.header = h; {
	case err != nil:
	case len(b) > maxVault:
		err = errVaultBody
	case h.Generation < st.Vault:
		err = errVaultOlder
	default:
		v.entries = list
	}
	return err
}

// masterKey returns the key for a file with this header. One that was made for the
// same salt is not made again.
func (v *vault) masterKey(h vaultHeader) (key []byte, err error) {
	switch {
	case h.KDF == "key":
		key, err = v.readKey()
		v.salt, v.master = nil, key
		return key, err
	case v.phrase == "":
		return nil, errVaultLocked
	case v.salt == nil || !bytes.Equal(v.salt, h.Salt):
		v.salt, v.master = h.Salt, argon2.IDKey([]byte(v.phrase), h.Salt, h.Time, h.Memory, h.Threads, 32)
	}
	return v.master, nil
}

// readKey returns the key of PICKET_VAULT_KEY or the key file.
func (v *vault) readKey() ([]byte, error) {
	text, where := v.opt.Key, "PICKET_VAULT_KEY"
	path, ok := strings.CutPrefix(text, "file:")
	if text == "" {
		path, ok = v.keyFile(), true
	}
	if ok {
		err := checkOwn(path)
		if err == nil {
			var b []byte
			b, err = readSmallFile(path)
			text, where = strings.TrimSpace(string(b)), path
		}
		if err != nil {
			return nil, fmt.Errorf("the key of the vault: %w", err)
		}
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("the key of the vault must be 32 bytes in base64, which %q does not hold", where)
	}
	return key, nil
}

func (v *vault) keyFile() string { return filepath.Join(v.opt.Config, vaultKeyName) }

// Lookup returns the entry of a name as the file has it now.
func (v *vault) Lookup(name string) (vaultEntry, bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.refresh()
	if i, ok := v.find(name); ok && err == nil {
		return v.entries[i], true, nil
	}
	return vaultEntry{}, false, err
}

func (v *vault) find(name string) (int, bool) {
	return slices.BinarySearchFunc(v.entries, name, func(e vaultEntry, name string) int { return strings.Compare(e.Name, name) })
}

// List returns the entries in the order of their names, without the values.
func (v *vault) List() ([]vaultEntry, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.refresh()
	list := slices.Clone(v.entries)
	for i := range list {
		list[i].Value = ""
	}
	return list, err
}

// Values returns all that must not be shown: the secrets and what opens the vault.
func (v *vault) Values() ([]secretValue, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.refresh()
	return v.values(), err
}

func (v *vault) values() (list []secretValue) {
	for _, e := range v.entries {
		list = append(list, secretValue{Name: e.Name, Value: e.Value})
	}
	if v.phrase != "" {
		list = append(list, secretValue{Value: v.phrase, Mark: "vault passphrase"})
	}
	if v.master != nil {
		list = append(list, secretValue{Value: string(v.master), Mark: "vault key"},
			secretValue{Value: base64.StdEncoding.EncodeToString(v.master), Mark: "vault key"})
	}
	return list
}

// Set adds an entry or replaces that of the same name. Of a replaced one Created
// stays, and so do the bindings if e has none.
func (v *vault) Set(ctx context.Context, e vaultEntry) error {
	if err := e.check(); err != nil {
		return err
	}
	return v.change(ctx, "set", e.Name, func(list []vaultEntry, at int, found bool) ([]vaultEntry, error) {
		e.Changed = time.Now().UTC().Truncate(time.Second)
		if e.Created = e.Changed; !found {
			return slices.Insert(list, at, e), nil
		}
		if e.Created = list[at].Created; len(e.Hosts)+len(e.Tools) == 0 {
			e.Hosts, e.Tools = list[at].Hosts, list[at].Tools
		}
		list[at] = e
		return list, nil
	})
}

// Delete removes an entry, which must be there.
func (v *vault) Delete(ctx context.Context, name string) error {
	return v.change(ctx, "delete", name, func(list []vaultEntry, at int, found bool) ([]vaultEntry, error) {
		if !found {
			return nil, fmt.Errorf("there is no secret %q in the vault", name)
		}
		return slices.Delete(list, at, at+1), nil
	})
}

// change makes one change of the newest entries: it is recorded, the file is
// replaced, and the state learns of it. After a crash in between the file is the
// old or the new one; the number in the record tells which.
func (v *vault) change(ctx context.Context, op, name string, edit func(list []vaultEntry, at int, found bool) ([]vaultEntry, error)) (err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.opt.Log == nil {
		return fmt.Errorf("%w: the vault was opened for reading", errAudit)
	}
	if v.lock == nil {
		if v.lock, err = openLock(filepath.Join(v.opt.Data, "vault.lock")); err != nil {
			return err
		}
	}
	if err := v.lock.Lock(ctx); err != nil {
		return err
	}
	defer v.lock.Unlock()
	if err := v.refresh(); err != nil {
		return err
	}
	at, found := v.find(name)
	list, err := edit(slices.Clone(v.entries), at, found)
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
	if err != nil {
		return err
	}
	if err := v.opt.Log.Append(ctx, true, Record{Run: v.opt.Run, Channel: channelCLI, Body: vaultRecord{op, name, h.Generation}}); err != nil {
		return err
	}
	if err := writeFileAtomic(v.path, b); err != nil {
		return err
	}
	return errors.Join(v.opt.Log.knowVault(context.WithoutCancel(ctx), h.Generation), v.refresh())
}

// nextHeader returns the header for the next write. The first one of all makes the
// key file, unless there is one or another key is given.
func (v *vault) nextHeader() (vaultHeader, error) {
	st, err := stateOf(v.opt.Data) // which also knows of a vault that was removed
	if err != nil {
		return vaultHeader{}, err
	}
	h := v.header
	switch _, err := os.Lstat(v.keyFile()); {
	case h.KDF != "" && v.opt.New != "":
		return h, errors.New("there is a vault already, and its key or passphrase stays")
	case h.KDF != "":
	case v.opt.New != "":
		h, v.phrase, v.opt.New = argonHeader, v.opt.New, ""
	default:
		if h.KDF = "key"; v.opt.Key == "" && errors.Is(err, fs.ErrNotExist) {
			key := make([]byte, 32)
			rand.Read(key)
			text := base64.StdEncoding.EncodeToString(key) + "\n"
			if err := errors.Join(ensureDir(v.opt.Config), writeFileAtomic(v.keyFile(), []byte(text))); err != nil {
				return h, err
			}
		}
	}
	h.Generation, h.Salt = max(v.header.Generation, st.Vault)+1, make([]byte, 16)
	rand.Read(h.Salt)
	return h, nil
}

// Settle makes the state know of the file, which a crash can have left behind it.
func (v *vault) Settle(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err != nil || v.header.KDF == "" {
		return v.err
	}
	return v.opt.Log.knowVault(ctx, v.header.Generation)
}

// Close lets go of the files.
func (v *vault) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.f.Close()
	if v.f, v.looked = nil, false; v.lock == nil {
		return nil
	}
	return v.lock.Close()
}
