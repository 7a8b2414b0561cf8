package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// Route is the delivery configuration of a topic.
type Route struct {
	// Handler delivers the messages. Required.
	Handler Handler
	// Timeout limits one delivery: the delivery's context ends after this time. A delivery that continues
	// anyway for longer than a lease is given up, and another worker delivers the message again. Default: 30 s.
	Timeout time.Duration
	// Concurrency is the largest number of concurrent deliveries of this worker. Default: 64.
	Concurrency int
	// MaxAttempts is the number of attempts after which a message becomes a dead letter. Default: 20.
	MaxAttempts int
	// MinBackoff is the longest wait before the second attempt. It doubles with each
	// further attempt, up to MaxBackoff. The wait is shortened by up to half at random.
	// Default: 1 s, and for MaxBackoff 15 min, or MinBackoff if that is longer.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// BlockOnDeadLetter means that a dead letter blocks the later messages of its aggregate until
	// an operator replays or drops it. Default: the later messages are delivered without it.
	BlockOnDeadLetter bool
}

// WorkerConfig configures a [Worker].
type WorkerConfig struct {
	// Routes are the routes by topic. Topics without a route are left to other workers. Required.
	Routes map[string]Route
	// Records is the store with the records of the operations that [Result.Settle]
	// settles: a [store.Reconciler]. Default: the worker's own store, if it keeps records.
	Records store.Store

	// Lease is how long a message belongs to the worker without a sign of life. A live worker extends
	// it. Values less than 100 ms and more than [onceward.MaxLease] are refused. Default: 30 s.
	Lease time.Duration
	// Poll is the interval at which an idle worker looks for messages of other processes, if the store
	// does not report them. If the store reports them, the interval is twice as long. Default: 500 ms.
	Poll time.Duration
	// Retention is how long delivered messages are kept. Default: 7 days.
	Retention time.Duration
	// Grace is how long current deliveries may continue after the worker was
	// stopped. Their results are then recorded for at most 5 s more. Default: 10 s.
	Grace time.Duration

	// Observer receives a [DeliveredEvent] for each delivery, and an
	// [onceward.WorkerEvent] each time the worker looks for messages. Default: none.
	Observer onceward.Observer
	// Propagator makes deliveries part of the traces in which their messages were added. Default: none.
	Propagator onceward.Propagator
	// Logger logs failures and what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
}

// Worker delivers messages. Any number of workers, on any number of nodes, may run at the same time.
type Worker struct {
	config WorkerConfig
	store  Store
}

// NewWorker returns a worker for a store.
func NewWorker(s Store, config WorkerConfig) (*Worker, error) {
	if err := checkStore(s); err != nil {
		return nil, err
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if config.Records == nil {
		config.Records, _ = store.As[store.Store](s)
	}
	return &Worker{config: config, store: s}, nil
}

func (c WorkerConfig) withDefaults() (WorkerConfig, error) {
	if len(c.Routes) == 0 {
		return c, errors.New("outbox: WorkerConfig.Routes is missing: it says who delivers the messages of a topic")
	}
	routes := make(map[string]Route, len(c.Routes))
	for topic, route := range c.Routes {
		route, err := route.withDefaults(topic)
		if err != nil {
			return c, err
		}
		routes[topic] = route
	}
	c.Routes = routes
	err := setDefaults([]setting{
		{"Lease", &c.Lease, 30 * time.Second, 100 * time.Millisecond, onceward.MaxLease},
		{"Poll", &c.Poll, 500 * time.Millisecond, time.Millisecond, onceward.MaxRetention},
		{"Retention", &c.Retention, 7 * 24 * time.Hour, 1, onceward.MaxRetention},
		{"Grace", &c.Grace, 10 * time.Second, 1, onceward.MaxRetention},
	})
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, err
}

func (r Route) withDefaults(topic string) (Route, error) {
	switch {
	case topic == "":
		return r, errors.New("outbox: a route without a topic: messages without one are for change-data-capture alone")
	case r.Handler == nil:
		return r, fmt.Errorf("outbox: the route for %q has no Handler", topic)
	case r.MaxAttempts < 0 || r.Concurrency < 0:
		return r, fmt.Errorf("outbox: the route for %q has a negative MaxAttempts or Concurrency", topic)
	}
	if r.MaxAttempts == 0 {
		r.MaxAttempts = 20
	}
	if r.Concurrency == 0 {
		r.Concurrency = 64
	}
	return r, setDefaults([]setting{
		{"Timeout", &r.Timeout, 30 * time.Second, time.Millisecond, onceward.MaxRetention},
		{"MinBackoff", &r.MinBackoff, time.Second, 1, onceward.MaxRetention},
		{"MaxBackoff", &r.MaxBackoff, max(15*time.Minute, r.MinBackoff), 1, onceward.MaxRetention},
	})
}

// setting is a duration in the configuration, with its default and its limits.
type setting struct {
	name        string
	value       *time.Duration
	usual       time.Duration
	least, most time.Duration
}

func setDefaults(settings []setting) error {
	for _, s := range settings {
		if *s.value < 0 {
			return fmt.Errorf("outbox: %s is negative: %s", s.name, *s.value)
		}
		if *s.value == 0 {
			*s.value = s.usual
		}
		if *s.value < s.least || *s.value > s.most {
			return fmt.Errorf("outbox: a %s of %s: the limits are %s and %s", s.name, *s.value, s.least, s.most)
		}
	}
	return nil
}

// backoff returns the wait before the next attempt: it grows with each attempt and is random.
func (r *Route) backoff(attempts int) time.Duration {
	return backoff.Jittered(r.MinBackoff, r.MaxBackoff, attempts)
}

// Report is the result of a worker's run.
type Report struct {
	// Delivered is the number of messages that are done.
	Delivered int
	// Retried is the number of failed deliveries that will be
	// retried, and DeadLetters the number of those that will not.
	Retried, DeadLetters int
	// Lost is the number of deliveries whose lease was lost before they could be recorded: another worker repeats them.
	Lost int
}

// Run delivers until the context ends. Then it takes no more messages, gives current deliveries time to end,
// returns messages that were not started to the store, and returns nil. Failures are logged, and Run continues.
func (w *Worker) Run(ctx context.Context) error {
	_, err := w.run(ctx, false)
	return err
}

// StopTimeout returns how long the worker may take to stop, for a [onceward.Runner]: the grace and the last writes.
func (w *Worker) StopTimeout() time.Duration { return w.config.Grace + 2*lastWrites }

// RunOnce delivers all messages that are due, including messages that become due by this, until
// there are no more, and returns a report. It leaves messages that will be retried later.
func (w *Worker) RunOnce(ctx context.Context) (Report, error) { return w.run(ctx, true) }

func (w *Worker) run(ctx context.Context, once bool) (Report, error) {
	s := newWorkerRun(w)
	if once {
		s.maintained, s.purged = time.Time{}, time.Time{} // there may be no later opportunity
	}
	defer s.end()
	defer s.stopWith(ctx)()
	err := s.pump(ctx, once)
	s.drain()
	return s.summary(), err
}
