package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
)

// The database of a consumer, and its store, such as of store/sqlite or store/postgres.
var (
	db    *sql.DB
	store inbox.Store
)

// However often a broker delivers an event, it is applied once, in the consumer's own transaction.
func ExampleInbox_Do() {
	ctx := context.Background()
	box := inbox.New(store)
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() // after the commit it does nothing
	applied, err := box.Do(ctx, tx, "mailer", "event-1", func(ctx context.Context) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO mails (about) VALUES ('event-1')`)
		return err
	})
	if err == nil {
		err = tx.Commit()
	}
	fmt.Println("applied:", applied, err)
}

// Handle begins and commits its own transaction, as a consumer of a broker needs it.
func ExampleInbox_Handle() {
	ctx := context.Background()
	applied, err := inbox.New(store).Handle(ctx, "mailer", "event-1", func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails (about) VALUES ('event-1')`)
		return err
	})
	fmt.Println("applied:", applied, err)
}
