package phase_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// unstored are the statuses with which a handler reports that it did nothing, or failed: the guard stores none of them.
var unstored = []int{
	http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
	http.StatusInternalServerError, http.StatusServiceUnavailable,
}

// TestAnAnswerThatIsNotStored: an operation that did something is not released because of the status it ends with.
func TestAnAnswerThatIsNotStored(t *testing.T) {
	t.Parallel()
	for _, status := range unstored {
		end := phase.JSON(status, "too much")
		for name, finish := range map[string]func(b *bench) (phase.Step[order], phase.Answer){
			"finish": func(b *bench) (phase.Step[order], phase.Answer) {
				return b.call("charge", func(context.Context, string, *order) error { return phase.Finish(end) }), phase.Answer{}
			},
			"answer": func(b *bench) (phase.Step[order], phase.Answer) { return b.call("charge", charge), end },
		} {
			t.Run(strconv.Itoa(status)+" "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, memory.New())
					step, answer := finish(b)
					o := phase.Must(phase.New(phase.Definition[order]{
						Name: "POST /orders", Steps: []phase.Step[order]{step}, Answer: func(*order) phase.Answer { return answer },
					}))
					b.post(o, "k")
					rec := b.record("k")
					if rec.State != store.StateUnknown || !strings.Contains(rec.LastError, strconv.Itoa(status)) {
						t.Errorf("the record is %s: %s", rec.State, rec.LastError)
					}
					b.want(b.post(o, "k"), http.StatusConflict, "outcome-unknown")
					b.wantTrace("charge")
				})
			})
		}
	}
}

// TestAStartThatIsRefusedForNow: before anything is done such a status has its usual meaning, and releases.
func TestAStartThatIsRefusedForNow(t *testing.T) {
	t.Parallel()
	for _, status := range unstored {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, memory.New())
				o := b.define(b.local("seat", takeSeat))
				h := o.Handler(b.guard, func(*http.Request) (*order, error) {
					return nil,
						phase.Finish(phase.JSON(status, "later"))
				})
				b.want(b.send(h, "k"), status, "later")
				if rec := b.record("k"); rec.State != store.StateRetryable {
					t.Errorf("the record is %s, want it released", rec.State)
				}
				b.want(b.post(o, "k"), http.StatusCreated, "12A")
			})
		})
	}
}

// TestDoKeepsNoStatus: the value of an operation that is run by Do is its answer, whatever the status.
func TestDoKeepsNoStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.define(b.local("seat", func(context.Context, *order) error {
			return phase.Finish(phase.Answer{Status: http.StatusTooManyRequests, Body: []byte("full")})
		}))
		for _, replayed := range []bool{false, true} {
			result, err := o.Do(t.Context(), b.guard, onceward.Call{Scope: "shop", Key: "k"}, order{})
			if err != nil || string(result.Value) != "full" || result.Replayed != replayed {
				t.Errorf("the result is %s (replayed: %t), %v", result.Value, result.Replayed, err)
			}
		}
		b.wantTrace("seat")
	})
}

// measure is data that JSON cannot hold in every case.
type measure struct{ Value float64 }

// TestDataThatCannotBeStored: the caller's answer is that nothing was done, not that the error is the value.
func TestDataThatCannotBeStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := phase.Must(phase.New(phase.Definition[measure]{
			Name: "measure",
			Steps: []phase.Step[measure]{phase.Local("note", func(context.Context,
				*measure,
			) error {
				b.did("note")
				return nil
			})},
			Answer: func(m *measure) phase.Answer {
				return phase.JSON(http.StatusOK, m)
			},
		}))
		call := onceward.Call{Scope: "shop", Key: "k"}
		result, err := o.Do(t.Context(), b.guard, call, measure{Value: math.NaN()})
		if !onceward.IsNotExecuted(err) {
			t.Errorf("the result is %q, %v, want that nothing was executed", result.Value, err)
		}
		if rec := b.record("k"); rec.State != store.StateRetryable {
			t.Errorf("the record is %s, want it released", rec.State)
		}
		if result, err := o.Do(t.Context(), b.guard, call, measure{Value: 1}); err != nil ||
			string(result.Value) != `{"Value":1}` {
			t.Errorf("then the result is %q, %v", result.Value, err)
		}
		b.wantTrace("note")
	})
}

// TestGivingUpByDo keeps the reason with the record, and returns the error of the step.
func TestGivingUpByDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.define(b.local("seat", func(context.Context, *order) error { return errDown }))
		var err error
		for range 4 {
			_, err = o.Do(t.Context(), b.guard, onceward.Call{Scope: "shop", Key: "k"}, order{})
			time.Sleep(time.Minute)
		}
		rec := b.record("k")
		if !errors.Is(err, store.ErrOutcomeUnknown) || !errors.Is(err, errDown) ||
			rec.LastError != "given up after 4 attempts: down for a moment" {
			t.Errorf("the error is %v, the record %s: %s", err, rec.State, rec.LastError)
		}
	})
}

// TestPanicsOutsideOfSteps: one of the start has done nothing, one of the answer is tried again.
func TestPanicsOutsideOfSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		panicking := true
		o := phase.Must(phase.New(phase.Definition[order]{
			Name: "POST /orders", Steps: []phase.Step[order]{b.local("seat", takeSeat)},
			Answer: func(o *order) phase.Answer {
				if panicking {
					panicking = false
					panic("the answer")
				}
				return phase.JSON(http.StatusCreated, o)
			},
		}))
		recovers := func(h http.Handler, want string) {
			t.Helper()
			defer func() {
				if p := recover(); p != want {
					t.Errorf("recovered %v, want %s", p, want)
				}
			}()
			b.send(h, "k")
		}
		recovers(o.Handler(b.guard, func(*http.Request) (*order, error) { panic("the start") }), "the start")
		if rec := b.record("k"); rec.State != store.StateRetryable {
			t.Errorf("after the start the record is %s, want it released", rec.State)
		}
		recovers(o.Handler(b.guard, start), "the answer")
		time.Sleep(time.Minute)
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat")
	})
}

// TestTheEngineKeepsItsOptions: the options of the definition do not remove the options that recovery needs.
func TestTheEngineKeepsItsOptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := phase.Must(phase.New(phase.Definition[order]{
			Name: "POST /orders", Steps: []phase.Step[order]{b.local("seat", takeSeat)},
			Answer: func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
			Options: []onceward.Option{
				onceward.Transactional(), onceward.OnLost(store.LostReconcile), onceward.OperationName("another"),
				onceward.Retain(48 * time.Hour),
			},
		}))
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		rec := b.record("k")
		if rec.OnLost != store.LostResume || rec.Operation != o.Name || rec.Retention != 48*time.Hour {
			t.Errorf("the record is one of %q, kept for %s, with the policy %d", rec.Operation, rec.Retention, rec.OnLost)
		}
	})
}

// forgetfulStore once shows a record as it was before its first recovery point.
type forgetfulStore struct {
	*memory.Store
	forgets bool
}

// Get implements [store.Store].
func (s *forgetfulStore) Get(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if s.forgets {
		s.forgets = false
		rec.Point, rec.Data = "", nil
	}
	return rec, err
}

// TestARecordThatChangesUnderTheResumer: its owner recorded its first point after the resumer had looked. The resumer
// does not store the answer of an HTTP request for an operation of Do.
func TestARecordThatChangesUnderTheResumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetfulStore{Store: memory.New()}
		b := newBench(t, store)
		failing := true
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
			if failing {
				failing = false
				return errDown
			}
			return nil
		}))
		call := onceward.Call{Scope: "shop", Key: "k"}
		if _, err := o.Do(t.Context(), b.guard, call, order{Item: "a book"}); !errors.Is(err, onceward.ErrInProgress) {
			t.Fatalf("the error is %v", err)
		}
		b.await(b.record("k").LeaseUntil)
		store.forgets = true
		resumer := b.resumer(phase.ResumerConfig{}, o)
		if report, err := resumer.RunOnce(t.Context()); err != nil || report.Waiting != 1 {
			t.Errorf("the resumer reports %+v, %v, want one that waits", report, err)
		}
		b.resume(o)
		result, err := o.Do(t.Context(), b.guard, call, order{Item: "a book"})
		if err != nil || string(result.Value) != `{"Item":"a book","Seat":"12A","Charge":""}` {
			t.Errorf("the result is %s, %v", result.Value, err)
		}
		b.wantTrace("seat confirm confirm")
	})
}

// TestCarryInAPhasedOperation: it carries its own data, and Carry returns an error, in the start and in every step.
func TestCarryInAPhasedOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		refused := func(ctx context.Context) {
			if err := onceward.FromContext(ctx).Carry(ctx, "a value"); err == nil || !strings.Contains(err.Error(), "phase") {
				t.Errorf("E3: Carry got %v", err)
			}
		}
		o := b.define(b.local("seat", func(ctx context.Context, _ *order) error { refused(ctx); return nil }),
			b.call("charge", func(ctx context.Context, _ string, _ *order) error { refused(ctx); return nil }))
		h := o.Handler(b.guard, func(r *http.Request) (*order, error) {
			refused(r.Context())
			return start(r)
		})
		b.want(b.send(h, "k"), http.StatusCreated, "a book")
		b.wantTrace("seat charge")
	})
}

// TestWithoutAKey: an operation of steps cannot run unprotected, and answers as the guard would (A1).
func TestWithoutAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.define(b.local("one", nil))
		o.Options = append(o.Options, onceward.KeyOptional())
		w := httptest.NewRecorder()
		o.Handler(b.guard, start).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders", nil))
		b.want(w, http.StatusBadRequest, `"code":"missing-key"`)
		b.want(w, http.StatusBadRequest, onceward.DefaultProblemBase+"missing-key")
		b.wantTrace("")
	})
}
