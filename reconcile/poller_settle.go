package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
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

// reconcile settles an unknown record, or postpones it. It claims the attempt first, so that any number of nodes asks
// and counts once (B6); if this node dies, the next one is due when the claim is over. An answer that the store does
// not take is as good as none: it would not take it the next time either.
func (p *Poller) reconcile(ctx context.Context, rec *store.Record) (Report, error) {
	if rec.ReconcileCount >= p.config.MaxAttempts && !rec.DeadLetter {
		return p.postpone(ctx, rec, "given up after attempts that were not heard of again", nil)
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
			return report, errors.Join(err, p.release(ctx, claim, rec.ReconcileCount))
		}
		answer, learnErr = StillUnknown("the answer cannot be stored: "+err.Error()), err
	}
	if ctx.Err() != nil {
		return Report{}, errors.Join(ctx.Err(), p.release(ctx, claim, rec.ReconcileCount))
	}
	report, err := p.postpone(ctx, rec, answer.reason, learnErr)
	if errors.Is(learnErr, onceward.ErrMisconfigured) { // a wrong rule is the program's fault, and not the record's
		err = errors.Join(learnErr, err)
	}
	return report, err
}

// begin claims an attempt, for as long as it may take.
func (p *Poller) begin(ctx context.Context, c store.Claim, count int) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return p.settler.BeginReconcile(ctx, c, count, p.config.Timeout+settleTimeout)
}

// learn reads the external events first, and then, if it is to ask, asks. The record is a copy: a resolver cannot
// change which attempt the answer is for. With an error the answer is still unknown.
func (p *Poller) learn(ctx context.Context, rec store.Record, ask bool) (Answer, error) {
	rule := p.rule(rec.Operation)
	if rule == nil {
		err := fmt.Errorf("reconcile: there is no rule for the operation %q", rec.Operation)
		return StillUnknown(err.Error()), err
	}
	if store.IsSealed(rec.Data) { // a resolver would take it for data that another program has written
		return StillUnknown(store.ErrSealed.Error()), store.ErrSealed
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	started, by := time.Now(), "external event"
	answer, err := p.guarded(ctx, func() (Answer, error) { return p.readExternalEvents(ctx, rule, &rec) })
	if answer.kind == stillUnknown && ask && rule.Resolver != nil && !errors.Is(err, store.ErrUnavailable) {
		eventsErr := err
		by = "resolver"
		answer, err = p.guarded(ctx, func() (Answer, error) { return rule.Resolver.Resolve(ctx, &rec) })
		if answer.kind == stillUnknown {
			err = errors.Join(eventsErr, err)
		}
	}
	if answer.kind == notFound {
		answer, err = p.guarded(ctx, func() (Answer, error) { return rule.judgeNotFound(ctx, &rec, started, &p.gone) })
	}
	if err != nil {
		answer = StillUnknown("the question failed: " + err.Error()) // whatever the error says, it is no word on the operation
	}
	answer.by = by
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

// readExternalEvents makes an answer of what the other system has said by itself.
func (p *Poller) readExternalEvents(ctx context.Context, rule *Rule, rec *store.Record) (Answer, error) {
	if rule.Source == "" {
		return StillUnknown("no external events"), nil
	}
	subjects, err := rule.heeded(p.guard, rec)
	if err != nil {
		return Answer{}, err
	}
	filter := store.ExternalEventFilter{Source: rule.Source, Scope: rec.Scope, Subjects: subjects}
	events, err := p.events.ExternalEvents(ctx, filter)
	if err != nil || len(events) == 0 {
		return StillUnknown("no external event has come"), err
	}
	if slices.ContainsFunc(events, func(e store.ExternalEvent) bool { return store.IsSealed(e.Body) }) {
		return Answer{}, store.ErrSealed
	}
	p.noticeForeign(ctx, rec, events)
	return rule.Interpret(ctx, rec, events)
}

// clockSkew is how far the clock of a sender may be from that of the store.
const clockSkew = 5 * time.Minute

// noticeForeign looks for an external event that carries the downstream key of a record, and is older than the record:
// what it tells of was done for another service that derives the same keys, unless an earlier record of the key has
// expired. Events about no record at all are no sign: most are about operations that are settled, and some come early.
func (p *Poller) noticeForeign(ctx context.Context, rec *store.Record, events []store.ExternalEvent) {
	for i := range events {
		e := &events[i]
		if e.Subject != rec.ProviderID && e.At.Before(rec.CreatedAt.Add(-clockSkew)) {
			p.guard.WarnSharedProvider(ctx, "an external event with the downstream key of an operation happened before it",
				"source", e.Source, "operation", rec.Operation, "key_hash", rec.Hash())
		}
	}
}

// settle writes down what was learned. If another node or a person has settled the record, or it has moved on, then the
// answer was about what is past: nothing is changed, and that is no error.
func (p *Poller) settle(ctx context.Context, rec *store.Record, a Answer) (Report, error) {
	resolved, err := a.resolve(rec)
	if errors.Is(err, onceward.ErrMisconfigured) {
		p.config.Logger.ErrorContext(ctx, "reconcile: a rule is wrong: no operation is settled by it until it is corrected",
			"operation", rec.Operation, "key_hash", rec.Hash(), "attempt", strconv.FormatInt(rec.Attempt, 10), "error", err)
	}
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	entry := store.AuditEntry{
		ID: rec.ID, Attempt: rec.Attempt, Actor: p.config.Actor, Action: resolved.action, Reason: resolved.reason,
	}
	err = audited(ctx, p.auditor, entry, func() error { return resolved.write(ctx, p.settler, claim) })
	if err != nil && !errors.Is(err, store.ErrStale) {
		return Report{}, unlessFenced(err)
	}
	p.config.Logger.InfoContext(ctx, "reconcile: an operation was settled", "operation", rec.Operation,
		"key_hash", rec.Hash(), "attempt", strconv.FormatInt(rec.Attempt, 10), "outcome", resolved.outcome, "by", a.by, "reason", resolved.reason)
	p.observe(ctx, rec, resolved.outcome, nil)
	return resolved.report, nil
}

// release gives up an attempt that came to nothing for reasons of this node's own: the record is due as before.
// Should that fail, it is due when the claim is over.
func (p *Poller) release(ctx context.Context, c store.Claim, count int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	return unlessFenced(p.settler.Postpone(ctx, c, store.Postponement{Count: count, Untried: true}))
}

// postpone writes down that nothing was learned. With the last attempt the record becomes a dead letter.
func (p *Poller) postpone(ctx context.Context, rec *store.Record, reason string, learnErr error) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if err := p.settler.Postpone(ctx, claim, store.Postponement{
		Count: rec.ReconcileCount, MaxAttempts: p.config.MaxAttempts, Reason: short(reason),
		Wait: backoff.Jittered(p.config.MinBackoff, p.config.MaxBackoff, rec.ReconcileCount),
	}); err != nil {
		return Report{}, unlessFenced(err)
	}
	p.keepAttempt(ctx, rec, short(reason))
	if _, err := p.guard.DownstreamKey(rec, ""); err != nil {
		p.config.Logger.ErrorContext(ctx, "reconcile: no downstream key of an operation can be derived, so that nothing "+
			"can be learned by it", "operation", rec.Operation, "key_hash", rec.Hash(), "error", err)
	}
	if !rec.DeadLetter && rec.ReconcileCount < p.config.MaxAttempts {
		p.observe(ctx, rec, "postponed", learnErr)
		return Report{Postponed: 1}, nil
	}
	p.observe(ctx, rec, "dead letter", learnErr)
	p.config.Logger.ErrorContext(ctx, "reconcile: a person has to settle an operation",
		"operation", rec.Operation, "key_hash", rec.Hash(), "attempt", strconv.FormatInt(rec.Attempt, 10), "reason", short(rec.LastError),
		"asked", short(reason))
	return Report{Postponed: 1, DeadLetters: 1}, nil
}

// keepAttempt writes an attempt that learned nothing to the audit, for the person who settles the record in the end: as
// the reason why the outcome is unknown, as the outcome what became of asking. It is no part of the books: should it fail, the log says so.
func (p *Poller) keepAttempt(ctx context.Context, rec *store.Record, answer string) {
	if p.auditor == nil || !worthKeeping(rec.ReconcileCount, answer != rec.ReconcileError) {
		return
	}
	err := p.auditor.AddAudit(ctx, store.AuditEntry{
		ID: rec.ID, Attempt: rec.Attempt, Actor: p.config.Actor,
		Action: fmt.Sprintf("reconcile attempt %d", rec.ReconcileCount), Reason: short(rec.LastError), Outcome: answer,
	})
	if err != nil {
		p.config.Logger.WarnContext(ctx, "reconcile: an attempt could not be written to the audit",
			"operation", rec.Operation, "key_hash", rec.Hash(), "error", err)
	}
}

// worthKeeping bounds what is written of a record that nothing is learned of: the first ten attempts, those whose
// answer is another one than the last, up to a hundred, and then each that is a power of two.
func worthKeeping(count int, changed bool) bool {
	return count <= 10 || changed && count <= 100 || count&(count-1) == 0
}

func (p *Poller) observe(ctx context.Context, rec *store.Record, outcome string, err error) {
	p.config.Observer.Observe(ctx, ReconciledEvent{
		ID: rec.ID, Operation: rec.Operation, Attempt: rec.Attempt, Outcome: outcome, TraceID: rec.TraceID, Err: err,
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

// Apply settles the record that an external event is about, if it is unknown and its external events say how it ended.
// An external event that came early, about an operation that is still in progress or is not recorded yet, stays where
// it is kept, and is read when the record becomes unknown. One that says nothing yet changes nothing either, however
// often it comes: the poller asks when it is due. An external event that is bound to a scope settles records of that
// scope alone, whatever its subject (B6).
//
// Hand this function to a webhook receiver. The external event itself must have been kept before: what counts is what
// the store holds about its subject, not what is handed in here.
//
// No store keeps an index from a subject to its record, so each call looks through all unknown records, dead letters
// too: a page of [store.MaxPage] of them costs one query. That is little as long as few outcomes are unknown. Where
// many are, leave the receiver without it: the poller reads the external events as well, when the records are due.
func (p *Poller) Apply(ctx context.Context, e store.ExternalEvent) error {
	var found []store.ID
	err := scan(ctx, p.lister, store.Filter{State: store.StateUnknown}, func(rec *store.Record) bool {
		if e.MaySettle(rec.Scope) && p.isAbout(&e, rec) {
			found = append(found, rec.ID)
		}
		return ctx.Err() == nil
	})
	for _, id := range found {
		rec, getErr := p.get(ctx, id)
		if getErr == nil && rec.State == store.StateUnknown {
			_, getErr = p.heed(ctx, &rec)
		}
		err = errors.Join(err, getErr)
	}
	return errors.Join(err, ctx.Err())
}

// isAbout reports whether an external event is about a record. Of a record whose downstream keys cannot be derived the
// poller tells, when it is due.
func (p *Poller) isAbout(e *store.ExternalEvent, rec *store.Record) bool {
	rule := p.rule(rec.Operation)
	if rule == nil || rule.Source != e.Source {
		return false
	}
	subjects, _ := rule.subjects(p.guard, rec)
	return slices.Contains(subjects, e.Subject)
}

// heed settles a record if its external events say how. If they do not, it stays as it is: that was no attempt.
func (p *Poller) heed(ctx context.Context, rec *store.Record) (Report, error) {
	answer, err := p.learn(ctx, *rec, false)
	if err != nil || answer.kind == stillUnknown {
		return Report{}, err
	}
	return p.settle(ctx, rec, answer)
}

// lettersDue reports whether it is time to look for external events about dead letters. No resolver is asked about them
// any more, but an external event that came late, and whose Apply failed, should not be lost on them. A look costs a
// query for each, so it is rare.
func (p *Poller) lettersDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lettersAt.IsZero() && time.Since(p.lettersAt) < p.config.MaxBackoff {
		return false
	}
	p.lettersAt = time.Now()
	return true
}
