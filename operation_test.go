package onceward_test

import (
	"context"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func TestWhatAHandlerKnows(t *testing.T) {
	t.Parallel()
	var op *onceward.Operation
	handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
		op = onceward.FromContext(r.Context())
		if err := op.Alive(); err != nil {
			t.Errorf("S5: %v", err)
		}
		op.SetProviderID("ch_123")
	}}
	store := memory.New()
	guard := newGuard(t, store, func(c *onceward.Config) {
		c.TraceID = func(context.Context) string { return "trace-1" }
	})
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown)))
	post(mux, `"the key"`, `{}`)
	rec, err := store.Get(context.Background(), aliceID("the key"))
	if err != nil {
		t.Fatal(err)
	}
	if op.Key() != "the key" || op.Scope() != "alice" || op.Name() != "POST /payments" || op.Resumed() {
		t.Errorf("section 1: the handler sees key %q, scope %q, name %q, resumed %t", op.Key(), op.Scope(), op.Name(), op.Resumed())
	}
	if op.Attempt() == 0 || op.Attempt() != rec.Attempt {
		t.Errorf("section 1: the handler's attempt is %d, the record's %d", op.Attempt(), rec.Attempt)
	}
	if point, data := op.Point(); point != "" || data != nil {
		t.Errorf("E3: a first attempt starts at %q with %q", point, data)
	}
	if rec.ProviderID != "ch_123" || rec.TraceID != "trace-1" || rec.Operation != "POST /payments" {
		t.Errorf("section 11: the record keeps provider %q, trace %q, operation %q", rec.ProviderID, rec.TraceID, rec.Operation)
	}
}

func TestOperationsThatAreNone(t *testing.T) {
	t.Parallel()
	op := onceward.FromContext(context.Background())
	if op != nil {
		t.Fatalf("an operation in an empty context: %+v", op)
	}
	op.NotExecuted()
	op.Unknown()
	op.KeepWrites()
	op.Retain(time.Hour)
	op.SetProviderID("x")
	point, data := op.Point()
	if op.Key() != "" || op.Scope() != "" || op.Name() != "" || op.Attempt() != 0 || op.Resumed() || point != "" || data != nil ||
		op.DownstreamKey("x") != "" || op.Alive() != nil {
		t.Error("the methods of no operation do not answer as those of an unprotected request")
	}
}

func TestDownstreamKeys(t *testing.T) {
	t.Parallel()
	id := onceward.ID{Scope: "alice", Key: "k"}
	// What was sent to a provider once must be derived again for ever: these values never change.
	const charge = "0533bf917527a07c49634049ee035c908f3085ea"
	got := onceward.DownstreamKey(id, "charge")
	if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(got) {
		t.Errorf("E3: the downstream key is %q", got)
	}
	if got != charge {
		t.Errorf("E3: the downstream key is %q, and was %q: a retry would charge twice", got, charge)
	}
	seen := map[string]string{}
	for name, key := range map[string]string{
		"another step": onceward.DownstreamKey(id, "refund"), "no step": onceward.DownstreamKey(id, ""),
		"another key":   onceward.DownstreamKey(onceward.ID{Scope: "alice", Key: "l"}, "charge"),
		"another scope": onceward.DownstreamKey(onceward.ID{Scope: "bob", Key: "k"}, "charge"),
		"moved border":  onceward.DownstreamKey(onceward.ID{Scope: "alicek", Key: ""}, "charge"),
		"moved border2": onceward.DownstreamKey(onceward.ID{Scope: "alice", Key: "kcharge"}, ""),
		"the same":      got,
	} {
		if other, dup := seen[key]; dup {
			t.Errorf("E3: %s and %s have the same downstream key", name, other)
		}
		seen[key] = name
	}

	var derived []string
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		derived = append(derived, onceward.FromContext(r.Context()).DownstreamKey("charge"))
		w.WriteHeader(http.StatusServiceUnavailable)
	}}
	for _, secret := range [][]byte{oldSecret, newSecret} { // on another node, with another secret
		h := newGuard(t, memory.New(), withSecrets(secret)).Handler(handler, onceward.Reserved(onceward.FailureRetry))
		post(h, "k", `{}`)
		post(h, "k", `{}`)
	}
	for i, key := range derived {
		if key != got {
			t.Errorf("E3: attempt %d derives %q, want %q", i+1, key, got)
		}
	}
	if len(derived) != 4 {
		t.Errorf("E3: %d attempts, want 4", len(derived))
	}
}
