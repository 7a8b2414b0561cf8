package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Order is a client's request. It is separate from [Payment], so that no client can set a state or an account.
type Order struct {
	// Reference is the client's own name for the payment.
	Reference string `json:"reference,omitempty"`
	Customer  string `json:"customer"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

// Payment is what the API stores and returns.
type Payment struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Order
	// State is pending, charged or declined.
	State string `json:"state"`
	// Charge is the provider's ID.
	Charge    string `json:"charge,omitempty"`
	CreatedAt string `json:"created_at"`
}

// These are the states of a payment.
const (
	pending  = "pending"
	charged  = "charged"
	declined = "declined"
)

// maxAmount is also the limit of the table.
const maxAmount = 100_000_000

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// check returns an error for an order that is not valid.
func (o *Order) check() error {
	switch {
	case o.Customer == "":
		return errors.New("customer is missing")
	case !isPlain(o.Customer) || !isPlain(o.Reference):
		return errNotPlain
	case o.Amount <= 0 || o.Amount > maxAmount:
		return fmt.Errorf("amount must be a whole number from 1 to %d, in the smallest unit of the currency", maxAmount)
	case !currencyCode.MatchString(o.Currency):
		return errors.New("currency must be three capital letters, such as EUR")
	default:
		return nil
	}
}

// isPlain reports whether a database and the provider accept a text:
// they could otherwise refuse it later, after money has moved.
func isPlain(text string) bool {
	return len(text) <= 200 && !strings.ContainsFunc(text, unicode.IsControl)
}

var errNotPlain = errors.New("texts must have at most 200 bytes, and no control characters")

func decodeOrder(r *http.Request) (o Order, err error) {
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		return o, fmt.Errorf(`the body must be JSON such as {"customer":"c1","amount":1999,"currency":"EUR"}: %w`, err)
	}
	return o, o.check()
}

// keyReused is the error for a key that is reused with another body
// after its record has expired. Before that, Onceward reports it.
const keyReused = "the key was used for something else"

// createPayment runs inside the transaction that also contains its claim and its answer:
// the payment, the order to charge it and the answer are stored together, once, or not
// at all. The provider is not called here, because its effects cannot be rolled back.
func (s *System) createPayment(w http.ResponseWriter, r *http.Request) {
	order, err := decodeOrder(r)
	if err != nil {
		reject(w, r, err.Error())
		return
	}
	p, err := s.storage.AddPayment(r.Context(), newPayment(r.Context(), order))
	if err == nil && p.Order != order {
		fail(w, http.StatusUnprocessableEntity, keyReused)
		return
	}
	if err == nil {
		err = s.storage.OrderCharge(r.Context(), p)
	}
	if err != nil {
		s.broken(w, r, "write the payment", err)
		return
	}
	w.Header().Set("Location", "/payments/"+p.ID)
	answer(w, http.StatusCreated, p)
}

// newPayment returns the payment for an order.
func newPayment(ctx context.Context, o Order) *Payment {
	return &Payment{
		ID: newID(ctx, "pay"), Account: accountFrom(ctx), Order: o, State: pending,
		CreatedAt: time.Now().UTC().Format(timeLayout),
	}
}

// timeLayout always has all digits, so that texts sort in the order of times.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// listPayments returns the caller's latest payments.
func (s *System) listPayments(w http.ResponseWriter, r *http.Request) {
	payments, err := s.storage.Payments(r.Context(), accountFrom(r.Context()))
	if err != nil {
		s.broken(w, r, "read the payments", err)
		return
	}
	answer(w, http.StatusOK, payments)
}

// showPayment returns one of the caller's payments, in its current state.
func (s *System) showPayment(w http.ResponseWriter, r *http.Request) {
	p, err := s.storage.Payment(r.Context(), accountFrom(r.Context()), r.PathValue("id"))
	switch {
	case errors.Is(err, ErrNoPayment):
		fail(w, http.StatusNotFound, ErrNoPayment.Error())
	case err != nil:
		s.broken(w, r, "read the payment", err)
	default:
		answer(w, http.StatusOK, p)
	}
}
