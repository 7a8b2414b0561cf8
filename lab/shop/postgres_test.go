package shop_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/shop"
	"github.com/onceward/onceward/oncewardtest"
	"github.com/onceward/onceward/store/postgres"
)

// openPostgres opens a store in a schema of the test's own, with the table of payments.
func openPostgres(t *testing.T) (*postgres.Store, *pgxpool.Pool) {
	config, err := pgxpool.ParseConfig(os.Getenv("TEST_DATABASE_URL"))
	check(t, err)
	schema := "test_" + strings.ToLower(rand.Text())
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	check(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE SCHEMA `+schema)
	check(t, err)
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), `DROP SCHEMA `+schema+` CASCADE`) })
	_, err = pool.Exec(t.Context(), `CREATE TABLE payment (amount bigint NOT NULL)`)
	check(t, err)
	store, err := postgres.New(t.Context(), pool)
	check(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store, pool
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestShopOnPostgres is the same check. All of its runs share the store, because that takes a while to make.
func TestShopOnPostgres(t *testing.T) {
	store, pool := openPostgres(t)
	clock, db := postgres.NewTestClock(t, store), stdlib.OpenDBFromPool(pool)
	oncewardtest.Check(t, func(oncewardtest.TestingT) oncewardtest.Config {
		return oncewardtest.Config{
			Store: store, Clock: clock, Effects: oncewardtest.Rows(db, "payment"),
			Service: func(guard *onceward.Guard) http.Handler { return shop.New(guard, nil) },
		}
	}, oncewardtest.Post("/payments", `{"amount": 1200}`))
}
