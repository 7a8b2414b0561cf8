package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/consuming"
)

// ErrPoison is returned when a message cannot be applied and there is no OnPoison to decide about it. A handler wraps
// it to say that to try again would not help.
var ErrPoison = errors.New("nats: the message cannot be applied")

// The defaults of a [ConsumerConfig].
const (
	DefaultMaxAttempts = 10
	DefaultMinBackoff  = 100 * time.Millisecond
	DefaultMaxBackoff  = 30 * time.Second
	DefaultGrace       = 5 * time.Second
	DefaultWorkers     = 1
)

// ConsumerConfig configures a [Consumer].
type ConsumerConfig struct {
	// Source is a pull consumer with explicit acknowledgements and without a MaxDeliver: past that the server would
	// drop a message in silence. Required.
	Source jetstream.Consumer
	// Inbox remembers what was applied. Required.
	Inbox *inbox.Inbox
	// Name is that of the consumer in the inbox. It stays the same for as long as events may be repeated. Required.
	Name string
	// Handle applies a message in the transaction that it takes from its context, with [onceward.Tx] or the way of the
	// store's own package. It is called again if it returns an error or the transaction fails. It leaves the
	// acknowledgement alone. While it takes its time, the server is told so. Required.
	Handle func(ctx context.Context, m jetstream.Msg) error

	// EventID names the event of a message: the sender's name for it, the same each time it is sent. One that is not
	// known is an error, and the message is poison. Default: the header ce-id, or else Nats-Msg-Id, [HeaderEventID].
	EventID func(m jetstream.Msg) (string, error)
	// OnPoison decides about a message that cannot be applied. If it returns nil, because it has put the message aside
	// for an operator to look at, the server is told not to deliver it again; OnPoison is called again if it returns an
	// error, or if the process dies before that. It may be called by several workers at once. Default: none, and the
	// consumer stops.
	OnPoison func(ctx context.Context, m jetstream.Msg, cause error) error

	// MaxAttempts is how many deliveries of a message to this process fail before it is poison. Those do not count that
	// fail because the store is not available, nor those to other processes. Default: [DefaultMaxAttempts].
	MaxAttempts int
	// MinBackoff and MaxBackoff bound the time before a message that failed comes again. It doubles with each
	// delivery, less up to a half at random. Default: [DefaultMinBackoff] and [DefaultMaxBackoff].
	MinBackoff, MaxBackoff time.Duration
	// Workers is how many messages are worked on at once. Default: [DefaultWorkers].
	Workers int
	// Buffer is how many messages are asked for ahead. They wait here for a worker, and if they wait for longer than
	// the AckWait of the Source, they are delivered once more. What the server sends beyond that, as it may after a
	// restart, is dropped by the client, and comes again after the AckWait. Default: twice as many as Workers.
	Buffer int
	// Grace is how long the messages that are being applied may go on when Run is to end. Default: [DefaultGrace].
	Grace time.Duration
	// Observer is told of each message, by an [inbox.HandledEvent]. Default: none.
	Observer onceward.Observer
	// Propagator lets Handle belong to the trace that the headers of the message tell of. Default: none.
	Propagator onceward.Propagator
	// Logger gets what failed. Default: [slog.Default].
	Logger *slog.Logger
}

// watch is who is told of what the consumer does with a message. With that the server tells how many it has not
// delivered.
func (c *ConsumerConfig) watch(m jetstream.Msg) consuming.Watch {
	return consuming.Watch{
		Observer: c.Observer, Propagator: c.Propagator, Logger: c.Logger,
		Backlog: func() int {
			metadata, err := m.Metadata()
			if err != nil {
				return -1
			}
			return int(min(metadata.NumPending, math.MaxInt32))
		},
	}
}

// headersOf returns a function that returns the headers of a message that are text.
func headersOf(m jetstream.Msg) func() map[string]string {
	return func() map[string]string {
		headers := make(map[string]string, len(m.Headers()))
		for name := range m.Headers() {
			value := m.Headers().Get(name)
			if decoded, err := decode(value); err == nil {
				value = decoded
			}
			headers[name] = value
		}
		return headers
	}
}

// check finds what is missing or makes no sense.
func (c *ConsumerConfig) check() error {
	checker := &consuming.Checker{Of: "nats.ConsumerConfig"}
	checker.Required("Source", c.Source != nil)
	checker.Required("Inbox", c.Inbox != nil)
	checker.Name("Name", c.Name)
	checker.Required("Handle", c.Handle != nil)
	checker.AtMost("MaxAttempts", c.MaxAttempts, math.MaxInt)
	checker.AtMost("Workers", c.Workers, math.MaxInt)
	checker.AtMost("Buffer", c.Buffer, math.MaxInt)
	checker.Backoff(c.MinBackoff, c.MaxBackoff)
	checker.NotNegative("Grace", c.Grace)
	if err := checker.Err(); err != nil {
		return err
	}
	if info := c.Source.CachedInfo(); info != nil {
		return checkSource(&info.Config)
	}
	return nil
}

// checkSource refuses a consumer of JetStream by which messages could be dropped.
func checkSource(config *jetstream.ConsumerConfig) error {
	if config.AckPolicy != jetstream.AckExplicitPolicy {
		return fmt.Errorf("nats: the consumer %s in JetStream has no explicit acknowledgements", config.Name)
	}
	if config.MaxDeliver > 0 {
		return fmt.Errorf("nats: the consumer %s in JetStream has a MaxDeliver of %d: "+
			"the server would drop messages in silence", config.Name, config.MaxDeliver)
	}
	return nil
}

// withDefaults fills in what was left out.
func (c ConsumerConfig) withDefaults() ConsumerConfig {
	if c.EventID == nil {
		c.EventID = HeaderEventID
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	consuming.SetBackoff(&c.MinBackoff, &c.MaxBackoff, DefaultMinBackoff, DefaultMaxBackoff)
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.Buffer = cmp.Or(c.Buffer, 2*c.Workers)
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	return c
}

// Consumer applies the messages of a consumer of JetStream, each event once.
type Consumer struct{ config ConsumerConfig }

// NewConsumer returns a consumer, or says what is wrong with its configuration.
func NewConsumer(config ConsumerConfig) (*Consumer, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Consumer{config.withDefaults()}, nil
}

// HeaderEventID returns the event's ID as the NATS binding of CloudEvents puts it into the header ce-id, or else the
// message ID by which the server drops repetitions.
func HeaderEventID(m jetstream.Msg) (string, error) {
	if value := header(m.Headers(), "ce-id"); value != "" {
		return decode(value)
	}
	if value := m.Headers().Get(jetstream.MsgIDHeader); value != "" {
		return value, nil
	}
	return "", errors.New("nats: the message has neither a header ce-id nor a Nats-Msg-Id")
}

// header returns a header whatever the case of its name, which senders differ in.
func header(all natsgo.Header, name string) string {
	if value := all.Get(name); value != "" {
		return value
	}
	for other := range all {
		if strings.EqualFold(other, name) {
			return all.Get(other)
		}
	}
	return ""
}

var unquote = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// decode undoes what the binding does to values: percent-encoding, and in older versions double quotes.
func decode(value string) (string, error) {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unquote.Replace(value[1 : len(value)-1])
	}
	decoded, err := url.PathUnescape(value)
	if err != nil || !utf8.ValidString(decoded) {
		return "", fmt.Errorf("nats: the header ce-id %q is not encoded as CloudEvents wants it", value)
	}
	return decoded, nil
}
