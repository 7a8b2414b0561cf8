package onceward

import (
	"context"
	"database/sql"

	"github.com/onceward/onceward/store"
)

// Tx returns the transaction of a transactional handler. What the handler writes through it becomes durable together with
// its answer, or not at all. The guard ends it: its Commit and Rollback return [ErrTxOwned].
//
// It panics if the context has none, because the route is not [Transactional] or its store hands out another type: writing
// past the transaction would undo the guarantee without a sign. [LookupTx] asks without a panic.
func Tx(ctx context.Context) *sql.Tx {
	tx, ok := LookupTx(ctx)
	if !ok {
		panic("onceward: no *sql.Tx in this context: is the route built with onceward.Transactional() on a database/sql store, is its method one that is protected (POST and PATCH, unless onceward.Methods says otherwise), and is the context the handler's own?")
	}
	return tx
}

// LookupTx returns the transaction of a transactional handler, if there is one.
func LookupTx(ctx context.Context) (*sql.Tx, bool) { return store.LookupTx(ctx) }
