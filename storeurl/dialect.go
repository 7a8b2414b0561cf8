package storeurl

import (
	"context"
	"database/sql"
	"regexp"

	"github.com/onceward/onceward"
)

// parameter matches a parameter of a statement, such as $1.
var parameter = regexp.MustCompile(`\$[0-9]+`)

// Bind returns a statement of the application in the syntax of the database, so that one handler works with several
// databases. The statement has the parameters $1, $2 and so on, each once and in order, because MySQL and SQLite count
// parameters by their position. On MySQL each of them becomes a ?.
func (d *Database) Bind(statement string) string {
	if d.engine != MySQL {
		return statement
	}
	return parameter.ReplaceAllLiteralString(statement, "?")
}

// Define creates tables of the application, by statements that can be repeated, such as CREATE TABLE IF NOT EXISTS.
// They run in one transaction, and processes that start at the same time wait for each other: on PostgreSQL one of two
// simultaneous statements would fail. On MySQL each statement commits automatically, and does not fail because another
// process runs the same statement.
func (d *Database) Define(ctx context.Context, statements ...string) error {
	if d.engine == MySQL {
		return execute(ctx, d.reads, statements)
	}
	return d.InTx(ctx, func(ctx context.Context) error {
		tx := onceward.Tx(ctx)
		if err := d.LockName(ctx, tx, "define the tables of the application"); err != nil {
			return err
		}
		return execute(ctx, tx, statements)
	})
}

func execute(ctx context.Context, in interface {
	ExecContext(ctx context.Context, statement string, args ...any) (sql.Result, error)
}, statements []string,
) error {
	for _, statement := range statements {
		if _, err := in.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// HasColumn reports whether a table has a column. It is for programs that add columns to tables of an earlier version:
// SQLite has no ADD COLUMN IF NOT EXISTS.
func (d *Database) HasColumn(ctx context.Context, tx *sql.Tx, table, column string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, d.countColumns, table, column).Scan(&n)
	return n > 0, err
}
