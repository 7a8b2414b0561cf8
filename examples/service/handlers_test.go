package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/memory"
)

// TestDeclinedPayment: a declined payment is 402 for every retry, also if it was the resolver that learned of it.
func TestDeclinedPayment(t *testing.T) {
	t.Parallel()
	bank, err := provider.Start(t.Context(), provider.Config{Dedup: true, Faults: provider.Faults{Rules: []provider.Rule{{
		Match: provider.Match{Method: http.MethodPost, Reference: "lost"}, Kind: provider.ResetAfter,
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer bank.Close()
	records := memory.New()
	s := &service{provider: bank.Client()}
	s.guard, err = onceward.New(records, onceward.Config{
		Scope: onceward.SingleScope("tenant"), Secret: []byte("sixteen random bytes"), Logger: slog.New(slog.DiscardHandler),
		StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := onceward.NewMux()
	mux.Handle(paymentsRoute, s.guard.HandlerFunc(s.createPayment, onceward.Reserved(onceward.FailureUnknown)))
	poller, err := reconcile.NewPoller(s.guard, records, reconcile.Config{Rules: map[string]reconcile.Rule{
		paymentsRoute: {Resolver: reconcile.ResolverFunc(s.resolvePayment)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	pay := func(reference string, want int) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"reference":"`+reference+`","amount":666}`))
		r.Header.Set("Idempotency-Key", "payment-"+reference)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != want || want == http.StatusPaymentRequired && !strings.Contains(w.Body.String(), `"status":"declined"`) {
			t.Errorf("the payment %s is answered %d %s, want %d", reference, w.Code, w.Body, want)
		}
	}
	pay("heard", http.StatusPaymentRequired)
	pay("heard", http.StatusPaymentRequired)
	pay("lost", http.StatusInternalServerError)
	if report, err := poller.RunOnce(t.Context()); err != nil {
		t.Fatal(report, err)
	}
	pay("lost", http.StatusPaymentRequired)
}
