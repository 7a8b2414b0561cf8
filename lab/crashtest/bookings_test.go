package crashtest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

// booking is what a booking carries from step to step.
type booking struct {
	Name   string
	Seat   int64
	Charge string
}

// bookings is the operation in three phases: a seat, the charge, the confirmation.
func (s *shop) bookings() *phase.Operation[booking] {
	pay := phase.External("charge", s.charge)
	if s.Dedup {
		pay = pay.Repeat()
	}
	return phase.Must(phase.New(phase.Definition[booking]{
		Name:  "POST /bookings",
		Steps: []phase.Step[booking]{phase.Local("seat", s.takeSeat), pay, phase.Local("confirm", s.confirm)},
		Answer: func(b *booking) phase.Answer {
			s.pass("answer")
			return phase.JSON(http.StatusCreated, b)
		},
		Options:    []onceward.Option{onceward.Lease(s.Lease)},
		MinBackoff: 20 * time.Millisecond,
	}))
}

// startBooking names the booking after its key, which is what the tests look for.
func (s *shop) startBooking(r *http.Request) (*booking, error) {
	s.pass("start")
	return &booking{Name: onceward.FromContext(r.Context()).Key()}, nil
}

func (s *shop) takeSeat(ctx context.Context, b *booking) error {
	err := onceward.Tx(ctx).QueryRowContext(ctx, `INSERT INTO seat (name) VALUES ($1) RETURNING number`, b.Name).Scan(&b.Seat)
	s.pass("seat")
	return err
}

// sellSeat answers with the seat that it has sold.
func (s *shop) sellSeat(w http.ResponseWriter, r *http.Request) {
	b := booking{Name: onceward.FromContext(r.Context()).Key()}
	if err := s.takeSeat(r.Context(), &b); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(b)
}

func (s *shop) charge(ctx context.Context, key string, b *booking) error {
	s.pass("before the call")
	made, err := s.client.Charge(ctx, key, provider.ChargeRequest{Amount: 1900, Currency: "EUR", Reference: b.Name})
	var refused *provider.RefusedError
	if errors.As(err, &refused) {
		return onceward.NotExecuted(err)
	}
	s.pass("after the call")
	b.Charge = made.ID
	return err
}

func (s *shop) confirm(ctx context.Context, b *booking) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO confirmation (name) VALUES ($1)`, b.Name)
	s.pass("confirm")
	return err
}

// askAboutBooking asks the provider about the call that is in doubt.
func (s *shop) askAboutBooking(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
	doubt, err := s.booked.InDoubt(s.guard, rec)
	if err != nil {
		return reconcile.Answer{}, err
	}
	made, found, err := s.client.Find(ctx, doubt.Key)
	switch {
	case err != nil:
		return reconcile.Answer{}, err
	case !found:
		return reconcile.NotFound(), nil
	}
	doubt.Data.Charge = made.ID
	return reconcile.Step(doubt.Done(made.ID)), nil
}

// readBookingEvents makes the same answer of what the provider has told by itself.
func (s *shop) readBookingEvents(_ context.Context, rec *store.Record, externals []store.ExternalEvent) (reconcile.Answer, error) {
	doubt, err := s.booked.InDoubt(s.guard, rec)
	if err != nil {
		return reconcile.Answer{}, err
	}
	latest, _ := webhook.Latest(externals)
	var event provider.Event
	if err := json.Unmarshal(latest.Body, &event); err != nil {
		return reconcile.Answer{}, err
	}
	doubt.Data.Charge = event.Data.Object.ID
	return reconcile.Step(doubt.Done(event.Data.Object.ID)), nil
}
