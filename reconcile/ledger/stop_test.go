package ledger_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
)

// This file is about the reasons for which a run stops, and what each means for the attempt that goes on.

// TestASourceOutOfOrderStartsOver: what it came to before cannot be trusted.
func TestASourceOutOfOrderStartsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(newStore(), "a b c", "a b c", &got)
		cfg.SaveEvery = 1
		cfg.Local = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
			return stream(list("a c b"), nil)
		}
		var order *ledger.OrderError
		if s, err := run(t, cfg); !errors.As(err, &order) || s.Findings() != 0 || s.Matched != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		time.Sleep(ledger.DefaultPause)
		cfg.Local = source(list("a b c"))
		if s, err := run(t, cfg); err != nil || s.Matched != 3 || s.Findings() != 0 {
			t.Errorf("in order: %+v, %v", s, err)
		}
	})
}

// TestASourceMustBeginBehind: one that starts from the beginning would be counted twice.
func TestASourceMustBeginBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(newStore(), "a b c", "a b c", &got)
		cfg.Provider = breaking(list("a b c"), nil, 2)
		if _, err := run(t, cfg); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		time.Sleep(ledger.DefaultPause)
		cfg.Local = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
			return stream(list("a b c"), nil)
		}
		var order *ledger.OrderError
		want := ledger.OrderError{Side: ledger.Local, Before: "a", Key: "a"}
		if _, err := run(t, cfg); !errors.As(err, &order) || *order != want {
			t.Errorf("%v, want %v", err, &want)
		}
	})
}

// TestTheContextStopsARun: the engine does not pass it on, but a node that stops must not compare for hours. Another
// one goes on at once.
func TestTheContextStopsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		ctx, cancel := context.WithCancelCause(t.Context())
		cfg := config(newStore(), someProvider, someLocal, &got)
		cfg.Provider = breaking(list(someProvider), func() { cancel(errAway); synctest.Wait() }, 5)
		if _, err := newComparer(t, cfg).RunOnce(ctx); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		s, err := run(t, cfg)
		requireSame(t, "another node", &got, s, err)
	})
}

func TestTheDeadlineStopsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(newStore(), someProvider, someLocal, &got)
		cfg.Provider = breaking(list(someProvider), func() { time.Sleep(10 * time.Minute) }, 3, 7)
		cfg.Deadline = time.Minute
		for attempt := range 2 {
			if _, err := run(t, cfg); !errors.Is(err, store.ErrDeadline) {
				t.Errorf("attempt %d: %v", attempt, err)
			}
			time.Sleep(ledger.DefaultPause << attempt)
		}
		s, err := run(t, cfg)
		requireSame(t, "the third attempt", &got, s, err)
	})
}

// TestAReportThatFailsIsRepeated: no finding is lost because nobody could take it.
func TestAReportThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(newStore(), someProvider, someLocal, &got)
		failed := make(map[string]bool)
		cfg.Report = func(ctx context.Context, f ledger.Finding) error {
			if !failed[f.ID] {
				failed[f.ID] = true
				return errAway
			}
			return got.Report(ctx, f)
		}
		cfg.MinBackoff = time.Microsecond
		for tries := range 9 {
			if _, err := run(t, cfg); !errors.Is(err, errAway) {
				t.Error(err)
			}
			time.Sleep(cfg.MinBackoff << tries)
		}
		s, err := run(t, cfg)
		requireSame(t, "with a report that fails", &got, s, err)
	})
}
