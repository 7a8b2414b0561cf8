package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/internal/redial"
	"github.com/onceward/onceward/internal/sqltx"
)

// repeatUndone calls do, and calls it again a few times if the server undid it because of concurrent transactions.
// Nothing was done then, whether a statement or the commit returned the error, so do need not be safe to repeat.
func repeatUndone(ctx context.Context, do func() error) error { return repeatOn(ctx, undone, do) }

// repeatOn calls do, and calls it again a few times after errors for which again returns true.
func repeatOn(ctx context.Context, again func(error) bool, do func() error) error {
	for tries := 1; ; tries++ {
		err := do()
		if err == nil || !again(err) || tries >= sqltx.MaxUndone || !sqltx.PauseUndone(ctx, tries) {
			return err
		}
	}
}

// ownPool is the pool for the store's own statements. Each statement is a transaction of its own, and is repeated if
// the server undoes it: behind a pooler, transactions may be more isolated than they need to be.
type ownPool struct {
	*pgxpool.Pool
	gate redial.Gate
}

// errUnconnected is the error of a call for which there was no connection.
var errUnconnected = errors.New("no connection")

// Acquire takes a connection.
func (p *ownPool) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := redial.Do(ctx, &p.gate, func(int) bool { return makes(p.Pool) }, p.Pool.Acquire)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnconnected, err)
	}
	return conn, nil
}

// repeated calls do, which must be safe to repeat. It calls do once more if a connection turned out to be dead, which
// resent reports, and a few times if the server undid it. If no connection can be made it does not try again, because
// the next attempt would fail too.
func (p *ownPool) repeated(ctx context.Context, do func() error) (resent bool, err error) {
	again := func(err error) bool {
		dead := lost(err) && !resent && !errors.Is(err, errUnconnected)
		if ctx.Err() != nil || fromStandby(err) || !dead && !undone(err) {
			return false
		}
		if dead {
			resent = true
			p.Reset() // the other connections are probably dead too
		}
		return true
	}
	err = unavailable(repeatOn(ctx, again, do))
	return resent, err
}

// AcquireFunc calls a function with a connection.
func (p *ownPool) AcquireFunc(ctx context.Context, do func(*pgxpool.Conn) error) error {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return do(conn)
}

// Exec runs a statement.
func (p *ownPool) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = repeatUndone(ctx, func() (err error) {
		tag, err = p.Pool.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

// QueryRow runs a statement that returns one row, when the row is read.
func (p *ownPool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return &ownRow{ctx, p.Pool, sql, args}
}

// ownRow is the row of a statement that was not run yet.
type ownRow struct {
	ctx  context.Context
	pool *pgxpool.Pool
	sql  string
	args []any
}

// Scan runs the statement and reads the row.
func (r *ownRow) Scan(dest ...any) error {
	return repeatUndone(r.ctx, func() error { return r.pool.QueryRow(r.ctx, r.sql, r.args...).Scan(dest...) })
}

// transact runs a batch that begins a transaction and ends it. If the server refuses one of the statements, the others
// are skipped, including the end. transact then rolls back, because the pool would otherwise drop the connection.
func (p *ownPool) transact(ctx context.Context, batch *pgx.Batch) error {
	return p.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		err := conn.SendBatch(ctx, batch).Close()
		if err != nil {
			err = errors.Join(err, rollback(conn.Conn(), lookTimeout))
		}
		return err
	})
}

// collect runs a statement that returns rows, and reads all of them.
func collect[T any](
	ctx context.Context, p *ownPool, sql string, args []any, read pgx.RowToFunc[T],
) (all []T, err error) {
	err = repeatUndone(ctx, func() error {
		rows, err := p.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, read)
		return err
	})
	return all, err
}
