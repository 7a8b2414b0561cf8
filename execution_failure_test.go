package onceward_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// outcome is what a route made of a failure.
type outcome struct {
	status int    // of the first answer; 0 for a panic that continues
	code   string // of the problem in it, if it is Onceward's own
	state  store.State
}

// The outcomes of a handler that fails, by how it fails and the Failure of the route (E5, D1).
func failures() map[string]struct {
	fail                  http.HandlerFunc
	retry, store, unknown outcome
} {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, "the handler's own words")
		}
	}
	said := func(f func(*onceward.Operation), then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			f(onceward.FromContext(r.Context()))
			then(w, r)
		}
	}
	silent := func(http.ResponseWriter, *http.Request) {}
	panics := func(http.ResponseWriter, *http.Request) { panic("the handler's panic") }
	overdue := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	const (
		released  = store.StateRetryable
		completed = store.StateCompleted
		unknown   = store.StateUnknown
		rejected  = store.StateExpired
	)
	type row = struct {
		fail                  http.HandlerFunc
		retry, store, unknown outcome
	}
	always := func(fail http.HandlerFunc, o outcome) row { return row{fail, o, o, o} }
	return map[string]row{
		"500": {status(500), outcome{500, "", released}, outcome{500, "", completed}, outcome{500, "", unknown}},
		"501": {status(501), outcome{501, "", released}, outcome{501, "", completed}, outcome{501, "", unknown}},
		"502": {status(502), outcome{502, "", released}, outcome{502, "", unknown}, outcome{502, "", unknown}},
		"503": {status(503), outcome{503, "", released}, outcome{503, "", released}, outcome{503, "", unknown}},
		"504": {status(504), outcome{504, "", released}, outcome{504, "", unknown}, outcome{504, "", unknown}},
		"401": always(status(401), outcome{401, "", released}),
		"408": always(status(408), outcome{408, "", released}),
		"425": always(status(425), outcome{425, "", released}),
		"429": always(status(429), outcome{429, "", released}),
		"400": always(status(400), outcome{400, "", completed}),
		"402": always(status(402), outcome{402, "", completed}),
		"409": always(status(409), outcome{409, "", completed}),
		"499": always(status(499), outcome{499, "", completed}),
		"303": always(status(303), outcome{303, "", completed}),

		"panic": {panics, outcome{0, "", released}, outcome{0, "", completed}, outcome{0, "", unknown}},
		"panic after an answer": {
			func(w http.ResponseWriter, r *http.Request) { status(201)(w, r); panics(w, r) },
			outcome{0, "", released},
			outcome{0, "", completed},
			outcome{0, "", unknown},
		},
		"http.ErrAbortHandler": {
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			outcome{0, "", released},
			outcome{0, "", completed},
			outcome{0, "", unknown},
		},
		"an invalid status": {status(99), outcome{0, "", released}, outcome{0, "", completed}, outcome{0, "", unknown}},
		"a switch of protocols": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusSwitchingProtocols) },
			outcome{500, "handler-failed", released},
			outcome{500, "handler-failed", completed},
			outcome{500, "outcome-unknown", unknown},
		},
		"deadline without an answer": {
			overdue,
			outcome{503, "deadline-exceeded", released},
			outcome{500, "handler-failed", completed},
			outcome{500, "outcome-unknown", unknown},
		},
		"deadline with an answer": always(
			func(w http.ResponseWriter, r *http.Request) { overdue(w, r); status(201)(w, r) }, outcome{201, "", completed}),

		"not executed, silent":   always(said((*onceward.Operation).NotExecuted, silent), outcome{503, "not-executed", released}),
		"not executed, with 200": always(said((*onceward.Operation).NotExecuted, status(200)), outcome{503, "not-executed", released}),
		"not executed, with 409": always(said((*onceward.Operation).NotExecuted, status(409)), outcome{409, "", released}),
		"not executed, with 500": always(said((*onceward.Operation).NotExecuted, status(500)), outcome{500, "", released}),
		"not executed, late":     always(said((*onceward.Operation).NotExecuted, overdue), outcome{503, "not-executed", released}),
		"not executed, panic":    always(said((*onceward.Operation).NotExecuted, panics), outcome{0, "", released}),
		"rejected, silent":       always(said((*onceward.Operation).Reject, silent), outcome{503, "not-executed", rejected}),
		"rejected, with 200":     always(said((*onceward.Operation).Reject, status(200)), outcome{503, "not-executed", rejected}),
		"rejected, with 400":     always(said((*onceward.Operation).Reject, status(400)), outcome{400, "", rejected}),
		"rejected, with 500":     always(said((*onceward.Operation).Reject, status(500)), outcome{500, "", rejected}),
		"rejected, panic":        always(said((*onceward.Operation).Reject, panics), outcome{0, "", rejected}),
		"unknown, silent":        always(said((*onceward.Operation).Unknown, silent), outcome{500, "outcome-unknown", unknown}),
		"unknown, with 201":      always(said((*onceward.Operation).Unknown, status(201)), outcome{500, "outcome-unknown", unknown}),
		"unknown, with 400":      always(said((*onceward.Operation).Unknown, status(400)), outcome{500, "outcome-unknown", unknown}),
		"unknown, with 500":      always(said((*onceward.Operation).Unknown, status(500)), outcome{500, "", unknown}),
		"unknown, with 504":      always(said((*onceward.Operation).Unknown, status(504)), outcome{504, "", unknown}),
		"unknown, with 429":      always(said((*onceward.Operation).Unknown, status(429)), outcome{500, "outcome-unknown", unknown}),
		"unknown, panic":         always(said((*onceward.Operation).Unknown, panics), outcome{0, "", unknown}),
		"unknown, late":          always(said((*onceward.Operation).Unknown, overdue), outcome{500, "outcome-unknown", unknown}),
	}
}

func TestHowAReservedHandlerFails(t *testing.T) {
	t.Parallel()
	for name, row := range failures() {
		for policy, test := range map[string]struct {
			failure onceward.Failure
			want    outcome
		}{
			"retry":   {onceward.FailureRetry, row.retry},
			"store":   {onceward.FailureStore, row.store},
			"unknown": {onceward.FailureUnknown, row.unknown},
		} {
			for door, protect := range doors {
				t.Run(name+", "+policy+", "+door, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { checkFailure(t, protect, row.fail, test.failure, test.want) })
				})
			}
		}
	}
}

// checkFailure lets a handler fail once, then retries with a handler that succeeds.
func checkFailure(t *testing.T, protect door, fail http.HandlerFunc, failure onceward.Failure, want outcome) {
	s, handler := memory.New(), &counted{then: fail}
	h := protect(newGuard(t, s), handler, onceward.Reserved(failure), onceward.Deadline(2*time.Second))
	var first answer
	panicked := panicOf(func() { first = post(h, "k", `{}`) })
	switch {
	case want.status == 0 && panicked == nil:
		t.Errorf("E8: the panic did not go on; the answer was %d %q", first.status, first.body)
	case want.status != 0 && panicked != nil:
		t.Fatalf("E5: the request panicked: %v", panicked)
	case want.status == 0:
	case want.code != "":
		first.wantProblem(t, "E5", want.status, want.code)
	default:
		first.want(t, "E5", want.status, false)
		if first.body != "the handler's own words" {
			t.Errorf("E5: the answer is %q, want the handler's own words", first.body)
		}
	}
	wantState(t, "E5, D1", s, "k", want.state)

	handler.then = nil
	again := post(h, "k", `{}`)
	switch want.state {
	case store.StateRetryable:
		again.want(t, "E5: released, the retry executes", http.StatusCreated, false)
		post(h, "k", `{}`).want(t, "E5: and its answer is kept", http.StatusCreated, true)
		handler.wantRuns(t, "E5", 2)
	case store.StateExpired:
		again.want(t, "E5: rejected, the retry executes", http.StatusCreated, false)
		handler.wantRuns(t, "E5", 2)
	case store.StateUnknown:
		again.wantProblem(t, "E5: unknown, the retry does not execute", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "E5", 1)
	case store.StateCompleted:
		handler.wantRuns(t, "E5", 1)
		if want.status == 0 {
			again.wantProblem(t, "E5: stored, the retry gets the failure", http.StatusInternalServerError,
				"handler-failed")
			if !again.replayed() {
				t.Error("E5: the stored failure is not marked as replayed")
			}
			return
		}
		again.want(t, "E5: stored", want.status, true)
		again.wantSame(t, "E5: stored", first)
	}
}

// TestAnAnswerThatIsNotKept: a client that has lost an answer before can see that this one comes from the guard, which
// found nothing done, and not from a gateway in front of it.
func TestAnAnswerThatIsNotKept(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		say    func(*onceward.Operation)
		status int
		want   string
	}{
		"rejected":     {(*onceward.Operation).Reject, http.StatusBadRequest, "not-executed"},
		"not executed": {(*onceward.Operation).NotExecuted, http.StatusConflict, "not-executed"},
		"released":     {func(*onceward.Operation) {}, http.StatusTooManyRequests, "not-executed"},
		"kept":         {func(*onceward.Operation) {}, http.StatusPaymentRequired, ""},
		"unknown":      {(*onceward.Operation).Unknown, http.StatusBadGateway, ""},
	} {
		h := newGuard(t, memory.New()).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			test.say(onceward.FromContext(r.Context()))
			w.Header().Set("X-First", "1")
			w.WriteHeader(test.status)
		}, reserved)
		a := post(h, "k", `{}`)
		if got := a.header.Get("Idempotency-Outcome"); a.status != test.status || got != test.want {
			t.Errorf("section 6, %s: %d with the outcome %q, want %d with %q", name, a.status, got, test.status, test.want)
		}
		if got := a.header["X-First"]; len(got) != 1 || got[0] != "1" {
			t.Errorf("section 6, %s: the handler's own field is %q", name, got)
		}
	}
}

// TestAReleaseThatDoesNotSayNothingWasDone: the client takes the mark for a proof about all attempts, so it is not sent
// where one of them left a trace of something done, nor where the store does not know of the release.
func TestAReleaseThatDoesNotSayNothingWasDone(t *testing.T) {
	t.Parallel()
	point := func(op *onceward.Operation) error { return op.Checkpoint(store.Checkpoint{Point: "charged"}) }
	for name, test := range map[string]struct {
		first, second func(op *onceward.Operation) error
		release       error
	}{
		"a recovery point": {first: point},
		"an earlier one":   {first: point, second: func(*onceward.Operation) error { return nil }},
		"a carried value": {first: func(op *onceward.Operation) error {
			return op.Carry(context.Background(), rent)
		}},
		"a provider's id":     {first: func(op *onceward.Operation) error { op.SetProviderID("ch_1"); return nil }},
		"a fenced release":    {first: func(*onceward.Operation) error { return nil }, release: store.ErrFenced},
		"an unstored release": {first: func(*onceward.Operation) error { return nil }, release: errDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFaultyStore()
				if test.release != nil {
					s.release = func(context.Context, store.Claim, string) error { return test.release }
				}
				does := test.first
				h := newGuard(t, s).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if err := does(onceward.FromContext(r.Context())); err != nil {
						t.Error(err)
					}
					w.WriteHeader(http.StatusTooManyRequests)
				}, reserved)
				a := post(h, "k", `{}`)
				if test.second != nil {
					does = test.second
					a = post(h, "k", `{}`)
				}
				a.want(t, "E5: the handler's own answer", http.StatusTooManyRequests, false)
				if got := a.header.Get("Idempotency-Outcome"); got != "" {
					t.Errorf("section 6: the outcome is marked as %q", got)
				}
			})
		})
	}
}

// TestAnOutcomeThatTheHandlerDoesNotKnow: the client's answer does not mention that the store failed.
func TestAnOutcomeThatTheHandlerDoesNotKnow(t *testing.T) {
	t.Parallel()
	h := newGuard(t, memory.New()).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Unknown()
	}, reserved)
	p := post(h, "k", `{}`).wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
	if !strings.Contains(p.Detail, "is not known, or could not be stored") {
		t.Errorf("E7: the client is told %q", p.Detail)
	}
}

func TestPanicGoesOnAsItIs(t *testing.T) {
	t.Parallel()
	for _, value := range []any{http.ErrAbortHandler, "text", fmt.Errorf("an error")} {
		handler := &counted{then: func(http.ResponseWriter, *http.Request) { panic(value) }}
		h := newGuard(t, memory.New()).Handler(handler, reserved)
		if got := panicOf(func() { post(h, "k", `{}`) }); got != value {
			t.Errorf("E8: the server's recovery gets %v, want %v", got, value)
		}
	}
}

func TestTheServerSurvivesAPanic(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), &counted{then: func(http.ResponseWriter, *http.Request) { panic("the handler's panic") }}
	server := startServer(t, newGuard(t, s).Handler(handler, reserved))
	// http.Transport would automatically repeat a request with this header on a kept-alive connection: it counts as
	// idempotent. The first use of a connection is not repeated.
	if a, err := trySend(t.Context(), server, "k", `{}`); err == nil {
		t.Errorf("E8: the client got %d %q, want a connection that is cut", a.status, a.body)
	}
	wantState(t, "E8: no path leaves a key locked", s, "k", store.StateUnknown)
	send(t, server, "k", `{}`).wantProblem(t, "E8", http.StatusConflict, "outcome-unknown")
	handler.wantRuns(t, "E8", 1)
}

func TestDeadlineEndsTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			if deadline, ok := r.Context().Deadline(); !ok || deadline.Sub(started) != 3*time.Second {
				t.Errorf("E6: the deadline is %v, %t; want in 3 s", deadline.Sub(started), ok)
			}
			<-r.Context().Done()
			if got := r.Context().Err(); got != context.DeadlineExceeded {
				t.Errorf("E6: Err() = %v", got)
			}
			if got := context.Cause(r.Context()); got != store.ErrDeadline {
				t.Errorf("E6: the cause is %v, want ErrDeadline", got)
			}
		}}
		h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.Deadline(3*time.Second))
		a := post(h, "k", `{}`)
		a.wantProblem(t, "E5", http.StatusInternalServerError, "outcome-unknown")
		if got := a.header.Get("Retry-After"); got != "5" {
			t.Errorf("A1: Retry-After is %q, want 5: a retry can get the outcome once it is settled", got)
		}
		if took := time.Since(started); took != 3*time.Second {
			t.Errorf("E6: the handler ended after %s, want 3s", took)
		}
	})
}

// TestDeadlineInFront: a deadline that a middleware has set ends the handler's context if it is earlier than the route's.
// The client leaving does not.
func TestDeadlineInFront(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ front, ends time.Duration }{
		"earlier": {2 * time.Second, 2 * time.Second}, "later": {5 * time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					if took, cause := time.Since(started), context.Cause(r.Context()); took != test.ends || cause != store.ErrDeadline {
						t.Errorf("E6: the context ended after %s by %v, want %s by ErrDeadline", took, cause, test.ends)
					}
				}}
				h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.Deadline(3*time.Second))
				post(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ctx, cancel := context.WithTimeout(r.Context(), test.front)
					defer cancel()
					h.ServeHTTP(w, r.WithContext(ctx))
				}), "k", `{}`).wantProblem(t, "E6", http.StatusInternalServerError, "outcome-unknown")
			})
		})
	}
}

func TestFailedAttemptsGetLargerTokens(t *testing.T) {
	t.Parallel()
	var attempts []int64
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		attempts = append(attempts, onceward.FromContext(r.Context()).Attempt())
		w.WriteHeader(http.StatusServiceUnavailable)
	}}
	h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureRetry))
	for range 5 {
		post(h, "k", `{}`).want(t, "scenario 20: a 503 is not kept", http.StatusServiceUnavailable, false)
	}
	for i := 1; i < len(attempts); i++ {
		if attempts[i] <= attempts[i-1] {
			t.Errorf("I6: the attempts are %v; each must be larger than the one before", attempts)
		}
	}
	post(h, "k", `{"other":1}`).
		wantProblem(t, "section 4: released keys keep their fingerprint", http.StatusUnprocessableEntity, "mismatch")
	handler.wantRuns(t, "scenario 20", 5)
}
