package sqltx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Slots limits how many transactions hold connections of a pool at a time. The other connections are for what handlers
// ask the same pool outside their transactions. Without them, each handler could wait for another handler to end.
type Slots struct {
	size    func() int
	mu      sync.Mutex
	taken   int
	waiting []chan struct{} // the oldest first; each is closed when it gets its slot
}

// NewSlots returns slots that leave a quarter of a pool free, and at least one connection. A pool of one
// connection leaves none. A pool without a limit has any number of slots. The size is read each time, because a
// service may change it at any time.
func NewSlots(size func() int) *Slots { return &Slots{size: size} }

// bound returns the number of slots, or zero if the pool has no limit.
func (s *Slots) bound() int {
	size := s.size()
	if size <= 0 {
		return 0
	}
	return max(size-max(size/4, 1), 1)
}

// Take waits for a slot, and returns a function that gives the slot back. A transaction inside the work of another
// transaction needs no slot: the rest of the pool is left for such transactions, and all slots may be held by work
// that waits for one of them.
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
		return s.give, nil // the slot was granted at the same moment
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

// grant gives the free slots to waiting transactions. The caller holds the lock.
func (s *Slots) grant(bound int) {
	for len(s.waiting) > 0 && (bound == 0 || s.taken < bound) {
		s.taken++
		close(s.waiting[0])
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
}

// ErrExhausted is returned when a transaction got no connection for as long as its caller waited.
var ErrExhausted = errors.New("the pool is exhausted, for as long as the caller waited. The likely cause is a " +
	"handler that asks its pool for a second connection while it holds one: let it use the transaction, " +
	"or make the pool larger")

// Exhausted wraps the error of a pool that returned no connection in [ErrExhausted], if all of the
// pool's connections were in use.
func Exhausted(ctx context.Context, err error, used, size int) error {
	if err == nil || ctx.Err() == nil || size <= 0 || used < size {
		return err
	}
	return fmt.Errorf("%w: all of its %d connections were in use: %w", ErrExhausted, size, err)
}
