package webhook_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile/webhook"
)

// A receiver for a provider that signs with Standard Webhooks. The signature covers the id, so it may come from the header.
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
	receiver, err := webhook.New(webhook.Config{
		Source: "acme-pay",
		Scheme: scheme,
		Scope:  webhook.AllScopes(), // the account is the service's own: no tenant has the secret
		Keeper: &keeper{},           // the store that also keeps the records
		Parse: webhook.ParseJSON(func(header http.Header, c charge) (webhook.Event, error) {
			if c.Type != "charge.succeeded" {
				return webhook.Event{}, webhook.ErrIgnored
			}
			return webhook.Event{ID: header.Get(webhook.HeaderID), Subject: c.Data.Reference, At: c.Timestamp}, nil
		}),
		Apply: func(_ context.Context, n onceward.Notice) error {
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
