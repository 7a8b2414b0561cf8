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

// ErrPoison is the cause that [ConsumerConfig.OnPoison] receives for a delivery without an event ID. A handler returns
// an error that wraps ErrPoison if a retry would not help.
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
	// URL is the address of the broker, such as amqps://user:password@host/vhost. Required.
	URL string
	// TLS is the TLS configuration for an amqps URL. Default: the certificate authorities of the system.
	TLS *tls.Config
	// Queue is the name of the queue to consume. Required.
	Queue string
	// Inbox records which events were applied. Required.
	Inbox *inbox.Inbox
	// Name is the name of the consumer in the inbox, and the connection name and consumer tag that the broker shows. It
	// must stay the same for as long as events may be repeated. Required.
	Name string
	// Handle applies a delivery in the transaction of its context, which [onceward.Tx] or the function of the store's
	// own package returns. It is called again if it returns an error or the transaction fails. It must not acknowledge
	// the delivery. Required.
	Handle func(ctx context.Context, d *amqp091.Delivery) error

	// EventID returns the ID of the event of a delivery: the ID that the sender assigned, which is the same in each
	// repetition. If it returns an error, the delivery is poison. Default: [HeaderEventID].
	EventID func(d *amqp091.Delivery) (string, error)
	// OnPoison handles a delivery that cannot be applied. If it returns nil, for example because it stored the message
	// for an operator, the delivery is acknowledged. It is called again if it returns an error, or if the process dies
	// before the acknowledgement. Default: none; the delivery is rejected, and the broker sends it to the queue's
	// dead-letter exchange.
	OnPoison func(ctx context.Context, d *amqp091.Delivery, cause error) error

	// Prefetch is the number of deliveries that are processed at once, including those that wait after a failure.
	// Default: [DefaultPrefetch].
	Prefetch int
	// MaxAttempts is how often this process tries an event before the event is poison. Default: [DefaultMaxAttempts].
	MaxAttempts int
	// MinBackoff and MaxBackoff bound the wait before a failed delivery is requeued, and the wait before a reconnect.
	// The wait doubles with each failure, minus a random part of up to a half. After a connection that lasted longer
	// than MaxBackoff, the next wait is short. Default: [DefaultMinBackoff] and [DefaultMaxBackoff].
	MinBackoff, MaxBackoff time.Duration
	// Grace is how long running handlers may continue after the context of Run has ended. Default: [DefaultGrace].
	Grace time.Duration
	// ConnectTimeout is the longest time for connecting and starting to consume. It is also the longest time that a
	// write may block. Default: [DefaultConnectTimeout].
	ConnectTimeout time.Duration
	// Heartbeat is the interval of the heartbeats. A connection is lost if the broker misses three heartbeats. Default:
	// [DefaultHeartbeat].
	Heartbeat time.Duration
	// Observer receives an [inbox.HandledEvent] for each message. Default: none.
	Observer onceward.Observer
	// Propagator makes the context of Handle part of the trace that the headers of the message identify. Default: none.
	Propagator onceward.Propagator
	// Logger logs failures. Default: [slog.Default].
	Logger *slog.Logger
}

// headersOf returns a function that returns the headers of a message whose values are text.
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

// HeaderEventID returns the event ID from the header of the AMQP binding of CloudEvents, cloudEvents:id or
// cloudEvents_id, or else the message-id.
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

// check returns an error for missing or invalid fields.
func (c *ConsumerConfig) check() error {
	if err := checkURL(c.URL); err != nil {
		return err
	}
	checker := &consuming.Checker{Of: "amqp.ConsumerConfig"}
	checker.Name("Queue", c.Queue)
	checker.Required("Inbox", c.Inbox != nil)
	checker.Name("Name", c.Name)
	checker.Required("Handle", c.Handle != nil)
	checker.AtMost("Prefetch", c.Prefetch, math.MaxUint16) // the limit of the protocol
	checker.AtMost("MaxAttempts", c.MaxAttempts, math.MaxInt)
	checker.Backoff(c.MinBackoff, c.MaxBackoff)
	checker.NotNegative("Grace", c.Grace)
	checker.NotNegative("ConnectTimeout", c.ConnectTimeout)
	checker.NotNegative("Heartbeat", c.Heartbeat)
	return checker.Err()
}

// withDefaults returns the configuration with defaults for the omitted fields.
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

// NewConsumer returns a consumer, or an error if its configuration is invalid. [Consumer.Run] connects to the broker.
func NewConsumer(config ConsumerConfig) (*Consumer, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Consumer{config.withDefaults()}, nil
}

// Run consumes until the context ends, waits until the running handlers are settled, and returns nil. Deliveries that
// were not started return to the queue. Run returns no error: it retries if the broker is unreachable or the queue is
// missing.
func (c *Consumer) Run(ctx context.Context) error {
	r := &runner{ConsumerConfig: c.config}
	applying, cancel := consuming.Grace(ctx, r.Grace)
	defer cancel()
	defer r.work.Wait()
	for failures := 1; ctx.Err() == nil; failures++ {
		lived, err := r.session(ctx, applying)
		if lived > r.MaxBackoff {
			failures = 1 // a connection that is lost sooner may have been lost for the same reason
		}
		if ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "amqp: consuming was interrupted", "queue", r.Queue, "error", err)
			r.pause(ctx, failures)
		}
	}
	return nil
}
