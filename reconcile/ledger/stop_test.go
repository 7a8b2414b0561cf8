package ledger_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

// This file is about the reasons for which a run stops, and what each means for the attempt that goes on.

// TestASourceOutOfOrderStartsOver: what it came to before cannot be trusted.
func TestASourceOutOfOrderStartsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(t, memory.New(), "a b c", "a b c", &got)
		cfg.SaveEvery = 1
		cfg.Local = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
			return stream(list("a c b"), nil)
		}
		var order *ledger.OrderError
		if s, err := ledger.Run(t.Context(), cfg, window); !errors.As(err, &order) || s.Findings() != 0 || s.Matched != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		time.Sleep(ledger.DefaultPause)
		cfg.Local = source(list("a b c"))
		if s, err := ledger.Run(t.Context(), cfg, window); err != nil || s.Matched != 3 || s.Findings() != 0 {
			t.Errorf("in order: %+v, %v", s, err)
		}
	})
}

// TestASourceMustBeginBehind: one that starts from the beginning would be counted twice.
func TestASourceMustBeginBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(t, memory.New(), "a b c", "a b c", &got)
		cfg.Provider = breaking(list("a b c"), nil, 2)
		if _, err := ledger.Run(t.Context(), cfg, window); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		time.Sleep(ledger.DefaultPause)
		cfg.Local = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
			return stream(list("a b c"), nil)
		}
		var order *ledger.OrderError
		want := ledger.OrderError{Side: ledger.Local, Before: "a", Key: "a"}
		if _, err := ledger.Run(t.Context(), cfg, window); !errors.As(err, &order) || *order != want {
			t.Errorf("%v, want %v", err, &want)
		}
	})
}

// TestTheContextStopsARun: the engine does not pass it on, but a node that stops must not compare for hours. Another one
// goes on at once.
func TestTheContextStopsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		ctx, cancel := context.WithCancelCause(t.Context())
		cfg := config(t, memory.New(), someProvider, someLocal, &got)
		cfg.Provider = breaking(list(someProvider), func() { cancel(errAway); synctest.Wait() }, 5)
		if _, err := ledger.Run(ctx, cfg, window); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		time.Sleep(time.Microsecond)
		s, err := ledger.Run(t.Context(), cfg, window)
		requireSame(t, "another node", &got, s, err)
	})
}

func TestTheDeadlineStopsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(t, memory.New(), someProvider, someLocal, &got)
		cfg.Provider = breaking(list(someProvider), func() { time.Sleep(time.Hour) }, 3, 7)
		cfg.Deadline = time.Minute
		for attempt := range 2 {
			if _, err := ledger.Run(t.Context(), cfg, window); !errors.Is(err, onceward.ErrDeadline) {
				t.Errorf("attempt %d: %v", attempt, err)
			}
			time.Sleep(ledger.DefaultPause)
		}
		s, err := ledger.Run(t.Context(), cfg, window)
		requireSame(t, "the third attempt", &got, s, err)
	})
}

// TestAReportThatFailsIsRepeated: no finding is lost because nobody could take it.
func TestAReportThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(t, memory.New(), someProvider, someLocal, &got)
		failed := make(map[string]bool)
		cfg.Report = func(ctx context.Context, f ledger.Finding) error {
			if !failed[f.ID] {
				failed[f.ID] = true
				return errAway
			}
			return got.Report(ctx, f)
		}
		for range 9 {
			if _, err := ledger.Run(t.Context(), cfg, window); !errors.Is(err, errAway) {
				t.Error(err)
			}
			time.Sleep(ledger.DefaultPause)
		}
		s, err := ledger.Run(t.Context(), cfg, window)
		requireSame(t, "with a report that fails", &got, s, err)
	})
}

// TestARecoveryPointThatCannotBeRead was left by another version: the run starts over.
func TestARecoveryPointThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		store := memory.New()
		cfg := config(t, store, someProvider, someLocal, &got)
		cfg.Provider = breaking(list(someProvider), nil, 8)
		if _, err := ledger.Run(t.Context(), cfg, window); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		id := onceward.ID{Scope: ledger.DefaultScope, Key: "test " + window.String()}
		rec, err := store.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		point := onceward.Checkpoint{Point: "compared", Data: []byte(`{"after":7}`)}
		if err := store.Checkpoint(t.Context(), onceward.Claim{ID: id, Attempt: rec.Attempt}, point); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ledger.DefaultPause)
		s, err := ledger.Run(t.Context(), cfg, window)
		requireSame(t, "starting over", &got, s, err)
	})
}
