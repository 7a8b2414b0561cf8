package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// PlaceOrder is a client's request for a booking.
type PlaceOrder struct {
	Reference string `json:"reference,omitempty"`
	Item      string `json:"item"`
	Price     int64  `json:"price"`
}

// Booking is the data that a booking carries from step to step, and its answer.
type Booking struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	PlaceOrder
	// State is reserved, confirmed, declined or refused.
	State  string `json:"state"`
	Charge string `json:"charge,omitempty"`
	// ChargedAt is the provider's time, in microseconds.
	ChargedAt int64 `json:"charged_at,omitempty"`
	// Reason is why the provider refused the charge. Its name in JSON is the same as in all error answers.
	Reason string `json:"error,omitempty"`
}

// bookingsName is the name of the operation in stored records.
const bookingsName = "POST /bookings"

// bookingCurrency is the currency of all prices.
const bookingCurrency = "EUR"

// These are the states of a booking that are not states of a payment.
const (
	// Reserved is the state of a booking that has its place but is not confirmed yet.
	Reserved  = "reserved"
	confirmed = "confirmed"
	refused   = "refused"
)

// defineBookings returns the steps of a booking. Each step is committed with its recovery
// point: after a crash, a retry or the resumer continues after the last finished step.
// The provider recognises the key of the charge, so that the charge may be repeated.
func (s *System) defineBookings() *phase.Operation[Booking] {
	return phase.Must(phase.New(phase.Definition[Booking]{
		Name: bookingsName,
		Steps: []phase.Step[Booking]{
			phase.Local("reserve", s.reservePlace),
			phase.External("charge", s.chargeBooking).Repeat(),
			phase.Local("confirm", s.confirmBooking),
		},
		Answer:     bookingAnswer,
		Options:    []onceward.Option{onceward.Lease(s.config.Timing.Lease)},
		MinBackoff: s.config.Timing.Backoff, MaxAttempts: 1000,
	}))
}

func (s *System) bookingHandler() http.Handler {
	if s.config.Unprotected {
		return http.HandlerFunc(s.bookUnprotected)
	}
	return s.bookings.Handler(s.guard, readBooking)
}

// readBooking is called once for a key. Its result is carried through the steps.
func readBooking(r *http.Request) (*Booking, error) {
	var asked PlaceOrder
	err := json.NewDecoder(r.Body).Decode(&asked)
	if err != nil || asked.Item == "" || asked.Price <= 0 || asked.Price > maxAmount {
		return nil, fmt.Errorf(`the body must be JSON such as {"item":"concert","price":4500}, with a price from 1 to %d`,
			maxAmount)
	}
	if !isPlain(asked.Item) || !isPlain(asked.Reference) {
		return nil, errNotPlain
	}
	return &Booking{
		ID: newID(r.Context(), "book"), Account: accountFrom(r.Context()), PlaceOrder: asked, State: Reserved,
	}, nil
}

// reservePlace takes one place, or ends the booking with an answer if there is none; its
// writes are then rolled back. A request that is repeated after its record has expired finds
// its earlier writes, so that it takes no second place and returns the earlier answer.
func (s *System) reservePlace(ctx context.Context, b *Booking) error {
	asked := b.PlaceOrder
	reservation, err := s.storage.Reserve(ctx, b)
	switch {
	case err != nil || reservation == ReservedNow:
		return err
	case reservation == SoldOut:
		return phase.Finish(phase.JSON(http.StatusConflict, problem{b.Item + " is sold out"}))
	case b.PlaceOrder != asked:
		return phase.Finish(phase.JSON(http.StatusUnprocessableEntity, problem{keyReused}))
	case b.State == Reserved:
		return nil
	default:
		return phase.Finish(bookingAnswer(b))
	}
}

// chargeBooking makes one call. After a charge that was declined or permanently
// refused, the booking continues with the next step, which releases the place.
func (s *System) chargeBooking(ctx context.Context, key string, b *Booking) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timing.Call)
	defer cancel()
	made, err := s.provider.Charge(ctx, key, provider.ChargeRequest{
		Amount: b.Price, Currency: bookingCurrency, Reference: b.Reference, Metadata: map[string]string{"booking": b.ID},
	})
	if reason, final := finalRefusal(err); final {
		b.State, b.Reason = refused, reason
		return nil
	}
	var no *provider.DeclinedError
	var notNow *provider.RefusedError
	switch {
	case errors.As(err, &no):
		made = no.Charge
	case errors.As(err, &notNow):
		return onceward.NotExecuted(err)
	case err != nil:
		return err
	}
	b.charged(made)
	onceward.FromContext(ctx).SetProviderID(made.ID)
	return nil
}

// charged sets the fields that describe the provider's charge.
func (b *Booking) charged(made provider.Charge) {
	b.State, b.Charge, b.ChargedAt = chargeState(made), made.ID, made.Created.UnixMicro()
}

// askAboutBooking settles the charge of a booking that was given up, or stopped by a person, while the charge was in
// doubt. The provider's answer settles only the charge; the booking itself continues, and is confirmed by its own step.
func (s *System) askAboutBooking(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
	doubt, err := s.bookings.InDoubt(s.guard, rec)
	if err != nil {
		return reconcile.Answer{}, err
	}
	made, found, err := s.provider.Find(ctx, doubt.Key)
	switch {
	case err != nil:
		return reconcile.Answer{}, err
	case !found:
		return reconcile.NotFound(), nil
	}
	doubt.Data.charged(made)
	return reconcile.Step(doubt.Done(made.ID)), nil
}

// confirmBooking stores how the charge ended, and releases the place if no money moved.
func (s *System) confirmBooking(ctx context.Context, b *Booking) error {
	if b.Moved() {
		b.State = confirmed
	}
	return s.storage.Confirm(ctx, b)
}

// Moved reports whether the charge of a booking was made.
func (b *Booking) Moved() bool { return b.State != declined && b.State != refused }

func bookingAnswer(b *Booking) phase.Answer {
	switch b.State {
	case declined:
		return phase.JSON(http.StatusPaymentRequired, b)
	case refused:
		return phase.JSON(http.StatusUnprocessableEntity, b)
	default:
		return phase.JSON(http.StatusCreated, b)
	}
}
