package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/inbox"
)

const (
	// rememberEvent waits for another transaction that has noted the same and has not ended.
	rememberEvent = `INSERT INTO @inbox (applied_at, event_id, consumer) VALUES (@now(), $1, $2) ON CONFLICT (event_id, consumer) DO NOTHING`
	selectEvents  = `SELECT consumer, applied_at FROM @inbox WHERE event_id = $1 ORDER BY consumer`
	purgeEvents   = `SELECT @purge_inbox($1, $2)`
)

// RememberEvent implements [inbox.Store].
func (s *Store) RememberEvent(ctx context.Context, tx *sql.Tx, consumer, eventID string) (first bool, err error) {
	app, err := ofSQL(tx)
	if err != nil {
		return false, err
	}
	return s.remember(ctx, app, consumer, eventID)
}

// ApplyEvent is [inbox.Inbox.Do] in a transaction of pgx, such as [Tx] gives. The inbox is over a store of this package.
func ApplyEvent(ctx context.Context, box *inbox.Inbox, tx pgx.Tx, consumer, eventID string, fn func(ctx context.Context) error) (applied bool, err error) {
	s, ok := box.Store().(*Store)
	if !ok {
		return false, fmt.Errorf("postgres: the inbox is over a %T, and not over a store of this package", box.Store())
	}
	app, err := ofPgx(tx)
	if err != nil {
		return false, err
	}
	if err := inbox.CheckNames(consumer, eventID); err != nil {
		return false, err
	}
	first, err := s.remember(ctx, app, consumer, eventID)
	if err != nil || !first {
		return false, err
	}
	return true, fn(ctx)
}

// remember notes an event, and reports whether it is new.
func (s *Store) remember(ctx context.Context, app appTx, consumer, eventID string) (first bool, err error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	written, err := app.exec(ctx, s.sql.remember, []byte(eventID), []byte(consumer))
	return written == 1, err
}

// PurgeEvents implements [inbox.Store], by the SQL function that a scheduler may call too.
func (s *Store) PurgeEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, purgeEvents, age, limit)
}

// ConsumedEvents implements [inbox.Store].
func (s *Store) ConsumedEvents(ctx context.Context, eventID string) ([]inbox.Consumption, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	rows, err := s.own.Query(ctx, s.names.render(selectEvents), []byte(eventID))
	if err != nil {
		return nil, unavailable(err)
	}
	had, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (inbox.Consumption, error) {
		var consumer []byte
		var at int64
		err := row.Scan(&consumer, &at)
		return inbox.Consumption{Consumer: string(consumer), EventID: eventID, At: fromMicros(at)}, err
	})
	return had, unavailable(err)
}
