package mysql_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

func idOf(key string) store.ID { return store.ID{Scope: "alice", Key: key} }

// reservation asks for a key with a nonce of its own. The payload is the same each time.
func reservation(key string) *store.Reservation {
	r := &store.Reservation{
		ID: idOf(key), Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{7}}},
		Lease:        time.Minute, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

func answer(body string) *store.Completion {
	return &store.Completion{Response: store.Response{Status: 201, Body: []byte(body)}}
}

// own reserves a key, which must be granted.
func own(t testing.TB, s store.Store, r *store.Reservation) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), r)
	if err == nil {
		err = v.Check(r)
	}
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve %q: got (%s, %v), want the right to execute", r.Key, v.Decision, err)
	}
	return store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
}

// wantState checks the record of a key.
func wantState(t testing.TB, s store.Store, key string, want store.State, rule string) store.Record {
	t.Helper()
	rec, err := s.Get(t.Context(), idOf(key))
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	if err != nil || rec.State != want {
		t.Errorf("%s: the record of %q is %s (%v), want %s", rule, key, rec.State, err, want)
	}
	return rec
}

// begins matches statements on the table of records by how they begin.
func begins(word string) func(sql string) bool {
	return func(sql string) bool { return strings.HasPrefix(sql, word) && strings.Contains(sql, "onceward_record") }
}
