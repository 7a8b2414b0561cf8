package payments_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/storeurl"
)

// TestTablesOfEarlierVersion: a table that lacks a column gets it, once, and nodes that do not know the column still
// write to the table.
func TestTablesOfEarlierVersion(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := storeOf(t, kind)
			earlier, err := storeurl.Open(t.Context(), url)
			must(t, err)
			t.Cleanup(func() { must(t, earlier.Close()) })
			write(t, earlier, `CREATE TABLE refund (
				id TEXT PRIMARY KEY, payment TEXT NOT NULL, amount BIGINT NOT NULL, reference TEXT NOT NULL)`)
			const insert = `INSERT INTO refund (id, payment, amount, reference) VALUES ($1, 'p', 1, 'r')`
			write(t, earlier, insert, "before")
			w := newWorld(t, url, nil)
			w.beside(nil)
			write(t, earlier, insert, "after")
			p := w.payment(1900, "r")
			w.wantOneRefund(p, w.refund(p, 500).want(http.StatusCreated, p.ID))
			if n := w.number(`SELECT count(*) FROM refund WHERE (made_at > 0) = (payment = $1)`, p.ID); n != 3 {
				t.Errorf("%d refunds have the time that they should have, want 3", n)
			}
		})
	}
}

// write runs a statement in a transaction of its own.
func write(t *testing.T, db *storeurl.Database, statement string, args ...any) {
	t.Helper()
	must(t, db.InTx(t.Context(), func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, statement, args...)
		return err
	}))
}
