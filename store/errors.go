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
	// ErrUnavailable is returned when the store cannot answer now. After a reservation that fails so nothing is
	// executed; whether a write that fails so was stored is not known.
	ErrUnavailable = errors.New("onceward: store unavailable")
	// ErrNotSent is returned when the store was not asked at all, such as by a circuit breaker that is open. It wraps
	// [ErrUnavailable]. Nothing was done, and to repeat the call at once is of no use; the error may have a method
	// RetryAfter that tells when it is.
	ErrNotSent = fmt.Errorf("%w: it was not asked", ErrUnavailable)
	// ErrReadOnly is returned by the writes of a store that was opened for looking only. It wraps [ErrNotSent].
	ErrReadOnly = fmt.Errorf("%w: it was opened for looking only", ErrNotSent)
	// ErrBusy is returned when another transaction about the same operation is under way. It wraps [ErrUnavailable], and
	// says nothing about the store, which is well: nothing was done, and the call can be repeated in a moment.
	ErrBusy error = busyError{}
	// ErrWorkRefused is returned when the database refused at the commit what the work had written, as a deferred
	// constraint does. Nothing was executed. A repetition is refused too, unless the conflict was with a transaction
	// that has ended.
	ErrWorkRefused = errors.New("onceward: the database refused the work")
	// ErrUnreadable is returned when a record cannot be read: its version is not known here, it is damaged, or the
	// secret that it was made with is gone. The error is an [*UnreadableError].
	ErrUnreadable = errors.New("onceward: record unreadable")
	// ErrInvalidEvent is returned when a call asks for what no state allows, such as a write without an attempt.
	// Nothing was changed.
	ErrInvalidEvent = errors.New("onceward: invalid event")
	// ErrOutcomeUnknown is returned when a store cannot learn whether a transaction was committed. The work is not
	// executed again.
	ErrOutcomeUnknown = errors.New("onceward: outcome unknown")
	// ErrDeadline is returned when work took longer than it may. It is also the cause of its context then.
	ErrDeadline = errors.New("onceward: handler deadline exceeded")
	// ErrStale is returned when a record was busted or resolved, as was asked for, but a cache that answers for the store
	// could not be told. The error is a [*StaleError].
	ErrStale = errors.New("onceward: done, but an old answer can still be seen")
	// ErrTxOwned is returned when a handler calls Commit or Rollback of its transaction, which the store ends.
	ErrTxOwned = errors.New("onceward: the transaction is ended by the guard, not by the handler")
)

// busyError is ErrUnavailable to those who ask for it, but does not say that the store is away.
type busyError struct{}

func (busyError) Error() string {
	return "onceward: another transaction about this operation is under way: nothing was done, and it can be repeated"
}
func (busyError) Unwrap() error { return ErrUnavailable }

// FencedError is a refused write, with what stands in the store instead.
type FencedError struct {
	// Op is the write that was refused.
	Op string
	// Attempt is the one that the write named.
	Attempt int64
	// Current is the attempt that the store holds, zero if there is no record.
	Current int64
	// State is the state that the record is in.
	State State
	// Response is the stored answer if State is [StateCompleted]: the owner sends it instead of its own.
	Response *Response
	// ExpiresAt is when that answer expires.
	ExpiresAt time.Time
	// Fingerprint is that of the request which the record belongs to now.
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

// UnreadableError says why a record cannot be read.
type UnreadableError struct {
	// Version is the version that the record claims.
	Version uint8
	// Reason is what is wrong.
	Reason string
}

// Error describes what is wrong with the record.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("onceward: record of version %d unreadable: %s", e.Version, e.Reason)
}

// Is makes errors.Is(err, ErrUnreadable) true.
func (e *UnreadableError) Is(target error) bool { return target == ErrUnreadable }

// StaleError says that what was asked for was done, and until when an old answer can still be seen. It does not unwrap:
// an error of the cache must not be taken for one of the store, after which it is not known what was done.
type StaleError struct {
	// Until is when the last old answer ends. The cache is told before, if it can be.
	Until time.Time
	// Err is why it could not be told.
	Err error
}

// Error says what can be seen, and until when.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v, until %s: %v", ErrStale, e.Until.UTC().Format(time.RFC3339), e.Err)
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }
