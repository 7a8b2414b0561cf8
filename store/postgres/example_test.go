package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of database/sql

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/postgres"
)

func tenant(r *http.Request) (string, error) {
	if name := r.Header.Get("X-Tenant"); name != "" { // your authentication
		return name, nil
	}
	return "", onceward.ErrUnauthenticated
}

// A payment, its claim and its answer are one transaction.
func Example() {
	ctx := context.Background()
	store, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	guard, err := onceward.New(store, onceward.Config{Scope: tenant, Secret: []byte(os.Getenv("ONCEWARD_SECRET"))})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var id string
		err := postgres.Tx(r.Context()).QueryRow(r.Context(),
			`INSERT INTO payment (amount) VALUES (1999) RETURNING id`).Scan(&id)
		if err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintln(w, id)
	}, onceward.Transactional()))
}

// A program that has a *sql.DB shares it with the store.
func ExampleNewSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := postgres.NewSQL(ctx, db, postgres.WithSchema("app"), postgres.WithStrictDurability())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { err = errors.Join(store.Close(), db.Close()) }()
}
