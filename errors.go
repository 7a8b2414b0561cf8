package onceward

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// These errors report how a protected call ended without an answer.
var (
	// ErrInProgress is returned when another attempt of the same operation is running. The error is a
	// [*InProgressError].
	ErrInProgress = errors.New("onceward: operation in progress")
	// ErrMismatch is returned when the key was used before for a different request.
	ErrMismatch = errors.New("onceward: key was used for a different request")
	// ErrRefused is returned when the key has no record, or no record to resume, and no record may be created. If the
	// scope has reached a limit the error is a [*LimitError].
	ErrRefused = errors.New("onceward: new key refused")
	// ErrNotStored is returned when the operation was completed but its answer was too large to keep.
	ErrNotStored = errors.New("onceward: response was not stored")
	// ErrStoredFailure is returned when the operation failed permanently and the failure is its stored answer. The
	// error is a [*StoredFailureError].
	ErrStoredFailure = errors.New("onceward: stored failure")
)

// These errors come from the store and mean the same here. A caller of [Guard.Do] or a handler may test for them.
var (
	// ErrUnavailable is returned when the store cannot answer now: nothing was executed.
	ErrUnavailable = store.ErrUnavailable
	// ErrUnreadable is returned when the record of the key cannot be read: nothing was executed.
	ErrUnreadable = store.ErrUnreadable
	// ErrOutcomeUnknown is returned when it is not known whether the work was done. It is not executed again.
	ErrOutcomeUnknown = store.ErrOutcomeUnknown
	// ErrTxOwned is returned by Commit and Rollback of a handler's transaction: only the guard ends it.
	ErrTxOwned = store.ErrTxOwned
)

// These errors are the causes for which the context of a handler ends.
var (
	// ErrLeaseLost is the cause when the owner can no longer be sure of its right to execute.
	ErrLeaseLost = errors.New("onceward: lease lost")
	// ErrDeadline is the cause when the deadline of the route has passed.
	ErrDeadline = store.ErrDeadline
)

// ErrMisconfigured is returned by a worker that can never work with its configuration: restarting it does not help.
var ErrMisconfigured = errors.New("onceward: misconfigured")

// ErrUnauthenticated is returned by a [ScopeFunc] when the caller is not known: the answer is 401. See
// [Unauthenticated] for an error with a challenge.
var ErrUnauthenticated = errors.New("onceward: caller not authenticated")

// UnauthenticatedError reports how the caller could authenticate.
type UnauthenticatedError struct {
	// Challenges are the values of WWW-Authenticate, such as `Bearer realm="payments"`.
	Challenges []string
}

// Unauthenticated returns the error of a [ScopeFunc] that does not know the caller: the answer is 401 with these values
// of WWW-Authenticate, at least one of which RFC 9110 requires. Do not put parts of the request into them; control
// characters become spaces.
func Unauthenticated(challenges ...string) error {
	return &UnauthenticatedError{Challenges: challenges}
}

// Error describes the refusal.
func (e *UnauthenticatedError) Error() string { return ErrUnauthenticated.Error() }

// Is makes errors.Is(err, ErrUnauthenticated) true.
func (e *UnauthenticatedError) Is(target error) bool { return target == ErrUnauthenticated }

// InProgressError reports that another attempt is running, and when to retry.
type InProgressError struct {
	// Attempt is the token of the running attempt; zero in transactional mode, where it is not visible.
	Attempt int64
	// RetryAfter is how long to wait before the next attempt.
	RetryAfter time.Duration
}

// Error describes the conflict.
func (e *InProgressError) Error() string {
	return fmt.Sprintf("onceward: operation in progress, retry after %s", e.RetryAfter)
}

// Is makes errors.Is(err, ErrInProgress) true.
func (e *InProgressError) Is(target error) bool { return target == ErrInProgress }

// StoredFailureError is a failure that was kept as the answer of its operation.
type StoredFailureError struct {
	// Message is the text of the original error.
	Message string
}

// Error returns the text of the original error.
func (e *StoredFailureError) Error() string { return e.Message }

// Is makes errors.Is(err, ErrStoredFailure) true.
func (e *StoredFailureError) Is(target error) bool { return target == ErrStoredFailure }
