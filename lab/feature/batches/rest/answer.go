package payments

import (
	"encoding/json"
	"errors"

	"github.com/onceward/onceward"
)

type answer struct {
	Status     int             `json:"status"`
	Replayed   bool            `json:"replayed,omitempty"`
	RetryAfter float64         `json:"retryAfter,omitempty"` // in seconds
	Body       json.RawMessage `json:"body"`
}

func toAnswer(served onceward.Served, err error) answer {
	if problem := (*onceward.Problem)(nil); errors.As(err, &problem) {
		body, _ := json.Marshal(problem) // with its code, and whether it is retryable
		return answer{Status: problem.Status, RetryAfter: problem.RetryAfter.Seconds(), Body: body}
	}
	return answer{Status: served.Status, Replayed: served.Replayed, Body: served.Body}
}
