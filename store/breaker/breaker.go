// Package breaker is a circuit breaker around any store (L2): a store that fails or is slow is left alone for a while,
// and what would have been asked of it is answered at once instead of by a timeout.
//
//	inside, err := postgres.Open(ctx, url)
//	s, err := breaker.New(inside, breaker.Config{})
//	guard, err := onceward.New(s, config)
//	mux.Handle("GET /healthz/store", s.Health())
//
// While the breaker is open a call returns an [*OpenError]: nothing is sent to the store, nothing is executed, and a
// client gets 503 with the time after which to come again. The calls of work that is already running always go through:
// to refuse them would make outcomes unknown for nothing, and there are only as many as there is work in flight.
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
	// ConsecutiveFailures is the number of failed calls in a row that open the breaker. Default: 5.
	ConsecutiveFailures int
	// FailureRatio is the share of failed calls within the Window that opens the breaker, between 0 and 1, once there
	// were MinCalls. Default: 0.5.
	FailureRatio float64
	// MinCalls is how many calls there must have been within the Window before FailureRatio counts. Default: 20.
	MinCalls int
	// Window is the time over which calls are counted. Default: 10 s.
	Window time.Duration
	// SlowCall is how long a call may take. One that takes longer counts as failed from that moment on, although its
	// result is used. The work of a handler does not count, nor does waiting for another attempt, nor, as long as the
	// store answers a look-up in this time, a job in the background or what can wait for a handler in a transaction.
	// Default: 1 s.
	SlowCall time.Duration
	// OpenFor is how long the store is left alone before one call is let through to probe it. With SlowCall it should be
	// longer than the StoreTimeout of the guard together: a probe that hangs for longer has a second one beside it.
	// Default: 5 s.
	OpenFor time.Duration
	// Observer is told of each change, by a [ChangedEvent]. Default: none.
	Observer onceward.Observer
	// Logger gets one line for each change. Default: [slog.Default].
	Logger *slog.Logger
}

// The defaults of Config.
const (
	defaultConsecutiveFailures = 5
	defaultFailureRatio        = 0.5
	defaultMinCalls            = 20
	defaultWindow              = 10 * time.Second
	defaultSlowCall            = time.Second
	defaultOpenFor             = 5 * time.Second
	// windowParts is into how many parts the window is divided: it moves on by one of them.
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

// Store is a store behind a circuit breaker. It can do what the store inside can do.
type Store struct {
	*wrap.Store
	config  Config
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]

	cause error // why the last call failed; the circuit's lock protects it, under which its callbacks are called

	working atomic.Int64              // handlers that are at work in a transaction
	left    atomic.Pointer[time.Time] // when the last one of them ended its work; nil if none has
	// oneWriter is set if all writes wait for handlers, not only what needs a connection of theirs.
	oneWriter bool

	news    atomic.Bool // there are changes to tell
	mu      sync.Mutex
	until   time.Time // when an open breaker lets the next probe through
	changes []ChangedEvent
	looking *look // nil if none is under way
}

// fronted is a store that answers some calls without the store inside, as that of package tiered does. Around it a
// breaker would stay closed while the store inside is sick, and once open keep retries from the front.
type fronted interface{ FrontAway() bool }

// New returns a breaker around a store, or an error that says what in the configuration cannot be right.
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

// ofWork holds the calls of work that runs: the writes of its owner, what is done inside of a transaction that has
// begun, and what a worker writes about an effect that has happened or a poller about what it has learned.
var ofWork = map[wrap.Call]bool{
	"extend": true, "checkpoint": true, "complete": true, "release": true, "abandon": true, "reject": true,
	"add late completion": true, "postpone": true,
	"resolve completed": true, "resolve not executed": true, "resolve step": true, "add audit": true,
	"extend messages": true, "record provider id": true, "finish messages": true,
	"add message": true, "add to answer": true, "remember event": true, "upsert row": true, "lock name": true,
}

// beginnings holds the calls with which new work begins, or is asked for.
var beginnings = map[wrap.Call]bool{
	"reserve": true, "transact": true, "claim messages": true, "begin reconcile": true,
	"requeue": true, "replay message": true,
}

// goesThrough reports whether a call is made while the breaker is open too. What an operation asks for while it runs
// is, such as a transaction in which it writes down what it did, unless it begins new work or is a job in the
// background: what an operation has started with its context may go on for ever.
func goesThrough(ctx context.Context, name wrap.Call) bool {
	return ofWork[name] || !beginnings[name] && !background[name] && onceward.FromContext(ctx) != nil
}

// around makes a call, unless the breaker is open, and judges it.
func (s *Store) around(ctx context.Context, name wrap.Call, next func(ctx context.Context) error) error {
	if name == "wait" {
		return next(ctx) // how long it takes is not the store's doing
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

// call is one that is under way.
type call struct {
	store *Store
	ctx   context.Context
	name  wrap.Call
	waits bool // it can wait for a handler, also where there are many writers
	began time.Time
	done  func(err error) // nil if it does not count
	slow  *time.Timer
}

// begin lets a call through, or returns an [*OpenError].
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

// end judges a call, unless it was judged already because it took too long. It is deferred, with where the error will
// be: a store that panics must not leave a probe behind that never ends.
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

// errNotJudged is the outcome of a call that says nothing about the store.
var errNotJudged = errors.New("not judged")

// judge returns the error if it is the store's: nil for an answer, also one that the caller does not like.
func judge(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return errNotJudged
	case errors.Is(err, store.ErrNotSent):
		return errNotJudged // another breaker, further inside
	case errors.Is(err, store.ErrBusy):
		return nil // many who want the same say nothing about the store
	case errors.Is(err, store.ErrTxOwned), errors.Is(err, store.ErrDeadline), errors.Is(err, store.ErrWorkRefused):
		return nil // the work's own doing
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrOutcomeUnknown),
		errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		return nil
	}
}
