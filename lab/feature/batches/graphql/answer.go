package mutations

import (
	"encoding/json"
	"errors"

	"github.com/onceward/onceward"
)

// answer is what is stored. An error that is a problem is kept if its status is a 4xx; any other undoes all.
func answer(result any, err error) onceward.Answer {
	body, unreadable := json.Marshal(result)
	if err = errors.Join(err, unreadable); err == nil {
		return onceward.Answer{ContentType: "application/json", Body: body}
	}
	problem := &onceward.Problem{Status: 500, Title: "it failed", Code: "failed", Retryable: true}
	errors.As(err, &problem)
	body, _ = json.Marshal(problem) // of text and numbers
	return onceward.Answer{Status: problem.Status, ContentType: "application/json", Body: body}
}

// failure is a problem as an error of GraphQL.
type failure struct{ *onceward.Problem }

func (f failure) Error() string { return f.Title }

func (f failure) Extensions() map[string]any {
	return map[string]any{"code": f.Code, "retryable": f.Retryable, "retryAfter": f.RetryAfter.Seconds()}
}
