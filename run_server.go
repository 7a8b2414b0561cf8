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

// Server returns a [Worker] that serves on the listener, with TLS if server.TLSConfig has a certificate now, or a
// function that gives one. When its context ends, or its listener is lost, it stops accepting, lets the handlers end
// and settle, those of this guard also if their client has left, and then returns. What has not ended when the grace is
// over has its connection closed, and the error says so: an outcome that could not be stored is unknown once its lease
// is over. The grace should be longer than the [Deadline] of each route and [Config.SettleTimeout] together. [Run] does
// not cut it off: a server may take its grace to stop, however short [Runner].StopTimeout is.
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
	// tls and wrong are found out before a server begins to serve: net/http gives it a TLSConfig of its own then.
	tls   bool
	wrong error // why it can never serve
}

// check finds out whether to serve with TLS, and refuses what can never serve.
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

// closing is how long a server takes to close what is left when its grace is over.
const closing = 5 * time.Second

// StopTimeout tells a [Runner] how long the server may take to stop.
func (s *serverWorker) StopTimeout() time.Duration { return s.grace + closing }

// Run implements [Worker]. A server that ends by itself has lost its listener, and would never serve again; its
// handlers end as those of one that is told to stop.
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
			<-ctx.Done() // another worker has shut it down, on another listener, or the application
		} else {
			lost = fmt.Errorf("%w: the %s cannot serve: %w", ErrMisconfigured, s, err)
		}
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
	return errors.Join(lost, err)
}

func (s *serverWorker) serve() error {
	if s.tls {
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
