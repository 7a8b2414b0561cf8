package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/memory"
)

// bank is the other system: it makes a transfer, but its answer does not come through.
type bank map[string]string

func (b bank) transfer(ctx context.Context) ([]byte, error) {
	b[onceward.FromContext(ctx).DownstreamKey("transfer")] = "tr_1"
	return nil, errors.New("the bank did not answer in time")
}

// resolve asks the bank what became of a transfer, by the key that it was sent.
func (b bank) resolve(_ context.Context, rec *onceward.Record) (reconcile.Answer, error) {
	id, found := b[onceward.DownstreamKey(rec.ID, "transfer")]
	if !found {
		return reconcile.NotFound(), nil // the rule says what that means
	}
	return reconcile.Completed(onceward.Response{Status: 200, Body: []byte(id)}, id), nil
}

// A transfer is made, but nobody hears of it. The poller asks, and the retry gets the answer: it is not made again.
func ExamplePoller() {
	ctx := context.Background()
	store, quiet := memory.New(), slog.New(slog.DiscardHandler)
	guard, err := onceward.New(store, onceward.Config{Secret: []byte("sixteen random bytes, or more"), Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	acme := bank{}
	poller, err := reconcile.NewPoller(store, reconcile.Config{Rules: map[string]reconcile.Rule{
		"transfer": {Resolver: reconcile.ResolverFunc(acme.resolve), Deduplicates: true},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}

	call := onceward.Call{Scope: "shop", Key: "order-17", Operation: "transfer"}
	for range 2 {
		result, err := guard.Do(ctx, call, acme.transfer, onceward.Reserved(onceward.FailureUnknown))
		fmt.Printf("%q, replayed: %t, unknown: %t\n", result.Value, result.Replayed, errors.Is(err, onceward.ErrOutcomeUnknown))

		report, err := poller.RunOnce(ctx) // a service has a goroutine with poller.Run(ctx)
		fmt.Println("settled:", report.Completed, err)
	}
	// Output:
	// "", replayed: false, unknown: true
	// settled: 1 <nil>
	// "tr_1", replayed: true, unknown: false
	// settled: 0 <nil>
}

// The bank does not answer questions, so that the transfer becomes a dead letter. A person finds out, and says so.
func ExampleDesk() {
	ctx := context.Background()
	store, quiet := memory.New(), slog.New(slog.DiscardHandler)
	guard, err := onceward.New(store, onceward.Config{Secret: []byte("sixteen random bytes, or more"), Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	silent := reconcile.ResolverFunc(func(context.Context, *onceward.Record) (reconcile.Answer, error) {
		return reconcile.Answer{}, errors.New("the bank is closed")
	})
	poller, err := reconcile.NewPoller(store, reconcile.Config{Default: &reconcile.Rule{Resolver: silent}, Limit: 1, Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	desk, err := reconcile.NewDesk(store)
	if err != nil {
		fmt.Println(err)
		return
	}
	call := onceward.Call{Scope: "shop", Key: "order-17", Operation: "transfer"}
	_, _ = guard.Do(ctx, call, bank{}.transfer, onceward.Reserved(onceward.FailureUnknown))
	_, _ = poller.RunOnce(ctx)

	letters, _ := desk.DeadLetters(ctx, onceward.ID{}, 10)
	for _, rec := range letters {
		fmt.Println(rec.Key, "waits for a person:", rec.ReconcileError)
		by := reconcile.By{Who: "zoe", Why: "the clerk on the phone says that it was not made"}
		fmt.Println(desk.ResolveNotExecuted(ctx, by, onceward.Claim{ID: rec.ID, Attempt: rec.Attempt}))

		history, _ := desk.History(ctx, rec.ID)
		fmt.Println("now it is", history.Record.State)
		for _, e := range history.Audit {
			fmt.Printf("%s: %s, %q, %q\n", e.Actor, e.Action, e.Reason, e.Outcome)
		}
	}
	// Output:
	// order-17 waits for a person: the bank is closed
	// <nil>
	// now it is failed_retryable
	// zoe: resolve not executed, "the clerk on the phone says that it was not made", ""
	// zoe: resolve not executed, "the clerk on the phone says that it was not made", "done"
}
