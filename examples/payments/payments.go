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

// Order is what a client asks for. It is apart from [Payment], so that no client can ask for a state or an account.
type Order struct {
	// Reference is the client's own name for what is paid.
	Reference string `json:"reference,omitempty"`
	Customer  string `json:"customer"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

// Payment is what the API stores and shows.
type Payment struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Order
	// State is pending, charged or declined.
	State string `json:"state"`
	// Charge is the provider's id.
	Charge    string `json:"charge,omitempty"`
	CreatedAt string `json:"created_at"`
}

// The states of a payment.
const (
	pending  = "pending"
	charged  = "charged"
	declined = "declined"
)

// maxAmount is also what the table allows.
const maxAmount = 100_000_000

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// check says what is wrong with an order.
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

// isPlain refuses texts that a database or the provider could refuse later, when money has moved already.
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

// keyReused is for a key that comes back with another body after its record has expired. Before that Onceward says so.
const keyReused = "the key was used for something else"

// createPayment runs inside the transaction that also holds its claim and its answer: the payment, the order to charge
// it and the answer come into being together, once, or not at all. The provider is not called here, because what it
// does cannot be rolled back.
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

// newPayment is what becomes of an order.
func newPayment(ctx context.Context, o Order) *Payment {
	return &Payment{
		ID: newID(ctx, "pay"), Account: accountFrom(ctx), Order: o, State: pending,
		CreatedAt: time.Now().UTC().Format(timeLayout),
	}
}

// timeLayout has all digits, so that texts are in the order of times.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// listPayments shows the caller's latest payments.
func (s *System) listPayments(w http.ResponseWriter, r *http.Request) {
	payments, err := s.storage.Payments(r.Context(), accountFrom(r.Context()))
	if err != nil {
		s.broken(w, r, "read the payments", err)
		return
	}
	answer(w, http.StatusOK, payments)
}

// showPayment shows one of the caller's payments, as it stands now.
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
