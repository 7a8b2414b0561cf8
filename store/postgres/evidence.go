package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// The statements for late completions and external events. Texts from outside are looked up by their hashes, because
// the length of an index entry is limited.
const (
	insertLateCompletion = `INSERT INTO @late_completion (id, attempt, at, status, not_stored, content_type, header, body)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
	selectLateCompletion = `SELECT attempt, at, status, not_stored, content_type, header, body FROM @late_completion
		WHERE id = $1 ORDER BY at`

	insertExternalEvent = `INSERT INTO @external_event (source, any_scope, scope, event_id, subject, at, received_at, body)
		VALUES ($1, $2, $3, $4, $5, $6, @now(), $7)
		ON CONFLICT (sha256(source), any_scope, sha256(scope), sha256(event_id)) DO NOTHING`
	selectExternalEvent = `SELECT any_scope, scope, event_id, subject, at, received_at, body FROM @external_event
		WHERE sha256(source) = sha256($1) AND sha256(subject) = ANY (ARRAY(SELECT sha256(s) FROM unnest($2::bytea[]) AS s))
			AND (any_scope OR sha256(scope) = sha256($3))
		ORDER BY at, event_id`
	purgeExternalEvents = `SELECT @purge('external_event', $1, $2)`
)

// AddLateCompletion implements [store.LateCompletionKeeper].
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	if err := s.writable(); err != nil {
		return err
	}
	var r row
	r.encodeAnswer(&late.Response)
	_, err := s.own.Exec(ctx, s.render(insertLateCompletion),
		s.hash(late.ID), late.Attempt, micros(late.At), r.status,
		late.Response.NotStored, r.contentType, r.header, r.body)
	return unavailable(err)
}

// LateCompletions implements [store.LateCompletionKeeper].
func (s *Store) LateCompletions(ctx context.Context, id store.ID) ([]store.LateCompletion, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	read := func(one pgx.CollectableRow) (late store.LateCompletion, err error) {
		var r row
		if err := one.Scan(&r.attempt, &r.due, &r.status, &r.notStored, &r.contentType, &r.header, &r.body); err != nil {
			return late, err
		}
		late.ID, late.Attempt, late.At = id, r.attempt, fromMicros(r.due)
		late.Response, err = r.decodeAnswer()
		return late, err
	}
	lateCompletions, err := collect(ctx, s.own, s.render(selectLateCompletion), []any{s.hash(id)}, read)
	return lateCompletions, notFoundAsIs(err)
}

// AddExternalEvent implements [store.ExternalEventKeeper].
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (added bool, err error) {
	if err := s.writable(); err != nil {
		return false, err
	}
	if e.AnyScope {
		e.Scope = ""
	}
	anyScope := []byte{0}
	if e.AnyScope {
		anyScope[0] = 1
	}
	body := append([]byte{}, e.Body...) // nil would be null
	warned := false
	err = repeatUndone(ctx, func() error {
		return s.own.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			trip := pipeline{conn: conn.Conn(), unnamed: true}
			trip.add(&statement{text: s.render(insertExternalEvent)}, []byte(e.Source), anyScope, []byte(e.Scope),
				[]byte(e.EventID), []byte(e.Subject), trip.int64(micros(e.At)), body)
			tag, err := trip.run(sqltx.Undisturbed(ctx, settleTimeout), func(int, [][]byte) error { return nil })
			added, warned = string(tag) == "INSERT 0 1", trip.warned
			return err
		})
	})
	if err == nil && (warned || !added) {
		err = replicated(ctx, s.asking) // this call, or the call that added it, may have been cut off from the standbys
	}
	return added, unavailable(err)
}

// ExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) ExternalEvents(ctx context.Context, f store.ExternalEventFilter) ([]store.ExternalEvent, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	asked := make([][]byte, len(f.Subjects))
	for i, subject := range f.Subjects {
		asked[i] = []byte(subject)
	}
	args := []any{[]byte(f.Source), asked, []byte(f.Scope)}
	read := func(row pgx.CollectableRow) (store.ExternalEvent, error) {
		e := store.ExternalEvent{Source: f.Source}
		var scope, event, subject []byte
		var at, received int64
		err := row.Scan(&e.AnyScope, &scope, &event, &subject, &at, &received, &e.Body)
		e.Scope, e.EventID, e.Subject = string(scope), string(event), string(subject)
		e.At, e.ReceivedAt = fromMicros(at), fromMicros(received)
		return e, err
	}
	externals, err := collect(ctx, s.own, s.render(selectExternalEvent), args, read)
	return externals, unavailable(err)
}

// PurgeExternalEvents implements [store.ExternalEventKeeper] with the SQL function that a scheduler may also call.
func (s *Store) PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, purgeExternalEvents, age, limit)
}

// purge deletes at most limit rows that are older than age.
func (s *Store) purge(ctx context.Context, statement string, age time.Duration, limit int) (purged int, err error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	err = s.own.QueryRow(ctx, s.render(statement), age, max(limit, 0)).Scan(&purged)
	return purged, unavailable(err)
}
