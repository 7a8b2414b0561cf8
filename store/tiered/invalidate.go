package tiered

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// This file holds what makes an answer of the front old, and what is done about a front that cannot be told.

// Bust implements [store.Buster]. The front has dropped the record when it returns; if it could not be told, the error
// is a [*store.StaleError].
func (s *Store) Bust(ctx context.Context, id store.ID, force bool) error {
	// The longest MaxAge, not that of this node: one that has a longer one may be about to fill in what it has read.
	return s.told(ctx, id, MaxMaxAge, s.Store.Bust(ctx, id, force))
}

// ResolveCompleted implements [store.Reconciler]. It tells the front, as [Store.Bust] does, which may hold what a bust
// that went past it has left.
func (s *Store) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	return s.told(ctx, c.ID, s.config.MaxAge, s.Store.ResolveCompleted(ctx, c, done))
}

// ResolveNotExecuted implements [store.Reconciler], and tells the front.
func (s *Store) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return s.told(ctx, c.ID, s.config.MaxAge, s.Store.ResolveNotExecuted(ctx, c, reason))
}

// ResolveStep implements [store.Reconciler], and tells the front.
func (s *Store) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.told(ctx, c.ID, s.config.MaxAge, s.Store.ResolveStep(ctx, c, p))
}

// Rewrite implements [store.Rewriter], and tells the front. If it cannot be told, or is away, that is no error: what it
// still holds, for MaxAge at most, is the same content under another key, and who cannot open it asks past the front.
func (s *Store) Rewrite(ctx context.Context, c store.Claim, from, to store.Content) error {
	done := s.Store.Rewrite(ctx, c, from, to)
	if !s.away.Load() {
		if err := s.invalidate(context.WithoutCancel(ctx), c.ID, s.config.MaxAge); err != nil {
			s.failed("invalidate", err)
		}
	}
	return done
}

// told tells the front that the durable store was asked to change a record, and returns what is to be said of both. The
// front is told after a failure as well: the change may have been made all the same.
func (s *Store) told(ctx context.Context, id store.ID, lasting time.Duration, done error) error {
	begun := s.config.Clock()
	err := s.invalidate(context.WithoutCancel(ctx), id, lasting)
	if err != nil {
		lasting = s.tellLater(id, lasting)
		s.failed("invalidate", err) // behind it, so that what waits for the front finds it
	}
	if done == nil && err != nil {
		return &store.StaleError{Until: begun.Add(lasting), Err: fmt.Errorf("tiered: the front could not be told: %w", err)}
	}
	return done
}

// invalidate leaves a tombstone in the front, for at least as long as an entry can live that was read before.
func (s *Store) invalidate(ctx context.Context, id store.ID, lasting time.Duration) error {
	timeout := writeTimeout
	if s.away.Load() {
		timeout = s.config.FrontTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.front.Invalidate(ctx, id, lasting)
}

// maxUntold bounds what is kept for a front that is away. What comes on top ends by its age: its caller was told when.
const maxUntold = 1 << 14

// tellLater has the front told when it is back, as long as that matters, and returns how long that is: the longest that
// was asked for the ID.
func (s *Store) tellLater(id store.ID, lasting time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(s.untold[id]); left > lasting {
		return left
	}
	if len(s.untold) < maxUntold {
		s.untold[id] = time.Now().Add(lasting)
	}
	return lasting
}

// logInterval is the least time between two words to the log.
const logInterval = 10 * time.Second

// failed leaves the front alone until it answers again. The first of many callers who find it so says it.
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
		s.config.Logger.WarnContext(s.ctx, "tiered: the front failed: until it answers, the durable store alone does",
			"call", call, "error", err)
	}
	s.background(s.awaitFront)
}

// The first and the longest time between two tries whether the front is back.
const (
	minAway = 10 * time.Millisecond
	maxAway = 5 * time.Second
)

// awaitFront asks until the front answers in time, tells it what it has missed, and uses it again. No request waits for
// that.
func (s *Store) awaitFront() {
	for failures := 1; backoff.Sleep(s.ctx, backoff.Jittered(minAway, maxAway, failures)); failures++ {
		if s.probe() == nil && s.tellAll() == nil && s.useAgain() {
			return
		}
	}
}

// probeID is of no record: an operation has a key.
var probeID = store.ID{Scope: "onceward", Key: ""}

func (s *Store) probe() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.FrontTimeout)
	defer cancel()
	_, err := s.front.Get(ctx, probeID)
	return err
}

// tellAll tells the front what it has missed and still matters.
func (s *Store) tellAll() error {
	s.mu.Lock()
	untold := maps.Clone(s.untold)
	s.mu.Unlock()
	for id, until := range untold {
		if time.Now().Before(until) {
			if err := s.invalidate(s.ctx, id, MaxMaxAge); err != nil {
				return err
			}
		}
		s.mu.Lock()
		if s.untold[id].Equal(until) { // else there is more to tell
			delete(s.untold, id)
		}
		s.mu.Unlock()
	}
	return nil
}

// useAgain ends the time in which the front is left alone, unless there is more to tell it.
func (s *Store) useAgain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.untold) > 0 {
		return false
	}
	s.away.Store(false)
	return true
}
