package servers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A test starts this program again to see what is left when it is killed.
	if os.Getenv(victimVariable) != "" {
		beVictim()
	}
	goleak.VerifyTestMain(Tests{M: m})
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // the test may have broken it
	})
	return conn
}

func execute(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t testing.TB, conn *pgx.Conn, table string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSharedServerIsOne(t *testing.T) {
	first, second := Postgres(t), Postgres(t)
	if first != second {
		t.Error("two calls gave two servers")
	}
}

func TestSharedServerIsSafeByDefault(t *testing.T) {
	conn := connect(t, Postgres(t).URL())
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "300",
	} {
		var got string
		must(t, conn.QueryRow(t.Context(), "SHOW "+setting).Scan(&got))
		if got != want {
			t.Errorf("%s = %s, want %s", setting, got, want)
		}
	}
}

func TestSchemasAreApart(t *testing.T) {
	server := Postgres(t)
	first := connect(t, server.SchemaURL(t))
	second := connect(t, server.SchemaURL(t))
	execute(t, first, "CREATE TABLE things (id int)")
	execute(t, first, "INSERT INTO things VALUES (1)")
	execute(t, second, "CREATE TABLE things (id int)")
	if n := count(t, second, "things"); n != 0 {
		t.Errorf("a schema shows %d rows of another", n)
	}
}

func TestSchemaIsDroppedAfterTheTest(t *testing.T) {
	server := Postgres(t)
	var name string
	t.Run("with a table", func(t *testing.T) {
		name = server.Schema(t)
		execute(t, connect(t, server.URL()), "CREATE TABLE "+name+".things (id int)")
	})
	var left int
	row := connect(t, server.URL()).QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", name)
	must(t, row.Scan(&left))
	if left != 0 {
		t.Errorf("schema %s is still there", name)
	}
}

func TestSchemaNamesNeedNoQuotes(t *testing.T) {
	for _, test := range []string{"TestA/b c-ü'\"", "Test" + strings.Repeat("ü", 100)} {
		name := schemaName(test)
		if len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("schemaName(%q) = %q", test, name)
		}
	}
}

func TestKillKeepsWhatIsCommitted(t *testing.T) {
	server := NewPostgres(t)
	conn := connect(t, server.URL())
	execute(t, conn, "CREATE TABLE things (id int)")
	execute(t, conn, "INSERT INTO things VALUES (1)")
	execute(t, conn, "BEGIN")
	execute(t, conn, "INSERT INTO things VALUES (2)")
	pids := allPIDs(t, server)

	must(t, server.Kill())
	for _, pid := range pids {
		table, err := processTable()
		must(t, err)
		if !isGone(stateOf(table, pid)) {
			t.Errorf("process %d of the server survived", pid)
		}
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the connection survived")
	}
	must(t, server.Kill()) // a second time does nothing

	must(t, server.Restart())
	if n := count(t, connect(t, server.URL()), "things"); n != 1 {
		t.Errorf("%d rows after the crash, want 1", n)
	}
	if log := server.Log(); !strings.Contains(log, "was not properly shut down") {
		t.Errorf("the server did not have to recover:\n%s", log)
	}
}

func allPIDs(t testing.TB, server *PostgresServer) []int {
	t.Helper()
	children, err := childrenOf(server.proc.pid)
	must(t, err)
	if len(children) < 3 {
		t.Fatalf("found %d children only", len(children))
	}
	return append(children, server.proc.pid)
}

func TestStopIsClean(t *testing.T) {
	server := NewPostgres(t, "fsync=off")
	conn := connect(t, server.URL())
	execute(t, conn, "CREATE TABLE things (id int)")
	must(t, server.Pause())
	must(t, server.Stop())
	if _, err := os.Stat(server.Dir() + "/postmaster.pid"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a clean stop: %v", err)
	}
	must(t, server.Restart())
	if n := count(t, connect(t, server.URL()), "things"); n != 0 {
		t.Errorf("%d rows", n)
	}
	if log := server.Log(); strings.Contains(log, "was not properly shut down") {
		t.Errorf("the server had to recover:\n%s", log)
	}
	must(t, server.Restart()) // of one that runs
	must(t, server.Close())
	must(t, server.Close())
	if err := server.Restart(); err == nil {
		t.Error("a closed server was started again")
	}
	if _, err := os.Stat(server.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestPauseMakesQueriesWait(t *testing.T) {
	server := NewPostgres(t)
	conn := connect(t, server.URL())
	must(t, server.Pause())
	answered := make(chan error, 1)
	var asking sync.WaitGroup
	asking.Go(func() {
		_, err := conn.Exec(context.Background(), "SELECT 1")
		answered <- err
	})
	defer asking.Wait()
	select {
	case err := <-answered:
		t.Errorf("a frozen server answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, server.Resume())
	if err := <-answered; err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

func TestPausedServerCanBeKilled(t *testing.T) {
	server := NewPostgres(t)
	must(t, server.Pause())
	must(t, server.Kill())
	must(t, server.Restart())
}

func TestFailedStartShowsTheLog(t *testing.T) {
	_, err := StartPostgres(t.Context(), "no_such_setting=1")
	if err == nil || !strings.Contains(err.Error(), "unrecognized configuration parameter") {
		t.Errorf("err = %v, want the server's own words", err)
	}
}

func TestOtherServerIsUsedAndLeftAlone(t *testing.T) {
	private := NewPostgres(t)
	server, err := startSharedPostgres(private.URL())
	must(t, err)
	if server.URL() != private.URL() {
		t.Errorf("URL = %s, want %s", server.URL(), private.URL())
	}
	for name, do := range map[string]func() error{
		"Kill": server.Kill, "Restart": server.Restart, "Pause": server.Pause, "Resume": server.Resume, "Stop": server.Stop,
	} {
		if err := do(); !errors.Is(err, errNotOurs) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, server.Close())
	must(t, private.Exec(t.Context(), "SELECT 1"))
}

func TestOtherServerMustBeThere(t *testing.T) {
	for _, url := range []string{"host=localhost", "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable"} {
		if _, err := startSharedPostgres(url); err == nil || !strings.Contains(err.Error(), postgresVariable) {
			t.Errorf("%s: err = %v, want the name of the variable in it", url, err)
		}
	}
}
