package store

import (
	"context"
	"database/sql"
	"time"
)

// Transactor is a store that can put the claim, the work and the answer into one database transaction.
type Transactor interface {
	// Transact decides like Reserve, but makes nothing visible before the end. If the decision is [DecisionExecute] it
	// calls work with a context that carries the transaction, and ends the transaction as work says. It may call work
	// again after a rollback that was not work's own doing, never after a commit. The context bounds the wait until
	// work starts, not the work and what follows it.
	//
	// It returns [ErrOutcomeUnknown] if it cannot learn whether the transaction was committed. After any other error
	// nothing was executed; one that wraps [ErrDeadline] says that work took too long, and one that wraps
	// [ErrWorkRefused] that the database refused at the commit what work had written.
	Transact(ctx context.Context, r *Reservation, work func(ctx context.Context, v Verdict) Settlement) (Verdict, error)
	// LongestWork is the longest that work may take, zero for no limit. The transaction of work that takes longer, with
	// a little grace, is revoked: it is undone and its key is free, although Transact returns only when work does. It is
	// less than the lease where all other writes wait for work.
	LongestWork(lease time.Duration) time.Duration
	// InFlight reports whether a transaction for the ID is under way, as far as this process can see.
	InFlight(id ID) bool
}

// TxCheckpointer is a store that can commit a checkpoint together with what a handler writes.
type TxCheckpointer interface {
	// CheckpointTx calls work with a context that carries a transaction, as [Transactor] does, and commits what work
	// wrote together with the checkpoint that it returned, if the claim still holds. It may call work again after a
	// rollback that was not work's own doing, never after a commit. A node that stops in mid-work holds on to what it
	// locked for little longer than the lease.
	//
	// An error of work undoes everything and is returned as it is. It returns [ErrOutcomeUnknown] if it cannot learn
	// whether the transaction was committed, together with [ErrTxOwned], and without the error of work, if work itself
	// ended it; after any other error nothing was. One that wraps [ErrWorkRefused] says that the database refused at the
	// commit what work had written.
	CheckpointTx(ctx context.Context, c Claim, lease time.Duration,
		work func(ctx context.Context) (Checkpoint, error)) error
}

// TxAction is what is done with the transaction of work that has returned.
type TxAction uint8

// The actions at the end of transactional work.
const (
	// TxRollback undoes everything and leaves no trace: the retry executes from the beginning.
	TxRollback TxAction = iota
	// TxCommit keeps the work and the answer.
	TxCommit
	// TxCommitAnswer undoes the work and keeps the answer.
	TxCommitAnswer
)

// Settlement is what transactional work wants done with its transaction.
type Settlement struct {
	// Action is whether it is committed.
	Action TxAction
	// Completion is the answer, unless Action is [TxRollback].
	Completion Completion
}

type txKey struct{}

// ContextWithTx returns a context from which work takes the transaction, with onceward.Tx. It is for stores that
// implement [Transactor] over database/sql, and for tests that call a handler by itself, without a guard: the
// transaction is then the test's to end. For a handler that uses pgx there is postgres.ContextWithTx.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// ContextWithTxFunc is [ContextWithTx] for stores whose own handle is not a *sql.Tx: the function is called each time
// the transaction is asked for, so that a handler that does not ask does not pay. It returns the same transaction each
// time, or nil if it cannot.
func ContextWithTxFunc(ctx context.Context, tx func() *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// LookupTx returns the transaction of the context, if there is one.
func LookupTx(ctx context.Context) (*sql.Tx, bool) {
	switch tx := Value(ctx, txKey{}).(type) {
	case *sql.Tx:
		return tx, true
	case func() *sql.Tx:
		made := tx()
		return made, made != nil
	default:
		return nil, false
	}
}
