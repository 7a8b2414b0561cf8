package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// wantWarnings opens a store and checks which risks it warns of (scenario 11).
func wantWarnings(t *testing.T, url string, want ...string) {
	t.Helper()
	book, logging := newLogbook()
	store, err := postgres.Open(t.Context(), url, logging)
	must(t, err)
	own(t, store, reservation(time.Now().String())) // it is a warning, no more
	must(t, store.Close())
	warned := book.find("WARN onceward: the server can lose commits")
	if len(warned) != len(want) {
		t.Errorf("scenario 11: the warnings are %q, want %q", warned, want)
		return
	}
	for i := range want {
		if !strings.Contains(warned[i], want[i]) {
			t.Errorf("scenario 11: warning %d is %q, want it to say %q", i, warned[i], want[i])
		}
	}
}

// TestCarefulServer: a server that keeps what it acknowledges gives no reason to warn, and is good enough for the
// strict.
func TestCarefulServer(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	wantWarnings(t, url)
	openStore(t, url, postgres.WithStrictDurability())
}

// TestCarelessServer: each setting that can lose commits is named, and refused by the strict.
func TestCarelessServer(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own; TestCarelessSession names the setting that a user can change")
	server := servers.NewPostgres(t, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	wantWarnings(t, server.URL(), "fsync is off", "full_page_writes is off", "synchronous_commit is off")
	for _, says := range []string{
		"the server can lose commits", "fsync is off", "full_page_writes is off", "synchronous_commit is off",
	} {
		wantOpenFails(t, server.URL(), says, postgres.WithStrictDurability())
	}
}

// TestCarelessSession: settings of the user, or of the URL, count as those of the server do.
func TestCarelessSession(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t) + "&synchronous_commit=off"
	wantWarnings(t, url, "synchronous_commit is off")
	wantOpenFails(t, url, "synchronous_commit is off", postgres.WithStrictDurability())
}

// TestAsynchronousStandby: standbys that no commit waits for lose commits in a fail-over. A receiver of the log counts
// as one.
func TestAsynchronousStandby(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own")
	server := servers.NewPostgres(t)
	admin := openAdmin(t, server.URL())
	receive(t, server, "onceward_standby")
	await.That(t, "the standby receives", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'`) == 1
	})
	wantWarnings(t, server.URL(), "there are 1 standbys and none is waited for")
	wantOpenFails(t, server.URL(), "a fail-over loses the last commits", postgres.WithStrictDurability())
	exec(t, admin, `ALTER SYSTEM SET synchronous_standby_names = 'onceward_standby'`)
	exec(t, admin, `SELECT pg_reload_conf()`)
	await.That(t, "the standby is waited for", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`) == 1
	})
	wantWarnings(t, server.URL())
	openStore(t, server.URL(), postgres.WithStrictDurability())
}

// TestNoStandbys: a fail-over goes neither to a backup, nor to what keeps the log for one, nor to a logical subscriber.
func TestNoStandbys(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own")
	server := servers.NewPostgres(t, "wal_level=logical")
	admin := openAdmin(t, server.URL())
	var at string
	must(t, admin.QueryRow(t.Context(), `SELECT pg_current_wal_flush_lsn()`).Scan(&at))
	exec(t, admin, `CREATE PUBLICATION everything FOR ALL TABLES`)
	exec(t, admin, `SELECT pg_create_logical_replication_slot('subscriber', 'pgoutput')`)
	stream(t, server, "a backup tool", `BASE_BACKUP`)
	stream(t, server, "pg_basebackup", `START_REPLICATION `+at)
	stream(t, server, "subscriber",
		`START_REPLICATION SLOT subscriber LOGICAL 0/0 (proto_version '1', publication_names 'everything')`)
	await.That(t, "all stream", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_stat_replication WHERE state <> 'startup'`) == 3
	})
	wantWarnings(t, server.URL())
	openStore(t, server.URL(), postgres.WithStrictDurability())
	stream(t, server, "a standby", `START_REPLICATION `+at)
	await.That(t, "the standby streams", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_stat_replication WHERE application_name = 'a standby'`) == 1
	})
	wantWarnings(t, server.URL(), "there are 1 standbys and none is waited for")
}

// stream sends a command of the protocol of replication, whose answers are not read, and leaves it so.
func stream(t *testing.T, server *servers.PostgresServer, name, command string) {
	t.Helper()
	config, err := pgconn.ParseConfig(server.URL())
	must(t, err)
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = name
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(func() { _ = conn.Conn().Close() })
	conn.Frontend().Send(&pgproto3.Query{String: command})
	must(t, conn.Frontend().Flush())
}

// receive lets a program of PostgreSQL receive the log, as a standby does.
func receive(t *testing.T, server *servers.PostgresServer, name string) {
	t.Helper()
	parsed, err := url.Parse(server.URL())
	must(t, err)
	var programs string
	must(t, openAdmin(t, server.URL()).QueryRow(t.Context(),
		`SELECT setting FROM pg_config WHERE name = 'BINDIR'`).Scan(&programs))
	program := filepath.Join(programs, "pg_receivewal")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("there is no receiver of the log: %v; install it: "+
			"apt-get update && apt-get install -y --no-install-recommends postgresql", err)
	}
	proctest.Start(t, osexec.Command(program, "--synchronous", "--no-loop", "-D", t.TempDir(), "-d",
		"host="+parsed.Hostname()+" port="+parsed.Port()+" user="+parsed.User.Username()+" application_name="+name))
}

// TestStandby: a server that follows another one is behind it, and is never asked (scenario 13): not when a store is
// opened, and not when the server becomes one under an open store.
func TestStandby(t *testing.T) {
	t.Parallel()
	server := servers.NewPostgres(t)
	s := openStore(t, server.URL())
	transacted(t, s, "key", nothing)
	must(t, server.Stop())
	must(t, os.WriteFile(filepath.Join(server.Dir(), "standby.signal"), nil, 0o644))
	must(t, server.Restart())
	if _, err := postgres.Open(t.Context(), server.URL(), quiet); !errors.Is(err, postgres.ErrStandby) {
		t.Errorf("scenario 13: opening a store on a standby got %v, want ErrStandby", err)
	}
	wantUnavailable(t, s, func(error) bool { return true }, "scenario 13")
	err := s.InTx(t.Context(), func(context.Context) error {
		t.Error("scenario 13: work was run on a standby")
		return nil
	})
	if !errors.Is(err, postgres.ErrStandby) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("scenario 13: a transaction on a standby got %v, want ErrStandby", err)
	}
	if _, err := s.Get(t.Context(), idOf("key")); !errors.Is(err, postgres.ErrStandby) {
		t.Errorf("scenario 13: a look at what a standby knows got %v, want ErrStandby", err)
	}
	if _, err := s.Get(t.Context(), idOf("absent")); !errors.Is(err, postgres.ErrStandby) {
		t.Errorf("scenario 13: a look at what a standby may not know yet got %v, want ErrStandby", err)
	}
}
