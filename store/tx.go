package store

import (
	"context"
	"database/sql"
	"time"
)

// Transactor is a store that can put the claim, the work and the answer into one database transaction.
type Transactor interface {
	// Transact decides like Reserve, but makes nothing visible before the transaction ends. If the decision is
	// [DecisionExecute] it calls work with a context that carries the transaction, and ends the transaction as work's
	// [Settlement] requests. It may call work again after a rollback that work did not request, never after a commit.
	// The context bounds the wait until work starts, not the work and what follows it.
	//
	// It returns [ErrOutcomeUnknown] if it cannot find out whether the transaction was committed. After any other error
	// nothing was executed; an error that wraps [ErrDeadline] means that work took too long, and an error that wraps
	// [ErrWorkRefused] means that the database refused work's writes at the commit.
	Transact(ctx context.Context, r *Reservation, work func(ctx context.Context, v Verdict) Settlement) (Verdict, error)
	// LongestWork returns the longest duration of work, zero for no limit. If work takes longer, after a short grace
	// its transaction is revoked: the transaction is undone and the key is free, although Transact returns only when
	// work returns. The duration is less than the lease in stores where all other writes wait for work.
	LongestWork(lease time.Duration) time.Duration
	// InFlight reports whether a transaction for the ID is in progress, as far as this process can see.
	InFlight(id ID) bool
}

// TxCheckpointer is a store that can commit a checkpoint together with a handler's writes.
type TxCheckpointer interface {
	// CheckpointTx calls work with a context that carries a transaction, as [Transactor] does, and commits work's
	// writes together with the checkpoint that it returned, if the claim still holds. It may call work again after a
	// rollback that work did not request, never after a commit. If the node stops during work, its locks end shortly
	// after the lease.
	//
	// An error of work undoes everything and is returned as it is. It returns [ErrOutcomeUnknown] if it cannot find out
	// whether the transaction was committed; if work itself ended the transaction, the error also wraps [ErrTxOwned],
	// and does not wrap the error of work. After any other error nothing was committed. An error that wraps
	// [ErrWorkRefused] means that the database refused work's writes at the commit.
	CheckpointTx(ctx context.Context, c Claim, lease time.Duration,
		work func(ctx context.Context) (Checkpoint, error)) error
}

// TxAction is the end of the transaction after work has returned.
type TxAction uint8

// These are the actions at the end of transactional work.
const (
	// TxRollback undoes everything: a retry executes from the beginning.
	TxRollback TxAction = iota
	// TxCommit keeps the work and the answer.
	TxCommit
	// TxCommitAnswer undoes the work and keeps the answer.
	TxCommitAnswer
)

// Settlement is work's request for the end of its transaction.
type Settlement struct {
	// Action is the end of the transaction.
	Action TxAction
	// Completion is the answer, unless Action is [TxRollback].
	Completion Completion
}

type txKey struct{}

// ContextWithTx returns a context from which work gets the transaction with onceward.Tx. It is for stores that
// implement [Transactor] over database/sql, and for tests that call a handler without a guard: the test then ends the
// transaction. For a handler that uses pgx, use postgres.ContextWithTx.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// ContextWithTxFunc does the same as [ContextWithTx] for stores whose own handle is not a *sql.Tx: the function is
// called each time the transaction is requested, so that a handler that does not use it does not pay. It returns the
// same transaction each time, or nil if it cannot.
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
