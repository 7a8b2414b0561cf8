package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servicetest"
)

// Scenario 17: the client leaves at each step. A step is held by keeping the server's reply to its statement.

// step is where a client leaves.
type step struct {
	name string
	mode string
	// held finds the statement whose reply is kept while the client leaves.
	held func(sql string) bool
	// executes says that the request is executed although the client has left.
	executes bool
}

// second finds the second statement that matches.
func second(match func(string) bool) func(string) bool {
	seen := 0
	return func(sql string) bool {
		if match(sql) {
			seen++
		}
		return seen == 2
	}
}

func steps() []step {
	return []step{
		{"claim", "transactional", matching(`pg_try_advisory_xact_lock`), false},
		{"work", "transactional", matching(`INSERT INTO business`), true},
		{"commit", "transactional", isCommit, true},
		{"reserve", "reserved", matching(`onceward_step`), false},
		{"work", "reserved", matching(`INSERT INTO business`), true},
		{"complete", "reserved", second(matching(`onceward_step`)), true},
	}
}

// counter is a server whose requests the test can follow.
type counter struct {
	*httptest.Server
	runs atomic.Int64
	// left tells that the server has noticed that a client left, done that a request is over, whoever reads its answer.
	left, done chan struct{}
}

// newCounter serves a route in front of a store behind a proxy. The effect of a reserved handler goes through the proxy too.
func newCounter(t *testing.T, s *site, proxy *servicetest.Proxy, mode string) *counter {
	t.Helper()
	c := &counter{left: make(chan struct{}, 10), done: make(chan struct{}, 10)}
	outside, err := pgxpool.New(t.Context(), proxy.URL())
	must(t, err)
	t.Cleanup(outside.Close)
	route := guardOver(t, s.store(t, pgxHandle, proxy.URL())).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if mode == "transactional" {
			err = insertPgx(r.Context(), "paid")
		} else {
			_, err = outside.Exec(r.Context(), `INSERT INTO business (value) VALUES ($1)`, "paid")
		}
		if err != nil {
			t.Errorf("E6: the handler was disturbed: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "run ", c.runs.Add(1))
	}, bothModes[mode])
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { c.done <- struct{}{} }()
		defer context.AfterFunc(r.Context(), func() { c.left <- struct{}{} })()
		route.ServeHTTP(w, r)
	}))
	c.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	c.Start()
	t.Cleanup(c.Close)
	return c
}

func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for _, step := range steps() {
		t.Run(step.mode+"/"+step.name, func(t *testing.T) {
			s := newSite(t, servicetest.Postgres(t))
			proxy := servicetest.NewProxy(t, s.url)
			c := newCounter(t, s, proxy, step.mode)
			release := proxy.HoldReply(step.held)
			defer release()
			ctx, leave := context.WithCancel(t.Context())
			go func() { _, _ = send(ctx, oneShot, c.URL, "key") }()
			must(t, proxy.AwaitSprung(t.Context(), 1))
			leave()
			await(t, "the news that the client left", c.left)
			mustSend(t, c.URL, "key").wantProblem(t, http.StatusConflict, "in-progress", "the first request is not over")
			await(t, "the end of the duplicate", c.done)
			release()
			await(t, "the end of the first request", c.done)
			if executed := c.runs.Load() == 1; executed != step.executes {
				t.Errorf("E6, S9: executed %t, want %t", executed, step.executes)
			}
			mustSend(t, c.URL, "key").want(t, http.StatusCreated, step.executes, "E6: the retry finds the result")
			again := mustSend(t, c.URL, "key")
			again.want(t, http.StatusCreated, true, "I3")
			if again.body != "run 1" {
				t.Errorf("I1: the answer is %q, want that of the first run", again.body)
			}
			s.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestClientLeavesBeforeItsBodyIsThere never gets as far as the store.
func TestClientLeavesBeforeItsBodyIsThere(t *testing.T) {
	t.Parallel()
	for mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t, servicetest.Postgres(t))
			proxy := servicetest.NewProxy(t, s.url)
			c := newCounter(t, s, proxy, mode)
			before := proxy.RoundTrips()
			conn, err := net.Dial("tcp", c.Listener.Addr().String())
			must(t, err)
			_, err = conn.Write([]byte("POST / HTTP/1.1\r\nHost: test\r\nIdempotency-Key: key\r\nContent-Length: 12\r\n\r\n{\"amo"))
			must(t, err)
			must(t, conn.Close())
			await(t, "the end of the first request", c.done)
			if n := proxy.RoundTrips(); n != before {
				t.Errorf("A7: the store was asked %d times", n-before)
			}
			mustSend(t, c.URL, "key").want(t, http.StatusCreated, false, "scenario 17")
			mustSend(t, c.URL, "key").want(t, http.StatusCreated, true, "scenario 17")
			s.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestClientLeavesWhileItWaits has a duplicate leave that waits for an answer; the others get theirs.
func TestClientLeavesWhileItWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t, servicetest.Postgres(t))
	proxy := servicetest.NewProxy(t, s.url)
	owner := payingRoute(t, pgxHandle, s.store(t, pgxHandle, proxy.URL()))
	// The one that waits is another process, as far as the stores know.
	elsewhere := payingRoute(t, pgxHandle, s.store(t, pgxHandle, s.url), onceward.Wait(30*time.Second))
	release := proxy.HoldReply(matching(`INSERT INTO business`))
	defer release()
	first, patient := make(chan httpReply, 1), make(chan httpReply, 1)
	go func() { first <- post(owner, "key") }()
	must(t, proxy.AwaitSprung(t.Context(), 1))
	go func() { patient <- post(elsewhere, "key") }()
	ctx, leave := context.WithCancel(t.Context())
	hasty := make(chan httpReply, 1)
	go func() {
		w := httptest.NewRecorder()
		elsewhere.ServeHTTP(w, paymentRequest("key").WithContext(ctx))
		hasty <- httpReply{status: w.Code, header: w.Header(), body: w.Body.String()}
	}()
	s.awaitWaiters(t)
	leave()
	await(t, "the one that left", hasty).wantProblem(t, http.StatusServiceUnavailable, "not-executed", "S9")
	release()
	await(t, "the owner's answer", first).want(t, http.StatusCreated, false, "E6")
	await(t, "the patient one's answer", patient).want(t, http.StatusCreated, true, "E6")
	s.wantRows(t, "key", 1, "I1")
}
