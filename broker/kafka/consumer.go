package kafka

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/consuming"
)

// ErrPoison is returned when a record cannot be applied and there is no OnPoison to decide about it. A handler wraps it
// to say that to try again would not help.
var ErrPoison = errors.New("kafka: the record cannot be applied")

// The defaults of a [ConsumerConfig].
const (
	DefaultMaxAttempts = 10
	DefaultMinBackoff  = 100 * time.Millisecond
	DefaultMaxBackoff  = 30 * time.Second
	DefaultGrace       = 5 * time.Second
	DefaultMaxRecords  = 500
	DefaultMaxRound    = 10 * time.Second
	DefaultWorkers     = 16
)

// ConsumerConfig configures a [Consumer].
type ConsumerConfig struct {
	// Client is made with a group, DisableAutoCommit and BlockRebalanceOnPoll, as by [NewConsumerClient]. Only the
	// consumer polls it. Required.
	Client *kgo.Client
	// Inbox remembers what was applied. Required.
	Inbox *inbox.Inbox
	// Name is that of the consumer in the inbox. It stays the same for as long as events may be repeated. Required.
	Name string
	// Handle applies a record in the transaction that it takes from its context, with [onceward.Tx] or the way of the
	// store's own package. It is called again if it returns an error or the transaction fails. Required.
	Handle func(ctx context.Context, r *kgo.Record) error

	// EventID names the event of a record: the sender's name for it, the same each time it is sent. One that is not
	// known is an error, and the record is poison. Default: the header ce_id, [HeaderEventID].
	EventID func(r *kgo.Record) (string, error)
	// OnPoison decides about a record that cannot be applied. If it returns nil, because it has put the record aside
	// for an operator to look at, the consumer goes on behind it; it is called again if it returns an error, or if the
	// process dies before the offset is committed. It may be called for several partitions at once. Default: none, and
	// the consumer stops.
	OnPoison func(ctx context.Context, r *kgo.Record, cause error) error

	// MaxAttempts is how often a record is tried by this process before it is poison. Default: [DefaultMaxAttempts].
	MaxAttempts int
	// MinBackoff and MaxBackoff bound how long a partition waits after a failure. It doubles with each, less up to a
	// half at random. Default: [DefaultMinBackoff] and [DefaultMaxBackoff].
	MinBackoff, MaxBackoff time.Duration
	// MaxRecords is how many records a round has at most. Default: [DefaultMaxRecords].
	MaxRecords int
	// MaxRound is how long a round begins new records for; those that are left are fetched again. The group cannot
	// rebalance during a round, so it is well below the client's RebalanceTimeout. Default: [DefaultMaxRound].
	MaxRound time.Duration
	// Workers is how many partitions are worked on at once. Default: [DefaultWorkers].
	Workers int
	// Grace is how long the records that are being applied may go on when Run is to end. Default: [DefaultGrace].
	Grace time.Duration
	// Observer is told of each record, by an [inbox.HandledEvent]. Default: none.
	Observer onceward.Observer
	// Propagator lets Handle belong to the trace that the headers of the record tell of. Default: none.
	Propagator onceward.Propagator
	// Logger gets what failed. Default: [slog.Default].
	Logger *slog.Logger
}

// headersOf returns a function that returns the headers of a record that are text.
func headersOf(record *kgo.Record) func() map[string]string {
	return func() map[string]string {
		headers := make(map[string]string, len(record.Headers))
		for _, h := range record.Headers {
			headers[h.Key] = string(h.Value)
		}
		return headers
	}
}

// HeaderEventID returns the event's ID as the Kafka binding of CloudEvents puts it into the header ce_id.
func HeaderEventID(r *kgo.Record) (string, error) {
	for _, h := range r.Headers {
		if h.Key == "ce_id" {
			return string(h.Value), nil
		}
	}
	return "", errors.New("kafka: the record has no header ce_id")
}

// check finds what is missing or makes no sense.
func (c *ConsumerConfig) check() error {
	checker := &consuming.Checker{Of: "kafka.ConsumerConfig"}
	checker.Required("Client", c.Client != nil)
	checker.Required("Inbox", c.Inbox != nil)
	checker.Name("Name", c.Name)
	checker.Required("Handle", c.Handle != nil)
	checker.AtMost("MaxAttempts", c.MaxAttempts, math.MaxInt)
	checker.AtMost("MaxRecords", c.MaxRecords, math.MaxInt)
	checker.AtMost("Workers", c.Workers, math.MaxInt)
	checker.Backoff(c.MinBackoff, c.MaxBackoff)
	checker.NotNegative("MaxRound", c.MaxRound)
	checker.NotNegative("Grace", c.Grace)
	if err := checker.Err(); err != nil {
		return err
	}
	return checkConsumerClient(c.Client)
}

// withDefaults fills in what was left out.
func (c ConsumerConfig) withDefaults() ConsumerConfig {
	if c.EventID == nil {
		c.EventID = HeaderEventID
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	consuming.SetBackoff(&c.MinBackoff, &c.MaxBackoff, DefaultMinBackoff, DefaultMaxBackoff)
	c.MaxRecords = cmp.Or(c.MaxRecords, DefaultMaxRecords)
	c.MaxRound = cmp.Or(c.MaxRound, DefaultMaxRound)
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	return c
}

// Consumer applies the records that a client consumes, each event once.
type Consumer struct{ config ConsumerConfig }

// NewConsumer returns a consumer, or says what is wrong with its configuration.
func NewConsumer(config ConsumerConfig) (*Consumer, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Consumer{config.withDefaults()}, nil
}

// Run consumes until the context ends, and returns nil then, after what was applied has been committed. It returns an
// error if the client is closed, which wraps [onceward.ErrMisconfigured], or a record is poison and there is no
// OnPoison. The client is left open. Call it once at a time.
func (c *Consumer) Run(ctx context.Context) error {
	r := &runner{ConsumerConfig: c.config, waiting: make(map[partition]*wait)}
	defer r.resume(func(*wait) bool { return true })
	for ctx.Err() == nil {
		if err := r.round(ctx); err != nil {
			return err
		}
	}
	return nil
}
