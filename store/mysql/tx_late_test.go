package mysql_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// TestLateWorkWithMuchToUndo: a key whose transaction was revoked is free when it is not in flight any more, also if the
// server takes its time to undo what was written.
func TestLateWorkWithMuchToUndo(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table")
	url := mariadb(t)
	db := openAdmin(t, url)
	exec(t, db, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	s, err := mysql.New(t.Context(), db, url, quiet)
	must(t, err)
	defer s.Close()
	begun, letGo, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		r := reservation("key")
		r.Lease = 2 * time.Second
		_, err := s.Transact(t.Context(), r, func(ctx context.Context, _ store.Verdict) store.Settlement {
			// On a slow machine it is cut off, which leaves as much to undo.
			_, _ = txOf(ctx).ExecContext(ctx, `INSERT INTO business SELECT REPEAT('x', 200) FROM seq_1_to_100000`)
			rows, err := txOf(ctx).QueryContext(ctx, `SELECT 1 UNION SELECT 2`)
			if err == nil {
				defer rows.Close()
			}
			close(begun)
			<-letGo
			return settled(store.TxCommit, "late")
		})
		ended <- err
	}()
	<-begun
	await.That(t, "the transaction is revoked", func() bool { return !s.InFlight(idOf("key")) })
	transacted(t, s, "key", inserting(t, "key"), store.DecisionExecute, "E8: no path leaves a key locked")
	close(letGo)
	if err := <-ended; err == nil {
		t.Error("E8: late work was told that it was committed")
	}
}
