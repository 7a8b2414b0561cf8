package payments

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/provider"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/webhook"
)

// providerSource names the provider as a sender of webhooks.
const providerSource = "provider"

// newPoller settles refunds whose outcome is unknown, and charges of bookings. The provider recognises our key, so that
// "not found" means that the call was not made, once no request can be on its way any more: should one arrive all the
// same, it and the retry are one to the provider.
func (s *System) newPoller() (*reconcile.Poller, error) {
	t := s.config.Timing
	rules := map[string]reconcile.Rule{"POST /payments/{id}/refund": {
		Resolver: reconcile.ResolverFunc(s.askAboutRefund), Deduplicates: true, Arrival: t.Arrival,
		Source: providerSource, Steps: []string{refundStep}, Interpret: s.readRefundEvent,
	}, bookingsName: {
		Resolver: reconcile.ResolverFunc(s.askAboutBooking), Deduplicates: true, Arrival: t.Arrival,
	}}
	maps.Copy(rules, s.config.Rules)
	return reconcile.NewPoller(s.guard, s.db.Store, reconcile.Config{
		Rules: rules, Interval: t.Look, Pause: t.Pause, LongestPause: 20 * t.Pause, Limit: 1000, Timeout: t.Call,
		Observer: s.counters, Logger: s.config.Logger,
	})
}

// askAboutRefund looks the refund up by the key that was sent along.
func (s *System) askAboutRefund(ctx context.Context, rec *onceward.Record) (reconcile.Answer, error) {
	key, err := s.guard.DownstreamKey(rec, refundStep)
	if err != nil {
		return reconcile.Answer{}, err
	}
	made, found, err := s.provider.FindRefund(ctx, key)
	switch {
	case err != nil:
		return reconcile.Answer{}, err
	case !found:
		return reconcile.NotFound(), nil
	default:
		return s.settleRefund(ctx, rec.Scope, made)
	}
}

// readRefundEvent makes the same answer of what the provider has told by itself.
func (s *System) readRefundEvent(ctx context.Context, rec *onceward.Record, notices []onceward.Notice) (reconcile.Answer, error) {
	latest, _ := webhook.Latest(notices)
	var event provider.Event
	if err := json.Unmarshal(latest.Body, &event); err != nil {
		return reconcile.Answer{}, err
	}
	if event.Data.Refund == nil {
		return reconcile.Answer{}, errors.New("the event is not about a refund")
	}
	return s.settleRefund(ctx, rec.Scope, *event.Data.Refund)
}

// newReceiver takes the provider's webhooks. An event is kept first and applied second, so that one which comes before our
// own commit is not lost. The account at the provider is the system's own and no customer has its secret, so that its events settle
// records of every scope. Charges are followed up by the outbox, which repeats them until they are answered.
func (s *System) newReceiver() (http.Handler, error) {
	scheme, err := webhook.NewTimestamped(webhook.TimestampedConfig{
		Header: provider.SignatureHeader, Secrets: [][]byte{[]byte(s.config.WebhookSecret)},
	})
	if err != nil {
		return nil, err
	}
	return webhook.New(webhook.Config{
		Source: providerSource, Scheme: scheme, Scope: webhook.AllScopes(), Keeper: s.db.Store, Apply: s.poller.Apply,
		Observer: s.counters, Logger: s.config.Logger,
		Parse: webhook.ParseJSON(func(_ http.Header, e provider.Event) (webhook.Event, error) {
			if e.Data.Refund == nil {
				return webhook.Event{}, webhook.ErrIgnored
			}
			return webhook.Event{ID: e.ID, Subject: e.Data.Refund.IdempotencyKey, At: e.Created}, nil
		}),
	})
}
