package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/outbox"
)

// chargesTopic is the topic of the orders to charge a payment.
const chargesTopic = "charges"

// longestPoll bounds the time until a worker sees the messages of another process.
const longestPoll = 500 * time.Millisecond

// newWorker delivers what payments have ordered. Attempts are many, because to give up means that a person has to look.
func (s *System) newWorker() (*outbox.Worker, error) {
	t := s.config.Timing
	return outbox.NewWorker(s.db.Store, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{chargesTopic: {
			Handler: s.charge, Timeout: t.Call, MaxAttempts: 1000, MinBackoff: t.Backoff, MaxBackoff: 20 * t.Backoff,
			Concurrency: 16,
		}},
		Lease: t.Lease, Poll: min(t.Look, longestPoll),
		Observer: s.counters, Propagator: s.telemetry, Logger: s.config.Logger,
	})
}

// charge has the provider charge a payment. It may run again after it succeeded, if its process died before that was
// written down: the downstream key is the same then, and the provider answers with the charge that it has.
func (s *System) charge(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
	var p Payment
	if err := json.Unmarshal(d.Payload, &p); err != nil {
		return outbox.Result{}, outbox.Permanent(err)
	}
	made, err := s.provider.Charge(ctx, d.DownstreamKey, provider.ChargeRequest{
		Amount: p.Amount, Currency: p.Currency, Reference: p.Reference, Metadata: map[string]string{"payment": p.ID},
	})
	if _, final := finalRefusal(err); final {
		return outbox.Result{}, outbox.Permanent(err) // a dead letter, for a person
	}
	var no *provider.DeclinedError
	switch {
	case errors.As(err, &no):
		made = no.Charge // a card that is declined is an answer, not a failure
	case err != nil:
		return outbox.Result{}, err // tried again later
	}
	return outbox.Result{
		ProviderID: made.ID,
		Then:       func(ctx context.Context) error { return s.notePaymentCharged(ctx, p.ID, made) },
	}, nil
}

// notePaymentCharged writes down what became of a payment, in the transaction that ends its message.
func (s *System) notePaymentCharged(ctx context.Context, id string, made provider.Charge) error {
	changed, err := rowsChanged(onceward.Tx(ctx).ExecContext(ctx,
		s.db.Bind(`UPDATE payment SET state = $1, charge = $2, charged_at = $3 WHERE id = $4`),
		chargeState(made), made.ID, made.Created.UnixMicro(), id))
	if err == nil && changed != 1 {
		err = fmt.Errorf("payment %s: %d rows changed, want 1", id, changed)
	}
	return err
}

func chargeState(made provider.Charge) string {
	if made.Status == provider.Declined {
		return declined
	}
	return charged
}
