package phase

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// Resumable is an operation that can be taken over: an [*Operation].
type Resumable interface {
	operationName() string
	resume(ctx context.Context, guard *onceward.Guard, rec *onceward.Record) error
}

// ResumerConfig configures a [Resumer].
type ResumerConfig struct {
	// Interval is the time between two looks at the store. Default: 5 s.
	Interval time.Duration
	// Concurrency is how many operations are driven at one time. Default: 4.
	Concurrency int
	// Others are the names of operations in the same store that are resumed too, but not by this resumer: those that another
	// process has the code of, and the runs of a comparer of package ledger, which are called "ledger comparison " and the name
	// of the comparison. They are left alone without a word. Default: none, and every lost operation that is not one of the
	// resumer's own is logged as a warning at each look.
	Others []string
	// Logger gets what an operator should know. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultInterval    = 5 * time.Second
	defaultConcurrency = 4
)

// Resumer goes on with operations whose owner was lost, or which were suspended, without waiting for their callers (B5). Any
// number of nodes may run one: each operation is taken over by the one that the store grants it to.
type Resumer struct {
	guard      *onceward.Guard
	store      onceward.Store
	lister     onceward.Lister
	operations map[string]Resumable
	config     ResumerConfig
}

// NewResumer returns a resumer for the operations. The store must be the guard's own, and an [onceward.Lister].
func NewResumer(guard *onceward.Guard, store onceward.Store, config ResumerConfig, operations ...Resumable) (*Resumer, error) {
	lister, ok := store.(onceward.Lister)
	if !ok {
		return nil, fmt.Errorf("phase: the store cannot be looked through for lost operations: %w", errors.ErrUnsupported)
	}
	if guard == nil || len(operations) == 0 {
		return nil, errors.New("phase: a resumer needs a guard and operations")
	}
	if config.Interval < 0 || config.Concurrency < 0 {
		return nil, errors.New("phase: Interval and Concurrency cannot be negative")
	}
	if config.Interval == 0 {
		config.Interval = defaultInterval
	}
	if config.Concurrency == 0 {
		config.Concurrency = defaultConcurrency
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	r := &Resumer{guard: guard, store: store, lister: lister, config: config, operations: make(map[string]Resumable)}
	for _, o := range operations {
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
	return r, nil
}

// Resumed is what a run of the resumer did.
type Resumed struct {
	// Finished counts the operations that were taken to their end.
	Finished int
	// Waiting counts those that are not finished: somebody else is at them, or they were suspended again.
	Waiting int
	// Unknown counts those whose outcome became unknown.
	Unknown int
	// Strange counts those that are neither named like an operation of this resumer nor among the others of its configuration,
	// and those that another version of the program must go on with.
	Strange int
}

// RunOnce takes over what is there to be taken over, and says what became of it. An error does not keep it from the rest.
func (r *Resumer) RunOnce(ctx context.Context) (Resumed, error) {
	run := &resumeRun{Resumer: r, slots: make(chan struct{}, r.config.Concurrency)}
	filter := onceward.Filter{State: onceward.StateInProgress, Due: true}
	for {
		page, err := r.lister.List(ctx, filter)
		if err != nil {
			run.note(err)
			break
		}
		for i := range page {
			run.start(ctx, &page[i])
		}
		if len(page) < onceward.MaxPage || ctx.Err() != nil {
			break
		}
		filter.After = page[len(page)-1].ID
	}
	run.wg.Wait()
	return run.report, errors.Join(run.err, ctx.Err())
}

// Run resumes now and then until the context ends. Failures are logged, and it goes on.
func (r *Resumer) Run(ctx context.Context) {
	for {
		if _, err := r.RunOnce(ctx); err != nil && ctx.Err() == nil {
			r.config.Logger.WarnContext(ctx, "phase: resuming failed", "error", err)
		}
		// Nodes that were started together drift apart.
		pause := r.config.Interval/2 + rand.N(r.config.Interval)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// resumeRun is one run.
type resumeRun struct {
	*Resumer
	slots chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	report Resumed
	err    error
}

// start drives one operation as soon as there is room.
func (run *resumeRun) start(ctx context.Context, rec *onceward.Record) {
	if rec.OnLost != onceward.Resume || ctx.Err() != nil {
		return
	}
	operation := run.operations[rec.Operation]
	if operation == nil && slices.Contains(run.config.Others, rec.Operation) {
		return
	}
	if operation == nil {
		run.config.Logger.WarnContext(ctx, "phase: a lost operation that nobody here can resume",
			"operation", rec.Operation, "key_hash", rec.Hash())
		run.count(func(report *Resumed) { report.Strange++ })
		return
	}
	run.slots <- struct{}{}
	run.wg.Go(func() {
		defer func() { <-run.slots }()
		run.drive(ctx, operation, rec.ID)
	})
}

// drive takes one operation over. What it carries is read here, because lists leave it out. A panic of a step has been
// settled as that of a handler; it does not end the resumer.
func (run *resumeRun) drive(ctx context.Context, operation Resumable, id onceward.ID) {
	defer func() {
		if p := recover(); p != nil {
			run.config.Logger.ErrorContext(ctx, "phase: a step panicked", "operation", operation.operationName(), "key_hash", id.Hash(), "panic", p)
			run.count(func(report *Resumed) { report.Waiting++ })
		}
	}()
	rec, err := run.store.Get(ctx, id)
	if err == nil && !rec.State.Settled() { // else somebody was faster
		err = operation.resume(ctx, run.guard, &rec)
	}
	var changed *ChangedError
	switch {
	case errors.As(err, &changed):
		run.config.Logger.WarnContext(ctx, "phase: a lost operation of another version", "key_hash", id.Hash(), "error", err)
		run.count(func(report *Resumed) { report.Strange++ })
	case err == nil, errors.Is(err, errLostBeforeStart), errors.Is(err, onceward.ErrNotFound), errors.Is(err, onceward.ErrRefused):
		run.count(func(report *Resumed) { report.Finished++ })
	case errors.Is(err, onceward.ErrInProgress):
		run.count(func(report *Resumed) { report.Waiting++ })
	case errors.Is(err, onceward.ErrOutcomeUnknown):
		run.count(func(report *Resumed) { report.Unknown++ })
	default:
		run.note(err)
	}
}

func (run *resumeRun) count(add func(*Resumed)) {
	run.mu.Lock()
	defer run.mu.Unlock()
	add(&run.report)
}

func (run *resumeRun) note(err error) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.err = errors.Join(run.err, err)
}
