package sqltx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// UndoneError is the error of a transaction that was certainly undone, for a reason outside the transaction, so that a
// retry may succeed. Cause may be nil.
type UndoneError struct {
	Cause error
	// Early means that the work was not run.
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
	// MaxTries is the most times that a transaction is run if the server undoes it each time. On a cluster, each undo
	// means that another transaction of the same key, or about the same row, was committed.
	MaxTries = 10
	// MaxUndone is the most times that the store's own statements are tried, and transactions whose work was not run.
	MaxUndone = 20
)

// The shortest and the longest pause before a transaction that was undone is tried again.
const (
	minUndonePause = 2 * time.Millisecond
	maxUndonePause = 100 * time.Millisecond
)

// PauseUndone pauses after a number of tries that were undone. It returns false if ctx has ended.
func PauseUndone(ctx context.Context, tries int) bool {
	return backoff.Sleep(ctx, backoff.Jittered(minUndonePause, maxUndonePause, tries))
}

// Retry calls try until the server does not undo the transaction. An error of the work ends the retries, even if it
// wraps the UndoneError of a transaction inside the work. The work is also not run again if a transaction inside it may
// have been committed. gaveUp reports that every try was undone.
//
// With startOnly the deadline of ctx bounds the wait until the work starts, but not the work. After the work has run, a
// further try has as much time to start as the first try had. The work returns no error of its own in this case.
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

// CommitUnless returns the action of a transaction whose work returned err: a rollback for an error, a commit for nil.
func CommitUnless(err error) (store.TxAction, error) {
	if err != nil {
		return store.TxRollback, err
	}
	return store.TxCommit, nil
}

// Undisturbed returns the deadline of ctx, or the time after limit if that is earlier. It
// ignores a cancellation of ctx.
func Undisturbed(ctx context.Context, limit time.Duration) time.Time {
	latest := time.Now().Add(limit)
	if until, bounded := ctx.Deadline(); bounded && until.Before(latest) {
		return until
	}
	return latest
}
