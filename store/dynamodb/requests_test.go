package dynamodb_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
)

// leased is longer than a test stands still.
const leased = 10 * time.Minute

// request is a reservation of a key with a nonce of its own.
func request(key string) *store.Reservation {
	r := &store.Reservation{
		ID: store.ID{Scope: "acme", Key: key}, Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{1}}},
		Lease:        leased, Retention: 24 * time.Hour,
		TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

// other is the same key with another payload.
func other(r *store.Reservation) *store.Reservation {
	r.Fingerprints = []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{2}}}
	return r
}

// answer is a completion with a body.
func answer(body string) *store.Completion {
	return &store.Completion{Response: store.Response{
		Status: http.StatusCreated, Header: []store.HeaderField{{Name: "Content-Type", Value: "application/json"}},
		Body: []byte(body),
	}}
}

// reserve needs a decision.
func reserve(t testing.TB, s *dynamodb.Store, r *store.Reservation, want store.Decision) store.Verdict {
	t.Helper()
	v, err := s.Reserve(t.Context(), r)
	if err != nil || v.Decision != want {
		t.Fatalf("reserve %q: got (%s, %v), want %s", r.Key, v.Decision, err, want)
	}
	return v
}

// claimOf is how the owner of a verdict names itself.
func claimOf(v store.Verdict) store.Claim {
	return store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
}

// complete reserves and completes.
func complete(t testing.TB, s *dynamodb.Store, key, body string) store.Claim {
	t.Helper()
	c := claimOf(reserve(t, s, request(key), store.DecisionExecute))
	_, err := s.Complete(t.Context(), c, answer(body))
	must(t, err)
	return c
}

// disturbed opens a store on a new table through a transport that can count and disturb.
func disturbed(t testing.TB, options ...dynamodb.Option) (*dynamodb.Store, *servers.DynamoDBTransport, string) {
	t.Helper()
	where := newURL(t)
	open(t, where)
	wire := servers.NewDynamoDBTransport(1)
	t.Cleanup(wire.Close)
	s := open(t, where, append(options, dynamodb.WithTransport(wire))...)
	wire.Requests()
	return s, wire, where
}

// TestRequests counts what each way costs: this is what the service charges for, and what a caller waits for.
func TestRequests(t *testing.T) {
	t.Parallel()
	s, wire, where := disturbed(t)
	elsewhere := open(t, where)
	complete(t, elsewhere, "stored", "answer")
	owned := claimOf(reserve(t, elsewhere, request("running"), store.DecisionExecute))
	lost := claimOf(reserve(t, elsewhere, request("unknown"), store.DecisionExecute))
	must(t, elsewhere.Abandon(t.Context(), lost, "timeout"))
	must(t, elsewhere.Release(t.Context(), claimOf(reserve(t, elsewhere, request("retryable"), store.DecisionExecute)),
		"no stock"))
	var first store.Claim
	rows := newBusiness(t, where)
	for _, test := range []struct {
		name string
		call func()
		want map[string]int
	}{
		{"reserve a new key", func() {
			first = claimOf(reserve(t, s, request("new"), store.DecisionExecute))
		}, map[string]int{"PutItem": 1}},
		{"heartbeat", func() { must(t, s.Extend(t.Context(), first, time.Hour)) }, map[string]int{"PutItem": 1}},
		{"checkpoint", func() {
			must(t, s.Checkpoint(t.Context(), first, store.Checkpoint{Point: "charged"}))
		}, map[string]int{"PutItem": 1}},
		{"complete", func() {
			_, err := s.Complete(t.Context(), first, answer("done"))
			must(t, err)
		}, map[string]int{"PutItem": 1}},
		{"replay by the same process", func() {
			reserve(t, s, request("new"), store.DecisionReplay)
		}, map[string]int{"GetItem": 1}},
		{"replay by another process", func() {
			if v := reserve(t, s, request("stored"), store.DecisionReplay); string(v.Record.Response.Body) != "answer" {
				t.Errorf("the replay is %q", v.Record.Response.Body)
			}
		}, map[string]int{"PutItem": 1}},
		{"mismatch", func() {
			reserve(t, s, other(request("running")), store.DecisionMismatch)
		}, map[string]int{"PutItem": 1}},
		{"in progress", func() {
			reserve(t, s, request("running"), store.DecisionInProgress)
		}, map[string]int{"PutItem": 1}},
		{"unknown", func() {
			reserve(t, s, request("unknown"), store.DecisionUnknown)
		}, map[string]int{"PutItem": 1}},
		{"retry", func() {
			reserve(t, s, request("retryable"), store.DecisionExecute)
		}, map[string]int{"PutItem": 2}},
		{"a fenced write", func() {
			err := s.Release(t.Context(), store.Claim{ID: owned.ID, Attempt: owned.Attempt - 1}, "late")
			wantFenced(t, err)
		}, map[string]int{"GetItem": 1}},
		{"transaction", func() {
			transact(t, s, request("tx"), store.DecisionExecute, func(ctx context.Context) error {
				return rows.insert(ctx, "tx")
			})
		}, map[string]int{"PutItem": 1, "TransactWriteItems": 1}},
		{"transaction without writes", func() {
			transact(t, s, request("empty"), store.DecisionExecute, nil)
		}, map[string]int{"PutItem": 2}},
		{"transaction, replay", func() {
			transact(t, s, request("stored"), store.DecisionReplay, nil)
		}, map[string]int{"GetItem": 1}},
	} {
		wire.Requests()
		test.call()
		if got := wire.Requests(); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestGuardRequests counts the requests of a whole HTTP request through the guard: two for a first execution, one for a
// replay.
func TestGuardRequests(t *testing.T) {
	t.Parallel()
	s, wire, where := disturbed(t)
	rows := newBusiness(t, where)
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("acme"), Secret: []byte("a secret of thirty-two characters"),
		StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	})
	must(t, err)
	reserved := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}), onceward.OperationName("POST /reserved"), onceward.Reserved(onceward.FailureUnknown))
	transactional := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		must(t, dynamodb.Writes(r.Context()).Put(rows.row("paid")))
		w.WriteHeader(http.StatusCreated)
	}), onceward.OperationName("POST /transactional"), onceward.Transactional())
	for name, handler := range map[string]http.Handler{"reserved": reserved, "transactional": transactional} {
		send := func(most int, replayed string) {
			t.Helper()
			wire.Requests()
			r := httptest.NewRequest(http.MethodPost, "/"+name, strings.NewReader(`{"amount":1}`))
			r.Header.Set("Idempotency-Key", name)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			made := 0
			for _, n := range wire.Requests() {
				made += n
			}
			if w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != replayed || made > most {
				t.Errorf("%s, replayed %q: %d after %d requests, want 201 after %d", name, replayed, w.Code, made, most)
			}
		}
		send(2, "")
		send(1, "true")
	}
	if n := rows.count("paid"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// transact runs work that commits, and needs a decision.
func transact(t testing.TB, s *dynamodb.Store, r *store.Reservation, want store.Decision,
	work func(ctx context.Context) error,
) store.Verdict {
	t.Helper()
	v, err := s.Transact(t.Context(), r, committing(t, work))
	if err != nil || v.Decision != want {
		t.Fatalf("transact %q: got (%s, %v), want %s", r.Key, v.Decision, err, want)
	}
	return v
}

// committing is work that commits with an answer.
func committing(
	t testing.TB, work func(ctx context.Context) error,
) func(context.Context, store.Verdict) store.Settlement {
	return func(ctx context.Context, v store.Verdict) store.Settlement {
		if work != nil {
			if err := work(ctx); err != nil {
				t.Errorf("work: %v", err)
			}
		}
		return store.Settlement{Action: store.TxCommit, Completion: *answer(fmt.Sprint("attempt ", v.Record.Attempt))}
	}
}

func wantFenced(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
}
