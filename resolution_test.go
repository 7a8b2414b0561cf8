package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about owners that come back to a record which somebody else has settled.

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
					settleBehind(t, s, claim, store.Response{Status: http.StatusAccepted, Body: []byte("paid, says the provider")})
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
				got, err := guard.Do(t.Context(), someCall, w.do, onceward.Reserved(onceward.FailureUnknown))
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
				h = newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.BindSession(sessionOf))
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
				post(h, "k", second.body, inSession(second.session)).wantSame(t, "S6: a fenced write changes nothing", foreign)
				handler.wantRuns(t, "S6", 2)
			})
		}
	}
}

func TestAFencedErrorSaysWhoseAnswerItHolds(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	post(newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown)), "k", `{}`)
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
