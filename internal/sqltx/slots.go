package sqltx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Slots bound how many transactions hold connections of a pool at a time. What is left is for what their handlers ask the
// same pool beside their transactions: without it each handler would wait for another one to end.
type Slots struct {
	size    func() int
	mu      sync.Mutex
	taken   int
	waiting []chan struct{} // the oldest first; each is closed when it gets its slot
}

// NewSlots leaves a quarter of a pool free, at least one connection, and bounds nothing of a pool without a bound. A pool of
// one connection has none to leave. The size is read each time, because services set it when they like.
func NewSlots(size func() int) *Slots { return &Slots{size: size} }

// bound returns how many slots there are; zero for a pool without a bound.
func (s *Slots) bound() int {
	size := s.size()
	if size <= 0 {
		return 0
	}
	return max(size-max(size/4, 1), 1)
}

// Take waits for a slot, and returns what gives it back. A transaction inside of the work of another one needs none: it
// is what the rest of the pool is left for, and the slots may all be held by work that waits for such a one.
func (s *Slots) Take(ctx context.Context, inside bool) (give func(), err error) {
	if s == nil || inside {
		return func() {}, nil
	}
	s.mu.Lock()
	bound := s.bound()
	s.grant(bound)
	if len(s.waiting) == 0 && (bound == 0 || s.taken < bound) {
		s.taken++
		s.mu.Unlock()
		return s.give, nil
	}
	turn := make(chan struct{})
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return s.give, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.waiting, turn)
	if at < 0 {
		return s.give, nil // it came at the same moment
	}
	s.waiting = slices.Delete(s.waiting, at, at+1)
	return nil, fmt.Errorf("%w: its share of %d connections for transactions was in use: %w", ErrExhausted, bound,
		ctx.Err())
}

// give gives a slot back.
func (s *Slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.grant(s.bound())
}

// grant gives the slots that are free to the transactions that wait. The caller holds the lock.
func (s *Slots) grant(bound int) {
	for len(s.waiting) > 0 && (bound == 0 || s.taken < bound) {
		s.taken++
		close(s.waiting[0])
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
}

// ErrExhausted says that a transaction found no connection for as long as its caller waited.
var ErrExhausted = errors.New("the pool is exhausted, for as long as the caller waited. The likely cause is a " +
	"handler that asks its pool for a second connection while it holds one: let it use the transaction, " +
	"or make the pool larger")

// Exhausted names the reason of an error by which a pool gave no connection, if all of its connections were in use.
func Exhausted(ctx context.Context, err error, used, size int) error {
	if err == nil || ctx.Err() == nil || size <= 0 || used < size {
		return err
	}
	return fmt.Errorf("%w: all of its %d connections were in use: %w", ErrExhausted, size, err)
}
