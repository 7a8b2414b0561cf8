//go:build onceward_mutants

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/storeurl"
)

// mutate returns the store with one deliberate mistake, the kind that libraries of this field were seen to make (I14).
func mutate(store storeurl.Store, mutant string) (storeurl.Store, error) {
	switch mutant {
	case "":
		return store, nil
	case "no-fence":
		return &noFence{store}, nil
	case "no-intent":
		return &noIntent{store}, nil
	case "early-reap":
		return &earlyReap{store}, nil
	case "open-reap":
		return &openReap{store}, nil
	case "blind-commit":
		return &blindCommit{store}, nil
	case "check-then-insert":
		return &checkThenInsert{store}, nil
	default:
		return nil, fmt.Errorf("there is no mutant %q", mutant)
	}
}

// noFence takes the writes of owners whose time is over as if they were current.
type noFence struct{ storeurl.Store }

// Extend lets an old owner believe that it still holds its lease.
func (m *noFence) Extend(ctx context.Context, c onceward.Claim, lease time.Duration) error {
	return unlessFenced(m.Store.Extend(ctx, c, lease))
}

// Checkpoint lets an old owner go on.
func (m *noFence) Checkpoint(ctx context.Context, c onceward.Claim, p onceward.Checkpoint) error {
	return unlessFenced(m.Store.Checkpoint(ctx, c, p))
}

// CheckpointTx lets an old owner write in the place of the new one.
func (m *noFence) CheckpointTx(ctx context.Context, c onceward.Claim, lease time.Duration, work func(context.Context) (onceward.Checkpoint, error)) error {
	err := m.Store.CheckpointTx(ctx, c, lease, work)
	if !errors.Is(err, onceward.ErrFenced) {
		return err
	}
	rec, err := m.Get(ctx, c.ID)
	if err != nil {
		return err
	}
	c.Attempt = rec.Attempt
	return unlessFenced(m.Store.CheckpointTx(ctx, c, lease, work))
}

// Complete lets an old owner overwrite the new one.
func (m *noFence) Complete(ctx context.Context, c onceward.Claim, done *onceward.Completion) (time.Time, error) {
	expires, err := m.Store.Complete(ctx, c, done)
	if !errors.Is(err, onceward.ErrFenced) {
		return expires, err
	}
	rec, err := m.Get(ctx, c.ID)
	if err != nil {
		return time.Time{}, err
	}
	c.Attempt = rec.Attempt
	expires, err = m.Store.Complete(ctx, c, done)
	return expires, unlessFenced(err)
}

func unlessFenced(err error) error {
	if errors.Is(err, onceward.ErrFenced) {
		return nil
	}
	return err
}

// noIntent does not write down that a call is about to be made.
type noIntent struct{ storeurl.Store }

// Checkpoint forgets the point behind which only the other system knows what happened.
func (m *noIntent) Checkpoint(ctx context.Context, c onceward.Claim, p onceward.Checkpoint) error {
	if p.Point == calling {
		return nil
	}
	return m.Store.Checkpoint(ctx, c, p)
}

// earlyReap removes what is settled, whether it has expired or not.
type earlyReap struct{ storeurl.Store }

// Reap removes a page of completed records.
func (m *earlyReap) Reap(ctx context.Context, limit int, _ bool) (int, error) {
	records, err := m.List(ctx, onceward.Filter{State: onceward.StateCompleted, Limit: min(limit, onceward.MaxPage)})
	for _, rec := range records {
		if err := m.Bust(ctx, rec.ID, false); err != nil {
			return 0, err
		}
	}
	return 0, err // none that it tells of, so that it is not asked for more at once
}

// openReap removes what is not settled, to free keys that look stuck.
type openReap struct{ storeurl.Store }

// Reap removes a page of records whose outcome is unknown.
func (m *openReap) Reap(ctx context.Context, limit int, soft bool) (int, error) {
	records, err := m.List(ctx, onceward.Filter{State: onceward.StateUnknown, Limit: min(limit, onceward.MaxPage)})
	for _, rec := range records {
		if err := m.Bust(ctx, rec.ID, true); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, err
	}
	return m.Store.Reap(ctx, limit, soft)
}

// blindCommit commits the work apart from its record, and does it again when the reply to COMMIT is lost.
type blindCommit struct{ storeurl.Store }

// Transact reserves, works and completes one after the other.
func (m *blindCommit) Transact(ctx context.Context, r *onceward.Reservation, work func(context.Context, onceward.Verdict) onceward.Settlement) (onceward.Verdict, error) {
	v, err := m.Reserve(ctx, r)
	if err != nil || v.Decision != onceward.DecisionExecute {
		return v, err
	}
	claim := onceward.Claim{ID: r.ID, Attempt: v.Record.Attempt}
	var settled onceward.Settlement
	rolledBack := errors.New("rolled back")
	commit := func(ctx context.Context) error {
		if settled = work(ctx, v); settled.Ending != onceward.Commit {
			return rolledBack
		}
		return nil
	}
	err = m.InTx(ctx, commit)
	for tries := 0; err != nil && !errors.Is(err, rolledBack) && tries < 20; tries++ {
		time.Sleep(50 * time.Millisecond)
		err = m.InTx(context.WithoutCancel(ctx), commit)
	}
	if err != nil {
		return v, errors.Join(err, m.Release(context.WithoutCancel(ctx), claim, "rolled back"))
	}
	_, err = m.Complete(context.WithoutCancel(ctx), claim, &settled.Completion)
	return v, err
}

// checkThenInsert looks first and writes second, and takes it for granted that nothing has happened in between.
type checkThenInsert struct{ storeurl.Store }

// Reserve grants what was not there when it looked.
func (m *checkThenInsert) Reserve(ctx context.Context, r *onceward.Reservation) (onceward.Verdict, error) {
	_, err := m.Get(ctx, r.ID)
	if !errors.Is(err, onceward.ErrNotFound) {
		return m.Store.Reserve(ctx, r)
	}
	v, err := m.Store.Reserve(ctx, r)
	if err == nil && v.Decision == onceward.DecisionInProgress {
		v.Decision, v.Origin, v.Record.Nonce = onceward.DecisionExecute, onceward.OriginCreated, r.Nonce
	}
	return v, err
}
