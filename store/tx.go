package store

import (
	"context"
	"database/sql"
)

type txKey struct{}

// ContextWithTx returns a context from which a handler takes the transaction, with onceward.Tx. It is for stores that implement
// [Transactor] over database/sql.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// ContextWithTxFunc is [ContextWithTx] for stores whose own handle is not a *sql.Tx: the function is called each time the
// transaction is asked for, so that a handler that does not ask does not pay. It returns the same transaction each time, or
// nil if it cannot.
func ContextWithTxFunc(ctx context.Context, tx func() *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// LookupTx returns the transaction of the context, if there is one.
func LookupTx(ctx context.Context) (*sql.Tx, bool) {
	switch tx := ctx.Value(txKey{}).(type) {
	case *sql.Tx:
		return tx, true
	case func() *sql.Tx:
		made := tx()
		return made, made != nil
	default:
		return nil, false
	}
}
