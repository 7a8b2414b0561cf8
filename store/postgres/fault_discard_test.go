package postgres_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// What the store has prepared on a connection can be discarded behind its back, by a handler or by a hook of the pool.

// TestDiscardedByAHandler: a handler that discards what was prepared on its connection, the only one, is not executed if
// the end of its transaction needed that, and the next one is served.
func TestDiscardedByAHandler(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		for name, test := range map[string]struct {
			statement string
			action    store.TxAction
			refused   bool // by the server, in any transaction
		}{
			"and commits":               {`DEALLOCATE ALL`, store.TxCommit, false},
			"and stores only an answer": {`DEALLOCATE ALL`, store.TxCommitAnswer, false},
			"and rolls back":            {`DEALLOCATE ALL`, store.TxRollback, false},
			"with all else":             {`DISCARD ALL`, store.TxRollback, true},
		} {
			t.Run(h.name+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, servers.Postgres(t))
				st := narrowHandles[h.name](t, s).store
				transacted(t, st, "before", nothing)
				_, err := st.Transact(t.Context(), booking("discards"),
					func(ctx context.Context, _ store.Verdict) store.Settlement {
						if err := h.insert(ctx, "discards"); err != nil {
							t.Error(err)
						}
						if err := h.run(ctx, test.statement); (err != nil) != test.refused {
							t.Errorf("%s got %v", test.statement, err)
						}
						return store.Settlement{Action: test.action, Completion: *answer("done")}
					})
				if test.action == store.TxRollback {
					must(t, err)
				} else {
					wantNotExecuted(t, err, "I4")
				}
				wantState(t, st, "discards", store.StateNone, "I4: nothing was executed")
				p := &payer{handle: h, value: "after"}
				v, err := st.Transact(t.Context(), booking("after"), p.work)
				wantVerdict(t, v, err, store.DecisionExecute, 1, "the next one")
				s.wantRows(t, "discards", 0, "I4")
				s.wantRows(t, "after", 1, "the next one")
			})
		}
	}
}

// TestDiscardedWithoutAKey: where nothing is written at the end of a transaction, it needs nothing that was prepared.
func TestDiscardedWithoutAKey(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, servers.Postgres(t))
			st := narrowHandles[h.name](t, s).store
			for range 3 {
				must(t, st.InTx(t.Context(), func(ctx context.Context) error {
					return errors.Join(h.insert(ctx, "discards"), h.run(ctx, `DEALLOCATE ALL`))
				}))
			}
			s.wantRows(t, "discards", 3, "E8")
		})
	}
}

// TestDiscardedByAHook: a pool may discard what was prepared on a connection whenever that is released, and the store
// has the same hook on its own connections. What the store has prepared is prepared again then, also where a dozen
// connections lack it. What pgx keeps itself is between the hook and pgx.
func TestDiscardedByAHook(t *testing.T) {
	t.Parallel()
	for name, discard := range map[string]func(*pgx.Conn) error{
		"and pgx knows": func(conn *pgx.Conn) error { return conn.DeallocateAll(context.Background()) },
		"and pgx does not": func(conn *pgx.Conn) error {
			_, err := conn.Exec(context.Background(), `DISCARD ALL`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const most = 12
			var discards atomic.Bool
			s := openConfigured(t, servers.Postgres(t).SchemaURL(t), func(config *pgxpool.Config) {
				config.MaxConns = most + most/3 // of which transactions leave a quarter
				config.AfterRelease = func(conn *pgx.Conn) bool { return !discards.Load() || discard(conn) == nil }
			})
			own(t, s, reservation("its operation gets a number"))
			discards.Store(true)
			var together sync.WaitGroup
			together.Add(most)
			all := keys("all connections", most)
			crowd(t.Context(), most, func(ctx context.Context, i int) {
				arrive := sync.OnceFunc(together.Done)
				_, err := s.Transact(ctx, reservation(all[i]), committing(all[i], func(context.Context) error {
					arrive()
					together.Wait()
					return nil
				}))
				if err != nil {
					t.Error(err)
				}
			})()
			for _, key := range keys("key", 5) {
				c := own(t, s, reservation(key))
				must(t, s.Extend(t.Context(), c, time.Minute))
				complete(t, s, c, key)
				wantReplay(t, s, key, key, "E2")
				transacted(t, s, "transacted "+key, nothing)
			}
			fresh := keys("fresh", 30)
			crowd(t.Context(), len(fresh), func(ctx context.Context, i int) { ownIn(ctx, t, s, reservation(fresh[i])) })()
		})
	}
}
