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

// ErrPoison is returned if a message cannot be applied and there is no OnPoison. A handler returns an error that wraps
// ErrPoison if a retry would not help.
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
	// Source is a pull consumer with explicit acknowledgements and without a MaxDeliver, because after MaxDeliver
	// deliveries the server would drop a message silently. Required.
	Source jetstream.Consumer
	// Inbox records which events were applied. Required.
	Inbox *inbox.Inbox
	// Name is the name of the consumer in the inbox. It must stay the same for as long as events may be repeated.
	// Required.
	Name string
	// Handle applies a message in the transaction of its context, which [onceward.Tx] or the function of the store's
	// own package returns. It is called again if it returns an error or the transaction fails. It must not acknowledge
	// the message. While it runs, the server receives progress reports, so that it does not deliver the message again.
	// Required.
	Handle func(ctx context.Context, m jetstream.Msg) error

	// EventID returns the ID of the event of a message: the ID that the sender assigned, which is the same in each
	// repetition. If it returns an error, the message is poison. Default: [HeaderEventID], which reads the header
	// ce-id, or else Nats-Msg-Id.
	EventID func(m jetstream.Msg) (string, error)
	// OnPoison handles a message that cannot be applied. If it returns nil, for example because it stored the message
	// for an operator, the server does not deliver the message again. OnPoison is called again if it returns an error,
	// or if the process dies before that. Several workers may call it at once. Default: none; the consumer stops.
	OnPoison func(ctx context.Context, m jetstream.Msg, cause error) error

	// MaxAttempts is how many deliveries of a message to this process may fail before the message is poison. Failures
	// while the store is unavailable do not count, and neither do deliveries to other processes. Default:
	// [DefaultMaxAttempts].
	MaxAttempts int
	// MinBackoff and MaxBackoff bound the time before a failed message is delivered again. It doubles with each
	// delivery, minus a random part of up to a half. Default: [DefaultMinBackoff] and [DefaultMaxBackoff].
	MinBackoff, MaxBackoff time.Duration
	// Workers is the number of messages that are processed at once. Default: [DefaultWorkers].
	Workers int
	// Buffer is the number of messages that are requested in advance. They wait in the process for a worker; a message
	// that waits longer than the AckWait of the Source is delivered again. If the server sends more, as it may after a
	// restart, the client drops the excess messages, and the server delivers them again after the AckWait. Default:
	// twice the number of Workers.
	Buffer int
	// Grace is how long running handlers may continue after the context of Run has ended. Default: [DefaultGrace].
	Grace time.Duration
	// Observer receives an [inbox.HandledEvent] for each message. Default: none.
	Observer onceward.Observer
	// Propagator makes the context of Handle part of the trace that the headers of the message identify. Default: none.
	Propagator onceward.Propagator
	// Logger logs failures. Default: [slog.Default].
	Logger *slog.Logger
}

// watch returns the observer, propagator and logger for a message. The metadata of the message contains how many
// messages the server has not delivered yet.
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

// headersOf returns a function that returns the headers of a message, decoded where possible.
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

// check returns an error for missing or invalid fields.
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

// checkSource returns an error if the JetStream consumer could drop messages.
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

// withDefaults returns the configuration with defaults for the omitted fields.
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

// Consumer applies the messages of a JetStream consumer, each event once.
type Consumer struct{ config ConsumerConfig }

// NewConsumer returns a consumer, or an error if its configuration is invalid.
func NewConsumer(config ConsumerConfig) (*Consumer, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Consumer{config.withDefaults()}, nil
}

// HeaderEventID returns the event ID from the header ce-id of the NATS binding of CloudEvents, or else the message ID
// by which the server recognises repetitions.
func HeaderEventID(m jetstream.Msg) (string, error) {
	if value := header(m.Headers(), "ce-id"); value != "" {
		return decode(value)
	}
	if value := m.Headers().Get(jetstream.MsgIDHeader); value != "" {
		return value, nil
	}
	return "", errors.New("nats: the message has neither a header ce-id nor a Nats-Msg-Id")
}

// header returns the value of a header. It ignores the case of the name, because senders use different cases.
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

// decode decodes a value as the binding encodes it: percent-encoded, and in older versions in double quotes.
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
