package webhook_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

// A receiver for a provider that signs with Standard Webhooks. The signature covers the id, so it may come from the
// header.
func Example() {
	scheme, err := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{
		Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	type charge struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      struct {
			Reference string `json:"reference"`
		} `json:"data"`
	}
	receiver, err := webhook.New(&keeper{}, webhook.Config{ // the store that also keeps the records
		Source: "acme-pay",
		Scheme: scheme,
		Scope:  webhook.AllScopes(), // the account is the service's own: no tenant has the secret
		Parse: webhook.ParseJSON(func(header http.Header, c charge) (webhook.Event, error) {
			if c.Type != "charge.succeeded" {
				return webhook.Event{}, webhook.ErrIgnored
			}
			return webhook.Event{ID: header.Get(webhook.HeaderID), Subject: c.Data.Reference, At: c.Timestamp}, nil
		}),
		Apply: func(_ context.Context, n store.ExternalEvent) error {
			fmt.Println("kept, now applied:", n.EventID, "about", n.Subject)
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/hooks/acme-pay", receiver)

	// What the provider does:
	body := []byte(`{"type":"charge.succeeded","timestamp":"2026-01-01T00:00:00Z","data":{"reference":"order-17"}}`)
	delivery := httptest.NewRequest(http.MethodPost, "/hooks/acme-pay", bytes.NewReader(body))
	if err := scheme.Sign(delivery.Header, "msg_1", body, time.Now()); err != nil {
		fmt.Println(err)
		return
	}
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, delivery)
	fmt.Println(answer.Code)
	// Output:
	// kept, now applied: msg_1 about order-17
	// 204
}

// One endpoint for many tenants, each with its own secret at the provider. A tenant's signed events only settle its own
// records, whatever the event claims.
func ExampleTenant() {
	secrets := map[string]string{
		"acme": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"bolt": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
	}
	tenant := func(r *http.Request) (webhook.Tenant, error) {
		name := r.PathValue("tenant") // a claim: it counts if the signature is that tenant's
		secret, ok := secrets[name]
		if !ok {
			return webhook.Tenant{}, webhook.ErrSignature
		}
		scheme, err := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{Secrets: []string{secret}})
		return webhook.Tenant{Scope: name, Scheme: scheme}, err
	}
	receiver, err := webhook.New(&keeper{}, webhook.Config{ // the store that also keeps the records
		Source: "pay", Tenant: tenant,
		Parse: webhook.ParseJSON(func(header http.Header, e struct{ Reference string }) (webhook.Event, error) {
			return webhook.Event{ID: header.Get(webhook.HeaderID), Subject: e.Reference}, nil
		}),
		Apply: func(_ context.Context, n store.ExternalEvent) error { // usually the Apply of a reconcile.Poller
			fmt.Printf("about %s: may settle acme's %t, bolt's %t\n", n.Subject, n.MaySettle("acme"), n.MaySettle("bolt"))
			return nil
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("POST /hooks/{tenant}", receiver)

	// What the provider does, and then bolt, who would like to speak for acme:
	for _, delivery := range []struct{ to, secret string }{{"acme", secrets["acme"]}, {"acme", secrets["bolt"]}} {
		signer, err := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{Secrets: []string{delivery.secret}})
		if err != nil {
			fmt.Println(err)
			return
		}
		body := []byte(`{"reference":"order-17"}`)
		r := httptest.NewRequest(http.MethodPost, "/hooks/"+delivery.to, bytes.NewReader(body))
		if err := signer.Sign(r.Header, "msg_1", body, time.Now()); err != nil {
			fmt.Println(err)
			return
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// about order-17: may settle acme's true, bolt's false
	// 204
	// 401
}
