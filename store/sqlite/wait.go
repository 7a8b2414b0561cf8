package sqlite

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// hub wakes those who wait for a record that this process settles.
type hub struct {
	mu      sync.Mutex
	changed map[onceward.ID]chan struct{}
}

// watch returns a channel that is closed when the record is settled.
func (h *hub) watch(id onceward.ID) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(map[onceward.ID]chan struct{})
	}
	c := h.changed[id]
	if c == nil {
		c = make(chan struct{})
		h.changed[id] = c
	}
	return c
}

// wake ends the waits for a record.
func (h *hub) wake(id onceward.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.changed[id]; c != nil {
		close(c)
		delete(h.changed, id)
	}
}

// pollInterval is how soon a change by another process is seen; those of this process wake the waiter at once.
const pollInterval = 100 * time.Millisecond

// Wait implements [onceward.Waiter].
func (s *Store) Wait(ctx context.Context, id onceward.ID, attempt int64) error {
	if attempt == 0 {
		return s.waitForTransaction(ctx, id)
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		changed := s.waits.watch(id)
		rec, err := s.readers.get(ctx, id)
		if err != nil {
			return err
		}
		if rec.State != onceward.StateInProgress || rec.Attempt != attempt {
			return nil
		}
		select {
		case <-changed:
			return nil
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitForTransaction waits for a transaction of this process, of which no record is visible.
func (s *Store) waitForTransaction(ctx context.Context, id onceward.ID) error {
	s.mu.Lock()
	ended := s.inFlight[id]
	s.mu.Unlock()
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
