package sqlite

import (
	"context"
	"math"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/store"
)

const (
	insertAudit = `INSERT INTO onceward_audit (id, actor, action, reason, outcome, attempt, at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`
	selectAudit = `SELECT actor, action, reason, outcome, attempt, at FROM onceward_audit WHERE id = ?1 ORDER BY number`
	deleteAudit = `DELETE FROM onceward_audit WHERE number IN
		(SELECT number FROM onceward_audit WHERE at < ?1 ORDER BY at LIMIT ?2)`
	listAudit       = `SELECT id, at, attempt, actor, action, reason, outcome FROM onceward_audit `
	insertExecution = `INSERT INTO onceward_execution (id, attempt, decision, origin, operation, actor, at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`
	listExecutions  = `SELECT id, at, attempt, decision, origin, operation, actor FROM onceward_execution `
	deleteExecution = `DELETE FROM onceward_execution WHERE number IN
		(SELECT number FROM onceward_execution WHERE at < ?1 ORDER BY at LIMIT ?2)`
	// newestOfAll and newestOfOne are the ends of the SELECT statements,
	// without an ID and with one. The newest entry comes first.
	newestOfAll = `WHERE at >= ?1 AND at < ?2 ORDER BY at DESC, number DESC LIMIT ?3`
	newestOfOne = `WHERE at >= ?1 AND at < ?2 AND id = ?4 ORDER BY at DESC, number DESC LIMIT ?3`
)

// AddAudit implements [store.Auditor].
func (s *Store) AddAudit(ctx context.Context, e store.AuditEntry) error {
	return s.writer.do(ctx, newFunction(func(r *records, now time.Time) error {
		return r.run(insertAudit, []any{
			e.ID.AppendBinary(nil), []byte(e.Actor), []byte(e.Action), []byte(e.Reason), []byte(e.Outcome), e.Attempt,
			micros(now),
		}, nil)
	}))
}

// Audit implements [store.Auditor].
func (s *Store) Audit(ctx context.Context, id store.ID) (entries []store.AuditEntry, err error) {
	err = s.readers.with(ctx, func(one *reader) error {
		return query(one.conn, selectAudit, []any{id.AppendBinary(nil)}, func(stmt *sqlite3.Stmt) error {
			entries = append(entries, store.AuditEntry{
				ID: id, Actor: string(stmt.ColumnRawBlob(0)), Action: string(stmt.ColumnRawBlob(1)),
				Reason: string(stmt.ColumnRawBlob(2)), Outcome: string(stmt.ColumnRawBlob(3)),
				Attempt: stmt.ColumnInt64(4), At: timeOf(stmt, 5),
			})
			return nil
		})
	})
	return entries, err
}

// PurgeAudit implements [store.Auditor].
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteAudit, age, limit)
}

// ListAudit implements [store.AuditLister].
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter) (entries []store.AuditEntry, err error) {
	err = s.listNewest(ctx, listAudit, &f, func(stmt *sqlite3.Stmt, id store.ID) {
		entries = append(entries, store.AuditEntry{
			ID: id, At: timeOf(stmt, 1), Attempt: stmt.ColumnInt64(2), Actor: string(stmt.ColumnRawBlob(3)),
			Action: string(stmt.ColumnRawBlob(4)), Reason: string(stmt.ColumnRawBlob(5)),
			Outcome: string(stmt.ColumnRawBlob(6)),
		})
	})
	return entries, err
}

// listNewest reads the entries of an audit that a filter chooses, the newest first.
func (s *Store) listNewest(
	ctx context.Context, text string, f *store.AuditFilter, each func(stmt *sqlite3.Stmt, id store.ID),
) error {
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	if !f.Since.IsZero() {
		since = f.Since.UnixMicro()
	}
	if !f.Until.IsZero() {
		until = f.Until.UnixMicro()
	}
	args := []any{since, until, f.Page()}
	if f.ID == (store.ID{}) {
		text += newestOfAll
	} else {
		text += newestOfOne
		args = append(args, f.ID.AppendBinary(nil))
	}
	return s.readers.with(ctx, func(one *reader) error {
		return query(one.conn, text, args, func(stmt *sqlite3.Stmt) error {
			id, err := store.ParseID(stmt.ColumnRawBlob(0))
			each(stmt, id)
			return err
		})
	})
}

// AddExecution implements [store.ExecutionAuditor]. If the transaction of a handler calls it, that transaction has the
// turn of the only writer, so the entry is written at the end of the turn. It is stored even if the work is undone. If
// it cannot be stored, the transaction is not stored either.
func (s *Store) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	if answer, _ := store.Value(ctx, answerKey{}).(*answerMessages); answer != nil && answer.store == s {
		return answer.addExecution(&e)
	}
	return s.writer.do(ctx, newFunction(func(r *records, now time.Time) error { return r.addExecution(&e, now) }))
}

func (r *records) addExecution(e *store.ExecutionEntry, now time.Time) error {
	return r.run(insertExecution, []any{
		e.ID.AppendBinary(nil), e.Attempt, int(e.Decision), int(e.Origin), []byte(e.Operation), []byte(e.Actor), micros(now),
	}, nil)
}

// ListExecutions implements [store.ExecutionAuditor].
func (s *Store) ListExecutions(ctx context.Context, f store.AuditFilter) (entries []store.ExecutionEntry, err error) {
	err = s.listNewest(ctx, listExecutions, &f, func(stmt *sqlite3.Stmt, id store.ID) {
		entries = append(entries, store.ExecutionEntry{
			ID: id, At: timeOf(stmt, 1), Attempt: stmt.ColumnInt64(2), Decision: store.Decision(stmt.ColumnInt(3)),
			Origin: store.Origin(stmt.ColumnInt(4)), Operation: string(stmt.ColumnRawBlob(5)),
			Actor: string(stmt.ColumnRawBlob(6)),
		})
	})
	return entries, err
}

// PurgeExecutions implements [store.ExecutionAuditor].
func (s *Store) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteExecution, age, limit)
}
