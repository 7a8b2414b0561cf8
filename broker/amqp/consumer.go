package amqp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/consuming"
)

// ErrPoison is the cause that [ConsumerConfig.OnPoison] gets for a delivery without an event ID. A handler wraps it to
// say that to try again would not help.
var ErrPoison = errors.New("amqp: the delivery cannot be applied")

// The defaults of a [ConsumerConfig].
const (
	DefaultPrefetch    = 16
	DefaultMaxAttempts = 10
	DefaultMinBackoff  = 100 * time.Millisecond
	DefaultMaxBackoff  = 30 * time.Second
	DefaultGrace       = 5 * time.Second
)

// ConsumerConfig configures a [Consumer].
type ConsumerConfig struct {
	// URL is where the broker is, such as amqps://user:password@host/vhost. Required.
	URL string
	// TLS is for a URL with amqps. Default: the certificate authorities of the system.
	TLS *tls.Config
	// Queue is where the messages are. Required.
	Queue string
	// Inbox remembers what was applied. Required.
	Inbox *inbox.Inbox
	// Name is that of the consumer in the inbox, and what the broker shows for it. It stays the same for as long as
	// events may be repeated. Required.
	Name string
	// Handle applies a delivery in the transaction that it takes from its context, with [onceward.Tx] or the way of the
	// store's own package. It is called again if it returns an error or the transaction fails, and it does not
	// acknowledge anything. Required.
	Handle func(ctx context.Context, d *amqp091.Delivery) error

	// EventID names the event of a delivery: the sender's name for it, the same each time it is sent. One that is not
	// known is an error, and the delivery is poison. Default: [HeaderEventID].
	EventID func(d *amqp091.Delivery) (string, error)
	// OnPoison decides about a delivery that cannot be applied. If it returns nil, because it has put the message aside
	// for an operator to look at, the delivery is acknowledged; it is called again if it returns an error, or if the
	// process dies before that. Default: none, and the delivery is rejected, so that the queue's dead-letter exchange
	// gets it.
	OnPoison func(ctx context.Context, d *amqp091.Delivery, cause error) error

	// Prefetch is how many deliveries are worked on at once, with those that are kept back after a failure. Default:
	// [DefaultPrefetch].
	Prefetch int
	// MaxAttempts is how often an event is tried by this process before it is poison. Default: [DefaultMaxAttempts].
	MaxAttempts int
	// MinBackoff and MaxBackoff bound how long a delivery is kept back after a failure, and how long to wait before
	// connecting again. It doubles with each, less up to a half at random. A connection that lasted for longer than
	// MaxBackoff makes the next wait a short one. Default: [DefaultMinBackoff] and [DefaultMaxBackoff].
	MinBackoff, MaxBackoff time.Duration
	// Grace is how long what is being applied may go on when Run is to end. Default: [DefaultGrace].
	Grace time.Duration
	// ConnectTimeout is how long it may take to connect and to begin to consume. Default: [DefaultConnectTimeout].
	ConnectTimeout time.Duration
	// Heartbeat is how often the broker has to show that it is there. A connection is lost when it misses three times.
	// Default: [DefaultHeartbeat].
	Heartbeat time.Duration
	// Observer is told of each message, by an [inbox.HandledEvent]. Default: none.
	Observer onceward.Observer
	// Propagator lets Handle belong to the trace that the headers of the message tell of. Default: none.
	Propagator onceward.Propagator
	// Logger gets what failed. Default: [slog.Default].
	Logger *slog.Logger
}

// headersOf returns a function that returns the headers of a message that are text.
func headersOf(d *amqp091.Delivery) func() map[string]string {
	return func() map[string]string {
		headers := make(map[string]string, len(d.Headers))
		for name, value := range d.Headers {
			if text, ok := value.(string); ok {
				headers[name] = text
			}
		}
		return headers
	}
}

// HeaderEventID returns the event's ID from where the AMQP binding of CloudEvents puts it, the header cloudEvents:id
// or cloudEvents_id, or else the message-id.
func HeaderEventID(d *amqp091.Delivery) (string, error) {
	for _, name := range []string{"cloudEvents:id", "cloudEvents_id"} {
		if id, ok := d.Headers[name].(string); ok && id != "" {
			return id, nil
		}
	}
	if d.MessageId == "" {
		return "", errors.New("amqp: the message has neither the header cloudEvents:id nor a message-id")
	}
	return d.MessageId, nil
}

// check finds what is missing or makes no sense.
func (c *ConsumerConfig) check() error {
	if err := checkURL(c.URL); err != nil {
		return err
	}
	checker := &consuming.Checker{Of: "amqp.ConsumerConfig"}
	checker.Name("Queue", c.Queue)
	checker.Required("Inbox", c.Inbox != nil)
	checker.Name("Name", c.Name)
	checker.Required("Handle", c.Handle != nil)
	checker.AtMost("Prefetch", c.Prefetch, math.MaxUint16) // by the protocol
	checker.AtMost("MaxAttempts", c.MaxAttempts, math.MaxInt)
	checker.Backoff(c.MinBackoff, c.MaxBackoff)
	checker.NotNegative("Grace", c.Grace)
	checker.NotNegative("ConnectTimeout", c.ConnectTimeout)
	checker.NotNegative("Heartbeat", c.Heartbeat)
	return checker.Err()
}

// withDefaults fills in what was left out.
func (c ConsumerConfig) withDefaults() ConsumerConfig {
	if c.EventID == nil {
		c.EventID = HeaderEventID
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Prefetch = cmp.Or(c.Prefetch, DefaultPrefetch)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	consuming.SetBackoff(&c.MinBackoff, &c.MaxBackoff, DefaultMinBackoff, DefaultMaxBackoff)
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, DefaultConnectTimeout)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	return c
}

// Consumer applies the messages of a queue, each event once.
type Consumer struct{ config ConsumerConfig }

// NewConsumer returns a consumer, or says what is wrong with its configuration. Run connects.
func NewConsumer(config ConsumerConfig) (*Consumer, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Consumer{config.withDefaults()}, nil
}

// Run consumes until the context ends, and returns nil then, after what was being applied has been settled. What the
// broker has delivered and was not begun goes back into the queue. It returns no other error: a broker that is away, or
// a queue that is missing, is tried again.
func (c *Consumer) Run(ctx context.Context) error {
	r := &runner{ConsumerConfig: c.config}
	applying, cancel := consuming.Grace(ctx, r.Grace)
	defer cancel()
	defer r.work.Wait()
	for failures := 1; ctx.Err() == nil; failures++ {
		lived, err := r.session(ctx, applying)
		if lived > r.MaxBackoff {
			failures = 1 // one that is lost sooner may be lost for the same reason as those before
		}
		if ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "amqp: consuming was interrupted", "queue", r.Queue, "error", err)
			r.pause(ctx, failures)
		}
	}
	return nil
}
