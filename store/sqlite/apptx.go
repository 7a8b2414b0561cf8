package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// appTx is a transaction of the application: a *sql.Tx, or what embeds one, such as that of sqlx. That it can be ended is
// what tells it from a *sql.DB or a *sql.Conn, on which each statement would commit by itself.
type appTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	Commit() error
	Rollback() error
}

// appTxOf refuses what is not a transaction.
func appTxOf(tx any) (appTx, error) {
	own, ok := tx.(appTx)
	if plain, isPlain := tx.(*sql.Tx); !ok || isPlain && plain == nil {
		return nil, fmt.Errorf("sqlite: %s is not a transaction: pass the *sql.Tx of onceward.Tx(ctx) or Store.Update, or what embeds one", describe(tx))
	}
	return own, nil
}

// describe names a value that is not a transaction.
func describe(tx any) string {
	if plain, isPlain := tx.(*sql.Tx); tx == nil || isPlain && plain == nil {
		return "nil"
	}
	return fmt.Sprintf("a %T", tx)
}
