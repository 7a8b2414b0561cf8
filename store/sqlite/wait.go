package sqlite

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// pollInterval is how soon a change by another process is seen. A change by this process wakes the waiter at once.
const pollInterval = 100 * time.Millisecond

// Wait implements [store.Waiter].
func (s *Store) Wait(ctx context.Context, id store.ID, attempt int64) error {
	if attempt == 0 {
		return s.waitForTransaction(ctx, id)
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	changed := s.waits.Watch(id)
	defer s.waits.Leave(id, changed)
	for {
		rec, err := s.readers.get(ctx, id)
		if err != nil {
			return err
		}
		if rec.State != store.StateInProgress || rec.Attempt != attempt {
			return nil
		}
		select {
		case <-changed.Settled:
			return nil
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitForTransaction waits for a transaction of this process, whose record is not visible yet.
func (s *Store) waitForTransaction(ctx context.Context, id store.ID) error {
	ended := s.flights.Ended(id)
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
