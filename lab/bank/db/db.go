// Package db is the queries of the bank, as sqlc writes them for pgx.
package db

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DBTX is what queries run on: a pool or a transaction.
type DBTX interface {
	Exec(context.Context, string, ...interface{}) (pgconn.CommandTag, error)
	Query(context.Context, string, ...interface{}) (pgx.Rows, error)
	QueryRow(context.Context, string, ...interface{}) pgx.Row
}

// New returns the queries on a pool or a transaction.
func New(db DBTX) *Queries {
	return &Queries{db: db}
}

// Queries are the queries.
type Queries struct {
	db DBTX
}

// WithTx returns the queries on a transaction.
func (q *Queries) WithTx(tx pgx.Tx) *Queries {
	return &Queries{
		db: tx,
	}
}
