package store

import (
	"context"
	"time"
)

// This file defines what stores keep beside the records, to settle unknown outcomes.

// LateCompletion is a completion that came too late and was refused. It is evidence for a reconciler or a person.
type LateCompletion struct {
	Claim
	// Response is what the owner wanted to store.
	Response Response
	// At is when the completion was refused.
	At time.Time
}

// LateCompletionKeeper is a store that keeps late completions.
type LateCompletionKeeper interface {
	// AddLateCompletion keeps a refused completion.
	AddLateCompletion(ctx context.Context, late LateCompletion) error
	// LateCompletions returns the late completions of an ID, oldest first.
	LateCompletions(ctx context.Context, id ID) ([]LateCompletion, error)
}

// ExternalEvent is an unsolicited report of another system about an effect, such as a provider's webhook. It is kept
// before it is processed, because it may arrive before its record exists.
type ExternalEvent struct {
	// Source is the other system. Source, Scope, AnyScope and EventID together identify the event: a second event with
	// the same values is a duplicate. The scope is included so that a sender for one scope cannot block an event of
	// another scope by using its id first.
	Source string
	// EventID is the id that the source gave to the event.
	EventID string
	// Scope is the only scope whose records the sender may settle, whatever the event's subject.
	Scope string
	// AnyScope means that the sender may settle the records of every scope. Scope is ignored then, and kept as empty.
	AnyScope bool
	// Subject identifies the effect as the other system knows it: a downstream key or the provider's own id.
	Subject string
	// At is when it happened, by the sender's clock. If two events are about the same subject, the later event counts.
	At time.Time
	// Body is the event itself.
	Body []byte
	// ReceivedAt is when the event was kept; the store sets it.
	ReceivedAt time.Time
}

// MaySettle reports whether the sender may settle a record of a scope.
func (e *ExternalEvent) MaySettle(scope string) bool { return e.AnyScope || e.Scope == scope }

// ExternalEventFilter selects the external events that may settle a record.
type ExternalEventFilter struct {
	// Source is the other system.
	Source string
	// Scope is the record's scope: it selects events of this scope, and events of senders that may settle every scope.
	Scope string
	// Subjects selects the events about any of these. If empty, no event is selected.
	Subjects []string
}

// ExternalEventKeeper is a store that keeps external events.
type ExternalEventKeeper interface {
	// AddExternalEvent keeps an event, and reports false if an event with the same source, scope and id exists.
	AddExternalEvent(ctx context.Context, e ExternalEvent) (added bool, err error)
	// ExternalEvents returns the events that a filter selects, in the order in which they happened.
	ExternalEvents(ctx context.Context, f ExternalEventFilter) ([]ExternalEvent, error)
	// PurgeExternalEvents removes at most limit events that were received longer ago than age, and returns how many.
	PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (purged int, err error)
}

// AuditEntry is one act on a record by someone other than its owner: the actor, the action and the reason.
type AuditEntry struct {
	ID
	// Attempt is the attempt that was acted on.
	Attempt int64
	// Actor is a person, or the name of a program.
	Actor string
	// Action names the act, such as "resolve completed".
	Action string
	// Reason is the reason in the actor's words.
	Reason string
	// Outcome is empty in the entry that is written before the act. A second entry contains the outcome of the act, or
	// the statement that the outcome is not known.
	Outcome string
	// At is when the entry was written; the store sets it.
	At time.Time
}

// Auditor is a store that keeps an append-only list of acts, with its own retention (rule L7).
type Auditor interface {
	// AddAudit appends an entry.
	AddAudit(ctx context.Context, e AuditEntry) error
	// Audit returns the entries about an ID, oldest first.
	Audit(ctx context.Context, id ID) ([]AuditEntry, error)
	// PurgeAudit removes at most limit entries that were written longer ago than age, and returns how many.
	PurgeAudit(ctx context.Context, age time.Duration, limit int) (purged int, err error)
}

// AuditFilter selects entries of an audit by when they were written.
type AuditFilter struct {
	// ID restricts to one ID if it is not the zero value.
	ID ID
	// Since and Until restrict to entries written at or after Since and before Until, if they are not zero.
	Since, Until time.Time
	// Limit is the largest number of entries to return; at most [MaxPage], which is the default.
	Limit int
}

// Page returns the largest number of entries to return.
func (f *AuditFilter) Page() int {
	if f.Limit > 0 {
		return min(f.Limit, MaxPage)
	}
	return MaxPage
}

// Chooses reports whether the filter selects an entry about an ID that was written at a time.
func (f *AuditFilter) Chooses(id ID, at time.Time) bool {
	return (f.ID == ID{} || f.ID == id) && (f.Since.IsZero() || !at.Before(f.Since)) &&
		(f.Until.IsZero() || at.Before(f.Until))
}

// AuditLister is an [Auditor] whose entries can be listed without naming an ID.
type AuditLister interface {
	// ListAudit returns the entries that a filter selects, newest first.
	ListAudit(ctx context.Context, f AuditFilter) ([]AuditEntry, error)
}

// ExecutionEntry is one request of a route whose executions are audited: its caller and the decision.
type ExecutionEntry struct {
	ID
	// Operation is the method and route pattern.
	Operation string
	// Actor is the caller, as the service names it.
	Actor string
	// Decision is the answer to the reservation, and Origin the origin of a grant.
	Decision Decision
	Origin   Origin
	// Attempt is the record's attempt; zero if the record was not visible.
	Attempt int64
	// At is when the entry was written; the store sets it.
	At time.Time
}

// ExecutionAuditor is a store that keeps an append-only list of requests, separate from the operators' acts and with
// its own retention (rule L7).
type ExecutionAuditor interface {
	// AddExecution appends an entry.
	AddExecution(ctx context.Context, e ExecutionEntry) error
	// ListExecutions returns the entries that a filter selects, newest first.
	ListExecutions(ctx context.Context, f AuditFilter) ([]ExecutionEntry, error)
	// PurgeExecutions removes at most limit entries that were written longer ago than age, and returns how many.
	PurgeExecutions(ctx context.Context, age time.Duration, limit int) (purged int, err error)
}
