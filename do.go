package onceward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/onceward/onceward/store"
)

// Call names one logical operation that is not an HTTP request: a message, a job, a gRPC call.
type Call struct {
	// Scope and Key identify the operation, such as the queue and the message id.
	Scope string
	Key   string
	// Operation names what is done. A key that comes back under another name is a mismatch.
	Operation string
	// Method is what is called, where several procedures share the name of an operation, such as the full name of a gRPC
	// method or the name of a tool. A key that comes back for another method is a mismatch. Default: empty.
	Method string
	// Payload is what the call means. A key that comes back with another payload is a mismatch.
	Payload []byte
	// Header is what came along with a call of [Procedure.Serve], under canonical names: its key, if Key is empty, and the
	// time of its first sending. Default: none.
	Header http.Header
	// Actor is who calls, for the audit of executions: see [AuditExecutions], which bounds it. Default: empty.
	Actor string
}

// Result is what [Guard.Do] returns.
type Result struct {
	// Value is what the function returned, when it ran or in an earlier attempt.
	Value []byte
	// Replayed says that it was an earlier attempt.
	Replayed bool
	// Attempt is the token of the attempt that ran now; zero for a replay.
	Attempt int64
	// ExpiresAt is until when the answer is kept.
	ExpiresAt time.Time
}

// Do runs fn at most once for the call, with the same engine, modes and guarantees as a handler, and returns what it
// returned, now or in an earlier attempt. The context's cancellation does not reach fn, but its values do; fn is
// bounded by the [Deadline] option.
//
// If fn returns an error: in transactional mode everything is undone; in reserved mode an error that wraps one made by
// [NotExecuted] releases the key, one made by [OutcomeUnknown] makes it unknown, and any other follows the route's
// [Failure]. In both, one made by [Rejected] keeps nothing. A panic counts as an error and goes on.
//
// Without an answer the error is, or wraps, [ErrInProgress], [ErrMismatch], [ErrRefused], [ErrOutcomeUnknown],
// [ErrUnavailable], [ErrUnreadable], [store.ErrWorkRefused], [ErrStoredFailure], [ErrNotStored] or the error of fn.
func (g *Guard) Do(
	ctx context.Context, call Call, fn func(ctx context.Context) ([]byte, error), options ...Option,
) (Result, error) {
	s, err := g.settings(options)
	if err != nil {
		return Result{}, err
	}
	if err := call.check(); err != nil {
		return Result{}, err
	}
	f := &function{fn: fn}
	f.prepareCall(g, s, ctx, &call)
	return f.do()
}

// prepareCall is [execution.prepare] for a call, with its fingerprint. What names the call is copied: the caller may have
// taken it from memory that a framework uses again, and stores and limits keep it for longer than the call.
func (e *execution) prepareCall(g *Guard, s *settings, caller context.Context, call *Call) {
	if s.audits {
		e.actor = strings.Clone(call.Actor)
	}
	id := store.ID{Scope: unique.Make(call.Scope).Value(), Key: strings.Clone(call.Key)}
	e.prepare(g, s, caller, id, unique.Make(call.Operation).Value())
	encoder := newEncoder()
	encoder.call(call)
	e.reservation.Fingerprints = encoder.fingerprints(e.prints[:0], g.secrets, call.Scope, "")
	encoder.free()
}

// do takes the call to its result. A panic of the function goes on.
func (f *function) do() (Result, error) {
	res := f.run(f)
	if f.panicked != nil {
		panic(f.panicked)
	}
	return f.result(&res)
}

func (c *Call) check() error {
	if c.Key == "" || len(c.Key) > maxKeyLength {
		return fmt.Errorf("%w: it has %d characters; the limits are %d and %d",
			ErrBadKey, len(c.Key), minKeyLength, maxKeyLength)
	}
	if c.Operation == "" {
		return errors.New("onceward: Call.Operation is missing: it says what the key stands for")
	}
	return nil
}

// NotExecuted marks an error of a function run by [Guard.Do]: nothing was done, and a retry may execute.
func NotExecuted(err error) error { return marked(err, outcomeRelease) }

// Rejected marks an error of a function run by [Guard.Do]: the call is not valid and nothing was done. Nothing is kept:
// the same key may come again with another payload. See [Operation.Reject].
func Rejected(err error) error { return marked(err, outcomeReject) }

// OutcomeUnknown marks an error of a function run by [Guard.Do]: it is not known what was done.
func OutcomeUnknown(err error) error { return marked(err, outcomeUnknown) }

// IsNotExecuted reports whether an error says of itself that nothing was done: whether it wraps one of [NotExecuted] or
// [Rejected], and none that says that the outcome is unknown.
func IsNotExecuted(err error) bool {
	kind := markOf(err)
	return kind == outcomeRelease || kind == outcomeReject
}

// IsRejected reports whether an error says of itself that the request is not valid: whether it wraps one of [Rejected],
// and none that says that the outcome is unknown.
func IsRejected(err error) bool { return markOf(err) == outcomeReject }

// IsOutcomeUnknown reports whether an error says of itself that it is not known what was done: whether it wraps one of
// [OutcomeUnknown], or [ErrOutcomeUnknown].
func IsOutcomeUnknown(err error) bool {
	return markOf(err) == outcomeUnknown || errors.Is(err, store.ErrOutcomeUnknown)
}

// markOf is what an error says of itself; of one that says nothing, [outcomeAnswer]. One that also says that the
// outcome is unknown, wherever in its tree, is taken at that word.
func markOf(err error) outcomeKind {
	var marked *outcomeError
	switch {
	case !errors.As(err, &marked):
		return outcomeAnswer
	case errors.Is(err, &outcomeError{kind: outcomeUnknown}), errors.Is(err, store.ErrOutcomeUnknown):
		return outcomeUnknown
	default:
		return marked.kind
	}
}

func marked(err error, kind outcomeKind) error {
	if err == nil {
		return nil
	}
	return &outcomeError{err: err, kind: kind}
}

// outcomeError is an error with a word about what was done.
type outcomeError struct {
	err  error
	kind outcomeKind
}

// Error returns the text of the marked error.
func (e *outcomeError) Error() string { return e.err.Error() }

// Is finds a mark of the same kind in a tree of errors.
func (e *outcomeError) Is(target error) bool {
	mark, ok := target.(*outcomeError)
	return ok && mark.err == nil && mark.kind == e.kind
}

// Unwrap returns the marked error.
func (e *outcomeError) Unwrap() error { return e.err }

// function is one call of Do.
type function struct {
	execution
	fn       func(ctx context.Context) ([]byte, error)
	err      error
	unstored []byte // a value that is too large to be stored
	panicked any
}

// work implements [runner].
func (f *function) work(ctx context.Context, op *Operation) outcome {
	f.err, f.unstored, f.panicked = nil, nil, nil
	op.restart()
	started := time.Now()
	value, err := f.call(ctx)
	if f.guard.config.Observer != nil {
		f.guard.observe(f.base, ExecutedEvent{
			ID: f.reservation.ID, Operation: op.name, Attempt: op.attempt, Panicked: f.panicked != nil,
			Elapsed: time.Since(started),
		})
	}
	said := op.outcome.Load()
	if said == endedAsWritten && IsRejected(err) {
		op.Reject()
	}
	switch {
	case said == endedUnknown:
		f.err = OutcomeUnknown(orError(err, "onceward: the function said that the outcome is unknown"))
	case said == endedSuspended && f.settings.mode == modeReserved:
		return f.suspended()
	case op.rejected.Load() && IsRejected(err):
		f.err = err
	case op.rejected.Load():
		f.err = Rejected(orError(err, "onceward: the function rejected the call"))
	case said != endedAsWritten: // in a transaction, that which is suspended is undone
		f.err = NotExecuted(orError(err, "onceward: the function said that nothing was executed"))
	case err != nil:
		f.err = err
	case len(value) > f.settings.responseLimit:
		return f.tooLarge(value)
	default:
		return outcome{kind: outcomeAnswer, response: store.Response{Status: http.StatusOK, Body: slices.Clone(value)}}
	}
	return f.failed(ctx)
}

// orError returns the error that there is, or one with the text.
func orError(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// call runs the function and turns a panic into an error that goes on after the result.
func (f *function) call(ctx context.Context) (value []byte, err error) {
	defer func() {
		if f.panicked = recover(); f.panicked != nil {
			err = fmt.Errorf("onceward: the function panicked: %v", f.panicked)
		}
	}()
	return f.fn(ctx)
}

// tooLarge ends an answer that passes the limit: undone in a transaction, and completed without its value elsewhere.
// The caller that executed gets it all the same (A4).
func (f *function) tooLarge(value []byte) outcome {
	if f.settings.mode == modeTransactional {
		f.err = fmt.Errorf("%w: %d bytes", errTooLarge, len(value))
		return outcome{kind: outcomeRelease, reason: f.err.Error()}
	}
	f.unstored = value
	return outcome{kind: outcomeAnswer, response: store.Response{Status: http.StatusOK, NotStored: true}}
}

// failed judges an error by what it says of itself, then by what a failure means on the route.
func (f *function) failed(ctx context.Context) outcome {
	reason := f.err.Error()
	if f.op.outcome.Load() != endedAsWritten {
		reason = f.op.reasonOr(reason)
	}
	onFailure := f.onFailure(ctx)
	switch {
	case f.settings.mode != modeReserved:
	case IsNotExecuted(f.err):
		onFailure = FailureRetry
	case markOf(f.err) == outcomeUnknown:
		onFailure = FailureUnknown
	}
	return failedAs(onFailure, reason, func() store.Response {
		return store.Response{Status: http.StatusInternalServerError, Body: []byte(f.err.Error())}
	})
}

// result turns the result into what the caller gets.
func (f *function) result(res *result) (Result, error) {
	switch res.kind {
	case resultAnswer, resultStored:
		return f.answered(res)
	case resultReleased:
		return Result{}, f.err
	}
	if res.kind == resultUnknown && f.err != nil {
		res.err = f.err
	}
	return Result{}, f.failure(res)
}

// failure is the error of an execution without an answer; nil if there is one, or nothing was done.
func (e *execution) failure(res *result) error {
	switch res.kind {
	case resultAnswer, resultStored, resultReleased:
		return nil
	case resultUnknown:
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, res.err)
	case resultDecision:
		return decisionError(res)
	case resultCallerLeft:
		return context.Cause(e.caller)
	}
	if errors.Is(res.err, store.ErrUnreadable) || errors.Is(res.err, store.ErrWorkRefused) {
		return res.err
	}
	return errors.Join(store.ErrUnavailable, res.err)
}

func (f *function) answered(res *result) (Result, error) {
	response := res.answer()
	result := Result{Replayed: res.kind == resultStored, ExpiresAt: res.expires}
	if !result.Replayed {
		result.Attempt = f.op.attempt
	}
	switch {
	case response.Status != http.StatusOK && !result.Replayed:
		return result, f.err
	case response.Status != http.StatusOK:
		return result, &StoredFailureError{Message: string(response.Body)}
	case response.NotStored && result.Replayed:
		return result, ErrNotStored
	case response.NotStored:
		result.Value = f.unstored
		return result, nil
	default:
		result.Value = slices.Clone(response.Body)
		return result, nil
	}
}

func decisionError(res *result) error {
	if res.limit != nil {
		return res.limit
	}
	switch res.decision {
	case store.DecisionMismatch:
		return ErrMismatch
	case store.DecisionUnknown:
		return store.ErrOutcomeUnknown
	case store.DecisionRefused:
		return ErrRefused
	default:
		return &InProgressError{Attempt: res.record.Attempt, RetryAfter: problemInProgress.RetryAfter}
	}
}
