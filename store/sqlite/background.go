package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// selectDue walks the index on (state, due): no background work scans the table.
const selectDue = `SELECT id FROM onceward_record WHERE state = ?1 AND due <= ?2 ORDER BY due LIMIT ?3 OFFSET ?4`

// Sweep implements [store.Sweeper].
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	return s.stepDue(ctx, limit, store.Event{Kind: store.EventSweep}, sqltx.CodeInProgress)
}

// Reap implements [store.Reaper]. It also removes late completions at the end of their retention.
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (int, error) {
	event := store.Event{Kind: store.EventReap, Soft: soft}
	reaped, err := s.stepDue(ctx, limit, event, sqltx.CodeCompleted, sqltx.CodeRetryable, sqltx.CodeExpired)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return reaped, err
	}
	return reaped, errors.Join(err, s.writer.do(ctx, newFunction(func(r *records, now time.Time) error {
		return r.run(deleteLateCompletion, []any{micros(now.Add(-lateCompletionRetention))}, nil)
	})))
}

// stepDue applies an event to the records that are due in some states, at most limit of them. One transaction finds and
// changes the records, and each step checks its record again, so that a record that was created again in between stays
// (S10). A record that cannot be read is reported, but does not stop the work on the others.
func (s *Store) stepDue(ctx context.Context, limit int, event store.Event, states ...int) (int, error) {
	b, err := write(ctx, s.writer, func(r *records, now time.Time) (*batch, error) {
		b := &batch{records: r, event: event, now: now, limit: limit}
		for _, state := range states {
			if err := b.step(state); err != nil {
				return nil, err
			}
		}
		return b, nil
	})
	if err != nil {
		return 0, err
	}
	for _, id := range b.changed {
		s.waits.Wake(id)
	}
	if len(b.changed) == limit {
		return limit, nil // a janitor continues after a full batch; the last batch reports
	}
	return len(b.changed), b.unreadable
}

// batch applies one event to many records, in a transaction of the writer.
type batch struct {
	*records
	event      store.Event
	now        time.Time
	limit      int
	changed    []store.ID
	unreadable error // the error of the last record that could not be read
}

// step applies the event to the records that are due in one state, until the limit is reached or no more are due. The
// queries that follow skip the records that did not change.
func (b *batch) step(state int) error {
	passed := 0
	for len(b.changed) < b.limit {
		ids, err := b.due(state, passed)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			_, outcome, err := b.records.step(id, b.event, b.now)
			switch {
			case errors.Is(err, store.ErrUnreadable):
				b.unreadable = err
				passed++
			case err != nil:
				return err
			case outcome.Effect == store.EffectNone:
				passed++
			default:
				b.changed = append(b.changed, id)
			}
		}
	}
	return nil
}

// due returns the records that are due in a state, after the records already passed over.
func (b *batch) due(state, passed int) (ids []store.ID, err error) {
	args := []any{state, micros(b.now), b.limit - len(b.changed), passed}
	err = b.run(selectDue, args, func(stmt *sqlite3.Stmt) error {
		id, err := store.ParseID(stmt.ColumnRawBlob(0))
		ids = append(ids, id)
		return err
	})
	return ids, err
}
