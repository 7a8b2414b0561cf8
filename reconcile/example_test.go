package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
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
		return reconcile.NotFound(), nil // the rule decides what this means
	}
	return reconcile.Completed(store.Response{Status: 200, Body: []byte(id)}, id), nil
}

// A transfer is made, but its answer is lost. The poller asks, and the retry gets the answer: it is not made again.
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

// The bank does not answer queries, so that the transfer becomes a dead letter. A person finds out, and settles it.
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
	poller, err := reconcile.NewPoller(guard, s, reconcile.Config{
		DefaultRule: &reconcile.Rule{Resolver: silent},
		MaxAttempts: 1, Logger: quiet,
	})
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
	// order-17 waits for a person: the query failed: the bank is closed
	// <nil>
	// now it is failed_retryable
	// reconciler: reconcile attempt 1, "the bank did not answer in time", "the query failed: the bank is closed"
	// zoe: resolve not executed, "the clerk on the phone says that it was not made", ""
	// zoe: resolve not executed, "the clerk on the phone says that it was not made", "done"
}

// order is what a phased operation carries from step to step.
type order struct {
	Amount int    `json:"amount"`
	Charge string `json:"charge"`
}

// hall sells seats: it charges, which may be done only once, and then confirms.
type hall struct {
	store *memory.Store
	guard *onceward.Guard
	book  *phase.Operation[order]
	// charges is what the other system knows, by the keys that it was sent.
	charges map[string]string
}

func newHall() *hall {
	h := &hall{store: memory.New(), charges: make(map[string]string)}
	guard, err := onceward.New(h.store, onceward.Config{
		Secret: []byte("sixteen random bytes, or more"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	h.guard = guard
	h.book = phase.Must(phase.New(phase.Definition[order]{
		Name: "book",
		Steps: []phase.Step[order]{
			phase.External("charge", func(_ context.Context, key string, _ *order) error {
				h.charges[key] = "ch_1"
				return errors.New("the connection was lost") // so it is not known that it was charged
			}),
			phase.Local("confirm", func(_ context.Context, o *order) error {
				fmt.Println("confirmed with", o.Charge)
				return nil
			}),
		},
		Answer: func(o *order) phase.Answer { return phase.JSON(201, o) },
	}))
	return h
}

// sell is the client's request, or its retry.
func (h *hall) sell(ctx context.Context) {
	call := onceward.Call{Scope: "hall", Key: "seat-17", Operation: "book"}
	result, err := h.book.Do(ctx, h.guard, call, order{Amount: 1900})
	fmt.Printf("%s, unknown: %t\n", result.Value, errors.Is(err, store.ErrOutcomeUnknown))
}

// resume does the steps that are left; a service has a goroutine with resumer.Run(ctx).
func (h *hall) resume(ctx context.Context) {
	resumer, err := phase.NewResumer(h.guard, h.store, phase.ResumerConfig{Operations: []phase.Resumable{h.book}})
	if err != nil {
		panic(err)
	}
	if _, err := resumer.RunOnce(ctx); err != nil {
		panic(err)
	}
}

// The reply to a charge is lost. The resolver finds the charge, and settles that step: the operation continues after
// it, and is confirmed. Nothing is charged again.
func ExampleStep() {
	ctx, h := context.Background(), newHall()
	ask := reconcile.ResolverFunc(func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
		doubt, err := h.book.InDoubt(h.guard, rec) // the step, its key, and the data as it was before the call
		if err != nil {
			return reconcile.Answer{}, err
		}
		id, found := h.charges[doubt.Key]
		if !found {
			return reconcile.NotFound(), nil
		}
		doubt.Data.Charge = id // as the call would have
		return reconcile.Step(doubt.Done(id)), nil
	})
	poller, err := reconcile.NewPoller(h.guard, h.store, reconcile.Config{
		Rules: map[string]reconcile.Rule{"book": {Resolver: ask}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	h.sell(ctx)
	report, err := poller.RunOnce(ctx)
	fmt.Println("steps settled:", report.Steps, err)
	h.resume(ctx)
	h.sell(ctx)
	// Output:
	// , unknown: true
	// steps settled: 1 <nil>
	// confirmed with ch_1
	// {"amount":1900,"charge":"ch_1"}, unknown: false
}

// A person who has found out that a step was done settles it, with all of the carried data after the step.
func ExampleOperator_ResolveStep() {
	ctx, h := context.Background(), newHall()
	operator, err := reconcile.NewOperator(h.guard, h.store)
	if err != nil {
		fmt.Println(err)
		return
	}
	h.sell(ctx)

	history, err := operator.History(ctx, store.ID{Scope: "hall", Key: "seat-17"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, step := range history.Progress.Steps {
		fmt.Printf("%s: %s\n", step.Name, step.State)
	}
	fmt.Printf("carried: %s\n", history.Progress.Data)

	by := reconcile.By{Who: "zoe", Why: "the bank shows the charge ch_1"}
	claim := store.Claim{ID: history.Record.ID, Attempt: history.Record.Attempt}
	err = operator.ResolveStep(ctx, by, claim, phase.StepOutcome{
		Step: history.Progress.Step, Result: phase.ResultDone, ProviderID: "ch_1",
		Data: json.RawMessage(`{"amount":1900,"charge":"ch_1"}`),
	})
	fmt.Println("settled:", err)
	h.resume(ctx)
	h.sell(ctx)
	// Output:
	// , unknown: true
	// charge: in doubt
	// confirm: pending
	// carried: {"amount":1900,"charge":""}
	// settled: <nil>
	// confirmed with ch_1
	// {"amount":1900,"charge":"ch_1"}, unknown: false
}
