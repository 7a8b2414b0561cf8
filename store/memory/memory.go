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
	now func() time.Time

	mu      sync.Mutex
	records map[store.ID]*store.Record
	waiters map[store.ID]chan struct{}
	// floor is the largest token of a removed record: a record that is created again starts above it (rule S7: no token is
	// used twice).
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
	for _, option := range options {
		option(s)
	}
	return s
}

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return store.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	rec, outcome, err := s.apply(r.ID, store.Event{Kind: store.EventReserve, Reservation: r}, now)
	return store.Verdict{Decision: outcome.Decision, Origin: outcome.Origin, Record: rec, Now: now}, err
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventExtend, Attempt: c.Attempt, Lease: lease})
}

// Checkpoint implements [store.Store].
func (s *Store) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt, Checkpoint: p})
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	event := store.Event{Kind: store.EventComplete, Attempt: c.Attempt, Completion: done}
	rec, _, err := s.apply(c.ID, event, s.now())
	return rec.ExpiresAt, err
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventRelease, Attempt: c.Attempt, Reason: reason})
}

// Abandon implements [store.Store].
func (s *Store) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventAbandon, Attempt: c.Attempt, Reason: reason})
}

// Reject implements [store.Store].
func (s *Store) Reject(ctx context.Context, c store.Claim) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventReject, Attempt: c.Attempt})
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

// write applies an event whose only result is an error.
func (s *Store) write(ctx context.Context, id store.ID, event store.Event) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _, err := s.apply(id, event, s.now())
	return err
}

// apply applies an event to a record. No other function changes records. The caller holds the lock.
func (s *Store) apply(id store.ID, event store.Event, now time.Time) (store.Record, store.Transition, error) {
	stored := s.records[id]
	var before store.Record
	if stored != nil {
		before = *stored
	}
	if event.Kind.TakesToken() {
		event.Token = store.NewToken(now, max(s.floor, before.Attempt))
	}
	after, outcome, err := store.Step(before, event, now)
	switch {
	case outcome.Effect == store.EffectRemove:
		delete(s.records, id)
		s.floor = max(s.floor, before.Attempt)
	case outcome.Effect == store.EffectWrite && stored == nil:
		kept := after
		s.records[id] = &kept
	case outcome.Effect == store.EffectWrite:
		*stored = after
	}
	if outcome.Effect != store.EffectNone && (after.State != store.StateInProgress || after.Attempt != before.Attempt) {
		s.wake(id)
	}
	return after, outcome, err
}

// wake ends the waits for an attempt that is no longer in progress.
func (s *Store) wake(id store.ID) {
	if changed := s.waiters[id]; changed != nil {
		close(changed)
		delete(s.waiters, id)
	}
}
