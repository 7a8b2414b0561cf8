package sqlite

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
)

// The statements of a claim. They use the index of ready and leased messages, and the index of open messages in a lane.
const (
	selectAnyDue = `SELECT 1 FROM onceward_outbox INDEXED BY onceward_outbox_claim
		WHERE topic = ?1 AND state < 2 AND due <= ?2 LIMIT 1`
	selectCandidates = `SELECT number, lane FROM onceward_outbox INDEXED BY onceward_outbox_claim
		WHERE topic = ?1 AND state < 2 AND due <= ?2 ORDER BY due, number LIMIT ?3`
	selectFront = `SELECT number, state FROM onceward_outbox INDEXED BY onceward_outbox_order
		WHERE lane = ?1 AND lane IS NOT NULL AND state < 4 ORDER BY number LIMIT ?2 OFFSET ?3`
	leaseMessage = `UPDATE onceward_outbox SET state = 1, due = ?2, token = ?3, attempts = attempts + ?4 WHERE number = ?1
		RETURNING ` + messageColumns
	parkMessage = `UPDATE onceward_outbox SET state = 2, token = 0 WHERE number = ?1`
	buryMessage = `UPDATE onceward_outbox SET state = iif(lane IS NULL, 5, 3), due = ?2, token = 0, last_error = ?3
		WHERE number = ?1`
	// freeMessage makes a message due as of its creation, so that it is taken before later messages.
	freeMessage = `UPDATE onceward_outbox SET state = 0, due = created_at WHERE number = ?1`
)

const (
	// maxParked bounds how many messages one claim makes Behind, and so how long all other writes wait for it.
	maxParked = 1000
	// maxFreed is how many messages of a lane become Ready at a time.
	// The messages that no claim takes have to be parked again.
	maxFreed = 100
)

// ClaimMessages implements [outbox.Store]. If there is nothing to do, it does not use the writer. If all messages that
// it has looked at have to wait, it looks further, and lets others write in between.
func (s *Store) ClaimMessages(
	ctx context.Context, requests []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	requests = slices.DeleteFunc(slices.Clone(requests), func(w outbox.ClaimRequest) bool { return w.Limit <= 0 })
	if due, err := s.anyDue(ctx, requests); err != nil || !due {
		return nil, err
	}
	for {
		claimed, more, err := s.claimMessages(ctx, requests, lease)
		if err != nil || len(claimed) > 0 || !more {
			return claimed, err
		}
	}
}

// claimMessages makes one claim, in one turn of the writer. It reports whether there are more messages to look at.
func (s *Store) claimMessages(
	ctx context.Context, requests []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, bool, error) {
	var claimed []outbox.Claimed
	more := false
	err := s.writer.do(ctx, newFunction(func(r *records, now time.Time) error {
		c := newClaim(r, now, lease)
		for _, request := range requests {
			if err := c.take(request); err != nil {
				return err
			}
		}
		freed, err := freeLanes(r, c.parkedIn)
		s.writer.messages.add(freed)
		claimed, more = c.result(), c.parked >= maxParked
		return err
	}))
	if err != nil {
		return nil, false, err // the writer may still be running the function
	}
	return claimed, more, nil
}

// anyDue reports whether a claim would find anything.
func (s *Store) anyDue(ctx context.Context, requests []outbox.ClaimRequest) (due bool, err error) {
	now := micros(s.now())
	err = s.readers.with(ctx, func(one *reader) error {
		for _, request := range requests {
			err := query(one.conn, selectAnyDue, []any{request.Topic, now}, func(*sqlite3.Stmt) error {
				due = true
				return nil
			})
			if err != nil || due {
				return err
			}
		}
		return nil
	})
	return due, err
}

// claim is the state of a claim in the writer's transaction.
type claim struct {
	*records
	now, until int64
	token      int64
	taken      map[string]int // by lane; these are always its first open messages
	messages   []message
	parked     int
	parkedIn   map[string]bool
}

func newClaim(r *records, now time.Time, lease time.Duration) *claim {
	return &claim{
		records: r, now: micros(now), until: micros(now.Add(max(lease, time.Microsecond))), token: newToken(),
		taken: make(map[string]int), parkedIn: make(map[string]bool),
	}
}

// newToken returns a token that no other claim has: a random positive number.
func newToken() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return max(int64(binary.BigEndian.Uint64(b[:])&math.MaxInt64), 1)
}

// candidate is a message that is due. Its lane is empty if it waits for no other.
type candidate struct {
	number int64
	lane   string
}

// take goes through the messages of a topic that are due until it has enough.
// It leases or parks each message, so it does not find the message again.
func (c *claim) take(request outbox.ClaimRequest) error {
	for left := request.Limit; left > 0 && c.parked < maxParked; {
		candidates, err := c.candidates(request.Topic, left)
		if err != nil {
			return err
		}
		before := len(c.messages)
		if err := c.decide(candidates); err != nil {
			return err
		}
		if len(candidates) < left {
			return nil
		}
		left -= len(c.messages) - before
	}
	return nil
}

func (c *claim) candidates(topic string, limit int) (found []candidate, err error) {
	err = c.run(selectCandidates, []any{topic, c.now, limit}, func(stmt *sqlite3.Stmt) error {
		found = append(found, candidate{number: stmt.ColumnInt64(0), lane: stmt.ColumnText(1)})
		return nil
	})
	return found, err
}

// decide leases the messages that have nothing in front of them
// except messages of the same claim, and parks the others.
func (c *claim) decide(candidates []candidate) error {
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.number, b.number))
	})
	for len(candidates) > 0 {
		lane, n := candidates[0].lane, 1
		for n < len(candidates) && candidates[n].lane == lane {
			n++
		}
		var err error
		if lane == "" {
			err = c.leaseFree(candidates[:n])
		} else {
			err = c.decideLane(lane, candidates[:n])
		}
		if err != nil {
			return err
		}
		candidates = candidates[n:]
	}
	return nil
}

// leaseFree leases messages that wait for no other.
func (c *claim) leaseFree(candidates []candidate) error {
	for _, free := range candidates {
		if _, err := c.lease(free.number, 1); err != nil {
			return err
		}
	}
	return nil
}

// decideLane compares the candidates of a lane with the first open messages of the lane. A
// candidate in the same position in both has nothing in front of it except other candidates.
// A try is counted for the first message alone, because the others may not be begun.
func (c *claim) decideLane(lane string, candidates []candidate) error {
	front, err := c.front(lane, len(candidates), c.taken[lane])
	if err != nil {
		return err
	}
	blocked := false
	for i, next := range candidates {
		if blocked || i >= len(front) || front[i].number != next.number {
			if err := c.park(lane, next.number); err != nil {
				return err
			}
			continue
		}
		try := 0
		if c.taken[lane] == 0 {
			try = 1
		}
		readable, err := c.lease(next.number, try)
		if err != nil {
			return err
		}
		if readable {
			c.taken[lane]++
		}
		blocked = !readable
	}
	return nil
}

// lease leases a message to the claimer. A message that cannot be read becomes a dead letter: otherwise it would be
// claimed again permanently, and other messages' claims would fail with it.
func (c *claim) lease(number int64, try int) (readable bool, err error) {
	var unreadable error
	err = c.run(leaseMessage, []any{number, c.until, c.token, try}, func(stmt *sqlite3.Stmt) error {
		var m message
		if m, unreadable = messageOf(stmt); unreadable == nil {
			c.messages = append(c.messages, m)
		}
		return nil
	})
	if err == nil && unreadable != nil {
		err = c.run(buryMessage, []any{number, c.now, unreadable.Error()}, nil)
	}
	return unreadable == nil, err
}

func (c *claim) park(lane string, number int64) error {
	c.parked++
	c.parkedIn[lane] = true
	return c.run(parkMessage, []any{number}, nil)
}

// result returns the messages that were taken, in the order of commits.
func (c *claim) result() []outbox.Claimed {
	slices.SortFunc(c.messages, func(a, b message) int { return cmp.Compare(a.number, b.number) })
	claimed := make([]outbox.Claimed, len(c.messages))
	for i, m := range c.messages {
		claimed[i] = outbox.Claimed{Entry: m.Entry, Token: c.token}
	}
	return claimed
}

// hints wakes the watchers of messages when this process has made
// messages ready. Messages that other processes add are found by polling.
type hints struct {
	sqltx.Hints
	ready atomic.Bool // whether messages became ready in the current transaction
}

// add records that n messages became ready in the current transaction.
func (h *hints) add(n int) {
	if n > 0 {
		h.ready.Store(true)
	}
}

// tell wakes the watchers if messages became ready. It is called after each commit.
func (h *hints) tell() {
	if h.ready.Swap(false) {
		h.Wake()
	}
}

// WatchMessages implements [outbox.Store].
func (s *Store) WatchMessages() (hints <-chan struct{}, stop func()) {
	return s.writer.messages.Watch()
}

// HearsMessages implements [outbox.Store]. It returns false: SQLite has no way to notify other processes.
func (s *Store) HearsMessages() bool { return false }
