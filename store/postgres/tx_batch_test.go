package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

// batchBeginner is a *pgx.Batch from v5.12.0 on.
type batchBeginner interface{ BeginTx(pgx.TxOptions) }

// beginningBatch is a batch that begins a transaction, as far as this pgx has such a thing, and then inserts a row.
func beginningBatch(options pgx.TxOptions, value string) *pgx.Batch {
	batch := &pgx.Batch{}
	if b, ok := any(batch).(batchBeginner); ok {
		b.BeginTx(options)
	} else if options.BeginQuery != "" {
		batch.Queue(options.BeginQuery)
	} else {
		batch.Queue("begin")
	}
	batch.Queue(insertion, value)
	return batch
}

// endBatchTx tries to end the transaction that the results of a batch hand out.
func endBatchTx(t *testing.T, ctx context.Context, results pgx.BatchResults) {
	t.Helper()
	tx := results.(interface{ Tx() pgx.Tx }).Tx()
	if tx == nil {
		if _, ok := any(&pgx.Batch{}).(batchBeginner); ok {
			t.Error("a batch that began a transaction hands out none: its deferred Rollback panics")
		}
		return
	}
	ownedErr(t, "Commit of the batch's transaction", tx.Commit(ctx))
	ownedErr(t, "Rollback of the batch's transaction", tx.Rollback(ctx))
}

// TestBatchBeginsNoTransaction: a batch of pgx v5.12.0 may begin a transaction and hand it out. Inside of a handler
// that would be the handler's own, without its gate.
func TestBatchBeginsNoTransaction(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		must(t, insertPgx(ctx, "before"))
		results := tx.SendBatch(ctx, beginningBatch(pgx.TxOptions{}, "refused"))
		endBatchTx(t, ctx, results)
		if err := results.Close(); !errors.Is(err, store.ErrTxOwned) {
			t.Errorf("E1: a batch that begins a transaction got %v, want ErrTxOwned", err)
		}
		s.wantRows("E1: nothing is visible before the end")
		must(t, insertPgx(ctx, "behind"))
	})
	s.wantRows("E1", "before", "behind")
}

// TestBatchHandsOutNoRawTransaction: with a statement of its own that begins, a batch cannot be told from any other
// before pgx hands out its transaction.
func TestBatchHandsOutNoRawTransaction(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		results := tx.SendBatch(ctx, beginningBatch(pgx.TxOptions{BeginQuery: `SELECT 1`}, "batch"))
		must(t, results.Close())
		endBatchTx(t, ctx, results)
		s.wantRows("E1: nothing is visible before the end")
		must(t, insertPgx(ctx, "behind"))
		plain := &pgx.Batch{}
		plain.Queue(insertion, "plain")
		results = tx.SendBatch(ctx, plain)
		must(t, results.Close())
		if results.(interface{ Tx() pgx.Tx }).Tx() != nil {
			t.Error("a batch that began no transaction hands one out")
		}
	})
	s.wantRows("E1", "batch", "behind", "plain")
}
