package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/chaos/internal/history"
	"github.com/onceward/onceward/internal/storeurl"
)

// journaled writes down each call that grants the right to execute or changes a record, before and after.
type journaled struct {
	storeurl.Store
	journal *history.Journal
}

// claimed journals a call of an owner or a reconciler.
func (j *journaled) claimed(call string, c onceward.Claim, digest string, do func() error) error {
	w := history.Write{Call: call, Scope: c.Scope, Key: c.Key, Attempt: c.Attempt, Digest: digest}
	w.Seq = j.journal.Begin(w)
	err := do()
	w.Accepted, w.Err = err == nil, text(err)
	j.end(w)
	return err
}

// end closes an entry. A journal with gaps proves nothing: the node does not go on with one.
func (j *journaled) end(w history.Write) {
	j.journal.End(w)
	if err := j.journal.Err(); err != nil {
		panic(err)
	}
}

// decided journals a call that decides.
func (j *journaled) decided(call string, r *onceward.Reservation, do func() (onceward.Verdict, error)) (onceward.Verdict, error) {
	w := history.Write{Call: call, Scope: r.Scope, Key: r.Key, Nonce: hex.EncodeToString(r.Nonce[:])}
	w.Seq = j.journal.Begin(w)
	v, err := do()
	// A transaction that was rolled back was granted nothing that lasts: its token is drawn when its answer is stored.
	w.Attempt, w.Granted = v.Record.Attempt, err == nil && v.Decision == onceward.DecisionExecute && v.Record.Attempt != 0
	w.Accepted, w.Err = err == nil, text(err)
	j.end(w)
	return v, err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Digest tells answers apart.
func Digest(r *onceward.Response) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%d\n%q\n", r.Status, r.Body)
	for _, field := range r.Header {
		fmt.Fprintf(sum, "%q %q\n", field.Name, field.Value)
	}
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// Reserve implements [onceward.Store].
func (j *journaled) Reserve(ctx context.Context, r *onceward.Reservation) (onceward.Verdict, error) {
	return j.decided(history.CallReserve, r, func() (onceward.Verdict, error) { return j.Store.Reserve(ctx, r) })
}

// Transact implements [onceward.Transactor].
func (j *journaled) Transact(ctx context.Context, r *onceward.Reservation, work func(context.Context, onceward.Verdict) onceward.Settlement) (onceward.Verdict, error) {
	return j.decided(history.CallTransact, r, func() (onceward.Verdict, error) { return j.Store.Transact(ctx, r, work) })
}

// Extend implements [onceward.Store].
func (j *journaled) Extend(ctx context.Context, c onceward.Claim, lease time.Duration) error {
	return j.claimed(history.CallExtend, c, "", func() error { return j.Store.Extend(ctx, c, lease) })
}

// Checkpoint implements [onceward.Store].
func (j *journaled) Checkpoint(ctx context.Context, c onceward.Claim, p onceward.Checkpoint) error {
	return j.claimed(history.CallCheckpoint, c, "", func() error { return j.Store.Checkpoint(ctx, c, p) })
}

// CheckpointTx implements [onceward.TxCheckpointer].
func (j *journaled) CheckpointTx(ctx context.Context, c onceward.Claim, lease time.Duration, work func(context.Context) (onceward.Checkpoint, error)) error {
	return j.claimed(history.CallCheckpoint, c, "", func() error { return j.Store.CheckpointTx(ctx, c, lease, work) })
}

// Complete implements [onceward.Store].
func (j *journaled) Complete(ctx context.Context, c onceward.Claim, done *onceward.Completion) (expires time.Time, err error) {
	err = j.claimed(history.CallComplete, c, Digest(&done.Response), func() (err error) {
		expires, err = j.Store.Complete(ctx, c, done)
		return err
	})
	return expires, err
}

// Release implements [onceward.Store].
func (j *journaled) Release(ctx context.Context, c onceward.Claim, reason string) error {
	return j.claimed(history.CallRelease, c, "", func() error { return j.Store.Release(ctx, c, reason) })
}

// Abandon implements [onceward.Store].
func (j *journaled) Abandon(ctx context.Context, c onceward.Claim, reason string) error {
	return j.claimed(history.CallAbandon, c, "", func() error { return j.Store.Abandon(ctx, c, reason) })
}

// ResolveCompleted implements [onceward.Reconciler].
func (j *journaled) ResolveCompleted(ctx context.Context, c onceward.Claim, done *onceward.Completion) error {
	return j.claimed(history.CallResolveCompleted, c, Digest(&done.Response), func() error { return j.Store.ResolveCompleted(ctx, c, done) })
}

// ResolveNotExecuted implements [onceward.Reconciler].
func (j *journaled) ResolveNotExecuted(ctx context.Context, c onceward.Claim, reason string) error {
	return j.claimed(history.CallResolveNotExecuted, c, "", func() error { return j.Store.ResolveNotExecuted(ctx, c, reason) })
}

// ResolveStep implements [onceward.Reconciler].
func (j *journaled) ResolveStep(ctx context.Context, c onceward.Claim, p onceward.Checkpoint) error {
	return j.claimed(history.CallResolveStep, c, "", func() error { return j.Store.ResolveStep(ctx, c, p) })
}

// Bust implements [onceward.Buster].
func (j *journaled) Bust(ctx context.Context, id onceward.ID, force bool) error {
	return j.claimed(history.CallBust, onceward.Claim{ID: id}, "", func() error { return j.Store.Bust(ctx, id, force) })
}
