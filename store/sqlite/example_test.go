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

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/sqlite"
)

// A payment and its answer are one transaction: the retry is answered, not executed.
func Example() {
	dir, err := os.MkdirTemp("", "onceward")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "payments.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	// Business tables live in the same file. What is written outside of a protected handler goes through Update.
	err = store.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx,
			`CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)`)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	guard, err := onceward.New(store, onceward.Config{
		Scope:  onceward.SingleScope("shop"),
		Secret: []byte("sixteen random bytes, or more"),
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, err := onceward.Tx(r.Context()).ExecContext(r.Context(), `INSERT INTO payments (amount) VALUES (1200)`)
		if err != nil {
			http.Error(w, "the payment failed", http.StatusInternalServerError)
			return
		}
		id, _ := result.LastInsertId() // the driver knows it
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", id)
	}, onceward.Transactional()))

	for range 2 {
		request := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1200}`))
		request.Header.Set("Idempotency-Key", "order-4711")
		response := httptest.NewRecorder()
		mux.ServeHTTP(response, request)
		fmt.Println(response.Code, response.Body, "replayed:", response.Header().Get("Idempotent-Replayed") == "true")
	}
	payments := 0
	if err := store.DB().QueryRowContext(ctx, `SELECT count(*) FROM payments`).Scan(&payments); err != nil {
		log.Fatal(err)
	}
	fmt.Println("payments:", payments)

	// Output:
	// 201 payment 1 replayed: false
	// 201 payment 1 replayed: true
	// payments: 1
}
