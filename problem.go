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
	problemNoKey          = Problem{Code: "missing-key", Status: 400, Title: "An idempotency key is required"}
	problemBadKey         = Problem{Code: "invalid-key", Status: 400, Title: "The idempotency key is not valid"}
	problemPersonalKey    = Problem{Code: "personal-data-key", Status: 400, Title: "The idempotency key looks like personal data"}
	problemNoAuth         = Problem{Code: "unauthenticated", Status: 401, Title: "The caller is not authenticated"}
	problemBodyTooLarge   = Problem{Code: "body-too-large", Status: 413, Title: "The request body is too large"}
	problemBodyIncomplete = Problem{Code: "body-incomplete", Status: 400, Title: "The request body was cut off", Retryable: true}
	problemBodyConsumed   = Problem{Code: "body-consumed", Status: 500, Title: "The request body was read before the request could be identified"}
	problemNoTarget       = Problem{Code: "target-missing", Status: 500, Title: "The request does not say where it was sent"}
	problemBadRequest     = Problem{Code: "invalid-request", Status: 400, Title: "The request cannot be identified"}
	problemUpgrade        = Problem{Code: "upgrade-refused", Status: 400, Title: "A protected request cannot switch protocols"}
	problemNotSentFirst   = Problem{Code: "first-sent-missing", Status: 400, Title: "The time of the first sending is required"}
	problemBadFirstSent   = Problem{Code: "first-sent-invalid", Status: 400, Title: "The time of the first sending is not an HTTP date"}
	problemTooOld         = Problem{Code: "first-sent-too-old", Status: 412, Title: "The request was first sent too long ago"}
	problemFuture         = Problem{Code: "first-sent-in-future", Status: 412, Title: "The request was first sent in the future"}
	problemMismatch       = Problem{Code: "mismatch", Status: 422, Title: "The idempotency key was used for a different request"}
	problemInProgress     = Problem{Code: "in-progress", Status: 409, Title: "The request is being processed", Retryable: true, retryAfter: time.Second}
	problemUnknown        = Problem{Code: "outcome-unknown", Status: 409, Title: "The outcome of the request is not known yet", Retryable: true}
	problemUnreadable     = Problem{Code: "record-unreadable", Status: 500, Title: "The record of the request cannot be read"}
	problemNotStored      = Problem{Code: "response-not-stored", Status: 409, Title: "The request was executed, but its response was not stored"}
	problemUnavailable    = Problem{Code: "store-unavailable", Status: 503, Title: "The request was not executed", Retryable: true, retryAfter: time.Second}
	problemRefused        = Problem{Code: "new-keys-refused", Status: 429, Title: "No new requests are accepted", Retryable: true, retryAfter: time.Second}
	problemNotExecuted    = Problem{Code: "not-executed", Status: 503, Title: "The request was not executed", Retryable: true, retryAfter: time.Second}
	problemDeadline       = Problem{Code: "deadline-exceeded", Status: 503, Title: "The request took too long and was not executed", Retryable: true, retryAfter: time.Second}
	problemHandlerFailed  = Problem{Code: "handler-failed", Status: 500, Title: "The request failed"}
	problemWorkRefused    = Problem{Code: "work-refused", Status: 500, Title: "The request was not executed", Retryable: true}
	problemTooLarge       = Problem{Code: "response-too-large", Status: 500, Title: "The response was too large to store, and nothing was executed"}
	problemNoSuchKey      = Problem{Code: "key-not-found", Status: 404, Title: "There is no such operation"}
)

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
		return problemNoKey.detailed("send an Idempotency-Key header with a value that is unique to this operation, and the same value on every retry")
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
		p := problemUnknown.detailed("an earlier attempt may have taken effect; it is not executed again until its outcome has been settled")
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
	p := problemUnknown.detailed("the request may have taken effect, but its outcome could not be stored; it is not executed again: retry with the same key to learn the outcome once it is settled")
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
