package onceward_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestACrowdAtTheMomentOfExpiry: a hundred retries and two reapers meet a record in the last moment of its life and in the first
// moment after it. Before, all get the old answer; after, one executes and the others see that one.
func TestACrowdAtTheMomentOfExpiry(t *testing.T) {
	t.Parallel()
	for _, soft := range []bool{false, true} {
		t.Run(fmt.Sprint("soft ", soft), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, handler := memory.New(), new(counted)
				h := newGuard(t, s).Handler(handler,
					onceward.Reserved(onceward.FailureUnknown), onceward.Retain(time.Hour), onceward.InFlightWait(time.Minute))
				first := post(h, "k", `{}`)
				time.Sleep(time.Hour - time.Microsecond)
				for _, a := range crowdBesideReapers(t, h, s, soft) {
					a.want(t, "S2: before the expiry", http.StatusCreated, true)
					a.wantSame(t, "S2: before the expiry", first)
				}
				handler.wantRuns(t, "S2", 1)

				time.Sleep(time.Microsecond)
				executed := 0
				for _, a := range crowdBesideReapers(t, h, s, soft) {
					if !a.replayed() {
						executed++
					}
					if a.status != http.StatusCreated || a.body != `{"execution":2}` {
						t.Errorf("scenario 22: at the expiry a retry got %d %q", a.status, a.body)
					}
				}
				if executed != 1 {
					t.Errorf("scenario 22: %d of the retries executed, want one", executed)
				}
				handler.wantRuns(t, "scenario 22", 2)
				wantState(t, "S10: what was made anew stays", s, "k", store.StateCompleted)
			})
		})
	}
}

// crowdBesideReapers sends a hundred requests while two reapers work.
func crowdBesideReapers(t *testing.T, h http.Handler, store *memory.Store, soft bool) (answers []answer) {
	t.Helper()
	var reapers sync.WaitGroup
	for range 2 {
		reapers.Go(func() {
			for range 50 {
				if _, err := store.Reap(context.Background(), 10, soft); err != nil {
					t.Error(err)
				}
			}
		})
	}
	answers = crowd(100, h)
	reapers.Wait()
	return answers
}

// TestTimeFreesNothingThatIsOpen: a payment that runs for longer than its retention, and one whose outcome nobody knows, are not
// forgotten, however often sweeper and reaper come by. A retry never executes beside them.
func TestTimeFreesNothingThatIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			if op := onceward.FromContext(r.Context()); op.Key() == "lost" {
				op.Unknown()
				return
			}
			time.Sleep(5 * time.Hour)
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, store).Handler(handler,
			onceward.Reserved(onceward.FailureUnknown), onceward.Retain(time.Hour), onceward.Deadline(6*time.Hour))
		post(h, "lost", `{}`).wantProblem(t, "E5", http.StatusInternalServerError, "outcome-unknown")
		var slowest answer
		var running sync.WaitGroup
		running.Go(func() { slowest = post(h, "long", `{}`) })
		for range 29 {
			time.Sleep(10 * time.Minute)
			swept, err := store.Sweep(context.Background(), 10)
			if err != nil || swept != 0 {
				t.Errorf("S5: %d owners that are alive were swept, %v", swept, err)
			}
			if reaped, err := store.Reap(context.Background(), 10, false); err != nil || reaped != 0 {
				t.Errorf("S2: %d open records were reaped, %v", reaped, err)
			}
			post(h, "long", `{}`).wantProblem(t, "S2", http.StatusConflict, "in-progress")
			post(h, "lost", `{}`).wantProblem(t, "S2", http.StatusConflict, "outcome-unknown")
		}
		running.Wait()
		slowest.want(t, "E6", http.StatusCreated, false)
		post(h, "long", `{}`).want(t, "S2: the retention counts from here", http.StatusCreated, true)
		handler.wantRuns(t, "I1", 2)
	})
}
