package node

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// These are phased operations whose call goes to the bank, which recognises no key: it must not be made again on a
// guess. Each local step appends a row, so that one which ran twice shows.
const (
	// trips stops as unknown if its call is in doubt.
	trips = "POST /trips"
	// tours looks first.
	tours = "POST /tours"
)

// The steps. The last one was added in the second generation of the program.
const (
	stepHold    = "hold"
	stepPay     = "pay"
	stepConfirm = "confirm"
	stepThank   = "thank"
)

// Trip is what is asked for, what is carried from step to step, and the answer.
type Trip struct {
	Account   string `json:"account,omitempty"`
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
	Charge    string `json:"charge,omitempty"`
}

// agency is these operations and how their unknown outcomes are settled.
type agency struct {
	bank         *bank
	note         func(step string) phase.Step[Trip]
	trips, tours *phase.Operation[Trip]
}

// newAgency defines the operations as the program of a generation knows them.
func newAgency(bank *bank, generation int, note func(step string) phase.Step[Trip]) (*agency, error) {
	a := &agency{bank: bank, note: note}
	pay := phase.External(stepPay, a.pay)
	var err, failed error
	a.trips, err = phase.New(a.define(trips, generation, pay))
	a.tours, failed = phase.New(a.define(tours, generation, pay.LookUp(a.look)))
	return a, errors.Join(err, failed)
}

func (a *agency) define(name string, generation int, pay phase.Step[Trip]) phase.Definition[Trip] {
	d := phase.Definition[Trip]{
		Name:       name,
		Steps:      []phase.Step[Trip]{a.note(stepHold), pay, a.note(stepConfirm)},
		Answer:     func(t *Trip) phase.Answer { return phase.JSON(http.StatusCreated, t) },
		Options:    []onceward.Option{onceward.Lease(Timing.Lease)},
		MinBackoff: Timing.Backoff, MaxAttempts: 1000,
	}
	if generation > 1 {
		d.Steps = append(d.Steps, a.note(stepThank))
	}
	return d
}

// rowNoter makes local steps that append a row.
func rowNoter(db *storeurl.Database) func(step string) phase.Step[Trip] {
	return func(step string) phase.Step[Trip] {
		return phase.Local(step, func(ctx context.Context, t *Trip) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, db.Bind(`INSERT INTO stay (reference, step) VALUES ($1, $2)`),
				t.Reference, step)
			return err
		})
	}
}

// routes adds the routes.
func (a *agency) routes(mux *onceward.Mux, guard *onceward.Guard) {
	mux.Handle(trips, a.trips.Handler(guard, readTrip))
	mux.Handle(tours, a.tours.Handler(guard, readTrip))
}

// rules say how unknown outcomes are settled.
func (a *agency) rules() map[string]reconcile.Rule {
	rule := func(o *phase.Operation[Trip]) reconcile.Rule {
		return reconcile.Rule{
			Resolver: reconcile.ResolverFunc(a.asker(o)), Arrival: Timing.Arrival,
			OwnerGone: a.bank.ownerGone,
		}
	}
	return map[string]reconcile.Rule{trips: rule(a.trips), tours: rule(a.tours), transfers: a.bank.rule()}
}

// resumer takes over what was lost. The other phased operations of the system have a resumer of their own.
func (a *agency) resumer(db *storeurl.Database, logger *slog.Logger) (*phase.Resumer, error) {
	return phase.NewResumer(a.bank.guard, db.Store, phase.ResumerConfig{
		Operations: []phase.Resumable{a.trips, a.tours}, Interval: Timing.Look, Logger: logger,
		Others: append([]string{"POST /bookings", lapses}, payments.Comparisons...),
	})
}

func readTrip(r *http.Request) (*Trip, error) {
	var t Trip
	err := json.NewDecoder(r.Body).Decode(&t)
	t.Account, t.Charge = onceward.FromContext(r.Context()).Scope(), ""
	return &t, err
}

// pay makes the call, and shows that it is at it for as long as that takes.
func (a *agency) pay(ctx context.Context, key string, t *Trip) error {
	release, err := a.bank.show(onceward.FromContext(ctx))
	if err != nil {
		return onceward.NotExecuted(err)
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, Timing.Call)
	defer cancel()
	made, err := a.bank.client.Charge(ctx, key, provider.ChargeRequest{
		Amount: t.Amount, Currency: "EUR",
		Reference: t.Reference,
	})
	var refused *provider.RefusedError
	if errors.As(err, &refused) {
		return onceward.NotExecuted(err)
	}
	t.Charge = made.ID
	return err
}

// look finds out whether the call was made.
func (a *agency) look(ctx context.Context, key string, t *Trip) error {
	made, found, err := a.bank.client.Find(ctx, key)
	if err == nil && !found {
		err = phase.ErrNotFound
	}
	t.Charge = made.ID
	return err
}

// asker is the resolver of an operation: what it learns settles the step, and the steps behind it are done.
func (a *agency) asker(o *phase.Operation[Trip]) func(context.Context, *store.Record) (reconcile.Answer, error) {
	return func(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
		doubt, err := o.InDoubt(a.bank.guard, rec)
		if err != nil {
			return reconcile.Answer{}, err
		}
		err = a.look(ctx, doubt.Key, doubt.Data)
		switch {
		case errors.Is(err, phase.ErrNotFound):
			return reconcile.NotFound(), nil
		case err != nil:
			return reconcile.Answer{}, err
		default:
			return reconcile.Step(doubt.Done(doubt.Data.Charge)), nil
		}
	}
}
