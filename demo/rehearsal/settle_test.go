package rehearsal

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// newNode starts a node whose provider has faults.
func newNode(t *testing.T, faults provider.Faults) *node {
	t.Helper()
	bank, err := provider.Start(t.Context(), provider.Config{Faults: faults})
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Payments: 1, Processes: 1}
	n, err := startNode(t.Context(), Program{}, nodeConfig{
		File: t.TempDir() + "/payments.db", Addr: "127.0.0.1:0", Secret: []byte("sixteen bytes or more"),
		Provider: bank.URL, WebhookSecret: "sixteen bytes or more", Timing: config.timing(), Log: t.TempDir() + "/log",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = bank.Close() // the test is over
	})
	return n
}

// reserve begins an operation that no attempt ends.
func reserve(t *testing.T, n *node, scope string) {
	t.Helper()
	_, err := n.store.Reserve(t.Context(), &store.Reservation{
		ID: store.ID{Scope: scope, Key: "key-1"}, Operation: "POST /test", Lease: time.Hour, Retention: time.Hour,
		Fingerprints: []store.Fingerprint{{Sum: [32]byte{1}}}, Nonce: store.Nonce{1},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNobodyWaitsForTheComparison: the provider refuses to answer a comparison of the ledgers, which is tried again for
// as long as the demo lasts.
func TestNobodyWaitsForTheComparison(t *testing.T) {
	t.Parallel()
	n := newNode(t, provider.Faults{Rules: []provider.Rule{{
		Match: provider.Match{Method: "GET", Path: "/charges"}, Kind: provider.ErrorBefore, Rate: 1, Status: 503,
	}}})
	f := &fleet{members: []*member{{runner: n}}}
	awaitRecord(t, n)
	if open := settle(t.Context(), f); !open.quiet() {
		t.Errorf("the demo waits for its comparison: %+v", open)
	}
	reserve(t, n, "alice")
	if open := settleAfter(t, n, 2); open != (openWork{InProgress: 1}) {
		t.Errorf("an operation of a client is in progress, and open is %+v", open)
	}
}

// elsewhere is a node that is asked at another URL.
type elsewhere struct {
	*node
	url string
}

func (e elsewhere) address() string { return e.url }

// settleAfter waits for a node to settle, and gives up when it has been asked so many times.
func settleAfter(t *testing.T, n *node, looks int) openWork {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int64
	system := n.withOpenWork(n.system)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > int64(looks) { // the answer to the look before has arrived
			cancel()
			return
		}
		system.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return settle(ctx, &fleet{members: []*member{{runner: elsewhere{n, server.URL}}}})
}

// awaitRecord waits until something was begun and left, which can only be the comparison.
func awaitRecord(t *testing.T, n *node) {
	t.Helper()
	await.That(t, "the comparison has begun", func() bool {
		stats, err := n.store.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return stats.Records[store.StateRetryable] > 0
	})
}
