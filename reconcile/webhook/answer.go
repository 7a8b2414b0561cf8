package webhook

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/onceward/onceward"
)

// The answers to a delivery that is not taken. They say no more than the status does: what was wrong is in the log.
var (
	problemMethod     = onceward.Problem{Code: "method-not-allowed", Status: 405, Title: "Deliveries are sent with POST"}
	problemTooLarge   = onceward.Problem{Code: "body-too-large", Status: 413, Title: "The request body is too large"}
	problemIncomplete = onceward.Problem{Code: "body-incomplete", Status: 400, Title: "The request body was cut off", Retryable: true}
	problemSignature  = onceward.Problem{Code: "unauthenticated", Status: 401, Title: "The caller is not authenticated"}
	problemUnreadable = onceward.Problem{Code: "invalid-request", Status: 400, Title: "The event cannot be identified"}
	problemStore      = onceward.Problem{Code: "store-unavailable", Status: 503, Title: "The event was not kept", Retryable: true}
	problemFailed     = onceward.Problem{Code: "external event-failed", Status: 500, Title: "The event could not be handled", Retryable: true}
)

// retryAfter is how many seconds a sender waits at least for a store that is away.
const retryAfter = "1"

// bodyProblem tells a body that is too large from one that did not come.
func bodyProblem(err error) onceward.Problem {
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return problemTooLarge
	}
	return problemIncomplete
}

// write answers a delivery with a problem.
func write(w http.ResponseWriter, problem onceward.Problem) {
	problem.Type = onceward.ProblemTypePrefix + problem.Code
	body, err := json.Marshal(&problem)
	if err != nil {
		// Strings, a number and a bool always encode.
		panic("webhook: " + err.Error())
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if problem.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", retryAfter)
	}
	w.WriteHeader(problem.Status)
	// A sender that is gone has no use for the error, and nothing depends on it.
	_, _ = w.Write(append(body, '\n'))
}
