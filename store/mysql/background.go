package mysql

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// The statements of background work. Each uses the index on state and due, or the primary key: none scans the table.
// The records that they find are read without a lock, and checked again when they are changed (S10).
const (
	selectDue = `SELECT r.record FROM @record r FORCE INDEX (due) WHERE r.state = ? AND r.due <= @now
		ORDER BY r.due LIMIT ? OFFSET ?`
	selectOver = `SELECT r.hash, r.attempt, ORD(SUBSTRING(r.record, 25, 1)) FROM @record r FORCE INDEX (due)
		WHERE r.state = ? AND r.due <= @now ORDER BY r.due LIMIT ? OFFSET ?`
	// deleteOver removes settled records that are past their expiry, whichever settled state they were found in.
	deleteOver = `DELETE r FROM @record r FORCE INDEX (PRIMARY)
		WHERE r.state IN (20, 30, 50) AND r.due <= @now AND r.attempt <= ? AND r.hash IN (`
)

// Sweep implements [store.Sweeper].
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	w := &work{store: s, limit: limit}
	err := w.stepDue(ctx, store.Event{Kind: store.EventSweep}, sqltx.CodeInProgress)
	return w.result(err)
}

// Reap implements [store.Reaper]. It also removes late completions at the end of their retention.
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (int, error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	w := &work{store: s, limit: limit}
	err := w.remove(ctx, sqltx.CodeExpired)
	for _, state := range []int{sqltx.CodeCompleted, sqltx.CodeRetryable} {
		switch {
		case err != nil:
		case soft:
			err = w.stepDue(ctx, store.Event{Kind: store.EventReap, Soft: true}, state)
		default:
			err = w.remove(ctx, state)
		}
	}
	if err == nil {
		_, err = s.exec(ctx, deleteLateCompletion, lateCompletionRetention.Microseconds(), limit)
	}
	return w.result(err)
}

// work applies one event to many records.
type work struct {
	store      *Store
	limit      int
	done       int
	unreadable error // the error of the last record that could not be read
}

// result returns the number of changed records and the error. An unreadable record is reported, but does not stop the
// work on the others: a janitor continues after a full batch, and the last batch reports it.
func (w *work) result(err error) (int, error) {
	if err != nil || w.done >= w.limit {
		return w.done, unavailable(err)
	}
	return w.done, w.unreadable
}

// stepDue applies an event to the records that are due in one state, until the limit is reached or no more are due. The
// queries that follow skip the records that did not change.
func (w *work) stepDue(ctx context.Context, event store.Event, state int) error {
	passed := 0
	for w.done < w.limit {
		ids, damaged, err := w.store.due(ctx, state, w.limit-w.done, passed)
		if err != nil || len(ids)+damaged == 0 {
			return err
		}
		if damaged > 0 {
			w.unreadable = errDamaged
			passed += damaged
		}
		for _, id := range ids {
			c, err := w.store.settle(ctx, id, event)
			switch {
			case errors.Is(err, store.ErrUnreadable):
				w.unreadable = err
				passed++
			case errors.Is(err, store.ErrBusy):
				passed++ // a transaction has the record, and settles it
			case err != nil:
				return err
			case c.Effect == store.EffectNone:
				passed++
			default:
				w.done++
			}
		}
	}
	return nil
}

// due returns the records that are due in a state, after the records already
// passed over, and the number of records among them whose IDs cannot be read.
func (s *Store) due(ctx context.Context, state, limit, passed int) (ids []store.ID, damaged int, err error) {
	err = s.query(ctx, selectDue, []any{state, limit, passed}, func(rows *sql.Rows) error {
		r := row{summary: true}
		if err := rows.Scan(&r.record); err != nil {
			return err
		}
		f, err := r.frame()
		if err != nil {
			damaged++
			return nil
		}
		id, err := store.ParseID(f.id)
		if err != nil {
			damaged++
			return nil
		}
		ids = append(ids, id)
		return nil
	})
	return ids, damaged, err
}

// remove removes the expired records of one state, many in each statement.
func (w *work) remove(ctx context.Context, state int) error {
	passed := 0
	for w.done < w.limit {
		var hashes []any
		var largest int64
		found := 0
		args := []any{state, w.limit - w.done, passed}
		err := w.store.query(ctx, selectOver, args, func(rows *sql.Rows) error {
			var hash []byte
			var attempt int64
			var version uint8
			err := rows.Scan(&hash, &attempt, &version)
			found++
			if version == 0 || version > store.RecordVersion {
				passed++
				w.unreadable = &store.UnreadableError{
					Version: version, Reason: "the version is not known to this program",
				}
				return err
			}
			hashes, largest = append(hashes, hash), max(largest, attempt)
			return err
		})
		if err != nil || found == 0 {
			return err
		}
		removed, err := w.store.removeOver(ctx, hashes, largest)
		if err != nil {
			return err
		}
		w.done += removed
		passed += len(hashes) - removed // the others were changed or are locked
	}
	return nil
}

// removeOver removes the given records that are still settled and past their expiry, and whose tokens are at most
// largest. If a transaction has locked one of them, it removes them one at a time.
func (s *Store) removeOver(ctx context.Context, hashes []any, largest int64) (removed int, err error) {
	if len(hashes) == 0 {
		return 0, nil
	}
	if err := s.raise(ctx, largest); err != nil {
		return 0, err
	}
	statement := deleteOver + strings.Repeat("?, ", len(hashes)-1) + "?)"
	result, err := s.execOnce(ctx, s.where.Load().names.render(statement), append([]any{largest}, hashes...)...)
	switch {
	case (locked(err) || undone(err)) && len(hashes) > 1:
		for i := range hashes {
			n, err := s.removeOver(ctx, hashes[i:i+1], largest)
			removed += n
			if err != nil {
				return removed, err
			}
		}
		return removed, nil
	case locked(err) || undone(err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	n, err := result.RowsAffected()
	if n > 0 {
		s.forgetProvider(ctx, largest, hashes...)
	}
	return int(n), err
}
