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
	// heartbeat is how often the client asks on a connection on which nothing is heard whether it still is one.
	heartbeat = 500 * time.Millisecond
	// silence is how long a connection that was asked may say nothing before it is given up: longer than a server is
	// busy with something else, and shorter than what callers of the guard have.
	silence = 2 * time.Second
)

const (
	// unsent is about how much the system takes before it has been sent: little enough that a slow link sends it within
	// the silence.
	unsent = 64 << 10
	// piece is how much is written at once. What is larger shows by each piece whether the link still takes it.
	piece = 32 << 10
)

// heard is a connection that is given up when nothing comes on it for a while. It counts bytes, not replies: what is
// behind a large reply is late, not lost, and so is the reply to a large request that is still being sent.
type heard struct {
	net.Conn
	patience time.Duration
	// blocks says that the connection is for commands that block, one at a time. The client does not ask while one
	// does, so that the silence begins when it was asked.
	blocks bool
	// greeting says that the client has set a deadline of its own, as it does until the server has greeted it.
	greeting atomic.Bool
	// gate is told whether the server greets, once.
	gate    *redial.Gate
	greeted sync.Once
}

// gates are those of the servers of a client, by their addresses.
type gates struct{ all sync.Map }

// dial makes a connection of the client, one at a time to a server that cannot be reached.
func (g *gates) dial(ctx context.Context, address string, d *net.Dialer, secured *tls.Config) (net.Conn, error) {
	known, _ := g.all.LoadOrStore(address, new(redial.Gate))
	gate := known.(*redial.Gate)
	end, err := gate.Begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, address, d, secured)
	end(err, err != nil && ctx.Err() == nil) // whether the server is there shows when it greets
	if err != nil {
		return nil, err
	}
	conn.gate = gate
	return conn, nil
}

var errNotGreeted = errors.New("redis: the connection ended before the server had greeted")

// blocking is the key of a context for how long a command may block on a connection that is made for it.
type blocking struct{}

// dial makes a connection.
func dial(ctx context.Context, address string, d *net.Dialer, secured *tls.Config) (_ *heard, err error) {
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
		_ = tcp.SetWriteBuffer(unsent) // without it a slow link takes longer to be told from a silent one
	}
	if longest, blocks := ctx.Value(blocking{}).(time.Duration); blocks {
		return &heard{Conn: conn, patience: silence + longest, blocks: true}, nil
	}
	// The client looks at each heartbeat whether something was heard since the last one: it asks after two at most.
	return &heard{Conn: conn, patience: 2*heartbeat + silence}, nil
}

func (c *heard) SetDeadline(t time.Time) error {
	c.greeting.Store(!t.IsZero())
	if t.IsZero() {
		c.greeted.Do(func() { c.gate.Note(nil) })
	}
	return c.Conn.SetDeadline(t)
}

// Close closes the connection. The client greets in another way on one for commands that block.
func (c *heard) Close() error {
	if !c.blocks {
		c.greeted.Do(func() { c.gate.Note(errNotGreeted) })
	}
	return c.Conn.Close()
}

func (c *heard) Read(b []byte) (int, error) {
	if err := c.listen(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *heard) Write(b []byte) (int, error) {
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

// listen lets the silence begin.
func (c *heard) listen() error {
	if c.greeting.Load() {
		return nil
	}
	return c.SetReadDeadline(time.Now().Add(c.patience))
}
