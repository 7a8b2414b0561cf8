package phase_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// deafStore loses the heartbeats of its first owner, as if that was paused.
type deafStore struct {
	*memory.Store
	deaf atomic.Bool
}

// Extend implements [store.Store].
func (s *deafStore) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if s.deaf.Load() {
		return store.ErrUnavailable
	}
	return s.Store.Extend(ctx, c, lease)
}

// paused is an operation whose first attempt is paused in its call until it is let go, past its lease.
type paused struct {
	*bench
	store   *deafStore
	arrived chan struct{}
	letGo   chan struct{}
	answer  chan *httptest.ResponseRecorder
	calls   atomic.Int32
	keys    chan string
}

// pauseInCall starts an operation and returns when its owner is paused and its lease is over.
func pauseInCall(t *testing.T, with func(phase.Step[order]) phase.Step[order]) (*paused, *phase.Operation[order]) {
	t.Helper()
	store := &deafStore{Store: memory.New()}
	p := &paused{
		bench: newBench(t, store), store: store, arrived: make(chan struct{}), letGo: make(chan struct{}),
		answer: make(chan *httptest.ResponseRecorder, 1), keys: make(chan string, 10),
	}
	step := p.call("charge", func(ctx context.Context, key string, o *order) error {
		p.keys <- key
		if p.calls.Add(1) == 1 {
			close(p.arrived)
			<-p.letGo
		}
		return charge(ctx, key, o)
	})
	o, err := phase.New(phase.Definition[order]{
		Name: "POST /orders", MinBackoff: quickly,
		Steps:   []phase.Step[order]{p.local("seat", takeSeat), with(step), p.local("confirm", confirm)},
		Answer:  func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
		Options: []onceward.Option{onceward.Lease(100 * time.Millisecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	store.deaf.Store(true)
	go func() { p.answer <- p.post(o, "k") }()
	await.Value(t, "the call", p.arrived)
	p.await(p.record("k").LeaseUntil)
	store.deaf.Store(false)
	return p, o
}

// TestTakeOverRepeats: the other system recognises the key, so the call is made again, under the same one.
func TestTakeOverRepeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, o := pauseInCall(t, phase.Step[order].Repeat)
		p.want(p.post(o, "k"), http.StatusCreated, "ch_1")
		if first, second := await.Value(t, "the first call", p.keys), await.Value(t, "the second call", p.keys); first != second {
			t.Errorf("the calls had the keys %s and %s", first, second)
		}
		close(p.letGo)
		// The first owner is fenced, and sends the stored answer.
		p.want(await.Value(t, "the first owner's answer", p.answer), http.StatusCreated, "ch_1")
		p.wantTrace("seat charge charge confirm")
	})
}

// TestTakeOverIsUnknown: by default a call that may have been made is not repeated.
func TestTakeOverIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, o := pauseInCall(t, func(s phase.Step[order]) phase.Step[order] { return s })
		p.want(p.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
		if rec := p.record("k"); !strings.Contains(rec.LastError, "lost in step charge") {
			t.Errorf("the reason is %q", rec.LastError)
		}
		p.want(p.post(o, "k"), http.StatusConflict, "outcome-unknown")
		close(p.letGo)
		p.want(await.Value(t, "the first owner's answer", p.answer), http.StatusInternalServerError, "outcome-unknown")
		p.wantTrace("seat charge")
	})
}

func TestTakeOverLooksFirst(t *testing.T) {
	t.Parallel()
	found := func(_ context.Context, key string, o *order) error {
		o.Charge = "found under " + key[:4]
		return nil
	}
	missing := func(context.Context, string, *order) error { return phase.ErrNotFound }
	for name, c := range map[string]struct {
		with   func(phase.Step[order]) phase.Step[order]
		status int
		body   string
		trace  string
	}{
		"found": {
			func(s phase.Step[order]) phase.Step[order] { return s.LookUp(found) },
			http.StatusCreated, "found under", "seat charge confirm",
		},
		"not found": {
			func(s phase.Step[order]) phase.Step[order] { return s.LookUp(missing) },
			http.StatusInternalServerError, "outcome-unknown", "seat charge",
		},
		"not found, and may be repeated": {
			func(s phase.Step[order]) phase.Step[order] { return s.LookUp(missing).Repeat() },
			http.StatusCreated, "ch_1", "seat charge charge confirm",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, o := pauseInCall(t, c.with)
				p.want(p.post(o, "k"), c.status, c.body)
				close(p.letGo)
				await.Value(t, "the first owner's answer", p.answer)
				p.wantTrace(c.trace)
			})
		})
	}
}

// TestAFailedLookUpSaysNothingOfTheCall: what a question fails with is no word on the call, also where it would be one
// if the call had failed with it. The two are kept apart.
func TestAFailedLookUpSaysNothingOfTheCall(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"refused": errors.New("refused, nothing was done"), "not executed": onceward.NotExecuted(errDown),
		"rejected": onceward.Rejected(errDown),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, memory.New())
				o := b.define(b.call("charge", func(context.Context, string, *order) error {
					return errors.New("no answer came")
				}).LookUp(func(context.Context, string, *order) error { return failure }))
				b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
				b.await(b.record("k").LeaseUntil)
				b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
				rec := b.record("k")
				p, err := phase.Inspect(&rec)
				if err != nil || !p.InDoubt || p.Failure != "no answer came" || p.LookUpFailure != failure.Error() {
					t.Errorf("E3: the record says %+v, %v", p, err)
				}
				b.resume(o)
				rec = b.record("k")
				want := "(no answer came), and the question about its call failed: " + failure.Error()
				if rec.State != store.StateUnknown || !strings.HasSuffix(rec.LastError, want) {
					t.Errorf("E3: the record is %s, because of %q, want %q", rec.State, rec.LastError, want)
				}
				b.wantTrace("charge")
			})
		})
	}
}

// TestProviderIDsOfSteps: the record is found by the id of its last step that has one, and shows the ids of all steps,
// including a step that a person has settled.
func TestProviderIDsOfSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		named := func(id string, err error) func(context.Context, string, *order) error {
			return func(ctx context.Context, _ string, _ *order) error {
				if err == nil {
					onceward.FromContext(ctx).SetProviderID(id)
				}
				return err
			}
		}
		o := b.define(b.call("hold", named("pi_1", nil)), b.call("charge", named("ch_1", nil)),
			b.local("note", confirm), b.call("ship", named("", errors.New("no answer came"))))
		b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
		wantProvided(b, "ch_1", "hold pi_1, charge ch_1, note , ship ")
		rec := b.record("k")
		p, err := phase.Inspect(&rec)
		if err != nil {
			t.Fatal(err)
		}
		point, err := p.Checkpoint(phase.StepOutcome{Step: "ship", Result: phase.ResultDone, ProviderID: "sh_1"})
		if err != nil {
			t.Fatal(err)
		}
		settler := b.store.(store.Reconciler)
		if err := settler.ResolveStep(t.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt}, point); err != nil {
			t.Fatal(err)
		}
		b.want(b.post(o, "k"), http.StatusCreated, "")
		wantProvided(b, "sh_1", "hold pi_1, charge ch_1, note , ship sh_1")
	})
}

// wantProvided checks which ids of providers a record shows.
func wantProvided(b *bench, last, steps string) {
	b.Helper()
	rec := b.record("k")
	p, err := phase.Inspect(&rec)
	if err != nil {
		b.Fatal(err)
	}
	var got []string
	for _, step := range p.Steps {
		got = append(got, step.Name+" "+step.ProviderID)
	}
	if rec.ProviderID != last || strings.Join(got, ", ") != steps {
		b.Errorf("O3: the record has %q, and its steps %q, want %q and %q", rec.ProviderID, got, last, steps)
	}
}

// TestAStepPastTheDeadline: a call is not begun for which no time is left, because it would be in doubt for nothing.
func TestAStepPastTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := phase.Must(phase.New(phase.Definition[order]{
			Name: "POST /orders",
			Steps: []phase.Step[order]{
				b.local("seat", func(ctx context.Context, o *order) error {
					time.Sleep(10500 * time.Millisecond)
					return takeSeat(ctx, o)
				}),
				b.call("charge", func(ctx context.Context, key string, o *order) error {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					return charge(ctx, key, o)
				}),
			},
			Answer:  func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
			Options: []onceward.Option{onceward.Lease(3 * time.Second), onceward.Deadline(10 * time.Second)},
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		if rec := b.record("k"); rec.Point != "seat" {
			t.Errorf("the recovery point is %q, want that behind the last step", rec.Point)
		}
		time.Sleep(time.Minute)
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge")
	})
}

// slowStore takes longer than a lease to record an intent, and loses the heartbeats meanwhile.
type slowStore struct {
	deafStore
	slow bool
}

// Checkpoint implements [store.Store].
func (s *slowStore) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	if s.slow && strings.HasSuffix(p.Point, "(begun)") {
		s.slow = false
		s.deaf.Store(true)
		time.Sleep(3 * time.Second)
		defer s.deaf.Store(false)
	}
	return s.Store.Checkpoint(ctx, c, p)
}

// TestALeaseThatEndsBeforeTheCall: an owner that has recorded its intent and may not call any more takes the intent
// back.
func TestALeaseThatEndsBeforeTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, &slowStore{deafStore: deafStore{Store: memory.New()}, slow: true})
		o := b.define(b.local("seat", takeSeat), b.call("charge", charge))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		b.wantTrace("seat")
		if rec := b.record("k"); rec.Point != "seat" {
			t.Errorf("the recovery point is %q, want that before the call", rec.Point)
		}
		time.Sleep(time.Minute)
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge")
	})
}

// TestAStepThatNobodySurvives is not taken over endlessly: the attempts that ended without a result are counted. Here
// they hang; an attempt that kills its process looks the same to later ones.
func TestAStepThatNobodySurvives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &deafStore{Store: memory.New()}
		s.deaf.Store(true)
		b := newBench(t, s)
		const attempts = 3
		arrived, never := make(chan struct{}, 2+attempts), make(chan struct{})
		o, err := phase.New(phase.Definition[order]{
			Name: "POST /orders", MinBackoff: quickly, MaxAttempts: attempts,
			Steps: []phase.Step[order]{b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
				arrived <- struct{}{}
				<-never
				return errDown
			})},
			Answer:  func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
			Options: []onceward.Option{onceward.Lease(100 * time.Millisecond)},
		})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{}, 1+attempts)
		for range 1 + attempts { // the first attempt, and as many that take over
			go func() {
				b.post(o, "k")
				ended <- struct{}{}
			}()
			await.Value(t, "the call of the last step", arrived)
			b.await(b.record("k").LeaseUntil)
		}
		b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
		rec := b.record("k")
		if rec.State != store.StateUnknown || !strings.Contains(rec.LastError,
			"given up after 3 attempts that were lost after \"seat\"") {
			t.Errorf("the record is %s: %s", rec.State, rec.LastError)
		}
		b.wantTrace("seat confirm confirm confirm confirm")
		s.deaf.Store(false) // so that the late ones are fenced at once
		close(never)
		for range 1 + attempts {
			await.Value(t, "the end of an attempt", ended)
		}
	})
}

// TestTheSettledAttemptIsFenced: an owner that was only paused in its call cannot write over what was learned.
func TestTheSettledAttemptIsFenced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, o := pauseInCall(t, func(s phase.Step[order]) phase.Step[order] { return s })
		p.want(p.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
		operator, err := reconcile.NewOperator(p.bench.guard, p.bench.store)
		if err != nil {
			t.Fatal(err)
		}
		rec := p.record("k")
		data := json.RawMessage(`{"Item":"a book","Seat":"12A","Charge":"found"}`)
		outcome := phase.StepOutcome{Step: "charge", Result: phase.ResultDone, Data: data}
		by, claim := reconcile.By{Who: "zoe", Why: "the bank told me"}, store.Claim{ID: rec.ID, Attempt: rec.Attempt}
		if err := operator.ResolveStep(t.Context(), by, claim, outcome); err != nil {
			t.Fatal(err)
		}
		close(p.letGo)
		await.Value(t, "the first owner's answer", p.answer)
		p.resume(o)
		p.want(p.post(o, "k"), http.StatusCreated, "found")
		p.wantTrace("seat charge confirm")
	})
}

// TestWhoMadeTheCall: the owner that must be gone before "not found" counts is the one that meant to make the call, not
// a later attempt that stopped at the doubt.
func TestWhoMadeTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, o := pauseInCall(t, func(s phase.Step[order]) phase.Step[order] { return s })
		caller := p.record("k").Attempt
		p.want(p.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
		asked := int64(0)
		poller, err := reconcile.NewPoller(p.guard, p.bench.store, reconcile.Config{
			Logger: slog.New(slog.DiscardHandler),
			DefaultRule: &reconcile.Rule{
				Resolver: reconcile.ResolverFunc(func(context.Context, *store.Record) (reconcile.Answer, error) {
					return reconcile.NotFound(), nil
				}),
				Arrival: 1,
				OwnerGone: func(_ context.Context, rec *store.Record) (bool, error) {
					asked = rec.Attempt
					return false, nil
				},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := poller.RunOnce(t.Context()); err != nil || got.Postponed != 1 || asked != caller {
			t.Errorf("the poller reports %+v, %v, and asked after attempt %d, want %d", got, err, asked, caller)
		}
		close(p.letGo)
		await.Value(t, "the first owner's answer", p.answer)
	})
}

// hungStore takes longer than a lease to record an intent, and a heartbeat hangs until the attempt has ended. So the
// context of the owner has not ended, as in a process that was paused: only the owner's clock shows that its lease is
// over.
type hungStore struct {
	*memory.Store
	recording atomic.Bool
	ended     chan struct{}
}

// Write implements [io.Writer] for the log, whose first line reports the end of the attempt.
func (s *hungStore) Write(line []byte) (int, error) {
	if s.recording.CompareAndSwap(true, false) {
		close(s.ended)
	}
	return len(line), nil
}

// Extend implements [store.Store].
func (s *hungStore) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if s.recording.Load() {
		<-s.ended
		return store.ErrUnavailable
	}
	return s.Store.Extend(ctx, c, lease)
}

// Checkpoint implements [store.Store].
func (s *hungStore) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	select {
	case <-s.ended:
	default:
		if strings.HasSuffix(p.Point, "(begun)") {
			s.recording.Store(true)
			time.Sleep(3 * time.Second)
		}
	}
	return s.Store.Checkpoint(ctx, c, p)
}

// TestNoCallPastTheLease: an owner makes no call when its own clock alone shows that its lease is over.
func TestNoCallPastTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &hungStore{Store: memory.New(), ended: make(chan struct{})}
		b := newBench(t, s)
		b.reconfigure(func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(s, nil)) })
		o := b.define(b.local("seat", takeSeat), b.call("charge", func(ctx context.Context, key string, o *order) error {
			if held := onceward.FromContext(ctx).CheckLease(); held != nil {
				t.Errorf("S5: the call was made after the end of the lease: %v", held)
			}
			return charge(ctx, key, o)
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		b.wantTrace("seat")
		time.Sleep(time.Minute)
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge")
	})
}

// intentStore stores no intent while it has an error.
type intentStore struct {
	*memory.Store
	fail error
}

// Checkpoint implements [store.Store].
func (s *intentStore) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	if s.fail != nil && strings.HasSuffix(p.Point, "(begun)") {
		return s.fail
	}
	return s.Store.Checkpoint(ctx, c, p)
}

// TestNoCallWithoutAnIntent: a call whose intent could not be stored is not made, because the attempt after a crash
// would make the call a second time.
func TestNoCallWithoutAnIntent(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]error{
		"unavailable": store.ErrUnavailable,
		"in doubt":    store.ErrOutcomeUnknown,
		"fenced":      &store.FencedError{Op: "checkpoint"},
		"other":       errDown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &intentStore{Store: memory.New(), fail: fail}
				b := newBench(t, s)
				o := b.define(b.local("seat", takeSeat), b.call("charge", charge))
				b.post(o, "k")
				if slices.Contains(b.trace, "charge") {
					t.Errorf("E3: the call was made although its intent was not stored: %v", b.trace)
				}
				s.fail = nil
				time.Sleep(time.Minute)
				b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
				b.wantTrace("seat charge")
			})
		})
	}
}
