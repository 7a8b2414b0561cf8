package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// TestDeadlockBehindAStep: the server undoes a step, with its savepoint, when the step's record is read again for its
// end. That is no sign of work that ended its transaction: the step is run again, and counts once.
func TestDeadlockBehindAStep(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	admin := openAdmin(t, l.proxy.URL())
	exec(t, admin, `CREATE TABLE place (name VARBINARY(20) PRIMARY KEY)`)
	claim := own(t, l, reservation("key"))
	rival, err := admin.BeginTx(t.Context(), nil)
	must(t, err)
	defer func() { _ = rival.Rollback() }() // it is over by then
	for range 50 {                          // the server undoes the one that has written less
		_, err := rival.ExecContext(t.Context(), `INSERT INTO business VALUES ('rival')`)
		must(t, err)
	}
	_, err = rival.ExecContext(t.Context(), `SELECT * FROM onceward_record FOR UPDATE`)
	must(t, err)
	blocked := make(chan error, 1)
	runs := 0
	err = l.CheckpointTx(t.Context(), claim, claimLease, func(ctx context.Context) (store.Checkpoint, error) {
		runs++
		if _, err := txOf(ctx).ExecContext(ctx, `INSERT INTO place VALUES ('taken')`); err != nil || runs > 1 {
			return store.Checkpoint{Point: "taken"}, err
		}
		go func() {
			_, err := rival.ExecContext(context.WithoutCancel(ctx), `INSERT INTO place VALUES ('taken')`)
			blocked <- errors.Join(err, rival.Rollback())
		}()
		awaitBlocked(t, admin)
		return store.Checkpoint{Point: "taken"}, nil
	})
	must(t, <-blocked)
	rec := wantState(t, l.past, "key", store.StateInProgress, "scenario 14")
	rows := number(t, admin, `SELECT COUNT(*) FROM place`)
	if err != nil || runs != 2 || rows != 1 || rec.Point != "taken" {
		t.Errorf("scenario 14: %v after %d runs, with %d rows and point %q; want 2 runs, 1 row and the point",
			err, runs, rows, rec.Point)
	}
}

// TestDeadlockBehindACommit: work that committed by a procedure, and whose next transaction the server undid, is not
// run again.
func TestDeadlockBehindACommit(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	admin := openAdmin(t, l.proxy.URL())
	exec(t, admin, `CREATE PROCEDURE ending() BEGIN COMMIT; END`)
	exec(t, admin, `CREATE TABLE place (name VARBINARY(20) PRIMARY KEY)`)
	exec(t, admin, `INSERT INTO place VALUES ('a'), ('b')`)
	rival, err := admin.BeginTx(t.Context(), nil)
	must(t, err)
	defer func() { _ = rival.Rollback() }() // it is over by then
	for range 50 {
		_, err := rival.ExecContext(t.Context(), `INSERT INTO business VALUES ('rival')`)
		must(t, err)
	}
	_, err = rival.ExecContext(t.Context(), `SELECT * FROM place WHERE name = 'b' FOR UPDATE`)
	must(t, err)
	blocked := make(chan error, 1)
	runs := 0
	_, err = l.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		runs++
		must(t, insert(ctx, "key"))
		tx := txOf(ctx)
		_, _ = tx.ExecContext(ctx, `CALL ending()`)
		_, err := tx.ExecContext(ctx, `SELECT * FROM place WHERE name = 'a' FOR UPDATE`)
		must(t, err)
		go func() {
			_, err := rival.ExecContext(context.WithoutCancel(ctx), `SELECT * FROM place WHERE name = 'a' FOR UPDATE`)
			blocked <- errors.Join(err, rival.Rollback())
		}()
		awaitBlocked(t, admin)
		if _, err := tx.ExecContext(ctx, `SELECT * FROM place WHERE name = 'b' FOR UPDATE`); err == nil {
			t.Error("there was no deadlock")
		}
		return settled(store.TxRollback, "")
	})
	must(t, <-blocked)
	if !errors.Is(err, store.ErrOutcomeUnknown) || runs != 1 {
		t.Errorf("E1: %v after %d runs, want ErrOutcomeUnknown after one", err, runs)
	}
	wantState(t, l.past, "key", store.StateUnknown, "E1")
	if rows := number(t, admin, `SELECT COUNT(*) FROM business WHERE value = 'key'`); rows != 1 {
		t.Errorf("E1: the work took effect %d times", rows)
	}
}

// awaitBlocked waits until a transaction waits for a row of the test's table place. The monitor says so at once;
// information_schema.innodb_trx says the same for ever to those who ask it more often than ten times a second.
func awaitBlocked(t testing.TB, admin *sql.DB) {
	t.Helper()
	var engine, name, status, database string
	must(t, admin.QueryRowContext(t.Context(), `SELECT DATABASE()`).Scan(&database))
	waiting := regexp.MustCompile("of table ." + regexp.QuoteMeta(database) + ".\\..place. trx id \\d+ .*waiting")
	await.That(t, "a transaction waits for a row", func() bool {
		must(t, admin.QueryRowContext(t.Context(), `SHOW ENGINE INNODB STATUS`).Scan(&engine, &name, &status))
		return waiting.MatchString(status)
	})
}
