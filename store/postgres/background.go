package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
)

const (
	sweep = `SELECT @sweep($1)`
	reap  = `SELECT @reap($1, $2)`
)

// Sweep implements [onceward.Sweeper], by the SQL function that a scheduler may call too.
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

// Reap implements [onceward.Reaper], by the SQL function that a scheduler may call too. It also forgets findings that are
// 90 days old.
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (reaped int, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	err = s.own.QueryRow(ctx, s.names.render(reap), limit, soft).Scan(&reaped)
	return reaped, unavailable(err)
}

// ResolveCompleted implements [onceward.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c onceward.Claim, done *onceward.Completion) error {
	return s.settle(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveCompleted, Attempt: c.Attempt, Completion: done})
}

// ResolveNotExecuted implements [onceward.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c onceward.Claim, reason string) error {
	return s.settle(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveNotExecuted, Attempt: c.Attempt, Reason: reason})
}

// ResolveStep implements [onceward.Reconciler].
func (s *Store) ResolveStep(ctx context.Context, c onceward.Claim, p onceward.Checkpoint) error {
	return s.settle(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveStep, Attempt: c.Attempt, Checkpoint: p})
}

// BeginReconcile implements [onceward.Reconciler].
func (s *Store) BeginReconcile(ctx context.Context, c onceward.Claim, count int, wait time.Duration) error {
	_, err := s.change(ctx, c.ID, onceward.Event{Kind: onceward.EventBeginReconcile, Attempt: c.Attempt, Count: count, Lease: wait})
	return err
}

// Postpone implements [onceward.Reconciler].
func (s *Store) Postpone(ctx context.Context, c onceward.Claim, p onceward.Postponement) error {
	_, err := s.change(ctx, c.ID, onceward.Event{
		Kind: onceward.EventPostpone, Attempt: c.Attempt, Count: p.Count, Lease: p.Wait, Limit: p.Limit, Reason: p.Reason, Untried: p.Untried,
	})
	return err
}

// Requeue implements [onceward.Reconciler].
func (s *Store) Requeue(ctx context.Context, c onceward.Claim, reason string) error {
	_, err := s.change(ctx, c.ID, onceward.Event{Kind: onceward.EventRequeue, Attempt: c.Attempt, Reason: reason})
	return err
}

// Bust implements [onceward.Buster].
func (s *Store) Bust(ctx context.Context, id onceward.ID, force bool) error {
	return s.settle(ctx, id, onceward.Event{Kind: onceward.EventBust, Force: force})
}
