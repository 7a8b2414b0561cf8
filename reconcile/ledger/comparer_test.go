package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about the windows of a comparer and about its loop. The clock of a bubble starts at midnight.

const (
	day = 24 * time.Hour
	// longestLook is the longest time between two looks of a node.
	longestLook = time.Hour
)

// ledgers are two sides that fill up with time, and note when which windows were asked for.
type ledgers struct {
	mu      sync.Mutex
	down    bool
	entries []ledger.Entry // what only the provider has
	asked   []time.Time
	windows []ledger.Window
}

func (l *ledgers) Provider(_ context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.windows = append(l.asked, time.Now()), append(l.windows, w)
	if l.down {
		return stream(nil, errAway)
	}
	inWindow := slices.DeleteFunc(slices.Clone(l.entries), func(e ledger.Entry) bool {
		return e.At.Before(w.From) || !e.At.Before(w.To)
	})
	return stream(behind(inWindow, after), nil)
}

func (l *ledgers) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// take returns when which windows were asked for, and forgets them.
func (l *ledgers) take() ([]time.Time, []ledger.Window) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, windows := l.asked, l.windows
	l.asked, l.windows = nil, nil
	return asked, windows
}

// config is one of a node that compares the provider with nothing, from the last window on.
func (l *ledgers) config(s store.Store, got *report) node {
	return node{store: s, Config: ledger.Config{
		Name: "test", Logger: quiet, Provider: l.Provider, Local: source(nil), Report: got.Report,
	}}
}

// inBackground runs a comparer until the returned function is called.
func inBackground(t *testing.T, c *ledger.Comparer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func TestWindowsEndWhereTheyHaveSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		midnight := time.Now().UTC()
		l := &ledgers{}
		comparer := newComparer(t, l.config(memory.New(), &report{}))
		for _, test := range []struct {
			at       time.Duration
			end      time.Duration
			compared bool
		}{
			{0, -day, true},
			{time.Hour - 1, -day, false},
			{time.Hour, 0, true},
			{day + time.Hour - 1, 0, false},
			{day + time.Hour, day, true},
		} {
			time.Sleep(time.Until(midnight.Add(test.at)))
			compared, err := comparer.RunOnce(t.Context())
			end := midnight.Add(test.end)
			w := ledger.Window{From: end.Add(-day - 2*ledger.DefaultGrace), To: end}
			var want []ledger.Summary
			if test.compared {
				want = []ledger.Summary{{Run: "test " + w.String()}}
			}
			if err != nil || !slices.Equal(compared, want) {
				t.Errorf("%s after midnight: %+v, %v; want %+v", test.at, compared, err, want)
			}
			status, err := comparer.Status(t.Context())
			if err != nil || !status.Until.Equal(end.Add(-ledger.DefaultGrace)) || len(status.Uncompared) != 0 {
				t.Errorf("%s after midnight: %+v, %v", test.at, status, err)
			}
		}
	})
}

// TestNoEntryIsAtTheEdgeOfAllWindows: each is reported by exactly one run, wherever it lies.
func TestNoEntryIsAtTheEdgeOfAllWindows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l, got := &ledgers{}, &report{}
		for i := range 10 * 24 * 60 {
			at := began.Add(time.Duration(i) * time.Minute)
			l.entries = append(l.entries, ledger.Entry{Key: at.Format(time.RFC3339), At: at})
		}
		config := l.config(memory.New(), got)
		config.Grace = 90 * time.Second
		stop := inBackground(t, newComparer(t, config))
		time.Sleep(12 * day)
		stop()
		if once, all := len(got.different()), len(got.words); once != len(l.entries) || all != once {
			t.Errorf("%d entries: %d were reported, in %d reports", len(l.entries), once, all)
		}
	})
}

// TestEachWindowIsComparedOnce by one of three nodes, soon after it has settled, and not all nodes come at once.
func TestEachWindowIsComparedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		midnight := time.Now().UTC()
		s, l := memory.New(), &ledgers{}
		for range 3 {
			defer inBackground(t, newComparer(t, l.config(s, &report{})))()
		}
		synctest.Wait()
		if _, windows := l.take(); len(windows) != 1 {
			t.Errorf("at the start %d windows were compared, want the last one", len(windows))
		}
		time.Sleep(30*day + 3*time.Hour)
		asked, windows := l.take()
		if len(windows) != 31 {
			t.Errorf("in 31 nights %d windows were compared", len(windows))
		}
		late := make(map[time.Duration]bool)
		for i, w := range windows {
			if want := midnight.Add(time.Duration(i) * day); !w.To.Equal(want) {
				t.Errorf("window %d ends at %s, want %s", i, w.To, want)
			}
			waited := asked[i].Sub(w.To)
			late[waited] = true
			if waited < time.Hour || waited > time.Hour+longestLook/20 {
				t.Errorf("window %d was compared %s after its end", i, waited)
			}
		}
		rec, err := s.Get(t.Context(), store.ID{Scope: ledger.DefaultScope, Key: "comparison test"})
		if err != nil || len(rec.Data) > 2000 || rec.State != store.StateRetryable {
			t.Errorf("the journal is %s and has %d bytes, %v: %s", rec.State, len(rec.Data), err, rec.Data)
		}
		if len(late) < 20 {
			t.Errorf("31 comparisons were late by only %d different times", len(late))
		}
	})
}

// TestALostNodeIsMadeUpFor: a node that finds another one at work looks again before the day is over, and logs no
// error.
func TestALostNodeIsMadeUpFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, l := memory.New(), &ledgers{}
		time.Sleep(2 * time.Hour)
		// The owner takes its turn and is never heard of again.
		lost := l.config(&deaf{Store: store}, &report{})
		lost.Provider = source(nil)
		if _, err := newComparer(t, lost).RunOnce(t.Context()); !errors.Is(err, errDead) {
			t.Fatal(err)
		}
		var logged bytes.Buffer
		began := time.Now()
		config := l.config(store, &report{})
		config.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		defer inBackground(t, newComparer(t, config))()
		time.Sleep(day / 2)
		synctest.Wait()
		asked, windows := l.take()
		if len(windows) != 1 || !windows[0].To.Equal(began.Truncate(day)) {
			t.Fatalf("asked at %v for %v", asked, windows)
		}
		if waited := asked[0].Sub(began); waited > 2*ledger.DefaultMinBackoff {
			t.Errorf("it looked again after %s", waited)
		}
		if logged.Len() > 0 {
			t.Errorf("logged %q", &logged)
		}
	})
}

// deaf is the store of a node that can reserve, and then gets no more answers.
type deaf struct{ *memory.Store }

func (*deaf) Release(context.Context, store.Claim, string) error { return errDead }

func (*deaf) Checkpoint(context.Context, store.Claim, store.Checkpoint) error { return errDead }

func (*deaf) Extend(context.Context, store.Claim, time.Duration) error { return errDead }

// TestCancellationIsNoFailure: a node that stops does not log errors, and stops at once.
func TestCancellationIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		l := &ledgers{}
		config := l.config(memory.New(), &report{})
		config.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		config.Local = breaking(list("a"), cancel, 0)
		comparer := newComparer(t, config)
		began := time.Now()
		if err := comparer.Run(ctx); err != nil {
			t.Error(err)
		}
		if _, windows := l.take(); len(windows) != 1 {
			t.Errorf("%d windows were begun, want 1", len(windows))
		}
		if waited := time.Since(began); waited != 0 || logged.Len() > 0 {
			t.Errorf("it took %s and logged %q", waited, &logged)
		}
		if _, err := comparer.RunOnce(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("once more: %v", err)
		}
	})
}
