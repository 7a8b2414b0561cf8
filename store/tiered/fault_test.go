package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// TestFrontDown: a front that is down costs one try, and is used again soon after it is back.
func TestFrontDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.execute(request(key), "done")
		w.replay("done", false)
		w.replay("done", true)
		w.front.set(func(f *faultyFront) { f.down = true })
		gets := w.front.gets.Load()
		for range 100 {
			w.replay("done", false)
		}
		if asked := w.front.gets.Load() - gets; asked != 1 || w.faults.Load() != 1 || w.logged.Load() != 1 {
			t.Errorf("100 retries asked a dead front %d times, %d failures were observed and %d logged, want 1 each", asked,
				w.faults.Load(), w.logged.Load())
		}
		time.Sleep(20 * time.Second)
		w.front.set(func(f *faultyFront) { f.down = false })
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.replay("done", true)
	})
}

// TestFrontFlaps: a front that fails each time that it is used is logged once in ten seconds.
func TestFrontFlaps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.execute(request(key), "done")
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Second) {
			w.front.set(func(f *faultyFront) { f.down = true })
			w.replay("done", false)
			w.front.set(func(f *faultyFront) { f.down = false })
		}
		if w.faults.Load() < 50 || w.logged.Load() != 6 {
			t.Errorf("in a minute %d failures were observed and %d logged, want about 60 and 6", w.faults.Load(),
				w.logged.Load())
		}
	})
}

// TestFrontHangs: a front that does not answer costs one FrontTimeout, and no later request waits for it.
func TestFrontHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{FrontTimeout: 30 * time.Millisecond})
		w.execute(request(key), "done")
		w.front.set(func(f *faultyFront) { f.slow = true })
		start := time.Now()
		w.replay("done", false)
		if waited := time.Since(start); waited < 30*time.Millisecond || waited > 37500*time.Microsecond {
			t.Errorf("a retry waited %s for a front that hangs, want 30ms and a quarter more at most", waited)
		}
		for start = time.Now(); time.Since(start) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
			before := time.Now()
			w.replay("done", false)
			if time.Since(before) != 0 {
				t.Fatalf("a retry waited %s for a front that is known to hang", time.Since(before))
			}
		}
		w.front.set(func(f *faultyFront) { f.slow = false })
		time.Sleep(6 * time.Second)
		w.replay("done", false)
		w.replay("done", true)
	})
}

// TestCallerLeaves: a caller that leaves proves nothing about the front.
func TestCallerLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.execute(request(key), "done")
		w.replay("done", false)
		w.front.set(func(f *faultyFront) { f.slow = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := w.store.Reserve(ctx, request(key)); err == nil {
			t.Error("a caller who has left got an answer")
		}
		w.front.set(func(f *faultyFront) { f.slow = false })
		w.replay("done", true)
		if w.faults.Load() != 0 {
			t.Error("a caller who left was taken for a failure of the front")
		}
	})
}

// TestBustWhileDown: a bust while the front cannot be reached is done, returns until when the old answer can be seen,
// and reaches the front when it is back, before this node uses it.
func TestBustWhileDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: 40 * time.Second})
		w.execute(request(key), "old")
		w.replay("old", false)
		w.front.set(func(f *faultyFront) { f.down = true })
		var stale *store.StaleError
		err := w.store.Bust(t.Context(), key, false)
		if !errors.As(err, &stale) || !errors.Is(err, store.ErrStale) || errors.Is(err, errDown) {
			t.Fatalf("a bust without the front: %v, want a StaleError that is none of the front's", err)
		}
		if want := time.Now().Add(tiered.MaxMaxAge); !stale.Until.Equal(want) {
			t.Errorf("the old answer can be seen until %s, want %s", stale.Until, want)
		}
		if _, err := w.durable.Get(t.Context(), key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the record is still there: %v", err)
		}
		time.Sleep(10 * time.Second)
		w.front.set(func(f *faultyFront) { f.down = false })
		if value, _ := w.front.Get(t.Context(), key); len(value) == 0 {
			t.Fatal("the front lost the old answer by itself: the test shows nothing")
		}
		w.execute(request(key), "new") // the front is not queried before it is invalidated
		time.Sleep(5 * time.Second)
		if value, _ := w.front.Get(t.Context(), key); len(value) != 0 {
			t.Error("the front was not told when it was back")
		}
		w.replay("new", false)
	})
}

// TestBustIsNotTold: an invalidation of an entry that has ended by its age is not sent any more.
func TestBustIsNotTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: time.Second})
		w.execute(request(key), "old")
		w.front.set(func(f *faultyFront) { f.down = true })
		if err := w.store.Bust(t.Context(), key, false); !errors.Is(err, store.ErrStale) {
			t.Fatal(err)
		}
		time.Sleep(tiered.MaxMaxAge)
		w.front.set(func(f *faultyFront) { f.down = false })
		time.Sleep(5 * time.Second)
		w.execute(request(key), "new")
		w.replay("new", false)
		w.replay("new", true) // no tombstone keeps it out
	})
}

// TestBustTwice: a bust that the durable store refuses still clears the front, in case a bust that bypassed it left an
// entry.
func TestBustTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.execute(request(key), "old")
		w.replay("old", false)
		if err := w.durable.Bust(t.Context(), key, false); err != nil {
			t.Fatal(err)
		}
		w.replay("old", true)
		if err := w.store.Bust(t.Context(), key, false); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a bust of what is gone: %v, want ErrNotFound", err)
		}
		w.reserve(request(key), store.DecisionExecute)
	})
}

// TestResolve: everything that resolves a record reaches the front, or reports that it did not.
func TestResolve(t *testing.T) {
	for name, resolve := range map[string]func(w *world, c store.Claim) error{
		"completed": func(w *world, c store.Claim) error {
			return w.store.ResolveCompleted(w.Context(), c, &store.Completion{Response: store.Response{Status: 200}})
		},
		"not executed": func(w *world, c store.Claim) error { return w.store.ResolveNotExecuted(w.Context(), c, "because") },
		"step": func(w *world, c store.Claim) error {
			return w.store.ResolveStep(w.Context(), c, store.Checkpoint{Point: "charged"})
		},
	} {
		for _, down := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, down %t", name, down), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, tiered.Config{})
					r := request(key)
					r.OnLost = store.LostResume
					v := w.reserve(r, store.DecisionExecute)
					c := store.Claim{ID: key, Attempt: v.Record.Attempt}
					if err := w.store.Abandon(t.Context(), c, "lost"); err != nil {
						t.Fatal(err)
					}
					// What a bust has left that went past the front.
					if err := w.front.Memory.Add(t.Context(), key, []byte("old"), time.Now().Add(time.Hour)); err != nil {
						t.Fatal(err)
					}
					w.front.set(func(f *faultyFront) { f.down = down })
					if err := resolve(w, c); errors.Is(err, store.ErrStale) != down || err != nil && !down {
						t.Fatalf("with the front down: %t, got %v", down, err)
					}
					w.front.set(func(f *faultyFront) { f.down = false })
					time.Sleep(time.Second)
					if value, err := w.front.Get(t.Context(), key); len(value) > 0 || err != nil {
						t.Errorf("the front still holds (%q, %v)", value, err)
					}
				})
			})
		}
	}
}

// TestRewriteWhileDown: records that are sealed again while the front is away, which can be very many, do not take the
// place of busts among the pending invalidations, and do not wait for the front.
func TestRewriteWhileDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		c := w.execute(request(key), "done")
		w.replay("done", false)
		w.front.set(func(f *faultyFront) { f.slow = true })
		old := store.Content{Response: store.Response{Status: 201, Body: []byte("done")}}
		again := store.Content{Response: store.Response{Status: 201, Body: []byte("sealed")}}
		if err := w.store.Rewrite(t.Context(), c, old, again); err != nil {
			t.Errorf("a rewrite without the front: %v", err)
		}
		start := time.Now()
		if err := w.store.Rewrite(t.Context(), c, again, old); err != nil || time.Since(start) != 0 {
			t.Errorf("a rewrite behind it took %s: %v", time.Since(start), err)
		}
		if n := tiered.Untold(w.store); n != 0 {
			t.Errorf("%d rewrites wait for the front to be told", n)
		}
	})
}
