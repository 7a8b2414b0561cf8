package servers_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
)

// The tests of this package are those of internal/servers that need a client: that package, like all of its module, has
// the standard library alone.
func TestMain(m *testing.M) { goleak.VerifyTestMain(servers.Tests{M: m}) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
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
	must(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// statementIs matches one statement, however the client writes it.
func statementIs(want string) func(string) bool {
	return func(sql string) bool { return strings.EqualFold(sql, want) }
}

// proxied is a proxy in front of a schema with one table, a connection through it and one around it.
func proxied(t *testing.T) (proxy *servers.Proxy, through, around *pgx.Conn) {
	t.Helper()
	url := servers.Postgres(t).SchemaURL(t)
	around = connect(t, url)
	execute(t, around, "CREATE TABLE things (id int)")
	proxy = servers.NewProxy(t, url)
	return proxy, connect(t, proxy.URL()), around
}

// insertInTransaction leaves the error of the commit to the caller.
func insertInTransaction(t *testing.T, conn *pgx.Conn) error {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "INSERT INTO things VALUES ($1)", 1)
	must(t, err)
	return tx.Commit(t.Context())
}

func TestCutReplyOfCommit(t *testing.T) {
	t.Parallel()
	proxy, through, around := proxied(t)
	proxy.CutReply(statementIs("commit"))
	if err := insertInTransaction(t, through); err == nil || !through.IsClosed() {
		t.Errorf("commit: %v, want the connection to be lost", err) // newer drivers say only that it is closed
	}
	if n := count(t, around, "things"); n != 1 {
		t.Errorf("%d rows although the server had committed", n)
	}
	if proxy.Sprung() != 1 {
		t.Errorf("Sprung = %d", proxy.Sprung())
	}
	// It is armed once.
	must(t, insertInTransaction(t, connect(t, proxy.URL())))
}

func TestCutRequestOfCommit(t *testing.T) {
	t.Parallel()
	proxy, through, around := proxied(t)
	proxy.CutRequest(statementIs("commit"))
	if err := insertInTransaction(t, through); err == nil {
		t.Error("the commit succeeded")
	}
	if n := count(t, around, "things"); n != 0 {
		t.Errorf("%d rows although nothing was committed", n)
	}
	must(t, insertInTransaction(t, connect(t, proxy.URL())))
}

// Each way of executing that pgx has is recognised, and what is only prepared is not.
func TestEachWayToExecuteIsSeen(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO things VALUES ($1)"
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			proxy, through, around := proxied(t)
			_, err := through.Prepare(t.Context(), insert, insert)
			must(t, err)
			execute(t, through, insert, mode, 1)
			proxy.CutReply(statementIs(insert))
			// Here pgx reads once more after the reset, and reports the end of the stream that it then finds.
			if _, err := through.Exec(t.Context(), insert, mode, 2); err == nil || !through.IsClosed() {
				t.Errorf("the answer came: %v", err)
			}
			if n := count(t, around, "things"); n != 2 {
				t.Errorf("%d rows, want 2", n)
			}
		})
	}
	t.Run("simple", func(t *testing.T) {
		proxy, through, around := proxied(t)
		proxy.CutRequest(func(sql string) bool { return strings.HasPrefix(sql, "INSERT") })
		if _, err := through.Exec(t.Context(), insert, pgx.QueryExecModeSimpleProtocol, 1); err == nil {
			t.Error("the statement succeeded")
		}
		if n := count(t, around, "things"); n != 0 {
			t.Errorf("%d rows, want none", n)
		}
	})
}

func TestPreparingIsNotExecuting(t *testing.T) {
	t.Parallel()
	proxy, through, _ := proxied(t)
	proxy.CutReply(statementIs("SELECT 1"))
	_, err := through.Prepare(t.Context(), "one", "SELECT 1")
	must(t, err)
	execute(t, through, "DEALLOCATE ALL")
	if proxy.Sprung() != 0 {
		t.Error("a statement that was only prepared sprang the trap")
	}
	proxy.Disarm()
	execute(t, through, "SELECT 1")
}

func TestHoldReply(t *testing.T) {
	t.Parallel()
	proxy, through, around := proxied(t)
	release := proxy.HoldReply(statementIs("commit"))
	answered := make(chan error, 1)
	var working sync.WaitGroup
	working.Go(func() { answered <- insertInTransaction(t, through) })
	defer working.Wait()
	defer release()
	must(t, proxy.AwaitSprung(t.Context(), 1))
	if n := count(t, around, "things"); n != 1 {
		t.Errorf("%d rows while the answer is held, want 1", n)
	}
	execute(t, connect(t, proxy.URL()), "SELECT 1") // others do not wait
	select {
	case err := <-answered:
		t.Errorf("the answer was not held: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	release()
	release()
	if err := <-answered; err != nil {
		t.Errorf("after the release: %v", err)
	}
	execute(t, through, "SELECT 1")
}

func TestAwaitSprungEndsWithItsContext(t *testing.T) {
	t.Parallel()
	proxy, _, _ := proxied(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := proxy.AwaitSprung(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

func TestRoundTripsAreCounted(t *testing.T) {
	t.Parallel()
	proxy, through, _ := proxied(t)
	steps := []struct {
		name string
		do   func()
		want int
	}{
		{"a simple query", func() { execute(t, through, "SELECT 1", pgx.QueryExecModeSimpleProtocol) }, 1},
		{"prepare and execute", func() { execute(t, through, "INSERT INTO things VALUES ($1)", 1) }, 2},
		{"execute again", func() { execute(t, through, "INSERT INTO things VALUES ($1)", 2) }, 1},
		{"a batch", func() { insertBatch(t, through) }, 1},
		{"data", func() { copyRows(t, through) }, 2}, // pgx asks for the columns first
	}
	for _, step := range steps {
		before := proxy.RoundTrips()
		step.do()
		if got := proxy.RoundTrips() - before; got != step.want {
			t.Errorf("%s: %d round trips, want %d", step.name, got, step.want)
		}
	}
}

func TestTrafficIsRecorded(t *testing.T) {
	t.Parallel()
	proxy, through, _ := proxied(t)
	execute(t, through, "SELECT 1")
	var other *pgx.Conn
	got := proxy.Record(func() {
		execute(t, through, "SELECT 1", pgx.QueryExecModeSimpleProtocol)
		execute(t, through, "INSERT INTO things VALUES ($1)", 1)
		other = connect(t, proxy.URL()) // the start of a connection does not count
	})
	want := servers.Traffic{RoundTrips: 3, Statements: 2, Sent: "QPDSBDES", Received: "TDCZ1tnZ2nCZ"}
	if got != want {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
	execute(t, other, "LISTEN news")
	got = proxy.Record(func() {
		execute(t, through, "NOTIFY news")
		_, err := other.WaitForNotification(t.Context())
		must(t, err)
	})
	if want := (servers.Traffic{RoundTrips: 1, Statements: 1, Sent: "Q", Received: "CZ"}); got != want {
		t.Errorf("a notification: recorded %+v, want %+v", got, want)
	}
}

func insertBatch(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	batch := new(pgx.Batch)
	for i := range 10 {
		batch.Queue("INSERT INTO things VALUES ($1)", i)
	}
	must(t, conn.SendBatch(t.Context(), batch).Close())
}

func copyRows(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	rows := pgx.CopyFromRows([][]any{{1}, {2}, {3}})
	_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"things"}, []string{"id"}, rows)
	must(t, err)
}

// A batch is lost as a whole, whichever of its statements matches.
func TestCutRequestTakesTheWholeBatch(t *testing.T) {
	t.Parallel()
	proxy, through, around := proxied(t)
	execute(t, through, "INSERT INTO things VALUES ($1)", 0)
	calls := 0
	proxy.CutRequest(func(sql string) bool {
		calls++
		return calls == 3
	})
	batch := new(pgx.Batch)
	for i := range 5 {
		batch.Queue("INSERT INTO things VALUES ($1)", i)
	}
	// pgx 5.8 never ends the goroutine that watches the context of a batch whose connection is lost, so it gets none.
	if err := through.SendBatch(context.Background(), batch).Close(); err == nil {
		t.Error("the batch succeeded")
	}
	if n := count(t, around, "things"); n != 1 {
		t.Errorf("%d rows, want the 1 from before", n)
	}
}

func TestCutReplyOfCopy(t *testing.T) {
	t.Parallel()
	proxy, through, around := proxied(t)
	proxy.CutReply(func(sql string) bool { return strings.HasPrefix(sql, "copy") })
	_, err := through.CopyFrom(t.Context(), pgx.Identifier{"things"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}, {2}}))
	if err == nil {
		t.Error("the answer came")
	}
	if n := count(t, around, "things"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

func TestDropAllAndRefuse(t *testing.T) {
	t.Parallel()
	proxy, through, _ := proxied(t)
	execute(t, through, "SELECT 1")
	proxy.Refuse(true)
	execute(t, through, "SELECT 1")
	before := proxy.Connections()
	if conn, err := pgx.Connect(t.Context(), proxy.URL()); err == nil {
		t.Error("a connection was accepted", conn.Close(t.Context()))
	}
	if before == 0 || proxy.Connections() == before {
		t.Errorf("%d connections before one was refused, %d after it", before, proxy.Connections())
	}
	proxy.DropAll()
	if err := through.Ping(t.Context()); err == nil {
		t.Error("the connection survived")
	}
	proxy.Refuse(false)
	execute(t, connect(t, proxy.URL()), "SELECT 1")
}

// A statement is cancelled over a connection of its own, which is not a session.
func TestCancelPasses(t *testing.T) {
	t.Parallel()
	_, through, _ := proxied(t)
	asleep := make(chan error, 1)
	var working sync.WaitGroup
	working.Go(func() {
		_, err := through.Exec(context.Background(), "SELECT pg_sleep(60)")
		asleep <- err
	})
	defer working.Wait()
	for {
		must(t, through.PgConn().CancelRequest(t.Context()))
		select {
		case err := <-asleep:
			if err == nil || !strings.Contains(err.Error(), "57014") {
				t.Errorf("err = %v, want the statement cancelled", err)
			}
			return
		case <-time.After(10 * time.Millisecond): // the statement may not have begun
		}
	}
}

// The last words of a server reach the client.
func TestServerThatEndsIsHeard(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own")
	server := servers.NewPostgres(t)
	proxy := servers.NewProxy(t, server.URL())
	through := connect(t, proxy.URL())
	must(t, server.Stop())
	if _, err := through.Exec(t.Context(), "SELECT 1"); err == nil || !strings.Contains(err.Error(), "57P01") {
		t.Errorf("err = %v, want the server's reason", err)
	}
	if conn, err := pgx.Connect(t.Context(), proxy.URL()); err == nil {
		t.Error("connected to nothing", conn.Close(t.Context()))
	}
	must(t, server.Restart())
	execute(t, connect(t, proxy.URL()), "SELECT 1")
}

func TestProxySharedByManyClients(t *testing.T) {
	t.Parallel()
	proxy, _, around := proxied(t)
	proxy.CutReply(statementIs("commit"))
	var clients sync.WaitGroup
	for range 8 {
		conn := connect(t, proxy.URL())
		clients.Go(func() {
			for range 10 {
				if insertInTransaction(t, conn) != nil {
					return
				}
				proxy.RoundTrips()
			}
		})
	}
	clients.Wait()
	if n := count(t, around, "things"); n < 71 || proxy.Sprung() != 1 {
		t.Errorf("%d rows and %d cuts; one client of eight should have lost one answer", n, proxy.Sprung())
	}
}

func TestProxyNeedsAnAddress(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres:///postgres", "host=localhost", "://"} {
		if p, err := servers.StartProxy(url); err == nil {
			t.Errorf("%q was accepted: %v", url, p.Close())
		}
	}
}
