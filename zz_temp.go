package main

import "strconv"

// stamp is the form of a time in the logs.
const stamp = "2006-01-02T15:04:05.000000Z"

type Line struct{ Raw []byte }

func printable(s string) string { q := strconv.Quote(s); return q[1 : len(q)-1] }
