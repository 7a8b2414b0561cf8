package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestDiscardedStatements has somebody discard what was prepared on the connections of the pool, as a pool's hook may. The
// next transaction takes another connection.
func TestDiscardedStatements(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	pool := openAdmin(t, url+"&pool_max_conns=1&default_query_exec_mode=cache_statement")
	s, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	transacted(t, s, "first", nothing)
	_, err = pool.Exec(t.Context(), `DEALLOCATE ALL`)
	must(t, err)
	transacted(t, s, "after it was discarded", nothing)
	_, err = s.Transact(t.Context(), reservation("discards"), committing("discards", func(ctx context.Context) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `DEALLOCATE ALL`)
		return err
	}))
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the transaction whose own statements were discarded got %v, want ErrUnavailable", err)
	}
	wantState(t, s, "discards", store.StateNone, "I4: nothing was executed")
	transacted(t, s, "second", nothing)
	wantReplay(t, s, "second", "second", "I3")
}
