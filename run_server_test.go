package onceward_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// served is a server that is run as a worker.
type served struct {
	url      string
	listener net.Listener
	stop     context.CancelFunc
	// ended gets what Run returned.
	ended chan error
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func startWorker(t *testing.T, guard *onceward.Guard, h http.Handler, grace time.Duration) *served {
	t.Helper()
	listener := listen(t)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: h, Protocols: protocols, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	ctx, stop := context.WithCancel(t.Context())
	s := &served{url: "http://" + listener.Addr().String(), listener: listener, stop: stop, ended: make(chan error, 1)}
	go func() { s.ended <- onceward.Run(ctx, guard.Server(server, listener, grace)) }()
	return s
}

// leave sends a request and goes away as soon as it has reached its handler, with the connection. It returns when the
// client has nothing more to do with it.
func (s *served) leave(t *testing.T, h2 bool, arrived <-chan struct{}) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	transport := &http.Transport{Protocols: protocols}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/payments", strings.NewReader(`{}`))
		if err != nil {
			t.Error(err)
			return
		}
		prepare(req, "k", nil)
		if res, err := transport.RoundTrip(req); err == nil {
			res.Body.Close()
		}
	}()
	await.Value(t, "the request", arrived)
	cancel()
	await.Value(t, "the end of the request", left)
	transport.CloseIdleConnections()
}

// TestServerWaitsForHandlersWhoseClientLeft: also where net/http itself does not.
func TestServerWaitsForHandlersWhoseClientLeft(t *testing.T) {
	t.Parallel()
	same := func(h http.Handler) http.Handler { return h }
	for name, test := range map[string]struct {
		h2   bool
		look time.Duration // net/http ends a connection of HTTP/2 a second after it has said so
		wrap func(http.Handler) http.Handler
	}{
		"HTTP/1": {false, 50 * time.Millisecond, same},
		"HTTP/2": {true, 1500 * time.Millisecond, same},
		"TimeoutHandler": {false, 50 * time.Millisecond, func(h http.Handler) http.Handler {
			return http.TimeoutHandler(h, time.Minute, "late") // it returns as soon as the client has left
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, goOn := make(chan struct{}), make(chan struct{})
			s := memory.New()
			guard := newGuard(t, s)
			worker := startWorker(t, guard, test.wrap(guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				close(arrived)
				<-goOn
				w.WriteHeader(http.StatusCreated)
			}, reserved, onceward.OperationName("POST /payments"))), await.Limit)
			worker.leave(t, test.h2, arrived)
			worker.stop()
			select {
			case err := <-worker.ended:
				close(goOn)
				t.Fatalf("E6: it stopped before the handler had ended: %v", err)
			case <-time.After(test.look):
			}
			close(goOn)
			if err := await.Value(t, "the end of the server", worker.ended); err != nil {
				t.Error(err)
			}
			if rec, err := s.Get(t.Context(), aliceID("k")); rec.State != store.StateCompleted {
				t.Errorf("E6: the record is %s, %v", rec.State, err)
			}
		})
	}
}

func TestServerGraceIsBounded(t *testing.T) {
	t.Parallel()
	arrived, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	guard := newGuard(t, memory.New())
	worker := startWorker(t, guard, guard.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		defer close(ended)
		close(arrived)
		<-goOn
	}, reserved, onceward.OperationName("POST /payments")), 20*time.Millisecond)
	worker.leave(t, false, arrived)
	worker.stop()
	err := await.Value(t, "the end of the server", worker.ended)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 handlers still run") ||
		!strings.Contains(err.Error(), "server on 127.0.0.1:") {
		t.Error(err)
	}
	close(goOn)
	await.Value(t, "the end of the handler", ended)
}

func TestServerWithoutItsListenerIsMisconfigured(t *testing.T) {
	t.Parallel()
	listener := listen(t)
	listener.Close()
	worker := newGuard(t, memory.New()).Server(&http.Server{}, listener, time.Second)
	if err := onceward.Run(t.Context(), worker); !errors.Is(err, onceward.ErrMisconfigured) ||
		!errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestServerThatLosesItsListenerLetsHandlersEnd: the store is closed after it, so it waits like a stopped server.
func TestServerThatLosesItsListenerLetsHandlersEnd(t *testing.T) {
	t.Parallel()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	s := memory.New()
	guard := newGuard(t, s)
	worker := startWorker(t, guard, guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-goOn
		w.WriteHeader(http.StatusCreated)
	}, reserved, onceward.OperationName("POST /payments")), await.Limit)
	worker.leave(t, false, arrived)
	worker.listener.Close()
	select {
	case err := <-worker.ended:
		t.Errorf("E6: it ended before the handler: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	if err := await.Value(t, "the end of the server", worker.ended); !errors.Is(err, onceward.ErrMisconfigured) ||
		!errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if rec, err := s.Get(t.Context(), aliceID("k")); rec.State != store.StateCompleted {
		t.Errorf("E6: the record is %s, %v", rec.State, err)
	}
}

// TestServersThatCanNeverServe: they are misconfigured, as other workers are that are nil.
func TestServersThatCanNeverServe(t *testing.T) {
	t.Parallel()
	guard, listener := newGuard(t, memory.New()), listen(t)
	defer listener.Close()
	strict := &http.Server{TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
	for name, worker := range map[string]onceward.Worker{
		"no server":      guard.Server(nil, listener, time.Second),
		"no listener":    guard.Server(&http.Server{}, nil, time.Second),
		"nil listener":   guard.Server(&http.Server{}, (*net.TCPListener)(nil), time.Second),
		"no guard":       (*onceward.Guard)(nil).Server(&http.Server{}, listener, time.Second),
		"no certificate": guard.Server(strict, listener, time.Second),
	} {
		if err := onceward.Run(t.Context(), worker); !errors.Is(err, onceward.ErrMisconfigured) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestServerOnTwoListeners: what net/http adds to the server for the first does not make the second one of TLS.
func TestServerOnTwoListeners(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	server := &http.Server{Handler: http.NotFoundHandler()}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	first, second := listen(t), listen(t)
	ended := make(chan error, 1)
	go func() {
		ended <- onceward.Run(ctx, guard.Server(server, first, time.Minute), guard.Server(server, second, time.Minute))
	}()
	for _, listener := range []net.Listener{first, second} {
		get(t, http.DefaultTransport, "http://"+listener.Addr().String())
	}
	stop()
	if err := await.Value(t, "the end of the servers", ended); err != nil {
		t.Error(err)
	}
}

// TestServerWithTLS: a certificate, or a function that gives one, makes it one of TLS.
func TestServerWithTLS(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(http.NotFoundHandler())
	defer certified.Close()
	certificate := certified.TLS.Certificates[0]
	for name, config := range map[string]*tls.Config{
		"Certificates": {Certificates: []tls.Certificate{certificate}},
		"GetCertificate": {
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener := listen(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			server := &http.Server{Handler: http.NotFoundHandler(), TLSConfig: config}
			ended := make(chan error, 1)
			go func() {
				ended <- onceward.Run(ctx, newGuard(t, memory.New()).Server(server, listener, time.Minute))
			}()
			get(t, certified.Client().Transport, "https://"+listener.Addr().String())
			stop()
			if err := await.Value(t, "the end of the server", ended); err != nil {
				t.Error(err)
			}
		})
	}
}

// get sends a request that a server answers with 404, on a connection that is closed then.
func get(t *testing.T, transport http.RoundTripper, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("%s answered %d", url, res.StatusCode)
	}
}

// TestWaitAwaitsGrantsOnTheirWay: a reservation that was waited for in vain may be made yet.
func TestWaitAwaitsGrantsOnTheirWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		guard := newGuard(t, s)
		gaveUp := make(chan *store.Reservation, 1)
		s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
			<-ctx.Done()
			gaveUp <- r
			return store.Verdict{}, fmt.Errorf("%w: %w", store.ErrUnavailable, context.Cause(ctx))
		}
		h := guard.Handler(new(counted), reserved, onceward.Lease(time.Minute))
		post(h, "k", `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
		synctest.Wait() // the first look has found nothing
		time.AfterFunc(2*time.Second, func() {
			if _, err := s.Store.Reserve(t.Context(), <-gaveUp); err != nil {
				t.Error(err)
			}
		})
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := guard.Wait(brief); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "1 grants") {
			t.Errorf("S9: the grant is on its way, and there is nothing to wait for: %v", err)
		}
		if err := guard.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if rec, err := s.Get(t.Context(), aliceID("k")); rec.State != store.StateRetryable {
			t.Errorf("S9: the record is %s, %v", rec.State, err)
		}
	})
}

// TestWaitAwaitsLostGrants: a node that stops releases what it was granted without knowing.
func TestWaitAwaitsLostGrants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newOutage(true)
		guard := newGuard(t, s)
		s.refuseMany(t, guard.Handler(new(counted), reserved,
			onceward.OperationName("POST /payments"), onceward.Lease(time.Minute)), 10)
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := guard.Wait(brief); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the store is down, and there is nothing to wait for: %v", err)
		}
		time.AfterFunc(time.Second, func() { s.down.Store(false) })
		if err := guard.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if states := s.states(t, 10); states[store.StateRetryable] != 10 {
			t.Errorf("S9: the store holds %v, want 10 released", states)
		}
	})
}
