package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servicetest"
	"github.com/onceward/onceward/store/postgres"
)

// TestDiscardedStatements has somebody discard what was prepared on the connections of the pool, as a pool's hook may. The
// next transaction takes another connection.
func TestDiscardedStatements(t *testing.T) {
	t.Parallel()
	url := servicetest.Postgres(t).SchemaURL(t)
	pool := openAdmin(t, url+"&pool_max_conns=1&default_query_exec_mode=cache_statement")
	store, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	transacted(t, store, "first", nothing)
	_, err = pool.Exec(t.Context(), `DEALLOCATE ALL`)
	must(t, err)
	transacted(t, store, "after it was discarded", nothing)
	_, err = store.Transact(t.Context(), reservation("discards"), committing("discards", func(ctx context.Context) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `DEALLOCATE ALL`)
		return err
	}))
	if !errors.Is(err, onceward.ErrUnavailable) {
		t.Errorf("the transaction whose own statements were discarded got %v, want ErrUnavailable", err)
	}
	wantState(t, store, "discards", onceward.StateNone, "I4: nothing was executed")
	transacted(t, store, "second", nothing)
	wantReplay(t, store, "second", "second", "I3")
}
