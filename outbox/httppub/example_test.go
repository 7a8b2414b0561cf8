package httppub_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httppub"
	"github.com/onceward/onceward/reconcile/webhook"
)

// A webhook as the receiver sees it, which verifies the signature with the secret that both sides know.
func Example() {
	const shared = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	scheme, err := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{Secrets: []string{shared}})
	if err != nil {
		fmt.Println(err)
		return
	}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.Header.Get("Ce-Type"), string(body), "signature:", scheme.Verify(r.Header, body, time.Now()))
	}))
	defer receiver.Close()

	publisher, err := httppub.New(httppub.Config{
		Endpoint:     receiver.URL,
		Secrets:      []string{shared},
		AllowPrivate: true, // because the receiver of this example is on 127.0.0.1
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	// A worker does this with every message of its route: outbox.Publish(publisher) is the route's handler.
	err = publisher.Publish(context.Background(), &outbox.Event{
		ID: "0198c0de-0000-7000-8000-000000000001", Source: "https://shop.example/payments", Type: "payment.created",
		Time: time.Now(), ContentType: "application/json", Data: []byte(`{"amount":5}`), IdempotencyKey: "k-5",
	})
	fmt.Println("published:", err)
	// Output:
	// payment.created {"amount":5} signature: <nil>
	// published: <nil>
}
