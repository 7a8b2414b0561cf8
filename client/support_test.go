package client_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

// roundTrip is a function that is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func newClient(t testing.TB, c client.Config) *http.Client {
	t.Helper()
	made, err := client.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// wire joins an http.Transport and an http.Server without a network, so that the time of both is that of the test. It
// can lose what it carries.
type wire struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	dials  atomic.Int64
	// refused says that nobody listens.
	refused atomic.Bool
	// cuts are after how many bytes the next connections are cut.
	mu   sync.Mutex
	cuts []cut
}

// cut is after how many bytes a connection is cut in each direction; a negative number is never.
type cut struct{ request, answer int }

func newWire() *wire { return &wire{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (w *wire) Addr() net.Addr { return &net.UnixAddr{Name: "wire", Net: "unix"} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	w.dials.Add(1)
	if w.refused.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	w.mu.Lock()
	next := cut{request: -1, answer: -1}
	if len(w.cuts) > 0 {
		next, w.cuts = w.cuts[0], w.cuts[1:]
	}
	w.mu.Unlock()
	near, far := net.Pipe()
	select {
	case w.conns <- far:
		return &cutConn{Conn: near, request: next.request, answer: next.answer}, nil
	case <-w.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cutConn is a connection that breaks.
type cutConn struct {
	net.Conn
	request, answer int
}

var errCut = errors.New("the connection was reset")

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.answer >= 0 && n >= c.answer {
		n, err = c.answer, errCut
		c.Close()
	}
	c.answer -= min(n, max(c.answer, 0))
	return n, err
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.request < 0 || len(b) < c.request {
		n, err := c.Conn.Write(b)
		c.request -= min(n, max(c.request, 0))
		return n, err
	}
	n, _ := c.Conn.Write(b[:c.request])
	c.request = 0
	c.Close()
	return n, errCut
}

// serve serves a handler over a wire until the test ends, and returns what sends to it.
func serve(t testing.TB, w *wire, h http.Handler) *http.Transport {
	t.Helper()
	server := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go server.Serve(w)
	base := &http.Transport{DialContext: w.dial}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		server.Close()
	})
	return base
}

// counted is a handler that knows how often it ran, and with which keys.
type counted struct {
	runs atomic.Int64
	then http.HandlerFunc
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.runs.Add(1)
	if c.then != nil {
		c.then(w, r)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, `{"id":1}`)
}

// guarded protects a handler at POST /payments, with the status of its operations below /operations/.
func guarded(t testing.TB, s store.Store, h http.Handler, options ...onceward.Option) http.Handler {
	t.Helper()
	guard, err := onceward.New(s, onceward.Config{
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
		Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(h, options...))
	mux.Handle("GET /operations/{key}", guard.StatusHandler())
	return mux
}

// reply is what a caller got.
type reply struct {
	status  int
	body    string
	key     string
	header  http.Header
	outcome client.Outcome
	err     error
	took    time.Duration
}

// post sends a payment and reads its answer.
func post(ctx context.Context, c *http.Client, configure ...func(*http.Request)) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://payments.test/payments",
		strings.NewReader(`{"amount":1}`))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Authorization", "alice")
	req.Header.Set("Content-Type", "application/json")
	for _, f := range configure {
		f(req)
	}
	begun := time.Now()
	resp, err := c.Do(req)
	r := reply{err: err, outcome: client.Classify(resp, err), key: client.KeyOf(resp), took: time.Since(begun)}
	if err != nil {
		return r
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	r.status, r.body, r.header, r.err = resp.StatusCode, string(content), resp.Header, err
	return r
}

// events records what an observer is told.
type events struct {
	mu  sync.Mutex
	all []client.Event
}

func (e *events) ObserveClient(_ context.Context, event client.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// eventsOf returns those of one kind.
func eventsOf[T any](e *events) (found []T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, each := range e.all {
		if event, ok := each.(T); ok {
			found = append(found, event)
		}
	}
	return found
}
