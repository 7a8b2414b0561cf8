package mysql

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
)

// The statements of a claim. A claim chooses among rows that nobody else has locked, and writes them on the condition
// that they are unchanged: the lease depends on that write alone.
const (
	selectAnyDue = `SELECT EXISTS (SELECT 1 FROM @outbox WHERE state = 0 AND topic = ? AND due <= @now)
		OR EXISTS (SELECT 1 FROM @outbox WHERE state = 1 AND topic = ? AND due <= @now)`
	selectCandidates = `SELECT id, COALESCE(open_lane, 0), open_lane IS NOT NULL, place, due FROM @outbox
		WHERE state = ? AND topic = ? AND due <= ? ORDER BY due LIMIT ? FOR UPDATE SKIP LOCKED`
	// selectFront reads the front of one lane.
	selectFront = `(SELECT open_lane, id, state FROM @outbox WHERE open_lane = ? ORDER BY place LIMIT ? OFFSET ?)`
	leaseRows   = `UPDATE @outbox SET state = 1, due = ?, token = ?, attempts = attempts + ?
		WHERE state < 2 AND due <= ? AND id IN `
	parkRows = `UPDATE @outbox SET state = 2, token = 0 WHERE state < 2 AND id IN `
	buryRow  = `UPDATE @outbox SET state = IF(lane IS NULL, 5, 3), due = ?, token = 0, last_error = ? WHERE id = ?`
)

const (
	// maxParked bounds how many messages one transaction makes Behind.
	maxParked = 1000
	// maxFreed is how many messages of a lane become Ready at a time.
	// The messages that no claim takes have to be parked again.
	maxFreed = 100
)

// ClaimMessages implements [outbox.Store]. If all messages that it has looked at have to wait, it looks further.
func (s *Store) ClaimMessages(
	ctx context.Context, requests []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	requests = slices.DeleteFunc(slices.Clone(requests), func(w outbox.ClaimRequest) bool { return w.Limit <= 0 })
	if due, err := s.anyDue(ctx, requests); err != nil || !due {
		return nil, unavailable(err)
	}
	for {
		c, err := s.claimMessages(ctx, requests, lease)
		if err != nil {
			return nil, err
		}
		// The messages in front of the parked messages may have
		// finished in the meantime. Then the parked ones can be taken.
		freed, err := s.free(ctx, c.parkedIn)
		if err != nil {
			return nil, err
		}
		if len(c.messages) > 0 || c.parked < maxParked && freed == 0 {
			return c.result(), nil
		}
	}
}

// anyDue reports whether a claim would find anything.
func (s *Store) anyDue(ctx context.Context, requests []outbox.ClaimRequest) (due bool, err error) {
	err = s.with(ctx, func(conn *sql.Conn) error {
		for _, request := range requests {
			topic := []byte(request.Topic)
			err := conn.QueryRowContext(ctx, s.render(selectAnyDue), topic, topic).Scan(&due)
			if err != nil || due {
				return err
			}
		}
		return nil
	})
	return due, err
}

// update runs a function in a transaction of the store's own, and retries it if the transaction was undone because of
// another one. If the reply to its commit is lost, its changes may be stored or not.
func (s *Store) update(ctx context.Context, f func(tx *sql.Tx) error) error {
	for n := 1; ; n++ {
		err := s.with(ctx, func(conn *sql.Conn) error {
			tx, err := conn.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // it does nothing after a commit
			if err := f(tx); err != nil {
				return err
			}
			return tx.Commit()
		})
		again := undone(err) || locked(err) || errors.Is(err, errRace)
		if !again || n == maxRaces || !sqltx.PauseUndone(ctx, n) {
			return unavailableUnlessRefused(err)
		}
	}
}

// claimMessages makes one claim, in one transaction.
func (s *Store) claimMessages(
	ctx context.Context, requests []outbox.ClaimRequest, lease time.Duration,
) (c *claim, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		c = &claim{
			store: s, ctx: ctx, tx: tx, token: newToken(), taken: make(map[int64]int), parkedIn: make(map[int64]bool),
		}
		if err := tx.QueryRowContext(ctx, s.render(`SELECT @now`)).Scan(&c.now); err != nil {
			return err
		}
		c.until = c.now + max(lease.Microseconds(), 1)
		for _, request := range requests {
			if err := c.take(request); err != nil {
				return err
			}
		}
		return c.read()
	})
	return c, err
}

// claim is the state of a claim in its transaction.
type claim struct {
	store      *Store
	ctx        context.Context
	tx         *sql.Tx
	now, until int64
	token      int64
	taken      map[int64]int // by lane; these are always its first open messages
	order      []string      // the IDs of the messages taken; within a lane, in their order
	messages   []outbox.Entry
	parked     int
	parkedIn   map[int64]bool
}

// newToken returns a token that no other claim has: a random positive number.
func newToken() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return max(int64(binary.BigEndian.Uint64(b[:])&math.MaxInt64), 1)
}

// candidate is a message that is due.
type candidate struct {
	id      string
	lane    int64
	ordered bool
	place   int64
	due     int64
}

// take goes through the messages of a topic that are due until it has enough.
// It leases or parks each message, so it does not find the message again.
func (c *claim) take(request outbox.ClaimRequest) error {
	for left := request.Limit; left > 0 && c.parked < maxParked; {
		candidates, err := c.candidates(request.Topic, left)
		if err != nil {
			return err
		}
		before := len(c.order)
		if err := c.decide(candidates); err != nil {
			return err
		}
		if len(candidates) < left {
			return nil
		}
		left -= len(c.order) - before
	}
	return nil
}

// candidates finds and locks the messages of a topic that are due, the oldest first. Messages whose lease has ended are
// searched separately, so that both searches use an index.
func (c *claim) candidates(topic string, limit int) (found []candidate, err error) {
	for _, state := range []outbox.State{outbox.StateReady, outbox.StateLeased} {
		rows, err := c.tx.QueryContext(c.ctx, c.store.render(selectCandidates), int(state), []byte(topic), c.now, limit)
		if err != nil {
			return nil, err
		}
		err = eachRow(rows, func() error {
			var one candidate
			err := rows.Scan(&one.id, &one.lane, &one.ordered, &one.place, &one.due)
			found = append(found, one)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.due, b.due) })
	return found[:min(len(found), limit)], nil
}

// eachRow calls a function for each row, and closes the rows.
func eachRow(rows *sql.Rows, f func() error) (err error) {
	for err == nil && rows.Next() {
		err = f()
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// decide leases the messages that have nothing in front of them except messages of the same claim, and parks the
// others. In each lane a try is counted for the first message alone, because the others may not be begun.
func (c *claim) decide(candidates []candidate) error {
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.place, b.place))
	})
	fronts, err := c.fronts(candidates)
	if err != nil {
		return err
	}
	var begun, follow, parked []any
	for _, next := range candidates {
		switch front := fronts[next.lane]; {
		case !next.ordered:
			begun = append(begun, next.id)
		case len(front) == 0 || front[0] != next.id:
			fronts[next.lane] = nil // the messages behind it wait too
			parked = append(parked, next.id)
			c.parkedIn[next.lane] = true
			continue
		default:
			fronts[next.lane] = front[1:]
			if c.taken[next.lane]++; c.taken[next.lane] == 1 {
				begun = append(begun, next.id)
			} else {
				follow = append(follow, next.id)
			}
		}
		c.order = append(c.order, next.id)
	}
	c.parked += len(parked)
	// Stop at the first error: after a deadlock there is no transaction
	// any more, and the next statement would be committed on its own.
	if err := c.writeAll(leaseRows, begun, c.until, c.token, 1, c.now); err != nil {
		return err
	}
	if err := c.writeAll(leaseRows, follow, c.until, c.token, 0, c.now); err != nil {
		return err
	}
	return c.writeAll(parkRows, parked)
}

// writeAll writes rows. It returns errRace if one of them has changed since it was found.
func (c *claim) writeAll(statement string, ids []any, args ...any) error {
	if len(ids) == 0 {
		return nil
	}
	result, err := c.tx.ExecContext(c.ctx, c.store.render(statement)+marks(len(ids)), append(args, ids...)...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != int64(len(ids)) {
		return errors.Join(errRace, err)
	}
	return nil
}

// marks returns a list of n placeholders.
func marks(n int) string { return "(" + strings.Repeat(", ?", n)[2:] + ")" }

// fronts returns the first open messages of each lane after
// the messages already taken: as many as there are candidates.
func (c *claim) fronts(candidates []candidate) (map[int64][]string, error) {
	counts := make(map[int64]int)
	for _, next := range candidates {
		if next.ordered {
			counts[next.lane]++
		}
	}
	var parts []string
	var args []any
	for lane, n := range counts {
		parts = append(parts, c.store.render(selectFront))
		args = append(args, lane, n, c.taken[lane])
	}
	fronts := make(map[int64][]string)
	if len(parts) == 0 {
		return fronts, nil
	}
	rows, err := c.tx.QueryContext(c.ctx, strings.Join(parts, " UNION ALL "), args...)
	if err != nil {
		return nil, err
	}
	return fronts, eachRow(rows, func() error {
		var lane int64
		var id string
		var state int
		err := rows.Scan(&lane, &id, &state)
		fronts[lane] = append(fronts[lane], id)
		return err
	})
}

// read reads the messages that were taken. A message that cannot be read becomes a dead letter: otherwise it would be
// claimed again permanently, and other messages' claims would fail with it.
func (c *claim) read() error {
	if len(c.order) == 0 {
		return nil
	}
	ids := make([]any, len(c.order))
	for i, id := range c.order {
		ids[i] = id
	}
	found := make(map[string]outbox.Entry)
	unreadable := make(map[string]outbox.Entry)
	rows, err := c.tx.QueryContext(c.ctx, c.store.render(selectMessages)+` WHERE id IN `+marks(len(ids)), ids...)
	if err != nil {
		return err
	}
	err = eachRow(rows, func() error {
		e, damage, err := scanMessage(rows)
		if damage != nil {
			e.LastError = damage.Error()
			unreadable[e.ID] = e
		} else {
			found[e.ID] = e
		}
		return err
	})
	for id, e := range unreadable {
		if err == nil {
			_, err = c.tx.ExecContext(c.ctx, c.store.render(buryRow), c.now, []byte(e.LastError), id)
		}
	}
	blocked := make(map[int64]bool) // messages behind an unreadable one are not delivered before it
	for _, id := range c.order {
		e := found[id]
		if e.Topic == "" {
			e = unreadable[id]
			blocked[laneOf(&e.Message)] = true
		} else if !e.Ordered() || !blocked[laneOf(&e.Message)] {
			c.messages = append(c.messages, e)
		}
	}
	return err
}

// result returns the messages that were taken.
func (c *claim) result() []outbox.Claimed {
	claimed := make([]outbox.Claimed, len(c.messages))
	for i, e := range c.messages {
		claimed[i] = outbox.Claimed{Entry: e, Token: c.token}
	}
	return claimed
}
