package phase

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
)

// Answer is what an operation ends with. It is stored, and every retry gets it.
type Answer struct {
	// Status is the HTTP status. Default: 200. With 401, 408, 425, 429 or one from 500 on a handler says that it did
	// nothing, or failed, and the guard does not store that: an operation that did something and ends so is unknown.
	Status int
	// Header holds header fields to send.
	Header http.Header
	// Body is the body; for an operation run by [Operation.Do] it is the value.
	Body []byte
}

// JSON is an answer with a value as its body.
func JSON(status int, value any) Answer {
	body, err := json.Marshal(value)
	if err != nil {
		// The value is the program's own: that it cannot be written is a mistake in the program.
		panic("phase: " + err.Error())
	}
	return Answer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

// finished is an error that ends an operation with an answer.
type finished struct {
	answer Answer
	// rejected is the error of onceward.Rejected that the answer was made from, if a step gave no answer of its own.
	rejected error
}

// Error implements error.
func (f *finished) Error() string {
	if f.rejected != nil {
		return f.rejected.Error()
	}
	return "phase: the operation is finished with " + http.StatusText(f.answer.status())
}

// Unwrap returns the error that the answer was made from.
func (f *finished) Unwrap() error { return f.rejected }

// rejection ends an operation with an error of [onceward.Rejected] that has no answer: with 400 and its text.
func rejection(err error) error {
	answer := Answer{Status: http.StatusBadRequest, Body: []byte(err.Error() + "\n")}
	return &finished{answer: answer, rejected: err}
}

// Finish is an error by which a step ends the operation with an answer: a seat that is taken, a card that was declined.
// What the step itself did in the database is undone; what earlier steps did stays, and is for the step to take back
// before. Wrapped by [onceward.Rejected], it keeps nothing where no recovery point was reached: the corrected request
// may come under the same key. Where one was, the answer is kept all the same. An error of onceward.Rejected without an
// answer is one with 400 and its text; of an operation run by [Operation.Do] it is the error, and is kept as that.
func Finish(answer Answer) error { return &finished{answer: answer} }

// asFinished returns the end of the operation that an error stands for; nil if it stands for none.
func asFinished(err error) *finished {
	var f *finished
	errors.As(err, &f)
	return f
}

func (a *Answer) status() int {
	if a.Status == 0 {
		return http.StatusOK
	}
	return a.Status
}

// isStored reports whether the guard stores an answer of this status.
func (a *Answer) isStored() bool {
	switch status := a.status(); status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return status >= http.StatusOK && status < http.StatusInternalServerError
	}
}

// write sends the answer to the guard's recorder, which stores it first.
func (a *Answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.Header)
	w.WriteHeader(a.status())
	_, _ = w.Write(a.Body) // the recorder keeps it; what it cannot keep it says itself
}
