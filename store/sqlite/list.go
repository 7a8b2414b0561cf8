package sqlite

import (
	"context"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

const (
	// selectPage walks the unique index on the hash from the end of the last page.
	// Scope and operation have no index: the walk skips the records of others.
	selectPage = `SELECT id, record, state FROM onceward_record
		WHERE hash > ?1 AND (?2 IS NULL OR substr(id, 1, length(?2)) = ?2)
			AND (?3 IS NULL OR state BETWEEN ?3 AND ?3 + 9) AND (?4 IS NULL OR due <= ?4)
			AND (?6 IS NULL OR instr(record, ?6) > 0)
		ORDER BY hash LIMIT ?5`
	// selectOpen finds the records that workers repeatedly look for by their state, because they are few among many.
	selectOpen = `SELECT id, record, state FROM onceward_record INDEXED BY onceward_record_due
		WHERE state IN (?3, ?3 + 1) AND (?4 IS NULL OR due <= ?4)
			AND hash > ?1 AND (?2 IS NULL OR substr(id, 1, length(?2)) = ?2)
			AND (?6 IS NULL OR instr(record, ?6) > 0)
		ORDER BY hash LIMIT ?5`

	selectCounts  = `SELECT state, count(*) FROM onceward_record GROUP BY state`
	selectUnknown = `SELECT record FROM onceward_record WHERE state = ?1`
	selectLost    = `SELECT count(*), min(due) FROM onceward_record WHERE state IN (?1, ?1 + 1) AND due <= ?2`
)

// List implements [store.Lister]. It returns records in the order of their hashes. If the filter has a scope or an
// operation, List reads all records, or all records in the state of the filter.
func (s *Store) List(ctx context.Context, f store.Filter) (page []store.Record, err error) {
	limit := store.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	for {
		found, err := s.summaries(ctx, pageStatement(f), pageArgs(f, limit, s.now()))
		if err != nil {
			return nil, err
		}
		for i := range found {
			if f.Operation == "" || found[i].Operation == f.Operation {
				page = append(page, found[i])
			}
		}
		if len(found) < limit || len(page) >= limit {
			return page[:min(len(page), limit)], nil
		}
		f.After = found[len(found)-1].ID // some records had the operation's name only in another field
	}
}

// summaries runs a query for IDs, records and states, and returns the records without their content.
func (s *Store) summaries(ctx context.Context, text string, args []any) (found []store.Record, err error) {
	err = s.readers.with(ctx, func(one *reader) error {
		found = nil
		return query(one.conn, text, args, func(stmt *sqlite3.Stmt) error {
			id, err := store.ParseID(stmt.ColumnRawBlob(0))
			if err != nil {
				return err
			}
			rec, err := store.DecodeRecord(id, stmt.ColumnRawBlob(1))
			if err != nil {
				rec = store.Record{ID: id, State: store.State(stmt.ColumnInt(2) / sqltx.CodesPerState), LastError: err.Error()}
			}
			rec.Data, rec.Response.Body = nil, nil
			found = append(found, rec)
			return nil
		})
	})
	return found, err
}

// pageStatement returns the statement that finds the records of a page.
func pageStatement(f store.Filter) string {
	if f.State == store.StateInProgress || f.State == store.StateUnknown {
		return selectOpen
	}
	return selectPage
}

func pageArgs(f store.Filter, limit int, now time.Time) []any {
	args := []any{[]byte{}, nil, nil, nil, limit, nil}
	if (f.After != store.ID{}) {
		args[0] = keyOf(nil, f.After).hash()
	}
	if f.Scope != "" {
		// An ID without the tag of its key is the prefix of all IDs of its scope.
		prefix := store.ID{Scope: f.Scope}.AppendBinary(nil)
		args[1] = prefix[:len(prefix)-1]
	}
	if f.State != store.StateNone {
		args[2] = int(f.State) * sqltx.CodesPerState
	}
	if f.Due {
		args[3] = micros(now)
	}
	if f.Operation != "" {
		args[5] = store.OperationInBinary(f.Operation)
	}
	return args
}

// Stats implements [store.Lister].
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	stats := store.Stats{Records: make(map[store.State]int64)}
	err := s.readers.with(ctx, func(one *reader) error {
		err := query(one.conn, selectCounts, nil, func(stmt *sqlite3.Stmt) error {
			state, count := stmt.ColumnInt(0), stmt.ColumnInt64(1)
			stats.Records[store.State(state/sqltx.CodesPerState)] += count
			if state == sqltx.CodeDeadLetter {
				stats.DeadLetters += count
			}
			return nil
		})
		if err != nil {
			return err
		}
		if stats.OldestUnknown, err = oldestUnknown(one.conn); err != nil {
			return err
		}
		return query(one.conn, selectLost, []any{sqltx.CodeInProgress, micros(s.now())}, func(stmt *sqlite3.Stmt) error {
			if stats.LostOwners = stmt.ColumnInt64(0); stats.LostOwners > 0 {
				stats.OldestLostOwner = time.UnixMicro(stmt.ColumnInt64(1)).UTC()
			}
			return nil
		})
	})
	return stats, err
}

// oldestUnknown returns when the oldest unknown record became unknown. It reads all unknown records except dead
// letters: there are few, or an operator has other worries.
func oldestUnknown(conn *sqlite3.Conn) (oldest time.Time, err error) {
	err = query(conn, selectUnknown, []any{sqltx.CodeUnknown}, func(stmt *sqlite3.Stmt) error {
		rec, err := store.DecodeRecord(store.ID{}, stmt.ColumnRawBlob(0))
		if err == nil && (oldest.IsZero() || rec.SettledAt.Before(oldest)) {
			oldest = rec.SettledAt
		}
		return nil // an unreadable record is listed as such
	})
	return oldest, err
}
