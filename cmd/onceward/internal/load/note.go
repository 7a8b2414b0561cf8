package load

import (
	"net/http"
	"slices"
)

// Answer is a definitive answer, with all of it that a retry has to get again.
type Answer struct {
	Status      int
	Location    string
	ContentType string
	Body        string
}

// Note is what a client knows about one order.
type Note struct {
	Order
	// Attempts counts the requests that were sent for it.
	Attempts int
	// Answers are the definitive answers that differ. There should be one.
	Answers []Answer
	// LastSeen is what the last attempt without a definitive answer came to, for an order that got none.
	LastSeen string
}

// Answered reports whether the client has got a definitive answer.
func (n *Note) Answered() bool { return len(n.Answers) > 0 }

// Succeeded reports whether the first definitive answer was a success.
func (n *Note) Succeeded() bool { return n.Answered() && n.Answers[0].Status == http.StatusCreated }

func (n *Note) add(outcome outcome) {
	n.Attempts++
	switch {
	case outcome.answer == nil:
		n.LastSeen = outcome.seen
	case !slices.Contains(n.Answers, *outcome.answer):
		n.Answers = append(n.Answers, *outcome.answer)
	}
}

// definitive reports whether a status says how the order ended. All others mean: ask again.
func definitive(status int) bool {
	switch status {
	case http.StatusAccepted, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return status >= 200 && status < 500
	}
}
