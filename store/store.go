// Package store is the contract between the guard and the stores, for authors of stores. Users of the middleware need
// only its error values, and [SQLHandle] in their repositories.
//
// A store keeps one [Record] for each [ID], and implements [Store]: eight methods, each one atomic step. A step is
// defined by [Step], a pure function from a record, an [Event] and the store's clock to the next record. [Methods] has
// all of these methods but Get, and more, over one function that applies an event. The simplest such function reads the
// record, calls Step and writes the result, all inside one transaction or lock:
//
//	rec, err := load(tx, id)                   // a Record in StateNone if there is none
//	after, transition, err := store.Step(rec, event, now)
//	switch transition.Effect {
//	case store.EffectWrite:                    // keep after
//	case store.EffectRemove:                   // remove the record, and never use its token again
//	}
//
// [ID.AppendBinary] and [Record.AppendBinary] encode IDs and records for stores that keep keys and values. Capabilities
// of only some stores are optional interfaces, which are found by [As]. Package storetest tests an implementation.
package store

import (
	"context"
	"database/sql"
	"time"
)

// Store keeps records. Each method is one atomic step that follows [Step]; the store decides, the guard obeys. If the
// store itself fails, a method returns an error that wraps [ErrUnavailable]; a refused write returns a [*FencedError];
// a record that cannot be read gives an [*UnreadableError].
//
// Capabilities of only some stores are optional interfaces: [Transactor], [TxCheckpointer], [Waiter], [Sweeper],
// [Reaper], [SelfReaper], [Reconciler], [Buster], [Lister], [LateCompletionKeeper], [ExternalEventKeeper], [Auditor],
// [AuditLister], [ExecutionAuditor], [Rewriter], [Finder], [Retainer].
type Store interface {
	// Reserve decides what a request may do. It is the only way to take a record, and never a look-up followed by an
	// insert. A repeated call with the same nonce returns the same grant. A store may still read the reservation after
	// a call that was given up: the caller must not change it.
	Reserve(ctx context.Context, r *Reservation) (Verdict, error)
	// Extend is the heartbeat of the owner: it makes the lease last for the given time from now.
	Extend(ctx context.Context, c Claim, lease time.Duration) error
	// Checkpoint records how far the owner has come. As with Complete, the store may keep the data.
	Checkpoint(ctx context.Context, c Claim, p Checkpoint) error
	// Complete stores the answer and returns when it expires. The store may keep the slices of the completion: the
	// caller must not change them afterwards.
	Complete(ctx context.Context, c Claim, done *Completion) (expires time.Time, err error)
	// Release records that nothing was done: a retry may execute.
	Release(ctx context.Context, c Claim, reason string) error
	// Abandon records that it is not known what was done.
	Abandon(ctx context.Context, c Claim, reason string) error
	// Reject records that nothing was done, and removes the request as if it had never been sent: the next reservation
	// executes, whatever its fingerprint. A record that the same attempt released can still be rejected; a record that
	// may have sent something cannot: see [Record.MayHaveSent].
	Reject(ctx context.Context, c Claim) error
	// Get returns a record for reading, or [ErrNotFound]. Records past their expiry are returned until they are reaped.
	// The slices of a record, here as in a verdict, may be shared: the caller must not change them. If only the content
	// is unreadable, Get may return [ErrUnreadable] together with the record, with its ID and without content.
	Get(ctx context.Context, id ID) (Record, error)
}

// Reservation is a request for the right to execute.
type Reservation struct {
	ID
	// Operation is the method and route pattern, for people who read the record.
	Operation string
	// Fingerprints holds the request's fingerprint under the current secret first, then under each older secret with
	// which a stored record may have been made.
	Fingerprints []Fingerprint
	// OnLost is the route's policy on a lost owner.
	OnLost LostPolicy
	// Nonce makes the call repeatable.
	Nonce Nonce
	// Lease is how long the right to execute lasts without a heartbeat.
	Lease time.Duration
	// Retention is how long the settled record is kept.
	Retention time.Duration
	// NoCreate refuses a key that has no record; everything else is decided as usual.
	NoCreate bool
	// ResumeOnly takes over an operation whose owner was lost, and refuses a key that has no record or may be retried:
	// it is for callers other than the client, because only the client may start an operation that was not executed.
	ResumeOnly bool
	// DownstreamSecret is kept with a new record: see [Record].DownstreamSecret.
	DownstreamSecret uint32
	// Isolation is the level of the transaction that a [Transactor] runs. Default: the default of the pool or the
	// database.
	Isolation sql.IsolationLevel
	// TraceID is kept with a new record. A trace, or a trace and a span, in 32 or 48 lower-case hexadecimal digits
	// takes the least space.
	TraceID string
}

// Decision is the answer to a reservation.
type Decision uint8

// These are the decisions of a store. Their numbers are stored and never change.
const (
	// DecisionExecute grants the right to execute.
	DecisionExecute Decision = iota + 1
	// DecisionReplay returns the stored answer.
	DecisionReplay
	// DecisionInProgress means that another attempt holds the right to execute.
	DecisionInProgress
	// DecisionMismatch means that the key belongs to a different request.
	DecisionMismatch
	// DecisionUnknown means that the outcome of an earlier attempt is not known.
	DecisionUnknown
	// DecisionRefused means that there is no record and the reservation may not create one, or that there is none to
	// resume.
	DecisionRefused
)

var decisionNames = [...]string{"none", "execute", "replay", "in_progress", "mismatch", "unknown", "refused"}

// String returns the name of the decision as metrics show it.
func (d Decision) String() string {
	if int(d) < len(decisionNames) {
		return decisionNames[d]
	}
	return "invalid"
}

// Origin is where a granted right to execute came from.
type Origin uint8

// These are the origins of a grant. Their numbers are stored and never change.
const (
	// OriginCreated means a new record.
	OriginCreated Origin = iota + 1
	// OriginRetried means a record that was released before.
	OriginRetried
	// OriginResumed means a record whose owner was lost and whose policy is [LostResume].
	OriginResumed
	// OriginRecreated means a record that had expired.
	OriginRecreated
	// OriginRepeated means a grant that was made before and is returned again, because the reply to the first call was
	// lost.
	OriginRepeated
)

var originNames = [...]string{"none", "created", "retried", "resumed", "recreated", "repeated"}

// String returns the name of the origin as metrics show it.
func (o Origin) String() string {
	if int(o) < len(originNames) {
		return originNames[o]
	}
	return "invalid"
}

// Verdict is a store's answer to a reservation.
type Verdict struct {
	// Decision is what the request may do.
	Decision Decision
	// Origin is the origin of the grant if Decision is [DecisionExecute].
	Origin Origin
	// Record is the record after the decision. In transactional mode it is empty if nothing is visible yet.
	Record Record
	// Now is the store's clock at the decision. An owner computes the rest of its lease from it: a repeated grant keeps
	// its lease.
	Now time.Time
}

// Lost reports whether this reservation discovered that an owner was lost, and made the outcome unknown. Later
// reservations find the record in the unknown state.
func (v *Verdict) Lost() bool {
	rec := &v.Record
	return rec.State == StateUnknown && rec.LastError == leaseRanOut && rec.SettledAt.Equal(v.Now.Truncate(ClockStep))
}

// Check returns an [*UnreadableError] for an answer that cannot be right for a reservation: using the record of another
// request would be worse than an error.
func (v *Verdict) Check(r *Reservation) error {
	rec := &v.Record
	ok := rec.ID == r.ID || rec.State == StateNone && rec.ID == ID{}
	switch v.Decision {
	case DecisionExecute:
		held := !v.Now.IsZero() && v.Now.Before(rec.LeaseUntil)
		ok = ok && rec.State == StateInProgress && rec.Nonce == r.Nonce && rec.Attempt != 0 && held
	case DecisionReplay:
		same, err := rec.Fingerprint.Matches(r.Fingerprints)
		known := rec.Version != 0 && rec.Version <= RecordVersion
		ok = ok && rec.State == StateCompleted && known && same && err == nil && rec.Response.Status >= minStatus
	case DecisionInProgress, DecisionMismatch, DecisionUnknown, DecisionRefused:
	default:
		ok = false
	}
	switch {
	case !ok:
		return &UnreadableError{
			Version: rec.Version,
			Reason:  "the store answered with a record or a decision that cannot belong to this request",
		}
	case v.Decision == DecisionReplay && rec.Response.IsSealed(), v.Decision == DecisionExecute && IsSealed(rec.Data):
		return ErrSealed
	}
	return nil
}

// Claim identifies an owner in each write.
type Claim struct {
	ID
	// Attempt is the token of the attempt, from the verdict of Reserve.
	Attempt int64
}

// Checkpoint is the progress of an operation.
type Checkpoint struct {
	// Point is the name of the recovery point; empty keeps the last one.
	Point string
	// Data is passed to the next attempt; nil keeps the earlier data.
	Data []byte
	// NotReplayable marks that the answer is being sent without being stored.
	NotReplayable bool
	// ProviderID is the id that the provider gave to the effect; empty keeps the earlier id.
	ProviderID string
}

// Completion is the final answer of an operation.
type Completion struct {
	// Response is the answer itself. Its status is from 200 to 999.
	Response Response
	// Retention replaces the retention of the reservation if it is longer.
	Retention time.Duration
	// ProviderID is the id that the provider gave to the effect.
	ProviderID string
}

// Waiter is a store that can wait for a change of a record, so that callers need not poll.
type Waiter interface {
	// Wait returns nil once the record may no longer be in progress at that attempt, or the context's error. An attempt
	// of zero stands for a transaction in flight.
	Wait(ctx context.Context, id ID, attempt int64) error
}

// Sweeper is a store that finds leases that ran out.
type Sweeper interface {
	// Sweep makes at most limit records unknown whose lease ran out and whose policy is [LostReconcile], and returns
	// the number of these records.
	Sweep(ctx context.Context, limit int) (swept int, err error)
}

// Reaper is a store that removes expired records.
type Reaper interface {
	// Reap removes at most limit settled records past their expiry, or, if soft, marks them expired and removes records
	// that were marked a retention ago. It returns how many it removed or marked. Fewer than limit means that there is
	// nothing more to do now. In a large table one call may scan only a part: the whole table is scanned within a
	// fraction of the average retention. A caller allows at least three seconds.
	Reap(ctx context.Context, limit int, soft bool) (reaped int, err error)
}

// SelfReaper is a store that needs no [Reaper]: its server removes expired records automatically.
type SelfReaper interface {
	// ReapsItself reports whether the server removes expired records automatically.
	ReapsItself() bool
}

// Reconciler is a store whose unknown records can be settled from outside. A phased operation whose owner is lost,
// which means that it is in progress with [LostResume] and past its lease, can be resolved like an unknown operation: a
// person ends the operation this way if no running code can continue it. A [*StaleError] means that a record was
// resolved anyway.
type Reconciler interface {
	// ResolveCompleted stores the answer that was found for an unknown attempt.
	ResolveCompleted(ctx context.Context, c Claim, done *Completion) error
	// ResolveNotExecuted records that the operation did nothing, or that all of it was undone: a retry may execute,
	// from the beginning.
	ResolveNotExecuted(ctx context.Context, c Claim, reason string) error
	// ResolveStep stores the outcome of one step of a phased operation, as the recovery point at which the operation
	// continues, after the step or at it. The record is then in progress without an owner, due immediately for the next
	// attempt, and the resolved attempt is fenced.
	ResolveStep(ctx context.Context, c Claim, p Checkpoint) error
	// BeginReconcile claims the next attempt to reconcile an unknown record, which must be at that count, and makes the
	// following attempt due after the wait. If several nodes find the record due, one node makes the attempt and the
	// others get a [*FencedError]: the attempt counts once.
	BeginReconcile(ctx context.Context, c Claim, count int, wait time.Duration) error
	// Postpone records that this attempt did not find the outcome, the reason, and when the next attempt is due. At
	// MaxAttempts the record becomes a dead letter.
	Postpone(ctx context.Context, c Claim, p Postponement) error
	// Requeue makes an unknown record due for reconciliation now, with the count of attempts reset. A dead letter
	// becomes a normal unknown record.
	Requeue(ctx context.Context, c Claim, reason string) error
}

// Postponement is an attempt to reconcile that did not find the outcome.
type Postponement struct {
	// Count is the number of the attempt: the record's count since the attempt began.
	Count int
	// Wait is the time until the next attempt.
	Wait time.Duration
	// MaxAttempts is the number of attempts after which the record becomes a dead letter; zero for no limit.
	MaxAttempts int
	// Reason is why the outcome was not found.
	Reason string
	// Untried cancels the attempt, which then does not count: the node was stopped before it sent the query.
	// MaxAttempts and Reason are ignored then.
	Untried bool
}

// Buster is a store whose records an operator can remove.
type Buster interface {
	// Bust removes a settled or expired record. With force it also removes a record that is in progress or unknown, and
	// keeps its token, so that its owner is fenced: the work may then be done twice. It returns [ErrNotFound] if there
	// is no record, a [*FencedError] for a record that only force removes, and a [*StaleError] for a record that was
	// removed, but can still be seen for a while.
	Bust(ctx context.Context, id ID, force bool) error
}

// Filter selects records. The zero value selects all.
type Filter struct {
	// Scope restricts to one scope if it is not empty.
	Scope string
	// Operation restricts to one operation if it is not empty. Records that cannot be read are left out, because their
	// operation is not known.
	Operation string
	// State restricts to one state if it is not [StateNone].
	State State
	// Due restricts to records whose [Record.Due] has passed by the store's clock: a node's own clock never decides
	// this (rule S3).
	Due bool
	// After continues after the last ID of the previous page.
	After ID
	// Limit is the largest number of records to return; at most [MaxPage], which is the default.
	Limit int
}

// MaxPage is the largest number of records that one List returns.
const MaxPage = 1000

// Stats counts the records of a store.
type Stats struct {
	// Records is the number of records by state.
	Records map[State]int64
	// DeadLetters is the number of unknown records that wait for a person.
	DeadLetters int64
	// OldestUnknown is when the oldest unknown record became unknown, which is its SettledAt; zero if there is none.
	// Dead letters are excluded, because they no longer wait for reconciliation.
	OldestUnknown time.Time
	// LostOwners is the number of records in progress whose lease has ended by the store's clock: no attempt works on
	// these records until a sweeper or a resumer processes them, and their callers get a conflict.
	LostOwners int64
	// OldestLostOwner is when the first of these leases ended; zero if there is none.
	OldestLostOwner time.Time
}

// Count adds a record at a moment of the store's clock. It is for implementations of [Lister]. For a record that could
// not be read, which has no version, only the state is counted.
func (s *Stats) Count(rec *Record, now time.Time) {
	s.Records[rec.State]++
	switch {
	case rec.Version == 0:
	case rec.leaseOver(now):
		s.LostOwners++
		s.OldestLostOwner = earlier(s.OldestLostOwner, rec.LeaseUntil)
	case rec.State != StateUnknown:
	case rec.DeadLetter:
		s.DeadLetters++
	default:
		s.OldestUnknown = earlier(s.OldestUnknown, rec.SettledAt)
	}
}

// earlier returns the earlier of two times. The first is zero if there is none yet.
func earlier(oldest, at time.Time) time.Time {
	if oldest.IsZero() || at.Before(oldest) {
		return at
	}
	return oldest
}

// Lister is a store whose records can be listed.
type Lister interface {
	// List returns records in a stable order, without the bodies of their responses and without their data. A record
	// that cannot be read is listed too, with its ID and state only, at version zero, and the reason as its last error.
	// Records in progress and unknown records are found without a scan of the settled ones.
	List(ctx context.Context, f Filter) ([]Record, error)
	// Stats counts the records.
	Stats(ctx context.Context) (Stats, error)
}
