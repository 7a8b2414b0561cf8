package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

const (
	// selectMessages reads the columns for scanMessage.
	selectMessages = `SELECT id, topic, aggregatetype, aggregateid, type, payload, attributes, origin, origin_attempt,
		downstream_key, created_at, state, due, attempts, COALESCE(provider_id, ''), COALESCE(last_error, ''), answer
		FROM @outbox`
	// The counts read an index of open messages, and not the messages.
	countWaiting = `SELECT COUNT(*), COALESCE(MIN(created_at), 0) FROM @outbox WHERE state IN (0, 1, 2)`
	countDead    = `SELECT COUNT(*) FROM @outbox WHERE state IN (3, 5) AND token >= 0`

	// Messages that are done or captured are found topic by topic, in the order of an index.
	selectDoneTopics = `SELECT DISTINCT state, topic FROM @outbox WHERE state IN (4, 6)`
	deleteMessages   = `DELETE FROM @outbox WHERE state = ? AND topic = ? AND due < @now - ? ORDER BY due LIMIT ?`
	// Locks that were not taken for that long are not needed: the next
	// transaction creates the row again, and draws larger numbers.
	selectOldLocks = `SELECT name FROM @lock WHERE number < @now - ? LIMIT ? FOR UPDATE SKIP LOCKED`
	deleteLocks    = `DELETE FROM @lock WHERE name IN `
)

// defaultPage is how many messages a filter without a limit returns.
const defaultPage = 100

// scanMessage reads a row of selectMessages. With damage the entry is as complete as it can be.
func scanMessage(rows *sql.Rows) (e outbox.Entry, damage, err error) {
	var more, origin []byte
	var created, due int64
	err = rows.Scan(&e.ID, &e.Topic, &e.AggregateType, &e.AggregateID, &e.Type, &e.Payload, &more, &origin,
		&e.OriginAttempt, &e.DownstreamKey, &created, &e.State, &due, &e.Attempts, &e.ProviderID, &e.LastError, &e.Answer)
	if err != nil {
		return e, nil, err
	}
	e.CreatedAt, e.Due = fromMicros(created), fromMicros(due)
	var a attributes
	if err := json.Unmarshal(more, &a); err != nil {
		damage = fmt.Errorf("%w: the attributes of message %s: %w", store.ErrUnreadable, e.ID, err)
	}
	e.ContentType, e.Source, e.Subject, e.Step, e.Headers = a.ContentType, a.Source, a.Subject, a.Step, a.Headers
	if origin != nil {
		if e.Origin, err = store.ParseID(origin); err != nil {
			damage = fmt.Errorf("%w: the origin of message %s: %w", store.ErrUnreadable, e.ID, err)
		}
	}
	return e, damage, nil
}

// Messages implements [outbox.Store]. A message that cannot be read has the reason in its LastError.
func (s *Store) Messages(ctx context.Context, f outbox.Filter) (entries []outbox.Entry, err error) {
	if err := errors.Join(s.ready(), left(ctx)); err != nil {
		return nil, err
	}
	query, args := messageQuery(f)
	err = s.with(ctx, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, s.renderOnce(query), args...)
		if err != nil {
			return err
		}
		entries = nil
		return eachRow(rows, func() error {
			e, damage, err := scanMessage(rows)
			if damage != nil {
				e.LastError = damage.Error()
			}
			entries = append(entries, e)
			return err
		})
	})
	return entries, unavailable(err)
}

// renderOnce is render for a statement that is made for one call. The result is not cached.
func (s *Store) renderOnce(statement string) string { return s.where.Load().names.render(statement) }

// messageQuery returns the statement for a page, in the order of IDs, which is the order of time. Origin and downstream
// key have no index: operators search for them, one at a time, and an index would slow down each message.
func messageQuery(f outbox.Filter) (text string, args []any) {
	conditions := []string{"TRUE"}
	restrict := func(condition string, values ...any) {
		conditions, args = append(conditions, condition), append(args, values...)
	}
	if f.ID != "" {
		restrict("id = ?", f.ID)
	}
	if f.After != "" {
		restrict("id > ?", f.After)
	}
	if f.Origin != (store.ID{}) {
		restrict("origin = ?", f.Origin.AppendBinary(nil))
	}
	if f.DownstreamKey != "" {
		restrict("downstream_key = ?", []byte(f.DownstreamKey))
	}
	if f.ProviderID != "" {
		restrict("provider_id = ?", []byte(f.ProviderID))
	}
	if f.Topic != "" {
		restrict("topic = ?", []byte(f.Topic))
	}
	if f.Undropped {
		restrict("token >= 0")
	}
	if first := f.FirstID(); first != "" {
		restrict("id >= ?", first)
	}
	if len(f.States) > 0 {
		values := make([]any, len(f.States))
		for i, state := range f.States {
			values[i] = int(state)
		}
		restrict("state IN "+marks(len(values)), values...)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	return selectMessages + ` WHERE ` + strings.Join(conditions, ` AND `) + ` ORDER BY id LIMIT ?`, append(args, limit)
}

// MessageStats implements [outbox.Store].
func (s *Store) MessageStats(ctx context.Context) (stats outbox.Stats, err error) {
	if err := errors.Join(s.ready(), left(ctx)); err != nil {
		return stats, err
	}
	err = s.with(ctx, func(conn *sql.Conn) error {
		var oldest int64
		err := conn.QueryRowContext(ctx, s.render(countWaiting)).Scan(&stats.Waiting, &oldest)
		if err != nil {
			return err
		}
		stats.Oldest = fromMicros(oldest)
		return conn.QueryRowContext(ctx, s.render(countDead)).Scan(&stats.DeadLetters)
	})
	return stats, unavailable(err)
}

// PurgeMessages implements [outbox.Store]. When no more messages are
// left to remove, it removes locks that were not taken for that long.
func (s *Store) PurgeMessages(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	if err := errors.Join(s.writable(), left(ctx)); err != nil || limit <= 0 {
		return 0, err
	}
	err = s.update(ctx, func(tx *sql.Tx) (err error) {
		purged, err = s.purgeMessages(ctx, tx, age, limit)
		return err
	})
	if err != nil || purged == limit {
		return purged, err
	}
	return purged, s.update(ctx, func(tx *sql.Tx) error { return s.purgeLocks(ctx, tx, max(age, minLockAge), limit) })
}

// minLockAge is how long locks are kept at least: if the clock
// steps back by less, no place is smaller than an earlier one.
const minLockAge = time.Hour

// doneTopic is a topic that has messages in a state: done or captured.
type doneTopic struct {
	state int
	topic []byte
}

func (s *Store) purgeMessages(ctx context.Context, tx *sql.Tx, age time.Duration, limit int) (purged int, err error) {
	rows, err := tx.QueryContext(ctx, s.render(selectDoneTopics))
	if err != nil {
		return 0, err
	}
	var topics []doneTopic
	err = eachRow(rows, func() error {
		var one doneTopic
		err := rows.Scan(&one.state, &one.topic)
		topics = append(topics, one)
		return err
	})
	for _, one := range topics {
		if err != nil || purged >= limit {
			break
		}
		var result sql.Result
		result, err = tx.ExecContext(ctx, s.render(deleteMessages), one.state, one.topic, age.Microseconds(), limit-purged)
		if err == nil {
			var n int64
			n, err = result.RowsAffected()
			purged += int(n)
		}
	}
	return purged, err
}

func (s *Store) purgeLocks(ctx context.Context, tx *sql.Tx, age time.Duration, limit int) error {
	rows, err := tx.QueryContext(ctx, s.render(selectOldLocks), age.Microseconds(), limit)
	if err != nil {
		return err
	}
	var names []any
	err = eachRow(rows, func() error {
		var name []byte
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	})
	if err != nil || len(names) == 0 {
		return err
	}
	_, err = tx.ExecContext(ctx, s.render(deleteLocks)+marks(len(names)), names...)
	return err
}
