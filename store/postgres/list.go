package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

const (
	// selectPage walks the primary key from the end of the last page. No index serves searches: their cost is left to
	// the callers that search. The statement reads the clock once, not once for each record.
	selectPage = `SELECT id, ` + columns + ` FROM @record
		WHERE id > $1 AND state > 0 AND ($6::smallint IS NULL OR state BETWEEN $6 AND $6 + 9)
			AND (NOT $2::boolean OR due <= (SELECT @now())) AND ($4::bytea IS NULL OR scope = $4)
			AND ($5::bytea IS NULL OR operation = $5)
		ORDER BY id LIMIT $3`
	// selectOpen is for the records that workers look for repeatedly, which are few among many. It uses the index on
	// open records. The states are in the text, so that the planner knows that the index covers them and how few they
	// are. They are selected in a step of their own, so that the planner does not walk the primary key to them.
	selectOpen = `WITH open AS MATERIALIZED (
			SELECT id, ` + columns + ` FROM @record
			WHERE state IN (%d, %d) AND (NOT $2::boolean OR due <= (SELECT @now())) AND ($4::bytea IS NULL OR scope = $4)
				AND ($5::bytea IS NULL OR operation = $5))
		SELECT * FROM open WHERE id > $1 ORDER BY id LIMIT $3`
	// selectStats counts the records without an answer by state, and takes all others for records with an answer: it
	// reads two indexes instead of the table. A dead letter does not count as the oldest unknown record. A record whose
	// lease has ended has lost its owner.
	selectStats = `WITH others AS MATERIALIZED (SELECT state, count(*) AS n FROM @record WHERE state <> 20 GROUP BY state),
			counted AS (SELECT state, n FROM others WHERE state > 0
				UNION ALL SELECT 20::smallint, (SELECT count(*) FROM @record) - coalesce(sum(n), 0)::bigint FROM others)
		SELECT counts.states, counts.numbers, unknown.oldest, lost.number, lost.oldest
		FROM (SELECT array_agg(state), array_agg(n) FROM counted) AS counts (states, numbers),
			(SELECT coalesce(min(settled_at), 0) FROM @record WHERE state = 40) AS unknown (oldest),
			(SELECT count(*), coalesce(min(due), 0) FROM @record WHERE state IN (10, 11) AND due <= (SELECT @now()))
				AS lost (number, oldest)`
)

// selection is a statement that reads the rows that match a filter, with its arguments.
type selection struct {
	text       string
	args       []any
	conditions int
}

// where adds a condition, in which %d stands for the number of its parameter if it has one.
func (q *selection) where(condition string, arg ...any) {
	word := ` AND `
	if q.conditions++; q.conditions == 1 {
		word = ` WHERE `
	}
	q.add(word+condition, arg...)
}

// add appends to the text, in which %d stands for the number of its parameter if it has one.
func (q *selection) add(text string, arg ...any) {
	if q.args = append(q.args, arg...); len(arg) > 0 {
		text = fmt.Sprintf(text, len(q.args))
	}
	q.text += text
}

// List implements [store.Lister]. The records are ordered by their hashes. For a scope or an operation, the server
// reads all records, or all records of the state.
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	var after [16]byte
	if (f.After != store.ID{}) {
		after = s.hash(f.After)
	}
	limit := store.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	text, arguments := selectPage, []any{after, f.Due, limit, nullable(f.Scope), nullable(f.Operation)}
	switch first := int16(f.State) * sqltx.CodesPerState; f.State {
	case store.StateInProgress, store.StateUnknown:
		text = fmt.Sprintf(selectOpen, first, first+1)
	case store.StateNone:
		arguments = append(arguments, nil)
	default:
		arguments = append(arguments, first)
	}
	found, err := collect(ctx, s.own, s.render(text), arguments, scanRow)
	if err != nil {
		return nil, unavailable(err)
	}
	page := make([]store.Record, len(found))
	for i := range found {
		page[i] = s.summary(ctx, &found[i])
	}
	return page, nil
}

// scanRow reads a row with its id first.
func scanRow(one pgx.CollectableRow) (r row, err error) {
	err = one.Scan(append([]any{&r.id}, r.fields()...)...)
	return r, err
}

// summary returns a record without its content. For a record that cannot be read, it returns the ID,
// the state and the reason.
func (s *Store) summary(ctx context.Context, r *row) store.Record {
	rec, err := r.decode()
	if err != nil {
		s.logger.WarnContext(ctx, "postgres: a record cannot be read", "id", fmt.Sprintf("%x", r.id), "error", err)
		rec = store.Record{ID: rec.ID, State: store.State(r.state / sqltx.CodesPerState), LastError: err.Error()}
	}
	rec.Data, rec.Response.Body = nil, nil
	return rec
}

// Stats implements [store.Lister].
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	stats := store.Stats{Records: make(map[store.State]int64)}
	if err := s.primary(ctx); err != nil {
		return stats, err
	}
	var states []int16
	var counts []int64
	var unknown, lost int64
	err := s.own.QueryRow(ctx, s.render(selectStats)).Scan(&states, &counts, &unknown, &stats.LostOwners, &lost)
	for i, state := range states {
		stats.Records[store.State(state/sqltx.CodesPerState)] += counts[i]
		if int(state) == sqltx.CodeDeadLetter {
			stats.DeadLetters += counts[i]
		}
	}
	stats.OldestUnknown, stats.OldestLostOwner = fromMicros(unknown), fromMicros(lost)
	return stats, unavailable(err)
}

// primary returns [ErrStandby] if the server is a standby.
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
