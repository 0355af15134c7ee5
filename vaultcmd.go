package main

import (
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
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == "list":
		return p.vaultList(ctx)
	case len(args) == 2 && args[0] == "delete":
		return p.withVault(ctx, func(a *app) error { return a.vault.Delete(ctx, args[1]) })
	case args[0] == "set":
		e, protect, err := parseVaultSet(args[1:])
		if err != nil {
			return err
		}
		return p.withVault(ctx, func(a *app) error { return a.vaultSet(ctx, e, protect) })
	}
	return usageErrorf(vaultUsage)
}

// withVault runs f with the vault open for a change.
func (p *program) withVault(ctx context.Context, f func(*app) error) error {
	return p.withData(ctx, false, func(a *app) error {
		if err := a.unlock(ctx); err != nil {
			return err
		}
		return f(a)
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
			return fmt.Errorf("there is no tool %q", s)
		}
		return nil
	})
	fs.BoolVar(&e.Short, "short", false, "")
	fs.BoolVar(&protect, "passphrase", false, "")
	var names []string
	for { // flags may come after the name
		if fs.Parse(args) != nil {
			return e, false, usageErrorf(vaultUsage)
		}
		if args = fs.Args(); len(args) == 0 {
			break
		}
		names, args = append(names, args[0]), args[1:]
	}
	if len(names) != 1 {
		return e, false, usageErrorf(vaultUsage)
	}
	if e.Name = names[0]; !secretName.MatchString(e.Name) {
		return e, false, usageErrorf("%v", errSecretName)
	}
	return e, protect, nil
}

// vaultSet asks for what is missing and keeps the secret.
func (a *app) vaultSet(ctx context.Context, e vaultEntry, protect bool) (err error) {
	if e.Value, err = a.secretText(ctx, e.Name); err != nil {
		return err
	}
	if err := e.check(); err != nil {
		return err
	}
	if protect {
		if err := a.choosePassphrase(ctx); err != nil {
			return err
		}
	}
	if err := a.vault.Set(ctx, e); err != nil {
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
	a.vault.opt.New = first
	return nil
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
	list, err := a.vault.List()
	for _, e := range list {
		bound := strings.Join(append(e.Hosts, e.Tools...), " ")
		if bound == "" {
			bound = "not bound"
		}
		line := fmt.Sprintf("%-24s  %s  %s  %s\n", e.Name, e.Created.Local().Format(time.DateOnly), e.Changed.Local().Format(time.DateTime), bound)
		if err := p.print(line); err != nil {
			return err
		}
	}
	return err
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
	for !a.reads { // the lock is a file
		unlock, ok, err := a.tryTerminalLock(ttyName())
		if err != nil {
			return "", err
		}
		if ok {
			defer unlock()
			break
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return readHidden(ctx, prompt)
}

const vaultAnew = "put the newest copy of vault.enc back, or remove the file and set the secrets again"

var vaultFixes = map[error]string{errVaultHead: vaultAnew, errVaultBody: vaultAnew, errVaultOlder: vaultAnew,
	errVaultNewer: "install that picket, or " + vaultAnew,
	errVaultKey:   "put the right key back, in PICKET_VAULT_KEY or as vault.key beside the settings; without it, remove vault.enc and set the secrets again"}

// checkVault is a line of doctor.
func (a *app) checkVault(ctx context.Context, add func(name string, err error, line, fix string)) {
	err := a.unlock(ctx)
	list, _ := a.vault.Values()
	kdf := a.vault.header.KDF
	if err != nil {
		fix := vaultFixes[err]
		switch {
		case kdf == "argon2id" && err == errVaultKey:
			fix = "type the passphrase again"
		case errors.Is(err, errVaultLocked):
			fix = "run it on a terminal"
		case errors.Is(err, fs.ErrNotExist):
			fix = vaultFixes[errVaultKey]
		}
		add("vault", err, "", fix)
		return
	}
	line := a.vault.path + " (none yet)"
	if kdf != "" {
		n := 0
		for _, s := range list {
			if s.Name != "" {
				n++
			}
			if s.Name != "" && len(s.Value) < minSecret {
				add("vault", nil, s.Name+" is too short to be kept out of texts but where it stands alone as a word", "")
			}
		}
		line = fmt.Sprintf("%s: secrets: %d, opened by %s", a.vault.path, n, map[string]string{"key": "a key", "argon2id": "a passphrase"}[kdf])
	}
	add("vault", nil, line, "")
}
