package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

const (
	// selectPage walks the primary key from where the last page ended. Nothing is indexed for searching: that belongs
	// to those who ask for it. The clock is asked once for a statement, not once for each record. Of an operation the
	// server finds what may be its records: by its number, close behind the fingerprint, or by its name.
	selectPage = `SELECT id, attempt, due, retention, answer, state, request, extra FROM @record
		WHERE id > $1 AND state > 0 AND ($2::smallint IS NULL OR state BETWEEN $2 AND $2 + 9)
			AND (NOT $3::boolean OR due <= (SELECT @now())) 
			AND ($5::bytea IS NULL OR position($5 in request) > 0 OR position($6::bytea in substring(request from 36)) > 0)
		ORDER BY id LIMIT $4`
	selectOperationNumber = `SELECT number FROM @operation WHERE name = $1`
	// selectOpen is for the records that workers look for again and again, which are few among many: by the index
	// indexedOpen. The states are in the text, so that the planner knows that they are in it, and how few, and apart, so
	// that it does not walk the primary key to them.
	selectOpen = `WITH open AS MATERIALIZED (
			SELECT id, attempt, due, retention, answer, state, request, extra FROM @record
			WHERE state IN (%d, %d) AND (NOT $2::boolean OR due <= (SELECT @now())))
		SELECT * FROM open WHERE id > $1 ORDER BY id LIMIT $3`
	// selectCounts counts all but those that have an answer by their state, and those by what is left: two indexes
	// instead of the table.
	selectCounts = `WITH others AS MATERIALIZED (SELECT state, count(*) AS n FROM @record WHERE state <> 20 GROUP BY state)
		SELECT state, n FROM others WHERE state > 0
		UNION ALL SELECT 20, (SELECT count(*) FROM @record) - coalesce(sum(n), 0)::bigint FROM others`
	selectUnknown = `SELECT extra FROM @record WHERE state = 40`
	// selectLost is about those in progress whose lease has ended.
	selectLost = `SELECT count(*), coalesce(min(due), 0) FROM @record WHERE state IN (10, 11) AND due <= (SELECT @now())`
)

// List implements [store.Lister]. The order is that of the records' hashes. Restricted to a scope or an operation, it
// looks through all records, or all of the state.
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	limit := store.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	var after [16]byte
	if (f.After != store.ID{}) {
		after = s.hash(f.After)
	}
	named, numbered, err := s.inRequests(ctx, f.Operation)
	if err != nil {
		return nil, err
	}
	var page []store.Record
	for {
		part, last, more, err := s.listPart(ctx, f, after, named, numbered)
		if err != nil {
			return nil, err
		}
		page = append(page, part...)
		if len(page) >= limit || !more {
			return page[:min(len(page), limit)], nil
		}
		after = last
	}
}

// inRequests returns what the column request of the records of an operation holds, where they have its name and where
// they have its number. Both are nil for no operation.
func (s *Store) inRequests(ctx context.Context, operation string) (named, numbered []byte, err error) {
	if operation == "" {
		return nil, nil, nil
	}
	var number int32
	err = s.own.QueryRow(ctx, s.names.render(selectOperationNumber), []byte(operation)).Scan(&number)
	switch {
	case err == nil:
		numbered = binary.AppendUvarint(nil, uint64(number))
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, nil, unavailable(err)
	}
	return appendText(binary.AppendUvarint(nil, operationByName), operation), numbered, nil
}

// listPart reads the next records in the order of the primary key, and leaves those of other scopes and operations out.
func (s *Store) listPart(
	ctx context.Context, f store.Filter, after [16]byte, named, numbered []byte,
) (part []store.Record, last [16]byte, more bool, err error) {
	text, arguments := pageStatement(f, after, named, numbered)
	found, err := collect(ctx, s.own, s.names.render(text), arguments, scanRow)
	if err != nil {
		return nil, last, false, unavailable(err)
	}
	for i := range found {
		last = found[i].id
		rec, err := s.summary(ctx, &found[i])
		if err != nil {
			return nil, last, false, err
		}
		if rec.ID != (store.ID{}) && (f.Scope == "" || rec.Scope == f.Scope) &&
			(f.Operation == "" || rec.Operation == f.Operation) {
			part = append(part, rec)
		}
	}
	return part, last, len(found) == store.MaxPage, nil
}

// scanRow reads a row with its id first.
func scanRow(one pgx.CollectableRow) (r row, err error) {
	err = one.Scan(&r.id, &r.attempt, &r.due, &r.retention, &r.answer, &r.state, &r.request, &r.extra)
	return r, err
}

// summary is a record without its content. Of one that cannot be read it is the ID, if that can be, the state and why.
func (s *Store) summary(ctx context.Context, r *row) (store.Record, error) {
	rec, err := r.decode(s.operations.name)
	if errors.Is(err, store.ErrUnavailable) {
		return rec, err
	}
	if err != nil {
		s.logger.WarnContext(ctx, "postgres: a record cannot be read", "id", fmt.Sprintf("%x", r.id), "error", err)
		rec = store.Record{ID: rec.ID, State: store.State(r.state / codesPerState), LastError: unreadable(err).Error()}
	}
	rec.Data, rec.Response.Body = nil, nil
	return rec, nil
}

// pageStatement chooses how the records are found.
func pageStatement(f store.Filter, after [16]byte, named, numbered []byte) (text string, arguments []any) {
	first := int16(f.State) * codesPerState
	switch f.State {
	case store.StateNone:
		return selectPage, []any{after, nil, f.Due, store.MaxPage, named, numbered}
	case store.StateInProgress, store.StateUnknown:
		return fmt.Sprintf(selectOpen, first, first+1), []any{after, f.Due, store.MaxPage}
	default:
		return selectPage, []any{after, first, f.Due, store.MaxPage, named, numbered}
	}
}

// Stats implements [store.Lister].
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	stats := store.Stats{Records: make(map[store.State]int64)}
	if err := s.primary(ctx); err != nil {
		return stats, err
	}
	type counted struct {
		State int16
		Count int64
	}
	counts, err := collect(ctx, s.own, s.names.render(selectCounts), nil, pgx.RowToStructByPos[counted])
	if err != nil {
		return stats, unavailable(err)
	}
	for _, c := range counts {
		stats.Records[store.State(c.State/codesPerState)] += c.Count
		if c.State == codeDeadLetter {
			stats.DeadLetters += c.Count
		}
	}
	if stats.OldestUnknown, err = s.oldestUnknown(ctx); err != nil {
		return stats, err
	}
	var oldest int64
	err = s.own.QueryRow(ctx, s.names.render(selectLost)).Scan(&stats.LostOwners, &oldest)
	stats.OldestLostOwner = fromMicros(oldest)
	return stats, unavailable(err)
}

// oldestUnknown reads all unknown records but dead letters: there are few, or an operator has other worries.
func (s *Store) oldestUnknown(ctx context.Context) (oldest time.Time, err error) {
	extras, err := collect(ctx, s.own, s.names.render(selectUnknown), nil, pgx.RowTo[[]byte])
	for _, extra := range extras {
		rec := store.Record{State: store.StateUnknown}
		if err := parseExtra(extra, &rec); err != nil {
			continue // it is listed as one that cannot be read
		}
		if oldest.IsZero() || rec.SettledAt.Before(oldest) {
			oldest = rec.SettledAt
		}
	}
	return oldest, unavailable(err)
}

// primary makes sure that it is not a standby that is asked.
func (s *Store) primary(ctx context.Context) error {
	if err := s.ready(); err != nil {
		return err
	}
	var standby bool
	err := s.own.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby)
	if err == nil && standby {
		err = ErrStandby
	}
	return unavailable(err)
}
