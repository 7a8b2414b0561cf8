package onceward_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// probe is all that mallory, who is another tenant, can learn by asking about a key: each answer with its headers.
func probe(h http.Handler) string {
	var learned strings.Builder
	note := func(a answer) { fmt.Fprintln(&learned, a.status, a.header, a.body) }
	note(ask(h, "/operations/k", as("mallory")))
	for _, body := range []string{`{"amount":1}`, `{"amount":1}`, `{"amount":2}`} {
		note(post(h, "k", body, as("mallory")))
	}
	note(ask(h, "/operations/k", as("mallory")))
	return learned.String()
}

// TestForeignKeysCannotBeEnumerated: whatever became of alice's payment, mallory gets the answers that she would get if there was
// no such payment, to the last byte.
func TestForeignKeysCannotBeEnumerated(t *testing.T) {
	t.Parallel()
	victims := map[string]struct {
		end   func(op *onceward.Operation) // what alice's handler says
		state store.State
		after time.Duration // when mallory asks
	}{
		"completed":   {func(*onceward.Operation) {}, store.StateCompleted, 0},
		"released":    {(*onceward.Operation).NotExecuted, store.StateRetryable, 0},
		"unknown":     {(*onceward.Operation).Unknown, store.StateUnknown, 0},
		"in progress": {nil, store.StateInProgress, 0},
		"expired":     {func(*onceward.Operation) {}, store.StateExpired, 25 * time.Hour},
	}
	for name, victim := range victims {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memory.New()
				finish := make(chan struct{})
				h := service(t, store, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch op := onceward.FromContext(r.Context()); {
					case op.Scope() != "alice":
					case victim.end == nil:
						<-finish
					default:
						victim.end(op)
					}
					w.WriteHeader(http.StatusCreated)
				}))
				go post(h, "k", `{"amount":1}`)
				time.Sleep(time.Second + victim.after)
				if _, err := store.Reap(context.Background(), 1, true); err != nil {
					t.Fatal(err)
				}
				wantState(t, "section 4", store, "k", victim.state)
				got := probe(h)
				close(finish)

				// The same moment, in a world without alice.
				created := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
				if want := probe(service(t, memory.New(), http.HandlerFunc(created))); got != want {
					t.Errorf("I9: mallory learns\n%swant what she learns where there is nothing:\n%s", got, want)
				}
			})
		})
	}
}

// TestAFingerprintIsNoOracle: who reads the store, and guesses what alice has paid, cannot check the guess. The fingerprint of the
// same request is another one in another scope, and under another secret.
func TestAFingerprintIsNoOracle(t *testing.T) {
	t.Parallel()
	const guess = `{"amount":1}`
	sums := make(map[string][]byte)
	for name, made := range map[string]struct {
		secret []byte
		scope  string
	}{
		"alice's": {testSecret, "alice"}, "the attacker's own": {testSecret, "mallory"}, "made elsewhere": {newSecret, "alice"},
	} {
		s := memory.New()
		h := newGuard(t, s, withSecrets(made.secret)).Handler(new(counted), onceward.Reserved(onceward.FailureUnknown))
		post(h, "k", guess, as(made.scope)).want(t, "F1", http.StatusCreated, false)
		rec, err := s.Get(context.Background(), store.ID{Scope: made.scope, Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		for other, sum := range sums {
			if bytes.Equal(sum, rec.Fingerprint.Sum[:]) {
				t.Errorf("F1: the fingerprint that is %s equals the one that is %s", name, other)
			}
		}
		sums[name] = bytes.Clone(rec.Fingerprint.Sum[:])
	}
}
