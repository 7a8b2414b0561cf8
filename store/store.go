// Package store is the contract between the guard and the stores: what a store author implements. A user of the
// middleware needs none of it but the error values.
//
// A store keeps one [Record] for each [ID], and implements [Store]: eight methods, each one atomic step. What a step
// does is said by [Step], a pure function from a record, an [Event] and the store's clock to the next record. The
// simplest method reads the record, calls Step and writes the result, all inside one transaction or lock:
//
//	rec, err := load(tx, id)                   // a Record in StateNone if there is none
//	after, transition, err := store.Step(rec, event, now)
//	switch transition.Effect {
//	case store.EffectWrite:                    // keep after
//	case store.EffectRemove:                   // remove the record, and never give out its token again
//	}
//
// [ID.AppendBinary] and [Record.AppendBinary] encode both for stores that keep keys and values. What only some stores
// can do is an optional interface, which its users find by assertion. Package storetest proves an implementation.
package store

import (
	"context"
	"database/sql"
	"time"
)

// Store keeps records. Each method is one atomic step that follows [Step]; the store decides, the guard obeys. A method
// that fails for a reason of the store itself returns an error that wraps [ErrUnavailable]; a write that is refused
// returns a [*FencedError]; a record that cannot be read gives an [*UnreadableError].
//
// What only some stores can do is an optional interface: [Transactor], [TxCheckpointer], [Waiter], [Sweeper], [Reaper],
// [SelfReaper], [Reconciler], [Buster], [Lister], [LateCompletionKeeper], [ExternalEventKeeper], [Auditor],
// [AuditLister], [ExecutionAuditor], [Rewriter], [Finder], [Retainer].
type Store interface {
	// Reserve decides what a request may do. It is the only way into a record, and never a look-up followed by an
	// insert. Repeated with the same nonce, it answers with the same grant. A store may still read the reservation
	// after a call that was given up: the caller does not change it.
	Reserve(ctx context.Context, r *Reservation) (Verdict, error)
	// Extend is the heartbeat of the owner: it makes the lease last for the given time from now.
	Extend(ctx context.Context, c Claim, lease time.Duration) error
	// Checkpoint records how far the owner has come. As with Complete, the store may keep the data.
	Checkpoint(ctx context.Context, c Claim, p Checkpoint) error
	// Complete stores the answer and returns when it expires. The store may keep the slices of the completion: the
	// caller does not change them afterwards.
	Complete(ctx context.Context, c Claim, done *Completion) (expires time.Time, err error)
	// Release says that nothing was done: a retry may execute.
	Release(ctx context.Context, c Claim, reason string) error
	// Abandon says that it is not known what was done.
	Abandon(ctx context.Context, c Claim, reason string) error
	// Reject says that nothing was done, and that the request counts for nothing, as if it had never come: the next
	// reservation executes, whatever its fingerprint. What was released by the same attempt can still be rejected; what
	// may have sent something cannot be: see [Record.MayHaveSent].
	Reject(ctx context.Context, c Claim) error
	// Get returns a record for looking at, or [ErrNotFound]. Records past their expiry are returned until they are
	// reaped. The slices of a record, here as in a verdict, may be shared: the caller does not change them. With an
	// [ErrUnreadable] that is about the content alone, the record may come all the same, with its ID and without content.
	Get(ctx context.Context, id ID) (Record, error)
}

// Reservation is what a request asks of a store.
type Reservation struct {
	ID
	// Operation is the method and route pattern, for people who look at the record.
	Operation string
	// Fingerprints holds the request's fingerprint under the current secret first, then under each older one that a
	// stored record may have been made with.
	Fingerprints []Fingerprint
	// OnLost is the route's policy on a lost owner.
	OnLost LostPolicy
	// Nonce makes the call repeatable.
	Nonce Nonce
	// Lease is how long the right to execute lasts without a heartbeat.
	Lease time.Duration
	// Retention is how long the settled record is kept.
	Retention time.Duration
	// NoCreate refuses a key that has no record; everything else is answered as usual.
	NoCreate bool
	// ResumeOnly takes over an operation whose owner was lost, and refuses a key that has no record or may be retried:
	// it is for a caller who is not the client, and only the client may want done what was not done.
	ResumeOnly bool
	// DownstreamSecret is kept with a new record: see [Record].DownstreamSecret.
	DownstreamSecret uint32
	// Isolation is the level of the transaction that a [Transactor] runs. Default: that of the pool or the database.
	Isolation sql.IsolationLevel
	// TraceID is kept with a new record. One of 32 or 48 lower-case hexadecimal digits, which is a trace, or a trace and a
	// span, takes the least room.
	TraceID string
}

// Decision is what a reservation was answered with.
type Decision uint8

// The decisions of a store. Their numbers are stored and never change.
const (
	// DecisionExecute grants the right to execute.
	DecisionExecute Decision = iota + 1
	// DecisionReplay returns the stored answer.
	DecisionReplay
	// DecisionInProgress says that another attempt holds the right to execute.
	DecisionInProgress
	// DecisionMismatch says that the key belongs to a different request.
	DecisionMismatch
	// DecisionUnknown says that the outcome of an earlier attempt is not known.
	DecisionUnknown
	// DecisionRefused says that there is no record and none was to be made, or none to resume.
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

// Origin says where a granted right to execute came from.
type Origin uint8

// The origins of a grant. Their numbers are stored and never change.
const (
	// OriginCreated is a new record.
	OriginCreated Origin = iota + 1
	// OriginRetried is a record that had been released.
	OriginRetried
	// OriginResumed is a record whose owner was lost and whose policy is [LostResume].
	OriginResumed
	// OriginRecreated is a record that had expired.
	OriginRecreated
	// OriginRepeated is the same grant again: the reply to the first call was lost.
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
	// Origin says where the grant came from if Decision is [DecisionExecute].
	Origin Origin
	// Record is the record as it stands after the decision. In transactional mode it is empty where nothing is visible
	// yet.
	Record Record
	// Now is the store's clock at the decision. An owner counts on what is left of its lease by it: a grant that is
	// repeated keeps the lease that it had.
	Now time.Time
}

// Lost reports whether it was this reservation that found an owner lost, and made the outcome unknown: those behind it
// find it unknown already.
func (v *Verdict) Lost() bool {
	rec := &v.Record
	return rec.State == StateUnknown && rec.LastError == leaseRanOut && rec.SettledAt.Equal(v.Now.Truncate(ClockStep))
}

// Check returns an [*UnreadableError] for what a store cannot rightly answer to a reservation: to act on the record of
// another request would be worse than not to answer.
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

// Claim is how an owner names itself in each write.
type Claim struct {
	ID
	// Attempt is the token of the attempt, as the verdict of Reserve gave it.
	Attempt int64
}

// Checkpoint is how far an operation has come.
type Checkpoint struct {
	// Point is the name of the recovery point; empty leaves the last one.
	Point string
	// Data is carried to the next attempt; nil leaves what was carried before.
	Data []byte
	// NotReplayable marks that the answer is being sent without being stored.
	NotReplayable bool
	// ProviderID is the id that the provider gave to the effect; empty leaves what was known before.
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

// Waiter is a store that can tell when a record may have changed, so that its callers need not poll.
type Waiter interface {
	// Wait returns nil once the record may no longer be in progress at that attempt, or the context's error. An attempt
	// of zero stands for a transaction in flight.
	Wait(ctx context.Context, id ID, attempt int64) error
}

// Sweeper is a store that finds the leases that ran out.
type Sweeper interface {
	// Sweep makes at most limit records unknown whose lease ran out and whose policy is [LostReconcile], and returns
	// how many.
	Sweep(ctx context.Context, limit int) (swept int, err error)
}

// Reaper is a store that removes what has expired.
type Reaper interface {
	// Reap removes at most limit settled records past their expiry, or, if soft, marks them expired and removes those
	// that were marked a retention ago. It returns how many it removed or marked. Fewer than limit means that it has
	// looked as far as it should for now, which in a large table may be a part of it: all of it within a fraction of
	// the time for which records are kept on average. A caller gives it three seconds at least.
	Reap(ctx context.Context, limit int, soft bool) (reaped int, err error)
}

// SelfReaper is a store that needs no [Reaper]: its server removes what has expired by itself.
type SelfReaper interface {
	// ReapsItself reports whether that is so.
	ReapsItself() bool
}

// Reconciler is a store whose unknown records can be settled from outside. A phased operation whose owner is gone,
// which is one that is in progress with [LostResume] and past its lease, can be resolved as if it were unknown: a
// person ends it so if no running code can go on with it. With a [*StaleError] a record was resolved all the same.
type Reconciler interface {
	// ResolveCompleted stores the answer that was learned for an unknown attempt.
	ResolveCompleted(ctx context.Context, c Claim, done *Completion) error
	// ResolveNotExecuted says that the operation did nothing, or that all it did was undone: a retry may execute, from
	// the beginning.
	ResolveNotExecuted(ctx context.Context, c Claim, reason string) error
	// ResolveStep stores what was learned of one step of a phased operation, as the recovery point at which the
	// operation goes on, behind the step or at it. The record is then in progress without an owner, due at once for the
	// next attempt, and the attempt that was resolved is fenced.
	ResolveStep(ctx context.Context, c Claim, p Checkpoint) error
	// BeginReconcile claims the next attempt to reconcile an unknown record, which must stand at that count, and makes the
	// one behind it due after the wait. Of several nodes that saw the record due one makes the attempt, the others get a
	// [*FencedError]: any number of nodes counts it once.
	BeginReconcile(ctx context.Context, c Claim, count int, wait time.Duration) error
	// Postpone notes that the attempt of this number learned nothing, and why, and when the next one is due. At
	// MaxAttempts the record becomes a dead letter.
	Postpone(ctx context.Context, c Claim, p Postponement) error
	// Requeue makes an unknown record due for reconciliation now, with all its attempts before it: a dead letter is none
	// any more.
	Requeue(ctx context.Context, c Claim, reason string) error
}

// Postponement is an attempt to reconcile that learned nothing.
type Postponement struct {
	// Count is the number of the attempt: what the record stands at since it began.
	Count int
	// Wait is the time until the next one.
	Wait time.Duration
	// MaxAttempts is the number of attempts after which the record becomes a dead letter; zero for no limit.
	MaxAttempts int
	// Reason says why nothing was learned.
	Reason string
	// Untried cancels the attempt, which then does not count: the node was stopped before it had asked. MaxAttempts and
	// Reason are ignored then.
	Untried bool
}

// Buster is a store whose records an operator can remove.
type Buster interface {
	// Bust removes a settled or expired record. With force it also removes one that is in progress or unknown, leaving
	// its token behind, so that its owner is fenced: the work may then be done twice. It returns [ErrNotFound] if there
	// is none, a [*FencedError] for one that only force removes, and a [*StaleError] for one that was removed, but can
	// still be seen for a while.
	Bust(ctx context.Context, id ID, force bool) error
}

// Filter chooses records. The zero value chooses all.
type Filter struct {
	// Scope restricts to one scope if it is not empty.
	Scope string
	// Operation restricts to the records of one operation if it is not empty. Of a record that cannot be read it is not
	// known which one that is: it is left out.
	Operation string
	// State restricts to one state if it is not [StateNone].
	State State
	// Due restricts to records whose [Record.Due] has come by the store's clock: a node's own never decides that (S3).
	Due bool
	// After continues behind the last ID of the page before.
	After ID
	// Limit is the most records to return; at most [MaxPage], which is the default.
	Limit int
}

// MaxPage is the most records that one List returns.
const MaxPage = 1000

// Stats counts the records of a store.
type Stats struct {
	// Records counts by state.
	Records map[State]int64
	// DeadLetters counts the unknown records that wait for a person.
	DeadLetters int64
	// OldestUnknown is when, of the unknown records that are no dead letters, the first one became unknown, which is its
	// SettledAt; zero if there is none. What a person has to settle is no more a matter of waiting.
	OldestUnknown time.Time
	// LostOwners counts the records in progress whose lease has ended by the store's clock: nobody works on them until a
	// sweeper or a resumer comes, and their callers get a conflict.
	LostOwners int64
	// OldestLostOwner is when the first of their leases ended; zero if there is none.
	OldestLostOwner time.Time
}

// Count adds a record, as it stands at a moment of the store's clock, for those who implement a [Lister]. Of a record
// that could not be read, which has no version, the state alone counts.
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

// earlier returns the earlier one of two moments, of which the first may be zero for none.
func earlier(oldest, at time.Time) time.Time {
	if oldest.IsZero() || at.Before(oldest) {
		return at
	}
	return oldest
}

// Lister is a store that can be looked through.
type Lister interface {
	// List returns records in a stable order, without the bodies of their responses and the data they carry. One that
	// cannot be read does not hide the others: it is listed with its ID and its state alone, at version zero, and the
	// reason as its last error. Those in progress and unknown are found without a look at all the settled ones.
	List(ctx context.Context, f Filter) ([]Record, error)
	// Stats counts the records.
	Stats(ctx context.Context) (Stats, error)
}
