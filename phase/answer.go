package phase

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
)

// Answer is the result of an operation. It is stored and returned to retries.
type Answer struct {
	// Status is the HTTP status. Default: 200. With 401, 408, 425, 429 or a status from 500 on a handler reports that it
	// did nothing, or failed, and the guard does not store the answer: an operation that did something and ends so is
	// unknown.
	Status int
	// Header holds header fields to send.
	Header http.Header
	// Body is the body; for an operation run by [Operation.Do] it is the value.
	Body []byte
}

// JSON returns an answer with a value as its body.
func JSON(status int, value any) Answer {
	body, err := json.Marshal(value)
	if err != nil {
		// The value is the program's own: if it cannot be encoded the program is wrong.
		panic("phase: " + err.Error())
	}
	return Answer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

// finished is an error that ends an operation with an answer.
type finished struct {
	answer Answer
	// rejected is the error of onceward.Rejected that the answer was made from, if the step returned no answer.
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

// rejection returns an error that ends an operation with 400 and the text of an error of [onceward.Rejected].
func rejection(err error) error {
	answer := Answer{Status: http.StatusBadRequest, Body: []byte(err.Error() + "\n")}
	return &finished{answer: answer, rejected: err}
}

// Finish returns an error with which a step ends the operation with an answer: a seat is taken, a card was declined.
// The step's own writes in the database are undone; the effects of earlier steps stay, and the step must undo them
// before. Wrapped by [onceward.Rejected], it leaves no record if no recovery point was reached: the corrected request
// may use the same key. If a recovery point was reached, the answer is kept anyway. An error of onceward.Rejected
// without an answer has the answer 400 with its text; for an operation run by [Operation.Do] it is the error, and is
// kept as such.
func Finish(answer Answer) error { return &finished{answer: answer} }

// asFinished returns the end of the operation in an error; nil if the error does not end the operation.
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
	_, _ = w.Write(a.Body) // the recorder keeps it, and reports what it cannot keep
}
