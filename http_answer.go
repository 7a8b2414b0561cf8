package onceward

import (
	"context"
	"net/http"
	"strconv"

	"github.com/onceward/onceward/store"
)

// outcome judges what the handler did and said (E5). Its own word goes before everything that happened afterwards.
func (x *httpExecution) outcome(ctx context.Context, op *Operation) outcome {
	rec := x.recorder
	if rec.streaming {
		return x.streamedOutcome(ctx, op)
	}
	x.inspect(ctx, op)
	silent := rec.status == 0 && !rec.bypassed && ctx.Err() != nil
	switch said := op.outcome.Load(); {
	case said == endedUnknown:
		return x.saidUnknown()
	case said == endedNotExecuted, said == endedNeverExecuted:
		return x.saidNotExecuted()
	case said == endedSuspended && x.settings.mode == modeTransactional:
		return x.saidNotExecuted() // all that it did is undone
	case said == endedSuspended:
		return x.suspended()
	case x.panicked != nil:
		return x.unanswered(ctx, "the handler panicked", &problemHandlerFailed)
	case rec.broken != nil:
		return x.brokenOutcome()
	case op.failedLate():
		return x.unanswered(ctx, "", &problemHandlerFailed)
	case silent:
		reason := "the handler ran past its deadline, or lost its lease, and wrote no answer"
		return x.unanswered(ctx, reason, &problemDeadline)
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
	x.passOn = end.kind == outcomeUnknown
	return end
}

// judge says what a whole answer means, by its status (E5).
func (e *execution) judge(ctx context.Context, response store.Response) outcome {
	switch {
	case retryLater(response.Status):
		return outcome{kind: outcomeRelease, reason: "the handler answered " + strconv.Itoa(response.Status)}
	case response.Status >= http.StatusInternalServerError:
		return e.failedOutcome(ctx, response)
	default:
		undo := response.Status >= http.StatusBadRequest && !e.op.keepWrites.Load()
		return outcome{kind: outcomeAnswer, response: response, undoWork: undo}
	}
}

// retryLater holds the answers with which a handler says that it did nothing.
func retryLater(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return false
	}
}

// failed reports whether an answer of this status is no completion by itself (E5).
func failed(status int) bool { return status >= http.StatusInternalServerError || retryLater(status) }

// failedOutcome judges a 5xx. Answers that only say something about the moment are never stored: 503 says that nothing
// was done, while a gateway's 502 or 504 says nothing about what was.
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

// unanswered is the outcome of a handler without an answer of its own.
func (x *httpExecution) unanswered(ctx context.Context, reason string, problem *Problem) outcome {
	x.problem = problem
	return failedAs(x.onFailure(ctx), x.op.reasonOr(reason), func() store.Response {
		// Not into the handler's own recorder: a goroutine that it left behind may still hold that.
		x.recorder = x.recorder.another()
		x.recorder.start()
		x.answerProblem(x.recorder, &problemHandlerFailed)
		x.recorder.end()
		return x.recorder.response()
	})
}

// brokenOutcome is that of an answer which could not be kept: too large for a transaction, which is undone, or marked
// as not replayable without success.
func (x *httpExecution) brokenOutcome() outcome {
	if x.recorder.overflow {
		x.problem = &problemTooLarge
		return outcome{kind: outcomeRelease, reason: errTooLarge.Error()}
	}
	return outcome{kind: outcomeUnknown, reason: x.recorder.broken.Error()}
}

// streamedOutcome is that of an answer that is already on its way. After that a failure is unknown, whatever the route
// says.
func (x *httpExecution) streamedOutcome(ctx context.Context, op *Operation) outcome {
	if x.panicked != nil || op.outcome.Load() != endedAsWritten || ctx.Err() != nil || failed(x.recorder.status) ||
		op.failedLate() {
		reason := op.reasonOr("the handler failed after a part of its response was sent")
		return outcome{kind: outcomeUnknown, reason: reason}
	}
	return outcome{kind: outcomeAnswer, response: x.recorder.response()}
}

// saidUnknown: in a transaction nothing stays, so nothing is unknown.
func (x *httpExecution) saidUnknown() outcome {
	reason := x.op.reasonOr("the handler said that the outcome is unknown")
	if x.settings.mode == modeTransactional {
		return x.saidNotExecuted()
	}
	x.passOn = x.recorder.status >= http.StatusInternalServerError && x.recorder.broken == nil
	return outcome{kind: outcomeUnknown, reason: reason}
}

// saidNotExecuted: an answer that claims success would contradict it, and is replaced; so is one that is not whole.
func (x *httpExecution) saidNotExecuted() outcome {
	if x.recorder.status < http.StatusBadRequest || x.recorder.broken != nil {
		x.problem = problemNotExecuted.detailed("retry with the same key")
	}
	reason := "the handler said that nothing was executed"
	if x.op.rejected.Load() {
		reason = "the handler rejected the request"
	}
	return outcome{kind: outcomeRelease, reason: x.op.reasonOr(reason)}
}

// answer sends what the result calls for. A panic of the handler goes on to the server's own recovery (E8).
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
		x.sendOwn(res)
	case resultStored:
		x.replay(res)
	case resultReleased:
		x.sendUnkept(res)
	case resultUnknown:
		if !x.passOn {
			x.problem = becameUnknown()
		}
		x.sendUnkept(res)
	case resultDecision:
		x.decline(res)
	case resultFailed:
		x.answerProblem(x.recorder.real, x.guard.failureProblem(res.err))
	case resultCallerLeft:
		// The client does not read this; it is written for a log.
		x.answerProblem(x.recorder.real, problemNotExecuted.detailed("the client left before execution"))
	}
}

// endStream ends an answer that is already sent, with its trailers. If its end could not be stored the connection is
// cut, so that the client does not take it for a success.
func (x *httpExecution) endStream(res *result) {
	if res.kind != resultAnswer {
		panic(http.ErrAbortHandler)
	}
	sendTrailers(x.recorder.real, x.recorder.trailers)
}

// sendOwn sends the answer that was just stored.
func (x *httpExecution) sendOwn(res *result) {
	x.expires(x.recorder.sendHeader(1), res)
	send(x.recorder.real, res.response.Status, res.response.Body, x.recorder.trailers)
}

// sendUnkept sends the handler's answer although it is not stored, or Onceward's own in its place. Where nothing was
// done, by any attempt, it is marked as such, so that a client can tell it from the words of a gateway, which say nothing
// about the attempts before.
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

// expires tells the client until when the answer is kept.
func (x *httpExecution) expires(room []string, res *result) {
	room = append(room, res.expires.UTC().Format(http.TimeFormat))
	x.recorder.real.Header()[expiresHeader] = room[len(room)-1 : len(room) : len(room)]
}

// decline answers a request that may neither execute nor be replayed.
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
