package crashtest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

// payments adds the route that calls the provider inline, and the door through which its outcomes come.
func (s *shop) payments(mux *http.ServeMux) error {
	mux.Handle("POST /payments", s.guard.HandlerFunc(s.pay, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(s.Lease)))
	quiet := slog.New(slog.DiscardHandler)
	poller, err := reconcile.NewPoller(s.guard, &s.store, reconcile.Config{
		Rules: map[string]reconcile.Rule{"POST /payments": {
			Resolver: reconcile.ResolverFunc(s.askProvider), Deduplicates: s.Dedup,
			Source: "provider", Steps: []string{"charge"}, Interpret: readEvents,
		}, "POST /bookings": {
			Resolver: reconcile.ResolverFunc(s.askAboutBooking), Deduplicates: s.Dedup,
			Source: "provider", Steps: []string{"charge"}, Interpret: s.readBookingEvents,
		}},
		Interval: 50 * time.Millisecond, MinBackoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		MaxAttempts: s.Limit, Logger: quiet,
	})
	if err != nil {
		return err
	}
	if s.Poll {
		go poller.Run(context.Background())
		go s.sweep()
	}
	scheme, err := webhook.NewTimestamped(webhook.TimestampedConfig{Header: provider.SignatureHeader, Secrets: [][]byte{[]byte(hookSecret)}})
	if err != nil {
		return err
	}
	receiver, err := webhook.New(&s.store, webhook.Config{
		Source: "provider", Scheme: scheme, Scope: webhook.AllScopes(), Apply: poller.Apply, Logger: quiet,
		Parse: webhook.ParseJSON(func(_ http.Header, e provider.Event) (webhook.Event, error) {
			return webhook.Event{ID: e.ID, Subject: e.Data.Object.IdempotencyKey, At: e.Created}, nil
		}),
	})
	mux.Handle("POST /events", receiver)
	return err
}

// sweep makes lost leases unknown, more often than a janitor would.
func (s *shop) sweep() {
	for {
		_, _ = s.store.Sweep(context.Background(), 100)
		time.Sleep(50 * time.Millisecond)
	}
}

// pay charges for a payment that is named after its key.
func (s *shop) pay(w http.ResponseWriter, r *http.Request) {
	op := onceward.FromContext(r.Context())
	s.pass("before the call")
	ctx, cancel := context.WithTimeout(r.Context(), await.Limit)
	defer cancel()
	made, err := s.client.Charge(ctx, op.DownstreamKey("charge"), provider.ChargeRequest{
		Amount: amountOf(r), Currency: "EUR", Reference: op.Key(),
	})
	s.pass("after the call")
	var declined *provider.DeclinedError
	var refused *provider.RefusedError
	switch {
	case err == nil:
		writeCharge(w, made)
	case errors.As(err, &declined):
		writeCharge(w, declined.Charge)
	case errors.As(err, &refused):
		op.NotExecuted()
	default:
		op.Unknown()
	}
}

func amountOf(r *http.Request) int64 {
	var sent struct{ Amount int64 }
	_ = json.NewDecoder(r.Body).Decode(&sent)
	return sent.Amount
}

// chargeAnswer is the answer to a payment, by whichever way it was learned.
func chargeAnswer(c provider.Charge) (status int, body []byte) {
	status = http.StatusCreated
	if c.Status == provider.Declined {
		status = http.StatusPaymentRequired
	}
	body, err := json.Marshal(map[string]string{"id": c.ID, "status": string(c.Status)})
	if err != nil {
		panic(err)
	}
	return status, body
}

func writeCharge(w http.ResponseWriter, c provider.Charge) {
	status, body := chargeAnswer(c)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func completedBy(c provider.Charge) reconcile.Answer {
	status, body := chargeAnswer(c)
	return reconcile.Completed(reconcile.Response(status, http.Header{"Content-Type": {"application/json"}}, body), c.ID)
}

// askProvider looks the charge up by the key that was sent along.
func (s *shop) askProvider(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
	key, err := s.guard.DownstreamKey(rec, "charge")
	if err != nil {
		return reconcile.Answer{}, err
	}
	made, found, err := s.client.Find(ctx, key)
	switch {
	case err != nil:
		return reconcile.Answer{}, err
	case !found:
		return reconcile.NotFound(), nil
	default:
		return completedBy(made), nil
	}
}

// readEvents makes an answer of the latest event.
func readEvents(_ context.Context, _ *store.Record, externals []store.ExternalEvent) (reconcile.Answer, error) {
	latest, _ := webhook.Latest(externals)
	var event provider.Event
	if err := json.Unmarshal(latest.Body, &event); err != nil {
		return reconcile.Answer{}, err
	}
	return completedBy(event.Data.Object), nil
}
