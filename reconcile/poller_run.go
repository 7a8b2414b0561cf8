package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/fair"
	"github.com/onceward/onceward/store"
)

// Report is what a run of the poller did.
type Report struct {
	// Completed and NotExecuted count the records that were settled.
	Completed, NotExecuted int
	// Steps counts the phased operations of which a step was settled: they go on.
	Steps int
	// Postponed counts those of which nothing was learned, and DeadLetters those of them that now wait for a person.
	Postponed, DeadLetters int
	// Hanging counts the questions of this poller, of this run and of earlier ones, that have not returned though their
	// time is over. Each takes a place of its operation until it returns; when all are taken, the operation is not
	// asked after here.
	Hanging int
}

func (r *Report) add(o Report) {
	r.Completed += o.Completed
	r.NotExecuted += o.NotExecuted
	r.Steps += o.Steps
	r.Postponed += o.Postponed
	r.DeadLetters += o.DeadLetters
}

// purgeBatch is how many old external events and audit entries a run removes.
const purgeBatch = 1000

// RunOnce asks after every record that is due, and says what came of it. An error does not keep it from the rest. No
// resolver is asked about dead letters, but now and then their external events are read. It does not wait for questions
// that hang.
func (p *Poller) RunOnce(ctx context.Context) (Report, error) {
	r := p.newRun(ctx)
	err := r.look()
	r.Wait()
	report, failed := r.Take()
	report.Hanging = p.pool.Hanging()
	return report, errors.Join(failed, err, ctx.Err())
}

// Run reconciles now and then until the context ends, and what is under way then has ended or hangs: then it returns
// nil. Failures are logged, and it goes on. No look at the store waits for what the looks before it have found.
//
// It checks the names of the rules first: see [onceward.Guard.CheckOperations]. So call it when the routes are there. A
// rule for an operation that does not exist is an error that wraps [onceward.ErrMisconfigured], which is logged too.
func (p *Poller) Run(ctx context.Context) error {
	if err := p.checkNames(); err != nil {
		p.config.Logger.ErrorContext(ctx, "reconcile: the poller does not run", "error", err)
		return err
	}
	r := p.newRun(ctx)
	defer r.Wait()
	fair.Repeat(ctx, p.config.Interval, func() error {
		err := r.look()
		_, failed := r.Take()
		return errors.Join(failed, err)
	}, func(err error) {
		p.config.Logger.WarnContext(ctx, "reconcile: not everything could be asked after", "error", err)
	})
	return nil
}

// checkNames refuses rules that no record would ever have.
func (p *Poller) checkNames() error {
	if err := p.guard.CheckOperations(slices.Collect(maps.Keys(p.config.Rules))...); err != nil {
		return fmt.Errorf("reconcile: Config.Rules: %w", err)
	}
	return nil
}

// newPool returns the places for questions. One that has not returned when its time is over, and the time in which its
// answer could have been written down, hangs.
func (p *Poller) newPool() *fair.Pool {
	tell := func(outcome, message string) func(fair.Item) {
		return func(item fair.Item) {
			ctx := context.Background()
			p.config.Logger.ErrorContext(ctx, message, "operation", item.Operation, "key_hash", item.Hash())
			p.config.Observer.Observe(ctx, ReconciledEvent{
				ID: item.ID, Operation: item.Operation, Outcome: outcome,
			})
		}
	}
	return fair.NewPool(fair.Config{
		Lister: p.lister, State: store.StateUnknown, Overdue: p.config.Timeout + settleTimeout,
		Bounds:   fair.Bounds{Total: p.config.Concurrency, PerOperation: p.config.PerOperation},
		Hangs:    tell("hanging", "reconcile: a question hangs past its time, and takes a place of its operation"),
		Returned: tell("returned", "reconcile: a question that hung has returned"),
	})
}

// pollRun is one run of the poller, and what came of it.
type pollRun struct {
	*Poller
	*fair.Run
	fair.Tally[Report]
	ctx     context.Context
	letters atomic.Bool // dead letters are looked after too
}

func (p *Poller) newRun(ctx context.Context) *pollRun {
	r := &pollRun{Poller: p, ctx: ctx}
	r.Run = p.pool.NewRun(ctx, fair.Work{Wants: r.wants, Do: r.do, Failed: r.Fail})
	return r
}

// look begins to ask after what is due, and forgets what is not needed any more.
func (r *pollRun) look() error {
	r.letters.Store(r.lettersDue())
	began := time.Now()
	found, err := r.Look()
	r.gone.forget(max(forgetAfter, 2*r.config.MaxBackoff))
	err = errors.Join(err, r.purge(r.ctx))
	r.config.Observer.Observe(r.ctx, onceward.WorkerEvent{
		Worker: "poller", Backlog: found.Count, Oldest: found.Oldest, Elapsed: time.Since(began), Err: err,
	})
	return err
}

// wants leaves dead letters alone, unless it is time to look for external events about them.
func (r *pollRun) wants(rec *store.Record) bool {
	if !rec.DeadLetter {
		return true
	}
	rule := r.rule(rec.Operation)
	return r.letters.Load() && rule != nil && rule.Source != ""
}

// do looks after one record, unless another node was faster: what it has postponed is not due when it was listed to be.
// That takes no clock.
func (r *pollRun) do(ctx context.Context, item fair.Item) {
	rec, err := r.get(ctx, item.ID)
	switch {
	case err != nil || rec.State != store.StateUnknown || !rec.ReconcileAt.Equal(item.Due):
		r.note(Report{}, err)
	case rec.DeadLetter:
		r.note(r.heed(ctx, &rec))
	default:
		r.note(r.reconcile(ctx, &rec))
	}
}

// note adds what came of one record.
func (r *pollRun) note(report Report, err error) {
	r.Count(func(sum *Report) { sum.add(report) })
	r.Fail(err)
}

// scan calls each for the records of a filter, page by page, until it returns false.
func scan(ctx context.Context, lister store.Lister, f store.Filter, each func(rec *store.Record) bool) error {
	for {
		page, err := lister.List(ctx, f)
		if err != nil {
			return err
		}
		for i := range page {
			if !each(&page[i]) {
				return nil
			}
		}
		if len(page) < store.MaxPage {
			return nil
		}
		f.After = page[len(page)-1].ID
	}
}

// get returns a record, or the zero record if there is none.
func (p *Poller) get(ctx context.Context, id store.ID) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rec, err := p.store.Get(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return store.Record{}, nil
	}
	return rec, err
}

// purge removes events and audit entries that are older than they are kept.
func (p *Poller) purge(ctx context.Context) (err error) {
	if p.events != nil {
		err = purge(ctx, p.config.KeepExternalEvents, p.events.PurgeExternalEvents)
	}
	if p.auditor != nil {
		err = errors.Join(err, purge(ctx, p.config.KeepAudit, p.auditor.PurgeAudit))
	}
	return err
}

func purge(
	ctx context.Context, keep time.Duration,
	batch func(ctx context.Context, age time.Duration, limit int) (int, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	_, err := batch(ctx, keep, purgeBatch)
	return err
}
