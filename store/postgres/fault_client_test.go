package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
)

// Scenario 17: the client leaves at each step. A step is held by keeping the server's reply to its statement.

// moment is where a client leaves.
type moment struct {
	name string
	mode string
	// armed says from when on the store's, or the handler's, next statement is the one to hold: the start of the
	// request, that of the handler, or the end of the handler.
	armed string
	// executes says that the request is executed although the client has left.
	executes bool
	// landed says that others can have the answer although the owner does not know yet that it is stored.
	landed bool
}

var moments = []moment{
	{"claim", "transactional", "start", false, false},
	{"work", "transactional", "handler", true, false},
	{"commit", "transactional", "end", true, true},
	{"reserve", "reserved", "start", false, false},
	{"work", "reserved", "handler", true, false},
	{"complete", "reserved", "end", true, true},
}

func ofStoreOrHandler(sql string) bool { return ofStore(sql) || strings.Contains(sql, "business") }

// counter is a server whose requests the test can follow.
type counter struct {
	*httptest.Server
	runs atomic.Int64
	// at is called at the start and at the end of the handler.
	at func(when string)
	// left tells that the server has noticed that a client left, done that a request is over, whether or not its answer
	// is read.
	left, done chan struct{}
}

// newCounter serves a route in front of a store at a URL. The effect of a reserved handler goes there too.
func newCounter(t *testing.T, s *site, url, mode string) *counter {
	t.Helper()
	c := &counter{at: func(string) {}, left: make(chan struct{}, 10), done: make(chan struct{}, 10)}
	outside, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(outside.Close)
	route := guardOver(t, s.store(t, pgxHandle, url)).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.at("handler")
		defer c.at("end")
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
	}, bothModes[mode], onceward.OperationName("pay"))
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
	for _, m := range moments {
		t.Run(m.mode+"/"+m.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			proxy := servers.NewProxy(t, s.url)
			c, elsewhere := newCounter(t, s, proxy.URL(), m.mode), newCounter(t, s, s.url, m.mode)
			warmUp(t, s, c)
			var release func()
			c.at = func(when string) {
				if when == m.armed && release == nil {
					release = proxy.HoldReply(ofStoreOrHandler)
				}
			}
			c.at("start")
			ctx, leave := context.WithCancel(t.Context())
			go func() { _, _ = send(ctx, oneShot, c.URL, "key") }()
			awaitCaught(t, proxy, 1)
			defer release()
			leave()
			await.Value(t, "the news that the client left", c.left)
			if duplicate := mustSend(t, elsewhere.URL, "key"); m.landed {
				duplicate.want(t, http.StatusCreated, true, "it is completed, whether or not the owner knows")
			} else {
				duplicate.wantProblem(t, http.StatusConflict, "in-progress", "the first request is not over")
			}
			release()
			await.Value(t, "the end of the first request", c.done)
			if executed := c.runs.Load() == 1; executed != m.executes {
				t.Errorf("E6, S9: executed %t, want %t", executed, m.executes)
			}
			mustSend(t, c.URL, "key").want(t, http.StatusCreated, m.executes, "E6: the retry finds the result")
			again := mustSend(t, c.URL, "key")
			again.want(t, http.StatusCreated, true, "I3")
			if again.body != "run 1" {
				t.Errorf("I1: the answer is %q, want that of the first run", again.body)
			}
			s.wantRows(t, "paid", 1, "I1")
			if n := elsewhere.runs.Load(); n != 0 {
				t.Errorf("I1: the duplicate was executed %d times", n)
			}
		})
	}
}

// warmUp sends another request first, so that what a store does once is done.
func warmUp(t *testing.T, s *site, c *counter) {
	t.Helper()
	mustSend(t, c.URL, "another").want(t, http.StatusCreated, false, "no client left")
	await.Value(t, "the end of the request", c.done)
	exec(t, s.admin, `DELETE FROM business`)
	c.runs.Store(0)
}

// TestClientLeavesBeforeItsBodyIsThere never gets as far as the store.
func TestClientLeavesBeforeItsBodyIsThere(t *testing.T) {
	t.Parallel()
	for mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			proxy := servers.NewProxy(t, s.url)
			c := newCounter(t, s, proxy.URL(), mode)
			asked := counting(proxy)
			conn, err := net.Dial("tcp", c.Listener.Addr().String())
			must(t, err)
			_, err = conn.Write([]byte("POST / HTTP/1.1\r\nHost: test\r\nIdempotency-Key: key\r\n" +
				"Content-Length: 12\r\n\r\n{\"amo"))
			must(t, err)
			must(t, conn.Close())
			await.Value(t, "the end of the first request", c.done)
			if n := asked.Load(); n != 0 {
				t.Errorf("A7: the store was asked %d times", n)
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
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	owner := payingRoute(t, pgxHandle, s.store(t, pgxHandle, proxy.URL()))
	// Those that wait are at another process, as far as the stores know.
	other := servers.NewProxy(t, s.url)
	elsewhere := payingRoute(t, pgxHandle, s.store(t, pgxHandle, other.URL()), onceward.InFlightWait(await.Limit))
	release := proxy.HoldReply(matching(`INSERT INTO business`))
	defer release()
	first, patient := make(chan httpReply, 1), make(chan httpReply, 1)
	go func() { first <- post(owner, "key") }()
	awaitCaught(t, proxy, 1)
	looked := other.HoldReply(looksAtLock)
	go func() { patient <- post(elsewhere, "key") }()
	ctx, leave := context.WithCancel(t.Context())
	hasty := make(chan httpReply, 1)
	go func() {
		w := httptest.NewRecorder()
		elsewhere.ServeHTTP(w, paymentRequest("key").WithContext(ctx))
		hasty <- httpReply{status: w.Code, header: w.Header(), body: w.Body.String()}
	}()
	awaitCaught(t, other, 1)
	looked()
	leave()
	await.Value(t, "the one that left", hasty).wantProblem(t, http.StatusServiceUnavailable, "not-executed", "S9")
	release()
	await.Value(t, "the owner's answer", first).want(t, http.StatusCreated, false, "E6")
	await.Value(t, "the patient one's answer", patient).want(t, http.StatusCreated, true, "E6")
	s.wantRows(t, "key", 1, "I1")
}
