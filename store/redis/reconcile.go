package redis

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// ResolveCompleted implements [store.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventResolveCompleted, Attempt: c.Attempt, Completion: done})
}

// ResolveNotExecuted implements [store.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventResolveNotExecuted, Attempt: c.Attempt, Reason: reason})
}

// ResolveStep implements [store.Reconciler].
func (s *Store) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventResolveStep, Attempt: c.Attempt, Checkpoint: p})
}

// BeginReconcile implements [store.Reconciler].
func (s *Store) BeginReconcile(ctx context.Context, c store.Claim, count int, wait time.Duration) error {
	return s.write(ctx, c.ID, store.Event{
		Kind: store.EventBeginReconcile, Attempt: c.Attempt, Count: count, Lease: wait,
	})
}

// Postpone implements [store.Reconciler].
func (s *Store) Postpone(ctx context.Context, c store.Claim, p store.Postponement) error {
	return s.write(ctx, c.ID, store.Event{
		Kind: store.EventPostpone, Attempt: c.Attempt, Count: p.Count, Lease: p.Wait, MaxAttempts: p.MaxAttempts,
		Reason: p.Reason, Untried: p.Untried,
	})
}

// Requeue implements [store.Reconciler].
func (s *Store) Requeue(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventRequeue, Attempt: c.Attempt, Reason: reason})
}

// Rewrite implements [store.Rewriter].
func (s *Store) Rewrite(ctx context.Context, c store.Claim, from, to store.Content) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventRewrite, Attempt: c.Attempt, From: from, To: to})
}

// Bust implements [store.Buster]. The token of a removed record stays known for a retention.
func (s *Store) Bust(ctx context.Context, id store.ID, force bool) error {
	return s.write(ctx, id, store.Event{Kind: store.EventBust, Force: force})
}

// Retain implements [store.Retainer].
func (s *Store) Retain(ctx context.Context, id store.ID, d time.Duration) (time.Time, error) {
	out, err := s.apply(ctx, s.names.place(id), store.Event{Kind: store.EventRetain, Lease: d}, nil)
	if err != nil {
		return time.Time{}, err
	}
	return out.record.ExpiresAt, nil
}
