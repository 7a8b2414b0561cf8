package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestHandlersWithoutConnections: while no connection can be made for handlers, what settles uses the connections that
// it has.
func TestHandlersWithoutConnections(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	config, err := pgxpool.ParseConfig(servers.Postgres(t).SchemaURL(t))
	if err != nil {
		t.Fatal(err)
	}
	var hangs atomic.Bool
	connecting, end := make(chan bool, 10), make(chan error)
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if !hangs.Load() {
			return nil
		}
		connecting <- true
		return <-end
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s, err := postgres.New(ctx, pool)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	_, _ = s.Get(ctx, store.ID{Scope: "s", Key: "k"}) // has a connection made
	pool.Reset()
	hangs.Store(true)
	failed := make(chan error)
	for n := range 2 { // the first that fails is what the second one has to wait for
		go func() { failed <- s.InTx(ctx, func(context.Context) error { return nil }) }()
		<-connecting
		if n == 0 {
			end <- context.DeadlineExceeded
			if err := <-failed; err == nil {
				t.Error("a transaction without a connection")
			}
		}
	}
	if _, err := s.Get(ctx, store.ID{Scope: "s", Key: "k"}); err == nil || ctx.Err() != nil {
		t.Errorf("while a connection for handlers is made: %v, want an answer", err)
	}
	hangs.Store(false)
	close(end)
	if err := <-failed; err != nil {
		t.Error(err)
	}
}
