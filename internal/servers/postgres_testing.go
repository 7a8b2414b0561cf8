package servers

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// sharedPostgres starts the server that all tests of this process share, on first use.
var sharedPostgres = sync.OnceValues(func() (*PostgresServer, error) {
	server, err := startSharedPostgres(os.Getenv(postgresVariable))
	if server != nil {
		server.keepsSchemas = true
	}
	return server, err
})

// startSharedPostgres uses the server at the URL, or starts one if there is none.
func startSharedPostgres(url string) (*PostgresServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	if url == "" {
		return StartPostgres(ctx)
	}
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return nil, fmt.Errorf("%s holds %q, which is not a URL like postgres://user@host:port/database", postgresVariable, url)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("the PostgreSQL that %s names: %w", postgresVariable, err)
	}
	return &PostgresServer{url: url}, conn.Close(ctx)
}

// Postgres returns the server that all tests of this process share: the one whose URL is in ONCEWARD_TEST_POSTGRES, or a
// private one, which is started by the first test that asks. The test fails if there is none. Each test works in a schema of
// its own: see Schema.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	server, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// NewPostgres starts a server for this test alone, with further settings like "fsync=off", and closes it at the end. It is
// for tests that kill, stop or freeze it, or need other settings; the others share the one of Postgres.
func NewPostgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	server, err := StartPostgres(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of PostgreSQL:\n%s", server.Log())
		}
		if err := server.Close(); err != nil {
			t.Errorf("close PostgreSQL: %v", err)
		}
	})
	return server
}

// Schema creates a schema for this test, and removes it with all that is in it at the end.
func (s *PostgresServer) Schema(t testing.TB) (name string) {
	t.Helper()
	name = schemaName(t.Name())
	if err := s.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatalf("create a schema: %v", err)
	}
	if s.keepsSchemas {
		t.Cleanup(func() { s.dropSchema(t, name) })
	}
	return name
}

// dropSchema does not wait for ever if a transaction of the test is still open.
func (s *PostgresServer) dropSchema(t testing.TB, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.Exec(ctx, "SET lock_timeout = '20s'; DROP SCHEMA IF EXISTS "+name+" CASCADE"); err != nil {
		t.Errorf("drop the schema of the test: %v", err)
	}
}

// SchemaURL creates a schema like Schema, and returns a URL whose connections work in it.
func (s *PostgresServer) SchemaURL(t testing.TB) (url string) {
	t.Helper()
	url, err := withParameter(s.url, "search_path", s.Schema(t))
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// schemaName makes a name that no other test has, on no machine: the server may be shared. It needs no quotes, and begins
// with the name of the test, for whoever looks into the server.
func schemaName(test string) string {
	const most = 30
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	return strings.ToLower(plain[:min(len(plain), most)] + "_" + rand.Text())
}
