package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/store/sqlite"
)

// A shop pays its supplier. The order and the payment are written down together; the payment is sent after the commit,
// and until it is answered, also by another process if this one crashes.
func ExampleOpenJournal() {
	supplier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"id":"pay_1"}`)
	}))
	defer supplier.Close()
	dir, err := os.MkdirTemp("", "onceward-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx := context.Background()
	journal, err := sqlite.OpenJournal(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer journal.Close()
	worker, err := client.NewWorker(journal, client.WorkerConfig{
		Prepare: func(request *http.Request) error {
			request.Header.Set("Authorization", "Bearer "+os.Getenv("SUPPLIER_TOKEN"))
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	var key string
	err = journal.Update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `CREATE TABLE supply (item TEXT, payment TEXT)`); err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, supplier.URL+"/payments",
			strings.NewReader(`{"amount":1999,"currency":"EUR"}`))
		if err != nil {
			return err
		}
		if key, err = client.Enqueue(ctx, journal, tx, request); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO supply (item, payment) VALUES ('paper', $1)`, key)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	if _, err := worker.RunOnce(ctx); err != nil { // a service runs worker.Run(ctx) beside its handlers
		log.Fatal(err)
	}
	operation, err := worker.Wait(ctx, key)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(operation.State, operation.Answer.Status, string(operation.Answer.Body))
	// Output: answered 201 {"id":"pay_1"}
}
