package natural_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/onceward/onceward/natural"
)

// The transaction of a handler, and the store, such as of store/sqlite or store/postgres.
var (
	tx    *sql.Tx
	store natural.Store
)

// A provider reports a payment several times, and not in order. The row has the payment's own name, and once it is paid
// it stays so.
func ExampleUpsert() {
	outcome, err := store.UpsertRow(context.Background(), tx, natural.Upsert{
		Table:  "payments",
		Key:    []natural.Column{{Name: "id", Value: "ch_1"}},
		Values: []natural.Column{{Name: "state", Value: "paid"}},
		Final:  "state", FinalValues: []any{"paid", "refunded"},
	})
	if err == nil && outcome == natural.OutcomeInserted {
		fmt.Println("this is the first that we hear of the payment")
	}
}
