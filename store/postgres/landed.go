package postgres

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// errNotLanded says that a change whose reply was lost was not made, for certain.
var errNotLanded = fmt.Errorf("%w: the commit did not land", errNotBegun)

// landed finds out whether a change was made whose COMMIT was not answered: the record is looked at under its lock,
// so that the transaction is over. It asks for as long as the caller waits, through a restart of the server. It
// returns nil if the change was made, errNotLanded if it was not, and the cause if that cannot be told any more.
func (s *Store) landed(ctx context.Context, id store.ID, c *changed, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		var now changed
		err := s.lookAgain(ctx, id, &now)
		switch {
		case err == nil && c.madeOf(&now):
			return nil
		case err == nil && c.unmadeOf(&now):
			return unavailable(errNotLanded)
		case err == nil:
			return cause
		}
		if !backoff.Sleep(ctx, backoff.Exponential(askPause, longestAskPause, failures)) {
			return cause
		}
	}
}

// longestAskPause is the longest time between two questions after a commit.
const longestAskPause = time.Second

// lookAgain reads a record while nothing changes it.
func (s *Store) lookAgain(ctx context.Context, id store.ID, now *changed) error {
	conn, err := s.own.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := s.look(ctx, conn.Conn(), id, s.hash(id), &store.Event{}, now); err != nil {
		return err
	}
	return rollback(conn.Conn())
}

// madeOf reports whether the record is what the change made of it.
func (c *changed) madeOf(now *changed) bool {
	if c.outcome.Effect == store.EffectRemove {
		return !now.exists
	}
	return now.exists && now.found.equal(&c.wrote)
}

// unmadeOf reports whether the record is what it was before the change.
func (c *changed) unmadeOf(now *changed) bool {
	return now.exists == c.exists && now.found.equal(&c.found)
}

// equal reports whether two rows hold the same.
func (r *row) equal(other *row) bool {
	return r.id == other.id && r.attempt == other.attempt && r.due == other.due && r.retention == other.retention &&
		r.queue == other.queue && bytes.Equal(r.answer, other.answer) && bytes.Equal(r.request, other.request) &&
		bytes.Equal(r.more, other.more)
}
