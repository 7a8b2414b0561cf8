package sqltx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// UndoneError is the error of a transaction that was undone, for certain, by no fault of its own, so that it is worth
// another try. It may have no cause besides that.
type UndoneError struct {
	Cause error
	// Early is set if the work was not run.
	Early bool
}

// Error implements error.
func (e *UndoneError) Error() string {
	if e.Cause == nil {
		return "decide again"
	}
	return "decide again: " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *UndoneError) Unwrap() error { return e.Cause }

const (
	// MaxTries is how often a transaction is run that the server undoes. On a cluster, each time another transaction of
	// the same key, or about the same row, was committed.
	MaxTries = 10
	// MaxUndone is how often statements of the store itself are tried, and transactions whose work was not run.
	MaxUndone = 20
)

// How long transactions that were undone keep out of each other's way.
const (
	minUndonePause = 2 * time.Millisecond
	maxUndonePause = 100 * time.Millisecond
)

// PauseUndone waits after a number of tries that were undone. It reports whether the caller still waits.
func PauseUndone(ctx context.Context, tries int) bool {
	return backoff.Sleep(ctx, backoff.Jittered(minUndonePause, maxUndonePause, tries))
}

// Retry runs tries until one is not undone by the server. An error of the work does not make it run again, though it
// may wrap the UndoneError of a transaction inside of the work; nor does the work run again if that transaction may have
// been committed. It reports gaveUp if each try was undone.
//
// With startOnly the deadline of ctx bounds the wait until the work starts, and not the work: after the work, a further
// try has as much time to start as the first one had. The work returns no error of its own then.
func Retry(ctx context.Context, startOnly bool, try func(ctx context.Context) error) (gaveUp bool, err error) {
	caller := ctx
	deadline, bounded := ctx.Deadline()
	limit := time.Until(deadline)
	var last *UndoneError
	for n := 1; ; n++ {
		err := try(ctx)
		own, ok := err.(*UndoneError)
		switch {
		case !ok && startOnly && last != nil && errors.Is(err, store.ErrUnavailable):
			return false, fmt.Errorf("%w; before that, the transaction was undone %d times: %w", err, n-1, last)
		case !ok:
			return false, err
		case errors.Is(err, store.ErrOutcomeUnknown):
			return false, own.Cause
		}
		last = own
		if startOnly && bounded && !own.Early && !errors.Is(caller.Err(), context.Canceled) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(caller), limit)
			defer cancel()
		}
		if n >= MaxUndone || n >= MaxTries && !own.Early || !PauseUndone(ctx, n) {
			return true, fmt.Errorf("the transaction was undone %d times: %w", n, err)
		}
	}
}

// CommitUnless returns what a transaction does whose work has returned an error, or none.
func CommitUnless(err error) (store.TxAction, error) {
	if err != nil {
		return store.TxRollback, err
	}
	return store.TxCommit, nil
}

// Undisturbed returns when the caller's time is up, at the latest after a limit. A caller that leaves earlier does not
// count.
func Undisturbed(ctx context.Context, limit time.Duration) time.Time {
	latest := time.Now().Add(limit)
	if until, bounded := ctx.Deadline(); bounded && until.Before(latest) {
		return until
	}
	return latest
}
