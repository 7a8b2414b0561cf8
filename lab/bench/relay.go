package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// relay stands between a client and its server, and counts what passes. Where one caller waits for each reply, what the
// client sends after the server has spoken begins a round trip.
type relay struct {
	listener              net.Listener
	server                string
	trips, sent, received atomic.Int64
	connections           sync.WaitGroup
	mu                    sync.Mutex
	open                  []net.Conn
}

// startRelay listens in front of the server at an address.
func startRelay(server string) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: listener, server: server}
	r.connections.Go(r.accept)
	return r, nil
}

// addr is where the client connects to.
func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		r.open = append(r.open, client, server)
		r.mu.Unlock()
		var asks atomic.Bool // says that the client has spoken last
		r.connections.Go(func() {
			carry(server, client, func(n int) {
				r.sent.Add(int64(n))
				if !asks.Swap(true) {
					r.trips.Add(1)
				}
			})
		})
		r.connections.Go(func() {
			carry(client, server, func(n int) {
				r.received.Add(int64(n))
				asks.Store(false)
			})
		})
	}
}

// carry copies one direction until it ends, and tells of what came before it is handed on.
func carry(to, from net.Conn, came func(n int)) {
	defer to.Close()
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			came(n)
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// traffic is what has passed.
type traffic struct{ trips, sent, received float64 }

// take returns what has passed since it was called last.
func (r *relay) take() traffic {
	return traffic{float64(r.trips.Swap(0)), float64(r.sent.Swap(0)), float64(r.received.Swap(0))}
}

// close ends all connections.
func (r *relay) close() error {
	err := r.listener.Close()
	r.mu.Lock()
	for _, conn := range r.open {
		if closed := conn.Close(); !errors.Is(closed, net.ErrClosed) && !errors.Is(closed, io.EOF) {
			err = errors.Join(err, closed)
		}
	}
	r.mu.Unlock()
	r.connections.Wait()
	return err
}
