package fair

import (
	"context"
	"errors"
)

// shareKey identifies a share: an operation, or a scope within an operation.
type shareKey struct {
	operation, scope string
	ofScope          bool
}

// share is a number of places for tasks. Waiting tasks get them in turn.
type share struct {
	key     shareKey
	places  chan struct{}
	users   int
	hanging int
	stuck   chan struct{} // closed while every place is taken by a task that hangs
}

// use returns the share with a key, which lives as long as it is used.
func (p *Pool) use(key shareKey) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shares[key]
	if s == nil {
		size := p.config.PerOperation
		if key.ofScope {
			size = half(size)
		}
		s = &share{key: key, places: make(chan struct{}, size), stuck: make(chan struct{})}
		p.shares[key] = s
	}
	s.users++
	return s
}

func (p *Pool) unuse(s *share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(p.shares, s.key)
	}
}

// take waits for a place. It reports false if the context ends, or if all tasks of the share hang.
func (p *Pool) take(ctx context.Context, s *share) bool {
	select {
	case s.places <- struct{}{}:
		return true
	default:
	}
	p.mu.Lock()
	stuck := s.stuck
	p.mu.Unlock()
	select {
	case s.places <- struct{}{}:
		return true
	case <-stuck:
		return false
	case <-ctx.Done():
		return false
	}
}

// hang adds to the number of hanging tasks. The caller holds the pool's lock.
func (s *share) hang(by int) {
	if s.hanging == cap(s.places) {
		s.stuck = make(chan struct{})
	}
	if s.hanging += by; s.hanging == cap(s.places) {
		close(s.stuck)
	}
}

// Bounds limits how many tasks may run at the same time.
type Bounds struct {
	// Total is the limit for all operations together.
	Total int
	// PerOperation is the limit for one operation. One scope gets at most half of it.
	PerOperation int
}

// These are the defaults: seven operations that hang leave room for an eighth.
const (
	defaultTotal        = 64
	defaultPerOperation = 8
)

// WithDefaults fills in zero values and refuses negative ones. By default one operation gets at most half of the total.
func (b Bounds) WithDefaults() (Bounds, error) {
	if b.Total < 0 || b.PerOperation < 0 {
		return b, errors.New("a negative Concurrency or PerOperation")
	}
	if b.Total == 0 {
		b.Total = max(defaultTotal, b.PerOperation)
	}
	if b.PerOperation == 0 {
		b.PerOperation = min(defaultPerOperation, half(b.Total))
	}
	b.PerOperation = min(b.PerOperation, b.Total)
	return b, nil
}

// half rounds up, so that there is always one.
func half(n int) int { return (n + 1) / 2 }
