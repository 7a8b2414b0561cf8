package tiered

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// This file contains the operations that make an answer of the front outdated, and the handling of a front that cannot
// be reached.

// Bust implements [store.Buster]. When Bust returns, the front has dropped the record; if the front could not be
// reached, the error is a [*store.StaleError].
func (s *Store) Bust(ctx context.Context, id store.ID, force bool) error {
	// The longest MaxAge is used, not this node's: a node with a longer MaxAge may be about to add a record that it has
	// read.
	return s.changed(ctx, id, MaxMaxAge, s.Store.Bust(ctx, id, force))
}

// ResolveCompleted implements [store.Reconciler]. Like [Store.Bust] it invalidates the front, which may still hold an
// answer from before a Bust that did not go through this store.
func (s *Store) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	return s.changed(ctx, c.ID, s.config.MaxAge, s.Store.ResolveCompleted(ctx, c, done))
}

// ResolveNotExecuted implements [store.Reconciler], and invalidates the front.
func (s *Store) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return s.changed(ctx, c.ID, s.config.MaxAge, s.Store.ResolveNotExecuted(ctx, c, reason))
}

// ResolveStep implements [store.Reconciler], and invalidates the front.
func (s *Store) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.changed(ctx, c.ID, s.config.MaxAge, s.Store.ResolveStep(ctx, c, p))
}

// Rewrite implements [store.Rewriter], and invalidates the front. It is not an error if the front cannot be reached:
// for at most MaxAge it still holds the same content sealed with another key, and a reader that cannot open it bypasses
// the front.
func (s *Store) Rewrite(ctx context.Context, c store.Claim, from, to store.Content) error {
	done := s.Store.Rewrite(ctx, c, from, to)
	if !s.away.Load() {
		if err := s.invalidate(context.WithoutCancel(ctx), c.ID, s.config.MaxAge); err != nil {
			s.failed("invalidate", err)
		}
	}
	return done
}

// changed invalidates the front after a change in the durable store, and returns the error of both. It also invalidates
// the front after a failure, because the change may have been made anyway.
func (s *Store) changed(ctx context.Context, id store.ID, lasting time.Duration, done error) error {
	begun := s.config.Clock()
	err := s.invalidate(context.WithoutCancel(ctx), id, lasting)
	if err != nil {
		lasting = s.invalidateLater(id, lasting)
		s.failed("invalidate", err) // after invalidateLater, so that awaitFront finds the invalidation
	}
	if done == nil && err != nil {
		return &store.StaleError{Until: begun.Add(lasting), Err: fmt.Errorf("tiered: the front could not be invalidated: %w", err)}
	}
	return done
}

// invalidate leaves a tombstone in the front, which lasts at least as long as an entry that was read before can exist.
func (s *Store) invalidate(ctx context.Context, id store.ID, lasting time.Duration) error {
	timeout := writeTimeout
	if s.away.Load() {
		timeout = s.config.FrontTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.front.Invalidate(ctx, id, lasting)
}

// maxPending bounds the invalidations that wait for a front that is away. Further invalidations are dropped: the entry
// ends by its age, as the error to the caller states.
const maxPending = 1 << 14

// invalidateLater registers an invalidation for when the front is back, if it still matters then. It returns how long
// an old answer may be seen, which is the longest time requested for the ID.
func (s *Store) invalidateLater(id store.ID, lasting time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(s.pending[id]); left > lasting {
		return left
	}
	if len(s.pending) < maxPending {
		s.pending[id] = time.Now().Add(lasting)
	}
	return lasting
}

// logInterval is the least time between two log lines.
const logInterval = 10 * time.Second

// failed stops the use of the front until it answers again. If many callers find the failure, the first caller reports
// it.
func (s *Store) failed(call string, err error) {
	if s.ctx.Err() != nil || !s.away.CompareAndSwap(false, true) {
		return
	}
	s.config.Observer.Observe(s.ctx, FrontFailedEvent{Call: call, Err: err})
	s.mu.Lock()
	silent := time.Since(s.logged) < logInterval
	if !silent {
		s.logged = time.Now()
	}
	s.mu.Unlock()
	if !silent {
		s.config.Logger.WarnContext(s.ctx, "tiered: the front failed: until it answers, only the durable store is used",
			"call", call, "error", err)
	}
	s.background(s.awaitFront)
}

// These are the shortest and the longest pause between two checks of a front that is away.
const (
	minAway = 10 * time.Millisecond
	maxAway = 5 * time.Second
)

// awaitFront checks until the front answers in time, sends it the missed invalidations, and uses it again. No request
// waits for this.
func (s *Store) awaitFront() {
	for failures := 1; backoff.Sleep(s.ctx, backoff.Jittered(minAway, maxAway, failures)); failures++ {
		if s.probe() == nil && s.invalidateAll() == nil && s.resume() {
			return
		}
	}
}

// probeID belongs to no record, because an operation has a key.
var probeID = store.ID{Scope: "onceward", Key: ""}

func (s *Store) probe() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.FrontTimeout)
	defer cancel()
	_, err := s.front.Get(ctx, probeID)
	return err
}

// invalidateAll sends the front the missed invalidations that still matter.
func (s *Store) invalidateAll() error {
	s.mu.Lock()
	pending := maps.Clone(s.pending)
	s.mu.Unlock()
	for id, until := range pending {
		if time.Now().Before(until) {
			if err := s.invalidate(s.ctx, id, MaxMaxAge); err != nil {
				return err
			}
		}
		s.mu.Lock()
		if s.pending[id].Equal(until) { // else a later invalidation is to be sent
			delete(s.pending, id)
		}
		s.mu.Unlock()
	}
	return nil
}

// resume uses the front again, unless more invalidations are pending.
func (s *Store) resume() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) > 0 {
		return false
	}
	s.away.Store(false)
	return true
}
