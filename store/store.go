package store

import (
	"context"
	"time"
)

// Store keeps records. Each method is one atomic step that follows [Step]; the store decides, the guard obeys. A method
// that fails for a reason of the store itself returns an error that wraps [ErrUnavailable]; a write that is refused
// returns a [*FencedError]. Package storetest proves an implementation.
//
// What only some stores can do is an optional interface: [Transactor], [TxCheckpointer], [Waiter], [Sweeper], [Reaper],
// [Reconciler], [Buster], [Lister], [LateCompletionKeeper], [ExternalEventKeeper], [Auditor].
type Store interface {
	// Reserve decides what a request may do. It is the only way into a record, and never a look-up followed by an insert.
	// Repeated with the same nonce, it answers with the same grant. A store may still read the reservation after a call
	// that was given up: the caller does not change it.
	Reserve(ctx context.Context, r *Reservation) (Verdict, error)
	// Extend makes the lease last for the given time from now.
	Extend(ctx context.Context, c Claim, lease time.Duration) error
	// Checkpoint records how far the owner has come. As with Complete, the store may keep the data.
	Checkpoint(ctx context.Context, c Claim, p Checkpoint) error
	// Complete stores the answer and returns when it expires. The store may keep the slices of the completion: the caller
	// does not change them afterwards.
	Complete(ctx context.Context, c Claim, done *Completion) (expires time.Time, err error)
	// Release says that nothing was done: a retry may execute.
	Release(ctx context.Context, c Claim, reason string) error
	// Abandon says that it is not known what was done.
	Abandon(ctx context.Context, c Claim, reason string) error
	// Get returns a record for looking at, or [ErrNotFound]. Records past their expiry are returned until they are reaped.
	// The slices of a record, here as in a verdict, may be shared: nobody changes them.
	Get(ctx context.Context, id ID) (Record, error)
}

// Reservation is what a request asks of a store.
type Reservation struct {
	ID
	// Operation is the method and route pattern, for people who look at the record.
	Operation string
	// Fingerprints holds the request's fingerprint under the current secret first, then under each older one that a stored
	// record may have been made with.
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
	// ResumeOnly takes over an operation whose owner was lost, and refuses a key that has no record or may be retried: it is
	// for a caller who is not the client, and only the client may want done what was not done.
	ResumeOnly bool
	// DownstreamSecret is kept with a new record: see [Record].DownstreamSecret.
	DownstreamSecret uint32
	// TraceID is kept with a new record.
	TraceID string
}

// Decision is what a reservation was answered with.
type Decision uint8

// The decisions of a store.
const (
	// DecisionExecute grants the right to execute.
	DecisionExecute Decision = iota + 1
	// DecisionReplay hands back the stored answer.
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

// The origins of a grant.
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
	Decision Decision
	// Origin says where the grant came from if Decision is [DecisionExecute].
	Origin Origin
	// Record is the record as it stands after the decision. In transactional mode it is empty where nothing is visible yet.
	Record Record
	// Now is the store's clock at the decision. An owner counts on what is left of its lease by it: a grant that is
	// repeated keeps the lease that it had.
	Now time.Time
}

// Check refuses what a store cannot rightly answer to a reservation: acting on another's record would be worse than not answering.
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
	if !ok {
		return &UnreadableError{Version: rec.Version, Reason: "the store answered with a record or a decision that cannot belong to this request"}
	}
	return nil
}

// Claim is how an owner names itself in each write.
type Claim struct {
	ID
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
	Response Response
	// Retention replaces the retention of the reservation if it is longer.
	Retention time.Duration
	// ProviderID is the id that the provider gave to the effect.
	ProviderID string
}

// Transactor is a store that can put the claim, the work and the answer into one database transaction.
type Transactor interface {
	// Transact decides like Reserve, but makes nothing visible before the end. If the decision is [DecisionExecute] it
	// calls work with a context that carries the transaction, and ends the transaction as work says. It may call work
	// again after a rollback that was not work's own doing, never after a commit. The context bounds the wait until work
	// starts, not the work and what follows it.
	//
	// It returns [ErrOutcomeUnknown] if it cannot learn whether the transaction was committed. After any other error
	// nothing was executed; one that wraps [ErrDeadline] says that work took too long, and one that wraps [ErrWorkRefused] that
	// the database refused at the commit what work had written.
	Transact(ctx context.Context, r *Reservation, work func(ctx context.Context, v Verdict) Settlement) (Verdict, error)
	// LongestWork is the longest that work may take, zero for no limit. From work that takes longer, with a little
	// grace, the transaction is taken back: it is undone and its key is free, although Transact returns only when
	// work does.
	LongestWork(lease time.Duration) time.Duration
	// InFlight reports whether a transaction for the ID is under way, as far as this process can see.
	InFlight(id ID) bool
}

// TxCheckpointer is a store that can commit a checkpoint together with what a handler writes.
type TxCheckpointer interface {
	// CheckpointTx calls work with a context that carries a transaction, as [Transactor] does, and commits what work wrote
	// together with the checkpoint that it returned, if the claim still holds. It may call work again after a rollback that
	// was not work's own doing, never after a commit. A node that stops in mid-work holds on to what it locked for little
	// longer than the lease.
	//
	// An error of work undoes everything and is returned as it is. It returns [ErrOutcomeUnknown] if it cannot learn whether
	// the transaction was committed, together with [ErrTxOwned] if work itself ended it; after any other error nothing was. One
	// that wraps [ErrWorkRefused] says that the database refused at the commit what work had written.
	CheckpointTx(ctx context.Context, c Claim, lease time.Duration, work func(ctx context.Context) (Checkpoint, error)) error
}

// Ending says how a transaction ends.
type TxAction uint8

// The endings of transactional work.
const (
	// TxRollback undoes everything and leaves no trace: the retry runs afresh.
	TxRollback TxAction = iota
	// TxCommit keeps the work and the answer.
	TxCommit
	// TxCommitAnswer undoes the work and keeps the answer.
	TxCommitAnswer
)

// Settlement is what transactional work wants done with its transaction.
type Settlement struct {
	Action     TxAction
	Completion Completion
}

// Waiter is a store that can tell when a record may have changed, so that nobody needs to poll.
type Waiter interface {
	// Wait returns nil once the record may no longer be in progress at that attempt, or the context's error. An attempt of
	// zero stands for a transaction in flight.
	Wait(ctx context.Context, id ID, attempt int64) error
}

// Sweeper is a store that finds the leases that ran out.
type Sweeper interface {
	// Sweep makes at most limit records unknown whose lease ran out and whose policy is [LostReconcile].
	Sweep(ctx context.Context, limit int) (swept int, err error)
}

// Reaper is a store that removes what has expired.
type Reaper interface {
	// Reap removes at most limit settled records past their expiry, or, if soft, marks them expired and removes those that
	// were marked a retention ago.
	Reap(ctx context.Context, limit int, soft bool) (reaped int, err error)
}

// Reconciler is a store whose unknown records can be settled from outside. A phased operation whose owner is gone, which is one
// that is in progress with [LostResume] and past its lease, can be resolved as if it were unknown: a person ends it so if no
// running code can go on with it.
type Reconciler interface {
	// ResolveCompleted stores the answer that was learned for an unknown attempt.
	ResolveCompleted(ctx context.Context, c Claim, done *Completion) error
	// ResolveNotExecuted says that the operation did nothing, or that all it did was undone: a retry may execute, from the
	// beginning.
	ResolveNotExecuted(ctx context.Context, c Claim, reason string) error
	// ResolveStep stores what was learned of one step of a phased operation, as the recovery point at which the operation goes
	// on, behind the step or at it. The record is then in progress without an owner, due at once for the next attempt, and the
	// attempt that was resolved is fenced.
	ResolveStep(ctx context.Context, c Claim, p Checkpoint) error
	// BeginReconcile claims the next try at an unknown record, which must stand at that number of tries, and makes the one
	// behind it due after the wait. Of several nodes that saw the record due one makes the try, the others get a
	// [*FencedError]: any number of nodes counts it once.
	BeginReconcile(ctx context.Context, c Claim, count int, wait time.Duration) error
	// Postpone notes that the try of this number learned nothing, and why, and when the next one is due. At the limit the
	// record becomes a dead letter.
	Postpone(ctx context.Context, c Claim, p Postponement) error
	// Requeue makes an unknown record due for reconciliation now, with all its tries before it: a dead letter is none any
	// more.
	Requeue(ctx context.Context, c Claim, reason string) error
}

// Postponement is a try to reconcile that learned nothing.
type Postponement struct {
	// Count is the number of the try: what the record stands at since it began.
	Count int
	// Wait is the time until the next one.
	Wait time.Duration
	// MaxAttempts is the number of tries after which the record becomes a dead letter; zero for no limit.
	MaxAttempts int
	// Reason says why nothing was learned.
	Reason string
	// Untried takes the try back, which then does not count: the node was stopped before it had asked. Limit and Reason say
	// nothing then.
	Untried bool
}

// Buster is a store whose records an operator can remove.
type Buster interface {
	// Bust removes a settled or expired record. With force it also removes one that is in progress or unknown, leaving its
	// token behind, so that its owner is fenced: the work may then be done twice.
	Bust(ctx context.Context, id ID, force bool) error
}

// Filter chooses records. The zero value chooses all.
type Filter struct {
	// Scope restricts to one scope if it is not empty.
	Scope string
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
	// OldestUnknown is the creation time of the oldest unknown record; zero if there is none.
	OldestUnknown time.Time
}

// Lister is a store that can be looked through.
type Lister interface {
	// List returns records in a stable order, without the bodies of their responses and the data they carry. One that
	// cannot be read keeps nobody from the others: it is listed with its ID and its state alone, at version zero, and why
	// as its last error. Those in progress and unknown are found without a look at all the settled ones.
	List(ctx context.Context, f Filter) ([]Record, error)
	// Stats counts the records.
	Stats(ctx context.Context) (Stats, error)
}
