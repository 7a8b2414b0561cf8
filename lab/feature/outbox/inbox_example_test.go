package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

// A broker delivers an event twice. It is applied once, in the consumer's own transaction.
func Example_do() {
	dir, err := os.MkdirTemp("", "inbox")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "mailer.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()
	box := inbox.New(store)

	for range 2 {
		err := store.Update(ctx, func(tx *sql.Tx) error {
			applied, err := box.Do(ctx, tx, "mailer", "event-1", func(context.Context) error {
				fmt.Println("the mail is queued") // with tx
				return nil
			})
			fmt.Println("applied:", applied)
			return err
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// the mail is queued
	// applied: true
	// applied: false
}
