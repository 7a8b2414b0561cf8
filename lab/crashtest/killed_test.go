package crashtest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store"
)

// points are those at which the shop is killed: the boundaries of the steps, and inside each.
var points = []struct {
	name string
	// runs is how often each of seat, charge and confirm runs in the end: a step that was finished does not run again.
	runs [3]int
}{
	{"start", [3]int{1, 1, 1}},
	{"seat", [3]int{2, 1, 1}},
	{"after checkpoint seat", [3]int{1, 1, 1}},
	{"before checkpoint charge (begun)", [3]int{1, 1, 1}},
	{"after checkpoint charge (begun)", [3]int{1, 1, 1}},
	{"before the call", [3]int{1, 2, 1}},
	{"after the call", [3]int{1, 2, 1}},
	{"before checkpoint charge", [3]int{1, 2, 1}},
	{"after checkpoint charge", [3]int{1, 1, 1}},
	{"confirm", [3]int{1, 1, 2}},
	{"after checkpoint confirm", [3]int{1, 1, 1}},
	{"answer", [3]int{1, 1, 1}},
	{"before complete", [3]int{1, 1, 1}},
	{"after complete", [3]int{1, 1, 1}},
}

// TestKilled kills the shop with SIGKILL at each point of a booking, on every change at one of them. After a restart, with or without a retry of the
// client, the booking is finished once.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, point := range points {
		t.Run(strings.ReplaceAll(point.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if point.name != "after the call" {
				nightly.Only(t, "the booking is killed after its call")
			}
			onStores(t, true, func(t *testing.T, w *world) {
				first := w.opens(func(s *shopSettings) { s.Kill = point.name })
				if r := first.post("/bookings", "retried", "{}"); r.err == nil {
					t.Fatalf("the shop answered %+v although it was to die at %q", r, point.name)
				}
				w.endsLease("retried")
				second := w.opens(nil)
				r := second.settles("/bookings", "retried", "{}")
				w.wantBooking(r, "retried", point.runs)

				third := w.opens(func(s *shopSettings) { s.Kill = point.name })
				if r := third.post("/bookings", "resumed", "{}"); r.err == nil {
					t.Fatalf("the shop answered %+v although it was to die at %q", r, point.name)
				}
				w.endsLease("resumed")
				fourth := w.opens(func(s *shopSettings) { s.Resume = true })
				w.wantResumed(fourth, point.name)
			})
		})
	}
}

// TestKilledInATransaction kills the shop with SIGKILL inside the transaction that sells a seat, and when it is
// committed. The client's retry gets one seat.
func TestKilledInATransaction(t *testing.T) {
	t.Parallel()
	for point, runs := range map[string]int{"seat": 2, "after commit": 1} {
		t.Run(strings.ReplaceAll(point, " ", "_"), func(t *testing.T) {
			t.Parallel()
			onStores(t, true, func(t *testing.T, w *world) {
				first := w.opens(func(s *shopSettings) { s.Kill = point })
				if r := first.post("/seats", "k", "{}"); r.err == nil {
					t.Fatalf("the shop answered %+v although it was to die at %q", r, point)
				}
				r := w.opens(nil).settles("/seats", "k", "{}")
				seats, ran := w.counts("seat"), w.passed("seat")
				if r.status != http.StatusCreated || r.replayed != (runs == 1) || seats != 1 || ran != runs {
					t.Errorf("%+v, and %d seats by %d runs, want one seat by %d", r, seats, ran, runs)
				}
			})
		})
	}
}

// TestKilledInItsCall kills the shop with SIGKILL in a reserved payment, before and after the provider has charged. The
// poller settles the payment, and there is one charge.
func TestKilledInItsCall(t *testing.T) {
	t.Parallel()
	for point, charged := range map[string]int{"before the call": 0, "after the call": 1} {
		t.Run(strings.ReplaceAll(point, " ", "_"), func(t *testing.T) {
			t.Parallel()
			onStores(t, true, func(t *testing.T, w *world) {
				first := w.opens(func(s *shopSettings) { s.Kill = point })
				if r := first.post("/payments", "k", payment); r.err == nil || w.charges("k") != charged {
					t.Fatalf("%+v and %d charges although the shop was to die at %q", r, w.charges("k"), point)
				}
				w.endsLease("k")
				r := w.opens(func(s *shopSettings) { s.Poll = true }).settles("/payments", "k", payment)
				if r.status != http.StatusCreated || r.replayed != (charged == 1) || w.charges("k") != 1 {
					t.Errorf("%+v, and %d charges, want one", r, w.charges("k"))
				}
			})
		})
	}
}

// wantBooking makes sure that a booking was made once.
func (w *world) wantBooking(r reply, key string, runs [3]int) {
	w.Helper()
	if r.status != http.StatusCreated || !strings.Contains(r.body, `"Name":"`+key+`"`) {
		w.Errorf("the answer is %+v", r)
	}
	if w.counts("seat") != 1 || w.counts("confirmation") != 1 || w.charges(key) != 1 {
		w.Errorf("%d seats, %d charges and %d confirmations, want one each", w.counts("seat"), w.charges(key), w.counts("confirmation"))
	}
	ran := [3]int{w.passed("seat"), w.passed("before the call"), w.passed("confirm")}
	if ran != runs {
		w.Errorf("the steps ran %v times, want %v", ran, runs)
	}
}

// wantResumed makes sure that a second booking was finished without its client. What was lost before its first step is
// let go, because nothing was done and it is not known what was asked for.
func (w *world) wantResumed(p *shopProcess, point string) {
	w.Helper()
	nothingDone := point == "start" || point == "seat"
	if nothingDone {
		w.awaits("resumed", store.StateRetryable)
		if w.counts("seat") != 1 || w.charges("resumed") != 0 {
			w.Errorf("%d seats and %d charges, want nothing done", w.counts("seat"), w.charges("resumed"))
		}
		return
	}
	stored := w.awaits("resumed", store.StateCompleted)
	if w.counts("seat") != 2 || w.counts("confirmation") != 2 || w.charges("resumed") != 1 {
		w.Errorf("%d seats, %d charges and %d confirmations, want one more each", w.counts("seat"), w.charges("resumed"), w.counts("confirmation"))
	}
	r := p.post("/bookings", "resumed", "{}")
	if !r.replayed || r.body != string(stored.Response.Body) {
		w.Errorf("the client gets %+v, want the replay of %s", r, stored.Response.Body)
	}
}
