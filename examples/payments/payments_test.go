package payments_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
)

// order is the body of a payment.
func order(amount int64, reference string) string {
	return fmt.Sprintf(`{"customer":"c1","amount":%d,"currency":"EUR","reference":"%s"}`, amount, reference)
}

// payment makes a payment, named after its reference, and waits until it is charged or declined.
func (w *world) payment(amount int64, reference string) payments.Payment {
	w.Helper()
	first := w.post("/payments", "pay "+reference, order(amount, reference)).want(http.StatusCreated, "")
	return w.settled(decode[payments.Payment](first).ID)
}

// settled waits until a payment is charged or declined.
func (w *world) settled(id string) (p payments.Payment) {
	w.Helper()
	w.eventually("the payment to be charged", func() bool {
		p = decode[payments.Payment](w.send(http.MethodGet, "/payments/"+id, alice, "", "").want(http.StatusOK, id))
		return p.State != "pending"
	})
	return p
}

// strikes is a fault that strikes the first order about a charge with that reference. Answers are lost at once.
func strikes(kind provider.Kind, path, reference string) provider.Rule {
	return provider.Rule{
		Kind: kind, Times: 1, Delay: time.Microsecond,
		Match: provider.Match{Method: http.MethodPost, Path: path, Reference: reference},
	}
}

func TestPayments(t *testing.T) {
	t.Parallel()
	tests := stories{
		"charged once":       chargedOnce,
		"declined":           chargeDeclined,
		"another body":       anotherBody,
		"two accounts":       twoAccounts,
		"not what is wanted": notAPayment,
	}
	for _, kind := range lost {
		tests[string(kind)] = func(w *world) { chargeAnswerLost(w, kind) }
	}
	tests.onStores(t, func(s *settings) {
		for _, kind := range lost {
			s.faults = append(s.faults, strikes(kind, "/charges", string(kind)))
		}
	})
}

// lost are the faults after which it is not known from the answer that the provider did what it was asked for.
var lost = []provider.Kind{provider.TimeoutAfter, provider.ErrorAfter, provider.ResetAfter}

func chargedOnce(w *world) {
	first := w.post("/payments", "k", order(1900, "once")).want(http.StatusCreated, `"state":"pending"`)
	p := decode[payments.Payment](first)
	if p.Account != "alice" || p.Amount != 1900 || first.header.Get("Location") != "/payments/"+p.ID {
		w.Errorf("the answer is %+v at %s", p, first.header.Get("Location"))
	}
	now := w.settled(p.ID)
	made := w.bank.Charges("once")
	if len(made) != 1 || now.State != "charged" || now.Charge != made[0].ID || made[0].Metadata["payment"] != p.ID {
		w.Errorf("the payment is %+v, and the charges are %+v", now, made)
	}
	w.post("/payments", "k", order(1900, "once")).wantReplay(first) // as it was said first, not as it is now
	if n := w.number(`SELECT count(*) FROM payment WHERE reference = 'once'`); n != 1 {
		w.Errorf("there are %d payments, want one", n)
	}
}

func chargeDeclined(w *world) {
	if p := w.payment(provider.DeclinedAmount, "declined"); p.State != "declined" || p.Charge == "" {
		w.Errorf("the payment is %+v, want it declined", p)
	}
	w.wantCharges("declined", 0)
}

// chargeAnswerLost: the provider charges and its answer is lost. The worker asks again, with the same key.
func chargeAnswerLost(w *world, kind provider.Kind) {
	if p := w.payment(1900, string(kind)); p.State != "charged" {
		w.Errorf("the payment is %+v, want it charged", p)
	}
	w.wantCharges(string(kind), 1)
	if w.bank.Stats()[kind] != 1 {
		w.Error("the fault has not struck")
	}
}

func anotherBody(w *world) {
	w.post("/payments", "another", order(1900, "first")).want(http.StatusCreated, "")
	w.post("/payments", "another", order(2900, "second")).want(http.StatusUnprocessableEntity, "")
	w.post("/bookings", "another", `{"item":"concert","price":1}`).want(http.StatusUnprocessableEntity, "")
	w.wantCharges("second", 0)
}

// twoAccounts: the same key of two accounts is two payments, and neither sees that of the other.
func twoAccounts(w *world) {
	pay := func(token, body string) payments.Payment {
		return decode[payments.Payment](w.send(http.MethodPost, "/payments", token, "shared", body).want(http.StatusCreated, ""))
	}
	hers, his := pay(alice, order(1100, "hers")), pay(bob, order(1200, "his"))
	if hers.ID == his.ID || his.Account != "bob" {
		w.Fatalf("hers is %+v, his is %+v", hers, his)
	}
	w.send(http.MethodGet, "/payments/"+hers.ID, bob, "", "").want(http.StatusNotFound, "")
	w.send(http.MethodPost, "/payments/"+hers.ID+"/refund", bob, "r", `{"amount":1}`).want(http.StatusNotFound, "")
	list := decode[[]payments.Payment](w.send(http.MethodGet, "/payments", bob, "", ""))
	if len(list) != 1 || list[0].ID != his.ID {
		w.Errorf("bob sees %+v, want his own payment alone", list)
	}
	w.settled(hers.ID)
	w.eventually("his payment to be charged", func() bool { return len(w.bank.Charges("his")) == 1 })
	w.wantCharges("hers", 1)
}

func notAPayment(w *world) {
	for i, body := range []string{
		``, `x`, `{}`, order(0, ""), order(-1, ""), order(100_000_001, ""),
		order(1, `a\u0000b`), order(1, strings.Repeat("long", 100)),
		`{"amount":1,"currency":"EUR"}`, `{"customer":"c","amount":1,"currency":"eur"}`,
	} {
		w.post("/payments", fmt.Sprint("bad ", i), body).want(http.StatusBadRequest, `"error"`)
	}
	w.post("/payments", "bad 0", order(1, "")).want(http.StatusCreated, "") // corrected, under the same key
	w.post("/payments", "", order(1, "")).want(http.StatusBadRequest, "key")
	// What a client must not choose is not taken from its body.
	sent := w.post("/payments", "chosen",
		`{"customer":"c","amount":1,"currency":"EUR","id":"mine","account":"bob","state":"charged","charge":"ch_1"}`)
	p := decode[payments.Payment](sent.want(http.StatusCreated, ""))
	if p.ID == "mine" || p.Account != "alice" || p.State != "pending" || p.Charge != "" {
		w.Errorf("the payment is %+v", p)
	}
}
