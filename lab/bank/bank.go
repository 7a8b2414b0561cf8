// Package bank is a service of the shape that banks have: gin with bindings, queries as sqlc writes them on a pool, a
// gRPC service behind grpc-gateway, tasks for a queue, and tools for language models. It was written without Onceward,
// with tests of its own, and adopted Onceward afterwards: docs/existing-service.md describes what that takes.
package bank

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/lab/bank/db"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// Queue takes tasks that workers do later, as asynq's client does.
type Queue interface {
	Enqueue(ctx context.Context, task, payload string) error
}

// taskVerify sends a letter to a new user.
const taskVerify = "email:verify"

// What is wrong with a request.
var (
	errNotFound     = errors.New("there is no such account")
	errNotOwner     = errors.New("the account belongs to another user")
	errCurrency     = errors.New("the account has another currency")
	errInsufficient = errors.New("the balance is too low")
	errTaken        = errors.New("the name or the address is taken")
)

// Bank is the service.
type Bank struct {
	*server
	*service
	store   *accounts
	records *postgres.Store
	guard   *onceward.Guard
	cleaner *janitor.Janitor
	// Deliver gives the tasks of committed operations to the queue.
	Deliver *outbox.Worker
}

// Open opens the bank in a database.
func Open(ctx context.Context, pool *pgxpool.Pool, secret []byte, queue Queue) (*Bank, error) {
	records, err := postgres.New(ctx, pool)
	if err != nil {
		return nil, err
	}
	guard, err := onceward.New(records, onceward.Config{Scope: callerOf, Secret: secret, Namespace: "bank"})
	if err != nil {
		return nil, err
	}
	return New(pool, records, guard, secret, queue)
}

// New builds the bank over a guard.
func New(pool *pgxpool.Pool, records *postgres.Store, guard *onceward.Guard, secret []byte, queue Queue) (*Bank, error) {
	box, err := outbox.New(records, outbox.Config{})
	if err != nil {
		return nil, err
	}
	worker, err := outbox.NewWorker(records, outbox.WorkerConfig{Routes: map[string]outbox.Route{
		taskVerify: {Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{}, queue.Enqueue(ctx, taskVerify, string(d.Payload))
		}},
	}})
	if err != nil {
		return nil, err
	}
	cleaner, err := janitor.New(records, janitor.Config{})
	if err != nil {
		return nil, err
	}
	store := &accounts{Queries: db.New(postgres.DB(pool)), pool: postgres.DB(pool)}
	server, err := newServer(store, tokens{secret}, queue, guard, box)
	if err != nil {
		return nil, err
	}
	service, err := newService(store, tokens{secret}, guard)
	return &Bank{
		store: store, records: records, guard: guard, cleaner: cleaner, Deliver: worker, server: server, service: service,
	}, err
}

// Run serves HTTP until the context ends, delivers tasks, and removes old records.
func (b *Bank) Run(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: b, ReadHeaderTimeout: 5 * time.Second}
	return onceward.Run(ctx, b.cleaner, b.Deliver, b.guard.Server(server, listener, 30*time.Second))
}

// Close waits for the operations that are under way, by whichever server, and closes the store. The pool stays open.
func (b *Bank) Close(ctx context.Context) error {
	return errors.Join(b.guard.Wait(ctx), b.records.Close())
}

// accounts is the database of the bank.
type accounts struct {
	*db.Queries
	pool *postgres.Handle
}

// execTx runs a part in a transaction.
func (s *accounts) execTx(ctx context.Context, part func(*db.Queries) error) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := part(s.WithTx(tx)); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// createUser adds a user, and does what follows in the same transaction.
func (s *accounts) createUser(ctx context.Context, user db.User, after func(db.User) error) error {
	err := s.execTx(ctx, func(q *db.Queries) error {
		if err := q.CreateUser(ctx, user); err != nil {
			return err
		}
		return after(user)
	})
	if isCode(err, "23505") {
		return fmt.Errorf("%w: %w", errTaken, err)
	}
	return err
}

// transferResult is what a transfer did.
type transferResult struct {
	Transfer db.Transfer `json:"transfer"`
	From     db.Account  `json:"from_account"`
}

// transfer moves money of a user from one account to another.
func (s *accounts) transfer(ctx context.Context, user string, arg db.CreateTransferParams, currency string) (result transferResult, err error) {
	from, err := s.account(ctx, arg.FromAccountID, currency)
	if err != nil {
		return result, err
	}
	if from.Owner != user {
		return result, errNotOwner
	}
	if _, err := s.account(ctx, arg.ToAccountID, currency); err != nil {
		return result, err
	}
	err = s.execTx(ctx, func(q *db.Queries) (err error) {
		if result.Transfer, err = q.CreateTransfer(ctx, arg); err != nil {
			return err
		}
		move := func(id, amount int64) (db.Account, error) {
			return q.AddAccountBalance(ctx, db.AddAccountBalanceParams{ID: id, Amount: amount})
		}
		if arg.FromAccountID < arg.ToAccountID { // in one order, so that two transfers do not wait for each other
			if result.From, err = move(arg.FromAccountID, -arg.Amount); err == nil {
				_, err = move(arg.ToAccountID, arg.Amount)
			}
			return err
		}
		if _, err = move(arg.ToAccountID, arg.Amount); err == nil {
			result.From, err = move(arg.FromAccountID, -arg.Amount)
		}
		return err
	})
	if isCode(err, "23514") {
		return result, fmt.Errorf("%w: %w", errInsufficient, err)
	}
	return result, err
}

// account reads an account of a currency.
func (s *accounts) account(ctx context.Context, id int64, currency string) (db.Account, error) {
	account, err := s.GetAccount(ctx, id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return account, errNotFound
	case err == nil && account.Currency != currency:
		return account, errCurrency
	}
	return account, err
}

func isCode(err error, code string) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refused.Code == code
}
