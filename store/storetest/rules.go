package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// This file states section 4 of the specification a second time, and does not call [store.Step]: otherwise a store that
// has the same error as Step would agree with the model in all tests.

// change is the effect of one event on one record, between two moments of the store's clock.
type change struct {
	before, after store.Record
	event         store.Event
	got           reply
	from, to      time.Time
}

// edge is a row of the table of section 4.
type edge struct {
	from store.State
	kind store.EventKind
	to   store.State
}

// edges are the steps from one state to another, or within one state, that the table allows. Their further conditions
// are in the rules.
var edges = []edge{
	{store.StateNone, store.EventReserve, store.StateInProgress},
	{store.StateExpired, store.EventReserve, store.StateInProgress},
	{store.StateCompleted, store.EventReserve, store.StateInProgress}, // past its expiry
	{store.StateRetryable, store.EventReserve, store.StateInProgress},
	{store.StateInProgress, store.EventReserve, store.StateInProgress},
	{store.StateInProgress, store.EventReserve, store.StateUnknown},
	{store.StateInProgress, store.EventExtend, store.StateInProgress},
	{store.StateInProgress, store.EventCheckpoint, store.StateInProgress},
	{store.StateInProgress, store.EventComplete, store.StateCompleted},
	{store.StateUnknown, store.EventComplete, store.StateCompleted},
	{store.StateInProgress, store.EventRelease, store.StateRetryable},
	{store.StateInProgress, store.EventAbandon, store.StateUnknown},
	{store.StateInProgress, store.EventReject, store.StateExpired},
	{store.StateRetryable, store.EventReject, store.StateExpired},
	{store.StateInProgress, store.EventSweep, store.StateUnknown},
	{store.StateCompleted, store.EventReap, store.StateNone},
	{store.StateRetryable, store.EventReap, store.StateNone},
	{store.StateExpired, store.EventReap, store.StateNone},
	{store.StateCompleted, store.EventReap, store.StateExpired},
	{store.StateRetryable, store.EventReap, store.StateExpired},
	{store.StateUnknown, store.EventResolveCompleted, store.StateCompleted},
	{store.StateUnknown, store.EventResolveNotExecuted, store.StateRetryable},
	{store.StateUnknown, store.EventResolveStep, store.StateInProgress},
	{store.StateInProgress, store.EventResolveCompleted, store.StateCompleted}, // resumable, and its owner is lost
	{store.StateInProgress, store.EventResolveNotExecuted, store.StateRetryable},
	{store.StateInProgress, store.EventResolveStep, store.StateInProgress},
	{store.StateUnknown, store.EventBeginReconcile, store.StateUnknown},
	{store.StateUnknown, store.EventPostpone, store.StateUnknown},
	{store.StateUnknown, store.EventRequeue, store.StateUnknown},
	{store.StateCompleted, store.EventBust, store.StateNone},
	{store.StateRetryable, store.EventBust, store.StateNone},
	{store.StateExpired, store.EventBust, store.StateNone},
	{store.StateInProgress, store.EventBust, store.StateExpired},
	{store.StateUnknown, store.EventBust, store.StateExpired},
	{store.StateCompleted, store.EventRetain, store.StateCompleted},
	{store.StateRetryable, store.EventRetain, store.StateRetryable},
	{store.StateCompleted, store.EventRewrite, store.StateCompleted},
	{store.StateUnknown, store.EventRewrite, store.StateUnknown},
	{store.StateRetryable, store.EventRewrite, store.StateRetryable},
	{store.StateInProgress, store.EventRewrite, store.StateInProgress},
}

// obeys checks a change against the rules.
func (c *change) obeys() error {
	changed := diffRecords(c.after, c.before, 0) != ""
	if changed && !slices.Contains(edges, edge{c.before.State, c.event.Kind, c.after.State}) {
		return fmt.Errorf("section 4: %s brought a record from %s to %s", c.event.Kind, c.before.State, c.after.State)
	}
	if changed {
		for _, rule := range []func() error{c.owned, c.timely, c.tokens, c.kept, c.expiry, c.leases, c.reconciled} {
			if err := rule(); err != nil {
				return err
			}
		}
	}
	if err := c.refused(); err != nil {
		return err
	}
	return c.decided(changed)
}

// refused checks the reason of a refusal: the owner of a record in progress is not refused, nor is its late answer.
func (c *change) refused() error {
	b, kind := &c.before, c.event.Kind
	if !errors.Is(c.got.err, store.ErrFenced) || c.event.Attempt != b.Attempt {
		return nil
	}
	owns := kind == store.EventExtend || kind == store.EventCheckpoint || kind == store.EventComplete ||
		kind == store.EventRelease || kind == store.EventAbandon
	if owns && b.State == store.StateInProgress || kind == store.EventComplete && b.State == store.StateUnknown ||
		(kind == store.EventResolveCompleted || kind == store.EventResolveNotExecuted) && b.State == store.StateUnknown {
		return fmt.Errorf("S6: %s by the current attempt was refused: %w", kind, c.got.err)
	}
	return nil
}

// early reports whether a moment had certainly not come when the event happened. The zero time never comes.
func (c *change) early(at time.Time) bool { return at.IsZero() || c.to.Before(at) }

// made reports whether the event made a record where there was none that counts.
func (c *change) made() bool {
	return c.event.Kind == store.EventReserve &&
		(c.got.verdict.Origin == store.OriginCreated || c.got.verdict.Origin == store.OriginRecreated)
}

// granted reports whether the event gave the right to execute to a new attempt.
func (c *change) granted() bool {
	return c.event.Kind == store.EventReserve && c.after.State == store.StateInProgress
}

// owned checks S6: a write must name the record's attempt.
func (c *change) owned() error {
	switch c.event.Kind {
	case store.EventReserve, store.EventSweep, store.EventReap, store.EventBust, store.EventRetain:
		return nil
	}
	if c.event.Attempt != c.before.Attempt {
		return fmt.Errorf("S6: %s by attempt %d changed a record of attempt %d", c.event.Kind, c.event.Attempt,
			c.before.Attempt)
	}
	return nil
}

// timely checks S2 and the rows of the table for leases: time frees only settled records, and ends only records in
// progress.
func (c *change) timely() error {
	rec, kind := &c.before, c.event.Kind
	outside := kind == store.EventResolveCompleted || kind == store.EventResolveNotExecuted || kind == store.EventResolveStep
	switch {
	case rec.State == store.StateInProgress && (kind == store.EventReserve || kind == store.EventSweep || outside):
		if c.early(rec.LeaseUntil) {
			return fmt.Errorf("S5: %s took a record from its owner, whose lease lasts until %s", kind, rec.LeaseUntil)
		}
		if kind == store.EventSweep && rec.OnLost == store.LostResume || outside && rec.OnLost != store.LostResume ||
			c.granted() && (rec.OnLost != store.LostResume || c.event.Reservation.OnLost != store.LostResume) {
			return fmt.Errorf("section 4: %s of a record in progress with policy %d", kind, rec.OnLost)
		}
	case (kind == store.EventReap || c.made()) && rec.State.Settled(), kind == store.EventReap:
		if c.early(rec.ExpiresAt) {
			return fmt.Errorf("S2: %s removed a record that expires at %s", kind, rec.ExpiresAt)
		}
	case kind == store.EventBust && !rec.State.Settled() && rec.State != store.StateExpired && !c.event.Force:
		return fmt.Errorf("section 4: bust without force of a record that was %s", rec.State)
	case kind == store.EventReject && (rec.Point != "" || len(rec.Data) > 0 || rec.ProviderID != ""):
		return fmt.Errorf("E5: a reject of a record that had come to %q", rec.Point)
	}
	return nil
}

// tokens checks S7: a new attempt has a larger token, and nothing else changes it.
func (c *change) tokens() error {
	switch {
	case c.granted() || c.event.Kind == store.EventResolveStep:
		if c.after.Attempt <= c.before.Attempt {
			return fmt.Errorf("S7: attempt %d was granted after attempt %d", c.after.Attempt, c.before.Attempt)
		}
	case c.after.State != store.StateNone && c.after.Attempt != c.before.Attempt:
		return fmt.Errorf("S7: %s changed the attempt from %d to %d", c.event.Kind, c.before.Attempt, c.after.Attempt)
	}
	return nil
}

// kept checks the parts that an event must not change: what the record was made with, a stored answer, and the recovery
// point.
func (c *change) kept() error {
	b, a, kind := &c.before, &c.after, c.event.Kind
	if c.made() || a.State == store.StateNone || a.State == store.StateExpired {
		return nil
	}
	if b.Operation != a.Operation || b.Fingerprint != a.Fingerprint || !b.CreatedAt.Equal(a.CreatedAt) ||
		b.TraceID != a.TraceID || b.DownstreamSecret != a.DownstreamSecret {
		return fmt.Errorf("section 4: %s changed what the record was made with", kind)
	}
	if b.State == store.StateCompleted && kind != store.EventRewrite && !b.Response.Equal(&a.Response) {
		return fmt.Errorf("S6: %s changed a stored answer", kind)
	}
	if done := c.event.Completion; a.State == store.StateCompleted && b.State != a.State &&
		!a.Response.Equal(&done.Response) {
		return fmt.Errorf("S6: %s stored another answer than its own", kind)
	}
	switch kind {
	case store.EventCheckpoint, store.EventResolveStep, store.EventResolveNotExecuted, store.EventRewrite:
		return nil
	case store.EventRelease:
		if b.Point == "" {
			return nil // the data belonged to this attempt alone
		}
	}
	if b.Point != a.Point || !bytes.Equal(b.Data, a.Data) {
		return fmt.Errorf("E3: %s brought the record from point %q to %q", kind, b.Point, a.Point)
	}
	return nil
}

// expiry checks the other half of S2: a record expires at its settlement plus the longest requested retention.
func (c *change) expiry() error {
	asked := c.before.Retention
	switch {
	case c.made():
		asked = c.event.Reservation.Retention.Truncate(store.ClockStep)
	case c.granted():
		asked = max(asked, c.event.Reservation.Retention.Truncate(store.ClockStep))
	case c.event.Completion != nil:
		asked = max(asked, c.event.Completion.Retention.Truncate(store.ClockStep))
	case c.event.Kind == store.EventRetain:
		if until := c.from.Add(c.event.Lease); c.after.ExpiresAt.Before(until) || c.after.ExpiresAt.Before(c.before.ExpiresAt) {
			return fmt.Errorf("S2: a record that was to be kept until %s expires at %s", until, c.after.ExpiresAt)
		}
		asked = c.after.Retention
	}
	if c.after.State != store.StateNone && c.after.Retention != asked {
		return fmt.Errorf("S2: after %s the retention is %s, and %s was asked for", c.event.Kind, c.after.Retention, asked)
	}
	if !c.after.State.Settled() {
		return nil
	}
	if settled := c.after.SettledAt; !c.before.State.Settled() && (settled.Before(c.from) || settled.After(c.to)) {
		return fmt.Errorf("S2: a record that was settled between %s and %s says %s", c.from, c.to, settled)
	}
	if want := c.after.SettledAt.Add(asked); !c.after.ExpiresAt.Equal(want) {
		return fmt.Errorf("S2: a record that was settled at %s expires at %s, want %s", c.after.SettledAt,
			c.after.ExpiresAt, want)
	}
	return nil
}

// leases checks S5: only a grant and a heartbeat set the end of a lease, to the duration that they request.
func (c *change) leases() error {
	lasts, set := c.event.Lease, c.event.Kind == store.EventExtend
	if c.granted() {
		lasts, set = c.event.Reservation.Lease, true
	}
	if c.event.Kind == store.EventResolveStep {
		lasts, set = 0, true // it is due at once
	}
	lasts = lasts.Truncate(store.ClockStep)
	until := c.after.LeaseUntil
	switch {
	case c.after.State != store.StateInProgress:
		return nil
	case set && (until.Before(c.from.Add(lasts)) || until.After(c.to.Add(lasts))):
		return fmt.Errorf("S5: a lease of %s from %s lasts until %s", lasts, c.from, until)
	case !set && !until.Equal(c.before.LeaseUntil):
		return fmt.Errorf("S5: %s moved the end of the lease from %s to %s", c.event.Kind, c.before.LeaseUntil, until)
	}
	return nil
}

// reconciled checks the reconciliation attempts: an attempt is counted when it begins, only the limit makes a dead
// letter, and a record that becomes unknown is due at once.
func (c *change) reconciled() error {
	b, a := &c.before, &c.after
	if a.State != store.StateUnknown {
		return nil
	}
	if b.State != store.StateUnknown {
		if a.ReconcileAt.Before(c.from) || a.ReconcileAt.After(c.to) || a.DeadLetter {
			return fmt.Errorf("section 4: a record that became unknown is due at %s", a.ReconcileAt)
		}
		return nil
	}
	count := b.ReconcileCount
	dead := b.DeadLetter
	switch kind := c.event.Kind; {
	case kind == store.EventRequeue:
		count, dead = 0, false
	case kind != store.EventRewrite && c.event.Count != b.ReconcileCount:
		return fmt.Errorf("section 4: %s at count %d of a record at count %d", kind, c.event.Count, b.ReconcileCount)
	case kind == store.EventBeginReconcile:
		count++
	case kind == store.EventPostpone && c.event.Untried:
		count = max(count-1, 0)
	case kind == store.EventPostpone:
		dead = dead || c.event.MaxAttempts > 0 && count >= c.event.MaxAttempts
	}
	if a.ReconcileCount != count || a.DeadLetter != dead {
		return fmt.Errorf("section 4: after %s the record was tried %d times, dead letter %t, want %d, %t", c.event.Kind,
			a.ReconcileCount, a.DeadLetter, count, dead)
	}
	return nil
}

// decided checks the decision for a reservation against the record that it found: S1, S4 and S9.
func (c *change) decided(changed bool) error {
	if c.event.Kind != store.EventReserve || c.got.err != nil {
		return nil
	}
	b, r := &c.before, c.event.Reservation
	counts := b.State != store.StateNone && b.State != store.StateExpired && !(b.State.Settled() && !c.from.Before(b.ExpiresAt))
	fresh := counts && !(b.State.Settled() && !c.early(b.ExpiresAt)) // also at the end of the call
	same := slices.ContainsFunc(r.Fingerprints, func(f store.Fingerprint) bool {
		return f.Secret == b.Fingerprint.Secret && f.Rules == b.Fingerprint.Rules && f.Sum == b.Fingerprint.Sum &&
			(b.Fingerprint.Session == [16]byte{} || b.Fingerprint.Session == f.Session)
	})
	decision := c.got.verdict.Decision
	wrong := false
	switch decision {
	case store.DecisionMismatch:
		wrong = changed || same || !counts
	case store.DecisionReplay:
		wrong = changed || !same || b.State != store.StateCompleted || !counts
	case store.DecisionUnknown:
		wrong = !same || b.State != store.StateUnknown && c.after.State != store.StateUnknown
	case store.DecisionInProgress:
		wrong = changed || !same || b.State != store.StateInProgress || b.Nonce == r.Nonce
	case store.DecisionRefused:
		wrong = changed || !r.NoCreate && !r.ResumeOnly || r.NoCreate && !r.ResumeOnly && fresh
	case store.DecisionExecute:
		repeated := !changed && b.State == store.StateInProgress && b.Nonce == r.Nonce && same
		wrong = !repeated && (!changed || c.after.Nonce != r.Nonce || fresh && !same ||
			c.made() && (r.NoCreate || r.ResumeOnly))
	default:
		wrong = true
	}
	if wrong {
		return fmt.Errorf("S1: a reservation of what was %s got %s, and the record is %s", describe(c.before), decision,
			describe(c.after))
	}
	return nil
}
