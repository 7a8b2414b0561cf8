// Package redial makes one attempt at a time to connect to a server that cannot be reached, however many callers wait.
package redial

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// The shortest and the longest pause between attempts to connect to a server that cannot be reached.
// maxPause bounds how long a request waits before it is refused, and how long a server that is available
// again waits for the next request.
const (
	minPause = 10 * time.Millisecond
	maxPause = 250 * time.Millisecond
)

// recheck is how often a caller that waits for an attempt checks whether it still needs a new connection.
const recheck = 20 * time.Millisecond

// Gate limits attempts to connect to one server. While the server can be reached, all callers connect freely. After an
// attempt has failed, one caller at a time tries to connect, after a pause that grows, and the waiting callers share
// the result. The zero value is ready to use.
type Gate struct {
	mu       sync.Mutex
	failures int       // consecutive failed attempts
	changed  int       // how often the reachability of the server was determined
	next     time.Time // when the next attempt may begin
	current  *attempt  // the attempt that others wait for
}

// attempt is an attempt to connect to a server that could not be reached.
type attempt struct {
	connects bool // the pause before the attempt is over
	ended    chan struct{}
	err      error // the error of the attempt, if it failed
}

// Do takes a connection from a pool, or returns the error of an attempt that another caller has made meanwhile. makes
// reports whether the pool would make a connection now, beside the connections that the gate's callers are making. If
// it would not, because one is free or the pool is full, the caller does not wait for the gate.
func Do[T any](
	ctx context.Context, g *Gate, makes func(beside int) bool, take func(context.Context) (T, error),
) (conn T, err error) {
	end, err := g.Begin(ctx, makes)
	if err != nil {
		return conn, err
	}
	conclusive := false // also if a hook of the pool panics
	defer func() { end(err, conclusive) }()
	conn, err = take(ctx)
	conclusive = err == nil || ctx.Err() == nil
	return conn, err
}

// Begin waits until the caller may make an attempt, or does not need one: see [Do]. The caller must call end with the
// error of the attempt, if any. The error is conclusive about the server unless the caller gave the attempt up.
func (g *Gate) Begin(ctx context.Context, makes func(beside int) bool) (end func(err error, conclusive bool), err error) {
	for {
		g.mu.Lock()
		waits := g.current
		switch {
		case waits == nil && g.failures == 0:
			changed := g.changed
			g.mu.Unlock()
			return func(err error, conclusive bool) { g.ended(changed, err, conclusive) }, nil
		case !g.makes(makes):
			g.mu.Unlock()
			return func(error, bool) {}, nil
		case waits == nil:
			return g.alone(ctx, makes)
		}
		g.mu.Unlock()
		select {
		case <-waits.ended:
			if waits.err != nil {
				return nil, waits.err
			}
		case <-time.After(recheck):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// makes reports whether the pool would make a connection. The caller holds the lock.
func (g *Gate) makes(makes func(beside int) bool) bool {
	switch {
	case makes == nil:
		return true
	case g.current != nil && g.current.connects:
		return makes(1)
	default:
		return makes(0)
	}
}

// alone makes the caller's attempt the one that others wait for, unless the pool makes no connection after the pause.
// The caller holds the lock; alone releases it.
func (g *Gate) alone(ctx context.Context, makes func(beside int) bool) (end func(err error, conclusive bool), err error) {
	one := &attempt{ended: make(chan struct{})}
	g.current = one
	changed, pause := g.changed, time.Until(g.next)
	g.mu.Unlock()
	end = func(err error, conclusive bool) {
		g.ended(changed, err, conclusive)
		if conclusive {
			one.err = err
		}
		g.mu.Lock()
		g.current = nil
		g.mu.Unlock()
		close(one.ended)
	}
	if pause > 0 && !backoff.Sleep(ctx, pause) {
		end(nil, false)
		return nil, ctx.Err()
	}
	g.mu.Lock()
	one.connects = g.makes(makes)
	g.mu.Unlock()
	if !one.connects {
		end(nil, false)
		return func(error, bool) {}, nil
	}
	return end, nil
}

// Note records what was found about the server after an attempt had ended: the error of a new connection, or
// nil if the connection works.
func (g *Gate) Note(err error) {
	g.mu.Lock()
	changed := g.changed
	g.mu.Unlock()
	g.ended(changed, err, true)
}

// ended records the result of an attempt. Of several attempts that began together, the first failure counts.
func (g *Gate) ended(changed int, err error, conclusive bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !conclusive || err != nil && changed != g.changed:
	case err != nil:
		g.failures++
		g.changed++
		g.next = time.Now().Add(backoff.Jittered(minPause, maxPause, g.failures))
	case g.failures > 0:
		g.failures = 0
		g.changed++
	}
}
