package postgres_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servicetest"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// adder adds messages in the transaction of a handler.
type adder struct {
	testing.TB
	box *outbox.Outbox
}

func (a adder) add(ctx context.Context, tx any, kinds ...string) {
	a.Helper()
	for _, kind := range kinds {
		if _, err := a.box.Add(ctx, tx, outbox.Message{Topic: "topic", AggregateID: "1", Type: kind}); err != nil {
			a.Errorf("O1: %s: %v", kind, err)
		}
	}
}

func (a adder) exec(ctx context.Context, statement string) {
	a.Helper()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, statement); err != nil {
		a.Errorf("%s: %v", statement, err)
	}
}

// TestMessagesOfAHandler: messages of a handler wait for its answer, and still are committed, undone and ordered as if they had
// been added at once.
func TestMessagesOfAHandler(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		work   func(a adder, ctx context.Context)
		undone bool            // as the handler wishes, without a trace
		ending onceward.Ending // if it is not committed otherwise
		want   string
	}{
		"pgx":          {work: func(a adder, ctx context.Context) { a.add(ctx, postgres.Tx(ctx), "a", "b") }, want: "a b"},
		"database/sql": {work: func(a adder, ctx context.Context) { a.add(ctx, onceward.Tx(ctx), "a", "b") }, want: "a b"},
		"undone": {
			work: func(a adder, ctx context.Context) { a.add(ctx, postgres.Tx(ctx), "a") }, undone: true,
		},
		"undone, with an answer": {
			work: func(a adder, ctx context.Context) { a.add(ctx, postgres.Tx(ctx), "a") }, ending: onceward.CommitAnswer,
		},
		"a savepoint of pgx that is undone": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.add(ctx, inner, "inner")
				a.add(ctx, postgres.Tx(ctx), "b")
				must(a, inner.Rollback(ctx))
				a.add(ctx, postgres.Tx(ctx), "c")
			}, want: "a c",
		},
		"a savepoint of pgx that is kept": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.add(ctx, inner, "inner")
				must(a, inner.Commit(ctx))
				a.add(ctx, postgres.Tx(ctx), "b")
			}, want: "a inner b",
		},
		"a savepoint by hand": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, onceward.Tx(ctx), "a")
				a.exec(ctx, `/* by hand */ Savepoint s`)
				a.add(ctx, onceward.Tx(ctx), "b")
				a.exec(ctx, `ROLLBACK TO s`)
				a.add(ctx, onceward.Tx(ctx), "c")
			}, want: "a c",
		},
		"a savepoint in a batch": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				var batch pgx.Batch
				batch.Queue(`SELECT 1`)
				batch.Queue(`SAVEPOINT s`)
				must(a, postgres.Tx(ctx).SendBatch(ctx, &batch).Close())
				a.add(ctx, postgres.Tx(ctx), "b")
				a.exec(ctx, `ROLLBACK TO s`)
			}, want: "a",
		},
		"behind one in a batch": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				var batch pgx.Batch
				a.add(ctx, &batch, "b")
				must(a, postgres.Tx(ctx).SendBatch(ctx, &batch).Close())
				a.add(ctx, postgres.Tx(ctx), "c")
			}, want: "a b c",
		},
		"while rows are open": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				rows, err := postgres.Tx(ctx).Query(ctx, `SELECT generate_series(1, 10)`)
				must(a, err)
				_ = postgres.Tx(ctx).Conn().TypeMap() // nothing can be sent now
				rows.Close()
				_, err = a.box.Add(ctx, postgres.Tx(ctx), outbox.Message{Topic: "topic", AggregateID: "1", Type: "overtakes"})
				if err == nil {
					a.Error("O2: a message was added in front of one that could not be flushed")
				}
				_, err = a.box.Add(ctx, postgres.Tx(ctx), outbox.Message{Topic: "topic", Type: "waits-for-none"})
				must(a, err)
			}, want: "waits-for-none a",
		},
		"a savepoint that was not to be": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				gone, cancel := context.WithCancel(ctx)
				cancel()
				if _, err := postgres.Tx(ctx).Begin(gone); err == nil {
					a.Error("a savepoint was made although the context had ended")
				}
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				must(a, inner.Commit(ctx))
			}, want: "a",
		},
		"a savepoint by the connection of rows": {
			work: func(a adder, ctx context.Context) {
				rows, err := postgres.Tx(ctx).Query(ctx, `SELECT 1`)
				must(a, err)
				conn := rows.Conn()
				rows.Close()
				_, err = conn.Exec(ctx, `SAVEPOINT s`)
				must(a, err)
				a.add(ctx, postgres.Tx(ctx), "b")
				_, err = conn.Exec(ctx, `ROLLBACK TO s`)
				must(a, err)
			}, want: "",
		},
		"more than is deferred": {
			work: func(a adder, ctx context.Context) {
				for range 90 {
					a.add(ctx, postgres.Tx(ctx), "a")
				}
				for range 30 {
					a.add(ctx, postgres.Tx(ctx), "b")
				}
			}, want: strings.TrimSpace(strings.Repeat("a ", 90) + strings.Repeat("b ", 30)),
		},
		"a savepoint past the gate": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				conn := postgres.Tx(ctx).Conn()
				_, err := conn.Exec(ctx, `SAVEPOINT s`)
				must(a, err)
				a.add(ctx, postgres.Tx(ctx), "b")
				_, err = conn.Exec(ctx, `ROLLBACK TO s`)
				must(a, err)
			}, want: "a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := postgres.Open(t.Context(), servicetest.Postgres(t).SchemaURL(t), quiet)
			must(t, err)
			t.Cleanup(func() { must(t, store.Close()) })
			box, err := outbox.New(store, outbox.Config{})
			must(t, err)
			settlement := onceward.Settlement{Ending: cmp.Or(test.ending, onceward.Commit)}
			if test.undone {
				settlement.Ending = onceward.Rollback
			}
			settlement.Completion.Response.Status = 201
			_, err = store.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ onceward.Verdict) onceward.Settlement {
				test.work(adder{t, box}, ctx)
				return settlement
			})
			must(t, err)
			if got := typesInOrder(t, store); got != test.want {
				t.Errorf("O1: the messages are %q, want %q", got, test.want)
			}
		})
	}
}

// typesInOrder are the types of all messages, in the order in which they are delivered.
func typesInOrder(t testing.TB, store *postgres.Store) string {
	t.Helper()
	claimed, err := store.ClaimMessages(t.Context(), []outbox.Want{{Topic: "topic", Limit: 1000}}, 1e9)
	must(t, err)
	var types []string
	for i := range claimed {
		types = append(types, claimed[i].Type)
	}
	return strings.Join(slices.Clip(types), " ")
}
