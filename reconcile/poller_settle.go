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

// Reconcile queries one record now, due or not, and settles it if it can. A record that is not unknown is not changed.
func (p *Poller) Reconcile(ctx context.Context, id store.ID) (Report, error) {
	rec, err := p.get(ctx, id)
	if err != nil || rec.State != store.StateUnknown {
		return Report{}, err
	}
	return p.reconcile(ctx, &rec)
}

const (
	// settleTimeout is what a node may need, beyond the time of the query, to store the answer.
	settleTimeout = 15 * time.Second
	// storeTimeout bounds the calls to the store: its machine may vanish without closing its connections. A store that is
	// only slow takes less.
	storeTimeout = time.Minute
)

// reconcile settles an unknown record, or postpones it. It claims the attempt first, so that any number of nodes makes
// and counts it once (rule B6); if this node dies, the next attempt is due when the claim ends. An answer that the
// store refuses is treated as none, because the store would refuse it the next time too.
func (p *Poller) reconcile(ctx context.Context, rec *store.Record) (Report, error) {
	if rec.ReconcileCount >= p.config.MaxAttempts && !rec.DeadLetter {
		return p.postpone(ctx, rec, "given up after attempts that ended without a result", nil)
	}
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if err := p.begin(ctx, claim, rec.ReconcileCount); err != nil {
		return Report{}, unlessFenced(err)
	}
	rec.ReconcileCount++
	answer, queryErr := p.query(ctx, *rec, true)
	if answer.kind != stillUnknown {
		report, err := p.settle(ctx, rec, answer)
		if err == nil {
			return report, nil
		}
		if errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return report, errors.Join(err, p.release(ctx, claim, rec.ReconcileCount))
		}
		answer, queryErr = StillUnknown("the answer cannot be stored: "+err.Error()), err
	}
	if ctx.Err() != nil {
		return Report{}, errors.Join(ctx.Err(), p.release(ctx, claim, rec.ReconcileCount))
	}
	report, err := p.postpone(ctx, rec, answer.reason, queryErr)
	if errors.Is(queryErr, onceward.ErrMisconfigured) { // a wrong rule is the program's fault, not the record's
		err = errors.Join(queryErr, err)
	}
	return report, err
}

// begin claims an attempt, for as long as it may take.
func (p *Poller) begin(ctx context.Context, c store.Claim, count int) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return p.settler.BeginReconcile(ctx, c, count, p.config.Timeout+settleTimeout)
}

// query reads the external events first, and then, if ask is set, calls the resolver. The record is a copy: a resolver
// cannot change which attempt the answer is for. With an error the answer is still unknown.
func (p *Poller) query(ctx context.Context, rec store.Record, ask bool) (Answer, error) {
	rule := p.rule(rec.Operation)
	if rule == nil {
		err := fmt.Errorf("reconcile: there is no rule for the operation %q", rec.Operation)
		return StillUnknown(err.Error()), err
	}
	if store.IsSealed(rec.Data) { // a resolver would take it for data of another program
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
		answer = StillUnknown("the query failed: " + err.Error()) // an error proves nothing about the operation
	}
	answer.by = by
	return answer, err
}

// guarded calls a user's function. Its panic becomes an error: it does not end the poller, and the record is queried
// again, up to the limit.
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

// readExternalEvents returns an answer from the reports of the other system.
func (p *Poller) readExternalEvents(ctx context.Context, rule *Rule, rec *store.Record) (Answer, error) {
	if rule.Source == "" {
		return StillUnknown("no external events"), nil
	}
	subjects, err := rule.eventSubjects(p.guard, rec)
	if err != nil {
		return Answer{}, err
	}
	filter := store.ExternalEventFilter{Source: rule.Source, Scope: rec.Scope, Subjects: subjects}
	events, err := p.events.ExternalEvents(ctx, filter)
	if err != nil || len(events) == 0 {
		return StillUnknown("no external event has arrived"), err
	}
	if slices.ContainsFunc(events, func(e store.ExternalEvent) bool { return store.IsSealed(e.Body) }) {
		return Answer{}, store.ErrSealed
	}
	p.noticeForeign(ctx, rec, events)
	return rule.Interpret(ctx, rec, events)
}

// clockSkew is how far the clock of a sender may differ from the store's.
const clockSkew = 5 * time.Minute

// noticeForeign looks for an external event that carries the downstream key of a record, and is older than the record:
// it reports an effect of another service that derives the same keys, unless an earlier record of the key has expired.
// Events without a record prove nothing: most concern settled operations, and some arrive early.
func (p *Poller) noticeForeign(ctx context.Context, rec *store.Record, events []store.ExternalEvent) {
	for i := range events {
		e := &events[i]
		if e.Subject != rec.ProviderID && e.At.Before(rec.CreatedAt.Add(-clockSkew)) {
			p.guard.WarnSharedProvider(ctx, "an external event with the downstream key of an operation happened before it",
				"source", e.Source, "operation", rec.Operation, "key_hash", rec.Hash())
		}
	}
}

// settle stores the answer. If another node or a person has settled the record, or it has changed, the answer is
// outdated: nothing is changed, and this is no error.
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

// release gives up an attempt that failed because of this node: the record is due as before. If this fails, it is due
// when the claim ends.
func (p *Poller) release(ctx context.Context, c store.Claim, count int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	return unlessFenced(p.settler.Postpone(ctx, c, store.Postponement{Count: count, Untried: true}))
}

// postpone records that the outcome was not found. With the last attempt the record becomes a dead letter.
func (p *Poller) postpone(ctx context.Context, rec *store.Record, reason string, queryErr error) (Report, error) {
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
			"can be found out by it", "operation", rec.Operation, "key_hash", rec.Hash(), "error", err)
	}
	if !rec.DeadLetter && rec.ReconcileCount < p.config.MaxAttempts {
		p.observe(ctx, rec, "postponed", queryErr)
		return Report{Postponed: 1}, nil
	}
	p.observe(ctx, rec, "dead letter", queryErr)
	p.config.Logger.ErrorContext(ctx, "reconcile: a person has to settle an operation",
		"operation", rec.Operation, "key_hash", rec.Hash(), "attempt", strconv.FormatInt(rec.Attempt, 10), "reason", short(rec.LastError),
		"asked", short(reason))
	return Report{Postponed: 1, DeadLetters: 1}, nil
}

// keepAttempt writes an unsuccessful attempt to the audit, for the person who settles the record in the end: the reason
// is why the outcome is unknown, and the outcome is the result of the query. A failure is only logged.
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

// worthKeeping reports whether an attempt is written to the audit, and so bounds the audit of a record whose outcome is
// not found. The first ten attempts are written, up to the hundredth also each attempt with a changed result, and each
// attempt whose number is a power of two.
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

// short cuts a reason, which may contain a long text of the other system, to a readable length.
func short(reason string) string {
	const longest = 1000
	if len(reason) <= longest {
		return reason
	}
	return strings.ToValidUTF8(reason[:longest], "") + "…"
}

// Apply settles the record of an external event, if it is unknown and its external events show how it ended. An early
// external event, for an operation that is still in progress or not recorded yet, stays in the store, and is read when
// the record becomes unknown. An event without a conclusion changes nothing, however often it comes: the poller queries
// when the record is due. An external event that is bound to a scope only settles records of that scope, whatever its
// subject (rule B6).
//
// Pass this function to a webhook receiver. The external event itself must have been stored before: Apply uses the
// stored events about its subject, not its argument.
//
// No store has an index from a subject to its record, so each call scans all unknown records, including dead letters:
// one query for each [store.MaxPage] of them. This is cheap as long as few outcomes are unknown. If there are many, do
// not give Apply to the receiver: the poller reads the external events too, when the records are due.
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
			_, getErr = p.applyEvents(ctx, &rec)
		}
		err = errors.Join(err, getErr)
	}
	return errors.Join(err, ctx.Err())
}

// isAbout reports whether an external event concerns a record. If the downstream keys of a record cannot be derived,
// the poller logs it when the record is due.
func (p *Poller) isAbout(e *store.ExternalEvent, rec *store.Record) bool {
	rule := p.rule(rec.Operation)
	if rule == nil || rule.Source != e.Source {
		return false
	}
	subjects, _ := rule.subjects(p.guard, rec)
	return slices.Contains(subjects, e.Subject)
}

// applyEvents settles a record if its external events show how it ended. Otherwise the record is not changed, and no
// attempt is counted.
func (p *Poller) applyEvents(ctx context.Context, rec *store.Record) (Report, error) {
	answer, err := p.query(ctx, *rec, false)
	if err != nil || answer.kind == stillUnknown {
		return Report{}, err
	}
	return p.settle(ctx, rec, answer)
}

// lettersDue reports whether it is time to check dead letters for external events. No resolver is queried about them
// any more, but a late external event, whose Apply failed, should still settle them. A check costs a query for each, so
// it is rare.
func (p *Poller) lettersDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lettersAt.IsZero() && time.Since(p.lettersAt) < p.config.MaxBackoff {
		return false
	}
	p.lettersAt = time.Now()
	return true
}
