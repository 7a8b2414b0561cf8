package crashtest

import (
	"net/http"
	"testing"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// TestKilledInDoubt kills the shop when the provider has charged, and the next one when it has found that out. The
// booking is confirmed once, and nothing is charged again (I15, scenario 39).
func TestKilledInDoubt(t *testing.T) {
	t.Parallel()
	for name, finish := range map[string]func(w *world) reply{
		"resumed": func(w *world) reply {
			shop := w.opens(func(s *shopSettings) { s.Resume = true })
			w.awaits("k", store.StateCompleted)
			return shop.post("/bookings", "k", "{}")
		},
		"retried": func(w *world) reply { return w.opens(nil).settles("/bookings", "k", "{}") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, false, func(t *testing.T, w *world) {
				first := w.opens(func(s *shopSettings) { s.Kill = "after the call" })
				if r := first.post("/bookings", "k", "{}"); r.err == nil {
					t.Fatalf("the shop answered %+v although it was to die", r)
				}
				w.endsLease("k")
				settling := w.opens(func(s *shopSettings) { s.Resume, s.Poll, s.Kill = true, true, "after resolving charge" })
				if err := settling.Wait(await.Limit); settling.ExitCode() != -1 {
					t.Fatalf("the shop ended with %v, want it to be killed", err)
				}
				w.endsLease("k")
				w.wantBooking(finish(w), "k", [3]int{1, 1, 1})
			})
		})
	}
}

// TestBookingSettledByAWebhook: the provider answers no questions, but tells what it did. The client's retry goes on
// behind it.
func TestBookingSettledByAWebhook(t *testing.T) {
	t.Parallel()
	onStores(t, false, func(t *testing.T, w *world) {
		shop := w.opens(func(s *shopSettings) { s.Poll = true })
		w.provider.SetWebhook(provider.Webhook{URL: shop.url + "/events", Secret: hookSecret})
		w.failToAnswer([]provider.Kind{provider.ResetAfter})
		if r := shop.post("/bookings", "k", "{}"); r.status != http.StatusInternalServerError {
			t.Fatalf("the first answer is %+v, want that the outcome is unknown", r)
		}
		w.wantBooking(shop.settles("/bookings", "k", "{}"), "k", [3]int{1, 1, 1})
	})
}

// TestBookingSettledByAnOperator: there is no poller, and a person has the charge made again, because it was not.
func TestBookingSettledByAnOperator(t *testing.T) {
	t.Parallel()
	onStores(t, false, func(t *testing.T, w *world) {
		first := w.opens(func(s *shopSettings) { s.Kill = "before the call" })
		if r := first.post("/bookings", "k", "{}"); r.err == nil {
			t.Fatalf("the shop answered %+v although it was to die", r)
		}
		w.endsLease("k")
		shop := w.opens(func(s *shopSettings) { s.Resume = true })
		rec := w.awaits("k", store.StateUnknown)
		operator, err := reconcile.NewOperator(w.guard, w.store)
		must(t, err)
		by := reconcile.By{Who: "zoe", Why: "the process is gone, and the bank knows nothing"}
		outcome := phase.StepOutcome{Step: "charge", Result: phase.ResultNotExecuted}
		must(t, operator.ResolveStep(t.Context(), by, store.Claim{ID: rec.ID, Attempt: rec.Attempt}, outcome))
		w.awaits("k", store.StateCompleted)
		w.wantBooking(shop.post("/bookings", "k", "{}"), "k", [3]int{1, 2, 1})
	})
}
