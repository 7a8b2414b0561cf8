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

// onPostgres is the world on PostgreSQL, in a schema of its own.
func onPostgres(t oncewardtest.TestingT) oncewardtest.Config {
	config, err := pgxpool.ParseConfig(os.Getenv("TEST_DATABASE_URL"))
	check(t, err)
	schema := "test_" + strings.ToLower(rand.Text())
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	check(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE SCHEMA `+schema+`; CREATE TABLE `+schema+`.payment (amount bigint NOT NULL)`)
	check(t, err)
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), `DROP SCHEMA `+schema+` CASCADE`) })
	store, err := postgres.New(t.Context(), pool)
	check(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return oncewardtest.Config{
		Store: store, Clock: postgres.NewTestClock(t, store),
		Effects: oncewardtest.Rows(stdlib.OpenDBFromPool(pool), "payment"),
		Service: func(guard *onceward.Guard) http.Handler { return shop.New(guard, nil) },
	}
}

func check(t oncewardtest.TestingT, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func TestShopOnPostgres(t *testing.T) {
	oncewardtest.Check(t, onPostgres, oncewardtest.Post("/payments", `{"amount": 1200}`))
}
