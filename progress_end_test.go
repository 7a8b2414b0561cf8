package onceward_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// TestSuspendInATransaction: all is undone with the transaction, so nothing is told that was not done.
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
	if result, err := newGuard(t, store).Do(t.Context(), someCall, w.do, onceward.Transactional()); !onceward.IsNotExecuted(err) {
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

// TestACheckpointThatIsFenced tells the attempt to stop, and is counted.
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

// TestNeverExecutedByWhoWasReplaced: somebody else went on with the operation, so its caller is not told that nothing is done.
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

// TestAReleaseThatFailsOnARouteThatResumes: a resumer may go on with what was not released.
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

// TestBecause keeps the handler's reason for whoever has to settle the operation.
func TestBecause(t *testing.T) {
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
			h := guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { say(onceward.FromContext(r.Context())) }, resumable()...)
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

// TestAnUnknownOutcomeKnowsItsProvider: what the provider called the effect is kept, for whoever asks or is told about it.
func TestAnUnknownOutcomeKnowsItsProvider(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	h := newGuard(t, s).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		op.SetProviderID("ch_1")
		op.Unknown()
	}, onceward.Reserved(onceward.FailureUnknown))
	post(h, "k", `{}`).wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
	rec, err := s.Get(t.Context(), aliceID("k"))
	if err != nil || rec.State != store.StateUnknown || rec.ProviderID != "ch_1" {
		t.Errorf("B3: the record is %s with the provider's id %q, %v", rec.State, rec.ProviderID, err)
	}
}
