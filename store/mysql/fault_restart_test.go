package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestServerRestartedUnderWork: a server that is restarted counts its connections anew. One that has the number of a
// connection that is gone is somebody else's.
func TestServerRestartedUnderWork(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it kills a server of its own, as TestKilledServer does")
	server := servers.NewMariaDB(t)
	url := server.DatabaseURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	var others []*sql.Conn
	_, err := s.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		must(t, insert(ctx, "key"))
		must(t, server.Kill())
		must(t, server.Restart())
		if err := insert(ctx, "key"); err == nil {
			t.Error("a transaction outlived its server")
		}
		for range 40 {
			conn, err := admin.Conn(t.Context())
			must(t, err)
			others = append(others, conn)
		}
		return settled(store.TxCommit, "done")
	})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("L2: work whose server was killed returned %v", err)
	}
	for _, conn := range others {
		if err := conn.PingContext(t.Context()); err != nil {
			t.Errorf("a connection of somebody else was ended: %v", err)
		}
		_ = conn.Close()
	}
	transacted(t, s, "key", inserting(t, "key"), store.DecisionExecute, "L2")
}
