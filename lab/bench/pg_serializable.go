package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The table that well-known articles propose: a key with the parameters of its request, found by user and key.
const (
	createArticle = `CREATE TABLE idempotency_keys (
			id bigserial PRIMARY KEY,
			created_at timestamptz NOT NULL DEFAULT now(),
			idempotency_key text NOT NULL CHECK (char_length(idempotency_key) <= 100),
			last_run_at timestamptz NOT NULL DEFAULT now(),
			locked_at timestamptz DEFAULT now(),
			request_method text NOT NULL CHECK (char_length(request_method) <= 10),
			request_params jsonb NOT NULL,
			request_path text NOT NULL CHECK (char_length(request_path) <= 100),
			response_code int,
			response_body jsonb,
			recovery_point text NOT NULL CHECK (char_length(recovery_point) <= 50),
			user_id bigint NOT NULL);
		CREATE UNIQUE INDEX idempotency_keys_user_id_idempotency_key ON idempotency_keys (user_id, idempotency_key)`
	// fillArticle writes finished keys as the design leaves them.
	fillArticle = `INSERT INTO idempotency_keys (idempotency_key, locked_at, request_method, request_params, request_path,
			response_code, response_body, recovery_point, user_id)
		SELECT gen_random_uuid()::text, NULL, 'POST', '` + articleParams + `', '/payments', 201, '` +
		answer + `', 'finished', 1042
		FROM generate_series(1, $1::int)`
	// articleParams is a typical request.
	articleParams = `{"amount":18497,"currency":"EUR","reference":"ORD-2024-000184",` +
		`"source":"tok_1MzxLq2eZvKYlo2CqQTfYQ4B"}`
)

// The statements of the design. They name the row by its primary key, as the articles do and any mapper of objects
// does. All transactions then read the last page of the same index, into which all others insert: SERIALIZABLE takes
// that for a conflict.
const (
	articleSelect = `SELECT id, locked_at, request_params, response_code, response_body, recovery_point
		FROM idempotency_keys WHERE user_id = $1 AND idempotency_key = $2`
	articleInsert = `INSERT INTO idempotency_keys
			(idempotency_key, locked_at, request_method, request_params, request_path, recovery_point, user_id)
		VALUES ($1, NULL, 'POST', $2, '/payments', 'started', $3) RETURNING id`
	articleLock   = `UPDATE idempotency_keys SET last_run_at = now(), locked_at = now() WHERE id = $1`
	articleFinish = `UPDATE idempotency_keys SET response_code = $1, response_body = $2, locked_at = NULL, recovery_point = 'finished'
		WHERE id = $3`
	articleUser = 1042
)

// maxRetries ends a loop of conflicts that a person would want to know about.
const maxRetries = 1000

// articlePause is how long a transaction that met a conflict waits at most before it is run again, longer each time. Who
// comes again at once meets the same neighbours: the more conflicts there are the more there will be, and the rate is a
// matter of luck.
const articlePause = 10 * time.Millisecond

// openArticle is the check-then-insert of the articles with one business insert, all in one transaction. Its table holds
// keys when a turn begins: in an empty one all keys share a page of the index, and SERIALIZABLE then takes almost any two
// transactions for a conflict, which would not be the design's everyday life.
func openArticle(pause time.Duration) func(context.Context, *pgSite) (*arena, error) {
	return func(ctx context.Context, s *pgSite) (*arena, error) { return openArticleTable(ctx, s, pause) }
}

func openArticleTable(ctx context.Context, s *pgSite, pause time.Duration) (*arena, error) {
	if _, err := s.pool.Exec(ctx, createArticle); err != nil {
		return nil, err
	}
	if _, err := s.pool.Exec(ctx, fillArticle, s.rows); err != nil {
		return nil, err
	}
	if _, err := s.pool.Exec(ctx, `VACUUM ANALYZE idempotency_keys`); err != nil {
		return nil, err
	}
	var retried atomic.Int64
	return &arena{
		operate: func(ctx context.Context) error {
			retries, err := serializably(ctx, s, newKey(), pause)
			retried.Add(int64(retries))
			return err
		},
		check: func(ctx context.Context, done int64) error {
			err := s.expect(ctx, done+s.rows, `SELECT count(*) FROM idempotency_keys WHERE recovery_point = 'finished'`)
			return errors.Join(err, oneRow.check(ctx, s, done))
		},
		remark: func(done int64) string {
			return fmt.Sprintf("%d conflicts for %d operations", retried.Load(), done)
		},
	}, oneRow.create(ctx, s)
}

// serializably runs the transaction until it meets no conflict, with a pause of random length after each.
func serializably(ctx context.Context, s *pgSite, key string, pause time.Duration) (retries int, err error) {
	for retries = range maxRetries {
		err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			return checkThenInsert(ctx, tx, key)
		})
		if !conflicted(err) {
			return retries, err
		}
		if pause > 0 {
			time.Sleep(rand.N(pause * time.Duration(retries+1)))
		}
	}
	return retries, err
}

// conflicted reports whether the server asks for the transaction to be run again.
func conflicted(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.Code == "40001" || refused.Code == "40P01")
}

// checkThenInsert is a round trip for each step.
func checkThenInsert(ctx context.Context, tx pgx.Tx, key string) error {
	rows, err := tx.Query(ctx, articleSelect, articleUser, key)
	if err != nil {
		return err
	}
	known := rows.Next()
	rows.Close()
	if err := rows.Err(); err != nil || known {
		return fmt.Errorf("a new key was looked for, found: %t: %w", known, err)
	}
	var id int64
	if err := tx.QueryRow(ctx, articleInsert, key, articleParams, articleUser).Scan(&id); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, articleLock, id); err != nil {
		return err
	}
	if err := oneRow.work(ctx, tx); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, articleFinish, http.StatusCreated, answer, id)
	return err
}
