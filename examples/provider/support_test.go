package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/onceward/onceward/internal/await"
)

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, config Config) (*Server, *Client) {
	t.Helper()
	server, err := Start(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	return server, newClient(t, server.URL)
}

// newClient has connections of its own, so that no other test can break them.
func newClient(t *testing.T, url string) *Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &Client{URL: url, HTTP: &http.Client{Transport: transport}}
}

func ledgerPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "ledger.jsonl")
}

func order(reference string) ChargeRequest {
	return ChargeRequest{Amount: 4200, Currency: "EUR", Reference: reference, Metadata: map[string]string{"cart": "7"}}
}

func mustCharge(t *testing.T, c *Client, key string, req ChargeRequest) Charge {
	t.Helper()
	charge, err := c.Charge(bounded(t), key, req)
	if err != nil {
		t.Fatalf("charge %s: %v", req.Reference, err)
	}
	return charge
}

func mustSet(t *testing.T, s *Server, rules ...Rule) {
	t.Helper()
	if err := s.SetFaults(Faults{Rules: rules}); err != nil {
		t.Fatal(err)
	}
}

func wantEffects(t *testing.T, s *Server, reference string, want int) {
	t.Helper()
	if got := len(s.Charges(reference)); got != want {
		t.Errorf("%d effects for %s, want %d", got, reference, want)
	}
}

// outcome names the class of what a client returned.
func outcome(err error) string {
	var declined *DeclinedError
	var refused *RefusedError
	var unknown *UnknownError
	var lookUp *LookUpError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &declined):
		return "declined"
	case errors.As(err, &refused):
		return "refused " + refused.Code
	case errors.As(err, &unknown):
		return "unknown"
	case errors.As(err, &lookUp):
		return fmt.Sprint("look-up failed ", lookUp.Status)
	}
	return "untyped: " + err.Error()
}

// delivery is one webhook as its receiver sees it.
type delivery struct {
	header http.Header
	body   []byte
}

// receive runs a receiver of webhooks that answers the n-th delivery, from 1, with status(n).
func receive(t *testing.T, status func(n int) int) (url string, deliveries <-chan delivery) {
	t.Helper()
	came := make(chan delivery, 100)
	turn := make(chan int, 1)
	turn <- 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := <-turn + 1
		body, _ := io.ReadAll(r.Body)
		came <- delivery{r.Header, body}
		turn <- n
		w.WriteHeader(status(n))
	}))
	t.Cleanup(server.Close)
	return server.URL, came
}

func always(status int) func(int) int { return func(int) int { return status } }

func next(t *testing.T, deliveries <-chan delivery) delivery {
	t.Helper()
	return await.Value(t, "a webhook", deliveries)
}
