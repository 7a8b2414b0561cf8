package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
	"github.com/onceward/onceward/store/storetest"
)

// patient waits for another process that holds the file as long as a test waits.
var patient = sqlite.WithBusyTimeout(await.Limit)

// openStore opens a store that is closed with the test.
func openStore(t testing.TB, path string, options ...sqlite.Option) *sqlite.Store {
	t.Helper()
	options = append([]sqlite.Option{patient}, options...)
	store, err := sqlite.Open(t.Context(), path, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return store
}

// emptyFile is the file of a store without records, beside whose tables is a business table. The suite opens hundreds
// of stores: to copy it costs less than to make the tables each time.
var emptyFile = sync.OnceValues(func() (file []byte, err error) {
	dir, err := os.MkdirTemp("", "onceward-empty-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "onceward.db")
	store, err := sqlite.Open(context.Background(), path)
	if err != nil {
		return nil, err
	}
	err = store.Update(context.Background(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`CREATE TABLE business (value TEXT NOT NULL)`)
		return err
	})
	if err := errors.Join(err, store.Close()); err != nil {
		return nil, err
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("a store that is closed has not all in its one file: %v", err)
	}
	return os.ReadFile(path)
})

// instance opens a store for the suite. Reopening it changes the store that Business counts in.
func instance(t testing.TB, options ...sqlite.Option) storetest.Instance {
	t.Helper()
	empty, err := emptyFile()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "onceward.db")
	if err := os.WriteFile(path, empty, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, path, options...)
	return storetest.Instance{
		Store: s,
		Reopen: func(t testing.TB) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, path, options...)
			return s
		},
		Business: &storetest.Business{
			Insert: func(ctx context.Context, value string) error {
				_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES (?)`, value)
				return err
			},
			Count: func(value string) int { return count(t, s, value) },
		},
	}
}

// exec runs a statement in a transaction of the writer.
func exec(t testing.TB, store *sqlite.Store, statement string, args ...any) {
	t.Helper()
	err := store.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), statement, args...)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func count(t testing.TB, store *sqlite.Store, value string) (n int) {
	t.Helper()
	if err := store.DB().QueryRow(`SELECT count(*) FROM business WHERE value = ?`, value).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// harness opens stores whose clocks stand still until the suite moves them.
var harness = storetest.Harness{
	Open: func(t testing.TB) storetest.Instance {
		var clock atomic.Int64
		clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
		opened := instance(t, sqlite.WithClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() }))
		opened.Advance = func(d time.Duration) { clock.Add(d.Microseconds()) }
		return opened
	},
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, harness)
}

// TestStoreOnTheRealClock runs the suite as it runs in production.
func TestStoreOnTheRealClock(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it waits for many leases; TestStore moves the clock")
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) storetest.Instance { return instance(t) },
	})
}

func BenchmarkStore(b *testing.B) { storetest.Bench(b, harness) }
