package httppub_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httppub"
	"github.com/onceward/onceward/reconcile/webhook"
)

// O3, O4: what arrives is the event, with the ID and the key that are the same each time.
func TestSendsTheEventInBinaryMode(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusNoContent, ""))
	config := local(r.URL + "/hooks?token=t")
	config.Header = http.Header{"Authorization": {"Bearer b"}}
	if err := newPublisher(t, config).Publish(t.Context(), event()); err != nil {
		t.Fatal(err)
	}
	got := r.deliveries()[0]
	for name, want := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": event().ID, "Ce-Source": event().Source, "Ce-Type": "payment.created",
		"Ce-Subject": "Euro%20%E2%82%AC%20%225%25%22", "Ce-Time": "2026-01-01T12:00:00.000000005Z",
		"Ce-Partitionkey": "payment/5", "Ce-Idempotencykey": "k-5", "Content-Type": "application/json",
		"Idempotency-Key": "k-5", "X-Tenant": "acme", "Traceparent": "00-1-2-03", "Authorization": "Bearer b",
		"User-Agent": "Onceward", "Webhook-Id": event().ID,
	} {
		if values := got.Header.Values(name); len(values) != 1 || values[0] != want {
			t.Errorf("%s is %q, want %q", name, values, want)
		}
	}
	if got.Method != http.MethodPost || got.URL.String() != "/hooks?token=t" || string(got.body) != string(event().Data) {
		t.Errorf("got %s %s with %q", got.Method, got.URL, got.body)
	}
}

// The signatures are those that the verifier of this module, which was written apart from it, accepts.
func TestSignaturesVerify(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]httppub.Config{
		"one":            {Secrets: []string{secret}},
		"without prefix": {Secrets: []string{strings.TrimPrefix(secret, "whsec_")}},
		"rotation":       {Secrets: []string{otherSecret, secret}},
		"by event":       {SecretsFor: func(*outbox.Event) ([]string, error) { return []string{secret}, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, answering(http.StatusOK, "ok"))
			config.Endpoint, config.AllowPrivate = r.URL, true
			if err := newPublisher(t, config).Publish(t.Context(), event()); err != nil {
				t.Fatal(err)
			}
			scheme, err := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{Secrets: []string{secret}})
			if err != nil {
				t.Fatal(err)
			}
			got := r.deliveries()[0]
			if err := scheme.Verify(got.Header, got.body, time.Now()); err != nil {
				t.Error(err)
			}
			if err := scheme.Verify(got.Header, append(got.body, ' '), time.Now()); !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("another body: %v", err)
			}
			if n := len(strings.Fields(got.Header.Get("Webhook-Signature"))); n != max(1, len(config.Secrets)) {
				t.Errorf("%d signatures for %d secrets", n, len(config.Secrets))
			}
		})
	}
}

func TestUnsigned(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusOK, ""))
	p := newPublisher(t, httppub.Config{Endpoint: r.URL, Unsigned: true, AllowPrivate: true})
	if err := p.Publish(t.Context(), event()); err != nil {
		t.Fatal(err)
	}
	if got := r.deliveries()[0].Header.Get("Webhook-Signature"); got != "" {
		t.Errorf("signed: %s", got)
	}
}

// A header of the message that would overwrite another makes a dead letter, and nothing is sent.
func TestRefusesReservedHeaders(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusOK, ""))
	config := local(r.URL)
	config.Header = http.Header{"x-api-key": {"secret"}}
	p := newPublisher(t, config)
	for _, name := range []string{
		"ce-id", "Ce_Id-", "CE-TIME", "webhook-signature", "Idempotency-Key", "content-type", "Host", "connection",
		"Transfer-Encoding", "authorization", "X-Api-Key", "user-agent",
	} {
		e := event()
		e.Headers = map[string]string{name: "mine"}
		err := p.Publish(t.Context(), e)
		if refused := errors.Is(err, outbox.ErrPermanent); refused == (name == "Ce_Id-") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(r.deliveries()); n != 1 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestURLByEvent(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusOK, ""))
	unknown := errors.New("no such tenant")
	config := local("")
	config.URL = func(e *outbox.Event) (string, error) {
		if tenant := e.Headers["X-Tenant"]; tenant == "acme" {
			return r.URL + "/" + tenant, nil
		}
		return "", unknown
	}
	p := newPublisher(t, config)
	if err := p.Publish(t.Context(), event()); err != nil {
		t.Fatal(err)
	}
	if got := r.deliveries()[0].URL.Path; got != "/acme" {
		t.Errorf("sent to %s", got)
	}
	if err := p.Publish(t.Context(), &outbox.Event{ID: "1"}); !errors.Is(err, unknown) || errors.Is(err, outbox.ErrPermanent) {
		t.Errorf("without a URL: %v", err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	r := &receiver{}
	r.Server = httptest.NewUnstartedServer(r.handler(answering(http.StatusOK, "")))
	r.EnableHTTP2 = true
	r.StartTLS()
	t.Cleanup(r.Close)
	roots := x509.NewCertPool()
	roots.AddCert(r.Certificate())
	config := local(r.URL)
	config.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	if err := newPublisher(t, config).Publish(t.Context(), event()); err != nil {
		t.Fatal(err)
	}
	if got := r.deliveries()[0].Proto; got != "HTTP/2.0" {
		t.Errorf("spoke %s", got)
	}
}

// A kept connection that died in the meantime is no failure, and the event arrives with the same ID.
func TestKeptConnectionDies(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusOK, "fine"))
	p := newPublisher(t, local(r.URL))
	for range 5 {
		if err := p.Publish(t.Context(), event()); err != nil {
			t.Fatal(err)
		}
		r.CloseClientConnections()
	}
	for _, got := range r.deliveries() {
		if got.Header.Get("Ce-Id") != event().ID {
			t.Errorf("got %s", got.Header)
		}
	}
}
