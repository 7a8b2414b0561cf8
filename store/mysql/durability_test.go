package mysql_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/mysql"
)

// warnings opens a store and returns what it says.
func warnings(t testing.TB, url string) string {
	t.Helper()
	var said bytes.Buffer
	s, err := mysql.Open(t.Context(), url, mysql.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	must(t, err)
	must(t, s.Close())
	return said.String()
}

// wantRefusal checks that an option refuses a server, with words about why.
func wantRefusal(t testing.TB, url string, option mysql.Option, why string) {
	t.Helper()
	s, err := mysql.Open(t.Context(), url, option, quiet)
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("a server that loses commits: got %v, want words about %s", err, why)
	}
}

// TestSafeServer: a server that loses nothing is not warned of.
func TestSafeServer(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	if said := warnings(t, url); said != "" {
		t.Errorf("opening said: %s", said)
	}
	openStore(t, url, mysql.WithStrictDurability(), mysql.WithSyncReplicasOnly())
}

// TestUnsafeServer: settings that lose commits in a crash are reported at the start (scenario 11).
func TestUnsafeServer(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own")
	server := servers.NewMariaDB(t)
	for setting, why := range map[string]string{"0": "a crash of the server", "2": "a crash of the machine"} {
		must(t, server.Exec(t.Context(), "SET GLOBAL innodb_flush_log_at_trx_commit = "+setting))
		if said := warnings(t, server.URL()); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, why) {
			t.Errorf("opening said %q, want words about %s", said, why)
		}
		wantRefusal(t, server.URL(), mysql.WithStrictDurability(), why)
		openStore(t, server.URL(), mysql.WithSyncReplicasOnly())
	}
}

// TestReplicasThatAreNotWaitedFor: a fail-over that would lose commits is reported at the start, and what waits for its
// replicas is not.
func TestReplicasThatAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster of its own")
	primary := servers.NewMariaDB(t, "log-bin=primary", "server-id=1", "binlog-format=ROW", "sync-binlog=1")
	url := primary.DatabaseURL(t)
	if said := warnings(t, url); said != "" {
		t.Errorf("without a replica, opening said: %s", said)
	}
	replica := servers.NewMariaDB(t, "server-id=2", "rpl-semi-sync-slave-enabled=ON")
	host, port, _ := strings.Cut(primary.Addr(), ":")
	must(t, replica.Exec(t.Context(), fmt.Sprintf(`CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %s,
		MASTER_USER = 'root', MASTER_USE_GTID = slave_pos; START SLAVE`, host, port)))
	await.That(t, "the replica is connected", func() bool {
		said, err := primary.Query(t.Context(), "SHOW STATUS LIKE 'Slaves_connected'")
		return err == nil && strings.HasSuffix(said, "\t1")
	})
	if said := warnings(t, url); !strings.Contains(said, "none is waited for") {
		t.Errorf("with a replica, opening said: %q", said)
	}
	wantRefusal(t, url, mysql.WithSyncReplicasOnly(), "none is waited for")
	wantRefusal(t, url, mysql.WithStrictDurability(), "none is waited for")
	must(t, primary.Exec(t.Context(), "SET GLOBAL rpl_semi_sync_master_enabled = ON"))
	wantRefusal(t, url, mysql.WithSyncReplicasOnly(), "goes on without")
	must(t, primary.Exec(t.Context(), `SET GLOBAL rpl_semi_sync_master_timeout = 86400000;
		SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC`))
	must(t, replica.Exec(t.Context(), "STOP SLAVE; START SLAVE")) // it says that it acknowledges when it connects
	await.That(t, "the replica acknowledges", func() bool {
		said, err := primary.Query(t.Context(), "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")
		return err == nil && strings.HasSuffix(said, "\t1")
	})
	openStore(t, url, mysql.WithStrictDurability(), mysql.WithSyncReplicasOnly())
	must(t, replica.Exec(t.Context(), "SET GLOBAL read_only = 1"))
	if _, err := mysql.Open(t.Context(), replica.URL(), quiet); err == nil {
		t.Error("scenario 13: a store was opened on a replica")
	}
}

// TestStatementLog: a server that would refuse every write is refused when the store is opened.
func TestStatementLog(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster of its own")
	server := servers.NewMariaDB(t, "log-bin=statements", "binlog-format=STATEMENT", "sync-binlog=1")
	if _, err := mysql.Open(t.Context(), server.URL(), quiet); err == nil || !strings.Contains(err.Error(), "ROW") {
		t.Errorf("opened on a server that logs statements: %v", err)
	}
}
