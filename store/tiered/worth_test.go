package tiered_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// discourage makes so many first executions in a scope that look-ups are not worth it.
func (w *world) discourage(scope string) {
	w.Helper()
	w.firsts(scope, 300)
}

// firsts makes so many first executions in a scope, and returns for how many of them the front was asked.
func (w *world) firsts(scope string, n int) (asked int64) {
	w.Helper()
	before := w.front.gets.Load()
	for i := range n {
		w.reserve(request(store.ID{Scope: scope, Key: fmt.Sprint(w.durable.asked.Load(), i)}), store.DecisionExecute)
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
		w.discourage(key.Scope)
		if asked := w.firsts(key.Scope, 1600); asked < 30 || asked > 250 {
			t.Errorf("the front was asked for %d of 1600 first executions, want about 100", asked)
		}
		hits := w.hits.Load()
		for range 500 {
			w.reserve(request(key), store.DecisionReplay)
		}
		if got := w.hits.Load() - hits; got < 100 {
			t.Errorf("%d of 500 retries were answered by the front", got)
		}
		for range 20 {
			w.replay("done", true)
			w.firsts(key.Scope, 9)
		}
	})
}

// TestSampleHasNoPattern: retries that come at a regular distance are found, wherever in the sample they begin.
func TestSampleHasNoPattern(t *testing.T) {
	for shift := range 2 {
		t.Run(fmt.Sprint(shift), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, tiered.Config{MaxAge: time.Hour})
				w.execute(request(key), "done")
				w.replay("done", false)
				w.discourage(key.Scope)
				w.firsts(key.Scope, shift)
				for range 500 {
					w.reserve(request(key), store.DecisionReplay)
					if w.hits.Load() > 0 {
						return
					}
					w.firsts(key.Scope, 15)
				}
				t.Error("none of 500 retries, one in 16 requests, was answered by the front")
			})
		})
	}
}

// TestSprayedScope: a scope that sprays keys which are not there turns look-ups off for few others.
func TestSprayedScope(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: time.Hour})
		w.discourage("mallory")
		asked := int64(0)
		for i := range 100 {
			asked += w.firsts(fmt.Sprint("scope ", i), 1)
		}
		if asked < 70 {
			t.Errorf("the front was asked for %d of 100 other scopes", asked)
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
		w.discourage(key.Scope)
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
