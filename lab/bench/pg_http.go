package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
)

// openHTTPPlain is a handler that does the business in a transaction of its own.
func openHTTPPlain(ctx context.Context, s *pgSite) (*arena, error) {
	if err := oneRow.create(ctx, s); err != nil {
		return nil, err
	}
	handler := payment(func(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return work(ctx, tx) })
	})
	check := func(ctx context.Context, done int64) error { return oneRow.check(ctx, s, done) }
	return serve(handler, s.callers, check, nil)
}

// openHTTPTransactional is the same handler behind a guard, which gives it the transaction.
func openHTTPTransactional(ctx context.Context, s *pgSite) (*arena, error) {
	store, err := openStore(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(oneRow.create(ctx, s), fillRecords(ctx, s, store)); err != nil {
		return nil, err
	}
	guard, err := onceward.New(store, onceward.Config{
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
		Secret: []byte("a secret of enough random bytes "),
	})
	if err != nil {
		return nil, err
	}
	handler := payment(func(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
		return work(ctx, storeTx(ctx))
	})
	check := func(ctx context.Context, done int64) error { return oneRow.checkRecords(ctx, s, done) }
	return serve(guard.Handler(handler, onceward.Transactional()), s.callers, check, store.Close)
}

// inTransaction calls work with the transaction that a handler writes through.
type inTransaction func(ctx context.Context, work func(context.Context, pgx.Tx) error) error

// sentPayment is what the handler reads of an order.
type sentPayment struct {
	Reference string
	Payment   struct{ Amount int64 }
}

// payment returns the handler of a payment: it reads what the client sent, books it, and answers.
func payment(within inTransaction) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent sentPayment
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		err := within(r.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, pgInsertPayment, rand.N(accounts), sent.Reference, sent.Payment.Amount, businessRow[2])
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	})
}

// serve starts a server on loopback, and returns an arena that calls it.
func serve(
	handler http.Handler, callers int, check func(context.Context, int64) error, closeStore func() error,
) (*arena, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", handler)
	server := &http.Server{Handler: mux}
	stopped := make(chan error, 1)
	go func() { stopped <- server.Serve(listener) }()
	return callOver(listener.Addr(), callers, check, server.Close, stopped, closeStore), nil
}

// callOver returns an arena whose operation is a request to a server over a connection that is kept.
func callOver(
	address net.Addr, callers int, check func(context.Context, int64) error, stop func() error, stopped <-chan error,
	closeStore func() error,
) *arena {
	transport := &http.Transport{MaxIdleConns: callers, MaxIdleConnsPerHost: callers}
	client := &http.Client{Transport: transport}
	target := "http://" + address.String() + "/payments"
	return &arena{
		operate: func(ctx context.Context) error { return post(ctx, client, target) },
		check:   check,
		close: func() error {
			transport.CloseIdleConnections()
			err := stop()
			if failed := <-stopped; !errors.Is(failed, http.ErrServerClosed) {
				err = errors.Join(err, failed)
			}
			if closeStore != nil {
				err = errors.Join(err, closeStore())
			}
			return err
		},
	}
}

// post sends a payment under a new key, and makes sure that it was executed.
func post(ctx context.Context, client *http.Client, target string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(order))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Authorization", "Bearer alice")
	request.Header.Set(onceward.DefaultKeyHeader, newKey())
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	replayed := response.Header.Get("Idempotent-Replayed")
	if response.StatusCode != http.StatusCreated || string(body) != answer || replayed != "" {
		return fmt.Errorf("the answer was %s with header %v: %s", response.Status, response.Header, body)
	}
	return nil
}
