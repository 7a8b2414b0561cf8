package wrap

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// Sweep implements [store.Sweeper].
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	return query(ctx, s, "sweep", func(ctx context.Context, in store.Sweeper) (int, error) { return in.Sweep(ctx, limit) })
}

// Reap implements [store.Reaper].
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (int, error) {
	return query(ctx, s, "reap", func(ctx context.Context, in store.Reaper) (int, error) {
		return in.Reap(ctx, limit, soft)
	})
}

// ReapsItself implements [store.SelfReaper].
func (s *Store) ReapsItself() bool {
	in, ok := s.inside.(store.SelfReaper)
	return ok && in.ReapsItself()
}

// ResolveCompleted implements [store.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	return call(ctx, s, "resolve completed", func(ctx context.Context, in store.Reconciler) error {
		return in.ResolveCompleted(ctx, c, done)
	})
}

// ResolveNotExecuted implements [store.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return call(ctx, s, "resolve not executed", func(ctx context.Context, in store.Reconciler) error {
		return in.ResolveNotExecuted(ctx, c, reason)
	})
}

// ResolveStep implements [store.Reconciler].
func (s *Store) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return call(ctx, s, "resolve step", func(ctx context.Context, in store.Reconciler) error {
		return in.ResolveStep(ctx, c, p)
	})
}

// BeginReconcile implements [store.Reconciler].
func (s *Store) BeginReconcile(ctx context.Context, c store.Claim, count int, wait time.Duration) error {
	return call(ctx, s, "begin reconcile", func(ctx context.Context, in store.Reconciler) error {
		return in.BeginReconcile(ctx, c, count, wait)
	})
}

// Postpone implements [store.Reconciler].
func (s *Store) Postpone(ctx context.Context, c store.Claim, p store.Postponement) error {
	return call(ctx, s, "postpone", func(ctx context.Context, in store.Reconciler) error {
		return in.Postpone(ctx, c, p)
	})
}

// Requeue implements [store.Reconciler].
func (s *Store) Requeue(ctx context.Context, c store.Claim, reason string) error {
	return call(ctx, s, "requeue", func(ctx context.Context, in store.Reconciler) error {
		return in.Requeue(ctx, c, reason)
	})
}

// Bust implements [store.Buster].
func (s *Store) Bust(ctx context.Context, id store.ID, force bool) error {
	return call(ctx, s, "bust", func(ctx context.Context, in store.Buster) error { return in.Bust(ctx, id, force) })
}

// Rewrite implements [store.Rewriter].
func (s *Store) Rewrite(ctx context.Context, c store.Claim, from, to store.Content) error {
	return call(ctx, s, "rewrite", func(ctx context.Context, in store.Rewriter) error {
		return in.Rewrite(ctx, c, from, to)
	})
}

// Retain implements [store.Retainer].
func (s *Store) Retain(ctx context.Context, id store.ID, d time.Duration) (time.Time, error) {
	return query(ctx, s, "retain", func(ctx context.Context, in store.Retainer) (time.Time, error) {
		return in.Retain(ctx, id, d)
	})
}

// FindHash implements [store.Finder].
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	return query(ctx, s, "find hash", func(ctx context.Context, in store.Finder) (store.Record, error) {
		return in.FindHash(ctx, hash)
	})
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	return query(ctx, s, "find provider id", func(ctx context.Context, in store.Finder) ([]store.Record, error) {
		return in.FindProviderID(ctx, providerID)
	})
}

// List implements [store.Lister].
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	return query(ctx, s, "list", func(ctx context.Context, in store.Lister) ([]store.Record, error) {
		return in.List(ctx, f)
	})
}

// Stats implements [store.Lister].
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	return query(ctx, s, "stats", func(ctx context.Context, in store.Lister) (store.Stats, error) { return in.Stats(ctx) })
}

// AddLateCompletion implements [store.LateCompletionKeeper].
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	return call(ctx, s, "add late completion", func(ctx context.Context, in store.LateCompletionKeeper) error {
		return in.AddLateCompletion(ctx, late)
	})
}

// LateCompletions implements [store.LateCompletionKeeper].
func (s *Store) LateCompletions(ctx context.Context, id store.ID) ([]store.LateCompletion, error) {
	return query(ctx, s, "late completions",
		func(ctx context.Context, in store.LateCompletionKeeper) ([]store.LateCompletion, error) {
			return in.LateCompletions(ctx, id)
		})
}

// AddExternalEvent implements [store.ExternalEventKeeper].
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (bool, error) {
	return query(ctx, s, "add external event", func(ctx context.Context, in store.ExternalEventKeeper) (bool, error) {
		return in.AddExternalEvent(ctx, e)
	})
}

// ExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) ExternalEvents(ctx context.Context, f store.ExternalEventFilter) ([]store.ExternalEvent, error) {
	return query(ctx, s, "external events",
		func(ctx context.Context, in store.ExternalEventKeeper) ([]store.ExternalEvent, error) {
			return in.ExternalEvents(ctx, f)
		})
}

// PurgeExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return query(ctx, s, "purge external events", func(ctx context.Context, in store.ExternalEventKeeper) (int, error) {
		return in.PurgeExternalEvents(ctx, age, limit)
	})
}

// AddAudit implements [store.Auditor].
func (s *Store) AddAudit(ctx context.Context, e store.AuditEntry) error {
	return call(ctx, s, "add audit", func(ctx context.Context, in store.Auditor) error { return in.AddAudit(ctx, e) })
}

// Audit implements [store.Auditor].
func (s *Store) Audit(ctx context.Context, id store.ID) ([]store.AuditEntry, error) {
	return query(ctx, s, "audit", func(ctx context.Context, in store.Auditor) ([]store.AuditEntry, error) {
		return in.Audit(ctx, id)
	})
}

// PurgeAudit implements [store.Auditor].
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	return query(ctx, s, "purge audit", func(ctx context.Context, in store.Auditor) (int, error) {
		return in.PurgeAudit(ctx, age, limit)
	})
}

// ListAudit implements [store.AuditLister].
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditEntry, error) {
	return query(ctx, s, "list audit", func(ctx context.Context, in store.AuditLister) ([]store.AuditEntry, error) {
		return in.ListAudit(ctx, f)
	})
}

// AddExecution implements [store.ExecutionAuditor].
func (s *Store) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	return call(ctx, s, "add execution", func(ctx context.Context, in store.ExecutionAuditor) error {
		return in.AddExecution(ctx, e)
	})
}

// ListExecutions implements [store.ExecutionAuditor].
func (s *Store) ListExecutions(ctx context.Context, f store.AuditFilter) ([]store.ExecutionEntry, error) {
	return query(ctx, s, "list executions",
		func(ctx context.Context, in store.ExecutionAuditor) ([]store.ExecutionEntry, error) {
			return in.ListExecutions(ctx, f)
		})
}

// PurgeExecutions implements [store.ExecutionAuditor].
func (s *Store) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (int, error) {
	return query(ctx, s, "purge executions", func(ctx context.Context, in store.ExecutionAuditor) (int, error) {
		return in.PurgeExecutions(ctx, age, limit)
	})
}
