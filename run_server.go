package onceward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server returns a [Worker] that serves on the listener, with TLS if server.TLSConfig is set. When its context ends it
// stops accepting, lets the handlers end and settle, those of this guard also if their client has left, and then
// returns. What has not ended when the grace is over has its connection closed, and the error says so: an outcome that
// could not be stored is unknown once its lease is over. The grace should be longer than the [Deadline] of each route
// and [Config.SettleTimeout] together.
func (g *Guard) Server(server *http.Server, listener net.Listener, grace time.Duration) Worker {
	return &serverWorker{guard: g, http: server, listener: listener, grace: grace}
}

type serverWorker struct {
	guard    *Guard
	http     *http.Server
	listener net.Listener
	grace    time.Duration
}

// String names the server in logs and errors.
func (s *serverWorker) String() string { return "server on " + s.listener.Addr().String() }

// Run implements [Worker]. A server that ends by itself has lost its listener, and would never serve again.
func (s *serverWorker) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	select {
	case err := <-served:
		return fmt.Errorf("%w: the %s cannot serve: %w", ErrMisconfigured, s, err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	err := errors.Join(s.http.Shutdown(ending), s.guard.Wait(ending))
	if err != nil {
		_ = s.http.Close() // it says only how the listener was closed, which Shutdown has done
		err = fmt.Errorf("onceward: the %s was closed after %s, before all of its handlers had ended: %w", s, s.grace, err)
	}
	<-served
	return err
}

func (s *serverWorker) serve() error {
	if s.http.TLSConfig != nil {
		return s.http.ServeTLS(s.listener, "", "")
	}
	return s.http.Serve(s.listener)
}

// waitPoll is the time between two looks at what still runs: little against a shutdown, much against a look.
const waitPoll = 5 * time.Millisecond

// Wait returns when no protected handler of this process runs any more, and grants whose replies were lost are
// released; or when the context ends, with an error that says how many handlers run. Call it after the server has
// stopped accepting, and before the store is closed, where the server is not run by [Guard.Server]. Handlers outlive
// their clients, and a server does not always wait for those: [http.TimeoutHandler] and HTTP/2 leave them behind. For
// the end of [Guard.Do] its caller waits.
func (g *Guard) Wait(ctx context.Context) error {
	ticker := time.NewTicker(waitPoll)
	defer ticker.Stop()
	for {
		running := g.handling.Load()
		if running == 0 && !g.orphans.busy() {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("onceward: %d handlers still run: %w", running, context.Cause(ctx))
		}
	}
}
