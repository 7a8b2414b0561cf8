package storetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// brief is a lease or a retention that is meant to run out.
func (e *env) brief() time.Duration {
	if e.Advance != nil {
		return 30 * time.Second
	}
	return 40 * time.Millisecond
}

// resolution is the finest step of time that the store keeps.
func (e *env) resolution() time.Duration {
	return max(e.features.Resolution, time.Microsecond)
}

// now asks for the store's clock: a reservation that must not create tells it and leaves no trace (S9).
func (e *env) now() time.Time {
	e.Helper()
	now, err := e.clock()
	if err != nil {
		e.Fatal(err)
	}
	return now
}

func (e *env) clock() (time.Time, error) {
	if e.stopped != nil {
		return e.stopped.read(e.askClock)
	}
	return e.askClock()
}

func (e *env) askClock() (time.Time, error) {
	v, err := e.Store.Reserve(e.ctx, request(store.ID{Scope: "storetest", Key: "clock"}, noCreate))
	if err != nil || v.Decision != store.DecisionRefused {
		return time.Time{}, fmt.Errorf("S9: a reservation that must not create got (%s, %w) on a key without a record", v.Decision, err)
	}
	return v.Now, nil
}

// until lets the store's clock come to a moment.
func (e *env) until(at time.Time) {
	e.Helper()
	for now := e.now(); now.Before(at); now = e.now() {
		if e.Advance != nil {
			e.Advance(at.Sub(now))
			continue
		}
		time.Sleep(min(at.Sub(now), 20*time.Millisecond))
	}
}

// pass lets time go by on the store's clock.
func (e *env) pass(d time.Duration) {
	e.Helper()
	e.until(e.now().Add(d))
}

// stoppedClock remembers what a clock says that stands still between the calls of Advance. It is asked once after each of
// them: a test asks all the time, and each answer is a round trip to the store.
type stoppedClock struct {
	mu sync.Mutex
	// moves counts the calls of Advance; at is what the clock said after asked of them.
	moves, asked int
	at           time.Time
}

// noting is Advance, which makes what is remembered worthless.
func (c *stoppedClock) noting(advance func(time.Duration)) func(time.Duration) {
	return func(d time.Duration) {
		advance(d)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.moves++
	}
}

// read returns what the clock says. What was asked while somebody moved it is not remembered.
func (c *stoppedClock) read(ask func() (time.Time, error)) (time.Time, error) {
	c.mu.Lock()
	at, moves, known := c.at, c.moves, c.asked == c.moves && !c.at.IsZero()
	c.mu.Unlock()
	if known {
		return at, nil
	}
	at, err := ask()
	if err != nil {
		return time.Time{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.asked = at, moves
	return at, nil
}
