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
	// closeTimeout is how long what is under way may take to end when the store is closed.
	closeTimeout = 5 * time.Second
	// hardTimeout is how long it may take then without its connections: on a busy machine it is not a matter of
	// milliseconds.
	hardTimeout = 3 * time.Second
)

// Close ends what is under way and closes the connections that the store opened. What has not ended after 5 s has its
// connections closed, as if the server had gone: a server may hang, and a handler may never return. The error says that
// something is still under way 3 s after that.
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

// closeParts closes each part when what is under way in it has ended.
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

// sockets are the connections that a store opened, below what pgx makes of them. A pool waits for those that are in
// use, and for the server's farewell to the others: closing them here ends both.
type sockets struct {
	dial pgconn.DialFunc // as it was without them

	mu     sync.Mutex
	open   map[*socket]struct{}
	closed bool
}

// socket is one of them.
type socket struct {
	net.Conn
	of *sockets
}

// Close closes the connection, and forgets it.
func (s *socket) Close() error {
	s.of.mu.Lock()
	delete(s.of.open, s)
	s.of.mu.Unlock()
	return s.Conn.Close()
}

// dialing returns a function that connects as another does, and remembers the connection.
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

// close closes all of them, and lets no more be opened.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for one := range s.open {
		_ = one.Conn.Close() // those who use it get to know
	}
}
