package main

import "io/fs"

// ownerFixes finds nothing: files in the user's profile are the user's.
func ownerFixes(string, fs.FileInfo, fs.FileMode) []string { return nil }

// syncFolder does nothing: a folder cannot be synced here.
func syncFolder(string) error { return nil }
