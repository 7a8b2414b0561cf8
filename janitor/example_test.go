package janitor_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// A node runs the janitor beside its server, and stops both with the same context.
func Example() {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()

	cleaner, err := janitor.New(memory.New(), janitor.Config{Interval: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("stopped:", onceward.Run(ctx, cleaner)) // with all other workers, and the server at the end
	// Output: stopped: <nil>
}

// A cron job, or a test, sweeps once and looks at what was done.
func ExampleSweeper_RunOnce() {
	ctx := context.Background()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := memory.New(memory.WithClock(func() time.Time { return now }))

	// An owner reserves and is never heard of again.
	_, err := s.Reserve(ctx, &store.Reservation{
		ID:           store.ID{Scope: "tenant", Key: "key"},
		Fingerprints: []store.Fingerprint{{Secret: 1}},
		Nonce:        store.Nonce{1},
		Lease:        30 * time.Second,
		Retention:    24 * time.Hour,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	now = now.Add(time.Minute)

	sweeper, err := janitor.NewSweeper(s, janitor.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := sweeper.RunOnce(ctx)
	fmt.Println(report.Count, "swept,", err)
	// Output: 1 swept, <nil>
}
