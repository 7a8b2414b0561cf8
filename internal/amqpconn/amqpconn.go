// Package amqpconn connects to RabbitMQ in a way that cannot hang: the client itself heeds no context, and its writes have no
// deadline.
package amqpconn

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Settings say how to connect.
type Settings struct {
	// URL is where the broker is, and Name what it shows for the connection.
	URL  string
	Name string
	// TLS is for a URL with amqps.
	TLS *tls.Config
	// Heartbeat is how often the broker has to show that it is there, and WriteTimeout how long a write may be stuck.
	Heartbeat    time.Duration
	WriteTimeout time.Duration
}

// Conn is a connection that can be cut.
type Conn struct {
	*amqp.Connection
	tcp net.Conn
}

// Dial connects. If the context ends before it has, the connection is cut.
func Dial(ctx context.Context, s Settings) (*Conn, error) {
	c := &Conn{}
	stop := func() bool { return true }
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(s.Name)
	var err error
	c.Connection, err = amqp.DialConfig(s.URL, amqp.Config{
		TLSClientConfig: s.TLS.Clone(), // the client writes into it
		Heartbeat:       s.Heartbeat,
		Properties:      properties,
		Dial: func(network, address string) (net.Conn, error) {
			tcp, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			c.tcp = &limited{tcp, s.WriteTimeout}
			stop = context.AfterFunc(ctx, c.Cut)
			return c.tcp, nil
		},
	})
	stop()
	if err != nil {
		if c.tcp != nil {
			c.Cut() // the client may have left it open
		}
		return nil, err
	}
	return c, nil
}

// Cut ends the connection at once, without a word to the broker.
func (c *Conn) Cut() { _ = c.tcp.Close() }

// Goodbye closes the connection, and cuts it if the broker has not answered in time. The client's own deadline is not enough:
// each frame that it reads or writes meanwhile, such as a heartbeat, replaces it.
func (c *Conn) Goodbye(timeout time.Duration) error {
	timer := time.AfterFunc(timeout, c.Cut)
	err := c.CloseDeadline(time.Now().Add(timeout))
	if !timer.Stop() {
		return fmt.Errorf("the broker did not say goodbye within %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	return err
}

// limited is a connection whose writes fail instead of being stuck, as they are when the broker does not read: then it is out of
// memory or disk space, or frozen.
type limited struct {
	net.Conn
	timeout time.Duration
}

// Write writes with a deadline.
func (l *limited) Write(b []byte) (int, error) {
	if err := l.SetWriteDeadline(time.Now().Add(l.timeout)); err != nil {
		return 0, err
	}
	return l.Conn.Write(b)
}
