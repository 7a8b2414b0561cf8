package mysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/onceward/onceward/inbox"
)

var _ inbox.Store = (*Store)(nil)

// The statements of the inbox.
const (
	// rememberEvent waits for another transaction that has recorded the same event and has not ended. The number of
	// affected rows depends on the settings of the connection, so the insert ID shows whether the row existed.
	rememberEvent = `INSERT INTO @inbox (event_id, consumer, applied_at) VALUES (?, ?, @now)
		ON DUPLICATE KEY UPDATE applied_at = IF(LAST_INSERT_ID(?), applied_at, applied_at)`
	selectEvents = `SELECT consumer, applied_at FROM @inbox WHERE event_id = ? ORDER BY consumer`
	purgeEvents  = `DELETE FROM @inbox WHERE applied_at < @now - ? ORDER BY applied_at LIMIT ?`
)

// found is the insert ID that means that the row already existed. No table counts that far.
const found int64 = 0x6f6e636577617264

// RememberEvent implements [inbox.Store].
func (s *Store) RememberEvent(ctx context.Context, tx *sql.Tx, consumer, eventID string) (first bool, err error) {
	if tx == nil {
		return false, errNoTx
	}
	if err := s.writable(); err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, s.render(rememberEvent), []byte(eventID), []byte(consumer), found)
	if err != nil {
		return false, err
	}
	id, err := result.LastInsertId()
	return id != found, err
}

// PurgeEvents implements [inbox.Store].
func (s *Store) PurgeEvents(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	if err := errors.Join(s.writable(), left(ctx)); err != nil || limit <= 0 {
		return 0, err
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.render(purgeEvents), age.Microseconds(), limit)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		purged = int(n)
		return err
	})
	return purged, err
}

// ConsumedEvents implements [inbox.Store].
func (s *Store) ConsumedEvents(ctx context.Context, eventID string) (had []inbox.Consumption, err error) {
	if err := errors.Join(s.ready(), left(ctx)); err != nil {
		return nil, err
	}
	err = s.with(ctx, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, s.render(selectEvents), []byte(eventID))
		if err != nil {
			return err
		}
		had = nil
		return eachRow(rows, func() error {
			var at int64
			one := inbox.Consumption{EventID: eventID}
			err := rows.Scan(&one.Consumer, &at)
			one.At = fromMicros(at)
			had = append(had, one)
			return err
		})
	})
	return had, unavailable(err)
}
