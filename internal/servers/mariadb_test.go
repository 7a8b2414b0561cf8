package servers

import (
	"context"
	"strings"
	"testing"
	"time"
)

// wantRows: a query finds what it should.
func wantRows(t testing.TB, s *MariaDBServer, sql, want string) {
	t.Helper()
	got, err := s.Query(t.Context(), sql)
	must(t, err)
	if got != want {
		t.Errorf("%s = %q, want %q", sql, got, want)
	}
}

func TestSharedMariaDBIsSafeByDefault(t *testing.T) {
	t.Parallel()
	s := MariaDB(t)
	if s != MariaDB(t) || !s.Shared() {
		t.Error("two calls gave two servers")
	}
	wantRows(t, s, "SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@max_connections", "1\t1\t300")
	first, second := s.Database(t), s.DatabaseURL(t)
	must(t, s.Exec(t.Context(), "CREATE TABLE "+first+".things (id int)"))
	if !strings.HasPrefix(second, "mysql://root@"+s.Addr()+"/testsharedmariadb") || strings.HasSuffix(second, first) {
		t.Errorf("the URL of a database is %s", second)
	}
	if err := s.Exec(t.Context(), "SELECT * FROM no_such_table"); err == nil || !strings.Contains(err.Error(), "1146") {
		t.Errorf("err = %v, want the server's own words", err)
	}
}

func TestMariaDBIsKilledAndPaused(t *testing.T) {
	t.Parallel()
	s := NewMariaDB(t)
	must(t, s.Exec(t.Context(), "CREATE TABLE things (id int); INSERT INTO things VALUES (1)"))
	must(t, s.Kill())
	must(t, s.Restart())
	wantRows(t, s, "SELECT count(*) FROM things", "1")
	must(t, s.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Exec(ctx, "SELECT 1"); err == nil {
		t.Error("a paused server answered")
	}
	must(t, s.Resume())
	wantRows(t, s, "SELECT count(*) FROM things", "1")
	must(t, s.Stop())
	must(t, s.Restart())
	wantRows(t, s, "SELECT count(*) FROM things", "1")
}

// TestMySQLProxyLosesWhatItIsTold: the client here is the one of the package; lab/servers has a driver.
func TestMySQLProxyLosesWhatItIsTold(t *testing.T) {
	t.Parallel()
	s := MariaDB(t)
	address := s.DatabaseURL(t)
	proxy := NewMySQLProxy(t, address)
	through := &MariaDBServer{server: server{url: proxy.URL()}, programs: s.programs}
	must(t, through.Exec(t.Context(), "CREATE TABLE things (id int)"))
	isInsert := func(sql string) bool { return strings.HasPrefix(sql, "INSERT") }

	proxy.CutRequest(isInsert)
	if err := through.Exec(t.Context(), "INSERT INTO things VALUES (1)"); err == nil {
		t.Error("a request that was lost succeeded")
	}
	wantRows(t, through, "SELECT count(*) FROM things", "0")

	proxy.CutReply(isInsert)
	if err := through.Exec(t.Context(), "INSERT INTO things VALUES (2) RETURNING id"); err == nil {
		t.Error("a reply that was lost arrived")
	}
	wantRows(t, through, "SELECT id FROM things", "2")

	release := proxy.HoldReply(isInsert)
	answered := make(chan error, 1)
	go func() { answered <- through.Exec(context.Background(), "INSERT INTO things VALUES (3)") }()
	must(t, proxy.AwaitSprung(t.Context(), 3))
	wantRows(t, s.in(t, address), "SELECT count(*) FROM things", "2")
	select {
	case err := <-answered:
		t.Errorf("a reply that was held arrived: %v", err)
	default:
	}
	release()
	must(t, <-answered)
	proxy.Refuse(true)
	if err := through.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("a connection was not refused")
	}
}

// in is the server with another URL.
func (s *MariaDBServer) in(t testing.TB, address string) *MariaDBServer {
	t.Helper()
	return &MariaDBServer{server: server{url: address}, programs: s.programs}
}
