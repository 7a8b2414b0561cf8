package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

const (
	messageColumns = `id::text, due, created_at, origin_attempt, attempts, state, topic, aggregatetype, aggregateid, type,
		downstream_key, attributes, origin_scope, origin_key, payload, provider_id, last_error,
		answer`

	replayMessage = `UPDATE @delivery SET state = 0, due = @now(), attempts = 0, token = 0,
			answer = coalesce($2::bytea, answer)
		WHERE id = $1::uuid AND state IN (3, 5)`
	// dropMessage marks a dead letter as dropped with a token that no lease has: the message waits
	// for no decision any more.
	dropMessage = `UPDATE @delivery SET state = 5, token = -1 WHERE id = $1::uuid AND state IN (3, 5) RETURNING lane`

	// countMessages counts with the indexes that contain only open messages.
	countMessages = `SELECT
			(SELECT count(*) FROM @outbox WHERE number > 0) + (SELECT count(*) FROM @delivery WHERE state < 2)
				+ (SELECT count(*) FROM @delivery WHERE state = 2 AND state > 1),
			(SELECT count(*) FROM @delivery WHERE state IN (3, 5) AND state > 1 AND token >= 0),
			least((SELECT created_at FROM @outbox WHERE number > 0 ORDER BY number LIMIT 1),
				(SELECT min(created_at) FROM @delivery WHERE state < 2),
				(SELECT min(created_at) FROM @delivery WHERE state = 2 AND state > 1))`
)

// messageRow is a row of the outbox.
type messageRow struct {
	outbox.Entry
	due, created     int64
	state            int16
	attributes       string
	scope, key       []byte // of the origin
	provider, reason *string
}

// dest returns the destinations of the columns.
func (m *messageRow) dest() []any {
	return []any{
		&m.ID, &m.due, &m.created, &m.OriginAttempt, &m.Attempts, &m.state, &m.Topic, &m.AggregateType, &m.AggregateID,
		&m.Type,
		&m.DownstreamKey, &m.attributes, &m.scope, &m.key, &m.Payload, &m.provider, &m.reason,
		&m.Answer,
	}
}

// entry returns the row as an entry.
func (m *messageRow) entry() (outbox.Entry, error) {
	e := m.Entry
	e.State, e.Due, e.CreatedAt = outbox.State(m.state), fromMicros(m.due), fromMicros(m.created)
	var a attributes
	if err := json.Unmarshal([]byte(m.attributes), &a); err != nil {
		return e, fmt.Errorf("message %s: its attributes cannot be read: %w", e.ID, err)
	}
	e.ContentType, e.Source, e.Subject, e.Step, e.Headers = a.ContentType, a.Source, a.Subject, a.Step, a.Headers
	e.Origin = store.ID{Scope: string(m.scope), Key: string(m.key)}
	if m.provider != nil {
		e.ProviderID = *m.provider
	}
	if m.reason != nil {
		e.LastError = *m.reason
	}
	return e, nil
}

// Messages implements [outbox.Store]. A filter by ID, or for dead letters, uses an index, unless no worker has promoted
// the message yet. A filter by origin or downstream key reads all messages that are still kept, or the messages since a
// moment, unless the application has made an index for it.
func (s *Store) Messages(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	if f.ID != "" && !isUUID(f.ID) {
		return nil, nil // no message has such an ID
	}
	q := selectMessages(&f)
	read := func(row pgx.CollectableRow) (e outbox.Entry, err error) {
		var m messageRow
		if err := row.Scan(m.dest()...); err != nil {
			return e, err
		}
		if e, err = m.entry(); err != nil {
			e.LastError = err.Error() // it does not hide the others
		}
		return e, nil
	}
	entries, err := collect(ctx, s.own, s.render(q.text), q.args, read)
	return entries, unavailable(err)
}

// selectMessages returns the statement for a filter.
func selectMessages(f *outbox.Filter) selection {
	q := selection{text: `SELECT ` + messageColumns + ` FROM @message AS m`}
	if f.ID != "" {
		q.where("id = $%d::uuid", f.ID)
	}
	if f.Origin != (store.ID{}) {
		q.where("origin_scope = $%d", []byte(f.Origin.Scope))
		q.where("origin_key = $%d", []byte(f.Origin.Key))
	}
	if f.DownstreamKey != "" {
		q.where("downstream_key = $%d", f.DownstreamKey)
	}
	if f.ProviderID != "" {
		q.where("md5(provider_id) = md5($%d::text)", f.ProviderID)
		q.where("provider_id = $%d::text", f.ProviderID)
	}
	if f.Topic != "" {
		q.where("topic = $%d", f.Topic)
	}
	if len(f.States) > 0 {
		q.where("state IN (" + stateList(f.States) + ")")
	}
	if f.Undropped {
		q.where(`NOT EXISTS (SELECT FROM @delivery AS d WHERE d.id = m.id AND d.token < 0)`)
	}
	if first := f.FirstID(); first != "" {
		q.where("id >= $%d::uuid", first)
	}
	if f.After != "" {
		q.where("id > $%d::uuid", f.After)
	}
	if f.ID != "" {
		q.add(` LIMIT 1`) // without an order the second table is read only if necessary
		return q
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	q.add(` ORDER BY m.id LIMIT $%d`, limit)
	return q
}

// stateList returns states as text for a statement: only then the planner sees that an index covers them.
func stateList(states []outbox.State) string {
	texts := make([]string, len(states))
	for i, state := range states {
		texts[i] = fmt.Sprint(uint8(state))
	}
	return strings.Join(texts, ", ")
}

// ReplayMessage implements [outbox.Store].
func (s *Store) ReplayMessage(ctx context.Context, id string, answer []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	if !isUUID(id) {
		return noDeadLetter(id)
	}
	tag, err := s.own.Exec(ctx, s.render(replayMessage), id, answerOrNull(answer))
	if err == nil && tag.RowsAffected() == 0 {
		return noDeadLetter(id)
	}
	if err == nil {
		s.messages.Wake()
	}
	return unavailable(err)
}

// answerOrNull returns the answer as a parameter. An empty answer is NULL, which leaves the stored answer unchanged.
func answerOrNull(answer []byte) []byte {
	if len(answer) == 0 {
		return nil
	}
	return answer
}

// isUUID reports whether the server would accept the text as a UUID.
func isUUID(text string) bool { return new(pgtype.UUID).Scan(text) == nil }

func noDeadLetter(id string) error {
	return fmt.Errorf("postgres: there is no dead letter %s: %w", id, store.ErrNotFound)
}

// DropMessage implements [outbox.Store].
func (s *Store) DropMessage(ctx context.Context, id string) error {
	if err := s.writable(); err != nil {
		return err
	}
	if !isUUID(id) {
		return noDeadLetter(id)
	}
	var lane int64
	err := s.own.QueryRow(ctx, s.render(dropMessage), id).Scan(&lane)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return noDeadLetter(id)
	case err != nil:
		return unavailable(err)
	}
	s.freeLanes(ctx, []int64{lane})
	s.messages.Wake()
	return nil
}

// MessageStats implements [outbox.Store].
func (s *Store) MessageStats(ctx context.Context) (outbox.Stats, error) {
	if err := s.primary(ctx); err != nil {
		return outbox.Stats{}, err
	}
	var stats outbox.Stats
	var oldest *int64
	err := s.own.QueryRow(ctx, s.render(countMessages)).Scan(&stats.Waiting, &stats.DeadLetters, &oldest)
	if oldest != nil {
		stats.Oldest = time.UnixMicro(*oldest).UTC()
	}
	return stats, unavailable(err)
}
