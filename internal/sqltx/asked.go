package sqltx

import (
	"context"

	"github.com/onceward/onceward/store"
)

// PoolKey is a context key. The context of a transaction has a value under this key if the transaction holds a
// connection of the pool. The context of a transactional handler records each lookup of the key.
type PoolKey struct{ Pool any }

// AskedPool reports to the guard of a transactional handler that the handler asks a pool for a connection while its
// transaction holds another connection of that pool. The context carries the transaction.
func AskedPool(ctx context.Context, pool any) { _ = store.Value(ctx, PoolKey{pool}) }
