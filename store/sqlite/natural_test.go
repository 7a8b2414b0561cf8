package sqlite_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/store/sqlite"
)

// payment is a row of the table that openPayments makes. Its names have to be quoted.
func payment(id, status any, amount int) natural.Upsert {
	return natural.Upsert{
		Table: `pay"ments`, Key: []natural.Column{{Name: "provider", Value: "p"}, {Name: "order", Value: id}},
		Values: []natural.Column{{Name: "sta tus", Value: status}, {Name: "amount", Value: amount}},
		Final:  "sta tus", FinalValues: []any{"paid", "failed"},
	}
}

func openPayments(t *testing.T) *sqlite.Store {
	t.Helper()
	store := openStore(t, newFile(t))
	exec(t, store, `CREATE TABLE "pay""ments" (provider TEXT, "order" TEXT, "sta tus" TEXT, amount INTEGER, PRIMARY KEY (provider, "order"))`)
	return store
}

// upsert runs one upsert in a transaction of its own.
func upsert(t *testing.T, store *sqlite.Store, u natural.Upsert) (outcome natural.Outcome, err error) {
	t.Helper()
	err = store.InTx(t.Context(), func(ctx context.Context) error {
		outcome, err = store.UpsertRow(ctx, onceward.Tx(ctx), u)
		return err
	})
	return outcome, err
}

// TestUpsert: a row is inserted, brought up to date, and left alone once it is final.
func TestUpsert(t *testing.T) {
	t.Parallel()
	store := openPayments(t)
	bare := payment("2", nil, 0)
	bare.Values, bare.Final, bare.FinalValues = nil, "", nil
	named := payment("1", "new", 8)
	named.Schema = "main"
	always := payment("1", "refunded", 9)
	always.Final, always.FinalValues = "", nil
	for i, step := range []struct {
		upsert natural.Upsert
		want   natural.Outcome
		status any
		amount int
	}{
		{payment("1", "new", 1), natural.OutcomeInserted, "new", 1},
		{payment("1", "new", 1), natural.OutcomeUpdated, "new", 1},
		{payment("1", nil, 2), natural.OutcomeUpdated, nil, 2},
		{payment("1", "paid", 3), natural.OutcomeUpdated, "paid", 3},
		{payment("1", "failed", 4), natural.OutcomeKept, "paid", 3},
		{named, natural.OutcomeKept, "paid", 3},
		{always, natural.OutcomeUpdated, "refunded", 9},
		{payment("1'", nil, 5), natural.OutcomeInserted, nil, 5},
		{bare, natural.OutcomeInserted, nil, 0},
		{bare, natural.OutcomeUpdated, nil, 0},
	} {
		outcome, err := upsert(t, store, step.upsert)
		if err != nil || outcome != step.want {
			t.Errorf("O6: step %d got %s (%v), want %s", i, outcome, err, step.want)
		}
		var status any
		var amount int
		row := store.DB().QueryRow(`SELECT "sta tus", coalesce(amount, 0) FROM "pay""ments" WHERE "order" = ?`,
			step.upsert.Key[1].Value)
		if err := row.Scan(&status, &amount); err != nil || status != step.status || amount != step.amount {
			t.Errorf("O6: after step %d the row is (%v, %d, %v), want (%v, %d)", i, status, amount, err, step.status,
				step.amount)
		}
	}
}

// TestUpsertRefused: what cannot be right is an error, and no row.
func TestUpsertRefused(t *testing.T) {
	t.Parallel()
	store := openPayments(t)
	edit := func(f func(u *natural.Upsert)) natural.Upsert {
		u := payment("1", "new", 1)
		f(&u)
		return u
	}
	if _, err := upsert(t, store, payment("1", "new", 1)); err != nil {
		t.Fatal(err)
	}
	for want, u := range map[string]natural.Upsert{
		"Upsert.Table is missing": edit(func(u *natural.Upsert) { u.Table = "" }),
		"no such table":           edit(func(u *natural.Upsert) { u.Table = "nothing" }),
		"no such column":          edit(func(u *natural.Upsert) { u.Final = "nothing" }),
		"has no column":           edit(func(u *natural.Upsert) { u.Values[0].Name = "nothing" }),
		"does not match any": edit(func(u *natural.Upsert) {
			u.Key, u.Values = u.Key[1:], nil
			u.Final,
				u.FinalValues = "", nil
		}),
		"authorized": edit(func(u *natural.Upsert) {
			u.Table = "onceward_meta"
			u.Key = []natural.Column{{Name: "name", Value: "floor"}}
		}),
	} {
		if outcome, err := upsert(t, store, u); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("O6: got %s (%v), want an error with %q", outcome, err, want)
		}
	}
}

// TestUpsertUndone: it is part of the transaction.
func TestUpsertUndone(t *testing.T) {
	t.Parallel()
	store := openPayments(t)
	broken := errors.New("broken")
	for range 2 {
		err := store.InTx(t.Context(), func(ctx context.Context) error {
			if err := store.LockName(ctx, onceward.Tx(ctx), "payment 1"); err != nil {
				return err
			}
			outcome, err := store.UpsertRow(ctx, onceward.Tx(ctx), payment("1", "new", 1))
			if err != nil || outcome != natural.OutcomeInserted {
				t.Errorf("O6: got %s (%v), want inserted each time", outcome, err)
			}
			return broken
		})
		if !errors.Is(err, broken) {
			t.Error(err)
		}
	}
}
