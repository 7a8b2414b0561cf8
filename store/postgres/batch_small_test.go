package postgres_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// These are the tests of batches of few items, and of what their statements do not decide.

// TestSmallBatches: what gathers travels together also where it is little, and each item is decided for itself.
func TestSmallBatches(t *testing.T) {
	t.Parallel()
	want := map[string]store.Decision{
		"fresh": store.DecisionExecute, "fresh too": store.DecisionExecute, "settled": store.DecisionReplay,
		"released": store.DecisionExecute, "held": store.DecisionInProgress,
	}
	for _, names := range [][]string{
		{"fresh", "settled"},
		{"released", "held"},
		{"fresh", "settled", "released", "held", "fresh too"},
	} {
		t.Run(strings.Join(names, ", "), func(t *testing.T) {
			t.Parallel()
			s, proxy := openProxied(t, postgres.OneLane())
			owned, settled := own(t, s, reservation("owned")), own(t, s, reservation("settled"))
			complete(t, s, settled, "settled")
			must(t, s.Release(t.Context(), own(t, s, reservation("released")), "no stock"))
			own(t, s, reservation("held"))
			trips := gather(t, s, proxy, len(names)+2, func(ctx context.Context, i int) {
				switch i {
				case len(names):
					if _, err := s.Complete(ctx, owned, answer("owned")); err != nil {
						t.Errorf("complete got %v", err)
					}
				case len(names) + 1:
					if _, err := s.Complete(ctx, settled, answer("another")); !errors.Is(err, store.ErrFenced) {
						t.Errorf("I7: an answer to a settled record got %v", err)
					}
				default:
					if v, err := s.Reserve(ctx, reservation(names[i])); err != nil || v.Decision != want[names[i]] {
						t.Errorf("%s: reserve got (%s, %v), want %s", names[i], v.Decision, err, want[names[i]])
					}
				}
			})
			if trips > 7 { // the batch, two for the retry, and two for why the second answer was refused
				t.Errorf("%d calls that had gathered took %d round trips", len(names)+2, trips)
			}
			wantReplay(t, s, "owned", "owned", "E2")
			wantReplay(t, s, "settled", "settled", "I7")
		})
	}
}

// TestRefusedNeighbourInASmallBatch: one item that the server refuses does not fail the few that travel with it.
func TestRefusedNeighbourInASmallBatch(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s := openUnasked(t, proxy.URL(), postgres.OneLane())
	exec(t, openAdmin(t, url), `ALTER TABLE onceward_record ADD CHECK (position('refused'::bytea IN body) = 0)`)
	bodies := []string{"stored", "refused", "stored too"}
	var claims [3]store.Claim
	for i, key := range keys("owned", len(bodies)) {
		claims[i] = own(t, s, reservation(key))
	}
	gather(t, s, proxy, len(bodies)+1, func(ctx context.Context, i int) {
		if i == len(bodies) {
			ownIn(ctx, t, s, reservation("fresh"))
			return
		}
		_, err := s.Complete(ctx, claims[i], answer(bodies[i]))
		if refused := err != nil && strings.Contains(err.Error(), "check constraint"); refused != (bodies[i] == "refused") {
			t.Errorf("the answer %q got %v", bodies[i], err)
		}
	})
	wantReplay(t, s, claims[0].Key, bodies[0], "E2")
	wantReplay(t, s, claims[2].Key, bodies[2], "E2")
	wantState(t, s, claims[1].Key, store.StateInProgress, "E7: it can be tried again")
	wantState(t, s, "fresh", store.StateInProgress, "S1")
}

// TestDuplicateDoesNotWaitForAChange: a transaction that has changed a record, as a step of an operation may for long,
// holds up neither a duplicate nor those that travel with it.
func TestDuplicateDoesNotWaitForAChange(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s := openStore(t, url, postgres.OneLane(), postgres.LockTimeout("1h"))
	own(t, s, reservation("changed"))
	tx, err := openAdmin(t, url).Begin(t.Context())
	must(t, err)
	defer func() { must(t, tx.Rollback(context.Background())) }()
	_, err = tx.Exec(t.Context(), `UPDATE onceward_record SET due = due + 1 WHERE id = $1`, s.RecordID(idOf("changed")))
	must(t, err)
	if v, err := s.Reserve(t.Context(), reservation("changed")); err != nil || v.Decision != store.DecisionInProgress {
		t.Errorf("S2: a duplicate got (%s, %v)", v.Decision, err)
	}
}

// TestRaceWithAnotherNode: a record that another node makes between the look and the insert is not executed, and those
// that travel with it are.
func TestRaceWithAnotherNode(t *testing.T) {
	t.Parallel()
	for name, neighbours := range map[string]int{"alone": 0, "among others": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servers.Postgres(t).SchemaURL(t)
			proxy := servers.NewProxy(t, url)
			s := openUnasked(t, proxy.URL(), postgres.OneLane(), postgres.LockTimeout("1h"))
			admin := openAdmin(t, url)
			own(t, s, reservation("raced"))
			var made string
			must(t, admin.QueryRow(t.Context(), `DELETE FROM onceward_record r WHERE id = $1 RETURNING to_jsonb(r)::text`,
				s.RecordID(idOf("raced"))).Scan(&made))
			tx, err := admin.Begin(t.Context())
			must(t, err)
			var earlier string
			must(t, tx.QueryRow(t.Context(), `INSERT INTO onceward_record
				SELECT * FROM jsonb_populate_record(NULL::onceward_record, $1::jsonb) RETURNING pg_current_xact_id()::text`, made).
				Scan(&earlier))
			letGo := holdLane(t, s, proxy, "holds the lane")
			others := keys("beside", neighbours)
			ended := crowd(t.Context(), 1+neighbours, func(ctx context.Context, i int) {
				if i < neighbours {
					ownIn(ctx, t, s, reservation(others[i]))
				} else if v, err := s.Reserve(ctx, reservation("raced")); err != nil || v.Decision != store.DecisionInProgress {
					t.Errorf("S1: the later one got (%s, %v), want in progress", v.Decision, err)
				}
			})
			letGo()
			await.That(t, "the later one waits for the earlier", func() bool {
				return number(t, admin, `SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid::text = $1`, earlier) > 0
			})
			must(t, tx.Commit(t.Context()))
			ended()
		})
	}
}

// TestTakingOver: what a statement of a batch cannot decide is decided under the lock of the record, and those that
// travel with it are answered.
func TestTakingOver(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.OneLane())
	brief := reservation("expired")
	brief.Retention = time.Microsecond
	complete(t, s, own(t, s, brief), "old")
	must(t, s.Release(t.Context(), own(t, s, reservation("released")), "no stock"))
	lost := reservation("lost")
	lost.Lease = time.Microsecond
	own(t, s, lost)
	want := []struct {
		reservation *store.Reservation
		decision    store.Decision
		origin      store.Origin
	}{
		{reservation("fresh"), store.DecisionExecute, store.OriginCreated},
		{brief, store.DecisionExecute, store.OriginRecreated},
		{reservation("released"), store.DecisionExecute, store.OriginRetried},
		{reservation("lost"), store.DecisionUnknown, 0},
	}
	gather(t, s, proxy, len(want), func(ctx context.Context, i int) {
		v, err := s.Reserve(ctx, want[i].reservation)
		if err != nil || v.Decision != want[i].decision || v.Origin != want[i].origin {
			t.Errorf("%s: got (%s, %s, %v), want (%s, %s)", want[i].reservation.Key, v.Decision, v.Origin, err,
				want[i].decision, want[i].origin)
		}
	})
	absent := reservation("absent")
	absent.NoCreate = true
	if v, err := s.Reserve(t.Context(), absent); err != nil || v.Decision != store.DecisionRefused {
		t.Errorf("a key that must be there got (%s, %v)", v.Decision, err)
	}
}

// TestSmallStatementsGoByTheKey: few records are in progress, so that the index on the state looks like a good way to
// one of them, until there are many.
func TestSmallStatementsGoByTheKey(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table")
	p := newPlanned(t)
	complete(p, p.store, own(p, p.store, reservation(p.key())), "done")
	p.fill(20_000)
	exec(t, p.admin, `DELETE FROM onceward_record WHERE state <> 20`)
	exec(t, p.admin, `VACUUM ANALYZE onceward_record`, pgx.QueryExecModeSimpleProtocol)
	p.take()
	for range 12 { // past those that are planned each time
		c := own(p, p.store, reservation(p.key()))
		complete(p, p.store, c, "done")
		wantReplay(p, p.store, c.Key, "done", "I3")
		together := keys(p.key(), 8)
		crowd(t.Context(), len(together), func(ctx context.Context, n int) { ownIn(ctx, t, p.store, reservation(together[n])) })()
	}
	others := regexp.MustCompile(`using "?onceward_record_[^p]|Index Cond: \((?:[^i]|i[^d])|Seq Scan on onceward_record`)
	p.wantNone(t, others, "reserve, complete, replay")
}
