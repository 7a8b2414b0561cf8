package mysql

import (
	"bytes"
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// InTx implements [inbox.Store]: it runs work in a transaction, which work takes from its context with [onceward.Tx],
// and commits if work returns nil. Work does not end the transaction itself. It may be called again after a rollback
// that was not its own doing, never after a commit. The error wraps [onceward.ErrOutcomeUnknown] if the reply to COMMIT
// was lost.
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	if err := s.writable(); err != nil {
		return err
	}
	return retry(ctx, false, func(ctx context.Context) error {
		x := &plainPlan{transaction: transaction{store: s}, run: work}
		x.plan = x
		return x.try(ctx)
	})
}

// plainPlan is the plan of [Store.InTx]: there is no key, and no record tells what became of it.
type plainPlan struct {
	transaction
	run func(ctx context.Context) error
}

// startTransaction makes a node of a cluster wait until it has what the others committed before: a statement that reads
// does so too, if it is the first of its transaction, and a savepoint does not.
var startTransaction = stmt(`START TRANSACTION`)

func (x *plainPlan) claim() []statement { return []statement{startTransaction} }

func (x *plainPlan) work(ctx context.Context) (store.TxAction, error) {
	return sqltx.CommitUnless(x.run(ctx))
}

var _ store.TxCheckpointer = (*Store)(nil)

// CheckpointTx implements [store.TxCheckpointer]. It claims the record as a transactional handler does. The row of the
// record itself stays free for heartbeats until the end.
func (s *Store) CheckpointTx(
	ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error),
) error {
	if err := s.writable(); err != nil {
		return err
	}
	return retry(ctx, false, func(ctx context.Context) error {
		x := &stepPlan{
			transaction: transaction{store: s, keyed: true, id: c.ID, lease: lease},
			attempt:     c.Attempt, run: work,
		}
		x.plan = x
		return x.try(ctx)
	})
}

// stepPlan is the plan of [Store.CheckpointTx]: a step of an operation and the recovery point that it leads to.
type stepPlan struct {
	transaction
	attempt int64
	run     func(context.Context) (store.Checkpoint, error)
	point   store.Checkpoint

	view                // at the beginning, and again at the end
	wanted store.Record // with the point
}

func (x *stepPlan) claim() []statement { return x.claims() }

func (x *stepPlan) read(raw []sqldriver.Value) error { return x.readView(raw, &x.view) }

// decide makes sure that the step's owner may write.
func (x *stepPlan) decide(cause error) (run bool, err error) {
	switch {
	case locked(cause):
		return false, store.ErrBusy
	case cause != nil:
		return false, cause
	case x.readOnly:
		return false, ErrReadOnlyNode
	}
	_, err = x.advanced(&x.before, store.Checkpoint{})
	return err == nil, err
}

// advanced is a record with a checkpoint, or why it cannot be written.
func (x *stepPlan) advanced(rec *store.Record, p store.Checkpoint) (store.Record, error) {
	after, _, err := store.Step(*rec, store.Event{Kind: store.EventCheckpoint, Attempt: x.attempt, Checkpoint: p}, x.now)
	return after, err
}

func (x *stepPlan) work(ctx context.Context) (action store.TxAction, err error) {
	x.point, err = x.run(ctx)
	return sqltx.CommitUnless(err)
}

// readAgain reads the row of a record behind its lock.
const readAgain = `SELECT ` + allColumns + ` FROM @record r WHERE r.hash = ? FOR UPDATE`

// prepare reads the row again, now behind its lock: marks that the same attempt has stored meanwhile, and a lease that
// was extended, stay.
func (x *stepPlan) prepare() (err error) {
	x.exists, x.before = false, store.Record{}
	read := func(raw []sqldriver.Value) (err error) {
		if x.exists, err = true, x.found.read(raw); err == nil {
			x.before, err = x.found.recordOf(x.id)
		}
		return err
	}
	hash := x.id.HashBytes()
	if err := x.link.query(time.Now().Add(settleTimeout), read, stmt(x.store.render(readAgain), hash[:])); err != nil {
		return unavailable(err)
	}
	x.wanted, err = x.advanced(&x.before, x.point)
	return err
}

// write stores the recovery point.
func (x *stepPlan) write() []statement {
	w := encode(&x.wanted)
	return append(x.store.notingProvider(&x.before, &x.wanted),
		stmt(x.store.render(deleteClaim), claimOf(x.id)),
		stmt(x.store.render(updateRecord), w.attempt, w.revision, w.state, w.due, w.createdAt, w.settledAt,
			w.record, w.content, w.hash[:], x.found.attempt, x.found.revision),
		exactlyOne,
	)
}

// learned answers by what is stored: the point is there, or the record is as it was, and nothing was committed. A
// record that had the same point before the step, is neither or is another attempt's by now does not tell; then only a
// refusal by the server itself says that nothing was committed.
func (x *stepPlan) learned(ctx context.Context, cause error) error {
	err := x.store.fenceClaim(ctx, x.id)
	var rec store.Record
	if err == nil {
		rec, _, err = x.store.get(ctx, x.id)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: %w", errNotLearned, err)
	}
	_, fenced := x.advanced(&rec, store.Checkpoint{})
	// Marks alone do not tell: the same attempt may have stored the same ones beside the step.
	tells := fenced == nil && (x.wanted.Point != x.before.Point || !sameData(x.wanted.Data, x.before.Data))
	switch {
	case tells && x.same(&x.wanted, &rec):
		return nil
	case !answered(cause) && !(tells && x.same(&x.before, &rec)):
		return errors.Join(fmt.Errorf("%w: commit: %w; then the record did not tell what became of it",
			store.ErrOutcomeUnknown, cause), fenced)
	case fenced != nil:
		return fenced
	default:
		return notCommitted(cause)
	}
}

// spoiled tells the step's own error in words alone: it stands for a step that was undone, as an answer does by which a
// step ends its operation.
func (x *stepPlan) spoiled(reason, cause error) error {
	err := x.transaction.spoiled(reason, nil)
	if cause != nil {
		err = fmt.Errorf("%w; the step returned: %s", err, cause)
	}
	return err
}

// same reports whether two records are equally far. A mark that is not the step's does not count: another transaction
// of the same attempt may have stored it meanwhile.
func (x *stepPlan) same(a, b *store.Record) bool {
	return a.Point == b.Point && sameData(a.Data, b.Data) &&
		(!x.point.NotReplayable || a.NotReplayable == b.NotReplayable) &&
		(x.point.ProviderID == "" || a.ProviderID == b.ProviderID)
}

// sameData reports whether two records may carry the same. Sealed data does not tell: a [store.Rewriter] puts the same
// there in other bytes, under another key.
func sameData(a, b []byte) bool {
	if store.IsSealed(a) || store.IsSealed(b) {
		return len(a) > 0 && len(b) > 0
	}
	return bytes.Equal(a, b)
}
