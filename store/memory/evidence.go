package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// Store also implements these interfaces.
var (
	_ store.LateCompletionKeeper = (*Store)(nil)
	_ store.ExternalEventKeeper  = (*Store)(nil)
	_ store.Auditor              = (*Store)(nil)
	_ store.AuditLister          = (*Store)(nil)
	_ store.ExecutionAuditor     = (*Store)(nil)
)

// evidence is the content beside the records, in lists in the order of addition.
type evidence struct {
	lateCompletions map[store.ID][]store.LateCompletion
	events          []store.ExternalEvent
	audit           []store.AuditEntry
	executions      []store.ExecutionEntry
}

// kept returns a time with the precision that all stores have.
func kept(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// AddLateCompletion implements [store.LateCompletionKeeper].
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lateCompletions[late.ID] = append(s.lateCompletions[late.ID], late)
	return nil
}

// LateCompletions implements [store.LateCompletionKeeper].
func (s *Store) LateCompletions(ctx context.Context, id store.ID) ([]store.LateCompletion, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lateCompletions[id]), nil
}

// AddExternalEvent implements [store.ExternalEventKeeper].
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.AnyScope {
		e.Scope = ""
	}
	known := slices.ContainsFunc(s.events, func(other store.ExternalEvent) bool {
		return other.Source == e.Source && other.AnyScope == e.AnyScope && other.Scope == e.Scope &&
			other.EventID == e.EventID
	})
	if known {
		return false, nil
	}
	e.At, e.ReceivedAt = kept(e.At), kept(s.now())
	e.Body = bytes.Clone(e.Body)
	s.events = append(s.events, e)
	return true, nil
}

// ExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) ExternalEvents(ctx context.Context, f store.ExternalEventFilter) ([]store.ExternalEvent, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []store.ExternalEvent
	for _, e := range s.events {
		if e.Source == f.Source && e.MaySettle(f.Scope) && slices.Contains(f.Subjects, e.Subject) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b store.ExternalEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	})
	return found, nil
}

// PurgeExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events, purged = purge(s.events, s.now().Add(-age), limit,
		func(e *store.ExternalEvent) time.Time { return e.ReceivedAt })
	return purged, nil
}

// AddAudit implements [store.Auditor].
func (s *Store) AddAudit(ctx context.Context, e store.AuditEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At = kept(s.now())
	s.audit = append(s.audit, e)
	return nil
}

// Audit implements [store.Auditor].
func (s *Store) Audit(ctx context.Context, id store.ID) ([]store.AuditEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []store.AuditEntry
	for _, e := range s.audit {
		if e.ID == id {
			found = append(found, e)
		}
	}
	return found, nil
}

// PurgeAudit implements [store.Auditor].
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audit, purged = purge(s.audit, s.now().Add(-age), limit, func(e *store.AuditEntry) time.Time { return e.At })
	return purged, nil
}

// ListAudit implements [store.AuditLister].
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return newest(s.audit, &f, func(e *store.AuditEntry) (store.ID, time.Time) { return e.ID, e.At }), nil
}

// AddExecution implements [store.ExecutionAuditor].
func (s *Store) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At = kept(s.now())
	s.executions = append(s.executions, e)
	return nil
}

// ListExecutions implements [store.ExecutionAuditor].
func (s *Store) ListExecutions(ctx context.Context, f store.AuditFilter) ([]store.ExecutionEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return newest(s.executions, &f, func(e *store.ExecutionEntry) (store.ID, time.Time) { return e.ID, e.At }), nil
}

// PurgeExecutions implements [store.ExecutionAuditor].
func (s *Store) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.executions, purged = purge(s.executions, s.now().Add(-age), limit,
		func(e *store.ExecutionEntry) time.Time { return e.At })
	return purged, nil
}

// newest returns the entries of a list that a filter selects, last entries first.
func newest[T any](list []T, f *store.AuditFilter, about func(*T) (store.ID, time.Time)) (chosen []T) {
	for i := len(list) - 1; i >= 0 && len(chosen) < f.Page(); i-- {
		if id, at := about(&list[i]); f.Chooses(id, at) {
			chosen = append(chosen, list[i])
		}
	}
	return chosen
}

// purge removes at most limit entries from before a time, first entries first.
func purge[T any](list []T, before time.Time, limit int, at func(*T) time.Time) (rest []T, purged int) {
	rest = slices.DeleteFunc(list, func(one T) bool {
		old := purged < limit && at(&one).Before(before)
		if old {
			purged++
		}
		return old
	})
	return rest, purged
}
