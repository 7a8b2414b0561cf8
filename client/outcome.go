package client

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Outcome is what is known of an operation when its request has ended.
type Outcome uint8

const (
	// OutcomeUnknown says that the operation may have been executed, or not. It may be sent again with the same key
	// within the window, never with another one.
	OutcomeUnknown Outcome = iota
	// OutcomeAnswered says that the response is the operation's own and final answer: a success or a refusal.
	OutcomeAnswered
	// OutcomeNotExecuted says that it is proved that the operation was not executed. It may be sent again with the same
	// key, or be given up.
	OutcomeNotExecuted
)

// String names the outcome, as in metrics.
func (o Outcome) String() string {
	switch o {
	case OutcomeAnswered:
		return "answered"
	case OutcomeNotExecuted:
		return "not_executed"
	default:
		return "unknown"
	}
}

// Classify says what a response or an error of a [Transport], or of an [http.Client] that uses one, tells of the
// operation. What comes from elsewhere is judged by what is certain of any service, which is little.
func Classify(resp *http.Response, err error) Outcome {
	if err != nil {
		if unfinished := (*UnfinishedError)(nil); errors.As(err, &unfinished) && !unfinished.MayHaveExecuted {
			return OutcomeNotExecuted
		}
		return OutcomeUnknown
	}
	op := operationOf(resp)
	success := resp != nil && resp.StatusCode >= 200 && resp.StatusCode < 300
	switch {
	case op != nil && (success || resp.Request.Method == op.request.Method):
		return op.outcome
	case op == nil && success:
		return OutcomeAnswered
	default: // also if what an operation was redirected to refuses to be seen: the operation itself was not refused
		return OutcomeUnknown
	}
}

// UnfinishedError is returned when an operation has ended without an answer.
type UnfinishedError struct {
	// Key is that of the operation, with which it may be sent again.
	Key string
	// Attempts is how often it was handed to the base transport. net/http may send an attempt twice on its own, with
	// the same key, when a connection that it has kept turns out to be closed.
	Attempts int
	// MayHaveExecuted is false only if it is proved that the service did not execute the operation.
	MayHaveExecuted bool
	// Err is why there is no answer, and why it was not tried again.
	Err error

	keptUntil time.Time // by the service; zero if it said nothing
}

// Error says whether the operation may have been executed.
func (e *UnfinishedError) Error() string {
	what := "was not executed"
	if e.MayHaveExecuted {
		what = "may have been executed"
	}
	return fmt.Sprintf("client: no answer after %d attempts, and the operation %s: %v", e.Attempts, what, e.Err)
}

// KeptUntil returns until when the service said that it keeps the key of an operation, by the response or the error that
// the operation ended with, or zero if it said nothing. The operation is not to be sent any later.
func KeptUntil(resp *http.Response, err error) time.Time {
	if unfinished := (*UnfinishedError)(nil); errors.As(err, &unfinished) {
		return unfinished.keptUntil
	}
	if op := operationOf(resp); op != nil {
		return op.keptUntil()
	}
	return time.Time{}
}

// Unwrap returns why there is no answer.
func (e *UnfinishedError) Unwrap() error { return e.Err }

// These are why an operation is not sent again. They are in the chain of an [UnfinishedError].
var (
	// ErrWindowClosed is returned when the service may have forgotten the key, so that to send the operation again could
	// execute it again.
	ErrWindowClosed = errors.New("client: the key may have been forgotten by now")
	// ErrBudgetSpent is returned when the budget allows no more retries.
	ErrBudgetSpent = errors.New("client: the budget for retries is spent")
	// ErrTooManyAttempts is returned when MaxAttempts have failed.
	ErrTooManyAttempts = errors.New("client: the last of its attempts has failed")
	// ErrTimeout is returned when there is no time for another attempt, by the context or by the Timeout.
	ErrTimeout = errors.New("client: there is no time for another attempt")
	// ErrBodyTooLarge is returned when the body of a request cannot be kept to be sent again. Nothing was sent.
	ErrBodyTooLarge = errors.New("client: the request body is longer than BodyLimit, and has no GetBody")
	// ErrRedirectedAway is returned when the service redirects an operation to another origin, which must not learn the
	// key.
	ErrRedirectedAway = errors.New("client: an operation is not redirected to another origin")
)

func badKey(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadKey, fmt.Sprintf(format, args...))
}
