package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// The bodies of a request that is not valid and of the corrected one.
const (
	invalid   = `{"amount":-1}`
	corrected = `{"amount":1}`
)

// validating is a handler that rejects the invalid request.
func validating() *counted {
	return &counted{then: func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == invalid {
			w.Header().Set("Content-Type", "application/problem+json")
			onceward.FromContext(r.Context()).Reject()
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, "the amount is negative")
			return
		}
		w.WriteHeader(http.StatusCreated)
	}}
}

// TestARejectedRequestKeepsItsKey is E5: the answer goes out, nothing is kept, and the corrected request executes under
// the same key, in both profiles; the invalid one sent again is judged again.
func TestARejectedRequestKeepsItsKey(t *testing.T) {
	t.Parallel()
	for _, profile := range []onceward.Profile{onceward.ProfileIETF, onceward.ProfileStripe} {
		for name, option := range map[string]onceward.Option{
			"transactional": onceward.Transactional(), "reserved": reserved, "store": onceward.Reserved(onceward.FailureStore),
		} {
			t.Run(fmt.Sprint(name, profile), func(t *testing.T) {
				t.Parallel()
				s, handler, j := &undoingTransactor{memory.New()}, validating(), new(journal)
				h := newGuard(t, s, observedBy(j), func(c *onceward.Config) { c.Profile = profile }).Handler(handler, option)
				for range 2 {
					a := post(h, "k", invalid)
					a.want(t, "E5: rejected", http.StatusBadRequest, false)
					if a.body != "the amount is negative" || a.header.Get("Idempotency-Key-Expires") != "" {
						t.Errorf("E5: the answer is %q with %v", a.body, a.header)
					}
				}
				ask(newGuard(t, s).StatusHandler(), "/operations/k").
					wantProblem(t, "E5: nothing is kept", http.StatusNotFound, "key-not-found")
				post(h, "k", corrected).want(t, "E5: the corrected request", http.StatusCreated, false)
				post(h, "k", corrected).want(t, "E5: is kept", http.StatusCreated, true)
				ask(newGuard(t, s).StatusHandler(), "/operations/k").want(t, "E5: is kept", http.StatusOK, false)
				handler.wantRuns(t, "E5", 3)
				settled := observed[onceward.SettledEvent](j)
				if len(settled) != 3 || settled[0].State != store.StateNone || settled[0].Err != nil {
					t.Errorf("E5: the observer was told %+v", settled)
				}
			})
		}
	}
}

// undoingTransactor is a store whose rollbacks leave what was there before.
type undoingTransactor struct{ *memory.Store }

func (s *undoingTransactor) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	before, err := s.Get(ctx, r.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.Verdict{}, err
	}
	now := time.Now()
	v := store.Verdict{Now: now}
	after, transition, err := store.Step(before, store.Event{Kind: store.EventReserve, Reservation: r, Token: 1}, now)
	v.Decision, v.Origin, v.Record = transition.Decision, transition.Origin, after
	if err != nil || v.Decision != store.DecisionExecute {
		return v, err
	}
	end := work(ctx, v)
	if end.Action == store.TxRollback {
		return v, nil
	}
	if v, err = s.Reserve(ctx, r); err != nil {
		return v, err
	}
	v.Record.ExpiresAt, err = s.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &end.Completion)
	return v, err
}

func (s *undoingTransactor) LongestWork(time.Duration) time.Duration { return time.Minute }

func (s *undoingTransactor) InFlight(store.ID) bool { return false }

// TestATransactionRejectsWhatWasReleased: an earlier attempt at the invalid request was released, as by a reconciler.
func TestATransactionRejectsWhatWasReleased(t *testing.T) {
	t.Parallel()
	s := &undoingTransactor{memory.New()}
	release := func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }
	post(newGuard(t, s).HandlerFunc(release, reserved), "k", invalid)
	wantState(t, "E5", s, "k", store.StateRetryable)
	h := newGuard(t, s).Handler(validating(), onceward.Transactional())
	post(h, "k", corrected).wantProblem(t, "section 4", http.StatusUnprocessableEntity, "mismatch")
	post(h, "k", invalid).want(t, "E5: rejected", http.StatusBadRequest, false)
	post(h, "k", corrected).want(t, "E5: the corrected request", http.StatusCreated, false)
}

// TestAForgottenRecordIsTheOneFound: a transaction that rejects leaves alone what another attempt has released since,
// with a recovery point or without.
func TestAForgottenRecordIsTheOneFound(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"charged", ""} {
		s := &undoingTransactor{memory.New()}
		g := newGuard(t, s)
		release := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }
		post(g.HandlerFunc(release, reserved), "k", invalid)
		other := g.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if err := op.Checkpoint(store.Checkpoint{Point: point, NotReplayable: true}); err != nil {
				t.Error(err)
			}
			op.NotExecuted()
		}, reserved)
		h := g.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			post(other, "k", invalid)
			onceward.FromContext(r.Context()).Reject()
			w.WriteHeader(http.StatusBadRequest)
		}, onceward.Transactional())
		post(h, "k", invalid).want(t, "E5", http.StatusBadRequest, false)
		if rec, err := s.Get(t.Context(), aliceID("k")); err != nil || rec.State != store.StateRetryable ||
			rec.Point != point {
			t.Errorf("E5: the record is %s at %q, error %v", rec.State, rec.Point, err)
		}
	}
}

// TestARejectWhoseReplyIsLost is S6: it is repeated, and does not touch the corrected request that took the key since.
func TestARejectWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler, j := newFaultyStore(), validating(), new(journal)
		h := newGuard(t, s, observedBy(j)).Handler(handler, reserved)
		calls, inTime := 0, answer{}
		s.reject = func(ctx context.Context, c store.Claim) error {
			err := s.Store.Reject(ctx, c)
			if calls++; calls == 1 {
				inTime = post(h, "k", corrected)
				return errDown
			}
			return err
		}
		post(h, "k", invalid).want(t, "E5: the owner did nothing", http.StatusBadRequest, false)
		inTime.want(t, "E5: the corrected request", http.StatusCreated, false)
		post(h, "k", corrected).want(t, "S6: its answer stays", http.StatusCreated, true)
		if fenced := observed[onceward.FencedEvent](j); calls != 2 || len(fenced) != 1 {
			t.Errorf("S6: %d rejects, %d of them fenced, want 2 and 1", calls, len(fenced))
		}
	})
}

// TestARejectWakesThoseWhoWait: a duplicate of the invalid request waits, then executes for itself.
func TestARejectWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler, gate := validating(), make(chan struct{})
		reject := handler.then
		handler.then = func(w http.ResponseWriter, r *http.Request) { <-gate; reject(w, r) }
		h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.InFlightWait(time.Minute))
		answers := make(chan answer)
		for range 2 {
			go func() { answers <- post(h, "k", invalid) }()
		}
		synctest.Wait()
		close(gate)
		for range 2 {
			(<-answers).want(t, "E5", http.StatusBadRequest, false)
		}
		handler.wantRuns(t, "E5", 2)
	})
}

// TestARejectAgainstTheSweeper: a swept record is unknown, whatever its owner reports.
func TestARejectAgainstTheSweeper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), validating()
		s.extend = func(context.Context, store.Claim, time.Duration) error { return errDown }
		reject := handler.then
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(31 * time.Second)
			if _, err := s.Sweep(t.Context(), 1); err != nil {
				t.Error(err)
			}
			reject(w, r)
		}
		h := newGuard(t, s).Handler(handler, reserved)
		post(h, "k", invalid).want(t, "E5", http.StatusBadRequest, false)
		wantState(t, "S6: a fenced reject changes nothing", s, "k", store.StateUnknown)
	})
}

// TestAResumedAttemptIsNotRejected: it does not cover the attempts before it, unless it knows of them.
func TestAResumedAttemptIsNotRejected(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		say  func(op *onceward.Operation)
		want store.State
	}{
		"rejected":       {(*onceward.Operation).Reject, store.StateUnknown},
		"never executed": {func(op *onceward.Operation) { op.NeverExecuted(); op.Reject() }, store.StateExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFaultyStore()
				loseOwner(t, s)
				handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
					test.say(onceward.FromContext(r.Context()))
					w.WriteHeader(http.StatusBadRequest)
				}}
				post(newGuard(t, s).Handler(handler, reserved, onceward.OnLost(store.LostResume)), "k", `{}`)
				wantState(t, "E5", s, "k", test.want)
			})
		})
	}
}

// TestARejectAfterARecoveryPoint cannot forget it: the record is released with it.
func TestARejectAfterARecoveryPoint(t *testing.T) {
	t.Parallel()
	s := memory.New()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		if err := op.Checkpoint(store.Checkpoint{Point: "charged"}); err != nil {
			t.Error(err)
		}
		op.Reject()
		w.WriteHeader(http.StatusBadRequest)
	}}
	h := newGuard(t, s).Handler(handler, reserved, onceward.OnLost(store.LostResume))
	for range 2 {
		post(h, "k", `{}`).want(t, "E5", http.StatusBadRequest, false)
		if rec, err := s.Get(t.Context(), aliceID("k")); err != nil || rec.State != store.StateRetryable ||
			rec.Point != "charged" {
			t.Errorf("E5: the record is %s at %q, error %v", rec.State, rec.Point, err)
		}
	}
}

// TestARejectBehindAnUnknownOutcome releases: what the first attempt has sent may still arrive, and another payload
// would run under the same downstream key.
func TestARejectBehindAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]onceward.Option{"transactional": onceward.Transactional(), "reserved": reserved} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &undoingTransactor{memory.New()}
			g := newGuard(t, s)
			unknown := g.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				onceward.FromContext(r.Context()).Unknown()
			}, reserved)
			post(unknown, "k", invalid)
			rec, err := s.Get(t.Context(), aliceID("k"))
			if err == nil {
				err = s.ResolveNotExecuted(t.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt}, "the provider dedups")
			}
			if err != nil {
				t.Fatal(err)
			}
			h := g.Handler(validating(), option)
			for range 2 {
				post(h, "k", invalid).want(t, "E5: rejected", http.StatusBadRequest, false)
				post(h, "k", corrected).wantProblem(t, "E5: another payload", http.StatusUnprocessableEntity, "mismatch")
			}
			wantState(t, "E5", s, "k", store.StateRetryable)
		})
	}
}

// TestARejectOfWhatMayHaveBeenSent releases: a carried value and a provider's id are signs of a call.
func TestARejectOfWhatMayHaveBeenSent(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(ctx context.Context, op *onceward.Operation) error{
		"carried":           func(ctx context.Context, op *onceward.Operation) error { return op.Carry(ctx, rent) },
		"with a provider's": func(_ context.Context, op *onceward.Operation) error { op.SetProviderID("ch_1"); return nil },
	} {
		s := memory.New()
		h := newGuard(t, s).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if err := send(r.Context(), op); err != nil {
				t.Error(err)
			}
			op.Reject()
			w.WriteHeader(http.StatusBadRequest)
		}, reserved)
		post(h, "k", invalid).want(t, "E5", http.StatusBadRequest, false)
		wantState(t, "E5: "+name, s, "k", store.StateRetryable)
	}
}

// TestARejectOfAnAnswerThatIsSent is a failure after a part of the answer was sent (A4).
func TestARejectOfAnAnswerThatIsSent(t *testing.T) {
	t.Parallel()
	s := memory.New()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		fmt.Fprint(w, "a part")
		w.(http.Flusher).Flush()
		onceward.FromContext(r.Context()).Reject()
	}}
	h := newGuard(t, s).Handler(handler, reserved)
	panicOf(func() { post(h, "k", `{}`) })
	wantState(t, "A4", s, "k", store.StateUnknown)
}

// TestARejectThatIsFlushedOrTooLarge is still a reject: nothing of its answer is stored, so that it needs no stream and
// has no limit.
func TestARejectThatIsFlushedOrTooLarge(t *testing.T) {
	t.Parallel()
	const whole = "not valid"
	for name, test := range map[string]struct {
		write func(w http.ResponseWriter)
		limit int
	}{
		"flushed":   {func(w http.ResponseWriter) { fmt.Fprint(w, whole); w.(http.Flusher).Flush() }, len(whole)},
		"too large": {func(w http.ResponseWriter) { fmt.Fprint(w, whole[:6]); _, _ = io.WriteString(w, whole[6:]) }, 8},
	} {
		for mode, option := range map[string]onceward.Option{
			"transactional": onceward.Transactional(), "reserved": reserved,
		} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
					onceward.FromContext(r.Context()).Reject()
					w.WriteHeader(http.StatusBadRequest)
					test.write(w)
				}}
				h := newGuard(t, &undoingTransactor{memory.New()}).Handler(handler, option, onceward.ResponseLimit(test.limit))
				var a answer
				if cut := panicOf(func() { a = post(h, "k", invalid) }); cut != nil || a.body != whole {
					t.Errorf("E5: the answer is %q, and the panic %v", a.body, cut)
				}
				a.want(t, "E5", http.StatusBadRequest, false)
				handler.then = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
				post(h, "k", corrected).want(t, "E5: the corrected request", http.StatusCreated, false)
			})
		}
	}
}

// TestAnUnknownOutcomeOutweighsOtherMarks: an error that also means an unknown outcome releases nothing.
func TestAnUnknownOutcomeOutweighsOtherMarks(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"joined":       errors.Join(onceward.Rejected(errCard), onceward.OutcomeUnknown(errDown)),
		"wrapped":      onceward.Rejected(fmt.Errorf("charge: %w", onceward.OutcomeUnknown(errDown))),
		"not executed": onceward.NotExecuted(onceward.OutcomeUnknown(errDown)),
		"of another":   onceward.Rejected(onceward.ErrOutcomeUnknown),
	} {
		s := memory.New()
		_, err := newGuard(t, s).Do(t.Context(), someCall,
			func(context.Context) ([]byte, error) { return nil, failure }, reserved)
		if !errors.Is(err, onceward.ErrOutcomeUnknown) || onceward.IsRejected(err) || onceward.IsNotExecuted(err) {
			t.Errorf("E5: %s: Do returned %v", name, err)
		}
		if rec, err := s.Get(t.Context(), store.ID{Scope: someCall.Scope, Key: someCall.Key}); err != nil ||
			rec.State != store.StateUnknown {
			t.Errorf("E5: %s: the record is %s, error %v", name, rec.State, err)
		}
	}
}

// TestAResumedDoThatRejects leaves the outcome unknown, and its error means nothing else.
func TestAResumedDoThatRejects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		g, options := newGuard(t, s), []onceward.Option{reserved, onceward.OnLost(store.LostResume)}
		s.abandon = func(context.Context, store.Claim, string) error { return errDown }
		_, _ = g.Do(t.Context(), someCall, func(context.Context) ([]byte, error) { return nil, errCard }, options...)
		s.abandon = nil
		time.Sleep(31 * time.Second)
		_, err := g.Do(t.Context(), someCall, func(context.Context) ([]byte, error) {
			return nil, onceward.Rejected(errCard)
		}, options...)
		if !errors.Is(err, onceward.ErrOutcomeUnknown) || onceward.IsRejected(err) || onceward.IsNotExecuted(err) {
			t.Errorf("E5: Do returned %v", err)
		}
	})
}

// TestDoRejects is E5 for a function: the error is the caller's, and the same key with another payload executes.
func TestDoRejects(t *testing.T) {
	t.Parallel()
	for name, reject := range map[string]func(op *onceward.Operation) error{
		"by its error":     func(*onceward.Operation) error { return fmt.Errorf("charge: %w", onceward.Rejected(errCard)) },
		"by its operation": func(op *onceward.Operation) error { op.Reject(); return errCard },
	} {
		for mode, option := range map[string]onceward.Option{
			"transactional": onceward.Transactional(), "reserved": reserved, "store": onceward.Reserved(onceward.FailureStore),
		} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				guard, w := newGuard(t, &undoingTransactor{memory.New()}), new(work)
				w.then = func(_ context.Context, op *onceward.Operation) ([]byte, error) { return nil, reject(op) }
				_, err := guard.Do(t.Context(), someCall, w.do, option)
				if !errors.Is(err, errCard) || !onceward.IsRejected(err) || !onceward.IsNotExecuted(err) {
					t.Errorf("E5: Do returned %v", err)
				}
				w.then = nil
				call := someCall
				call.Payload = []byte("11 EUR")
				if result, err := guard.Do(t.Context(), call, w.do, option); err != nil || result.Replayed {
					t.Errorf("E5: the corrected call: %+v, %v", result, err)
				}
			})
		}
	}
}
