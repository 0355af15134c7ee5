package main

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/chacha20poly1305"

	"picket/tools"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The primitives are others' code; that they are the right ones, called with
// their arguments in the right places, is what published vectors show.
func TestVaultPrimitives(t *testing.T) {
	t.Parallel()
	// draft-irtf-cfrg-xchacha-03, appendix A.3.1.
	key := unhex(t, "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f")
	nonce := unhex(t, "404142434445464748494a4b4c4d4e4f5051525354555657")
	plain := "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it."
	sealed := unhex(t, `bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb
		731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b452
		2f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9
		21f9664c97637da9768812f615c68b13b52e
		c0875924c1c7987947deafd8780acf49`)
	aead, err := chacha20poly1305.NewX(key)
	if err != nil {
		t.Fatal(err)
	}
	if got := aead.Seal(nil, nonce, []byte(plain), unhex(t, "50515253c0c1c2c3c4c5c6c7")); !bytes.Equal(got, sealed) {
		t.Errorf("XChaCha20-Poly1305: %x", got)
	}
	// RFC 5869, appendix A.1.
	okm, err := hkdf.Key(sha256.New, unhex(t, "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"), unhex(t, "000102030405060708090a0b0c"),
		string(unhex(t, "f0f1f2f3f4f5f6f7f8f9")), 42)
	if err != nil || !bytes.Equal(okm, unhex(t, "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")) {
		t.Errorf("HKDF-SHA256: %x %v", okm, err)
	}
	// The vector of RFC 9106, section 5.3, has a secret and associated data, which
	// the package does not take. These are from src/test.c of the reference
	// implementation, github.com/P-H-C/phc-winner-argon2, version 0x13, Argon2id.
	for _, v := range []struct {
		time, memory uint32
		threads      uint8
		want         string
	}{
		{2, 1 << 16, 1, "09316115d5cf24ed5a15a31a3ba326e5cf32edc24702987c02b6566f61913cf7"},
		{2, 1 << 8, 1, "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe"},
		{2, 1 << 8, 2, "6d093c501fd5999645e0ea3bf620d7b8be7fd2db59c20d9fff9539da2bf57037"},
	} {
		if got := argon2.IDKey([]byte("password"), []byte("somesalt"), v.time, v.memory, v.threads, 32); hex.EncodeToString(got) != v.want {
			t.Errorf("Argon2id %+v: %x", v, got)
		}
	}
}

var (
	testSalt   = []byte("0123456789abcdef")
	testMaster = bytes.Repeat([]byte{7}, 32)
	// cheapArgon keeps tests fast; a reader accepts it.
	cheapArgon = vaultHeader{KDF: "argon2id", Time: 1, Memory: 8, Threads: 1, Salt: testSalt, Generation: 1}
	keyHeader  = vaultHeader{KDF: "key", Salt: testSalt, Generation: 1}
)

func giveMaster(vaultHeader) ([]byte, error) { return testMaster, nil }

func sealed(t testing.TB, h vaultHeader, master []byte, list ...vaultEntry) []byte {
	t.Helper()
	b, err := sealVault(h, master, list)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// handSealed puts a file together from its two lines as the format is described,
// without picket's own code.
func handSealed(t testing.TB, lines string, master, text []byte) []byte {
	t.Helper()
	keys, err := hkdf.Key(sha256.New, master, testSalt, "picket-vault/1", 64)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(lines))
	b := append([]byte(lines), sum[:]...)
	m := hmac.New(sha256.New, keys[:32])
	m.Write(b)
	b = m.Sum(b)
	nonce := []byte("nonce of twenty-four by.")
	b = append(b, nonce...)
	aead, err := chacha20poly1305.NewX(keys[32:])
	if err != nil {
		t.Fatal(err)
	}
	return aead.Seal(b, nonce, text, b)
}

func TestVaultFormat(t *testing.T) {
	salt := base64.StdEncoding.EncodeToString(testSalt)
	text := `[{"name":"A","value":"supersecret","hosts":["example.com"],"created":"2026-01-02T03:04:05Z","changed":"2026-01-02T03:04:05Z"}]`
	b := handSealed(t, "picket-vault/1\n"+`{"kdf":"key","salt":"`+salt+`","generation":7}`+"\n", testMaster, []byte(text+strings.Repeat(" ", 4096-len(text))))
	h, list, err := unsealVault(b, giveMaster)
	if err != nil || h.Generation != 7 || len(list) != 1 || list[0].Value != "supersecret" || list[0].Hosts[0] != "example.com" {
		t.Fatalf("%+v %+v %v", h, list, err)
	}
	// What picket writes is of the same form and length, and never the same twice.
	a := sealed(t, h, testMaster, list...)
	if !bytes.HasPrefix(a, b[:bytes.LastIndexByte(b[:200], '}')]) || len(a) != len(b) || bytes.Equal(a, sealed(t, h, testMaster, list...)) {
		t.Errorf("it is written otherwise:\n%q\n%q", a[:200], b[:200])
	}
	if two := sealed(t, h, testMaster, vaultEntry{Name: "B", Value: "1"}, vaultEntry{Name: "C", Value: "2"}); len(two) != len(a) {
		t.Error("the length tells the number of entries")
	}
	for _, s := range []string{"supersecret", "example", `"A"`} {
		if bytes.Contains(a, []byte(s)) {
			t.Errorf("%q stands in the file", s)
		}
	}
}

// Each fault of a header that is whole otherwise, by its lines.
func TestVaultHeaders(t *testing.T) {
	salt := base64.StdEncoding.EncodeToString(testSalt)
	good := `{"kdf":"argon2id","time":10,"memory":262144,"threads":16,"salt":"` + salt + `","generation":1}`
	for _, tt := range []struct {
		name, magic, line string
		want              error
	}{
		{"the most that is accepted", "picket-vault/1", good, nil},
		{"a later version", "picket-vault/2", good, errVaultNewer},
		{"a later version of another header", "picket-vault/10", "x", errVaultNewer},
		{"another file", "age-encryption.org/v1", good, errVaultHead},
		{"no JSON", "picket-vault/1", "x", errVaultHead},
		{"a blank", "picket-vault/1", " " + good, errVaultHead},
		{"a member more", "picket-vault/1", strings.Replace(good, "{", `{"x":1,`, 1), errVaultHead},
		{"a member twice", "picket-vault/1", strings.Replace(good, "{", `{"generation":9,`, 1), errVaultHead},
		{"a capital", "picket-vault/1", strings.Replace(good, "kdf", "KDF", 1), errVaultHead},
		{"no generation", "picket-vault/1", strings.Replace(good, `:1}`, `:0}`, 1), errVaultHead},
		{"a short salt", "picket-vault/1", strings.Replace(good, salt, "AAAA", 1), errVaultHead},
		{"an unknown kdf", "picket-vault/1", strings.Replace(good, "argon2id", "scrypt", 1), errVaultHead},
		{"a key with parameters", "picket-vault/1", strings.Replace(good, "argon2id", "key", 1), errVaultHead},
		{"too many passes", "picket-vault/1", strings.Replace(good, "10", "11", 1), errVaultHead},
		{"no passes", "picket-vault/1", strings.Replace(good, `"time":10,`, "", 1), errVaultHead},
		{"too much memory", "picket-vault/1", strings.Replace(good, "262144", "262145", 1), errVaultHead},
		{"all memory", "picket-vault/1", strings.Replace(good, "262144", "4294967295", 1), errVaultHead},
		{"too little memory", "picket-vault/1", strings.Replace(good, "262144", "127", 1), errVaultHead},
		{"too many lanes", "picket-vault/1", strings.Replace(good, "16", "17", 1), errVaultHead},
		{"a long line", "picket-vault/1", good + strings.Repeat(" ", maxVaultHead), errVaultHead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := false
			b := handSealed(t, tt.magic+"\n"+tt.line+"\n", testMaster, []byte("[]"))
			_, _, err := unsealVault(b, func(vaultHeader) ([]byte, error) { asked = true; return testMaster, nil })
			if err != tt.want || asked != (tt.want == nil) {
				t.Errorf("%v, key asked for: %v", err, asked)
			}
		})
	}
}

// bigVault is a vault of 10 kB, and where its parts begin.
func bigVault(t testing.TB) (b []byte, check, body int) {
	b = sealed(t, keyHeader, testMaster, vaultEntry{Name: "A", Value: strings.Repeat("secret", 1000)})
	check = len("picket-vault/1\n") + bytes.IndexByte(b[15:], '\n') + 1 + 32
	if len(b) < 8<<10 {
		t.Fatalf("it has only %d bytes", len(b))
	}
	return b, check, check + 32
}

func TestVaultEveryFlipIsNoticed(t *testing.T) {
	t.Parallel()
	b, check, body := bigVault(t)
	for i := range b {
		want := errVaultBody
		switch {
		case i < check:
			want = errVaultHead
		case i < body:
			want = errVaultKey
		}
		for bit := range 8 {
			if i > body+24 && bit != i%8 { // one bit of each byte of what is encrypted
				continue
			}
			b[i] ^= 1 << bit
			if _, list, err := unsealVault(b, giveMaster); err != want || list != nil {
				t.Fatalf("bit %d of byte %d: %v, want %v", bit, i, err, want)
			}
			b[i] ^= 1 << bit
		}
	}
	if _, _, err := unsealVault(b, giveMaster); err != nil {
		t.Fatal(err)
	}
}

func TestVaultEveryTruncationIsNoticed(t *testing.T) {
	b, check, _ := bigVault(t)
	for n := range b {
		want := errVaultBody
		if n < check {
			want = errVaultHead
		}
		if _, _, err := unsealVault(b[:n:n], giveMaster); err != want {
			t.Fatalf("%d bytes: %v, want %v", n, err, want)
		}
	}
	if _, _, err := unsealVault(append(b, 0), giveMaster); err != errVaultBody {
		t.Errorf("a byte more: %v", err)
	}
}

func FuzzVault(f *testing.F) {
	f.Add(sealed(f, keyHeader, testMaster, vaultEntry{Name: "A", Value: "supersecret"}), false)
	f.Add(sealed(f, cheapArgon, testMaster), true)
	f.Add([]byte("picket-vault/2\nx\n"), true)
	f.Add([]byte("picket-vault/1\n{\"kdf\":\"argon2id\",\"time\":4294967295,\"memory\":4294967295,\"threads\":255,\"salt\":null,\"generation\":1}\n"), true)
	f.Add([]byte("picket-vault/1\n"+strings.Repeat("{", 2000)+"\n"), true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if lines := bytes.SplitAfterN(b, []byte("\n"), 3); whole && len(lines) == 3 { // make what stands there count
			b = slices.Concat(lines[0], lines[1])
			sum := sha256.Sum256(b)
			b = append(b, sum[:]...)
			check, _ := vaultKeys(testMaster, testSalt)
			check.Write(b)
			b = check.Sum(b)
			b = append(b, lines[2]...)
		}
		h, list, err := unsealVault(b, func(h vaultHeader) ([]byte, error) {
			if h.Time > 10 || h.Memory > 256<<10 || h.Threads > 16 || len(h.Salt) != 16 {
				t.Fatalf("%+v would be paid for", h)
			}
			return testMaster, nil
		})
		bad := []error{errVaultHead, errVaultNewer, errVaultKey, errVaultBody}
		switch {
		case err == nil:
			if _, again, err := unsealVault(sealed(t, h, testMaster, list...), giveMaster); err != nil || !slices.EqualFunc(list, again, sameEntry) {
				t.Errorf("%v", err)
			}
		case !slices.Contains(bad, err) || list != nil:
			t.Errorf("%v", err)
		}
	})
}

func sameEntry(a, b vaultEntry) bool { return a.Name == b.Name && a.Value == b.Value }

// testVault is a place for a vault with a log.
func testVault(t testing.TB) vaultOptions { return testVaultIn(t, t.TempDir()) }

// memoryFolder is one in which a sync costs nothing, if there is such: being killed
// does not depend on the disk.
func memoryFolder(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "picket-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func testVaultIn(t testing.TB, dir string) vaultOptions {
	t.Helper()
	o := vaultOptions{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config"), Run: "r_test"}
	var err error
	if o.Log, err = openAudit(o.Data); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Log.Close() })
	return o
}

func mustOpen(t testing.TB, o vaultOptions) *vault {
	t.Helper()
	v, err := openVault(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func mustSet(t testing.TB, v *vault, name, value string) {
	t.Helper()
	if err := v.Set(context.Background(), vaultEntry{Name: name, Value: value}); err != nil {
		t.Fatal(err)
	}
}

func wantSecret(t testing.TB, v *vault, name, value string) {
	t.Helper()
	if e, ok, err := v.Lookup(name); err != nil || ok != (value != "") || e.Value != value {
		t.Errorf("%s is %q %v %v, not %q", name, e.Value, ok, err, value)
	}
}

func TestVaultChanges(t *testing.T) {
	o := testVault(t)
	v, w := mustOpen(t, o), mustOpen(t, o)
	if list, err := os.ReadDir(o.Data); err != nil || slices.ContainsFunc(list, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), "vault") }) {
		t.Errorf("opening made a file: %v %v", list, err)
	}
	if _, err := os.Stat(o.Config); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening made a key: %v", err)
	}
	if err := v.Delete(t.Context(), "A"); err == nil {
		t.Error("what is not there was deleted")
	}
	mustSet(t, v, "B", "value of B")
	mustSet(t, v, "A", "value of A")
	bound := vaultEntry{Name: "C", Value: "value of C", Hosts: []string{"example.com"}, Tools: []string{"web_fetch"}}
	if err := w.Set(t.Context(), bound); err != nil {
		t.Fatal(err)
	}
	before, _, _ := v.Lookup("C")
	mustSet(t, v, "C", "another of C") // keeps what it is bound to
	e, ok, err := w.Lookup("C")
	if err != nil || !ok || e.Value != "another of C" || !slices.Equal(e.Hosts, bound.Hosts) || !slices.Equal(e.Tools, bound.Tools) || !e.Created.Equal(before.Created) {
		t.Errorf("%+v %v", e, err)
	}
	if err := w.Delete(t.Context(), "A"); err != nil {
		t.Fatal(err)
	}
	list, err := v.current()
	if err != nil || len(list) != 2 || list[0].Name != "B" || list[1].Name != "C" {
		t.Errorf("%+v %v", list, err)
	}
	wantSecret(t, v, "A", "")
	wantSecret(t, v, "B", "value of B")
	// Each change is recorded, by its name and number.
	text := string(readTestFile(t, filepath.Join(o.Data, auditName)))
	for _, want := range []string{
		`"kind":"vault","run":"r_test","channel":"cli","op":"set","name":"B","generation":1}`,
		`"op":"set","name":"C","generation":4}`, `"op":"delete","name":"A","generation":5}`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in the log:\n%s", want, text)
		}
	}
	if st, err := stateOf(o.Data); err != nil || st.Vault != 5 || strings.Contains(text, "value of") {
		t.Errorf("state %d %v, log:\n%s", st.Vault, err, text)
	}
	for _, name := range []string{filepath.Join(o.Data, vaultName), filepath.Join(o.Config, vaultKeyName)} {
		if fi, err := os.Stat(name); err != nil || fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", name, fi.Mode(), err)
		}
	}
}

func TestVaultRefusesEntries(t *testing.T) {
	v := mustOpen(t, testVault(t))
	for name, e := range map[string]vaultEntry{
		"no name": {Value: "supersecret"}, "a blank in the name": {Name: "A B", Value: "supersecret"}, "a line end": {Name: "A\n", Value: "supersecret"},
		"a long name": {Name: strings.Repeat("A", 65), Value: "supersecret"}, "a path": {Name: "../A", Value: "supersecret"},
		"no value": {Name: "A"}, "a blank value": {Name: "A", Value: " \n\t"}, "not UTF-8": {Name: "A", Value: "secret\xff\xfe"},
		"NUL": {Name: "A", Value: "secret\x00"}, "long": {Name: "A", Value: strings.Repeat("x", maxSecret+1)},
	} {
		if err := v.Set(t.Context(), e); err == nil || strings.Contains(err.Error(), "secret\\") || strings.Contains(err.Error(), "supersecret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(v.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a vault was made: %v", err)
	}
	mustSet(t, v, strings.Repeat("A", 64), strings.Repeat("x", maxSecret))
}

// A vault that is full refuses, and stays as it is.
func TestVaultIsBounded(t *testing.T) {
	t.Parallel()
	v := mustOpen(t, testVault(t))
	var err error
	n := 0
	for ; err == nil && n < 200; n++ {
		err = v.Set(t.Context(), vaultEntry{Name: fmt.Sprint("N", n), Value: strings.Repeat("x", maxSecret)})
	}
	if list, lerr := mustOpen(t, v.opt).current(); err == nil || !strings.Contains(err.Error(), "full") || lerr != nil || len(list) != n-1 || n < 25 {
		t.Errorf("%d entries: %v; then %d %v", n, err, len(list), lerr)
	}
	if err := os.WriteFile(v.path, make([]byte, maxVault+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openVault(v.opt); err != errVaultHead && err != errVaultBody {
		t.Errorf("a file that is too long: %v", err)
	}
}

func TestVaultWithoutRecordIsNotChanged(t *testing.T) {
	o := testVault(t)
	v := mustOpen(t, o)
	mustSet(t, v, "A", "value of A")
	before := readTestFile(t, v.path)
	o.Log.Close()
	for what, err := range map[string]error{"set": v.Set(t.Context(), vaultEntry{Name: "A", Value: "another"}), "delete": v.Delete(t.Context(), "A")} {
		if !errors.Is(err, errAudit) || !bytes.Equal(before, readTestFile(t, v.path)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantSecret(t, v, "A", "value of A")
}

func TestVaultKeys(t *testing.T) {
	other := base64.StdEncoding.EncodeToString(testMaster)
	type place struct {
		o   *vaultOptions
		key string // path of the key file
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, p place) error
		want string // in the error; "" for none
	}{
		{"as it was", func(*testing.T, place) error { return nil }, ""},
		{"the key file is gone", func(t *testing.T, p place) error { return os.Remove(p.key) }, "no such file"},
		{"another key in it", func(t *testing.T, p place) error { return os.WriteFile(p.key, []byte(other+"\n"), 0o600) }, errVaultKey.Error()},
		{"no key in it", func(t *testing.T, p place) error { return os.WriteFile(p.key, []byte("x\n"), 0o600) }, "32 bytes in base64"},
		{"nothing in it", func(t *testing.T, p place) error { return os.WriteFile(p.key, nil, 0o600) }, "32 bytes in base64"},
		{"a very long one", func(t *testing.T, p place) error { return os.WriteFile(p.key, make([]byte, 2<<20), 0o600) }, "1 MiB"},
		{"others can read it", func(t *testing.T, p place) error { return os.Chmod(p.key, 0o640) }, "chmod 600 '"},
		{"others can read the vault", func(t *testing.T, p place) error { return os.Chmod(filepath.Join(p.o.Data, vaultName), 0o604) }, "chmod 600 '"},
		{"it is a link", func(t *testing.T, p place) error {
			return errors.Join(os.Rename(p.key, p.key+".real"), os.Symlink(p.key+".real", p.key))
		}, "not a plain file"},
		{"it is a folder", func(t *testing.T, p place) error { return errors.Join(os.Remove(p.key), os.Mkdir(p.key, 0o700)) }, "1 MiB"},
		{"another in the environment", func(t *testing.T, p place) error { p.o.Key = other; return nil }, errVaultKey.Error()},
		{"the same in a file that is named", func(t *testing.T, p place) error {
			p.o.Key = "file:" + p.key + ".real"
			return os.Rename(p.key, p.key+".real")
		}, ""},
		{"a file that is named and not there", func(t *testing.T, p place) error { p.o.Key = "file:" + p.key + ".real"; return nil }, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := testVault(t)
			mustSet(t, mustOpen(t, o), "A", "value of A")
			key := filepath.Join(o.Config, vaultKeyName)
			if err := tt.do(t, place{&o, key}); err != nil {
				t.Fatal(err)
			}
			_, statErr := os.Lstat(key)
			v, err := openVault(o)
			t.Cleanup(func() { v.Close() })
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				wantSecret(t, v, "A", "value of A")
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			// Nothing is changed and no key is made in its place.
			before := readTestFile(t, v.path)
			if err := v.Set(t.Context(), vaultEntry{Name: "A", Value: "another"}); err == nil || !bytes.Equal(before, readTestFile(t, v.path)) {
				t.Errorf("it was written: %v", err)
			}
			if _, err := os.Lstat(key); (err == nil) != (statErr == nil) {
				t.Errorf("a key was made anew: %v", err)
			}
		})
	}
}

// A key file can be of several vaults: none that is there is replaced.
func TestVaultKeyIsNeverReplaced(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	var wg sync.WaitGroup
	list := make([]vaultOptions, 4)
	for i := range list {
		o := testVault(t)
		o.Config = config
		list[i] = o
		wg.Go(func() {
			v, err := openVault(o)
			if err == nil {
				err = errors.Join(v.makeKey(), v.Set(context.Background(), vaultEntry{Name: "A", Value: "value of A"}), v.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, o := range list {
		wantSecret(t, mustOpen(t, o), "A", "value of A")
	}
	if left, err := os.ReadDir(config); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
}

func TestVaultKeyOfTheEnvironmentMakesNoFile(t *testing.T) {
	o := testVault(t)
	o.Key = base64.StdEncoding.EncodeToString(testMaster)
	mustSet(t, mustOpen(t, o), "A", "value of A")
	if _, err := os.Stat(o.Config); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a key file: %v", err)
	}
	wantSecret(t, mustOpen(t, o), "A", "value of A")
	red := newRedactor(nil)
	o.Changed = red.Update
	mustOpen(t, o)
	for _, form := range []string{o.Key, hex.EncodeToString(testMaster), strings.ToUpper(hex.EncodeToString(testMaster)),
		base64.RawURLEncoding.EncodeToString(testMaster), url64(o.Key)} {
		if got := red.String("<" + form + ">"); strings.Contains(got, form[2:20]) || !strings.Contains(got, "[redacted: vault key]") {
			t.Errorf("%s became %s", form, got)
		}
	}
}

func url64(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }

func TestVaultOlderFileIsNoticed(t *testing.T) {
	o := testVault(t)
	v := mustOpen(t, o)
	mustSet(t, v, "A", "the first value")
	old := readTestFile(t, v.path)
	mustSet(t, v, "A", "the second value")
	newer := readTestFile(t, v.path)
	putBack := func(b []byte) {
		t.Helper()
		if err := writeFileAtomic(v.path, b); err != nil {
			t.Fatal(err)
		}
	}
	putBack(old)
	if _, err := openVault(o); err != errVaultOlder {
		t.Errorf("opened anew: %v", err)
	}
	if _, _, err := v.Lookup("A"); err != errVaultOlder {
		t.Errorf("looked up: %v", err)
	}
	if err := v.Set(t.Context(), vaultEntry{Name: "B", Value: "supersecret"}); err != errVaultOlder {
		t.Errorf("set: %v", err)
	}
	putBack(newer)
	wantSecret(t, v, "A", "the second value")
	// After a crash the state can be behind the file: that is no fault, and does not
	// let an older file in once picket has been started.
	if err := forgetVault(o.Log, 1); err != nil {
		t.Fatal(err)
	}
	w := mustOpen(t, o)
	wantSecret(t, w, "A", "the second value")
	if err := o.Log.knowVault(t.Context(), w.header.Generation); err != nil {
		t.Fatal(err)
	}
	putBack(old)
	if _, err := openVault(o); err != errVaultOlder {
		t.Errorf("after a crash: %v", err)
	}
	// A vault that was removed is followed by a later one, never by an old copy.
	if err := os.Remove(v.path); err != nil {
		t.Fatal(err)
	}
	wantSecret(t, v, "A", "")
	mustSet(t, v, "B", "supersecret")
	wantSecret(t, mustOpen(t, o), "B", "supersecret")
	putBack(newer)
	if _, err := openVault(o); err != errVaultOlder {
		t.Errorf("a copy of the removed one: %v", err)
	}
}

// forgetVault makes the state say that the vault has an earlier generation.
func forgetVault(l *Log, generation uint64) error {
	return l.locked(context.Background(), func(context.Context) error {
		return l.editState(true, func(st *auditState) bool { st.Vault = generation; return true })
	})
}

func TestVaultPassphrase(t *testing.T) {
	o := testVault(t)
	header := cheapArgon
	b := sealed(t, header, argon2.IDKey([]byte("correct horse"), testSalt, 1, 8, 1, 32), vaultEntry{Name: "A", Value: "value of A"})
	if err := os.WriteFile(filepath.Join(o.Data, vaultName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := openVault(o)
	t.Cleanup(func() { v.Close() })
	if !errors.Is(err, errVaultLocked) {
		t.Fatalf("without its passphrase: %v", err)
	}
	if err := v.Set(t.Context(), vaultEntry{Name: "B", Value: "value of B"}); !errors.Is(err, errVaultLocked) {
		t.Errorf("set while locked: %v", err)
	}
	if err := v.Unlock("wrong horse"); err != errVaultKey {
		t.Errorf("with another: %v", err)
	}
	if err := v.Unlock("correct horse"); err != nil {
		t.Fatal(err)
	}
	mustSet(t, v, "B", "value of B")
	w, _ := openVault(o)
	defer w.Close()
	if err := w.Unlock("correct horse"); err != nil {
		t.Fatal(err)
	}
	mustSet(t, w, "C", "value of C") // which has a new salt: v finds it without being asked again
	wantSecret(t, v, "C", "value of C")
	if v.header.Memory != header.Memory || bytes.Equal(v.header.Salt, testSalt) {
		t.Errorf("the header became %+v", v.header)
	}
	red := newRedactor(nil)
	w.opt.Changed = red.Update
	mustSet(t, w, "C", "value of C")
	if got := red.String("correct horse, value of C"); got != "[redacted: vault passphrase], {{vault:C}}" {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(o.Config); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a key file: %v", err)
	}
}

func TestVaultMadeWithPassphrase(t *testing.T) {
	o := testVault(t)
	v := mustOpen(t, o)
	if err := v.Unlock("correct horse"); err != nil {
		t.Fatal(err)
	}
	mustSet(t, v, "A", "value of A")
	if h := v.header; h.KDF != "argon2id" || h.Time != 3 || h.Memory != 64<<10 || h.Threads != 4 {
		t.Errorf("%+v", h)
	}
	if err := v.Unlock("another"); err != errVaultKey {
		t.Errorf("with another: %v", err)
	}
	if err := v.Set(t.Context(), vaultEntry{Name: "A", Value: "another value"}); err == nil {
		t.Error("the passphrase was changed in passing")
	}
}

// What another process sets is known to the redactor before it is used next; what
// was replaced stays known.
func TestRedactorLearnsFromTheVault(t *testing.T) {
	t.Setenv("PICKET_HOME", t.TempDir())
	p := &program{redact: keepText}
	a, err := p.settings(taskFlags{})
	if err != nil {
		t.Fatal(err)
	}
	filter := a.red.Stream()
	if err := ensureDir(a.folders.Data); err != nil {
		t.Fatal(err)
	}
	log, err := openAudit(a.folders.Data)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	other := mustOpen(t, vaultOptions{Data: a.folders.Data, Config: a.folders.Config, Log: log})
	for i := range 3 {
		value := fmt.Sprintf("secret number %d", i)
		mustSet(t, other, "M", value+" of another") // so that the file could have its inode again
		mustSet(t, other, "N", value)
		if got := p.redact("<" + value + ">"); got != "<{{vault:N}}>" {
			t.Errorf("%d: %s", i, got)
		}
		if got := string(filter.Feed([]byte("<"+value+">"))) + string(filter.End()); got != "<{{vault:N}}>" {
			t.Errorf("%d: %s", i, got)
		}
	}
	if got := p.redact("secret number 0"); got != "{{vault:N}}" {
		t.Errorf("what was replaced: %s", got)
	}
	key := strings.TrimSpace(string(readTestFile(t, filepath.Join(a.folders.Config, vaultKeyName))))
	if got := p.redact(key); got != "[redacted: vault key]" {
		t.Errorf("the key: %s", got)
	}
	// A vault that is damaged meanwhile lets no tool run.
	if err := os.WriteFile(a.vault.path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.vault.Refresh(); err != nil {
		t.Errorf("the file was written over in place, which is not looked for: %v", err)
	}
	if err := writeFileAtomic(a.vault.path, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := a.vault.Refresh(); err != errVaultHead {
		t.Errorf("%v", err)
	}
	if got := p.redact("secret number 2"); got != "{{vault:N}}" {
		t.Errorf("with a damaged vault: %s", got)
	}
}

func TestGateWithADamagedVaultDenies(t *testing.T) {
	for name, later := range map[string]bool{"before the call": false, "while it is asked about": true} {
		t.Run(name, func(t *testing.T) {
			r := newGateRig(t)
			data := filepath.Join(r.dir, "data")
			v := mustOpen(t, vaultOptions{Data: data, Config: filepath.Join(r.dir, "config"), Log: r.gate.log})
			mustSet(t, v, "A", "supersecret")
			r.gate.ready = v.Refresh
			damage := func() {
				if err := writeFileAtomic(v.path, []byte("picket-vault/1\n")); err != nil {
					t.Error(err)
				}
			}
			if later {
				r.j.Risk = tools.Sensitive
				r.turn.Caller.Ask = func(context.Context, Card) (Answer, error) {
					damage()
					return Answer{Allow: true, Scope: tools.Once}, nil
				}
			} else {
				damage()
			}
			res := r.gate.Do(context.Background(), r.turn, call("act", `{"x":"1"}`))
			if !res.Refused || !strings.Contains(res.Text, "header is damaged") {
				t.Errorf("%+v", res)
			}
			r.wantRecords("deny", 0)
		})
	}
}

func TestSettingsFromTheVault(t *testing.T) {
	for _, tt := range []struct{ name, model, want string }{
		{"a key", `"api_key": "{{vault:K}}"`, ""},
		{"with blanks", `"api_key": "{{vault: K }}"`, ""},
		{"a header", `"headers": {"X-Api-Key": "{{vault:K}}", "Authorization": "Bearer {{vault:K}}"}`, ""},
		{"an unknown name", `"api_key": "{{vault:NONE}}"`, `model.api_key: there is no secret "NONE"`},
		{"an unknown name in a header", `"headers": {"X": "a {{vault:NONE}}"}`, `model.headers.X: there is no secret "NONE"`},
		{"no name", `"api_key": "{{vault:}}"`, "model.api_key: what names a secret is written"},
		{"what cannot be sent", `"api_key": "{{vault:LINES}}"`, `model.api_key: the secret "LINES" cannot be sent`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PICKET_HOME", dir)
			log, err := openAudit(filepath.Join(dir, "data"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			v := mustOpen(t, vaultOptions{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config"), Log: log})
			mustSet(t, v, "K", "sk-0123456789")
			mustSet(t, v, "LINES", "line one\nline two")
			config := `{"model": {"base_url": "https://example.com/v1", "name": "m", ` + tt.model + `}}`
			if err := os.WriteFile(filepath.Join(dir, "config", "config.json"), []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			p := &program{redact: keepText}
			a, err := p.settings(taskFlags{})
			if err != nil {
				t.Fatal(err)
			}
			err = a.chooseModel(t.Context())
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "config.json:1:") || strings.Contains(err.Error(), "line one") {
					t.Errorf("%v", err)
				}
				return
			}
			s := a.choice.Settings
			all := s.APIKey + s.Headers["Authorization"] + s.Headers["X-Api-Key"]
			if err != nil || all != "sk-0123456789" && all != "Bearer sk-0123456789sk-0123456789" {
				t.Errorf("%q %v", all, err)
			}
			if got := p.redact("Bearer sk-0123456789 {{vault:K}}"); got != "Bearer {{vault:K}} {{vault:K}}" {
				t.Errorf("%q", got)
			}
		})
	}
}

// The test binary writes to a vault when it is started so:
// PICKET_VAULT_WRITER=FOLDER:NAME:COUNT. After each write it prints a line.
func init() {
	w := os.Getenv("PICKET_VAULT_WRITER")
	if w == "" {
		return
	}
	part := strings.Split(w, ":")
	count, _ := strconv.Atoi(part[2])
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	data := filepath.Join(part[0], "data")
	log, err := openAudit(data)
	fail(err)
	v, err := openVault(vaultOptions{Data: data, Config: filepath.Join(part[0], "config"), Log: log})
	fail(err)
	for i := range count {
		fail(v.Set(context.Background(), vaultEntry{Name: fmt.Sprintf("%s%d", part[1], i%10), Value: fmt.Sprintf("value %s %d", part[1], i)}))
		fmt.Println(i)
	}
	os.Exit(0)
}

func vaultWriter(dir, name string, count int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("PICKET_VAULT_WRITER=%s:%s:%d", dir, name, count))
	return cmd
}

func TestVaultWritersLoseNothing(t *testing.T) {
	t.Parallel()
	o := testVaultIn(t, memoryFolder(t))
	dir := filepath.Dir(o.Data)
	var list []*exec.Cmd
	for _, name := range []string{"A", "B"} {
		cmd := vaultWriter(dir, name, 60)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		list = append(list, cmd)
	}
	v := mustOpen(t, o)
	for range 20 { // a third one, and readers meanwhile
		mustSet(t, v, "C0", "value C")
		if _, err := openVault(o); err != nil {
			t.Error(err)
		}
	}
	for _, cmd := range list {
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		wantSecret(t, v, fmt.Sprintf("A%d", i), fmt.Sprintf("value A %d", 50+i))
		wantSecret(t, v, fmt.Sprintf("B%d", i), fmt.Sprintf("value B %d", 50+i))
	}
	if st, err := stateOf(o.Data); err != nil || st.Vault != 140 || v.header.Generation != 140 {
		t.Errorf("generation %d, state %d, %v", v.header.Generation, st.Vault, err)
	}
}

// A writer that is killed leaves the old vault or the new one, which opens, and a
// log that says so. Nothing that was reported as done is lost.
func TestVaultSurvivesKill(t *testing.T) {
	t.Parallel()
	o := testVaultIn(t, memoryFolder(t))
	dir := filepath.Dir(o.Data)
	v := mustOpen(t, o)
	writes := 0
	for round := 0; writes < 1000; round++ {
		cmd := vaultWriter(dir, "K", 1000)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(30+round*7%61) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		done := bytes.Count(out.Bytes(), []byte("\n"))
		writes += done
		st, err := stateOf(o.Data)
		if err != nil {
			t.Fatal(err)
		}
		w, err := openVault(o)
		if err != nil {
			t.Fatalf("round %d, after %d writes: %v", round, done, err)
		}
		if g := w.header.Generation; g < st.Vault || g > st.Vault+1 {
			t.Fatalf("round %d: generation %d, but the state knows %d", round, g, st.Vault)
		}
		if done > 0 { // the last one that was reported, or the one after it
			last := 0
			for i := range 10 {
				e, ok, err := w.Lookup(fmt.Sprintf("K%d", i))
				n, _ := strconv.Atoi(strings.TrimPrefix(e.Value, "value K "))
				if err != nil || ok && e.Value != fmt.Sprintf("value K %d", n) {
					t.Fatalf("%+v %v", e, err)
				}
				if n < done+1 {
					last = max(last, n)
				}
			}
			if last != done-1 && last != done {
				t.Fatalf("round %d: the last write is %d of %d", round, last, done)
			}
		}
		if err := o.Log.knowVault(t.Context(), w.header.Generation); err != nil {
			t.Fatal(err)
		}
		w.Close()
		mustSet(t, v, "OWN", fmt.Sprintf("round %d", round)) // it goes on
	}
	if r, err := verifyLog(o.Data); err != nil || r.Status == auditTampered || r.Status == auditIncomplete {
		t.Errorf("%+v %v", r, err)
	}
	// Each generation of the vault is in the log.
	seen := map[uint64]bool{}
	for line := range bytes.Lines(readTestFile(t, filepath.Join(o.Data, auditName))) {
		var r struct {
			Kind       string
			Generation uint64
		}
		if json.Unmarshal(line, &r) == nil && r.Kind == "vault" {
			seen[r.Generation] = true
		}
	}
	v.Refresh()
	for g := uint64(1); g <= v.header.Generation; g++ {
		if !seen[g] {
			t.Errorf("generation %d is not in the log", g)
		}
	}
}

// Unlocking costs one Argon2id and little more; x/argon2 is the ratio.
func BenchmarkVaultUnlock(b *testing.B) {
	o := testVault(b)
	v := mustOpen(b, o)
	if err := v.Unlock("correct horse"); err != nil {
		b.Fatal(err)
	}
	mustSet(b, v, "A", "value of A")
	var bare, unlock time.Duration
	for b.Loop() {
		start := time.Now()
		argon2.IDKey([]byte("correct horse"), testSalt, argonHeader.Time, argonHeader.Memory, argonHeader.Threads, 32)
		middle := time.Now()
		w, _ := openVault(o)
		if err := w.Unlock("correct horse"); err != nil {
			b.Fatal(err)
		}
		w.Close()
		bare += middle.Sub(start)
		unlock += time.Since(middle)
	}
	b.ReportMetric(unlock.Seconds()/bare.Seconds(), "x-argon2")
}
