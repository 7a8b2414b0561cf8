package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestTransactionsOfPgx: what is written by the functions for pgx is committed and undone with the transaction.
func TestTransactionsOfPgx(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	exec(t, u.admin, `CREATE TABLE business (id text PRIMARY KEY, value text)`)
	events := inbox.New(u.store)
	undo := errors.New("undone on purpose")
	for _, step := range []struct {
		end     error
		applied bool
		outcome natural.Outcome
	}{{undo, true, natural.OutcomeInserted}, {nil, true, natural.OutcomeInserted}, {nil, false, natural.OutcomeUpdated}} {
		err := pgx.BeginFunc(t.Context(), u.admin, func(tx pgx.Tx) error {
			must(t, postgres.LockName(t.Context(), tx, "business 1"))
			applied, err := postgres.ApplyEvent(t.Context(), events, tx, "consumer", "event", func(ctx context.Context) error {
				_, err := postgres.AddMessage(ctx, u.box, tx, messageOf("applied"))
				return err
			})
			if err != nil || applied != step.applied {
				t.Errorf("O5: applied is %t, %v, want %t", applied, err, step.applied)
			}
			outcome, err := postgres.UpsertRow(t.Context(), tx, natural.Upsert{
				Table: "business", Key: []natural.Column{{Name: "id", Value: "1"}}, Values: []natural.Column{{Name: "value", Value: "v"}},
			})
			if err != nil || outcome != step.outcome {
				t.Errorf("O6: the row was %s, %v, want %s", outcome, err, step.outcome)
			}
			return step.end
		})
		if !errors.Is(err, step.end) {
			t.Fatal(err)
		}
	}
	if got, want := typesInOrder(t, u.store), "applied"; got != want {
		t.Errorf("O1: the messages are %q, want %q", got, want)
	}
}

// TestUpsertIntoPartitions: in tables of both forms a row is told to be new, changed or kept, whatever was written before
// in the same transaction.
func TestUpsertIntoPartitions(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "partitions are an option")
	u := newOutboxTest(t, "")
	exec(t, u.admin, `CREATE TABLE whole (id text PRIMARY KEY, value text)`)
	exec(t, u.admin, `CREATE TABLE spread (id text PRIMARY KEY, value text) PARTITION BY HASH (id)`)
	exec(t, u.admin, `CREATE TABLE spread_0 PARTITION OF spread FOR VALUES WITH (MODULUS 2, REMAINDER 0)`)
	exec(t, u.admin, `CREATE TABLE spread_1 PARTITION OF spread FOR VALUES WITH (MODULUS 2, REMAINDER 1)`)
	for _, table := range []string{"whole", "spread"} {
		must(t, pgx.BeginFunc(t.Context(), u.admin, func(tx pgx.Tx) error {
			for _, step := range []struct {
				id, value string
				want      natural.Outcome
			}{
				{"1", "open", natural.OutcomeInserted},
				{"1", "paid", natural.OutcomeUpdated},
				{"2", "open", natural.OutcomeInserted},
				{"1", "open", natural.OutcomeKept},
				{"3", "open", natural.OutcomeInserted},
				{"2", "open", natural.OutcomeUpdated},
			} {
				outcome, err := postgres.UpsertRow(t.Context(), tx, natural.Upsert{
					Table: table, Key: []natural.Column{{Name: "id", Value: step.id}},
					Values: []natural.Column{{Name: "value", Value: step.value}}, Final: "value", FinalValues: []any{"paid"},
				})
				if err != nil || outcome != step.want {
					t.Fatalf("O6: row %s of the table %s was %s (%v), want %s", step.id, table, outcome, err, step.want)
				}
			}
			return nil
		}))
	}
}

// TestLockNameInPgx: transactions that ask for one name wait for each other, whichever type they have.
func TestLockNameInPgx(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	first, err := u.admin.Begin(t.Context())
	must(t, err)
	must(t, postgres.LockName(t.Context(), first, "name"))
	locked := make(chan error, 1)
	go func() {
		locked <- u.store.InTx(t.Context(), func(ctx context.Context) error {
			return postgres.LockName(ctx, postgres.Tx(ctx), "name")
		})
	}()
	await.That(t, "the second waits", func() bool {
		return number(t, u.admin, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`) > 0
	})
	must(t, first.Commit(t.Context()))
	must(t, await.Value(t, "the second transaction", locked))
}

// TestTransactionsThatAreNone: without a transaction, with names that are refused, or over another store, nothing is
// written.
func TestTransactionsThatAreNone(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	events := inbox.New(u.store)
	runs := func(context.Context) error { t.Error("the function ran"); return nil }
	foreign, err := outbox.New(struct{ outbox.Store }{u.store}, outbox.Config{})
	must(t, err)
	for want, call := range map[string]func() error{
		"postgres: there is no transaction": func() error {
			_, added := postgres.AddMessage(t.Context(), u.box, nil, messageOf("a"))
			_, applied := postgres.ApplyEvent(t.Context(), events, nil, "consumer", "event", runs)
			_, written := postgres.UpsertRow(t.Context(), nil,
				natural.Upsert{Table: "t", Key: []natural.Column{{Name: "id", Value: 1}}})
			return allOf(added, applied, written, postgres.LockName(t.Context(), nil, "name"))
		},
		"not over a store of this package": func() error {
			_, added := postgres.AddMessage(t.Context(), foreign, nil, messageOf("a"))
			_, applied := postgres.ApplyEvent(t.Context(), inbox.New(struct{ inbox.Store }{u.store}), nil,
				"consumer", "event", runs)
			return allOf(added, applied)
		},
		"is missing": func() error {
			tx, err := u.admin.Begin(t.Context())
			must(t, err)
			defer func() { _ = tx.Rollback(t.Context()) }()
			_, added := postgres.AddMessage(t.Context(), u.box, tx, outbox.Message{Topic: "topic"})
			_, applied := postgres.ApplyEvent(t.Context(), events, tx, "", "event", runs)
			return allOf(added, applied)
		},
		"there is no answer here": func() error {
			_, added := foreign.AddToAnswer(t.Context(), messageOf("a"))
			return added
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("O1: %v, want %q", err, want)
		}
	}
	if got := typesInOrder(t, u.store); got != "" {
		t.Errorf("O1: %q were added without a transaction", got)
	}
}

// allOf is nil if one of the errors is.
func allOf(errs ...error) error {
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errs[0]
}
