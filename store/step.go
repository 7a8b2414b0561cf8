package store

import (
	"fmt"
	"time"
)

// EventKind is the kind of an event.
type EventKind uint8

// These are the events of the state machine.
const (
	// EventReserve requests the right to execute.
	EventReserve EventKind = iota + 1
	// EventExtend is the owner's heartbeat.
	EventExtend
	// EventCheckpoint is the owner's progress.
	EventCheckpoint
	// EventComplete is the owner's answer.
	EventComplete
	// EventRelease is the owner's statement that nothing was done.
	EventRelease
	// EventAbandon is the owner's statement that it does not know what was done.
	EventAbandon
	// EventReject is the owner's statement that nothing was done, and that no record of the request is to be kept.
	EventReject
	// EventSweep is the sweeper's check of a lease.
	EventSweep
	// EventReap is the reaper's check of an expiry.
	EventReap
	// EventResolveCompleted is an answer found from outside.
	EventResolveCompleted
	// EventResolveNotExecuted is the statement, from outside, that nothing was done.
	EventResolveNotExecuted
	// EventPostpone is a reconciliation that did not find the outcome.
	EventPostpone
	// EventBust is an operator's removal.
	EventBust
	// EventRequeue is an operator's request that reconciliation starts from the beginning, now.
	EventRequeue
	// EventBeginReconcile is one node's claim on the next attempt to reconcile.
	EventBeginReconcile
	// EventResolveStep is the outcome, found from outside, of one step of a phased operation, which then continues.
	EventResolveStep
	// EventRewrite replaces the bytes of a record's content, for example with the same content sealed with another key.
	EventRewrite
	// EventRetain is an operator's request that a settled record is kept for longer.
	EventRetain
	eventsEnd
)

var eventNames = [eventsEnd]string{
	"none", "reserve", "extend", "checkpoint", "complete", "release", "abandon", "reject", "sweep", "reap",
	"resolve completed", "resolve not executed", "postpone", "bust", "requeue", "begin reconcile", "resolve step",
	"rewrite", "retain",
}

// TakesToken reports whether the store must set [Event].Token: after the event no earlier attempt may write any more.
func (k EventKind) TakesToken() bool { return k == EventReserve || k == EventResolveStep }

// String returns the name of the event.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "invalid"
}

// Event is something that happens to a record. Which fields count depends on the kind.
type Event struct {
	// Kind is the kind of the event.
	Kind EventKind
	// Reservation is for EventReserve.
	Reservation *Reservation
	// Token is, for the kinds that take one, the smallest attempt token that the store may use now: larger than any
	// token of a record that it has removed.
	Token int64
	// Attempt is the owner's attempt, or the attempt that is resolved.
	Attempt int64
	// Lease is for EventExtend; for EventBeginReconcile and EventPostpone it is the wait before the next attempt to
	// reconcile, for EventRetain the least time for which the record is kept from now on.
	Lease time.Duration
	// Checkpoint is for EventCheckpoint and EventResolveStep.
	Checkpoint Checkpoint
	// Completion is for EventComplete and EventResolveCompleted.
	Completion *Completion
	// From and To are for EventRewrite: the expected and the new content of the record.
	From, To Content
	// Reason is kept as the record's last error or, for EventPostpone and EventRequeue, as its reconcile error.
	Reason string
	// Count is, for EventBeginReconcile and EventPostpone, the number of attempts to reconcile that the record must
	// have: if several nodes start the same attempt, only one succeeds.
	Count int
	// Untried makes EventPostpone cancel the attempt: its node was stopped before it sent the query.
	Untried bool
	// MaxAttempts is the number of attempts to reconcile after which EventPostpone makes a dead letter; zero for no
	// limit.
	MaxAttempts int
	// Soft makes EventReap keep the record as expired.
	Soft bool
	// Force lets EventBust remove a record that is not settled.
	Force bool
}

// Effect is the effect of an event on the stored record.
type Effect uint8

// These are the effects of an event.
const (
	// EffectNone leaves the record as it is.
	EffectNone Effect = iota
	// EffectWrite stores the record that Step returned.
	EffectWrite
	// EffectRemove removes the record. Its token must stay known: see [Event].Token.
	EffectRemove
)

// Transition is the result of an event.
type Transition struct {
	// Effect is the effect on the stored record.
	Effect Effect
	// Decision and Origin answer EventReserve.
	Decision Decision
	Origin   Origin
}

// ClockStep is the precision of the times in records.
const ClockStep = time.Microsecond

// unchanged is the transition of an event that finds nothing to do.
var unchanged = Transition{}

// written is the transition of an event that changes the record.
var written = Transition{Effect: EffectWrite}

// Step returns the record after an event at a moment of the store's clock. It is the state machine. It is pure, and
// every store follows it: a store reads the record and stores the result in one atomic step, or uses its own
// statements, which are tested to have the same effect. A record in [StateNone] stands for no record.
//
// For a refused write Step returns a [*FencedError], and for a record that cannot be read an [*UnreadableError];
// neither changes anything.
func Step(rec Record, ev Event, now time.Time) (Record, Transition, error) {
	now = now.Truncate(ClockStep)
	if rec.State != StateNone && (rec.Version == 0 || rec.Version > RecordVersion) {
		return rec, unchanged, &UnreadableError{
			Version: rec.Version,
			Reason:  "the version is not known to this program",
		}
	}
	switch ev.Kind {
	case EventReserve:
		return reserve(rec, &ev, now)
	case EventExtend, EventCheckpoint, EventComplete, EventRelease, EventAbandon, EventReject:
		return ownerWrites(rec, &ev, now)
	case EventSweep:
		return sweep(rec, now)
	case EventReap:
		return reap(rec, &ev, now)
	case EventResolveCompleted, EventResolveNotExecuted, EventResolveStep:
		return resolve(rec, &ev, now)
	case EventBeginReconcile, EventPostpone, EventRequeue:
		return reconcile(rec, &ev, now)
	case EventBust:
		return bust(rec, &ev, now)
	case EventRewrite:
		return rewrite(rec, &ev)
	case EventRetain:
		return retain(rec, &ev, now)
	default:
		return rec, unchanged, fmt.Errorf("%w: kind %d", ErrInvalidEvent, ev.Kind)
	}
}

// Check returns an error for a reservation that no store can grant, whatever its records.
func (r *Reservation) Check() error {
	if r == nil || len(r.Fingerprints) == 0 || r.Nonce == (Nonce{}) || r.Lease < ClockStep || r.Retention < ClockStep {
		return fmt.Errorf("%w: a reservation needs a fingerprint, a nonce, a lease and a retention", ErrInvalidEvent)
	}
	return nil
}

func reserve(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	r := ev.Reservation
	if err := r.Check(); err != nil {
		return rec, unchanged, err
	}
	if rec.State == StateNone || rec.expired(now) {
		return create(rec, ev, now)
	}
	same, err := rec.Fingerprint.Matches(r.Fingerprints)
	if err != nil {
		return rec, unchanged, err
	}
	if !same {
		return rec, Transition{Decision: DecisionMismatch}, nil
	}
	switch rec.State {
	case StateCompleted:
		return rec, Transition{Decision: DecisionReplay}, nil
	case StateUnknown:
		return rec, Transition{Decision: DecisionUnknown}, nil
	case StateRetryable:
		if r.ResumeOnly {
			return rec, Transition{Decision: DecisionRefused}, nil
		}
		return grant(rec, ev, now, OriginRetried)
	case StateInProgress:
		return reserveInProgress(rec, ev, now)
	default:
		return rec, unchanged, &UnreadableError{Version: rec.Version, Reason: "the state is not known to this program"}
	}
}

func reserveInProgress(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	switch {
	case !rec.leaseOver(now) && rec.Nonce == ev.Reservation.Nonce:
		return rec, Transition{Decision: DecisionExecute, Origin: OriginRepeated}, nil
	case !rec.leaseOver(now):
		return rec, Transition{Decision: DecisionInProgress}, nil
	case rec.OnLost == LostResume && ev.Reservation.OnLost == LostResume:
		return grant(rec, ev, now, OriginResumed)
	default:
		rec = lose(rec, now, leaseRanOut)
		return rec, Transition{Effect: EffectWrite, Decision: DecisionUnknown}, nil
	}
}

// create makes a record if there is none, or if the existing record has expired.
func create(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	r := ev.Reservation
	if r.NoCreate || r.ResumeOnly {
		return rec, Transition{Decision: DecisionRefused}, nil
	}
	origin := OriginCreated
	if rec.State != StateNone {
		origin = OriginRecreated
	}
	fresh := Record{
		ID: r.ID, Version: RecordVersion, Attempt: rec.Attempt,
		Operation: r.Operation, Fingerprint: r.Fingerprints[0], DownstreamSecret: r.DownstreamSecret,
		TraceID:   r.TraceID,
		CreatedAt: now,
	}
	return grant(fresh, ev, now, origin)
}

// grant gives the right to execute under a token that was never used for this ID.
func grant(rec Record, ev *Event, now time.Time, origin Origin) (Record, Transition, error) {
	r := ev.Reservation
	rec.Version = RecordVersion
	rec.State = StateInProgress
	rec.Attempt = max(rec.Attempt+1, ev.Token)
	rec.Nonce = r.Nonce
	rec.OnLost = r.OnLost
	rec.LeaseUntil = now.Add(r.Lease.Truncate(ClockStep))
	rec.Retention = max(rec.Retention, r.Retention.Truncate(ClockStep))
	rec.SettledAt, rec.ExpiresAt = time.Time{}, time.Time{}
	rec.fail("")
	rec.ReconcileCount, rec.ReconcileAt = 0, time.Time{}
	if origin != OriginResumed {
		// The mark is from an earlier attempt, which streamed an answer with a different outcome.
		rec.NotReplayable = false
	}
	return rec, Transition{Effect: EffectWrite, Decision: DecisionExecute, Origin: origin}, nil
}

func ownerWrites(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	if rec.State == StateNone || rec.Attempt != ev.Attempt {
		return rec, unchanged, fenced(&rec, ev)
	}
	switch {
	case ev.Kind == EventComplete:
		return complete(rec, ev, now)
	case ev.Kind == EventExtend && ev.Lease < ClockStep:
		return rec, unchanged, fmt.Errorf("%w: a lease of %s", ErrInvalidEvent, ev.Lease)
	case ev.Kind == EventReject && rec.MayHaveSent():
		return rec, unchanged, fenced(&rec, ev)
	case rec.State == StateInProgress, ev.Kind == EventReject && rec.State == StateRetryable:
		return progress(rec, ev, now), written, nil
	case ev.Kind == EventRelease && rec.State == StateRetryable, ev.Kind == EventAbandon && rec.State == StateUnknown,
		ev.Kind == EventReject && rec.rejected():
		// The reply to the first call was lost.
		return rec, unchanged, nil
	default:
		return rec, unchanged, fenced(&rec, ev)
	}
}

// progress applies a write other than an answer to a record that its owner holds or has released.
func progress(rec Record, ev *Event, now time.Time) Record {
	switch ev.Kind {
	case EventExtend:
		rec.LeaseUntil = now.Add(ev.Lease.Truncate(ClockStep))
	case EventCheckpoint:
		rec = reach(rec, &ev.Checkpoint)
	case EventRelease:
		if rec.Point == "" {
			rec.Data = nil // it belonged to this attempt only
		}
		rec.fail(ev.Reason)
		rec = settle(rec, StateRetryable, now)
	case EventAbandon:
		rec = lose(rec, now, ev.Reason)
	case EventReject:
		rec = tombstone(rec, now)
		rec.SettledAt, rec.LastError = now, rejectedError
	}
	return rec
}

// reach advances a record to a checkpoint. Empty fields of the checkpoint leave the record's values.
func reach(rec Record, p *Checkpoint) Record {
	if p.Point != "" {
		rec.Point = p.Point
	}
	if p.Data != nil {
		rec.Data = p.Data
	}
	rec.NotReplayable = rec.NotReplayable || p.NotReplayable
	if p.ProviderID != "" {
		rec.ProviderID = p.ProviderID
	}
	return rec
}

// complete stores the owner's answer. It also accepts the answer of a late owner whose record is already unknown,
// because that owner knows the answer. It does not change a record that was settled otherwise.
func complete(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	if err := ev.Completion.check(); err != nil {
		return rec, unchanged, err
	}
	switch rec.State {
	case StateInProgress, StateUnknown:
		return answer(rec, ev.Completion, now), written, nil
	case StateCompleted:
		if rec.Response.Equal(&ev.Completion.Response) {
			return rec, unchanged, nil
		}
	}
	return rec, unchanged, fenced(&rec, ev)
}

// check refuses an answer that could not be decoded.
func (c *Completion) check() error {
	switch {
	case c == nil:
		return fmt.Errorf("%w: a completion needs an answer", ErrInvalidEvent)
	case c.Response.Status < minStatus || c.Response.Status > maxStatus:
		return fmt.Errorf("%w: an answer with status %d", ErrInvalidEvent, c.Response.Status)
	default:
		return nil
	}
}

func answer(rec Record, done *Completion, now time.Time) Record {
	rec.Response = done.Response
	rec.Retention = max(rec.Retention, done.Retention.Truncate(ClockStep))
	if done.ProviderID != "" {
		rec.ProviderID = done.ProviderID
	}
	rec.fail("")
	return settle(rec, StateCompleted, now)
}

// settle moves a record into a settled state. Its retention counts from now.
func settle(rec Record, to State, now time.Time) Record {
	if rec.State == StateUnknown {
		rec.ReconcileError = ""
	}
	rec.State = to
	rec.Nonce = Nonce{}
	rec.SettledAt = now
	rec.ExpiresAt = now.Add(rec.Retention)
	rec.LeaseUntil, rec.ReconcileAt = time.Time{}, time.Time{}
	rec.DeadLetter = false
	return rec
}

// leaseRanOut is the last error of a record whose owner was lost.
const leaseRanOut = "lease ran out"

// lose makes a record unknown, and due for reconciliation immediately.
func lose(rec Record, now time.Time, reason string) Record {
	rec.State = StateUnknown
	rec.Nonce = Nonce{}
	rec.fail(reason)
	rec.LeaseUntil = time.Time{}
	rec.SettledAt = now
	rec.ReconcileAt = now
	rec.DeadLetter = false
	return rec
}

func sweep(rec Record, now time.Time) (Record, Transition, error) {
	if !rec.leaseOver(now) || rec.OnLost == LostResume {
		return rec, unchanged, nil
	}
	return lose(rec, now, leaseRanOut), written, nil
}

func reap(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	over := !now.Before(rec.ExpiresAt)
	switch {
	case rec.State == StateExpired && over, rec.State.Settled() && over && !ev.Soft:
		return rec, Transition{Effect: EffectRemove}, nil
	case rec.State.Settled() && over:
		return tombstone(rec, now), written, nil
	default:
		return rec, unchanged, nil
	}
}

// tombstone keeps only what prevents a record's token from being used again.
func tombstone(rec Record, now time.Time) Record {
	return Record{
		ID: rec.ID, Version: RecordVersion, State: StateExpired, Operation: rec.Operation, Fingerprint: rec.Fingerprint,
		Attempt: rec.Attempt, Retention: rec.Retention, CreatedAt: rec.CreatedAt, SettledAt: rec.SettledAt,
		ExpiresAt: now.Add(rec.Retention),
	}
}

// resolve settles from outside a record that its owner did not settle: an unknown record, or a phased operation whose
// owner was lost. In the second case a person ends an operation that no running code can continue.
func resolve(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	lost := rec.OnLost == LostResume && rec.leaseOver(now)
	if rec.Attempt != ev.Attempt || rec.State != StateUnknown && !lost {
		return repeatResolve(rec, ev)
	}
	switch ev.Kind {
	case EventResolveCompleted:
		if err := ev.Completion.check(); err != nil {
			return rec, unchanged, err
		}
		return answer(rec, ev.Completion, now), written, nil
	case EventResolveNotExecuted:
		// Nothing was executed, or everything was undone: a retry starts at the beginning.
		rec.Point, rec.Data = "", nil
		rec.fail(ev.Reason)
		rec = settle(rec, StateRetryable, now)
		rec.ReconcileError = resolvedError
		return rec, written, nil
	default:
		return resolveStep(rec, ev, now)
	}
}

// resolveStep lets a phased operation continue with the outcome of one of its steps: it is in progress without an
// owner, and due immediately for the next attempt. Its token is new, so that no earlier attempt overwrites the outcome.
func resolveStep(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	if ev.Checkpoint.Point == "" {
		return rec, unchanged, fmt.Errorf(
			"%w: a step is resolved by the recovery point at which the operation continues", ErrInvalidEvent)
	}
	if rec.OnLost != LostResume {
		return rec, unchanged, fenced(&rec, ev)
	}
	rec = reach(rec, &ev.Checkpoint)
	rec.State = StateInProgress
	rec.Attempt = max(rec.Attempt+1, ev.Token)
	rec.Nonce = Nonce{}
	rec.LeaseUntil = now
	rec.SettledAt, rec.ReconcileAt = time.Time{}, time.Time{}
	rec.fail("")
	rec.ReconcileError = ""
	rec.ReconcileCount, rec.DeadLetter = 0, false
	return rec, written, nil
}

// repeatResolve accepts the repetition of a resolution whose reply was lost, and refuses any other resolution of a
// record that cannot be resolved.
func repeatResolve(rec Record, ev *Event) (Record, Transition, error) {
	same := rec.Attempt == ev.Attempt
	switch {
	case ev.Kind == EventResolveCompleted && same && rec.State == StateCompleted &&
		ev.Completion != nil && rec.Response.Equal(&ev.Completion.Response),
		ev.Kind == EventResolveNotExecuted && same && rec.State == StateRetryable,
		ev.Kind == EventResolveStep && rec.Attempt > ev.Attempt && rec.ownerless() && rec.at(&ev.Checkpoint):
		return rec, unchanged, nil
	}
	return rec, unchanged, fenced(&rec, ev)
}

// reconcile updates the bookkeeping of an unknown record: the number of attempts to reconcile, when the next attempt is
// due, and the error of the last attempt.
func reconcile(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	counted := ev.Kind == EventRequeue || rec.ReconcileCount == ev.Count
	if rec.State != StateUnknown || rec.Attempt != ev.Attempt || !counted {
		return rec, unchanged, fenced(&rec, ev)
	}
	wait := max(ev.Lease, 0).Truncate(ClockStep)
	switch ev.Kind {
	case EventBeginReconcile:
		rec.ReconcileCount++
		rec.ReconcileAt = now.Add(wait)
	case EventPostpone:
		rec.ReconcileAt = now.Add(wait)
		if ev.Untried {
			rec.ReconcileCount = max(rec.ReconcileCount-1, 0)
			break
		}
		rec.ReconcileError = ev.Reason
		rec.DeadLetter = rec.DeadLetter || ev.MaxAttempts > 0 && rec.ReconcileCount >= ev.MaxAttempts
	case EventRequeue:
		rec.ReconcileError = ev.Reason
		rec.ReconcileCount, rec.ReconcileAt, rec.DeadLetter = 0, now, false
	}
	return rec, written, nil
}

func bust(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	switch {
	case rec.State == StateNone:
		return rec, unchanged, ErrNotFound
	case rec.State.Settled(), rec.State == StateExpired:
		return rec, Transition{Effect: EffectRemove}, nil
	case ev.Force:
		return tombstone(rec, now), written, nil
	default:
		return rec, unchanged, fenced(&rec, ev)
	}
}

// maxRetain is the longest time for which an operator can keep a record.
const maxRetain = 50 * 365 * 24 * time.Hour

// retain lets a settled record expire later, never sooner. Its retention grows with its expiry, by whole seconds, so
// that the expiry remains the time of the settlement plus the retention: stores may keep only two of these three
// values.
func retain(rec Record, ev *Event, now time.Time) (Record, Transition, error) {
	switch {
	case ev.Lease < ClockStep || ev.Lease > maxRetain:
		return rec, unchanged, fmt.Errorf("%w: a record is kept for a time up to %s from now, not for %s",
			ErrInvalidEvent, maxRetain, ev.Lease)
	case rec.State == StateNone || rec.expired(now):
		return rec, unchanged, ErrNotFound
	case !rec.State.Settled():
		return rec, unchanged, fenced(&rec, ev)
	}
	until := now.Add(ev.Lease)
	if !until.After(rec.ExpiresAt) {
		return rec, unchanged, nil
	}
	retention := (rec.Retention + until.Sub(rec.ExpiresAt) + time.Second - 1).Truncate(time.Second)
	rec.ExpiresAt = rec.ExpiresAt.Add(retention - rec.Retention)
	rec.Retention = retention
	return rec, written, nil
}

// rewrite replaces the content of a record whose content is still the expected one, and changes nothing else. It
// compares the content instead of the state, because a change of state does not matter if the content is the same.
func rewrite(rec Record, ev *Event) (Record, Transition, error) {
	if ev.From.Response.Status != ev.To.Response.Status || (len(ev.From.Data) == 0) != (len(ev.To.Data) == 0) {
		return rec, unchanged, fmt.Errorf("%w: a rewrite that changes what the record means", ErrInvalidEvent)
	}
	held := rec.Content()
	switch {
	case rec.State == StateNone || rec.Attempt != ev.Attempt:
		return rec, unchanged, fenced(&rec, ev)
	case held.Equal(&ev.To):
		return rec, unchanged, nil
	case !held.Equal(&ev.From):
		return rec, unchanged, fenced(&rec, ev)
	}
	rec.Response, rec.Data = ev.To.Response, ev.To.Data
	return rec, written, nil
}

// fenced returns the error of a refused write, with the stored answer if there is one.
func fenced(rec *Record, ev *Event) error {
	e := &FencedError{Op: ev.Kind.String(), Attempt: ev.Attempt, Current: rec.Attempt, State: rec.State}
	if rec.State == StateCompleted {
		response := rec.Response
		e.Response, e.ExpiresAt, e.Fingerprint = &response, rec.ExpiresAt, rec.Fingerprint
	}
	return e
}
