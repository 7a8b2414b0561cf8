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

// InTx implements [inbox.Store]: it runs work in a transaction, which work gets from its
// context with [onceward.Tx], and commits if work returns nil. The work must not end the
// transaction itself. It may be called again after a rollback that it did not cause, but never
// after a commit. The error wraps [onceward.ErrOutcomeUnknown] if the reply to COMMIT was lost.
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

// plainPlan is the plan of [Store.InTx]: there is no key, and no record that shows the outcome.
type plainPlan struct {
	transaction
	run func(ctx context.Context) error
}

// startTransaction makes a cluster node wait until it has the earlier commits of the other nodes. A statement that
// reads does the same if it is the first of its transaction. A savepoint does not.
var startTransaction = stmt(`START TRANSACTION`)

func (x *plainPlan) claim() []statement { return []statement{startTransaction} }

func (x *plainPlan) work(ctx context.Context) (store.TxAction, error) {
	return sqltx.CommitUnless(x.run(ctx))
}

var _ store.TxCheckpointer = (*Store)(nil)

// CheckpointTx implements [store.TxCheckpointer]. It claims the record as a transactional handler does. The row of the
// record itself stays unlocked until the end, so that heartbeats can write it.
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

	view                // read at the beginning, and again at the end
	wanted store.Record // the record with the point
}

func (x *stepPlan) claim() []statement { return x.claims() }

func (x *stepPlan) read(raw []sqldriver.Value) error { return x.readView(raw, &x.view) }

// decide returns an error if the step's owner may not write.
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

// advanced returns a record with a checkpoint, or the reason why it cannot be written.
func (x *stepPlan) advanced(rec *store.Record, p store.Checkpoint) (store.Record, error) {
	after, _, err := store.Step(*rec, store.Event{Kind: store.EventCheckpoint, Attempt: x.attempt, Checkpoint: p}, x.now)
	return after, err
}

func (x *stepPlan) work(ctx context.Context) (action store.TxAction, err error) {
	x.point, err = x.run(ctx)
	return sqltx.CommitUnless(err)
}

// readAgain reads and locks the row of a record.
const readAgain = `SELECT ` + allColumns + ` FROM @record r WHERE r.hash = ? FOR UPDATE`

// prepare reads the row again and locks it, so that an extended lease,
// and marks that the same attempt has stored in the meantime, are kept.
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

// learned returns the outcome that the store shows: if the record has the point, the step was committed, and if it is
// as before, nothing was committed. A record proves nothing if it had the same point before the step, matches neither
// state, or belongs to another attempt by now. Then only a refusal by the server proves that nothing was committed.
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
	// Marks alone prove nothing: the same attempt may have stored the same marks outside of the step.
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

// spoiled includes the step's own error as text only. A wrapped error would mean that the step was undone, as would an
// answer with which a step ends its operation.
func (x *stepPlan) spoiled(reason, cause error) error {
	err := x.transaction.spoiled(reason, nil)
	if cause != nil {
		err = fmt.Errorf("%w; the step returned: %s", err, cause)
	}
	return err
}

// same reports whether two records are at the same point. A mark that the step did not set does not count: another
// transaction of the same attempt may have stored it in the meantime.
func (x *stepPlan) same(a, b *store.Record) bool {
	return a.Point == b.Point && sameData(a.Data, b.Data) &&
		(!x.point.NotReplayable || a.NotReplayable == b.NotReplayable) &&
		(x.point.ProviderID == "" || a.ProviderID == b.ProviderID)
}

// sameData reports whether two records may carry the same data. Sealed data cannot be compared: a [store.Rewriter] may
// have stored the same data as other bytes, under another key.
func sameData(a, b []byte) bool {
	if store.IsSealed(a) || store.IsSealed(b) {
		return len(a) > 0 && len(b) > 0
	}
	return bytes.Equal(a, b)
}
