package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// serve starts a server on loopback with one transactional route over a new store.
func serve(t *testing.T, handler http.Handler, options ...onceward.Option) (*httptest.Server, *sqlite.Store) {
	t.Helper()
	store := openBusiness(t, newFile(t))
	return serveOn(t, store, handler, options...), store
}

// serveOn is serve over a store that is there.
func serveOn(t *testing.T, store *sqlite.Store, handler http.Handler, options ...onceward.Option) *httptest.Server {
	t.Helper()
	guard := newGuard(t, store)
	mux := http.NewServeMux()
	mux.Handle("POST /payments",
		guard.Handler(handler, append([]onceward.Option{onceward.Transactional()}, options...)...))
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// send sends a request over the network.
func send(ctx context.Context, server *httptest.Server, key string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/payments",
		strings.NewReader(`{"amount":1}`))
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
				if err := insert(r.Context(), "payment"); err != nil && r.Context().Err() == nil {
					t.Error(err)
				}
				fail(w, r)
			}
			server, s := serve(t, handler, onceward.ResponseLimit(1000))
			first := server
			if name == "deadline" {
				first = serveOn(t, s, handler, onceward.Deadline(10*time.Millisecond))
			}
			a, err := send(t.Context(), first, "key")
			for bound := time.Second; handler.runs.Load() == 0; bound *= 4 { // the deadline passed before the handler began
				a, err = send(t.Context(), serveOn(t, s, handler, onceward.Deadline(bound)), "key")
			}
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
			mustSend(t, server, "key").want(t, http.StatusCreated, false, "E1: the retry executes from the beginning")
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
	left, done := make(chan struct{}), make(chan struct{})
	handler.then = func(w http.ResponseWriter, r *http.Request, run int64) {
		defer close(done)
		_, _ = io.Copy(io.Discard, r.Body)
		leave()
		await.Value(t, "the client to be gone", left)
		if r.Context().Err() != nil {
			t.Error("E6: the client going away cancelled the work")
		}
		pay(w, r, run)
	}
	server, store := serve(t, handler, onceward.InFlightWait(await.Limit))
	_, err := send(ctx, server, "key")
	close(left)
	if err == nil {
		t.Error("the client did not leave")
	}
	await.Value(t, "the end of the handler", done)
	mustSend(t, server, "key").want(t, http.StatusCreated, true, "E6: the retry finds the answer")
	handler.wantRuns(t, 1, "I1")
	wantRows(t, store, "payment", 1, "I1")
}

// TestCrowd sends one key two hundred times at once.
func TestCrowd(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]onceward.Option{
		"conflict": onceward.InFlightConflict(),
		"wait":     onceward.InFlightWait(await.Limit),
	} {
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

// TestSeenInFlight: while a handler runs, the process sees its key at once, in both modes, and never waits for the
// writer.
func TestSeenInFlight(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	flying := func(want bool, rule string) {
		t.Helper()
		if s.InFlight(idOf("key")) != want {
			t.Errorf("%s: in flight is %t, want %t", rule, !want, want)
		}
	}
	flying(false, "before")
	waited := make(chan error, 1)
	transacted(t, s, reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
		if err := insert(ctx, "row"); err != nil {
			t.Error(err)
		}
		flying(true, "E1")
		await.Return(t, "a duplicate in flight", func() {
			transacted(t, s, reservation("key"), never(t, "I1"), store.DecisionInProgress, "E1: a duplicate")
			changed := reservation("key")
			changed.Fingerprints[0].Sum = [32]byte{2}
			transacted(t, s, changed, never(t, "I8"), store.DecisionInProgress,
				"S4: nothing is visible before the commit")
			if v, err := s.Reserve(t.Context(), reservation("key")); err != nil ||
				v.Decision != store.DecisionInProgress {
				t.Errorf("E1: the same key in reserved mode got (%s, %v)", v.Decision, err)
			}
			wantState(t, s, "key", store.StateNone, "E1: before the commit")
			wantRows(t, s, "row", 0, "E1: before the commit")
			if s.InFlight(idOf("other")) {
				t.Error("another key is in flight")
			}
		})
		brief, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := s.Wait(brief, idOf("key"), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for what goes on got %v", err)
		}
		go func() { waited <- s.Wait(context.Background(), idOf("key"), 0) }()
		return settled(store.TxCommit, "done")
	}, store.DecisionExecute, "E1")
	flying(false, "after")
	await.Return(t, "the wait for a transaction that ended", func() {
		if err := errors.Join(<-waited, s.Wait(t.Context(), idOf("key"), 0)); err != nil {
			t.Error(err)
		}
	})
	transacted(t, s, reservation("key"), never(t, "I1"), store.DecisionReplay, "I3")
}

// TestReservedMeetsTransactional: a record in progress in reserved mode is in progress for a transaction too.
func TestReservedMeetsTransactional(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	grant, err := s.Reserve(t.Context(), reservation("key"))
	if err != nil {
		t.Fatal(err)
	}
	transacted(t, s, reservation("key"), never(t, "I1"), store.DecisionInProgress, "E1")
	if s.InFlight(idOf("key")) {
		t.Error("a reservation is not a transaction")
	}
	claim := store.Claim{ID: idOf("key"), Attempt: grant.Record.Attempt}
	if err := s.Release(t.Context(), claim, "no stock"); err != nil {
		t.Fatal(err)
	}
	transacted(t, s, reservation("key"), inserting("row"), store.DecisionExecute, "section 4")
	if err := s.Extend(t.Context(), claim, time.Minute); !errors.Is(err, store.ErrFenced) {
		t.Errorf("I6: the earlier owner got %v, want to be fenced", err)
	}
}

// TestStatusInFlight: the status of a transaction that is under way, for the policy that answers 202.
func TestStatusInFlight(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	guard := newGuard(t, store)
	mux := http.NewServeMux()
	mux.Handle("GET /operations/{key}", guard.StatusHandler())
	status := func() answer {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/operations/key", nil))
		return answer{status: w.Code, header: w.Result().Header, body: w.Body.String()}
	}
	handler := paying()
	inner := handler.then
	var h http.Handler
	handler.then = func(w http.ResponseWriter, r *http.Request, run int64) {
		await.Return(t, "the status of a transaction in flight", func() {
			if a := status(); a.status != http.StatusOK {
				t.Errorf("section 6: the status in flight is %d %s", a.status, a.body)
			}
			duplicate := post(h, "key")
			if duplicate.status != http.StatusAccepted || duplicate.header.Get("Location") == "" ||
				duplicate.header.Get("Retry-After") == "" {
				t.Errorf("section 6: a duplicate got %d %v", duplicate.status, duplicate.header)
			}
		})
		inner(w, r, run)
	}
	h = guard.Handler(handler, onceward.Transactional(), onceward.InFlightAccepted("/operations/"))
	if a := status(); a.status != http.StatusNotFound {
		t.Errorf("section 6: the status of no key is %d", a.status)
	}
	post(h, "key").want(t, http.StatusCreated, false, "E1")
	if a := status(); a.status != http.StatusOK {
		t.Errorf("section 6: the status afterwards is %d %s", a.status, a.body)
	}
	handler.wantRuns(t, 1, "I1")
}

// TestTrailersOfATransaction: they reach the first client behind an answer that is committed, and are not replayed
// (A9).
func TestTrailersOfATransaction(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*httptest.Server){
		"HTTP/1.1": (*httptest.Server).Start,
		"HTTP/2": func(s *httptest.Server) {
			s.EnableHTTP2 = true
			s.StartTLS()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := openBusiness(t, newFile(t))
			server := httptest.NewUnstartedServer(newGuard(t,
				store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				if err := insert(r.Context(), "payment"); err != nil {
					t.Error(err)
				}
				io.WriteString(w, strings.Repeat("paid ", 1000))
				w.Header().Set("X-Sum", "1")
				w.Header().Set(http.TrailerPrefix+"X-Rows", "2")
			}, onceward.Transactional(), onceward.OperationName("pay")))
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			start(server)
			t.Cleanup(server.Close)
			for i := range 2 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments",
					strings.NewReader(`{}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Idempotency-Key", "key")
				res, err := server.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || len(body) != 5000 || !strings.HasPrefix(res.Proto, name) {
					t.Errorf("A9: answer %d came by %s with %d bytes: %v", i+1, res.Proto, len(body), err)
				}
				sum, rows := res.Trailer.Get("X-Sum"), res.Trailer.Get("X-Rows")
				if first := sum == "1" && rows == "2"; first != (i == 0) || i == 1 && len(res.Trailer) != 0 {
					t.Errorf("A9: answer %d has the trailers %v", i+1, res.Trailer)
				}
			}
			wantRows(t, store, "payment", 1, "I1")
		})
	}
}

// TestReplaysWriteNothing: who sprays one key gets its answer, and fills no disk: file and log stay as large as the
// payment made them (scenario 33).
func TestReplaysWriteNothing(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]onceward.Option{
		"transactional": onceward.Transactional(), "reserved": onceward.Reserved(onceward.FailureUnknown),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openBusiness(t, path)
			handler := &counted{then: func(w http.ResponseWriter, _ *http.Request, _ int64) {
				w.WriteHeader(http.StatusCreated)
			}}
			route := newGuard(t, store).Handler(handler, mode)
			post(route, "key").want(t, http.StatusCreated, false, "section 6")
			before := bytesOnDisk(t, path)
			const replays, clients = 5000, 8
			var sent atomic.Int64
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for sent.Add(1) <= replays {
						post(route, "key").want(t, http.StatusCreated, true, "scenario 33")
					}
				})
			}
			all.Wait()
			handler.wantRuns(t, 1, "scenario 33")
			if after := bytesOnDisk(t, path); after != before {
				t.Errorf("scenario 33: %d replays let the files grow from %d to %d bytes", replays, before, after)
			}
		})
	}
}

// bytesOnDisk is the size of a database with its log.
func bytesOnDisk(t *testing.T, path string) (size int64) {
	t.Helper()
	for _, file := range []string{path, path + "-wal"} {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}

// TestAuditExecutionsInTransaction: a transactional route writes who called without waiting for the writer that it holds.
func TestAuditExecutionsInTransaction(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	h := newGuard(t, s).Handler(paying(), onceward.Transactional(), onceward.OperationName("pay"),
		onceward.AuditExecutions(func(*http.Request) string { return "ann" }))
	await.Return(t, "two requests", func() {
		post(h, "key-1").want(t, http.StatusCreated, false, "L7")
		post(h, "key-1").want(t, http.StatusCreated, true, "L7")
	})
	entries, err := s.ListExecutions(t.Context(), store.AuditFilter{})
	if err != nil || len(entries) != 2 || entries[1].Decision != store.DecisionExecute || entries[1].Actor != "ann" ||
		entries[0].Decision != store.DecisionReplay || entries[0].Attempt != entries[1].Attempt {
		t.Errorf("L7: audited are %+v (%v)", entries, err)
	}
}
