// Package janitor cleans up a store: the [Sweeper] makes the outcome of lost owners unknown, the [Reaper] removes
// expired records, the [Purger] removes old entries of the audit of executions. Any number of nodes may run them at the
// same time; each batch is one atomic step of the store.
//
// A [Janitor] runs all of them until its context ends. Each can also be used alone, with Run, a loop, and RunOnce,
// which returns a report.
package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// These are the defaults of [Config].
const (
	DefaultInterval = time.Minute
	DefaultBatch    = 500
	// DefaultKeepExecutions is 90 days.
	DefaultKeepExecutions = 90 * 24 * time.Hour
)

// Config configures a [Janitor], a [Sweeper], a [Reaper] or a [Purger]. The zero value is ready to use.
type Config struct {
	// Interval is the longest time between two runs. It is shortened by up to a fifth at random,
	// so that nodes that were started together do not stay together. Default: [DefaultInterval].
	Interval time.Duration
	// Batch is the largest number of records that one step of the store changes. Default: [DefaultBatch].
	Batch int
	// Soft makes the reaper keep the token of an expired record for one more retention. Default: false.
	Soft bool
	// KeepExecutions is how long the entries of the audit of executions are
	// kept: see onceward.AuditExecutions. Default: [DefaultKeepExecutions].
	KeepExecutions time.Duration
	// Logger logs failures and what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
	// Observer receives an event for every run: a [SweptEvent], a [ReapedEvent] or a [PurgedEvent] and an
	// [onceward.WorkerEvent]. Default: none.
	Observer onceward.Observer
}

func (c Config) withDefaults() (Config, error) {
	if c.Interval < 0 || c.Batch < 0 || c.KeepExecutions < 0 {
		return c, fmt.Errorf("janitor: interval %s, batch %d and the time %s to keep executions must not be negative",
			c.Interval, c.Batch, c.KeepExecutions)
	}
	if c.KeepExecutions == 0 {
		c.KeepExecutions = DefaultKeepExecutions
	}
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	return c, nil
}

// Report is the result of one run.
type Report struct {
	// Count is how many records were changed.
	Count int
	// Batches is how many steps of the store it took.
	Batches int
}

// SweptEvent reports a run of the [Sweeper] to the [onceward.Observer].
type SweptEvent struct{ Count int }

// ReapedEvent reports a run of the [Reaper] to the [onceward.Observer].
type ReapedEvent struct{ Count int }

// PurgedEvent reports a run of the [Purger] to the [onceward.Observer].
type PurgedEvent struct{ Count int }

// Janitor sweeps, reaps and purges: it is a [onceward.Worker].
type Janitor struct {
	sweeper *Sweeper
	reaper  *Reaper // nil if the store removes expired records automatically
	purger  *Purger // nil if the store keeps no audit of executions
}

// New returns a janitor. The store must be a [store.Sweeper] and a [store.Reaper]; if it is not, the error is
// [errors.ErrUnsupported]. A [store.SelfReaper] is not reaped, and a store that is no [store.ExecutionAuditor] is not
// purged.
func New(s store.Store, config Config) (*Janitor, error) {
	var j Janitor
	var sweeperErr, reaperErr, purgerErr error
	j.sweeper, sweeperErr = NewSweeper(s, config)
	if self, ok := store.As[store.SelfReaper](s); !ok || !self.ReapsItself() {
		j.reaper, reaperErr = NewReaper(s, config)
	}
	if _, ok := store.As[store.ExecutionAuditor](s); ok {
		j.purger, purgerErr = NewPurger(s, config)
	}
	if err := errors.Join(sweeperErr, reaperErr, purgerErr); err != nil {
		return nil, err
	}
	return &j, nil
}

// Run sweeps, reaps and purges until the context ends, and then returns nil. Failures are logged, and it continues.
func (j *Janitor) Run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { _ = j.sweeper.Run(ctx) }) // it returns nil, when the context has ended
	if j.reaper != nil {
		all.Go(func() { _ = j.reaper.Run(ctx) }) // as does this
	}
	if j.purger != nil {
		all.Go(func() { _ = j.purger.Run(ctx) }) // and this
	}
	all.Wait()
	return nil
}

// capability returns a store's capability for a job, or an error if the store lacks it.
func capability[T any](s store.Store, job string) (T, error) {
	able, ok := store.As[T](s)
	if !ok {
		return able, fmt.Errorf("janitor: %T cannot %s, it is no %s: %w",
			s, job, nameOf[T](), errors.ErrUnsupported)
	}
	return able, nil
}

func nameOf[T any]() string { return fmt.Sprintf("%T", (*T)(nil))[1:] }

// storeTimeout bounds one step of the store: its machine may vanish without closing its connections, and the loop must
// survive this.
const storeTimeout = time.Minute

// inBatches repeats a step of the store until it changes less than the limit. After an error the report still counts
// what was changed before.
func inBatches(ctx context.Context, limit int, step func(ctx context.Context, limit int) (int, error)) (Report, error) {
	var report Report
	for {
		if err := ctx.Err(); err != nil {
			return report, err
		}
		changed, err := bounded(ctx, limit, step)
		report.Count += changed
		report.Batches++
		if err != nil || changed < limit {
			return report, err
		}
	}
}

func bounded(ctx context.Context, limit int, step func(ctx context.Context, limit int) (int, error)) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return step(ctx, limit)
}

// report sends the observer a run of a worker and its backlog, which is not known after an error.
func (c *Config) report(ctx context.Context, worker string, began time.Time, backlog int, err error) {
	e := onceward.WorkerEvent{Worker: worker, Backlog: backlog, Elapsed: time.Since(began), Err: err}
	if err != nil {
		e.Backlog = unknownBacklog
	}
	c.Observer.Observe(ctx, e)
}

// unknownBacklog means that a worker does not know what is due.
const unknownBacklog = -1

// loop repeats the work until the context ends, and then returns nil.
func (c *Config) loop(ctx context.Context, job string, once func(context.Context) (Report, error)) error {
	failures := 0
	for {
		if err := guarded(ctx, once); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			c.Logger.ErrorContext(ctx, "janitor: cannot "+job, "error", err, "failures", failures)
		}
		if !backoff.Sleep(ctx, c.pause(failures)) {
			return nil
		}
	}
}

// guarded runs the work once. A panic, of the store or of the observer, is treated as a failure: the loop may run in
// its own goroutine, where a panic would end the process.
func guarded(ctx context.Context, once func(context.Context) (Report, error)) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("janitor: panic: %v\n%s", p, debug.Stack())
		}
	}()
	_, err = once(ctx)
	return err
}

// pause returns the time until the next run. After failures it is shorter than usual and doubles until it is as usual:
// a store that was unavailable for a moment should not delay the work by a whole interval.
func (c *Config) pause(failures int) time.Duration {
	pause := c.Interval
	if failures > 0 {
		pause = backoff.Exponential(pause/16, pause, failures)
	}
	return pause - rand.N(pause/5+1)
}

// Sweeper makes records unknown that are still in progress when their lease has run out: the owner was lost, and only a
// reconciler or a person can find out what it did. Records of routes that resume are left to the resumer.
type Sweeper struct {
	config Config
	store  store.Sweeper
}

// NewSweeper returns a sweeper. The store must be a [store.Sweeper]; if it is not, the error is
// [errors.ErrUnsupported].
func NewSweeper(s store.Store, config Config) (*Sweeper, error) {
	able, err := capability[store.Sweeper](s, "sweep")
	if err != nil {
		return nil, err
	}
	config, err = config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Sweeper{config: config, store: able}, nil
}

// RunOnce sweeps until there is nothing left to sweep, and reports how much was swept, even with an error.
func (s *Sweeper) RunOnce(ctx context.Context) (Report, error) {
	began := time.Now()
	report, err := inBatches(ctx, s.config.Batch, s.store.Sweep)
	if report.Count > 0 {
		s.config.Logger.WarnContext(ctx, "janitor: leases ran out, their outcomes are unknown", "count", report.Count)
	}
	s.config.Observer.Observe(ctx, SweptEvent{Count: report.Count})
	s.config.report(ctx, "sweeper", began, 0, err)
	return report, err
}

// Run sweeps regularly until the context ends, and then returns nil. Failures are logged, and it continues.
func (s *Sweeper) Run(ctx context.Context) error {
	return s.config.loop(ctx, "sweep", s.RunOnce)
}

// Reaper removes settled records past their expiry or, if it is soft, first marks them expired and removes them one
// retention later. Records in progress and unknown records are never removed.
type Reaper struct {
	config Config
	store  store.Reaper
}

// NewReaper returns a reaper. The store must be a [store.Reaper]; if it is not, the error is [errors.ErrUnsupported].
func NewReaper(s store.Store, config Config) (*Reaper, error) {
	able, err := capability[store.Reaper](s, "reap")
	if err != nil {
		return nil, err
	}
	config, err = config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reaper{config: config, store: able}, nil
}

// RunOnce reaps until the store finds nothing more to reap, and reports how much was reaped, even with an error. A
// store may scan a part of a large table at a time, and continue there in the next run.
func (r *Reaper) RunOnce(ctx context.Context) (Report, error) {
	began := time.Now()
	report, err := inBatches(ctx, r.config.Batch, r.reap)
	if report.Count > 0 {
		r.config.Logger.DebugContext(ctx, "janitor: records expired", "count", report.Count)
	}
	r.config.Observer.Observe(ctx, ReapedEvent{Count: report.Count})
	r.config.report(ctx, "reaper", began, unknownBacklog, err) // a store may have scanned only a part of its table
	return report, err
}

func (r *Reaper) reap(ctx context.Context, limit int) (int, error) {
	return r.store.Reap(ctx, limit, r.config.Soft)
}

// Run reaps regularly until the context ends, and then returns nil. Failures are logged, and it continues.
func (r *Reaper) Run(ctx context.Context) error {
	return r.config.loop(ctx, "reap", r.RunOnce)
}

// Purger removes entries of the audit of executions that are older than [Config].KeepExecutions.
type Purger struct {
	config Config
	store  store.ExecutionAuditor
}

// NewPurger returns a purger. The store must be a [store.ExecutionAuditor]; if it is not, the error is
// [errors.ErrUnsupported].
func NewPurger(s store.Store, config Config) (*Purger, error) {
	able, err := capability[store.ExecutionAuditor](s, "purge executions")
	if err != nil {
		return nil, err
	}
	config, err = config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Purger{config: config, store: able}, nil
}

// RunOnce purges until there is nothing left to purge, and reports how much was purged, even with an error.
func (p *Purger) RunOnce(ctx context.Context) (Report, error) {
	began := time.Now()
	report, err := inBatches(ctx, p.config.Batch, p.purge)
	p.config.Observer.Observe(ctx, PurgedEvent{Count: report.Count})
	p.config.report(ctx, "purger", began, 0, err)
	return report, err
}

func (p *Purger) purge(ctx context.Context, limit int) (int, error) {
	return p.store.PurgeExecutions(ctx, p.config.KeepExecutions, limit)
}

// Run purges regularly until the context ends, and then returns nil. Failures are logged, and it continues.
func (p *Purger) Run(ctx context.Context) error {
	return p.config.loop(ctx, "purge executions", p.RunOnce)
}
