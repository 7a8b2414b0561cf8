package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// The statements for late completions and external events. Each uses an index.
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

// eventHash returns the hash of an event's source and scope and a text.
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

// notNull returns an empty value in place of nil.
func notNull(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
