package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Serve runs a provider on the listener until the context ends, and closes the listener. It is all
// that the main function of a child process needs. It returns nil if it ended because of the context.
func Serve(ctx context.Context, config Config, listener net.Listener) error {
	p, err := New(config)
	if err != nil {
		listener.Close()
		return err
	}
	return p.serve(ctx, listener)
}

// serve runs the server, and closes the provider at the end. The
// server ends first, so that no request waits for a slow client.
func (p *Provider) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(listener)
	server.Close()
	if errors.Is(err, http.ErrServerClosed) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, p.Close())
}

// Server is a provider that runs in this process, on its own port.
type Server struct {
	// Provider is the provider itself, for its ledger and its faults.
	*Provider
	// URL is the base URL, without a slash at the end.
	URL string

	stop  context.CancelFunc
	ended chan struct{}
	err   error
}

// Start runs a provider on a free port of the loopback interface until it is closed or the context ends.
func Start(ctx context.Context, config Config) (*Server, error) {
	p, err := New(config)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the provider: %w", err), p.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	s := &Server{Provider: p, URL: "http://" + listener.Addr().String(), stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		s.err = p.serve(ctx, listener)
	}()
	return s, nil
}

// Client returns a client of this provider. It shares the connections of http.DefaultClient.
func (s *Server) Client() *Client { return &Client{URL: s.URL} }

// Close ends the server and the provider, cuts off all requests, and returns
// when no goroutine of them is running. Further calls return the same.
func (s *Server) Close() error {
	s.stop()
	<-s.ended
	return s.err
}
