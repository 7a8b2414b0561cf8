package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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

// RunOnce asks after every record that is due, and says what came of it. An error does not keep it from the rest.
// Nobody is asked about dead letters, but now and then their external events are read. It does not wait for questions
// that hang.
func (p *Poller) RunOnce(ctx context.Context) (Report, error) {
	r := p.newRound(ctx)
	err := r.look()
	r.run.Wait()
	report, failure := r.take()
	report.Hanging = p.pool.Hanging()
	return report, errors.Join(failure, err, ctx.Err())
}

// Run reconciles now and then until the context ends, and what is under way then has ended or hangs. Failures are
// logged, and it goes on. No look at the store waits for what the looks before it have found.
func (p *Poller) Run(ctx context.Context) {
	r := p.newRound(ctx)
	defer r.run.Wait()
	for {
		err := r.look()
		_, failure := r.take()
		if err = errors.Join(failure, err); err != nil && ctx.Err() == nil {
			p.config.Logger.WarnContext(ctx, "reconcile: not everything could be asked after", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(p.config.Interval/2 + rand.N(p.config.Interval)):
		}
	}
}

// newPool returns the places for questions. One that has not returned when its time is over, and the time in which its
// answer could have been written down, hangs.
func (p *Poller) newPool() *fair.Pool {
	tell := func(outcome, message string) func(fair.Item) {
		return func(item fair.Item) {
			ctx := context.Background()
			p.config.Logger.ErrorContext(ctx, message, "operation", item.Operation, "key_hash", item.Hash())
			p.config.Observer.Observe(ctx, onceward.ReconciledEvent{
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

// round is one run of the poller, and what came of it.
type round struct {
	*Poller
	ctx     context.Context
	run     *fair.Run
	letters atomic.Bool // dead letters are looked after too

	mu       sync.Mutex
	report   Report
	failures int
	first    error
}

func (p *Poller) newRound(ctx context.Context) *round {
	r := &round{Poller: p, ctx: ctx}
	r.run = p.pool.NewRun(ctx, fair.Work{Wants: r.wants, Do: r.do, Failed: func(err error) { r.note(Report{}, err) }})
	return r
}

// look begins to ask after what is due, and forgets what is not needed any more.
func (r *round) look() error {
	r.letters.Store(r.lettersDue())
	err := r.run.Look()
	r.gone.forget(max(forgetAfter, 2*r.config.MaxBackoff))
	return errors.Join(err, r.purge(r.ctx))
}

// wants leaves dead letters alone, unless it is time to look for external events about them.
func (r *round) wants(rec *store.Record) bool {
	if !rec.DeadLetter {
		return true
	}
	rule := r.rule(rec.Operation)
	return r.letters.Load() && rule != nil && rule.Source != ""
}

// do looks after one record, unless another node was faster: what it has postponed is not due when it was listed to be.
// That takes no clock.
func (r *round) do(ctx context.Context, item fair.Item) {
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
func (r *round) note(report Report, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.add(report)
	if err == nil {
		return
	}
	if r.failures++; r.failures == 1 {
		r.first = err
	}
}

// take returns what came of the run since the last time. Of several failures it is the first, and how many there were:
// a store that is away fails for each record in the same way.
func (r *round) take() (report Report, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	report, err = r.report, r.first
	if r.failures > 1 {
		err = fmt.Errorf("reconcile: %d records could not be looked after, the first because: %w", r.failures, r.first)
	}
	r.report, r.failures, r.first = Report{}, 0, nil
	return report, err
}

// unknown calls each for the unknown records until it returns false.
func (p *Poller) unknown(ctx context.Context, each func(rec *store.Record) bool) error {
	filter := store.Filter{State: store.StateUnknown}
	for {
		page, err := p.lister.List(ctx, filter)
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
		filter.After = page[len(page)-1].ID
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

// purge forgets what nobody needs any more.
func (p *Poller) purge(ctx context.Context) (err error) {
	if p.events != nil {
		err = purge(ctx, p.config.KeepExternalEvents, p.events.PurgeExternalEvents)
	}
	if p.auditor != nil {
		err = errors.Join(err, purge(ctx, p.config.KeepAudit, p.auditor.PurgeAudit))
	}
	return err
}

func purge(ctx context.Context, keep time.Duration, batch func(ctx context.Context, age time.Duration, limit int) (int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	_, err := batch(ctx, keep, purgeBatch)
	return err
}
