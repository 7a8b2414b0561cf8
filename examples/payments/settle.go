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

// providerSource is the provider's name as a sender of webhooks.
const providerSource = "provider"

// newPoller returns the poller that settles refunds with an unknown outcome, and charges of bookings. The provider
// recognises the key. "Not found" therefore means that the call was not made, after a time in which no request can
// still be on its way. If a request arrives later anyway, the provider treats it and the retry as one.
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

// askAboutRefund looks up the refund by the key that was sent with it.
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

// readRefundEvent returns the same answer from the provider's webhook. An event signed with the secret of
// an account may be made by the account itself: it only causes a look-up, and nothing in it is stored.
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

// newReceiver returns the receiver of the provider's webhooks. The account at the provider is the
// system's own, and no customer has its secret, so that its events settle records of every scope.
func (s *System) newReceiver() (http.Handler, error) {
	scheme, err := newScheme(s.config.WebhookSecret)
	if err != nil {
		return nil, err
	}
	config := s.receiving()
	config.Scheme, config.Scope = scheme, webhook.AllScopes()
	return webhook.New(s.store, config)
}

// newTenants returns the receiver of webhooks for accounts that are the provider's
// own customers. Such an account can see its secret, and so can forge events: its
// events only concern its own records, and the provider is asked about them.
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

// receiving returns the common configuration of all receivers. An event is stored before
// it is applied, so that an event which arrives before our own commit is not lost. Events
// about charges are not needed: the outbox repeats charges until they are answered.
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
