package main

import "testing"

func limitFileSize(t *testing.T, n uint64) { t.Fatal("there are no limits here") }
