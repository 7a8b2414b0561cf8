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

// The defaults that [PublisherConfig] and [ConsumerConfig] share.
const (
	DefaultConnectTimeout = 10 * time.Second
	DefaultHeartbeat      = 10 * time.Second
)

// closeTimeout is the longest time that a graceful close of a connection may take.
const closeTimeout = 2 * time.Second

// checkURL returns an error if the URL is not an AMQP URL.
func checkURL(url string) error {
	if _, err := amqp091.ParseURI(url); err != nil {
		// The error may contain the URL, which includes the password.
		return errors.New("amqp: the URL of the configuration is not one like amqp://user:password@host:port/vhost")
	}
	return nil
}

// connSettings are the parameters of a connection.
type connSettings struct {
	// url is the address of the broker, and name is the connection name that the broker shows.
	url, name string
	// tls is the TLS configuration for an amqps URL.
	tls *tls.Config
	// heartbeat is the interval of the heartbeats, and writeTimeout the longest time that a write may block.
	heartbeat, writeTimeout time.Duration
}

// conn is a connection that cannot hang and can be cut. The client library alone ignores contexts and sets no write
// deadlines.
type conn struct {
	*amqp091.Connection
	tcp net.Conn
}

// dial connects to the broker. If the context ends first, dial cuts the connection.
func dial(ctx context.Context, s connSettings) (*conn, error) {
	c := &conn{}
	stop := func() bool { return true }
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(s.name)
	var err error
	c.Connection, err = amqp091.DialConfig(s.url, amqp091.Config{
		TLSClientConfig: s.tls.Clone(), // the client modifies it
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

// cut closes the TCP connection at once, without the closing handshake.
func (c *conn) cut() { _ = c.tcp.Close() }

// goodbye closes the connection, and cuts it if the broker does not answer in time. The client's own deadline is not
// enough: each frame that the client reads or writes in the meantime, such as a heartbeat, replaces it.
func (c *conn) goodbye(timeout time.Duration) error {
	timer := time.AfterFunc(timeout, c.cut)
	err := c.CloseDeadline(time.Now().Add(timeout))
	if !timer.Stop() {
		return fmt.Errorf("the broker did not say goodbye within %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	return err
}

// limited is a connection whose writes fail after a timeout. Without the timeout a write blocks as long as the broker
// does not read, for example because it is frozen or out of memory or disk space.
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
