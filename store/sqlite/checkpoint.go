package sqlite

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

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
