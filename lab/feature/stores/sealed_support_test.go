package stores_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/store/sqlite"
	"github.com/onceward/onceward/store/storetest"
)

func testKey(id uint32) sealed.Key {
	secret := make([]byte, 32)
	for i := range secret {
		secret[i] = byte(int(id)*31 + i)
	}
	return sealed.Key{ID: id, Secret: secret}
}

func ring(ids ...uint32) (config sealed.Config) {
	for _, id := range ids {
		config.Keys = append(config.Keys, testKey(id))
	}
	return config
}

func seal(t testing.TB, inside store.Store, config sealed.Config) *sealed.Store {
	t.Helper()
	s, err := sealed.New(inside, config)
	must(t, err)
	return s
}

// insert adds a business row in the transaction of a handler.
func insert(statement string) func(ctx context.Context, value string) error {
	return func(ctx context.Context, value string) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, statement, value)
		return err
	}
}

// sqliteInstance opens a sealed SQLite store for the suite.
func sqliteInstance(t testing.TB) storetest.Instance {
	t.Helper()
	clock, advance := stoppedClock()
	path := filepath.Join(t.TempDir(), "onceward.db")
	var inside *sqlite.Store
	opened := func(t testing.TB) store.Store {
		var err error
		inside, err = sqlite.Open(t.Context(), path, sqlite.WithClock(clock))
		must(t, err)
		return seal(t, inside, ring(1))
	}
	s := opened(t)
	t.Cleanup(func() { _ = inside.Close() })
	must(t, inside.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`CREATE TABLE business (value TEXT NOT NULL)`)
		return err
	}))
	return storetest.Instance{
		Store: s, Advance: advance,
		Reopen: func(t testing.TB) store.Store {
			must(t, inside.Close())
			return opened(t)
		},
		Business: &storetest.Business{
			Insert: insert(`INSERT INTO business (value) VALUES (?)`),
			Count: func(value string) (n int) {
				must(t, inside.DB().QueryRow(`SELECT count(*) FROM business WHERE value = ?`, value).Scan(&n))
				return n
			},
		},
	}
}

// postgresInstance opens a sealed PostgreSQL store for the suite.
func postgresInstance(t testing.TB) storetest.Instance {
	t.Helper()
	url := servers.Postgres(t).SchemaURL(t)
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE TABLE business (value text NOT NULL)`)
	must(t, err)
	var inside *postgres.Store
	opened := func(t testing.TB) store.Store {
		var err error
		inside, err = postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
		must(t, err)
		return seal(t, inside, ring(1))
	}
	s := opened(t)
	t.Cleanup(func() { _ = inside.Close() })
	return storetest.Instance{
		Store: s,
		Reopen: func(t testing.TB) store.Store {
			must(t, inside.Close())
			return opened(t)
		},
		Business: &storetest.Business{
			Insert: insert(`INSERT INTO business (value) VALUES ($1)`),
			Count: func(value string) (n int) {
				must(t, pool.QueryRow(context.Background(), `SELECT count(*) FROM business WHERE value = $1`, value).Scan(&n))
				return n
			},
		},
	}
}
