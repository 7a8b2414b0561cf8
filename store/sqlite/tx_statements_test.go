package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// inTurn runs f in a transaction, as a handler would.
func inTurn(t testing.TB, s *Store, f func(tx *sql.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

// TestStatementsStayPrepared: a statement of one handler serves the next, with none of the values of before, whatever
// became of the table in between.
func TestStatementsStayPrepared(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	const text = `INSERT INTO business (value) VALUES (?)`
	put := func(tx *sql.Tx) error {
		_, err := tx.Exec(text, "value")
		return err
	}
	inTurn(t, s, put)
	kept := s.writer.statements[text]
	if kept == nil {
		t.Fatal("the statement was closed")
	}
	inTurn(t, s, put)
	if s.writer.statements[text] != kept {
		t.Error("the statement was prepared again")
	}
	inTurn(t, s, func(tx *sql.Tx) error {
		for _, change := range []string{
			`DROP TABLE business`, `CREATE TABLE business (other INTEGER DEFAULT 7, value TEXT NOT NULL)`,
		} {
			if _, err := tx.Exec(change); err != nil {
				return err
			}
		}
		return put(tx)
	})
	inTurn(t, s, func(tx *sql.Tx) error {
		if _, err := tx.Exec(`CREATE TEMP TABLE business (value TEXT)`); err != nil {
			return err
		}
		return put(tx)
	})
	if n := rowsOf(t, s, "value"); n != 1 {
		t.Errorf("%d rows in the new table, want that of before there was a temporary one", n)
	}
	err := s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`UPDATE onceward_meta SET value = ?`, 0)
		return err
	})
	if err == nil {
		t.Error("E1: a handler could change the store's own tables")
	}
}

// TestStatementsThatAreNotKept: the same one twice at a time is two, one that returns rows is prepared each time, and their
// number is bounded.
func TestStatementsThatAreNotKept(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	const text = `SELECT value FROM business WHERE value <> ?`
	inTurn(t, s, func(tx *sql.Tx) error {
		for range 3 {
			if _, err := tx.Exec(`INSERT INTO business (value) VALUES (?)`, "value"); err != nil {
				return err
			}
		}
		rows, err := tx.Query(text, "")
		if err != nil {
			return err
		}
		defer rows.Close()
		n := 0
		for rows.Next() {
			if err := tx.QueryRow(text, "").Scan(new(string)); err != nil {
				return err
			}
			n++
		}
		if n != 3 {
			t.Errorf("%d rows, want 3: the second one of the same text reached into the first", n)
		}
		return rows.Err()
	})
	if s.writer.statements[text] != nil {
		t.Error("a statement is kept that returns rows")
	}
	for i := range 3 * maxStatements {
		inTurn(t, s, func(tx *sql.Tx) error {
			_, err := tx.Exec(fmt.Sprintf(`INSERT INTO business (value) VALUES (? || '%d')`, i), "")
			return err
		})
	}
	if n := len(s.writer.statements); n > maxStatements {
		t.Errorf("%d statements are kept, want %d at most", n, maxStatements)
	}
}

// TestColumnsAfterAChange: a query of a handler names the columns that there are, whatever became of the table since it
// last ran.
func TestColumnsAfterAChange(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	const text = `SELECT * FROM account WHERE id = ?`
	for _, columns := range []string{"id, owner, balance", "id, balance, owner", "id, owner"} {
		inTurn(t, s, func(tx *sql.Tx) error {
			_, err := tx.Exec(`DROP TABLE IF EXISTS account`)
			if err == nil {
				_, err = tx.Exec(`CREATE TABLE account (` + columns + `)`)
			}
			if err == nil {
				_, err = tx.Exec(`INSERT INTO account (id, owner) VALUES (1, 'ann')`)
			}
			return err
		})
		inTurn(t, s, func(tx *sql.Tx) error {
			rows, err := tx.Query(text, 1)
			if err != nil {
				return err
			}
			defer rows.Close()
			names, err := rows.Columns()
			if got := strings.Join(names, ", "); got != columns {
				t.Errorf("the columns are %s, want %s", got, columns)
			}
			for rows.Next() {
			}
			return errors.Join(err, rows.Err())
		})
	}
}

// TestRowsOutliveTheirStatement: rows that are read after their statement was closed do not run it again.
func TestRowsOutliveTheirStatement(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	inTurn(t, s, func(tx *sql.Tx) error {
		statement, err := tx.Prepare(`INSERT INTO business (value) VALUES (coalesce(?, 'ghost'))`)
		if err != nil {
			return err
		}
		rows, err := statement.Query("mine")
		if err != nil {
			return err
		}
		if err := statement.Close(); err != nil {
			return err
		}
		if rows.Next() {
			t.Error("an INSERT without RETURNING returned a row")
		}
		_ = rows.Close() // the statement is gone, which it may say
		return nil
	})
	if n := rowsOf(t, s, "ghost"); n != 0 {
		t.Errorf("E1: the statement ran %d times more, with none of its values", n)
	}
}
