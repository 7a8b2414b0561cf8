package payments_test

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/provider"
)

// findings are what an observer is told of a comparison. The same may be told twice.
type findings struct {
	mu    sync.Mutex
	found []string
}

// Observe implements [onceward.Observer].
func (f *findings) Observe(_ context.Context, e onceward.ObserverEvent) {
	finding, ok := e.(onceward.LedgerFindingEvent)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = append(f.found, finding.Kind+" "+finding.Key)
}

func (f *findings) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(f.found)))
}

// TestLedgerComparison: a charge that we know nothing of is found and counted, and what we know is not. The comparison begins
// when all is written down, so that nothing is taken for missing that is on its way.
func TestLedgerComparison(t *testing.T) {
	t.Parallel()
	onStores(t, nil, func(t *testing.T, w *world) {
		var told findings
		comparing := w.beside(func(s *settings) {
			s.Timing.Compare, s.Timing.Settle, s.Observer, s.idle = time.Second, time.Millisecond, &told, true
		})
		w.payment(1900, "ours")
		w.payment(provider.DeclinedAmount, "ours and declined")
		w.post("/bookings", "b", place("concert", 4500, "ours and booked")).want(http.StatusCreated, "")
		stray, err := w.bank.Client().Charge(t.Context(), "stray", provider.ChargeRequest{Amount: 700, Currency: "EUR"})
		must(t, err)
		comparing.work(comparing.system)
		counter := func() int64 {
			shown := comparing.send(http.MethodGet, "/counters", "", "", "").want(http.StatusOK, "")
			return decode[map[string]int64](shown)["ledger missing here"]
		}
		comparing.eventually("the finding", func() bool { return counter() > 0 })
		if found := told.all(); !slices.Equal(found, []string{"missing here " + stray.ID}) {
			t.Errorf("found are %v, want only %s", found, stray.ID)
		}
	})
}
