package stores_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sealed"
)

// TestRotation: on real stores, records of an old key are readable until they are resealed, and the old key is not
// needed then, also for answers that a transaction has stored.
func TestRotation(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) store.Store{
		"sqlite": func(t *testing.T) store.Store { return openFile(t) },
		"postgres": func(t *testing.T) store.Store {
			s, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t), postgres.WithLogger(quiet))
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		"redis": func(t *testing.T) store.Store {
			s, _ := openRedis(t)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside := open(t)
			old := seal(t, inside, ring(1))
			const records = 25
			for i := range records {
				settle(t, old, i)
			}
			settle(t, inside, records) // from before there was a seal
			both, only := seal(t, inside, ring(2, 1)), seal(t, inside, ring(2))
			if err := readAll(t, both, records+1); err != nil {
				t.Errorf("before: %v", err)
			}
			resealer, err := sealed.NewResealer(both, sealed.ResealerConfig{Logger: quiet, Batch: 7})
			if _, able := store.As[store.Rewriter](inside); !able {
				if !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("a resealer of a store that cannot rewrite: %v", err)
				}
				return
			}
			must(t, err)
			report, err := resealer.RunOnce(t.Context())
			if err != nil || report.Resealed != records+1 || report.NeedsKey(1) || report.Plain != (sealed.Use{}) {
				t.Errorf("resealing: %+v, %v", report, err)
			}
			if err := readAll(t, only, records+1); err != nil {
				t.Errorf("without the old key: %v", err)
			}
			if err := readAll(t, old, 1); !errors.Is(err, store.ErrUnreadable) {
				t.Errorf("with the old key alone: %v", err)
			}
		})
	}
}

func recordID(i int) store.ID { return store.ID{Scope: "acme", Key: fmt.Sprintf("order-%03d", i)} }

func reservationOf(i int) *store.Reservation {
	return &store.Reservation{
		ID: recordID(i), Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Rules: 1}},
		Nonce: store.Nonce{byte(i), 1}, Lease: time.Minute, Retention: time.Hour,
	}
}

func answerOf(i int) store.Response {
	return store.Response{Status: 201, Body: fmt.Appendf(nil, "the answer to %d", i)}
}

// settle completes an operation: every other one in a transaction, where the store has them.
func settle(t *testing.T, s store.Store, i int) {
	t.Helper()
	if able, ok := store.As[store.Transactor](s); ok && i%2 == 0 {
		_, err := able.Transact(t.Context(), reservationOf(i),
			func(context.Context, store.Verdict) store.Settlement {
				return store.Settlement{Action: store.TxCommit, Completion: store.Completion{Response: answerOf(i)}}
			})
		must(t, err)
		return
	}
	v, err := s.Reserve(t.Context(), reservationOf(i))
	must(t, err)
	c := store.Claim{ID: recordID(i), Attempt: v.Record.Attempt}
	must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charged", Data: []byte("carried")}))
	_, err = s.Complete(t.Context(), c, &store.Completion{Response: answerOf(i)})
	must(t, err)
}

// readAll replays n operations.
func readAll(t *testing.T, s store.Store, n int) error {
	t.Helper()
	for i := range n {
		v, err := s.Reserve(t.Context(), reservationOf(i))
		if err != nil {
			return err
		}
		want := answerOf(i)
		if v.Decision != store.DecisionReplay || !v.Record.Response.Equal(&want) {
			return fmt.Errorf("order %d: %s %+v", i, v.Decision, v.Record.Response)
		}
	}
	return nil
}
