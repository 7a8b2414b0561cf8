package main

import (
	"strings"
	"testing"
)

// TestProviderIDLikeAHash: an id of 32 hexadecimal digits, such as a UUID, is found although it looks like a hash.
func TestProviderIDLikeAHash(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	id := strings.Repeat("0123456789abcdef", 2)
	s.must(t, acting("unknown", "resolve", s.unknown.Hash(), "--completed", "--status", "201", "--provider-id", id)...)
	says(t, s.must(t, "keys", "show", id), s.unknown.Hash())
}
