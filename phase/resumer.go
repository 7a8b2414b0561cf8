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
	// Operations are the operations that it resumes. [Resumer.Run] checks their names. Required.
	Operations []Resumable
	// Interval is the time between two looks at the store. Default: 5 s.
	Interval time.Duration
	// Concurrency is how many operations run at the same time, and PerOperation how many of them may have the same name;
	// one scope gets half of that, rounded up. An operation whose steps hang delays only itself, as long as Concurrency is
	// more than the places of all operations that hang. Default: 64, and 8 or, if that is less, half of Concurrency,
	// rounded up.
	Concurrency  int
	PerOperation int
	// Overdue is the time after which a running operation counts as hanging: its steps ignore the end of their context. It
	// is logged, counted (see [Report]) and not waited for. It should be longer than the operations' [onceward.Deadline].
	// Default: 5 min.
	Overdue time.Duration
	// Others are the names of operations in the same store that are resumed, but not by this resumer: operations of
	// another process, and the runs of a comparer of package ledger, which are called "ledger comparison " and the name of
	// the comparison. They are ignored without a warning. Default: none, and every other lost operation is logged as a
	// warning at each look.
	Others []string
	// Observer receives an [onceward.WorkerEvent] for each look at the store. Default: none.
	Observer onceward.Observer
	// Logger logs what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
}

const (
	defaultInterval = 5 * time.Second
	defaultOverdue  = 5 * time.Minute
)

// Resumer continues operations whose owner was lost, or which were suspended, without waiting for their callers (rule
// B5). Any number of nodes may run one: each operation is taken over by the node that the store grants it to.
type Resumer struct {
	guard      *onceward.Guard
	store      store.Store
	lister     store.Lister
	operations map[string]Resumable
	config     ResumerConfig
	pool       *fair.Pool
	unreadable sync.Map // names of operations that were logged
}

// NewResumer returns a resumer. The store must be the guard's own, and a [store.Lister]; if it is not a lister, the
// error is [errors.ErrUnsupported].
func NewResumer(guard *onceward.Guard, s store.Store, config ResumerConfig) (*Resumer, error) {
	if guard == nil {
		return nil, errors.New("phase: a resumer needs a guard: it grants the right to continue an operation")
	}
	lister, ok := store.As[store.Lister](s)
	if !ok {
		return nil, fmt.Errorf("phase: the store cannot list lost operations: %w", errors.ErrUnsupported)
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

// newPool returns the places for running operations.
func (r *Resumer) newPool() *fair.Pool {
	log := func(message string) func(fair.Item) {
		return func(item fair.Item) {
			r.config.Logger.Error(message, "operation", item.Operation, "key_hash", item.Hash())
		}
	}
	return fair.NewPool(fair.Config{
		Lister: r.lister, State: store.StateInProgress, Overdue: r.config.Overdue,
		Bounds:   fair.Bounds{Total: r.config.Concurrency, PerOperation: r.config.PerOperation},
		Hangs:    log("phase: a resumed operation hangs in a step, and keeps a place of its name"),
		Returned: log("phase: a resumed operation that hung in a step has returned"),
	})
}

// Report is the result of a run of the resumer.
type Report struct {
	// Finished is the number of operations that ended.
	Finished int
	// Waiting is the number of operations that are not finished: another attempt runs them, or they were suspended again.
	Waiting int
	// Unknown is the number of operations whose outcome became unknown.
	Unknown int
	// Skipped is the number of operations that have neither a name of this resumer nor one of the others of its
	// configuration, and of operations that another version of the program must continue.
	Skipped int
	// Hanging is the number of operations, taken over by this run and by earlier ones, that are overdue and have not
	// returned. Each keeps a place of its name until it returns; when all places are taken, no operation of that name is
	// resumed here.
	Hanging int
}

// RunOnce takes over all lost operations, and reports the results. After an error it continues with the rest. It does
// not wait for operations that hang.
func (r *Resumer) RunOnce(ctx context.Context) (Report, error) {
	run := r.newRun(ctx)
	err := run.look(ctx)
	run.Wait()
	report, failed := run.Take()
	report.Hanging = r.pool.Hanging()
	return report, errors.Join(failed, err, ctx.Err())
}

// Run resumes regularly until the context ends, waits for the running operations that do not hang, and returns nil.
// Failures are logged, and it continues. No look at the store waits for operations that earlier looks have found.
//
// It first checks the names of its operations: see [onceward.Guard.CheckOperations]. So call it when the routes are
// built. An operation that neither a route nor [onceward.Config].Operations names, such as one that is only run by
// [Operation.Do], is an error that wraps [onceward.ErrMisconfigured], which is logged too.
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

// resumeRun is one run with its results.
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

// look looks at the store once, and reports what it found to the observer.
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

// wants reports whether a record is a lost operation of this resumer.
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

// drive takes one operation over. It reads the complete record, because lists leave out the data. A panic of a step has
// been settled like a handler's; it does not end the resumer.
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
		run.logUnreadable(ctx, operation.operationName(), id, err)
		run.Fail(err)
	}
}

// logUnreadable logs, once for each name of an operation, that this node cannot continue a record, for example without
// the secret or the namespace of its downstream keys. It cannot until it is configured otherwise.
func (run *resumeRun) logUnreadable(ctx context.Context, name string, id store.ID, err error) {
	if !errors.Is(err, store.ErrUnreadable) {
		return
	}
	if _, logged := run.unreadable.LoadOrStore(name, true); !logged {
		run.config.Logger.ErrorContext(ctx, "phase: a lost operation cannot be resumed, and perhaps others of its name",
			"operation", name, "key_hash", id.Hash(), "error", err)
	}
}

// storeTimeout bounds one read of a record: a store's machine may vanish without closing its connections.
const storeTimeout = 15 * time.Second

func (run *resumeRun) get(ctx context.Context, id store.ID) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return run.store.Get(ctx, id)
}
