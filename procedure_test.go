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

// door is one of the ways by which work comes to the engine. What it means must not depend on it.
type door func(guard *onceward.Guard, h http.Handler, options ...onceward.Option) http.Handler

var doors = map[string]door{"handler": (*onceward.Guard).Handler, "procedure": asProcedure}

// asProcedure serves a handler by a procedure: it is what an adapter for HTTP would be, if one was needed.
func asProcedure(guard *onceward.Guard, h http.Handler, options ...onceward.Option) http.Handler {
	procedure, err := guard.Procedure(options...)
	if err != nil {
		panic(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope, err := byToken(r)
		if err != nil {
			procedure.Refuse(r.Context(), "POST /", err).Write(w)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		call := onceward.Call{Scope: scope, Operation: "POST /", Payload: body, Header: r.Header}
		served, err := procedure.Serve(r.Context(), call, func(ctx context.Context) onceward.Answer {
			request := r.WithContext(ctx)
			request.Body = io.NopCloser(bytes.NewReader(body))
			var page page
			h.ServeHTTP(&page, request)
			return onceward.Answer{Status: page.status, ContentType: page.Header().Get("Content-Type"), Body: page.body}
		})
		if served.Replayed {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		if !served.ExpiresAt.IsZero() {
			w.Header().Set("Idempotency-Key-Expires", served.ExpiresAt.UTC().Format(http.TimeFormat))
		}
		if problem := (*onceward.Problem)(nil); errors.As(err, &problem) {
			problem.Write(w)
			return
		}
		w.Header().Set("Content-Type", served.ContentType)
		w.WriteHeader(served.Status)
		_, _ = w.Write(served.Body) // to a recorder
	})
}

// page is what a handler wrote; its status is zero if that is nothing.
type page struct {
	header http.Header
	status int
	body   []byte
}

func (p *page) Header() http.Header {
	if p.header == nil {
		p.header = make(http.Header)
	}
	return p.header
}

func (p *page) WriteHeader(status int) {
	if status < 100 {
		panic(fmt.Sprintf("invalid status %d", status))
	}
	p.status = status
}

func (p *page) Write(b []byte) (int, error) {
	if p.status == 0 {
		p.status = http.StatusOK
	}
	p.body = append(p.body, b...)
	return len(b), nil
}

func TestProcedureRunsOnce(t *testing.T) {
	t.Parallel()
	j, handler := new(journal), new(counted)
	h := asProcedure(newGuard(t, memory.New(), observedBy(j)), handler, reserved)
	first := post(h, "k", `{}`)
	first.want(t, "E4", http.StatusCreated, false)
	again := post(h, `"k"`, `{}`)
	again.want(t, "E4, H2", http.StatusCreated, true)
	again.wantSame(t, "E4", first)
	if a, b := first.header.Get("Idempotency-Key-Expires"), again.header.Get("Idempotency-Key-Expires"); a == "" || a != b {
		t.Errorf("section 6: it expires at %q, then at %q", a, b)
	}
	handler.wantRuns(t, "E4", 1)
	post(h, "k", `{"other":1}`).wantProblem(t, "S4", http.StatusUnprocessableEntity, "mismatch")
	post(h, "k", `{}`, as("bob")).want(t, "I9: another scope", http.StatusCreated, false)
	handler.wantRuns(t, "I9", 2)
	if executed := observed[onceward.ExecutedEvent](j); len(executed) != 2 || executed[0].Status != http.StatusCreated {
		t.Errorf("M1: executions are told as %+v", executed)
	}
	if problems := observed[onceward.ProblemEvent](j); len(problems) != 1 || problems[0].Code != "mismatch" {
		t.Errorf("M1: problems are told as %+v", problems)
	}
}

func TestProcedureRefuses(t *testing.T) {
	t.Parallel()
	j, handler, s := new(journal), new(counted), memory.New()
	h := asProcedure(newGuard(t, s, observedBy(j)), handler, reserved, onceward.BodyLimit(10),
		onceward.RequireFirstSent(time.Hour, time.Minute))
	sent := withHeader("Idempotency-First-Sent", time.Now().UTC().Format(http.TimeFormat))
	for name, test := range map[string]struct {
		key, body string
		edits     []edit
		status    int
		code      string
	}{
		"no key":           {"", `{}`, []edit{sent}, 400, "missing-key"},
		"two keys":         {"k", `{}`, []edit{sent, withHeader("Idempotency-Key", "k", "k")}, 400, "invalid-key"},
		"a long key":       {strings.Repeat("k", 256), `{}`, []edit{sent}, 400, "invalid-key"},
		"a large payload":  {"k", `{"much":"more"}`, []edit{sent}, 413, "body-too-large"},
		"not sent first":   {"k", `{}`, nil, 400, "first-sent-missing"},
		"no authorisation": {"k", `{}`, []edit{sent, withHeader("Authorization")}, 401, "unauthenticated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			post(h, test.key, test.body, test.edits...).wantProblem(t, "H4, A7", test.status, test.code)
		})
	}
	t.Cleanup(func() {
		handler.wantRuns(t, "H4", 0)
		wantNothingStored(t, "A7", s)
		if told := observed[onceward.RejectedEvent](j); len(told) != 6 {
			t.Errorf("M1: %d refusals are told: %+v", len(told), told)
		}
	})
}

func TestProcedureWithoutAKey(t *testing.T) {
	t.Parallel()
	j, handler := new(journal), new(counted)
	h := asProcedure(newGuard(t, memory.New(), observedBy(j)), handler, reserved, onceward.KeyOptional())
	post(h, "", `{}`).want(t, "H5", http.StatusCreated, false)
	post(h, "", `{}`).want(t, "H5", http.StatusCreated, false)
	handler.wantRuns(t, "H5", 2)
	if told := observed[onceward.UnprotectedEvent](j); len(told) != 2 || told[0].Operation != "POST /" {
		t.Errorf("H5: calls without a key are told as %+v", told)
	}
}

// TestProcedureWithoutAScope: an adapter whose scope function returns nothing must not put all callers into one scope.
func TestProcedureWithoutAScope(t *testing.T) {
	t.Parallel()
	procedure, err := newGuard(t, memory.New()).Procedure(reserved)
	if err != nil {
		t.Fatal(err)
	}
	for code, call := range map[string]onceward.Call{
		"unauthenticated":   {Key: "k", Operation: "job"},
		"operation-unnamed": {Key: "k", Scope: "s"},
	} {
		_, err = procedure.Serve(t.Context(), call, func(context.Context) onceward.Answer {
			t.Errorf("%s: it was executed", code)
			return onceward.Answer{}
		})
		if problem := (*onceward.Problem)(nil); !errors.As(err, &problem) || problem.Code != code {
			t.Errorf("section 1: %v, want %s", err, code)
		}
	}
}

func TestProcedureInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, finish := make(chan struct{}), make(chan struct{})
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			close(begun)
			<-finish
			w.WriteHeader(http.StatusNoContent)
		}}
		guard := newGuard(t, memory.New())
		h := asProcedure(guard, handler, reserved)
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan answer)
		go func() { first <- serve(h, newRequest(http.MethodPost, "/", "k", `{}`).WithContext(ctx)) }()
		<-begun
		leave()
		post(h, "k", `{}`).wantProblem(t, "S1", http.StatusConflict, "in-progress")
		waiter := make(chan answer)
		go func() {
			waiter <- post(asProcedure(guard, handler, reserved, onceward.InFlightWait(time.Minute)), "k", `{}`)
		}()
		synctest.Wait()
		close(finish)
		(<-first).want(t, "E6: its caller left", http.StatusNoContent, false)
		(<-waiter).want(t, "policy wait", http.StatusNoContent, true)
		handler.wantRuns(t, "E6", 1)
	})
}

// TestProcedureInATransaction: a 4xx is stored without the writes, a 5xx and a rejection leave nothing.
func TestProcedureInATransaction(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]store.State{
		http.StatusCreated:             store.StateCompleted,
		http.StatusConflict:            store.StateCompleted,
		http.StatusInternalServerError: store.StateNone,
	} {
		s := &undoingTransactor{memory.New()}
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }}
		h := asProcedure(newGuard(t, s), handler, onceward.Transactional())
		post(h, "k", `{}`).want(t, "E1", status, false)
		wantState(t, "E1", s, "k", want)
	}
}

func TestProcedureWithATooLargeAnswer(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "eleven byte") }}
	h := asProcedure(newGuard(t, memory.New()), handler, reserved, onceward.ResponseLimit(10))
	post(h, "k", `{}`).want(t, "A4: who executed gets it", http.StatusOK, false)
	post(h, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "response-not-stored")
	h = asProcedure(newGuard(t, &undoingTransactor{memory.New()}), handler, onceward.Transactional(),
		onceward.ResponseLimit(10))
	post(h, "k", `{}`).wantProblem(t, "A4", http.StatusInternalServerError, "response-too-large")
}

func TestProcedureWhenTheStoreIsDown(t *testing.T) {
	t.Parallel()
	s, handler := newFaultyStore(), new(counted)
	s.reserve = func(context.Context, *store.Reservation) (store.Verdict, error) {
		return store.Verdict{}, fmt.Errorf("connection refused: %w", store.ErrNotSent)
	}
	post(asProcedure(newGuard(t, s), handler, reserved), "k", `{}`).
		wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
	handler.wantRuns(t, "L2", 0)
}

// TestProcedureThatIsResumed: another node finishes what a lost owner began, and the caller's retry gets its answer.
func TestProcedureThatIsResumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		guard := newGuard(t, s)
		procedure, err := guard.Procedure(reserved, onceward.OnLost(onceward.LostResume))
		if err != nil {
			t.Fatal(err)
		}
		call := onceward.Call{Scope: "alice", Key: "k", Operation: "job"}
		_, err = procedure.Serve(t.Context(), call, func(ctx context.Context) onceward.Answer {
			onceward.FromContext(ctx).Suspend(time.Minute)
			return onceward.Answer{}
		})
		if problem := (*onceward.Problem)(nil); !errors.As(err, &problem) || problem.Code != "in-progress" {
			t.Fatalf("E3: a suspended procedure answers %v", err)
		}
		time.Sleep(time.Hour)
		rec, err := s.Get(t.Context(), aliceID("k"))
		if err != nil {
			t.Fatal(err)
		}
		answer := onceward.Answer{Status: http.StatusCreated, ContentType: "text/plain", Body: []byte("done")}
		err = procedure.Resume(t.Context(), &rec, func(context.Context) onceward.Answer { return answer })
		if err != nil {
			t.Fatal(err)
		}
		served, err := procedure.Serve(t.Context(), call, nil)
		if err != nil || !served.Replayed || string(served.Body) != "done" || served.ContentType != "text/plain" {
			t.Errorf("B5: the retry gets %+v, %v", served, err)
		}
	})
}

func TestProceduresThatAreRefused(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	session := func(*http.Request) string { return "s" }
	byNothing := func(*http.Request, []byte) ([]byte, error) { return nil, nil }
	for text, options := range map[string][]onceward.Option{
		"BindSession":      {reserved, onceward.BindSession(session)},
		"WithoutBody":      {reserved, onceward.WithoutBody()},
		"IncludeHeaders":   {reserved, onceward.IncludeHeaders("Api-Version")},
		"FingerprintBy":    {reserved, onceward.FingerprintBy(byNothing)},
		"IncludeJSON":      {reserved, onceward.IncludeJSON("/a")},
		"IgnoreJSON":       {reserved, onceward.IgnoreJSON("/a")},
		"Methods":          {reserved, onceward.Methods(http.MethodPut)},
		"InFlightAccepted": {reserved, onceward.InFlightAccepted("/operations/")},
		"Transactional":    {onceward.Transactional()},
		"Reserved":         {},
	} {
		if _, err := guard.Procedure(options...); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	procedure, err := guard.Procedure(reserved)
	if err != nil {
		t.Fatal(err)
	}
	if err := procedure.Resume(t.Context(), new(store.Record), nil); err == nil {
		t.Error("B5: what is not to be resumed was resumed")
	}
}

// TestProceduresUnderDefaults: options that all HTTP routes have prevent no procedure, unless its calls would then be
// distinguished by less than was requested.
func TestProceduresUnderDefaults(t *testing.T) {
	t.Parallel()
	with := func(options ...onceward.Option) *onceward.Guard {
		return newGuard(t, memory.New(), func(c *onceward.Config) { c.Defaults = append(c.Defaults, options...) })
	}
	guard := with(reserved, onceward.InFlightAccepted("/operations/"), onceward.Methods(http.MethodPut),
		onceward.IgnoreJSON("/at"), onceward.IncludeJSON("/amount"))
	procedure, err := guard.Procedure()
	if err != nil {
		t.Fatal(err)
	}
	call := onceward.Call{Scope: "s", Key: "k", Operation: "pay", Payload: []byte(`{"at": 1}`)}
	_, err = procedure.Serve(t.Context(), call, func(context.Context) onceward.Answer {
		_, err := procedure.Serve(t.Context(), call, nil)
		if problem := (*onceward.Problem)(nil); !errors.As(err, &problem) || problem.Code != "in-progress" {
			t.Errorf("S1: a duplicate in flight got %v", err)
		}
		return onceward.Answer{}
	})
	if err != nil {
		t.Error(err)
	}
	call.Payload = []byte(`{"at": 2}`)
	_, err = procedure.Serve(t.Context(), call, nil)
	if problem := (*onceward.Problem)(nil); !errors.As(err, &problem) || problem.Code != "mismatch" {
		t.Errorf("S4: another payload got %v", err)
	}
	guard = with(reserved, onceward.IncludeHeaders("Api-Version"))
	if _, err := guard.Procedure(); err == nil {
		t.Error("section 3: calls of two versions would be one")
	}
	if _, err := guard.Procedure(onceward.IncludeHeaders()); err != nil {
		t.Error(err)
	}
}

// TestProcedureWithAName: pollers may look for it, and its calls need none.
func TestProcedureWithAName(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	procedure, err := guard.Procedure(reserved, onceward.OperationName("pay"))
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.CheckOperations("pay"); err != nil || procedure.Operation() != "pay" {
		t.Errorf("it is %q, error %v", procedure.Operation(), err)
	}
	if err := guard.CheckOperations("refund"); !errors.Is(err, onceward.ErrMisconfigured) {
		t.Errorf("got %v", err)
	}
	_, err = procedure.Serve(t.Context(), onceward.Call{Scope: "s", Key: "k"}, func(ctx context.Context) onceward.Answer {
		if got := onceward.FromContext(ctx).Name(); got != "pay" {
			t.Errorf("the operation is %q", got)
		}
		return onceward.Answer{}
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := guard.Procedure(reserved); err != nil {
		t.Fatal(err)
	}
	if err := guard.CheckOperations("refund"); err != nil {
		t.Errorf("a call may say what it does, so nothing is certain: %v", err)
	}
}

// TestProcedureWithOtherCodes: clients know problems by other names, stored ones too, and adapters by Onceward's own.
func TestProcedureWithOtherCodes(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New(), func(c *onceward.Config) {
		c.ProblemCode = func(code string) string { return "our-" + code }
	})
	procedure, err := guard.Procedure(onceward.Reserved(onceward.FailureStore), onceward.OperationName("pay"))
	if err != nil {
		t.Fatal(err)
	}
	want := func(err error, code string) {
		t.Helper()
		problem := new(onceward.Problem)
		if !errors.As(err, &problem) || problem.Code != "our-"+code || problem.OwnCode() != code {
			t.Errorf("got %v: %q, %q", err, problem.Code, problem.OwnCode())
		}
	}
	_, err = procedure.Serve(t.Context(), onceward.Call{Scope: "s"}, nil)
	want(err, "missing-key")
	call := onceward.Call{Scope: "s", Key: "k"}
	func() {
		defer func() { _ = recover() }()
		_, _ = procedure.Serve(t.Context(), call, func(context.Context) onceward.Answer { panic("no") })
	}()
	_, err = procedure.Serve(t.Context(), call, nil)
	want(err, "handler-failed")
	if got := (&onceward.Problem{Code: "mine"}).OwnCode(); got != "mine" {
		t.Errorf("got %q", got)
	}
}

// TestUnknownExecutionsAreObserved: the observer gets an event for an execution with an unknown outcome, in each mode,
// whatever it answered.
func TestUnknownExecutionsAreObserved(t *testing.T) {
	t.Parallel()
	unknown := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Unknown()
		w.WriteHeader(http.StatusCreated)
	})
	for name, run := range map[string]func(t *testing.T, guard *onceward.Guard){
		"HTTP": func(_ *testing.T, guard *onceward.Guard) { post(guard.Handler(unknown, reserved), "k", `{}`) },
		"procedure": func(t *testing.T, guard *onceward.Guard) {
			t.Helper()
			post(asProcedure(guard, unknown, reserved), "k", `{}`)
		},
		"function": func(t *testing.T, guard *onceward.Guard) {
			t.Helper()
			_, err := guard.Do(t.Context(), onceward.Call{Scope: "s", Key: "k", Operation: "job"},
				func(ctx context.Context) ([]byte, error) {
					onceward.FromContext(ctx).Unknown()
					return nil, nil
				}, reserved)
			if !errors.Is(err, store.ErrOutcomeUnknown) {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := new(journal)
			run(t, newGuard(t, memory.New(), observedBy(j)))
			if executed := observed[onceward.ExecutedEvent](j); len(executed) != 1 || !executed[0].Unknown {
				t.Errorf("M1: it is told as %+v", executed)
			}
		})
	}
}
