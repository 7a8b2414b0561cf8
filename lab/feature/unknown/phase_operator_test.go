package unknown_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// orphan leaves the operation k behind, in progress and past its lease, with a call in doubt. Its code has another name
// now.
func (b *bench) orphan() (renamed *phase.Operation[ticket], operator *reconcile.Operator) {
	b.Helper()
	o := b.define(b.local("seat", takeSeat), b.call("charge", func(context.Context, string, *ticket) error {
		return errDown
	}).Repeat(), b.local("confirm", confirm))
	b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
	b.leapTo(b.record("k").LeaseUntil)
	d := o.Definition
	d.Name = "POST /purchases"
	operator, err := reconcile.NewOperator(b.guard, b.store)
	must(b.T, err)
	return phase.Must(phase.New(d)), operator
}

// TestAPersonEndsWhatHasNoCode: an operation that no running program knows can be ended, with what is known of each
// step before the operator's eyes, and that is in the audit (I16, scenario 40).
func TestAPersonEndsWhatHasNoCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(ctx context.Context, operator *reconcile.Operator, c store.Claim) error
		want  store.State
		audit string
	}{
		"completed": {func(ctx context.Context, operator *reconcile.Operator, c store.Claim) error {
			answer := reconcile.Response(http.StatusCreated, nil, []byte("by hand"))
			return operator.ResolveCompleted(ctx, zoe, c, store.Completion{Response: answer})
		}, store.StateCompleted, "zoe: resolve completed, the bank told me [done]"},
		"not executed": {func(ctx context.Context, operator *reconcile.Operator, c store.Claim) error {
			return operator.ResolveNotExecuted(ctx, zoe, c)
		}, store.StateRetryable, "zoe: resolve not executed, the bank told me [done]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				renamed, operator := b.orphan()
				if got := b.once(b.resumer(phase.ResumerConfig{}, renamed)); got != (phase.Report{Skipped: 1}) {
					t.Errorf("the resumer reports %+v", got)
				}
				lost, err := operator.Lost(t.Context(), store.ID{}, 0)
				must(t, err)
				if len(lost) != 1 || lost[0].Key != "k" {
					t.Fatalf("lost are %+v", lost)
				}
				history, err := operator.History(t.Context(), lost[0].ID)
				must(t, err)
				wantSteps(t, history.Progress)
				must(t, c.end(t.Context(), operator, b.claim()))
				if rec := b.record("k"); rec.State != c.want {
					t.Errorf("the record is %s, want %s", rec.State, c.want)
				}
				b.wantAudit(c.audit)
			})
		})
	}
}

// wantSteps checks what a person is shown of an orphan.
func wantSteps(t *testing.T, p *phase.Progress) {
	t.Helper()
	want := []phase.StepProgress{
		{Name: "seat", State: phase.StepDone},
		{Name: "charge", State: phase.StepInDoubt},
		{Name: "confirm", State: phase.StepPending},
	}
	const data = `{"Item":"a book","Seat":"12A","Charge":""}`
	switch {
	case p == nil || !slices.Equal(p.Steps, want) || p.Step != "charge" || !p.InDoubt || p.CalledBy == 0,
		p.Attempts != 1 || p.Via != "http" || string(p.Data) != data:
		t.Errorf("the progress is %+v", p)
	}
}

// TestAnOwnerKeepsItsOperation: while it has its lease a person cannot end what it does.
func TestAnOwnerKeepsItsOperation(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		operator, err := reconcile.NewOperator(b.guard, b.store)
		must(t, err)
		o := b.define(b.local("seat", takeSeat), b.call("charge", func(ctx context.Context, key string, o *ticket) error {
			claim := b.claim()
			again := phase.StepOutcome{Step: "charge", Result: phase.ResultNotExecuted}
			_, stopErr := operator.Stop(ctx, zoe, claim)
			stepErr := operator.ResolveStep(ctx, zoe, claim, again)
			for _, err := range []error{stopErr, stepErr, operator.ResolveNotExecuted(ctx, zoe, claim)} {
				if !errors.Is(err, store.ErrFenced) {
					t.Errorf("got %v, want it refused", err)
				}
			}
			if lost, err := operator.Lost(ctx, store.ID{}, 0); err != nil || len(lost) != 0 {
				t.Errorf("lost are %d, %v", len(lost), err)
			}
			return charge(ctx, key, o)
		}))
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
	})
}

// TestStop: an operation that was stopped has no owner until it is resolved. Then it goes on, or is ended.
func TestStop(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		renamed, operator := b.orphan()
		before := b.claim()
		stopped, err := operator.Stop(t.Context(), zoe, before)
		must(t, err)
		rec := b.record("k")
		if rec.State != store.StateUnknown || rec.Attempt != stopped.Attempt || stopped.Attempt <= before.Attempt {
			t.Fatalf("the record is %s at attempt %d, stopped at %d", rec.State, rec.Attempt, stopped.Attempt)
		}
		checkpoint := store.Checkpoint{Point: "charge", Data: []byte("late")}
		if err := b.store.Checkpoint(t.Context(), before, checkpoint); !errors.Is(err, store.ErrFenced) {
			t.Errorf("an owner that was stopped writes: %v", err)
		}
		if _, err := operator.Stop(t.Context(), zoe, stopped); !errors.Is(err, store.ErrFenced) {
			t.Errorf("what is unknown is stopped: %v", err)
		}
		history, err := operator.History(t.Context(), rec.ID)
		must(t, err)
		wantSteps(t, history.Progress)
		must(t, operator.ResolveStep(t.Context(), zoe, stopped, phase.StepOutcome{
			Step:   "charge",
			Result: phase.ResultNotExecuted,
		}))
		b.wantAudit(`zoe: resolve step "charge" as not executed, the bank told me [done]`)
		done := phase.StepOutcome{Step: "charge", Result: phase.ResultDone}
		if err := operator.ResolveStep(t.Context(), zoe, stopped, done); !errors.Is(err, store.ErrFenced) {
			t.Errorf("it is resolved a second time: %v", err)
		}
		d := renamed.Definition
		d.Name = "POST /orders"
		d.Steps = []phase.Step[ticket]{b.local("seat", takeSeat), b.call("charge", charge), b.local("confirm", confirm)}
		b.want(b.post(phase.Must(phase.New(d)), "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge charge confirm")
	})
}

// movingStore has the owner of an operation go on while a person settles it: behind the look at the record, before the
// write.
type movingStore struct {
	*memory.Store
	move func()
}

// Get implements [store.Store].
func (s *movingStore) Get(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if move := s.move; move != nil {
		s.move = nil
		move()
	}
	return rec, err
}

// TestAnOwnerThatWakesUp while a person says that its step was not executed is not taken back: what it did counts, and
// the person is told that the current step is another.
func TestAnOwnerThatWakesUp(t *testing.T) {
	t.Parallel()
	clock := new(leapingClock)
	s := &movingStore{Store: memory.New(memory.WithClock(clock.now))}
	b := newBench(t, s, clock)
	_, operator := b.orphan()
	owner := b.claim()
	s.move = func() {
		moved := `{"v":2,"via":"http","steps":["seat","charge","confirm"],"done":["seat","charge"],` +
			`"data":{"Item":"a book","Seat":"12A","Charge":"ch_1"}}`
		must(t, s.Checkpoint(t.Context(), owner, store.Checkpoint{Point: "charge", Data: []byte(moved)}))
	}
	outcome := phase.StepOutcome{Step: "charge", Result: phase.ResultNotExecuted}
	if err := operator.ResolveStep(t.Context(), zoe, owner, outcome); err == nil {
		t.Error("a call that was made was resolved as not executed")
	}
	if rec := b.record("k"); rec.Point != "charge" || !strings.Contains(string(rec.Data), "ch_1") {
		t.Errorf("the record is at %q with %s", rec.Point, rec.Data)
	}
}

// TestWrongDataCanBeMended: a person who has mistyped the data of a step finds the operation left alone, and corrects
// it.
func TestWrongDataCanBeMended(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		d := newDoubtful(b, true)
		resolve := func(step string, result phase.StepResult, data string) {
			o := phase.StepOutcome{Step: step, Result: result, Data: []byte(data)}
			must(t, d.operator.ResolveStep(t.Context(), zoe, b.claim(), o))
		}
		resolve("charge", phase.ResultDone, `{"Item":"a book","Seat":"12A","Charge":"","Chrage":"ch_1"}`)
		b.wantLeftAlone(d.operation, "unknown field")
		if lost, err := d.operator.Lost(t.Context(), store.ID{}, 1); err != nil || len(lost) != 1 {
			t.Errorf("lost are %d, %v", len(lost), err)
		}
		resolve("confirm", phase.ResultRetry, `{"Item":"a book","Seat":"12A","Charge":"ch_1"}`)
		d.wantGoneOn()
	})
}

// TestTheFirstEncoding: what was stored by it names no steps but those that were reached, and is gone on with.
func TestTheFirstEncoding(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat), b.call("charge", charge).Repeat(), b.local("confirm", confirm))
		v, err := b.store.Reserve(t.Context(), &store.Reservation{
			ID: store.ID{Scope: "shop", Key: "k"}, Operation: o.Name, Fingerprints: []store.Fingerprint{b.fingerprintOf(o)},
			OnLost: store.LostResume, Nonce: store.Nonce{1}, Lease: time.Hour, Retention: time.Hour,
			DownstreamSecret: b.downstreamSecret(),
		})
		must(t, err)
		stored := `{"v":1,"via":"http","done":["seat"],"intent":"charge","data":{"Item":"a book","Seat":"12A","Charge":""}}`
		claim := store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
		must(t, b.store.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "charge (begun)", Data: []byte(stored)}))
		rec := b.record("k")
		progress, err := phase.Inspect(&rec)
		must(t, err)
		want := []phase.StepProgress{{Name: "seat", State: phase.StepDone}, {Name: "charge", State: phase.StepInDoubt}}
		if !slices.Equal(progress.Steps, want) || progress.Step != "charge" {
			t.Errorf("the progress is %+v", progress)
		}
		b.leapTo(rec.LeaseUntil)
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
	})
}

// fingerprintOf is that of the request that post sends.
func (b *bench) fingerprintOf(o *phase.Operation[ticket]) store.Fingerprint {
	b.Helper()
	b.want(b.post(o, "another"), http.StatusCreated, "12A")
	return b.record("another").Fingerprint
}
