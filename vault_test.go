package main

import (
	"path/filepath"
	"testing"
)

func TestVaultSmoke(t *testing.T) {
	dir := t.TempDir()
	o := vaultOptions{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
	if err := ensureDir(o.Data); err != nil {
		t.Fatal(err)
	}
	log, err := openAudit(o.Data)
	if err != nil {
		t.Fatal(err)
	}
	o.Log = log
	v, err := openVault(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Set(t.Context(), vaultEntry{Name: "A", Value: "supersecret"}); err != nil {
		t.Fatal(err)
	}
	e, ok, err := v.Lookup("A")
	t.Log(e, ok, err)
	w, err := openVault(o)
	t.Log(w.Values())
	if err := w.Delete(t.Context(), "B"); err != nil {
		t.Log(err)
	}
	if err := w.Delete(t.Context(), "A"); err != nil {
		t.Fatal(err)
	}
	t.Log(v.List())
	t.Log(verifyLog(o.Data))
}
