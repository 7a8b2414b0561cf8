package postgres

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// closeTimeout is how long running calls may take to end when the store is closed.
	closeTimeout = 5 * time.Second
	// hardTimeout is how long they may then take without their connections. On a busy machine this may
	// be more than milliseconds.
	hardTimeout = 3 * time.Second
)

// Close waits for running calls and closes the connections that the store opened. After 5 s it closes the connections
// of calls that are still running, as if the server had gone: a server may hang, and a handler may never return. Close
// returns an error if something is still running 3 s after that.
func (s *Store) Close() error {
	s.closed.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.closeParts()
	}()
	if within(s.options.closeTimeout, ended) {
		return nil
	}
	s.sockets.close()
	if within(s.options.hardTimeout, ended) {
		return nil
	}
	return fmt.Errorf("postgres: close: something is still under way %s after the connections were closed",
		s.options.hardTimeout)
}

// within waits for an event, and reports whether it has come in time.
func within(timeout time.Duration, event <-chan struct{}) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-event:
		return true
	case <-timer.C:
		return false
	}
}

// closeParts closes each part of the store after the calls in it have ended.
func (s *Store) closeParts() {
	s.replicas.close()
	if s.batches != nil {
		s.batches.close()
	}
	if s.waits != nil {
		s.waits.close()
	}
	s.bridge.Close()
	if s.scout.pool != nil {
		s.scout.close()
	}
	if s.own != nil {
		s.own.Close()
	}
	if s.asking != nil {
		s.asking.Close()
	}
	if s.opened != nil {
		s.opened.Close()
	}
}

// sockets holds the network connections that a store opened. Closing a pool waits for the connections in use, and for
// the server to end the other connections. Closing the network connections ends both waits.
type sockets struct {
	dial pgconn.DialFunc // the function that was configured

	mu     sync.Mutex
	open   map[*socket]struct{}
	closed bool
}

// socket is a network connection that a store opened.
type socket struct {
	net.Conn
	of *sockets
}

// Close closes the connection and removes it from its sockets.
func (s *socket) Close() error {
	s.of.mu.Lock()
	delete(s.of.open, s)
	s.of.mu.Unlock()
	return s.Conn.Close()
}

// dialing returns a function that connects with dial and keeps the connection in s.
func (s *sockets) dialing(dial pgconn.DialFunc) pgconn.DialFunc {
	if s.dial == nil {
		s.dial = dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if known, ok := conn.(*socket); ok && known.of == s {
			return conn, nil
		}
		one := &socket{Conn: conn, of: s}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			_ = conn.Close() // it was never used
			return nil, errClosed
		}
		if s.open == nil {
			s.open = make(map[*socket]struct{})
		}
		s.open[one] = struct{}{}
		return one, nil
	}
}

// close closes all connections, and refuses new ones.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for one := range s.open {
		_ = one.Conn.Close() // its users get an error
	}
}
