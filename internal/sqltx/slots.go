package sqltx

import (
	"context"
	"fmt"
)

// Slots bound how many transactions hold connections of a pool at a time. What is left is for what their handlers ask the
// same pool beside their transactions: without it each handler would wait for another one to end.
type Slots struct{ taken chan struct{} }

// NewSlots leaves a quarter of a pool free, at least one connection, and bounds nothing of a pool without a bound. A pool of
// one connection has none to leave.
func NewSlots(size int) *Slots {
	if size <= 0 {
		return &Slots{}
	}
	return &Slots{make(chan struct{}, max(size-max(size/4, 1), 1))}
}

// Take waits for a slot, and returns what gives it back.
func (s *Slots) Take(ctx context.Context) (give func(), err error) {
	if s == nil || s.taken == nil {
		return func() {}, nil
	}
	select {
	case s.taken <- struct{}{}:
		return s.give, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the pool is exhausted: its share of %d connections for transactions was in use for as long "+
			"as the caller waited: make the pool larger, or handlers faster: %w", cap(s.taken), ctx.Err())
	}
}

func (s *Slots) give() { <-s.taken }
