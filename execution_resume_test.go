package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

func TestAResumedOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		s.extend = func(context.Context, store.Claim, time.Duration) error { return errDown }
		handler := &counted{}
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if handler.runs.Load() == 1 {
				claim := store.Claim{ID: aliceID("k"), Attempt: op.Attempt()}
				if err := s.Checkpoint(r.Context(), claim,
					store.Checkpoint{Point: "charged", Data: []byte("ch_1")}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute) // as a process that was stopped
				w.WriteHeader(http.StatusAccepted)
				return
			}
			point, data := op.Point()
			if !op.Resumed() || point != "charged" || string(data) != "ch_1" {
				t.Errorf("section 4: resumed %t at %q with %q, want at charged with ch_1", op.Resumed(), point, data)
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, s).Handler(handler, reserved, onceward.OnLost(store.LostResume))
		first := make(chan answer)
		go func() { first <- post(h, "k", `{}`) }()
		time.Sleep(45 * time.Second)
		post(h, "k", `{}`).want(t, "section 4: resume", http.StatusCreated, false)
		late := <-first
		late.want(t, "S6: the first owner sends the stored answer", http.StatusCreated, true)
		handler.wantRuns(t, "section 4", 2)
	})
}

// loseOwner leaves a record whose owner was lost, and whose lease is over.
func loseOwner(t *testing.T, s *faultyStore) {
	t.Helper()
	handler := &counted{then: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }}
	s.abandon = func(context.Context, store.Claim, string) error { return errDown } // as if the process had died
	h := newGuard(t, s).Handler(handler, reserved, onceward.OnLost(store.LostResume))
	panicOf(func() { post(h, "k", `{}`) })
	s.abandon = nil
	time.Sleep(31 * time.Second)
	wantState(t, "section 4", s, "k", store.StateInProgress)
}

func TestAResumedAttemptIsNotReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		loseOwner(t, s)
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if !op.Resumed() {
				t.Error("section 4: the attempt does not know that it is resumed")
			}
			op.NotExecuted() // it did nothing, but the attempt before it may have
			w.WriteHeader(http.StatusServiceUnavailable)
		}}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureRetry),
			onceward.OnLost(store.LostResume))
		post(h, "k", `{}`).
			wantProblem(t, "section 4: release only where it is proven that nothing was done",
				http.StatusInternalServerError, "outcome-unknown")
		wantState(t, "section 4", s, "k", store.StateUnknown)
		handler.wantRuns(t, "section 4", 1)
	})
}

func TestAResumedGrantThatIsNotTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		loseOwner(t, s)
		h := newGuard(t, s).Handler(handler, reserved, onceward.OnLost(store.LostResume))
		ctx, leave := context.WithCancel(context.Background())
		leave()
		post(h, "k", `{}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
		handler.wantRuns(t, "S9", 0)
		wantState(t, "S9: its past may have effects, so it is not released", s, "k", store.StateInProgress)
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).want(t, "section 4: the next attempt resumes", http.StatusCreated, false)
		handler.wantRuns(t, "section 4", 1)
	})
}

func TestARouteThatDoesNotResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, handler := newFaultyStore(), new(counted)
		loseOwner(t, store)
		h := newGuard(t, store).Handler(handler, reserved)
		post(h, "k", `{}`).wantProblem(t, "D5: both must say resume", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "D5", 0)
	})
}

// writesMuch is an answer with all that the guard looks at.
func writesMuch(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Location", "/payments/7")
	h.Add("X-Warning", "one")
	h.Add("X-Warning", "two")
	h.Set("Set-Cookie", "session=1") // never stored
	h.Set("X-Request-Id", "r-1")     // each answer has its own
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "<html>a body without a type</html>")
}

// lost makes a record of the key whose owner suspended itself, which can be taken over.
func lost(t *testing.T, guard *onceward.Guard, store store.Store, key string,
	options ...onceward.Option,
) *store.Record {
	t.Helper()
	h := guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Suspend(0)
	}, options...)
	post(h, key, `{}`).wantProblem(t, "E3", http.StatusConflict, "in-progress")
	time.Sleep(time.Millisecond)
	rec := recordOf(t, store, key)
	return &rec
}

// TestResumeHandlerStoresWhatTheRouteWould: the answer of a resumed operation is the same to the last byte and header.
func TestResumeHandlerStoresWhatTheRouteWould(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"an answer":    writesMuch,
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"a refusal":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such seat", http.StatusNotFound) },
		"a hint first": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusEarlyHints); writesMuch(w, r) },
		"too large":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 2000)) },
		"a stream": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "a part")
			_ = http.NewResponseController(w).Flush()
			fmt.Fprint(w, "and the rest")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFaultyStore()
				guard := newGuard(t, s)
				options := resumable(onceward.ResponseLimit(1000), onceward.DropHeaders("X-Secret"))
				route := guard.Handler(handler, options...)
				post(route, "direct", `{}`)
				rec := lost(t, guard, s, "resumed", options...)
				if err := guard.ResumeHandler(t.Context(), rec, handler, options...); err != nil {
					t.Fatal(err)
				}
				direct, resumed := recordOf(t, s, "direct"), recordOf(t, s, "resumed")
				if resumed.State != store.StateCompleted || !resumed.Response.Equal(&direct.Response) {
					t.Errorf("B5: the resumed record is %s with %+v, want %+v", resumed.State, resumed.Response,
						direct.Response)
				}
				a, b := post(route, "direct", `{}`), post(route, "resumed", `{}`)
				if a.status == http.StatusConflict {
					a, b = a.withoutInstance(), b.withoutInstance()
				}
				a.wantSame(t, "B5: as replayed", b)
				if fmt.Sprint(a.header) != fmt.Sprint(b.header) && a.status != http.StatusConflict {
					// Both expire, a millisecond apart at most, and that is shown in seconds.
					t.Errorf("B5: the replays have the headers %v and %v", a.header, b.header)
				}
			})
		})
	}
}

// TestResumeHandlerGetsNoBody: there is no request any more, but the values of the caller's context and the operation.
func TestResumeHandlerGetsNoBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		s := newFaultyStore()
		guard := newGuard(t, s)
		rec := lost(t, guard, s, "k", resumable()...)
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			if b, err := io.ReadAll(r.Body); len(b) != 0 || err != nil {
				t.Errorf("B5: the body is %q, %v", b, err)
			}
			op := onceward.FromContext(r.Context())
			if op.Key() != "k" || !op.Resumed() || op.Origin() != store.OriginResumed ||
				r.Context().Value(name{}) != "node 1" {
				t.Errorf("B5: the operation is %+v", op)
			}
		}}
		ctx := context.WithValue(t.Context(), name{}, "node 1")
		if err := guard.ResumeHandler(ctx, rec, handler, resumable()...); err != nil {
			t.Error(err)
		}
		// The answer is there: a node that resumes again gets it, and nothing runs.
		if err := guard.ResumeHandler(ctx, rec, handler, resumable()...); err != nil {
			t.Error(err)
		}
		handler.wantRuns(t, "B5", 1)
	})
}

func TestResumeRefusesOtherRoutes(t *testing.T) {
	t.Parallel()
	s := &scriptedTransactor{Store: newFaultyStore().Store}
	guard := newGuard(t, s)
	handler, w := new(counted), new(work)
	for name, c := range map[string]struct {
		reason  string
		options []onceward.Option
	}{
		"no mode":        {"has no mode of execution", []onceward.Option{onceward.OnLost(store.LostResume)}},
		"reconcile":      {"OnLost(LostResume)", []onceward.Option{reserved}},
		"a transaction":  {"Reserved(…)", []onceward.Option{onceward.Transactional(), onceward.OnLost(store.LostResume)}},
		"a wrong option": {"the least is", []onceward.Option{onceward.Lease(0)}},
	} {
		rec := &store.Record{ID: aliceID("k")}
		if err := guard.ResumeHandler(t.Context(), rec, handler, c.options...); err == nil ||
			!strings.Contains(err.Error(), c.reason) {
			t.Errorf("D5: %s: ResumeHandler returned %v, want that %q", name, err, c.reason)
		}
		if _, err := guard.Resume(t.Context(), rec, w.do, c.options...); err == nil ||
			!strings.Contains(err.Error(), c.reason) {
			t.Errorf("D5: %s: Resume returned %v, want that %q", name, err, c.reason)
		}
	}
	handler.wantRuns(t, "D5", 0)
	w.wantRuns(t, "D5", 0)
	wantNothingStored(t, "D5", s)
}

// TestHowAResumedHandlerEnds tests for each outcome what its driver gets, and what is stored.
func TestHowAResumedHandlerEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then  func(op *onceward.Operation)
		err   error
		state store.State
	}{
		"an answer":      {func(*onceward.Operation) {}, nil, store.StateCompleted},
		"never executed": {(*onceward.Operation).NeverExecuted, nil, store.StateRetryable},
		"not executed":   {(*onceward.Operation).NotExecuted, store.ErrOutcomeUnknown, store.StateUnknown},
		"unknown":        {(*onceward.Operation).Unknown, store.ErrOutcomeUnknown, store.StateUnknown},
		"suspended":      {func(op *onceward.Operation) { op.Suspend(time.Hour) }, onceward.ErrInProgress, store.StateInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFaultyStore()
				guard := newGuard(t, store)
				rec := lost(t, guard, store, "k", resumable()...)
				handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
					c.then(onceward.FromContext(r.Context()))
				}}
				if err := guard.ResumeHandler(t.Context(), rec, handler, resumable()...); !errors.Is(err, c.err) {
					t.Errorf("B5: the error is %v, want %v", err, c.err)
				}
				wantState(t, "B5", store, "k", c.state)
				handler.wantRuns(t, "B5", 1)
			})
		})
	}
}

// TestResumeOfWhatIsNotLost: the store decides, whatever the list said a moment ago, and nothing runs.
func TestResumeOfWhatIsNotLost(t *testing.T) {
	t.Parallel()
	claim := func(rec *store.Record) store.Claim { return store.Claim{ID: rec.ID, Attempt: rec.Attempt} }
	for name, c := range map[string]struct {
		change func(store *faultyStore, rec *store.Record) error
		err    error
	}{
		"another attempt runs": {func(store *faultyStore, rec *store.Record) error {
			return store.Extend(context.Background(), claim(rec), time.Minute)
		}, onceward.ErrInProgress},
		"it is unknown": {func(store *faultyStore, rec *store.Record) error {
			return store.Abandon(context.Background(), claim(rec), "lost")
		}, store.ErrOutcomeUnknown},
		"it was released": {func(store *faultyStore, rec *store.Record) error {
			return store.Release(context.Background(), claim(rec), "its caller was told that nothing was done")
		}, onceward.ErrRefused},
		"it is gone": {func(store *faultyStore, rec *store.Record) error {
			return store.Bust(context.Background(), rec.ID, true)
		}, onceward.ErrRefused},
		"it is another request's": {func(_ *faultyStore, rec *store.Record) error {
			rec.Fingerprint.Sum[0]++
			return nil
		}, onceward.ErrMismatch},
		"the store is down": {func(s *faultyStore, _ *store.Record) error {
			s.reserve = func(context.Context, *store.Reservation) (store.Verdict, error) {
				return store.Verdict{}, errDown
			}
			return nil
		}, store.ErrUnavailable},
		"it cannot be read": {func(s *faultyStore, _ *store.Record) error {
			s.reserve = func(context.Context, *store.Reservation) (store.Verdict, error) {
				return store.Verdict{}, &store.UnreadableError{Version: 9}
			}
			return nil
		}, store.ErrUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, handler, w := newFaultyStore(), new(counted), new(work)
				guard := newGuard(t, s)
				rec := lost(t, guard, s, "k", resumable()...)
				if err := c.change(s, rec); err != nil {
					t.Fatal(err)
				}
				if err := guard.ResumeHandler(t.Context(), rec, handler, resumable()...); !errors.Is(err, c.err) {
					t.Errorf("B5: ResumeHandler returned %v, want %v", err, c.err)
				}
				if _, err := guard.Resume(t.Context(), rec, w.do, resumable()...); !errors.Is(err, c.err) {
					t.Errorf("B5: Resume returned %v, want %v", err, c.err)
				}
				handler.wantRuns(t, "B5", 0)
				w.wantRuns(t, "B5", 0)
				if name == "it was released" {
					wantState(t, "S9: the grant is given back", s, "k", store.StateRetryable)
				}
			})
		})
	}
}

// TestResumeByWhoIsStopping: nothing is begun, and the reason is returned.
func TestResumeByWhoIsStopping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		guard := newGuard(t, s)
		rec := lost(t, guard, s, "k", resumable()...)
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errCard)
		if err := guard.ResumeHandler(ctx, rec, handler, resumable()...); !errors.Is(err, errCard) ||
			errors.Is(err, store.ErrUnavailable) {
			t.Errorf("S9: the error is %v, want the reason of the context alone", err)
		}
		handler.wantRuns(t, "S9", 0)
		wantState(t, "S9", s, "k", store.StateInProgress)
	})
}

// TestAPanicInAResumedHandler continues to its driver, after it was settled.
func TestAPanicInAResumedHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		guard := newGuard(t, s)
		rec := lost(t, guard, s, "k", resumable()...)
		panics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a nil map") })
		if got := panicOf(func() { _ = guard.ResumeHandler(t.Context(), rec, panics, resumable()...) }); got != "a nil map" {
			t.Errorf("E8: recovered %v", got)
		}
		wantState(t, "E8", s, "k", store.StateUnknown)
	})
}

// TestResume continues an operation of Do, and its caller gets the value.
func TestResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, w := newFaultyStore(), new(work)
		guard := newGuard(t, s)
		w.then = func(_ context.Context, op *onceward.Operation) ([]byte, error) {
			if w.runs == 1 {
				op.Suspend(0)
				return nil, nil
			}
			return []byte("done"), nil
		}
		_, _ = guard.Do(t.Context(), someCall, w.do, resumable()...) // that it is in progress is tested elsewhere
		time.Sleep(time.Millisecond)
		rec, err := s.Get(t.Context(), store.ID{Scope: someCall.Scope, Key: someCall.Key})
		if err != nil {
			t.Fatal(err)
		}
		resumed, err := guard.Resume(t.Context(), &rec, w.do, resumable()...)
		if err != nil || string(resumed.Value) != "done" || resumed.Replayed || resumed.Attempt <= rec.Attempt {
			t.Errorf("B5: %+v, %v", resumed, err)
		}
		result, err := guard.Do(t.Context(), someCall, w.do, resumable()...)
		if err != nil || string(result.Value) != "done" || !result.Replayed {
			t.Errorf("B5: the caller gets %+v, %v", result, err)
		}
		w.wantRuns(t, "B5", 2)
	})
}

// TestCompleteThatFailsOnARouteThatResumes: a later attempt continues from the recovery point and makes the same
// answer.
func TestCompleteThatFailsOnARouteThatResumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.complete = brokenComplete
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if point, _ := op.Point(); point == "" {
				if err := op.Checkpoint(store.Checkpoint{Point: "charged"}); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		started := time.Now()
		post(h, "k", `{}`).wantProblem(t, "E7", http.StatusConflict, "in-progress")
		if took := time.Since(started); took > 16*time.Second {
			t.Errorf("E7: it was given up after %s, want about 15 s", took)
		}
		rec := recordOf(t, s, "k")
		if rec.State != store.StateInProgress || time.Until(rec.LeaseUntil) > time.Millisecond {
			t.Errorf("E3: the record is %s until %s, want one that can be taken over", rec.State, rec.LeaseUntil)
		}
		s.complete = nil
		time.Sleep(time.Millisecond)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, true)
	})
}

// TestCompleteThatFailsWithTheWholeStore: its caller does not wait twice as long, and the lease runs out.
func TestCompleteThatFailsWithTheWholeStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.complete = brokenComplete
		s.extend = func(context.Context, store.Claim, time.Duration) error { return errDown }
		h := newGuard(t, s).Handler(handler, resumable()...)
		started := time.Now()
		post(h, "k", `{}`).wantProblem(t, "E7", http.StatusConflict, "in-progress")
		if took := time.Since(started); took > 16*time.Second {
			t.Errorf("E7: it was given up after %s, want about 15 s", took)
		}
		s.complete, s.extend = nil, nil
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
		handler.wantRuns(t, "E3", 2)
	})
}

// TestCompleteWhoseRepliesAreLost: the answer is stored, and is found when the operation is suspended for want of one.
func TestCompleteWhoseRepliesAreLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.complete = func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
			_, err := s.Store.Complete(ctx, c, done)
			return time.Time{}, errors.Join(err, errDown)
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		post(h, "k", `{}`).want(t, "S6", http.StatusCreated, true)
		wantState(t, "S6", s, "k", store.StateCompleted)
		handler.wantRuns(t, "S6", 1)
	})
}

// TestCompleteThatIsRefusedForGood: a later attempt would make the same answer and be refused again, forever.
func TestCompleteThatIsRefusedForGood(t *testing.T) {
	t.Parallel()
	s, handler := newFaultyStore(), new(counted)
	s.complete = func(context.Context, store.Claim, *store.Completion) (time.Time, error) {
		return time.Time{}, fmt.Errorf("%w: the store cannot hold such an answer", store.ErrInvalidEvent)
	}
	h := newGuard(t, s).Handler(handler, resumable()...)
	post(h, "k", `{}`).wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
	wantState(t, "E7", s, "k", store.StateUnknown)
}

// TestAResumedAttemptSeesNoCarriedValueAsAPoint: Point only returns recovery points, and the value can be carried
// again.
func TestAResumedAttemptSeesNoCarriedValueAsAPoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		handler := &counted{}
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if point, data := op.Point(); point != "" || data != nil {
				t.Errorf("E3: Point is %q with %q", point, data)
			}
			if err := op.Carry(r.Context(), handler.runs.Load()); err != nil {
				t.Error(err)
			}
			if handler.runs.Load() == 1 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, s).Handler(handler, reserved, onceward.OnLost(store.LostResume))
		s.abandon = func(context.Context, store.Claim, string) error { return errDown } // as if the process had died
		panicOf(func() { post(h, "k", `{}`) })
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).want(t, "section 4: resume", http.StatusCreated, false)
		rec, err := s.Get(t.Context(), aliceID("k"))
		if n, readErr := onceward.Carried[int](&rec); err != nil || readErr != nil || n != 2 {
			t.Errorf("E3: carried %d, errors %v, %v", n, err, readErr)
		}
	})
}
