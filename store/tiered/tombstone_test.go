package tiered_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// TestTombstoneOfABustStays: a shorter invalidation after a bust does not let in what the bust keeps out, which is the
// fill of a node with a longer MaxAge that read before.
func TestTombstoneOfABustStays(t *testing.T) {
	claim := store.Claim{ID: key, Attempt: 7}
	for name, settle := range map[string]func(w *world) error{
		"resolve completed": func(w *world) error {
			return w.store.ResolveCompleted(w.Context(), claim, &store.Completion{Response: store.Response{Status: 200}})
		},
		"resolve not executed": func(w *world) error { return w.store.ResolveNotExecuted(w.Context(), claim, "late") },
		"resolve step": func(w *world) error {
			return w.store.ResolveStep(w.Context(), claim, store.Checkpoint{Point: "p"})
		},
		"rewrite": func(w *world) error { return w.store.Rewrite(w.Context(), claim, store.Content{}, store.Content{}) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, tiered.Config{MaxAge: time.Minute})
				w.execute(request(key), "old")
				if err := w.store.Bust(t.Context(), key, false); err != nil {
					t.Fatal(err)
				}
				if err := settle(w); err == nil {
					t.Fatal("an attempt that never was is settled")
				}
				time.Sleep(2 * time.Minute)
				_ = w.front.Add(t.Context(), key, []byte("old"), time.Now().Add(50*time.Minute))
				if value, _ := w.front.Get(t.Context(), key); len(value) > 0 {
					t.Errorf("two minutes after the bust the front holds %q", value)
				}
			})
		})
	}
}

// TestBustWhileDownWithALongerAge: another node can have a longer MaxAge, and so see an old answer for longer than this
// one. The error contains this time, and the invalidation lasts as long.
func TestBustWhileDownWithALongerAge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: time.Second})
		other, err := tiered.New(w.durable, w.front, tiered.Config{MaxAge: tiered.MaxMaxAge, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close() }()
		replays := func() bool {
			v, err := other.Reserve(t.Context(), request(key))
			synctest.Wait() // until a fill has arrived
			return err == nil && v.Decision == store.DecisionReplay
		}
		w.execute(request(key), "old")
		if !replays() {
			t.Fatal("what was executed is not replayed")
		}
		w.front.set(func(f *faultyFront) { f.down = true })
		var stale *store.StaleError
		if err := w.store.Bust(t.Context(), key, false); !errors.As(err, &stale) {
			t.Fatalf("a bust without the front: %v, want a StaleError", err)
		}
		// A resolve is invalidated for a shorter time, which changes nothing.
		claim := store.Claim{ID: key, Attempt: w.reserve(request(key), store.DecisionExecute).Record.Attempt}
		if err := w.store.Abandon(t.Context(), claim, "lost"); err != nil {
			t.Fatal(err)
		}
		var resolved *store.StaleError
		err = w.store.ResolveNotExecuted(t.Context(), claim, "late")
		if !errors.As(err, &resolved) || resolved.Until.Before(stale.Until) {
			t.Errorf("a resolve without the front: %v, want a StaleError until %s", err, stale.Until)
		}
		time.Sleep(10 * time.Minute)
		w.front.set(func(f *faultyFront) { f.down = false })
		if now := time.Now(); !replays() {
			t.Fatal("the front lost the old answer by itself: the test shows nothing")
		} else if !now.Before(stale.Until) {
			t.Errorf("%s after the bust, and %s after it was said to end, the old answer is seen",
				10*time.Minute, now.Sub(stale.Until))
		}
		time.Sleep(10 * time.Second)
		if replays() {
			t.Error("the front was not told when it was back")
		}
	})
}
