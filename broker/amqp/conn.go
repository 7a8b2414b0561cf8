package amqp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// The defaults that a [PublisherConfig] and a [ConsumerConfig] have in common.
const (
	DefaultConnectTimeout = 10 * time.Second
	DefaultHeartbeat      = 10 * time.Second
)

// closeTimeout is how long the broker may take to say goodbye.
const closeTimeout = 2 * time.Second

// checkURL refuses what is not the URL of a broker.
func checkURL(url string) error {
	if _, err := amqp091.ParseURI(url); err != nil {
		// The error itself may repeat the URL, with the password in it.
		return errors.New("amqp: the URL of the configuration is not one like amqp://user:password@host:port/vhost")
	}
	return nil
}

// connSettings say how to connect.
type connSettings struct {
	// url is where the broker is, and name what it shows for the connection.
	url, name string
	// tls is for a URL with amqps.
	tls *tls.Config
	// heartbeat is how often the broker has to show that it is there, and writeTimeout how long a write may be stuck.
	heartbeat, writeTimeout time.Duration
}

// conn is a connection that cannot hang and can be cut: the client itself heeds no context, and its writes have no
// deadline.
type conn struct {
	*amqp091.Connection
	tcp net.Conn
}

// dial connects. If the context ends before it has, the connection is cut.
func dial(ctx context.Context, s connSettings) (*conn, error) {
	c := &conn{}
	stop := func() bool { return true }
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(s.name)
	var err error
	c.Connection, err = amqp091.DialConfig(s.url, amqp091.Config{
		TLSClientConfig: s.tls.Clone(), // the client writes into it
		Heartbeat:       s.heartbeat,
		Properties:      properties,
		Dial: func(network, address string) (net.Conn, error) {
			tcp, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			c.tcp = &limited{tcp, s.writeTimeout}
			stop = context.AfterFunc(ctx, c.cut)
			return c.tcp, nil
		},
	})
	stop()
	if err != nil {
		if c.tcp != nil {
			c.cut() // the client may have left it open
		}
		return nil, err
	}
	return c, nil
}

// cut ends the connection at once, without a word to the broker.
func (c *conn) cut() { _ = c.tcp.Close() }

// goodbye closes the connection, and cuts it if the broker has not answered in time. The client's own deadline is not
// enough: each frame that it reads or writes meanwhile, such as a heartbeat, replaces it.
func (c *conn) goodbye(timeout time.Duration) error {
	timer := time.AfterFunc(timeout, c.cut)
	err := c.CloseDeadline(time.Now().Add(timeout))
	if !timer.Stop() {
		return fmt.Errorf("the broker did not say goodbye within %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	return err
}

// limited is a connection whose writes fail instead of being stuck, as they are when the broker does not read: then it
// is out of memory or disk space, or frozen.
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
