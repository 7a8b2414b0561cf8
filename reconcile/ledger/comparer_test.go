package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

// This file is about the windows of a comparer and about its loop. The clock of a bubble starts at midnight.

const day = 24 * time.Hour

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

// newComparer returns the comparer of a node.
func newComparer(t *testing.T, store onceward.Store, l *ledgers, got *report, change func(*ledger.Config)) *ledger.Comparer {
	t.Helper()
	cfg := ledger.Config{
		Guard: newGuard(t, store), Name: "test", Logger: quiet, Provider: l.Provider, Local: source(nil), Report: got.Report,
	}
	if change != nil {
		change(&cfg)
	}
	comparer, err := ledger.NewComparer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return comparer
}

// inBackground runs a comparer until the returned function is called.
func inBackground(t *testing.T, c *ledger.Comparer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
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
		comparer := newComparer(t, memory.New(), l, &report{}, func(c *ledger.Config) { c.Windows = 1 })
		for _, test := range []struct {
			at       time.Duration
			end      time.Duration
			replayed bool
		}{
			{0, -day, false},
			{time.Hour - 1, -day, true},
			{time.Hour, 0, false},
			{day + time.Hour - 1, 0, true},
			{day + time.Hour, day, false},
		} {
			time.Sleep(time.Until(midnight.Add(test.at)))
			s, err := comparer.RunOnce(t.Context())
			end := midnight.Add(test.end)
			w := ledger.Window{From: end.Add(-day - 2*ledger.DefaultGrace), To: end}
			if err != nil || s.Run != "test "+w.String() || s.Replayed != test.replayed {
				t.Errorf("%s after midnight: %+v, %v; want %s", test.at, s, err, w)
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
		comparer := newComparer(t, memory.New(), l, got, func(c *ledger.Config) { c.Grace = 90 * time.Second })
		stop := inBackground(t, comparer)
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
		store, l := memory.New(), &ledgers{}
		for range 3 {
			defer inBackground(t, newComparer(t, store, l, &report{}, nil))()
		}
		synctest.Wait()
		if _, windows := l.take(); len(windows) != 3 {
			t.Errorf("at the start %d windows were compared, want the last 3", len(windows))
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
			if waited < time.Hour || waited > time.Hour+day/20 {
				t.Errorf("window %d was compared %s after its end", i, waited)
			}
		}
		if len(late) < 20 {
			t.Errorf("31 comparisons were late by only %d different times", len(late))
		}
	})
}

// TestWhatFailedIsMadeUpFor: the provider is away for two and a half days.
func TestWhatFailedIsMadeUpFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		store, l, got := memory.New(), &ledgers{}, &report{}
		for i := range 5 {
			at := began.Add(time.Duration(i)*day + 12*time.Hour)
			l.entries = append(l.entries, ledger.Entry{Key: at.Format(time.DateOnly), At: at})
		}
		var logged bytes.Buffer
		defer inBackground(t, newComparer(t, store, l, got, func(c *ledger.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		}))()
		time.Sleep(12 * time.Hour)
		l.setDown(true)
		l.take()
		time.Sleep(2 * day)
		synctest.Wait()
		asked, _ := l.take()
		requireRetries(t, asked)
		l.setDown(false)
		time.Sleep(4 * day)
		synctest.Wait()
		want := "missing here 2000-01-01, missing here 2000-01-02, missing here 2000-01-03, missing here 2000-01-04, missing here 2000-01-05"
		if words := got.take(); words != want {
			t.Errorf("found %q, want %q", words, want)
		}
		for _, want := range []string{"cannot compare", "pulled the plug", "failures=4", "the two sides differ"} {
			if !strings.Contains(logged.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &logged)
			}
		}
	})
}

// requireRetries checks that the pauses after the first failure double.
func requireRetries(t *testing.T, asked []time.Time) {
	t.Helper()
	want := []time.Duration{day / 16, day / 8, day / 4, day / 2}
	if len(asked) <= len(want) {
		t.Fatalf("only %d tries", len(asked))
	}
	for i, longest := range want {
		if pause := asked[i+1].Sub(asked[i]); pause > longest || pause < longest-longest/5 {
			t.Errorf("pause %d is %s, want at most %s and at least four fifths of it", i, pause, longest)
		}
	}
}

// TestALostNodeIsMadeUpFor: a node that finds another one at work looks again before the day is over, and logs no error.
func TestALostNodeIsMadeUpFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, l := memory.New(), &ledgers{}
		time.Sleep(2 * time.Hour)
		// The owner reserves and is never heard of again.
		lost := newComparer(t, store, l, &report{}, func(c *ledger.Config) {
			c.Guard = newGuard(t, &deaf{Store: store}, onceward.Lease(10*time.Minute))
			c.Provider = source(nil)
			c.Report = func(context.Context, ledger.Finding) error { return errAway }
			c.Local = source([]ledger.Entry{{Key: "a"}})
			c.Windows = 1
		})
		if _, err := lost.RunOnce(t.Context()); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		var logged bytes.Buffer
		began := time.Now()
		defer inBackground(t, newComparer(t, store, l, &report{}, func(c *ledger.Config) {
			c.Windows = 1
			c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		}))()
		time.Sleep(day / 2)
		synctest.Wait()
		asked, windows := l.take()
		if len(windows) != 1 || !windows[0].To.Equal(began.Truncate(day)) {
			t.Fatalf("asked at %v for %v", asked, windows)
		}
		if waited := asked[0].Sub(began); waited > day/16 || waited < day/16*4/5 {
			t.Errorf("it looked again after %s", waited)
		}
		if logged.Len() > 0 {
			t.Errorf("logged %q", &logged)
		}
	})
}

// deaf is the store of a node that can reserve, and then say nothing any more.
type deaf struct{ *memory.Store }

func (*deaf) Checkpoint(context.Context, onceward.Claim, onceward.Checkpoint) error { return errDead }

func (*deaf) Extend(context.Context, onceward.Claim, time.Duration) error { return errDead }

// TestCancellationIsNoFailure: a node that stops does not log errors, and stops at once.
func TestCancellationIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		l := &ledgers{}
		comparer := newComparer(t, memory.New(), l, &report{}, func(c *ledger.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			c.Local = breaking(list("a"), cancel, 0)
		})
		began := time.Now()
		comparer.Run(ctx)
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
