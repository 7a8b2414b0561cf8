package client

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Outcome is what is known about an operation when its request has ended.
type Outcome uint8

const (
	// OutcomeUnknown means that the operation may have been executed, or not. It may
	// be sent again with the same key within the window, never with another key.
	OutcomeUnknown Outcome = iota
	// OutcomeAnswered means that the response is the operation's own and final answer: a success or a refusal.
	OutcomeAnswered
	// OutcomeNotExecuted means that the operation was provably not
	// executed. It may be sent again with the same key, or be given up.
	OutcomeNotExecuted
)

// String returns the name of the outcome, as in metrics.
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

// Classify returns the outcome of the operation that ended with a response or an error of a
// [Transport], or of an [http.Client] that uses one. For a response from elsewhere it assumes
// only what is certain of any service: a success is an answer, and everything else is unknown.
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
	default: // also if the target of a redirect is refused: the operation itself was not
		return OutcomeUnknown
	}
}

// UnfinishedError is the error of an operation that has ended without an answer.
type UnfinishedError struct {
	// Key is the key of the operation. The operation may be sent again with it.
	Key string
	// Attempts is how often the operation was passed to the base transport. net/http may send an
	// attempt twice, with the same key, when a connection that it kept turns out to be closed.
	Attempts int
	// MayHaveExecuted is false only if the service provably did not execute the operation.
	MayHaveExecuted bool
	// Err is why there is no answer, and why the operation was not retried.
	Err error

	keptUntil time.Time // by the service; zero if it sent no time
}

// Error returns a text that includes whether the operation may have been executed.
func (e *UnfinishedError) Error() string {
	what := "was not executed"
	if e.MayHaveExecuted {
		what = "may have been executed"
	}
	return fmt.Sprintf("client: no answer after %d attempts, and the operation %s: %v", e.Attempts, what, e.Err)
}

// KeptUntil returns how long the service keeps the key of the operation that ended with the response
// or the error, or zero if the service sent no time. Do not send the operation later than that.
func KeptUntil(resp *http.Response, err error) time.Time {
	if unfinished := (*UnfinishedError)(nil); errors.As(err, &unfinished) {
		return unfinished.keptUntil
	}
	if op := operationOf(resp); op != nil {
		return op.keptUntil()
	}
	return time.Time{}
}

// Unwrap returns the reason why there is no answer.
func (e *UnfinishedError) Unwrap() error { return e.Err }

// These are the reasons why an operation is not sent again. They are in the chain of an [UnfinishedError].
var (
	// ErrWindowClosed is returned when the service may have forgotten the key,
	// so that sending the operation again could execute it a second time.
	ErrWindowClosed = errors.New("client: the key may have been forgotten by now")
	// ErrBudgetSpent is returned when the budget allows no more retries.
	ErrBudgetSpent = errors.New("client: the budget for retries is spent")
	// ErrTooManyAttempts is returned when MaxAttempts have failed.
	ErrTooManyAttempts = errors.New("client: the last of its attempts has failed")
	// ErrTimeout is returned when the context or Timeout leaves no time for another attempt.
	ErrTimeout = errors.New("client: there is no time for another attempt")
	// ErrBodyTooLarge is returned when the body of a request is too long to be kept for a retry. Nothing was sent.
	ErrBodyTooLarge = errors.New("client: the request body is longer than BodyLimit, and has no GetBody")
	// ErrRedirectedAway is returned when the service redirects an
	// operation to another origin, which must not get the key.
	ErrRedirectedAway = errors.New("client: an operation is not redirected to another origin")
)

func badKey(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadKey, fmt.Sprintf(format, args...))
}
