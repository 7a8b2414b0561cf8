package unknown_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// order is what a client asks for, and what its record carries.
type order struct {
	To    string `json:"to"`
	Cents int64  `json:"cents"`
}

// receipt is the answer that handler and resolver both give.
func receipt(o order, id string) store.Response {
	body, err := json.Marshal(map[string]any{"id": id, "to": o.To, "cents": o.Cents})
	if err != nil {
		panic(err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "Location": {"/transfers/" + id}}
	return reconcile.Response(http.StatusCreated, header, body)
}

// lossyBank makes transfers under the keys that it is sent.
type lossyBank struct {
	mu   sync.Mutex
	made map[string]string
}

func (b *lossyBank) transfer(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.made == nil {
		b.made = make(map[string]string)
	}
	b.made[key] = "tr_1"
	return b.made[key]
}

func (b *lossyBank) find(key string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, found := b.made[key]
	return id, found
}

// TestResolverBuildsTheHandlersAnswer: the call of the handler was made and its reply lost. With what the handler
// carried the resolver makes the answer, byte for byte that of a request whose reply came (B3).
func TestResolverBuildsTheHandlersAnswer(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "transfers.db"))
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		resolverBuildsAnswer(t, s)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		s, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t))
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		resolverBuildsAnswer(t, s)
	})
}

func resolverBuildsAnswer(t *testing.T, s store.Store) {
	guard, err := onceward.New(s, onceward.Config{
		Scope:  onceward.SingleScope("tenant"),
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: quiet,
	})
	must(t, err)
	bank := new(lossyBank)
	mux := http.NewServeMux()
	mux.Handle(transfers, guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		var o order
		must(t, json.NewDecoder(r.Body).Decode(&o))
		must(t, op.Carry(r.Context(), o))
		id := bank.transfer(op.DownstreamKey("transfer"))
		if op.Key() == "lost" {
			op.Unknown()
			return
		}
		answer := receipt(o, id)
		for _, field := range answer.Header {
			w.Header().Add(field.Name, field.Value)
		}
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
	}, onceward.Reserved(onceward.FailureUnknown)))
	send := func(key string) *http.Response {
		r := httptest.NewRequest(http.MethodPost, "/transfers", strings.NewReader(`{"to":"DE02","cents":1200}`))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Result()
	}
	poller := newPoller(t, guard, s, reconcile.Rule{Deduplicates: true, Resolver: reconcile.ResolverFunc(
		func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
			key, err := guard.DownstreamKey(rec, "transfer")
			id, found := bank.find(key)
			if err != nil || !found {
				return reconcile.NotFound(), err
			}
			o, err := onceward.Carried[order](rec)
			return reconcile.Completed(receipt(o, id), id), err
		})}, reconcile.Config{})
	send("kept")
	if lost := send("lost"); lost.StatusCode != http.StatusInternalServerError {
		t.Fatalf("the reply is lost, and the answer is %s", lost.Status)
	}
	report, err := poller.RunOnce(t.Context())
	if err != nil || report.Completed != 1 {
		t.Fatalf("B3: the poller did %+v, %v", report, err)
	}
	want, got := send("kept"), send("lost")
	if want.StatusCode != http.StatusCreated || got.StatusCode != want.StatusCode || body(t, got) != body(t, want) {
		t.Errorf("B3: the resolved answer is %s, want that of the handler, %s", got.Status, want.Status)
	}
	want.Header.Del("Idempotency-Key-Expires")
	got.Header.Del("Idempotency-Key-Expires")
	if !maps.EqualFunc(want.Header, got.Header, slices.Equal[[]string]) {
		t.Errorf("B3: the resolved answer has the header %v, want %v", got.Header, want.Header)
	}
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	content, err := io.ReadAll(r.Body)
	must(t, err)
	return string(content)
}
