package payments_test

import (
	"net/http"
	"testing"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
)

// TestUnprotected: without Onceward the system works, and a retry is a second payment. This is what the demo shows.
func TestUnprotected(t *testing.T) {
	t.Parallel()
	onStores(t, func(s *settings) {
		s.Unprotected = true
		s.faults = []provider.Rule{strikes(provider.ResetAfter, "/refunds", "")}
	}, func(t *testing.T, w *world) {
		p := w.payment(1900, "twice")
		w.settled(decode[payments.Payment](w.post("/payments", "pay twice", order(1900, "twice")).want(http.StatusCreated, "")).ID)
		w.wantCharges("twice", 2)
		w.post("/payments", "", order(0, "")).want(http.StatusBadRequest, "")

		w.refund(p, 500).want(http.StatusInternalServerError, "")
		w.refund(p, 500).want(http.StatusCreated, "")
		if n := len(w.bank.Ledger().Refunds(p.Charge)); n != 2 {
			t.Errorf("there are %d refunds, want two", n)
		}

		for range 2 {
			w.post("/bookings", "b", place("concert", 4500, "booked")).want(http.StatusCreated, "confirmed")
		}
		w.wantCharges("booked", 2)
		w.post("/bookings", "b", `{}`).want(http.StatusBadRequest, "")
	})
}
