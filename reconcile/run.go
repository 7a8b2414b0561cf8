package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// Report is what a run of the poller did.
type Report struct {
	// Completed and NotExecuted count the records that were settled.
	Completed, NotExecuted int
	// Postponed counts those of which nothing was learned, and DeadLetters those of them that now wait for a person.
	Postponed, DeadLetters int
}

func (r *Report) add(o Report) {
	r.Completed += o.Completed
	r.NotExecuted += o.NotExecuted
	r.Postponed += o.Postponed
	r.DeadLetters += o.DeadLetters
}

// purgeBatch is how many old notices and audit entries a run removes.
const purgeBatch = 1000

// RunOnce asks after every record that is due, and says what came of it. An error does not keep it from the rest.
func (p *Poller) RunOnce(ctx context.Context) (Report, error) {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		report Report
		failed error
		slots  = make(chan struct{}, p.config.Concurrency)
	)
	err := p.unknown(ctx, time.Now(), func(rec *onceward.Record) bool {
		if rec.DeadLetter {
			return true
		}
		id := rec.ID
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			one, err := p.Reconcile(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			report.add(one)
			failed = errors.Join(failed, err)
		})
		return ctx.Err() == nil
	})
	wg.Wait()
	p.met.forget()
	return report, errors.Join(failed, err, p.purge(ctx), ctx.Err())
}

// unknown calls each for the unknown records that are due, until it returns false. A zero time is for all.
func (p *Poller) unknown(ctx context.Context, due time.Time, each func(rec *onceward.Record) bool) error {
	filter := onceward.Filter{State: onceward.StateUnknown, DueBefore: due}
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

// Reconcile asks after one record now, due or not, and settles it if it can. A record that is not unknown is left alone.
func (p *Poller) Reconcile(ctx context.Context, id onceward.ID) (Report, error) {
	rec, err := p.store.Get(ctx, id)
	if errors.Is(err, onceward.ErrNotFound) || err == nil && rec.State != onceward.StateUnknown {
		return Report{}, nil
	}
	if err != nil {
		return Report{}, err
	}
	answer, learnErr := p.learn(ctx, &rec)
	if learnErr != nil {
		answer = StillUnknown(learnErr.Error())
	}
	if ctx.Err() != nil && answer.kind == stillUnknown {
		return Report{}, nil // it was not asked properly, and is due as before
	}
	report, err := p.settle(ctx, &rec, answer, learnErr)
	if errors.Is(err, onceward.ErrFenced) {
		err = nil // somebody else has settled it, or it has moved on: the answer was about what is past
	}
	return report, err
}

// learn reads the notices first, then asks.
func (p *Poller) learn(ctx context.Context, rec *onceward.Record) (Answer, error) {
	rule := p.rule(rec.Operation)
	if rule == nil {
		return Answer{}, errors.New("reconcile: there is no rule for the operation " + rec.Operation)
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	answer, err := p.readNotices(ctx, rule, rec)
	if err == nil && answer.kind == stillUnknown && rule.Resolver != nil {
		answer, err = rule.Resolver.Resolve(ctx, rec)
	}
	if err == nil && answer.kind == notFound {
		answer, err = rule.judgeNotFound(ctx, rec, p.met.since(onceward.Claim{ID: rec.ID, Attempt: rec.Attempt}))
	}
	return answer, err
}

// readNotices makes an answer of what the other system has said by itself.
func (p *Poller) readNotices(ctx context.Context, rule *Rule, rec *onceward.Record) (Answer, error) {
	if rule.Source == "" {
		return StillUnknown("no notices"), nil
	}
	notices, err := p.notices.Notices(ctx, rule.Source, rule.subjects(rec)...)
	if err != nil || len(notices) == 0 {
		return StillUnknown("no notice has come"), err
	}
	return rule.Interpret(ctx, rec, notices)
}

// settle writes down what was learned.
func (p *Poller) settle(ctx context.Context, rec *onceward.Record, a Answer, learnErr error) (report Report, err error) {
	claim := onceward.Claim{ID: rec.ID, Attempt: rec.Attempt}
	outcome := ""
	switch a.kind {
	case completed:
		outcome, report.Completed = "completed", 1
		err = p.audited(ctx, claim, "resolve completed", "the other system's answer", func() error {
			return p.settler.ResolveCompleted(ctx, claim, &a.completion)
		})
	case notExecuted:
		outcome, report.NotExecuted = "not executed", 1
		err = p.audited(ctx, claim, "resolve not executed", a.reason, func() error {
			return p.settler.ResolveNotExecuted(ctx, claim, a.reason)
		})
	default:
		outcome, report.Postponed = "postponed", 1
		if rec.ReconcileCount+1 >= p.config.Limit {
			outcome, report.DeadLetters = "dead letter", 1
		}
		err = p.settler.Postpone(ctx, claim, p.pause(rec.ReconcileCount), p.config.Limit, a.reason)
	}
	if err != nil {
		return Report{}, err
	}
	p.config.Observer.Observe(ctx, onceward.ReconciledEvent{
		ID: rec.ID, Operation: rec.Operation, Attempt: rec.Attempt, Outcome: outcome, Err: learnErr,
	})
	if report.DeadLetters > 0 {
		p.config.Logger.ErrorContext(ctx, "reconcile: a person has to settle an operation",
			"operation", rec.Operation, "key_hash", rec.Hash(), "attempt", rec.Attempt, "reason", a.reason)
	}
	return report, nil
}

// audited writes down what is about to be done, does it, and says how it ended.
func (p *Poller) audited(ctx context.Context, c onceward.Claim, action, reason string, act func() error) error {
	return audited(ctx, p.auditor, onceward.AuditEntry{
		ID: c.ID, Attempt: c.Attempt, Actor: p.config.Actor, Action: action, Reason: reason,
	}, act)
}
