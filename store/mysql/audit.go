package mysql

import (
	"context"
	"database/sql"
	"math"
	"time"

	"github.com/onceward/onceward/store"
)

const (
	insertAudit = `INSERT INTO @audit (hash, id, attempt, at, actor, action, reason, outcome)
		VALUES (?, ?, ?, @now, ?, ?, ?, ?)`
	selectAudit     = `SELECT e.id, e.at, e.attempt, e.actor, e.action, e.reason, e.outcome FROM @audit e WHERE `
	deleteAudit     = `DELETE FROM @audit WHERE at < @now - ? ORDER BY at LIMIT ?`
	insertExecution = `INSERT INTO @execution (hash, id, attempt, at, decision, origin, operation, actor)
		VALUES (?, ?, ?, @now, ?, ?, ?, ?)`
	selectExecutions = `SELECT e.id, e.at, e.attempt, e.decision, e.origin, e.operation, e.actor FROM @execution e WHERE `
	deleteExecution  = `DELETE FROM @execution WHERE at < @now - ? ORDER BY at LIMIT ?`
	// newestOfAll, newestOfOne and oldestOfOne are the ends of the SELECT
	// statements: for all IDs or for one, with the newest or the oldest entry first.
	newestOfAll = `e.at >= ? AND e.at < ? ORDER BY e.at DESC, e.number DESC LIMIT ?`
	newestOfOne = `e.hash = ? AND e.at >= ? AND e.at < ? ORDER BY e.at DESC, e.number DESC LIMIT ?`
	oldestOfOne = `e.hash = ? ORDER BY e.number`
)

// AddAudit implements [store.Auditor].
func (s *Store) AddAudit(ctx context.Context, e store.AuditEntry) error {
	hash := e.ID.HashBytes()
	return s.add(ctx, insertAudit, hash[:], e.ID.AppendBinary(nil), e.Attempt, []byte(e.Actor), []byte(e.Action),
		[]byte(e.Reason), []byte(e.Outcome))
}

// Audit implements [store.Auditor].
func (s *Store) Audit(ctx context.Context, id store.ID) ([]store.AuditEntry, error) {
	hash := id.HashBytes()
	return s.audit(ctx, selectAudit+oldestOfOne, hash[:])
}

// ListAudit implements [store.AuditLister].
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditEntry, error) {
	end, args := newest(&f)
	return s.audit(ctx, selectAudit+end, args...)
}

func (s *Store) audit(ctx context.Context, statement string, args ...any) (entries []store.AuditEntry, err error) {
	err = s.query(ctx, statement, args, func(rows *sql.Rows) error {
		var e store.AuditEntry
		var name []byte
		var at int64
		err := rows.Scan(&name, &at, &e.Attempt, &e.Actor, &e.Action, &e.Reason, &e.Outcome)
		if err == nil {
			e.ID, err = store.ParseID(name)
		}
		e.At = fromMicros(at)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

// newest returns the end of a statement that lists the entries chosen by a filter, and its arguments.
func newest(f *store.AuditFilter) (end string, args []any) {
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	if !f.Since.IsZero() {
		since = f.Since.UnixMicro()
	}
	if !f.Until.IsZero() {
		until = f.Until.UnixMicro()
	}
	args = []any{since, until, f.Page()}
	if f.ID == (store.ID{}) {
		return newestOfAll, args
	}
	hash := f.ID.HashBytes()
	return newestOfOne, append([]any{hash[:]}, args...)
}

// PurgeAudit implements [store.Auditor].
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteAudit, age, limit)
}

// AddExecution implements [store.ExecutionAuditor]. The entry is written on a connection of the store's own, so it is
// kept even if the handler's transaction is undone.
func (s *Store) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	hash := e.ID.HashBytes()
	return s.add(ctx, insertExecution, hash[:], e.ID.AppendBinary(nil), e.Attempt, int(e.Decision), int(e.Origin),
		[]byte(e.Operation), []byte(e.Actor))
}

// ListExecutions implements [store.ExecutionAuditor].
func (s *Store) ListExecutions(ctx context.Context, f store.AuditFilter) (entries []store.ExecutionEntry, err error) {
	end, args := newest(&f)
	err = s.query(ctx, selectExecutions+end, args, func(rows *sql.Rows) error {
		var e store.ExecutionEntry
		var name []byte
		var at int64
		err := rows.Scan(&name, &at, &e.Attempt, &e.Decision, &e.Origin, &e.Operation, &e.Actor)
		if err == nil {
			e.ID, err = store.ParseID(name)
		}
		e.At = fromMicros(at)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

// PurgeExecutions implements [store.ExecutionAuditor].
func (s *Store) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteExecution, age, limit)
}
