package payments

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/outbox"
)

// chargesTopic is the topic of orders to charge a payment.
const chargesTopic = "charges"

// longestPoll is the longest time until a worker sees the messages of another process.
const longestPoll = 500 * time.Millisecond

// newWorker returns the worker that delivers orders to charge. It makes
// many attempts, because a person must handle an order that is given up.
func (s *System) newWorker(rows *sqlStorage) (*outbox.Worker, error) {
	t := s.config.Timing
	return outbox.NewWorker(rows.db, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{chargesTopic: {
			Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) { return s.charge(ctx, rows, d) },
			Timeout: t.Call, MaxAttempts: 1000, MinBackoff: t.Backoff, MaxBackoff: 20 * t.Backoff,
			Concurrency: 16,
		}},
		Lease: t.Lease, Poll: min(t.Look, longestPoll),
		Observer: s.counters, Propagator: s.config.Monitor, Logger: s.config.Logger,
	})
}

// charge charges a payment at the provider. It may run again after a success, if its process died before the
// success was stored: the downstream key is then the same, and the provider returns the existing charge.
func (s *System) charge(ctx context.Context, rows *sqlStorage, d *outbox.Delivery) (outbox.Result, error) {
	var p Payment
	if err := json.Unmarshal(d.Payload, &p); err != nil {
		return outbox.Result{}, outbox.Permanent(err)
	}
	made, err := s.callCharge(ctx, d.DownstreamKey, &p)
	if _, final := finalRefusal(err); final {
		return outbox.Result{}, outbox.Permanent(err) // a dead letter, for a person
	}
	if err != nil {
		return outbox.Result{}, err // the outbox retries it
	}
	return outbox.Result{
		ProviderID: made.ID,
		Then:       func(ctx context.Context) error { return rows.notePaymentCharged(ctx, p.ID, made) },
	}, nil
}

// callCharge makes the call. A declined card is an answer, not a failure.
func (s *System) callCharge(ctx context.Context, key string, p *Payment) (provider.Charge, error) {
	made, err := s.provider.Charge(ctx, key, provider.ChargeRequest{
		Amount: p.Amount, Currency: p.Currency, Reference: p.Reference, Metadata: map[string]string{"payment": p.ID},
	})
	var no *provider.DeclinedError
	if errors.As(err, &no) {
		return no.Charge, nil
	}
	return made, err
}

// charging returns what a worker without an outbox needs to charge payments.
func (s *System) charging() Charging {
	return Charging{
		Charge: func(ctx context.Context, key string, p *Payment) (refused string, err error) {
			ctx, cancel := context.WithTimeout(ctx, s.config.Timing.Call)
			defer cancel()
			made, err := s.callCharge(ctx, key, p)
			if reason, final := finalRefusal(err); final {
				return reason, nil
			}
			if err == nil {
				p.State, p.Charge = chargeState(made), made.ID
			}
			return "", err
		},
		Done: func() { s.counters.add("delivered done", 1) },
		Poll: min(s.config.Timing.Look, longestPoll), Logger: s.config.Logger,
	}
}

func chargeState(made provider.Charge) string {
	if made.Status == provider.Declined {
		return declined
	}
	return charged
}
