package mysql

import (
	"bytes"
	"context"
	"crypto/sha256"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// InTx implements [inbox.Store]: it runs work in a transaction, which work takes from its context with [onceward.Tx], and
// commits if work returns nil. Work does not end the transaction itself. It may be called again after a rollback that
// was not its own doing, never after a commit. The error wraps [onceward.ErrOutcomeUnknown] if the reply to COMMIT was
// lost.
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	if err := s.writable(); err != nil {
		return err
	}
	return retry(ctx, func() error {
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

func (x *plainPlan) work(ctx context.Context) (store.TxAction, error) {
	return commitUnless(x.run(ctx))
}

// commitUnless is what is to be done with work that returned an error or none.
func commitUnless(err error) (store.TxAction, error) {
	if err != nil {
		return store.TxRollback, err
	}
	return store.TxCommit, nil
}

// The statements of a step. The row of its record stays free for heartbeats until the end; another row, that only steps
// of the same record know, is there for as long as the transaction lasts and keeps the next one from beginning.
const (
	claimStep  = `SELECT r.name FROM @lock r WHERE r.name = ? FOR UPDATE NOWAIT`
	insertStep = `INSERT INTO @lock (name, number) VALUES (?, @now) ON DUPLICATE KEY UPDATE number = @now`
	deleteStep = `DELETE FROM @lock WHERE name = ?`
	readStep   = `SELECT @now, ` + allColumns + ` FROM @record r WHERE r.hash = ?`
)

var _ store.TxCheckpointer = (*Store)(nil)

// CheckpointTx implements [store.TxCheckpointer].
func (s *Store) CheckpointTx(
	ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error),
) error {
	if err := s.writable(); err != nil {
		return err
	}
	id := append([]byte("onceward step\x00"), c.ID.AppendBinary(nil)...)
	sum := sha256.Sum256(id)
	return retry(ctx, func() error {
		x := &stepPlan{
			transaction: transaction{store: s, keyed: true, id: c.ID, lease: lease},
			name:        sum[:16], attempt: c.Attempt, run: work,
		}
		x.plan = x
		return x.try(ctx)
	})
}

// stepPlan is the plan of [Store.CheckpointTx]: a step of an operation and the recovery point that it leads to.
type stepPlan struct {
	transaction
	name    []byte // of the lock
	attempt int64
	run     func(context.Context) (store.Checkpoint, error)
	point   store.Checkpoint

	// found is the row, now the clock and before the record, at the beginning and again at the end.
	found  row
	now    time.Time
	before store.Record
	wanted store.Record // with the point
	exists bool
}

func (x *stepPlan) claim() []statement {
	hash := x.id.HashBytes()
	return []statement{
		stmt(x.store.render(claimStep), x.name), stmt(x.store.render(insertStep), x.name),
		stmt(x.store.render(readStep), hash[:]),
	}
}

// read takes the row of the record; the other one tells nothing.
func (x *stepPlan) read(raw []sqldriver.Value) error {
	if len(raw) == 1 {
		return nil
	}
	now, err := int64Of(raw[0])
	if err != nil {
		return err
	}
	x.exists, x.now, x.found = true, fromMicros(now), row{hash: x.id.HashBytes()}
	if err := x.found.read(raw[1:]); err != nil {
		return err
	}
	x.before, err = x.found.recordOf(x.id)
	return err
}

// decide makes sure that the step's owner may write.
func (x *stepPlan) decide(cause error) (run bool, err error) {
	switch {
	case locked(cause):
		return false, store.ErrBusy
	case cause != nil:
		return false, cause
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
	return commitUnless(err)
}

// prepare reads the row again, now behind its lock: marks that the same attempt has stored meanwhile, and a lease that was
// extended, stay.
func (x *stepPlan) prepare() error {
	x.exists, x.before = false, store.Record{}
	hash := x.id.HashBytes()
	err := x.link.query(time.Now().Add(settleTimeout), x.read, stmt(x.store.render(readStep)+` FOR UPDATE`, hash[:]))
	if err != nil {
		return unavailable(err)
	}
	x.wanted, err = x.advanced(&x.before, x.point)
	return err
}

// write stores the recovery point.
func (x *stepPlan) write() []statement {
	w := encode(&x.wanted)
	return []statement{
		stmt(x.store.render(deleteStep), x.name),
		stmt(x.store.render(updateRecord), w.attempt, w.state, w.due, w.createdAt, w.settledAt,
			w.provider, w.record, w.body, w.data, w.hash[:], x.found.attempt, x.found.revision),
		exactlyOne,
	}
}

// learned answers by what is stored: the point is there, or the record is as it was, and nothing was committed. A
// record that had the same point before the step, is neither or is another attempt's by now does not tell; then only a
// refusal by the server itself says that nothing was committed.
func (x *stepPlan) learned(ctx context.Context, cause error) error {
	// It waits for the step, and keeps it from being committed later.
	lock, unlock := stmt(x.store.render(insertStep), x.name), stmt(x.store.render(deleteStep), x.name)
	err := x.store.fence(ctx, lock, unlock)
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
