package sqlite

import (
	"context"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward"
)

const (
	// selectPage filters by what is not null. The planner walks the primary key, or the index if a state is given.
	selectPage = `SELECT id, record FROM onceward_record
		WHERE (?1 IS NULL OR id > ?1) AND (?2 IS NULL OR queue BETWEEN ?2 AND ?2 + 9) AND (?3 IS NULL OR due < ?3)
			AND (?4 IS NULL OR substr(id, 1, length(?4)) = ?4)
		ORDER BY id LIMIT ?5`

	selectCounts  = `SELECT queue, count(*) FROM onceward_record GROUP BY queue`
	selectUnknown = `SELECT record FROM onceward_record WHERE queue IN (?1, ?2)`
)

// List implements [onceward.Lister].
func (s *Store) List(ctx context.Context, f onceward.Filter) (page []onceward.Record, err error) {
	err = s.readers.with(ctx, func(one *reader) error {
		return query(one.conn, selectPage, func(stmt *sqlite3.Stmt) error {
			return bindFilter(stmt, f)
		}, func(stmt *sqlite3.Stmt) error {
			id, err := onceward.ParseID(stmt.ColumnRawBlob(0))
			if err != nil {
				return err
			}
			rec, err := onceward.DecodeRecord(id, stmt.ColumnRawBlob(1))
			rec.Data, rec.Response.Body = nil, nil
			page = append(page, rec)
			return err
		})
	})
	return page, err
}

func bindFilter(stmt *sqlite3.Stmt, f onceward.Filter) error {
	if (f.After != onceward.ID{}) {
		if err := stmt.BindBlob(1, f.After.AppendBinary(nil)); err != nil {
			return err
		}
	}
	if f.State != onceward.StateNone {
		if err := stmt.BindInt(2, int(f.State)*queueStates); err != nil {
			return err
		}
	}
	if !f.DueBefore.IsZero() {
		if err := stmt.BindInt64(3, micros(f.DueBefore)); err != nil {
			return err
		}
	}
	if f.Scope != "" {
		// An ID without a key is the scope's prefix, but for the tag of the key.
		prefix := onceward.ID{Scope: f.Scope}.AppendBinary(nil)
		if err := stmt.BindBlob(4, prefix[:len(prefix)-1]); err != nil {
			return err
		}
	}
	limit := onceward.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	return stmt.BindInt(5, limit)
}

// Stats implements [onceward.Lister].
func (s *Store) Stats(ctx context.Context) (onceward.Stats, error) {
	stats := onceward.Stats{Records: make(map[onceward.State]int64)}
	err := s.readers.with(ctx, func(one *reader) error {
		err := query(one.conn, selectCounts, func(*sqlite3.Stmt) error { return nil }, func(stmt *sqlite3.Stmt) error {
			queue, count := stmt.ColumnInt(0), stmt.ColumnInt64(1)
			stats.Records[onceward.State(queue/queueStates)] += count
			if queue == queueDeadLetter {
				stats.DeadLetters += count
			}
			return nil
		})
		if err != nil {
			return err
		}
		stats.OldestUnknown, err = oldestUnknown(one.conn)
		return err
	})
	return stats, err
}

// oldestUnknown reads all unknown records: there are few, or an operator has other worries.
func oldestUnknown(conn *sqlite3.Conn) (oldest time.Time, err error) {
	err = query(conn, selectUnknown, func(stmt *sqlite3.Stmt) error {
		return bindInts(stmt, int64(queueUnknown), int64(queueDeadLetter))
	}, func(stmt *sqlite3.Stmt) error {
		rec, err := onceward.DecodeRecord(onceward.ID{}, stmt.ColumnRawBlob(0))
		if oldest.IsZero() || rec.CreatedAt.Before(oldest) {
			oldest = rec.CreatedAt
		}
		return err
	})
	return oldest, err
}
