package sqlite

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// hub wakes those who wait for a record that this process settles. It remembers a record for as long as a caller waits.
type hub struct {
	mu      sync.Mutex
	changed map[store.ID]*watched
}

// watched is a record that a caller waits for.
type watched struct {
	settled chan struct{} // closed when it is settled
	waiting int
}

// watch returns what is told when the record is settled. It is released with leave.
func (h *hub) watch(id store.ID) *watched {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(map[store.ID]*watched)
	}
	w := h.changed[id]
	if w == nil {
		w = &watched{settled: make(chan struct{})}
		h.changed[id] = w
	}
	w.waiting++
	return w
}

// leave ends a wait; the last one to leave takes the record away.
func (h *hub) leave(id store.ID, w *watched) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.waiting--
	if w.waiting == 0 && h.changed[id] == w {
		delete(h.changed, id)
	}
}

// wake ends the waits for a record.
func (h *hub) wake(id store.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.changed[id]; w != nil {
		close(w.settled)
		delete(h.changed, id)
	}
}

// pollInterval is how soon a change by another process is seen; those of this process wake the waiter at once.
const pollInterval = 100 * time.Millisecond

// Wait implements [store.Waiter].
func (s *Store) Wait(ctx context.Context, id store.ID, attempt int64) error {
	if attempt == 0 {
		return s.waitForTransaction(ctx, id)
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	changed := s.waits.watch(id)
	defer s.waits.leave(id, changed)
	for {
		rec, err := s.readers.get(ctx, id)
		if err != nil {
			return err
		}
		if rec.State != store.StateInProgress || rec.Attempt != attempt {
			return nil
		}
		select {
		case <-changed.settled:
			return nil
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitForTransaction waits for a transaction of this process, of which no record is visible.
func (s *Store) waitForTransaction(ctx context.Context, id store.ID) error {
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
