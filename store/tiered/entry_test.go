package tiered

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestDoubt: a value of the front is only used as an answer if it is a completed record of this ID, whole, not expired,
// and not too old by the node's clock, whatever the front's end of it.
func TestDoubt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := New(memory.New(), NewMemory(MemoryConfig{}), Config{Clock: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	print := store.Fingerprint{Secret: 7, Rules: 1, Sum: sha256.Sum256([]byte("request"))}
	r := &store.Reservation{
		ID: store.ID{Scope: "acme", Key: "key"}, Fingerprints: []store.Fingerprint{print},
		Nonce: store.Nonce{1}, Lease: time.Hour, Retention: time.Hour,
	}
	base := func() entry {
		return entry{readAt: now, now: now, record: store.Record{
			ID: r.ID, Version: 1, State: store.StateCompleted, Fingerprint: print, Attempt: 1,
			Response: store.Response{Status: 201, Body: []byte("done")}, ExpiresAt: now.Add(time.Hour),
		}}
	}
	for name, test := range map[string]struct {
		change func(e *entry)
		hit    bool
	}{
		"as it is":            {func(*entry) {}, true},
		"as old as it may be": {func(e *entry) { e.readAt = now.Add(-DefaultMaxAge) }, true},
		"too old":             {func(e *entry) { e.readAt = now.Add(-DefaultMaxAge - time.Microsecond) }, false},
		"from the future":     {func(e *entry) { e.readAt = now.Add(time.Microsecond) }, false},
		"expired":             {func(e *entry) { e.record.ExpiresAt = now }, false},
		"expired meanwhile":   {func(e *entry) { e.readAt, e.now = now.Add(-time.Second), now.Add(time.Hour-time.Second) }, false},
		"of another scope":    {func(e *entry) { e.record.Scope = "other" }, false},
		"of another key":      {func(e *entry) { e.record.Key = "kez" }, false},
		"of another request":  {func(e *entry) { e.record.Fingerprint.Sum[0]++ }, false},
		"of another secret":   {func(e *entry) { e.record.Fingerprint.Secret++ }, false},
		"of a newer version":  {func(e *entry) { e.record.Version++ }, false},
		"without an answer":   {func(e *entry) { e.record.Response = store.Response{} }, false},
		"in progress":         {func(e *entry) { e.record.State = store.StateInProgress }, false},
		"in progress, the same": {func(e *entry) {
			e.record.State, e.record.Nonce, e.record.LeaseUntil = store.StateInProgress, r.Nonce, now.Add(time.Hour)
		}, false},
		"to be retried": {func(e *entry) { e.record.State = store.StateRetryable }, false},
		"unknown":       {func(e *entry) { e.record.State = store.StateUnknown }, false},
		"gone":          {func(e *entry) { e.record.State = store.StateExpired }, false},
	} {
		e := base()
		test.change(&e)
		v, hit := s.answer(r, e.appendBinary(nil))
		if hit != test.hit || hit && (v.Decision != store.DecisionReplay || string(v.Record.Response.Body) != "done") {
			t.Errorf("an entry %s was answered: %t, want %t", name, hit, test.hit)
		}
	}
	whole := base().appendBinary(nil)
	for i := range whole {
		if _, hit := s.answer(r, whole[:i]); hit {
			t.Errorf("an entry cut off at %d was answered", i)
		}
		for bit := range 8 {
			damaged := append([]byte(nil), whole...)
			damaged[i] ^= 1 << bit
			if _, hit := s.answer(r, damaged); hit {
				t.Errorf("an entry with bit %d of byte %d changed was answered", bit, i)
			}
		}
	}
}
