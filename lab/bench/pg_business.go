package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
)

// pgBusiness is the work that is protected, or not: every contender of a figure does the same.
type pgBusiness struct {
	schema string
	work   func(ctx context.Context, tx pgx.Tx) error
	// counts are queries that each find how often the work was done, beside the payments.
	counts []string
}

// oneRow is a business transaction of one insert.
var oneRow = pgBusiness{
	schema: `CREATE TABLE payment (
			id uuid PRIMARY KEY DEFAULT gen_random_uuid(), customer bigint NOT NULL, reference text NOT NULL, amount bigint NOT NULL,
			detail text NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
		CREATE INDEX ON payment (customer, created_at)`,
	work: func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, pgInsertPayment, rand.N(accounts), businessRow[0], businessRow[1], businessRow[2])
		return err
	},
}

// rowsBefore is how many payments, and how many records, are there before anything is timed: on an empty table all
// callers meet on the same few pages.
const rowsBefore = 50_000

const fillPayments = `INSERT INTO payment (customer, reference, amount, detail)
	SELECT number % $1, 'ORD-2024-000184', 18497, 'card tok_1MzxLq2eZvKYlo2CqQTfYQ4B' FROM generate_series(1, $2::bigint) number`

const pgInsertPayment = `INSERT INTO payment (customer, reference, amount, detail) VALUES ($1, $2, $3, $4)`

// accounts is how many balances there are: so many that callers seldom wait for one another's row.
const accounts = 10_000

// threeStatements is a payment with the account that it is taken from and the entry in the ledger.
var threeStatements = pgBusiness{
	schema: oneRow.schema + fmt.Sprintf(`;
		CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL);
		INSERT INTO account SELECT number, 0 FROM generate_series(0, %d) number;
		CREATE TABLE ledger (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account integer NOT NULL, amount bigint NOT NULL,
			reference text NOT NULL, booked_at timestamptz NOT NULL DEFAULT now());
		ANALYZE account`, accounts-1),
	work: func(ctx context.Context, tx pgx.Tx) error {
		if err := oneRow.work(ctx, tx); err != nil {
			return err
		}
		account := rand.N(accounts)
		tag, err := tx.Exec(ctx, `UPDATE account SET balance = balance - $1 WHERE id = $2`, businessRow[1], account)
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("account %d: %s", account, tag)
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO ledger (account, amount, reference) VALUES ($1, $2, $3)`,
			account, businessRow[1], businessRow[0])
		return err
	},
	counts: []string{
		`SELECT count(*) FROM ledger`, fmt.Sprintf(`SELECT (-sum(balance) / %d)::bigint FROM account`, businessRow[1]),
	},
}

// create makes the tables of the business.
func (b *pgBusiness) create(ctx context.Context, s *pgSite) error {
	if _, err := s.pool.Exec(ctx, b.schema); err != nil {
		return err
	}
	_, err := s.pool.Exec(ctx, fillPayments, accounts, s.rows)
	return err
}

// check makes sure that the work was done once for each operation.
func (b *pgBusiness) check(ctx context.Context, s *pgSite, done int64) error {
	for _, query := range b.counts {
		if err := s.expect(ctx, done, query); err != nil {
			return err
		}
	}
	return s.expect(ctx, done+s.rows, `SELECT count(*) FROM payment`)
}

// plainly does the work in a transaction without protection: BEGIN, the statements and COMMIT, each a round trip.
func (b *pgBusiness) plainly(ctx context.Context, s *pgSite) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return b.work(ctx, tx) })
}

// openPlain is the business without protection.
func (b *pgBusiness) openPlain(ctx context.Context, s *pgSite) (*arena, error) {
	return &arena{
		operate: func(ctx context.Context) error { return b.plainly(ctx, s) },
		check:   func(ctx context.Context, done int64) error { return b.check(ctx, s, done) },
	}, b.create(ctx, s)
}
