package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/inbox"
)

// The statements of the inbox. insertEvent goes through the
// handler's transaction, where the gate recognises it by its text.
const (
	insertEvent = `INSERT INTO onceward_inbox (event_id, consumer, applied_at) VALUES (?1, ?2, ?3)
		ON CONFLICT (event_id, consumer) DO NOTHING`
	selectEvent = `SELECT consumer, applied_at FROM onceward_inbox WHERE event_id = ?1 ORDER BY consumer`
	deleteEvent = `DELETE FROM onceward_inbox WHERE (event_id, consumer) IN
		(SELECT event_id, consumer FROM onceward_inbox WHERE applied_at < ?1 ORDER BY applied_at LIMIT ?2)`
)

// RememberEvent implements [inbox.Store]. Only one transaction writes
// at a time, so no other transaction can be recording the same event.
func (s *Store) RememberEvent(ctx context.Context, tx *sql.Tx, consumer, eventID string) (bool, error) {
	if tx == nil {
		return false, errNoTx
	}
	result, err := tx.ExecContext(ctx, insertEvent, []byte(eventID), []byte(consumer), micros(s.now()))
	if err != nil {
		return false, unavailable(fmt.Errorf("remember an event: %w", err))
	}
	n, err := result.RowsAffected()
	return n == 1, unavailable(err)
}

// PurgeEvents implements [inbox.Store].
func (s *Store) PurgeEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteEvent, age, limit)
}

// ConsumedEvents implements [inbox.Store].
func (s *Store) ConsumedEvents(ctx context.Context, eventID string) (consumed []inbox.Consumption, err error) {
	err = s.readers.with(ctx, func(one *reader) error {
		return query(one.conn, selectEvent, []any{[]byte(eventID)}, func(stmt *sqlite3.Stmt) error {
			consumed = append(consumed, inbox.Consumption{
				Consumer: string(stmt.ColumnRawBlob(0)), EventID: eventID, At: timeOf(stmt, 1),
			})
			return nil
		})
	})
	return consumed, err
}
