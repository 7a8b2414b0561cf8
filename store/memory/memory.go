// Package memory keeps records in a map. It is the model that every other store is compared with, and is meant for
// tests and development: its records end with the process, and no second process sees them.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// Store is a [store.Store] in memory. It has every capability of package store except transactions.
type Store struct {
	store.Methods
	now func() time.Time

	mu      sync.Mutex
	records map[store.ID]*store.Record
	waiters map[store.ID]chan struct{}
	// floor is the largest token of a removed record: a record that is created again starts above it (rule S7: no token
	// is used twice).
	floor int64
	evidence
}

// Option configures a store.
type Option func(*Store)

// WithClock sets the store's clock. Default: [time.Now].
func WithClock(now func() time.Time) Option {
	return func(s *Store) { s.now = now }
}

// New returns an empty store.
func New(options ...Option) *Store {
	s := &Store{
		now:      time.Now,
		records:  make(map[store.ID]*store.Record),
		waiters:  make(map[store.ID]chan struct{}),
		evidence: evidence{lateCompletions: make(map[store.ID][]store.LateCompletion)},
	}
	s.Apply = s.change
	for _, option := range options {
		option(s)
	}
	return s
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.records[id]
	if rec == nil {
		return store.Record{}, store.ErrNotFound
	}
	return *rec, nil
}

// Wait implements [store.Waiter].
func (s *Store) Wait(ctx context.Context, id store.ID, attempt int64) error {
	s.mu.Lock()
	rec := s.records[id]
	if rec == nil || rec.State != store.StateInProgress || rec.Attempt != attempt {
		s.mu.Unlock()
		return nil
	}
	changed := s.waiters[id]
	if changed == nil {
		changed = make(chan struct{})
		s.waiters[id] = changed
	}
	s.mu.Unlock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// change applies an event to a record under the lock.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (store.Applied, error) {
	if err := ctx.Err(); err != nil {
		return store.Applied{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.step(id, event, s.now())
}

// step applies an event to a record. No other function changes records. The caller holds the lock.
func (s *Store) step(id store.ID, event store.Event, now time.Time) (store.Applied, error) {
	stored := s.records[id]
	var before store.Record
	if stored != nil {
		before = *stored
	}
	if event.Kind.TakesToken() {
		event.Token = store.NewToken(now, max(s.floor, before.Attempt))
	}
	after, transition, err := store.Step(before, event, now)
	switch {
	case transition.Effect == store.EffectRemove:
		delete(s.records, id)
		s.floor = max(s.floor, before.Attempt)
	case transition.Effect == store.EffectWrite && stored == nil:
		kept := after
		s.records[id] = &kept
	case transition.Effect == store.EffectWrite:
		*stored = after
	}
	if transition.Effect != store.EffectNone &&
		(after.State != store.StateInProgress || after.Attempt != before.Attempt) {
		s.wake(id)
	}
	return store.Applied{Transition: transition, Record: after, Now: now}, err
}

// wake ends the waits for an attempt that is no longer in progress.
func (s *Store) wake(id store.ID) {
	if changed := s.waiters[id]; changed != nil {
		close(changed)
		delete(s.waiters, id)
	}
}
