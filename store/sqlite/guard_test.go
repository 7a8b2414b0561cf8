package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// serve starts a server on loopback with one transactional route over a new store.
func serve(t *testing.T, handler http.Handler, options ...onceward.Option) (*httptest.Server, *sqlite.Store) {
	t.Helper()
	store := openBusiness(t, newFile(t))
	guard := newGuard(t, store)
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(handler, append([]onceward.Option{onceward.Transactional()}, options...)...))
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server, store
}

// send sends a request over the network.
func send(ctx context.Context, server *httptest.Server, key string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/payments", strings.NewReader(`{"amount":1}`))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Idempotency-Key", key)
	res, err := server.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, body: string(body)}, err
}

func mustSend(t *testing.T, server *httptest.Server, key string) answer {
	t.Helper()
	a, err := send(t.Context(), server, key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTransactionalRoute(t *testing.T) {
	t.Parallel()
	handler := paying()
	server, store := serve(t, handler)
	first := mustSend(t, server, "key")
	first.want(t, http.StatusCreated, false, "E1")
	wantRows(t, store, "payment", 1, "I2")
	for range 3 {
		again := mustSend(t, server, "key")
		again.want(t, http.StatusCreated, true, "I3")
		if again.body != first.body || again.header.Get("Location") != first.header.Get("Location") {
			t.Errorf("I3: %q %v after %q %v", again.body, again.header, first.body, first.header)
		}
	}
	handler.wantRuns(t, 1, "I1")
	wantRows(t, store, "payment", 1, "I1")
}

// TestFirstAnswerFails: the first try leaves nothing, the second succeeds.
func TestFirstAnswerFails(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request){
		"500":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"503":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"429":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"panic": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"said so": func(w http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).NotExecuted()
			w.WriteHeader(http.StatusCreated)
		},
		"unknown": func(w http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Unknown()
			w.WriteHeader(http.StatusBadGateway)
		},
		"too large": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2000)) },
		"deadline":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := paying()
			pay := handler.then
			handler.then = func(w http.ResponseWriter, r *http.Request, run int64) {
				if run > 1 {
					pay(w, r, run)
					return
				}
				if err := insert(r.Context(), "payment"); err != nil {
					t.Error(err)
				}
				fail(w, r)
			}
			server, s := serve(t, handler, onceward.ResponseLimit(1000), onceward.Deadline(50*time.Millisecond))
			a, err := send(t.Context(), server, "key")
			switch name {
			case "panic":
				if err == nil {
					t.Errorf("E8: a panic goes on to the server, but the client got %d", a.status)
				}
			case "too large":
				a.wantProblem(t, http.StatusInternalServerError, "response-too-large", "A4")
			case "deadline":
				a.wantProblem(t, http.StatusServiceUnavailable, "deadline-exceeded", "E5")
			default:
				if err != nil || a.status < 400 || a.replayed() {
					t.Errorf("E5: got %d, %v", a.status, err)
				}
			}
			wantRows(t, s, "payment", 0, "E1: a failure undoes everything")
			wantState(t, s, "key", store.StateNone, "E1: a failure leaves nothing behind")
			mustSend(t, server, "key").want(t, http.StatusCreated, false, "E1: the retry runs afresh")
			mustSend(t, server, "key").want(t, http.StatusCreated, true, "I3")
			handler.wantRuns(t, 2, "E1")
			wantRows(t, s, "payment", 1, "I1")
		})
	}
}

// TestUniqueViolation: a handler that runs into it and answers 409 works; its writes go, its answer stays.
func TestUniqueViolation(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request, _ int64) {
		tx := onceward.Tx(r.Context())
		if err := insert(r.Context(), "attempted"); err != nil {
			t.Error(err)
		}
		if r.Header.Get("Idempotency-Key") == "kept" {
			onceward.FromContext(r.Context()).KeepWrites()
		}
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO names VALUES ('taken')`); err != nil {
			http.Error(w, "the name is taken", http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}}
	server, store := serve(t, handler)
	exec(t, store, `CREATE TABLE names (name TEXT PRIMARY KEY)`)
	mustSend(t, server, "first").want(t, http.StatusCreated, false, "E1")
	for _, replayed := range []bool{false, true} {
		a := mustSend(t, server, "second")
		a.want(t, http.StatusConflict, replayed, "E1: a 409 is stored")
		if a.body != "the name is taken\n" {
			t.Errorf("I3: got %q", a.body)
		}
		wantRows(t, store, "attempted", 1, "E1: a 4xx undoes the work")
	}
	for _, replayed := range []bool{false, true} {
		mustSend(t, server, "kept").want(t, http.StatusConflict, replayed, "E1: KeepWrites")
		wantRows(t, store, "attempted", 2, "E1: KeepWrites")
	}
	handler.wantRuns(t, 3, "I1")
}

// TestClientLeaves while the handler runs: the work is finished, and the retry finds its answer (E6).
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	handler := paying()
	pay := handler.then
	done := make(chan struct{})
	handler.then = func(w http.ResponseWriter, r *http.Request, run int64) {
		defer close(done)
		_, _ = io.Copy(io.Discard, r.Body)
		leave()
		if r.Context().Err() != nil {
			t.Error("E6: the client going away cancelled the work")
		}
		pay(w, r, run)
	}
	server, store := serve(t, handler, onceward.InFlightWait(20*time.Second))
	if _, err := send(ctx, server, "key"); err == nil {
		t.Error("the client did not leave")
	}
	await(t, "the end of the handler", done)
	mustSend(t, server, "key").want(t, http.StatusCreated, true, "E6: the retry finds the answer")
	handler.wantRuns(t, 1, "I1")
	wantRows(t, store, "payment", 1, "I1")
}

// TestCrowd sends one key two hundred times at once.
func TestCrowd(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]onceward.Option{"conflict": onceward.InFlightConflict(), "wait": onceward.InFlightWait(20 * time.Second)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := paying()
			server, store := serve(t, handler, policy)
			const crowd = 200
			answers := make([]answer, crowd)
			var group sync.WaitGroup
			for i := range crowd {
				group.Go(func() {
					a, err := send(context.Background(), server, "key")
					if err != nil {
						t.Error(err)
					}
					answers[i] = a
				})
			}
			group.Wait()
			first := 0
			for _, a := range answers {
				switch {
				case a.status == http.StatusCreated && a.body == `{"id":1}`:
					if !a.replayed() {
						first++
					}
				case name == "conflict" && a.status == http.StatusConflict && a.header.Get("Retry-After") != "":
				default:
					t.Errorf("section 6: got %d %q", a.status, a.body)
				}
			}
			if first != 1 {
				t.Errorf("I1: %d first answers", first)
			}
			handler.wantRuns(t, 1, "I1")
			wantRows(t, store, "payment", 1, "I1")
		})
	}
}

// TestDo: the same for a function that is no handler.
func TestDo(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	guard := newGuard(t, store)
	call := onceward.Call{Scope: "alice", Key: "message", Operation: "consume", Payload: []byte("payload")}
	for _, replayed := range []bool{false, true} {
		result, err := guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			return []byte("value"), insert(ctx, "row")
		}, onceward.Transactional())
		if err != nil || result.Replayed != replayed || string(result.Value) != "value" {
			t.Errorf("E4: got (%+v, %v)", result, err)
		}
	}
	wantRows(t, store, "row", 1, "I1")
	failing := call
	failing.Key = "failing"
	if _, err := guard.Do(t.Context(), failing, func(ctx context.Context) ([]byte, error) {
		return nil, errors.Join(insert(ctx, "row"), sql.ErrNoRows)
	}, onceward.Transactional()); err == nil {
		t.Error("E4: the error of the function is lost")
	}
	wantRows(t, store, "row", 1, "E1: an error undoes everything")
}
