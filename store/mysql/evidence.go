package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// The statements about what is kept beside the records. Each goes by an index.
const (
	insertLateCompletion = `INSERT INTO @late_completion (hash, id, attempt, at, record) VALUES (?, ?, ?, ?, ?)`
	selectLateCompletion = `SELECT e.attempt, e.at, e.record FROM @late_completion e WHERE e.hash = ?
		ORDER BY e.at, e.number`
	deleteLateCompletion = `DELETE FROM @late_completion WHERE at <= @now - ? ORDER BY at LIMIT ?`

	insertExternalEvent = `INSERT INTO @external_event
		(identity, about, source, any_scope, scope, event_id, subject, at, received_at, body)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, @now, ?)`
	selectExternalEvent = `SELECT e.source, e.any_scope, e.scope, e.event_id, e.subject, e.at, e.received_at, e.body
		FROM @external_event e WHERE e.about IN (`
	deleteExternalEvent = `DELETE FROM @external_event WHERE received_at < @now - ? ORDER BY received_at LIMIT ?`

	insertAudit = `INSERT INTO @audit (hash, id, attempt, at, actor, action, reason, outcome)
		VALUES (?, ?, ?, @now, ?, ?, ?, ?)`
	selectAudit = `SELECT e.id, e.at, e.attempt, e.actor, e.action, e.reason, e.outcome FROM @audit e WHERE `
	deleteAudit = `DELETE FROM @audit WHERE at < @now - ? ORDER BY at LIMIT ?`

	insertExecution = `INSERT INTO @execution (hash, id, attempt, at, decision, origin, operation, actor)
		VALUES (?, ?, ?, @now, ?, ?, ?, ?)`
	selectExecutions = `SELECT e.id, e.at, e.attempt, e.decision, e.origin, e.operation, e.actor FROM @execution e WHERE `
	deleteExecution  = `DELETE FROM @execution WHERE at < @now - ? ORDER BY at LIMIT ?`

	// The ends of the statements that list: with an ID and without one, the newest first.
	newestOfAll = `e.at >= ? AND e.at < ? ORDER BY e.at DESC, e.number DESC LIMIT ?`
	newestOfOne = `e.hash = ? AND e.at >= ? AND e.at < ? ORDER BY e.at DESC, e.number DESC LIMIT ?`
	oldestOfOne = `e.hash = ? ORDER BY e.number`
)

// lateCompletionRetention is how long a refused completion is kept as evidence.
const lateCompletionRetention = 90 * 24 * time.Hour

// AddLateCompletion implements [store.LateCompletionKeeper].
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	rec := store.Record{
		ID: late.ID, Version: store.RecordVersion, State: store.StateCompleted, Attempt: late.Attempt,
		Response: late.Response,
	}
	hash := late.ID.HashBytes()
	return s.add(ctx, insertLateCompletion, hash[:], late.ID.AppendBinary(nil), late.Attempt, micros(late.At),
		rec.AppendBinary(nil))
}

// LateCompletions implements [store.LateCompletionKeeper].
func (s *Store) LateCompletions(ctx context.Context, id store.ID) (found []store.LateCompletion, err error) {
	hash := id.HashBytes()
	err = s.query(ctx, selectLateCompletion, []any{hash[:]}, func(rows *sql.Rows) error {
		var at int64
		var record []byte
		late := store.LateCompletion{Claim: store.Claim{ID: id}}
		if err := rows.Scan(&late.Attempt, &at, &record); err != nil {
			return err
		}
		rec, err := store.DecodeRecord(id, record)
		late.Response, late.At = rec.Response, fromMicros(at)
		found = append(found, late)
		return err
	})
	return found, err
}

// AddExternalEvent implements [store.ExternalEventKeeper].
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (bool, error) {
	if e.AnyScope {
		e.Scope = ""
	}
	identity, about := eventHash(&e, e.EventID), eventHash(&e, e.Subject)
	err := s.add(ctx, insertExternalEvent, identity[:], about[:], []byte(e.Source), e.AnyScope, []byte(e.Scope),
		[]byte(e.EventID), []byte(e.Subject), micros(e.At), notNull(e.Body))
	if duplicate(err) {
		return false, nil
	}
	return err == nil, err
}

// eventHash names what is known by the source and the scope of an event, and a text of its own.
func eventHash(e *store.ExternalEvent, text string) [32]byte {
	var b []byte
	for _, part := range []string{e.Source, e.Scope, text} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	if e.AnyScope {
		b = append(b, 1)
	}
	return sha256.Sum256(b)
}

// ExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) ExternalEvents(
	ctx context.Context, f store.ExternalEventFilter,
) (events []store.ExternalEvent, err error) {
	var about []any
	for _, subject := range slices.Compact(slices.Sorted(slices.Values(f.Subjects))) {
		for _, like := range []store.ExternalEvent{
			{Source: f.Source, Scope: f.Scope},
			{Source: f.Source, AnyScope: true},
		} {
			hash := eventHash(&like, subject)
			about = append(about, hash[:])
		}
	}
	if len(about) == 0 {
		return nil, nil
	}
	statement := selectExternalEvent + strings.Repeat("?, ", len(about)-1) + "?)"
	err = s.query(ctx, statement, about, func(rows *sql.Rows) error {
		var e store.ExternalEvent
		var at, receivedAt int64
		err := rows.Scan(&e.Source, &e.AnyScope, &e.Scope, &e.EventID, &e.Subject, &at, &receivedAt, &e.Body)
		e.At, e.ReceivedAt, e.Body = fromMicros(at), fromMicros(receivedAt), nullable(e.Body)
		events = append(events, e)
		return err
	})
	slices.SortFunc(events, func(a, b store.ExternalEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	})
	return events, err
}

// PurgeExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteExternalEvent, age, limit)
}

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

// newest is the end of a statement that lists the entries which a filter chooses, and its arguments.
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

// AddExecution implements [store.ExecutionAuditor]. The entry is written on a connection of the store's own, so that it
// stays whatever becomes of a transaction.
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

// add inserts a row of evidence.
func (s *Store) add(ctx context.Context, statement string, args ...any) error {
	if err := s.writable(); err != nil {
		return err
	}
	if err := left(ctx); err != nil {
		return err
	}
	_, err := s.execAgain(ctx, statement, args...)
	return unavailable(err)
}

// purge removes at most limit rows that are older than age.
func (s *Store) purge(ctx context.Context, statement string, age time.Duration, limit int) (int, error) {
	if err := s.writable(); err != nil || limit <= 0 {
		return 0, err
	}
	result, err := s.execAgain(ctx, statement, age.Microseconds(), limit)
	if err != nil {
		return 0, unavailable(err)
	}
	n, err := result.RowsAffected()
	return int(n), unavailable(err)
}

// notNull is an empty value for none.
func notNull(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
