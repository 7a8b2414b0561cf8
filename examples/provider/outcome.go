package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// codeNotSent is the code of a refusal that never reached the provider.
const codeNotSent = "not_sent"

// DeclinedError is returned when the provider declined a charge.
// This is final: no money moved, and the charge can be looked up.
type DeclinedError struct {
	// Charge is the declined charge.
	Charge Charge
}

// Error implements error.
func (e *DeclinedError) Error() string { return "provider: charge " + e.Charge.ID + " was declined" }

// RefusedError is returned when it is certain that nothing was done: the provider
// reported it, or the request was never sent because there was no connection.
type RefusedError struct {
	// Status is the status of the answer, or zero if there was none.
	Status int
	// Code is the provider's code for the reason, such as idempotency_key_reused, or not_sent.
	Code string
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("provider: refused, nothing was done (%s): %v", e.Code, e.Err)
}

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// UnknownError is returned when it is not known whether the effect happened: the answer was lost,
// came too late, or is unclear. Only a look-up, or the same request with the same key, can find out.
type UnknownError struct {
	// Status is the status of the answer, or zero if there was none.
	Status int
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("provider: the outcome is unknown (status %d): %v", e.Status, e.Err)
}

// Unwrap returns the cause, such as context.DeadlineExceeded.
func (e *UnknownError) Unwrap() error { return e.Err }

// LookUpError is returned when a look-up failed. It gives no information about what
// was looked up: a 503 for a look-up does not mean that an earlier refund failed.
type LookUpError struct {
	// Status is the status of the answer, or zero if there was none.
	Status int
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *LookUpError) Error() string {
	return fmt.Sprintf("provider: the look-up failed (status %d): %v", e.Status, e.Err)
}

// Unwrap returns the cause, such as context.DeadlineExceeded.
func (e *LookUpError) Unwrap() error { return e.Err }

func notSent(err error) error { return &RefusedError{Code: codeNotSent, Err: err} }

// lost returns the error for a request without an answer. If there was no connection,
// the request was not sent; in all other cases it may have been executed.
func lost(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return notSent(err)
	}
	return &UnknownError{Err: err}
}

// judge decodes an answer into the value, or returns its error. In doubt the outcome is unknown: an answer
// that is not the provider's own may come from something in between, which cannot know the outcome.
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
