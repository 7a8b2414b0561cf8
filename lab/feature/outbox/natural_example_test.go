package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/store/sqlite"
)

// A provider tells of a payment several times, and not in order. The row has the payment's own name, and once it is
// paid it stays so.
func Example_upsert() {
	dir, err := os.MkdirTemp("", "natural")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	err = store.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE payments (id TEXT PRIMARY KEY, state TEXT NOT NULL)`)
		for _, state := range []string{"pending", "paid", "pending"} {
			outcome, upsertErr := store.UpsertRow(ctx, tx, natural.Upsert{
				Table:  "payments",
				Key:    []natural.Column{{Name: "id", Value: "ch_1"}},
				Values: []natural.Column{{Name: "state", Value: state}},
				Final:  "state", FinalValues: []any{"paid", "refunded"},
			})
			fmt.Println(state, outcome)
			err = errors.Join(err, upsertErr)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// pending inserted
	// paid updated
	// pending kept
	// <nil>
}
