package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// Handle is a handle of a pool. It uses the transaction of the guard if the context carries one, and the pool
// otherwise. It has the methods that generated queries and query builders need, so that repositories can use it instead
// of the pool without changes.
type Handle struct{ pool *pgxpool.Pool }

// DB returns the handle of a pool, preferably the pool that is given to [New]. Do not use it in handlers whose guard is
// on another database: it would use their transaction.
func DB(pool *pgxpool.Pool) *Handle { return &Handle{pool} }

// SQLDB returns the handle of a *sql.DB, preferably the one that is given to [NewSQL]. Do not use it in handlers whose
// guard is on another database: it would use their transaction.
func SQLDB(db *sql.DB) *store.SQLHandle { return store.NewSQLHandle(db) }

// WatchPool makes a pool report to the guard that a transactional handler asks the pool for a second connection
// while the handler's transaction holds one. The guard logs that once for each route, and counts it. Call
// WatchPool before the pool is made.
func WatchPool(config *pgxpool.Config) {
	before := config.ConnConfig.Tracer
	w := &poolWatch{Tracer: multitracer.New(), before: before}
	if before != nil {
		w.Tracer = multitracer.New(before)
	}
	config.ConnConfig.Tracer = w
}

// poolWatch is the tracer of a watched pool. It wraps the tracer that the service has set.
type poolWatch struct {
	*multitracer.Tracer
	before pgx.QueryTracer
}

// TraceAcquireStart implements [pgxpool.AcquireTracer]. It is called before the pool waits for a connection.
func (w *poolWatch) TraceAcquireStart(
	ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireStartData,
) context.Context {
	sqltx.AskedPool(ctx, pool)
	return w.Tracer.TraceAcquireStart(ctx, pool, data)
}

// querier is the interface that a pool and a transaction have in common.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

// of returns the transaction or the pool on which the statements of a context run.
func (h *Handle) of(ctx context.Context) querier {
	if tx, ok := LookupTx(ctx); ok {
		return tx
	}
	return h.pool
}

// Exec runs a statement.
func (h *Handle) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return h.of(ctx).Exec(ctx, sql, args...)
}

// Query runs a statement that returns rows.
func (h *Handle) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return h.of(ctx).Query(ctx, sql, args...)
}

// QueryRow runs a statement that returns one row.
func (h *Handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return h.of(ctx).QueryRow(ctx, sql, args...)
}

// SendBatch runs several statements in one round trip.
func (h *Handle) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return h.of(ctx).SendBatch(ctx, batch)
}

// CopyFrom copies rows into a table.
func (h *Handle) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource,
) (int64, error) {
	return h.of(ctx).CopyFrom(ctx, table, columns, source)
}

// Begin begins a transaction. In the transaction of the guard it is a savepoint.
func (h *Handle) Begin(ctx context.Context) (pgx.Tx, error) { return h.of(ctx).Begin(ctx) }

// BeginTx begins a transaction with options. In the transaction of the guard it is a savepoint, and options are
// refused: the guard's transaction has begun, at the level of its route.
func (h *Handle) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, ok := LookupTx(ctx)
	switch {
	case !ok:
		return h.pool.BeginTx(ctx, options)
	case options != pgx.TxOptions{}:
		return nil, fmt.Errorf("postgres: a savepoint has the settings of the guard's transaction, not %+v: "+
			"set the level of the route with onceward.Isolation", options)
	}
	return tx.Begin(ctx)
}
