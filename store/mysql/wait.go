package mysql

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// minPoll and maxPoll bound how soon a change by another process is seen. A change by this process wakes the waiter at
// once. The longer a wait has lasted, the less often it polls.
const (
	minPoll = 20 * time.Millisecond
	maxPoll = 500 * time.Millisecond
)

// Wait implements [store.Waiter].
func (s *Store) Wait(ctx context.Context, id store.ID, attempt int64) error {
	changed := s.waits.Watch(id)
	defer s.waits.Leave(id, changed)
	for polls := 1; ; polls++ {
		rec, _, err := s.get(ctx, id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if over, err := s.over(ctx, &rec, id, attempt); over || err != nil {
			return err
		}
		timer := time.NewTimer(backoff.Jittered(minPoll, maxPoll, polls))
		select {
		case <-changed.Settled:
			timer.Stop()
			return nil
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// over reports whether a record is no longer in progress at an attempt. An attempt of zero stands for a transaction in
// flight, in this process or in another one, of which only the lock is visible.
func (s *Store) over(ctx context.Context, rec *store.Record, id store.ID, attempt int64) (bool, error) {
	if attempt != 0 {
		return rec.State != store.StateInProgress || rec.Attempt != attempt, nil
	}
	if s.InFlight(id) {
		return false, nil
	}
	return s.unlocked(ctx, id)
}

// unlocked reports whether no running transaction has claimed the record.
func (s *Store) unlocked(ctx context.Context, id store.ID) (bool, error) {
	_, err := s.exec(ctx, lockClaim, claimOf(id))
	if locked(err) || undone(err) {
		return false, nil
	}
	return err == nil, unavailable(err)
}
