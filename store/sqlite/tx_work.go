package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Update runs f in a transaction of the writer, for business writes outside of a protected handler. It commits if f
// returns nil. Like a handler, f must not end the transaction itself, and may be called again after a rollback that it
// did not cause. All other writes wait for f, as long as it takes. Inside a transactional handler, Update would wait
// for itself: use the handler's own transaction there.
func (s *Store) Update(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.inTurn(ctx, newMember(0, nil), func(ctx context.Context) error { return f(onceward.Tx(ctx)) })
}

// InTx implements [inbox.Store]: it is [Store.Update] for work that gets the transaction from its context, with
// [onceward.Tx]. If the context has a deadline, the transaction is revoked soon after the deadline.
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	return s.inTurn(ctx, newMember(timeLeft(ctx), nil), work)
}

// CheckpointTx implements [store.TxCheckpointer]. Like a transactional handler, the step runs in a savepoint of the
// writer's transaction. The writer's lock keeps the record as it was read, and other processes cannot change it either.
func (s *Store) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration,
	work func(context.Context) (store.Checkpoint, error),
) error {
	longest := s.LongestWork(lease)
	if left := timeLeft(ctx); left > 0 {
		longest = min(longest, left)
	}
	var before store.Record
	var row int64
	var reached store.Checkpoint
	m := newMember(longest, nil)
	m.begin = func(r *records, now time.Time) (err error) {
		if before, row, err = r.load(c.ID); err != nil {
			return err
		}
		// A step does not run if its owner may no longer write.
		if _, _, err = store.Step(before, store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt},
			now); err != nil {
			return refused{err}
		}
		return nil
	}
	m.end = func(r *records, now time.Time) error {
		event := store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt, Checkpoint: reached}
		after, outcome, err := store.Step(before, event, now)
		if err != nil {
			return refused{err}
		}
		return r.store(c.ID, row, &before, &after, outcome.Effect)
	}
	return s.inTurn(ctx, m, func(ctx context.Context) (err error) {
		reached, err = work(ctx)
		return err
	})
}

// inTurn runs work in a turn of the writer, and commits if it returns nil.
func (s *Store) inTurn(ctx context.Context, m *member, work func(ctx context.Context) error) error {
	var failure error
	t := &task{member: m, done: make(chan struct{})}
	err := s.writer.host(ctx, t, func(ctx context.Context, _ store.Verdict) store.Settlement {
		if failure = work(ctx); failure != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit}
	})
	if err == nil {
		err = failure
	}
	return err
}

// timeLeft returns how long work may take by its context, or zero for no limit.
func timeLeft(ctx context.Context) time.Duration {
	until, bounded := ctx.Deadline()
	if !bounded {
		return 0
	}
	return max(time.Until(until), time.Millisecond)
}
