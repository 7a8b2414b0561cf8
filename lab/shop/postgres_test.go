package shop_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/shop"
	"github.com/onceward/onceward/store/postgres"
)

// openPostgres opens a store in a schema of the test's own, with the table of payments.
func openPostgres(t *testing.T) (*postgres.Store, *pgxpool.Pool) {
	t.Helper()
	config, err := pgxpool.ParseConfig(os.Getenv("TEST_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	schema := "test_" + strings.ToLower(rand.Text())
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA `+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), `DROP SCHEMA `+schema+` CASCADE`) })
	if _, err := pool.Exec(t.Context(), `CREATE TABLE payment (amount bigint NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	s, err := postgres.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, pool
}

// TestPayWithPgxByItself calls the handler without a guard, in a transaction that is undone.
func TestPayWithPgxByItself(t *testing.T) {
	_, pool := openPostgres(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount": 1200}`))
	w := httptest.NewRecorder()
	shop.PayWithPgx(w, r.WithContext(postgres.ContextWithTx(t.Context(), tx)))

	var paid int
	if err := tx.QueryRow(t.Context(), `SELECT sum(amount) FROM payment`).Scan(&paid); err != nil {
		t.Fatal(err)
	}
	want(t, "the answer and what was paid", fmt.Sprint(w.Code, paid), "201 1200")
}

func TestPaymentsOnPostgres(t *testing.T) {
	s, pool := openPostgres(t)
	clock := postgres.NewTestClock(t, s)
	h := service(t, s, "POST /payments", http.HandlerFunc(shop.PayWithPgx), onceward.Transactional())
	want(t, "the request", post(h, "/payments", "key-1", `{"amount": 1200}`), "201")
	want(t, "a retry", post(h, "/payments", "key-1", `{"amount": 1200}`), "201 again")
	clock.Advance(25 * time.Hour) // the answer has expired by the store's clock
	want(t, "a retry that comes too late", post(h, "/payments", "key-1", `{"amount": 1200}`), "201")

	var payments int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM payment`).Scan(&payments); err != nil {
		t.Fatal(err)
	}
	want(t, "payments", fmt.Sprint(payments), "2")
}
