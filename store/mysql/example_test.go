package mysql_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store/mysql"
)

func tenant(r *http.Request) (string, error) {
	if name := r.Header.Get("X-Tenant"); name != "" { // your authentication
		return name, nil
	}
	return "", onceward.ErrUnauthenticated
}

// A reservation is stored before the handler runs, and its answer before the client sees it.
func Example() {
	ctx := context.Background()
	store, err := mysql.Open(ctx, os.Getenv("MYSQL_URL")) // such as mysql://app:password@localhost:3306/shop
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	guard, err := onceward.New(store, onceward.Config{Scope: tenant, Secret: []byte(os.Getenv("ONCEWARD_SECRET"))})
	if err != nil {
		log.Fatal(err)
	}
	sweeper, err := janitor.New(store, janitor.Config{})
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = sweeper.Run(ctx) }()
	http.Handle("POST /transfers", guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintln(w, "transferred")
	}, onceward.Reserved(onceward.FailureUnknown)))
}

// With several hosts the store goes to another one when its node fails or turns read-only, and refuses a fail-over that
// would lose answers.
func ExampleWithSyncReplicasOnly() {
	store, err := mysql.Open(context.Background(), "mysql://app:password@10.0.0.1,10.0.0.2,10.0.0.3/shop",
		mysql.WithSyncReplicasOnly())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
}
