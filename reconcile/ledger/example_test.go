package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

// charges stands for a list of effects: a page of the provider's API, or rows of a table, in the order of their keys.
func charges(entries ...ledger.Entry) ledger.Source {
	return func(_ context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
		return func(yield func(ledger.Entry, error) bool) {
			for _, e := range entries {
				inWindow := !e.At.Before(w.From) && e.At.Before(w.To)
				if inWindow && e.Key > after && !yield(e, nil) {
					return
				}
			}
		}
	}
}

// A day is compared once, when it has ended and settled by the clock of the store.
func Example() {
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	noon := day.Add(12 * time.Hour)
	clock := day.Add(25 * time.Hour) // a real store has its own
	comparer, err := ledger.NewComparer(memory.New(memory.WithClock(func() time.Time { return clock })), ledger.Config{
		Name:   "acme charges",
		Logger: slog.New(slog.DiscardHandler),
		Provider: charges(
			ledger.Entry{Key: "order 1", Value: "10.00 EUR paid", At: noon},
			ledger.Entry{Key: "order 2", Value: "20.00 EUR paid", At: noon},
			ledger.Entry{Key: "order 3", Value: "30.00 EUR refunded", At: noon},
			ledger.Entry{Key: "order 4", Value: "40.00 EUR paid", At: day.Add(24*time.Hour - time.Second)},
		),
		Local: charges(
			ledger.Entry{Key: "order 1", Value: "10.00 EUR paid", At: noon},
			ledger.Entry{Key: "order 3", Value: "30.00 EUR paid", At: noon},
		),
		Report: func(_ context.Context, f ledger.Finding) error {
			fmt.Println(f.Kind, f.Key)
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		compared, err := comparer.RunOnce(context.Background())
		fmt.Println(len(compared), "windows compared", err)
		for _, s := range compared {
			fmt.Println(s.Matched, "matched,", s.Findings(), "findings,", s.AtEdge, "at the edge")
		}
	}
	// Output:
	// missing here order 2
	// differs order 3
	// 1 windows compared <nil>
	// 1 matched, 2 findings, 1 at the edge
	// 0 windows compared <nil>
}

// A node runs a comparer beside its server, and stops both with the same context.
func ExampleComparer() {
	comparer, err := ledger.NewComparer(memory.New(), ledger.Config{
		Name: "acme charges", Provider: charges(), Local: charges(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	fmt.Println("stopped:", onceward.Run(ctx, comparer)) // with all other workers, and the server at the end
	// Output: stopped: <nil>
}

// A person looks at what could not be compared, and gives up what never will be.
func ExampleComparer_GiveUp() {
	away := func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
		return func(yield func(ledger.Entry, error) bool) { yield(ledger.Entry{}, errors.New("410 gone")) }
	}
	clock := time.Date(2026, 1, 2, 1, 0, 0, 0, time.UTC)
	comparer, err := ledger.NewComparer(memory.New(memory.WithClock(func() time.Time { return clock })), ledger.Config{
		Name:     "acme charges",
		Provider: away, Local: charges(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	_, _ = comparer.RunOnce(ctx) // what failed is in the status
	status, err := comparer.Status(ctx)
	for _, u := range status.Uncompared {
		fmt.Println(u.Window, err)
		fmt.Println("due since", u.Since.Format(time.DateTime), "because", u.Why)
		by := reconcile.By{Who: "pat@example.com", Why: "acme keeps no list of that day, ticket 4711"}
		fmt.Println(comparer.GiveUp(ctx, by, u.Window))
	}
	// Output:
	// 2025-12-31T23:50:00Z/2026-01-02T00:00:00Z <nil>
	// due since 2026-01-02 01:00:00 because ledger: the provider source: 410 gone
	// <nil>
}
