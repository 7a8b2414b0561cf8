package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// journaled writes down each call that grants the right to execute or changes a record, before and after.
type journaled struct {
	*wrap.Store
	journal  *history.Journal
	silences *silences
	// past is the store behind its front, nil if there is none. It is stale: the front does not hear of what is done
	// there.
	past  *journaled
	stale bool
}

// claimed journals a call of an owner or a reconciler.
func (j *journaled) claimed(call string, c store.Claim, digest string, do func() error) error {
	return j.settled(call, c, digest, func() (time.Time, error) { return time.Time{}, do() })
}

// settled is the same for a call that says until when the record is kept.
func (j *journaled) settled(call string, c store.Claim, digest string,
	do func() (expires time.Time, err error),
) error {
	w := history.Write{Call: call, Scope: c.Scope, Key: c.Key, Attempt: c.Attempt, Digest: digest}
	w.Seq = j.journal.Begin(w)
	expires, err := do()
	w.Stale = j.stale || errors.Is(err, store.ErrStale)
	w.Accepted, w.Err = err == nil || errors.Is(err, store.ErrStale), text(err)
	w.Expires = micros(expires)
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

// decided journals a call that decides. The answer is the one that the call has made by then, nil if it makes none.
func (j *journaled) decided(call string, r *store.Reservation, answer *store.Response,
	do func() (store.Verdict, error),
) (store.Verdict, error) {
	w := history.Write{
		Call: call, Scope: r.Scope, Key: r.Key, Nonce: hex.EncodeToString(r.Nonce[:]),
		Lease: int64(r.Lease),
	}
	w.Seq = j.journal.Begin(w)
	v, err := do()
	w.Attempt, w.Granted = v.Record.Attempt, err == nil && v.Decision == store.DecisionExecute && v.Record.Attempt != 0
	w.Accepted, w.Err = err == nil, text(err)
	w.Now = micros(v.Now)
	if w.Granted && answer != nil {
		w.Digest = Digest(answer)
	}
	if rec := &v.Record; call == history.CallTransact && w.Granted && !rec.ExpiresAt.IsZero() {
		// Where there was no record, the store's clock was not asked before the end.
		w.Now, w.Expires = micros(rec.ExpiresAt.Add(-rec.Retention)), micros(rec.ExpiresAt)
	}
	j.end(w)
	return v, err
}

// micros is a time in microseconds, 0 for none.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// observe keeps what the comparison with the provider's ledger has found, and how the front fares.
func (j *journaled) observe(_ context.Context, e onceward.ObserverEvent) {
	switch e := e.(type) {
	case ledger.FindingEvent:
		j.journal.Find(history.Finding{Run: e.Run, Key: e.Key, Kind: e.Kind})
	case tiered.LookedUpEvent:
		j.end(history.Write{Seq: j.journal.Begin(history.Write{Call: history.CallFront}), Accepted: e.Hit})
	case tiered.FrontFailedEvent:
		j.end(history.Write{
			Seq: j.journal.Begin(history.Write{Call: history.CallFrontFailed}), Err: e.Call + ": " + e.Err.Error(),
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Digest tells answers apart.
func Digest(r *store.Response) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%d\n%q\n", r.Status, r.Body)
	for _, field := range r.Header {
		fmt.Fprintf(sum, "%q %q\n", field.Name, field.Value)
	}
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// Reserve implements [store.Store].
func (j *journaled) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	return j.decided(history.CallReserve, r, nil, func() (store.Verdict, error) { return j.Store.Reserve(ctx, r) })
}

// Transact implements [store.Transactor]. A transaction that was rolled back was granted nothing that lasts: its
// token is drawn when its answer is stored, and what comes back is the record that was there before. The answer that is
// journaled is the one that the work made: the record that comes back may be of another transaction.
func (j *journaled) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	var before store.Record
	var answer store.Response
	v, err := j.decided(history.CallTransact, r, &answer, func() (store.Verdict, error) {
		undone := false
		v, err := j.Store.Transact(ctx, r, func(ctx context.Context, v store.Verdict) store.Settlement {
			settled := work(ctx, v)
			undone, answer = settled.Action == store.TxRollback, settled.Completion.Response
			return settled
		})
		if undone {
			before, v.Record = v.Record, store.Record{}
		}
		return v, err
	})
	if v.Record.ID == (store.ID{}) {
		v.Record = before
	}
	return v, err
}

// errSilent is returned for a heartbeat that does not get through.
var errSilent = fmt.Errorf("the heartbeat was lost: %w", store.ErrUnavailable)

// Extend implements [store.Store].
func (j *journaled) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if j.silences.silent(c) {
		return errSilent
	}
	w := history.Write{Call: history.CallExtend, Scope: c.Scope, Key: c.Key, Attempt: c.Attempt, Lease: int64(lease)}
	w.Seq = j.journal.Begin(w)
	err := j.Store.Extend(ctx, c, lease)
	w.Accepted, w.Err = err == nil, text(err)
	j.end(w)
	return err
}

// Checkpoint implements [store.Store].
func (j *journaled) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return j.claimed(history.CallCheckpoint, c, "", func() error { return j.Store.Checkpoint(ctx, c, p) })
}

// CheckpointTx implements [store.TxCheckpointer].
func (j *journaled) CheckpointTx(
	ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error),
) error {
	return j.claimed(history.CallCheckpoint, c, "", func() error { return j.Store.CheckpointTx(ctx, c, lease, work) })
}

// Complete implements [store.Store].
func (j *journaled) Complete(
	ctx context.Context, c store.Claim, done *store.Completion,
) (expires time.Time, err error) {
	err = j.settled(history.CallComplete, c, Digest(&done.Response), func() (time.Time, error) {
		var err error
		expires, err = j.Store.Complete(ctx, c, done)
		return expires, err
	})
	return expires, err
}

// Release implements [store.Store].
func (j *journaled) Release(ctx context.Context, c store.Claim, reason string) error {
	return j.claimed(history.CallRelease, c, "", func() error { return j.Store.Release(ctx, c, reason) })
}

// Abandon implements [store.Store].
func (j *journaled) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return j.claimed(history.CallAbandon, c, "", func() error { return j.Store.Abandon(ctx, c, reason) })
}

// Reject implements [store.Store].
func (j *journaled) Reject(ctx context.Context, c store.Claim) error {
	return j.claimed(history.CallReject, c, "", func() error { return j.Store.Reject(ctx, c) })
}

// ResolveCompleted implements [store.Reconciler].
func (j *journaled) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	return j.claimed(history.CallResolveCompleted, c, Digest(&done.Response), func() error {
		return j.Store.ResolveCompleted(ctx, c, done)
	})
}

// ResolveNotExecuted implements [store.Reconciler].
func (j *journaled) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return j.claimed(history.CallResolveNotExecuted, c, "", func() error {
		return j.Store.ResolveNotExecuted(ctx, c, reason)
	})
}

// Bust implements [store.Buster].
func (j *journaled) Bust(ctx context.Context, id store.ID, force bool) error {
	return j.claimed(history.CallBust, store.Claim{ID: id}, "", func() error { return j.Store.Bust(ctx, id, force) })
}

// Requeue implements [store.Reconciler].
func (j *journaled) Requeue(ctx context.Context, c store.Claim, reason string) error {
	return j.claimed(history.CallRequeue, c, "", func() error { return j.Store.Requeue(ctx, c, reason) })
}

// ResolveStep implements [store.Reconciler].
func (j *journaled) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return j.claimed(history.CallResolveStep, c, "", func() error { return j.Store.ResolveStep(ctx, c, p) })
}
