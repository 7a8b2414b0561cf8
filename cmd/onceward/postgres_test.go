package main

import (
	"context"
	"crypto/rand"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
)

func TestOnPostgres(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	run := runDemo(t, "--payments", "60", "--seed", "5", "--processes", "2", "--store", url)
	wantSound(t, run, 60)
	conn := connect(t, url)
	left := 0
	err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname = $1`, schemaIn(t, run.Stdout)).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d schemas are left behind, %v", left, err)
	}
}

// TestOnPostgresBehindAFront: the front is for the store, and PostgreSQL is not told of it.
func TestOnPostgresBehindAFront(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the demo runs on SQLite and, by TestOnPostgres, on PostgreSQL")
	address := servers.Postgres(t).SchemaURL(t) + "&front=" + url.QueryEscape(servers.Redis(t).URL())
	wantSound(t, runDemo(t, "--payments", "30", "--seed", "5", "--store", address), 30)
}

// schemaIn finds the schema in what a demo on PostgreSQL says.
func schemaIn(t *testing.T, said string) string {
	t.Helper()
	found := regexp.MustCompile(`on PostgreSQL.* in the schema (onceward_demo_\w+)`).FindStringSubmatch(said)
	if found == nil {
		t.Fatalf("the demo names no schema:\n%s", said)
	}
	return found[1]
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // all has been answered
	return conn
}

// execute runs a statement that has to succeed, also when the test is over.
func execute(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), statement); err != nil {
		t.Error(err)
	}
}

// TestOnPostgresWhoseStandbyIsNamedFirst: the demo makes its schema where the store will be.
func TestOnPostgresWhoseStandbyIsNamedFirst(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the demo runs on SQLite and, by TestOnPostgres, on PostgreSQL")
	primary := servers.NewPostgres(t)
	standby := primary.NewStandby(t)
	hosts := func(s *servers.PostgresServer) string {
		parsed, err := url.Parse(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Host
	}
	both := strings.Replace(primary.URL(), hosts(primary), hosts(standby)+","+hosts(primary), 1)
	if run := runDemo(t, "--payments", "5", "--seed", "5", "--store", both); run.Code != 0 {
		t.Errorf("exit status %d: %s", run.Code, run.Stderr)
	}
}

// TestOnPostgresWithoutRights: the schema that could not be made is not complained about again when it is to be
// dropped.
func TestOnPostgresWithoutRights(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it is a refusal of the demo on a server")
	address := servers.Postgres(t).SchemaURL(t)
	conn := connect(t, address)
	role := "demo_" + strings.ToLower(rand.Text())
	execute(t, conn, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { execute(t, conn, "DROP ROLE "+role) })
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword(role, "secret")
	run := runDemo(t, "--store", parsed.String())
	if run.Code != 1 || !strings.Contains(run.Stderr, "grant it CREATE on the database") || strings.Count(run.Stderr, "\n") != 1 {
		t.Errorf("exit status %d: %s", run.Code, run.Stderr)
	}
}

// TestServingOnPostgres: the demo says where its records are, and does not tell the password.
func TestServingOnPostgres(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the demo runs on SQLite and, by TestOnPostgres, on PostgreSQL")
	parsed, err := url.Parse(servers.Postgres(t).SchemaURL(t))
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword(parsed.User.Username(), "s3cret")
	s := startDemo(t, t.TempDir(), "--store", parsed.String())
	conn := connect(t, parsed.String())
	t.Cleanup(func() {
		s.kill()
		execute(t, conn, "DROP SCHEMA "+schemaIn(t, s.greeted)+" CASCADE")
	})
	if strings.Contains(s.greeted, "s3cret") || !strings.Contains(s.greeted, "with the password in PGPASSWORD") {
		t.Errorf("the demo shows the password, or does not say where it belongs:\n%s", s.greeted)
	}
}

// readingRole makes a role that may only read what is in the schema of a URL, and returns its URL.
func readingRole(t *testing.T, address string) string {
	t.Helper()
	conn := connect(t, address)
	role := "reader_" + strings.ToLower(rand.Text())
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	schema := parsed.Query().Get("search_path")
	execute(t, conn, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	execute(t, conn, "GRANT USAGE ON SCHEMA "+schema+" TO "+role)
	execute(t, conn, "GRANT SELECT ON ALL TABLES IN SCHEMA "+schema+" TO "+role)
	t.Cleanup(func() {
		execute(t, conn, "DROP OWNED BY "+role)
		execute(t, conn, "DROP ROLE "+role)
	})
	parsed.User = url.UserPassword(role, "secret")
	return parsed.String()
}
