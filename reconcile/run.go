package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// Report is what a run of the poller did.
type Report struct {
	// Completed and NotExecuted count the records that were settled.
	Completed, NotExecuted int
	// Steps counts the phased operations of which a step was settled: they go on.
	Steps int
	// Postponed counts those of which nothing was learned, and DeadLetters those of them that now wait for a person.
	Postponed, DeadLetters int
}

func (r *Report) add(o Report) {
	r.Completed += o.Completed
	r.NotExecuted += o.NotExecuted
	r.Steps += o.Steps
	r.Postponed += o.Postponed
	r.DeadLetters += o.DeadLetters
}

// purgeBatch is how many old notices and audit entries a run removes.
const purgeBatch = 1000

// RunOnce asks after every record that is due, and says what came of it. An error does not keep it from the rest. Nobody is
// asked about dead letters, but now and then their notices are read.
func (p *Poller) RunOnce(ctx context.Context) (Report, error) {
	run := round{Poller: p, letters: p.lettersDue(), slots: make(chan struct{}, p.config.Concurrency)}
	err := p.unknown(ctx, true, func(rec *onceward.Record) bool {
		run.start(ctx, rec)
		return ctx.Err() == nil
	})
	run.wg.Wait()
	p.gone.forget(max(forgetAfter, 2*p.config.LongestPause))
	return run.report, errors.Join(run.failure(), err, p.purge(ctx), ctx.Err())
}

// round is one run of the poller.
type round struct {
	*Poller
	letters bool
	slots   chan struct{}
	wg      sync.WaitGroup

	mu       sync.Mutex
	report   Report
	failures int
	first    error
}

// start looks after one record as soon as there is room.
func (r *round) start(ctx context.Context, rec *onceward.Record) {
	if rule := r.rule(rec.Operation); rec.DeadLetter && (!r.letters || rule == nil || rule.Source == "") {
		return
	}
	id, due := rec.ID, rec.ReconcileAt
	r.slots <- struct{}{}
	r.wg.Go(func() {
		defer func() { <-r.slots }()
		report, err := r.look(ctx, id, due)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.report.add(report)
		if err != nil && r.failures == 0 {
			r.first = err
		}
		if err != nil {
			r.failures++
		}
	})
}

// look looks after one record, unless another node was faster: what it has postponed is not due when it was listed to be. That
// takes no clock.
func (r *round) look(ctx context.Context, id onceward.ID, due time.Time) (Report, error) {
	rec, err := r.get(ctx, id)
	switch {
	case err != nil || rec.State != onceward.StateUnknown || !rec.ReconcileAt.Equal(due):
		return Report{}, err
	case rec.DeadLetter:
		return r.heed(ctx, &rec)
	default:
		return r.reconcile(ctx, &rec)
	}
}

// failure is the first one, and how many there were: a store that is away fails for each record in the same way.
func (r *round) failure() error {
	if r.failures < 2 {
		return r.first
	}
	return fmt.Errorf("reconcile: %d records could not be looked after, the first because: %w", r.failures, r.first)
}

// unknown calls each for the unknown records, or only those that are due by the store's clock, until it returns false.
func (p *Poller) unknown(ctx context.Context, due bool, each func(rec *onceward.Record) bool) error {
	filter := onceward.Filter{State: onceward.StateUnknown, Due: due}
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
		if len(page) < onceward.MaxPage {
			return nil
		}
		filter.After = page[len(page)-1].ID
	}
}

// get returns a record, or the zero record if there is none.
func (p *Poller) get(ctx context.Context, id onceward.ID) (onceward.Record, error) {
	rec, err := p.store.Get(ctx, id)
	if errors.Is(err, onceward.ErrNotFound) {
		return onceward.Record{}, nil
	}
	return rec, err
}

// purge forgets what nobody needs any more.
func (p *Poller) purge(ctx context.Context) (err error) {
	if p.notices != nil {
		_, err = p.notices.PurgeNotices(ctx, p.config.KeepNotices, purgeBatch)
	}
	if p.auditor != nil {
		_, auditErr := p.auditor.PurgeAudit(ctx, p.config.KeepAudit, purgeBatch)
		err = errors.Join(err, auditErr)
	}
	return err
}
