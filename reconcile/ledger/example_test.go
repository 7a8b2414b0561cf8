package ledger_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
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

// A day is compared once. When it is compared again, the answer is the same and nothing is reported.
func Example() {
	guard, err := onceward.New(memory.New(), onceward.Config{Secret: []byte("at least 16 random bytes")})
	if err != nil {
		fmt.Println(err)
		return
	}
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	noon := day.Add(12 * time.Hour)
	cfg := ledger.Config{
		Guard: guard, Name: "acme charges", Logger: slog.New(slog.DiscardHandler),
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
	}
	for range 2 {
		s, err := ledger.Run(context.Background(), cfg, ledger.Window{From: day, To: day.Add(24 * time.Hour)})
		fmt.Println(s.Matched, "matched,", s.Findings(), "findings,", s.AtEdge, "at the edge, replayed:", s.Replayed, err)
	}
	// Output:
	// missing here order 2
	// differs order 3
	// 1 matched, 2 findings, 1 at the edge, replayed: false <nil>
	// 1 matched, 2 findings, 1 at the edge, replayed: true <nil>
}

// A node runs a comparer beside its server, and stops both with the same context.
func ExampleComparer() {
	guard, err := onceward.New(memory.New(), onceward.Config{Secret: []byte("at least 16 random bytes")})
	if err != nil {
		fmt.Println(err)
		return
	}
	comparer, err := ledger.NewComparer(ledger.Config{Guard: guard, Name: "acme charges", Provider: charges(), Local: charges()})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	comparer.Run(ctx)
	fmt.Println("stopped")
	// Output: stopped
}
