package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward"
)

// shortestPause is the time before the next look after one that found something. It doubles while nothing is found.
const shortestPause = 5 * time.Millisecond

// The times between looks after what went wrong or has become old.
const (
	purgeEvery = time.Minute
	purgeBatch = 1000
	// freeEvery is in leases: what a worker that died has left behind becomes free then anyway.
	freeEvery = 2
	// storeTimeout bounds each call: the store's machine may vanish without a word, and the worker must outlive that. A
	// claim gets claimTimeout, or as long as its lease lasts.
	storeTimeout = time.Minute
	claimTimeout = 15 * time.Second
)

// pump takes messages and hands them to deliveries until the context ends or, once, until there are none.
func (s *workerRun) pump(ctx context.Context, once bool) error {
	pause := shortestPause
	for ctx.Err() == nil {
		if s.maintain(ctx) && !once {
			s.await(ctx, pause) // an idle worker asks no more often because of it
			if ctx.Err() != nil {
				break
			}
		}
		idle := s.idle() // asked before the look: what is under way may add something after it
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

// longestPause is the time between two looks while nothing happens.
func (s *workerRun) longestPause() time.Duration {
	if s.store.HearsMessages() {
		return 2 * s.config.Poll
	}
	return s.config.Poll
}

// await waits until there may be something to take, or for the pause, and reports whether it was told.
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
		return // it has room since
	}
	select {
	case <-s.again:
	case <-ctx.Done():
	}
}

// claim takes messages of those routes that have room, and starts to deliver them. It reports whether some route has no
// room left for what may be there.
func (s *workerRun) claim(ctx context.Context) (found int, full bool, err error) {
	requests := make([]ClaimRequest, 0, len(s.routes))
	for topic, route := range s.routes {
		route.short.Store(true) // before the look at it, so that none that ends is missed
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
	// The end of the worker does not cut a claim off: no worker would deliver what it takes until its lease is over.
	claiming, cancel := context.WithTimeout(s.hard, max(s.config.Lease, claimTimeout))
	claimed, err := s.store.ClaimMessages(claiming, requests, s.config.Lease)
	cancel()
	s.tellClaim(claimed, sent, err)
	if err != nil {
		return 0, false, err
	}
	if ctx.Err() != nil {
		s.stopping.Store(true) // it is released
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
	// Where no route has room there is nothing to ask for until one has; otherwise a short pause is enough.
	return len(claimed), full && s.crowded(), nil
}

// tellClaim tells the observer of a look for messages. What waits beyond what was claimed it does not know.
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

// maintain frees messages that wait for nothing, removes what is old, when it is time, and reports whether it was. It
// does one of them at a time and, while there is more that is old, goes on with the next look.
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
