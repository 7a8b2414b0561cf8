package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// newReferring makes a shop whose rows say which record they were made under. The constraint is deferred, because the record
// is written at the end of the transaction.
func newReferring(t *testing.T, h handle) *shop {
	s := newShop(t, h)
	exec(t, s.admin, `ALTER TABLE business
		ADD COLUMN record uuid REFERENCES onceward_record (id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED`)
	return s
}

// refer inserts a row that refers to the record of its own operation.
func (s *shop) refer(id store.ID) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `INSERT INTO business (value, record) VALUES ($1, $2)`, id.Key, s.store.RecordID(id))
		return err
	}
}

// TestReferenceToTheRecord: business rows can refer to the record, and outlive it.
func TestReferenceToTheRecord(t *testing.T) {
	t.Parallel()
	for _, h := range []handle{pgxHandle, sqlHandle} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newReferring(t, h)
			for key, retention := range map[string]time.Duration{"kept": time.Hour, "reaped": time.Microsecond} {
				r := reservation(key)
				r.Retention = retention
				v, err := s.store.Transact(t.Context(), r, committing(key, s.refer(r.ID)))
				if err != nil || v.Decision != store.DecisionExecute {
					t.Fatalf("E1: got (%s, %v)", v.Decision, err)
				}
			}
			const referring = `SELECT count(*) FROM business JOIN onceward_record ON id = record WHERE value = $1`
			for _, key := range []string{"kept", "reaped"} {
				if n := number(t, s.admin, referring, key); n != 1 {
					t.Errorf("%d rows refer to the record of %q, want 1", n, key)
				}
			}
			if n, err := s.store.Reap(t.Context(), 10, false); err != nil || n != 1 {
				t.Fatalf("section 7: reaped (%d, %v), want 1", n, err)
			}
			s.wantRows("the reaper takes no business along", "kept", "reaped")
			for key, want := range map[string]int{"kept": 1, "reaped": 0} {
				if n := number(t, s.admin, referring, key); n != want {
					t.Errorf("after the reaper %d rows refer to the record of %q, want %d", n, key, want)
				}
			}
		})
	}
}

// TestReferenceToNoRecord: a reference to a record that is not there at the end stops the commit, and nothing was executed.
func TestReferenceToNoRecord(t *testing.T) {
	t.Parallel()
	s := newReferring(t, pgxHandle)
	v, err := s.store.Transact(t.Context(), reservation("key"), committing("key", s.refer(idOf("another"))))
	if err == nil {
		t.Errorf("a commit that breaks a constraint got %s", v.Decision)
	}
	s.wantRows("I4")
	wantState(t, s.store, "key", store.StateNone, "I4")
	transacted(t, s.store, "key", s.refer(idOf("key")))
	s.wantRows("E1", "key")
}

// TestReferenceThroughTheGuard: a handler learns the name of its record from its operation.
func TestReferenceThroughTheGuard(t *testing.T) {
	t.Parallel()
	s := newReferring(t, pgxHandle)
	guard := guardOver(t, s.store)
	call := onceward.Call{Scope: "alice", Key: "key", Operation: "pay"}
	for _, replayed := range []bool{false, true} {
		result, err := guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			op := onceward.FromContext(ctx)
			return []byte("paid"), s.refer(store.ID{Scope: op.Scope(), Key: op.Key()})(ctx)
		}, onceward.Transactional())
		if err != nil || string(result.Value) != "paid" || result.Replayed != replayed {
			t.Errorf("E4: got (%q, replayed %t, %v)", result.Value, result.Replayed, err)
		}
	}
	if n := number(t, s.admin, `SELECT count(*) FROM business JOIN onceward_record ON id = record`); n != 1 {
		t.Errorf("%d rows refer to their record, want 1", n)
	}
}
