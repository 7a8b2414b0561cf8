package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

const revoked = "the transaction was revoked"

// short is a lease of which a handler gets 100 ms, after which its transaction is revoked with a little grace.
const short = 300 * time.Millisecond

// TestHandlerThatDoesNotReturn holds the writer until its transaction is revoked. The others go on, its key is free
// again although it still runs, and what it does later comes to nothing.
func TestHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	release := make(chan struct{})
	var late []error
	ended := overdue(t, func(bound time.Duration) (<-chan struct{}, <-chan error) {
		entered, ended := make(chan struct{}), make(chan error, 1)
		hang := func(ctx context.Context, _ store.Verdict) store.Settlement {
			tx := onceward.Tx(ctx)
			stmt, prepareErr := tx.Prepare(`INSERT INTO business VALUES ('late')`)
			rows, queryErr := tx.Query(`SELECT 1 UNION SELECT 2`)
			if err := errors.Join(prepareErr, queryErr); err != nil || !rows.Next() || insert(ctx, "row") != nil {
				return settled(store.TxRollback, "")
			}
			close(entered)
			<-release
			_, execErr := stmt.Exec()
			_, prepareErr = tx.Prepare(`SELECT 1`)
			late = append(late, execErr, prepareErr, insert(ctx, "late"), tx.QueryRow(`SELECT 1`).Scan(new(int)),
				endOfRows(rows))
			_, _ = rows.ColumnTypes()
			return settled(store.TxCommit, "done")
		}
		go func() {
			_, err := s.Transact(context.Background(), reservation("key", leaseOf(bound)), hang)
			ended <- err
		}()
		return entered, ended
	})
	transacted(t, s, reservation("other"), inserting("other"), store.DecisionExecute,
		"E1: the others go on while the handler hangs")
	await.Return(t, "the wait for the transaction that was revoked", func() {
		if err := s.Wait(t.Context(), idOf("key"), 0); err != nil {
			t.Error(err)
		}
	})
	transacted(t, s, reservation("key"), inserting("row"), store.DecisionExecute,
		"E8: no path leaves a key locked past its lease")
	close(release)
	err := await.Value(t, "the end of the handler", ended)
	wantUnavailable(t, err, revoked, "E1: a handler that held the writer for too long")
	if !errors.Is(err, store.ErrDeadline) {
		t.Errorf("E5: %v, want it to say that the deadline was passed", err)
	}
	for i, err := range late {
		if err == nil {
			t.Errorf("E1: late call %d of a handler went through", i)
		}
	}
	wantRows(t, s, "row", 1, "I1")
	wantRows(t, s, "late", 0, "E1")
	transacted(t, s, reservation("key"), never(t, "I1"), store.DecisionReplay, "I3")
}

// endOfRows reads to the end, and returns an error if the rows did not all come.
func endOfRows(rows *sql.Rows) error {
	for rows.Next() {
	}
	return errors.Join(rows.Err(), rows.Close())
}

// TestStatementThatDoesNotEnd: whatever context the handler gives it, a statement ends with the turn.
func TestStatementThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	const endless = `WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n`
	for name, patience := range map[string]time.Duration{"no context": 0, "a patient context": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			if patience > 0 {
				patient, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				ctx = patient
			}
			s := openBusiness(t, newFile(t))
			await.Return(t, "an endless query", func() {
				query := func(own context.Context, _ store.Verdict) store.Settlement {
					if err := onceward.Tx(own).QueryRowContext(ctx, endless).Scan(new(int)); err == nil {
						t.Error("an endless query ended")
					}
					return settled(store.TxRollback, "")
				}
				if err := transactInTime(t, s, "query", query, ""); err != nil {
					t.Errorf("a query that was interrupted harms nothing, but got %v", err)
				}
				interrupted := func(own context.Context, v store.Verdict) store.Settlement {
					if _, err := onceward.Tx(own).ExecContext(ctx, `INSERT INTO business `+endless); err == nil {
						t.Error("an endless insert ended")
					}
					return inserting("after")(own, v)
				}
				err := transactInTime(t, s, "insert", interrupted, "undone by SQLite")
				wantUnavailable(t, err, "undone by SQLite", "an insert that was interrupted")
				wantRows(t, s, "after", 0, "I4")
			})
			transacted(t, s, reservation("key"), inserting("key"), store.DecisionExecute, "afterwards")
		})
	}
}

// transactInTime runs work whose statement is interrupted when its time is over, and returns how that ended. On a
// machine that stands still the time may be over before the statement begins, or the work may return too late: then it
// is tried with more time.
func transactInTime(t *testing.T, s *sqlite.Store, key string, w work, want string) (err error) {
	t.Helper()
	for bound := short; bound < await.Limit; bound *= 2 {
		_, err = s.Transact(t.Context(), reservation(key, leaseOf(bound)), w)
		if err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want) {
			break
		}
	}
	return err
}

// TestLeftOpen: a handler leaves statements and rows open, even ones that database/sql itself waits for, and goes on
// using them behind its turn.
func TestLeftOpen(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	exec(t, s, `INSERT INTO business VALUES ('a'), ('b'), ('c')`)
	var kept []*sql.Rows
	var stmt *sql.Stmt
	var tx *sql.Tx
	await.Return(t, "a turn with rows left open", func() {
		transacted(t, s, reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
			tx = onceward.Tx(ctx)
			var err error
			if stmt, err = tx.Prepare(`SELECT value FROM business`); err != nil {
				t.Error(err)
			}
			for _, query := range []string{
				`SELECT value FROM business`,
				`INSERT INTO business VALUES ('x'), ('y') RETURNING value`,
			} {
				rows, err := tx.Query(query)
				if err != nil || !rows.Next() {
					t.Errorf("%s: %v", query, err)
				}
				var held sql.RawBytes // keeps database/sql from closing the rows
				if err := rows.Scan(&held); err != nil {
					t.Error(err)
				}
				kept = append(kept, rows)
			}
			return inserting("row")(ctx, v)
		}, store.DecisionExecute, "E1")
		transacted(t, s, reservation("next"), func(ctx context.Context, v store.Verdict) store.Settlement {
			for _, rows := range kept {
				if endOfRows(rows) == nil {
					t.Error("E1: rows of an earlier turn were read in a later one")
				}
			}
			if _, err := stmt.Query(); err == nil {
				t.Error("E1: a statement of an earlier turn was used in a later one")
			}
			if _, err := tx.Exec(`INSERT INTO business VALUES ('foreign')`); err == nil {
				t.Error("E1: a transaction of an earlier turn was used in a later one")
			}
			return inserting("row")(ctx, v)
		}, store.DecisionExecute, "E1")
	})
	wantRows(t, s, "row", 2, "I1")
	wantRows(t, s, "x", 1, "E1: an insert that returns rows is complete when the first comes")
	wantRows(t, s, "foreign", 0, "E1")
}

// TestGoroutinesLeftBehind go on writing while other handlers have their turns.
func TestGoroutinesLeftBehind(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	var group sync.WaitGroup
	stop := make(chan struct{})
	for i := range 10 {
		transacted(t, s, reservation(strings.Repeat("k", i+1)),
			func(ctx context.Context, v store.Verdict) store.Settlement {
				tx := onceward.Tx(ctx)
				for range 2 {
					group.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
							}
							if _, err := tx.Exec(`INSERT INTO business VALUES ('stray') RETURNING 1`); errors.Is(err,
								sql.ErrTxDone) {
								_ = tx.Rollback()
								return
							}
							_ = tx.QueryRow(`SELECT count(*) FROM business`).Scan(new(int))
						}
					})
				}
				return settled(store.TxRollback, "")
			}, store.DecisionExecute, "E1")
		transacted(t, s, reservation(strings.Repeat("o", i+1)), inserting("own"), store.DecisionExecute, "E1")
	}
	close(stop)
	group.Wait()
	wantRows(t, s, "own", 10, "I1")
	wantRows(t, s, "stray", 0, "E1: a goroutine that a handler left behind wrote into the turn of another")
}

// TestHandle: what goes through the handle is part of the transaction of the context, and where there is none it can only
// read. What a handler begins is a savepoint.
func TestHandle(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	const statement = `INSERT INTO business VALUES ('kept')`
	if _, err := s.Handle().ExecContext(t.Context(), statement); err == nil {
		t.Error("a write without a transaction was not refused")
	}
	must(t, s.InTx(t.Context(), func(ctx context.Context) error {
		_, err := s.Handle().ExecContext(ctx, statement)
		must(t, err)
		undone, err := s.Handle().BeginTx(ctx, nil)
		must(t, err)
		_, err = undone.ExecContext(ctx, `INSERT INTO business VALUES ('undone')`)
		return errors.Join(err, undone.Rollback())
	}))
	var rows, kept int
	must(t, s.Handle().QueryRowContext(t.Context(), `SELECT COUNT(*), SUM(value = 'kept') FROM business`).Scan(&rows, &kept))
	if rows != 1 || kept != 1 {
		t.Errorf("there are %d rows, %d of them kept; want 1 and 1", rows, kept)
	}
}

// TestWarningOfRowsLeftOpen: rows that a handler did not close are logged with their statement. A prepared statement that
// is left open is not: it ends with its transaction, as in database/sql.
func TestWarningOfRowsLeftOpen(t *testing.T) {
	t.Parallel()
	const query = `SELECT value FROM business`
	for name, c := range map[string]struct {
		use   func(tx *sql.Tx) error
		warns bool
	}{
		"rows": {func(tx *sql.Tx) error {
			rows, err := tx.Query(query)
			if err == nil && !rows.Next() {
				err = errors.New("no rows")
			}
			return err
		}, true},
		"rows of a prepared statement": {func(tx *sql.Tx) error {
			stmt, err := tx.Prepare(query)
			if err == nil {
				_, err = stmt.Query()
			}
			return err
		}, true},
		"a prepared statement": {func(tx *sql.Tx) error {
			stmt, err := tx.Prepare(query)
			if err != nil {
				return err
			}
			rows, err := stmt.Query()
			if err == nil {
				err = rows.Close()
			}
			return err
		}, false},
		"rows read to their end": {func(tx *sql.Tx) error {
			rows, err := tx.Query(query)
			for err == nil && rows.Next() {
			}
			return err
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s := openBusiness(t, newFile(t), sqlite.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			exec(t, s, `INSERT INTO business VALUES ('a'), ('b')`)
			transacted(t, s, reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
				if err := c.use(onceward.Tx(ctx)); err != nil {
					t.Error(err)
				}
				return inserting("row")(ctx, v)
			}, store.DecisionExecute, "E1")
			wantRows(t, s, "row", 1, "I1")
			if warned := strings.Contains(log.String(), query); warned != c.warns {
				t.Errorf("the log is %q, want a warning: %t", log.String(), c.warns)
			}
		})
	}
}
