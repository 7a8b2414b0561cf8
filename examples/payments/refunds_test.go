package payments_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
)

// refund asks for a part of a payment back, under a key that is named after the payment's reference.
func (w *world) refund(p payments.Payment, amount int64) reply {
	w.Helper()
	body := fmt.Sprintf(`{"amount":%d,"reference":"back"}`, amount)
	return w.post("/payments/"+p.ID+"/refund", "refund "+p.Reference, body)
}

// refunded repeats a refund, as a client does, until its outcome is known.
func (w *world) refunded(p payments.Payment, amount int64) (last reply) {
	w.Helper()
	w.eventually("the refund to be settled", func() bool {
		last = w.refund(p, amount)
		if last.status != http.StatusCreated {
			last.want(http.StatusConflict, "outcome-unknown")
		}
		return last.status == http.StatusCreated
	})
	return last
}

// wantOneRefund checks that the provider gave back once, that it is written down once, and that the answer is about it.
func (w *world) wantOneRefund(p payments.Payment, last reply) {
	w.Helper()
	made := w.bank.Ledger().Refunds(p.Charge)
	told := decode[payments.Refund](last)
	if len(made) != 1 || made[0].ID != told.ID || told.Payment != p.ID || told.Amount != made[0].Amount || told.Account != "alice" {
		w.Errorf("the answer is %+v, and the refunds are %+v", told, made)
	}
	if n := w.number(`SELECT count(*) FROM refund WHERE payment = $1`, p.ID); n != 1 {
		w.Errorf("%d refunds are written down, want one", n)
	}
}

func TestRefunds(t *testing.T) {
	t.Parallel()
	tests := stories{
		"made":            refundMade,
		"refused":         refundRefused,
		"not yet charged": refundOfPending,
		"provider busy":   refundWhileBusy,
		"never arrived":   refundNeverArrived,
	}
	for _, kind := range lost {
		tests[string(kind)] = func(w *world) { settledByPoller(w, string(kind)) }
	}
	tests.onStores(t, func(s *settings) {
		s.Timing.Look = soon
		for _, kind := range lost {
			s.faults = append(s.faults,
				strikes(kind, "/refunds", string(kind)), strikes(provider.WebhookDrop, "/refunds", string(kind)))
		}
		hold := provider.Rule{Kind: provider.Hold, Name: "held", Match: provider.Match{Path: "/charges", Reference: "held"}}
		busy := strikes(provider.ErrorBefore, "/refunds", "busy")
		busy.Status = http.StatusServiceUnavailable
		s.faults = append(s.faults, hold, busy, strikes(provider.TimeoutBefore, "/refunds", "away"))
	})
}

func refundMade(w *world) {
	p := w.payment(1900, "made")
	first := w.refund(p, 500).want(http.StatusCreated, p.ID)
	w.refund(p, 500).wantReplay(first)
	w.wantOneRefund(p, first)
	w.refund(p, 600).want(http.StatusUnprocessableEntity, "") // the same key with another amount
	w.wantOneRefund(p, first)
}

// refundRefused: what can never be refunded is an answer that is kept.
func refundRefused(w *world) {
	p := w.payment(1900, "refused")
	first := w.refund(p, 1901).want(http.StatusUnprocessableEntity, "more than what is left")
	w.refund(p, 1901).wantReplay(first)
	path := "/payments/" + p.ID + "/refund"
	w.post(path, "no amount", `{}`).want(http.StatusBadRequest, "amount")
	w.post(path, "not plain", `{"amount":1,"reference":"a\u0000b"}`).want(http.StatusBadRequest, "control characters")
	w.post("/payments/none/refund", "no payment", `{"amount":1}`).want(http.StatusNotFound, "")
	corrected := w.post(path, "no amount", `{"amount":1901}`) // under the same key
	corrected.want(http.StatusUnprocessableEntity, "more than what is left")
	declined := w.payment(provider.DeclinedAmount, "refused and declined")
	w.refund(declined, 1).want(http.StatusConflict, "declined")
	if n := len(w.bank.Ledger().Refunds(p.Charge)); n != 0 {
		w.Errorf("there are %d refunds, want none", n)
	}
}

// refundOfPending: the answer that it is too early is not kept, so the same request succeeds later.
func refundOfPending(w *world) {
	p := decode[payments.Payment](w.post("/payments", "held", order(1900, "held")).want(http.StatusCreated, ""))
	must(w, w.bank.Await(w.Context(), "held", 1))
	w.refund(p, 500).want(http.StatusConflict, "pending")
	w.bank.Release("held")
	p = w.settled(p.ID)
	w.wantOneRefund(p, w.refund(p, 500).want(http.StatusCreated, ""))
}

// refundWhileBusy: the provider says that it did nothing, so the retry needs no look-up.
func refundWhileBusy(w *world) {
	p := w.payment(1900, "busy")
	w.refund(p, 500).want(http.StatusServiceUnavailable, "try again")
	w.wantOneRefund(p, w.refund(p, 500).want(http.StatusCreated, ""))
}

// refundNeverArrived: the poller learns that there is no refund, and the retry makes it.
func refundNeverArrived(w *world) {
	p := w.payment(1900, "away")
	w.refund(p, 500).want(http.StatusInternalServerError, "outcome-unknown")
	if last := w.refunded(p, 500); last.header.Get("Idempotent-Replayed") != "" {
		w.Error("the retry was replayed, want it executed")
	} else {
		w.wantOneRefund(p, last)
	}
	if w.system.Counters().Counts()["reconciled not executed"] == 0 {
		w.Errorf("the counters are %v", w.system.Counters().Counts())
	}
}

// settledByPoller: the provider gives back, its answer and its webhook are lost, and the poller asks.
func settledByPoller(w *world, reference string) {
	p := w.payment(1900, reference)
	w.refund(p, 500).want(http.StatusInternalServerError, "outcome-unknown")
	last := w.refunded(p, 500)
	if last.header.Get("Idempotent-Replayed") != "true" {
		w.Error("the retry was executed, want what the poller found")
	}
	w.wantOneRefund(p, last)
	w.refund(p, 500).wantReplay(last)
}

// gate holds webhooks back until it is opened, and then hands them on.
type gate struct {
	target *httputil.ReverseProxy
	opened chan struct{}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-g.opened:
		g.target.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// TestRefundSettledByWebhook: the provider does not answer and is not asked, but its webhook tells.
func TestRefundSettledByWebhook(t *testing.T) {
	t.Parallel()
	onStores(t, func(s *settings) {
		s.faults = []provider.Rule{
			strikes(provider.TimeoutAfter, "/refunds", ""),
			{Kind: provider.ErrorBefore, Match: provider.Match{Path: "/refunds"}},
		}
	}, func(t *testing.T, w *world) {
		target, err := url.Parse(w.server.URL)
		must(t, err)
		g := &gate{httputil.NewSingleHostReverseProxy(target), make(chan struct{})}
		server := httptest.NewServer(g)
		t.Cleanup(server.Close)
		w.bank.SetWebhook(provider.Webhook{URL: server.URL + "/events", Secret: hookSecret})
		p := w.payment(1900, "r")
		w.refund(p, 500).want(http.StatusInternalServerError, "outcome-unknown")
		w.refund(p, 500).want(http.StatusConflict, "outcome-unknown")
		close(g.opened)
		last := w.refunded(p, 500)
		w.wantOneRefund(p, last)
		w.refund(p, 500).wantReplay(last)
		if n := w.system.Counters().Counts()["webhooks kept"]; n != 1 {
			t.Errorf("%d webhooks were kept, want one", n)
		}
	})
}
