package httppub_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httppub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

const (
	secret      = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

// event is one with something in every attribute.
func event() *outbox.Event {
	return &outbox.Event{
		ID: "0198c0de-0000-7000-8000-000000000001", Source: "https://shop.example/payments", Type: "payment.created",
		Subject: "Euro € \"5%\"", Time: time.Date(2026, 1, 1, 12, 0, 0, 5, time.UTC), ContentType: "application/json",
		Data: []byte(`{"amount":5}`), Topic: "charges", PartitionKey: "payment/5", IdempotencyKey: "k-5",
		Headers: map[string]string{"X-Tenant": "acme", "traceparent": "00-1-2-03"},
	}
}

// delivery is a request as the receiver saw it.
type delivery struct {
	*http.Request
	body []byte
}

// receiver is a real server that answers as it is told and keeps what it got.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []delivery
}

// newReceiver starts a server that answers with the handler after it has noted the request.
func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(r.handler(answer))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) handler(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		r.mu.Lock()
		r.got = append(r.got, delivery{request, body})
		r.mu.Unlock()
		answer(w, request)
	}
}

// deliveries returns what has arrived.
func (r *receiver) deliveries() []delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

// answering returns a handler that answers with a status, headers in pairs and a body.
func answering(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// newPublisher makes a publisher that is closed with the test.
func newPublisher(t *testing.T, config httppub.Config) *httppub.Publisher {
	t.Helper()
	p, err := httppub.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// local is the config for a receiver in this process.
func local(url string) httppub.Config {
	return httppub.Config{Endpoint: url, Secrets: []string{secret}, AllowPrivate: true}
}
