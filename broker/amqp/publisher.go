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

// The errors of a [Publisher]. Events are tried again after each of them.
var (
	// ErrUnroutable is returned when no queue takes the event: the exchange has no binding for its routing key.
	ErrUnroutable = errors.New("amqp: the broker returned the message")
	// ErrRefused is returned when the broker does not take the event, for example because a queue is full.
	ErrRefused = errors.New("amqp: the broker refused the message")
	// ErrLost is returned when the connection or the channel was lost before the broker confirmed the event, which may
	// or may not be published.
	ErrLost = errors.New("amqp: the connection was lost before the broker confirmed the message")
	// ErrClosed is returned by a publisher that was closed.
	ErrClosed = errors.New("amqp: the publisher is closed")
)

// The defaults of a [PublisherConfig].
const (
	DefaultChannels    = 4
	DefaultMaxInFlight = 256
)

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	// URL is where the broker is, such as amqps://user:password@host/vhost. Required.
	URL string
	// TLS is for a URL with amqps. Default: the certificate authorities of the system.
	TLS *tls.Config
	// Name is what the broker shows for the connection. Default: onceward outbox.
	Name string

	// Exchange and RoutingKey choose where each event goes; [Always] is for a name that is the same for all. An error
	// counts as one of the delivery, which is tried again unless the error is made with [outbox.Permanent]. Default:
	// the default exchange, which has the empty name, and the topic of the message, which is then the name of a queue.
	Exchange, RoutingKey func(e *outbox.Event) (string, error)

	// Channels is how many channels share the work. The broker closes a channel after a mistake, such as an exchange
	// that does not exist, and all that is in flight on it fails and is tried again. Default: [DefaultChannels].
	Channels int
	// MaxInFlight is how many events may wait for their confirms on one channel. Further ones wait. Default:
	// [DefaultMaxInFlight].
	MaxInFlight int
	// ConnectTimeout is how long it may take to connect, and also how long a write may be stuck before the connection
	// is given up. Default: [DefaultConnectTimeout].
	ConnectTimeout time.Duration
	// Heartbeat is how often the broker has to show that it is there. A connection is lost when it misses three times.
	// Default: [DefaultHeartbeat].
	Heartbeat time.Duration
}

// Always returns a function for a [PublisherConfig] that chooses the same name for every event.
func Always(name string) func(*outbox.Event) (string, error) {
	return func(*outbox.Event) (string, error) { return name, nil }
}

// withDefaults fills in what was left out, and refuses what makes no sense.
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

// Publisher publishes events to RabbitMQ, on a connection of its own that it makes again when it is lost. It is an
// [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	config PublisherConfig
	// life ends with the publisher, and stop ends it.
	life context.Context
	stop context.CancelFunc

	mu sync.Mutex
	// session is the connection, nil before the first. It may be lost, or some of its channels.
	session *publisherSession
	// repairing is the attempt under way to make or mend the session, or one that has just failed; nil if there is
	// none.
	repairing *repair
	closed    bool
}

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher that connects when the first event is published. Close it when done.
func NewPublisher(config PublisherConfig) (*Publisher, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Publisher{config: config}
	p.life, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// OpenPublisher is like [NewPublisher], and connects at once, for those who would rather not start without a broker.
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

// Publish publishes an event, and returns nil when the broker has confirmed it. It connects if there is no connection.
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

// Close closes the connection. What is in flight fails with [ErrLost]; a worker that has ended has nothing in flight.
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
