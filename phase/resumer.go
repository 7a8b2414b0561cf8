package phase

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/fair"
	"github.com/onceward/onceward/store"
)

// Resumable is an operation that can be taken over: an [*Operation].
type Resumable interface {
	operationName() string
	resume(ctx context.Context, guard *onceward.Guard, rec *store.Record) error
}

// ResumerConfig configures a [Resumer].
type ResumerConfig struct {
	// Operations are those that it resumes. [Resumer.Run] checks their names. Required.
	Operations []Resumable
	// Interval is the time between two looks at the store. Default: 5 s.
	Interval time.Duration
	// Concurrency is how many operations are driven at one time, and PerOperation how many of them may be of one name;
	// one scope gets half of that, rounded up. An operation whose steps hang delays only its own, as long as
	// Concurrency is more than the operations that hang take together. Default: 64, and 8 or, if that is less, half of
	// Concurrency, rounded up.
	Concurrency  int
	PerOperation int
	// Overdue is the time after which an operation that is still being driven hangs: its steps ignore the end of their
	// context. That is logged, counted (see [Report]) and not waited for. It should be longer than the operations'
	// [onceward.Deadline]. Default: 5 min.
	Overdue time.Duration
	// Others are the names of operations in the same store that are resumed too, but not by this resumer: those that
	// another process has the code of, and the runs of a comparer of package ledger, which are called "ledger
	// comparison " and the name of the comparison. They are left alone without a word. Default: none, and every lost
	// operation that is not one of the resumer's own is logged as a warning at each look.
	Others []string
	// Observer is told of each look at the store, by an [onceward.WorkerEvent]. Default: none.
	Observer onceward.Observer
	// Logger gets what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
}

const (
	defaultInterval = 5 * time.Second
	defaultOverdue  = 5 * time.Minute
)

// Resumer goes on with operations whose owner was lost, or which were suspended, without waiting for their callers
// (B5). Any number of nodes may run one: each operation is taken over by the one that the store grants it to.
type Resumer struct {
	guard      *onceward.Guard
	store      store.Store
	lister     store.Lister
	operations map[string]Resumable
	config     ResumerConfig
	pool       *fair.Pool
	unreadable sync.Map // names of operations that were told of
}

// NewResumer returns a resumer. The store must be the guard's own, and a [store.Lister]; if it is not a lister, the
// error is [errors.ErrUnsupported].
func NewResumer(guard *onceward.Guard, s store.Store, config ResumerConfig) (*Resumer, error) {
	if guard == nil {
		return nil, errors.New("phase: a resumer needs a guard: it gives the right to go on with an operation")
	}
	lister, ok := store.As[store.Lister](s)
	if !ok {
		return nil, fmt.Errorf("phase: the store cannot be looked through for lost operations: %w", errors.ErrUnsupported)
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Resumer{guard: guard, store: s, lister: lister, config: config, operations: make(map[string]Resumable)}
	for _, o := range config.Operations {
		if r.operations[o.operationName()] != nil {
			return nil, fmt.Errorf("phase: two operations are called %q", o.operationName())
		}
		r.operations[o.operationName()] = o
	}
	for _, name := range config.Others {
		if r.operations[name] != nil {
			return nil, fmt.Errorf("phase: %q is an operation of this resumer: take it out of Others", name)
		}
	}
	r.pool = r.newPool()
	return r, nil
}

func (c ResumerConfig) withDefaults() (ResumerConfig, error) {
	if len(c.Operations) == 0 {
		return c, errors.New("phase: ResumerConfig.Operations is missing: there is nothing to resume")
	}
	if c.Interval < 0 || c.Overdue < 0 {
		return c, errors.New("phase: Interval and Overdue cannot be negative")
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.Overdue == 0 {
		c.Overdue = defaultOverdue
	}
	bounds, err := fair.Bounds{Total: c.Concurrency, PerOperation: c.PerOperation}.WithDefaults()
	if err != nil {
		return c, fmt.Errorf("phase: %w", err)
	}
	c.Concurrency, c.PerOperation = bounds.Total, bounds.PerOperation
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// newPool returns the places for operations that are driven.
func (r *Resumer) newPool() *fair.Pool {
	tell := func(message string) func(fair.Item) {
		return func(item fair.Item) {
			r.config.Logger.Error(message, "operation", item.Operation, "key_hash", item.Hash())
		}
	}
	return fair.NewPool(fair.Config{
		Lister: r.lister, State: store.StateInProgress, Overdue: r.config.Overdue,
		Bounds:   fair.Bounds{Total: r.config.Concurrency, PerOperation: r.config.PerOperation},
		Hangs:    tell("phase: a resumed operation hangs in a step, and takes a place of those of its name"),
		Returned: tell("phase: a resumed operation that hung in a step has returned"),
	})
}

// Report is what a run of the resumer did.
type Report struct {
	// Finished counts the operations that were taken to their end.
	Finished int
	// Waiting counts those that are not finished: another attempt is at them, or they were suspended again.
	Waiting int
	// Unknown counts those whose outcome became unknown.
	Unknown int
	// Skipped counts those that are neither named like an operation of this resumer nor among the others of its
	// configuration, and those that another version of the program must go on with.
	Skipped int
	// Hanging counts the operations, taken over by this run and by earlier ones, that have not returned though they are
	// overdue. Each takes a place of those of its name until it returns; when all are taken, none of that name is
	// resumed here.
	Hanging int
}

// RunOnce takes over what is there to be taken over, and says what became of it. An error does not keep it from the
// rest. It does not wait for operations that hang.
func (r *Resumer) RunOnce(ctx context.Context) (Report, error) {
	run := r.newRun(ctx)
	err := run.look(ctx)
	run.Wait()
	report, failed := run.Take()
	report.Hanging = r.pool.Hanging()
	return report, errors.Join(failed, err, ctx.Err())
}

// Run resumes now and then until the context ends, and what is under way then has ended or hangs: then it returns nil.
// Failures are logged, and it goes on. No look at the store waits for what the looks before it have found.
//
// It checks the names of its operations first: see [onceward.Guard.CheckOperations]. So call it when the routes are
// there. An operation that no route has, nor [onceward.Config].Operations, as one that is only run by [Operation.Do],
// is an error that wraps [onceward.ErrMisconfigured], which is logged too.
func (r *Resumer) Run(ctx context.Context) error {
	if err := r.checkNames(); err != nil {
		r.config.Logger.ErrorContext(ctx, "phase: the resumer does not run", "error", err)
		return err
	}
	run := r.newRun(ctx)
	defer run.Wait()
	fair.Repeat(ctx, r.config.Interval, func() error {
		err := run.look(ctx)
		_, failed := run.Take()
		return errors.Join(failed, err)
	}, func(err error) { r.config.Logger.WarnContext(ctx, "phase: resuming failed", "error", err) })
	return nil
}

// checkNames refuses operations that no record would ever have.
func (r *Resumer) checkNames() error {
	if err := r.guard.CheckOperations(slices.Collect(maps.Keys(r.operations))...); err != nil {
		return fmt.Errorf("phase: ResumerConfig.Operations: %w", err)
	}
	return nil
}

// resumeRun is one run, and what came of it.
type resumeRun struct {
	*Resumer
	*fair.Run
	fair.Tally[Report]
}

func (r *Resumer) newRun(ctx context.Context) *resumeRun {
	run := &resumeRun{Resumer: r}
	run.Run = r.pool.NewRun(ctx, fair.Work{
		Wants:  func(rec *store.Record) bool { return run.wants(ctx, rec) },
		Do:     func(ctx context.Context, item fair.Item) { run.drive(ctx, run.operations[item.Operation], item.ID) },
		Failed: run.Fail,
	})
	return run
}

// look looks at the store once, and tells the observer what it found.
func (run *resumeRun) look(ctx context.Context) error {
	began := time.Now()
	found, err := run.Look()
	if run.config.Observer != nil {
		run.config.Observer.Observe(ctx, onceward.WorkerEvent{
			Worker: "resumer", Backlog: found.Count, Oldest: found.Oldest, Elapsed: time.Since(began), Err: err,
		})
	}
	return err
}

// wants chooses the lost operations that this resumer has the code of.
func (run *resumeRun) wants(ctx context.Context, rec *store.Record) bool {
	if rec.OnLost != store.LostResume {
		return false
	}
	if run.operations[rec.Operation] != nil {
		return true
	}
	if !slices.Contains(run.config.Others, rec.Operation) {
		run.config.Logger.WarnContext(ctx, "phase: a lost operation that this resumer does not know",
			"operation", rec.Operation, "key_hash", rec.Hash())
		run.Count(func(report *Report) { report.Skipped++ })
	}
	return false
}

// drive takes one operation over. What it carries is read here, because lists leave it out. A panic of a step has been
// settled as that of a handler; it does not end the resumer.
func (run *resumeRun) drive(ctx context.Context, operation Resumable, id store.ID) {
	defer func() {
		if p := recover(); p != nil {
			run.config.Logger.ErrorContext(ctx, "phase: a step panicked",
				"operation", operation.operationName(), "key_hash", id.Hash(), "panic", p)
			run.Count(func(report *Report) { report.Waiting++ })
		}
	}()
	rec, err := run.get(ctx, id)
	if err == nil && !rec.State.Settled() { // else another attempt was faster
		err = operation.resume(ctx, run.guard, &rec)
	}
	var changed *ChangedError
	switch {
	case errors.As(err, &changed):
		run.config.Logger.WarnContext(ctx, "phase: a lost operation of another version", "key_hash", id.Hash(), "error", err)
		run.Count(func(report *Report) { report.Skipped++ })
	case err == nil, errors.Is(err, errLostBeforeStart),
		errors.Is(err, store.ErrNotFound), errors.Is(err, onceward.ErrRefused):
		run.Count(func(report *Report) { report.Finished++ })
	case errors.Is(err, onceward.ErrInProgress):
		run.Count(func(report *Report) { report.Waiting++ })
	case errors.Is(err, store.ErrOutcomeUnknown):
		run.Count(func(report *Report) { report.Unknown++ })
	default:
		run.tellUnreadable(ctx, operation.operationName(), id, err)
		run.Fail(err)
	}
}

// tellUnreadable tells, once for each name of an operation, that this node cannot go on with a record, as it is without
// the secret or the namespace of its downstream keys. It will not until it is configured otherwise.
func (run *resumeRun) tellUnreadable(ctx context.Context, name string, id store.ID, err error) {
	if !errors.Is(err, store.ErrUnreadable) {
		return
	}
	if _, told := run.unreadable.LoadOrStore(name, true); !told {
		run.config.Logger.ErrorContext(ctx, "phase: a lost operation cannot be resumed, and perhaps others of its name",
			"operation", name, "key_hash", id.Hash(), "error", err)
	}
}

// storeTimeout bounds a look at a record: the store's machine may vanish without a word.
const storeTimeout = 15 * time.Second

func (run *resumeRun) get(ctx context.Context, id store.ID) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return run.store.Get(ctx, id)
}
