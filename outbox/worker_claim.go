package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward"
)

// shortestPause is the time before the worker looks again after it found messages. It doubles while nothing is found.
const shortestPause = 5 * time.Millisecond

// These are the intervals and limits of maintenance, and the timeouts of the store.
const (
	purgeEvery = time.Minute
	purgeBatch = 1000
	// freeEvery is how often per lease the worker frees messages that wait for nothing, after another worker died.
	freeEvery = 2
	// storeTimeout limits each call: the store's machine may vanish without closing its connections, and the
	// worker must survive this. A claim gets claimTimeout, or as long as its lease lasts if that is longer.
	storeTimeout = time.Minute
	claimTimeout = 15 * time.Second
)

// pump claims messages and starts their deliveries until the context ends or, with once, until there are no messages.
func (s *workerRun) pump(ctx context.Context, once bool) error {
	pause := shortestPause
	for ctx.Err() == nil {
		if s.maintain(ctx) && !once {
			s.await(ctx, pause) // so that maintenance does not make an idle worker poll more often
			if ctx.Err() != nil {
				break
			}
		}
		idle := s.idle() // checked before the claim: a current delivery may add messages after it
		found, full, err := s.claim(ctx)
		switch {
		case err != nil && once:
			return err
		case err != nil && ctx.Err() == nil:
			s.config.Logger.WarnContext(ctx, "outbox: messages could not be taken", "error", err)
			pause = s.longestPause()
		case found > 0:
			pause = shortestPause
		case once && idle:
			return nil
		}
		if full {
			s.awaitRoom(ctx)
			continue
		}
		if s.await(ctx, pause) {
			pause = shortestPause
		} else {
			pause = min(2*pause, s.longestPause())
		}
	}
	s.stopping.Store(true)
	if once {
		return ctx.Err()
	}
	return nil
}

// longestPause returns the longest time between two claims while nothing happens.
func (s *workerRun) longestPause() time.Duration {
	if s.store.HearsMessages() {
		return 2 * s.config.Poll
	}
	return s.config.Poll
}

// await waits until there may be messages to claim, or until the pause ends, and reports whether there was a hint.
func (s *workerRun) await(ctx context.Context, pause time.Duration) (told bool) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-s.hints:
		return true
	case <-s.again:
		return true
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}

// awaitRoom waits until a route has room again.
func (s *workerRun) awaitRoom(ctx context.Context) {
	for _, route := range s.routes {
		route.short.Store(true)
	}
	if !s.crowded() {
		return // a route has room by now
	}
	select {
	case <-s.again:
	case <-ctx.Done():
	}
}

// claim claims messages for the routes that have room and starts their
// deliveries. It reports full if no route has room for messages that may be due.
func (s *workerRun) claim(ctx context.Context) (found int, full bool, err error) {
	requests := make([]ClaimRequest, 0, len(s.routes))
	for topic, route := range s.routes {
		route.short.Store(true) // set before the check, so that no ended delivery is missed
		if !route.room() {
			full = true
			continue
		}
		route.short.Store(false)
		requests = append(requests, ClaimRequest{Topic: topic, Limit: max(route.target()-int(route.leased.Load()), 1)})
	}
	if len(requests) == 0 {
		return 0, true, nil
	}
	sent := time.Now()
	// The end of the worker does not cut off a claim: no worker
	// could deliver the claimed messages until the lease ends.
	claiming, cancel := context.WithTimeout(s.hard, max(s.config.Lease, claimTimeout))
	claimed, err := s.store.ClaimMessages(claiming, requests, s.config.Lease)
	cancel()
	s.tellClaim(claimed, sent, err)
	if err != nil {
		return 0, false, err
	}
	if ctx.Err() != nil {
		s.stopping.Store(true) // so that the claimed messages are released
	}
	s.start(claimed, sent.Add(s.config.Lease))
	taken := make(map[string]int, len(requests))
	for i := range claimed {
		taken[claimed[i].Topic]++
	}
	for _, request := range requests {
		if taken[request.Topic] >= request.Limit {
			s.routes[request.Topic].short.Store(true)
			full = true
		}
	}
	// If no route has room, there is nothing to claim until a route has room. Otherwise a short pause is enough.
	return len(claimed), full && s.crowded(), nil
}

// tellClaim sends the observer an event for a claim. The number of messages beyond the claimed ones is not known.
func (s *workerRun) tellClaim(claimed []Claimed, sent time.Time, err error) {
	e := onceward.WorkerEvent{Worker: "outbox", Backlog: len(claimed), Elapsed: time.Since(sent), Err: err}
	for i := range claimed {
		if due := claimed[i].CreatedAt.Add(claimed[i].Delay); e.Oldest.IsZero() || due.Before(e.Oldest) {
			e.Oldest = due
		}
	}
	s.observe(s.hard, e)
}

// crowded reports whether no route has room.
func (s *workerRun) crowded() bool {
	for _, route := range s.routes {
		if route.room() {
			return false
		}
	}
	return true
}

// maintain frees messages that wait for nothing and removes old messages, each at
// its interval. It does at most one of the two per call, and reports whether it did.
// While there are more old messages, it reports false and the next call continues.
func (s *workerRun) maintain(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	switch now := time.Now(); {
	case now.Sub(s.maintained) >= s.config.Lease/freeEvery:
		if _, err := s.store.FreeMessages(ctx); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			s.config.Logger.WarnContext(ctx, "outbox: messages that wait for nothing could not be looked after", "error", err)
		}
		s.maintained = time.Now()
		return true
	case now.Sub(s.purged) >= purgeEvery:
		purged, err := s.store.PurgeMessages(ctx, s.config.Retention, purgeBatch)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			s.config.Logger.WarnContext(ctx, "outbox: old messages could not be removed", "error", err)
		}
		if err == nil && purged >= purgeBatch {
			return false
		}
		s.purged = now
		return true
	default:
		return false
	}
}
