package payments_test

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
)

// findings are what an observer is told of a comparison. The same may be told twice.
type findings struct {
	mu    sync.Mutex
	found []string
}

// Observe implements [onceward.Observer].
func (f *findings) Observe(_ context.Context, e onceward.ObserverEvent) {
	finding, ok := e.(ledger.FindingEvent)
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

// TestLedgerComparison: charges and refunds that we know nothing of are found and counted, and what we know is not. The
// comparison begins when all is written down, so that nothing is taken for missing that is on its way.
func TestLedgerComparison(t *testing.T) {
	t.Parallel()
	later := func(s *settings) { s.Since = time.Now().Add(never) } // what is on its way is not compared
	onStores(t, later, func(t *testing.T, w *world) {
		var told findings
		began := time.Now()
		comparing := w.beside(func(s *settings) {
			s.Timing.Compare, s.Timing.Settle, s.Observer, s.idle = time.Second, time.Millisecond, &told, true
			s.Since = began.Add(-time.Minute)
		})
		ours := w.payment(1900, "ours")
		w.refund(ours, 500).want(http.StatusCreated, "")
		w.payment(provider.DeclinedAmount, "ours and declined")
		w.post("/bookings", "b", place("concert", 4500, "ours and booked")).want(http.StatusCreated, "")
		stray, err := w.bank.Client().Charge(t.Context(), "stray", provider.ChargeRequest{Amount: 700, Currency: "EUR"})
		must(t, err)
		back, err := w.bank.Client().Refund(t.Context(), "stray", provider.RefundRequest{Charge: stray.ID, Amount: 300})
		must(t, err)
		comparing.work(comparing.system)
		counter := func() int64 {
			shown := comparing.send(http.MethodGet, "/counters", "", "", "").want(http.StatusOK, "")
			return decode[map[string]int64](shown)["ledger missing here"]
		}
		comparing.eventually("the findings", func() bool { return counter() > 1 && len(told.all()) > 1 })
		if found := told.all(); !slices.Equal(found, []string{"missing here " + stray.ID, "missing here " + back.ID}) {
			t.Errorf("found are %v, want only %s and %s", found, stray.ID, back.ID)
		}
	})
}

// TestInterruptedComparison: it is the comparer that goes on with it, so the resumer does not tell of it as of an
// operation that no code is left for, as it does of one whose code is gone.
func TestInterruptedComparison(t *testing.T) {
	t.Parallel()
	onStores(t, func(s *settings) { s.idle = true }, func(t *testing.T, w *world) {
		var log lockedLog
		resuming := w.beside(func(s *settings) {
			s.Timing.Look, s.Logger = soon, slog.New(slog.NewTextHandler(&log, nil))
		})
		interruptComparison(w)
		w.abandon("gone", "POST /gone", store.LostResume)
		resuming.work(resuming.system)
		// The second time it is told, a whole look has been taken.
		resuming.eventually("the warnings", func() bool { return len(log.lines("POST /gone")) >= 2 })
		for _, line := range log.lines("ledger comparison") { // the comparer's guard can log a store that is slow
			if strings.Contains(line, "resumer") {
				t.Errorf("the resumer warns of what the comparer resumes: %s", line)
			}
		}
		if told := log.lines("POST /gone"); !strings.Contains(told[0], "that this resumer does not know") {
			t.Errorf("the log says %s", told)
		}
	})
}

// interruptComparison leaves a run of the system's comparison behind whose node was lost.
func interruptComparison(w *world) {
	w.Helper()
	none := func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
		return func(func(ledger.Entry, error) bool) {}
	}
	comparer, err := ledger.NewComparer(w.db.Store, ledger.Config{Name: "charges", Provider: none, Local: none})
	must(w, err)
	_, err = comparer.RunOnce(w.Context())
	must(w, err)
	runs, err := w.db.List(w.Context(), store.Filter{Scope: ledger.DefaultScope})
	must(w, err)
	if len(runs) != 1 {
		w.Fatalf("the comparison left %d records, want 1", len(runs))
	}
	v, err := w.db.Reserve(w.Context(), &store.Reservation{
		ID: runs[0].ID, Operation: runs[0].Operation, Fingerprints: []store.Fingerprint{runs[0].Fingerprint},
		Nonce: store.Nonce{1}, OnLost: store.LostResume, Lease: time.Microsecond, Retention: time.Hour,
	})
	must(w, err)
	if v.Decision != store.DecisionExecute {
		w.Fatalf("the run was not interrupted: %s", v.Decision)
	}
	w.eventually("the run to be due", func() bool {
		due, err := w.db.List(w.Context(), store.Filter{State: store.StateInProgress, Due: true})
		must(w, err)
		return len(due) == 1
	})
}

// lockedLog is a log that several goroutines write to.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements [io.Writer].
func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines returns those with a text in them.
func (l *lockedLog) lines(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
