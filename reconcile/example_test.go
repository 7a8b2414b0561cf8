package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// bank is the other system: it makes a transfer, but its answer does not come through.
type bank struct {
	guard     *onceward.Guard
	transfers map[string]string
}

func (b *bank) transfer(ctx context.Context) ([]byte, error) {
	b.transfers[onceward.FromContext(ctx).DownstreamKey("transfer")] = "tr_1"
	return nil, errors.New("the bank did not answer in time")
}

// resolve asks the bank what became of a transfer, by the key that it was sent.
func (b *bank) resolve(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
	key, err := b.guard.DownstreamKey(rec, "transfer")
	if err != nil {
		return reconcile.Answer{}, err
	}
	id, found := b.transfers[key]
	if !found {
		return reconcile.NotFound(), nil // the rule says what that means
	}
	return reconcile.Completed(store.Response{Status: 200, Body: []byte(id)}, id), nil
}

// A transfer is made, but nobody hears of it. The poller asks, and the retry gets the answer: it is not made again.
func ExamplePoller() {
	ctx := context.Background()
	s, quiet := memory.New(), slog.New(slog.DiscardHandler)
	guard, err := onceward.New(s, onceward.Config{Secret: []byte("sixteen random bytes, or more"), Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	acme := &bank{guard: guard, transfers: make(map[string]string)}
	poller, err := reconcile.NewPoller(guard, s, reconcile.Config{Rules: map[string]reconcile.Rule{
		"transfer": {Resolver: reconcile.ResolverFunc(acme.resolve), Deduplicates: true},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}

	call := onceward.Call{Scope: "shop", Key: "order-17", Operation: "transfer"}
	for range 2 {
		result, err := guard.Do(ctx, call, acme.transfer, onceward.Reserved(onceward.FailureUnknown))
		fmt.Printf("%q, replayed: %t, unknown: %t\n", result.Value, result.Replayed, errors.Is(err, store.ErrOutcomeUnknown))

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
func ExampleOperator() {
	ctx := context.Background()
	s, quiet := memory.New(), slog.New(slog.DiscardHandler)
	guard, err := onceward.New(s, onceward.Config{Secret: []byte("sixteen random bytes, or more"), Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	silent := reconcile.ResolverFunc(func(context.Context, *store.Record) (reconcile.Answer, error) {
		return reconcile.Answer{}, errors.New("the bank is closed")
	})
	poller, err := reconcile.NewPoller(guard, s, reconcile.Config{Default: &reconcile.Rule{Resolver: silent}, MaxAttempts: 1, Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	operator, err := reconcile.NewOperator(guard, s)
	if err != nil {
		fmt.Println(err)
		return
	}
	call := onceward.Call{Scope: "shop", Key: "order-17", Operation: "transfer"}
	acme := &bank{guard: guard, transfers: make(map[string]string)}
	_, _ = guard.Do(ctx, call, acme.transfer, onceward.Reserved(onceward.FailureUnknown))
	_, _ = poller.RunOnce(ctx)

	letters, _ := operator.DeadLetters(ctx, store.ID{}, 10)
	for _, rec := range letters {
		fmt.Println(rec.Key, "waits for a person:", rec.ReconcileError)
		by := reconcile.By{Who: "zoe", Why: "the clerk on the phone says that it was not made"}
		fmt.Println(operator.ResolveNotExecuted(ctx, by, store.Claim{ID: rec.ID, Attempt: rec.Attempt}))

		history, _ := operator.History(ctx, rec.ID)
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
