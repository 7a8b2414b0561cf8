package postgres_test

import (
	"context"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/postgres"
)

type (
	callerKey struct{}
	childKey  struct{}
)

// TestHandlerContext: a handler's context has the caller's values and its transaction, and does not end with the caller.
func TestHandlerContext(t *testing.T) {
	t.Parallel()
	for _, h := range []handle{pgxHandle, sqlHandle} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, h)
			caller, leave := context.WithCancel(context.WithValue(t.Context(), callerKey{}, "alice"))
			_, err := s.store.Transact(caller, reservation("key"), committing("key", func(ctx context.Context) error {
				leave()
				checkHandlerContext(t, ctx)
				return h.insert(ctx, "one")
			}))
			must(t, err)
			s.wantRows("E6", "one")
		})
	}
}

func checkHandlerContext(t testing.TB, ctx context.Context) {
	t.Helper()
	if _, bounded := ctx.Deadline(); bounded || ctx.Err() != nil || context.Cause(ctx) != nil {
		t.Errorf("E6: the context ended with the caller: %v, %v", ctx.Err(), context.Cause(ctx))
	}
	child, cancel := context.WithCancel(context.WithValue(ctx, childKey{}, "mine"))
	cancel()
	if got := child.Value(callerKey{}); got != "alice" {
		t.Errorf("the caller's value is %v", got)
	}
	if ctx.Err() != nil || child.Err() == nil {
		t.Errorf("a child that was cancelled has %v, its parent %v", child.Err(), ctx.Err())
	}
	tx, ok := onceward.LookupTx(child)
	if again, _ := onceward.LookupTx(ctx); !ok || tx != again {
		t.Error("the context does not give the same *sql.Tx each time")
	}
	if _, ok := postgres.LookupTx(child); !ok {
		t.Error("the context does not give the transaction of pgx")
	}
}

// TestHandlesOnOneConnection: a connection serves one handler after the other, whichever handle each of them takes.
func TestHandlesOnOneConnection(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	const rounds = 3
	var want []string
	for i, key := range keys("handles", 2*rounds) {
		insert := []handle{pgxHandle, sqlHandle}[i%2].insert
		transacted(t, s.store, key, func(ctx context.Context) error { return insert(ctx, key) })
		want = append(want, key)
	}
	s.wantRows("E1", want...)
}
