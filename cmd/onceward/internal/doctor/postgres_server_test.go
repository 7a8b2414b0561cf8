package doctor_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
)

// TestServerThatLosesCommits: settings that need a start of the server.
func TestServerThatLosesCommits(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own")
	d := newDatabase(t, servers.NewPostgres(t, "fsync=off", "full_page_writes=off", "autovacuum=off"))
	report := examine(t, d.url(t), doctor.Config{})
	wantFound(t, report, lie{"postgres/durability", doctor.Broken, "fsync is off", []string{"postgres/bloat"}})
	wantFound(t, report, lie{"postgres/durability", doctor.Broken, "full_page_writes is off", []string{"postgres/bloat"}})
	wantFound(t, report, lie{"postgres/bloat", doctor.Weak, "autovacuum is off", []string{"postgres/durability"}})
}

// TestStandbys: neither a standby is taken for the store, nor a primary for safe whose standby is not waited for, and
// one that is waited for is no finding.
func TestStandbys(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	primary := servers.NewPostgres(t)
	d := newDatabase(t, primary)
	if err := d.owner.Close(t.Context()); err != nil { // the server is stopped to copy its data
		t.Fatal(err)
	}
	standby := primary.NewStandby(t)
	var err error
	if d.owner, err = pgx.Connect(t.Context(), primary.URL()); err != nil {
		t.Fatal(err)
	}
	if err := primary.AwaitStandby(t.Context(), standby); err != nil {
		t.Fatal(err)
	}
	wantFound(t, examine(t, d.url(t), doctor.Config{}),
		lie{"postgres/standbys", doctor.Weak, "1 standbys follow, and commits wait for none of them", nil})
	d.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
	d.exec(t, `SELECT pg_reload_conf()`)
	await.That(t, "the standby is waited for", func() (synchronous bool) {
		err := d.owner.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state =
			'sync'`).Scan(&synchronous)
		return err == nil && synchronous
	})
	wantHealthy(t, examine(t, d.url(t), doctor.Config{}))

	follower := *d
	follower.server = standby
	wantFound(t, examine(t, follower.url(t), doctor.Config{}),
		lie{"postgres/primary", doctor.Broken, "is a standby", []string{
			"postgres/listen", "postgres/advisory-locks",
			"postgres/isolation",
		}})
	d.exec(t, `ALTER SYSTEM RESET synchronous_standby_names`)
	d.exec(t, `SELECT pg_reload_conf()`)
}

// TestProxyOfPostgres: what comes between the program and a healthy server is found by what it does.
func TestProxyOfPostgres(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	replacing := func(old, new string) func(string) string {
		return func(sql string) string { return strings.ReplaceAll(sql, old, new) }
	}
	for name, test := range map[string]struct {
		lies func(sql string) string
		want lie
	}{
		"an isolation level that is another one": {
			replacing("READ COMMITTED", "REPEATABLE READ"),
			lie{"postgres/isolation", doctor.Broken, "does not see what another connection has committed", nil},
		},
		"a commit that is none": {
			func(sql string) string {
				if sql == "COMMIT" {
					return "ROLLBACK"
				}
				return sql
			},
			lie{"postgres/commit", doctor.Broken, "another connection sees the transaction as aborted", nil},
		},
		"LISTEN that is refused": {
			replacing("LISTEN ", "REFUSE "), lie{"postgres/listen", doctor.Weak, "LISTEN is refused", nil},
		},
		"locks that exclude no one": {
			replacing("pg_try_advisory_xact_lock($1)", "$1::bigint IS NOT NULL"),
			lie{"postgres/advisory-locks", doctor.Broken, "pg_advisory_xact_lock(bigint) does not exclude", nil},
		},
		"a clock that is behind": {
			replacing("SELECT clock_timestamp()", "SELECT clock_timestamp() - interval '1 minute'"),
			lie{"postgres/clock", doctor.Weak, "behind this machine's", nil},
		},
		"a clock that goes back": {
			replacing("SELECT clock_timestamp()", "SELECT now() + (now() - clock_timestamp())"),
			lie{"postgres/clock", doctor.Broken, "went back by", nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantFound(t, examine(t, postgresLiar(t, d.url(t), test.lies), doctor.Config{}), test.want)
		})
	}
	t.Run("LISTEN that is swallowed", func(t *testing.T) {
		t.Parallel()
		url := postgresLiar(t, d.url(t), replacing("LISTEN ", "SELECT 1 AS "))
		wantFound(t, examine(t, url, doctor.UsualArrival), lie{"postgres/listen", doctor.Weak, "did not arrive", nil})
	})
}

// TestDeadRows: what vacuum does not clean up is seen.
func TestDeadRows(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	d.exec(t, `ALTER TABLE onceward_inbox SET (autovacuum_vacuum_threshold = 1000000, autovacuum_vacuum_insert_threshold
		= -1)`)
	d.exec(t, `INSERT INTO onceward_inbox SELECT 0, int8send(i), '' FROM generate_series(1, 12000) AS i`)
	d.exec(t, `DELETE FROM onceward_inbox`)
	await.That(t, "the dead rows are counted", func() (counted bool) {
		err := d.owner.QueryRow(t.Context(), `SELECT n_dead_tup >= 12000 FROM pg_stat_user_tables
			WHERE relid = 'onceward_inbox'::regclass`).Scan(&counted)
		return err == nil && counted
	})
	wantFound(t, examine(t, d.url(t), doctor.Config{}), lie{
		"postgres/bloat", doctor.Weak,
		"onceward_inbox has 12000 dead rows", nil,
	})
}

// TestHangs: a check that is not answered ends in time, is not taken for a good one, and does not hold up the others.
func TestHangs(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it waits until a check has hung for ten seconds")
	d := newDatabase(t, servers.Postgres(t))
	d.exec(t, `BEGIN; LOCK TABLE onceward_record IN ACCESS EXCLUSIVE MODE`)
	report := examine(t, d.url(t), doctor.Config{Timeout: 10 * time.Second})
	d.exec(t, `ROLLBACK`)
	hung := slices.ContainsFunc(report.NotChecked(), func(r doctor.Result) bool {
		return strings.Contains(r.Seen, "not answered within 10s")
	})
	ended := report.Results[len(report.Results)-1]
	if !hung || len(report.Findings()) > 0 || ended.Check != "postgres/wraparound" || ended.Status != doctor.StatusOK {
		t.Errorf("a table that is locked:\n%s", text(report))
	}
}

// TestPgBouncer: a pooler in transaction mode is seen and named, and what fails behind it. What the guide says to do
// about it makes the store healthy.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a pooler")
	d := newDatabase(t, servers.Postgres(t))
	d.exec(t, fmt.Sprintf(`ALTER ROLE %s SET search_path = %s`, d.role, d.schema)) // the pooler refuses it in the URL
	pooled := startPgBouncer(t, d)

	report := examine(t, pooled, doctor.Config{})
	wantFound(t, report, lie{"postgres/pooler", doctor.Broken, "PgBouncer", []string{"postgres/listen"}})
	wantFound(t, report, lie{"postgres/pooler", doctor.Note, "a pooler in transaction mode", []string{"postgres/listen"}})
	wantFound(t, report, lie{
		"postgres/listen", doctor.Weak, "the store does not listen through one",
		[]string{"postgres/pooler"},
	})

	wantHealthy(t, examine(t, pooled+"&default_query_exec_mode=cache_describe", doctor.Config{ListenURL: d.url(t)}))
}

// startPgBouncer starts a pooler in front of a database, and returns the URL behind which it is.
func startPgBouncer(t *testing.T, d *database) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer") // which is not in everyone's search path
	}
	if err != nil {
		t.Fatal("the tests need PgBouncer, which is not installed here. `make test` installs it where it can; on Debian " +
			"or Ubuntu, as root:\n\n    apt-get update && apt-get install -y --no-install-recommends pgbouncer")
	}
	server, err := url.Parse(d.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	_ = listener.Close() // only its port was wanted
	dir, err := os.MkdirTemp("", "pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%s user=%s\n[pgbouncer]\nlisten_addr = "+
		"127.0.0.1\nlisten_port = %d\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 10\nunix_socket_dir "+
		"=\n", server.Port(), d.role,
		address.Port)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, file)
	if os.Getuid() == 0 { // which it refuses to run as
		runAs(t, cmd, "postgres")
	}
	proctest.Start(t, cmd)
	pooled := fmt.Sprintf("postgres://%s@%s%s?sslmode=disable", d.role, address, server.Path)
	await.That(t, "the pooler answers", func() bool {
		conn, err := pgx.Connect(t.Context(), pooled)
		if err == nil {
			_ = conn.Close(context.Background()) // it was only tried
		}
		return err == nil
	})
	return pooled
}

func runAs(t *testing.T, cmd *exec.Cmd, name string) {
	t.Helper()
	found, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(found.Uid)
	gid, err2 := strconv.Atoi(found.Gid)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	proc.RunAs(cmd, uid, gid)
}
