package sqlite

import (
	"context"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/outbox"
)

// selectStuck walks from lane to lane along the index of Behind
// messages, and finds the lanes whose first open message is Behind.
const selectStuck = `WITH RECURSIVE lanes (lane) AS (
		SELECT min(lane) FROM onceward_outbox INDEXED BY onceward_outbox_behind WHERE state = 2
		UNION ALL
		SELECT (SELECT min(lane) FROM onceward_outbox INDEXED BY onceward_outbox_behind WHERE state = 2 AND lane > lanes.lane)
		FROM lanes WHERE lanes.lane IS NOT NULL
	)
	SELECT lane FROM lanes WHERE lane IS NOT NULL AND 2 = (
		SELECT state FROM onceward_outbox INDEXED BY onceward_outbox_order
		WHERE lane = lanes.lane AND lane IS NOT NULL AND state < 4 ORDER BY number LIMIT 1
	)`

// opened is an open message of a lane.
type opened struct {
	number int64
	state  outbox.State
}

// front returns the first open messages of a lane after the first offset messages.
func (r *records) front(lane string, limit, offset int) (front []opened, err error) {
	err = r.run(selectFront, []any{lane, limit, offset}, func(stmt *sqlite3.Stmt) error {
		front = append(front, opened{number: stmt.ColumnInt64(0), state: outbox.State(stmt.ColumnInt(1))})
		return nil
	})
	return front, err
}

// freeLane makes messages of a lane Ready if they are Behind nothing, at most maxFreed. It first reads one message, and
// stops if that is not Behind, so that a blocked lane costs almost nothing.
func (r *records) freeLane(lane string) (freed int, err error) {
	front, err := r.front(lane, 1, 0)
	if err != nil || len(front) == 0 || front[0].state != outbox.StateBehind {
		return 0, err
	}
	if front, err = r.front(lane, maxFreed, 0); err != nil {
		return 0, err
	}
	for _, next := range front {
		if next.state != outbox.StateBehind {
			break
		}
		if err := r.run(freeMessage, []any{next.number}, nil); err != nil {
			return freed, err
		}
		freed++
	}
	return freed, nil
}

// freeLanes calls freeLane for each lane that messages have left.
func freeLanes(r *records, lanes map[string]bool) (freed int, err error) {
	for lane := range lanes {
		n, err := r.freeLane(lane)
		freed += n
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// FreeMessages implements [outbox.Store]. Here one transaction finishes a message and frees the messages behind it, so
// there are messages to free only if another program has changed the table.
func (s *Store) FreeMessages(ctx context.Context) (int, error) {
	stuck, err := s.stuckLanes(ctx)
	if err != nil || len(stuck) == 0 {
		return 0, err
	}
	return write(ctx, s.writer, func(r *records, _ time.Time) (int, error) {
		freed, err := freeLanes(r, stuck)
		s.writer.messages.add(freed)
		return freed, err
	})
}

// stuckLanes returns the lanes whose messages wait for nothing.
func (s *Store) stuckLanes(ctx context.Context) (map[string]bool, error) {
	stuck := make(map[string]bool)
	err := s.readers.with(ctx, func(one *reader) error {
		return query(one.conn, selectStuck, nil, func(stmt *sqlite3.Stmt) error {
			stuck[stmt.ColumnText(0)] = true
			return nil
		})
	})
	return stuck, err
}
