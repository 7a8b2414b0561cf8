package onceward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server returns a [Worker] that serves on the listener, with TLS if server.TLSConfig has a certificate, or a function
// that returns one, when Server is called. When its context ends, or its listener is lost, the worker stops accepting,
// waits for the handlers to end and settle, including handlers of this guard whose client has left, and then returns.
// When the grace is over, remaining connections are closed, and an error reports it: an outcome that could not be
// stored is unknown once its lease is over. The grace should be longer than the [Deadline] of each route and
// [Config.SettleTimeout] together. [Run] always waits for the grace, even if [Runner].StopTimeout is shorter.
func (g *Guard) Server(server *http.Server, listener net.Listener, grace time.Duration) Worker {
	s := &serverWorker{guard: g, http: server, listener: listener, grace: grace}
	s.tls, s.wrong = s.check()
	return s
}

type serverWorker struct {
	guard    *Guard
	http     *http.Server
	listener net.Listener
	grace    time.Duration
	// tls and wrong are determined before the server serves, because net/http then sets its own TLSConfig.
	tls   bool
	wrong error // the reason why it can never serve, or nil
}

// check determines whether to serve with TLS, and refuses a server that can never serve.
func (s *serverWorker) check() (withTLS bool, err error) {
	switch {
	case s.guard == nil || s.http == nil || isNil(s.listener):
		return false, fmt.Errorf("%w: a server without its guard, http.Server or listener: was an error dropped?",
			ErrMisconfigured)
	case s.http.TLSConfig == nil:
		return false, nil
	}
	c := s.http.TLSConfig
	withTLS = len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil
	if !withTLS && (c.MinVersion != 0 || c.ClientAuth != tls.NoClientCert) {
		return false, fmt.Errorf("%w: the TLSConfig of the %s has no certificate: give it one, or no TLSConfig",
			ErrMisconfigured, s)
	}
	return withTLS, nil
}

// String names the server in logs and errors.
func (s *serverWorker) String() string {
	if isNil(s.listener) {
		return "server without a listener"
	}
	return "server on " + s.listener.Addr().String()
}

// closing is how long a server takes to close the remaining connections after its grace.
const closing = 5 * time.Second

// StopTimeout returns how long a [Runner] should wait for the server to stop.
func (s *serverWorker) StopTimeout() time.Duration { return s.grace + closing }

// Run implements [Worker]. A server that ends without being stopped has lost its listener, and would never serve again;
// its handlers end as the handlers of a stopped server do.
func (s *serverWorker) Run(ctx context.Context) error {
	if s.wrong != nil {
		return s.wrong
	}
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	var lost error
	select {
	case err := <-served:
		served <- err
		if errors.Is(err, http.ErrServerClosed) {
			<-ctx.Done() // the application, or another worker of the same http.Server, has shut it down
		} else {
			lost = fmt.Errorf("%w: the %s cannot serve: %w", ErrMisconfigured, s, err)
		}
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	err := errors.Join(s.http.Shutdown(ending), s.guard.Wait(ending))
	if err != nil {
		_ = s.http.Close() // its error only concerns the listener, which Shutdown has closed
		err = fmt.Errorf("onceward: the %s was closed after %s, before all of its handlers had ended: %w", s, s.grace, err)
	}
	<-served
	return errors.Join(lost, err)
}

func (s *serverWorker) serve() error {
	if s.tls {
		return s.http.ServeTLS(s.listener, "", "")
	}
	return s.http.Serve(s.listener)
}

// waitPoll is the time between two checks for running handlers: short compared with a shutdown, long compared with a
// check.
const waitPoll = 5 * time.Millisecond

// Wait returns when no protected handler of this process runs any more, and grants whose replies were lost are
// released; or when the context ends, with an error that counts the running handlers. Call it after the server has
// stopped accepting, and before the store is closed, if the server is not run by [Guard.Server]. Handlers outlive their
// clients, and a server does not always wait for them: [http.TimeoutHandler] and HTTP/2 do not. It does not wait for
// [Guard.Do], which returns to its caller.
func (g *Guard) Wait(ctx context.Context) error {
	ticker := time.NewTicker(waitPoll)
	defer ticker.Stop()
	for {
		running, lost := g.handling.Load(), g.orphans.pending()
		if running == 0 && lost == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("onceward: %d handlers still run, and %d grants whose replies were lost may not be released: %w",
				running, lost, context.Cause(ctx))
		}
	}
}
