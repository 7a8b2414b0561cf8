package mysql

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

const (
	// selectPage walks the primary key from the end of the last page. Scope
	// and operation have no index: the walk skips the records of others.
	selectPage = `SELECT ` + columns + ` FROM @record r FORCE INDEX (PRIMARY) WHERE r.hash > ?`
	// selectOpen finds the records that workers repeatedly look for by their state, because they are few among many.
	selectOpen = `SELECT ` + columns + ` FROM @record r FORCE INDEX (due) WHERE r.hash > ?`

	selectCounts  = `SELECT r.state, COUNT(*) FROM @record r FORCE INDEX (due) GROUP BY r.state`
	selectUnknown = `SELECT COALESCE(MIN(r.settled_at), 0) FROM @record r FORCE INDEX (due) WHERE r.state = ?`
	selectLost    = `SELECT COUNT(*), COALESCE(MIN(r.due), 0) FROM @record r FORCE INDEX (due)
		WHERE r.state IN (?, ?) AND r.due <= @now`
)

// List implements [store.Lister]. It returns records in the order of their hashes. If the filter has a scope or an
// operation, List reads all records, or all records in the state of the filter.
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	limit := store.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	var after [16]byte
	statement, args := selectPage, []any{[]byte{}}
	if (f.After != store.ID{}) {
		after = f.After.HashBytes()
		args[0] = after[:]
	}
	var conditions strings.Builder
	if f.State != store.StateNone {
		conditions.WriteString(` AND r.state IN (?, ?)`)
		args = append(args, int(f.State)*sqltx.CodesPerState, int(f.State)*sqltx.CodesPerState+1)
	}
	if f.State == store.StateInProgress || f.State == store.StateUnknown {
		statement = selectOpen
	}
	if f.Scope != "" {
		// An ID without the tag of its key is the prefix of all IDs of its scope.
		prefix := store.ID{Scope: f.Scope}.AppendBinary(nil)
		conditions.WriteString(` AND SUBSTRING(r.record, 25 + CONV(HEX(LEFT(r.record, 4)), 16, 10), ?) = ?`)
		args = append(args, len(prefix)-1, prefix[:len(prefix)-1])
	}
	if f.Operation != "" {
		conditions.WriteString(` AND SUBSTRING(r.record, 25 + CONV(HEX(LEFT(r.record, 4)), 16, 10)
			+ CONV(HEX(SUBSTRING(r.record, 5, 4)), 16, 10) + CONV(HEX(SUBSTRING(r.record, 9, 4)), 16, 10),
			CONV(HEX(SUBSTRING(r.record, 13, 4)), 16, 10)) = ?`)
		args = append(args, []byte(f.Operation))
	}
	if f.Due {
		conditions.WriteString(` AND r.due <= @now`)
	}
	statement += conditions.String() + ` ORDER BY r.hash LIMIT ?`
	// A page that is not full is the last page. Records whose IDs cannot be read do not count.
	for passed := 0; ; {
		found, damaged, err := s.readable(ctx, statement, append(args, limit+passed)...)
		if err != nil || damaged <= passed || len(found) >= limit {
			return found[:min(limit, len(found))], err
		}
		passed = damaged
	}
}

// summaries runs a query for the columns of records, and returns the records without their content.
func (s *Store) summaries(ctx context.Context, statement string, args ...any) ([]store.Record, error) {
	found, _, err := s.readable(ctx, statement, args...)
	return found, err
}

// readable is summaries that also returns the number of records whose IDs
// cannot be read. Each of them is logged, and the other records are returned.
func (s *Store) readable(
	ctx context.Context, statement string, args ...any,
) (found []store.Record, damaged int, err error) {
	err = s.query(ctx, statement, args, func(rows *sql.Rows) error {
		r := row{summary: true}
		err := rows.Scan(&r.attempt, &r.revision, &r.state, &r.due, &r.createdAt, &r.settledAt, &r.record)
		if err != nil {
			return err
		}
		f, err := r.frame()
		var id store.ID
		if err == nil {
			id, err = store.ParseID(f.id)
		}
		if err != nil {
			damaged++
			s.logger.ErrorContext(ctx, "onceward: mysql: a record cannot be read, nor which key it is of",
				"attempt", strconv.FormatInt(r.attempt, 10), "state", r.state, "created_at", fromMicros(r.createdAt), "error", err)
			return nil
		}
		rec, err := r.decode(id, &f)
		if err != nil {
			rec = store.Record{ID: id, State: store.State(r.state / sqltx.CodesPerState), LastError: err.Error()}
		}
		found = append(found, rec)
		return nil
	})
	return found, damaged, err
}

// Stats implements [store.Lister].
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	stats := store.Stats{Records: make(map[store.State]int64)}
	err := s.query(ctx, selectCounts, nil, func(rows *sql.Rows) error {
		var state int
		var count int64
		if err := rows.Scan(&state, &count); err != nil {
			return err
		}
		stats.Records[store.State(state/sqltx.CodesPerState)] += count
		if state == sqltx.CodeDeadLetter {
			stats.DeadLetters += count
		}
		return nil
	})
	if err != nil {
		return stats, err
	}
	err = s.query(ctx, selectUnknown, []any{sqltx.CodeUnknown}, func(rows *sql.Rows) error {
		var oldest int64
		err := rows.Scan(&oldest)
		stats.OldestUnknown = fromMicros(oldest)
		return err
	})
	if err != nil {
		return stats, err
	}
	open := sqltx.CodeInProgress
	err = s.query(ctx, selectLost, []any{open, open + 1}, func(rows *sql.Rows) error {
		var oldest int64
		err := rows.Scan(&stats.LostOwners, &oldest)
		stats.OldestLostOwner = fromMicros(oldest)
		return err
	})
	return stats, err
}

// query runs a statement that reads, and calls a function with each of its rows.
// The statement is retried on another connection only if nothing was sent.
func (s *Store) query(ctx context.Context, statement string, args []any, each func(rows *sql.Rows) error) error {
	if err := errors.Join(left(ctx), s.ready()); err != nil {
		return err
	}
	return unavailable(s.with(ctx, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, s.render(statement), args...)
		if err != nil {
			return err
		}
		for rows.Next() && err == nil {
			err = each(rows)
		}
		return errors.Join(err, rows.Close(), rows.Err())
	}))
}
