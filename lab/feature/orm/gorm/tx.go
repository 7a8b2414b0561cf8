package payments

import (
	"context"

	"github.com/onceward/onceward"
	"gorm.io/gorm"
)

// OnTx returns GORM on the transaction of the guard. Of db it takes the dialect and the settings, and no connection.
func OnTx(ctx context.Context, db *gorm.DB) *gorm.DB {
	tx := db.Session(&gorm.Session{NewDB: true, Context: ctx})
	tx.Statement.ConnPool = onceward.Tx(ctx)
	return tx
}
