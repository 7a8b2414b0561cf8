// Package breaker is a circuit breaker around any store (L2): after failures or slow calls, no calls are sent to the
// store for a while, and they fail immediately instead of timing out.
//
//	inside, err := postgres.Open(ctx, url)
//	s, err := breaker.New(inside, breaker.Config{})
//	guard, err := onceward.New(s, config)
//	mux.Handle("GET /healthz/store", s.Health())
//
// While the breaker is open a call returns an [*OpenError]: nothing is sent to the store, nothing is executed, and a
// client gets 503 with the time after which to retry. Calls of work that is already running are always sent: refusing
// them would make outcomes unknown without need, and their number is bounded by the work in flight.
package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
)

// Config configures a breaker.
type Config struct {
	// ConsecutiveFailures is the number of failed calls in a row that opens the breaker. Default: 5.
	ConsecutiveFailures int
	// FailureRatio is the share of failed calls within the Window that opens the breaker, between 0 and 1. It has no
	// effect before MinCalls calls were made. Default: 0.5.
	FailureRatio float64
	// MinCalls is the number of calls within the Window from which FailureRatio counts. Default: 20.
	MinCalls int
	// Window is the time over which calls are counted. Default: 10 s.
	Window time.Duration
	// SlowCall is how long a call may take. A call that takes longer counts as failed from that moment on, although its
	// result is used. The work of a handler and waiting for another attempt do not count. Background jobs, and calls
	// that may wait for a handler in a transaction, do not count as long as the store answers a look-up within this
	// time. Default: 1 s.
	SlowCall time.Duration
	// OpenFor is how long the breaker stays open before it sends one call to probe the store. The sum of OpenFor and
	// SlowCall should be longer than the StoreTimeout of the guard: otherwise a second probe may start while the first
	// one hangs. Default: 5 s.
	OpenFor time.Duration
	// Observer receives a [ChangedEvent] for each change of state. Default: none.
	Observer onceward.Observer
	// Logger logs each change of state. Default: [slog.Default].
	Logger *slog.Logger
}

// These are the defaults of Config.
const (
	defaultConsecutiveFailures = 5
	defaultFailureRatio        = 0.5
	defaultMinCalls            = 20
	defaultWindow              = 10 * time.Second
	defaultSlowCall            = time.Second
	defaultOpenFor             = 5 * time.Second
	// windowParts is the number of parts of the window, which moves by one part at a time.
	windowParts = 10
)

func (c Config) withDefaults() (Config, error) {
	if c.ConsecutiveFailures < 0 || c.MinCalls < 0 || c.Window < 0 || c.SlowCall < 0 || c.OpenFor < 0 {
		return c, errors.New("breaker: the numbers and times of Config cannot be negative")
	}
	if c.FailureRatio < 0 || c.FailureRatio > 1 {
		return c, fmt.Errorf("breaker: a FailureRatio of %v: it is a share, between 0 and 1", c.FailureRatio)
	}
	setDefault(&c.ConsecutiveFailures, defaultConsecutiveFailures)
	setDefault(&c.FailureRatio, defaultFailureRatio)
	setDefault(&c.MinCalls, defaultMinCalls)
	setDefault(&c.Window, defaultWindow)
	setDefault(&c.SlowCall, defaultSlowCall)
	setDefault(&c.OpenFor, defaultOpenFor)
	if c.Window < windowParts {
		return c, fmt.Errorf("breaker: a Window of %s is too short to count anything in", c.Window)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Store is a store behind a circuit breaker. It has the capabilities of the inner store.
type Store struct {
	*wrap.Store
	config  Config
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]

	cause error // why the last call failed; guarded by the circuit's lock, which it holds in its callbacks

	working atomic.Int64              // handlers that are working in a transaction
	left    atomic.Pointer[time.Time] // when the last of them ended; nil if none has
	// oneWriter means that all writes wait for handlers, not only calls that need a handler's connection.
	oneWriter bool

	news    atomic.Bool // there are changes to report
	mu      sync.Mutex
	until   time.Time // when an open breaker lets the next probe through
	changes []ChangedEvent
	looking *look // nil if none is in progress
}

// fronted is a store that answers some calls without its inner store, such as the store of package tiered. A breaker
// around it would stay closed while the inner store fails, and an open breaker would keep retries from the front.
type fronted interface{ FrontAway() bool }

// New returns a breaker around a store, or an error that describes what is wrong in the configuration.
func New(inside store.Store, config Config) (*Store, error) {
	if inside == nil {
		return nil, errors.New("breaker: the store is nil")
	}
	if _, ok := store.Find[fronted](inside); ok {
		return nil, errors.New("breaker: the store has a front, whose answers say nothing about the store behind it: " +
			"put the breaker around that one, and the front before the breaker")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{config: config, oneWriter: hasOneWriter(inside)}
	s.Store = wrap.New(inside, s.around)
	s.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Interval:      config.Window,
		BucketPeriod:  config.Window / windowParts,
		Timeout:       config.OpenFor,
		ReadyToTrip:   config.trips,
		OnStateChange: s.changed,
		IsSuccessful:  s.succeeded,
		IsExcluded:    func(err error) bool { return errors.Is(err, errNotJudged) },
	})
	return s, nil
}

func (c *Config) trips(counts gobreaker.Counts) bool {
	calls := counts.TotalSuccesses + counts.TotalFailures
	return int(counts.ConsecutiveFailures) >= c.ConsecutiveFailures ||
		int(calls) >= c.MinCalls && float64(counts.TotalFailures) >= c.FailureRatio*float64(calls)
}

// ofWork holds the calls of work that is already running: the writes of an owner, the calls inside a transaction that
// has begun, and the calls with which a worker records an effect that has happened, or a poller an outcome that it has
// found.
var ofWork = map[wrap.Call]bool{
	"extend": true, "checkpoint": true, "complete": true, "release": true, "abandon": true, "reject": true,
	"add late completion": true, "postpone": true,
	"resolve completed": true, "resolve not executed": true, "resolve step": true, "add audit": true,
	"extend messages": true, "record provider id": true, "finish messages": true,
	"add message": true, "add to answer": true, "remember event": true, "upsert row": true, "lock name": true,
}

// beginnings holds the calls that begin or request new work.
var beginnings = map[wrap.Call]bool{
	"reserve": true, "transact": true, "claim messages": true, "begin reconcile": true,
	"requeue": true, "replay message": true,
}

// goesThrough reports whether a call is made even while the breaker is open. Calls of a running operation are made,
// such as a transaction in which it records its work. Calls that begin new work, and background jobs, are not: work
// that an operation started with its context may never end.
func goesThrough(ctx context.Context, name wrap.Call) bool {
	return ofWork[name] || !beginnings[name] && !background[name] && onceward.FromContext(ctx) != nil
}

// around makes a call, unless the breaker refuses it, and judges the result.
func (s *Store) around(ctx context.Context, name wrap.Call, next func(ctx context.Context) error) error {
	if name == "wait" {
		return next(ctx) // its duration does not depend on the store
	}
	if name == "add to answer" {
		noteMessage(ctx)
	}
	c, err := s.begin(ctx, name, inTransaction[name])
	if err != nil {
		return err
	}
	defer c.end(&err)
	err = next(ctx)
	return err
}

// call is a call in progress.
type call struct {
	store *Store
	ctx   context.Context
	name  wrap.Call
	waits bool // it can wait for a handler, even in a store with many writers
	began time.Time
	done  func(err error) // nil if it does not count
	slow  *time.Timer
}

// begin starts a call, or returns an [*OpenError].
func (s *Store) begin(ctx context.Context, name wrap.Call, waits bool) (call, error) {
	c := call{store: s, ctx: ctx, name: name, waits: waits, began: time.Now()}
	done, err := s.circuit.Allow()
	s.tell()
	switch {
	case err == nil:
		c.done = done
		c.slow = time.AfterFunc(s.config.SlowCall, c.tookLong)
	case !goesThrough(ctx, name):
		return c, s.open()
	}
	return c, nil
}

// tookLong judges a call that has not returned in time.
func (c call) tookLong() {
	if c.mayTakeLong() {
		c.judgeByLook()
	} else {
		c.judged(fmt.Errorf("%s took longer than %s", c.name, c.store.config.SlowCall))
	}
}

// end judges a call, unless it was already judged because it took too long. It is deferred, with a pointer to the
// error, so that a probe ends even if the store panics.
func (c *call) end(err *error) {
	if c.done != nil && c.slow.Stop() {
		failure := judge(c.ctx, *err)
		if errors.Is(failure, context.DeadlineExceeded) && c.mayTakeLong() {
			go c.judgeByLook()
		} else {
			c.judged(failure)
		}
	}
	c.done = nil
}

func (c call) judged(failure error) {
	c.done(failure)
	c.store.tell()
}

// errNotJudged is the outcome of a call that proves nothing about the store.
var errNotJudged = errors.New("not judged")

// judge returns the error if the store caused it, errNotJudged if the call proves nothing, and nil otherwise: a refusal
// is an answer too.
func judge(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return errNotJudged
	case errors.Is(err, store.ErrNotSent):
		return errNotJudged // from another breaker inside
	case errors.Is(err, store.ErrBusy):
		return nil // concurrent calls for one key prove nothing about the store
	case errors.Is(err, store.ErrTxOwned), errors.Is(err, store.ErrDeadline), errors.Is(err, store.ErrWorkRefused):
		return nil // caused by the work
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrOutcomeUnknown),
		errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		return nil
	}
}
