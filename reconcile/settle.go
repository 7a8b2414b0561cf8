package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Reconcile asks after one record now, due or not, and settles it if it can. A record that is not unknown is left
// alone.
func (p *Poller) Reconcile(ctx context.Context, id store.ID) (Report, error) {
	rec, err := p.get(ctx, id)
	if err != nil || rec.State != store.StateUnknown {
		return Report{}, err
	}
	return p.reconcile(ctx, &rec)
}

const (
	// settleTimeout is what a node may need, beyond the time in which it learns, to write down what it has learned.
	settleTimeout = 15 * time.Second
	// storeTimeout bounds what is asked of the store: its machine may vanish without a word. One that is only slow
	// takes less.
	storeTimeout = time.Minute
)

// reconcile settles an unknown record, or postpones it. It claims the try first, so that any number of nodes asks and
// counts once (B6); if this node dies, the next try is due when the claim is over. An answer that the store does not
// take is as good as none: it would not take it the next time either.
func (p *Poller) reconcile(ctx context.Context, rec *store.Record) (Report, error) {
	if rec.ReconcileCount >= p.config.MaxAttempts && !rec.DeadLetter {
		return p.postpone(ctx, rec, "given up after tries that were not heard of again", nil)
	}
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if err := p.begin(ctx, claim, rec.ReconcileCount); err != nil {
		return Report{}, unlessFenced(err)
	}
	rec.ReconcileCount++
	answer, learnErr := p.learn(ctx, *rec, true)
	if answer.kind != stillUnknown {
		report, err := p.settle(ctx, rec, answer)
		if err == nil {
			return report, nil
		}
		if errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return report, errors.Join(err, p.giveBack(ctx, claim, rec.ReconcileCount))
		}
		answer, learnErr = StillUnknown("the answer cannot be stored: "+err.Error()), err
	}
	if ctx.Err() != nil {
		return Report{}, errors.Join(ctx.Err(), p.giveBack(ctx, claim, rec.ReconcileCount))
	}
	return p.postpone(ctx, rec, answer.reason, learnErr)
}

// begin claims a try, for as long as it may take.
func (p *Poller) begin(ctx context.Context, c store.Claim, count int) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return p.settler.BeginReconcile(ctx, c, count, p.config.Timeout+settleTimeout)
}

// learn reads the external events first, and then, if it is to ask, asks. The record is a copy: whoever is asked cannot
// change which attempt the answer is for. With an error the answer is still unknown.
func (p *Poller) learn(ctx context.Context, rec store.Record, ask bool) (Answer, error) {
	rule := p.rule(rec.Operation)
	if rule == nil {
		err := fmt.Errorf("reconcile: there is no rule for the operation %q", rec.Operation)
		return StillUnknown(err.Error()), err
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	started := time.Now()
	answer, err := p.guarded(ctx, func() (Answer, error) { return p.readExternalEvents(ctx, rule, &rec) })
	if answer.kind == stillUnknown && ask && rule.Resolver != nil && !errors.Is(err, store.ErrUnavailable) {
		externalEventsErr := err
		if answer, err = p.guarded(ctx, func() (Answer, error) { return rule.Resolver.Resolve(ctx, &rec) }); answer.kind == stillUnknown {
			err = errors.Join(externalEventsErr, err)
		}
	}
	if answer.kind == notFound {
		answer, err = p.guarded(ctx, func() (Answer, error) { return rule.judgeNotFound(ctx, &rec, started, &p.gone) })
	}
	if err != nil {
		answer = StillUnknown(err.Error())
	}
	return answer, err
}

// guarded calls what a user has supplied. A panic of it is an error like any other: it does not end the poller, and the
// record is asked after again, up to the limit.
func (p *Poller) guarded(ctx context.Context, call func() (Answer, error)) (answer Answer, err error) {
	defer func() {
		if v := recover(); v != nil {
			p.config.Logger.ErrorContext(ctx, "reconcile: panic", "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("reconcile: panic: %v", v)
		}
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("reconcile: no answer within %s: %w", p.config.Timeout, err)
		}
		if err != nil {
			answer = Answer{}
		}
	}()
	return call()
}

// readNotices makes an answer of what the other system has said by itself.
func (p *Poller) readExternalEvents(ctx context.Context, rule *Rule, rec *store.Record) (Answer, error) {
	if rule.Source == "" {
		return StillUnknown("no external events"), nil
	}
	subjects, err := rule.heeded(p.guard, rec)
	if err != nil {
		return Answer{}, err
	}
	events, err := p.events.ExternalEvents(ctx, store.ExternalEventFilter{Source: rule.Source, Scope: rec.Scope, Subjects: subjects})
	if err != nil || len(events) == 0 {
		return StillUnknown("no external event has come"), err
	}
	return rule.Interpret(ctx, rec, events)
}

// settle writes down what was learned. If somebody else has settled the record, or it has moved on, then the answer was
// about what is past: nothing is changed, and that is no error.
func (p *Poller) settle(ctx context.Context, rec *store.Record, a Answer) (Report, error) {
	resolved, err := a.resolve(rec)
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	entry := store.AuditEntry{
		ID: rec.ID, Attempt: rec.Attempt, Actor: p.config.Actor, Action: resolved.action, Reason: resolved.reason,
	}
	if err := audited(ctx, p.auditor, entry, func() error { return resolved.write(ctx, p.settler, claim) }); err != nil {
		return Report{}, unlessFenced(err)
	}
	p.observe(ctx, rec, resolved.outcome, nil)
	return resolved.report, nil
}

// giveBack takes back a try that came to nothing for reasons of this node's own: the record is due as before. Should
// that fail, it is due when the claim is over.
func (p *Poller) giveBack(ctx context.Context, c store.Claim, count int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	return unlessFenced(p.settler.Postpone(ctx, c, store.Postponement{Count: count, Untried: true}))
}

// postpone writes down that nothing was learned. With the last try the record becomes a dead letter.
func (p *Poller) postpone(ctx context.Context, rec *store.Record, reason string, learnErr error) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if err := p.settler.Postpone(ctx, claim, store.Postponement{
		Count: rec.ReconcileCount, Wait: p.pause(rec.ReconcileCount - 1), MaxAttempts: p.config.MaxAttempts, Reason: short(reason),
	}); err != nil {
		return Report{}, unlessFenced(err)
	}
	if !rec.DeadLetter && rec.ReconcileCount < p.config.MaxAttempts {
		p.observe(ctx, rec, "postponed", learnErr)
		return Report{Postponed: 1}, nil
	}
	p.observe(ctx, rec, "dead letter", learnErr)
	p.config.Logger.ErrorContext(ctx, "reconcile: a person has to settle an operation",
		"operation", rec.Operation, "key_hash", rec.Hash(), "attempt", rec.Attempt, "reason", short(reason))
	return Report{Postponed: 1, DeadLetters: 1}, nil
}

func (p *Poller) observe(ctx context.Context, rec *store.Record, outcome string, err error) {
	p.config.Observer.Observe(ctx, onceward.ReconciledEvent{
		ID: rec.ID, Operation: rec.Operation, Attempt: rec.Attempt, Outcome: outcome, Err: err,
	})
}

func unlessFenced(err error) error {
	if errors.Is(err, store.ErrFenced) {
		return nil
	}
	return err
}

// short cuts a reason, which may hold all that the other system has said, to what a person reads.
func short(reason string) string {
	const longest = 1000
	if len(reason) <= longest {
		return reason
	}
	return strings.ToValidUTF8(reason[:longest], "") + "…"
}
