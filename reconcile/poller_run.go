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

// Report is the result of a run of the poller.
type Report struct {
	// Completed and NotExecuted are the numbers of settled records.
	Completed, NotExecuted int
	// Steps is the number of phased operations of which a step was settled: they continue.
	Steps int
	// Postponed is the number of records whose outcome was not found, and DeadLetters how many of them now wait for a
	// person.
	Postponed, DeadLetters int
	// Hanging is the number of queries of this poller, of this run and of earlier ones, that have not returned in time.
	// Each keeps a place of its operation until it returns; when all places are taken, the operation is not queried here.
	Hanging int
}

func (r *Report) add(o Report) {
	r.Completed += o.Completed
	r.NotExecuted += o.NotExecuted
	r.Steps += o.Steps
	r.Postponed += o.Postponed
	r.DeadLetters += o.DeadLetters
}

// purgeBatch is the largest number of old external events, and of audit entries, that a run removes.
const purgeBatch = 1000

// RunOnce queries every record that is due, and reports the results. After an error it continues with the rest. No
// resolver is queried about dead letters, but their external events are read from time to time. It does not wait for
// queries that hang.
func (p *Poller) RunOnce(ctx context.Context) (Report, error) {
	r := p.newRun(ctx)
	err := r.look()
	r.Wait()
	report, failed := r.Take()
	report.Hanging = p.pool.Hanging()
	return report, errors.Join(failed, err, ctx.Err())
}

// Run reconciles regularly until the context ends, waits for the running queries that do not hang, and returns nil.
// Failures are logged, and it continues. No look at the store waits for records that earlier looks have found.
//
// It first checks the names of the rules: see [onceward.Guard.CheckOperations]. So call it when the routes are built. A
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
		p.config.Logger.WarnContext(ctx, "reconcile: not every record could be queried", "error", err)
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

// newPool returns the places for queries. A query counts as hanging if it has not returned within its timeout and the
// time to store its answer.
func (p *Poller) newPool() *fair.Pool {
	report := func(outcome, message string) func(fair.Item) {
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
		Hangs:    report("hanging", "reconcile: a query hangs past its timeout, and keeps a place of its operation"),
		Returned: report("returned", "reconcile: a query that hung has returned"),
	})
}

// pollRun is one run of the poller with its results.
type pollRun struct {
	*Poller
	*fair.Run
	fair.Tally[Report]
	ctx     context.Context
	letters atomic.Bool // dead letters are checked too
}

func (p *Poller) newRun(ctx context.Context) *pollRun {
	r := &pollRun{Poller: p, ctx: ctx}
	r.Run = p.pool.NewRun(ctx, fair.Work{Wants: r.wants, Do: r.do, Failed: r.Fail})
	return r
}

// look starts the queries that are due, and forgets what is no longer needed.
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

// wants skips dead letters, unless it is time to check them for external events.
func (r *pollRun) wants(rec *store.Record) bool {
	if !rec.DeadLetter {
		return true
	}
	rule := r.rule(rec.Operation)
	return r.letters.Load() && rule != nil && rule.Source != ""
}

// do processes one record, unless another node was faster: if another node has postponed the record, its due time
// differs from the listed one. This check needs no clock.
func (r *pollRun) do(ctx context.Context, item fair.Item) {
	rec, err := r.get(ctx, item.ID)
	switch {
	case err != nil || rec.State != store.StateUnknown || !rec.ReconcileAt.Equal(item.Due):
		r.note(Report{}, err)
	case rec.DeadLetter:
		r.note(r.applyEvents(ctx, &rec))
	default:
		r.note(r.reconcile(ctx, &rec))
	}
}

// note adds the result of one record.
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

// purge removes events and audit entries past their time.
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
