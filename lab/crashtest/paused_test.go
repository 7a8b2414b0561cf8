package crashtest

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// starts sends a request beside the test, and waits until its shop holds.
func (p *shopProcess) starts(path, key, body, point string) <-chan reply {
	p.Helper()
	done := make(chan reply, 1)
	go func() { done <- p.post(path, key, body) }()
	p.Hear("holding " + point)
	return done
}

// TestPausedPastItsLease pauses the owner with SIGSTOP; another takes over and finishes; the first wakes up. It is
// fenced, there is no second charge, and both clients get the same answer.
func TestPausedPastItsLease(t *testing.T) {
	nightly.Only(t, "TestKilled has an owner that is gone, and TestPausedBeforeItsCall one that wakes up")
	t.Parallel()
	const everywhere, onPostgres = "", "postgres"
	for point, where := range map[string]string{
		"before the call": everywhere, "after the call": everywhere, "after checkpoint charge": everywhere, "before complete": everywhere,
		// Inside a transaction: on SQLite all wait for a process that is stopped there, and none takes over.
		"seat": onPostgres, "confirm": onPostgres,
	} {
		t.Run(strings.ReplaceAll(point, " ", "_"), func(t *testing.T) {
			t.Parallel()
			on(t, where, true, func(t *testing.T, w *world) {
				if where == onPostgres {
					w.settings.Lease = 5 * time.Second // PostgreSQL frees the rows of a process that is stopped when it is over
				}
				first := w.opens(func(s *shopSettings) { s.Hold = point })
				answer := first.starts("/bookings", "k", "{}", point)
				w.stops(first)
				if where == everywhere {
					w.endsLease("k")
				}
				second := w.opens(nil)
				taken := second.settles("/bookings", "k", "{}")
				must(t, first.Resume())
				first.Tell("go on")
				late := <-answer
				if late.err != nil || late.status != http.StatusCreated || late.body != taken.body {
					t.Errorf("the first client got %+v, the second %+v, want the same", late, taken)
				}
				if w.counts("seat") != 1 || w.charges("k") != 1 || w.counts("confirmation") != 1 {
					t.Errorf("%d seats, %d charges and %d confirmations, want one each", w.counts("seat"), w.charges("k"), w.counts("confirmation"))
				}
			})
		})
	}
}

// TestPausedBeforeItsCall: a paused owner has its lease but has not made its call; the reconciler finds nothing at the
// provider; the client retries; the owner wakes up. One charge (scenario 2).
func TestPausedBeforeItsCall(t *testing.T) {
	t.Parallel()
	const body = `{"Amount":1900}`
	t.Run("a provider that recognises the key", func(t *testing.T) {
		t.Parallel()
		nightly.Only(t, "a provider that does not is tested")
		onStores(t, true, func(t *testing.T, w *world) {
			first := w.opens(func(s *shopSettings) { s.Hold = "before the call" })
			answer := first.starts("/payments", "k", body, "before the call")
			w.stops(first)
			w.endsLease("k")
			second := w.opens(func(s *shopSettings) { s.Poll = true })
			retried := second.settles("/payments", "k", body)
			must(t, first.Resume())
			first.Tell("go on")
			<-answer
			if retried.status != http.StatusCreated || w.charges("k") != 1 {
				t.Errorf("the retry got %+v, and there are %d charges, want one", retried, w.charges("k"))
			}
			if again := second.post("/payments", "k", body); again.body != retried.body || !again.replayed {
				t.Errorf("then %+v, want the same replayed", again)
			}
		})
	})
	t.Run("a provider that does not", func(t *testing.T) {
		t.Parallel()
		onStores(t, false, func(t *testing.T, w *world) {
			first := w.opens(func(s *shopSettings) { s.Hold = "before the call" })
			answer := first.starts("/payments", "k", body, "before the call")
			w.stops(first)
			w.endsLease("k")
			second := w.opens(func(s *shopSettings) { s.Poll = true })
			w.awaits("k", store.StateUnknown)
			w.awaitsQuestions("k")
			if r := second.post("/payments", "k", body); r.status != http.StatusConflict || !strings.Contains(r.body, "outcome-unknown") {
				t.Errorf("the retry got %+v, want 409 outcome-unknown: nothing was found, but that proves nothing", r)
			}
			must(t, first.Resume())
			first.Tell("go on")
			<-answer
			if w.charges("k") == 0 {
				// A heartbeat found the lease lost before the call. Only a person can conclude that.
				rec := w.record("k")
				operator, err := reconcile.NewOperator(w.guard, w.store)
				must(t, err)
				by := reconcile.By{Who: "zoe", Why: "the process has ended without a call"}
				must(t, operator.ResolveNotExecuted(t.Context(), by, store.Claim{ID: rec.ID, Attempt: rec.Attempt}))
			}
			settled := second.settles("/payments", "k", body)
			if settled.status != http.StatusCreated || w.charges("k") != 1 {
				t.Errorf("in the end %+v, and %d charges, want one", settled, w.charges("k"))
			}
		})
	})
}
