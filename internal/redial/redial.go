// Package redial makes one attempt at a time to connect to a server that cannot be reached, however many wait for it.
package redial

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// The pauses between attempts at a server that cannot be reached. The longest is what a request waits before it is
// refused, and what a server that is back waits for the next request.
const (
	minPause = 10 * time.Millisecond
	maxPause = 250 * time.Millisecond
)

// Gate counts what connecting to one server comes to. While the server can be reached everybody connects as they like.
// After an attempt has failed one at a time does, after a pause that grows, and those who wait share what comes of it.
// The zero value is ready to use.
type Gate struct {
	mu       sync.Mutex
	failures int       // in a row
	changed  int       // how often it was found out whether the server can be reached
	next     time.Time // when the next attempt may begin
	current  *attempt  // the one that others wait for
}

// attempt is one at a server that could not be reached.
type attempt struct {
	ended chan struct{}
	err   error // why it failed, if it did
}

// Do connects, or returns the error of an attempt that somebody else has made meanwhile.
func Do[T any](ctx context.Context, g *Gate, connect func(context.Context) (T, error)) (conn T, err error) {
	end, err := g.Begin(ctx)
	if err != nil {
		return conn, err
	}
	conn, err = connect(ctx)
	if err != nil && ctx.Err() != nil {
		end(ctx.Err(), false)
	} else {
		end(err, true)
	}
	return conn, err
}

// Begin waits until an attempt may be made. The attempt has to be ended with its error, if any, which says something
// about the server unless the caller gave the attempt up.
func (g *Gate) Begin(ctx context.Context) (end func(err error, says bool), err error) {
	for {
		g.mu.Lock()
		waits := g.current
		if waits == nil {
			break
		}
		g.mu.Unlock()
		select {
		case <-waits.ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if waits.err != nil {
			return nil, waits.err
		}
	}
	defer g.mu.Unlock()
	if g.failures == 0 {
		changed := g.changed
		return func(err error, says bool) { g.ended(changed, err, says) }, nil
	}
	return g.alone(ctx)
}

// alone makes the caller the one that others wait for. It is called with the lock, and returns with it.
func (g *Gate) alone(ctx context.Context) (end func(err error, says bool), err error) {
	one := &attempt{ended: make(chan struct{})}
	g.current = one
	changed, pause := g.changed, time.Until(g.next)
	end = func(err error, says bool) {
		g.ended(changed, err, says)
		if says {
			one.err = err
		}
		g.mu.Lock()
		g.current = nil
		g.mu.Unlock()
		close(one.ended)
	}
	g.mu.Unlock()
	waited := pause <= 0 || backoff.Sleep(ctx, pause)
	if !waited {
		end(ctx.Err(), false)
	}
	g.mu.Lock()
	if !waited {
		return nil, ctx.Err()
	}
	return end, nil
}

// Note notes what was found out about the server after an attempt had ended: the error that a new connection came to,
// or nil if it works.
func (g *Gate) Note(err error) {
	g.mu.Lock()
	changed := g.changed
	g.mu.Unlock()
	g.ended(changed, err, true)
}

// ended notes what an attempt came to. Of those that began together, the first that fails counts.
func (g *Gate) ended(changed int, err error, says bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !says || err != nil && changed != g.changed:
	case err != nil:
		g.failures++
		g.changed++
		g.next = time.Now().Add(backoff.Jittered(minPause, maxPause, g.failures))
	case g.failures > 0:
		g.failures = 0
		g.changed++
	}
}
