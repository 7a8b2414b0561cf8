package sqltx

import (
	"context"

	"github.com/onceward/onceward/store"
)

// PoolKey is the key under which the context of a transaction has a value if a connection of the pool holds the
// transaction. The context of a transactional handler notes that the value was asked for.
type PoolKey struct{ Pool any }

// AskedPool reports to the guard whose transaction a context carries that its handler asks a pool for a connection, if
// the transaction holds another connection of the pool.
func AskedPool(ctx context.Context, pool any) { _ = store.Value(ctx, PoolKey{pool}) }
