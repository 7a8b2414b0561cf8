package sqlite

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/store"
)

// The statements for late completions and external events. Each uses an index.
const (
	insertLateCompletion = `INSERT INTO onceward_late_completion (id, record, attempt, at) VALUES (?1, ?2, ?3, ?4)`
	selectLateCompletion = `SELECT attempt, at, record FROM onceward_late_completion WHERE id = ?1 ORDER BY at, rowid`
	deleteLateCompletion = `DELETE FROM onceward_late_completion WHERE at <= ?1`

	insertExternalEvent = `INSERT INTO onceward_external_event
		(source, scope, event_id, subject, body, any_scope, at, received_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (source, any_scope, scope, event_id) DO NOTHING`
	selectExternalEvent = `SELECT event_id, body, at, received_at FROM onceward_external_event
		WHERE source = ?1 AND subject = ?2 AND scope = ?3 AND any_scope = ?4`
	deleteExternalEvent = `DELETE FROM onceward_external_event WHERE rowid IN
		(SELECT rowid FROM onceward_external_event WHERE received_at < ?1 ORDER BY received_at LIMIT ?2)`
)

// lateCompletionRetention is how long a refused completion is kept as evidence.
const lateCompletionRetention = 90 * 24 * time.Hour

// AddLateCompletion implements [store.LateCompletionKeeper].
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	rec := store.Record{
		ID: late.ID, Version: store.RecordVersion, State: store.StateCompleted, Attempt: late.Attempt,
		Response: late.Response,
	}
	return s.writer.do(ctx, newFunction(func(r *records, _ time.Time) error {
		return r.run(insertLateCompletion,
			[]any{late.ID.AppendBinary(nil), rec.AppendBinary(nil), late.Attempt, micros(late.At)}, nil)
	}))
}

// LateCompletions implements [store.LateCompletionKeeper].
func (s *Store) LateCompletions(ctx context.Context, id store.ID) (lateCompletions []store.LateCompletion, err error) {
	err = s.readers.with(ctx, func(one *reader) error {
		return query(one.conn, selectLateCompletion, []any{id.AppendBinary(nil)}, func(stmt *sqlite3.Stmt) error {
			rec, err := store.DecodeRecord(id, stmt.ColumnRawBlob(2))
			lateCompletions = append(lateCompletions, store.LateCompletion{
				Claim:    store.Claim{ID: id, Attempt: stmt.ColumnInt64(0)},
				Response: rec.Response,
				At:       timeOf(stmt, 1),
			})
			return err
		})
	})
	return lateCompletions, err
}

// AddExternalEvent implements [store.ExternalEventKeeper].
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (bool, error) {
	if e.AnyScope {
		e.Scope = ""
	}
	return write(ctx, s.writer, func(r *records, now time.Time) (added bool, err error) {
		return r.changes(
			insertExternalEvent, []byte(e.Source), []byte(e.Scope), []byte(e.EventID), []byte(e.Subject), e.Body,
			e.AnyScope, micros(e.At), micros(now),
		)
	})
}

// ExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) ExternalEvents(
	ctx context.Context, f store.ExternalEventFilter,
) (events []store.ExternalEvent, err error) {
	subjects := slices.Compact(slices.Sorted(slices.Values(f.Subjects)))
	err = s.readers.with(ctx, func(one *reader) error {
		for _, subject := range subjects {
			for _, like := range []store.ExternalEvent{
				{Source: f.Source, Subject: subject, Scope: f.Scope},
				{Source: f.Source, Subject: subject, AnyScope: true},
			} {
				found, err := externalEventsLike(one.conn, like)
				if err != nil {
					return err
				}
				events = append(events, found...)
			}
		}
		return nil
	})
	slices.SortFunc(events, func(a, b store.ExternalEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	})
	return events, err
}

// externalEventsLike returns the events with the source, the subject and the scope of e.
func externalEventsLike(conn *sqlite3.Conn, e store.ExternalEvent) (events []store.ExternalEvent, err error) {
	args := []any{[]byte(e.Source), []byte(e.Subject), []byte(e.Scope), e.AnyScope}
	err = query(conn, selectExternalEvent, args, func(stmt *sqlite3.Stmt) error {
		e.EventID, e.Body = string(stmt.ColumnRawBlob(0)), stmt.ColumnBlob(1, nil)
		e.At, e.ReceivedAt = timeOf(stmt, 2), timeOf(stmt, 3)
		events = append(events, e)
		return nil
	})
	return events, err
}

// PurgeExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteExternalEvent, age, limit)
}

// purge deletes at most limit rows that are older than age.
func (s *Store) purge(ctx context.Context, statement string, age time.Duration, limit int) (int, error) {
	return write(ctx, s.writer, func(r *records, now time.Time) (int, error) {
		err := r.run(statement, []any{micros(now.Add(-age)), max(limit, 0)}, nil) // a negative limit means no limit
		return int(r.conn.Changes()), err
	})
}
