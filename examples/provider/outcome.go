package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// codeNotSent is the code of a refusal that never came to the provider.
const codeNotSent = "not_sent"

// DeclinedError is returned when the provider looked at a charge and declined it. That is final: no money moved, and
// the charge can be looked up.
type DeclinedError struct {
	// Charge is the declined charge.
	Charge Charge
}

// Error says which charge was declined.
func (e *DeclinedError) Error() string { return "provider: charge " + e.Charge.ID + " was declined" }

// RefusedError is returned when it is certain that nothing was done: the provider says so itself, or the request was
// never sent because there was no connection.
type RefusedError struct {
	// Status is the status of the answer, or zero if there was none.
	Status int
	// Code is the provider's word for the reason, such as idempotency_key_reused, or not_sent.
	Code string
	// Err says more.
	Err error
}

// Error says why nothing was done.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("provider: refused, nothing was done (%s): %v", e.Code, e.Err)
}

// Unwrap returns what says more.
func (e *RefusedError) Unwrap() error { return e.Err }

// UnknownError is returned when it cannot be told from here whether the effect happened: the answer was lost, came too
// late, or says nothing. Only a look-up, or the same request with the same key, can tell.
type UnknownError struct {
	// Status is the status of the answer, or zero if there was none.
	Status int
	// Err says more.
	Err error
}

// Error says what is known.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("provider: the outcome is unknown (status %d): %v", e.Status, e.Err)
}

// Unwrap returns what says more, such as context.DeadlineExceeded.
func (e *UnknownError) Unwrap() error { return e.Err }

// LookUpError is returned when a look-up failed. It says nothing of what was looked up: a 503 to a question is no word
// on a refund that was made before.
type LookUpError struct {
	// Status is the status of the answer, or zero if there was none.
	Status int
	// Err says more.
	Err error
}

// Error says that the look-up failed.
func (e *LookUpError) Error() string {
	return fmt.Sprintf("provider: the look-up failed (status %d): %v", e.Status, e.Err)
}

// Unwrap returns what says more, such as context.DeadlineExceeded.
func (e *LookUpError) Unwrap() error { return e.Err }

func notSent(err error) error { return &RefusedError{Code: codeNotSent, Err: err} }

// lost judges a request without an answer. Without a connection it cannot have been sent; all else may have come
// through.
func lost(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return notSent(err)
	}
	return &UnknownError{Err: err}
}

// judge turns an answer into an error, or into the value. In doubt it says unknown: an answer that is not the
// provider's own may come from something in between, which cannot know.
func judge(status int, body []byte, into any) error {
	switch {
	case status/100 == 2:
		if into == nil {
			return nil
		}
		if err := json.Unmarshal(body, into); err != nil {
			return &UnknownError{Status: status, Err: err}
		}
		return nil
	case status == http.StatusPaymentRequired:
		return declined(body)
	default:
		return refused(status, body)
	}
}

func declined(body []byte) error {
	var charge Charge
	if err := json.Unmarshal(body, &charge); err != nil || charge.Status != Declined {
		return &UnknownError{Status: http.StatusPaymentRequired, Err: errors.New("the answer is not a declined charge")}
	}
	return &DeclinedError{Charge: charge}
}

func refused(status int, body []byte) error {
	var document problemDocument
	if err := json.Unmarshal(body, &document); err != nil || document.Error == nil || document.Error.Code == "" {
		return &UnknownError{Status: status, Err: errors.New("the answer is not the provider's own")}
	}
	if status/100 == 4 || document.Error.Code == codeNotProcessed {
		return &RefusedError{Status: status, Code: document.Error.Code, Err: document.Error}
	}
	return &UnknownError{Status: status, Err: document.Error}
}
