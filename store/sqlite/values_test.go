package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

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
		if i != math.MinInt64 || r != math.Pi || text != "täxt\x00behind" || !bytes.Equal(blob, binary) || !when.Equal(at) || !flag {
			t.Errorf("got %d, %v, %q, %x, %s, %t", i, r, text, blob, when, flag)
		}
	})
}

// TestNullValues: nothing, the empty and zero stay different.
func TestNullValues(t *testing.T) {
	t.Parallel()
	inHandler(t, func(ctx context.Context, tx *sql.Tx) {
		if _, err := tx.Exec(`INSERT INTO everything (i, t, b, any) VALUES (?, ?, ?, ?)`, nil, sql.NullString{}, []byte{}, sqlite3.ZeroBlob(3)); err != nil {
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
		if _, err := tx.Exec(`INSERT INTO everything (t) VALUES (?)`, sqlite3.JSON(map[string]int{"amount": 7})); err != nil {
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
			t.Error("an argument is missing, and nobody external events")
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
