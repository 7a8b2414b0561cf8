package sqltx

import (
	"context"
	"errors"
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

// Take waits for a slot, and returns what gives it back. A transaction inside of the work of another one needs none: it
// is what the rest of the pool is left for, and the slots may all be held by work that waits for such a one.
func (s *Slots) Take(ctx context.Context, inside bool) (give func(), err error) {
	if s == nil || s.taken == nil || inside {
		return func() {}, nil
	}
	select {
	case s.taken <- struct{}{}:
		return s.give, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: its share of %d connections for transactions was in use: %w", ErrExhausted, cap(s.taken),
			ctx.Err())
	}
}

// ErrExhausted says that a transaction found no connection for as long as its caller waited.
var ErrExhausted = errors.New("the pool is exhausted, for as long as the caller waited: make it larger, or handlers faster")

// Exhausted names the reason of an error by which a pool gave no connection, if all of its connections were in use.
func Exhausted(ctx context.Context, err error, used, size int) error {
	if err == nil || ctx.Err() == nil || size <= 0 || used < size {
		return err
	}
	return fmt.Errorf("%w: all of its %d connections were in use: %w", ErrExhausted, size, err)
}

func (s *Slots) give() { <-s.taken }
