package unknown_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

var zoe = reconcile.By{Who: "zoe", Why: "the bank told me"}

// doubtful is an operation of a seat, a charge whose first answer is lost, and a confirmation, and those who settle it.
// The bank knows whether it has charged.
type doubtful struct {
	*bench
	operation *phase.Operation[ticket]
	poller    *reconcile.Poller
	operator  *reconcile.Operator
	charged   bool
	key       string // of the lost call
}

// newDoubtful loses the operation k in its charge.
func newDoubtful(b *bench, charged bool) *doubtful {
	b.Helper()
	d := &doubtful{bench: b, charged: charged}
	call := b.call("charge", func(ctx context.Context, key string, o *ticket) error {
		if d.key == "" {
			d.key = key
			return errDown
		}
		return charge(ctx, key, o)
	})
	d.operation = b.define(b.local("seat", takeSeat), call, b.local("confirm", confirm))
	var err error
	if d.operator, err = reconcile.NewOperator(b.guard, b.store); err != nil {
		b.Fatal(err)
	}
	d.poller = b.poller(reconcile.Rule{
		Resolver: reconcile.ResolverFunc(func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
			return d.answer(rec)
		}),
		Source: "bank", Steps: []string{"charge"},
		Interpret: func(_ context.Context, rec *store.Record, _ []store.ExternalEvent) (reconcile.Answer, error) {
			return d.answer(rec)
		},
	})
	b.want(b.post(d.operation, "k"), http.StatusInternalServerError, "outcome-unknown")
	b.want(b.post(d.operation, "k"), http.StatusConflict, "outcome-unknown")
	return d
}

func (b *bench) poller(rule reconcile.Rule) *reconcile.Poller {
	b.Helper()
	poller, err := reconcile.NewPoller(b.guard, b.store, reconcile.Config{
		DefaultRule: &rule,
		Logger:      quiet,
	})
	if err != nil {
		b.Fatal(err)
	}
	return poller
}

// answer is what a resolver of the operation says.
func (d *doubtful) answer(rec *store.Record) (reconcile.Answer, error) {
	doubt, err := d.operation.InDoubt(d.guard, rec)
	if err != nil {
		return reconcile.Answer{}, err
	}
	if doubt.Step != "charge" || doubt.Key != d.key || doubt.Data.Seat != "12A" {
		d.Errorf("in doubt is %q with the key %q and %+v", doubt.Step, doubt.Key, doubt.Data)
	}
	if !d.charged {
		return reconcile.NotExecuted("the bank says so"), nil
	}
	doubt.Data.Charge = "ch_1"
	return reconcile.Step(doubt.Done("ch_1")), nil
}

// claim names the attempt that the record stands at.
func (b *bench) claim() store.Claim {
	b.Helper()
	rec := b.record("k")
	return store.Claim{ID: rec.ID, Attempt: rec.Attempt}
}

// settlers are those who can find out, and say so.
var settlers = map[string]func(d *doubtful) error{
	"poller": func(d *doubtful) error {
		_, err := d.poller.RunOnce(d.Context())
		return err
	},
	"webhook": func(d *doubtful) error {
		event := store.ExternalEvent{Source: "bank", Scope: "shop", EventID: "e1", Subject: d.key}
		if _, err := d.store.(store.ExternalEventKeeper).AddExternalEvent(d.Context(), event); err != nil {
			return err
		}
		return d.poller.Apply(d.Context(), event)
	},
	"operator": (*doubtful).settledByHand,
}

// settledByHand is a person who has no code of the operation, only what the record says.
func (d *doubtful) settledByHand() error {
	history, err := d.operator.History(d.Context(), store.ID{Scope: "shop", Key: "k"})
	if err != nil || history.Record.State != store.StateUnknown {
		return err
	}
	outcome := phase.StepOutcome{Step: history.Progress.Step, Result: phase.ResultNotExecuted}
	if d.charged {
		var carried map[string]any
		if err := json.Unmarshal(history.Progress.Data, &carried); err != nil {
			return err
		}
		carried["Charge"] = "ch_1"
		data, err := json.Marshal(carried)
		if err != nil {
			return err
		}
		outcome = phase.StepOutcome{Step: history.Progress.Step, Result: phase.ResultDone, Data: data, ProviderID: "ch_1"}
	}
	claim := store.Claim{ID: history.Record.ID, Attempt: history.Record.Attempt}
	return d.operator.ResolveStep(d.Context(), zoe, claim, outcome)
}

// goers are those who go on, on a node of their own: the one that settled may be gone.
var goers = map[string]func(d *doubtful, node *bench){
	"resumer": func(d *doubtful, node *bench) { node.resume(d.operation) },
	"retry":   func(d *doubtful, node *bench) { node.post(d.operation, "k") },
	"both": func(d *doubtful, node *bench) {
		var all sync.WaitGroup
		all.Go(func() { node.once(node.resumer(phase.ResumerConfig{}, d.operation)) })
		all.Go(func() { node.post(d.operation, "k") })
		all.Wait()
	},
}

// wantGoneOn checks that the operation was taken to its end once, and that its answer is its own.
func (d *doubtful) wantGoneOn() {
	d.Helper()
	d.resume(d.operation) // what two have raced for may have been left by both
	w := d.post(d.operation, "k")
	d.want(w, http.StatusCreated, `{"Item":"a book","Seat":"12A","Charge":"ch_1"}`)
	if d.charged {
		d.wantTrace("seat charge confirm")
	} else {
		d.wantTrace("seat charge charge confirm")
	}
}

// TestSettlingAStep: no matter who learns what became of a step, the operation goes on with it, and only its end is an
// answer (I15, scenario 39).
func TestSettlingAStep(t *testing.T) {
	t.Parallel()
	for name, charged := range map[string]bool{"done": true, "not executed": false} {
		for by, settle := range settlers {
			for who, goOn := range goers {
				t.Run(name+" by "+by+", then "+who, func(t *testing.T) {
					t.Parallel()
					if who != "both" {
						nightly.Only(t, "what goes on alone here goes on beside the other in another test")
					}
					onStores(t, func(t *testing.T, b *bench) {
						d := newDoubtful(b, charged)
						if err := settle(d); err != nil {
							t.Fatal(err)
						}
						rec := b.record("k")
						if rec.State != store.StateInProgress || charged && rec.ProviderID != "ch_1" {
							t.Errorf("the record is %s, with the id %q", rec.State, rec.ProviderID)
						}
						goOn(d, b.node(t))
						d.wantGoneOn()
					})
				})
			}
		}
	}
}

// TestTwoSettleAStep at once, while the client retries: the operation goes on once.
func TestTwoSettleAStep(t *testing.T) {
	t.Parallel()
	for name, charged := range map[string]bool{"done": true, "not executed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				d := newDoubtful(b, charged)
				var all sync.WaitGroup
				for _, settle := range settlers {
					all.Go(func() { _ = settle(d) }) // one of them is too late, and may be told so
				}
				for range 3 {
					node := b.node(t)
					all.Go(func() { node.post(d.operation, "k") })
				}
				all.Wait()
				d.wantGoneOn()
			})
		})
	}
}

// TestCompletedSkipsNoStep: a resolver that answers for the whole of an operation, when it knows of one step, is
// refused. One that ends it on purpose is not.
func TestCompletedSkipsNoStep(t *testing.T) {
	t.Parallel()
	declined := reconcile.Response(http.StatusPaymentRequired, nil, []byte("declined"))
	onStores(t, func(t *testing.T, b *bench) {
		d := newDoubtful(b, true)
		says := func(a reconcile.Answer) reconcile.Report {
			poller := b.poller(reconcile.Rule{Resolver: reconcile.ResolverFunc(
				func(context.Context, *store.Record) (reconcile.Answer, error) { return a, nil })})
			report, err := poller.Reconcile(t.Context(), store.ID{Scope: "shop", Key: "k"})
			if !errors.Is(err, onceward.ErrMisconfigured) {
				must(t, err)
			}
			return report
		}
		for _, refused := range []reconcile.Answer{
			reconcile.Completed(declined, "ch_1"),
			reconcile.Step(phase.StepOutcome{Step: "confirm", Result: phase.ResultDone}),
			reconcile.Step(phase.StepOutcome{Step: "charge"}),
			reconcile.Step(phase.StepOutcome{Step: "charge", Result: phase.ResultDone, Data: []byte(`{"Charge":"ch_1"}`)}),
			reconcile.Step(phase.StepOutcome{Step: "charge", Result: phase.ResultDone, Data: []byte(`{`)}),
		} {
			if got := says(refused); got != (reconcile.Report{Postponed: 1}) {
				t.Errorf("%+v came to %+v", refused, got)
			}
			rec := b.record("k")
			if rec.State != store.StateUnknown || !strings.Contains(rec.ReconcileError, "cannot be stored") {
				t.Errorf("the record is %s: %s", rec.State, rec.ReconcileError)
			}
		}
		if got := says(reconcile.Finish(declined, "ch_1")); got != (reconcile.Report{Completed: 1}) {
			t.Errorf("an operation that is finished came to %+v", got)
		}
		b.want(b.post(d.operation, "k"), http.StatusPaymentRequired, "declined")
		b.wantTrace("seat charge")
	})
}

// TestAStepThatWasGivenUp is none that a resolver can say anything about. A person has it tried again when its fault is
// mended.
func TestAStepThatWasGivenUp(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := true
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *ticket) error {
			if failing {
				return errDown
			}
			return nil
		}))
		b.post(o, "k")
		b.resume(o)
		poller := b.poller(reconcile.Rule{Deduplicates: true, Resolver: reconcile.ResolverFunc(
			func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
				if _, err := o.InDoubt(b.guard, rec); err == nil {
					t.Error("a local step is in doubt")
				}
				return reconcile.NotFound(), nil
			})})
		if got, err := poller.RunOnce(t.Context()); err != nil || got != (reconcile.Report{Postponed: 1}) {
			t.Errorf("the poller reports %+v, %v", got, err)
		}
		failing = false
		operator, err := reconcile.NewOperator(b.guard, b.store)
		must(t, err)
		must(t, operator.RetryNow(t.Context(), zoe, b.claim()))
		if got := b.resume(o); got.Finished != 1 {
			t.Errorf("the resumer reports %+v", got)
		}
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm confirm confirm confirm confirm")
		b.wantAudit(`zoe: resolve step "confirm" as to be tried again, the bank told me [done]`)
	})
}

// wantAudit checks how the last act on k is written down.
func (b *bench) wantAudit(want string) {
	b.Helper()
	entries, err := b.store.(store.Auditor).Audit(b.Context(), store.ID{Scope: "shop", Key: "k"})
	must(b.T, err)
	last := entries[len(entries)-1]
	if got := last.Actor + ": " + last.Action + ", " + last.Reason + " [" + last.Outcome + "]"; got != want {
		b.Errorf("the audit ends with %s, want %s", got, want)
	}
}

// TestTriedAgainWhileInDoubt: to have a step tried again says nothing about its call. A step that cannot find out by
// itself is unknown again, and its call is not repeated.
func TestTriedAgainWhileInDoubt(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		d := newDoubtful(b, true)
		must(t, d.operator.RetryNow(t.Context(), zoe, b.claim()))
		if got := b.resume(d.operation); got.Unknown != 1 {
			t.Errorf("the resumer reports %+v", got)
		}
		b.wantTrace("seat charge")
		must(t, settlers["poller"](d))
		d.wantGoneOn()
		b.wantAudit(`reconciler: resolve step "charge" as done, the other system's answer [done]`)
	})
}

// TestResolvedAsAWhole: a person may end the whole of an operation. If nothing of it was executed a retry starts at the
// beginning.
func TestResolvedAsAWhole(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		d := newDoubtful(b, false)
		must(t, d.operator.ResolveNotExecuted(t.Context(), zoe, b.claim()))
		b.want(b.post(d.operation, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge seat charge confirm")
	})
}
