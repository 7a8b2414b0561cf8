package store

import (
	"context"
	"time"
)

// This file holds what stores keep beside the records, for those who settle what is unknown.

// LateCompletion is a completion that came too late and was refused. It is evidence for a reconciler or a person.
type LateCompletion struct {
	Claim
	// Response is what the owner wanted to store.
	Response Response
	// At is when it was refused.
	At time.Time
}

// LateCompletionKeeper is a store that keeps late completions.
type LateCompletionKeeper interface {
	// AddLateCompletion keeps a refused completion.
	AddLateCompletion(ctx context.Context, late LateCompletion) error
	// LateCompletions returns what was kept for an ID, oldest first.
	LateCompletions(ctx context.Context, id ID) ([]LateCompletion, error)
}

// ExternalEvent is what another system reported about an effect by itself, such as a provider's webhook. It is kept
// before anything is done about it, because it may come before the record that it is about.
type ExternalEvent struct {
	// Source is the other system. Source, Scope, AnyScope and EventID together identify the event: one that comes again
	// is the same. The scope is part of it so that a sender for one scope cannot keep out an event of another by using
	// its id first.
	Source string
	// EventID is the id that the source gave to the event.
	EventID string
	// Scope is the one whose records the sender may settle: the event says nothing about those of others, whatever its
	// subject.
	Scope string
	// AnyScope says that the sender may settle the records of every scope. Scope is ignored then, and kept as empty.
	AnyScope bool
	// Subject is what the event is about, as the other system knows it: a downstream key or the provider's own id.
	Subject string
	// At is when it happened by the sender's clock. Of two events about one subject the later one counts.
	At time.Time
	// Body is the event itself.
	Body []byte
	// ReceivedAt is when the event was kept; the store sets it.
	ReceivedAt time.Time
}

// MaySettle reports whether the sender may settle a record of that scope.
func (e *ExternalEvent) MaySettle(scope string) bool { return e.AnyScope || e.Scope == scope }

// ExternalEventFilter chooses the external events that may settle a record.
type ExternalEventFilter struct {
	// Source is the other system.
	Source string
	// Scope is that of the record: events of this scope are chosen, and those of senders who may settle every scope.
	Scope string
	// Subjects are what the events are about: one of these. Without any, no event is chosen.
	Subjects []string
}

// ExternalEventKeeper is a store that keeps external events.
type ExternalEventKeeper interface {
	// AddExternalEvent keeps an event, and reports false if one of the same source, scope and id is there already.
	AddExternalEvent(ctx context.Context, e ExternalEvent) (added bool, err error)
	// ExternalEvents returns what a filter chooses, in the order in which it happened.
	ExternalEvents(ctx context.Context, f ExternalEventFilter) ([]ExternalEvent, error)
	// PurgeExternalEvents removes at most limit events that were received longer ago than age, and returns how many.
	PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (purged int, err error)
}

// AuditEntry is one act on a record that did not come from its owner: who, what and why.
type AuditEntry struct {
	ID
	// Attempt is the one that was acted on.
	Attempt int64
	// Actor is who acted: a person, or the name of a program.
	Actor string
	// Action is what was done, such as "resolve completed".
	Action string
	// Reason is why, in the actor's words.
	Reason string
	// Outcome is empty in the entry that is written before the act, and says in a second one how the act ended, or that
	// this could not be learned.
	Outcome string
	// At is when it was written; the store sets it.
	At time.Time
}

// Auditor is a store that keeps an append-only list of acts, with a retention of its own (L7).
type Auditor interface {
	// AddAudit appends an entry.
	AddAudit(ctx context.Context, e AuditEntry) error
	// Audit returns the entries about an ID, oldest first.
	Audit(ctx context.Context, id ID) ([]AuditEntry, error)
	// PurgeAudit removes at most limit entries that were written longer ago than age, and returns how many.
	PurgeAudit(ctx context.Context, age time.Duration, limit int) (purged int, err error)
}

// AuditFilter chooses entries of an audit by when they were written.
type AuditFilter struct {
	// ID restricts to one ID if it is not the zero value.
	ID ID
	// Since and Until restrict to entries written at or after Since and before Until, where they are not zero.
	Since, Until time.Time
	// Limit is the most entries to return; at most [MaxPage], which is the default.
	Limit int
}

// Page is how many entries are returned at most.
func (f *AuditFilter) Page() int {
	if f.Limit > 0 {
		return min(f.Limit, MaxPage)
	}
	return MaxPage
}

// Chooses reports whether an entry about an ID, written at a moment, is one of the chosen.
func (f *AuditFilter) Chooses(id ID, at time.Time) bool {
	return (f.ID == ID{} || f.ID == id) && (f.Since.IsZero() || !at.Before(f.Since)) &&
		(f.Until.IsZero() || at.Before(f.Until))
}

// AuditLister is an [Auditor] whose entries can be looked through without naming an ID.
type AuditLister interface {
	// ListAudit returns the entries that a filter chooses, the newest first.
	ListAudit(ctx context.Context, f AuditFilter) ([]AuditEntry, error)
}

// ExecutionEntry is one request of a route whose executions are audited: who called, and what was decided.
type ExecutionEntry struct {
	ID
	// Operation is the method and route pattern.
	Operation string
	// Actor is who called, as the service knows them.
	Actor string
	// Decision is what the reservation was answered with, and Origin where a grant came from.
	Decision Decision
	Origin   Origin
	// Attempt is that of the record, zero if nothing of it was visible.
	Attempt int64
	// At is when it was written; the store sets it.
	At time.Time
}

// ExecutionAuditor is a store that keeps an append-only list of requests, apart from that of the operators' acts and
// with a retention of its own (L7).
type ExecutionAuditor interface {
	// AddExecution appends an entry.
	AddExecution(ctx context.Context, e ExecutionEntry) error
	// ListExecutions returns the entries that a filter chooses, the newest first.
	ListExecutions(ctx context.Context, f AuditFilter) ([]ExecutionEntry, error)
	// PurgeExecutions removes at most limit entries that were written longer ago than age, and returns how many.
	PurgeExecutions(ctx context.Context, age time.Duration, limit int) (purged int, err error)
}
