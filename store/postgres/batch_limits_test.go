package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestRefusedNeighbour: one item that the server refuses does not fail those that travel with it.
func TestRefusedNeighbour(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s := openUnasked(t, proxy.URL(), postgres.WithLanes(1))
	exec(t, openAdmin(t, url), `ALTER TABLE onceward_record ADD CHECK (position('refused'::bytea IN answer) = 0)`)
	const n, bad = 20, 7
	var claims [n]store.Claim
	for i, key := range keys("owned", n) {
		claims[i] = own(t, s, reservation(key))
	}
	gather(t, s, proxy, n, func(ctx context.Context, i int) {
		body := "stored"
		if i == bad {
			body = "refused"
		}
		_, err := s.Complete(ctx, claims[i], answer(body))
		if i != bad && err != nil {
			t.Errorf("a neighbour of the one that was refused got %v", err)
		}
		if i == bad && (!errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "check constraint")) {
			t.Errorf("the one that was refused got %v, want ErrUnavailable that says why", err)
		}
	})
	for i, claim := range claims {
		if i != bad {
			wantReplay(t, s, claim.Key, "stored", "E2")
		}
	}
	wantState(t, s, claims[bad].Key, store.StateInProgress, "E7: it can be tried again")
	complete(t, s, claims[bad], "another answer")
}

// TestLargeAnswers: a hundred answers of a mebibyte at once are many batches, not a failure.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s := openStore(t, url)
	const n, size = 100, 1 << 20
	var claims [n]store.Claim
	for i, key := range keys("large", n) {
		claims[i] = own(t, s, reservation(key))
	}
	body := func(i int) []byte { return bytes.Repeat([]byte{byte(i), 1, 2, 3}, size/4) }
	crowd(t.Context(), n, func(ctx context.Context, i int) {
		done := &store.Completion{Response: store.Response{Status: 200, Body: body(i)}}
		if _, err := s.Complete(ctx, claims[i], done); err != nil {
			t.Errorf("an answer of a mebibyte got %v", err)
		}
	})()
	if whole := number(t, openAdmin(t, url), `SELECT count(*) FROM onceward_record WHERE octet_length(answer) > $1`, size); whole != n {
		t.Errorf("%d of %d answers were stored", whole, n)
	}
	for i := 0; i < n; i += 20 {
		rec, err := s.Get(t.Context(), claims[i].ID)
		if err != nil || !bytes.Equal(rec.Response.Body, body(i)) {
			t.Errorf("I3: answer %d came back as %d bytes that are not the same (%v)", i, len(rec.Response.Body), err)
		}
	}
}

// calls are all that can be asked of a store.
func calls(s *postgres.Store) map[string]func(ctx context.Context) error {
	claim := store.Claim{ID: idOf("key"), Attempt: 1}
	return map[string]func(ctx context.Context) error{
		"reserve":    func(ctx context.Context) error { _, err := s.Reserve(ctx, reservation("key")); return err },
		"extend":     func(ctx context.Context) error { return s.Extend(ctx, claim, time.Minute) },
		"checkpoint": func(ctx context.Context) error { return s.Checkpoint(ctx, claim, store.Checkpoint{Point: "p"}) },
		"complete":   func(ctx context.Context) error { _, err := s.Complete(ctx, claim, answer("x")); return err },
		"release":    func(ctx context.Context) error { return s.Release(ctx, claim, "") },
		"abandon":    func(ctx context.Context) error { return s.Abandon(ctx, claim, "") },
		"get":        func(ctx context.Context) error { _, err := s.Get(ctx, claim.ID); return err },
		"transact": func(ctx context.Context) error {
			_, err := s.Transact(ctx, reservation("key"), committing("x", nothing))
			return err
		},
		"wait":                  func(ctx context.Context) error { return s.Wait(ctx, claim.ID, 1) },
		"sweep":                 func(ctx context.Context) error { _, err := s.Sweep(ctx, 10); return err },
		"reap":                  func(ctx context.Context) error { _, err := s.Reap(ctx, 10, false); return err },
		"resolve completed":     func(ctx context.Context) error { return s.ResolveCompleted(ctx, claim, answer("x")) },
		"resolve not executed":  func(ctx context.Context) error { return s.ResolveNotExecuted(ctx, claim, "") },
		"postpone":              func(ctx context.Context) error { return s.Postpone(ctx, claim, store.Postponement{MaxAttempts: 3}) },
		"begin reconcile":       func(ctx context.Context) error { return s.BeginReconcile(ctx, claim, 0, time.Minute) },
		"resolve step":          func(ctx context.Context) error { return s.ResolveStep(ctx, claim, store.Checkpoint{Point: "p"}) },
		"requeue":               func(ctx context.Context) error { return s.Requeue(ctx, claim, "") },
		"bust":                  func(ctx context.Context) error { return s.Bust(ctx, claim.ID, false) },
		"list":                  func(ctx context.Context) error { _, err := s.List(ctx, store.Filter{}); return err },
		"stats":                 func(ctx context.Context) error { _, err := s.Stats(ctx); return err },
		"add a late completion": func(ctx context.Context) error { return s.AddLateCompletion(ctx, store.LateCompletion{Claim: claim}) },
		"late completions":      func(ctx context.Context) error { _, err := s.LateCompletions(ctx, claim.ID); return err },
		"add an external event": func(ctx context.Context) error { _, err := s.AddExternalEvent(ctx, store.ExternalEvent{}); return err },
		"external events":       func(ctx context.Context) error { _, err := s.ExternalEvents(ctx, aboutCharge("ch_1")); return err },
		"purge external events": func(ctx context.Context) error { _, err := s.PurgeExternalEvents(ctx, 0, 10); return err },
		"add an act":            func(ctx context.Context) error { return s.AddAudit(ctx, store.AuditEntry{ID: claim.ID}) },
		"acts":                  func(ctx context.Context) error { _, err := s.Audit(ctx, claim.ID); return err },
		"purge acts":            func(ctx context.Context) error { _, err := s.PurgeAudit(ctx, 0, 10); return err },
	}
}

// TestClosedStore: a store that is closed says so, also where the pool of the handlers is still open.
func TestClosedStore(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	opened := openStore(t, server.SchemaURL(t))
	pool, err := pgxpool.New(t.Context(), server.SchemaURL(t))
	must(t, err)
	t.Cleanup(pool.Close)
	shared, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	for name, s := range map[string]*postgres.Store{"Open": opened, "New": shared} {
		own(t, s, reservation("key")) // so that nothing has to be looked up that fails for another reason
		must(t, s.Close())
		for call, f := range calls(s) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if err := f(ctx); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s on a closed store of %s got %v, want ErrUnavailable", call, name, err)
			}
			cancel()
		}
		must(t, s.Close())
	}
}
