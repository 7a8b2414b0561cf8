package postgres_test

import (
	"context"
	"errors"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestForgottenRows: rows that a handler did not close do not keep its work from being committed.
func TestForgottenRows(t *testing.T) {
	t.Parallel()
	const many = `SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) AS i`
	for name, leave := range map[string]func(ctx context.Context) error{
		"pgx": func(ctx context.Context) error {
			rows, err := postgres.Tx(ctx).Query(ctx, many)
			if err == nil && !rows.Next() {
				err = errors.New("no rows")
			}
			return err
		},
		"database/sql": func(ctx context.Context) error {
			rows, err := onceward.Tx(ctx).QueryContext(ctx, many)
			if err == nil && !rows.Next() {
				err = errors.New("no rows")
			}
			return err
		},
		"a row that is not scanned": func(ctx context.Context) error {
			postgres.Tx(ctx).QueryRow(ctx, many)
			return nil
		},
		"a batch": func(ctx context.Context) error {
			batch := &pgx.Batch{}
			batch.Queue(many)
			batch.Queue(many)
			postgres.Tx(ctx).SendBatch(ctx, batch)
			return nil
		},
		"rows of a batch": func(ctx context.Context) error {
			batch := &pgx.Batch{}
			batch.Queue(many)
			batch.Queue(many)
			_, err := postgres.Tx(ctx).SendBatch(ctx, batch).Query()
			return err
		},
	} {
		for _, h := range []handle{pgxHandle, sqlHandle} {
			t.Run(name+" on "+h.name, func(t *testing.T) {
				among(t, name+" on "+h.name, "pgx on pgx", "database/sql on database/sql", "a batch on pgx")
				t.Parallel()
				s := newShop(t, h)
				transacted(t, s.store, "key", func(ctx context.Context) error {
					if err := h.insert(ctx, "written"); err != nil {
						return err
					}
					return leave(ctx)
				})
				s.wantRows("E1", "written")
				transacted(t, s.store, "another key on the same connection", nothing)
			})
		}
	}
}

// TestRowsLeftWithTheirContext: rows that a handler left open take the connection with them if their context has ended.
// Nothing was executed then, and the error names the statement and why.
func TestRowsLeftWithTheirContext(t *testing.T) {
	t.Parallel()
	const endless = `SELECT repeat('x', 1000), CASE WHEN i > 5000 THEN pg_sleep(600)::text END FROM generate_series(1, 9999) AS i`
	for name, c := range map[string]struct {
		leave     func(ctx context.Context) error
		statement string
	}{
		"rows": {func(ctx context.Context) error {
			rows, err := postgres.Tx(ctx).Query(ctx, endless)
			if err == nil && !rows.Next() {
				err = errors.New("no rows")
			}
			return err
		}, endless},
		"rows, and then a statement": {func(ctx context.Context) error {
			_, err := postgres.Tx(ctx).Query(ctx, endless)
			if _, busy := postgres.Tx(ctx).Exec(context.WithoutCancel(ctx), `SELECT 1`); busy == nil {
				err = errors.New("the connection of open rows took a statement")
			}
			return err
		}, endless},
		"a batch": {func(ctx context.Context) error {
			batch := &pgx.Batch{}
			batch.Queue(endless)
			postgres.Tx(ctx).SendBatch(ctx, batch)
			return nil
		}, "of a batch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, pgxHandle)
			_, err := s.store.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
				must(t, insertPgx(ctx, "written"))
				own, cancel := context.WithCancel(ctx)
				defer cancel()
				must(t, c.leave(own))
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			})
			if err == nil || !strings.Contains(err.Error(), "its own context ended") || !strings.Contains(err.Error(), c.statement) {
				t.Errorf("rows left open, whose context has ended: %v, want an error that names the statement and why", err)
			}
			s.wantRows("E1")
		})
	}
}

// TestStatementsGivenUp: where the connection is lost with a statement of the pgx.Tx whose context ended, the error names
// the statement and why.
func TestStatementsGivenUp(t *testing.T) {
	t.Parallel()
	const read = `SELECT value FROM business`
	for name, c := range map[string]struct {
		give      func(ctx context.Context, tx pgx.Tx) error
		statement string
	}{
		"copy": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"business"}, []string{"value"}, pgx.CopyFromRows([][]any{{"copied"}}))
			return err
		}, `COPY \"business\"`},
		"prepare": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Prepare(ctx, "given_up", read)
			return err
		}, read},
		"exec": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, read)
			return err
		}, read},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, pgxHandle)
			holder, err := s.admin.Begin(t.Context())
			must(t, err)
			defer func() { _ = holder.Rollback(context.Background()) }()
			_, err = holder.Exec(t.Context(), `LOCK TABLE business IN ACCESS EXCLUSIVE MODE`)
			must(t, err)
			_, err = s.store.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
				short, giveUp := context.WithCancel(ctx)
				defer giveUp()
				ended := make(chan error, 1)
				go func() { ended <- c.give(short, postgres.Tx(ctx)) }()
				await.That(t, "the statement waits for the lock", func() bool {
					return number(t, s.admin, `SELECT count(*) FROM pg_locks
						WHERE NOT granted AND relation = 'business'::regclass`) == 1
				})
				giveUp()
				if err := await.Value(t, "the end of the statement", ended); err == nil {
					t.Error("the statement was not given up")
				}
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			})
			if err == nil || !strings.Contains(err.Error(), "its own context ended") || !strings.Contains(err.Error(), c.statement) {
				t.Errorf("a statement given up: %v, want an error that names the statement and why", err)
			}
		})
	}
}

// TestCommitLeftOpen: where the connection is lost with the result of a COMMIT that a handler left open, the outcome is
// unknown, also if a statement after it was refused.
func TestCommitLeftOpen(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	_, err := s.store.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		must(t, insertPgx(ctx, "written"))
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		batch := &pgx.Batch{}
		batch.Queue(`COMMIT`)
		batch.Queue(`SELECT pg_sleep(600)`)
		postgres.Tx(ctx).SendBatch(own, batch)
		if _, err := postgres.Tx(ctx).Exec(ctx, `SELECT 1`); err == nil {
			t.Error("the connection of an open batch took a statement")
		}
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	})
	if !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I5: a handler that committed by itself got %v, want that the outcome is unknown", err)
	}
}

// TestRowsLeftThatMeetANeighbour: the rest of rows that a handler left open may meet a neighbour, as any statement may.
// Then the handler is run again.
func TestRowsLeftThatMeetANeighbour(t *testing.T) {
	t.Parallel()
	const query = `SELECT repeat('x', 1000), CASE WHEN i > 5000 THEN meet() END FROM generate_series(1, 9999) AS i`
	for name, leave := range map[string]func(ctx context.Context) error{
		"pgx": func(ctx context.Context) error {
			_, err := postgres.Tx(ctx).Query(ctx, query)
			return err
		},
		"database/sql": func(ctx context.Context) error {
			_, err := onceward.Tx(ctx).QueryContext(ctx, query)
			return err
		},
		"a batch": func(ctx context.Context) error {
			batch := &pgx.Batch{}
			batch.Queue(query)
			postgres.Tx(ctx).SendBatch(ctx, batch)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, pgxHandle)
			exec(t, s.admin, `CREATE FUNCTION meet() RETURNS int LANGUAGE plpgsql AS
				$$ BEGIN RAISE 'met' USING ERRCODE = '40001'; END $$`)
			runs := 0
			transacted(t, s.store, "key", func(ctx context.Context) error {
				if runs++; runs > 1 {
					return insertPgx(ctx, "written")
				}
				return leave(ctx)
			})
			s.wantRows("E1", "written")
		})
	}
}

// TestGoroutineGoesOn: what a handler leaves behind cannot write any more, neither into its own transaction nor into
// that of the next one on the connection.
func TestGoroutineGoesOn(t *testing.T) {
	t.Parallel()
	for _, h := range []handle{pgxHandle, sqlHandle} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, h)
			left := make(chan context.Context, 1)
			transacted(t, s.store, "first", func(ctx context.Context) error {
				left <- ctx
				return h.insert(ctx, "in time")
			})
			late := await.Value(t, "the context of the handler", left)
			transacted(t, s.store, "second", func(ctx context.Context) error {
				inserts := map[string]func(context.Context, string) error{"pgx": insertPgx, "database/sql": insertSQL}
				for name, insert := range inserts {
					if err := insert(late, "late by "+name); err == nil {
						t.Errorf("E1: a goroutine that goes on wrote by %s", name)
					}
				}
				return h.insert(ctx, "second in time")
			})
			s.wantRows("E1", "in time", "second in time")
		})
	}
}

// TestLateUseOfEverything: each way into a transaction is closed when it is over.
func TestLateUseOfEverything(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	var tx, savepoint pgx.Tx
	var rows pgx.Rows
	s.handler(func(ctx context.Context, own pgx.Tx) {
		var err error
		tx = own
		savepoint, err = own.Begin(ctx)
		must(t, err)
		rows, err = own.Query(ctx, `SELECT i FROM generate_series(1, 10000) AS i`)
		must(t, err)
	})
	ctx := t.Context()
	batch := &pgx.Batch{}
	batch.Queue(insertion, "late")
	var n int
	_, execErr := tx.Exec(ctx, insertion, "late")
	_, queryErr := tx.Query(ctx, `SELECT 1`)
	_, copyErr := tx.CopyFrom(ctx, pgx.Identifier{"business"}, []string{"value"}, pgx.CopyFromRows([][]any{{"late"}}))
	_, prepareErr := tx.Prepare(ctx, "late", insertion)
	_, beginErr := tx.Begin(ctx)
	for what, err := range map[string]error{
		"Exec": execErr, "Query": queryErr, "CopyFrom": copyErr, "Prepare": prepareErr, "Begin": beginErr,
		"QueryRow": tx.QueryRow(ctx, `SELECT 1`).Scan(&n), "SendBatch": tx.SendBatch(ctx, batch).Close(),
		"Commit of a savepoint": savepoint.Commit(ctx), "Scan": rows.Scan(&n),
	} {
		if !errors.Is(err, store.ErrTxOwned) {
			t.Errorf("%s of a transaction that is over got %v, want ErrTxOwned", what, err)
		}
	}
	if rows.Next() {
		t.Error("rows of a transaction that is over have another row")
	}
	rows.Close()
	s.wantRows("E1")
}

// TestStatementUnderWay: the end of a handler waits for a statement that a goroutine of it has under way, and then the
// goroutine is out.
func TestStatementUnderWay(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	table := holding(t, s.admin, `LOCK TABLE business`)
	ended, underWay, settled := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := s.store.Transact(t.Context(), reservation("key"), committing("key", func(ctx context.Context) error {
			tx := postgres.Tx(ctx)
			go func() {
				_, err := tx.Exec(ctx, `SELECT FROM business`)
				if err == nil {
					_, err = tx.Exec(ctx, insertion, "late")
				}
				ended <- err
			}()
			<-underWay
			return nil
		}))
		settled <- err
	}()
	await.That(t, "the statement is under way", func() bool {
		return number(t, s.admin, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'business'::regclass`) == 1
	})
	close(underWay)
	await.That(t, "the end of the handler waits for the statement", func() bool {
		var goroutines strings.Builder
		must(t, pprof.Lookup("goroutine").WriteTo(&goroutines, 2))
		for one := range strings.SplitSeq(goroutines.String(), "\n\n") {
			if strings.Contains(one, t.Name()) && strings.Contains(one, "sqltx.(*Gate).Close") && strings.Contains(one, "lockSlow") {
				return true
			}
		}
		return false
	})
	must(t, table.Rollback(t.Context()))
	if err := await.Value(t, "the end of the goroutine", ended); !errors.Is(err, store.ErrTxOwned) {
		t.Errorf("E1: what a goroutine wrote after its handler got %v, want ErrTxOwned", err)
	}
	must(t, await.Value(t, "the end of the transaction", settled))
	s.wantRows("E1")
	wantReplay(t, s.store, "key", "key", "E1")
}

// TestHandlerCommitsAndPanics: a handler that has ended the transaction itself and panics leaves a record that is unknown,
// and a handler that only panics leaves nothing.
func TestHandlerCommitsAndPanics(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]store.State{
		`COMMIT`: store.StateUnknown, `COMMIT; BEGIN`: store.StateUnknown, `SELECT`: store.StateNone,
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, pgxHandle)
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic did not reach the caller")
					}
				}()
				_, _ = s.store.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
					must(t, insertPgx(ctx, "written"))
					_, err := postgres.Tx(ctx).Exec(ctx, statement)
					must(t, err)
					panic("the handler")
				})
			}()
			wantState(t, s.store, "key", want, "I5")
		})
	}
}

// TestCopyOnALostConnection: a statement that may have ended the transaction was answered, and the connection is lost
// in a copy that follows: nothing was executed.
func TestCopyOnALostConnection(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t)
	_, err := s.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		tx := postgres.Tx(ctx)
		_, err := tx.Exec(ctx, `CREATE TEMPORARY TABLE copied (value text); SELECT '; commit '`)
		must(t, err)
		proxy.CutRequest(matching(`^copy`))
		rows := pgx.CopyFromRows([][]any{{"x"}})
		if _, err = tx.CopyFrom(ctx, pgx.Identifier{"copied"}, []string{"value"}, rows); err == nil {
			t.Error("a copy on a connection that was lost succeeded")
		}
		return store.Settlement{Action: store.TxRollback}
	})
	wantNotExecuted(t, err, "E1")
}

// TestPrepareInADeadlock: a transaction is run again whose statement could not be prepared because of its neighbours.
func TestPrepareInADeadlock(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	exec(t, s.admin, `CREATE TABLE other ()`)
	neighbour := holding(t, s.admin, `SET LOCAL deadlock_timeout = '1h'; LOCK TABLE other`)
	freed, runs := make(chan error, 1), 0
	transacted(t, s.store, "key", func(ctx context.Context) error {
		tx := postgres.Tx(ctx)
		if runs++; runs == 1 {
			_, err := tx.Exec(ctx, `LOCK TABLE business`)
			must(t, err)
			go func() {
				_, err := neighbour.Exec(context.Background(), `LOCK TABLE business`)
				freed <- errors.Join(err, neighbour.Rollback(context.Background()))
			}()
			await.That(t, "the neighbour waits", func() bool {
				return number(t, s.admin,
					`SELECT count(*) FROM pg_locks WHERE relation = 'business'::regclass AND NOT granted`) == 1
			})
		}
		_, _ = tx.Prepare(ctx, "prepared", `SELECT FROM other`) // the handler does not look
		return nil
	})
	must(t, await.Value(t, "the neighbour", freed))
	if runs != 2 {
		t.Errorf("E1: the work ran %d times, want 2", runs)
	}
}
