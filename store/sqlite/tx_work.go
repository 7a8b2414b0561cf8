package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Update runs f in a transaction of the writer, for business writes outside of a protected handler. It commits if f returns
// nil. Like a handler, f does not end the transaction itself, and may be called again after a rollback that was not its
// own doing. Everybody waits for f, for as long as it takes. Called inside a transactional handler it waits for itself: use
// the handler's own transaction there.
func (s *Store) Update(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.inTurn(ctx, newMember(0, nil), func(ctx context.Context) error { return f(onceward.Tx(ctx)) })
}

// InTx implements [inbox.Store]: it is [Store.Update] for work that takes the transaction from its context, with
// [onceward.Tx]. If the context has a deadline, the transaction is taken back soon after that.
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	return s.inTurn(ctx, newMember(timeLeft(ctx), nil), work)
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

// timeLeft is how long work may take by its context, or zero for no limit.
func timeLeft(ctx context.Context) time.Duration {
	until, bounded := ctx.Deadline()
	if !bounded {
		return 0
	}
	return max(time.Until(until), time.Millisecond)
}

// prepare runs what comes before the work.
func (m *member) prepare(w *writer, now time.Time) error {
	if m.begin == nil {
		return nil
	}
	return m.begin(w.records, now)
}

// conclude runs what comes after the work.
func (m *member) conclude(w *writer) error {
	if m.end == nil {
		return nil
	}
	return m.end(w.records, w.now())
}

var _ store.TxCheckpointer = (*Store)(nil)

// CheckpointTx implements [store.TxCheckpointer]. As with a transactional handler, the step runs in a savepoint of the
// writer's transaction. The writer's lock keeps the record as it was found, also from other processes.
func (s *Store) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error)) error {
	longest := s.LongestWork(lease)
	if until, bounded := ctx.Deadline(); bounded {
		longest = min(longest, max(time.Until(until), time.Millisecond))
	}
	t := newTask(c.ID, store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt})
	t.member = newMember(longest, nil)
	var failure error
	err := s.writer.host(ctx, t, func(ctx context.Context, _ store.Verdict) store.Settlement {
		if t.event.Checkpoint, failure = work(ctx); failure != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit}
	})
	if err == nil {
		err = failure
	}
	return err
}

// beginStep makes sure, before the step runs, that its owner may still write.
func (w *writer) beginStep(t *task) (before store.Record, err error) {
	if before, t.row, err = w.load(t.id); err != nil {
		return before, err
	}
	t.event.Checkpoint = store.Checkpoint{}
	t.after = before
	if _, _, err = store.Step(before, t.event, t.now); err != nil {
		return before, refused{err}
	}
	return before, nil
}

// endStep works out the record with the recovery point that the step led to.
func (w *writer) endStep(t *task) error {
	after, outcome, err := store.Step(t.after, t.event, w.now())
	if err != nil {
		return refused{err}
	}
	t.after, t.outcome.Effect = after, outcome.Effect
	return nil
}
