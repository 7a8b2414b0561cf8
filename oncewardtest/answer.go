package oncewardtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/onceward/onceward"
)

// Answer is what a client received. A failed assertion reports what was expected, what was received, and the history.
type Answer struct {
	// Status, Header and Body are the parts of the response.
	Status int
	Header http.Header
	Body   string
	// Code is the code of Onceward's own problem, such as "in-progress"; empty for an answer of the handler.
	Code string
	// Lost means that there was no answer: the process crashed, or the handler panicked.
	Lost bool

	t         TestingT
	log       *journal
	request   Request
	replayed  bool
	retryable bool // the problem reports that the request may be sent again
}

// readProblem sets the code of a problem of Onceward, if the answer is one.
func (a *Answer) readProblem() {
	var problem onceward.Problem
	if strings.HasPrefix(a.Header.Get("Content-Type"), "application/problem+json") &&
		json.Unmarshal([]byte(a.Body), &problem) == nil {
		a.Code, a.retryable = problem.Code, problem.Retryable
	}
}

// String returns the answer in a few words.
func (a *Answer) String() string {
	switch {
	case a.Lost:
		return "no answer"
	case a.replayed:
		return fmt.Sprintf("%d, replayed", a.Status)
	case a.Code != "":
		return fmt.Sprintf("%d %s", a.Status, a.Code)
	default:
		return fmt.Sprint(a.Status)
	}
}

// Executed fails the test unless the handler ran for this request and answered with the status.
func (a *Answer) Executed(status int) *Answer {
	a.t.Helper()
	if a.Lost || a.replayed || a.Code != "" || a.Status != status {
		a.fail(fmt.Sprintf("want %d from the handler", status))
	}
	return a
}

// Replayed fails the test unless the answer is a replay of an earlier answer: the same status and the same bytes.
func (a *Answer) Replayed(first *Answer) *Answer {
	a.t.Helper()
	if a.Lost || !a.replayed || a.Status != first.Status || a.Body != first.Body {
		a.fail(fmt.Sprintf("want a replay of the first answer, %s %s", first, strings.TrimSpace(first.Body)))
	}
	return a
}

// Refused fails the test unless Onceward refused the request with a problem of this code: "in-progress", "mismatch",
// "outcome-unknown", "store-unavailable" and others, which docs/problems.md lists.
func (a *Answer) Refused(code string) *Answer {
	a.t.Helper()
	if a.Lost || a.Code != code {
		a.fail("want the problem " + code)
	}
	return a
}

func (a *Answer) fail(want string) {
	a.t.Helper()
	a.t.Errorf("oncewardtest: %s, key %s: got %s %s; %s\n%s",
		a.request, a.request.Key, a, strings.TrimSpace(a.Body), want, a.log.text())
}
