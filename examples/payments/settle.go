package payments

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
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
	return reconcile.NewPoller(s.guard, s.store, reconcile.Config{
		Rules: rules, Interval: t.Look, MinBackoff: t.Backoff, MaxBackoff: 20 * t.Backoff, MaxAttempts: 1000, Timeout: t.Call,
		Observer: s.counters, Logger: s.config.Logger,
	})
}

// askAboutRefund looks the refund up by the key that was sent along.
func (s *System) askAboutRefund(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
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
		return s.settleRefund(ctx, rec, made)
	}
}

// readRefundEvent makes the same answer of what the provider has told by itself. What came with the secret of an
// account may be of the account's own making: it is a hint to ask, and nothing that it says is written down.
func (s *System) readRefundEvent(
	ctx context.Context, rec *store.Record, externals []store.ExternalEvent,
) (reconcile.Answer, error) {
	latest, told := webhook.Latest(slices.DeleteFunc(externals, func(e store.ExternalEvent) bool { return !e.AnyScope }))
	if !told {
		return s.askAboutRefund(ctx, rec)
	}
	var event provider.Event
	if err := json.Unmarshal(latest.Body, &event); err != nil {
		return reconcile.Answer{}, err
	}
	if event.Data.Refund == nil {
		return reconcile.Answer{}, errors.New("the event is not about a refund")
	}
	return s.settleRefund(ctx, rec, *event.Data.Refund)
}

// newReceiver takes the provider's webhooks. The account at the provider is the system's own and no customer has its
// secret, so that its events settle records of every scope.
func (s *System) newReceiver() (http.Handler, error) {
	scheme, err := newScheme(s.config.WebhookSecret)
	if err != nil {
		return nil, err
	}
	config := s.receiving()
	config.Scheme, config.Scope = scheme, webhook.AllScopes()
	return webhook.New(s.store, config)
}

// newTenants takes the webhooks of accounts that are the provider's customers themselves. Each can have its secret
// seen, and so says whatever it likes: it is heard about its own records alone, and the provider is asked about those.
func (s *System) newTenants() (http.Handler, error) {
	schemes := make(map[string]webhook.Scheme)
	for account, secret := range s.config.WebhookSecrets {
		scheme, err := newScheme(secret)
		if err != nil {
			return nil, err
		}
		schemes[account] = scheme
	}
	config := s.receiving()
	config.Tenant = func(r *http.Request) (webhook.Tenant, error) {
		account := r.PathValue("account")
		if schemes[account] == nil {
			return webhook.Tenant{}, webhook.ErrSignature
		}
		return webhook.Tenant{Scope: account, Scheme: schemes[account]}, nil
	}
	return webhook.New(s.store, config)
}

func newScheme(secret string) (webhook.Scheme, error) {
	return webhook.NewTimestamped(webhook.TimestampedConfig{
		Header: provider.SignatureHeader, Secrets: [][]byte{[]byte(secret)},
	})
}

// receiving is what all receivers have in common. An event is kept first and applied second, so that one which comes
// before our own commit is not lost. Charges are followed up by the outbox, which repeats them until they are answered.
func (s *System) receiving() webhook.Config {
	return webhook.Config{
		Source: providerSource, Apply: s.poller.Apply,
		Observer: s.counters, Logger: s.config.Logger,
		Parse: webhook.ParseJSON(func(_ http.Header, e provider.Event) (webhook.Event, error) {
			if e.Data.Refund == nil {
				return webhook.Event{}, webhook.ErrIgnored
			}
			return webhook.Event{ID: e.ID, Subject: e.Data.Refund.IdempotencyKey, At: e.Created}, nil
		}),
	}
}
