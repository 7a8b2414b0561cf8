package amqp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/outbox"
)

// The errors of a [Publisher]. Events are retried after each of them.
var (
	// ErrUnroutable is returned if no queue takes the event, because the exchange has no binding for its routing key.
	ErrUnroutable = errors.New("amqp: the broker returned the message")
	// ErrRefused is returned if the broker refuses the event, for example because a queue is full.
	ErrRefused = errors.New("amqp: the broker refused the message")
	// ErrLost is returned if the connection or the channel was lost before the broker confirmed the event. The event
	// may or may not be published.
	ErrLost = errors.New("amqp: the connection was lost before the broker confirmed the message")
	// ErrClosed is returned after the publisher was closed.
	ErrClosed = errors.New("amqp: the publisher is closed")
)

// The defaults of a [PublisherConfig].
const (
	DefaultChannels    = 4
	DefaultMaxInFlight = 256
)

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	// URL is the address of the broker, such as amqps://user:password@host/vhost. Required.
	URL string
	// TLS is the TLS configuration for an amqps URL. Default: the certificate authorities of the system.
	TLS *tls.Config
	// Name is the connection name that the broker shows. Default: onceward outbox.
	Name string

	// Exchange and RoutingKey return the exchange and the routing key for each event; [Always] returns the same name
	// for all events. Their errors count as delivery failures and are retried, except errors made with
	// [outbox.Permanent]. Default: the default exchange, which has the empty name, and as the routing key the topic of
	// the message, which is then the name of a queue.
	Exchange, RoutingKey func(e *outbox.Event) (string, error)

	// Channels is the number of channels that share the work. The broker closes a channel after a mistake, such as an
	// exchange that does not exist; everything in flight on that channel fails and is retried. Default:
	// [DefaultChannels].
	Channels int
	// MaxInFlight is the number of events that may wait for their confirms on one channel. Further events wait.
	// Default: [DefaultMaxInFlight].
	MaxInFlight int
	// ConnectTimeout is the longest time for connecting. It is also the longest time that a write may block before the
	// connection is closed. Default: [DefaultConnectTimeout].
	ConnectTimeout time.Duration
	// Heartbeat is the interval of the heartbeats. A connection is lost if the broker misses three heartbeats. Default:
	// [DefaultHeartbeat].
	Heartbeat time.Duration
}

// Always returns a function for [PublisherConfig] that returns the same name for every event.
func Always(name string) func(*outbox.Event) (string, error) {
	return func(*outbox.Event) (string, error) { return name, nil }
}

// withDefaults returns the configuration with defaults for the omitted fields, or an error if it is invalid.
func (c PublisherConfig) withDefaults() (PublisherConfig, error) {
	if err := checkURL(c.URL); err != nil {
		return c, err
	}
	if min(c.Channels, c.MaxInFlight) < 0 || min(c.ConnectTimeout, c.Heartbeat) < 0 {
		return c, errors.New("amqp: Channels, MaxInFlight, ConnectTimeout and Heartbeat must not be negative")
	}
	if c.Exchange == nil {
		c.Exchange = Always("")
	}
	if c.RoutingKey == nil {
		c.RoutingKey = func(e *outbox.Event) (string, error) { return e.Topic, nil }
	}
	c.Name = cmp.Or(c.Name, "onceward outbox")
	c.Channels = cmp.Or(c.Channels, DefaultChannels)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, DefaultMaxInFlight)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, DefaultConnectTimeout)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	return c, nil
}

// Publisher publishes events to RabbitMQ on its own connection, and reconnects if the connection is lost. It is an
// [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	config PublisherConfig
	// life is a context that ends when the publisher is closed, and stop ends it.
	life context.Context
	stop context.CancelFunc

	mu sync.Mutex
	// session is the connection, or nil before the first one. The connection or some of its channels may be lost.
	session *publisherSession
	// repairing is the running attempt to make or mend the session, or one that has just failed. It is nil if there is
	// none.
	repairing *repair
	closed    bool
}

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher that connects when the first event is published. The caller must close it.
func NewPublisher(config PublisherConfig) (*Publisher, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Publisher{config: config}
	p.life, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// OpenPublisher is like [NewPublisher], but connects at once. It returns an error if the broker cannot be reached.
func OpenPublisher(ctx context.Context, config PublisherConfig) (*Publisher, error) {
	p, err := NewPublisher(config)
	if err != nil {
		return nil, err
	}
	if _, err := p.channel(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Publish publishes an event and returns nil when the broker has confirmed it. It connects if there is no connection.
// If the context ends first, the event may have been published.
func (p *Publisher) Publish(ctx context.Context, e *outbox.Event) error {
	to, err := p.route(e)
	if err != nil {
		return err
	}
	message, err := makeMessage(e)
	if err != nil {
		return outbox.Permanent(err)
	}
	channel, err := p.channel(ctx)
	if err != nil {
		return err
	}
	if err := channel.publish(ctx, to, message); err != nil {
		return fmt.Errorf("%w (exchange %q, routing key %q)", err, to.exchange, to.key)
	}
	return nil
}

// Close closes the connection. Events in flight fail with [ErrLost]; a worker that has ended has no events in flight.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	repairing := p.repairing
	p.mu.Unlock()
	p.stop()
	if repairing != nil {
		<-repairing.done
	}
	if p.session == nil {
		return nil
	}
	return p.session.close()
}
