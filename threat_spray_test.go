package onceward_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestOneKeySprayed is scenario 33: a hundred thousand requests with one key, every tenth of them for another amount, are one
// execution and one record.
func TestOneKeySprayed(t *testing.T) {
	t.Parallel()
	const requests, clients, early = 100_000, 8, 1000
	var decisions atomic.Int64
	sprayed := make(chan struct{})
	s := memory.New()
	guard := newGuard(t, s, func(c *onceward.Config) {
		c.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
			if _, ok := e.(onceward.DecidedEvent); ok && decisions.Add(1) == early {
				close(sprayed)
			}
		})
	})
	handler := new(counted)
	handler.then = func(w http.ResponseWriter, _ *http.Request) {
		if handler.runs.Load() == 1 {
			<-sprayed // many arrive while the only one runs
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "paid")
	}
	h := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown))

	var seen [600]atomic.Int64
	var next atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for n := next.Add(1); n <= requests; n = next.Add(1) {
				body := `{"amount":1}`
				if n%10 == 0 {
					body = `{"amount":1000000}`
				}
				a := post(h, "k", body)
				seen[a.status].Add(1)
				if a.status == http.StatusCreated && a.body != "paid" {
					t.Errorf("scenario 33: the answer is %q", a.body)
				}
			}
		})
	}
	all.Wait()
	handler.wantRuns(t, "scenario 33", 1)
	replies := seen[http.StatusCreated].Load() + seen[http.StatusConflict].Load()
	mismatches := seen[http.StatusUnprocessableEntity].Load()
	if mismatches != requests/10 || replies != requests-requests/10 {
		t.Errorf("scenario 33: %d mismatches, and %d replays or conflicts, of %d requests", mismatches, replies, requests)
	}
	if conflicts := seen[http.StatusConflict].Load(); conflicts < early/2 {
		t.Errorf("only %d requests met the one that was running", conflicts)
	}
	if records, err := s.List(t.Context(), store.Filter{}); err != nil || len(records) != 1 {
		t.Errorf("scenario 33: %d records, %v, want one", len(records), err)
	}
}

// TestInventedKeysLastForTheirRetention: nothing limits how many keys a caller invents (L1 is planned): each costs an execution and
// a record. What bounds them is the retention and the reaper; keys that break the rules cost no record at all.
func TestInventedKeysLastForTheirRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const keys = 2000
		s, handler := memory.New(), new(counted)
		guard := newGuard(t, s, func(c *onceward.Config) { c.Keys.MinLength = 16 })
		h := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.Retain(time.Hour))
		for i := range keys {
			post(h, fmt.Sprint(i), `{}`).wantProblem(t, "H3", http.StatusBadRequest, "invalid-key")
		}
		wantNothingStored(t, "H4", s)
		handler.wantRuns(t, "H4", 0)

		for i := range keys {
			post(h, fmt.Sprintf("invented-%016d", i), `{}`).want(t, "L1 is planned", http.StatusCreated, false)
		}
		handler.wantRuns(t, "L1 is planned", keys)
		stats, err := s.Stats(t.Context())
		if err != nil || stats.Records[store.StateCompleted] != keys {
			t.Errorf("%d records, %v, want %d", stats.Records[store.StateCompleted], err, keys)
		}
		time.Sleep(time.Hour)
		if reaped, err := s.Reap(t.Context(), 2*keys, false); err != nil || reaped != keys {
			t.Errorf("B2: the reaper took %d records, %v, want all %d", reaped, err, keys)
		}
		wantNothingStored(t, "B2", s)
	})
}
