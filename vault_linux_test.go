package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/crypto/argon2"
)

// "picket" is picket itself, with the arguments in PICKET_TTY_ARGS.
var _ = func() bool {
	ttyPrograms["picket"] = func() {
		os.Args = append([]string{"picket"}, strings.Fields(os.Getenv("PICKET_TTY_ARGS"))...)
		main()
	}
	return true
}()

// vaultSession runs a command of picket's on a terminal.
func vaultSession(t *testing.T, home, args string, stdin *os.File) *ttyTest {
	t.Helper()
	return startTTY(t, "picket", 24, stdin, "PICKET_HOME="+home, "PICKET_WORKSPACE="+home+"/ws", "PICKET_TTY_ARGS="+args)
}

func (tt *ttyTest) ended() {
	tt.t.Helper()
	tt.want("") // of a program that reports nothing
}

func (tt *ttyTest) echoes() bool {
	var st syscall.Termios
	return ioctl(tt.master, syscall.TCGETS, unsafe.Pointer(&st)) == nil && st.Lflag&syscall.ECHO != 0
}

func vaultHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "ws"), 0o700); err != nil {
		t.Fatal(err)
	}
	return home
}

// passphraseHome has a vault with the passphrase "correct horse".
func passphraseHome(t *testing.T) string {
	t.Helper()
	home := vaultHome(t)
	data := filepath.Join(home, "data")
	if err := ensureDir(data); err != nil {
		t.Fatal(err)
	}
	b := sealed(t, cheapArgon, argon2.IDKey([]byte("correct horse"), testSalt, 1, 8, 1, 32), vaultEntry{Name: "A", Value: "supersecret"})
	if err := os.WriteFile(filepath.Join(data, vaultName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return home
}

func TestVaultAsksWithoutEcho(t *testing.T) {
	t.Parallel()
	home := vaultHome(t)
	p := vaultSession(t, home, "vault set A --passphrase", nil)
	p.see("value of A", 1)
	p.typed("supersecret value\r")
	p.see("passphrase for the new vault: ", 1)
	p.typed("correct horse\r")
	p.see("the same again: ", 1)
	p.typed("correct horsf\r")
	p.see("the two passphrases differ", 1)
	p.ended()
	if _, err := os.Stat(filepath.Join(home, "data", vaultName)); err == nil {
		t.Error("a vault was made")
	}
	p = vaultSession(t, home, "vault set A --passphrase", nil)
	p.see("value of A", 1)
	p.typed("supersecret value\rthe second line that was pasted\r")
	p.see("passphrase for the new vault: ", 1)
	p.typed("correct horse\r")
	p.see("the same again: ", 1)
	p.typed("correct horse\r")
	p.see("A is set, length 17", 1)
	p.ended()
	for _, secret := range []string{"supersecret", "horse", "pasted"} {
		if strings.Contains(p.screen(), secret) {
			t.Errorf("%q was shown:\n%q", secret, p.screen())
		}
	}
	if _, err := os.Stat(filepath.Join(home, "config", vaultKeyName)); err == nil {
		t.Error("there is a key file besides the passphrase")
	}
	v, _ := openVault(vaultOptions{Data: filepath.Join(home, "data")})
	defer v.Close()
	if err := v.Unlock("correct horse"); err != nil {
		t.Fatal(err)
	}
	wantSecret(t, v, "A", "supersecret value")
}

func TestVaultPassphraseOfATask(t *testing.T) {
	t.Parallel()
	home := passphraseHome(t)
	if err := os.WriteFile(filepath.Join(home, "ws", "note"), []byte("it is supersecret, correct horse"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := vaultSession(t, home, "--no-stdin --model rehearsal read note", nil)
	p.see("passphrase of the vault: ", 1)
	p.typed("correct horse\r")
	p.see("it is {{vault:A}}, [redacted: vault passphrase]", 1)
	p.ended()
	if s := p.screen(); strings.Count(s, "passphrase of") != 1 || strings.Contains(s, "horse") {
		t.Errorf("shown:\n%q", s)
	}
	p = vaultSession(t, home, "--no-stdin --model rehearsal --allow shell:touch run: touch made", nil)
	p.see("passphrase of the vault: ", 1)
	p.typed("wrong horse\r")
	p.see("no tool runs: the vault has another key or passphrase", 1)
	p.ended()
	p = vaultSession(t, home, "vault list", nil)
	p.see("passphrase of the vault: ", 1)
	p.typed("correct horse\r")
	p.see("not bound", 1)
	p.ended()
	p = vaultSession(t, home, "doctor", nil)
	p.see("passphrase of the vault: ", 1)
	p.typed("correct horse\r")
	p.see("secrets: 1, opened by a passphrase", 1)
	p.ended()
	// Piped-in text is a value, not a passphrase.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.WriteString("piped value\n")
	w.Close()
	p = vaultSession(t, home, "vault set B", r)
	p.see("passphrase of the vault: ", 1)
	p.typed("correct horse\r")
	p.see("B is set, length 11", 1)
	p.ended()
}

func TestVaultPromptIsGivenUp(t *testing.T) {
	t.Parallel()
	home := passphraseHome(t)
	p := vaultSession(t, home, "--no-stdin --model rehearsal --allow shell:touch run: touch made", nil)
	p.see("passphrase of the vault: ", 1)
	if p.echoes() {
		t.Error("what is typed is shown")
	}
	p.typed("corr\x03")
	p.see("stopped by Ctrl-C", 1)
	p.ended()
	if !p.echoes() {
		t.Error("the terminal was left without echo")
	}
	// Where there is no terminal, it is a clear failure and no wait.
	cmd := exec.CommandContext(t.Context(), picketBinary(t, t.TempDir()), "--no-stdin", "--model", "rehearsal", "--allow", "shell:touch", "run: touch made")
	cmd.Env = append(os.Environ(), "PICKET_HOME="+home, "PICKET_WORKSPACE="+home+"/ws")
	detach(cmd)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitFailed || !bytes.Contains(out, []byte("the vault needs its passphrase: there is no terminal to ask on")) {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(home, "ws", "made")); err == nil {
		t.Error("the tool ran")
	}
}
