package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const (
	sweep = `SELECT @sweep($1)`
	reap  = `SELECT @reap($1, $2)`
)

// Sweep implements [store.Sweeper] with the SQL function that a scheduler may also call.
func (s *Store) Sweep(ctx context.Context, limit int) (swept int, err error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	hashes, err := collect(ctx, s.own, s.render(sweep), []any{limit}, pgx.RowTo[[16]byte])
	for _, hash := range hashes {
		s.waits.settled(hash)
	}
	return len(hashes), unavailable(err)
}

// Reap implements [store.Reaper] with the SQL function that a scheduler may also call. It also deletes late
// completions that are 90 days old.
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (reaped int, err error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	err = s.own.QueryRow(ctx, s.render(reap), limit, soft).Scan(&reaped)
	return reaped, unavailable(err)
}
