package onceward_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// startServerSignalling serves on loopback and closes done when the first request has been answered as far as the server
// can tell, whoever reads it.
func startServerSignalling(t *testing.T, h http.Handler) (server *httptest.Server, done chan struct{}) {
	t.Helper()
	done = make(chan struct{})
	var first sync.Once
	return startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer first.Do(func() { close(done) })
		h.ServeHTTP(w, r)
	})), done
}

// leaveAndWait cuts a client's connection and waits until net/http has noticed, which it does only after the body has been
// read to its end.
func leaveAndWait(t *testing.T, conn net.Conn, request context.Context) {
	t.Helper()
	conn.Close()
	select {
	case <-request.Done():
	case <-time.After(10 * time.Second):
		t.Error("net/http did not external event that the client left")
	}
}

const wholeRequest = head + "Idempotency-Key: k\nContent-Length: 2\n\n{}"

func TestTheClientLeavesWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	store := memory.New()
	var outer context.Context
	running, goOn := make(chan struct{}), make(chan struct{})
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(running)
		<-goOn
		if err := r.Context().Err(); err != nil {
			t.Errorf("E6: the handler's context ended: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "the answer")
	}}
	inner := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	server, done := startServerSignalling(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer == nil {
			outer = r.Context()
		}
		inner.ServeHTTP(w, r)
	}))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	await(t, "the handler", running)
	leaveAndWait(t, conn, outer)
	send(t, server, "k", `{}`).wantProblem(t, "E6: still running", http.StatusConflict, "in-progress")
	close(goOn)
	await(t, "the end of the request", done)
	a := send(t, server, "k", `{}`)
	a.want(t, "E6: the retry finds the result", http.StatusCreated, true)
	if a.body != "the answer" {
		t.Errorf("E6: the stored answer is %q", a.body)
	}
	handler.wantRuns(t, "E6", 1)
}

func TestTheClientLeavesBeforeItsBodyIsComplete(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	server, done := startServerSignalling(t, newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown)))
	conn := dial(t, server.Listener.Addr().String(), head+"Idempotency-Key: k\nContent-Length: 2\n\n{")
	conn.Close()
	await(t, "the end of the request", done)
	handler.wantRuns(t, "scenario 17", 0)
	wantNothingStored(t, "F5", store)
	send(t, server, "k", `{}`).want(t, "scenario 17", http.StatusCreated, false)
	handler.wantRuns(t, "scenario 17", 1)
}

func TestTheClientLeavesWhileReserving(t *testing.T) {
	t.Parallel()
	s, handler, events := newFaultyStore(), new(counted), new(journal)
	reserving, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
		once.Do(func() {
			close(reserving)
			<-goOn
		})
		return s.Store.Reserve(ctx, r)
	}
	var outer context.Context
	inner := newGuard(t, s, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	server, done := startServerSignalling(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer == nil {
			outer = r.Context()
		}
		inner.ServeHTTP(w, r)
	}))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	await(t, "the reservation", reserving)
	leaveAndWait(t, conn, outer)
	close(goOn)
	await(t, "the end of the request", done)
	handler.wantRuns(t, "S9: nobody waits for it", 0)
	wantState(t, "S9: the grant is released at once", s, "k", store.StateRetryable)
	if settled := observed[onceward.SettledEvent](events); len(settled) != 1 || settled[0].State != store.StateRetryable {
		t.Errorf("S9: settled: %+v, want one release", settled)
	}
	send(t, server, "k", `{}`).want(t, "scenario 17", http.StatusCreated, false)
	handler.wantRuns(t, "scenario 17", 1)
}

func TestTheClientLeavesWhileTheAnswerIsWritten(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	completing, goOn := make(chan struct{}), make(chan struct{})
	s.complete = func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
		close(completing)
		<-goOn
		if err := ctx.Err(); err != nil {
			t.Errorf("E6: the context that stores the answer ended with the client: %v", err)
		}
		return s.Store.Complete(ctx, c, done)
	}
	large := strings.Repeat("0123456789", 50_000)
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, large) }}
	var outer context.Context
	inner := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	server, done := startServerSignalling(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer == nil {
			outer = r.Context()
		}
		inner.ServeHTTP(w, r)
	}))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	await(t, "the completion", completing)
	leaveAndWait(t, conn, outer)
	close(goOn)
	await(t, "the end of the request", done)
	wantState(t, "E6", s, "k", store.StateCompleted)
	a := send(t, server, "k", `{}`)
	a.want(t, "scenario 18: the answer was lost after completion", http.StatusOK, true)
	if a.body != large {
		t.Errorf("scenario 18: the stored answer has %d bytes, want %d", len(a.body), len(large))
	}
	handler.wantRuns(t, "scenario 18", 1)
}

func TestTheClientLeavesInTheMiddleOfTheAnswer(t *testing.T) {
	t.Parallel()
	store := memory.New()
	large := strings.Repeat("0123456789", 100_000)
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, large) }}
	server, done := startServerSignalling(t, newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown)))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	if _, err := io.ReadFull(conn, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	await(t, "the end of the request", done)
	a := send(t, server, "k", `{}`)
	a.want(t, "scenario 18", http.StatusOK, true)
	if a.body != large {
		t.Errorf("scenario 18: the stored answer has %d bytes, want %d", len(a.body), len(large))
	}
	handler.wantRuns(t, "scenario 18", 1)
}

func TestTheClientLeavesWhileItWaits(t *testing.T) {
	t.Parallel()
	s, events := memory.New(), new(journal)
	running, goOn := make(chan struct{}), make(chan struct{})
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		close(running)
		<-goOn
		w.WriteHeader(http.StatusServiceUnavailable)
	}}
	h := newGuard(t, s, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureRetry), onceward.InFlightWait(time.Minute))
	firstDone := make(chan answer, 1)
	go func() { firstDone <- post(h, "k", `{}`) }()
	await(t, "the handler", running)
	ctx, leave := context.WithCancel(t.Context())
	waiterDone := make(chan answer, 1)
	go func() {
		waiterDone <- post(h, "k", `{}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
	}()
	leave()
	await(t, "the answer to the one that left", waiterDone).wantProblem(t, "S9", http.StatusServiceUnavailable, "not-executed")
	close(goOn)
	await(t, "the answer to the first", firstDone).want(t, "S9", http.StatusServiceUnavailable, false)
	wantState(t, "S9: a waiter that left takes no grant", s, "k", store.StateRetryable)
	handler.wantRuns(t, "S9", 1)
}

func TestTheCallersValuesStay(t *testing.T) {
	t.Parallel()
	type keyType struct{}
	handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
		if got := r.Context().Value(keyType{}); got != "value" {
			t.Errorf("E6: the detached context lost a value: %v", got)
		}
		if r.Context().Value(http.ServerContextKey) == nil {
			t.Error("E6: the detached context lost the server's values")
		}
	}}
	inner := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	server := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyType{}, "value")))
	}))
	send(t, server, "k", `{}`).want(t, "E6", http.StatusOK, false)
	handler.wantRuns(t, "E6", 1)
}
