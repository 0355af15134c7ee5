package main

// The vault: a file of secrets, which no other file of picket's ever holds. It is
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
	"cmp"
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
	maxVault     = 1 << 20
	maxVaultHead = 512      // the two lines
	maxSecret    = 16 << 10 // bytes of a value
)

// A vaultError is what is wrong with the file as such.
type vaultError string

func (e vaultError) Error() string { return string(e) }

var (
	errVaultHead  = vaultError("the vault's header is damaged")
	errVaultNewer = vaultError("the vault was written by a newer picket")
	errVaultKey   = vaultError("the vault has another key or passphrase than this one")
	errVaultBody  = vaultError("the vault's content is damaged")
	errVaultOlder = vaultError("the vault is an older file that was put back")
)

// errVaultLocked means that Unlock has to be called.
var errVaultLocked = errors.New("the vault needs its passphrase")

// A vaultHeader is the second line, in exactly the form that json.Marshal gives it.
type vaultHeader struct {
	KDF        string `json:"kdf"`               // key or argon2id
	Time       uint32 `json:"time,omitempty"`    // of Argon2id: passes,
	Memory     uint32 `json:"memory,omitempty"`  // KiB
	Threads    uint8  `json:"threads,omitempty"` // and lanes
	Salt       []byte `json:"salt"`
	Generation uint64 `json:"generation"` // from 1, one more with each write
}

// argonHeader has the second of the parameters that RFC 9106, section 4, recommends.
var argonHeader = vaultHeader{KDF: "argon2id", Time: 3, Memory: 64 << 10, Threads: 4}

// valid bounds what a header can make the reader spend before the key is known to
// be right.
func (h *vaultHeader) valid() bool {
	switch h.KDF {
	case "key":
		return h.Time == 0 && h.Memory == 0 && h.Threads == 0 && len(h.Salt) == 16
	case "argon2id":
		return h.Time >= 1 && h.Time <= 10 && h.Threads >= 1 && h.Threads <= 16 &&
			h.Memory >= 8*uint32(h.Threads) && h.Memory <= 256<<10 && len(h.Salt) == 16
	}
	return false
}

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

var vaultNameForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

var errSecretName = errors.New("the name of a secret is 1 to 64 letters, digits, _, . or -")

// check says what is wrong with an entry; the value is not in the error.
func (e *vaultEntry) check() error {
	switch {
	case !vaultNameForm.MatchString(e.Name):
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

// vaultKeys makes of the master key those of one file.
func vaultKeys(master, salt []byte) (check, payload []byte) {
	k, err := hkdf.Key(sha256.New, master, salt, vaultMagic, 64)
	if err != nil {
		panic(err) // the length is fixed
	}
	return k[:32], k[32:]
}

// sealVault makes the file.
func sealVault(h vaultHeader, master []byte, list []vaultEntry) ([]byte, error) {
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	text = append(text, bytes.Repeat([]byte(" "), vaultPad-len(text)%vaultPad)...)
	b := slices.Concat([]byte(vaultMagic+"\n"), line, []byte("\n"))
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	check, payload := vaultKeys(master, h.Salt)
	b = append(b, vaultMAC(check, b)...)
	nonce := make([]byte, chacha20poly1305.NonceSizeX)
	rand.Read(nonce)
	b = append(b, nonce...)
	aead, err := chacha20poly1305.NewX(payload)
	if err != nil {
		return nil, err
	}
	return aead.Seal(b, nonce, text, b), nil
}

func vaultMAC(key, b []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(b)
	return m.Sum(nil)
}

// unsealVault reads a file. It asks for the master key once it knows that the
// header is whole and its own.
func unsealVault(b []byte, master func(vaultHeader) ([]byte, error)) (h vaultHeader, list []vaultEntry, err error) {
	front := b[:min(len(b), maxVaultHead)]
	magic, rest, ok := bytes.Cut(front, []byte("\n"))
	line, _, ok2 := bytes.Cut(rest, []byte("\n"))
	end := len(magic) + len(line) + 2
	if !ok || !ok2 || len(b) < end+sha256.Size {
		return h, nil, errVaultHead
	}
	at := end + sha256.Size
	if sum := sha256.Sum256(b[:end]); !bytes.Equal(sum[:], b[end:at]) {
		return h, nil, errVaultHead
	}
	if bytes.HasPrefix(magic, []byte("picket-vault/")) && string(magic) != vaultMagic {
		return h, nil, errVaultNewer
	}
	if string(magic) != vaultMagic || json.Unmarshal(line, &h) != nil || !h.valid() || h.Generation == 0 {
		return h, nil, errVaultHead
	}
	if again, err := json.Marshal(h); err != nil || !bytes.Equal(again, line) {
		return h, nil, errVaultHead
	}
	body := at + sha256.Size + chacha20poly1305.NonceSizeX
	if len(b) < body {
		return h, nil, errVaultBody
	}
	key, err := master(h)
	if err != nil {
		return h, nil, err
	}
	check, payload := vaultKeys(key, h.Salt)
	if !hmac.Equal(vaultMAC(check, b[:at]), b[at:at+sha256.Size]) {
		return h, nil, errVaultKey
	}
	aead, err := chacha20poly1305.NewX(payload)
	if err != nil {
		return h, nil, err
	}
	text, err := aead.Open(nil, b[at+sha256.Size:body], b[body:], b[:body])
	if err != nil || json.Unmarshal(text, &list) != nil {
		return h, nil, errVaultBody
	}
	return h, list, nil
}

// vaultOptions say where the vault is and what it may ask.
type vaultOptions struct {
	Data, Config string // folders
	Key          string // as in PICKET_VAULT_KEY; "" is the key file
	Log          *Log   // for changes; nil if there are to be none
	Run          string // of the process, for the records
	New          string // passphrase of a vault that is yet to be made; "" is a key
	// Changed is called with Values when there are others than before.
	Changed func([]secretValue)
}

// A vault is the file and what was read of it. It may be used by several
// goroutines, and sees what other processes do to the file.
type vault struct {
	path string

	mu      sync.Mutex
	opt     vaultOptions
	lock    *fileLock
	f       *os.File // the file that was read, kept open so that no other can have its id
	id      fileID
	looked  bool // id and err are of the file that is there
	err     error
	header  vaultHeader // KDF is "" if there is no vault
	entries []vaultEntry
	phrase  string
	salt    []byte // that master was made with
	master  []byte
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
	bad := vaultError("")
	v.looked = v.err == nil || errors.As(v.err, &bad) // else it may go better next time
	if v.err == nil && v.opt.Changed != nil {
		v.opt.Changed(v.values())
	}
	return v.err
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

func (v *vault) read() error {
	st, err := stateOf(v.opt.Data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.header.Generation = st.Vault
	if err := checkOwn(v.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	f, err := os.OpenFile(v.path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return err
	}
	if v.f = f; reopenLogs { // there, an open file could not be replaced
		defer func() { f.Close(); v.f = nil }()
	}
	if v.id, err = idOf(f); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxVault+1))
	if err != nil {
		return err
	}
	if len(b) > maxVault {
		return errVaultBody
	}
	h, list, err := unsealVault(b, v.masterKey)
	if err == nil && h.Generation < st.Vault {
		err = errVaultOlder
	}
	if err == nil {
		v.entries = list
	}
	v.header = h
	return err
}

// masterKey returns the key for a file with this header. One that was made for the
// same salt is not made again.
func (v *vault) masterKey(h vaultHeader) ([]byte, error) {
	if h.KDF == "key" {
		key, err := v.readKey()
		v.salt, v.master = nil, key
		return key, err
	}
	if v.salt != nil && bytes.Equal(v.salt, h.Salt) {
		return v.master, nil
	}
	if v.phrase == "" {
		return nil, errVaultLocked
	}
	v.salt, v.master = h.Salt, argon2.IDKey([]byte(v.phrase), h.Salt, h.Time, h.Memory, h.Threads, 32)
	return v.master, nil
}

// readKey returns the key of PICKET_VAULT_KEY or the key file.
func (v *vault) readKey() ([]byte, error) {
	text := v.opt.Key
	path, ok := strings.CutPrefix(text, "file:")
	if text == "" {
		path, ok = filepath.Join(v.opt.Config, vaultKeyName), true
	}
	if ok {
		if err := checkOwn(path); err != nil {
			return nil, fmt.Errorf("the key of the vault: %w", err)
		}
		b, err := readSmallFile(path)
		if err != nil {
			return nil, fmt.Errorf("the key of the vault: %w", err)
		}
		text = strings.TrimSpace(string(b))
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("the key of the vault must be 32 bytes in base64, which %q does not hold", cmp.Or(path, "PICKET_VAULT_KEY"))
	}
	return key, nil
}

// makeKey makes the key file for the first vault, unless there is one or another
// key is given.
func (v *vault) makeKey() error {
	path := filepath.Join(v.opt.Config, vaultKeyName)
	if _, err := os.Lstat(path); v.opt.Key != "" || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := ensureDir(v.opt.Config); err != nil {
		return err
	}
	key := make([]byte, 32)
	rand.Read(key)
	return writeFileAtomic(path, []byte(base64.StdEncoding.EncodeToString(key)+"\n"))
}

// Lookup returns the entry of a name as the file has it now.
func (v *vault) Lookup(name string) (vaultEntry, bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.refresh(); err != nil {
		return vaultEntry{}, false, err
	}
	i := slices.IndexFunc(v.entries, func(e vaultEntry) bool { return e.Name == name })
	if i < 0 {
		return vaultEntry{}, false, nil
	}
	return v.entries[i], true, nil
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
	if len(v.master) > 0 { // the redactor makes the other forms of both
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
	at, found := slices.BinarySearchFunc(v.entries, name, func(e vaultEntry, name string) int { return strings.Compare(e.Name, name) })
	list, err := edit(slices.Clone(v.entries), at, found)
	if err != nil {
		return err
	}
	h, master, err := v.next()
	if err != nil {
		return err
	}
	b, err := sealVault(h, master, list)
	if err == nil && len(b) > maxVault {
		err = fmt.Errorf("the vault is full: all values together may have some %d bytes", maxVault)
	}
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

// next returns the header for the next write and its key. The first one of all
// makes the key file, if one is to be used.
func (v *vault) next() (vaultHeader, []byte, error) {
	h := v.header
	st, err := stateOf(v.opt.Data) // also of a vault that was removed
	if err != nil {
		return h, nil, err
	}
	h.Generation = max(h.Generation, st.Vault) + 1
	h.Salt = make([]byte, 16)
	rand.Read(h.Salt)
	first := h.KDF == ""
	switch {
	case v.opt.New != "" && !first:
		return h, nil, errors.New("there is a vault already, and its key or passphrase stays")
	case v.opt.New != "":
		h.KDF, h.Time, h.Memory, h.Threads = argonHeader.KDF, argonHeader.Time, argonHeader.Memory, argonHeader.Threads
		v.phrase, v.opt.New = v.opt.New, ""
	case first:
		h.KDF = "key"
		if err := v.makeKey(); err != nil {
			return h, nil, err
		}
	}
	master, err := v.masterKey(h)
	return h, master, err
}

// Settle makes the state know of the file, which a crash can have left behind it.
func (v *vault) Settle(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	st, err := stateOf(v.opt.Data)
	if err != nil || v.header.KDF == "" || v.header.Generation <= st.Vault {
		return err
	}
	return v.opt.Log.knowVault(ctx, v.header.Generation)
}

// kdf is "key" or "argon2id", "" if there is no vault.
func (v *vault) kdf() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.header.KDF
}

// protect gives the vault that the next Set makes a passphrase.
func (v *vault) protect(phrase string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.opt.New = phrase
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
