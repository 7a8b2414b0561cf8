package onceward_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// resumable are the options of a route whose operations are gone on with.
func resumable(more ...onceward.Option) []onceward.Option {
	return append([]onceward.Option{reserved, onceward.OnLost(store.LostResume)}, more...)
}

// recordOf is the record of a key of alice.
func recordOf(t testing.TB, store store.Store, key string) store.Record {
	t.Helper()
	rec, err := store.Get(context.Background(), aliceID(key))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// suspends is a handler that suspends itself in its first run, and answers in the next.
func suspends(pause time.Duration) *counted {
	handler := &counted{}
	handler.then = func(w http.ResponseWriter, r *http.Request) {
		if handler.runs.Load() == 1 {
			onceward.FromContext(r.Context()).Suspend(pause)
		}
		w.WriteHeader(http.StatusCreated)
	}
	return handler
}

func TestSuspend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler, events := newFaultyStore(), suspends(10*time.Second), new(journal)
		h := newGuard(t, s, observedBy(events)).Handler(handler, resumable()...)
		a := post(h, "k", `{}`)
		a.wantProblem(t, "E3: whatever the handler answers", http.StatusConflict, "in-progress")
		if seconds, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || seconds < 1 {
			t.Errorf("section 6: Retry-After is %q, want at least 1", a.header.Get("Retry-After"))
		}
		if left := time.Until(recordOf(t, s, "k").LeaseUntil); left != 10*time.Second {
			t.Errorf("E3: it can be taken over in %s, want after the pause", left)
		}
		settled := observed[onceward.SettledEvent](events)
		if len(settled) != 1 || settled[0].State != store.StateInProgress || settled[0].Err != nil {
			t.Errorf("E3: settled as %+v, want in progress", settled)
		}
		time.Sleep(9 * time.Second)
		post(h, "k", `{}`).wantProblem(t, "E3: the pause is kept", http.StatusConflict, "in-progress")
		handler.wantRuns(t, "E3: the pause is kept", 1)
		time.Sleep(2 * time.Second)
		post(h, "k", `{}`).want(t, "E3: then a retry goes on", http.StatusCreated, false)
		handler.wantRuns(t, "E3", 2)
	})
}

// TestSuspendWithoutAPause lets the next attempt come at once.
func TestSuspendWithoutAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := suspends(0)
		h := newGuard(t, memory.New()).Handler(handler, resumable()...)
		post(h, "k", `{}`).wantProblem(t, "E3", http.StatusConflict, "in-progress")
		time.Sleep(time.Millisecond)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
		handler.wantRuns(t, "E3", 2)
	})
}

// TestSuspendDuringAHeartbeat: a heartbeat that is on its way does not come after the pause was written, and so does
// not replace it.
func TestSuspendDuringAHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pause = time.Hour
		s, beating, overtaken, beaten := newFaultyStore(), make(chan struct{}), make(chan struct{}), make(chan struct{})
		var first, last sync.Once
		s.extend = func(ctx context.Context, c store.Claim, lease time.Duration) error {
			if lease == pause {
				defer close(overtaken)
				return s.Store.Extend(ctx, c, lease)
			}
			first.Do(func() { close(beating) })
			defer last.Do(func() { close(beaten) })
			for range 10_000 { // often enough for a pause that does not wait
				select {
				case <-overtaken:
				default:
					runtime.Gosched()
				}
			}
			return s.Store.Extend(ctx, c, lease)
		}
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			<-beating
			onceward.FromContext(r.Context()).Suspend(pause)
		}}
		h := newGuard(t, s).Handler(handler, resumable()...)
		post(h, "k", `{}`).wantProblem(t, "E3", http.StatusConflict, "in-progress")
		await.Value(t, "the heartbeat", beaten)
		if left := time.Until(recordOf(t, s, "k").LeaseUntil); left < pause-time.Minute {
			t.Errorf("E3: it can be taken over in %s: a heartbeat took the pause away", left)
		}
	})
}

// TestNoHeartbeatAfterSuspend: the keeper forgets a lease whose owner suspends itself, also while the store takes its
// time.
func TestNoHeartbeatAfterSuspend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		var until time.Time
		s.extend = func(ctx context.Context, c store.Claim, lease time.Duration) error {
			err := s.Store.Extend(ctx, c, lease)
			if lease == 2*time.Minute {
				until = recordOf(t, s, "k").LeaseUntil
				time.Sleep(20 * time.Second) // the reply is late, and a heartbeat would be due
			}
			return err
		}
		h := newGuard(t, s).Handler(suspends(2*time.Minute), resumable()...)
		post(h, "k", `{}`)
		time.Sleep(time.Minute)
		if now := recordOf(t, s, "k").LeaseUntil; !now.Equal(until) {
			t.Errorf("E3: the pause ends at %s, want at %s", now, until)
		}
	})
}

// TestSuspendOnARouteThatDoesNotResume: no attempt would continue, so it has to be settled.
func TestSuspendOnARouteThatDoesNotResume(t *testing.T) {
	t.Parallel()
	s, handler := newFaultyStore(), suspends(time.Second)
	guard := newGuard(t, s)
	h := guard.Handler(handler, onceward.Reserved(onceward.FailureRetry))
	post(h, "k", `{}`).wantProblem(t, "E3", http.StatusInternalServerError, "outcome-unknown")
	rec := recordOf(t, s, "k")
	if rec.State != store.StateUnknown ||
		rec.LastError != "the handler suspended an operation that is never resumed: the route lacks OnLost(LostResume)" {
		t.Errorf("E3: the record is %s: %s", rec.State, rec.LastError)
	}
	w := &work{then: func(_ context.Context, op *onceward.Operation) ([]byte, error) {
		op.Suspend(time.Second)
		return nil, nil
	}}
	_, err := guard.Do(t.Context(), someCall, w.do, onceward.Reserved(onceward.FailureRetry))
	if !errors.Is(err, store.ErrOutcomeUnknown) || stateOfCall(t, s) != store.StateUnknown {
		t.Errorf("E3: Do returned %v, want that the outcome is unknown", err)
	}
}

// TestSuspendThatIsAccepted: if duplicates get a status, so does the caller of an operation that continues later.
func TestSuspendThatIsAccepted(t *testing.T) {
	t.Parallel()
	h := newGuard(t, memory.New()).Handler(suspends(time.Second),
		resumable(onceward.InFlightAccepted("/operations/"))...)
	a := post(h, "k", `{}`)
	if a.status != http.StatusAccepted || a.header.Get("Location") != "/operations/k" ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("section 6: got %d with %v, want 202 with the address of the status", a.status, a.header)
	}
}

// TestSuspendIsNotWaitedFor: a caller that waits for others does not wait for itself.
func TestSuspendIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := suspends(time.Second)
		h := newGuard(t, memory.New()).Handler(handler, resumable(onceward.InFlightWait(time.Hour))...)
		started := time.Now()
		post(h, "k", `{}`).wantProblem(t, "section 6", http.StatusConflict, "in-progress")
		if took := time.Since(started); took != 0 {
			t.Errorf("section 6: it waited for itself for %s", took)
		}
		handler.wantRuns(t, "section 6: it does not go on by itself", 1)
		post(h, "k", `{}`).want(t, "section 6: a duplicate waits, and goes on", http.StatusCreated, false)
		handler.wantRuns(t, "section 6", 2)
	})
}

// TestSuspendAfterAWait: a duplicate that waited, took over and suspended itself does not wait again.
func TestSuspendAfterAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Suspend(time.Second)
		}}
		h := newGuard(t, memory.New()).Handler(handler, resumable(onceward.InFlightWait(time.Hour))...)
		post(h, "k", `{}`)
		started := time.Now()
		post(h, "k", `{}`).wantProblem(t, "section 6", http.StatusConflict, "in-progress")
		if took := time.Since(started); took != time.Second {
			t.Errorf("section 6: it took %s, want the pause of the first attempt", took)
		}
		handler.wantRuns(t, "section 6", 2)
	})
}

// TestSuspendOfAStaleOwner: its pause does not touch the lease of who took over.
func TestSuspendOfAStaleOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		s.extend = func(ctx context.Context, c store.Claim, lease time.Duration) error {
			if lease == 30*time.Second {
				return errDown // heartbeats do not get through
			}
			return s.Store.Extend(ctx, c, lease)
		}
		handler := &counted{}
		handler.then = func(_ http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if handler.runs.Load() == 1 {
				time.Sleep(40 * time.Second) // past its lease
				op.Suspend(time.Hour)
				return
			}
			time.Sleep(20 * time.Second)
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		first := make(chan answer)
		go func() { first <- post(h, "k", `{}`) }()
		time.Sleep(31 * time.Second)
		second := make(chan answer)
		go func() { second <- post(h, "k", `{}`) }()
		(<-first).wantProblem(t, "S6: another attempt runs", http.StatusConflict, "in-progress")
		if left := time.Until(recordOf(t, s, "k").LeaseUntil); left > 30*time.Second {
			t.Errorf("S6: the stale owner extended the lease of the other to %s", left)
		}
		(<-second).want(t, "S6", http.StatusOK, false)
	})
}

// TestSuspendThatCannotBeStored: the lease runs out, and a later attempt continues.
func TestSuspendThatCannotBeStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), suspends(time.Second)
		s.extend = func(context.Context, store.Claim, time.Duration) error { return errDown }
		h := newGuard(t, s).Handler(handler, resumable()...)
		post(h, "k", `{}`).wantProblem(t, "E3", http.StatusConflict, "in-progress")
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
		handler.wantRuns(t, "E3", 2)
	})
}

func TestSuspendByDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := memory.New(), new(work)
		w.then = func(_ context.Context, op *onceward.Operation) ([]byte, error) {
			if w.runs == 1 {
				op.Suspend(time.Second)
				return nil, errCard // the outcome it set takes precedence
			}
			return []byte("done"), nil
		}
		guard := newGuard(t, store)
		_, err := guard.Do(t.Context(), someCall, w.do, resumable()...)
		var busy *onceward.InProgressError
		if !errors.As(err, &busy) || busy.RetryAfter <= 0 || busy.Attempt == 0 {
			t.Errorf("E3: the error is %v, want that the operation is in progress", err)
		}
		time.Sleep(time.Second)
		result, err := guard.Do(t.Context(), someCall, w.do, resumable()...)
		if err != nil || string(result.Value) != "done" {
			t.Errorf("E3: then %q, %v", result.Value, err)
		}
		w.wantRuns(t, "E3", 2)
	})
}

// TestAPanicAfterSuspend continues to the server; the operation waits.
func TestAPanicAfterSuspend(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	h := newGuard(t, s).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Suspend(time.Minute)
		panic(http.ErrAbortHandler)
	}), resumable()...)
	if got := panicOf(func() { post(h, "k", `{}`) }); got != http.ErrAbortHandler {
		t.Errorf("E8: recovered %v, want the panic of the handler", got)
	}
	wantState(t, "E3", s, "k", store.StateInProgress)
}

// TestSuspendInATransaction: all is undone with the transaction, so the answer claims nothing that was not done.
func TestSuspendInATransaction(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(w http.ResponseWriter){
		"an answer that claims success": func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) },
		"no answer":                     func(http.ResponseWriter) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scriptedTransactor{Store: newFaultyStore().Store}
			h := newGuard(t, s).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				onceward.FromContext(r.Context()).Suspend(time.Second)
				write(w)
			}, onceward.Transactional(), onceward.OnLost(store.LostResume))
			post(h, "k", `{}`).wantProblem(t, "E5", http.StatusServiceUnavailable, "not-executed")
		})
	}
	w := &work{then: func(_ context.Context, op *onceward.Operation) ([]byte, error) {
		op.Suspend(time.Second)
		return []byte("done"), nil
	}}
	store := &scriptedTransactor{Store: newFaultyStore().Store}
	if result, err := newGuard(t, store).Do(t.Context(), someCall, w.do,
		onceward.Transactional()); !onceward.IsNotExecuted(err) {
		t.Errorf("E5: Do returned %q, %v, want that nothing was executed", result.Value, err)
	}
}

// TestProgressNeedsAReservation: a transaction has no points in between, and a request without protection no record.
func TestProgressNeedsAReservation(t *testing.T) {
	t.Parallel()
	refused := func(op *onceward.Operation) {
		if err := op.Checkpoint(store.Checkpoint{Point: "here"}); err == nil {
			t.Error("E3: a checkpoint was accepted")
		}
		err := op.CheckpointTx(context.Background(), func(context.Context) (store.Checkpoint, error) {
			t.Error("E3: the work of a checkpoint ran")
			return store.Checkpoint{}, nil
		})
		if err == nil || op.SharesTransactions() {
			t.Errorf("E3: CheckpointTx returned %v; shares transactions: %t", err, op.SharesTransactions())
		}
	}
	refused(nil)
	var none *onceward.Operation
	none.Suspend(time.Second)
	none.NeverExecuted()
	none.SetReason("nothing")
	if none.Origin() != 0 {
		t.Errorf("E3: the origin of no operation is %s", none.Origin())
	}
	store := &scriptedTransactor{Store: newFaultyStore().Store}
	h := newGuard(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refused(onceward.FromContext(r.Context()))
		w.WriteHeader(http.StatusCreated)
	}, onceward.Transactional())
	post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
}

// TestCheckpoint: the next attempt finds what the last one recorded, and where its right came from.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), &counted{}
		failures := 3
		s.checkpoint = func(ctx context.Context, c store.Claim, p store.Checkpoint) error {
			if failures > 0 {
				failures--
				return errDown
			}
			return s.Store.Checkpoint(ctx, c, p)
		}
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if handler.runs.Load() == 1 {
				if op.Origin() != store.OriginCreated || op.SharesTransactions() {
					t.Errorf("E3: the origin is %s, shares transactions: %t", op.Origin(), op.SharesTransactions())
				}
				if err := op.Checkpoint(store.Checkpoint{Point: "charged", Data: []byte("ch_1")}); err != nil {
					t.Errorf("E3: a checkpoint is tried again, but failed: %v", err)
				}
				op.Suspend(time.Second)
				return
			}
			point, data := op.Point()
			if op.Origin() != store.OriginResumed || point != "charged" || string(data) != "ch_1" {
				t.Errorf("E3: %s at %q with %q, want resumed at charged with ch_1", op.Origin(), point, data)
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		post(h, "k", `{}`)
		time.Sleep(time.Second)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
	})
}

// TestACheckpointThatIsFenced stops the attempt, and is counted.
func TestACheckpointThatIsFenced(t *testing.T) {
	t.Parallel()
	s, events := newFaultyStore(), new(journal)
	h := newGuard(t, s, observedBy(events)).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		if err := s.Bust(r.Context(), aliceID("k"), true); err != nil {
			t.Error(err)
		}
		if err := op.Checkpoint(store.Checkpoint{Point: "here"}); !errors.Is(err, store.ErrFenced) {
			t.Errorf("S6: the checkpoint returned %v, want that it is fenced", err)
		}
		op.Suspend(time.Second)
	}, resumable()...)
	post(h, "k", `{}`).wantProblem(t, "S6", http.StatusConflict, "in-progress")
	if fenced := observed[onceward.FencedEvent](events); len(fenced) != 2 {
		t.Errorf("S6: %d refused writes were counted, want the checkpoint and the pause", len(fenced))
	}
}

// TestNeverExecuted releases a resumed attempt, which NotExecuted does not.
func TestNeverExecuted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		loseOwner(t, s)
		handler.then = func(_ http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			op.SetReason("no recovery point")
			op.NeverExecuted()
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		post(h, "k", `{}`).wantProblem(t, "E3", http.StatusServiceUnavailable, "not-executed")
		if rec := recordOf(t, s, "k"); rec.State != store.StateRetryable || rec.LastError != "no recovery point" {
			t.Errorf("E3: the record is %s: %s, want it released with the reason", rec.State, rec.LastError)
		}
	})
}

// TestNeverExecutedByWhoWasReplaced: another attempt continued the operation, so its caller does not get the answer
// that nothing was done.
func TestNeverExecutedByWhoWasReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.extend = func(context.Context, store.Claim, time.Duration) error { return errDown }
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			first := handler.runs.Load() == 1
			time.Sleep(40 * time.Second)
			if first {
				onceward.FromContext(r.Context()).NeverExecuted()
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		first, second := make(chan answer), make(chan answer)
		go func() { first <- post(h, "k", `{}`) }()
		time.Sleep(31 * time.Second)
		go func() { second <- post(h, "k", `{}`) }()
		(<-first).wantProblem(t, "S6: the other may have done it", http.StatusConflict, "in-progress")
		(<-second).want(t, "S6", http.StatusCreated, false)
	})
}

// TestAReleaseThatFailsOnARouteThatResumes: a resumer may continue an operation that was not released.
func TestAReleaseThatFailsOnARouteThatResumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, events := newFaultyStore(), new(journal)
		s.release = func(context.Context, store.Claim, string) error { return errDown }
		h := newGuard(t, s, observedBy(events)).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).NotExecuted()
		}, resumable()...)
		post(h, "k", `{}`).wantProblem(t, "E7", http.StatusConflict, "in-progress")
		settled := observed[onceward.SettledEvent](events)
		if len(settled) != 1 || settled[0].State != store.StateInProgress || settled[0].Err == nil {
			t.Errorf("E7: settled as %+v, want in progress with the reason", settled)
		}
	})
}

// TestSetReason keeps the handler's reason for the operator, who settles the operation.
func TestSetReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		say   func(op *onceward.Operation)
		state store.State
	}{
		"unknown":        {(*onceward.Operation).Unknown, store.StateUnknown},
		"not executed":   {(*onceward.Operation).NotExecuted, store.StateRetryable},
		"never executed": {(*onceward.Operation).NeverExecuted, store.StateRetryable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFaultyStore()
			guard := newGuard(t, s)
			say := func(op *onceward.Operation) {
				op.SetReason("the bank is on fire")
				c.say(op)
			}
			h := guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { say(onceward.FromContext(r.Context())) },
				resumable()...)
			post(h, "k", `{}`)
			if rec := recordOf(t, s, "k"); rec.State != c.state || rec.LastError != "the bank is on fire" {
				t.Errorf("E5: the record of the handler is %s: %s", rec.State, rec.LastError)
			}
			w := &work{then: func(_ context.Context, op *onceward.Operation) ([]byte, error) {
				say(op)
				return nil, errCard
			}}
			if _, err := guard.Do(t.Context(), someCall, w.do, resumable()...); !errors.Is(err, errCard) {
				t.Errorf("E5: Do returned %v, want the error of the function", err)
			}
			rec, err := s.Get(t.Context(), store.ID{Scope: someCall.Scope, Key: someCall.Key})
			if err != nil || rec.State != c.state || rec.LastError != "the bank is on fire" {
				t.Errorf("E5: the record of the function is %s: %s, %v", rec.State, rec.LastError, err)
			}
		})
	}
}

// TestAnUnknownOutcomeKnowsItsProvider: the provider's id of the effect is kept, for a reconciler's query or an
// external event.
func TestAnUnknownOutcomeKnowsItsProvider(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	h := newGuard(t, s).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		op.SetProviderID("ch_1")
		op.Unknown()
	}, reserved)
	post(h, "k", `{}`).wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
	rec, err := s.Get(t.Context(), aliceID("k"))
	if err != nil || rec.State != store.StateUnknown || rec.ProviderID != "ch_1" {
		t.Errorf("B3: the record is %s with the provider's id %q, %v", rec.State, rec.ProviderID, err)
	}
}
