package onceward_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

func brokenComplete(context.Context, store.Claim, *store.Completion) (time.Time, error) {
	return time.Time{}, errDown
}

func TestCompleteThatFailsAndRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		failures := 5
		s.complete = func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
			if failures > 0 {
				failures--
				return time.Time{}, errDown
			}
			return s.Store.Complete(ctx, c, done)
		}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
		first := post(h, "k", `{}`)
		first.want(t, "E7: after retries", http.StatusCreated, false)
		again := post(h, "k", `{}`)
		again.want(t, "E7", http.StatusCreated, true)
		again.wantSame(t, "E7", first)
		handler.wantRuns(t, "E7", 1)
	})
}

func TestCompleteThatHangsThenRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		hangs := true
		s.complete = func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
			if hangs {
				hangs = false
				<-ctx.Done()
				return time.Time{}, ctx.Err()
			}
			return s.Store.Complete(ctx, c, done)
		}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
		post(h, "k", `{}`).want(t, "E7", http.StatusCreated, false)
		handler.wantRuns(t, "E7", 1)
	})
}

func TestCompleteWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler, events := newFaultyStore(), new(counted), new(journal)
		lost := true
		s.complete = func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
			expires, err := s.Store.Complete(ctx, c, done)
			if lost {
				lost = false
				return time.Time{}, errDown
			}
			return expires, err
		}
		h := newGuard(t, s, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
		first := post(h, "k", `{}`)
		first.want(t, "S6: a repeated settlement succeeds", http.StatusCreated, false)
		if first.header.Get("Idempotency-Key-Expires") == "" {
			t.Error("section 6: the first answer does not say when it expires")
		}
		if fenced := observed[onceward.FencedEvent](events); len(fenced) != 0 {
			t.Errorf("S6: the repetition counts as fenced: %+v", fenced)
		}
		post(h, "k", `{}`).wantSame(t, "S6", first)
		handler.wantRuns(t, "S6", 1)
	})
}

func TestCompleteThatFailsForGood(t *testing.T) {
	t.Parallel()
	for name, abandon := range map[string]bool{"abandon lands": true, "abandon fails too": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, handler, events := newFaultyStore(), new(counted), new(journal)
				s.complete = brokenComplete
				if !abandon {
					s.abandon = func(context.Context, store.Claim, string) error { return errDown }
				}
				h := newGuard(t, s, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureRetry))
				started := time.Now()
				a := post(h, "k", `{}`)
				a.wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
				if a.header.Get("Location") != "" {
					t.Error("E7: a part of an answer that is not durable was sent")
				}
				if took := time.Since(started); took < 13*time.Second || took > 16*time.Second {
					t.Errorf("E7: it was given up after %s, want about 15 s", took)
				}
				settled := observed[onceward.SettledEvent](events)
				if len(settled) != 1 || settled[0].State != store.StateUnknown || settled[0].Err == nil {
					t.Errorf("E7: settled as %+v, want unknown with the reason", settled)
				}
				s.complete, s.abandon = nil, nil
				if abandon {
					wantState(t, "E7: never released", s, "k", store.StateUnknown)
				} else {
					wantState(t, "E7: never released", s, "k", store.StateInProgress)
					time.Sleep(31 * time.Second)
					if n, err := s.Sweep(context.Background(), 10); n != 1 || err != nil {
						t.Errorf("S5: the sweeper found %d, %v: heartbeats went on after settling was given up", n, err)
					}
				}
				p := post(h, "k", `{}`).wantProblem(t, "E7", http.StatusConflict, "outcome-unknown")
				if !p.Retryable {
					t.Error("A1: asking again is how the client learns the outcome")
				}
				handler.wantRuns(t, "E7: never a second execution", 1)
			})
		})
	}
}

func TestCompleteThatLosesToAResolution(t *testing.T) {
	t.Parallel()
	s, events := newFaultyStore(), new(journal)
	id := aliceID("k")
	resolution := store.Response{
		Status: http.StatusAccepted, Body: []byte("learned from the provider"),
		Header: []store.HeaderField{{Name: "Content-Type", Value: "text/plain"}},
	}
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		claim := store.Claim{ID: id, Attempt: onceward.FromContext(r.Context()).Attempt()}
		if err := s.Abandon(r.Context(), claim, "the test swept it"); err != nil {
			t.Error(err)
		}
		if err := s.ResolveCompleted(r.Context(), claim, &store.Completion{Response: resolution}); err != nil {
			t.Error(err)
		}
		w.Header().Set("Location", "/the/owner's/own")
		w.WriteHeader(http.StatusCreated)
	}}
	h := newGuard(t, s, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	first := post(h, "k", `{}`)
	first.want(t, "S6: the stored answer is sent, not the owner's", http.StatusAccepted, true)
	if first.body != "learned from the provider" || first.header.Get("Location") != "" {
		t.Errorf("S6: the owner sent %q with %v", first.body, first.header)
	}
	post(h, "k", `{}`).wantSame(t, "I3: all definitive answers are equal", first)
	if fenced := observed[onceward.FencedEvent](events); len(fenced) != 1 || fenced[0].Err.State != store.StateCompleted {
		t.Errorf("S6: the fenced write is counted as %+v", fenced)
	}
	lateCompletions, err := s.LateCompletions(context.Background(), id)
	if err != nil || len(lateCompletions) != 1 || lateCompletions[0].Response.Status != http.StatusCreated {
		t.Errorf("S6: the late completions are %+v, %v; want the refused completion", lateCompletions, err)
	}
	handler.wantRuns(t, "S6", 1)
}

func TestCompleteThatLosesToABust(t *testing.T) {
	t.Parallel()
	store, events := newFaultyStore(), new(journal)
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		if err := store.Bust(r.Context(), aliceID("k"), true); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	}}
	h := newGuard(t, store, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	post(h, "k", `{}`).wantProblem(t, "S6", http.StatusInternalServerError, "outcome-unknown")
	if lateCompletions, err := store.LateCompletions(context.Background(), aliceID("k")); err != nil || len(lateCompletions) != 1 {
		t.Errorf("S6: the late completions are %+v, %v", lateCompletions, err)
	}
	if fenced := observed[onceward.FencedEvent](events); len(fenced) == 0 {
		t.Error("S6: the fenced write was not counted")
	}
	handler.wantRuns(t, "S6", 1)
}

func TestALateOwnerStillKnowsTheAnswer(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		claim := store.Claim{ID: aliceID("k"), Attempt: onceward.FromContext(r.Context()).Attempt()}
		if err := s.Abandon(r.Context(), claim, "the test swept it"); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	}}
	h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	post(h, "k", `{}`).want(t, "section 4: the same attempt, finishing late", http.StatusCreated, false)
	post(h, "k", `{}`).want(t, "section 4", http.StatusCreated, true)
	handler.wantRuns(t, "section 4", 1)
}

func TestReleaseThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, events := newFaultyStore(), new(journal)
		failures := 3
		s.release = func(ctx context.Context, c store.Claim, reason string) error {
			if failures > 0 {
				failures--
				return errDown
			}
			return s.Store.Release(ctx, c, reason)
		}
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }}
		h := newGuard(t, s, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureRetry))
		post(h, "k", `{}`).want(t, "E5", http.StatusServiceUnavailable, false)
		wantState(t, "E5: released after retries", s, "k", store.StateRetryable)

		failures = 1 << 30
		post(h, "k", `{}`).want(t, "E5", http.StatusServiceUnavailable, false)
		settled := observed[onceward.SettledEvent](events)
		if last := settled[len(settled)-1]; last.State != store.StateUnknown || last.Err == nil {
			t.Errorf("E7: settled as %+v, want unknown with the reason", last)
		}
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).wantProblem(t, "E8: locked no longer than the lease", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "E5", 2)
	})
}

func TestLateCompletionsThatCannotBeKept(t *testing.T) {
	t.Parallel()
	// A store without that capability: the refusal is counted all the same.
	store, events := newFaultyStore(), new(journal)
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		if err := store.Bust(r.Context(), aliceID("k"), true); err != nil {
			t.Error(err)
		}
	}}
	h := newGuard(t, plainStore{store}, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	post(h, "k", `{}`).wantProblem(t, "S6", http.StatusInternalServerError, "outcome-unknown")
	if fenced := observed[onceward.FencedEvent](events); len(fenced) != 1 {
		t.Errorf("S6: %d fenced writes were counted, want 1", len(fenced))
	}
}

// plainStore is a store without any capability beyond the least.
type plainStore struct{ store.Store }
