package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/reconcile/ledger"
)

// ComparePath is where a node is asked to compare all books when all is quiet.
const ComparePath = "/compare"

// FinalInterval is how long the windows of these comparisons are.
const FinalInterval = 10 * time.Minute

// Comparison is what is to be compared: the books of a window of the run, between two times of the store's clock.
type Comparison struct {
	Window string    `json:"window"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
}

// auditor compares the books from the beginning of a window, and goes on with the comparisons that are made all the
// time: those who make them sleep until a window is due by what the clock said before it was set. It answers 204 when
// all have come to the end of the window, and 202 before.
type auditor struct {
	system *payments.System

	mu        sync.Mutex
	window    string
	comparers []*ledger.Comparer
}

// ServeHTTP implements [http.Handler].
func (a *auditor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked Comparison
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	done, err := a.compare(r.Context(), asked)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case done:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func (a *auditor) compare(ctx context.Context, asked Comparison) (done bool, err error) {
	if err := a.prepare(asked); err != nil {
		return false, err
	}
	for _, comparer := range a.comparers {
		if _, err := comparer.RunOnce(ctx); err != nil && !errors.Is(err, onceward.ErrInProgress) {
			return false, err
		}
	}
	for _, comparer := range a.comparers {
		status, err := comparer.Status(ctx)
		if err != nil || status.Until.Before(asked.Until) || len(status.Uncompared) > 0 {
			return false, err
		}
	}
	return true, nil
}

// prepare makes the comparers of a window.
func (a *auditor) prepare(asked Comparison) error {
	if a.comparers != nil && a.window == asked.Window {
		return nil
	}
	standing, err := a.system.Comparers("", time.Time{}, Timing.Compare)
	if err != nil {
		return err
	}
	final, err := a.system.Comparers(history.FinalRun+asked.Window, asked.Since, FinalInterval)
	if err != nil {
		return err
	}
	a.window, a.comparers = asked.Window, append(standing, final...)
	return nil
}
