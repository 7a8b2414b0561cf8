package storeurl

import (
	"context"
	"database/sql"
	"regexp"

	"github.com/onceward/onceward"
)

// parameter is one of a statement.
var parameter = regexp.MustCompile(`\$[0-9]+`)

// Bind writes a statement of the application with the parameters $1, $2 and so on as the database takes it, so that one
// handler serves several: MySQL has ? for all of them. Each appears once and in order, because MySQL and SQLite count
// them as they come.
func (d *Database) Bind(statement string) string {
	if d.engine != MySQL {
		return statement
	}
	return parameter.ReplaceAllLiteralString(statement, "?")
}

// Define makes tables of the application, by statements that can be repeated, such as CREATE TABLE IF NOT EXISTS. They
// are one transaction, for which processes that start at one time wait: on PostgreSQL two of them would fail at once.
// On MySQL each statement commits by itself, and none of them fails for the same one beside it.
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

// HasColumn reports whether a table has a column, for programs that add to tables of an earlier version: SQLite has no
// ADD COLUMN IF NOT EXISTS.
func (d *Database) HasColumn(ctx context.Context, tx *sql.Tx, table, column string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, d.countColumns, table, column).Scan(&n)
	return n > 0, err
}
