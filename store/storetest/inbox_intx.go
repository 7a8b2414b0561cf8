package storetest

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
)

// inTxer is a store that runs transactions of the application: the part of inbox.Store that every test with such a
// transaction needs.
type inTxer interface {
	InTx(ctx context.Context, work func(ctx context.Context) error) error
}

// inTx runs work in a transaction of the application. Work that returns an error is rolled back.
func (e *env) inTx(work func(ctx context.Context) error) error {
	return e.Store.(inTxer).InTx(e.ctx, work)
}

// committed runs work in a transaction that must be committed.
func (e *env) committed(work func(ctx context.Context) error) {
	e.Helper()
	if err := e.inTx(work); err != nil {
		e.Fatalf("a transaction of the application: %v", err)
	}
}

// rolledBack runs work in a transaction that is undone after it.
func (e *env) rolledBack(work func(ctx context.Context) error) {
	e.Helper()
	err := e.inTx(func(ctx context.Context) error { return errors.Join(errUndone, work(ctx)) })
	if err == nil || err.Error() != errUndone.Error() {
		e.Fatalf("a transaction that is rolled back got %v, want the error of its work", err)
	}
}

// begin runs work in a transaction that stays open until end is called: with nil it is committed, with an error it is
// undone.
func (e *env) begin(work func(ctx context.Context) error) (end func(error) error) {
	e.Helper()
	ready, over, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once, ending sync.Once
	var verdict error
	go func() {
		done <- e.inTx(func(ctx context.Context) error {
			if err := work(ctx); err != nil {
				return err
			}
			once.Do(func() { close(ready) }) // the store may call the work again
			<-over
			return verdict
		})
	}()
	finish := func(err error) { ending.Do(func() { verdict = err; close(over) }) }
	e.Cleanup(func() { finish(errUndone) }) // for a test that fails in between
	select {
	case <-ready:
	case err := <-done:
		e.Fatalf("a transaction ended before its work did: %v", err)
	case <-e.ctx.Done():
		e.Fatal("a transaction does not get its work done while another one is open, but Features.ConcurrentTx is claimed")
	}
	return func(err error) error {
		finish(err)
		return await.Value(e, "the end of a transaction", done)
	}
}

// waits starts work in a transaction that must wait for another transaction, which end ends: it fails the test if the
// work finishes before that. It returns how the work's transaction ended.
func (e *env) waits(rule string, work func(ctx context.Context) error, end func() error) error {
	e.Helper()
	worked, done := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		done <- e.inTx(func(ctx context.Context) error {
			defer once.Do(func() { close(worked) })
			return work(ctx)
		})
	}()
	select {
	case <-worked:
		e.Errorf("%s: the second transaction did not wait for the first", rule)
	case <-time.After(glance):
	}
	if err := end(); err != nil && !errors.Is(err, errUndone) {
		e.Errorf("%s: the first transaction: %v", rule, err)
	}
	select {
	case err := <-done:
		return err
	case <-e.ctx.Done():
		e.Fatalf("%s: the second transaction still waits after the end of the first", rule)
		return nil
	}
}

// glance is how long a test checks whether something that must wait continues nevertheless. A store that waits never
// fails this check, however slow the machine is.
const glance = 100 * time.Millisecond

// errUndone makes a transaction roll back.
var errUndone = errors.New("undone by the test")

// tx returns the transaction in the context of work.
func (e *env) tx(ctx context.Context) *sql.Tx { return onceward.Tx(ctx) }
