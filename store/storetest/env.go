package storetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

const (
	// calm is a lease or a retention that does not run out during a test.
	calm = time.Hour
	// patience bounds a test, so that a store that hangs fails.
	patience = await.Limit
	// crowd is how many callers compete in a race.
	crowd = 64
)

// env is one test with its store, and short names for frequent steps of tests. Its methods end the test if the store
// does not do what the test needs, so goroutines of the test must not call them.
type env struct {
	*testing.T
	Instance
	features Features
	ctx      context.Context
	// stopped is the remembered time of a clock that only the test moves; nil for any other clock.
	stopped *stoppedClock
	// tokens contains the largest token that step has seen for each ID.
	tokens map[store.ID]int64
}

// open opens a fresh store for a test, and checks that it is like the probed store.
func open(t *testing.T, h Harness) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(h.patience, patience))
	t.Cleanup(cancel)
	instance := h.Open(t)
	if !alike(instance, h.probe) {
		t.Fatalf("Open returned %T, and something else in another call: all instances have to be alike", instance.Store)
	}
	e := &env{T: t, Instance: instance, features: h.Features, ctx: ctx, tokens: make(map[store.ID]int64)}
	if e.Advance != nil {
		e.stopped = &stoppedClock{}
		e.Advance = e.stopped.noting(e.Advance)
	}
	return e
}

// moving bounds each move of a test of many moves: on a busy machine all moves together may take longer than a hanging
// store should be waited for. It returns the function to call when a move begins. A move that takes too long fails the
// test, and the moves after it, with which rapid would search for a shorter sequence, fail at once.
func (e *env) moving() (begin func()) {
	ctx, cancel := context.WithCancel(e.T.Context())
	timer := time.AfterFunc(patience, func() {
		e.Errorf("a move did not end within %s", patience)
		cancel()
	})
	e.Cleanup(func() {
		timer.Stop()
		cancel()
	})
	e.ctx = ctx
	return func() {
		if ctx.Err() == nil {
			timer.Reset(patience)
		}
	}
}

// with returns the same store for a subtest.
func (e *env) with(t *testing.T) *env {
	sub := *e
	sub.T = t
	return &sub
}

// test runs a parallel subtest with a store of its own.
func (h Harness) test(t *testing.T, name string, f func(e *env)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		f(open(t, h))
	})
}

// reopen restarts the store.
func (e *env) reopen() {
	e.Helper()
	e.Store = e.Reopen(e.T)
}

// id returns the ID of a record of the test.
func id(key string) store.ID { return store.ID{Scope: "acme", Key: key} }

// ids returns n IDs.
func ids(n int) []store.ID {
	named := make([]store.ID, n)
	for i := range named {
		named[i] = id(fmt.Sprintf("key-%04d", i))
	}
	return named
}

// option changes a reservation before it is sent.
type option func(*store.Reservation)

// request returns a reservation for the one request that the tests send, with a new nonce.
func request(id store.ID, options ...option) *store.Reservation {
	r := &store.Reservation{
		ID:           id,
		Operation:    "POST /payments",
		Fingerprints: []store.Fingerprint{fingerprint("request")},
		Lease:        calm,
		Retention:    calm,
		TraceID:      "4bf92f3577b34da6a3ce929d0e0e4736",
	}
	_, _ = rand.Read(r.Nonce[:])
	// Each reservation comes from a node with another secret: only the secret of the first attempt counts.
	r.DownstreamSecret = max(binary.NativeEndian.Uint32(r.Nonce[:]), 1)
	for _, option := range options {
		option(r)
	}
	return r
}

// fingerprint returns the fingerprint of a request under the current secret.
func fingerprint(content string) store.Fingerprint {
	return store.Fingerprint{Secret: 7, Rules: 1, Sum: sha256.Sum256([]byte(content))}
}

func noCreate(r *store.Reservation) { r.NoCreate = true }

// resumeOnly makes a reservation only take over a record whose owner was lost.
func resumeOnly(r *store.Reservation) { r.ResumeOnly = true }

func resume(r *store.Reservation) { r.OnLost = store.LostResume }

func lease(d time.Duration) option { return func(r *store.Reservation) { r.Lease = d } }

func retain(d time.Duration) option { return func(r *store.Reservation) { r.Retention = d } }

func fingerprints(p ...store.Fingerprint) option {
	return func(r *store.Reservation) { r.Fingerprints = p }
}

func nonce(n store.Nonce) option { return func(r *store.Reservation) { r.Nonce = n } }

// answer returns a completion with a body.
func answer(body string) *store.Completion {
	return &store.Completion{Response: store.Response{
		Status: 201,
		Header: []store.HeaderField{{Name: "Content-Type", Value: "text/plain"}},
		Body:   []byte(body),
	}}
}

// reserve reserves, and ends the test on an error.
func (e *env) reserve(r *store.Reservation) store.Verdict {
	e.Helper()
	v, err := e.Store.Reserve(e.ctx, r)
	if err != nil {
		e.Fatalf("reserve %q: %v", r.Key, err)
	}
	return v
}

// own reserves, and ends the test if it does not get the right to execute.
func (e *env) own(id store.ID, options ...option) store.Claim {
	e.Helper()
	v := e.reserve(request(id, options...))
	if v.Decision != store.DecisionExecute {
		e.Fatalf("reserve %q: got %s, want execute", id.Key, v.Decision)
	}
	return store.Claim{ID: id, Attempt: v.Record.Attempt}
}

// complete stores an answer and returns when it expires.
func (e *env) complete(c store.Claim, body string) time.Time {
	e.Helper()
	expires, err := e.Store.Complete(e.ctx, c, answer(body))
	e.must(err)
	return expires
}

// must ends the test if a required step failed.
func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// get returns the record of an ID, or a record in StateNone.
func (e *env) get(id store.ID) store.Record {
	e.Helper()
	rec, err := e.find(id)
	if err != nil {
		e.Fatalf("get %q: %v", id.Key, err)
	}
	return rec
}

func (e *env) find(id store.ID) (store.Record, error) {
	rec, err := e.Store.Get(e.ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return store.Record{}, nil
	}
	return rec, err
}

// wantState checks the state of a record.
func (e *env) wantState(id store.ID, want store.State, rule string) {
	e.Helper()
	if got := e.get(id).State; got != want {
		e.Errorf("%s: record %q is %s, want %s", rule, id.Key, got, want)
	}
}

// wantDecision checks the decision for a reservation.
func (e *env) wantDecision(r *store.Reservation, want store.Decision, rule string) store.Verdict {
	e.Helper()
	v := e.reserve(r)
	if v.Decision != want {
		e.Errorf("%s: reserve %q got %s, want %s", rule, r.Key, v.Decision, want)
	}
	return v
}

// wantFenced checks that a write was refused.
func (e *env) wantFenced(err error, rule string) {
	e.Helper()
	if !errors.Is(err, store.ErrFenced) {
		e.Errorf("%s: got error %v, want ErrFenced", rule, err)
	}
}

// together calls f n times at the same moment and waits for all calls.
func together(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			f(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// brief returns a lease or a retention that is meant to run out.
func (e *env) brief() time.Duration {
	if e.Advance != nil {
		return 30 * time.Second
	}
	return 40 * time.Millisecond
}

// resolution returns the finest step of time that the store keeps.
func (e *env) resolution() time.Duration {
	return max(e.features.Resolution, time.Microsecond)
}

// now returns the store's clock: a reservation that must not create a record reports it and leaves no trace (S9).
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
		return time.Time{}, fmt.Errorf("S9: a reservation that must not create got (%s, %w) on a key without a record",
			v.Decision, err)
	}
	return v.Now, nil
}

// until waits until the store's clock has reached a moment, or moves it there.
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

// pass lets time pass on the store's clock.
func (e *env) pass(d time.Duration) {
	e.Helper()
	e.until(e.now().Add(d))
}

// stoppedClock remembers the time of a clock that stands still between the calls of Advance. The store is queried once
// after each call: a test needs the time often, and each query is a round trip to the store.
type stoppedClock struct {
	mu sync.Mutex
	// moves counts the calls of Advance; at is the time that was read after asked calls.
	moves, asked int
	at           time.Time
}

// noting returns an Advance that also invalidates the remembered time.
func (c *stoppedClock) noting(advance func(time.Duration)) func(time.Duration) {
	return func(d time.Duration) {
		advance(d)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.moves++
	}
}

// read returns the time of the clock. A time is not remembered if another goroutine moved the clock during the query.
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
