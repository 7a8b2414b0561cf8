package main

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// pgStore is what the measurements need of the store.
type pgStore interface {
	store.Store
	store.Transactor
	store.Reaper
	Close() error
}

// openStore opens the store in the schema of a turn, with transactions on its pool. Reservations go over a few connections
// of the store's own.
func openStore(ctx context.Context, s *pgSite) (pgStore, error) {
	options := []postgres.Option{postgres.WithSchema(s.schema)}
	if s.commits["synchronous_commit"] == "off" {
		// The store warns of commits that can be lost, as it should, but here they are meant to be.
		options = append(options, postgres.WithLogger(slog.New(slog.DiscardHandler)))
	}
	return postgres.New(ctx, s.pool, options...)
}

// openSingly opens the store so that each call is a statement of its own, on as many connections as the pool may have.
func openSingly(ctx context.Context, s *pgSite) (pgStore, error) {
	return postgres.New(ctx, s.pool, postgres.WithSchema(s.schema), postgres.WithoutBatching())
}

// storeTx is the transaction that protected work writes through.
func storeTx(ctx context.Context) pgx.Tx { return postgres.Tx(ctx) }
