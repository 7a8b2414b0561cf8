package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// testWaiter checks that a caller that waits for a record notices its change, and does not wait longer than that.
func testWaiter(t *testing.T, h Harness) {
	for _, w := range wakings(h.probe) {
		h.test(t, "woken by "+w.name, func(e *env) {
			var claims []store.Claim
			for _, id := range ids(rounds) {
				claims = append(claims, e.own(id, w.options(e)...))
			}
			w.prepare(e)
			for _, c := range claims {
				e.wakes(c, func() { w.wake(e, c) })
			}
		})
	}
	h.test(t, "not in progress", func(e *env) {
		for _, f := range fixtures(h.probe) {
			if f.want == store.StateInProgress {
				continue
			}
			target := id(f.name)
			f.build(e, []store.ID{target})
			if err := e.wait(e.ctx, store.Claim{ID: target, Attempt: e.get(target).Attempt}); err != nil {
				e.Errorf("waiting for a record that is %s got %v, want nil at once", f.name, err)
			}
		}
	})
	h.test(t, "another attempt", func(e *env) {
		c := e.own(id("key"))
		for _, attempt := range []int64{c.Attempt - 1, c.Attempt + 1} {
			if err := e.wait(e.ctx, store.Claim{ID: c.ID, Attempt: attempt}); err != nil {
				e.Errorf("waiting for attempt %d while %d runs got %v, want nil at once", attempt, c.Attempt, err)
			}
		}
	})
	h.test(t, "the waiter leaves", func(e *env) {
		c := e.own(id("key"))
		ctx, cancel := context.WithTimeout(e.ctx, 30*time.Millisecond)
		defer cancel()
		if err := e.wait(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("waiting for a record that stays in progress got %v, want the context's error", err)
		}
		e.wakes(c, func() { e.complete(c, "done") })
	})
	h.test(t, "no wake-up is lost", noLostWakeUp)
}

func (e *env) wait(ctx context.Context, c store.Claim) error {
	return e.Store.(store.Waiter).Wait(ctx, c.ID, c.Attempt)
}

// waking is an event that ends a wait.
type waking struct {
	name    string
	options func(e *env) []option
	prepare func(e *env)
	wake    func(e *env, c store.Claim)
}

func wakings(i Instance) []waking {
	calmly := func(*env) []option { return nil }
	lapsing := func(e *env) []option { return []option{lease(e.brief())} }
	resumable := func(e *env) []option { return []option{lease(e.brief()), resume} }
	nothing := func(*env) {}
	all := []waking{
		{"complete", calmly, nothing, func(e *env, c store.Claim) { e.complete(c, "done") }},
		{"release", calmly, nothing, func(e *env, c store.Claim) { e.must(e.Store.Release(e.ctx, c, "no stock")) }},
		{"abandon", calmly, nothing, func(e *env, c store.Claim) { e.must(e.Store.Abandon(e.ctx, c, "timeout")) }},
		{"reject", calmly, nothing, func(e *env, c store.Claim) { e.must(e.Store.Reject(e.ctx, c)) }},
		{"a reservation after the lease", lapsing, lapse, func(e *env, c store.Claim) { e.reserve(request(c.ID)) }},
		{"another owner", resumable, lapse, func(e *env, c store.Claim) { e.own(c.ID, resume) }},
	}
	if has[store.Sweeper](i) {
		all = append(all, waking{"sweep", lapsing, lapse, func(e *env, c store.Claim) {
			for e.get(c.ID).State == store.StateInProgress && e.sweep(1) > 0 {
				continue // one at a time, so that the other records can still be waited for
			}
		}})
	}
	if has[store.Buster](i) {
		all = append(all, waking{"bust", calmly, nothing, func(e *env, c store.Claim) { e.bust(c.ID, true) }})
	}
	return all
}

// wakes checks that a change ends many waits.
func (e *env) wakes(c store.Claim, change func()) {
	e.Helper()
	const waiters = 8
	waited := make(chan error, waiters)
	var started sync.WaitGroup
	started.Add(waiters)
	for range waiters {
		go func() {
			started.Done()
			waited <- e.wait(e.ctx, c)
		}()
	}
	started.Wait()
	e.get(c.ID) // a round trip, during which most callers begin to wait
	change()
	for range waiters {
		if err := await.Value(e, "the end of a wait", waited); err != nil {
			e.Fatalf("section 6: a duplicate that waits is woken by the end, but got %v", err)
		}
	}
}

// noLostWakeUp makes the attempt end while the wait begins.
func noLostWakeUp(e *env) {
	for _, id := range ids(100) {
		c := e.own(id)
		var waited, completed error
		pair(func() { waited = e.wait(e.ctx, c) }, func() { _, completed = e.Store.Complete(e.ctx, c, answer("done")) })
		e.must(completed)
		if waited != nil {
			e.Fatalf("section 6: a wait that began while the record was completed got %v, want to be woken", waited)
		}
	}
}
