package onceward

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/onceward/onceward/store"
)

// ProblemTypePrefix comes before the code in the type of a problem. The codes are documented in docs/problems.md.
const ProblemTypePrefix = "urn:onceward:problem:"

// Problem is the body of an answer that Onceward itself gives, as RFC 9457 has it. It never holds stored data, a
// fingerprint, or a sign of another scope.
type Problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	Instance string `json:"instance,omitempty"`
	// Code is stable, for programs.
	Code string `json:"code"`
	// Retryable says whether the client may send the same request again with the same key.
	Retryable bool `json:"retryable"`

	retryAfter time.Duration
}

// The problems that Onceward answers with. Their details and statuses are filled in per request.
var (
	problemNoKey          = problem(400, "missing-key", "An idempotency key is required")
	problemBadKey         = problem(400, "invalid-key", "The idempotency key is not valid")
	problemPersonalKey    = problem(400, "personal-data-key", "The idempotency key looks like personal data")
	problemNoAuth         = problem(401, "unauthenticated", "The caller is not authenticated")
	problemBodyTooLarge   = problem(413, "body-too-large", "The request body is too large")
	problemBodyIncomplete = retryable(400, 0, "body-incomplete", "The request body was cut off")
	problemBodyConsumed   = problem(500, "body-consumed",
		"The request body was read before the request could be identified")
	problemNoTarget     = problem(500, "target-missing", "The request does not say where it was sent")
	problemBadRequest   = problem(400, "invalid-request", "The request cannot be identified")
	problemUpgrade      = problem(400, "upgrade-refused", "A protected request cannot switch protocols")
	problemNotSentFirst = problem(400, "first-sent-missing", "The time of the first sending is required")
	problemBadFirstSent = problem(400, "first-sent-invalid", "The time of the first sending is not an HTTP date")
	problemTooOld       = problem(412, "first-sent-too-old", "The request was first sent too long ago")
	problemFuture       = problem(412, "first-sent-in-future", "The request was first sent in the future")
	problemMismatch     = problem(422, "mismatch", "The idempotency key was used for a different request")
	problemInProgress   = retryable(409, time.Second, "in-progress", "The request is being processed")
	problemUnknown      = retryable(409, 0, "outcome-unknown", "The outcome of the request is not known yet")
	problemUnreadable   = problem(500, "record-unreadable", "The record of the request cannot be read")
	problemNotStored    = problem(409, "response-not-stored",
		"The request was executed, but its response was not stored")
	problemUnavailable = retryable(503, time.Second, "store-unavailable", "The request was not executed")
	problemRefused     = retryable(429, time.Second, "new-keys-refused", "No new requests are accepted")
	problemNotExecuted = retryable(503, time.Second, "not-executed", "The request was not executed")
	problemDeadline    = retryable(503, time.Second, "deadline-exceeded",
		"The request took too long and was not executed")
	problemHandlerFailed = problem(500, "handler-failed", "The request failed")
	problemWorkRefused   = retryable(500, 0, "work-refused", "The request was not executed")
	problemTooLarge      = problem(500, "response-too-large",
		"The response was too large to store, and nothing was executed")
	problemNoSuchKey = problem(404, "key-not-found", "There is no such operation")
)

func problem(status int, code, title string) Problem {
	return Problem{Code: code, Status: status, Title: title}
}

// retryable is a problem for which the same request may be sent again; after no time means that it is not known when.
func retryable(status int, after time.Duration, code, title string) Problem {
	return Problem{Code: code, Status: status, Title: title, Retryable: true, retryAfter: after}
}

// detailed returns the problem with a detail.
func (p Problem) detailed(detail string) *Problem {
	p.Detail = detail
	return &p
}

// Error makes a problem an error value.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return "onceward: " + p.Title
	}
	return "onceward: " + p.Title + ": " + p.Detail
}

// write answers a request with the problem.
func (p *Problem) write(w http.ResponseWriter, r *http.Request) {
	answer := *p
	answer.Type = ProblemTypePrefix + p.Code
	answer.Instance = r.URL.EscapedPath()
	body, err := json.Marshal(&answer)
	if err != nil {
		// Strings, a number and a bool always encode.
		panic("onceward: " + err.Error())
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.retryAfter > 0 {
		h.Set("Retry-After", retryAfter(p.retryAfter))
	}
	w.WriteHeader(p.Status)
	// A client that is gone has no use for the error, and nothing depends on it.
	_, _ = w.Write(append(body, '\n'))
}

// retryAfter is the header's value: whole seconds, at least one.
func retryAfter(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}

// keyProblem says what is wrong with a key.
func keyProblem(err error) *Problem {
	switch {
	case errors.Is(err, ErrNoKey):
		return problemNoKey.detailed("send an Idempotency-Key header with a value that is unique to this operation, " +
			"and the same value on every retry")
	case errors.Is(err, ErrPersonalKey):
		return problemPersonalKey.detailed(err.Error())
	default:
		return problemBadKey.detailed(err.Error())
	}
}

// decisionProblem answers a decision that neither executes nor replays.
func (g *Guard) decisionProblem(res *result) *Problem {
	switch res.decision {
	case store.DecisionMismatch:
		p := problemMismatch.detailed("use a new key for a new request; the original can still be retried as it was")
		if g.config.Profile == ProfileStripe {
			p.Status = http.StatusBadRequest
		}
		return p
	case store.DecisionUnknown:
		p := problemUnknown.detailed("an earlier attempt may have taken effect; " +
			"it is not executed again until its outcome has been settled")
		p.retryAfter = unknownRetryAfter(res)
		return p
	case store.DecisionRefused:
		return &problemRefused
	default:
		return problemInProgress.detailed("retry later with the same key to get the answer")
	}
}

// The bounds of Retry-After for an outcome that is not known: reconciliation takes its time.
const (
	leastUnknownRetry = 5 * time.Second
	mostUnknownRetry  = time.Minute
)

func unknownRetryAfter(res *result) time.Duration {
	return min(max(res.record.ReconcileAt.Sub(res.now), leastUnknownRetry), mostUnknownRetry)
}

// becameUnknown is the answer when the outcome became unknown in this request (E7).
func becameUnknown() *Problem {
	p := problemUnknown.detailed("the request may have taken effect, but its outcome could not be stored; " +
		"it is not executed again: retry with the same key to learn the outcome once it is settled")
	p.Status = http.StatusInternalServerError
	return p
}

// failureProblem answers when the store could not, or the database would not: nothing was executed.
func failureProblem(err error) *Problem {
	switch {
	case errors.Is(err, store.ErrUnreadable):
		return problemUnreadable.detailed("nothing was executed; the operator has to look at the record")
	case errors.Is(err, store.ErrWorkRefused):
		return problemWorkRefused.detailed("the database refused what the request would have written")
	case errors.Is(err, store.ErrDeadline):
		return problemDeadline.detailed("retry later with the same key")
	}
	return problemUnavailable.detailed("retry later with the same key")
}
