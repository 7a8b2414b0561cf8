package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestRecordIsNamedByItsHash: in psql a record is found by what a log line says, unless its key tells its time.
func TestRecordIsNamedByItsHash(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s := openStore(t, url)
	c := own(t, s, reservation("key"))
	if n := number(t, openAdmin(t, url),
		`SELECT count(*) FROM onceward_record WHERE id = $1::text::uuid`, c.Hash()); n != 1 {
		t.Errorf("%d rows are named %s", n, c.Hash())
	}
	if name := s.RecordID(c.ID); strings.ReplaceAll(name, "-", "") != c.Hash() {
		t.Errorf("the record %s is named %s", c.Hash(), name)
	}
	if rec, err := s.FindHash(t.Context(), c.Hash()); err != nil || rec.ID != c.ID || rec.State != store.StateInProgress {
		t.Errorf("by its hash (%v, %v) is found", rec, err)
	}
	if rec, err := s.FindHash(t.Context(), reservation("absent").Hash()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("by a hash that no record has (%v, %v) is found", rec.ID, err)
	}
}

// TestTablesBesideTables: two services that share a database have the same key in flight at once. Their records have
// the same name, and their locks must not be the same: one handler may call the other service, with its own key.
func TestTablesBesideTables(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	one, other := openStore(t, server.SchemaURL(t)), openStore(t, server.SchemaURL(t))
	transacted(t, one, "key", func(context.Context) error {
		transacted(t, other, "key", nothing)
		return nil
	})
}

// TestProviderIndex: only records that carry a provider's id are in its index.
func TestProviderIndex(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	entries := func() int {
		exec(t, admin, `REINDEX INDEX onceward_record_provider`) // which counts
		return number(t, admin,
			`SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'onceward_record_provider'::regclass`)
	}
	for _, key := range keys("key", 50) {
		complete(t, s, own(t, s, reservation(key)), "done")
	}
	if n := entries(); n != 0 {
		t.Errorf("%d entries for records without a provider's id", n)
	}
	c := own(t, s, reservation("charged"))
	done := answer("done")
	done.ProviderID = "ch_1"
	_, err := s.Complete(t.Context(), c, done)
	must(t, err)
	if n := entries(); n != 1 {
		t.Errorf("%d entries for one record with a provider's id", n)
	}
}
