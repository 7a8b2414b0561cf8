package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

const (
	insertAudit = `INSERT INTO @audit (id, scope, key, attempt, actor, action, reason, outcome, at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, @now())`
	selectAudit     = `SELECT scope, key, at, attempt, actor, action, reason, outcome FROM @audit`
	auditOf         = selectAudit + ` WHERE id = $1 ORDER BY number`
	purgeAudit      = `SELECT @purge('audit', $1, $2)`
	insertExecution = `INSERT INTO @execution (id, scope, key, attempt, decision, origin, operation, actor, at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, @now())`
	listExecutions  = `SELECT scope, key, at, attempt, decision, origin, operation, actor FROM @execution`
	purgeExecutions = `SELECT @purge('execution', $1, $2)`
)

// AddAudit implements [store.Auditor].
func (s *Store) AddAudit(ctx context.Context, e store.AuditEntry) error {
	if err := s.writable(); err != nil {
		return err
	}
	_, err := s.own.Exec(ctx, s.render(insertAudit), s.hash(e.ID), []byte(e.Scope), []byte(e.Key), e.Attempt,
		[]byte(e.Actor), []byte(e.Action), []byte(e.Reason), []byte(e.Outcome))
	return unavailable(err)
}

// Audit implements [store.Auditor].
func (s *Store) Audit(ctx context.Context, id store.ID) ([]store.AuditEntry, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	entries, err := collect(ctx, s.own, s.render(auditOf), []any{s.hash(id)}, scanAudit)
	return entries, unavailable(err)
}

// PurgeAudit implements [store.Auditor] with the SQL function that a scheduler may also call.
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, purgeAudit, age, limit)
}

// ListAudit implements [store.AuditLister].
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditEntry, error) {
	return listNewest(ctx, s, selectAudit, &f, scanAudit)
}

// scanAudit reads a row of selectAudit.
func scanAudit(row pgx.CollectableRow) (e store.AuditEntry, err error) {
	var scope, key, actor, action, reason, outcome []byte
	var at int64
	err = row.Scan(&scope, &key, &at, &e.Attempt, &actor, &action, &reason, &outcome)
	e.Actor, e.Action, e.Reason, e.Outcome = string(actor), string(action), string(reason), string(outcome)
	e.At = fromMicros(at)
	e.ID = store.ID{Scope: string(scope), Key: string(key)}
	return e, err
}

// listNewest reads the audit entries that match a filter, the newest first.
func listNewest[T any](
	ctx context.Context, s *Store, statement string, f *store.AuditFilter, read pgx.RowToFunc[T],
) ([]T, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	q := selection{text: statement}
	if f.ID != (store.ID{}) {
		q.where("id = $%d", s.hash(f.ID))
	}
	if !f.Since.IsZero() {
		q.where("at >= $%d", f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		q.where("at < $%d", f.Until.UnixMicro())
	}
	q.add(` ORDER BY at DESC, number DESC LIMIT $%d`, f.Page())
	entries, err := collect(ctx, s.own, s.render(q.text), q.args, read)
	return entries, unavailable(err)
}

// AddExecution implements [store.ExecutionAuditor].
func (s *Store) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	if err := s.writable(); err != nil {
		return err
	}
	_, err := s.own.Exec(ctx, s.render(insertExecution), s.hash(e.ID), []byte(e.Scope), []byte(e.Key), e.Attempt,
		int16(e.Decision), int16(e.Origin), []byte(e.Operation), []byte(e.Actor))
	return unavailable(err)
}

// ListExecutions implements [store.ExecutionAuditor].
func (s *Store) ListExecutions(ctx context.Context, f store.AuditFilter) ([]store.ExecutionEntry, error) {
	return listNewest(ctx, s, listExecutions, &f, func(row pgx.CollectableRow) (e store.ExecutionEntry, err error) {
		var scope, key, operation, actor []byte
		var at int64
		var decision, origin int16
		if err := row.Scan(&scope, &key, &at, &e.Attempt, &decision, &origin, &operation, &actor); err != nil {
			return e, err
		}
		e.Decision, e.Origin = store.Decision(decision), store.Origin(origin)
		e.Operation, e.Actor, e.At = string(operation), string(actor), fromMicros(at)
		e.ID = store.ID{Scope: string(scope), Key: string(key)}
		return e, nil
	})
}

// PurgeExecutions implements [store.ExecutionAuditor] with the SQL function that a scheduler may also call.
func (s *Store) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, purgeExecutions, age, limit)
}
