package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// shop is a store beside the table that its handlers write to.
type shop struct {
	*testing.T
	store *postgres.Store
	admin *pgxpool.Pool
}

func newShop(t *testing.T, h handle) *shop {
	t.Helper()
	url := servers.Postgres(t).SchemaURL(t)
	s := &shop{T: t, admin: openAdmin(t, url)}
	exec(t, s.admin, `CREATE TABLE business (value text NOT NULL UNIQUE)`)
	store, closeHandle := h.open(t, url)
	t.Cleanup(func() {
		must(t, store.Close())
		closeHandle()
	})
	s.store = store
	return s
}

// handler runs f in a transaction that commits, and checks that it did.
func (s *shop) handler(f func(ctx context.Context, tx pgx.Tx)) {
	s.Helper()
	transacted(s, s.store, "key", func(ctx context.Context) error {
		f(ctx, postgres.Tx(ctx))
		return nil
	})
	wantReplay(s, s.store, "key", "key", "I3")
}

// wantRows checks which values were committed.
func (s *shop) wantRows(rule string, want ...string) {
	s.Helper()
	rows, err := s.admin.Query(context.Background(), `SELECT value FROM business ORDER BY value`)
	must(s, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(s, err)
	if len(got) != len(want) {
		s.Fatalf("%s: the table holds %q, want %q", rule, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			s.Errorf("%s: the table holds %q, want %q", rule, got, want)
		}
	}
}

// insertion is the statement that handlers run.
const insertion = `INSERT INTO business (value) VALUES ($1)`

// ownedErr checks that an attempt to end the transaction was refused.
func ownedErr(t testing.TB, what string, err error) {
	t.Helper()
	if err != store.ErrTxOwned {
		t.Errorf("%s got %v, want ErrTxOwned", what, err)
	}
}
