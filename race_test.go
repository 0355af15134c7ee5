//go:build race

package main

// underRace says that the race detector is at work, which makes everything
// several times slower: what repeats without concurrency repeats less then.
const underRace = true
