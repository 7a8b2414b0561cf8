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
	// Operation names the work. The same key under another name is a mismatch.
	Operation string
	// Method is the procedure that is called, for several procedures that share the name of an operation, such as the
	// full name of a gRPC method or the name of a tool. The same key for another method is a mismatch. Default: empty.
	Method string
	// Payload is the content of the call. The same key with another payload is a mismatch.
	Payload []byte
	// Header holds the metadata of a call of [Procedure.Serve], under canonical names: its key, if Key is empty, and
	// the time of its first sending. Default: none.
	Header http.Header
	// Actor is the caller's name in the audit of executions: see [AuditExecutions], which bounds its length. Default:
	// empty.
	Actor string
}

// Result is the result of [Guard.Do].
type Result struct {
	// Value is the value that the function returned, now or in an earlier attempt.
	Value []byte
	// Replayed reports whether Value comes from an earlier attempt.
	Replayed bool
	// Attempt is the token of the attempt that ran now; zero for a replay.
	Attempt int64
	// ExpiresAt is the time until which the answer is kept.
	ExpiresAt time.Time
}

// Do runs fn at most once for the call, with the same engine, modes and guarantees as a handler, and returns fn's
// result, from this attempt or an earlier one. The context passes its values to fn, but not its cancellation; fn is
// bounded by the [Deadline] option.
//
// If fn returns an error in transactional mode, everything is undone. In reserved mode an error that wraps one made by
// [NotExecuted] releases the key, an error made by [OutcomeUnknown] makes the outcome unknown, and any other error
// follows the route's [Failure]. In both modes an error made by [Rejected] leaves no record. A panic counts as an error
// and is raised again in the caller.
//
// Without an answer the error is, or wraps, [ErrInProgress], [ErrMismatch], [ErrRefused], [ErrOutcomeUnknown],
// [ErrUnavailable], [ErrUnreadable], [store.ErrWorkRefused], [ErrStoredFailure], [ErrNotStored] or the error of fn. It
// wraps [ErrMisconfigured] if fn calls Do with the key that it is executed for.
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

// prepareCall prepares an execution for a call, and computes the fingerprint. It copies the call's strings: they may
// lie in memory that a framework reuses, and stores and limits keep them for longer than the call.
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

// do runs the call and returns its result. A panic of the function is raised again.
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
		return errors.New("onceward: Call.Operation is missing: it names the work that the key stands for")
	}
	return nil
}

// NotExecuted marks an error of a function run by [Guard.Do]: nothing was done, and a retry may execute.
func NotExecuted(err error) error { return marked(err, outcomeRelease) }

// Rejected marks an error of a function run by [Guard.Do]: the call is not valid and nothing was done. No record is
// kept: the same key may be used with another payload. See [Operation.Reject].
func Rejected(err error) error { return marked(err, outcomeReject) }

// OutcomeUnknown marks an error of a function run by [Guard.Do]: it is not known whether the work was done.
func OutcomeUnknown(err error) error { return marked(err, outcomeUnknown) }

// IsNotExecuted reports whether an error means that nothing was done: whether it wraps an error made by [NotExecuted]
// or [Rejected], and no error that means an unknown outcome.
func IsNotExecuted(err error) bool {
	kind := markOf(err)
	return kind == outcomeRelease || kind == outcomeReject
}

// IsRejected reports whether an error means that the request is not valid: whether it wraps an error made by
// [Rejected], and no error that means an unknown outcome.
func IsRejected(err error) bool { return markOf(err) == outcomeReject }

// IsOutcomeUnknown reports whether an error means that it is not known whether the work was done: whether it wraps an
// error made by [OutcomeUnknown], or [ErrOutcomeUnknown].
func IsOutcomeUnknown(err error) bool {
	return markOf(err) == outcomeUnknown || errors.Is(err, store.ErrOutcomeUnknown)
}

// markOf returns the mark of an error, or [outcomeAnswer] for an error without one. An unknown outcome anywhere in the
// tree of errors takes precedence over every other mark.
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

// outcomeError is an error with a mark that describes what was done.
type outcomeError struct {
	err  error
	kind outcomeKind
}

// Error returns the text of the marked error.
func (e *outcomeError) Error() string { return e.err.Error() }

// Is reports whether the target is a mark of the same kind, without an error of its own.
func (e *outcomeError) Is(target error) bool {
	mark, ok := target.(*outcomeError)
	return ok && mark.err == nil && mark.kind == e.kind
}

// Unwrap returns the marked error.
func (e *outcomeError) Unwrap() error { return e.err }

// function is one call of [Guard.Do].
type function struct {
	execution
	fn       func(ctx context.Context) ([]byte, error)
	err      error
	unstored []byte // a value too large to store
	panicked any
}

// work implements [runner].
func (f *function) work(ctx context.Context, op *Operation) outcome {
	f.err, f.unstored, f.panicked = nil, nil, nil
	op.restart()
	started := time.Now()
	value, err := f.call(ctx)
	end := f.outcome(ctx, op, value, err)
	f.hasRun(started, end.kind, 0, f.panicked != nil, err != nil)
	return end
}

// outcome returns the outcome of a run, from the function's result and the outcome that the function set on its
// operation.
func (f *function) outcome(ctx context.Context, op *Operation, value []byte, err error) outcome {
	ended := op.outcome.Load()
	if ended == endedAsWritten && IsRejected(err) {
		op.Reject()
	}
	switch {
	case ended == endedUnknown:
		f.err = OutcomeUnknown(orError(err, "onceward: the function reported that the outcome is unknown"))
	case ended == endedSuspended && f.settings.mode == modeReserved:
		return f.suspended()
	case op.rejected.Load() && IsRejected(err):
		f.err = err
	case op.rejected.Load():
		f.err = Rejected(orError(err, "onceward: the function rejected the call"))
	case ended != endedAsWritten: // a suspended transaction is undone
		f.err = NotExecuted(orError(err, "onceward: the function reported that nothing was executed"))
	case err != nil:
		f.err = err
	case len(value) > f.settings.responseLimit:
		return f.tooLarge(value)
	default:
		return outcome{kind: outcomeAnswer, response: store.Response{Status: http.StatusOK, Body: slices.Clone(value)}}
	}
	return f.failed(ctx)
}

// orError returns err, or an error with the text if err is nil.
func orError(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// call runs the function and turns a panic into an error. The panic is raised again after the result.
func (f *function) call(ctx context.Context) (value []byte, err error) {
	defer func() {
		if f.panicked = recover(); f.panicked != nil {
			err = fmt.Errorf("onceward: the function panicked: %v", f.panicked)
		}
	}()
	return f.fn(ctx)
}

// tooLarge ends an attempt whose answer exceeds the limit: a transaction is undone, any other operation is completed
// without its value. The caller that executed gets the value anyway (rule A4).
func (f *function) tooLarge(value []byte) outcome {
	if f.settings.mode == modeTransactional {
		f.err = fmt.Errorf("%w: %d bytes", errTooLarge, len(value))
		return outcome{kind: outcomeRelease, reason: f.err.Error()}
	}
	f.unstored = value
	return outcome{kind: outcomeAnswer, response: store.Response{Status: http.StatusOK, NotStored: true}}
}

// failed returns the outcome of an error, by its mark, then by the route's [Failure].
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

// result converts the result of the execution into the result for the caller.
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

// failure returns the error of an execution without an answer; nil if there is an answer, or nothing was done.
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
	if errors.Is(res.err, store.ErrUnreadable) || errors.Is(res.err, store.ErrWorkRefused) ||
		errors.Is(res.err, errProtectedTwice) {
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
