package pages_test

import (
	"context"
	"database/sql"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/source/file"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// open connects to an empty schema.
func open(t *testing.T) (url string, db *sql.DB) {
	t.Helper()
	url = servers.Postgres(t).SchemaURL(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return url, db
}

// wantUsable opens a store on tables that a tool has made, and uses them.
func wantUsable(t *testing.T, url string) {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, postgres.WithManualMigration())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	v, err := s.Reserve(t.Context(), &store.Reservation{
		ID: store.ID{Scope: "alice", Key: "key"}, Operation: http.MethodPost, Fingerprints: []store.Fingerprint{{Secret: 1}},
		Nonce: store.Nonce{1}, Lease: time.Minute, Retention: time.Hour,
	})
	if err != nil || v.Decision != store.DecisionExecute {
		t.Errorf("reserve: %v (%v)", v.Decision, err)
	}
}

// TestGoose: goose applies the migrations as they are, and its way down forgets no key.
func TestGoose(t *testing.T) {
	t.Parallel()
	url, db := open(t)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, postgres.Migrations(), goose.WithTableName("onceward_goose"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantUsable(t, url)
	if _, err := provider.DownTo(context.WithoutCancel(t.Context()), 0); err != nil {
		t.Fatal(err)
	}
	if status, err := postgres.Status(t.Context(), url); err != nil || status.Version != 1 {
		t.Errorf("after the way down the status is %+v (%v)", status, err)
	}
}

// TestGolangMigrate: golang-migrate applies what is printed.
func TestGolangMigrate(t *testing.T) {
	t.Parallel()
	url, db := open(t)
	script, err := postgres.PlainSQL("", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "0042_onceward.up.sql"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithDatabaseInstance("file://"+dir, "app", driver)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Up(); err != nil {
		t.Fatal(err)
	}
	wantUsable(t, url)
}
