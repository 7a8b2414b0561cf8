package store

import (
	"context"
	"time"
)

// Applied is the result of an event that a store has applied.
type Applied struct {
	Transition
	// Record is the record after the event.
	Record Record
	// Now is the store's clock at the decision.
	Now time.Time
}

// Verdict returns the answer to a reservation.
func (a *Applied) Verdict() Verdict {
	return Verdict{Decision: a.Decision, Origin: a.Origin, Record: a.Record, Now: a.Now}
}

// Methods has the methods of [Store] except Get, and the methods of [Reconciler], [Buster], [Retainer] and [Rewriter].
// Each method makes an event and applies it. A store embeds Methods, and overrides the methods for which it has a
// faster way.
type Methods struct {
	// Apply applies an event to the record of an ID, in one atomic step that follows [Step]. It reads the clock and
	// sets [Event].Token. It is set when the store is opened, and never changed.
	Apply func(ctx context.Context, id ID, event Event) (Applied, error)
}

// Reserve implements [Store].
func (m *Methods) Reserve(ctx context.Context, r *Reservation) (Verdict, error) {
	applied, err := m.Apply(ctx, r.ID, Event{Kind: EventReserve, Reservation: r})
	return applied.Verdict(), err
}

// Extend implements [Store].
func (m *Methods) Extend(ctx context.Context, c Claim, lease time.Duration) error {
	return m.apply(ctx, c.ID, Event{Kind: EventExtend, Attempt: c.Attempt, Lease: lease})
}

// Checkpoint implements [Store].
func (m *Methods) Checkpoint(ctx context.Context, c Claim, p Checkpoint) error {
	return m.apply(ctx, c.ID, Event{Kind: EventCheckpoint, Attempt: c.Attempt, Checkpoint: p})
}

// Complete implements [Store].
func (m *Methods) Complete(ctx context.Context, c Claim, done *Completion) (time.Time, error) {
	return m.expires(ctx, c.ID, Event{Kind: EventComplete, Attempt: c.Attempt, Completion: done})
}

// Release implements [Store].
func (m *Methods) Release(ctx context.Context, c Claim, reason string) error {
	return m.apply(ctx, c.ID, Event{Kind: EventRelease, Attempt: c.Attempt, Reason: reason})
}

// Abandon implements [Store].
func (m *Methods) Abandon(ctx context.Context, c Claim, reason string) error {
	return m.apply(ctx, c.ID, Event{Kind: EventAbandon, Attempt: c.Attempt, Reason: reason})
}

// Reject implements [Store].
func (m *Methods) Reject(ctx context.Context, c Claim) error {
	return m.apply(ctx, c.ID, Event{Kind: EventReject, Attempt: c.Attempt})
}

// ResolveCompleted implements [Reconciler].
func (m *Methods) ResolveCompleted(ctx context.Context, c Claim, done *Completion) error {
	return m.apply(ctx, c.ID, Event{Kind: EventResolveCompleted, Attempt: c.Attempt, Completion: done})
}

// ResolveNotExecuted implements [Reconciler].
func (m *Methods) ResolveNotExecuted(ctx context.Context, c Claim, reason string) error {
	return m.apply(ctx, c.ID, Event{Kind: EventResolveNotExecuted, Attempt: c.Attempt, Reason: reason})
}

// ResolveStep implements [Reconciler].
func (m *Methods) ResolveStep(ctx context.Context, c Claim, p Checkpoint) error {
	return m.apply(ctx, c.ID, Event{Kind: EventResolveStep, Attempt: c.Attempt, Checkpoint: p})
}

// BeginReconcile implements [Reconciler].
func (m *Methods) BeginReconcile(ctx context.Context, c Claim, count int, wait time.Duration) error {
	return m.apply(ctx, c.ID, Event{Kind: EventBeginReconcile, Attempt: c.Attempt, Count: count, Lease: wait})
}

// Postpone implements [Reconciler].
func (m *Methods) Postpone(ctx context.Context, c Claim, p Postponement) error {
	return m.apply(ctx, c.ID, Event{
		Kind: EventPostpone, Attempt: c.Attempt, Count: p.Count, Lease: p.Wait, MaxAttempts: p.MaxAttempts,
		Reason: p.Reason, Untried: p.Untried,
	})
}

// Requeue implements [Reconciler].
func (m *Methods) Requeue(ctx context.Context, c Claim, reason string) error {
	return m.apply(ctx, c.ID, Event{Kind: EventRequeue, Attempt: c.Attempt, Reason: reason})
}

// Bust implements [Buster].
func (m *Methods) Bust(ctx context.Context, id ID, force bool) error {
	return m.apply(ctx, id, Event{Kind: EventBust, Force: force})
}

// Retain implements [Retainer].
func (m *Methods) Retain(ctx context.Context, id ID, d time.Duration) (time.Time, error) {
	return m.expires(ctx, id, Event{Kind: EventRetain, Lease: d})
}

// Rewrite implements [Rewriter].
func (m *Methods) Rewrite(ctx context.Context, c Claim, from, to Content) error {
	return m.apply(ctx, c.ID, Event{Kind: EventRewrite, Attempt: c.Attempt, From: from, To: to})
}

// apply applies an event and returns only the error.
func (m *Methods) apply(ctx context.Context, id ID, event Event) error {
	_, err := m.Apply(ctx, id, event)
	return err
}

// expires applies an event after which the record expires, and returns when.
func (m *Methods) expires(ctx context.Context, id ID, event Event) (time.Time, error) {
	applied, err := m.Apply(ctx, id, event)
	if err != nil {
		return time.Time{}, err
	}
	return applied.Record.ExpiresAt, nil
}
