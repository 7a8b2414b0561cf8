package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/redial"
)

const (
	// heartbeat is how often the client checks a silent connection.
	heartbeat = 500 * time.Millisecond
	// silence is how long a connection may be silent after a check before it is closed: longer than a server is busy
	// with another call, and shorter than the timeouts of the guard's callers.
	silence = 2 * time.Second
)

const (
	// unsent is about how many bytes the system buffers for sending: few enough that a slow link sends them within the
	// silence.
	unsent = 64 << 10
	// piece is how much is written at once. A larger write shows by each piece whether the link still accepts data.
	piece = 32 << 10
)

// watchedConn is a connection that is closed when nothing arrives on it for a while. It counts bytes, not replies: a
// reply after a large reply is late, not lost, and so is the reply to a large request that is still being sent.
type watchedConn struct {
	net.Conn
	patience time.Duration
	// blocks means that the connection is for commands that block, one at a time. The client makes no checks while a
	// command blocks, so the silence begins with the command.
	blocks bool
	// greeting means that the client has set its own deadline, until the server has greeted it.
	greeting atomic.Bool
	// gate is notified once whether the server greets.
	gate    *redial.Gate
	greeted sync.Once
}

// gates contains the gates of the servers of a client, by their addresses.
type gates struct {
	all sync.Map
	// silence is how long the connections may be silent after a check.
	silence time.Duration
}

// dial makes a connection of the client. To a server that cannot be reached it makes one attempt at a time.
func (g *gates) dial(ctx context.Context, address string, d *net.Dialer, secured *tls.Config) (net.Conn, error) {
	known, _ := g.all.LoadOrStore(address, new(redial.Gate))
	gate := known.(*redial.Gate)
	end, err := gate.Begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, address, d, secured, g.silence)
	end(err, err != nil && ctx.Err() == nil) // only the greeting shows whether the server works
	if err != nil {
		return nil, err
	}
	conn.gate = gate
	return conn, nil
}

var errNotGreeted = errors.New("redis: the connection ended before the server had greeted")

// blocking is the context key for how long a command may block on a connection that is made for it.
type blocking struct{}

// dial makes a connection.
func dial(
	ctx context.Context, address string, d *net.Dialer, secured *tls.Config, silence time.Duration,
) (_ *watchedConn, err error) {
	var conn net.Conn
	if secured != nil {
		conn, err = (&tls.Dialer{NetDialer: d, Config: secured}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = d.DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	wire := conn
	if over, ok := conn.(*tls.Conn); ok {
		wire = over.NetConn()
	}
	if tcp, ok := wire.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(unsent) // without it a slow link is harder to distinguish from a silent one
	}
	if longest, blocks := ctx.Value(blocking{}).(time.Duration); blocks {
		return &watchedConn{Conn: conn, patience: silence + longest, blocks: true}, nil
	}
	// The client checks at each heartbeat whether anything arrived since the last one: the next check is after at most
	// two.
	return &watchedConn{Conn: conn, patience: 2*heartbeat + silence}, nil
}

func (c *watchedConn) SetDeadline(t time.Time) error {
	c.greeting.Store(!t.IsZero())
	if t.IsZero() {
		c.greeted.Do(func() { c.gate.Note(nil) })
	}
	return c.Conn.SetDeadline(t)
}

// Close closes the connection. A connection for commands that block is greeted in another way.
func (c *watchedConn) Close() error {
	if !c.blocks {
		c.greeted.Do(func() { c.gate.Note(errNotGreeted) })
	}
	return c.Conn.Close()
}

func (c *watchedConn) Read(b []byte) (int, error) {
	if err := c.listen(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *watchedConn) Write(b []byte) (int, error) {
	if c.blocks {
		if err := c.listen(); err != nil {
			return 0, err
		}
	}
	written := 0
	for len(b)-written > piece {
		n, err := c.Conn.Write(b[written : written+piece])
		if written += n; err != nil {
			return written, err
		}
		if err := c.listen(); err != nil {
			return written, err
		}
	}
	n, err := c.Conn.Write(b[written:])
	return written + n, err
}

// listen starts the silence.
func (c *watchedConn) listen() error {
	if c.greeting.Load() {
		return nil
	}
	return c.SetReadDeadline(time.Now().Add(c.patience))
}
