package onceward_test

import (
	"bytes"
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
	"github.com/onceward/onceward/store/memory"
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
		h := newGuard(t, s).Handler(handler, reserved)
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
		h := newGuard(t, s).Handler(handler, reserved)
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
		h := newGuard(t, s, observedBy(events)).Handler(handler, reserved)
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
	for name, abandon := range map[string]bool{"abandon succeeds": true, "abandon fails too": false} {
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
	h := newGuard(t, s, observedBy(events)).Handler(handler, reserved)
	first := post(h, "k", `{}`)
	first.want(t, "S6: the stored answer is sent, not the owner's", http.StatusAccepted, true)
	if first.body != "learned from the provider" || first.header.Get("Location") != "" {
		t.Errorf("S6: the owner sent %q with %v", first.body, first.header)
	}
	post(h, "k", `{}`).wantSame(t, "I3: all definitive answers are equal", first)
	if fenced := observed[onceward.FencedEvent](events); len(fenced) != 1 ||
		fenced[0].Err.State != store.StateCompleted {
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
	h := newGuard(t, store, observedBy(events)).Handler(handler, reserved)
	post(h, "k", `{}`).wantProblem(t, "S6", http.StatusInternalServerError, "outcome-unknown")
	if lateCompletions, err := store.LateCompletions(context.Background(), aliceID("k")); err != nil ||
		len(lateCompletions) != 1 {
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
	h := newGuard(t, s).Handler(handler, reserved)
	post(h, "k", `{}`).want(t, "section 4: the same attempt, finishing late", http.StatusCreated, false)
	post(h, "k", `{}`).want(t, "section 4", http.StatusCreated, true)
	handler.wantRuns(t, "section 4", 1)
}

func TestReleaseThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, events := newFaultyStore(), new(journal)
		var log bytes.Buffer
		failures := 3
		s.release = func(ctx context.Context, c store.Claim, reason string) error {
			if failures > 0 {
				failures--
				return errDown
			}
			return s.Store.Release(ctx, c, reason)
		}
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}}
		h := newGuard(t, s, observedBy(events), loggedTo(&log)).Handler(handler, onceward.Reserved(onceward.FailureRetry))
		post(h, "k", `{}`).want(t, "E5", http.StatusServiceUnavailable, false)
		wantState(t, "E5: released after retries", s, "k", store.StateRetryable)

		failures = 1 << 30
		post(h, "k", `{}`).want(t, "E5", http.StatusServiceUnavailable, false)
		settled := observed[onceward.SettledEvent](events)
		if last := settled[len(settled)-1]; last.State != store.StateUnknown || last.Err == nil {
			t.Errorf("E7: settled as %+v, want unknown with the reason", last)
		}
		if !strings.Contains(log.String(), "outcome unknown") || !strings.Contains(log.String(), errDown.Error()) {
			t.Errorf("M3: the log is %s", log.String())
		}
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).wantProblem(t, "E8: locked no longer than the lease", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "E5", 2)
	})
}

func TestLateCompletionsThatCannotBeKept(t *testing.T) {
	t.Parallel()
	// A store without that capability: the refusal is counted anyway.
	store, events := newFaultyStore(), new(journal)
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		if err := store.Bust(r.Context(), aliceID("k"), true); err != nil {
			t.Error(err)
		}
	}}
	h := newGuard(t, plainStore{store}, observedBy(events)).Handler(handler, reserved)
	post(h, "k", `{}`).wantProblem(t, "S6", http.StatusInternalServerError, "outcome-unknown")
	if fenced := observed[onceward.FencedEvent](events); len(fenced) != 1 {
		t.Errorf("S6: %d fenced writes were counted, want 1", len(fenced))
	}
}

// plainStore is a store without any capability beyond the least.
type plainStore struct{ store.Store }

// This file is about owners that come back to a record which was settled by others.

// settleBehind makes the outcome of an attempt unknown and resolves it, as a sweeper and a webhook do.
func settleBehind(t *testing.T, s *memory.Store, claim store.Claim, response store.Response) {
	t.Helper()
	if err := s.Abandon(context.Background(), claim, "swept"); err != nil {
		t.Error(err)
	}
	if err := s.ResolveCompleted(context.Background(), claim, &store.Completion{Response: response}); err != nil {
		t.Error(err)
	}
}

// lateEndings are the ways in which an owner ends, each of which is another write to the store.
var lateEndings = map[string]http.HandlerFunc{
	"201": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
	"429": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
	"500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	"not executed": func(_ http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).NotExecuted()
	},
	"unknown": func(_ http.ResponseWriter, r *http.Request) { onceward.FromContext(r.Context()).Unknown() },
}

func TestAnOwnerThatLosesToAResolution(t *testing.T) {
	t.Parallel()
	for name, end := range lateEndings {
		for _, policy := range []onceward.Failure{onceward.FailureRetry, onceward.FailureStore, onceward.FailureUnknown} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				t.Parallel()
				s := memory.New()
				handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
					claim := store.Claim{ID: aliceID("k"), Attempt: onceward.FromContext(r.Context()).Attempt()}
					settleBehind(t, s, claim,
						store.Response{Status: http.StatusAccepted, Body: []byte("paid, says the provider")})
					end(w, r)
				}}
				h := newGuard(t, s).Handler(handler, onceward.Reserved(policy))
				first := post(h, "k", `{}`)
				first.want(t, "S6: the stored answer, not its own", http.StatusAccepted, true)
				if first.header.Get("Idempotency-Key-Expires") == "" {
					t.Error("section 6: the answer does not say when it expires")
				}
				again := post(h, "k", `{}`)
				again.want(t, "S6", http.StatusAccepted, true)
				first.wantSame(t, "S6: all definitive answers are equal", again)
				handler.wantRuns(t, "S6", 1)
			})
		}
	}
}

func TestAFunctionThatLosesToAResolution(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() ([]byte, error){
		"a value":      func() ([]byte, error) { return []byte("its own"), nil },
		"an error":     func() ([]byte, error) { return nil, errCard },
		"not executed": func() ([]byte, error) { return nil, onceward.NotExecuted(errCard) },
		"unknown":      func() ([]byte, error) { return nil, onceward.OutcomeUnknown(errCard) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := memory.New()
			w := &work{then: func(_ context.Context, op *onceward.Operation) ([]byte, error) {
				claim := store.Claim{ID: store.ID{Scope: someCall.Scope, Key: someCall.Key}, Attempt: op.Attempt()}
				settleBehind(t, s, claim, store.Response{Status: http.StatusOK, Body: []byte("paid")})
				return end()
			}}
			guard := newGuard(t, s)
			for range 2 {
				got, err := guard.Do(t.Context(), someCall, w.do, reserved)
				if err != nil || string(got.Value) != "paid" || !got.Replayed {
					t.Errorf("S6, E4: got %q, replayed %t, %v; want the stored answer", got.Value, got.Replayed, err)
				}
			}
			w.wantRuns(t, "S6", 1)
		})
	}
}

// TestAFencedOwnerGetsNoForeignAnswer: a busted key may have been taken by another request, whose answer is not for the
// client of the first.
func TestAFencedOwnerGetsNoForeignAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int // of the problem, or of the handler's own answer
		code   string
	}{
		"201":          {http.StatusInternalServerError, "outcome-unknown"},
		"429":          {http.StatusTooManyRequests, ""},
		"500":          {http.StatusInternalServerError, ""},
		"not executed": {http.StatusServiceUnavailable, "not-executed"},
		"unknown":      {http.StatusInternalServerError, "outcome-unknown"},
	} {
		for change, second := range map[string]struct{ body, session string }{
			"body": {`{"amount":1000}`, "one"}, "session": {`{"amount":1}`, "two"},
		} {
			t.Run(name+", another "+change, func(t *testing.T) {
				t.Parallel()
				store := memory.New()
				var h http.Handler
				var foreign answer
				handler := new(counted)
				handler.then = func(w http.ResponseWriter, r *http.Request) {
					if handler.runs.Load() > 1 {
						w.WriteHeader(http.StatusCreated)
						io.WriteString(w, "of the second request alone")
						return
					}
					if err := store.Bust(context.Background(), aliceID("k"), true); err != nil {
						t.Error(err)
					}
					foreign = post(h, "k", second.body, inSession(second.session))
					lateEndings[name](w, r)
				}
				h = newGuard(t, store).Handler(handler, reserved, onceward.BindSession(sessionOf))
				first := post(h, "k", `{"amount":1}`, inSession("one"))
				foreign.want(t, "section 4: the key was free", http.StatusCreated, false)
				if test.code != "" {
					first.wantProblem(t, "S6, L4", test.status, test.code)
				} else {
					first.want(t, "S6, L4", test.status, false)
				}
				if first.body == foreign.body {
					t.Errorf("S6, L4: the first client got the answer to another's request: %q", first.body)
				}
				post(h, "k", second.body, inSession(second.session)).
					wantSame(t, "S6: a fenced write changes nothing", foreign)
				handler.wantRuns(t, "S6", 2)
			})
		}
	}
}

func TestAFencedErrorSaysWhoseAnswerItHolds(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	post(newGuard(t, s).Handler(handler, reserved), "k", `{}`)
	rec, err := s.Get(t.Context(), aliceID("k"))
	if err != nil {
		t.Fatal(err)
	}
	err = s.Release(t.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt + 1}, "late")
	var fenced *store.FencedError
	if !errors.As(err, &fenced) || fenced.Response == nil {
		t.Fatalf("S6: the error is %v, want one with the stored answer", err)
	}
	if fenced.Fingerprint != rec.Fingerprint || fenced.Fingerprint == (store.Fingerprint{}) {
		t.Errorf("S6: the fingerprint is %+v, want that of the record, %+v", fenced.Fingerprint, rec.Fingerprint)
	}
}
