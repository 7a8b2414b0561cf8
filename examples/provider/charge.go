package provider

import (
	"maps"
	"net/http"
	"time"
)

// DeclinedAmount is the amount that a provider declines by default, so that a test gets a decline without any set-up.
const DeclinedAmount int64 = 666

// Status is how a charge or a refund ended. It never changes afterwards.
type Status string

const (
	// Succeeded is the status of a charge or a refund that moved money.
	Succeeded Status = "succeeded"
	// Declined is the status of a charge that the provider looked at and did not make: no money moved.
	Declined Status = "declined"
)

// ChargeRequest is the body of POST /charges.
type ChargeRequest struct {
	// Amount is the money in the smallest unit of the currency, above zero.
	Amount int64 `json:"amount"`
	// Currency is the code of the currency, three letters.
	Currency string `json:"currency"`
	// Reference is the caller's own name for the payment, by which charges can be found and counted. It may be empty.
	Reference string `json:"reference,omitempty"`
	// Metadata is stored and returned unchanged.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Charge is a charge as the provider stores it. It never changes, so that each answer about it is the same.
type Charge struct {
	// ID names the charge. A later charge has a greater ID, also in the order of strings.
	ID string `json:"id"`
	// Status reports whether money moved.
	Status Status `json:"status"`
	ChargeRequest
	// IdempotencyKey is the key that came with the request, or empty.
	IdempotencyKey string `json:"idempotency_key"`
	// Created is when the charge was made, to the microsecond. A
	// later charge has a later time, even if the clock is set back.
	Created time.Time `json:"created"`
}

// RefundRequest is the body of POST /refunds.
type RefundRequest struct {
	// Charge is the ID of the charge to give back.
	Charge string `json:"charge"`
	// Amount is the money to give back, above zero and no more than what is left of the charge.
	Amount int64 `json:"amount"`
	// Reference is the caller's own name for this refund, by which refunds can be
	// found and counted. It may be empty. It is independent of the charge's reference.
	Reference string `json:"reference,omitempty"`
}

// Refund is a refund as the provider stores it. It never changes.
type Refund struct {
	// ID names the refund. A later refund has a greater ID, also in the order of strings.
	ID string `json:"id"`
	// Status is always Succeeded: a refund that cannot be made is refused, and leaves no trace.
	Status Status `json:"status"`
	RefundRequest
	// IdempotencyKey is the key that came with the request, or empty. Keys of refunds and of charges are independent.
	IdempotencyKey string `json:"idempotency_key"`
	// Created is when the refund was made, to the microsecond.
	Created time.Time `json:"created"`
}

// Page is one page of a list of charges, in the order of their IDs.
type Page struct {
	// Data are the charges of this page.
	Data []Charge `json:"data"`
	// HasMore means that further charges follow the last charge of this page.
	HasMore bool `json:"has_more"`
}

// refundPage is one page of a list of refunds.
type refundPage struct {
	Data    []Refund `json:"data"`
	HasMore bool     `json:"has_more"`
}

func (r ChargeRequest) equal(other ChargeRequest) bool {
	return r.Amount == other.Amount && r.Currency == other.Currency && r.Reference == other.Reference &&
		maps.Equal(r.Metadata, other.Metadata)
}

func (r ChargeRequest) validate() error {
	switch {
	case r.Amount <= 0:
		return invalid("amount must be above zero")
	case len(r.Currency) != 3:
		return invalid("currency must be a code of three letters")
	}
	return nil
}

func (r RefundRequest) validate() error {
	switch {
	case r.Amount <= 0:
		return invalid("amount must be above zero")
	case r.Charge == "":
		return invalid("charge must be the id of a charge")
	}
	return nil
}

// These are the codes of the provider's own errors. Callers should trust the code and
// not the status alone, because a status may also come from something in between.
const (
	codeInvalid      = "invalid_request"
	codeKeyReused    = "idempotency_key_reused"
	codeNotFound     = "not_found"
	codeTooMuch      = "refund_too_large"
	codeNotProcessed = "not_processed"
	codeInternal     = "internal"
)

// problem is an error for the caller.
type problem struct {
	status  int
	Code    string `json:"code"`
	Message string `json:"message"`
}

// problemDocument is the body of every answer that is an error, except for a decline.
type problemDocument struct {
	Error *problem `json:"error"`
}

func (p *problem) Error() string { return p.Code + ": " + p.Message }

func invalid(message string) error {
	return &problem{http.StatusBadRequest, codeInvalid, message}
}

func keyReused() error {
	return &problem{http.StatusUnprocessableEntity, codeKeyReused, "the Idempotency-Key was used with another body"}
}

func notFound(id string) error {
	return &problem{http.StatusNotFound, codeNotFound, "no charge " + id}
}
