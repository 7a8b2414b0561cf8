package tiered_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// firsts makes so many first executions, and returns for how many of them the front was asked.
func (w *world) firsts(n int) (asked int64) {
	w.Helper()
	before := w.front.gets.Load()
	for i := range n {
		w.reserve(request(store.ID{Scope: "first", Key: fmt.Sprint(w.durable.asked.Load(), i)}), store.DecisionExecute)
	}
	return w.front.gets.Load() - before
}

// TestFirstExecutionsPassTheFront: where there are no retries the front is asked for a few requests only, and for all
// again soon after retries begin, and while one request in ten is a retry.
func TestFirstExecutionsPassTheFront(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: time.Hour})
		w.execute(request(key), "done")
		w.replay("done", false)
		w.firsts(300)
		if asked := w.firsts(160); asked != 10 {
			t.Errorf("the front was asked for %d of 160 first executions, want 10", asked)
		}
		hits := w.hits.Load()
		for range 16 {
			w.reserve(request(key), store.DecisionReplay)
		}
		if got := w.hits.Load() - hits; got == 0 {
			t.Error("none of 16 retries was answered by the front")
		}
		for range 20 {
			w.replay("done", true)
			w.firsts(9)
		}
	})
}

// TestFrontWhileDurableStoreFails: the front answers retries while the durable store is away, also where it was hardly
// asked before.
func TestFrontWhileDurableStoreFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: time.Hour})
		w.execute(request(key), "done")
		w.replay("done", false)
		w.firsts(300)
		w.durable.down.Store(true)
		for range 300 {
			_, err := w.store.Reserve(t.Context(), request(store.ID{Scope: "acme", Key: "new"}))
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("without the durable store a new key got %v", err)
			}
		}
		w.replay("done", true)
	})
}
