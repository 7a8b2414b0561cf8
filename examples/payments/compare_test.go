package payments_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/provider"
	"github.com/onceward/onceward/reconcile/ledger"
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

// TestInterruptedComparison: it is the comparer that goes on with it, so the resumer does not tell of it as of an operation that
// nobody can resume, as it does of one whose code is gone.
func TestInterruptedComparison(t *testing.T) {
	t.Parallel()
	onStores(t, func(s *settings) { s.idle = true }, func(t *testing.T, w *world) {
		var log lockedLog
		var guard *onceward.Guard
		resuming := w.beside(func(s *settings) {
			s.Timing.Look, s.Logger = soon, slog.New(slog.NewTextHandler(&log, nil))
			s.Routes = func(_ *onceward.Mux, g *onceward.Guard) { guard = g }
		})
		interruptComparison(w, guard)
		w.abandon("gone", "POST /gone", onceward.Resume)
		resuming.work(resuming.system)
		// The second time it is told, a whole look has been taken.
		resuming.eventually("the warnings", func() bool { return len(log.lines("POST /gone")) >= 2 })
		if told := log.lines("ledger comparison"); len(told) != 0 {
			t.Errorf("the resumer warns of what the comparer resumes: %s", told)
		}
		if told := log.lines("POST /gone"); !strings.Contains(told[0], "nobody here can resume") {
			t.Errorf("the log says %s", told)
		}
	})
}

// interruptComparison leaves a run of the system's comparison behind, which can be taken over.
func interruptComparison(w *world, guard *onceward.Guard) {
	w.Helper()
	away := errors.New("the provider is away")
	none := func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
		return func(yield func(ledger.Entry, error) bool) { yield(ledger.Entry{}, away) }
	}
	end := time.Now().Add(-time.Hour)
	_, err := ledger.Run(w.Context(), ledger.Config{
		Guard: guard, Name: "charges", Provider: none, Local: none, Pause: time.Microsecond, Logger: slog.New(slog.DiscardHandler),
	}, ledger.Window{From: end.Add(-time.Hour), To: end})
	if !errors.Is(err, away) {
		w.Fatalf("the run ended with %v, want it interrupted", err)
	}
	w.eventually("the run to be due", func() bool {
		due, err := w.db.List(w.Context(), onceward.Filter{State: onceward.StateInProgress, Due: true})
		must(w, err)
		return len(due) == 1 && due[0].OnLost == onceward.Resume && due[0].Scope == ledger.DefaultScope
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
