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

// ErrPoison is returned if a record cannot be applied and there is no OnPoison. A handler returns an error that wraps
// ErrPoison if a retry would not help.
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
	// Client is a client with a group, DisableAutoCommit and BlockRebalanceOnPoll, such as [NewConsumerClient] returns.
	// Only the consumer may poll it. Required.
	Client *kgo.Client
	// Inbox records which events were applied. Required.
	Inbox *inbox.Inbox
	// Name is the name of the consumer in the inbox. It must stay the same for as long as events may be repeated.
	// Required.
	Name string
	// Handle applies a record in the transaction of its context, which [onceward.Tx] or the function of the store's own
	// package returns. It is called again if it returns an error or the transaction fails. Required.
	Handle func(ctx context.Context, r *kgo.Record) error

	// EventID returns the ID of the event of a record: the ID that the sender assigned, which is the same in each
	// repetition. If it returns an error, the record is poison. Default: [HeaderEventID], which reads the header ce_id.
	EventID func(r *kgo.Record) (string, error)
	// OnPoison handles a record that cannot be applied. If it returns nil, for example because it stored the record for
	// an operator, the consumer continues after the record. It is called again if it returns an error, or if the
	// process dies before the offset is committed. It may be called for several partitions at once. Default: none; the
	// consumer stops.
	OnPoison func(ctx context.Context, r *kgo.Record, cause error) error

	// MaxAttempts is how often this process tries a record before the record is poison. Default: [DefaultMaxAttempts].
	MaxAttempts int
	// MinBackoff and MaxBackoff bound how long a partition waits after a failure. The wait doubles with each failure,
	// minus a random part of up to a half. Default: [DefaultMinBackoff] and [DefaultMaxBackoff].
	MinBackoff, MaxBackoff time.Duration
	// MaxRecords is the largest number of records in a round. Default: [DefaultMaxRecords].
	MaxRecords int
	// MaxRound is how long a round starts new records; the remaining records are fetched again. The group cannot
	// rebalance during a round, so MaxRound must be well below the client's RebalanceTimeout. Default:
	// [DefaultMaxRound].
	MaxRound time.Duration
	// Workers is the number of partitions that are processed at once. Default: [DefaultWorkers].
	Workers int
	// Grace is how long running handlers may continue after the context of Run has ended. Default: [DefaultGrace].
	Grace time.Duration
	// Observer receives an [inbox.HandledEvent] for each record. Default: none.
	Observer onceward.Observer
	// Propagator makes the context of Handle part of the trace that the headers of the record identify. Default: none.
	Propagator onceward.Propagator
	// Logger logs failures. Default: [slog.Default].
	Logger *slog.Logger
}

// headersOf returns a function that returns the headers of a record.
func headersOf(record *kgo.Record) func() map[string]string {
	return func() map[string]string {
		headers := make(map[string]string, len(record.Headers))
		for _, h := range record.Headers {
			headers[h.Key] = string(h.Value)
		}
		return headers
	}
}

// HeaderEventID returns the event ID from the header ce_id of the Kafka binding of CloudEvents.
func HeaderEventID(r *kgo.Record) (string, error) {
	for _, h := range r.Headers {
		if h.Key == "ce_id" {
			return string(h.Value), nil
		}
	}
	return "", errors.New("kafka: the record has no header ce_id")
}

// check returns an error for missing or invalid fields.
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

// withDefaults returns the configuration with defaults for the omitted fields.
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

// NewConsumer returns a consumer, or an error if its configuration is invalid.
func NewConsumer(config ConsumerConfig) (*Consumer, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Consumer{config.withDefaults()}, nil
}

// Run consumes until the context ends, commits the offsets of the applied records, and returns nil. It returns an error
// if the client is closed, which wraps [onceward.ErrMisconfigured], or if a record is poison and there is no OnPoison.
// Run does not close the client. Only one call of Run may be active at a time.
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
