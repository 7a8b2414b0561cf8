package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// TestRefusedStatements: a handler can neither end its transaction, nor leave it, nor touch the store's own tables; and
// trying does not harm what it did before and after.
func TestRefusedStatements(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	exec(t, s, `CREATE TEMP TABLE scratch (id)`)
	for i, statement := range []string{
		"COMMIT", "END", "END TRANSACTION", "ROLLBACK", "BEGIN", "BEGIN IMMEDIATE", "commit -- in lower case",
		"RELEASE onceward_member", "ROLLBACK TO onceward_member", `ROLLBACK TO "ONCEWARD_MEMBER"`,
		"SAVEPOINT onceward_member", "SAVEPOINT onceward_x",
		"ATTACH ':memory:' AS other", "DETACH main", "VACUUM",
		"PRAGMA foreign_keys = OFF", "PRAGMA synchronous(OFF)", "PRAGMA journal_mode = DELETE",
		"PRAGMA max_page_count = 1",
		"DELETE FROM onceward_record", "UPDATE onceward_meta SET value = 0",
		"INSERT INTO onceward_schema VALUES (9, '')", "INSERT INTO OnceWard_Schema VALUES (9, '')",
		"REPLACE INTO onceward_meta VALUES ('max_removed_attempt', 0)", "DROP TABLE onceward_record",
		"DROP INDEX onceward_record_due",
		"ALTER TABLE onceward_record RENAME TO mine", "ALTER TABLE onceward_record ADD COLUMN mine",
		"CREATE INDEX mine ON onceward_record (record)",
		"CREATE TRIGGER mine AFTER INSERT ON onceward_record BEGIN SELECT 1; END",
		"CREATE TEMP TRIGGER mine AFTER INSERT ON onceward_record BEGIN SELECT 1; END",
		"CREATE TEMP TABLE onceward_record (id)", "CREATE TEMP VIEW onceward_record AS SELECT 1",
		"CREATE TABLE onceward_mine (id)",
		"DELETE FROM onceward_outbox", "UPDATE onceward_outbox SET state = 4", "DROP TABLE onceward_outbox",
		"DROP INDEX onceward_outbox_claim",
		"INSERT INTO onceward_outbox (id) VALUES ('mine')", "REPLACE INTO onceward_inbox VALUES (x'00', x'00', 0)",
		"INSERT OR REPLACE INTO onceward_outbox SELECT * FROM onceward_outbox", "DELETE FROM onceward_inbox",
		"UPDATE onceward_inbox SET applied_at = 0",
		"ALTER TABLE onceward_inbox RENAME TO mine",
		"CREATE TRIGGER mine AFTER INSERT ON onceward_outbox BEGIN SELECT 1; END",
		"CREATE TEMP TRIGGER mine BEFORE INSERT ON onceward_inbox BEGIN SELECT raise(IGNORE); END",
		"CREATE TEMP TABLE onceward_outbox (id)", "CREATE TEMP VIEW onceward_inbox AS SELECT 1",
		"CREATE INDEX mine ON onceward_outbox (payload)",
		"ALTER TABLE temp.scratch RENAME TO onceward_outbox",
		"INSERT INTO business VALUES ('both'); COMMIT",
		"WITH gone AS (SELECT id FROM onceward_record) DELETE FROM onceward_record WHERE id IN gone",
	} {
		key := fmt.Sprint("key-", i)
		transacted(t, s, reservation(key), func(ctx context.Context, v store.Verdict) store.Settlement {
			tx := onceward.Tx(ctx)
			if err := insert(ctx, key); err != nil {
				t.Fatalf("before %q: %v", statement, err)
			}
			if _, err := tx.ExecContext(ctx, statement); err == nil {
				t.Errorf("E1: a handler could run %q", statement)
			}
			if _, err := tx.ExecContext(ctx, statement+" -- ?", 1); err == nil {
				t.Errorf("E1: a handler could run %q with an argument", statement)
			}
			if rows, err := tx.QueryContext(ctx, statement); err == nil {
				if rows.Next() || rows.Err() == nil {
					t.Errorf("E1: a handler could query %q", statement)
				}
				_ = rows.Close()
			}
			return inserting(key)(ctx, v)
		}, store.DecisionExecute, "E1")
		wantRows(t, s, key, 2, "E1: before and after "+statement)
		wantState(t, s, key, store.StateCompleted, "E1")
	}
	if _, err := s.Reserve(t.Context(), reservation("afterwards")); err != nil {
		t.Error(err)
	}
}

// TestTriggerOnTheStoresTables: a trigger on a business table does not reach the store's tables either.
func TestTriggerOnTheStoresTables(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	transacted(t, s, reservation("victim"), inserting("victim"), store.DecisionExecute, "E1")
	exec(t, s, `CREATE TRIGGER clever AFTER INSERT ON business WHEN new.value = 'clever' BEGIN DELETE FROM onceward_record; END`)
	err := s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`INSERT INTO business VALUES ('clever')`)
		return err
	})
	if err == nil {
		t.Error("E1: a trigger could write to the store's tables")
	}
	wantState(t, s, "victim", store.StateCompleted, "I7")
}

// TestAllowedStatements: what a handler may do.
func TestAllowedStatements(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	transacted(t, s, reservation("earlier"), inserting("earlier"), store.DecisionExecute, "E1")
	transacted(t, s, reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		tx := onceward.Tx(ctx)
		for _, statement := range []string{
			`SAVEPOINT mine`, `INSERT INTO business VALUES ('kept')`, `SAVEPOINT inner`,
			`INSERT INTO business VALUES ('undone')`, `ROLLBACK TO inner`, `RELEASE inner`, `RELEASE mine`,
			`SAVEPOINT member`, `RELEASE member`,
			`CREATE TABLE made (value TEXT)`, `INSERT INTO made VALUES ('x'), ('y')`,
			`CREATE INDEX made_value ON made (value)`, `ALTER TABLE made ADD COLUMN more`,
			`CREATE TEMP TABLE scratch (value)`, `INSERT INTO scratch VALUES (1)`, `DROP TABLE scratch`,
			`PRAGMA foreign_keys`, `PRAGMA table_info(business)`, `SELECT * FROM pragma_table_info('business')`,
			`INSERT INTO business VALUES ('one'); INSERT INTO business VALUES ('two')`,
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				t.Errorf("%s: %v", statement, err)
			}
		}
		records := 0
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM onceward_record`).Scan(&records); err != nil ||
			records != 1 {
			t.Errorf("reading the store's tables got (%d, %v), want the one record that is committed", records, err)
		}
		// A savepoint that is left open ends with the turn.
		if _, err := tx.ExecContext(ctx, `SAVEPOINT open`); err != nil {
			t.Error(err)
		}
		return inserting("in an open savepoint")(ctx, store.Verdict{})
	}, store.DecisionExecute, "E1")
	for value, want := range map[string]int{"kept": 1, "undone": 0, "one": 1, "two": 1, "in an open savepoint": 1} {
		wantRows(t, s, value, want, "E1")
	}
	made := 0
	if err := s.DB().QueryRow(`SELECT count(more IS NULL) FROM made`).Scan(&made); err != nil || made != 2 {
		t.Errorf("E1: the table that the handler made has %d rows (%v), want 2", made, err)
	}
}

// TestUndoneStatements: what a handler did goes, tables and savepoints included.
func TestUndoneStatements(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	for _, end := range []store.TxAction{store.TxRollback, store.TxCommitAnswer} {
		transacted(t, s, reservation(fmt.Sprint("key-", end)),
			func(ctx context.Context, _ store.Verdict) store.Settlement {
				for _, statement := range []string{
					`CREATE TABLE made (value TEXT)`, `INSERT INTO made VALUES ('x')`, `SAVEPOINT mine`,
					`INSERT INTO business VALUES ('x')`,
					`RELEASE mine`, `SAVEPOINT open`, `ALTER TABLE business ADD COLUMN more`,
					`INSERT INTO business VALUES ('x', 'y')`,
				} {
					if _, err := onceward.Tx(ctx).ExecContext(ctx, statement); err != nil {
						t.Errorf("%s: %v", statement, err)
					}
				}
				return settled(end, "declined")
			}, store.DecisionExecute, "E1")
		wantRows(t, s, "x", 0, "E1")
		if _, err := s.DB().Exec(`SELECT * FROM made`); err == nil || !strings.Contains(err.Error(), "no such table") {
			t.Errorf("E1: a table that was undone: %v", err)
		}
	}
	wantState(t, s, fmt.Sprint("key-", store.TxRollback), store.StateNone, "E1")
	wantState(t, s, fmt.Sprint("key-", store.TxCommitAnswer), store.StateCompleted, "E1")
}

// TestEndingByHand: Commit and Rollback of the *sql.Tx are refused, and end only the handler's own handle.
func TestEndingByHand(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	for name, byHand := range map[string]func(*sql.Tx) error{
		"commit":   (*sql.Tx).Commit,
		"rollback": (*sql.Tx).Rollback,
	} {
		for _, end := range []store.TxAction{store.TxRollback, store.TxCommit, store.TxCommitAnswer} {
			key := fmt.Sprint(name, end)
			transacted(t, s, reservation(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
				rows, err := onceward.Tx(ctx).QueryContext(ctx, `SELECT 1 UNION SELECT 2`)
				if err != nil || !rows.Next() {
					t.Errorf("a query that is left open: %v", err)
				}
				if err := insert(ctx, key); err != nil {
					t.Error(err)
				}
				if err := byHand(onceward.Tx(ctx)); !errors.Is(err, store.ErrTxOwned) {
					t.Errorf("E1: %s got %v, want ErrTxOwned", name, err)
				}
				if err := insert(ctx, key); !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("E1: a statement after %s got %v, want ErrTxDone", name, err)
				}
				return settled(end, "done")
			}, store.DecisionExecute, "E1")
			want := 0
			if end == store.TxCommit {
				want = 1
			}
			wantRows(t, s, key, want, "E1: the settlement decides, not "+name)
		}
	}
}

// TestForeignKeys: they are enforced, at once or at the end.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	exec(t, s, `CREATE TABLE parent (id INTEGER PRIMARY KEY)`)
	exec(t, s, `CREATE TABLE strict (parent INTEGER REFERENCES parent)`)
	exec(t, s, `CREATE TABLE late (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	run := func(key string, statements ...string) (last, err error) {
		_, err = s.Transact(t.Context(), reservation(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
			for _, statement := range statements {
				_, last = onceward.Tx(ctx).ExecContext(ctx, statement)
			}
			return settled(store.TxCommit, "done")
		})
		return last, err
	}
	if last, err := run("strict", `INSERT INTO strict VALUES (1)`); last == nil || err != nil {
		t.Errorf("an orphan got (%v, %v), want to be refused at once", last, err)
	}
	_, err := run("orphan", `INSERT INTO late VALUES (1)`)
	wantWorkRefused(t, err, "deferred foreign key", "an orphan at the end")
	wantState(t, s, "orphan", store.StateNone, "I4")
	if last, err := run("orphan", `INSERT INTO late VALUES (1)`, `INSERT INTO parent VALUES (1)`); last != nil ||
		err != nil {
		t.Errorf("a parent that comes late got (%v, %v)", last, err)
	}
	wantState(t, s, "orphan", store.StateCompleted, "I2")
	err = s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`DELETE FROM parent`)
		return err
	})
	wantWorkRefused(t, err, "deferred foreign key", "an update that orphans")
}

// inHandler runs f in a transactional handler that commits.
func inHandler(t *testing.T, f func(ctx context.Context, tx *sql.Tx)) {
	t.Helper()
	s := openBusiness(t, newFile(t))
	exec(t, s, `CREATE TABLE everything (
		id INTEGER PRIMARY KEY, i INTEGER, r REAL, t TEXT, b BLOB, at TIMESTAMP, flag BOOLEAN, required TEXT NOT NULL DEFAULT '', any)`)
	transacted(t, s, reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		f(ctx, onceward.Tx(ctx))
		return settled(store.TxCommit, "done")
	}, store.DecisionExecute, "E1")
}

// TestValues: what a handler writes through its transaction is what it reads.
func TestValues(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 15, 4, 55, 19, 123456789, time.UTC)
	binary := []byte{0, 1, 0xff, '\'', 0}
	inHandler(t, func(ctx context.Context, tx *sql.Tx) {
		result, err := tx.ExecContext(ctx, `INSERT INTO everything (i, r, t, b, at, flag) VALUES (?, :r, ?, ?, ?, ?)`,
			int64(math.MinInt64), sql.Named("r", math.Pi), "täxt\x00behind", binary, at, true)
		if err != nil {
			t.Fatal(err)
		}
		id, err := result.LastInsertId()
		if rows, _ := result.RowsAffected(); err != nil || id != 1 || rows != 1 {
			t.Errorf("the insert says id %d, %d rows, %v", id, rows, err)
		}
		var i int64
		var r float64
		var text string
		var blob []byte
		var when time.Time
		var flag bool
		row := tx.QueryRowContext(ctx, `SELECT i, r, t, b, at, flag FROM everything WHERE id = ?`, id)
		if err := row.Scan(&i, &r, &text, &blob, &when, &flag); err != nil {
			t.Fatal(err)
		}
		if i != math.MinInt64 || r != math.Pi || text != "täxt\x00behind" || !bytes.Equal(blob, binary) ||
			!when.Equal(at) || !flag {
			t.Errorf("got %d, %v, %q, %x, %s, %t", i, r, text, blob, when, flag)
		}
	})
}

// TestNullValues: nothing, the empty and zero stay different.
func TestNullValues(t *testing.T) {
	t.Parallel()
	inHandler(t, func(ctx context.Context, tx *sql.Tx) {
		if _, err := tx.Exec(`INSERT INTO everything (i, t, b, any) VALUES (?, ?, ?, ?)`, nil, sql.NullString{},
			[]byte{}, sqlite3.ZeroBlob(3)); err != nil {
			t.Fatal(err)
		}
		var i sql.NullInt64
		var text sql.NullString
		var blob, zero []byte
		if err := tx.QueryRow(`SELECT i, t, b, any FROM everything`).Scan(&i, &text, &blob, &zero); err != nil {
			t.Fatal(err)
		}
		if i.Valid || text.Valid || len(blob) != 0 || !bytes.Equal(zero, make([]byte, 3)) {
			t.Errorf("got %v, %v, %v, %v", i, text, blob, zero)
		}
		if err := tx.QueryRow(`SELECT i FROM everything WHERE 1 = 0`).Scan(&i); err != sql.ErrNoRows {
			t.Errorf("no rows: got %v", err)
		}
	})
}

// TestJSONValue: the driver's own kinds of arguments are as good in a handler as elsewhere.
func TestJSONValue(t *testing.T) {
	t.Parallel()
	inHandler(t, func(ctx context.Context, tx *sql.Tx) {
		if _, err := tx.Exec(`INSERT INTO everything (t) VALUES (?)`,
			sqlite3.JSON(map[string]int{"amount": 7})); err != nil {
			t.Fatal(err)
		}
		amount := 0
		if err := tx.QueryRow(`SELECT t ->> 'amount' FROM everything`).Scan(&amount); err != nil || amount != 7 {
			t.Errorf("got (%d, %v)", amount, err)
		}
	})
}

// TestColumnTypes: tools that look at them see the same as on the pool for reading.
func TestColumnTypes(t *testing.T) {
	t.Parallel()
	inHandler(t, func(ctx context.Context, tx *sql.Tx) {
		if _, err := tx.Exec(`INSERT INTO everything (i, t, b, at) VALUES (1, 'x', x'00', '2026-01-02T03:04:05Z')`); err != nil {
			t.Fatal(err)
		}
		rows, err := tx.Query(`SELECT i, t, b, at, required FROM everything`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		if !rows.Next() {
			t.Fatal(rows.Err())
		}
		types, err := rows.ColumnTypes()
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []struct {
			name, kind string
			scan       reflect.Type
		}{
			{"i", "INTEGER", reflect.TypeFor[int64]()},
			{"t", "TEXT", reflect.TypeFor[string]()},
			{"b", "BLOB", reflect.TypeFor[[]byte]()},
			{"at", "TIMESTAMP", reflect.TypeFor[time.Time]()},
			{"required", "TEXT", reflect.TypeFor[string]()},
		} {
			got := types[i]
			if got.Name() != want.name || got.DatabaseTypeName() != want.kind || got.ScanType() != want.scan {
				t.Errorf("column %d is %s %s %s, want %v", i, got.Name(), got.DatabaseTypeName(), got.ScanType(), want)
			}
		}
	})
}

// TestNestedQueries: prepared statements, and queries within queries.
func TestNestedQueries(t *testing.T) {
	t.Parallel()
	inHandler(t, func(ctx context.Context, tx *sql.Tx) {
		add, err := tx.PrepareContext(ctx, `INSERT INTO everything (i, t) VALUES (?, ?)`)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if _, err := add.ExecContext(ctx, i, "old"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := add.Exec(1); err == nil {
			t.Error("an argument is missing, and no error says so")
		}
		rows, err := tx.QueryContext(ctx, `SELECT i FROM everything WHERE t = 'old' ORDER BY i`)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for rows.Next() {
			var i, square int
			if err := rows.Scan(&i); err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRow(`SELECT ? * ?`, i, i).Scan(&square); err != nil || square != i*i {
				t.Errorf("a query within a query got (%d, %v)", square, err)
			}
			if _, err := add.Exec(i, "new"); err != nil {
				t.Errorf("an insert within a query: %v", err)
			}
			seen++
		}
		if err := endOfRows(rows); err != nil || seen != 10 {
			t.Errorf("saw %d rows, %v", seen, err)
		}
		n := 0
		if err := tx.QueryRow(`SELECT count(*) FROM everything WHERE t = 'new'`).Scan(&n); err != nil || n != 10 {
			t.Errorf("%d new rows (%v)", n, err)
		}
	})
}
