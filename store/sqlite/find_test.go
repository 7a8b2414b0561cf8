package sqlite

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// twoRecords opens a store that holds the records of two keys, the first in row 1.
func twoRecords(t *testing.T, keys ...string) *Store {
	t.Helper()
	s := openInside(t, insidePath(t))
	for _, key := range keys {
		if v, err := s.Reserve(t.Context(), insideReservation(key)); err != nil || v.Decision != store.DecisionExecute {
			t.Fatalf("reserve: %s, %v", v.Decision, err)
		}
	}
	return s
}

// damage runs a statement on the table of records.
func damage(t *testing.T, s *Store, statement string) {
	t.Helper()
	err := s.writer.do(t.Context(), newFunction(func(r *records, _ time.Time) error { return r.conn.Exec(statement) }))
	if err != nil {
		t.Fatal(err)
	}
}

// TestUnreadableIsFoundByHash: a record that cannot be read is an error for its key, and is found by its hash.
func TestUnreadableIsFoundByHash(t *testing.T) {
	t.Parallel()
	s := twoRecords(t, "key")
	damage(t, s, `UPDATE onceward_record SET record = x'ff'`)
	if _, err := s.Get(t.Context(), insideID("key")); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("a record that cannot be read gives the error %v", err)
	}
	rec, err := s.FindHash(t.Context(), insideID("key").Hash())
	if err != nil || rec.ID != insideID("key") || rec.Version != 0 {
		t.Errorf("a record that cannot be read is found as %+v, %v", rec, err)
	}
}

// TestHashTaken: a key whose hash is the hash of another key is an error, and gets no answer of the other's (I9).
func TestHashTaken(t *testing.T) {
	t.Parallel()
	s := twoRecords(t, "first", "second")
	damage(t, s, `UPDATE onceward_record SET id = (SELECT id FROM onceward_record WHERE rowid = 2) WHERE rowid = 1`)
	if rec, err := s.Get(t.Context(), insideID("first")); !errors.Is(err, store.ErrUnreadable) || rec.State != store.StateNone {
		t.Errorf("the record of another key is given out: %+v, %v", rec, err)
	}
}
