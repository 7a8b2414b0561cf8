package client_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/store/memory"
)

// TestNamesAreThoseOfTheGuard holds the names that the client has of its own against those of the guard, which a
// caller does not import.
func TestNamesAreThoseOfTheGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := client.ProfileIETF()
		if p.Header != onceward.DefaultKeyHeader || p.FirstSentHeader != onceward.FirstSentHeader {
			t.Errorf("the names are %s and %s", p.Header, p.FirstSentHeader)
		}
		handler := &counted{}
		c := newClient(t, client.Config{Base: serve(t, newWire(), guarded(t, memory.New(), handler, reserved,
			onceward.RequireFirstSent(time.Hour, 0)))})
		ctx := client.WithKey(t.Context(), `a "quoted\" key`)
		first, again := post(ctx, c), post(ctx, c)
		for name, r := range map[string]reply{"first": first, "again": again} {
			if _, err := http.ParseTime(r.header.Get(p.ExpiresHeader)); r.status != http.StatusCreated || err != nil {
				t.Errorf("%s: %+v: %v", name, r, err)
			}
		}
		if again.header.Get(p.ReplayedHeader) != "true" || first.header.Get(p.ReplayedHeader) != "" {
			t.Errorf("only the second is a replay: %v, %v", first.header, again.header)
		}
		if again.key != `a "quoted\" key` {
			t.Errorf("the key is %s", again.key)
		}
	})
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	seen, last := make(map[string]bool), ""
	for range 1000 {
		key := client.NewKey()
		parts := strings.Split(key, "-")
		if len(key) != 36 || len(parts) != 5 || parts[2][0] != '7' || !strings.ContainsRune("89ab", rune(parts[3][0])) ||
			strings.Trim(key, "0123456789abcdef-") != "" {
			t.Fatalf("%s is no UUID of version 7", key)
		}
		if seen[key] || key[:13] < last {
			t.Fatalf("%s after %s", key, last)
		}
		seen[key], last = true, key[:13]
	}
}
