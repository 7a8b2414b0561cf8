package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

const (
	selectNumber = `SELECT number FROM onceward_outbox WHERE id = ?1`

	// The counts read indexes of open messages, and not the messages.
	countLive   = `SELECT count(*), min(created_at) FROM onceward_outbox INDEXED BY onceward_outbox_claim WHERE state < 2`
	countBehind = `SELECT count(*), min(created_at) FROM onceward_outbox INDEXED BY onceward_outbox_behind WHERE state = 2`
	countDead   = `SELECT count(*), 0 FROM onceward_outbox INDEXED BY onceward_outbox_dead
		WHERE state IN (3, 5) AND token >= 0`

	deleteMessages = `DELETE FROM onceward_outbox WHERE number IN
		(SELECT number FROM onceward_outbox INDEXED BY onceward_outbox_purge WHERE state IN (4, 6) AND due < ?1
		ORDER BY due LIMIT ?2)`
)

// defaultPage is how many messages a filter without a limit returns.
const defaultPage = 100

// stateIndexes are the indexes that find the messages in some states without reading the others.
var stateIndexes = []struct {
	states    []outbox.State
	index     string
	condition string // exactly as in the definition of the index
}{
	{[]outbox.State{outbox.StateHolding, outbox.StateDead}, "onceward_outbox_dead", "state IN (3, 5)"},
	{[]outbox.State{outbox.StateReady, outbox.StateLeased}, "onceward_outbox_claim", "state < 2"},
	{[]outbox.State{outbox.StateBehind}, "onceward_outbox_behind", "state = 2"},
}

// Messages implements [outbox.Store]. A message that cannot be read has the reason in its LastError.
func (s *Store) Messages(ctx context.Context, f outbox.Filter) (entries []outbox.Entry, err error) {
	err = s.readers.with(ctx, func(one *reader) error {
		after, err := numberOf(one.conn, f.After)
		if err != nil {
			return err
		}
		text, args := messageQuery(f, after)
		return query(one.conn, text, args, func(stmt *sqlite3.Stmt) error {
			m, unreadable := messageOf(stmt)
			if unreadable != nil {
				m.LastError = unreadable.Error()
			}
			entries = append(entries, m.Entry)
			return nil
		})
	})
	return entries, err
}

// numberOf returns the number of the message after which a page begins.
func numberOf(conn *sqlite3.Conn, id string) (number int64, err error) {
	if id == "" {
		return 0, nil
	}
	err = query(conn, selectNumber, []any{id}, func(stmt *sqlite3.Stmt) error {
		number = stmt.ColumnInt64(0)
		return nil
	})
	if err == nil && number == 0 {
		err = fmt.Errorf("%w: message %s, behind which the page begins, has been removed: begin with the first page",
			store.ErrNotFound, id)
	}
	return number, err
}

// messageQuery returns the statement for a page. Origin and downstream key alone have no
// index: operators search for them, one at a time, and an index would slow down each
// message. Without a state or an ID the query walks the table from the end of the last page.
func messageQuery(f outbox.Filter, after int64) (text string, args []any) {
	from, conditions := "onceward_outbox", []string{"number > ?"}
	args = append(args, after)
	restrict := func(column string, value any) {
		conditions = append(conditions, column+" = ?")
		args = append(args, value)
	}
	if f.ID != "" {
		restrict("id", f.ID)
	}
	if f.Origin != (store.ID{}) {
		restrict("origin", f.Origin.AppendBinary(nil))
	}
	if f.DownstreamKey != "" {
		restrict("downstream_key", f.DownstreamKey)
	}
	if f.ProviderID != "" {
		restrict("provider_id", f.ProviderID)
		conditions = append(conditions, `provider_id <> ''`) // exactly as in the definition of the index
	}
	if f.Topic != "" {
		restrict("topic", f.Topic)
	}
	if f.Undropped {
		conditions = append(conditions, `token >= 0`)
	}
	if first := f.FirstID(); first != "" {
		// The table is in the order of commits, which differs from the order of IDs if a clock was set back. So the
		// query takes the smallest number of all IDs since then. The index of IDs contains the numbers.
		conditions = append(conditions, `id >= ?`, `number >= (SELECT min(number) FROM onceward_outbox WHERE id >= ?)`)
		args = append(args, first, first)
	}
	if len(f.States) > 0 {
		index, condition := stateCondition(f)
		from, conditions = from+index, append(conditions, condition)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	text = `SELECT ` + messageColumns + ` FROM ` + from + ` WHERE ` + strings.Join(conditions, ` AND `) +
		` ORDER BY number LIMIT ?`
	return text, append(args, limit)
}

// stateCondition restricts a page to some states. It uses an index of these states, if there is one, unless the filter
// has an ID, whose index is more selective.
func stateCondition(f outbox.Filter) (index, condition string) {
	numbers := make([]string, len(f.States))
	for i, state := range f.States {
		numbers[i] = fmt.Sprint(uint8(state))
	}
	condition = `state IN (` + strings.Join(numbers, `, `) + `)`
	for _, way := range stateIndexes {
		others := slices.ContainsFunc(f.States, func(state outbox.State) bool { return !slices.Contains(way.states, state) })
		if !others && f.ID == "" {
			return ` INDEXED BY ` + way.index, condition + ` AND ` + way.condition
		}
	}
	return "", condition
}

// MessageStats implements [outbox.Store].
func (s *Store) MessageStats(ctx context.Context) (stats outbox.Stats, err error) {
	err = s.readers.with(ctx, func(one *reader) error {
		for _, text := range []string{countLive, countBehind} {
			n, oldest, err := countMessages(one.conn, text)
			if err != nil {
				return err
			}
			stats.Waiting += n
			if n > 0 && (stats.Oldest.IsZero() || oldest.Before(stats.Oldest)) {
				stats.Oldest = oldest
			}
		}
		stats.DeadLetters, _, err = countMessages(one.conn, countDead)
		return err
	})
	return stats, err
}

// countMessages returns the number of messages, and when the oldest of them was added.
func countMessages(conn *sqlite3.Conn, text string) (n int, oldest time.Time, err error) {
	err = query(conn, text, nil, func(stmt *sqlite3.Stmt) error {
		n, oldest = stmt.ColumnInt(0), timeOf(stmt, 1)
		return nil
	})
	return n, oldest, err
}

// PurgeMessages implements [outbox.Store].
func (s *Store) PurgeMessages(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, deleteMessages, age, limit)
}
