package servers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// query asks a server, which must answer.
func query(t testing.TB, s *PostgresServer, sql string) string {
	t.Helper()
	answer, err := s.Query(t.Context(), sql)
	must(t, err)
	return answer
}

// wantAnswer: a query finds what it should.
func wantAnswer(t testing.TB, s *PostgresServer, sql, want string) {
	t.Helper()
	if got := query(t, s, sql); got != want {
		t.Errorf("%s = %q, want %q", sql, got, want)
	}
}

func TestSharedServerIsOne(t *testing.T) {
	t.Parallel()
	first, second := Postgres(t), Postgres(t)
	if first != second {
		t.Error("two calls gave two servers")
	}
}

func TestSharedServerIsSafeByDefault(t *testing.T) {
	t.Parallel()
	s := Postgres(t)
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "300",
	} {
		wantAnswer(t, s, "SHOW "+setting, want)
	}
}

// TestProcessesShareATemplate: what the first process of a run has made is what the others copy.
func TestProcessesShareATemplate(t *testing.T) {
	t.Setenv(TemplatesVariable, reachableDir(t))
	programs, err := findPostgres(thisMachine())
	must(t, err)
	as, err := serverOwner("postgres", postgresInstall)
	must(t, err)
	init := func(dir string) error { return initPostgres(t.Context(), programs, as, dir) }
	first, err := postgresTemplate.find(reachableDir(t), init)
	must(t, err)
	if second, err := postgresTemplate.find(reachableDir(t), init); err != nil || second != first {
		t.Errorf("the next process copies %q (%v), want %q", second, err, first)
	}
	if _, err := os.Stat(filepath.Join(first, "PG_VERSION")); err != nil {
		t.Error(err)
	}
}

// TestAnswers: a server that was started here is asked by its protocol, another one by psql, with the same outcome.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, asking := range map[string]func(testing.TB) *PostgresServer{
		"protocol": Postgres,
		"psql": func(t testing.TB) *PostgresServer {
			s, err := usePostgres(t.Context(), Postgres(t).URL())
			must(t, err)
			t.Cleanup(func() { must(t, s.Close()) })
			s.stays = true // whatever the server of this run is
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantAnswers(t, asking(t))
		})
	}
}

func wantAnswers(t *testing.T, s *PostgresServer) {
	t.Helper()
	wantAnswer(t, s, "SELECT true, NULL, 'ü'", "t||ü")
	wantAnswer(t, s, "SELECT 1 WHERE false", "")
	wantAnswer(t, s, "SELECT n, 'a' FROM generate_series(1, 2) AS n", "1|a\n2|a")
	wantAnswer(t, s, "SET lock_timeout = '1s'; SELECT ''", "")
	if _, err := s.Query(t.Context(), "SELECT 1; SELECT * FROM no_such_table"); err == nil || !strings.Contains(err.Error(), "no_such_table") {
		t.Errorf("err = %v, want the server's own words", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Exec(ctx, "SELECT pg_sleep(60)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want the end of the context", err)
	}
}

func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	s := Postgres(t)
	first, second := s.Schema(t), s.Schema(t)
	must(t, s.Exec(t.Context(), "CREATE TABLE "+first+".things (id int); INSERT INTO "+first+".things VALUES (1)"))
	must(t, s.Exec(t.Context(), "CREATE TABLE "+second+".things (id int)"))
	wantAnswer(t, s, "SELECT count(*) FROM "+second+".things", "0")
	if address := s.SchemaURL(t); !strings.Contains(address, "search_path=testschemasareapart_") {
		t.Errorf("the URL of a schema is %s", address)
	}
}

func TestSchemaNamesNeedNoQuotes(t *testing.T) {
	t.Parallel()
	for _, test := range []string{"TestA/b c-ü'\"", "Test" + strings.Repeat("ü", 100)} {
		name := uniqueName(test)
		if len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("uniqueName(%q) = %q", test, name)
		}
	}
}

func TestKillKeepsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	s := NewPostgres(t)
	must(t, s.Exec(t.Context(), "CREATE TABLE things (id int); INSERT INTO things VALUES (1)"))
	session := proctest.Start(t, exec.Command(s.programs.psql, "-X", "-q", "-d", s.URL()))
	session.Tell("BEGIN; INSERT INTO things VALUES (2);\n\\echo inserted")
	session.Hear("inserted")
	pids := postgresPIDs(s)
	if len(pids) < 4 {
		t.Fatalf("found %d processes only", len(pids))
	}
	must(t, s.Kill())
	must(t, proc.AwaitGone(pids...))
	session.Tell("SELECT 'alive';")
	if rest := session.Rest(); len(rest) > 0 {
		t.Errorf("the connection survived: %q", rest)
	}
	must(t, s.Kill()) // a second time does nothing

	must(t, s.Restart())
	wantAnswer(t, s, "SELECT count(*) FROM things", "1")
	if log := s.Log(); !strings.Contains(log, "was not properly shut down") {
		t.Errorf("the server did not have to recover:\n%s", log)
	}
}

func TestStopIsClean(t *testing.T) {
	t.Parallel()
	s := NewPostgres(t, "fsync=off")
	must(t, s.Exec(t.Context(), "CREATE TABLE things (id int)"))
	must(t, s.Pause())
	must(t, s.Stop())
	if _, err := os.Stat(s.Dir() + "/postmaster.pid"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a clean stop: %v", err)
	}
	must(t, s.Restart())
	wantAnswer(t, s, "SELECT count(*) FROM things", "0")
	if log := s.Log(); strings.Contains(log, "was not properly shut down") {
		t.Errorf("the server had to recover:\n%s", log)
	}
	must(t, s.Restart()) // of one that runs
	must(t, s.Close())
	must(t, s.Close())
	if err := s.Restart(); err == nil {
		t.Error("a closed server was started again")
	}
	if _, err := os.Stat(s.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestPauseMakesQueriesWait(t *testing.T) {
	t.Parallel()
	s := NewPostgres(t)
	must(t, s.Pause())
	answered := make(chan error, 1)
	var asking sync.WaitGroup
	asking.Go(func() { answered <- s.Exec(context.Background(), "SELECT 1") })
	defer asking.Wait()
	select {
	case err := <-answered:
		t.Errorf("a paused server answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, s.Resume())
	if err := <-answered; err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

func TestPausedServerCanBeKilled(t *testing.T) {
	t.Parallel()
	server := NewPostgres(t)
	must(t, server.Pause())
	must(t, server.Kill())
	must(t, server.Restart())
}

func TestFailedStartShowsTheLog(t *testing.T) {
	t.Parallel()
	_, err := StartPostgres(t.Context(), "no_such_setting=1")
	if err == nil || !strings.Contains(err.Error(), "unrecognized configuration parameter") {
		t.Errorf("err = %v, want the server's own words", err)
	}
}

func TestOtherServerIsUsedAndLeftAlone(t *testing.T) {
	t.Parallel()
	private := NewPostgres(t)
	server, err := usePostgres(t.Context(), private.URL())
	must(t, err)
	const guests = "SELECT count(*) FROM pg_database WHERE datname LIKE 'onceward_test_%'"
	wantAnswer(t, server, "SELECT starts_with(current_database(), 'onceward_test_')", "t")
	wantAnswer(t, private, guests, "1")
	for name, do := range map[string]func() error{
		"Kill": server.Kill, "Restart": server.Restart, "Pause": server.Pause, "Resume": server.Resume, "Stop": server.Stop,
	} {
		if err := do(); !errors.Is(err, errNotOurs) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, server.Close())
	wantAnswer(t, private, guests, "0")
}

func TestOtherServerMustBeThere(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"host=localhost", "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable"} {
		if _, err := usePostgres(t.Context(), url); err == nil || !strings.Contains(err.Error(), postgresVariable) {
			t.Errorf("%s: err = %v, want the name of the variable in it", url, err)
		}
	}
}

// recovers asks whether a server is a standby.
func recovers(t *testing.T, s *PostgresServer) bool {
	t.Helper()
	return query(t, s, `SELECT pg_is_in_recovery()`) == "t"
}

// TestFailOverAndBack: a standby has what its primary has, takes over, and is followed by the old one in turn. One
// address leads to either.
func TestFailOverAndBack(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own; TestStandby of store/postgres has one")
	first := NewPostgres(t)
	must(t, first.Exec(t.Context(), `CREATE TABLE things (n int); INSERT INTO things VALUES (1)`))
	second := first.NewStandby(t)
	proxy := NewProxy(t, first.URL())
	through := &PostgresServer{server: server{url: proxy.URL()}, programs: first.programs}
	if recovers(t, through) || !recovers(t, second) {
		t.Fatal("the first is to be the primary, and the second its standby")
	}
	early := proctest.Start(t, exec.Command(first.programs.psql, "-X", "-q", "-A", "-t", "-d", proxy.URL()))
	early.Tell(`SELECT count(*) FROM things;`)
	early.Hear("1")
	for _, each := range []struct{ old, next *PostgresServer }{{first, second}, {second, first}} {
		must(t, each.old.Exec(t.Context(), `INSERT INTO things VALUES (1)`))
		must(t, each.old.AwaitStandby(t.Context(), each.next))
		must(t, proxy.Retarget(each.next.URL()))
		if !recovers(t, through) {
			t.Error("the address leads to the old primary")
		}
		if each.old == first {
			early.Tell(`SELECT pg_is_in_recovery();`)
			early.Hear("f") // it stays where it was
		}
		must(t, each.old.Stop())
		must(t, each.next.Promote(t.Context()))
		if recovers(t, through) {
			t.Error("a standby that was promoted is still one")
		}
		must(t, each.old.Follow(each.next))
		if !recovers(t, each.old) {
			t.Error("the old primary is no standby")
		}
	}
	wantAnswer(t, through, `SELECT count(*) FROM things`, "3")
}
