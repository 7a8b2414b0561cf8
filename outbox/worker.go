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

// Route says how the messages of a topic are delivered.
type Route struct {
	// Handler delivers. Required.
	Handler Handler
	// Timeout bounds one delivery, whose context ends then. One that goes on all the same for longer than a lease is
	// given up, and another worker delivers the message again. Default: 30 s.
	Timeout time.Duration
	// Concurrency is how many deliveries of this worker may be under way at one time. Default: 64.
	Concurrency int
	// MaxAttempts is the number of attempts after which a message becomes a dead letter. Default: 20.
	MaxAttempts int
	// MinBackoff is the longest time until the second attempt. It doubles with each further one, up to MaxBackoff. Up
	// to half of it is left out at random. Default: 1 s, and 15 min or MinBackoff if that is longer.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// BlockOnDeadLetter makes a dead letter hold up the later messages of its aggregate, until an operator replays or
	// drops it. Default: they go on without it.
	BlockOnDeadLetter bool
}

// WorkerConfig configures a [Worker].
type WorkerConfig struct {
	// Routes say how the messages of each topic are delivered. Topics without a route are left to other workers.
	// Required.
	Routes map[string]Route
	// Records is where the operations are recorded that [Result.Settle] settles: a [store.Reconciler]. Default: the
	// worker's own store, if it is one.
	Records store.Store

	// Lease is how long a message belongs to the worker without a sign of life. It is extended while the worker lives.
	// Less than 100 ms and more than [onceward.MaxLease] are refused. Default: 30 s.
	Lease time.Duration
	// Poll is the time between two looks for messages of other processes while there are none and the store does not
	// tell of them. While it does, it is twice as long. Default: 500 ms.
	Poll time.Duration
	// Retention is how long messages are kept that were delivered. Default: 7 days.
	Retention time.Duration
	// Grace is how long deliveries that are under way may go on when the worker is told to stop. How they ended is
	// written down for 5 s more at most. Default: 10 s.
	Grace time.Duration

	// Observer is told of each delivery, by a [DeliveredEvent], and of each look for messages, by an
	// [onceward.WorkerEvent]. Default: none.
	Observer onceward.Observer
	// Propagator lets deliveries belong to the trace that their messages were added in. Default: none.
	Propagator onceward.Propagator
	// Logger gets what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
}

// Worker delivers messages. Any number of workers, on any number of nodes, may run at once.
type Worker struct {
	config WorkerConfig
	store  Store
}

// NewWorker returns a worker over a store.
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

// setting is a duration of the configuration, with what it usually is and its limits.
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

// backoff is the time before the next attempt: longer with each, and never the same for two.
func (r *Route) backoff(attempts int) time.Duration {
	return backoff.Jittered(r.MinBackoff, r.MaxBackoff, attempts)
}

// Report is what a worker did.
type Report struct {
	// Delivered counts the messages that are done.
	Delivered int
	// Retried counts deliveries that failed and will be tried again, DeadLetters those that will not.
	Retried, DeadLetters int
	// Lost counts deliveries whose lease was lost before they could be recorded: another worker repeats them.
	Lost int
}

// Run delivers until the context ends. Then it takes no more messages, gives those that are being delivered time to
// end, returns what it had not begun to the store, and ends with nil. Failures are logged, and it goes on.
func (w *Worker) Run(ctx context.Context) error {
	_, err := w.run(ctx, false)
	return err
}

// StopTimeout tells a [onceward.Runner] how long the worker may take to stop: the grace, and the last writes.
func (w *Worker) StopTimeout() time.Duration { return w.config.Grace + 2*lastWrites }

// RunOnce delivers what is due, including what becomes due by that, until there is nothing more, and says what came of
// it. Messages that are to be tried again later are left for later.
func (w *Worker) RunOnce(ctx context.Context) (Report, error) { return w.run(ctx, true) }

func (w *Worker) run(ctx context.Context, once bool) (Report, error) {
	s := newWorkerRun(w)
	if once {
		s.maintained, s.purged = time.Time{}, time.Time{} // there may be no other time
	}
	defer s.end()
	defer s.stopWith(ctx)()
	err := s.pump(ctx, once)
	s.drain()
	return s.summary(), err
}
