package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
)

const vaultUsage = "vault takes set NAME with --host, --tool, --short and --passphrase, or list, or delete NAME; the value of a secret is typed or piped in, never an argument, which others can see"

// vaultCommand is "picket vault". Its mistakes do not quote the arguments: one of
// them may be the value.
func (p *program) vaultCommand(ctx context.Context, args []string) error {
	var change func(*app) error
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == "list":
		return p.vaultList(ctx)
	case len(args) == 2 && args[0] == "delete":
		change = func(a *app) error { return a.vault.Delete(ctx, args[1]) }
	case args[0] == "set":
		e, protect, err := parseVaultSet(args[1:])
		if err != nil {
			return err
		}
		change = func(a *app) error { return a.vaultSet(ctx, e, protect) }
	default:
		return usageErrorf(vaultUsage)
	}
	return p.withData(ctx, false, func(a *app) error {
		if err := a.unlock(ctx); err != nil {
			return err
		}
		return change(a)
	})
}

func parseVaultSet(args []string) (e vaultEntry, protect bool, err error) {
	fs := newFlags("vault set")
	fs.Func("host", "", func(s string) error {
		e.Hosts = append(e.Hosts, strings.ToLower(s))
		return checkHostPattern(strings.ToLower(s))
	})
	fs.Func("tool", "", func(s string) error {
		if e.Tools = append(e.Tools, s); !slices.Contains(namesOf(allTools()), s) {
			return errors.New("no tool")
		}
		return nil
	})
	fs.BoolVar(&e.Short, "short", false, "")
	fs.BoolVar(&protect, "passphrase", false, "")
	if fs.Parse(args) != nil || fs.NArg() == 0 {
		return e, false, usageErrorf(vaultUsage)
	}
	e.Name = fs.Arg(0)
	if fs.Parse(fs.Args()[1:]) != nil || fs.NArg() > 0 { // flags may come after the name
		return e, false, usageErrorf(vaultUsage)
	}
	if !secretName().MatchString(e.Name) {
		return e, false, usageErrorf("%v", errSecretName)
	}
	return e, protect, nil
}

// vaultSet asks for what is missing and keeps the secret.
func (a *app) vaultSet(ctx context.Context, e vaultEntry, protect bool) (err error) {
	if e.Value, err = a.secretText(ctx, e.Name); err == nil {
		err = e.check()
	}
	if err == nil && protect {
		err = a.choosePassphrase(ctx)
	}
	if err == nil {
		err = a.vault.Set(ctx, e)
	}
	if err != nil {
		return err
	}
	if len(e.Value) < minSecret && !e.Short {
		a.prog.notef("%s is shorter than %d bytes: it is only kept out of texts where it stands alone as a word (--short if that is right)", e.Name, minSecret)
	}
	return a.prog.print(fmt.Sprintf("%s is set, length %d\n", e.Name, len(e.Value)))
}

// secretText reads a value: what is piped in, but for one line end, or a line that
// is typed.
func (a *app) secretText(ctx context.Context, name string) (string, error) {
	if isTerminal(a.prog.stdin) {
		text, err := a.askHidden(ctx, "value of "+name+" (one line; pipe in what is longer): ")
		if err == nil && len(text) >= maxTypedLine {
			err = errors.New("a terminal cuts so long a line: pipe the value in")
		}
		return text, err
	}
	b, err := io.ReadAll(io.LimitReader(a.prog.stdin, maxSecret+3))
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), err
}

// maxTypedLine is the longest line that Linux passes on from a terminal; termios(3).
const maxTypedLine = 4095

// choosePassphrase has the owner choose one for a vault that is to be made.
func (a *app) choosePassphrase(ctx context.Context) error {
	switch kdf := a.vault.header.KDF; {
	case kdf == "argon2id":
		return nil
	case kdf != "" || a.cfg.VaultKey != "":
		return errors.New("--passphrase is for a new vault, and this one has a key")
	}
	first, err := a.askHidden(ctx, "passphrase for the new vault: ")
	if err != nil {
		return err
	}
	again, err := a.askHidden(ctx, "the same again: ")
	switch {
	case err != nil:
		return err
	case first != again:
		return errors.New("the two passphrases differ; nothing was kept")
	case len(first) < minSecret:
		return fmt.Errorf("a passphrase has %d bytes or more; nothing was kept", minSecret)
	}
	return a.vault.Unlock(first)
}

// vaultList is "picket vault list". It writes nothing.
func (p *program) vaultList(ctx context.Context) error {
	a, err := p.settings(taskFlags{})
	if err != nil {
		return err
	}
	a.reads = true
	if err := a.unlock(ctx); err != nil {
		return err
	}
	list, err := a.vault.current()
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%-24s  %s  %s  %s\n", e.Name, e.Created.Local().Format(time.DateOnly), e.Changed.Local().Format(time.DateTime),
			cmp.Or(strings.Join(slices.Concat(e.Hosts, e.Tools), " "), "not bound"))
	}
	return errors.Join(err, p.print(b.String()))
}

// unlock opens the vault, if there is one; it may have to ask for its passphrase.
func (a *app) unlock(ctx context.Context) error {
	err := a.vault.Refresh()
	if !errors.Is(err, errVaultLocked) {
		return err
	}
	phrase, perr := a.askHidden(ctx, "passphrase of the vault: ")
	if perr != nil {
		return fmt.Errorf("%w: %w", err, perr)
	}
	return a.vault.Unlock(phrase)
}

// askHidden asks the owner for a line that is not shown, one process at a time.
func (a *app) askHidden(ctx context.Context, prompt string) (string, error) {
	if !a.reads { // the lock is a file
		unlock, err := lockTTY(ctx, a.tryTerminalLock, func() {})
		if err != nil {
			return "", err
		}
		defer unlock()
	}
	return readHidden(ctx, prompt)
}

// checkVault is a line of doctor.
func (a *app) checkVault(ctx context.Context, add func(name string, err error, line, fix string)) {
	const anew = "put the newest copy of vault.enc back, or remove the file and set the secrets again"
	err := a.unlock(ctx)
	kdf := a.vault.header.KDF
	fix := ""
	switch {
	case errors.Is(err, errVaultHead), errors.Is(err, errVaultBody), errors.Is(err, errVaultOlder):
		fix = anew
	case errors.Is(err, errVaultNewer):
		fix = "install that picket, or " + anew
	case errors.Is(err, errVaultLocked):
		fix = "run it on a terminal"
	case errors.Is(err, errVaultKey) && kdf == "argon2id":
		fix = "type the passphrase again"
	case errors.Is(err, errVaultKey), errors.Is(err, fs.ErrNotExist):
		fix = "put the right key back, in PICKET_VAULT_KEY or as vault.key beside the settings; without it, remove vault.enc and set the secrets again"
	}
	list, _ := a.vault.current()
	for _, e := range list {
		if len(e.Value) < minSecret {
			add("vault", nil, e.Name+" is too short to be kept out of texts but where it stands alone as a word", "")
		}
	}
	line := a.vault.path + " (none yet)"
	if st, _ := stateOf(a.folders.Data); st.Vault > 0 {
		line = a.vault.path + " (removed; what it held is not kept out of texts)"
	}
	if kdf != "" {
		line = fmt.Sprintf("%s: secrets: %d, opened by %s", a.vault.path, len(list), map[string]string{"key": "a key", "argon2id": "a passphrase"}[kdf])
	}
	add("vault", err, line, fix)
}
