package onceward_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// served is a server that is run as a worker.
type served struct {
	url  string
	stop context.CancelFunc
	// ended gets what Run returned.
	ended chan error
}

func startWorker(t *testing.T, guard *onceward.Guard, h http.Handler, grace time.Duration) *served {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: h, Protocols: protocols, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	ctx, stop := context.WithCancel(t.Context())
	s := &served{url: "http://" + listener.Addr().String(), stop: stop, ended: make(chan error, 1)}
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
	await(t, "the request", arrived)
	cancel()
	await(t, "the end of the request", left)
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
			return http.TimeoutHandler(h, time.Millisecond, "late")
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
			}, reserved, onceward.OperationName("POST /payments"))), 30*time.Second)
			worker.leave(t, test.h2, arrived)
			worker.stop()
			select {
			case err := <-worker.ended:
				close(goOn)
				t.Fatalf("E6: it stopped before the handler had ended: %v", err)
			case <-time.After(test.look):
			}
			close(goOn)
			if err := await(t, "the end of the server", worker.ended); err != nil {
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
	err := await(t, "the end of the server", worker.ended)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 handlers still run") ||
		!strings.Contains(err.Error(), "server on 127.0.0.1:") {
		t.Error(err)
	}
	close(goOn)
	await(t, "the end of the handler", ended)
}

func TestServerWithoutItsListenerIsMisconfigured(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	worker := newGuard(t, memory.New()).Server(&http.Server{}, listener, time.Second)
	if err := onceward.Run(t.Context(), worker); !errors.Is(err, onceward.ErrMisconfigured) ||
		!errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
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
