package payments_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
)

// TestOnDynamoDB: the same API on a store without SQL, in all three modes, with a provider that fails.
func TestOnDynamoDB(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storeOf(t, "dynamodb"), func(s *settings) {
		s.Timing.Look = soon
		s.faults = []provider.Rule{
			{Match: provider.Match{Path: "/refunds", Method: http.MethodPost}, Kind: provider.ResetAfter, Times: 1},
			{Match: provider.Match{Path: "/charges", Method: http.MethodPost}, Kind: provider.ResetAfter, Times: 2},
		}
	})
	other := w.beside(nil) // two processes charge what was ordered
	const order = `{"customer":"c1","amount":1900,"currency":"EUR","reference":"order"}`
	first := w.post("/payments", "pay", order).want(http.StatusCreated, `"state":"pending"`)
	other.post("/payments", "pay", order).wantReplay(first)
	w.post("/payments", "pay", strings.Replace(order, "1900", "1901", 1)).want(http.StatusUnprocessableEntity, "mismatch")
	p := decode[payments.Payment](first)
	path := first.header.Get("Location")
	w.eventually("the charge", func() bool {
		return strings.Contains(w.send(http.MethodGet, path, alice, "", "").body, `"state":"charged"`)
	})
	w.wantCharges("order", 1)
	w.send(http.MethodGet, path, bob, "", "").want(http.StatusNotFound, "no such payment")
	w.send(http.MethodGet, "/payments", alice, "", "").want(http.StatusOK, p.ID)

	var refund reply
	w.eventually("the refund, whose answer was lost", func() bool {
		refund = w.post(path+"/refund", "refund", `{"amount":500}`)
		return refund.status == http.StatusCreated
	})
	charge := decode[payments.Payment](w.send(http.MethodGet, path, alice, "", "")).Charge
	if made := w.bank.Ledger().Refunds(charge); len(made) != 1 || made[0].ID != decode[payments.Refund](refund).ID {
		t.Errorf("the answer is %s, and the refunds are %+v", refund.body, made)
	}

	booked := w.post("/bookings", "booking", `{"item":"cellar","price":4500,"reference":"cellar"}`)
	booked.want(http.StatusCreated, `"state":"confirmed"`)
	other.post("/bookings", "booking", `{"item":"cellar","price":4500,"reference":"cellar"}`).wantReplay(booked)
	w.post("/bookings", "late", `{"item":"cellar","price":4500,"reference":"late"}`).want(http.StatusConflict, "sold out")
	w.wantCharges("cellar", 1)
	w.wantCharges("late", 0)
	w.send(http.MethodGet, "/health", "", "", "").want(http.StatusOK, `"waiting":0`)
}
