package memory

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward"
)

// The store promises all of these.
var (
	_ onceward.Store      = (*Store)(nil)
	_ onceward.Waiter     = (*Store)(nil)
	_ onceward.Sweeper    = (*Store)(nil)
	_ onceward.Reaper     = (*Store)(nil)
	_ onceward.Reconciler = (*Store)(nil)
	_ onceward.Buster     = (*Store)(nil)
	_ onceward.Lister     = (*Store)(nil)
)

// Sweep implements [onceward.Sweeper].
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	return s.forEach(ctx, limit, onceward.Event{Kind: onceward.EventSweep})
}

// Reap implements [onceward.Reaper].
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (int, error) {
	return s.forEach(ctx, limit, onceward.Event{Kind: onceward.EventReap, Soft: soft})
}

// forEach applies an event to all records until it has changed limit of them.
func (s *Store) forEach(ctx context.Context, limit int, event onceward.Event) (changed int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for id := range s.records {
		if changed >= limit {
			break
		}
		_, outcome, stepErr := s.apply(id, event, now)
		if stepErr != nil {
			// One record that cannot be read does not keep the others from being looked after.
			err = errors.Join(err, stepErr)
		}
		if outcome.Effect != onceward.EffectNone {
			changed++
		}
	}
	return changed, err
}

// ResolveCompleted implements [onceward.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c onceward.Claim, done *onceward.Completion) error {
	return s.write(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveCompleted, Attempt: c.Attempt, Completion: done})
}

// ResolveNotExecuted implements [onceward.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c onceward.Claim, reason string) error {
	return s.write(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveNotExecuted, Attempt: c.Attempt, Reason: reason})
}

// ResolveStep implements [onceward.Reconciler].
func (s *Store) ResolveStep(ctx context.Context, c onceward.Claim, p onceward.Checkpoint) error {
	return s.write(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveStep, Attempt: c.Attempt, Checkpoint: p})
}

// BeginReconcile implements [onceward.Reconciler].
func (s *Store) BeginReconcile(ctx context.Context, c onceward.Claim, count int, wait time.Duration) error {
	return s.write(ctx, c.ID, onceward.Event{Kind: onceward.EventBeginReconcile, Attempt: c.Attempt, Count: count, Lease: wait})
}

// Postpone implements [onceward.Reconciler].
func (s *Store) Postpone(ctx context.Context, c onceward.Claim, p onceward.Postponement) error {
	return s.write(ctx, c.ID, onceward.Event{
		Kind: onceward.EventPostpone, Attempt: c.Attempt, Count: p.Count, Lease: p.Wait, Limit: p.Limit, Reason: p.Reason, Untried: p.Untried,
	})
}

// Requeue implements [onceward.Reconciler].
func (s *Store) Requeue(ctx context.Context, c onceward.Claim, reason string) error {
	return s.write(ctx, c.ID, onceward.Event{Kind: onceward.EventRequeue, Attempt: c.Attempt, Reason: reason})
}

// Bust implements [onceward.Buster].
func (s *Store) Bust(ctx context.Context, id onceward.ID, force bool) error {
	return s.write(ctx, id, onceward.Event{Kind: onceward.EventBust, Force: force})
}

// List implements [onceward.Lister].
func (s *Store) List(ctx context.Context, f onceward.Filter) ([]onceward.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var chosen []onceward.Record
	for _, rec := range s.records {
		if matches(rec, f, now) {
			summary := *rec
			summary.Data, summary.Response.Body = nil, nil
			chosen = append(chosen, summary)
		}
	}
	slices.SortFunc(chosen, func(a, b onceward.Record) int { return compareIDs(a.ID, b.ID) })
	limit := onceward.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	return chosen[:min(limit, len(chosen))], nil
}

func matches(rec *onceward.Record, f onceward.Filter, now time.Time) bool {
	return (f.Scope == "" || rec.Scope == f.Scope) &&
		(f.State == onceward.StateNone || rec.State == f.State) &&
		(!f.Due || !rec.Due().After(now)) &&
		(f.After == onceward.ID{} || compareIDs(f.After, rec.ID) < 0)
}

// compareIDs orders as a store with binary keys does.
func compareIDs(a, b onceward.ID) int {
	return bytes.Compare(a.AppendBinary(nil), b.AppendBinary(nil))
}

// Stats implements [onceward.Lister].
func (s *Store) Stats(ctx context.Context) (onceward.Stats, error) {
	if err := ctx.Err(); err != nil {
		return onceward.Stats{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := onceward.Stats{Records: make(map[onceward.State]int64)}
	for _, rec := range s.records {
		stats.Records[rec.State]++
		if rec.State != onceward.StateUnknown {
			continue
		}
		if rec.DeadLetter {
			stats.DeadLetters++
		}
		if stats.OldestUnknown.IsZero() || rec.CreatedAt.Before(stats.OldestUnknown) {
			stats.OldestUnknown = rec.CreatedAt
		}
	}
	return stats, nil
}
