package onceward_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// startServerSignalling serves on loopback and closes done when the first request has been answered as far as the
// server knows, wherever it is read.
func startServerSignalling(t *testing.T, h http.Handler) (server *httptest.Server, done chan struct{}) {
	t.Helper()
	done = make(chan struct{})
	var first sync.Once
	return startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer first.Do(func() { close(done) })
		h.ServeHTTP(w, r)
	})), done
}

// leaveAndWait cuts a client's connection and waits until net/http has noticed, which it does only after the body has
// been read to its end.
func leaveAndWait(t *testing.T, conn net.Conn, request context.Context) {
	t.Helper()
	conn.Close()
	await.Value(t, "net/http to notice that the client left", request.Done())
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
	inner := newGuard(t, store).Handler(handler, reserved)
	server, done := startServerSignalling(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer == nil {
			outer = r.Context()
		}
		inner.ServeHTTP(w, r)
	}))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	await.Value(t, "the handler", running)
	leaveAndWait(t, conn, outer)
	send(t, server, "k", `{}`).wantProblem(t, "E6: still running", http.StatusConflict, "in-progress")
	close(goOn)
	await.Value(t, "the end of the request", done)
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
	server, done := startServerSignalling(t, newGuard(t, store).Handler(handler, reserved))
	conn := dial(t, server.Listener.Addr().String(), head+"Idempotency-Key: k\nContent-Length: 2\n\n{")
	conn.Close()
	await.Value(t, "the end of the request", done)
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
	inner := newGuard(t, s, observedBy(events)).Handler(handler, reserved)
	server, done := startServerSignalling(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer == nil {
			outer = r.Context()
		}
		inner.ServeHTTP(w, r)
	}))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	await.Value(t, "the reservation", reserving)
	leaveAndWait(t, conn, outer)
	close(goOn)
	await.Value(t, "the end of the request", done)
	handler.wantRuns(t, "S9: no caller waits for it", 0)
	wantState(t, "S9: the grant is released at once", s, "k", store.StateRetryable)
	if settled := observed[onceward.SettledEvent](events); len(settled) != 1 ||
		settled[0].State != store.StateRetryable {
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
	inner := newGuard(t, s).Handler(handler, reserved)
	server, done := startServerSignalling(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outer == nil {
			outer = r.Context()
		}
		inner.ServeHTTP(w, r)
	}))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	await.Value(t, "the completion", completing)
	leaveAndWait(t, conn, outer)
	close(goOn)
	await.Value(t, "the end of the request", done)
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
	server, done := startServerSignalling(t, newGuard(t, store).Handler(handler, reserved))
	conn := dial(t, server.Listener.Addr().String(), wholeRequest)
	if _, err := io.ReadFull(conn, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	await.Value(t, "the end of the request", done)
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
	h := newGuard(t, s, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureRetry),
		onceward.InFlightWait(time.Minute))
	firstDone := make(chan answer, 1)
	go func() { firstDone <- post(h, "k", `{}`) }()
	await.Value(t, "the handler", running)
	ctx, leave := context.WithCancel(t.Context())
	waiterDone := make(chan answer, 1)
	go func() {
		waiterDone <- post(h, "k", `{}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
	}()
	leave()
	await.Value(t, "the answer to the one that left", waiterDone).
		wantProblem(t, "S9", http.StatusServiceUnavailable, "not-executed")
	close(goOn)
	await.Value(t, "the answer to the first", firstDone).want(t, "S9", http.StatusServiceUnavailable, false)
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
	inner := newGuard(t, memory.New()).Handler(handler, reserved)
	server := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyType{}, "value")))
	}))
	send(t, server, "k", `{}`).want(t, "E6", http.StatusOK, false)
	handler.wantRuns(t, "E6", 1)
}

// This file tests goroutines that a handler left running: they reach nothing that comes after it.

// TestAStrayGoroutineUnderAStoredFailure lets one at what the handler gave it while the failure is being stored.
func TestAStrayGoroutineUnderAStoredFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		storing, done := make(chan struct{}), make(chan struct{})
		s.complete = func(ctx context.Context, c store.Claim, completion *store.Completion) (time.Time, error) {
			close(storing)
			<-done
			return s.Store.Complete(ctx, c, completion)
		}
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			go func() {
				defer close(done)
				<-storing
				w.Header().Del("X-Frame-Options")
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(http.StatusOK)
				if _, err := io.WriteString(w, "a late success"); err == nil {
					t.Error("E5: a write after the handler's end succeeds")
				}
			}()
			<-r.Context().Done()
		}}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureStore))
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Frame-Options", "DENY")
			h.ServeHTTP(w, r)
		})
		first := post(outer, "k", `{}`)
		first.wantProblem(t, "E5", http.StatusInternalServerError, "handler-failed")
		if got := first.header.Get("X-Frame-Options"); got != "DENY" {
			t.Errorf("E5: a goroutine that the handler left behind changed the failure: X-Frame-Options is %q, want DENY", got)
		}
		again := post(outer, "k", `{}`)
		again.want(t, "E5: stored", http.StatusInternalServerError, true)
		again.wantSame(t, "E5: stored", first)
		handler.wantRuns(t, "E5", 1)
	})
}

// TestAStrayGoroutineThatKeepsWriting: whatever it does, and under the race detector, the failure is what is stored.
func TestAStrayGoroutineThatKeepsWriting(t *testing.T) {
	t.Parallel()
	for range 50 {
		stop, stopped := make(chan struct{}), make(chan struct{})
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						w.Header().Set("Content-Type", "text/plain")
						_, _ = io.WriteString(w, "x") // an error as soon as the handler has ended
					}
				}
			}()
			panic("the handler's panic")
		}}
		h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureStore),
			onceward.ResponseLimit(64<<20))
		panicOf(func() { post(h, "k", `{}`) })
		close(stop)
		<-stopped
		post(h, "k", `{}`).wantProblem(t, "E5: stored", http.StatusInternalServerError, "handler-failed")
		handler.wantRuns(t, "E5", 1)
	}
}

// TestWhatAnUndoneRunLeftBehind: a transaction may be undone and its work repeated.
func TestWhatAnUndoneRunLeftBehind(t *testing.T) {
	t.Parallel()
	store := &scriptedTransactor{Store: memory.New(), reruns: 1}
	var earlier http.ResponseWriter
	var request *http.Request
	var body io.Reader
	handler := new(counted)
	handler.then = func(w http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		if handler.runs.Load() == 1 {
			earlier, request, body = w, r, r.Body
			op.SetProviderID("of the first run")
			op.Retain(48 * time.Hour)
			io.WriteString(w, "the first run")
			return
		}
		earlier.Header().Set("X-Stray", "yes")
		if _, err := io.WriteString(earlier, "a stray write"); err == nil {
			t.Error("E1: a write of an undone run succeeds")
		}
		if request == r || request.Body != body {
			t.Error("E1: the second run changes the request of the first, which may still be read")
		}
		if n, err := body.Read(make([]byte, 10)); n != 0 || err == nil {
			t.Errorf("E1: an undone run reads %d bytes of the body, %v", n, err)
		}
		if content, err := io.ReadAll(r.Body); err != nil || string(content) != `{"amount":1}` {
			t.Errorf("E1: the second run reads %q, %v", content, err)
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "the second run")
	}
	h := newGuard(t, store).Handler(handler, onceward.Transactional())
	first := post(h, "k", `{"amount":1}`)
	first.want(t, "E1", http.StatusCreated, false)
	if first.body != "the second run" || first.header.Get("X-Stray") != "" {
		t.Errorf("E1: the answer is %q with %v, want that of the second run alone", first.body, first.header)
	}
	if store.done.ProviderID != "" || store.done.Retention != 0 {
		t.Errorf("E1: an undone run's words are stored: %+v", store.done)
	}
	handler.wantRuns(t, "E1", 2)
}

// TestAStrayGoroutineBehindAPanic: it continues with the header of an answer that is not sent any more. Reading that
// header would be a fault that no process survives.
func TestAStrayGoroutineBehindAPanic(t *testing.T) {
	t.Parallel()
	for range 50 {
		stop, started, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			for i := range 500 {
				h.Set("X-"+strconv.Itoa(i), "x")
			}
			w.WriteHeader(http.StatusCreated)
			go func() {
				defer close(stopped)
				for i := 0; ; i++ {
					h.Set("X-"+strconv.Itoa(i%1000), "y")
					if i == 0 {
						close(started)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			<-started
			panic("the handler's panic")
		}}
		h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureStore))
		panicOf(func() { post(h, "k", `{}`) })
		close(stop)
		<-stopped
	}
}
