package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/store"
)

// selectDue walks the index on (queue, due): nothing in the background scans the table.
const selectDue = `SELECT id FROM onceward_record WHERE queue = ?1 AND due <= ?2 ORDER BY due LIMIT ?3 OFFSET ?4`

// Sweep implements [store.Sweeper].
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	return s.stepDue(ctx, limit, store.Event{Kind: store.EventSweep}, queueSwept)
}

// Reap implements [store.Reaper]. It also forgets late completions that nobody has asked for in a long time.
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (int, error) {
	event := store.Event{Kind: store.EventReap, Soft: soft}
	reaped, err := s.stepDue(ctx, limit, event, queueCompleted, queueRetryable, queueExpired)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return reaped, err
	}
	return reaped, errors.Join(err, s.writer.do(ctx, newFunction(func(r *records, now time.Time) error {
		return execute(r.conn, deleteLateCompletion, func(stmt *sqlite3.Stmt) error {
			return stmt.BindInt64(1, micros(now.Add(-lateCompletionRetention)))
		})
	})))
}

// stepDue applies an event to the records that are due in some queues, at most limit of them. Finding and changing them is
// one transaction, and each step looks at the record again, so that one made anew in between stays (S10). A record that
// cannot be read is reported and does not keep the others from being looked after.
func (s *Store) stepDue(ctx context.Context, limit int, event store.Event, queues ...int) (int, error) {
	var changed []store.ID
	var unreadable error
	err := s.writer.do(ctx, newFunction(func(r *records, now time.Time) (err error) {
		changed, unreadable = nil, nil
		for _, queue := range queues {
			if changed, err = stepQueue(r, queue, event, now, limit, changed, &unreadable); err != nil {
				return err
			}
		}
		return nil
	}))
	if err != nil {
		return 0, err
	}
	for _, id := range changed {
		s.waits.wake(id)
	}
	if len(changed) == limit {
		unreadable = nil // a janitor goes on after a full batch; the last one reports
	}
	return len(changed), unreadable
}

// stepQueue goes through one queue until so many records have changed or it is at its end. What does not change stays in
// the queue, and is passed over from then on.
func stepQueue(r *records, queue int, event store.Event, now time.Time, limit int, changed []store.ID, unreadable *error) ([]store.ID, error) {
	passed := 0
	for len(changed) < limit {
		ids, err := dueIDs(r.conn, queue, now, limit-len(changed), passed)
		if err != nil || len(ids) == 0 {
			return changed, err
		}
		for _, id := range ids {
			_, outcome, err := r.step(id, event, now)
			switch {
			case errors.Is(err, store.ErrUnreadable):
				*unreadable = err
				passed++
			case err != nil:
				return changed, err
			case outcome.Effect == store.EffectNone:
				passed++
			default:
				changed = append(changed, id)
			}
		}
	}
	return changed, nil
}

func dueIDs(conn *sqlite3.Conn, queue int, now time.Time, limit, offset int) (ids []store.ID, err error) {
	err = query(conn, selectDue, func(stmt *sqlite3.Stmt) error {
		return bind(stmt, nil, int64(queue), micros(now), int64(limit), int64(offset))
	}, func(stmt *sqlite3.Stmt) error {
		id, err := store.ParseID(stmt.ColumnRawBlob(0))
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// ResolveCompleted implements [store.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventResolveCompleted, Attempt: c.Attempt, Completion: done})
}

// ResolveNotExecuted implements [store.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventResolveNotExecuted, Attempt: c.Attempt, Reason: reason})
}

// ResolveStep implements [store.Reconciler].
func (s *Store) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventResolveStep, Attempt: c.Attempt, Checkpoint: p})
}

// BeginReconcile implements [store.Reconciler].
func (s *Store) BeginReconcile(ctx context.Context, c store.Claim, count int, wait time.Duration) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventBeginReconcile, Attempt: c.Attempt, Count: count, Lease: wait})
}

// Postpone implements [store.Reconciler].
func (s *Store) Postpone(ctx context.Context, c store.Claim, p store.Postponement) error {
	return s.write(ctx, c.ID, store.Event{
		Kind: store.EventPostpone, Attempt: c.Attempt, Count: p.Count, Lease: p.Wait, MaxAttempts: p.MaxAttempts, Reason: p.Reason, Untried: p.Untried,
	})
}

// Requeue implements [store.Reconciler].
func (s *Store) Requeue(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventRequeue, Attempt: c.Attempt, Reason: reason})
}

// Bust implements [store.Buster].
func (s *Store) Bust(ctx context.Context, id store.ID, force bool) error {
	return s.write(ctx, id, store.Event{Kind: store.EventBust, Force: force})
}

// query runs a statement that is not on the hot path, and calls each for its rows.
func query(conn *sqlite3.Conn, text string, bind, each func(*sqlite3.Stmt) error) error {
	stmt, _, err := conn.Prepare(text)
	if err != nil {
		return err
	}
	err = bind(stmt)
	for err == nil && stmt.Step() {
		err = each(stmt)
	}
	if closeErr := stmt.Close(); err == nil {
		err = closeErr
	}
	return err
}

func execute(conn *sqlite3.Conn, text string, bind func(*sqlite3.Stmt) error) error {
	return query(conn, text, bind, func(*sqlite3.Stmt) error {
		return fmt.Errorf("a row where none was expected")
	})
}
