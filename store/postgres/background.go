package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

const (
	sweep = `SELECT @sweep($1)`
	reap  = `SELECT @reap($1, $2)`
)

// Sweep implements [store.Sweeper], by the SQL function that a scheduler may call too.
func (s *Store) Sweep(ctx context.Context, limit int) (swept int, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	rows, err := s.own.Query(ctx, s.names.render(sweep), limit)
	if err != nil {
		return 0, unavailable(err)
	}
	var hash [16]byte
	_, err = pgx.ForEachRow(rows, []any{&hash}, func() error {
		swept++
		s.waits.settled(hash)
		return nil
	})
	return swept, unavailable(err)
}

// Reap implements [store.Reaper], by the SQL function that a scheduler may call too. It also forgets late completions that are
// 90 days old.
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (reaped int, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	err = s.own.QueryRow(ctx, s.names.render(reap), limit, soft).Scan(&reaped)
	return reaped, unavailable(err)
}

// ResolveCompleted implements [store.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	return s.settle(ctx, c.ID, store.Event{Kind: store.EventResolveCompleted, Attempt: c.Attempt, Completion: done})
}

// ResolveNotExecuted implements [store.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return s.settle(ctx, c.ID, store.Event{Kind: store.EventResolveNotExecuted, Attempt: c.Attempt, Reason: reason})
}

// ResolveStep implements [store.Reconciler].
func (s *Store) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.settle(ctx, c.ID, store.Event{Kind: store.EventResolveStep, Attempt: c.Attempt, Checkpoint: p})
}

// BeginReconcile implements [store.Reconciler].
func (s *Store) BeginReconcile(ctx context.Context, c store.Claim, count int, wait time.Duration) error {
	_, err := s.change(ctx, c.ID, store.Event{Kind: store.EventBeginReconcile, Attempt: c.Attempt, Count: count, Lease: wait})
	return err
}

// Postpone implements [store.Reconciler].
func (s *Store) Postpone(ctx context.Context, c store.Claim, p store.Postponement) error {
	_, err := s.change(ctx, c.ID, store.Event{
		Kind: store.EventPostpone, Attempt: c.Attempt, Count: p.Count, Lease: p.Wait, MaxAttempts: p.MaxAttempts, Reason: p.Reason, Untried: p.Untried,
	})
	return err
}

// Requeue implements [store.Reconciler].
func (s *Store) Requeue(ctx context.Context, c store.Claim, reason string) error {
	_, err := s.change(ctx, c.ID, store.Event{Kind: store.EventRequeue, Attempt: c.Attempt, Reason: reason})
	return err
}

// Bust implements [store.Buster].
func (s *Store) Bust(ctx context.Context, id store.ID, force bool) error {
	return s.settle(ctx, id, store.Event{Kind: store.EventBust, Force: force})
}
