package onceward

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/store"
)

// outcome returns the outcome of a run, from the handler's answer and the outcome that the handler set on its operation
// (rule E5). The outcome that the handler set takes precedence over everything that happened afterwards.
func (x *httpExecution) outcome(ctx context.Context, op *Operation) outcome {
	rec := x.recorder
	if rec.streaming {
		return x.streamedOutcome(ctx, op)
	}
	x.inspect(ctx, op)
	silent := rec.status == 0 && !rec.bypassed && ctx.Err() != nil
	switch ended := op.outcome.Load(); {
	case ended == endedUnknown:
		return x.declaredUnknown()
	case ended == endedNotExecuted, ended == endedNeverExecuted:
		return x.declaredNotExecuted()
	case ended == endedSuspended && x.settings.mode == modeTransactional:
		return x.declaredNotExecuted() // all its writes are undone
	case ended == endedSuspended:
		return x.suspended()
	case x.panicked != nil:
		return x.unanswered(ctx, "the handler panicked", &problemHandlerFailed)
	case rec.broken != nil:
		return x.brokenOutcome()
	case op.hidesFailure(rec.status):
		return x.unanswered(ctx, "", &problemHandlerFailed)
	case silent:
		reason := "the handler ran past its deadline, or lost its lease, and wrote no answer"
		return x.unanswered(ctx, reason, &problemDeadline)
	case rec.cut() != "" && x.settings.mode != modeTransactional && rec.status < http.StatusBadRequest:
		return outcome{kind: outcomeUnknown, reason: op.reasonOr(rec.cut())} // the handler began to report a success
	case rec.cut() != "" && ctx.Err() != nil:
		return x.unanswered(ctx, rec.cut(), &problemDeadline)
	case rec.cut() != "":
		return x.unanswered(ctx, rec.cut(), &problemHandlerFailed)
	case x.notRerun:
		return x.unanswered(ctx, "the handler did not run again after it was undone", &problemNotExecuted)
	}
	if end, unseen := x.bypassedOutcome(); unseen {
		return end
	}
	response := rec.response()
	if response.Status < http.StatusOK {
		return x.unanswered(ctx, "the handler tried to switch protocols", &problemHandlerFailed)
	}
	end := x.judge(ctx, response)
	x.sendOwn = end.kind == outcomeUnknown
	return end
}

// judge returns the outcome of a complete answer, by its status (rule E5).
func (e *execution) judge(ctx context.Context, response store.Response) outcome {
	e.passedOn = temporary(&response)
	switch {
	case e.passedOn && (e.settings.mode != modeTransactional || !e.op.keepWrites.Load()):
		onFailure := e.onFailure(ctx)
		if onFailure == FailureStore {
			onFailure = FailureUnknown
		}
		return failedAs(onFailure, e.op.reasonOr("the handler passed on a problem that a retry may solve"), nil)
	case retryLater(response.Status):
		return outcome{kind: outcomeRelease, reason: "the handler answered " + strconv.Itoa(response.Status)}
	case response.Status >= http.StatusInternalServerError:
		return e.failedOutcome(ctx, response)
	default:
		undo := response.Status >= http.StatusBadRequest && !e.op.keepWrites.Load()
		return outcome{kind: outcomeAnswer, response: response, undoWork: undo}
	}
}

// temporary reports whether an answer is a problem of another protected operation that is in progress, or whose outcome
// is unknown. If a handler passes on the answer of an inner service that uses Onceward, such an answer must not become
// the handler's final answer.
func temporary(response *store.Response) bool {
	if response.Status != http.StatusConflict && response.Status != http.StatusInternalServerError {
		return false
	}
	var p Problem
	return slices.ContainsFunc(response.Header, func(f store.HeaderField) bool {
		return f.Name == "Content-Type" && strings.HasPrefix(f.Value, "application/problem+json")
	}) && json.Unmarshal(response.Body, &p) == nil && p.Retryable && p.Code != "" &&
		strings.HasPrefix(p.Instance, "urn:uuid:")
}

// retryLater reports whether a status means that the handler did nothing.
func retryLater(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return false
	}
}

// failed reports whether an answer of this status does not complete the operation by itself (rule E5).
func failed(status int) bool { return status >= http.StatusInternalServerError || retryLater(status) }

// failedOutcome returns the outcome of a 5xx answer. Answers about a temporary condition are never stored: 503 means
// that nothing was done, while after a gateway's 502 or 504 it is not known what was done.
func (e *execution) failedOutcome(ctx context.Context, response store.Response) outcome {
	onFailure := e.onFailure(ctx)
	if onFailure == FailureStore {
		switch response.Status {
		case http.StatusServiceUnavailable:
			onFailure = FailureRetry
		case http.StatusBadGateway, http.StatusGatewayTimeout:
			onFailure = FailureUnknown
		}
	}
	reason := e.op.reasonOr("the handler answered " + strconv.Itoa(response.Status))
	return failedAs(onFailure, reason, func() store.Response { return response })
}

// unanswered returns the outcome of a handler without an answer of its own.
func (x *httpExecution) unanswered(ctx context.Context, reason string, problem *Problem) outcome {
	x.problem = problem
	end := failedAs(x.onFailure(ctx), x.op.reasonOr(reason), func() store.Response {
		// The answer is not written to the handler's own recorder: a goroutine of the handler may still use that
		// recorder.
		x.recorder = x.recorder.renewed()
		x.recorder.start(ctx)
		x.answerProblem(x.recorder, &problemHandlerFailed)
		x.recorder.end()
		return x.recorder.response()
	})
	x.problem = end.problem(x.problem)
	return end
}

// brokenOutcome returns the outcome of an answer that could not be kept: an answer that is too large for a transaction,
// which is then undone, or an answer that could not be marked as not replayable.
func (x *httpExecution) brokenOutcome() outcome {
	if x.recorder.overflow {
		x.problem = &problemTooLarge
		return outcome{kind: outcomeRelease, reason: errTooLarge.Error()}
	}
	return outcome{kind: outcomeUnknown, reason: x.recorder.broken.Error()}
}

// streamedOutcome returns the outcome of an answer that is already being sent. A failure is then unknown, whatever the
// route's [Failure].
func (x *httpExecution) streamedOutcome(ctx context.Context, op *Operation) outcome {
	if x.panicked != nil || op.outcome.Load() != endedAsWritten || ctx.Err() != nil || failed(x.recorder.status) ||
		op.hidesFailure(x.recorder.status) || x.recorder.cut() != "" || x.recorder.broken != nil || len(x.recorder.body) > 0 {
		reason := op.reasonOr("the handler failed after a part of its response was sent")
		return outcome{kind: outcomeUnknown, reason: reason}
	}
	return outcome{kind: outcomeAnswer, response: x.recorder.response()}
}

// declaredUnknown returns the outcome of a call of [Operation.Unknown]. In a transaction everything is undone, so
// nothing is unknown.
func (x *httpExecution) declaredUnknown() outcome {
	reason := x.op.reasonOr("the handler reported that the outcome is unknown")
	if x.settings.mode == modeTransactional {
		return x.declaredNotExecuted()
	}
	x.sendOwn = x.recorder.status >= http.StatusInternalServerError && x.recorder.broken == nil
	return outcome{kind: outcomeUnknown, reason: reason}
}

// declaredNotExecuted returns the outcome of a call of [Operation.NotExecuted] or [Operation.Reject]. An answer that
// reports success would contradict it, and is replaced. An incomplete answer is replaced too.
func (x *httpExecution) declaredNotExecuted() outcome {
	if x.recorder.status < http.StatusBadRequest || x.recorder.broken != nil {
		x.problem = problemNotExecuted.detailed("retry with the same key")
	}
	reason := "the handler reported that nothing was executed"
	if x.op.rejected.Load() {
		reason = "the handler rejected the request"
	}
	return outcome{kind: outcomeRelease, reason: x.op.reasonOr(reason)}
}

// answer sends the response for the result. A panic of the handler is raised again for the server's own recovery (rule
// E8).
func (x *httpExecution) answer(res *result) {
	if x.panicked != nil {
		panic(x.panicked)
	}
	if x.recorder.streaming {
		x.endStream(res)
		return
	}
	if x.bypassed {
		x.endBypassed(res)
		return
	}
	switch res.kind {
	case resultAnswer:
		x.sendStored(res)
	case resultStored:
		x.replay(res)
	case resultReleased:
		x.sendUnkept(res)
	case resultUnknown:
		if !x.sendOwn {
			x.problem = becameUnknown()
		}
		x.sendUnkept(res)
	case resultDecision:
		x.decline(res)
	case resultFailed:
		x.answerProblem(x.recorder.real, x.guard.failureProblem(res.err))
	case resultCallerLeft:
		// The client does not read this answer; it is written for a log.
		x.answerProblem(x.recorder.real, problemNotExecuted.detailed("the client left before execution"))
	}
}

// endStream ends an answer that is already sent, with its trailers. If its end could not be stored the connection is
// closed, so that the client does not treat the answer as a success.
func (x *httpExecution) endStream(res *result) {
	if res.kind != resultAnswer {
		panic(http.ErrAbortHandler)
	}
	sendTrailers(x.recorder.real, x.recorder.trailers)
}

// sendStored sends the answer that was just stored.
func (x *httpExecution) sendStored(res *result) {
	x.expires(x.recorder.sendHeader(1), res)
	send(x.recorder.real, res.response.Status, res.response.Body, x.recorder.trailers)
}

// sendUnkept sends the handler's answer although it is not stored, or Onceward's own answer in its place. If no attempt
// did anything, the answer is marked as such: a client can then distinguish it from a gateway's answer, which proves
// nothing about earlier attempts.
func (x *httpExecution) sendUnkept(res *result) {
	rec := x.recorder
	if x.problem != nil {
		x.answerProblem(rec.real, x.problem)
		return
	}
	room := rec.sendHeader(1)
	if res.nothingDone {
		room = append(room, "not-executed")
		rec.real.Header()[outcomeHeader] = room[len(room)-1 : len(room) : len(room)]
	}
	send(rec.real, rec.status, rec.takeBody(), rec.trailers)
}

// replay sends the stored answer, byte for byte.
func (x *httpExecution) replay(res *result) {
	response := res.answer()
	w := x.recorder.real
	if response.NotStored {
		detail := "it was too large, was streamed, or did not pass through the guard; the request is not executed again"
		x.answerProblem(w, problemNotStored.detailed(detail))
		return
	}
	h := w.Header()
	room := x.recorder.sendFields(response.Header, 2)
	room = append(room, "true")
	h[x.guard.config.ReplayedHeader] = room[len(room)-1 : len(room) : len(room)]
	x.expires(room, res)
	send(w, response.Status, response.Body, nil)
}

// expires adds the header with the time until which the answer is kept.
func (x *httpExecution) expires(room []string, res *result) {
	room = append(room, res.expires.UTC().Format(http.TimeFormat))
	x.recorder.real.Header()[expiresHeader] = room[len(room)-1 : len(room) : len(room)]
}

// decline answers a request that is neither executed nor replayed.
func (x *httpExecution) decline(res *result) {
	w := x.recorder.real
	if res.decision == store.DecisionInProgress && x.settings.inFlight == inFlightAccepted {
		x.guard.accepted(w, x.settings.statusPath, x.reservation.Key)
		return
	}
	x.answerProblem(w, x.guard.decisionProblem(res))
}

// answerProblem answers with a problem in place of the handler's answer.
func (x *httpExecution) answerProblem(w http.ResponseWriter, p *Problem) {
	x.guard.answerProblem(x.request.Context(), w, x.reservation.ID, x.op.name, p)
}
