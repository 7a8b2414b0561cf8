package storeurl_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
	"github.com/onceward/onceward/storeurl"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func open(t *testing.T, url string, options ...storeurl.Option) *storeurl.Database {
	t.Helper()
	db, err := storeurl.Open(t.Context(), url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // a test may have closed it
	return db
}

// exec writes in a transaction of the store.
func exec(t *testing.T, db *storeurl.Database, statement string, args ...any) {
	t.Helper()
	err := db.InTx(t.Context(), func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, statement, args...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *storeurl.Database) (n int) {
	t.Helper()
	if err := db.Reads().QueryRowContext(t.Context(), `SELECT count(*) FROM note`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOpen: what the store commits, the application reads, and after Close there is no reading any more.
func TestOpen(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(t *testing.T) string{
		"a path":       func(t *testing.T) string { return filepath.Join(t.TempDir(), "new", "store.db") },
		"sqlite:path":  func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "store.db") },
		"sqlite://":    func(t *testing.T) string { return "sqlite://" + filepath.Join(t.TempDir(), "store.db") },
		"postgres://":  func(t *testing.T) string { return servers.Postgres(t).SchemaURL(t) },
		"a small pool": func(t *testing.T) string { return servers.Postgres(t).SchemaURL(t) + "&pool_max_conns=3" },
		"postgresql://": func(t *testing.T) string {
			return strings.Replace(servers.Postgres(t).SchemaURL(t), "postgres://", "postgresql://", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := address(t)
			db := open(t, url)
			exec(t, db, `CREATE TABLE note (text TEXT NOT NULL)`)
			exec(t, db, `INSERT INTO note (text) VALUES ($1)`, "kept")
			if n := count(t, db); n != 1 {
				t.Errorf("there are %d notes, want one", n)
			}
			if err := db.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if _, err := db.Stats(t.Context()); err == nil {
				t.Error("the store answers after it was closed")
			}
			if err := db.Reads().PingContext(t.Context()); err == nil {
				t.Error("the connections for reading are still open")
			}
			if n := count(t, open(t, url)); n != 1 {
				t.Errorf("opened again, there are %d notes, want one", n)
			}
		})
	}
}

// TestSameFile: the ways to write a path are ways to the same file.
func TestSameFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	exec(t, open(t, path), `CREATE TABLE note (text TEXT NOT NULL)`)
	for _, url := range []string{path, "sqlite:" + path, "sqlite://" + path} {
		if n := count(t, open(t, url)); n != 0 {
			t.Errorf("%s: there are %d notes, want none", url, n)
		}
	}
}

// TestClock: SQLite takes its time from the option.
func TestClock(t *testing.T) {
	t.Parallel()
	then := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	db := open(t, filepath.Join(t.TempDir(), "store.db"), storeurl.WithClock(func() time.Time { return then }))
	v, err := db.Reserve(t.Context(), &store.Reservation{
		ID: store.ID{Scope: "s", Key: "k"}, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Lease: time.Minute, Retention: time.Hour,
	})
	if err != nil || !v.Record.CreatedAt.Equal(then) {
		t.Errorf("the record is from %s (%v), want %s", v.Record.CreatedAt, err, then)
	}
}

// TestRefused: the error says what was wrong with the URL.
func TestRefused(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	for url, want := range map[string]string{
		"":                                 "the store is not named",
		"oracle://root@localhost/payments": `no store is called "oracle"`,
		"mysql://nobody@127.0.0.1:1/no":    "127.0.0.1",
		"app:secret@tcp(localhost)/shop":   "use mysql://",
		"dynamodb://records":               "no transactions of SQL",
		"sqlite:":                          "is not the path of a file",
		":memory:":                         "is not the path of a file",
		"postgres://localhost:1:2/x":       "storeurl",
		"postgres://nobody@127.0.0.1:1/no": "127.0.0.1",
		t.TempDir():                        "sqlite",
	} {
		db, err := storeurl.Open(ctx, url)
		if err == nil || db != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want one with %q", url, err, want)
		}
	}
}

// TestCapabilities: a database has the capabilities of its store, and shows it.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "store.db")
	for _, url := range []string{file, file + "?front=redis://127.0.0.1:1/0"} {
		db := open(t, url, storeurl.WithLogger(slog.New(slog.DiscardHandler)))
		if _, ok := store.As[store.Rewriter](db); !ok {
			t.Errorf("%s: it cannot rewrite records", url)
		}
		if _, ok := store.Find[*sqlite.Store](db); !ok {
			t.Errorf("%s: the store inside is not found", url)
		}
	}
	db := open(t, servers.Postgres(t).SchemaURL(t))
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = db.InTx(t.Context(), func(ctx context.Context) error {
		_, err := postgres.AddMessage(ctx, box, postgres.Tx(ctx), outbox.Message{Type: "paid", Payload: []byte("{}")})
		return err
	})
	if err != nil {
		t.Errorf("a message was not added through pgx: %v", err)
	}
}

// TestReadOnly: what is opened for looking only shows everything and writes nothing, also behind a front that is away.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{
		"sqlite":   filepath.Join(t.TempDir(), "store.db"),
		"postgres": servers.Postgres(t).SchemaURL(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, option := range []storeurl.Option{storeurl.ReadOnly(), storeurl.WithManualMigration()} {
				if _, err := storeurl.Open(t.Context(), address, option); !errors.Is(err, store.ErrSchemaMissing) {
					t.Errorf("without tables: %v", err)
				}
			}
			if status, err := storeurl.Status(t.Context(), address); err != nil || status.Version != 0 {
				t.Errorf("the status is %+v (%v)", status, err)
			}
			if err := storeurl.Migrate(t.Context(), address); err != nil {
				t.Fatal(err)
			}
			if status, err := storeurl.Status(t.Context(), address); err != nil || status.Err() != nil {
				t.Errorf("the status is %+v (%v)", status, err)
			}
			if script, err := storeurl.PlainSQL(address, 0); err != nil || !strings.Contains(script, "COMMIT;") {
				t.Errorf("the script is %q (%v)", script, err)
			}
			complete(t, open(t, address, storeurl.WithManualMigration()))
			join := "?"
			if strings.Contains(address, "?") {
				join = "&"
			}
			db := open(t, address+join+"front=redis://127.0.0.1:1/0", storeurl.ReadOnly())
			if rec, err := db.Get(t.Context(), reservation(t).ID); err != nil || rec.State != store.StateCompleted {
				t.Errorf("the record is %s (%v)", rec.State, err)
			}
			if err := db.Bust(t.Context(), reservation(t).ID, true); !errors.Is(err, store.ErrReadOnly) {
				t.Errorf("a bust: %v", err)
			}
		})
	}
}

// TestNamedTables: a URL says where the tables are, and what they are called.
func TestNamedTables(t *testing.T) {
	t.Parallel()
	at := servers.Postgres(t).SchemaURL(t)
	url := at + "&prefix=pay_"
	if err := storeurl.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	status, err := storeurl.Status(t.Context(), url)
	if err != nil || status.Err() != nil || !strings.Contains(status.Place, "pay_") {
		t.Errorf("the tables are %+v, %v", status, err)
	}
	if status, err := storeurl.Status(t.Context(), at); err != nil || status.Version != 0 {
		t.Errorf("without the prefix there are tables: %+v, %v", status, err)
	}
	s, err := storeurl.Open(t.Context(), url, storeurl.WithManualMigration())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := storeurl.Open(t.Context(), at+"&schema=absent"); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a schema that is not there: %v", err)
	}
}
