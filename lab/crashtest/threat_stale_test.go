package crashtest

import (
	"net/http"
	"testing"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// TestNoProcessAnswersWithThePast: what a third process resolves or busts is what two shops answer from then on,
// although both have answered otherwise before (scenario 34).
func TestNoProcessAnswersWithThePast(t *testing.T) {
	t.Parallel()
	onStores(t, false, func(t *testing.T, w *world) {
		shops := []*shopProcess{w.opens(nil), w.opens(nil)}
		w.fault(provider.TimeoutAfter)
		w.becomesUnknown(shops[0], "k")
		for _, shop := range shops {
			w.retryIsRefused(shop, "k")
		}

		operator, err := reconcile.NewOperator(w.guard, w.store)
		must(t, err)
		by := reconcile.By{Who: "zoe", Why: "the bank has the charge"}
		rec := w.record("k")
		status, body := chargeAnswer(w.provider.Charges("k")[0])
		done := store.Completion{Response: reconcile.Response(status, nil, body)}
		must(t, operator.ResolveCompleted(t.Context(), by, store.Claim{ID: rec.ID, Attempt: rec.Attempt}, done))
		for _, shop := range shops {
			w.wantReplay(shop, "k")
		}

		// The bank does not recognise keys here, so that a second execution is a second charge: its answer cannot be
		// mistaken.
		must(t, operator.Bust(t.Context(), by, rec.ID, false))
		second := shops[1].post("/payments", "k", payment)
		if second.status != http.StatusCreated || second.replayed || second.body == string(body) || w.charges("k") != 2 {
			t.Errorf("after the bust %+v, and %d charges, want a second execution", second, w.charges("k"))
		}
		for i, shop := range shops {
			if r := shop.post("/payments", "k", payment); !r.replayed || r.body != second.body {
				t.Errorf("shop %d answers %+v, want the replay of %s", i, r, second.body)
			}
		}
	})
}
