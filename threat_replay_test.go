package onceward_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestACapturedRequestAfterTheReaper: once the record has gone nobody remembers the payment, and the first-sent time alone refuses
// the captured request. An attacker who can write a new date gets through, which is why a signature has to cover it.
func TestACapturedRequestAfterTheReaper(t *testing.T) {
	t.Parallel()
	for name, soft := range map[string]bool{"removed": false, "marked as expired": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, handler := memory.New(), new(counted)
				h := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.RequireFirstSent(time.Minute))
				now := func() edit { return withHeader(onceward.FirstSentHeader, time.Now().UTC().Format(http.TimeFormat)) }
				sent := now()
				post(h, "k", `{"amount":1}`, sent).want(t, "L4", http.StatusCreated, false)
				post(h, "k", `{"amount":1}`, sent).want(t, "section 6", http.StatusCreated, true)
				time.Sleep(24 * time.Hour)
				if reaped, err := store.Reap(t.Context(), 10, soft); err != nil || reaped != 1 {
					t.Fatalf("the reaper took %d records, %v", reaped, err)
				}
				post(h, "k", `{"amount":1}`, sent).wantProblem(t, "L4", http.StatusPreconditionFailed, "first-sent-too-old")
				handler.wantRuns(t, "L4: the captured request", 1)
				post(h, "k", `{"amount":1}`, now()).want(t, "L4: a date that was written anew", http.StatusCreated, false)
				handler.wantRuns(t, "L4: the guard cannot know that the date is forged", 2)
			})
		})
	}
}
