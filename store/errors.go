package store

import (
	"errors"
	"fmt"
	"time"
)

// These errors are returned by stores.
var (
	// ErrNotFound is returned when there is no record for an ID.
	ErrNotFound = errors.New("onceward: no such record")
	// ErrFenced is returned when a write names an attempt, or expects a state, that is no longer current. Nothing was
	// changed. The error is a [*FencedError].
	ErrFenced = errors.New("onceward: fenced")
	// ErrUnavailable is returned when the store cannot answer now. If a reservation fails with it, nothing is executed;
	// if a write fails with it, it is not known whether the write was stored.
	ErrUnavailable = errors.New("onceward: store unavailable")
	// ErrNotSent is returned when the call was not sent to the store, for example by an open circuit breaker. It wraps
	// [ErrUnavailable]. Nothing was done, and an immediate retry is useless; the error may have a method RetryAfter
	// that returns the time to wait.
	ErrNotSent = fmt.Errorf("%w: it was not asked", ErrUnavailable)
	// ErrReadOnly is returned by the writes of a store that was opened read-only. It wraps [ErrNotSent].
	ErrReadOnly = fmt.Errorf("%w: it was opened for looking only", ErrNotSent)
	// ErrBusy is returned when another transaction for the same operation is in progress. It wraps [ErrUnavailable],
	// but the store works: nothing was done, and the call can be retried in a moment.
	ErrBusy error = busyError{}
	// ErrWorkRefused is returned when the database refused the work's writes at the commit, as a deferred constraint
	// does. Nothing was executed. A retry is refused too, unless the conflict was with a transaction that has ended.
	ErrWorkRefused = errors.New("onceward: the database refused the work")
	// ErrUnreadable is returned when a record cannot be read: its version is not known here, it is damaged, or its
	// secret is no longer configured. The error is an [*UnreadableError].
	ErrUnreadable = errors.New("onceward: record unreadable")
	// ErrInvalidEvent is returned for a call that no state allows, such as a write without an attempt. Nothing was
	// changed.
	ErrInvalidEvent = errors.New("onceward: invalid event")
	// ErrOutcomeUnknown is returned when a store cannot find out whether a transaction was committed. The work is not
	// executed again.
	ErrOutcomeUnknown = errors.New("onceward: outcome unknown")
	// ErrDeadline is returned when work took longer than its deadline. It is then also the cause with which the context
	// of the work ends.
	ErrDeadline = errors.New("onceward: handler deadline exceeded")
	// ErrStale is returned when a record was deleted or resolved as requested, but a cache in front of the store could
	// not be updated. The error is a [*StaleError].
	ErrStale = errors.New("onceward: done, but an old answer can still be seen")
	// ErrTxOwned is returned when a handler calls Commit or Rollback of its transaction. Only the store ends it.
	ErrTxOwned = errors.New("onceward: the transaction is ended by the guard, not by the handler")
)

// busyError is an ErrUnavailable that does not mean that the store is down.
type busyError struct{}

func (busyError) Error() string {
	return "onceward: another transaction about this operation is under way: nothing was done, and it can be repeated"
}
func (busyError) Unwrap() error { return ErrUnavailable }

// FencedError reports a refused write, with the state of the record in the store.
type FencedError struct {
	// Op is the refused write.
	Op string
	// Attempt is the attempt that the write named.
	Attempt int64
	// Current is the attempt that the store holds, zero if there is no record.
	Current int64
	// State is the state that the record is in.
	State State
	// Response is the stored answer if State is [StateCompleted]: the owner sends it instead of its own.
	Response *Response
	// ExpiresAt is when that answer expires.
	ExpiresAt time.Time
	// Fingerprint is the fingerprint of the request to which the record belongs now.
	Fingerprint Fingerprint
}

// Error describes the refusal.
func (e *FencedError) Error() string {
	if e.State == StateNone {
		return fmt.Sprintf("onceward: %s by attempt %d refused: there is no record", e.Op, e.Attempt)
	}
	return fmt.Sprintf("onceward: %s by attempt %d refused: the record is %s at attempt %d", e.Op, e.Attempt, e.State,
		e.Current)
}

// Is makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// UnreadableError reports why a record cannot be read.
type UnreadableError struct {
	// Version is the version that the record claims.
	Version uint8
	// Reason describes the problem.
	Reason string
}

// Error describes what is wrong with the record.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("onceward: record of version %d unreadable: %s", e.Version, e.Reason)
}

// Is makes errors.Is(err, ErrUnreadable) true.
func (e *UnreadableError) Is(target error) bool { return target == ErrUnreadable }

// StaleError reports that a request was carried out, and until when an old answer can still be seen. It does not
// unwrap: an error of the cache must not be taken for an error of the store, which would make the outcome unknown.
type StaleError struct {
	// Until is when the last old answer expires. The cache is updated earlier if possible.
	Until time.Time
	// Err is the reason why the cache could not be updated.
	Err error
}

// Error describes what can be seen, and until when.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v, until %s: %v", ErrStale, e.Until.UTC().Format(time.RFC3339), e.Err)
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }
