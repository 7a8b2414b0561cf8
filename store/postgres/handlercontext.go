package postgres

import (
	"context"
	"sync"

	"github.com/onceward/onceward/store"
)

type gateKey struct{}

// handlerContext carries a transaction to a handler. It is a part of that transaction, so that a handler which only takes
// the transaction pays for no other context; what else it may be asked for is made when somebody asks.
type handlerContext struct {
	context.Context
	gate *gate

	once   sync.Once
	values context.Context
}

// Value implements [context.Context]. The *sql.Tx of the transaction is made when somebody asks for it.
func (c *handlerContext) Value(key any) any {
	if key == (gateKey{}) {
		return c.gate
	}
	c.once.Do(func() { c.values = store.ContextWithTxFunc(c.Context, c.gate.sql) })
	return c.values.Value(key)
}
