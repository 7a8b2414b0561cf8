package main

import (
	"context"
	"net"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire is a network of some length between this process and a server. All of the way is on the replies: each is handed
// over so long after it came, and what is sent goes at once. A client that waits for replies cannot tell this from half
// of it in each direction. Replies that follow one another closely do so behind the wire as well, so that a pipeline
// stays one.
type wire struct {
	delay time.Duration
	// underway are replies in the order in which they came, which is that in which they are due.
	underway chan reply
	alarm    alarm
	// readers are the connections that still read.
	readers sync.WaitGroup
	ended   chan struct{}
}

// reply is what came on a connection at once, or why nothing will come any more.
type reply struct {
	to   *wiredConn
	due  time.Time
	data []byte
	err  error
}

// newWire returns a network with that much time there and back.
func newWire(delay time.Duration) (*wire, error) {
	a, err := newAlarm()
	if err != nil {
		return nil, err
	}
	w := &wire{delay: delay, underway: make(chan reply, 1024), alarm: a, ended: make(chan struct{})}
	go w.carry()
	return w, nil
}

// carry hands replies over when they are due.
func (w *wire) carry() {
	defer close(w.ended)
	for r := range w.underway {
		if wait := time.Until(r.due); wait > 0 {
			w.alarm.sleep(wait)
		}
		r.to.deliver(r.data, r.err)
	}
}

// close ends the wire when its connections are closed.
func (w *wire) close() error {
	w.readers.Wait()
	close(w.underway)
	<-w.ended
	return w.alarm.close()
}

// dialing returns a function that connects as another does, over the wire.
func (w *wire) dialing(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return w.connect(conn), nil
	}
}

// connect puts the wire before a connection.
func (w *wire) connect(conn net.Conn) net.Conn {
	c := &wiredConn{Conn: conn}
	c.changed = sync.NewCond(&c.mu)
	w.readers.Go(func() { w.read(c) })
	return c
}

// read takes what comes on a connection, and notes when it is due at the other end.
func (w *wire) read(c *wiredConn) {
	piece := make([]byte, 16<<10)
	for {
		n, err := c.Conn.Read(piece)
		due := time.Now().Add(w.delay)
		if n > 0 {
			w.underway <- reply{to: c, due: due, data: append([]byte(nil), piece[:n]...)}
		}
		if err != nil {
			w.underway <- reply{to: c, due: due, err: err}
			return
		}
	}
}

// wiredConn is the end of a connection behind a wire.
type wiredConn struct {
	net.Conn

	mu      sync.Mutex
	changed *sync.Cond
	// came is what can be read, and err what follows it.
	came []byte
	err  error
	// deadline is that of reading, if there is one; late says that it has passed.
	deadline time.Time
	late     bool
	timer    *time.Timer
}

func (c *wiredConn) deliver(data []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came = append(c.came, data...)
	if c.err == nil {
		c.err = err
	}
	c.changed.Broadcast()
}

// Read returns what has come, and waits for it as a connection does.
func (c *wiredConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.came) == 0 && c.err == nil && !c.late {
		c.changed.Wait()
	}
	if c.late {
		return 0, os.ErrDeadlineExceeded
	}
	if len(c.came) == 0 {
		return 0, c.err
	}
	n := copy(p, c.came)
	c.came = c.came[:copy(c.came, c.came[n:])]
	return n, nil
}

// SetReadDeadline ends reads at that time.
func (c *wiredConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := time.Until(t)
	c.deadline, c.late = t, !t.IsZero() && left <= 0
	switch {
	case t.IsZero() || c.late:
		if c.timer != nil {
			c.timer.Stop()
		}
	case c.timer == nil:
		c.timer = time.AfterFunc(left, c.expire)
	default:
		c.timer.Reset(left)
	}
	c.changed.Broadcast()
	return nil
}

// expire ends reads if the deadline is still the one that the timer was set for.
func (c *wiredConn) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadline.IsZero() && time.Until(c.deadline) <= 0 {
		c.late = true
		c.changed.Broadcast()
	}
}

// SetDeadline is for both directions.
func (c *wiredConn) SetDeadline(t time.Time) error {
	if err := c.Conn.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.SetReadDeadline(t)
}

// Close ends reads at once, as a connection does.
func (c *wiredConn) Close() error {
	c.deliver(nil, net.ErrClosed)
	return c.Conn.Close()
}
